"""What a row does not say is unknown in every door: it has no score and no pass, and the reason names the key to write."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.entities import Feedback

from mlflow_adk_eval import metrics, scorers
from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.config.spec import Need
from mlflow_adk_eval.errors import EvalSetError
from mlflow_adk_eval.evalset.models import EvalCase
from mlflow_adk_eval.integrations.evaluator.evaluate import ModelAgent, compared
from mlflow_adk_eval.runtime import BACKGROUND
from mlflow_adk_eval.testing import ScriptedJudge
from tests.integrations.genai import QUIET, genai_store
from tests.kit import turn_json
from tests.shapes_kit import ASKED, SAID, examples

pytestmark = QUIET
store = genai_store

PAGES = Path(__file__).parents[2] / "docs"
TRAJECTORY, ROUGE, MATCH = "tool_trajectory_avg_score", "response_match_score", "final_response_match_v2"
SWITCH = {"name": "switch", "args": {"room": "hall"}}
CONFIG = {"criteria": {TRAJECTORY: 1.0, ROUGE: 0.5, MATCH: 0.5}}
NEEDS: dict[str, tuple[Need, ...]] = {
    TRAJECTORY: ("expected_calls", "calls"),
    ROUGE: ("expected_response",),
    MATCH: ("expected_response",),
}
NOTHING = [None, math.nan, np.nan, np.float32("nan"), Decimal("NaN"), pd.NA, pd.NaT]
ABSENT = object()
"""Stands for a key that is not there at all."""

Asked = Callable[[Mapping[Need, Any]], dict[str, str | float]]
"""A door: from what a row says to the score or the reason of each criterion."""


@pytest.fixture(autouse=True)
def _tracked(store: str) -> None:
    """Run on the module's store."""


def said(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not ABSENT}


def by_scorers(row: Mapping[Need, Any]) -> dict[str, str | float]:
    expectations = said(expected_response=row["expected_response"], expected_tool_calls=row["expected_calls"])
    outputs = said(response=SAID, tool_calls=row["calls"])
    found: dict[str, str | float] = {}
    for scorer in scorers.from_config(CONFIG, judge=ScriptedJudge("valid"), ledger=False):
        feedback = scorer(inputs={"query": ASKED}, outputs=outputs, expectations=expectations)
        assert isinstance(feedback, Feedback)
        found[scorer.name] = feedback.error.error_message if feedback.error else feedback.value
    return found


def by_metrics(row: Mapping[Need, Any]) -> dict[str, str | float]:
    columns = {"targets": row["expected_response"], "expected_tool_calls": row["expected_calls"], "tool_calls": row["calls"]}
    given = {name: [value] for name, value in columns.items() if value is not ABSENT}
    found: dict[str, str | float] = {}
    for metric in metrics.from_config(CONFIG, judge=ScriptedJudge("valid"), ledger=False):
        result = metric.eval_fn(predictions=[SAID], inputs=[ASKED], **given)
        found[metric.name] = result.scores[0] if result.scores[0] is not None else result.justifications[0]
        assert result.aggregate_results["pass_rate"] == (1.0 if result.scores[0] == 1.0 else 0.0)
    return found


def by_evaluator(row: Mapping[Need, Any]) -> dict[str, str | float]:
    """Refuse the whole table, as the evaluator does."""
    columns = said(targets=row["expected_response"], expected_tool_calls=row["expected_calls"], tool_calls=row["calls"])
    cells = {"eval_id": "c", "inputs": ASKED, "predictions": SAID, **columns}
    found: dict[str, str | float] = {}
    for name, threshold in CONFIG["criteria"].items():
        try:
            compared("t", [cells], load_config({"criteria": {name: threshold}}))
            found[name] = 1.0
        except EvalSetError as error:
            found[name] = str(error)
    return found


RECORD: dict[Need, str] = {
    "expected_response": "expectations.expected_response",
    "expected_calls": "expectations.expected_tool_calls",
    "calls": "outputs.tool_calls",
}
TABLE: dict[Need, str] = {"expected_response": "targets", "expected_calls": "expected_tool_calls", "calls": "tool_calls"}
DOORS: list[tuple[Asked, dict[Need, str], tuple[str, ...]]] = [
    (by_scorers, RECORD, ("how_to/genai.md", "reference/shapes.md")),
    (by_metrics, TABLE, ("how_to/mlflow_evaluate.md",)),
    (by_evaluator, TABLE, ("how_to/evaluator_plugin.md", "how_to/mlflow_evaluate.md")),
]
doors = pytest.mark.parametrize(("door", "words", "pages"), DOORS, ids=[door.__name__ for door, _, _ in DOORS])
WHOLE: dict[Need, Any] = {"expected_response": SAID, "expected_calls": [SWITCH], "calls": [SWITCH]}


@doors
def test_a_whole_row_passes(door: Asked, words: dict[Need, str], pages: tuple[str, ...]) -> None:
    assert door(WHOLE) == {TRAJECTORY: 1.0, ROUGE: 1.0, MATCH: 1.0}
    written = " ".join((PAGES / page).read_text() for page in pages)
    for place in words.values():
        assert place.rpartition(".")[2] in written


@doors
@pytest.mark.parametrize("need", list(WHOLE))
@pytest.mark.parametrize("nothing", [ABSENT, *NOTHING], ids=["absent", *map(repr, NOTHING)])
def test_what_is_missing_has_no_score_and_is_named_as_the_door_does(
    door: Asked, words: dict[Need, str], pages: tuple[str, ...], need: Need, nothing: Any
) -> None:
    for name, found in door({**WHOLE, need: nothing}).items():
        if need not in NEEDS[name]:
            assert found == 1.0
            continue
        assert isinstance(found, str)
        assert f"no {words[need]}" in found
        assert not any(f"no {other}" in found for other in words.values() if other != words[need])


@doors
@pytest.mark.parametrize("blank", ["", "  ", {"response": ""}, [""]], ids=repr)
def test_a_reference_without_a_text_is_none(door: Asked, words: dict[Need, str], pages: tuple[str, ...], blank: Any) -> None:
    found = door({**WHOLE, "expected_response": blank})
    assert found[TRAJECTORY] == 1.0
    for name in (ROUGE, MATCH):
        assert f"{words['expected_response']} without a text" in str(found[name])


UNREADABLE = ['{"bad', "[1]", 3, math.nan]


@pytest.mark.parametrize("arguments", UNREADABLE, ids=repr)
@pytest.mark.parametrize("example", [example for _, example in examples("Tool calls")], ids=[name for name, _ in examples("Tool calls")])
@pytest.mark.parametrize(("door", "words"), [(by_scorers, RECORD), (by_metrics, TABLE)], ids=["scorers", "metrics"])
@pytest.mark.parametrize("need", ["calls", "expected_calls"])
def test_arguments_that_are_none_cost_only_what_needs_calls(
    door: Asked, words: dict[Need, str], need: Need, example: Any, arguments: Any
) -> None:
    found = door({**WHOLE, need: [with_arguments(example, arguments)]})
    assert (found[ROUGE], found[MATCH]) == (1.0, 1.0)
    assert f"tool calls that cannot be read ($.{words[need]}[0]." in str(found[TRAJECTORY])


@pytest.mark.parametrize("arguments", ["", " ", "{}", "null", None, {}], ids=repr)
@pytest.mark.parametrize("example", [example for _, example in examples("Tool calls")], ids=[name for name, _ in examples("Tool calls")])
@pytest.mark.parametrize("door", [by_scorers, by_metrics])
def test_empty_arguments_are_none(door: Asked, example: Any, arguments: Any) -> None:
    call = with_arguments(example, arguments)
    expected = [{"name": "switch", "args": {}}]
    assert door({**WHOLE, "calls": [call], "expected_calls": expected})[TRAJECTORY] == 1.0
    assert door({**WHOLE, "calls": [call]})[TRAJECTORY] == 0.0


def with_arguments(example: Any, arguments: Any) -> Any:
    """Return an example of the page's calls with other arguments."""
    call = json.loads(json.dumps(example))
    place = call.get("function", call)
    place["arguments" if "arguments" in place else "args"] = arguments
    return call


CHAT = {"id": "c1", "type": "function", "function": {"name": "switch", "arguments": "{bad"}}
ANSWERS = {
    "chat": {"messages": [{"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID, "tool_calls": [CHAT]}]},
    "completion": {"choices": [{"message": {"role": "assistant", "content": SAID, "tool_calls": [CHAT]}}]},
    "message": {"role": "assistant", "content": SAID, "tool_calls": [CHAT]},
    "a number of calls": {"role": "assistant", "content": SAID, "tool_calls": 1},
    "response": {
        "output": [
            {"type": "function_call", "call_id": "c1", "name": "switch", "arguments": "{bad"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": SAID}]},
        ]
    },
}
answers = pytest.mark.parametrize("outputs", list(ANSWERS.values()), ids=list(ANSWERS))


@answers
def test_calls_of_messages_that_cannot_be_read_are_unknown(outputs: Any) -> None:
    expectations = {"expected_response": SAID, "expected_tool_calls": []}
    for scorer in scorers.from_config(CONFIG, judge=ScriptedJudge("valid"), ledger=False):
        feedback = scorer(inputs={"query": ASKED}, outputs=outputs, expectations=expectations)
        if scorer.name == TRAJECTORY:
            assert "tool calls that cannot be read ($.outputs.tool_calls" in feedback.error.error_message
        else:
            assert feedback.value == 1.0


@answers
def test_a_model_whose_calls_cannot_be_read_did_not_call_nothing(outputs: Any) -> None:
    class Model:
        def predict(self, _: Any) -> Any:
            return [outputs]

    case = EvalCase.model_validate({"eval_id": "c", "conversation": [turn_json(ASKED, SAID)]})
    conversation = BACKGROUND.call(lambda: ModelAgent(model=Model()).converse(case, 0))
    assert conversation.actual == ()
    assert "the model's tool calls cannot be read" in conversation.error


def evaluated(rows: Any, *, predict_fn: Any = None) -> Any:
    config = {"criteria": {ROUGE: 0.5, TRAJECTORY: 1.0}}
    companions = scorers.expectations("expected_response", "expected_tool_calls", "expected_facts")
    return mlflow.genai.evaluate(data=rows, scorers=[*scorers.from_config(config), *companions], predict_fn=predict_fn)


GOOD: dict[str, Any] = {
    "inputs": {"query": ASKED},
    "outputs": {"response": SAID, "tool_calls": [SWITCH]},
    "expectations": {"expected_response": SAID, "expected_tool_calls": [SWITCH]},
}


def expecting(**changes: Any) -> dict[str, Any]:
    return {**GOOD, "expectations": {**GOOD["expectations"], **changes}}


def test_a_whole_evaluation_passes() -> None:
    result = evaluated([GOOD, GOOD])
    assert result.passed, result.reason


@pytest.mark.parametrize("nothing", [*NOTHING, math.inf, ""], ids=repr)
@pytest.mark.parametrize("name", ["expected_response", "expected_tool_calls"])
def test_one_row_without_an_expectation_is_no_pass_of_all(name: str, nothing: Any) -> None:
    """MLflow cannot store NaN, returns no table because of it, and takes none for a pass."""
    result = evaluated([GOOD, expecting(**{name: nothing})])
    assert not result.passed
    assert name in result.reason
    assert len(result.result_df) == 2


def test_a_number_that_nobody_reads_costs_nothing() -> None:
    result = evaluated([GOOD, expecting(expected_facts=math.nan)])
    assert result.passed, result.reason


@pytest.mark.parametrize("expectations", [math.nan, None, {}], ids=repr)
def test_a_table_with_missing_cells_is_no_pass(expectations: Any) -> None:
    result = evaluated(pd.DataFrame([GOOD, {**GOOD, "expectations": expectations}]))
    assert not result.passed
    assert "the row has no expectations.expected_response" in result.reason
    assert "the row has no expectations.expected_tool_calls" in result.reason


@pytest.mark.parametrize("outputs", [None, math.nan, [], {}, {"response": None}], ids=repr)
def test_a_row_without_an_answer_is_no_pass(outputs: Any) -> None:
    result = evaluated([GOOD, {**GOOD, "outputs": outputs}])
    assert not result.passed


def test_an_agent_that_returns_nothing_has_not_passed() -> None:
    def agent(query: str) -> None:
        """Return nothing, whatever is asked."""

    rows = [{"inputs": GOOD["inputs"], "expectations": GOOD["expectations"]}]
    result = evaluated(rows, predict_fn=agent)
    assert not result.passed
    assert "$.outputs: found nothing" in result.result_df["response_match_score/error_message"].iloc[0]


def test_a_scorer_that_is_called_directly_changes_nothing_of_the_row() -> None:
    expectations = {"expected_response": math.nan}
    (scorer,) = scorers.from_config({"criteria": {ROUGE: 0.5}})
    assert scorer(inputs=GOOD["inputs"], outputs=SAID, expectations=expectations).value is None
    assert list(expectations) == ["expected_response"]


@pytest.mark.parametrize("expectations", ["x", 3, [1]], ids=repr)
def test_expectations_are_an_object(expectations: Any) -> None:
    (scorer,) = scorers.from_config({"criteria": {ROUGE: 0.5}})
    feedback = scorer(inputs=GOOD["inputs"], outputs=SAID, expectations=expectations)
    assert "$.expectations: found" in feedback.error.error_message
