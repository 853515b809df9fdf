"""Checks: what one demand of a policy came to, as numbers and as a sentence.

Each demand of a policy becomes a `Check`. This module has what all of them share, a rule's target and how numbers are written, and the
checks that need no measure: the thresholds of the run's own config (`check_thresholds`), the cases that must pass (`check_must_pass`)
and how many cases there are (`check_min_cases`). What has no score although it was planned is no check: `unevaluated` names it,
and nothing passes while there is any.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from mlflow_adk_eval.analysis.stats.paired import in_both
from mlflow_adk_eval.errors import did_you_mean
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.gating.policy.model import Policy, Rule
from mlflow_adk_eval.gating.rules.measures import Measured
from mlflow_adk_eval.results import outcomes
from mlflow_adk_eval.results.decision import Check
from mlflow_adk_eval.results.outcomes import mean
from mlflow_adk_eval.results.report import CriterionSummary, Report
from mlflow_adk_eval.text import Few, beginning, counted, few
from mlflow_adk_eval.text import format_number as with_four_digits

_MAX_EXAMPLES = 3
_MAX_KEPT = 100
_MAX_REASON = 200
_MOST_HINTS = 10
"""So many unknown cases are compared with all that there are: that takes longer than everything else."""
_LARGE = 1e12
"""From here on, nobody wants to count digits."""
_FAILED_ITEM = re.compile(r"^- ✗ .*", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTarget:
    """One rule on one measure over some cases."""

    measure: str
    slice: str
    """The name of the slice; empty for all cases."""
    rule: Rule
    confidence: float

    @property
    def where(self) -> str:
        """How sentences call it."""
        return f"{self.measure} (slice {self.slice})" if self.slice else self.measure

    def check(self, demand: str, verdict: outcomes.Verdict, finding: str, cases: int, **numbers: Any) -> Check:
        """Return what a demand came to; `finding`: the sentence without its subject."""
        reason = f"{self.where}: {finding}"
        return Check(measure=self.measure, slice=self.slice, demand=demand, verdict=verdict, reason=reason, cases=cases, **numbers)


def format_number(value: float, *, unlike: float | None = None) -> str:
    """Return a number as `text.format_number` does, but all digits before the point.

    >>> format_number(0.123456), format_number(4100.0), format_number(0.7999999, unlike=0.8)
    ('0.1235', '4100', '0.7999999')
    """
    short = with_four_digits(value, unlike=unlike)
    return f"{value:.0f}" if "e" in short and 1 <= abs(value) < _LARGE else short


def format_exact(value: float) -> str:
    """Return a number that somebody has written down.

    >>> format_exact(0.123456), format_exact(4000.0), format_exact(0.1 + 0.2)
    ('0.123456', '4000', '0.3')
    """
    return f"{value:.15g}"


def format_percent(share: float) -> str:
    """Return a share in percent.

    >>> format_percent(0.95), format_percent(0.999)
    ('95%', '99.9%')
    """
    return f"{share * 100:.6g}%"


def extremes(measured: Measured, *, lowest: bool) -> str:
    """Return the cases with the lowest or the highest values, the most extreme first."""
    sign = 1 if lowest else -1
    means = ((case, mean(values)) for case, values in measured.values.items())
    ranked = heapq.nsmallest(_MAX_EXAMPLES, means, key=lambda found: (sign * found[1], found[0]))
    return ", ".join(f"{case} {format_number(value)}" for case, value in ranked)


def largest_drops(before: Measured, after: Measured) -> str:
    """Return the cases that got worse the most, with both values; empty where none did."""
    sign = 1 if after.greater_is_better else -1
    means = ((case, mean(early), mean(late)) for case, early, late in in_both(before.values, after.values))
    drops = ((sign * (early - late), case, early, late) for case, early, late in means)
    ranked = heapq.nsmallest(_MAX_EXAMPLES, (drop for drop in drops if drop[0] > 0), key=lambda found: (-found[0], found[1]))
    return ", ".join(f"{case} {format_number(early)} → {format_number(late)}" for _, case, early, late in ranked)


def check_thresholds(report: Report) -> Iterator[Check]:
    """Yield whether each case that was evaluated reached the thresholds of the run's own config, by criterion.

    Cases are counted without having them all in memory: of those that missed a threshold, only the worst are kept.
    """
    thresholds = report.config.deciding_thresholds()
    for summary in _deciding(report):
        name, threshold = summary.criterion, thresholds[summary.criterion]
        sign = 1 if summary.greater_is_better else -1
        deciding = below = unscored = planned = scored = 0
        worst: list[tuple[float, int, outcomes.CaseResult]] = []
        # A criterion may decide some cases and be mere information on the others.
        decided = ((case, result) for case, result in report.cases.of(name) if result.decides)
        for _, runs in groupby(decided, key=lambda pair: pair[0].eval_id):
            results = list(runs)
            planned, deciding = planned + 1, deciding + len(results)
            scored += any(result.score is not None for _, result in results)
            unscored += sum(result.passed is None for _, result in results)
            for case, result in results:
                if result.passed is False:
                    below += 1
                    worst.append(((result.score or 0.0) * sign, below, case))
            if len(worst) > _MAX_KEPT:
                worst = heapq.nsmallest(_MAX_EXAMPLES, worst, key=itemgetter(0, 1))
        verdict: outcomes.Verdict = "undecided"
        finding = "some cases were not evaluated"
        if below:
            mean = format_number(summary.mean or 0.0, unlike=summary.threshold)
            verdict, relation = "failed", "below" if summary.greater_is_better else "above"
            named = ((case, case.result(name)) for _, _, case in heapq.nsmallest(_MAX_EXAMPLES, worst, key=itemgetter(0, 1)))
            examples = "; ".join(_example(report, case, result) for case, result in named if result)
            of = _case_runs(report, deciding)
            finding = f"{below} of {of} {relation} the threshold {threshold} (mean {mean}); worst: {examples}"
        elif not unscored:
            verdict = "passed"
            finding = f"{_case_runs(report, deciding)} reached the threshold {threshold} (mean {summary.mean:.4g})"
        reason, demand = f"{name}: {finding}", f"threshold {threshold}"
        yield Check(measure=name, demand=demand, verdict=verdict, reason=reason, cases=scored, missing=planned - scored, value=summary.mean)


def _deciding(report: Report) -> list[CriterionSummary]:
    """Return the totals of each criterion that a case needs to pass."""
    return [summary for summary in report.summaries().values() if summary.threshold is not None]


def _example(report: Report, case: outcomes.CaseResult, result: outcomes.CriterionResult) -> str:
    # A score must not be rounded to the threshold that it missed.
    number = f"{result.score:.4g}" if f"{result.score:.4g}" != f"{result.threshold:.4g}" else repr(result.score)
    scored = [cell for cell in result.per_invocation if isinstance(cell, outcomes.Scored)]
    if not scored:
        return f"{report.label(case)} {number}"
    pick = min if result.greater_is_better else max
    rationale = pick(scored, key=lambda cell: cell.score).rationale
    failed = _FAILED_ITEM.search(rationale)  # the first rubric or sentence that failed, where the rationale is a list of them
    why = _first_line(failed[0] if failed else rationale)
    return f"{report.label(case)} {number}" + (f" ({why})" if why else "")


def unevaluated(report: Report) -> list[str]:
    """Return what has no score although it was to have one, by the run's own account."""
    unfinished: dict[str, Few] = {}  # what stops many cases, such as a service that is down, is one finding
    for case in report.cases:
        if case.conversation.error:
            error = _first_line(re.sub(f"^{outcomes.AT_TURN}", "", case.conversation.error))
            unfinished.setdefault(error, Few()).add([report.label(case)])
    untouched = (case for case in report.cases if not any(planned.decides for planned in case.planned))
    problems = [
        *few(f"{cases}: the agent did not finish: {error}" for error, cases in unfinished.items()),
        *few(f"{report.label(case)}: {_undecidable(report, case)}" for case in untouched),
    ]
    for summary in _deciding(report):
        planned = summary.evaluated + summary.errored + summary.skipped
        for kind, word, count in ((outcomes.Errored, "errored", summary.errored), (outcomes.Skipped, "skipped", summary.skipped)):
            if count:
                cells = (
                    f"{report.label(case)}, turn {index + 1}: {_first_line(outcomes.reason_of(cell))}"
                    for case, result in report.cases.of(summary.criterion)
                    if getattr(result.counts, word)
                    for index, cell in enumerate(result.per_invocation)
                    if isinstance(cell, kind) and not (case.conversation.error and case.conversation.error in outcomes.reason_of(cell))
                )
                examples = "; ".join(few(cells, limit=_MAX_EXAMPLES)) or "the agent did not finish"
                problems.append(f"{summary.criterion}: {count} of {planned} scores {word}, so they are missing: {examples}")
    return problems


def _undecidable(report: Report, case: outcomes.CaseResult) -> str:
    """Return why no criterion decides a case."""
    criteria = report.config.criteria_of(case.eval_id)
    free = [name for name in (planned.criterion for planned in case.planned) if name in criteria]
    if not free:
        return "no criterion applies"
    reached = [f"the threshold {format_exact(criteria[name].threshold)} of {name}" for name in free]
    return f"no criterion decides it: every possible score reaches {', '.join(reached)}"


def evaluated(report: Report, waived: int = 0, gap: str = "", part: str = "") -> str:
    """Return what was evaluated.

    Args:
        report: the results.
        waived: how many waivers left something out.
        gap: what the criteria do not cover, as a clause; empty where they cover everything.
        part: which part of the eval set it covers; empty: all of it.
    """
    count = len(_deciding(report))
    criteria = "1 criterion" if count == 1 else f"{count} criteria"
    limits: list[str] = []
    if part:
        limits.append(f"only {part}")
    if waived:
        limits.append("except for 1 waiver" if waived == 1 else f"except for {waived} waivers")
    if gap:
        limits.append(gap)
    left_out = ", ".join(limits) or "nothing left out"
    scope = f"; the run has {report.until_decided}" if report.until_decided else ""
    return f"{_case_runs(report, len(report.cases))} of eval set {report.eval_set.eval_set_id!r} evaluated on {criteria}, {left_out}{scope}"


def _case_runs(report: Report, count: int) -> str:
    return counted(count, "case" if report.num_runs == 1 else "case run")


def _first_line(text: str) -> str:
    # What an agent wrote may hold half a surrogate pair, which no store takes.
    line = next((line.strip() for line in text.encode("utf-8", "replace").decode().splitlines() if line.strip()), "")
    return beginning(line, _MAX_REASON)


def check_must_pass(policy: Policy, report: Report, eval_set: EvalSet) -> Iterator[Check]:
    """Yield whether each run of the cases that must pass has done so."""
    runs: dict[str, list[outcomes.CaseResult]] = {eval_id: [] for eval_id in policy.must_pass}
    runs |= outcomes.grouped((case.eval_id, case) for case in report.cases if case.eval_id in runs)
    known = frozenset(eval_set.eval_ids) if runs else frozenset[str]()
    hinted = frozenset(islice((eval_id for eval_id in runs if eval_id not in known), _MOST_HINTS))
    for eval_id, found in runs.items():
        verdict, finding = _must_pass(found, report)
        if eval_id not in known:
            hint = did_you_mean(eval_id, eval_set.eval_ids) if eval_id in hinted else ""
            verdict, finding = "undecided", f"eval set {eval_set.eval_set_id!r} has no such case" + (f". {hint}" if hint else "")
        yield Check(measure="must_pass", demand=eval_id, verdict=verdict, reason=f"must_pass {eval_id}: {finding}", cases=int(bool(found)))


def _must_pass(runs: list[outcomes.CaseResult], report: Report) -> tuple[outcomes.Verdict, str]:
    if not runs:
        return "passed", "waived, so not required"
    open_runs = [case for case in runs if case.verdict != "passed"]
    if not open_runs:
        return "passed", "passed" if len(runs) == 1 else f"passed in all {len(runs)} runs"
    verdict: outcomes.Verdict = "failed" if any(case.verdict == "failed" for case in open_runs) else "undecided"
    return verdict, "; ".join(f"{report.label(case)} {case.verdict}: {', '.join(case.reasons())}" for case in open_runs)


def different(report: Report, copies: Mapping[str, str]) -> int:
    """Return how many cases with different contents a report has."""
    known: tuple[Mapping[str, str], int] | None = report.cases.memo.get(different)
    if known is None or known[0] is not copies:
        count = len({copies.get(case.eval_id, case.eval_id) for case in report.cases}) if copies else report.case_counts[0]
        known = report.cases.memo[different] = copies, count
    return known[1]


def check_min_cases(policy: Policy, report: Report, copies: Mapping[str, str]) -> Iterator[Check]:
    """Yield whether there are enough cases, where the policy wants more than one; `copies` of others do not count."""
    cases = different(report, copies)
    demand = f"min_cases {policy.min_cases}"
    if not cases:
        yield Check(measure="cases", demand=demand, verdict="undecided", reason="every case is waived", cases=0)
    elif policy.min_cases > 1:
        enough = cases >= policy.min_cases
        verdict: outcomes.Verdict = "passed" if enough else "undecided"
        reason = f"{'' if enough else 'only '}{counted(cases, 'case')}{' with different contents' if copies else ''} not waived; the policy requires at least {policy.min_cases}"
        yield Check(measure="cases", demand=demand, verdict=verdict, reason=reason, cases=cases, value=float(cases))
