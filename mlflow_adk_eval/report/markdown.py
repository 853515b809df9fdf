"""Results as Markdown for pages that somebody else renders: the note of a run in MLflow, and the summary of a CI job.

Three pages share one set of helpers: `note_of` stands on the front of an MLflow run, `step_summary` in the summary of a job that ran
tests, and `decision_summary` in that of a job that asked the gate. The first is made of a report; the second of `CaseLine`s, since tests
run in several processes that send each other lines and not conversations.

Every text of others passes through `for_mlflow` or `plain` exactly once, where it is put into the page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from mlflow_adk_eval.report import sentences
from mlflow_adk_eval.report.findings import Cause, about, causes_of, sections, with_outage
from mlflow_adk_eval.report.tally import CaseLine, CriterionTotals, causes_of_lines, flaky_of, totals
from mlflow_adk_eval.results.decision import Check, Decision
from mlflow_adk_eval.results.outcomes import verdict_of
from mlflow_adk_eval.results.report import CriterionSummary, Report
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.text import counted, for_mlflow, format_number, plain

T = TypeVar("T")

MARKS = {"passed": "✅", "failed": "❌", "undecided": "⚠️"}
"""What stands before a verdict."""
_MAX_FLAKY, _MAX_CRITERIA, _MAX_CAUSES, _MAX_NOTE_CASES, _MAX_NOTE_REASON = 10, 40, 10, 10, 300
_MAX_CASES, _MAX_LABEL = 100, 200
_MAX_LINES, _MAX_GATE_REASON = 100, 2000


def table(
    heads: Sequence[str],
    items: Sequence[T],
    cells_of: Callable[[T], Sequence[str]],
    *,
    most: int,
    numbers: Collection[str] = (),
    noun: str = "more",
) -> str:
    """Return a table with a row for each item; empty without items.

    Args:
        heads: the headings.
        items: what the rows are about.
        cells_of: makes the cells of a row, each of them Markdown already.
        most: as many rows are shown; the others are counted below.
        numbers: the headings whose columns stand on the right.
        noun: what the others are called in the line that counts them.
    """
    if not items:
        return ""
    rows = [heads, ["---:" if head in numbers else "---" for head in heads], *map(cells_of, items[:most])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + (f"\n\nand {len(items) - most} {noun}" if len(items) > most else "")


def note_of(report: Report, experiment_id: str = "", run_id: str = "") -> str:
    """Return the note of an MLflow run, of which its page shows four lines: how many cases passed, and why others did not, the worst cause first.

    Below are what to do next, the criteria, and of repeated runs the flaky cases.

    Args:
        report: what was found.
        experiment_id: of the run, for links to its pages.
        run_id: likewise; empty: there are none.
    """
    outage = sentences.format_outages(report.judging, report.simulating)
    criteria = [summary for summary in report.summaries().values() if summary.threshold is not None or summary.evaluated or summary.errored]
    heads = ("criterion", "mean", "threshold", "pass rate", "evaluated", "errored")
    causes = causes_of(report)
    found, outage = with_outage(causes.found, outage)
    runs = "" if report.num_runs == 1 else f", {report.num_runs} runs of each case"
    share = sentences.format_share(report.verdicts, report.num_runs, report.until_decided)
    page = f"#/experiments/{experiment_id}/runs/{run_id}"
    links = f" · [report]({page}/artifacts/adk_eval/report.html) · [turns]({page}/traces)" if run_id else ""
    parts = [
        f"**{share}** in {for_mlflow(report.eval_set.eval_set_id)}{runs} · verdict: **{report.verdict}**{links}",
        f"**Attention**: {for_mlflow(outage)}" if outage else "",
        _causes(found, partial(about, report), _MAX_NOTE_CASES, for_mlflow),
        f"and {counted(causes.unread, 'more case run')} that did not pass" if causes.unread else "",
        f"Next: `mlflow-adk-eval gate {run_id}` or `mlflow-adk-eval compare ANOTHER_RUN {run_id}`" if run_id else "",
        table(heads, criteria, _criterion_cells, most=_MAX_CRITERIA, noun="more criteria"),
        _repeats(report) if report.num_runs > 1 and report.cases else "",
        *map(for_mlflow, sentences.circumstances(report).values()),
        "\n".join(f"Note: {for_mlflow(note)}" for note in report.notes),
    ]
    return "\n\n".join(filter(None, parts))


def _criterion_cells(summary: CriterionSummary) -> tuple[str, ...]:
    return (
        for_mlflow(summary.criterion),
        sentences.format_evidence(summary.mean, summary.threshold, summary.scored, summary.planned),
        sentences.format_threshold(summary.threshold, greater_is_better=summary.greater_is_better, missing="information"),
        "" if summary.pass_rate is None else f"{summary.pass_rate:.1%}",
        f"{summary.evaluated:,}",
        str(summary.errored + (summary.skipped if summary.threshold is not None else 0)),
    )


def _repeats(report: Report) -> str:
    """Return how reliable the agent is, and a table of the flaky cases."""
    repeats = report.repeats
    chances = ", ".join(f"pass^{line.k} {line.mean:.1%}" for line in sentences.pass_hat_lines(repeats))
    sentence = f"{chances}; cases passed by run: {sentences.format_run_rates(repeats)}. {sentences.format_flaky(repeats)}."
    flaky = table(
        ("flaky case", "runs", "scores"),
        repeats.flaky,
        lambda case: (
            for_mlflow(case.eval_id, _MAX_NOTE_REASON),
            case.summary,
            for_mlflow(sentences.format_ranges(repeats, case), _MAX_NOTE_REASON),
        ),
        most=_MAX_FLAKY,
        noun="more flaky cases",
    )
    return "\n\n".join(filter(None, (sentence, flaky)))


def _causes(causes: Sequence[Cause], about_place: Callable[[int], tuple[str, str]], most: int, escaped: Callable[[str], str]) -> str:
    """Return a list of causes, worst first, each with its cases; `most`: so many cases are explained at most."""
    lines: list[str] = []
    for cause, cases in sections(causes[:_MAX_CAUSES], about_place, most):
        lines += [f"- {MARKS[cause.verdict]} {escaped(str(cause))}", *(f"  - {escaped(case)}" for case in cases)]
    return "\n".join([*lines, *([f"- and {len(causes) - _MAX_CAUSES:,} more causes"] if len(causes) > _MAX_CAUSES else [])])


def step_summary(
    cases: Sequence[CaseLine],
    *,
    missing: int = 0,
    judging: JudgeUsage | None = None,
    simulating: JudgeUsage | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Return the summary of a CI job: how many cases passed, why others did not, the criteria, and of repeated runs the flaky cases.

    Args:
        cases: the case runs that have a result.
        missing: how many more there should be.
        judging: what the judges took.
        simulating: what the models that simulated users took.
        notes: further sentences.
    """
    verdict = verdict_of((case.verdict for case in cases), missing=missing)
    causes, outage = with_outage(causes_of_lines(cases), sentences.format_outages(judging, simulating))
    unknown = f", {missing} more did not finish" if missing else ""
    heads, numbers = ("criterion", "mean", "threshold", "passed"), ("mean", "threshold", "passed")
    parts = [
        f"### {MARKS[verdict]} ADK evaluation: {sentences.format_share([case.verdict for case in cases])}{unknown} · verdict: {verdict}",
        f"**Attention:** {plain(outage)}" if outage else "",
        _causes(causes, lambda place: (cases[place].label, cases[place].why), _MAX_CASES, plain),
        table(heads, totals(cases), _total_cells, most=sys.maxsize, numbers=numbers),
        table(
            ("flaky case", "runs"),
            flaky_of(cases),
            lambda case: (plain(case.eval_id, _MAX_LABEL), case.summary),
            most=_MAX_CASES,
            noun="more flaky cases",
        ),
        *map(plain, (*sentences.circumstances(cases, judging, simulating).values(), *notes)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _total_cells(one: CriterionTotals) -> tuple[str, ...]:
    return plain(one.criterion), one.evidence, plain(one.threshold), f"{one.passed} of {len(one.tallies)}"


def decision_summary(decision: Decision, title: str = "") -> str:
    """Return a decision of the gate: the verdict, the reasons, a table of what was checked, the waivers and the notes.

    Args:
        decision: what was decided.
        title: about what; empty: about the run.
    """
    identity = {
        "run": decision.run_id,
        "compared with run": decision.baseline_run_id,
        "evidence": decision.evidence_sha256[:12],
        "policy": decision.policy_sha256[:12],
        "decided": " by ".join(filter(None, (decision.decided_at, decision.decided_by))),
    }
    heads = ("rule", "demand", "value", "baseline", "difference", "p", "cases", "verdict")
    parts = [
        f"### {MARKS[decision.verdict]} Agent gate: {plain(title or f'run {decision.run_id}')} · verdict: {decision.verdict}",
        _section("", decision.reasons),
        table(heads, decision.checks, _check_cells, most=_MAX_LINES, numbers=heads[2:-1], noun="more checks"),
        _section("**Waived**\n\n", decision.waived),
        _section("**Notes**\n\n", decision.notes),
        " · ".join(f"{name} {plain(value)}" for name, value in identity.items() if value),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _section(head: str, lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - _MAX_LINES:,} more"] if len(lines) > _MAX_LINES else []
    named = "\n".join(f"- {line}" for line in (*(plain(line, _MAX_GATE_REASON) for line in lines[:_MAX_LINES]), *more))
    return head + named if lines else ""


def _check_cells(check: Check) -> tuple[str, ...]:
    interval = "" if check.low is None or check.high is None else " " + plain(f"[{check.low:.4g}, {check.high:.4g}]")
    difference = "" if check.difference is None else f"{check.difference:+.4g}{interval}"
    return (
        plain(f"{check.slice}: {check.measure}" if check.slice else check.measure),
        plain(check.demand),
        sentences.format_checked(check) + ("" if difference else interval),
        format_number(check.baseline, ""),
        difference,
        "" if check.p_value is None else f"{check.p_value:.3g}",
        sentences.format_cases(check),
        f"{MARKS[check.verdict]} {check.verdict}",
    )
