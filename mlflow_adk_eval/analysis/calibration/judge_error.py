"""How often a judge is wrong, and what its pass rate comes to when that is put right. Pure arithmetic on counts.

`JudgeRates` holds the counts of a comparison of a judge with people and gives the rates with their intervals; `corrected_rate` applies them
to what the judge said of other cells. Cells of one conversation resemble each other, so every count comes with a *design effect*: how
many cells say as much as one independent cell. Below are agreement beyond chance of two (`kappa`) and of several (`krippendorff_alpha`).

What people say is taken for the truth. Of what they pass the judge passes a share, its *sensitivity*; of what they fail it
fails a share, its *specificity*. So where a share θ of all cells deserves to pass, the judge passes
p = θ·sensitivity + (1 − θ)·(1 − specificity) of them. Rogan and Gladen (1978) solve that for θ.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated

from pydantic import Field

from mlflow_adk_eval.analysis.stats.intervals import Interval, wilson_interval
from mlflow_adk_eval.evalset.models import Strict
from mlflow_adk_eval.results.outcomes import grouped

Count = Annotated[int, Field(ge=0, strict=True)]
Effect = Annotated[float, Field(ge=1, allow_inf_nan=False)]

FEWEST = 5
"""The least labels of each kind, passed and failed by people, for which a corrected rate is given."""
MARGIN = 0.1
"""How wide, to either side, the interval of a sensitivity or specificity should be at most."""
_MOST_LABELS = 100_000
_WORST_SHARE = 0.5
_DRAWS = 20_000
_SEED = 0
_JEFFREYS = 0.5


class JudgeRates(Strict):
    """What a judge said of the cells that people labelled, as counts."""

    true_passes: Count
    """Passed by both."""
    false_passes: Count
    """Passed by the judge, failed by people."""
    true_failures: Count
    """Failed by both."""
    false_failures: Count
    """Failed by the judge, passed by people."""
    pass_effect: Effect = 1.0
    """The design effect of the cells that people pass: how many of them say as much as one that is independent of all others."""
    failure_effect: Effect = 1.0
    """That of the cells that people fail."""
    judge_pass_effect: Effect = 1.0
    """That of the cells that the judge passed, by whether people agree."""
    judge_failure_effect: Effect = 1.0
    """That of the cells that the judge failed."""
    overall_effect: Effect = 1.0
    """That of all labelled cells, by whether judge and people agree."""
    weighted: tuple[float, float, float, float] | None = None
    """The four counts as they would be in all cells, of a sample that was drawn by what the judge said; ``None``: any cell was as likely."""

    @property
    def counts(self) -> tuple[float, float, float, float]:
        """True passes, false passes, true failures and false failures: of the labelled cells or, in a weighted sample, of all."""
        return self.weighted or (self.true_passes, self.false_passes, self.true_failures, self.false_failures)

    @property
    def passes(self) -> int:
        """How many cells people passed."""
        return self.true_passes + self.false_failures

    @property
    def failures(self) -> int:
        """How many cells people failed."""
        return self.true_failures + self.false_passes

    @property
    def labelled(self) -> int:
        """How many cells were labelled and judged."""
        return self.passes + self.failures

    @property
    def sensitivity(self) -> float | None:
        """The share of what people pass that the judge passes; ``None`` where they pass nothing."""
        both, _, _, second = self.counts
        return both / (both + second) if self.passes else None

    @property
    def specificity(self) -> float | None:
        """The share of what people fail that the judge fails; ``None`` where they fail nothing."""
        _, first, neither, _ = self.counts
        return neither / (first + neither) if self.failures else None

    @property
    def agreement(self) -> float | None:
        """The share of the cells on which judge and people agree; ``None`` without cells."""
        both, _, neither, _ = self.counts
        return (both + neither) / sum(self.counts) if self.labelled else None

    @property
    def kappa(self) -> float | None:
        """Cohen's κ; ``None`` where chance alone would agree on everything, as when both pass all."""
        return kappa(*self._counts()) if self.labelled else None

    def _counts(self, effect: float = 1.0) -> tuple[float, float, float, float]:
        scale = self.labelled / sum(self.counts)
        both, first, neither, second = (count * scale / effect for count in self.counts)
        return both, first, neither, second

    def measure(self, name: str, confidence: float = 0.95) -> tuple[float | None, Interval | None]:
        """Return the sensitivity, specificity, agreement or κ by its name, with its interval: Wilson's, or for κ that of `kappa_interval`."""
        value: float | None = getattr(self, name)
        if value is None:
            return None, None
        if name == "kappa":
            return value, kappa_interval(*self._counts(self.overall_effect), confidence)
        count, effect = {
            "sensitivity": (self.passes, self.pass_effect),
            "specificity": (self.failures, self.failure_effect),
            "agreement": (self.labelled, self.overall_effect),
        }[name]
        return value, wilson_interval(value, count / effect, confidence)

    def passes_wanted(self, confidence: float = 0.95) -> int:
        """Return how many more cells that people pass must be labelled for a sensitivity within `MARGIN`."""
        return _more(self.true_passes, self.passes, self.pass_effect, confidence)

    def failures_wanted(self, confidence: float = 0.95) -> int:
        """Return how many more cells that people fail must be labelled for a specificity within `MARGIN`."""
        return _more(self.true_failures, self.failures, self.failure_effect, confidence)


def rates_of(pairs: Sequence[tuple[str, bool, bool]], weights: Sequence[float] | None = None) -> JudgeRates:
    """Return what a judge and people said of cells, as counts.

    Args:
        pairs: of each cell, the group of those that are alike, whether the judge passed it, and whether people did.
        weights: for how many cells each of them counts, in a sample that was drawn by what the judge said; ``None``: any was as likely.
    """
    cells = [(*pair, weight) for pair, weight in zip(pairs, weights or [1.0] * len(pairs), strict=True)]

    def effect(counts: Callable[[bool, bool], bool]) -> float:
        """Return how many cells say as much as one of a random sample, since those of a group are alike and weights differ (Kish)."""
        chosen = [(group, judge == people, weight) for group, judge, people, weight in cells if counts(judge, people)]
        total, squares = (math.fsum(weight**power for *_, weight in chosen) for power in (1, 2))
        groups = grouped((group, agree) for group, agree, _ in chosen)
        return max(1.0, len(chosen) * squares / total**2) * design_effect(groups.values()) if total else 1.0

    kinds = ((True, True), (True, False), (False, False), (False, True))
    counts = Counter((judge, people) for _, judge, people in pairs)
    both, first, neither, second = (math.fsum(weight for _, *said, weight in cells if tuple(said) == kind) for kind in kinds)
    return JudgeRates(
        true_passes=counts[True, True],
        false_passes=counts[True, False],
        true_failures=counts[False, False],
        false_failures=counts[False, True],
        pass_effect=effect(lambda _, people: people),
        failure_effect=effect(lambda _, people: not people),
        judge_pass_effect=effect(lambda judge, _: judge),
        judge_failure_effect=effect(lambda judge, _: not judge),
        overall_effect=effect(lambda *_: True),
        weighted=(both, first, neither, second) if weights else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """The share of cells that people would pass, by a judge whose errors are known, with its confidence interval."""

    value: float
    low: float
    high: float


def corrected_rate(passed: int, judged: int, rates: JudgeRates, confidence: float = 0.95, *, design_effect: float = 1.0) -> Corrected | str:
    """Return the pass rate that people would give what a judge has judged; a text says why there is none.

    The value is that of Rogan and Gladen, (p + specificity − 1) / (sensitivity + specificity − 1), within [0, 1]. The
    interval is that of Lang and Reiczigel (2014), which Lee et al. (arXiv 2511.21140) use for judges too: it carries what is
    not known because few cells were judged, and because few were labelled.

    Args:
        passed: how many cells the judge passed.
        judged: how many it judged.
        rates: its errors, counted on labelled cells.
        confidence: how often the interval is to cover the truth, between 0 and 1.
        design_effect: that of the judged cells; see `design_effect`.
    """
    if obstacle := obstacle_to_correction(rates, confidence):
        return obstacle
    if not judged:
        return "nothing was judged"
    sensitivity, specificity = rates.sensitivity or 0.0, rates.specificity or 0.0
    value = (passed / judged + specificity - 1) / (sensitivity + specificity - 1)
    quantile = NormalDist().inv_cdf((1 + confidence) / 2)
    low, high = _corrected_interval(passed / judged, judged / design_effect, rates, quantile)
    value = _clipped(value)
    return Corrected(value=value, low=min(low, value), high=max(high, value))


def obstacle_to_correction(rates: JudgeRates, confidence: float = 0.95) -> str:
    """Return why a judge's pass rate cannot be corrected; empty where it can."""
    counts = ((rates.passes, "pass"), (rates.failures, "fail"))
    lacking = [f"{count} of the {FEWEST} needed that people {verb}" for count, verb in counts if count < FEWEST]
    if lacking:
        return f"too few labels: {' and '.join(lacking)}"
    # The lower bound of sensitivity + specificity − 1 follows from the bounds of both (Newcombe's square and add).
    sensitivity, specificity = rates.sensitivity or 0.0, rates.specificity or 0.0
    below = sensitivity - wilson_interval(sensitivity, rates.passes / rates.pass_effect, confidence)[0]
    beside = specificity - wilson_interval(specificity, rates.failures / rates.failure_effect, confidence)[0]
    value = sensitivity + specificity - 1
    low = value - math.hypot(below, beside)
    total = f"no better than chance: sensitivity plus specificity is {value + 1:.2f}"
    if value <= 0:
        return f"the judge is {total}, and guessing reaches 1"
    return "" if low > 0 else f"the judge may be {total}, with a lower bound of {low + 1:.2f}"


def _corrected_interval(share: float, size: float, rates: JudgeRates, z: float) -> Interval:
    """Return the interval of Lang and Reiczigel: the delta method after adding z² cells to the judged and 2 to each kind of the labelled."""
    passes, failures = rates.passes / rates.pass_effect + 2, rates.failures / rates.failure_effect + 2
    sensitivity = ((rates.sensitivity or 0.0) * (passes - 2) + 1) / passes
    specificity = ((rates.specificity or 0.0) * (failures - 2) + 1) / failures
    total, better = size + z * z, sensitivity + specificity - 1
    raw = (share * size + z * z / 2) / total
    value = (raw + specificity - 1) / better
    of_passes, of_failures = sensitivity * (1 - sensitivity) / passes, specificity * (1 - specificity) / failures
    shift = 2 * z * z * (value * of_passes - (1 - value) * of_failures)
    spread = math.sqrt(raw * (1 - raw) / total + value * value * of_passes + (1 - value) ** 2 * of_failures) / better
    return _clipped(value + shift - z * spread), _clipped(value + shift + z * spread)


def _clipped(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _more(right: int, count: int, effect: float, confidence: float) -> int:
    """Return how many more labels bring Wilson's interval within `MARGIN`, if their share of right verdicts stays what it is."""
    share = (right + 1) / (count + 2) if count else _WORST_SHARE

    def narrow(size: int) -> bool:
        low, high = wilson_interval(share, size / effect, confidence)
        return high - low <= 2 * MARGIN

    return bisect_left(range(_MOST_LABELS), True, lo=max(count, 1), key=narrow) - count  # noqa: FBT003 - what is looked for


def design_effect(groups: Iterable[Sequence[bool]]) -> float:
    """Return how many values say as much as one that is independent of all others: at least 1, and 1 where each group has one value.

    It is the variance of the share of true values with the group as the unit that was sampled, divided by what it would be if
    each value were (Rao and Scott 1992). Where the values do not differ, nothing is known of how alike those of a group are:
    then a group is taken to say no more than one value.

    >>> design_effect([[True], [False], [True]]), design_effect([[True, True], [False, False], [True, True], [False, False]])
    (1.0, 2.6666666666666665)
    """
    counts = [(sum(values), len(values)) for values in groups if values]
    total = sum(size for _, size in counts)
    if total == len(counts):
        return 1.0
    share = sum(true for true, _ in counts) / total
    if share in (0, 1) or len(counts) == 1:
        return sum(size * size for _, size in counts) / total
    between = sum((true - share * size) ** 2 for true, size in counts) * len(counts) / (len(counts) - 1)
    return max(1.0, between / (total * share * (1 - share)))


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
    kappas = (shares[0] + shares[2] - by_chance) / (1 - by_chance)
    low, high = np.quantile(kappas, [(1 - confidence) / 2, (1 + confidence) / 2])
    # As for Jeffreys' interval of a share (Brown, Cai and DasGupta, 2001): it would leave out the estimate 1 otherwise.
    return float(low), 1.0 if first == second == 0 else float(high)


def pair_agreement(units: Iterable[Sequence[bool]]) -> float | None:
    """Return the share of all pairs of answers on the same unit that agree; ``None`` where no unit has two.

    >>> pair_agreement([[True, True], [True, False], [True]])
    0.5
    """
    counted = [(sum(answers), len(answers)) for answers in units if len(answers) > 1]
    pairs = sum(size * (size - 1) for _, size in counted)
    agreeing = sum(yes * (yes - 1) + (size - yes) * (size - yes - 1) for yes, size in counted)
    return agreeing / pairs if pairs else None


def krippendorff_alpha(units: Iterable[Sequence[bool]]) -> float | None:
    """Return Krippendorff's α of yes and no, by whoever answered: 1 where all agree, 0 where it is no better than chance.

    ``None`` where no unit has two answers, or all answers are the same.

    >>> round(krippendorff_alpha([[True, True], [False, False], [True, False]]), 3)
    0.444
    """
    counted = [(sum(answers), len(answers)) for answers in units if len(answers) > 1]
    yes, total = sum(passed for passed, _ in counted), sum(size for _, size in counted)
    no = total - yes
    if not yes or not no:
        return None
    observed = sum(2 * passed * (size - passed) / (size - 1) for passed, size in counted) / total
    return 1 - observed * (total - 1) * total / (2 * yes * no)
