"""A report as one HTML file: for a browser, a mail, or MLflow's own viewer of artifacts, without anything from elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from markupsafe import Markup

from mlflow_adk_eval.analysis.stats import mean_interval
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.report.html.cases import CaseView, case_view, repeats_view, shown_cases
from mlflow_adk_eval.report.html.chart import HEIGHT, WIDTH, Chart, chart_of
from mlflow_adk_eval.report.html.page import policy, source, template
from mlflow_adk_eval.report.html.text import Words, on_one_line, rationale_html, words_for
from mlflow_adk_eval.report.html.turns import Tools, threshold_text
from mlflow_adk_eval.report.sentences import accounts, course_facts, outages_of
from mlflow_adk_eval.results.outcomes import CaseResult, Verdict
from mlflow_adk_eval.results.report import CriterionSummary, Report

_FIRST_REASONS, _MOST_REASONS = 5, 200
_RATIONALES = 10_000
"""As many rationales are kept as HTML, since most are the same sentences."""


def html_of(report: Report, *, title: str, facts: Mapping[str, str], secrets: Mapping[str, str]) -> str:
    """Return a report as one HTML page that needs nothing else, and in which no text of others is anything but text.

    Args:
        report: what was found.
        title: the heading.
        facts: what the reader should know of the run besides, such as the agent's version.
        secrets: what must not be written down, each with what stands in its place.
    """
    words = words_for(secrets)
    selection = shown_cases(report)
    style, script = source("report.css"), source("report.js")
    return template("report.html.j2").render(
        policy=policy(style, script),
        style=Markup(style),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - as above
        title=on_one_line(words(title)),
        head=_head(report, words),
        facts=[(words(name), words(value)) for name, value in _facts(report, facts).items()],
        criteria=[_criterion(summary, words) for summary in report.summaries().values() if _known(summary)],
        chart_size=(WIDTH, HEIGHT),
        repeats=repeats_view(report, words),
        cases=_cases(report, selection.cases, words),
        counts=Counter(case.verdict for case in selection.cases),
        notice=selection.notice,
        notes=[words(note) for note in report.notes],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Head:
    """The verdict with what it rests on."""

    verdict: Verdict
    counts: str
    outage: str
    reasons: tuple[str, ...]
    further: tuple[str, ...]
    """Reasons that are folded."""
    untold: int
    """How many reasons there are besides."""


def _head(report: Report, words: Words) -> _Head:
    reasons = report.reasons
    shown = [on_one_line(words(reason)) for reason in reasons[:_MOST_REASONS]]
    return _Head(
        verdict=report.verdict,
        counts=_counts(report),
        outage=words(outages_of(report.judging, report.simulating)),
        reasons=tuple(shown[:_FIRST_REASONS]),
        further=tuple(shown[_FIRST_REASONS:]),
        untold=max(len(reasons) - _MOST_REASONS, 0),
    )


def _counts(report: Report) -> str:
    """Return how many cases came to each verdict, as part of a sentence."""
    found = Counter(case.verdict for case in report.cases)
    noun = "case" if report.num_runs == 1 else "case run"
    others = "".join(f", {found[verdict]:,} {verdict}" for verdict in ("failed", "undecided") if found[verdict])
    return f"{found['passed']:,} of {len(report.cases):,} {noun}{'' if len(report.cases) == 1 else 's'} passed{others}"


def _facts(report: Report, given: Mapping[str, str]) -> dict[str, str]:
    """Return what was given, between what the report itself knows."""
    runs = {"Runs of each case": str(report.num_runs)} if report.num_runs > 1 else {}
    judges = {"Judges": accounts(report.judging)} if report.judging else {}
    return {"Eval set": report.eval_set.eval_set_id, **given, **runs, **course_facts(report), **judges}


@dataclass(frozen=True, slots=True)
class _CriterionView:
    """One criterion over all cases."""

    name: str
    threshold: str
    """Empty for what does not decide."""
    mean: str
    """Empty where nothing was evaluated."""
    interval: str
    pass_rate: str
    evaluated: int
    errored: int
    skipped: int
    chart: Chart | None


def _known(summary: CriterionSummary) -> bool:
    """Whether there is something to say of a criterion; not so of information that the agent does not give."""
    return summary.threshold is not None or summary.evaluated > 0 or summary.errored > 0


def _criterion(summary: CriterionSummary, words: Words) -> _CriterionView:
    interval = mean_interval(summary.case_scores, proportion=not CRITERIA.is_quantity(summary.criterion))
    return _CriterionView(
        name=on_one_line(words(summary.criterion)),
        threshold=threshold_text(summary.threshold, greater_is_better=summary.greater_is_better),
        mean="" if summary.mean is None else f"{summary.mean:.4g}",
        interval=f"{interval[0]:.3g} to {interval[1]:.3g}" if interval else "",
        pass_rate="" if summary.pass_rate is None else f"{summary.pass_rate:.1%}",
        evaluated=summary.evaluated,
        errored=summary.errored,
        skipped=summary.skipped,
        chart=chart_of(summary),
    )


def _cases(report: Report, cases: tuple[CaseResult, ...], words: Words) -> Iterator[CaseView]:
    """Yield the cases one by one, so that a large run is never held as views."""
    plans = {plan.eval_id: plan for plan in report.eval_set.eval_cases}
    tools = Tools(words, lru_cache(_RATIONALES)(rationale_html))
    for case in cases:
        yield case_view(report, case, plans.get(case.eval_id), tools)
