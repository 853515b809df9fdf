from __future__ import annotations

import itertools
import math
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.results.outcomes import (
    TOLERANCE,
    CaseResult,
    CriterionResult,
    Errored,
    Outcome,
    Scored,
    Skipped,
    Vote,
    case_outcome,
    mean,
    reaches,
)
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.recordings import score
from tests.kit import RESPONSE, TRAJECTORY, call, case, case_result, cases, config, turn

SCORES = st.floats(-1e6, 1e6)
OUTCOMES = st.builds(Scored, SCORES) | st.builds(Skipped, st.just("no")) | st.builds(Errored, st.just("down")) | st.none()


def result(
    overall: Outcome, threshold: float | None = 0.5, *cells: Outcome | None, name: str = "c", better: bool = True
) -> CriterionResult:
    return CriterionResult(criterion=name, threshold=threshold, greater_is_better=better, overall=overall, per_invocation=cells)


def judged_as(*results: CriterionResult, eval_id: str = "a", run_index: int = 0, error: str = "") -> CaseResult:
    return case_result(eval_id=eval_id, run_index=run_index, actual=(turn(),), expected=(turn(),), results=results, error=error)


def report_of(*found: CaseResult, num_runs: int = 1) -> Report:
    return Report(eval_set=cases(), config=config(RESPONSE), cases=found, num_runs=num_runs)


# Scores


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_no_score(value: float) -> None:
    with pytest.raises(ValueError, match="a score must be a finite number"):
        Scored(value)


@given(st.lists(SCORES, min_size=1))
def test_the_mean_does_not_depend_on_the_order(values: list[float]) -> None:
    assert mean(values) == mean(sorted(values))
    assert min(values) - 1e-9 <= mean(values) <= max(values) + 1e-9


@given(st.sampled_from([0.1, 0.3, 0.6, 0.7, 0.8, 0.9, 1 / 3]), st.integers(1, 200))
def test_equal_scores_reach_a_threshold_of_the_same_value(value: float, count: int) -> None:
    assert reaches(mean([value] * count), value)
    assert reaches(mean([value] * count), value, greater_is_better=False)


@pytest.mark.parametrize(
    ("score_", "threshold", "better", "reached"),
    [
        (0.7, 0.7, True, True),
        (0.7 - TOLERANCE / 2, 0.7, True, True),
        (0.7 - TOLERANCE * 2, 0.7, True, False),
        (100, 120, False, True),
        (120 + TOLERANCE / 2, 120, False, True),
        (121, 120, False, False),
    ],
)
def test_a_threshold_is_reached_from_the_better_side(score_: float, threshold: float, better: bool, reached: bool) -> None:
    assert reaches(score_, threshold, greater_is_better=better) is reached
    assert result(Scored(score_), threshold, better=better).passed is reached


def test_three_turns_of_exactly_the_threshold_pass() -> None:
    eval_set = cases(case("a", *[turn("a b c d e f g h i j")] * 3))
    report = score(eval_set, {"a": [turn("a b c d e f g x y z")] * 3}, config(**{RESPONSE: 0.7}))
    assert [cell.score for cell in report.cases[0].results[0].per_invocation if isinstance(cell, Scored)] == [0.7] * 3
    assert report.passed


# From cells to a case


@pytest.mark.parametrize(
    ("cells", "outcome"),
    [
        ([Scored(1.0), Scored(0.5)], Scored(0.75)),
        ([None, Scored(0.5)], Scored(0.5)),
        ([Scored(1.0), Errored("down")], Errored("invocation 2 of 2: down")),
        ([Scored(1.0), Skipped("no data")], Errored("invocation 2 of 2: no data")),
        ([Skipped("no data"), Skipped("no data")], Skipped("invocation 1 of 2: no data; invocation 2 of 2: no data")),
        ([Skipped("no data"), Errored("down")], Errored("invocation 1 of 2: no data; invocation 2 of 2: down")),
        ([], Errored("no turn was evaluated")),
        ([None, None], Errored("no turn was evaluated")),
    ],
)
def test_a_case_has_a_score_only_if_each_planned_cell_has_one(cells: list[Outcome | None], outcome: Outcome) -> None:
    assert case_outcome(cells) == outcome


def test_a_long_list_of_missing_cells_is_cut_short() -> None:
    found = case_outcome([Errored("down")] * 9)
    assert isinstance(found, Errored)
    assert found.error.endswith("invocation 5 of 9: down; and 4 more")


@given(st.lists(OUTCOMES, min_size=1))
def test_one_missing_cell_leaves_no_score(cells: list[Outcome | None]) -> None:
    complete = any(cells) and all(cell is None or isinstance(cell, Scored) for cell in cells)
    assert isinstance(case_outcome(cells), Scored) == complete


# From criteria to a verdict

PASSES, MISSES, ERRS, SKIPS = Scored(1.0), Scored(0.0), Errored("down"), Skipped("does not apply")


@pytest.mark.parametrize(
    ("overalls", "verdict"),
    [
        ([PASSES], "passed"),
        ([PASSES, PASSES], "passed"),
        ([PASSES, MISSES], "failed"),
        ([PASSES, ERRS], "undecided"),
        ([PASSES, SKIPS], "undecided"),
        ([MISSES, ERRS], "failed"),
        ([ERRS], "undecided"),
        ([SKIPS], "undecided"),
        ([], "undecided"),
    ],
)
def test_the_verdict_of_a_case(overalls: list[Outcome], verdict: str) -> None:
    results = [result(overall) for overall in overalls]
    information = [result(overall, None) for overall in (PASSES, MISSES, ERRS, SKIPS)]
    assert judged_as(*results).verdict == verdict
    assert judged_as(*results, *information).verdict == verdict, "information decides nothing"
    assert judged_as(*results, error="down").verdict == ("failed" if verdict == "failed" else "undecided")


@given(st.lists(st.sampled_from([PASSES, MISSES, ERRS, SKIPS]), max_size=4), st.data())
def test_an_error_in_place_of_any_result_never_makes_a_case_pass(overalls: list[Outcome], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(overalls)))
    spoilt = [*overalls[:place], ERRS, *overalls[place + 1 :]]
    assert judged_as(*map(result, spoilt)).verdict != "passed"


@pytest.mark.parametrize("verdicts", list(itertools.product(("passed", "failed", "undecided"), repeat=2)))
def test_the_verdict_of_a_report(verdicts: tuple[str, str]) -> None:
    overall: dict[str, Outcome] = {"passed": PASSES, "failed": MISSES, "undecided": ERRS}
    report = report_of(*(judged_as(result(overall[verdict]), eval_id=verdict) for verdict in verdicts))
    assert report.verdict == ("failed" if "failed" in verdicts else "undecided" if "undecided" in verdicts else "passed")
    assert report.passed == (report.verdict == "passed")
    assert bool(report.reasons) != report.passed


def test_reasons_are_sentences_with_numbers() -> None:
    report = report_of(
        judged_as(result(Scored(0.251), 0.5, name="up"), result(Scored(120), 100, name="down", better=False)),
        judged_as(result(ERRS, name="up"), result(PASSES, name="other"), eval_id="b", error="turn 2: boom"),
    )
    assert report.reasons == (
        "a: up is 0.251, below its threshold 0.5",
        "a: down is 120, above its threshold 100",
        "b: the agent did not finish: turn 2: boom",
        "b: up was not evaluated: down",
    )


# Totals


def test_totals_count_every_cell_and_keep_each_run() -> None:
    report = report_of(
        judged_as(result(Scored(1.0), 0.5, Scored(1.0), Scored(1.0))),
        judged_as(result(ERRS, 0.5, Scored(0.0), ERRS), run_index=1),
        judged_as(result(Scored(0.25), 0.5, Scored(0.25), None, SKIPS), eval_id="b"),
        num_runs=2,
    )
    summary = report.summaries()["c"]
    assert (summary.evaluated, summary.errored, summary.skipped) == (4, 1, 1)
    assert summary.mean == 0.625
    assert summary.pass_rate == pytest.approx(1 / 3), "what was not evaluated did not pass"
    assert summary.case_scores == {"a": (1.0,), "b": (0.25,)}
    assert report.scores == {"c": 0.625}


def test_totals_of_cases_with_other_criteria_are_kept_apart() -> None:
    report = report_of(judged_as(result(PASSES, name="x")), judged_as(result(MISSES, name="y"), result(PASSES, name="x"), eval_id="b"))
    assert report.criteria == ("x", "y")
    assert {name: summary.case_scores for name, summary in report.summaries().items()} == {
        "x": {"a": (1.0,), "b": (1.0,)},
        "y": {"b": (0.0,)},
    }


def test_a_report_shows_its_verdict_and_not_a_gigabyte() -> None:
    report = report_of(judged_as(result(Scored(0.25)), result(ERRS, name="d")))
    assert repr(report) == "<Report failed: 1 case runs of 'set'; c=0.25, d=not evaluated>"


# Frames

CELLS = ["score", "status", "threshold", "passed", "rationale", "error"]
VOTE = Vote(
    eval_id="a", run_index=0, invocation_index=1, criterion="c", rubric_id="r", vote_index=2, verdict="yes", explanation="since", model="m",
    latency_s=0.5, input_tokens=10, output_tokens=None, error="",
)  # fmt: skip


@pytest.fixture(scope="module")
def scored() -> Report:
    expected = cases(case("a", turn("yes", call("f")), turn("no")), case("b", turn("x")))
    settings = parse_config({"criteria": {TRAJECTORY: 1.0, RESPONSE: 0.5}}, "config")
    return score(expected, {"a": [turn("yes"), turn("no")]}, settings)


def test_a_frame_of_cases_has_a_row_per_case_run_and_criterion(scored: Report) -> None:
    frame = scored.to_frame()
    assert list(frame.columns) == ["eval_id", "run_index", "criterion", *CELLS]
    assert len(frame) == 2 * len(scored.criteria)
    assert frame["score"].dtype == "float64"
    found = frame[(frame.eval_id == "a") & (frame.criterion == TRAJECTORY)].iloc[0]
    assert [found[name] for name in ("score", "status", "threshold", "passed", "rationale", "error")] == [0.5, "scored", 1.0, False, "", ""]


def test_a_frame_of_invocations_has_a_row_per_planned_cell(scored: Report) -> None:
    frame = scored.to_frame("invocations")
    assert list(frame.columns) == ["eval_id", "run_index", "invocation_index", "criterion", *CELLS]
    assert len(frame) == 3 * len(scored.criteria)
    first, second = frame[(frame.eval_id == "a") & (frame.criterion == TRAJECTORY)].to_dict("records")
    assert (first["invocation_index"], first["score"], first["passed"]) == (0, 0.0, False)
    assert "missing: `f({})`" in first["rationale"]
    assert (second["invocation_index"], second["score"], second["passed"]) == (1, 1.0, True)


def test_what_was_not_evaluated_is_no_zero_in_a_frame(scored: Report) -> None:
    frame = scored.to_frame("invocations")
    missing = frame[(frame.eval_id == "b") & (frame.criterion == RESPONSE)].iloc[0]
    assert math.isnan(missing["score"])
    assert missing["passed"] is None
    assert (missing["status"], missing["error"]) == ("errored", "the agent did not finish: the recording does not contain case 'b'")
    skipped = frame[(frame.eval_id == "a") & (frame.criterion == "token_usage_v1")].iloc[0]
    assert (skipped["status"], skipped["error"]) == ("skipped", "no token usage was recorded")
    assert pd.isna(skipped["threshold"])


def test_a_frame_of_votes_has_a_row_per_vote() -> None:
    votes = CriterionResult(criterion="c", threshold=0.5, greater_is_better=True, overall=PASSES, per_invocation=(PASSES,), votes=(VOTE,))
    frame = report_of(judged_as(votes)).to_frame("votes")
    assert list(frame.columns) == [
        "eval_id", "run_index", "invocation_index", "criterion", "rubric_id", "vote_index", "verdict", "explanation", "model", "latency_s",
        "input_tokens", "output_tokens", "error", "raw", "reused", "host", "asked_in",
        "asked_at", "value",
    ]  # fmt: skip
    assert frame.iloc[0].to_dict() == {name: getattr(VOTE, name) for name in frame.columns}


@pytest.mark.parametrize("rows", ["cases", "invocations", "votes"])
def test_a_frame_of_nothing_has_the_same_columns(rows: Any, scored: Report) -> None:
    assert list(report_of().to_frame(rows).columns) == list(scored.to_frame(rows).columns)


def test_other_frames_are_refused(scored: Report) -> None:
    with pytest.raises(UsageError, match="wanted one of cases, invocations, votes, repeats, pooled"):
        scored.to_frame("turns")  # type: ignore[arg-type]
