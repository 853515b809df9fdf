"""What a judge's answers are kept under: its address, and for a server of the user's own, what tells the model that answers there.

Whoever serves models under a name of their choice may serve other weights under it tomorrow. Old answers must not stand for those, so
the server is asked what it serves before anything is looked up; a ``revision`` in the judge's settings takes the place of that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from mlflow_adk_eval.judge.client import JudgeClient
from mlflow_adk_eval.judge.protocol import Answers, ResolvedJudge, Unavailable, reached


@dataclass(slots=True)
class Identity:
    """The identity of one judge in one evaluation, found out when it is first needed."""

    judge: ResolvedJudge
    """Whose answers are kept."""
    answers: Answers | None = None
    """The ledger, which remembers what was served before."""
    scope: str | None = None
    """What the answers of a judge without an address are kept under; ``None``: they are not kept."""
    note: str = ""
    """That another model answers now than before; empty where nothing tells."""
    _fingerprint: str | None = None
    _failed_at: float = -math.inf
    _lock: anyio.Lock | None = None

    async def address(self, settings: Mapping[str, Any]) -> str | None:
        """Return what answers are kept under; ``None``: nothing tells, so they are not kept.

        Args:
            settings: ``judge_model_config``; its ``revision`` is part of every question's own address.
        """
        place = self.judge.address
        if not place or settings.get("revision"):
            return place or self.scope
        if self._fingerprint is None:
            self._lock = self._lock or anyio.Lock()
            async with self._lock:
                if self._fingerprint is None:
                    await self._ask(place)
        if self._fingerprint is None:
            return None
        return f"{place} ({self._fingerprint})" if self._fingerprint else place

    async def _ask(self, place: str) -> None:
        """Ask what is served, and note whether that was something else the last time, if the ledger remembers."""
        if anyio.current_time() < self._failed_at + 5.0:  # it could not be reached a moment ago
            return
        try:
            fingerprint = await self.judge.fingerprint()
        except Unavailable:
            self._failed_at = anyio.current_time()
            return
        if fingerprint and (answers := self.answers) is not None:
            name = f"model: {place}"
            account = await reached(answers, lambda: answers.account(name))
            before = json.loads(account.body) if account and account.body else fingerprint
            if before != fingerprint:
                prints = f"(fingerprint {fingerprint}, before {before})"
                self.note = f"{place} serves a different model than when its answers were stored {prints}, so it was asked again"
            if account and (before != fingerprint or not account.body):
                await reached(answers, lambda: answers.set_account(name, json.dumps(fingerprint), version=account.version))
        self._fingerprint = fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedModel:
    """A model with its settings, as what is asked of it needs it."""

    judge: ResolvedJudge
    client: JudgeClient
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """``judge_model_config`` or ``model_configuration``."""
    identity: Identity
    """What its answers are kept under."""
    prompts: dict[str, str] = field(default_factory=dict[str, str])
    """The hash of each prompt that was used, by its name and version."""
