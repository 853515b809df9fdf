"""The pass rate that people would give, from all verdicts and a few labels: laws, and how often its interval covers the truth."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng

from mlflow_adk_eval.analysis.calibration.judge_error import Corrected, JudgeRates, corrected_rate
from mlflow_adk_eval.analysis.calibration.prediction_powered import people_rate
from mlflow_adk_eval.analysis.stats.intervals import proportion_interval

COUNTS = st.tuples(st.integers(5, 60), st.integers(0, 20), st.integers(0, 60), st.integers(0, 20))


@cache
def rate(passed: int, judged: int, counts: tuple[int, int, int, int], confidence: float = 0.95, **more: float) -> Corrected:
    """Return the rate; `counts`: true passes, false passes, true failures and false failures."""
    effects = {name: more[name] for name in more if name != "design_effect"}
    found = people_rate(passed, judged, rates(counts, **effects), confidence, design_effect=more.get("design_effect", 1.0))
    assert isinstance(found, Corrected)
    return found


def rates(counts: tuple[int, int, int, int], **effects: float) -> JudgeRates:
    names = ("true_passes", "false_passes", "true_failures", "false_failures")
    return JudgeRates.model_validate(dict(zip(names, counts, strict=True)) | effects)


@given(COUNTS, st.integers(0, 300), st.integers(0, 300))
@settings(max_examples=25, deadline=None)
def test_the_value_is_that_of_ppi_with_the_best_weight_of_the_verdicts(counts: tuple[int, int, int, int], passed: int, failed: int) -> None:
    both, first, neither, second = counts
    labelled = sum(counts)
    passed, failed = passed + both + first, failed + neither + second
    found = rate(passed, passed + failed, counts)
    assert 0 <= found.low <= found.value <= found.high <= 1
    if not neither + second:  # then λ is not known, and the judge's word stands for what nobody labelled
        return
    people, judge = (both + second) / labelled, (both + first) / labelled
    # λ = cov(people, judge) / var(judge) · (1 − n/N), against the verdicts without a label.
    others = passed + failed - labelled
    if not others:
        assert found.value == pytest.approx(people)
        return
    covariance, variance = both / labelled - people * judge, judge * (1 - judge)
    of_others = (passed - both - first) / others
    tuned = covariance / variance * others / (passed + failed)
    assert found.value == pytest.approx(people + tuned * (of_others - judge))


@given(COUNTS, st.integers(1, 8), st.sampled_from([0.8, 0.95, 0.9999]))
@settings(max_examples=25, deadline=None)
def test_a_label_that_people_give_better_moves_no_end_down(counts: tuple[int, int, int, int], times: int, confidence: float) -> None:
    both, first, neither, second = counts
    passed, judged = times * (both + first), times * sum(counts)
    found = rate(passed, judged, counts, confidence)
    better = [(both + 1, first - 1, neither, second)] if first else []
    better += [(both, first, neither - 1, second + 1)] if neither else []
    for one in better:
        improved = rate(passed, judged, one, confidence)
        assert improved.low >= found.low - 1e-5
        assert improved.high >= found.high - 1e-5
    wider = rate(passed, judged, counts, (1 + confidence) / 2)
    assert (wider.low, wider.high) <= (found.low + 1e-5, 1.0)
    assert wider.high >= found.high - 1e-5
    # What is called a pass is a name.
    turned = rate(judged - passed, judged, (neither, second, both, first), confidence) if neither + second else None
    if turned:
        assert 1 - turned.low == pytest.approx(found.high, abs=1e-4)
        assert 1 - turned.value == pytest.approx(found.value)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.97, 1.0])
def test_labels_that_confirm_the_verdicts_leave_the_plain_rate(share: float) -> None:
    passed = round(400 * share)
    low, high = proportion_interval(passed, 400, method="exact")
    labelled = rate(passed, 400, (passed, 0, 400 - passed, 0))
    assert labelled.value == pytest.approx(share)
    # The imagined cell of each verdict costs what half a cell is worth.
    assert low - 0.005 <= labelled.low <= share <= labelled.high <= high + 0.005
    fewer = rate(passed, 400, (passed // 4, 0, (400 - passed) // 4, 0))
    assert fewer.low < labelled.low
    assert fewer.high >= labelled.high


def test_without_enough_labels_there_is_none() -> None:
    assert people_rate(50, 60, rates((2, 1, 1, 0))) == "too few labels: 4 of the 5 needed"


def test_a_verdict_without_labels_counts_for_the_worst() -> None:
    found = rate(90, 100, (20, 0, 0, 0))
    assert found.value == pytest.approx(0.9)
    assert found.low < 0.87
    assert found.high == pytest.approx(1.0, abs=1e-4)


def test_cells_that_are_alike_say_less() -> None:
    plain, alike = rate(160, 200, (40, 4, 8, 2)), rate(160, 200, (40, 4, 8, 2), judge_pass_effect=3.0, judge_failure_effect=3.0)
    assert alike.low < plain.low < plain.high < alike.high
    assert rate(160, 200, (40, 4, 8, 2), design_effect=5.0).low < plain.low


@pytest.mark.parametrize(
    ("share", "sensitivity", "specificity", "labelled", "judged"),
    [(0.5, 0.97, 0.6, 50, 200), (0.85, 0.8, 0.8, 20, 200), (0.99, 0.95, 0.9, 30, 200)],
)
def test_the_interval_covers_the_truth_and_is_narrow(
    share: float, sensitivity: float, specificity: float, labelled: int, judged: int
) -> None:
    draws, random = 200, default_rng(1)
    covered, widths = 0, list[float]()
    for _ in range(draws):
        people = random.random(judged) < share
        judge = (random.random(judged) < sensitivity) == people
        judge[~people] = random.random(int((~people).sum())) >= specificity
        said, verdict = people[:labelled], judge[:labelled]
        both, first, neither, second = (int(cells.sum()) for cells in (said & verdict, ~said & verdict, ~said & ~verdict, said & ~verdict))
        counts = (both, first, neither, second)
        found = rate(int(judge.sum()), judged, counts)
        covered += found.low <= share <= found.high
        other = corrected_rate(int(judge.sum()), judged, rates(counts))
        widths += [(found.high - found.low) / (other.high - other.low)] if isinstance(other, Corrected) else []
    assert covered >= 0.93 * draws  # of 95 %, or more: within two standard errors
    assert not widths or sum(widths) / len(widths) < 0.9
