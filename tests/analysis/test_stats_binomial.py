"""The binomial distribution, beside that of scipy.stats."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binom

from mlflow_adk_eval.analysis.stats import power
from mlflow_adk_eval.analysis.stats.intervals import binomial_chance, binomial_tail
from tests.profiles import examples

SIZES = st.integers(0, 300) | st.sampled_from([1_000, 20_000])
SHARES = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)


def test_no_chance_is_above_one() -> None:
    assert binomial_chance(np.array([0]), 20_000, 2.8736396005449436e-132) == binom.pmf(0, 20_000, 2.8736396005449436e-132) == 1


@examples(200)
@given(n=SIZES, p=SHARES, data=st.data())
def test_chances_are_those_of_scipy(n: int, p: float, data: Any) -> None:
    k = np.array(data.draw(st.lists(st.integers(0, n), min_size=1, max_size=20)))
    assume(p == 0 or min(p, 1 - p) > 1e-290 or p == 1)  # beyond, scipy.stats itself overflows
    assert binomial_chance(k, n, p) == pytest.approx(binom.pmf(k, n, p), rel=1e-9, abs=1e-300)
    assert np.array_equal(binomial_tail(k, n, p), binom.sf(k - 1, n, p))
    assert np.array_equal(binomial_tail(n - k, n, 0.5), binom.sf(n - k - 1, n, 0.5))
    assert binomial_tail(n - k, n, 0.5) == pytest.approx(binom.cdf(k, n, 0.5), rel=1e-14)  # what McNemar's test asks of a fair coin
    assert np.array_equal(binomial_tail(k + 1, np.arange(len(k)), p), binom.sf(k, np.arange(len(k)), p))


@examples(100)
@given(n=SIZES, confidence=st.floats(1e-12, 1 - 1e-12) | st.sampled_from([0.5, 0.75, 0.8, 0.9, 0.95, 0.96875, 0.99]))
def test_critical_numbers_are_those_of_scipy(n: int, confidence: float) -> None:
    counts, critical = power._critical(n, n + 50, confidence)
    assert np.array_equal(critical, binom.isf(1 - confidence, counts, 0.5) + 1)


@examples(200)
@given(n=st.integers(5, 2_000), discordant=st.floats(0, 1), drop=st.floats(1e-6, 1), confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_the_power_is_the_sum_over_all_numbers_of_discordant_cases(n: int, discordant: float, drop: float, confidence: float) -> None:
    counts, share = np.arange(n + 1), max(discordant, drop)
    worse = binom.sf(binom.isf(1 - confidence, counts, 0.5), counts, (1 + drop / share) / 2)
    expected = float((binom.pmf(counts, n, share) * worse).sum())
    assert power._rate_power(discordant, drop, n, confidence) == pytest.approx(expected, abs=1e-9)


def test_planning_imports_no_scipy_stats() -> None:
    code = (
        "import sys\nfrom mlflow_adk_eval.analysis.stats.paired import compare_paired\nfrom mlflow_adk_eval.analysis.stats.power import detectable_rate_drop, rate_cases_needed\n"
        "detectable_rate_drop(0.2, 30, confidence=0.95, power=0.8)\nrate_cases_needed(0.2, 0.1, confidence=0.95, power=0.8)\n"
        "compare_paired({'a': [1], 'b': [1]}, {'a': [0], 'b': [1]})\nassert 'scipy.special' in sys.modules\nassert 'scipy.stats' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
