"""The binomial distribution, beside that of scipy.stats."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from mlflow_adk_eval.analysis.stats import binomial
from tests.profiles import examples

SIZES = st.integers(0, 300) | st.sampled_from([1_000, 20_000])
SHARES = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)


def test_no_chance_is_above_one() -> None:
    assert binomial.pmf(np.array([0]), 20_000, 2.8736396005449436e-132) == binom.pmf(0, 20_000, 2.8736396005449436e-132) == 1


@examples(200)
@given(n=SIZES, p=SHARES, data=st.data())
def test_chances_are_those_of_scipy_bit_for_bit(n: int, p: float, data: Any) -> None:
    k = np.array(data.draw(st.lists(st.integers(0, n), min_size=1, max_size=20)))
    assert np.array_equal(binomial.pmf(k, n, p), binom.pmf(k, n, p))
    assert np.array_equal(binomial.cdf(k, n, p), binom.cdf(k, n, p))
    assert np.array_equal(binomial.sf(k, n, p), binom.sf(k, n, p))
    assert np.array_equal(binomial.sf(k, np.arange(len(k)), p), binom.sf(k, np.arange(len(k)), p))


@examples(200)
@given(n=SIZES, p=SHARES, q=st.floats(1e-12, 1 - 1e-12))
def test_quantiles_are_those_of_scipy(n: int, p: float, q: float) -> None:
    assert (binomial.ppf(q, n, p), binomial.isf(q, n, p)) == (binom.ppf(q, n, p), binom.isf(q, n, p))


def test_planning_imports_no_scipy_stats() -> None:
    code = (
        "import sys\nfrom mlflow_adk_eval.analysis.stats import compare_paired, detectable_rate_drop, rate_cases_needed\n"
        "detectable_rate_drop(0.2, 30, confidence=0.95, power=0.8)\nrate_cases_needed(0.2, 0.1, confidence=0.95, power=0.8)\n"
        "compare_paired({'a': [1], 'b': [1]}, {'a': [0], 'b': [1]})\nassert 'scipy.special' in sys.modules\nassert 'scipy.stats' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
