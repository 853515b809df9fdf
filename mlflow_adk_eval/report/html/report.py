"""A report as one HTML file: for a browser, a mail, or MLflow's own viewer of artifacts, without anything from elsewhere.

`html_of` hands the report itself to the template ``report.html.j2``, together with what needs work in Python: intervals, pictures, the cases
to show, and each case's turns (`turns`). Cases are made one by one while the page is written, so that a large run is never held as views;
above `MOST_TURNS` turns only those that did not pass are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mlflow_adk_eval.analysis.stats import mean_interval
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.trajectory import ToolTrajectorySettings
from mlflow_adk_eval.evalset.models import ConversationScenario
from mlflow_adk_eval.report.html.chart import HEIGHT, WIDTH, Chart, chart_of
from mlflow_adk_eval.report.html.page import Texts, on_one_line, policy, source, template
from mlflow_adk_eval.report.html.turns import TurnView, turn_view
from mlflow_adk_eval.report.sentences import circumstances, format_outages, format_share
from mlflow_adk_eval.results.outcomes import CaseResult, Verdict
from mlflow_adk_eval.results.report import CriterionSummary, Report
from mlflow_adk_eval.results.stored import loaded
from mlflow_adk_eval.results.table import run_turns
from mlflow_adk_eval.results.votes import votes_by_turn

MOST_TURNS = 500
"""Above so many turns not every case is shown, and of those that are shown no more than so many turns."""
_MOST_REASONS = 200
_ORDER: tuple[Verdict, ...] = ("failed", "undecided", "passed")
_EXACTLY = ToolTrajectorySettings(threshold=1.0)
"""How tool calls are compared where no criterion says how."""


def html_of(report: Report, *, title: str, facts: Mapping[str, str], secrets: Mapping[str, str]) -> str:
    """Return a report as one HTML page that needs nothing else, and in which no text of others is anything but text.

    Args:
        report: what was found.
        title: the heading.
        facts: what the reader should know of the run besides, such as the agent's version.
        secrets: what must not be written down, each with what stands in its place.
    """
    texts = Texts(secrets)
    selection = shown_cases(report)
    style, script = source("report.css"), source("report.js")
    reasons, more_reasons = report.first_reasons(_MOST_REASONS)
    return template("report.html.j2").render(
        policy=policy(style, script),
        style=Markup(style),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - as above
        t=texts,
        report=report,
        title=texts.line(title),
        share=share_of(report),
        outage=texts.words(format_outages(report.judging, report.simulating)),
        reasons=[texts.line(reason) for reason in reasons],
        reasons_left_out=more_reasons,
        facts=_facts(report, facts),
        criteria=criterion_rows(report),
        chart_size=(WIDTH, HEIGHT),
        cases=case_views(report, selection.cases, texts),
        counts=Counter(case.verdict for case in selection.cases),
        notice=selection.notice,
    )  # fmt: skip


def share_of(report: Report) -> str:
    """Return how many cases came to each verdict, as part of a sentence."""
    verdicts = report.verdicts
    others = (f", {verdicts.count(verdict):,} {verdict}" for verdict in _ORDER[:2] if verdict in verdicts)
    return format_share(verdicts, report.num_runs) + "".join(others)


def _facts(report: Report, given: Mapping[str, str]) -> dict[str, str]:
    """Return what was given, between what the report itself knows."""
    runs = {"Runs of each case": str(report.num_runs)} if report.num_runs > 1 else {}
    return {"Eval set": report.eval_set.eval_set_id, **given, **runs, **circumstances(report.cases, report.judging, report.simulating)}


CriterionRow = tuple[CriterionSummary, str, Chart | None]
"""A criterion over all cases, with the interval of its mean as text and its picture."""


def criterion_rows(report: Report) -> list[CriterionRow]:
    """Return the rows of the table of criteria."""
    return [_criterion(summary) for summary in report.summaries().values() if _known(summary)]


def _known(summary: CriterionSummary) -> bool:
    """Whether there is something to say of a criterion; not so of information that the agent does not give."""
    return summary.threshold is not None or summary.evaluated > 0 or summary.errored > 0


def _criterion(summary: CriterionSummary) -> CriterionRow:
    interval = mean_interval(summary.case_scores, proportion=not CRITERIA.is_quantity(summary.criterion))
    return summary, f"{interval[0]:.3g} to {interval[1]:.3g}" if interval else "", chart_of(summary)


@dataclass(frozen=True, slots=True)
class CaseView:
    """One case in one run."""

    result: CaseResult
    label: str
    opening: str
    """What the user said first, on one line."""
    scenario: ConversationScenario | None
    """What the simulated user was given."""
    turns: tuple[TurnView, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """The cases that are shown."""

    cases: tuple[CaseResult, ...]
    notice: str
    """Which are not shown; empty where all are."""


def shown_cases(report: Report, most: int = MOST_TURNS) -> Selection:
    """Return the cases to show, failed ones first, then undecided ones; of a large run only those, and not more than `most` turns."""
    verdicts = report.verdicts
    ranked = sorted(range(len(verdicts)), key=lambda place: _ORDER.index(verdicts[place]))
    turns = sum(run_turns(report.cases))
    if turns <= most:
        return Selection(tuple(report.cases[place] for place in ranked), "")
    unpassed = [place for place in ranked if verdicts[place] != "passed"]
    shown = tuple(map(loaded, _first((report.cases[place] for place in unpassed), most)))
    of_these = f", and of these the first {len(shown):,} of {len(unpassed):,}" if len(shown) < len(unpassed) else ""
    return Selection(
        shown,
        f"This run has {turns:,} turns, too many for one page. Below are only the cases that did not pass{of_these}. "
        f"All turns are in the run's artifacts, in adk_eval/cells.",
    )


def _first(cases: Iterable[CaseResult], most: int) -> Iterator[CaseResult]:
    """Yield cases until they have `most` turns."""
    turns = 0
    for case in cases:
        turns += max(1, case.turns)
        if turns > most:
            return
        yield case


def case_views(report: Report, cases: Sequence[CaseResult], texts: Texts, turns_shown: slice = slice(None)) -> Iterator[CaseView]:
    """Yield what is shown of cases of a report, and of the turns of each, in the order in which they are given."""
    plans = report.eval_set.named({case.eval_id for case in cases})
    for case in cases:
        plan = plans.get(case.eval_id)
        votes = {result.criterion: votes_by_turn(result.votes) for result in case.results if result.votes}
        trajectory = _trajectory(report, case)
        turns = tuple(turn_view(case, index, trajectory, votes, texts) for index in range(case.turns)[turns_shown])
        yield CaseView(
            result=case,
            label=texts.line(report.label(case)),
            opening=on_one_line(turns[0].user) if turns else "",
            scenario=plan.conversation_scenario if plan else None,
            turns=turns,
        )


def _trajectory(report: Report, case: CaseResult) -> ToolTrajectorySettings:
    """Return how the case's tool calls are compared."""
    found = report.config.criteria_of(case.eval_id).values()
    return next((settings for settings in found if isinstance(settings, ToolTrajectorySettings)), _EXACTLY)
