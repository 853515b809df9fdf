"""The binomial distribution of `scipy.stats.binom`, bit for bit, without the second that it takes to import scipy.stats.

These are the functions that scipy.stats calls. Of the public ones in scipy.special, `bdtr` is off in the last digits for half of all small counts.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def cdf(k: Any, n: Any, p: Any) -> Any:
    """Return the chance of at most `k` of `n`, for k from 0."""
    return _where(k, n, 1.0, _functions()._binom_cdf(k, n, p))  # noqa: SLF001 - see above


def sf(k: Any, n: Any, p: Any) -> Any:
    """Return the chance of more than `k` of `n`, for k from 0."""
    return _where(k, n, 0.0, _functions()._binom_sf(k, n, p))  # noqa: SLF001


def pmf(k: Any, n: Any, p: Any) -> Any:
    """Return the chance of exactly `k` of `n`, for k from 0 to n."""
    return _chance(_functions()._binom_pmf(k, n, p))  # noqa: SLF001


def ppf(q: Any, n: Any, p: Any) -> Any:
    """Return the least `k` of which `cdf` is at least `q`, for q between 0 and 1."""
    return _functions()._binom_ppf(q, n, p)  # noqa: SLF001


def isf(q: Any, n: Any, p: Any) -> Any:
    """Return the least `k` of which `sf` is at most `q`, for q between 0 and 1."""
    return _functions()._binom_isf(q, n, p)  # noqa: SLF001


def _where(k: Any, n: Any, certain: float, found: Any) -> Any:
    import numpy as np  # noqa: PLC0415 - some time to import, needed only where runs are compared or planned

    return np.where(np.greater_equal(k, n), certain, _chance(found))


def _chance(found: Any) -> Any:
    """Return `found` within 0 and 1, which the functions leave by the last digits where `p` is tiny."""
    import numpy as np  # noqa: PLC0415

    return np.clip(found, 0, 1)


def _functions() -> Any:
    return import_module("scipy.special._ufuncs")
