"""What a judge's answers are kept under: its address, and for a server of the user's own, what tells the model that answers there.

Whoever serves models under a name of their choice may serve other weights under it tomorrow. Old answers must not stand for those, so
the server is asked what it serves before anything is looked up; a ``revision`` in the judge's settings takes the place of that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol, cast

import anyio

from mlflow_adk_eval.judge.protocol import Answers, Judge, SharedAnswers, Unavailable, reached

_AGAIN_AFTER_S = 5.0
"""A server that could not be reached is not asked again before that, in seconds."""


class _Telling(Protocol):
    """A judge that can tell which model answers."""

    async def fingerprint(self) -> str:
        """Return what tells the model; empty where nothing does."""
        ...


class Identity:
    """The identity of one judge in one evaluation, found out when it is first needed."""

    def __init__(self, judge: Judge, answers: Answers | None = None, *, scope: str | None = None) -> None:
        """Begin without having asked.

        Args:
            judge: whose answers are kept.
            answers: the ledger, which remembers what was served before.
            scope: what the answers of a judge without an address are kept under; ``None``: they are not kept.
        """
        self._judge = judge
        self._answers = answers
        self._scope = scope
        self._fingerprint = None if hasattr(judge, "fingerprint") else ""
        self._failed_at: float | None = None
        self._lock: anyio.Lock | None = None
        self.note = ""
        """That another model answers now than before; empty where nothing tells."""

    async def address(self, settings: Mapping[str, Any]) -> str | None:
        """Return what answers are kept under; ``None``: nothing tells, so they are not kept.

        Args:
            settings: ``judge_model_config``; its ``revision`` is part of every question's own address.
        """
        place = self._judge.address
        if not place or settings.get("revision"):
            return place or self._scope
        if self._fingerprint is None:
            self._lock = self._lock or anyio.Lock()
            async with self._lock:
                if self._fingerprint is None:
                    await self._ask(place)
        if self._fingerprint is None:
            return None
        return f"{place} ({self._fingerprint})" if self._fingerprint else place

    async def _ask(self, place: str) -> None:
        now = anyio.current_time()
        if self._failed_at is not None and now < self._failed_at + _AGAIN_AFTER_S:
            return
        try:
            found = await cast("_Telling", self._judge).fingerprint()
        except Unavailable:
            self._failed_at = anyio.current_time()
            return
        if found and isinstance(self._answers, SharedAnswers):
            await self._remember(place, found, self._answers)
        self._fingerprint = found

    async def _remember(self, place: str, found: str, answers: SharedAnswers) -> None:
        """Keep what is served, and note whether that was something else the last time."""
        name, remote = f"model: {place}", answers.shared
        account = await reached(lambda: answers.account(name), remote=remote)
        if account is None:
            return
        before = json.loads(account.body) if account.body else found
        if before != found:
            self.note = (
                f"{place} serves another model than when its answers were last kept (fingerprint {found}, before {before}), "
                "so it was asked anew"
            )
        if before != found or not account.body:
            await reached(lambda: answers.set_account(name, json.dumps(found), version=account.version), remote=remote)
