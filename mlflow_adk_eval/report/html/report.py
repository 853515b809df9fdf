"""A report as one HTML file: for a browser, a mail, or MLflow's own viewer of artifacts, without anything from elsewhere.

`html_of` hands the report itself to the template ``report.html.j2``, together with what needs work in Python: intervals, pictures, the cases
to show, and of each turn which words differ, which expected call a call stands for, and which votes belong to a cell. What only needs to be looked up
or worded, the template takes from the results themselves. Cases are made one by one while the page is written, so that a large run is never held as views;
above `MOST_TURNS` turns only those that did not pass are shown.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from markupsafe import Markup

from mlflow_adk_eval.analysis.stats.intervals import mean_interval
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.alignment import align
from mlflow_adk_eval.criteria.trajectory import ToolTrajectorySettings, ignored_by, made_calls
from mlflow_adk_eval.criteria.transcript import Step, StepKind, final_material, steps, user_material
from mlflow_adk_eval.evalset.conversation import TurnPair, by_call
from mlflow_adk_eval.evalset.media import Media
from mlflow_adk_eval.evalset.model_errors import told_errors
from mlflow_adk_eval.evalset.models import ConversationScenario, FunctionCall, Invocation
from mlflow_adk_eval.report.findings import causes_of, why_of
from mlflow_adk_eval.report.html.page import Texts, environment, json_text, marked, on_one_line, policy, source, within
from mlflow_adk_eval.report.sentences import circumstances, format_outages, format_share
from mlflow_adk_eval.results.outcomes import WORST_FIRST, CaseResult, CriterionResult, Outcome, Scored, Verdict, Vote, reaches, reason_of
from mlflow_adk_eval.results.report import CriterionSummary, Report
from mlflow_adk_eval.results.table import ItemResult, cell_at, item_results, row_verdict, votes_by_turn
from mlflow_adk_eval.runs.stored_run import loaded

CaseVotes = Mapping[str, Mapping[int, Sequence[Vote]]]
"""The votes of a case by criterion and turn."""

MOST_CALLS = 200
"""As many calls of a side are shown."""
MOST_EVENTS = 500
"""As many events of a turn are shown."""


@dataclass(frozen=True, slots=True)
class CallView:
    """One call of a tool on one side."""

    name: str
    args: str
    """As JSON; empty where there are none."""
    injected: str = ""
    """What the tool environment did to it; empty where nothing is known of that."""
    result: str = ""
    """What the tool returned, as JSON; empty where that is not known or not shown."""


Tone = Literal["quiet", "missing", "wrong"]
"""How a label is coloured: as nothing to look at, as something that decides nothing but may matter, or as a fault."""


@dataclass(frozen=True, slots=True)
class StepView:
    """A call that was expected, and what was done instead."""

    label: str
    tone: Tone
    expected: CallView | None
    actual: CallView | None


@dataclass(frozen=True, slots=True)
class CellView:
    """What one criterion made of a turn."""

    result: CriterionResult
    outcome: Outcome
    items: tuple[ItemResult, ...]
    """What the votes on each item came to; empty where nobody voted."""


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn."""

    number: int
    verdict: Verdict | None
    user: str
    reached: bool
    """Whether the agent got here."""
    compared: bool
    """Whether it was written down what it should do."""
    wanted: str
    """The expected answer."""
    answer: str
    steps: tuple[StepView, ...]
    calls_left_out: int
    cells: tuple[CellView, ...]
    information: str
    injections: tuple[str, ...]
    """What the tool environment did to calls of which it is not known which they were."""
    events: tuple[tuple[str, str], ...] = ()
    """Everything that happened, in order: who or what, and the text. Empty where only a summary is shown."""
    errors: tuple[str, ...] = ()
    """The errors of models, with what came of each."""


def turn_view(
    case: CaseResult, index: int, trajectory: ToolTrajectorySettings, votes: CaseVotes, texts: Texts, *, whole: bool = False
) -> TurnView:
    """Return one turn of a case.

    Args:
        case: the case.
        index: the turn.
        trajectory: how tool calls are compared.
        votes: those on the case.
        texts: what makes texts fit to be shown.
        whole: whether to show also what the tools returned, and every event.
    """
    turn, injections = TurnPair(case, index), [one for one in case.conversation.injections if one.kind != "replayed_model"]
    wanted, answer = texts.words(turn.expected_answer), texts.words(turn.answer)
    both = marked(wanted, answer) if wanted and answer else (wanted, answer)
    calls, due = made_calls(turn.actual, case.conversation.inner_calls, index, trajectory), turn.expected_calls
    injected = by_call(injections, index, [call.name or "" for call in calls]) if injections else []
    marks = {id(call): str(injection) for call, injection in zip(calls, injected, strict=False) if injection}
    placed = {id(injection) for injection in injected}
    answered = turn.actual.answered_calls() if whole and turn.actual else []
    returned = {id(call): texts.words(json_text(found.response)) for call, found in answered if found}

    def view(call: FunctionCall | None, args: str | None = None) -> CallView | None:
        return call_view(call, texts, args, marks.get(id(call), ""), returned.get(id(call), "")) if call else None

    steps: list[StepView] = []
    if turn.expected is None:
        steps += (StepView("", "quiet", None, view(call)) for call in calls[:MOST_CALLS])
    elif calls or due:
        labels: dict[str, tuple[str, Tone]] = {
            "same": ("as expected", "quiet"),
            "changed": ("other arguments", "wrong"),
            "missing": ("missing", "wrong"),
            "unexpected": ("unexpected", "wrong"),
        }
        if trajectory.match_type != "EXACT":
            labels["unexpected"] = (ignored_by(trajectory), "missing")
        ordered = trajectory.match_type != "ANY_ORDER"
        for step in align(calls[:MOST_CALLS], due[:MOST_CALLS], ordered=ordered, ignore_args=trajectory.ignore_args):
            want, got = step.expected, step.actual
            args: tuple[str | None, str | None] = (None, None)
            if step.kind == "changed" and want and got:
                args = marked(*(texts.words(json_text(call.args or {})) for call in (want, got)))
            steps.append(StepView(*labels[step.kind], view(want, args[0]), view(got, args[1])))
    cells = [(result, cell) for result in case.results if (cell := cell_at(result, index)) is not None]
    views: list[CellView] = []
    for result, cell in cells:
        if result.decides:
            cast = votes.get(result.criterion, {}).get(index, ())
            views.append(CellView(result, cell, item_results(cell, cast) if cast else ()))
    informative = ((result.criterion, cell) for result, cell in cells if not result.decides)
    elsewhere = (one for one in case.injections if one.invocation_index == index and id(one) not in placed)
    return TurnView(
        number=index + 1,
        verdict=row_verdict(case.results, index),
        user=texts.words(turn.user_text),
        reached=turn.actual is not None,
        compared=turn.expected is not None,
        wanted=both[0],
        answer=both[1],
        steps=tuple(steps),
        calls_left_out=max(len(calls), len(due), MOST_CALLS) - MOST_CALLS,
        cells=tuple(views),
        information=" · ".join(f"{texts.line(name)} {cell.score:.4g}" for name, cell in informative if isinstance(cell, Scored)),
        injections=tuple(texts.words(f"{injection.tool}: {injection}") for injection in elsewhere),
        events=tuple(islice(_events(turn.actual, texts), MOST_EVENTS)) if whole and turn.actual else (),
        errors=tuple(map(texts.words, turn.errors)),
    )


def call_view(call: FunctionCall, texts: Texts, args: str | None = None, injected: str = "", result: str = "") -> CallView:
    """Return what is shown of a call; `args` is what is shown of its arguments, where that is known already."""
    given = texts.words(json_text(call.args)) if call.args and args is None else args or ""
    return CallView(texts.words(call.name or "tool"), given, injected, result)


_DEEDS: Mapping[StepKind, str] = {"text": "says", "media": "sends", "call": "calls", "response": "gets the result of"}


def _events(turn: Invocation, texts: Texts) -> Iterator[tuple[str, str]]:
    """Yield everything that happened in a turn, in order: who or what it was, and the text."""
    yield "User", texts.words(user_material(turn).text)
    for step in steps(turn):
        number = f" (call {step.call})" if step.call else ""
        yield (
            f"{texts.line(step.author) or 'Agent'} {_DEEDS[step.kind]} {texts.line(step.name)}{number}".rstrip(),
            texts.words(_shown(step)),
        )
    yield from (("Error", texts.words(error)) for error in told_errors(turn))
    yield "Final answer", texts.words(final_material(turn).text)


def _shown(step: Step) -> str:
    """Return what is shown of a step: a text as it is, all else as JSON, and of media nothing but their name."""
    if isinstance(step.payload, Media):
        return ""
    return step.payload if step.kind in ("text", "media") else json_text(step.payload)


WIDTH, HEIGHT = 200, 40
"""In the units of the picture, without its labels."""
_BINS = 20
_GAP = 14
"""Between the axis and the bar of what is missing."""
_LEAST = 2.0
"""As high as the bar of a single case is among thousands."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Some case scores that lie together, all on one side of the threshold."""

    x: float
    y: float
    height: float
    kind: str
    """``reached``, ``missed`` or, without a threshold, ``plain``; ``missing``: the case runs without a score, to the right of the axis."""
    count: int
    low: float
    high: float
    """The lowest and the highest of the scores."""


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
    threshold = summary.threshold
    # What the picture covers: 0 to 1 for shares, whatever the scores are, and what there is for anything else.
    given = scores if threshold is None else [*scores, threshold]
    low, high = min(given), max(given)
    if not CRITERIA.is_quantity(summary.criterion) and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    else:
        low = min(low, 0.0)
        high = high if high > low else low + 1
    grouped, totals = defaultdict[tuple[int, str], list[float]](list), Counter[int]()
    for score in scores:
        kind = "plain" if threshold is None else "missed"
        if threshold is not None and reaches(score, threshold, greater_is_better=summary.greater_is_better):
            kind = "reached"
        place = min(int((score - low) / (high - low) * _BINS), _BINS - 1)
        grouped[place, kind].append(score)
        totals[place] += 1
    each = (HEIGHT - 2 * _LEAST) / max(*totals.values(), summary.missing)
    bars: list[Bar] = []  # those of one place on top of each other
    tops: dict[int, float] = {}
    for (place, kind), here in sorted(grouped.items()):
        height = max(_LEAST, len(here) * each)
        tops[place] = tops.get(place, float(HEIGHT)) - height
        bars.append(Bar(place * WIDTH / _BINS, round(tops[place], 1), round(height, 1), kind, len(here), min(here), max(here)))
    if summary.missing:
        height = max(_LEAST, summary.missing * each)
        bars.append(Bar(WIDTH + _GAP, round(HEIGHT - height, 1), round(height, 1), "missing", summary.missing, 0.0, 0.0))
    text = f"lowest {min(scores):.4g}, median {statistics.median(scores):.4g}, highest {max(scores):.4g}"
    if threshold is None:
        line, text = None, f"{len(scores)} case scores: {text}"
    else:
        line = round((threshold - low) / (high - low) * WIDTH, 1)
        reached = sum(bar.count for bar in bars if bar.kind == "reached")
        text = f"{reached} of {len(scores)} case scores reach the threshold; {text}"
    text += f"; {summary.missing} have no score" if summary.missing else ""
    return Chart(tuple(bars), WIDTH / _BINS - 1, line, f"{low:.4g}", f"{high:.4g}", text)


MOST_TURNS = 500
"""Above so many turns not every case is shown, and of those that are shown no more than so many turns."""
_MOST_CAUSES = 50
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
    cases, notice = shown_cases(report)
    style, script = source("report.css"), source("report.js")
    causes = causes_of(report)
    return environment().get_template("report.html.j2").render(
        policy=policy(style, script),
        style=Markup(style),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - as above
        t=texts,
        report=report,
        title=texts.line(title),
        share=share_of(report),
        outage=texts.words(format_outages(report.judging, report.simulating)),
        causes=causes.found[:_MOST_CAUSES],
        causes_left_out=len(causes.found[_MOST_CAUSES:]),
        unread=causes.unread,
        facts={
            "Eval set": report.eval_set.eval_set_id,
            **facts,
            **({"Runs of each case": str(report.num_runs)} if report.num_runs > 1 else {}),
            **circumstances(report),
        },
        criteria=criterion_rows(report),
        chart_size=(WIDTH, HEIGHT),
        cases=case_views(report, cases, texts),
        counts=Counter(case.verdict for case in cases),
        notice=notice,
    )  # fmt: skip


def share_of(report: Report) -> str:
    """Return how many cases came to each verdict, as part of a sentence."""
    verdicts = report.verdicts
    others = (f", {verdicts.count(verdict):,} {verdict}" for verdict in WORST_FIRST[:2] if verdict in verdicts)
    return format_share(verdicts, report.num_runs, report.until_decided) + "".join(others)


CriterionRow = tuple[CriterionSummary, str, Chart | None]
"""A criterion over all cases, with the interval of its mean as text and its picture."""


def criterion_rows(report: Report) -> list[CriterionRow]:
    """Return the rows of the table of criteria, without information that the agent does not give."""
    rows: list[CriterionRow] = []
    for summary in report.summaries().values():
        if summary.threshold is not None or summary.evaluated or summary.errored:
            interval = mean_interval(summary.case_scores, proportion=not CRITERIA.is_quantity(summary.criterion))
            rows.append((summary, f"{interval[0]:.3g} to {interval[1]:.3g}" if interval else "", chart_of(summary)))
    return rows


@dataclass(frozen=True, slots=True)
class CaseView:
    """One case in one run."""

    result: CaseResult
    label: str
    opening: str
    """What the user said first, on one line."""
    why: str
    """Why it did not pass, on one line; empty where it passed."""
    unscored: tuple[str, ...]
    """Why criteria have no score, each reason once."""
    scenario: ConversationScenario | None
    """What the simulated user was given."""
    turns: tuple[TurnView, ...]


def shown_cases(report: Report, most: int = MOST_TURNS) -> tuple[tuple[CaseResult, ...], str]:
    """Return the cases to show, failed ones first, then undecided ones; of a large run only those, and not more than `most` turns.

    With them a notice that says which are not shown; empty where all are.
    """
    verdicts = report.verdicts
    ranked = sorted(range(len(verdicts)), key=lambda place: WORST_FIRST.index(verdicts[place]))
    turns = sum(report.cases.run_turns)
    if turns <= most:
        return tuple(map(report.cases.at, ranked)), ""
    unpassed = [place for place in ranked if verdicts[place] != "passed"]
    shown = tuple(map(loaded, within(most, map(report.cases.at, unpassed), lambda case: case.turns)))
    of_these = f": the first {len(shown):,} of {len(unpassed):,}" if len(shown) < len(unpassed) else ""
    return shown, (
        f"This run has {turns:,} turns, too many for one page. This page shows only cases that did not pass{of_these}. "
        f"All turns are in the run's artifacts, in adk_eval/cells."
    )


def case_views(
    report: Report, cases: Sequence[CaseResult], texts: Texts, turns_shown: slice = slice(None), *, whole: bool = False
) -> Iterator[CaseView]:
    """Yield what is shown of cases of a report, and of the turns of each, in the order in which they are given.

    Args:
        report: the report.
        cases: the cases.
        texts: what makes texts fit to be shown.
        turns_shown: the turns.
        whole: whether to show also what the tools returned, and every event.
    """
    plans = report.eval_set.named({case.eval_id for case in cases})
    for case in cases:
        plan = plans.get(case.eval_id)
        votes = {result.criterion: votes_by_turn(result.votes) for result in case.results if result.votes}
        settings = report.config.criteria_of(case.eval_id).values()
        trajectory = next((one for one in settings if isinstance(one, ToolTrajectorySettings)), _EXACTLY)
        turns = tuple(turn_view(case, index, trajectory, votes, texts, whole=whole) for index in range(case.turns)[turns_shown])
        open_results = (one for one in case.results if one.decides and not isinstance(one.overall, Scored))
        unscored = (texts.words(reason_of(one.overall)) for one in open_results)
        yield CaseView(
            result=case,
            label=texts.line(report.label(case)),
            opening=on_one_line(turns[0].user) if turns else "",
            why=texts.line(why_of(case)),
            unscored=tuple(dict.fromkeys(unscored)),
            scenario=plan.conversation_scenario if plan else None,
            turns=turns,
        )
