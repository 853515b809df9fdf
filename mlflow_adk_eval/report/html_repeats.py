"""What a page shows of repeated runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlflow_adk_eval.report.html.text import Words, on_one_line
from mlflow_adk_eval.report.repeats import (
    PassHatLine,
    SpreadLine,
    flaky_told,
    pass_hat_lines,
    ranges_told,
    rates_told,
    spread_lines,
)
from mlflow_adk_eval.results.repeats import CaseRepeats, Repeats
from mlflow_adk_eval.results.report import Report, Verdict

_MOST_FLAKY = 200
_MOST_MARKS = 20


@dataclass(frozen=True, slots=True)
class FlakyView:
    """A case whose runs disagree."""

    label: str
    verdicts: tuple[Verdict, ...]
    """By run; of many runs, of the first."""
    counts: str
    pass_rate: str
    ranges: str
    """Between what its scores vary; empty where they do not."""


@dataclass(frozen=True, slots=True)
class RepeatsView:
    """All repeated runs."""

    num_runs: int
    pass_hats: tuple[PassHatLine, ...]
    rates: str
    spreads: tuple[SpreadLine, ...]
    told: str
    flaky: tuple[FlakyView, ...]
    untold: int
    """How many cases are flaky besides."""


def repeats_view(report: Report, words: Words) -> RepeatsView | None:
    """Return what is shown of repeated runs; ``None`` where there are none."""
    if report.num_runs == 1 or not report.cases:
        return None
    repeats = report.repeats
    flaky = repeats.flaky
    return RepeatsView(
        num_runs=repeats.num_runs,
        pass_hats=tuple(pass_hat_lines(repeats)),
        rates=rates_told(repeats),
        spreads=tuple(replace(line, criterion=words(line.criterion)) for line in spread_lines(repeats)),
        told=flaky_told(repeats),
        flaky=tuple(_flaky(repeats, case, words) for case in flaky[:_MOST_FLAKY]),
        untold=max(len(flaky) - _MOST_FLAKY, 0),
    )


def _flaky(repeats: Repeats, case: CaseRepeats, words: Words) -> FlakyView:
    return FlakyView(
        label=on_one_line(words(case.eval_id)),
        verdicts=case.verdicts[:_MOST_MARKS],
        counts=case.told,
        pass_rate=f"{case.pass_rate:.1%}",
        ranges=words(ranges_told(repeats, case)),
    )
