"""Conversations that a ledger keeps, so that an interrupted evaluation need not have them again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pydantic import ValidationError

from mlflow_adk_eval.agents.protocol import Played
from mlflow_adk_eval.agents.recordings.serialize import played_of, recorded_run
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.evalset.digest import canonical, canonical_json
from mlflow_adk_eval.evalset.recording import RecordedRun, dumps_recorded
from mlflow_adk_eval.ledger import Ledger


@dataclass(frozen=True, slots=True)
class KeptPlays:
    """The conversations of one evaluation."""

    ledger: Ledger
    run_id: str
    agent: str
    """The name of the agent that has them."""
    config: EvalConfig
    """What its tools are to be, and who plays its users."""

    def get(self, case: EvalCase, run_index: int, /) -> Played | None:
        """Return what came of a conversation, if it is known. What another version of this package kept may have to be had again."""
        kept = self.ledger.play(self.run_id, self._key(case, run_index))
        try:
            return None if kept is None else played_of(RecordedRun.model_validate_json(kept))
        except ValidationError:
            return None

    def keep(self, case: EvalCase, run_index: int, played: Played, /) -> None:
        """Keep a conversation."""
        self.ledger.keep_play(self.run_id, self._key(case, run_index), dumps_recorded(recorded_run(played), indent=None).encode())

    def _key(self, case: EvalCase, run_index: int) -> str:
        """Return the hash, in hex, of all that a conversation depends on but the agent's version and chance."""
        environment = self.config.environment_of(case.eval_id)
        user = self.config.user_simulator_config if case.conversation is None else None
        surroundings = [canonical(settings) for settings in (environment, user) if settings is not None]
        return hashlib.sha256(canonical_json([canonical(case), run_index, self.agent, *surroundings])).hexdigest()
