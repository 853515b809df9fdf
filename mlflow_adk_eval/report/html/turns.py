"""What the report shows of a turn: both answers, both sides' tool calls, and what each criterion made of it.

`turn_view` computes what a template cannot: which words differ, which expected call a call stands for, which votes belong to a cell. What
only needs to be looked up or worded, the templates take from the results themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlflow_adk_eval.criteria.text.alignment import Step, align
from mlflow_adk_eval.criteria.trajectory import ToolTrajectorySettings
from mlflow_adk_eval.evalset import FunctionCall, Invocation
from mlflow_adk_eval.evalset.conversation import by_call
from mlflow_adk_eval.report.html.page import Texts, json_text, marked
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, Scored, Verdict, Vote
from mlflow_adk_eval.results.table import cell_at, row_verdict
from mlflow_adk_eval.results.votes import ItemResult, item_results

CaseVotes = Mapping[str, Mapping[int, Sequence[Vote]]]
"""The votes of a case by criterion and turn."""

MOST_CALLS = 200
"""As many calls of a side are shown."""


@dataclass(frozen=True, slots=True)
class CallView:
    """One call of a tool on one side."""

    name: str
    args: str
    """As JSON; empty where there are none."""
    injected: str = ""
    """What the tool environment did to it; empty where nothing is known of that."""


@dataclass(frozen=True, slots=True)
class StepView:
    """A call that was expected, and what was done instead."""

    label: str
    good: bool
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


def turn_view(case: CaseResult, index: int, trajectory: ToolTrajectorySettings, votes: CaseVotes, texts: Texts) -> TurnView:
    """Return one turn of a case.

    Args:
        case: the case.
        index: the turn.
        trajectory: how tool calls are compared.
        votes: those on the case.
        texts: what makes texts fit to be shown.
    """
    actual, expected = _at(case.actual, index), _at(case.expected or (), index)
    wanted, answer = (texts.words(side.final_text) if side else "" for side in (expected, actual))
    both = marked(wanted, answer) if wanted and answer else (wanted, answer)
    asked = actual if actual and actual.user_text else expected
    made, due = (side.tool_calls if side else [] for side in (actual, expected))
    injected = by_call(case.injections, index, [call.name or "" for call in made]) if case.injections else []
    marks = {id(call): str(injection) for call, injection in zip(made, injected, strict=False) if injection}
    placed = {id(injection) for injection in injected}
    cells = [(result, cell) for result in case.results if (cell := cell_at(result, index)) is not None]
    return TurnView(
        number=index + 1,
        verdict=row_verdict(case.results, index),
        user=texts.words(asked.user_text) if asked else "",
        reached=actual is not None,
        compared=expected is not None,
        wanted=both[0],
        answer=both[1],
        steps=tuple(_steps(made[:MOST_CALLS], due[:MOST_CALLS], trajectory, _Calls(texts, marks), compared=expected is not None)),
        calls_left_out=max(len(made), len(due), MOST_CALLS) - MOST_CALLS,
        cells=tuple(_cell(result, cell, votes.get(result.criterion, {}).get(index, ())) for result, cell in cells if result.decides),
        information=" · ".join(
            f"{texts.line(result.criterion)} {cell.score:.4g}" for result, cell in cells if not result.decides and isinstance(cell, Scored)
        ),
        injections=tuple(
            texts.words(f"{injection.tool}: {injection}")
            for injection in case.injections
            if injection.invocation_index == index and id(injection) not in placed
        ),
    )


def _at(turns: Sequence[Invocation], index: int) -> Invocation | None:
    return turns[index] if index < len(turns) else None


def _cell(result: CriterionResult, outcome: Outcome, votes: Sequence[Vote]) -> CellView:
    return CellView(result, outcome, item_results(outcome, votes) if votes else ())


@dataclass(frozen=True, slots=True)
class _Calls:
    """What makes views of a turn's calls."""

    texts: Texts
    marks: Mapping[int, str]
    """What the tool environment did to a call, by the identity of the call."""

    def view(self, call: FunctionCall | None, args: str | None = None) -> CallView | None:
        """Return what is shown of a call; `args` is what is shown of its arguments, where that is known already."""
        return call_view(call, self.texts, args, self.marks.get(id(call), "")) if call else None


def call_view(call: FunctionCall, texts: Texts, args: str | None = None, injected: str = "") -> CallView:
    """Return what is shown of a call; `args` is what is shown of its arguments, where that is known already."""
    given = texts.words(json_text(call.args)) if call.args and args is None else args or ""
    return CallView(texts.words(call.name or "tool"), given, injected)


def _steps(
    made: Sequence[FunctionCall], due: Sequence[FunctionCall], settings: ToolTrajectorySettings, calls: _Calls, *, compared: bool
) -> Iterator[StepView]:
    if not compared:
        yield from (StepView("", True, None, calls.view(call)) for call in made)  # noqa: FBT003 - nothing says that it is wrong
        return
    extra = ("unexpected", False) if settings.match_type == "EXACT" else ("additional, allowed", True)
    labels = {"same": ("as expected", True), "changed": ("other arguments", False), "missing": ("missing", False), "unexpected": extra}
    for step in align(made, due, ordered=settings.match_type != "ANY_ORDER", ignore_args=settings.ignore_args):
        yield StepView(*labels[step.kind], *_sides(step, calls))


def _sides(step: Step, calls: _Calls) -> tuple[CallView | None, CallView | None]:
    want, got = step.expected, step.actual
    if step.kind != "changed" or want is None or got is None:
        return calls.view(want), calls.view(got)
    left, right = marked(*(calls.texts.words(json_text(call.args or {})) for call in (want, got)))
    return calls.view(want, left), calls.view(got, right)
