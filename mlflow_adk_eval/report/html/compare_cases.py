"""What a page shows of a case in two runs: why its verdict flipped, and what both runs did."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from mlflow_adk_eval.analysis.comparison.calls import CallChange
from mlflow_adk_eval.analysis.comparison.case import CriterionChange
from mlflow_adk_eval.analysis.comparison.causes import Cause, reason
from mlflow_adk_eval.analysis.comparison.compare import CaseChange
from mlflow_adk_eval.analysis.comparison.turn import CellChange, Done, TurnChange
from mlflow_adk_eval.evalset import FunctionCall
from mlflow_adk_eval.report.compare_words import change_told, runs_told, score_told, state_of, verdict_told
from mlflow_adk_eval.report.html.text import Words, json_text, on_one_line
from mlflow_adk_eval.report.html.turns import CallView, Tools, marked, threshold_text

_MOST_CALLS = 200
_MOST_CAUSES = 50


@dataclass(frozen=True, slots=True)
class ChangeView:
    """A criterion whose case score changed, and why."""

    criterion: str
    scores: str
    threshold: str
    reached: bool | None
    """In the second run."""
    causes: tuple[tuple[str, str], ...]
    """The turn, empty for the case as a whole, and the cause in words; none where those of another criterion say it all."""


@dataclass(frozen=True, slots=True)
class StepView:
    """A call of the first run beside that of the second."""

    label: str
    look: str
    """``wrong`` where the second run is at fault, ``right`` where it is not any more, else empty."""
    before: CallView | None
    after: CallView | None
    expected: CallView | None
    """Shown where the second run has another."""


@dataclass(frozen=True, slots=True)
class CellView:
    """What a criterion made of a turn in both runs."""

    criterion: str
    scores: str
    reached: bool | None
    before: Markup
    after: Markup


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn in both runs."""

    number: int
    same: bool
    user: tuple[str, str]
    """What the user said in each run."""
    users_differ: bool
    answers: tuple[str, str]
    missing: tuple[str, str]
    """Why a run has no answer; empty where it has one."""
    same_answer: bool
    expected: str
    steps: tuple[StepView, ...]
    calls_left_out: int
    cells: tuple[CellView, ...]
    """Of the criteria that say something else than before."""
    others: str
    """The scores of the rest."""


@dataclass(frozen=True, slots=True)
class CaseView:
    """One case in both runs."""

    label: str
    flip: str
    before: str
    """The verdict, or ``flaky``."""
    after: str
    told: tuple[str, str]
    """What the runs of each side came to."""
    runs: str
    opening: str
    causes: tuple[tuple[str, str], ...]
    changes: tuple[ChangeView, ...]
    turns: tuple[TurnView, ...]


def case_view(case: CaseChange, tools: Tools) -> CaseView:
    """Return what is shown of a case."""
    words, told = tools.words, set[Cause]()
    turns = tuple(_turn(turn, tools) for turn in case.turns)
    return CaseView(
        label=on_one_line(words(case.eval_id)),
        flip=case.flip,
        before=state_of(case.before),
        after=state_of(case.after),
        told=(verdict_told(case.before), verdict_told(case.after)),
        runs=runs_told(case),
        opening=on_one_line(turns[0].user[1] or turns[0].user[0]) if turns else "",
        causes=_causes(case.causes, words, told),
        changes=tuple(_change(change, words, told) for change in case.criteria),
        turns=turns,
    )


def _change(change: CriterionChange, words: Words, told: set[Cause]) -> ChangeView:
    threshold = change.threshold_before if change.threshold_after is None else change.threshold_after
    return ChangeView(
        criterion=on_one_line(words(change.criterion)),
        scores=change_told(change),
        threshold=threshold_text(threshold, greater_is_better=change.greater_is_better),
        reached=change.passed_after,
        causes=_causes(change.causes, words, told),
    )


def _causes(causes: tuple[Cause, ...], words: Words, told: set[Cause]) -> tuple[tuple[str, str], ...]:
    """Return causes in words, without those that another criterion has `told` already."""
    new = [cause for cause in causes if cause not in told]
    told.update(new)
    shown = [("" if cause.turn is None else f"Turn {cause.turn + 1}", words(cause.sentence)) for cause in new[:_MOST_CAUSES]]
    return (*shown, *([("", f"and {len(new) - _MOST_CAUSES} more")] if len(new) > _MOST_CAUSES else []))


def _turn(turn: TurnChange, tools: Tools) -> TurnView:
    words = tools.words
    users = tuple(words(done.user) if done else "" for done in (turn.before, turn.after))
    before, after = (words((done.response if done else None) or "") for done in (turn.before, turn.after))
    return TurnView(
        number=turn.index + 1,
        same=turn.same,
        user=(users[0], users[1]),
        users_differ=bool(turn.before and turn.after) and users[0] != users[1],
        answers=marked(before, after) if before and after else (before, after),
        missing=(_missing(turn.before, words), _missing(turn.after, words)),
        same_answer=turn.same_response,
        expected=words(turn.expected_response),
        steps=tuple(_step(call, words) for call in turn.calls[:_MOST_CALLS]),
        calls_left_out=max(len(turn.calls) - _MOST_CALLS, 0),
        cells=tuple(_cell(cell, tools) for cell in turn.cells if cell.decides and _says_more(cell)),
        others=_others(turn, words),
    )


def _missing(done: Done | None, words: Words) -> str:
    """Return why there is no answer; empty where there is one."""
    if done is None:
        return "the conversation had no such turn"
    if done.error:
        return f"the agent did not finish: {words(done.error)}"
    return "the agent did not get here" if done.response is None else "" if done.response else "the agent said nothing"


_LABELS = {"same": "", "changed": "other arguments", "gone": "no longer called", "new": "not called before", "moved": "in another place"}


def _step(call: CallChange, words: Words) -> StepView:
    before, after = (_call(one, words) if one else None for one in (call.before, call.after))
    if call.kind == "changed" and before and after:
        left, right = marked(before.args, after.args)
        before, after = CallView(before.name, left), CallView(after.name, right)
    look = "wrong" if _off(call) else "right" if call.kind != "same" and call.right_after else ""
    expected = _call(call.expected, words) if call.expected and not call.right_after else None
    return StepView(_LABELS[call.kind], look, before, after, expected)


def _off(call: CallChange) -> bool:
    """Whether the second run is not as expected where the first was, or does what is not expected."""
    if call.kind == "same":
        return False
    return call.right_after is False or (call.after is None and call.right_before is True)


def _call(call: FunctionCall, words: Words) -> CallView:
    return CallView(words(call.name or "tool"), words(json_text(call.args)) if call.args else "")


def _says_more(cell: CellChange) -> bool:
    """Whether there is more to tell of a cell than its score: not where it reaches its threshold as before, if in other words."""
    return cell.differs or (cell.reached_after is not True and reason(cell.before) != reason(cell.after))


def _others(turn: TurnChange, words: Words) -> str:
    rest = (cell for cell in turn.cells if cell.decides and not _says_more(cell))
    return " · ".join(f"{on_one_line(words(cell.criterion))} {score_told(cell.after)}" for cell in rest)


def _cell(cell: CellChange, tools: Tools) -> CellView:
    before, after = (reason(outcome) for outcome in (cell.before, cell.after))
    return CellView(
        criterion=on_one_line(tools.words(cell.criterion)),
        scores=f"{score_told(cell.before)} → {score_told(cell.after)}" if cell.differs else score_told(cell.after),
        reached=cell.reached_after,
        before=tools.rationale(tools.words(before)),
        after=tools.rationale(tools.words(after)),
    )
