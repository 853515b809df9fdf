"""For tests of agents, eval sets, configs and criteria.

Run an agent as a test, as with ADK's ``AgentEvaluator``; only the import changes::

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

Check a report or a run against a gate policy::

    from mlflow_adk_eval.testing import assert_gate

    def test_the_agent_is_good_enough() -> None:
        assert_gate(adk_eval.evaluate("refunds.evalset.json", agent="refund_agent"), "gate.yaml")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow_adk_eval.testing.assert_gate import assert_gate
    from mlflow_adk_eval.testing.evaluator import AgentEvaluator, evaluate_agent
    from mlflow_adk_eval.testing.judge import Answer, Refused, Request, ScriptedJudge, Unavailable, answer_for

__all__ = ["AgentEvaluator", "Answer", "Refused", "Request", "ScriptedJudge", "Unavailable", "answer_for", "assert_gate", "evaluate_agent"]

_ELSEWHERE = {"AgentEvaluator": "evaluator", "evaluate_agent": "evaluator", "assert_gate": "assert_gate"}
_MODULE_OF = dict.fromkeys(__all__, "judge") | _ELSEWHERE


def __getattr__(name: str) -> Any:
    """Import a public name's module when the name is first used: pytest loads this package in every session."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
