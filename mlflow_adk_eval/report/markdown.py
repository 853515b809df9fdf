"""Results as Markdown for a page that somebody else renders, such as the summary of a job of GitHub Actions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.report.repeats import flaky_told, pass_hat_lines, ranges_told, rates_told
from mlflow_adk_eval.report.sentences import outages_of, told, told_of
from mlflow_adk_eval.report.tally import CaseLine, CriterionTotals, flaky_of, totals, verdict_of
from mlflow_adk_eval.results.outcomes import CaseResult, Verdict
from mlflow_adk_eval.results.report import CriterionSummary, Report
from mlflow_adk_eval.results.usage import JudgeUsage

_NOTE_MAX_CASES = 10
_MAX_FLAKY = 10
_NOTE_MAX_REASON = 300
_MAX_CRITERIA = 40

EXIT_CODES: dict[Verdict, int] = {"passed": 0, "failed": 1, "undecided": 2}
"""What the command line returns for a verdict."""
_RUN_FAILED = 3


def exit_code(report: Report) -> int:
    """Return what the command line returns for a report: by its verdict, or 3 if agent or judge could not be reached."""
    without_agent = bool(report.cases) and all(case.error for case in report.cases)
    without_model = report.verdict == "undecided" and bool(outages_of(report.judging, report.simulating))
    return _RUN_FAILED if without_agent or without_model else EXIT_CODES[report.verdict]


def note_of(report: Report) -> str:
    """Return the verdict, a table of the criteria, of repeated runs the flaky cases, and the cases that did not pass, each with its reasons."""
    parts = [
        _note_headline(report),
        _outage(report),
        _note_criteria(report.summaries().values()),
        _repeats(report),
        _note_cases(report),
        *map(_plain, told(report)),
        "\n".join(f"Note: {_plain(note)}" for note in report.notes),
    ]
    return "\n\n".join(part for part in parts if part)


def _note_headline(report: Report) -> str:
    passed = sum(case.verdict == "passed" for case in report.cases)
    runs = "" if report.num_runs == 1 else f" in {report.num_runs} runs each"
    return f"**{report.verdict}**: {passed} of {len(report.cases)} conversations passed ({_plain(report.eval_set.eval_set_id)}{runs})"


def _outage(report: Report) -> str:
    outage = outages_of(report.judging, report.simulating)
    return f"**Attention**: {_plain(outage)}" if outage else ""


def _note_criteria(summaries: Iterable[CriterionSummary]) -> str:
    listed = [summary for summary in summaries if summary.threshold is not None or summary.evaluated or summary.errored]
    if not listed:
        return ""
    rows = [_row("criterion", "threshold", "mean", "pass rate", "evaluated", "errored"), _row(*["---"] * 6)]
    rows += [_row(*_cells(summary)) for summary in listed[:_MAX_CRITERIA]]
    return "\n".join(rows) + (f"\n\nand {len(listed) - _MAX_CRITERIA} more criteria" if len(listed) > _MAX_CRITERIA else "")


def _cells(summary: CriterionSummary) -> tuple[str, ...]:
    relation = "≥" if summary.greater_is_better else "≤"
    return (
        _plain(summary.criterion),
        "information" if summary.threshold is None else f"{relation} {summary.threshold:g}",
        "not evaluated" if summary.mean is None else f"{summary.mean:.4g}",
        "" if summary.pass_rate is None else f"{summary.pass_rate:.1%}",
        str(summary.evaluated),
        str(summary.errored + (summary.skipped if summary.threshold is not None else 0)),
    )


def _repeats(report: Report) -> str:
    """Return how reliable the agent is, and a table of the flaky cases; nothing with one run of each case."""
    if report.num_runs == 1 or not report.cases:
        return ""
    repeats = report.repeats
    flaky = repeats.flaky
    chances = ", ".join(f"pass^{line.k} {line.mean:.1%}" for line in pass_hat_lines(repeats))
    lines = [f"{chances}; cases passed by run: {rates_told(repeats)}. {flaky_told(repeats)}."]
    if flaky:
        lines += ["", _row("flaky case", "runs", "scores"), _row(*["---"] * 3)]
        lines += [_row(_cut(case.eval_id), case.told, _cut(ranges_told(repeats, case))) for case in flaky[:_MAX_FLAKY]]
    if len(flaky) > _MAX_FLAKY:
        lines += ["", f"and {len(flaky) - _MAX_FLAKY} more flaky cases"]
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _note_cases(report: Report) -> str:
    unpassed = sorted((case for case in report.cases if case.verdict != "passed"), key=_badness)
    lines = [f"- **{_plain(report.label(case))}** {case.verdict}: {_reasons(case.reasons())}" for case in unpassed[:_NOTE_MAX_CASES]]
    if len(unpassed) > _NOTE_MAX_CASES:
        lines.append(f"- and {len(unpassed) - _NOTE_MAX_CASES} more")
    return "\n".join(lines)


def _badness(case: CaseResult) -> tuple[bool, float]:
    """Failed before undecided, and the lowest share of reached criteria first."""
    deciding = [result for result in case.results if result.decides]
    reached = sum(result.passed is True for result in deciding)
    return case.verdict != "failed", reached / len(deciding) if deciding else 0.0


def _reasons(reasons: Sequence[str]) -> str:
    return _cut("; ".join(reasons) or "no criterion decides")


def _cut(text: str) -> str:
    return _plain(text if len(text) <= _NOTE_MAX_REASON else f"{text[:_NOTE_MAX_REASON]}…")


def _plain(text: str) -> str:
    """Return `text` on one line, without what Markdown or a table would take for its own."""
    one_line = " ".join(text.split())
    return "".join(f"\\{char}" if char in "\\|*`[]<>#" else char for char in one_line)


STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""The environment variable that names the file to which GitHub Actions takes additions."""

MARKS = {"passed": "✅", "failed": "❌", "undecided": "⚠️"}
"""What stands before a verdict."""
_MAX_CASES = 100
_MAX_REASON = 500
_MAX_LABEL = 200
_SPECIAL = frozenset("\\`*_{}[]<>()#|~$&!@:")
"""What Markdown, a table of it, HTML or GitHub's formulas, links and mentions could begin or end with."""


def step_summary(
    cases: Sequence[CaseLine],
    *,
    missing: int = 0,
    judging: JudgeUsage | None = None,
    simulating: JudgeUsage | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Return the verdict, a table of the criteria, of repeated runs the flaky cases, and the cases that did not pass, each with its reasons.

    Args:
        cases: the case runs that have a result.
        missing: how many more there should be.
        judging: what the judges took.
        simulating: what the models that played users took.
        notes: further sentences.
    """
    outage = outages_of(judging, simulating)
    parts = [
        _headline(cases, missing),
        f"**Attention:** {plain(outage)}" if outage else "",
        _criteria(totals(cases)),
        _flaky(cases),
        _cases([case for case in cases if case.verdict != "passed"]),
        *map(plain, (*told_of(cases, judging, simulating), *notes)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def append_step_summary(text: str) -> None:
    """Add `text` to the summary of the job of GitHub Actions that this process is part of; do nothing elsewhere.

    Raises:
        UsageError: if the file cannot be written.
    """
    named = os.environ.get(STEP_SUMMARY)
    if not named:
        return
    try:
        with Path(named).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"\n{text}\n")
    except OSError as error:
        raise UsageError(f"{STEP_SUMMARY}={named}: cannot be written: {error.strerror}") from None


def plain(text: str, limit: int = _MAX_REASON) -> str:
    """Return `text` on one line, such that Markdown shows it as it is, whatever is in it.

    >>> plain("a|b <i> *c*")
    'a&#124;b &#60;i&#62; &#42;c&#42;'
    """
    one_line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    cut = one_line if len(one_line) <= limit else f"{one_line[: limit - 1]}…"
    return "".join(f"&#{ord(char)};" if char in _SPECIAL else char for char in cut)


def _headline(cases: Sequence[CaseLine], missing: int) -> str:
    verdict = verdict_of(cases, missing=missing)
    passed = sum(case.verdict == "passed" for case in cases)
    total = f"{len(cases)} case{'' if len(cases) == 1 else 's'}"
    unknown = f", {missing} more did not run to their end" if missing else ""
    return f"### {MARKS[verdict]} ADK evaluation {verdict}: {passed} of {total} passed{unknown}"


def _criteria(found: Sequence[CriterionTotals]) -> str:
    if not found:
        return ""
    rows = [row("criterion", "threshold", "mean", "passed", "evaluated"), "| --- | ---: | ---: | ---: | ---: |"]
    for one in found:
        shown = "not evaluated" if one.mean is None else f"{one.mean:.4g}"
        rows.append(row(plain(one.criterion), plain(one.threshold), shown, str(one.passed), f"{one.evaluated} of {one.planned}"))
    return "\n".join(rows)


def _flaky(cases: Sequence[CaseLine]) -> str:
    flaky = flaky_of(cases)
    if not flaky:
        return ""
    rows = [row("flaky case", "runs"), row("---", "---")]
    rows += [row(plain(case.eval_id, _MAX_LABEL), case.told) for case in flaky[:_MAX_CASES]]
    return "\n".join(rows) + (f"\n\nand {len(flaky) - _MAX_CASES} more flaky cases" if len(flaky) > _MAX_CASES else "")


def _cases(unpassed: Sequence[CaseLine]) -> str:
    if not unpassed:
        return ""
    rows = [row("case", "verdict", "reasons"), row("---", "---", "---")]
    rows += [
        row(plain(case.label, _MAX_LABEL), f"{MARKS[case.verdict]} {case.verdict}", "<br>".join(map(plain, case.reasons)))
        for case in unpassed[:_MAX_CASES]
    ]
    more = f"\n\nand {len(unpassed) - _MAX_CASES} more" if len(unpassed) > _MAX_CASES else ""
    return "\n".join(rows) + more


def row(*cells: str) -> str:
    """Return a row of a table, of which each cell is Markdown already."""
    return f"| {' | '.join(cells)} |"
