"""Stores that dawdle or die at chosen moments, and what must hold of a claim log whatever happened."""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.promotion.claim_log import Claim, ClaimLog, ClaimParams, Confirmation, End, Outcome, key_of, text_of
from mlflow_adk_eval.gating.promotion.record import Record, RegisteredModel, Target, Version, VersionId
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.runs.manifest import Evidence


class Watched(MlflowStore):
    """A store that tells, before and after each step, how many there were."""

    def __init__(self, uri: str, watch: Callable[[str], None]) -> None:
        super().__init__(uri, uri)
        self.watch = watch

    def _watched(self, step: str, call: Callable[[], Any]) -> Any:
        self.watch(f"before {step}")
        found = call()
        self.watch(f"after {step}")
        return found

    def claims(self, name: str) -> ClaimParams:
        return self._watched("claims", lambda: super(Watched, self).claims(name))

    def version(self, name: str, version: str, model: RegisteredModel | None = None) -> Version:
        return self._watched("version", lambda: super(Watched, self).version(name, version, model))

    def model(self, name: str) -> RegisteredModel:
        return self._watched("model", lambda: super(Watched, self).model(name))

    def evidence(self, run_id: str) -> Evidence:
        return self._watched("evidence", lambda: super(Watched, self).evidence(run_id))

    def claim(self, name: str, key: str, text: str) -> str:
        return self._watched(f"claim {'.'.join(key.split('.')[1:3])}", lambda: super(Watched, self).claim(name, key, text))

    def write(self, record: Record) -> None:
        self._watched("write", lambda: super(Watched, self).write(record))

    def tag(self, target: Target, tags: Mapping[str, str]) -> None:
        self._watched("tag", lambda: super(Watched, self).tag(target, tags))

    def untag(self, target: Target, key: str) -> None:
        self._watched("untag", lambda: super(Watched, self).untag(target, key))

    def set_alias(self, target: Target) -> None:
        self._watched("set_alias", lambda: super(Watched, self).set_alias(target))


class Dying:
    """Ends the process after a step, the first or a later one of its name, without any of what Python does at the end."""

    def __init__(self, step: str) -> None:
        self.step, _, times = step.partition(" x")
        self.left = int(times or 1)

    def __call__(self, step: str) -> None:
        self.left -= step == self.step
        if not self.left:
            os._exit(9)


class Dawdling:
    """Waits a little between the steps, now and then long; notes when the steps were."""

    def __init__(self, seed: int, *, longest_s: float = 0.02) -> None:
        self.luck, self.longest_s = random.Random(seed), longest_s
        self.times: list[tuple[str, float]] = []

    def __call__(self, step: str) -> None:
        self.times.append((step, time.monotonic()))
        if self.luck.random() < 0.3:
            time.sleep(self.luck.random() ** 3 * self.longest_s)


def without_waiting_for_the_disk() -> None:
    """Make SQLite leave the writing to the operating system, in this process and its forks: the store is gone after the tests."""
    from sqlalchemy import Engine, event

    event.listen(Engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))


def claim_log_of(store: MlflowStore, name: str, alias: str = "champion") -> ClaimLog:
    return store.claim_log(name, alias)


def version_id(number: str, model_created_ms: int = 1) -> VersionId:
    """Return a version that no store has."""
    return VersionId(number=number, source="models:/m-1", created_ms=2, model_created_ms=model_created_ms)


def version_of(store: MlflowStore, name: str, number: str | None) -> VersionId | None:
    """Return a version as the registry has it, or one that it does not have."""
    try:
        return None if number is None else store.version(name, number).id
    except UsageError:
        return version_id(number or "")


def forge_claim(store: MlflowStore, name: str, outcome: Outcome | None = "done", *, alias: str = "champion", **values: Any) -> Claim:
    """Write the next claim, confirmed and ended, as anybody can who may write to MLflow and has no key.

    Args:
        store: where.
        name: the registered model.
        outcome: what came of it; ``None``: it is in progress.
        alias: the alias.
        values: what the claim says, its versions by their numbers.
    """
    store.open_claim_log(name)
    log = store.claim_log(name, alias)
    given = {"id": uuid.uuid4().hex, "kind": "promotion", "previous": None, "record": "r p 0", "by": "me", "at": store.now(name)}
    values |= {key: version_of(store, name, values[key]) for key in ("version", "previous") if key in values}
    claim = Claim(**{**given, "log": log.log, "model": name, "alias": alias, "number": log.next, "before": log.head, **values})
    store.claim(name, key_of(alias, claim.number), text_of(claim))
    if outcome is not None:
        store.claim(name, key_of(alias, claim.number, "go", claim.id), text_of(Confirmation(claim=claim.id, at=claim.at)))
        store.claim(name, key_of(alias, claim.number, "end", claim.id), text_of(End(claim=claim.id, outcome=outcome, at=claim.at)))
    return claim


def previous_in(claims: ClaimLog) -> list[str | None]:
    """Return the number of the version that each claim found to hold the alias."""
    return [entry.claim.previous and entry.claim.previous.number for entry in claims.entries]


def two_against_one(claims: ClaimLog, holder: VersionId | None, first: VersionId | None) -> list[str]:
    """Return where the alias was set twice against one champion, or against one that it never had by the claims."""
    found: list[str] = []
    before = first
    for entry in claims.moves(holder):
        if entry.claim.previous != before:
            found.append(f"claim {entry.number} is against {entry.claim.previous}, but {before} was champion")
        before = entry.claim.version
    return found
