"""Results as Markdown for a page that somebody else renders, such as the summary of a job of GitHub Actions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.report.judging import outages_of
from mlflow_adk_eval.report.sentences import told_of
from mlflow_adk_eval.report.tally import CaseLine, CriterionTotals, flaky_of, totals, verdict_of
from mlflow_adk_eval.results.usage import JudgeUsage

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
