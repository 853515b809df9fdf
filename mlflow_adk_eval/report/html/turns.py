"""What a page shows of a turn: both answers, both sides' tool calls, and what each criterion made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

from mlflow_adk_eval.criteria.text.alignment import Step, align
from mlflow_adk_eval.criteria.trajectory import ToolTrajectorySettings
from mlflow_adk_eval.evalset import FunctionCall, Invocation
from mlflow_adk_eval.evalset.conversation import Injection, by_call
from mlflow_adk_eval.report.html.text import Pieces, Words, differing, json_text, on_one_line
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, Scored, Verdict, Vote, reason_of
from mlflow_adk_eval.results.table import cell_at, row_verdict
from mlflow_adk_eval.results.votes import ItemResult, item_results

Rationale = Callable[[str], Markup]
"""Makes HTML of a rationale."""
Cast = Mapping[str, Mapping[int, Sequence[Vote]]]
"""The votes of a case by criterion and turn."""

_MOST_CALLS = 200
"""As many calls of a side are shown."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What makes texts fit to be shown."""

    words: Words
    rationale: Rationale


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
class VotesView:
    """What the votes on one item came to."""

    about: str
    """The item; empty where the cell is about one thing."""
    counts: str
    split: bool
    dissent: tuple[str, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CellView:
    """What one criterion made of a turn."""

    criterion: str
    reached: bool | None
    score: str
    """Empty where there is none."""
    threshold: str
    rationale: Markup
    votes: tuple[VotesView, ...]
    split: bool
    """Whether the votes on one of them contradict each other."""


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
    """What the tool environment did to calls of which it cannot be told which they were."""


def turn_view(case: CaseResult, index: int, trajectory: ToolTrajectorySettings, cast: Cast, tools: Tools) -> TurnView:
    """Return one turn of a case.

    Args:
        case: the case.
        index: the turn.
        trajectory: how tool calls are compared.
        cast: the votes on the case.
        tools: what makes texts fit to be shown.
    """
    actual, expected = _at(case.actual, index), _at(case.expected or (), index)
    said = tools.words(actual.final_text) if actual else ""
    wanted = tools.words(expected.final_text) if expected else ""
    both = marked(wanted, said) if wanted and said else (wanted, said)
    spoken = actual if actual and actual.user_text else expected
    made, due = (side.tool_calls if side else [] for side in (actual, expected))
    injected = by_call(case.injections, index, [call.name or "" for call in made]) if case.injections else []
    marks = {id(call): str(injection) for call, injection in zip(made, injected, strict=False) if injection}
    return TurnView(
        number=index + 1,
        verdict=row_verdict(case.results, index),
        user=tools.words(spoken.user_text) if spoken else "",
        reached=actual is not None,
        compared=expected is not None,
        wanted=both[0],
        answer=both[1],
        steps=tuple(_steps(made[:_MOST_CALLS], due[:_MOST_CALLS], trajectory, _Calls(tools.words, marks), compared=expected is not None)),
        calls_left_out=max(len(made), len(due), _MOST_CALLS) - _MOST_CALLS,
        cells=tuple(_cells(case.results, index, cast, tools)),
        information=_information(case.results, index, tools.words),
        injections=tuple(_unplaced(case.injections, index, injected, tools.words)),
    )


def _at(turns: Sequence[Invocation], index: int) -> Invocation | None:
    return turns[index] if index < len(turns) else None


def _steps(
    made: Sequence[FunctionCall], due: Sequence[FunctionCall], settings: ToolTrajectorySettings, calls: _Calls, *, compared: bool
) -> Iterator[StepView]:
    if not compared:
        yield from (StepView("", True, None, calls.view(call)) for call in made)  # noqa: FBT003 - nothing says that it is wrong
        return
    extra = ("unexpected", False) if settings.match_type == "EXACT" else ("besides, allowed", True)
    labels = {"same": ("as expected", True), "changed": ("other arguments", False), "missing": ("missing", False), "unexpected": extra}
    for step in align(made, due, ordered=settings.match_type != "ANY_ORDER", ignore_args=settings.ignore_args):
        yield StepView(*labels[step.kind], *_sides(step, calls))


def _sides(step: Step, calls: _Calls) -> tuple[CallView | None, CallView | None]:
    want, got = step.expected, step.actual
    if step.kind != "changed" or want is None or got is None:
        return (calls.view(want) if want else None), (calls.view(got) if got else None)
    left, right = marked(*(calls.words(json_text(call.args or {})) for call in (want, got)))
    return calls.view(want, left), calls.view(got, right)


@dataclass(frozen=True, slots=True)
class _Calls:
    """What makes views of a turn's calls."""

    words: Words
    marks: Mapping[int, str]
    """What the tool environment did to a call, by the identity of the call."""

    def view(self, call: FunctionCall, args: str | None = None) -> CallView:
        """Return what is shown of a call; `args` is what is shown of its arguments, where that is known already."""
        given = self.words(json_text(call.args)) if call.args and args is None else args or ""
        return CallView(self.words(call.name or ""), given, self.marks.get(id(call), ""))


def _unplaced(injections: Sequence[Injection], turn: int, placed: Sequence[Injection | None], words: Words) -> Iterator[str]:
    """Yield what was done to calls of a turn of which it is not known which they were."""
    known = [id(injection) for injection in placed]
    for injection in injections:
        if injection.invocation_index == turn and id(injection) not in known:
            yield words(f"{injection.tool}: {injection}")


def marked(wanted: str, said: str) -> tuple[str, str]:
    """Return two texts with marks on what only one of them has."""
    left, right = differing(wanted, said)
    return _with_marks(left, "del"), _with_marks(right, "ins")


def _with_marks(pieces: Pieces, tag: Literal["del", "ins"]) -> str:
    if not any(alone for _, alone in pieces):
        return "".join(text for text, _ in pieces)
    html = (_marked_piece(text, tag) if alone else escape(text) for text, alone in pieces)
    return Markup("".join(html))  # noqa: S704 - every piece is escaped


def _marked_piece(text: str, tag: str) -> str:
    """Return a piece as HTML, the space after its last word left unmarked."""
    words = text.rstrip() or text
    return f"<{tag}>{escape(words)}</{tag}>{text[len(words) :]}"


def _cells(results: Iterable[CriterionResult], index: int, cast: Cast, tools: Tools) -> Iterator[CellView]:
    for result in results:
        cell = cell_at(result, index)
        if cell is not None and result.decides:
            yield _cell(result, cell, cast.get(result.criterion, {}).get(index, ()), tools)


def _cell(result: CriterionResult, cell: Outcome, votes: Sequence[Vote], tools: Tools) -> CellView:
    findings = item_results(cell, votes) if votes else ()
    return CellView(
        criterion=on_one_line(tools.words(result.criterion)),
        reached=result.reached(cell),
        score=f"{cell.score:.4g}" if isinstance(cell, Scored) else "",
        threshold=threshold_text(result.threshold, greater_is_better=result.greater_is_better),
        rationale=tools.rationale(tools.words(cell.rationale if isinstance(cell, Scored) else reason_of(cell))),
        votes=tuple(_votes(finding, tools.words) for finding in findings),
        split=any(finding.split for finding in findings),
    )


def _votes(finding: ItemResult, words: Words) -> VotesView:
    counts = words(finding.counts) or "none"
    return VotesView(
        about=on_one_line(words(finding.id or "")),
        counts=counts if finding.settled else f"{counts}, so no verdict",
        split=finding.split,
        dissent=tuple(map(words, finding.dissent)),
        errors=tuple(map(words, finding.errors)),
    )


def _information(results: Iterable[CriterionResult], index: int, words: Words) -> str:
    """Return the scores of what does not decide, on one line."""
    known = ((result.criterion, cell_at(result, index)) for result in results if not result.decides)
    return " · ".join(f"{on_one_line(words(name))} {cell.score:.4g}" for name, cell in known if isinstance(cell, Scored))


def threshold_text(threshold: float | None, *, greater_is_better: bool) -> str:
    """Return a threshold with its relation, such as ``≥ 0.8``; empty where there is none."""
    return "" if threshold is None else f"{'≥' if greater_is_better else '≤'} {threshold:g}"
