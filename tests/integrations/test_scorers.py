"""Criteria as scorers of mlflow.genai, in real evaluations on a SQLite store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlflow
import pytest
from mlflow.entities import AssessmentSource

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval import scorers
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import EvalSet, Invocation
from mlflow_adk_eval.integrations.agent_functions import genai_data
from mlflow_adk_eval.judge.protocol import Refused, Request
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.shapes.records import outputs_of
from mlflow_adk_eval.testing import Answer, ScriptedJudge, answer_for
from tests.integrations.genai import QUIET, errors_of, feedback_of, genai_store, traces_of, values_of
from tests.tracking.small import rooms, turn

pytestmark = QUIET

TRAJECTORY, ROUGE, MATCH, RUBRICS, CALLS = (
    "tool_trajectory_avg_score",
    "response_match_score",
    "final_response_match_v2",
    "rubric_based_final_response_quality_v1",
    "tool_call_count_v1",
)
POLITE = {"rubric_id": "polite", "rubric_content": {"text_property": "The answer is polite."}}
store = genai_store
CONFIG: dict[str, Any] = {
    "criteria": {
        TRAJECTORY: 1.0,
        ROUGE: 0.5,
        MATCH: {"threshold": 0.5, "judge_model_options": {"num_samples": 3}},
        RUBRICS: {"threshold": 0.5, "rubrics": [POLITE]},
        CALLS: 1,
    }
}
LONG = "| claim | verdict |\n|---|---|\n| *the light* | ✅ 😀 |\n\n<b>no tag</b> & " + "x" * 200_000
ONCE = JudgeOptions(attempts=1)
DONE = {
    "light": [turn("light on", "the light is on", ("switch", {"room": "hall"})), turn("thanks", "my pleasure")],
    "heat": [turn("21 degrees please", "it is set to 20 degrees", ("heat", {"to": 20}), ("heat", {"to": 21}))],
    "both": [turn("all off", "all is off", ("switch", {"room": "all"})), turn("sure?", "yes, all is off")],
}


def judging(request: Request) -> Answer | Exception:
    """Be down for one case, and verbose about the others."""
    if request.name.startswith(MATCH) and "21 degrees" in request.text:
        return Refused("503 the judge is down")
    return answer_for(request, "yes" if request.name.startswith(RUBRICS) else "valid", LONG)


def recorded(eval_set: EvalSet) -> list[dict[str, Any]]:
    """Return each case as a row with what the agent did."""
    done = {name: tuple(Invocation.model_validate(one) for one in turns) for name, turns in DONE.items()}
    return [row | {"outputs": outputs_of(Conversation(actual=done[row["inputs"]["eval_id"]]))} for row in genai_data(eval_set)]


@dataclass(frozen=True)
class Found:
    """An evaluation, and the same by `score`."""

    result: Any
    report: Report
    judge: ScriptedJudge

    def by_case(self, what: Any) -> dict[str, Any]:
        return {trace.data.spans[0].inputs["eval_id"]: what(trace, self.result.run_id) for trace in traces_of(self.result.run_id)}


@pytest.fixture(scope="module")
def found(store: str) -> Found:
    judge = ScriptedJudge(judging, model="gemini-9")
    made = scorers.from_config(CONFIG, judge=judge, judge_options=ONCE)
    result = mlflow.genai.evaluate(data=recorded(rooms()), scorers=[*made, *scorers.expectations()])
    report = adk_eval.score(rooms(), DONE, CONFIG, judge=ScriptedJudge(judging, model="gemini-9"), judge_options=ONCE, ledger=False)
    return Found(result, report, judge)


def test_there_is_one_scorer_for_each_criterion_in_the_order_of_the_config(store: str) -> None:
    made = scorers.from_config(CONFIG, judge=ScriptedJudge("valid"))
    assert [one.name for one in made] == list(CONFIG["criteria"])


@pytest.mark.parametrize("criterion", list(CONFIG["criteria"]))
def test_every_stored_value_is_that_of_score(found: Found, criterion: str) -> None:
    wanted = {case.eval_id: {one.criterion: one.score for one in case.results}[criterion] for case in found.report.cases}
    assert {eval_id: values[criterion] for eval_id, values in found.by_case(values_of).items()} == wanted
    assert set(wanted.values()) - {None}


def test_a_judge_that_is_down_for_a_row_is_an_error_of_that_row_and_no_zero(found: Found) -> None:
    errors = found.by_case(errors_of)
    assert errors["light"] == errors["both"] == {}
    code, message = errors["heat"][MATCH]
    assert code == "JUDGE_ERROR"
    assert "503 the judge is down" in message
    assert set(errors["heat"]) == {MATCH}


def test_mean_is_logged_over_the_rows_that_have_a_score(found: Found) -> None:
    means = {name: float(value) for name, value in found.result.metrics.items()}
    scores = {
        name: [one.score for case in found.report.cases for one in case.results if one.criterion == name] for name in CONFIG["criteria"]
    }
    evaluated = {name: [score for score in values if score is not None] for name, values in scores.items()}
    assert means == pytest.approx({f"{name}/mean": sum(values) / len(values) for name, values in evaluated.items()})
    assert len(evaluated[MATCH]) == 2
    assert mlflow.get_run(found.result.run_id).data.metrics == pytest.approx(means)


def test_a_rationale_is_stored_word_for_word(found: Found) -> None:
    rationale = found.by_case(feedback_of)["light"][MATCH].rationale
    assert rationale == f"**turn 1: 1** valid 2:0: {LONG}\n\n**turn 2: 1** valid 2:0: {LONG}"


def test_feedback_says_who_decided_and_by_what(found: Found) -> None:
    light = found.by_case(feedback_of)["light"]
    assert light[MATCH].source == AssessmentSource("LLM_JUDGE", "gemini-9")
    assert light[TRAJECTORY].source == AssessmentSource("CODE", "mlflow_adk_eval")
    kept = {name: light[MATCH].metadata[name] for name in ("status", "threshold", "votes", "tally", "split")}
    assert kept == {"status": "scored", "threshold": "0.5", "votes": "4", "tally": "valid 2; valid 2", "split": "false"}
    assert light[TRAJECTORY].metadata["threshold"] == "1.0"
    assert "votes" not in light[TRAJECTORY].metadata
    heat = found.by_case(feedback_of)["heat"][MATCH]
    assert (heat.metadata["status"], heat.source) == ("errored", AssessmentSource("LLM_JUDGE", "gemini-9"))


def test_passed_is_about_criteria_and_says_which_failed(found: Found) -> None:
    assert not found.result.passed
    assert "503 the judge is down" in found.result.reason
    assert "expected_response" not in found.result.reason
    assert f"{CALLS}: " in found.result.reason  # two calls where one is allowed: lower is better


def test_no_vote_is_paid_for_twice(found: Found) -> None:
    assert len(found.judge.asked(RUBRICS)) == 15  # five turns, on each of which three of five votes decide
    assert len(found.judge.asked(MATCH)) < 5 * 3
