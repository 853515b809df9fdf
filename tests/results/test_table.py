from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.agents.recordings import Recording
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Errored, Scored, Skipped
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import (
    CONTENT,
    LEAD,
    TAIL,
    columns_of,
    key_of,
    row_verdict,
    table_of,
)
from mlflow_adk_eval.runner.evaluation import Options, run
from mlflow_adk_eval.runner.recordings import score
from tests.kit import RESPONSE, TRAJECTORY, call, case, cases, config, scenario, turn
from tests.strategies import texts

BOTH = config(**{TRAJECTORY: 1.0, RESPONSE: 0.5})
ASKED = {"custom_metrics": {"mine": {"code_config": {"name": "tests.criteria.user_metrics.asked"}}}}


def records(report: Report) -> list[dict[str, Any]]:
    """The rows of a report's table after it was written and read."""
    table = table_of(report.cases, report.criteria)
    written = json.loads(table.dumps())
    assert written["columns"] == list(table.columns)
    return [dict(zip(table.columns, row, strict=True)) for row in written["data"]]


@pytest.fixture(scope="module")
def report() -> Report:
    expected = cases(case("a", turn("yes", call("f", x=1), user="one"), turn("no", user="two")), case("b", turn("three")))
    actual = {"a": [turn("yes", call("f", x=2), user="one"), turn(None, user="zwei")]}
    return score(expected, actual, BOTH)


def test_each_invocation_has_a_row_with_what_was_said_and_done(report: Report) -> None:
    first, second, third = records(report)
    assert {name: first[name] for name in (*LEAD, *CONTENT, *TAIL)} == {
        "key": "a #1",
        "verdict": "failed",
        "eval_id": "a",
        "run_index": 0,
        "invocation_index": 0,
        "user": "one",
        "actual_response": "yes",
        "expected_response": "yes",
        "actual_tool_calls": [{"name": "f", "args": {"x": 2}}],
        "expected_tool_calls": [{"name": "f", "args": {"x": 1}}],
        "agent_error": "",
    }
    assert (second["user"], second["actual_response"], second["actual_tool_calls"]) == ("zwei", "", [])
    assert (third["key"], third["user"], third["actual_response"], third["actual_tool_calls"]) == ("b #1", "hi", None, None)
    assert third["agent_error"] == "the recording does not contain case 'b'"


def test_each_criterion_has_its_score_status_and_reason(report: Report) -> None:
    first, second, third = records(report)
    assert [first[column] for column in columns_of(TRAJECTORY)][:2] == [0.0, "scored"]
    assert "`$.x`: expected 1, got 2" in first[f"{TRAJECTORY}/reason"]
    assert [second[column] for column in columns_of("token_usage_v1")] == [None, "skipped", "no token usage was recorded"]
    assert [third[column] for column in columns_of(RESPONSE)] == [
        None,
        "errored",
        "the agent did not finish: the recording does not contain case 'b'",
    ]


def test_columns_follow_the_config(report: Report) -> None:
    columns = table_of(report.cases, report.criteria).columns
    assert columns[:4] == ("key", "verdict", "actual_response", "expected_response")
    assert columns[len(LEAD) + len(CONTENT) :][:6] == (*columns_of(TRAJECTORY), *columns_of(RESPONSE))
    assert columns[-len(TAIL) :] == TAIL
    assert len(set(columns)) == len(columns)
    assert not [column for column in columns if column.endswith("/case_score")]


def test_the_text_is_mlflows_table_format(report: Report) -> None:
    text = table_of(report.cases, report.criteria).dumps()
    assert set(json.loads(text)) == {"columns", "data"}


def test_every_run_has_rows_of_its_own() -> None:
    recording = Recording({"a": (Conversation(actual=(turn("x"), turn("y"))), Conversation(actual=(turn("x"), turn("z"))))})
    report = run(cases(case("a", turn("x"), turn("y"))), recording, config(RESPONSE), Options(num_runs=3))
    assert [row["key"] for row in records(report)] == ["a #1", "a #2", "a #1 run 2", "a #2 run 2", "a #1 run 3", "a #2 run 3"]
    assert [row["verdict"] for row in records(report)] == ["passed", "passed", "passed", "failed", "undecided", "undecided"]


@given(st.lists(st.tuples(texts(), st.integers(0, 20), st.integers(0, 20)), unique=True, min_size=2))
def test_keys_are_unique(rows: list[tuple[str, int, int]]) -> None:
    assert len({key_of(*row) for row in rows}) == len(rows)


def test_a_case_score_of_the_criterions_own_stands_in_the_last_row() -> None:
    settings = parse_config({"criteria": {"mine": 0.1}} | ASKED, "config")
    eval_set = cases(case("a", turn(), turn()), case("b", turn()))
    rows = records(score(eval_set, eval_set, settings))
    assert [(row["mine/score"], row["mine/case_score"]) for row in rows] == [(0.5, None), (0.5, 0.25), (0.5, 0.25)]


def test_a_case_without_a_criterion_has_nulls_in_its_columns() -> None:
    settings = parse_config({"criteria": {RESPONSE: 1.0}, "case_criteria": {"b": {"mine": 0.1}}} | ASKED, "config")
    eval_set = cases(case("a", turn()), case("b", turn()))
    first, second = records(score(eval_set, eval_set, settings))
    assert [first[column] for column in (*columns_of("mine"), "mine/case_score")] == [None] * 4
    assert [second[column] for column in columns_of(RESPONSE)] == [None] * 3
    assert (second["mine/score"], second["mine/case_score"]) == (0.5, 0.25)


def test_an_error_of_the_agent_stands_where_it_did_not_finish() -> None:
    two = cases(case("a", turn(), turn(), turn()))
    cells = {
        "before the first turn": (0, ["x", "x", "x"]),
        "after the first": (1, ["", "x", "x"]),
        "after the last": (3, ["", "", "x"]),
    }
    for finished, expected in cells.values():
        recording = Recording({"a": (Conversation(actual=(turn(),) * finished, error="x"),)})
        rows = records(run(two, recording, config(RESPONSE)))
        assert [row["agent_error"] for row in rows] == expected
        assert [row["verdict"] for row in rows] == ["undecided" if error else "passed" for error in expected]


def test_an_error_after_more_turns_than_asked_for_stands_in_the_last_row() -> None:
    rows = records(score(cases(case("a", turn())), {"a": [turn(), turn()]}, config(RESPONSE)))
    assert [row["agent_error"] for row in rows] == ["", "2 turns took place, but the case has 1"]


def test_a_case_without_turns_has_one_row() -> None:
    (row,) = records(score(cases(scenario("s")), {}, config(tool_call_count_v1=1)))
    assert (row["key"], row["user"], row["verdict"]) == ("s #1", "", "undecided")


def test_an_empty_report_has_an_empty_table() -> None:
    assert records(score(cases(), {}, BOTH)) == []


@pytest.mark.parametrize(
    ("args", "written"),
    [
        ({"x": float("nan"), "y": [float("inf")]}, {"x": None, "y": [None]}),
        ({"when": (1, 2)}, {"when": [1, 2]}),
        ({"half": "\ud83d"}, {"half": "?"}),
    ],
)
def test_what_is_no_json_does_not_prevent_writing(args: Any, written: Any) -> None:
    (row,) = records(score(cases(case("a", turn("x"))), {"a": [turn("x", call("f", args))]}, config(RESPONSE)))
    assert row["actual_tool_calls"] == [{"name": "f", "args": written}]


@pytest.mark.parametrize(
    ("cells", "verdict"),
    [
        ([(1.0, Scored(1.0)), (0.5, Scored(0.5))], "passed"),
        ([(1.0, Scored(1.0)), (0.5, Scored(0.4))], "failed"),
        ([(1.0, Scored(1.0)), (0.5, Errored("x"))], "undecided"),
        ([(1.0, Scored(0.0)), (0.5, Errored("x"))], "failed"),
        ([(1.0, Scored(1.0)), (0.5, Skipped("x"))], "undecided"),
        ([(1.0, Scored(1.0)), (None, Errored("x"))], "passed"),
        ([(1.0, None), (0.5, Scored(1.0))], "passed"),
        ([(1.0, None)], None),
        ([(None, Scored(1.0))], None),
        ([], None),
    ],
)
def test_the_verdict_of_a_row_is_that_of_its_deciding_cells(cells: Any, verdict: str | None) -> None:
    results = [
        CriterionResult(criterion=str(index), threshold=threshold, greater_is_better=True, overall=Scored(1.0), per_invocation=(cell,))
        for index, (threshold, cell) in enumerate(cells)
    ]
    assert row_verdict(results, 0) == verdict
    assert row_verdict(results, 1) is None


def test_the_table_says_what_the_report_says(report: Report) -> None:
    rows = records(report)
    for found in report.cases:
        for result in found.results:
            written = [row[f"{result.criterion}/score"] for row in rows if row["eval_id"] == found.eval_id]
            assert written == _scores(found, result)


def _scores(found: CaseResult, result: CriterionResult) -> list[float | None]:
    scores = [cell.score if isinstance(cell, Scored) else None for cell in result.per_invocation]
    return scores + [None] * (found.turns - len(scores))
