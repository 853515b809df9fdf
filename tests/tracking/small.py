"""Small eval sets and agents for the tests of what is logged."""

from __future__ import annotations

from typing import Any

from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.criteria.coverage import coverage_of
from mlflow_adk_eval.evalset.models import AgentDetails, AppDetails, EvalSet, Invocation
from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY, Policy
from mlflow_adk_eval.gating.rules.comparable import ReevaluationRequest
from mlflow_adk_eval.results.report import CasesInMemory, Report
from mlflow_adk_eval.runs.examined import ReadableRun
from mlflow_adk_eval.runs.manifest import Evidence
from tests.kit import case_json, eval_set_json, turn_json

CONFIG = {"criteria": {"tool_trajectory_avg_score": 1.0, "response_match_score": 0.5}}


def turn(user: str, answer: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"intermediate_data": {"tool_uses": []}} | turn_json(user, answer, *calls)


def eval_set(cases: dict[str, list[dict[str, Any]]], eval_set_id: str = "rooms") -> EvalSet:
    listed = (case_json(eval_id, *turns) for eval_id, turns in cases.items())
    return EvalSet.model_validate(eval_set_json(*listed, eval_set_id=eval_set_id))


def rooms() -> EvalSet:
    """Three cases, five turns."""
    return eval_set(
        {
            "light": [turn("light on", "the light is on", ("switch", {"room": "hall"})), turn("thanks", "you are welcome")],
            "heat": [turn("21 degrees please", "it is set to 21 degrees", ("heat", {"to": 21}))],
            "both": [turn("all off", "all is off", ("switch", {"room": "all"})), turn("sure?", "yes, all is off")],
        }
    )


def many(turns: int, eval_set_id: str = "many") -> EvalSet:
    return eval_set(
        {f"case_{number:04}": [turn(f"question {number}", f"answer {number}", ("look", {"n": number}))] for number in range(turns)},
        eval_set_id,
    )


def expected_of(cases: EvalSet) -> dict[str, list[Any]]:
    """Return a recording in which the agent does what is expected; unlike the expectation, it knows who did it."""
    return {case.eval_id: [recorded(turn) for turn in case.conversation or ()] for case in cases.eval_cases}


def recorded(done: Invocation) -> Invocation:
    """Return a turn as something that an agent did: it knows which agent that was, since an eval set is no recording of itself."""
    return done.model_copy(update={"app_details": AppDetails(agent_details={"agent": AgentDetails(name="agent")})})


def answering(cases: EvalSet, **answers: Any) -> Any:
    """Return an agent that does what is expected, but for the cases that are named."""
    expected = {(case.eval_id, index): invocation for case in cases.eval_cases for index, invocation in enumerate(case.conversation or ())}

    def agent(text: str, session: Any) -> Any:
        answer = answers.get(session.eval_id, expected[session.eval_id, len(session.history)])
        if callable(answer):
            answer = answer(text, session)
        return {"final_response": answer} if isinstance(answer, str) else answer  # which says that no tool was called

    return agent


def reevaluation_request(cases: EvalSet, config: dict[str, Any], policy: Policy = DEFAULT_POLICY) -> ReevaluationRequest:
    """What a gate asks for where a champion has no run that could be judged again."""
    read = parse_config(config, "config")
    candidate = ReadableRun(
        evidence=Evidence(run_id="", status="FINISHED"),
        problems=(),
        report=Report(eval_set=cases, config=read, cases=CasesInMemory()),
        eval_set=cases,
        copies={},
        tags=[()] * len(cases.eval_cases),
        simulated=False,
        vote_sources={},
        coverage=coverage_of(read, cases.eval_cases),
    )
    return ReevaluationRequest(model_id="m-1", agent_version="models:/helper/1", run_id="", candidate=candidate, policy=policy, reasons=())
