"""A comparison in words and numbers, for every page that shows it."""

from __future__ import annotations

from mlflow_adk_eval.analysis.comparison.case import CriterionChange
from mlflow_adk_eval.analysis.comparison.compare import CaseChange, Comparison, Flip
from mlflow_adk_eval.analysis.comparison.delta import CASE_RATE, Delta
from mlflow_adk_eval.report.sentences import counted
from mlflow_adk_eval.results.outcomes import Outcome, Scored, Verdict

HEADINGS: dict[Flip, str] = {
    "worse": "Passed before, failed now",
    "better": "Failed before, passed now",
    "undecided": "Evidence lost or gained",
    "flaky": "Flaky: not all runs of a side agree",
    "none": "Same verdict, other scores",
}
_COUNTS: dict[Flip, str] = {
    "worse": "now fail",
    "better": "now pass",
    "undecided": "to or from undecided",
    "flaky": "flaky with another share",
}


def counts_told(found: Comparison) -> dict[Flip, str]:
    """Return how many cases flipped, by how; nothing of what did not happen."""
    return {flip: f"{count:,} {_COUNTS[flip]}" for flip, count in found.counts.items() if count}


def headline(found: Comparison) -> str:
    """Return how many cases flipped, by how, as a sentence."""
    flips = counts_told(found).values()
    of = f"of {counted(len(found.cases), 'case')} in both runs"
    return f"{', '.join(flips)} {of}" if flips else f"No verdict flipped {of}" if found.cases else "The runs have no case in common"


def pairing_told(found: Comparison) -> tuple[str, ...]:
    """Return a sentence for each kind of cases that cannot be compared, with their ids."""
    pairing = found.pairing
    kinds = (
        (pairing.altered, "in both eval sets with other turns or expectations, so not compared"),
        (pairing.only_before, "only in the first run"),
        (pairing.only_after, "only in the second run"),
    )
    return tuple(f"{counted(len(names), 'case')} {what}: {_listed(names)}" for names, what in kinds if names)


_MOST_NAMED = 20


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def verdict_told(verdicts: tuple[Verdict, ...]) -> str:
    """Return what the runs of a case came to.

    >>> verdict_told(("passed",)), verdict_told(("passed", "failed", "passed"))
    ('passed', '2 of 3 passed')
    """
    return verdicts[0] if len(set(verdicts)) == 1 else f"{verdicts.count('passed')} of {len(verdicts)} passed"


def state_of(verdicts: tuple[Verdict, ...]) -> str:
    """Return the verdict of all runs of a case, or *flaky*."""
    return verdicts[0] if len(set(verdicts)) == 1 else "flaky"


def runs_told(case: CaseChange) -> str:
    """Return which runs of a case stand for the others; empty where there is one each."""
    sides = zip(("before", "now"), case.runs, (case.before, case.after), strict=True)
    return ", ".join(f"{when} run {index + 1} of {len(verdicts)}" for when, index, verdicts in sides if len(verdicts) > 1)


def score_told(outcome: Outcome | None) -> str:
    """Return a score as text.

    >>> score_told(Scored(0.66667)), score_told(None)
    ('0.6667', '–')
    """
    if outcome is None:
        return "–"
    return f"{outcome.score:.4g}" if isinstance(outcome, Scored) else "not evaluated"


def change_told(change: CriterionChange) -> str:
    """Return a criterion's score before and now."""
    return f"{score_told(change.before)} → {score_told(change.after)}"


def name_of(delta: Delta) -> str:
    """Return what a delta is about."""
    return "cases passed" if delta.name == CASE_RATE else delta.name


def value_told(delta: Delta, value: float | None, *, signed: bool = False) -> str:
    """Return one of a delta's numbers, shares of cases as percents; a dash where there is none."""
    if value is None:
        return "–"
    sign = "+" if signed and value else ""
    told = format(value + 0.0, f"{sign}.1%" if delta.name == CASE_RATE else f"{sign}.{3 if signed else 4}g")  # no negative zero
    return told.replace("-", "−") if "e" not in told else told


def interval_told(delta: Delta) -> str:
    """Return the interval of a difference; empty where there is none."""
    if delta.low is None or delta.high is None:
        return ""
    return f"{value_told(delta, delta.low, signed=True)} to {value_told(delta, delta.high, signed=True)}"


def chance_told(delta: Delta) -> str:
    """Return the adjusted p-value; a dash where there is none."""
    p_value = delta.p_adjusted
    return "–" if p_value is None else "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"  # noqa: PLR2004 - as papers do


def cases_told(delta: Delta) -> str:
    """Return how many cases a delta rests on, and how many lack a value."""
    lacking = (
        (delta.only_before, "only before"),
        (delta.only_after, "only now"),
        (delta.neither, "in neither"),
        (delta.partial, "not in every run"),
    )
    said = ", ".join(f"{count:,} {where}" for count, where in lacking if count)
    return f"{delta.cases:,}" + (f" ({said})" if said else "")


def verdict_on(delta: Delta, confidence: float) -> str:
    """Return what can be said of a difference: *better*, *worse*, or that it may be chance."""
    if not delta.cases:
        return "cannot be compared"
    if not delta.difference:
        return "the same"
    if not delta.clear(confidence):
        return "may be chance"
    return "better" if delta.improved else "worse"
