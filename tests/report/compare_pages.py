"""Comparisons for the tests of their page: one with everything in it, and one whose every text is somebody's attack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlflow_adk_eval import EvalConfig, EvalSet, Invocation, Vote, score
from mlflow_adk_eval.analysis.comparison.compare import Comparison, compared
from mlflow_adk_eval.analysis.comparison.runs import ComparedRun, compared_run
from mlflow_adk_eval.config.spec import RubricSettings
from mlflow_adk_eval.criteria.final_state import FinalStateSettings
from mlflow_adk_eval.criteria.hallucinations import HallucinationsSettings
from mlflow_adk_eval.criteria.trajectory import ToolTrajectorySettings
from mlflow_adk_eval.evalset.conversation import Origin
from mlflow_adk_eval.evalset.models import Rubric
from mlflow_adk_eval.report.html.compare import compare_html
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Errored, Outcome, Scored
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.testing import ScriptedJudge
from tests.kit import case_result, turn_json
from tests.report.pages import CONFIG, QUALITY, rooms

TRAJECTORY, STATE, GROUNDED = "tool_trajectory_avg_score", "final_session_state", "hallucinations_v1"


def comparison() -> Comparison:
    """Compare an agent that does as it should with that of `rooms`: *lamp* now fails, *lost* is lost, *good* is as it was."""
    cases, actual = rooms()
    perfect = {case.eval_id: case.conversation for case in cases.eval_cases}
    before, after = (score(cases, found, CONFIG, judge=ScriptedJudge("yes", rationale="It says *please*.")) for found in (perfect, actual))
    return compared(compared_run(before, "monday"), compared_run(after, "tuesday"))


def page(found: Comparison, **given: Any) -> str:
    """Return the page of a comparison."""
    return compare_html(found, **({"secrets": {}} | given))


def hostile_page(text: str) -> str:
    """Return the page on which everything that can be somebody's text is `text`."""
    return page(hostile(text), every=True)


def hostile(text: str) -> Comparison:
    """Return a comparison whose every text is `text`, with a flip for the worse, another without a score, and cases that are not paired."""
    before, after = (_side(text, worse=worse) for worse in (False, True))
    return compared(before, after)


def _side(text: str, *, worse: bool) -> ComparedRun:
    names = {"worse": text, "lost": f"{text} lost", "alone": f"{text} {'after' if worse else 'before'}", "edited": f"{text} edited"}
    cases = tuple(_case(text, eval_id, worse=worse, lost=name == "lost") for name, eval_id in names.items())
    plans = [{"eval_id": name, "conversation": [_turn(text, f"{worse}" if name == names["edited"] else "")]} for name in names.values()]
    report = Report(
        eval_set=EvalSet.model_validate({"eval_set_id": f"{text} {worse}", "eval_cases": plans}),
        config=_config(text, worse=worse),
        cases=cases,
        judging=JudgeUsage(models=(f"{text} {worse}",)),
        origin=Origin(agent=text, agent_version=f"{text} {worse}"),
        baseline=f"{text} {worse}",
    )
    return replace(compared_run(report, text), run_id=text, warnings=(text,))


def _config(text: str, *, worse: bool) -> EvalConfig:
    rubric = Rubric.model_validate({"rubric_id": text, "rubric_content": {"text_property": f"{text} {worse}"}})
    return EvalConfig(
        criteria={
            TRAJECTORY: ToolTrajectorySettings(threshold=1.0),
            QUALITY: RubricSettings(threshold=1.0, rubrics=(rubric,)),
            GROUNDED: HallucinationsSettings(threshold=1.0),
            STATE: FinalStateSettings(threshold=1.0),
        }
    )


def _turn(text: str, more: str = "") -> Any:
    call = {"name": text, "args": {text: [text, {text: text}]}}
    return turn_json(f"{text}{more}", text, call)


def _case(text: str, eval_id: str, *, worse: bool, lost: bool) -> CaseResult:
    done = _turn(text)
    if worse:
        done["final_response"] = {"parts": [{"text": f"{text} other words. {text}"}]}
        calls = [{"name": text, "args": {text: [text, {text: f"{text} 2"}]}}, {"name": f"{text} 2", "args": {"path": text}}]
        done["intermediate_data"] = {"tool_uses": calls}
    outcome = Errored(text) if lost and worse else Scored(0.0 if worse else 1.0, _reason(text, worse=worse))
    names = (TRAJECTORY, QUALITY, GROUNDED, STATE, text)
    return case_result(
        eval_id=eval_id,
        run_index=0,
        actual=(Invocation.model_validate(done),),
        expected=(Invocation.model_validate(_turn(text)),),
        results=tuple(_result(name, outcome, text, eval_id, worse=worse) for name in names),
        error=text if lost and worse else "",
    )


def _reason(text: str, *, worse: bool) -> str:
    line = " ".join(text.split())
    state = f"- `$.{line}`: expected {line}, got {line} 2" if worse else ""
    return f"{text}\n- {'✗' if worse else '✓'} final #1 (no 2:1) “{line}”: {text}\n{state}"


def _result(name: str, outcome: Outcome, text: str, eval_id: str, *, worse: bool) -> CriterionResult:
    label = "no" if worse else "yes"
    votes = tuple(
        Vote(
            eval_id=eval_id, run_index=0, invocation_index=0, criterion=name, rubric_id="final #1" if name == GROUNDED else text,
            vote_index=index, verdict=verdict, explanation=text, model=text, latency_s=0.1, input_tokens=1, output_tokens=1, error="",
        )
        for index, verdict in enumerate([label, label, text])
    )  # fmt: skip
    return CriterionResult(name, 1.0, True, outcome, (outcome,), votes)  # noqa: FBT003
