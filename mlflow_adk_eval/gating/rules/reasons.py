"""The sentences of a decision: who missed a threshold and why, what was not evaluated, and what a pass rests on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mlflow_adk_eval.errors import did_you_mean
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.gating.evidence.integrity import few
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.rules.checks import cases_told
from mlflow_adk_eval.results.decision import Check
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Errored, Scored, Skipped, Verdict, reason_of
from mlflow_adk_eval.results.report import CriterionSummary, Report

_MAX_EXAMPLES = 3
_MAX_REASON = 200
_FAILED_ITEM = re.compile(r"^- ✗ .*", re.MULTILINE)

Found = tuple[CaseResult, CriterionResult]
"""A case run and what one criterion made of it."""


def deciding(report: Report) -> list[CriterionSummary]:
    """Return the totals of each criterion that a case needs to pass."""
    return [summary for summary in report.summaries().values() if summary.threshold is not None]


def missed(report: Report, summary: CriterionSummary) -> str:
    """Return which cases missed the threshold of a criterion, the worst first; empty if none did."""
    results = _results(report, summary.criterion)
    below = _worst_first(results)
    return _missed(report, summary, results, below) if below else ""


def reached(report: Report, summary: CriterionSummary) -> str:
    """Return that all cases reached the threshold of a criterion."""
    cases, threshold = _cases(report, len(_results(report, summary.criterion))), report.config.thresholds()[summary.criterion]
    return f"{summary.criterion}: {cases} reached the threshold {threshold} (mean {summary.mean:.4g})"


def _results(report: Report, criterion: str) -> list[Found]:
    return [(case, result) for case in report.cases for result in case.results if result.criterion == criterion]


def _worst_first(results: Sequence[Found]) -> list[Found]:
    """Return those that missed their threshold."""
    below = [(case, result) for case, result in results if result.passed is False]
    return sorted(below, key=lambda found: (found[1].score or 0.0) * (1 if found[1].greater_is_better else -1))


def _missed(report: Report, summary: CriterionSummary, results: Sequence[Found], below: Sequence[Found]) -> str:
    relation = "below" if summary.greater_is_better else "above"
    threshold = report.config.thresholds()[summary.criterion]
    worst = "; ".join(_example(report, case, result) for case, result in below[:_MAX_EXAMPLES])
    return (
        f"{summary.criterion}: {len(below)} of {_cases(report, len(results))} {relation} the threshold {threshold}"
        f" (mean {summary.mean:.4g}); worst: {worst}"
    )


def _example(report: Report, case: CaseResult, result: CriterionResult) -> str:
    rounded = f"{result.score:.4g}"
    # A score must not be rounded to the threshold that it missed.
    number = repr(result.score) if rounded == f"{result.threshold:.4g}" else rounded
    scored = [cell for cell in result.per_invocation if isinstance(cell, Scored)]
    pick = min if result.greater_is_better else max
    why = _first_line(_what_failed(pick(scored, key=lambda cell: cell.score).rationale)) if scored else ""
    return f"{report.label(case)} {number}" + (f" ({why})" if why else "")


def unevaluated(report: Report) -> list[str]:
    """Return what has no score although it was to have one, by the run's own account."""
    unfinished = [case for case in report.cases if case.error]
    untouched = [case for case in report.cases if not any(result.decides for result in case.results)]
    return [
        *few(f"{report.label(case)}: the agent did not finish: {_first_line(case.error)}" for case in unfinished),
        *few(f"{report.label(case)}: no criterion applies" for case in untouched),
        *(reason for summary in deciding(report) for reason in _without_score(report, summary)),
    ]


def _without_score(report: Report, summary: CriterionSummary) -> Iterator[str]:
    planned = summary.evaluated + summary.errored + summary.skipped
    for kind, word in ((Errored, "errored"), (Skipped, "skipped")):
        found = list(_cells_of(report, summary.criterion, kind))
        if found:
            examples = "; ".join(few(found, limit=_MAX_EXAMPLES))
            yield f"{summary.criterion}: {len(found)} of {planned} cells {word}, so they were not evaluated: {examples}"


def _cells_of(report: Report, criterion: str, kind: type[Errored | Skipped]) -> Iterator[str]:
    for case, result in _results(report, criterion):
        for index, cell in enumerate(result.per_invocation):
            if isinstance(cell, kind):
                yield f"{report.label(case)}, turn {index + 1}: {_first_line(reason_of(cell))}"


def evaluated(report: Report, waived: int = 0) -> str:
    """Return what was evaluated; `waived`: how many waivers left something out."""
    count = len(deciding(report))
    criteria = "1 criterion" if count == 1 else f"{count} criteria"
    left_out = "nothing left out" if not waived else f"but for what {'1 waiver leaves' if waived == 1 else f'{waived} waivers leave'} out"
    return f"{_cases(report, len(report.cases))} of eval set {report.eval_set.eval_set_id!r} evaluated on {criteria}, {left_out}"


def _cases(report: Report, count: int) -> str:
    noun = "case" if report.num_runs == 1 else "case run"
    return f"{count} {noun if count == 1 else noun + 's'}"


def _what_failed(rationale: str) -> str:
    """Return the first rubric or sentence in a rationale that failed; the whole of it where it is no such list."""
    failed = _FAILED_ITEM.search(rationale)
    return failed[0] if failed else rationale


def _first_line(text: str) -> str:
    # What an agent wrote may hold half a surrogate pair, which no store takes.
    line = next((line.strip() for line in text.encode("utf-8", "replace").decode().splitlines() if line.strip()), "")
    return line if len(line) <= _MAX_REASON else f"{line[: _MAX_REASON - 1]}…"


def check_thresholds(report: Report) -> Iterator[Check]:
    """Yield whether each case that was evaluated reached the thresholds of the run's own config, by criterion."""
    thresholds = report.config.thresholds()
    for summary in deciding(report):
        results = [result for case in report.cases for result in case.results if result.criterion == summary.criterion]
        below, whole = missed(report, summary), all(result.passed is not None for result in results)
        verdict: Verdict = "failed" if below else ("passed" if whole else "undecided")
        yield Check(
            measure=summary.criterion,
            demand=f"threshold {thresholds[summary.criterion]}",
            verdict=verdict,
            reason=below or (reached(report, summary) if whole else f"{summary.criterion}: not every case was evaluated"),
            cases=len(summary.case_scores),
            value=summary.mean,
        )


def check_must_pass(policy: Policy, report: Report, eval_set: EvalSet) -> Iterator[Check]:
    """Yield whether each run of the cases that must pass has done so."""
    runs: dict[str, list[CaseResult]] = {}
    for case in report.cases:
        runs.setdefault(case.eval_id, []).append(case)
    for eval_id in policy.must_pass:
        verdict, said = _must_pass(eval_id, runs.get(eval_id, []), report, eval_set)
        yield Check(measure="must_pass", demand=eval_id, verdict=verdict, reason=f"must_pass {eval_id}: {said}", cases=int(eval_id in runs))


def _must_pass(eval_id: str, runs: list[CaseResult], report: Report, eval_set: EvalSet) -> tuple[Verdict, str]:
    if eval_id not in eval_set.eval_ids:
        hint = did_you_mean(eval_id, eval_set.eval_ids)
        return "undecided", f"there is no such case in eval set {eval_set.eval_set_id!r}" + (f". {hint}" if hint else "")
    if not runs:
        return "passed", "waived, so it was not asked for"
    open_runs = [case for case in runs if case.verdict != "passed"]
    if not open_runs:
        return "passed", "passed" if len(runs) == 1 else f"passed in all of its {len(runs)} runs"
    verdict: Verdict = "failed" if any(case.verdict == "failed" for case in open_runs) else "undecided"
    said = "; ".join(f"{report.label(case)} {case.verdict}: {', '.join(case.reasons())}" for case in open_runs)
    return verdict, said


def check_min_cases(policy: Policy, report: Report) -> Iterator[Check]:
    """Yield whether there are enough cases, where the policy wants more than one."""
    cases = len({case.eval_id for case in report.cases})
    if not cases:
        yield Check(measure="cases", demand=f"min_cases {policy.min_cases}", verdict="undecided", reason="every case is waived", cases=0)
    elif policy.min_cases > 1:
        enough = cases >= policy.min_cases
        only = "" if enough else "only "
        said = (
            f"{only}{cases_told(cases)} that {'is' if cases == 1 else 'are'} not waived, and the policy wants at least {policy.min_cases}"
        )
        verdict: Verdict = "passed" if enough else "undecided"
        yield Check(measure="cases", demand=f"min_cases {policy.min_cases}", verdict=verdict, reason=said, cases=cases, value=float(cases))
