"""A report as a short page for people, in the Markdown that MLflow shows on a run's first page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlflow_adk_eval.report.judging import outages_of
from mlflow_adk_eval.report.repeats import flaky_told, pass_hat_lines, ranges_told, rates_told
from mlflow_adk_eval.report.sentences import told
from mlflow_adk_eval.results.report import CaseResult, CriterionSummary, Report, Verdict

_MAX_CASES = 10
_MAX_FLAKY = 10
_MAX_REASON = 300
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
        _headline(report),
        _outage(report),
        _criteria(report.summaries().values()),
        _repeats(report),
        _cases(report),
        *map(_plain, told(report)),
        "\n".join(f"Note: {_plain(note)}" for note in report.notes),
    ]
    return "\n\n".join(part for part in parts if part)


def _headline(report: Report) -> str:
    passed = sum(case.verdict == "passed" for case in report.cases)
    runs = "" if report.num_runs == 1 else f" in {report.num_runs} runs each"
    return f"**{report.verdict}**: {passed} of {len(report.cases)} conversations passed ({_plain(report.eval_set.eval_set_id)}{runs})"


def _outage(report: Report) -> str:
    outage = outages_of(report.judging, report.simulating)
    return f"**Attention**: {_plain(outage)}" if outage else ""


def _criteria(summaries: Iterable[CriterionSummary]) -> str:
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


def _cases(report: Report) -> str:
    unpassed = sorted((case for case in report.cases if case.verdict != "passed"), key=_badness)
    lines = [f"- **{_plain(report.label(case))}** {case.verdict}: {_reasons(case.reasons())}" for case in unpassed[:_MAX_CASES]]
    if len(unpassed) > _MAX_CASES:
        lines.append(f"- and {len(unpassed) - _MAX_CASES} more")
    return "\n".join(lines)


def _badness(case: CaseResult) -> tuple[bool, float]:
    """Failed before undecided, and the lowest share of reached criteria first."""
    deciding = [result for result in case.results if result.decides]
    reached = sum(result.passed is True for result in deciding)
    return case.verdict != "failed", reached / len(deciding) if deciding else 0.0


def _reasons(reasons: Sequence[str]) -> str:
    return _cut("; ".join(reasons) or "no criterion decides")


def _cut(text: str) -> str:
    return _plain(text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…")


def _plain(text: str) -> str:
    """Return `text` on one line, without what Markdown or a table would take for its own."""
    one_line = " ".join(text.split())
    return "".join(f"\\{char}" if char in "\\|*`[]<>#" else char for char in one_line)
