"""Repeated runs as measurements: each number against another way of computing it."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.analysis.stats.intervals import mean_interval
from mlflow_adk_eval.evalset.conversation import FAILED as ADK_FAILED
from mlflow_adk_eval.evalset.conversation import NOT_EVALUATED, EvalSetResult, dumps_result
from mlflow_adk_eval.evalset.conversation import PASSED as ADK_PASSED
from mlflow_adk_eval.report.adk_result import result_of
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Errored, Scored, case_outcome
from mlflow_adk_eval.results.repeats import Repeats, pass_hat, table_of_repeats, variance
from mlflow_adk_eval.results.report import Report
from tests.kit import RESPONSE, TRAJECTORY, case_result, cases, config, turn
from tests.profiles import examples
from tests.results.repeated import FAILED, LOST, PASSED, Scores, case_run, repeated, result

AGGREGATOR = "google.adk.evaluation._eval_case_result_aggregator"
"""The module is on ADK's main branch; until it is released, the oracle is its rule, written once more."""
SCORES = st.floats(-1e6, 1e6)


def balanced(scores: st.SearchStrategy[float | None], *, least_runs: int = 1, least_cases: int = 1) -> st.SearchStrategy[Scores]:
    """Some cases with equally many runs."""
    return st.integers(least_runs, 5).flatmap(
        lambda runs: st.dictionaries(
            st.sampled_from("abcdefgh"), st.lists(scores, min_size=runs, max_size=runs), min_size=least_cases, max_size=6
        )
    )


VERDICTS = balanced(st.sampled_from((PASSED, FAILED, LOST)))


def of(scores: Scores) -> Repeats:
    return repeated(scores).repeats


# pass^k


@given(verdicts=st.lists(st.booleans(), min_size=1, max_size=9), data=st.data())
def test_pass_hat_is_the_share_of_all_choices_of_k_runs_that_all_passed(verdicts: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(verdicts)))
    choices = list(combinations(verdicts, k))
    assert pass_hat(len(verdicts), sum(verdicts), k) == pytest.approx(sum(map(all, choices)) / len(choices), abs=1e-12)


@given(passes=st.floats(0, 1), runs=st.integers(1, 7), data=st.data())
def test_pass_hat_is_unbiased(passes: float, runs: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, runs))
    chances = [math.comb(runs, passed) * passes**passed * (1 - passes) ** (runs - passed) for passed in range(runs + 1)]
    expected = math.fsum(chance * pass_hat(runs, passed, k) for passed, chance in enumerate(chances))
    assert expected == pytest.approx(passes**k, abs=1e-9)


@pytest.mark.parametrize("k", [0, -1, 4])
def test_pass_hat_needs_as_many_runs(k: int) -> None:
    with pytest.raises(ValueError, match=f"k={k}: wanted a whole number from 1 to the number of runs, 3"):
        pass_hat(3, 3, k)


@given(VERDICTS)
def test_pass_hat_falls_from_the_share_of_passed_runs_to_that_of_cases_that_always_passed(scores: Scores) -> None:
    found = of(scores)
    chances = [found.pass_hat(k) or 0.0 for k in range(1, found.num_runs + 1)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] == pytest.approx(statistics.fmean(score == PASSED for runs in scores.values() for score in runs))
    assert chances[-1] == pytest.approx(statistics.fmean(all(score == PASSED for score in runs) for runs in scores.values()))


@given(VERDICTS)
@examples(25)
def test_the_interval_of_pass_hat_is_by_case(scores: Scores) -> None:
    found = of(scores)
    by_case = {case.eval_id: [case.pass_hat(found.num_runs)] for case in found.cases}
    assert by_case.keys() == scores.keys()
    interval = mean_interval(by_case)
    if interval:
        assert interval[0] - 1e-9 <= (found.pass_hat(found.num_runs) or 0.0) <= interval[1] + 1e-9


# Variance


@given(st.lists(SCORES, min_size=2))
def test_the_variance_is_that_of_the_standard_library(values: list[float]) -> None:
    assert variance(values) == pytest.approx(statistics.variance(values), rel=1e-6, abs=1e-9)


def test_equal_values_have_no_variance_and_huge_ones_no_exception() -> None:
    assert variance([0.1] * 7) == 0
    assert variance([1e200, -1e200]) == math.inf


@given(balanced(SCORES, least_runs=2))
def test_the_deviation_between_runs_is_that_of_the_runs_means(scores: Scores) -> None:
    found = of(scores).criteria[RESPONSE]
    means = [statistics.fmean(float(runs[index] or 0) for runs in scores.values()) for index in range(len(found.run_means))]
    assert found.run_means == pytest.approx(means, abs=1e-6)
    assert found.run_std == pytest.approx(statistics.stdev(means), rel=1e-6, abs=1e-6)


@given(balanced(st.integers(0, 100).map(float), least_runs=2, least_cases=2))
def test_the_variances_are_those_of_a_one_way_analysis_of_variance(scores: Scores) -> None:
    from scipy.stats import f_oneway

    found = of(scores).criteria[RESPONSE]
    within, between = found.within_variance, found.between_variance
    assert within is not None
    assert between is not None
    assert within == pytest.approx(statistics.fmean(statistics.variance(map(float, runs)) for runs in scores.values()))  # type: ignore[arg-type]
    if within > 0:
        ratio = float(f_oneway(*scores.values()).statistic)
        assert between == pytest.approx(max(0.0, (ratio - 1) * within / len(found.run_means)), rel=1e-9, abs=1e-9)


def test_one_run_has_no_variance_and_one_case_none_between_cases() -> None:
    once, alone = of({"a": [0.2], "b": [0.9]}).criteria[RESPONSE], of({"a": [0.2, 0.9]}).criteria[RESPONSE]
    assert (once.run_std, once.within_variance, once.between_variance) == (None, None, None)
    assert (alone.run_std, alone.within_variance) == (pytest.approx(0.35 * math.sqrt(2)), pytest.approx(0.245))
    assert alone.between_variance is None


def test_runs_are_compared_on_the_same_cases() -> None:
    found = of({"easy": [1.0, LOST], "hard": [0.2, 0.4]}).criteria[RESPONSE]
    assert (found.complete, found.planned) == (1, 2)
    assert found.run_means == (0.2, 0.4)
    lost = of({"a": [1.0, LOST], "b": [LOST, LOST]}).criteria[RESPONSE]
    assert (lost.complete, lost.run_means, lost.run_std, lost.within_variance) == (0, (), None, None)


# Cases


def test_a_run_without_evidence_has_not_passed_and_is_counted_apart() -> None:
    (case,) = of({"a": [PASSED, LOST, FAILED, PASSED]}).cases
    assert (case.runs, case.passed, case.count("failed"), case.count("undecided")) == (4, 2, 1, 1)
    assert (case.pass_rate, case.pass_hat(2), case.pass_hat(3)) == (0.5, pytest.approx(1 / 6), 0)
    assert case.summary == "2 of 4 runs passed, 1 failed, 1 undecided"
    assert of({"a": [PASSED, LOST]}).run_pass_rates == (1, 0)


def test_an_agent_that_fails_once_in_a_while_is_flaky_even_if_what_it_did_before_scores() -> None:
    report = Report(
        eval_set=cases(),
        config=config(RESPONSE),
        cases=(case_run("a", 0, result(1.0)), case_run("a", 1, result(1.0), error="boiler")),
        num_runs=2,
    )
    (case,) = report.repeats.flaky
    assert case.verdicts == ("passed", "undecided")


@given(VERDICTS)
def test_a_case_is_flaky_if_two_of_its_runs_disagree(scores: Scores) -> None:
    found = of(scores)
    for case in found.cases:
        pairs = list(combinations(case.verdicts, 2))
        assert case.disagreement == pytest.approx(statistics.fmean(one != other for one, other in pairs) if pairs else 0)
        assert case.flaky == (case.disagreement > 0) == (case in found.flaky)
    disagreements = [case.disagreement for case in found.flaky]
    assert disagreements == sorted(disagreements, reverse=True)


def test_the_most_flaky_case_comes_first_and_others_keep_their_order() -> None:
    found = of({
        "seldom": [PASSED, PASSED, PASSED, FAILED],
        "never": [FAILED] * 4,
        "often": [PASSED, FAILED, PASSED, FAILED],
        "once": [FAILED, PASSED, FAILED, FAILED],
    })  # fmt: skip
    assert [case.eval_id for case in found.flaky] == ["often", "seldom", "once"]


def test_cases_and_runs_keep_their_order() -> None:
    report = repeated({"b": [0.1, 0.2], "a": [0.9, LOST]})
    shuffled = replace(report, cases=tuple(reversed(report.cases)))
    assert [case.eval_id for case in report.repeats.cases] == ["b", "a"]
    assert {case.eval_id: case.scores for case in shuffled.repeats.cases} == {"b": {RESPONSE: (0.1, 0.2)}, "a": {RESPONSE: (0.9, None)}}


def test_a_run_that_is_missing_is_undecided_and_one_too_many_counts() -> None:
    report = repeated({"a": [PASSED, PASSED, PASSED], "b": [PASSED]})
    assert [case.verdicts for case in report.repeats.cases] == [("passed",) * 3, ("passed", "undecided", "undecided")]
    assert report.repeats.cases[1].scores == {RESPONSE: (1.0, None, None)}
    assert replace(report, num_runs=1).repeats == report.repeats


def test_the_range_of_the_scores_that_there_are() -> None:
    (case,) = of({"a": [0.7, LOST, 0.4]}).cases
    assert case.score_range(RESPONSE) == (0.4, 0.7)
    assert case.score_range(TRAJECTORY) is None


def test_criteria_that_neither_decide_nor_have_a_score_are_left_out() -> None:
    silent, duration, deciding = result(None, "token_usage_v1", None), result(0.2, "invocation_duration_v1", None), result(None)
    report = replace(repeated({}), cases=(case_run("a", 0, silent, duration, deciding),))
    assert {name: found.decides for name, found in report.repeats.criteria.items()} == {RESPONSE: True, "invocation_duration_v1": False}


def test_nothing_can_be_said_of_no_cases() -> None:
    found = of({})
    assert (found.pass_hat(1), found.run_pass_rates, found.flaky, found.criteria) == (None, (), (), {})
    assert table_of_repeats(found)[1] == []


def test_of_many_runs_not_every_pass_hat_is_shown() -> None:
    assert of({"a": [PASSED] * 8}).ks == (1, 2, 3, 4, 5, 6, 7, 8)
    assert of({"a": [PASSED] * 50}).ks == (1, 2, 3, 4, 5, 6, 7, 8, 50)


# Tables


def test_the_frame_has_a_row_for_each_case() -> None:
    frame = repeated({"steady": [0.8, 0.8], "flaky": [0.9, 0.1], "lost": [LOST, 0.6]}).to_frame("repeats")
    assert list(frame.columns) == [
        *("eval_id", "flaky", "verdicts", "runs", "passed", "failed", "undecided", "pass_rate", "pass_hat_1", "pass_hat_2"),
        *(f"{RESPONSE}/{measure}" for measure in ("mean", "std", "low", "high")),
    ]
    assert frame.set_index("eval_id").loc["flaky"].to_dict() == {
        "flaky": True,
        "verdicts": "passed, failed",
        "runs": 2,
        "passed": 1,
        "failed": 1,
        "undecided": 0,
        "pass_rate": 0.5,
        "pass_hat_1": 0.5,
        "pass_hat_2": 0.0,
        f"{RESPONSE}/mean": 0.5,
        f"{RESPONSE}/std": pytest.approx(statistics.stdev([0.9, 0.1])),
        f"{RESPONSE}/low": 0.1,
        f"{RESPONSE}/high": 0.9,
    }
    assert frame[f"{RESPONSE}/std"].isna().tolist() == [False, False, True]


def test_the_frame_of_cases_that_ran_once_says_so() -> None:
    frame = repeated({"a": [0.8]}).to_frame("repeats")
    assert frame[["runs", "pass_hat_1", f"{RESPONSE}/mean"]].to_numpy().tolist() == [[1, 1.0, 0.8]]


# ADK's MEAN_OVER_INVOCATIONS

TURNS = st.lists(st.floats(0, 1) | st.none(), max_size=4)
"""The scores of one run, by turn; none at all: the agent broke off before its first turn."""


def aggregator() -> Any:
    try:
        return import_module(AGGREGATOR)
    except ImportError:
        return None


def pooled(cases_of: dict[str, list[list[float | None]]]) -> Report:
    found: list[CaseResult] = []
    for eval_id, runs in cases_of.items():
        for index, scores in enumerate(runs):
            cells = [Errored("judge down") if score is None else Scored(score) for score in scores] or [Errored("there is no actual turn")]
            one = CriterionResult(
                criterion=RESPONSE, threshold=0.5, greater_is_better=True, overall=case_outcome(cells), per_invocation=tuple(cells)
            )
            had = (turn(),) * len(scores)
            broken = "" if scores else "the model is down"
            found.append(case_result(eval_id, index, actual=had, expected=had or (turn(),), results=[one], error=broken))
    return Report(eval_set=cases(), config=config(**{RESPONSE: 0.5}), cases=found, num_runs=max(map(len, cases_of.values()), default=1))


def by_adk(result: EvalSetResult) -> dict[str, tuple[float | None, int]]:
    """Return each case's score and final status by the rule of the aggregator on ADK's main branch, for cases of several runs."""
    found: dict[str, tuple[float | None, int]] = {}
    for eval_id in {case.eval_id for case in result.eval_case_results}:
        runs = [case for case in result.eval_case_results if case.eval_id == eval_id]
        metrics = [metric for case in runs for one in case.eval_metric_result_per_invocation for metric in one.eval_metric_results]
        scores = [metric.score for metric in metrics if metric.score is not None]
        status = NOT_EVALUATED
        if scores:
            status = ADK_PASSED if statistics.mean(scores) >= 0.5 else ADK_FAILED
        crashed = any(case.final_eval_status == ADK_FAILED and not case.eval_metric_result_per_invocation for case in runs)
        found[eval_id] = (statistics.mean(scores) if scores else None, ADK_FAILED if crashed else status)
    return found


@examples(60)
@given(st.dictionaries(st.sampled_from("abc"), st.lists(TURNS, min_size=2, max_size=4), min_size=1))
def test_the_mean_over_all_turns_of_all_runs_is_adks(cases_of: dict[str, list[list[float | None]]]) -> None:
    report = pooled(cases_of)
    exported = result_of(report)
    oracle = by_adk(exported)
    if newer := aggregator():
        read = import_module("google.adk.evaluation.eval_result").EvalSetResult.model_validate_json(dumps_result(exported))
        theirs = newer.aggregate_eval_case_results(read.eval_case_results)
        measured = {
            case.eval_id: ([metric.score for metric in case.overall_eval_metric_results] or [None], case.final_eval_status.value)
            for case in theirs
        }
        assert measured == {eval_id: ([score], status) for eval_id, (score, status) in oracle.items()}
    for row in report.to_frame("pooled").to_dict("records"):
        runs = cases_of[row["eval_id"]]
        score, status = oracle[row["eval_id"]]
        assert (None if math.isnan(row["score"]) else row["score"]) == (None if score is None else pytest.approx(score, abs=1e-12))
        scored = sum(one is not None for scores in runs for one in scores)
        assert (row["runs"], row["scored"], row["missing"]) == (len(runs), scored, sum(len(scores) or 1 for scores in runs) - scored)
        assert (status == ADK_FAILED) is ([] in runs or (score is not None and score < 0.5)), "a run that broke off fails the case there"


def test_runs_of_unequal_length_are_not_weighted_equally_where_they_are_pooled() -> None:
    """ADK's own example, and one run, whose score stays as it is."""
    report = pooled({"case1": [[0.0], [1.0, 1.0, 1.0]], "once": [[0.25, None]]})
    rows = report.to_frame("pooled")
    assert list(rows.columns) == ["eval_id", "criterion", "threshold", "score", "runs", "scored", "missing"]
    assert rows.to_numpy().tolist() == [["case1", RESPONSE, 0.5, 0.75, 2, 4, 0], ["once", RESPONSE, 0.5, 0.25, 1, 1, 1]]
    assert report.to_frame("repeats").set_index("eval_id").loc["case1", f"{RESPONSE}/mean"] == 0.5
    own = replace(report.cases[2].results[0], overall=Scored(0.9))
    once = Report(eval_set=cases(), config=report.config, cases=[replace(report.cases[2], results=(own,))])
    assert once.to_frame("pooled")["score"].tolist() == [0.9]
