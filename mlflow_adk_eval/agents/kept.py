"""Conversations that a ledger keeps, so that an interrupted evaluation need not have them again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from mlflow_adk_eval.agents.base import Played
from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.evalset.digest import canonical, canonical_json
from mlflow_adk_eval.ledger import Ledger

_PLAYED = TypeAdapter(Played)


@dataclass(frozen=True, slots=True)
class KeptPlays:
    """The conversations of one evaluation."""

    ledger: Ledger
    run_id: str
    agent: str
    """The name of the agent that has them."""

    def get(self, case: EvalCase, run_index: int, /) -> Played | None:
        """Return what came of a conversation, if it is known."""
        kept = self.ledger.play(self.run_id, self._key(case, run_index))
        return None if kept is None else _PLAYED.validate_python(from_json(kept))

    def keep(self, case: EvalCase, run_index: int, played: Played, /) -> None:
        """Keep a conversation."""
        self.ledger.keep_play(self.run_id, self._key(case, run_index), _dumped(played))

    def _key(self, case: EvalCase, run_index: int) -> str:
        """Return the hash, in hex, of all that a conversation depends on but the agent's version and chance."""
        return hashlib.sha256(canonical_json([canonical(case), run_index, self.agent])).hexdigest()


def _dumped(played: Played) -> bytes:
    """Return a conversation as JSON. An agent's state may hold anything; what JSON has no word for is kept as its text."""
    value: dict[str, Any] = {
        "actual": [turn.model_dump(mode="json", exclude_unset=True) for turn in played.actual],
        "session_state": played.session_state,
        "error": played.error,
        "unfinished": played.unfinished,
    }
    return to_json(value, fallback=repr)
