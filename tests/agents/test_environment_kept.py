"""A conversation that is kept belongs to the tools that it was had with."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlflow_adk_eval.agents.recordings import ConversationCache
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.ledger import CallCache, StartedRun
from tests.agents.environments import ERROR, config_of, injecting
from tests.kit import case, turn


def test_other_tools_make_another_conversation(tmp_path: Path) -> None:
    case_of, played = case("c1", turn()), Conversation(actual=(turn(),))
    with CallCache(tmp_path / "ledger.sqlite") as ledger:
        about: dict[str, Any] = dict.fromkeys(("eval_set_digest", "config_digest", "agent_name", "agent_version"), "x")
        ledger.begin(StartedRun(run_id="run", started_at=datetime.now(UTC), **about))
        failing, real = (ConversationCache(ledger, "run", "agent", config_of(given)) for given in (injecting(book=ERROR), None))
        failing.keep(case_of, 0, played)
        assert failing.get(case_of, 0) == played
        assert real.get(case_of, 0) is None
        in_this_case = config_of(case_environments={"c1": injecting(book=ERROR), "c2": injecting(find=ERROR)})
        assert ConversationCache(ledger, "run", "agent", in_this_case).get(case_of, 0) == played
