"""Taking an alias back to a version that held it before and whose record still verifies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY
from mlflow_adk_eval.gating.promotion.claim import (
    PATIENCE,
    AliasLock,
    Overtaken,
    Patience,
    alias_moved,
    version_changed,
)
from mlflow_adk_eval.gating.promotion.claims import ClaimLog, read_claim_log
from mlflow_adk_eval.gating.promotion.record import TAG, Record, doubted, signed
from mlflow_adk_eval.gating.promotion.signing import Verifier, load_signer, load_verifier
from mlflow_adk_eval.gating.promotion.target import check_alias, check_version, named
from mlflow_adk_eval.gating.promotion.verify import Standing, standing
from mlflow_adk_eval.gating.store import Store
from mlflow_adk_eval.results.decision import Decision, GateFailed

LAST = f"{TAG}.last_rollback"
"""Where a version says that the alias was taken back to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Where an alias was taken back to, or why it was not."""

    model: str
    alias: str
    kind: Literal["rollback", "restore"] = "rollback"
    previous: str | None
    """The version that held the alias."""
    version: str | None
    """The version that it was taken back to, or in a dry run would be; ``None``: there is none, or it was not moved."""
    decision: Decision
    """*passed* if it was moved, or would be, with what speaks for the version; else why not."""

    def __str__(self) -> str:
        """Return what happened as a sentence."""
        if self.version is None:
            return f"{self.alias} of {self.model!r} stays at {named(self.previous)}"
        return f"{self.alias} of {self.model!r} goes back from {named(self.previous)} to version {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How an alias is to be taken back."""

    store: Store
    name: str
    alias: str
    kind: Literal["rollback", "restore"]
    reason: str
    verifier: Verifier | None = None
    patience: Patience = PATIENCE

    def back(self, to: str | None = None, *, dry_run: bool = False) -> Move:
        """Take the alias back to the last version before that verifies, or to a given one if that does.

        Raises:
            UsageError: if there is no such model.
        """
        ledger = read_claim_log(self.store.ledger(self.name), self.alias)  # first: whoever claims after this is noticed
        holder = self.store.aliases(self.name).get(self.alias)
        if self.kind == "restore" and holder is not None and self._standing(holder).decision.passed:
            return self._stay(holder, [f"version {holder}, which holds the alias {self.alias} by now, verifies"])
        problems: list[str] = []
        for version in [to] if to else _former(ledger, holder):
            found = self._standing(version) if version != holder else Standing(decision=_undecided("it holds it already"))
            if found.record is not None and found.decision.passed:
                return self._move(ledger, holder, replace(found.record, decision=signed(found.decision)), dry_run=dry_run)
            problems += [f"version {version} cannot hold the alias {self.alias}: {reason}" for reason in found.decision.reasons]
        return self._stay(holder, problems or [f"no version of {self.name!r} that held the alias {self.alias} before is in its ledger"])

    def _standing(self, version: str) -> Standing:
        try:
            return standing(self.store, self.name, version, self.alias, verifier=self.verifier)
        except UsageError as error:
            return Standing(decision=_undecided(str(error)))

    def _stay(self, holder: str | None, problems: Sequence[str], decision: Decision | None = None) -> Move:
        refused = doubted(decision or _undecided(), problems)
        return Move(model=self.name, alias=self.alias, kind=self.kind, previous=holder, version=None, decision=signed(refused))

    def _move(self, ledger: ClaimLog, holder: str | None, passed: Record, *, dry_run: bool) -> Move:
        """Set the alias; the record of this holds what the record of the pass comes to today."""
        record = replace(passed, kind=self.kind, previous=holder, claim=ledger.next, reason=self.reason)
        done = Move(
            model=self.name, alias=self.alias, kind=self.kind, previous=holder, version=record.target.version, decision=record.decision
        )
        if dry_run:
            return done
        fence = AliasLock(
            store=self.store,
            record=record,
            ledger=ledger,
            slow_looks=lambda: (),
            last_looks=lambda: [*version_changed(self.store, record), *alias_moved(self.store, record)],
            prepare=lambda: None,
            patience=self.patience,
        )
        try:
            return fence.carry_out(lambda problem: self._finish(record, problem) or done)
        except Overtaken as other:
            return self._stay(holder, [str(other)], record.decision)

    def _finish(self, record: Record, problem: str) -> Move | None:
        """Note on both versions what happened; return what became of it, if not what was wanted."""
        if problem:
            return self._stay(record.previous, [problem], record.decision)
        with suppress(UsageError):  # a version that was deleted at once needs no tags
            self.store.tag(record.target, record.tags(LAST) | {f"{LAST}.reason": self.reason, LAST: self.kind})
        if self.kind == "rollback" and record.previous is not None:
            left = replace(record.target, version=record.previous)
            told = f"for version {record.target.version} by {record.decision.decided_by} at {record.decision.decided_at}: {self.reason}"
            with suppress(UsageError):
                self.store.tag(left, {f"{TAG}.given_up.{self.alias}": told})
        return None


def _former(ledger: ClaimLog, holder: str | None) -> Iterator[str]:
    """Yield the versions that held the alias before the present one, the last one first."""
    yield from dict.fromkeys(version for version in reversed(ledger.held(holder)) if version != holder)


def _undecided(*reasons: str) -> Decision:
    return Decision(verdict="undecided", reasons=reasons, run_id="", evidence_sha256="", policy_sha256=DEFAULT_POLICY.digest())


def rollback(  # noqa: PLR0913 - which alias, where to, why, in which store
    name: str,
    alias: str = "champion",
    *,
    reason: str,
    to: int | str | None = None,
    dry_run: bool = False,
    raise_on_failure: bool = True,
    signing_key: str | Path | None = None,
    verify_key: str | Path | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> Move:
    """Take an alias back to the version that held it before and whose record still verifies, and record that.

    A version from which somebody went back does not verify until it is promoted anew.

    Args:
        name: the registered model.
        alias: the alias.
        reason: why, for the record.
        to: the version; ``None``: the last one before the present one whose record verifies.
        dry_run: whether to say only which version that would be.
        raise_on_failure: whether it is an error if the alias stays where it is.
        signing_key: signs the record, as for `promote`.
        verify_key: the key by which the version's record must be signed; ``None``: as ``MLFLOW_ADK_EVAL_VERIFY_KEY`` says.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.
        registry_uri: where the registry is; ``None``: as MLflow is configured.

    Raises:
        GateFailed: if there is no such version, or the alias was moved by somebody else meanwhile.
        UsageError: if the model does not exist, no reason is given, or a key is none.
        TrackingError: if MLflow cannot be reached.
    """
    from mlflow_adk_eval.gating.mlflow_store import MlflowStore, reaching_mlflow  # noqa: PLC0415 - only the public functions need MLflow

    if not reason.strip():
        raise UsageError("rollback: no reason is given")
    check_alias(alias)
    if to is not None:
        check_version(str(to))
    signer, verifier = load_signer(signing_key), load_verifier(verify_key)
    with reaching_mlflow():
        store = MlflowStore(tracking_uri, registry_uri, signer=signer)
        way = Way(store=store, name=name, alias=alias, kind="rollback", reason=reason.strip(), verifier=verifier)
        move = way.back(None if to is None else str(to), dry_run=dry_run)
    if raise_on_failure and not move.decision.passed:
        raise GateFailed(move.decision)
    return move
