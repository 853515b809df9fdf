"""How often *no case did worse* is luck: the figures behind the policy's ``no_worse_from``, computed and simulated."""

from __future__ import annotations

import numpy as np
import pytest

from mlflow_adk_eval.analysis.stats import compare_paired
from mlflow_adk_eval.gating.policy.model import NO_WORSE_FROM
from mlflow_adk_eval.gating.rules.limits import drop_verdict

MAX_DROP, CONFIDENCE, SAMPLES = 0.05, 0.95, 2000


def verdicts(worse: float, better: float, cases: int, no_worse_from: int) -> float:
    """Return how often a version passes ``max_drop: 0.05`` of which each case gets worse, or better, by chance."""
    luck, passed = np.random.default_rng([cases, round(1000 * worse)]), 0
    for _ in range(SAMPLES):
        drawn = luck.random(cases)
        before = {str(case): [0.0 if value > 1 - better else 1.0] for case, value in enumerate(drawn)}
        after = {str(case): [0.0 if value < worse else 1.0] for case, value in enumerate(drawn)}
        found = compare_paired(before, after, confidence=2 * CONFIDENCE - 1)
        assert found is not None
        said = drop_verdict(found, max_drop=MAX_DROP, confidence=CONFIDENCE, p_adjusted=found.p_worse, no_worse_from=no_worse_from)
        passed += said == "passed"
    return passed / SAMPLES


@pytest.mark.parametrize(("cases", "missed"), [(5, 0.59), (10, 0.35), (20, 0.12), (30, 0.04)])
def test_a_version_that_fails_one_case_in_ten_shows_no_worse_case_as_often_as_the_page_says(cases: int, missed: float) -> None:
    assert 0.9**cases == pytest.approx(missed, abs=0.005)
    assert verdicts(0.1, 0.0, cases, no_worse_from=1) == pytest.approx(missed, abs=0.035)


@pytest.mark.parametrize(("better", "low", "high"), [(0.0, 0.31, 0.39), (0.02, 0.26, 0.34)])
def test_with_ten_cases_a_third_of_the_versions_that_lost_ten_points_passed(better: float, low: float, high: float) -> None:
    assert low < verdicts(0.1 + better, better, 10, no_worse_from=1) < high


@pytest.mark.parametrize("cases", [5, 10, 15, NO_WORSE_FROM - 1])
def test_now_they_do_not_with_fewer_than_twenty(cases: int) -> None:
    assert NO_WORSE_FROM == 20
    assert verdicts(0.1, 0.0, cases, NO_WORSE_FROM) == 0
    assert verdicts(0.0, 0.0, cases, NO_WORSE_FROM) == 0  # an unchanged version has to bring more cases, too


def test_from_twenty_on_an_unchanged_version_passes_and_one_in_eight_of_the_worse_ones_does() -> None:
    assert verdicts(0.0, 0.0, NO_WORSE_FROM, NO_WORSE_FROM) == 1
    assert verdicts(0.1, 0.0, NO_WORSE_FROM, NO_WORSE_FROM) == pytest.approx(0.12, abs=0.02)
    assert verdicts(0.1, 0.0, 40, NO_WORSE_FROM) < 0.03
