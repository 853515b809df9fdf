"""How far two, or several, agree on a yes or no beyond what chance brings about. Pure arithmetic on counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_DRAWS = 20_000
_SEED = 0
_JEFFREYS = 0.5
_PAIR = 2


def kappa(both: float, first: float, neither: float, second: float) -> float | None:
    """Return Cohen's κ of how often both say yes, only the first, neither, and only the second.

    ``None`` where two who answer at random as often would agree on everything.

    >>> round(kappa(20, 5, 15, 10), 12)
    0.4
    """
    total = both + first + neither + second
    of_first, of_second = (both + first) / total, (both + second) / total
    by_chance = of_first * of_second + (1 - of_first) * (1 - of_second)
    return ((both + neither) / total - by_chance) / (1 - by_chance) if by_chance < 1 else None


def kappa_interval(both: float, first: float, neither: float, second: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the credible interval of Cohen's κ: quantiles of its posterior under Jeffreys' prior, drawn with a fixed seed.

    Unlike the interval by the delta method it does not shrink to a point where all agree, and it covers the truth as often as
    it should from 20 answers on. The counts may be effective ones, which are not whole.
    """
    import numpy as np  # noqa: PLC0415 - half a second, which only reports of agreement need

    shapes = np.array([[both], [first], [neither], [second]]) + _JEFFREYS
    drawn = np.random.default_rng(_SEED).gamma(shapes, size=(4, _DRAWS))
    shares = drawn / drawn.sum(axis=0)
    of_first, of_second = shares[0] + shares[1], shares[0] + shares[3]
    by_chance = of_first * of_second + (1 - of_first) * (1 - of_second)
    found = (shares[0] + shares[2] - by_chance) / (1 - by_chance)
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def pair_agreement(units: Iterable[Sequence[bool]]) -> float | None:
    """Return the share of all pairs of answers on the same unit that agree; ``None`` where no unit has two.

    >>> pair_agreement([[True, True], [True, False], [True]])
    0.5
    """
    counted = [(sum(answers), len(answers)) for answers in units if len(answers) >= _PAIR]
    pairs = sum(size * (size - 1) for _, size in counted)
    agreeing = sum(yes * (yes - 1) + (size - yes) * (size - yes - 1) for yes, size in counted)
    return agreeing / pairs if pairs else None


def krippendorff_alpha(units: Iterable[Sequence[bool]]) -> float | None:
    """Return Krippendorff's α of yes and no, by whoever answered: 1 where all agree, 0 where it is no better than chance.

    ``None`` where no unit has two answers, or all answers are the same.

    >>> round(krippendorff_alpha([[True, True], [False, False], [True, False]]), 3)
    0.444
    """
    counted = [(sum(answers), len(answers)) for answers in units if len(answers) >= _PAIR]
    yes, total = sum(found for found, _ in counted), sum(size for _, size in counted)
    no = total - yes
    if not yes or not no:
        return None
    observed = sum(2 * found * (size - found) / (size - 1) for found, size in counted) / total
    return 1 - observed * (total - 1) * total / (2 * yes * no)
