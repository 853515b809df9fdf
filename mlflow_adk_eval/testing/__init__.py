"""For tests of agents, eval sets, configs and criteria.

An agent as a test, as with ADK's ``AgentEvaluator``, of which only the import changes::

    from mlflow_adk_eval.testing import AgentEvaluator

    async def test_home_automation() -> None:
        await AgentEvaluator.evaluate("home_automation_agent", "tests/evals")

A judge that follows a script needs no network, no keys and no model::

    from mlflow_adk_eval.testing import ScriptedJudge

    def test_refund_cases_need_a_reference() -> None:
        judge = ScriptedJudge({"final_response_match_v2": "valid", "hallucinations_v1": "supported"})
        report = adk_eval.score("refunds.evalset.json", "recorded.json", "test_config.json", judge=judge)
        assert report.passed
        assert all("refund" in request.text for request in judge.requests)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mlflow_adk_eval.testing.judge import Answer, Refused, Request, ScriptedJudge, Unavailable, answer_for

if TYPE_CHECKING:
    from mlflow_adk_eval.testing.evaluator import AgentEvaluator, evaluate_agent

__all__ = ["AgentEvaluator", "Answer", "Refused", "Request", "ScriptedJudge", "Unavailable", "answer_for", "evaluate_agent"]

_HOMES = {"AgentEvaluator": "evaluator", "evaluate_agent": "evaluator"}


def __getattr__(name: str) -> Any:
    """Import what runs agents when it is first used."""
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
