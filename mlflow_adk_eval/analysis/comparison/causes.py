"""From what two runs did on a turn to the causes of another score, by what the criterion looks at."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mlflow_adk_eval.analysis.comparison.calls import CallChange
from mlflow_adk_eval.analysis.comparison.cause import Cause, shortened
from mlflow_adk_eval.analysis.comparison.items import Item, items_of
from mlflow_adk_eval.analysis.comparison.side import Side
from mlflow_adk_eval.analysis.comparison.turn import CellChange, TurnChange
from mlflow_adk_eval.config.criteria import FinalStateSettings, JudgedSettings, ToolTrajectorySettings
from mlflow_adk_eval.criteria.text.sentences import sentences
from mlflow_adk_eval.evalset import FunctionCall
from mlflow_adk_eval.results.report import CaseResult, Outcome, Scored, reason_of

_RESPONSES = frozenset({"response_match_score", "final_response_match_v2"})
"""Criteria that compare the response with the expected one."""
_STATE = re.compile(r"^- `(?P<path>[^`\n]+)`: expected (?P<wanted>.*), got (?P<found>.*)$", re.MULTILINE)
"""A line of the reason that ``final_session_state`` gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A cell in both runs, with what was done there."""

    sides: tuple[Side, Side]
    pair: tuple[CaseResult, CaseResult]
    turn: TurnChange
    cell: CellChange
    alike_until: bool = True
    """Whether nothing differs on the turns before."""

    def items(self, which: int) -> dict[str, Item]:
        """Return what judges held of the cell's items in the first run (0) or the second (1)."""
        outcome, case = (self.cell.before, self.cell.after)[which], self.pair[which]
        return items_of(self.sides[which], case.eval_id, case.run_index, self.turn.index, self.cell.criterion, reason(outcome))


def reason(outcome: Outcome | None) -> str:
    """Return what a run says of a cell."""
    if outcome is None:
        return ""
    return outcome.rationale if isinstance(outcome, Scored) else reason_of(outcome)


def causes_of(place: Place) -> tuple[Cause, ...]:
    """Return why a criterion scored a turn otherwise, the most telling cause first; at least one."""
    cell, index = place.cell, place.turn.index
    if not isinstance(cell.before, Scored) or not isinstance(cell.after, Scored):
        before, after = (
            "" if isinstance(one, Scored) else shortened(reason(one)) or "no turn to score" for one in (cell.before, cell.after)
        )
        return (Cause(kind="error", turn=index, before=before, after=after),)
    found = [cause for find in _finders(place) for cause in find(place)]
    if not found:
        found = [Cause(kind="reason", turn=index, before=shortened(reason(cell.before)), after=shortened(reason(cell.after)))]
    unmoved = place.turn.same_deeds and all(cause.kind != "state" for cause in found)
    return (*([_unmoved(place)] if unmoved else []), *found)


def _finders(place: Place) -> Iterator[Callable[[Place], Iterable[Cause]]]:
    settings = next(
        (found for side in reversed(place.sides) if (found := side.settings(place.pair[0].eval_id, place.cell.criterion))), None
    )
    if isinstance(settings, ToolTrajectorySettings):
        yield _calls
    if isinstance(settings, JudgedSettings):
        yield _items
    if place.cell.criterion in _RESPONSES:
        yield _response
    if isinstance(settings, FinalStateSettings):
        yield _state


def _unmoved(place: Place) -> Cause:
    """Return that the agent is not to blame, or not on this turn."""
    if not place.alike_until:
        changed = "what came before: earlier turns differ"
    elif place.items(0) or place.items(1):
        changed = "the judge's verdict, or what the judge was shown besides: instructions, tools and their answers"
    else:
        changed = "how it is scored, or what tools answered"
    return Cause(kind="same", turn=place.turn.index, subject=changed)


def _calls(place: Place) -> Iterator[Cause]:
    """Yield the calls that are not what they were; those that agree with the reference only now, or no more, first."""
    changed = [call for call in place.turn.calls if call.kind != "same"]
    for call in sorted(changed, key=lambda call: call.right_before == call.right_after):
        if call.kind == "changed":
            yield from (
                Cause(
                    kind="argument",
                    turn=place.turn.index,
                    subject=call.tool,
                    path=found.path,
                    before=found.before,
                    after=found.after,
                    wanted=found.wanted,
                )
                for found in call.arguments
            )
        elif call.kind != "moved" or call.after:  # a call that moved is told once
            yield _call(place.turn.index, call)


def _call(turn: int, call: CallChange) -> Cause:
    right = call.right_after if call.after else call.right_before
    before = call.after if call.kind == "moved" else call.before
    return Cause(
        kind="call",
        turn=turn,
        subject=call.tool,
        before=call_text(before) if before else "",
        after=call_text(call.after) if call.after else "",
        wanted="" if right is None or call.kind == "moved" else "yes" if right else "no",
    )


def call_text(call: FunctionCall) -> str:
    """Return a call as text.

    >>> call_text(FunctionCall(name="heat", args={"to": 21}))
    'heat({"to": 21})'
    """
    return shortened(f"{call.name or 'tool'}({json.dumps(call.args or {}, ensure_ascii=False, default=str)})")


def _items(place: Place) -> Iterator[Cause]:
    """Yield the rubrics and sentences whose verdict changed. Sentences are known by what they say, since each run has its own."""
    before, after = (_by_subject(place.items(which)) for which in (0, 1))
    for subject in dict.fromkeys([*after, *before]):
        was, now = before.get(subject), after.get(subject)
        known = now or was
        if known and _turned(was, now):
            yield Cause(
                kind="item",
                turn=place.turn.index,
                subject=shortened(subject),
                before=f"{was.verdict} ({was.tally})" if was else "",
                after=f"{now.verdict} ({now.tally})" if now else "",
                said=shortened(known.explanation),
            )


def _turned(was: Item | None, now: Item | None) -> bool:
    """Whether an item speaks otherwise for the agent than before; one that only one run has, whether it speaks against it there."""
    if was and now:
        return was.verdict != now.verdict and (was.good is None or was.good != now.good)
    return any(item is not None and item.good is not True for item in (was, now))


def _by_subject(items: dict[str, Item]) -> dict[str, Item]:
    return {_subject(item): item for item in items.values()}


def _subject(item: Item) -> str:
    if item.text.startswith("“"):
        return f"sentence {item.text}"
    return f"rubric {item.id} ({item.text})" if item.text and item.text != item.id else f"rubric {item.id}" if item.id else ""


def _response(place: Place) -> Iterator[Cause]:
    """Yield what the responses say otherwise, sentence by sentence, as one cause."""
    before, after = (sentences((done.response if done else None) or "") for done in (place.turn.before, place.turn.after))
    gone, new = ([one for one in these if one not in those] for these, those in ((before, after), (after, before)))
    if gone or new:
        yield Cause(kind="response", turn=place.turn.index, before=shortened(" ".join(gone)), after=shortened(" ".join(new)))


def _state(place: Place) -> Iterator[Cause]:
    """Yield where the session's state differs from the expected one in one run only."""
    before, after = ({found["path"]: found for found in _STATE.finditer(reason(cell))} for cell in (place.cell.before, place.cell.after))
    for path in dict.fromkeys([*after, *before]):
        was, now = before.get(path), after.get(path)
        wanted = next(found["wanted"] for found in (now, was) if found)
        old, new = (found["found"] if found else wanted for found in (was, now))
        if old != new:
            yield Cause(
                kind="state", turn=place.turn.index, path=path, before=shortened(old), after=shortened(new), wanted=shortened(wanted)
            )
