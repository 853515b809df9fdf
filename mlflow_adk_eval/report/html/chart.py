"""The case scores of a criterion as a small picture, and in words for who does not see it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.results.outcomes import reaches
from mlflow_adk_eval.results.report import CriterionSummary

WIDTH, HEIGHT = 200, 40
"""In the units of the picture, without its labels."""
_BINS = 20
_LEAST = 2.0
"""As high as the bar of a single case is among thousands."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Some case scores that lie together, all on one side of the threshold."""

    x: float
    y: float
    height: float
    kind: str
    """``reached``, ``missed`` or, without a threshold, ``plain``."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A histogram."""

    bars: tuple[Bar, ...]
    width: float
    """Of each bar."""
    threshold: float | None
    """Where its line stands; ``None`` without a threshold."""
    low: str
    high: str
    text: str
    """The same in words."""


def chart_of(summary: CriterionSummary) -> Chart | None:
    """Return the histogram of the case scores; ``None`` where there is none."""
    scores = [score for runs in summary.case_scores.values() for score in runs]
    if not scores:
        return None
    low, high = _range(summary, scores)
    bars = tuple(_bars(_counts(summary, scores, low, high)))
    line = None if summary.threshold is None else round((summary.threshold - low) / (high - low) * WIDTH, 1)
    return Chart(bars, WIDTH / _BINS - 1, line, f"{low:.4g}", f"{high:.4g}", _words(summary, scores))


def _range(summary: CriterionSummary, scores: Sequence[float]) -> tuple[float, float]:
    """Return what the picture covers: 0 to 1 for shares, whatever the scores are, and what there is for anything else."""
    given = scores if summary.threshold is None else [*scores, summary.threshold]
    low, high = min(given), max(given)
    if not CRITERIA.is_quantity(summary.criterion) and low >= 0 and high <= 1:
        return 0.0, 1.0
    low = min(low, 0.0)
    return low, high if high > low else low + 1


def _counts(summary: CriterionSummary, scores: Sequence[float], low: float, high: float) -> Counter[tuple[int, str]]:
    """Return how many scores there are in each place, apart for those that reach the threshold."""
    return Counter((min(int((score - low) / (high - low) * _BINS), _BINS - 1), _kind(summary, score)) for score in scores)


def _kind(summary: CriterionSummary, score: float) -> str:
    if summary.threshold is None:
        return "plain"
    return "reached" if reaches(score, summary.threshold, greater_is_better=summary.greater_is_better) else "missed"


def _bars(counts: Counter[tuple[int, str]]) -> Iterator[Bar]:
    """Yield the bars, those of one place on top of each other."""
    totals = Counter[int]()
    for (place, _), count in counts.items():
        totals[place] += count
    highest = max(totals.values())
    tops: dict[int, float] = {}
    for (place, kind), count in sorted(counts.items()):
        height = max(_LEAST, count / highest * (HEIGHT - 2 * _LEAST))
        tops[place] = tops.get(place, float(HEIGHT)) - height
        yield Bar(x=place * WIDTH / _BINS, y=round(tops[place], 1), height=round(height, 1), kind=kind)


def _words(summary: CriterionSummary, scores: Sequence[float]) -> str:
    spread = f"lowest {min(scores):.4g}, median {statistics.median(scores):.4g}, highest {max(scores):.4g}"
    if summary.threshold is None:
        return f"{len(scores)} case scores: {spread}"
    reached = sum(_kind(summary, score) == "reached" for score in scores)
    return f"{reached} of {len(scores)} case scores reach the threshold; {spread}"
