"""Repeated runs in words and numbers, for every page that shows them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mlflow_adk_eval.analysis.stats import Interval, mean_interval
from mlflow_adk_eval.results.repeats import CaseRepeats, CriterionRepeats, Repeats

_MOST_RUNS = 10


@dataclass(frozen=True, slots=True)
class PassHatLine:
    """Pass^k over all cases."""

    k: int
    mean: float
    interval: Interval | None

    @property
    def told(self) -> str:
        """The interval as text; empty where there is none."""
        return f"{self.interval[0]:.1%} to {self.interval[1]:.1%}" if self.interval else ""


def pass_hat_lines(repeats: Repeats) -> Iterator[PassHatLine]:
    """Yield pass^k for each `k` that is shown, with its interval by case; nothing without cases."""
    for k in repeats.ks:
        found = repeats.pass_hat(k)
        if found is not None:
            yield PassHatLine(k, found, mean_interval(repeats.pass_hats(k)))


@dataclass(frozen=True, slots=True)
class SpreadLine:
    """How far one criterion varies, as text; a dash where it cannot be said."""

    criterion: str
    lowest: str
    highest: str
    run_std: str
    within: str
    between: str
    cases: str


def spread_lines(repeats: Repeats) -> Iterator[SpreadLine]:
    """Yield how far each criterion varies between runs, within a case and between cases."""
    for found in repeats.criteria.values():
        yield SpreadLine(
            criterion=found.criterion,
            lowest=_number(min(found.run_means, default=None)),
            highest=_number(max(found.run_means, default=None)),
            run_std=_number(found.run_std),
            within=_number(_root(found.within_variance)),
            between=_number(_root(found.between_variance)),
            cases=_complete(found),
        )


def _complete(found: CriterionRepeats) -> str:
    return str(found.complete) if found.complete == found.planned else f"{found.complete} of {found.planned}"


def _root(value: float | None) -> float | None:
    return None if value is None else math.sqrt(value)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def rates_told(repeats: Repeats) -> str:
    """Return the share of the cases that passed in each run; of many runs, of the first."""
    rates = [f"{rate:.1%}" for rate in repeats.run_pass_rates[:_MOST_RUNS]]
    more = repeats.num_runs - len(rates)
    return ", ".join(rates) + (f" and {more} more" if rates and more else "")


def ranges_told(repeats: Repeats, case: CaseRepeats) -> str:
    """Return between what the scores of a case vary, for the criteria that decide."""
    return ", ".join(
        f"{name} {found[0]:.4g} to {found[1]:.4g}"
        for name, criterion in repeats.criteria.items()
        if criterion.decides and (found := case.score_range(name)) and found[0] < found[1]
    )


def flaky_told(repeats: Repeats) -> str:
    """Return how many cases are flaky, as a sentence."""
    count = len(repeats.flaky)
    if not count:
        return f"No case is flaky: the {repeats.num_runs} runs of each came to the same verdict"
    return f"{count} of {len(repeats.cases)} case{'' if len(repeats.cases) == 1 else 's'} {'is' if count == 1 else 'are'} flaky"
