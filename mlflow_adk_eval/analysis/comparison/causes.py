"""From what two runs did on a turn to the causes of another score, by what the criterion looks at."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mlflow_adk_eval.analysis.comparison.calls import CallChange
from mlflow_adk_eval.analysis.comparison.side import Side
from mlflow_adk_eval.analysis.comparison.turn import CellChange, TurnChange
from mlflow_adk_eval.config.criteria import CriterionSettings, JudgedSettings, RubricSettings
from mlflow_adk_eval.criteria.final_state import FinalStateSettings
from mlflow_adk_eval.criteria.hallucinations import HallucinationsSettings
from mlflow_adk_eval.criteria.rubrics import rubric_types, rubrics_of_conversation, rubrics_of_turn, turns_of
from mlflow_adk_eval.criteria.text.sentences import sentences
from mlflow_adk_eval.criteria.trajectory import ToolTrajectorySettings
from mlflow_adk_eval.evalset import FunctionCall
from mlflow_adk_eval.redact import cut
from mlflow_adk_eval.results.outcomes import CaseResult, Outcome, Scored, Vote, reason_of
from mlflow_adk_eval.results.votes import votes_by_turn

Kind = Literal["call", "argument", "response", "item", "state", "same", "error", "threshold", "reason"]
"""What changed: a call of a tool, an argument of one, the response, a rubric or sentence, the session's state; nothing that the agent
did (*same*); that there is a score at all (*error*); the threshold; or something that only the criterion's own *reason* tells."""

_LONGEST = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that is not the same in both runs. What is not known is empty."""

    kind: Kind
    turn: int | None = None
    """The index of the turn; ``None``: the case as a whole."""
    subject: str = ""
    """The tool, or the rubric or sentence."""
    path: str = ""
    """Where in the arguments or in the state, as a JSON path."""
    before: str = ""
    after: str = ""
    wanted: str = ""
    """What the reference has."""
    said: str = ""
    """What the judge said in the second run, or, where only the first has a verdict, in that."""

    @property
    def sentence(self) -> str:
        """The cause in words."""
        return _TELLERS[self.kind](self)


def shortened(text: str) -> str:
    """Return a text on one line, not too long to stand in a sentence."""
    return cut(" ".join(text.split()), _LONGEST)


def _short_call(cause: Cause) -> str:
    if cause.before and cause.after:
        return f"{cause.after} comes in another place than before"
    return f"{cause.after} is called, which it was not before" if cause.after else f"{cause.before} is no longer called"


def _told_call(cause: Cause) -> str:
    expected = {"yes": " (the reference has this call)", "no": " (the reference has no such call)"}
    return _short_call(cause) + expected.get(cause.wanted, "")


def _told_argument(cause: Cause) -> str:
    wanted = f" (expected {cause.wanted})" if cause.wanted else ""
    return f"{cause.subject} is called with {cause.path} = {cause.after}, before it was {cause.before}{wanted}"


def _told_response(cause: Cause) -> str:
    if cause.before and cause.after:
        return f"the response says “{cause.after}” instead of “{cause.before}”"
    return f"the response also says “{cause.after}”" if cause.after else f"the response no longer says “{cause.before}”"


def _told_item(cause: Cause) -> str:
    about = f"{cause.subject}: " if cause.subject else ""
    said = f": {cause.said}" if cause.said else ""
    if not cause.after:
        return f"{about}no longer judged, was {cause.before}{said}"
    was = f", was {cause.before}" if cause.before else ""
    return f"{about}judged {cause.after}{was}{said}"


def _told_state(cause: Cause) -> str:
    return f"the session ends with {cause.path} = {cause.after}, before it was {cause.before} (expected {cause.wanted})"


def _told_error(cause: Cause) -> str:
    if cause.after:
        return f"not evaluated: {cause.after}"
    return f"evaluated again; before it was not: {cause.before}"


def _told_threshold(cause: Cause) -> str:
    if not cause.before:
        return f"the criterion is new, with the threshold {cause.after}"
    return f"the threshold is {cause.after}, was {cause.before}" if cause.after else "the criterion is no part of the second run"


def _told_same(cause: Cause) -> str:
    return f"on this turn the agent said and called the same in both runs; what changed is {cause.subject}"


def _told_reason(cause: Cause) -> str:
    return (cause.after or "no reason was given") + (f" (before: {cause.before})" if cause.before else "")


_TELLERS: Mapping[Kind, Callable[[Cause], str]] = {
    "call": _told_call,
    "argument": _told_argument,
    "response": _told_response,
    "item": _told_item,
    "state": _told_state,
    "same": _told_same,
    "error": _told_error,
    "threshold": _told_threshold,
    "reason": _told_reason,
}


_GOOD = frozenset({"yes", "valid", "supported", "not_applicable"})
_KNOWN = _GOOD | {"no", "invalid", "unsupported", "contradictory", "disputed"}
_SENTENCE = re.compile(r"^- [✓✗] (?P<id>\S+(?: \d+)? #\d+) \([^()]*\) (?P<text>“.*?”):", re.MULTILINE)
"""A line of the reason that ``hallucinations_v1`` gives, which quotes the sentence that votes know by its number only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What the votes on one item came to."""

    id: str
    """Empty where the cell is about one thing."""
    text: str
    """The rubric or the sentence; empty where it is not known."""
    verdict: str
    """The label that won."""
    good: bool | None
    """Whether that speaks for the agent; ``None`` where labels are grades."""
    tally: str
    """Such as ``yes 3, no 2``."""
    explanation: str
    """What was said first on the side that won."""


def items_of(side: Side, eval_id: str, run_index: int, turn: int, criterion: str, reason: str) -> dict[str, Item]:
    """Return the items of a cell by their ids, in the order of the votes; none where no vote has a verdict.

    Args:
        side: the run.
        eval_id: the case.
        run_index: which of its runs.
        turn: the index of the turn.
        criterion: the criterion.
        reason: what the run says of the cell.
    """
    votes = votes_by_turn(vote for vote in side.votes.get((eval_id, run_index), ()) if vote.criterion == criterion).get(turn, [])
    cast: dict[str, list[Vote]] = {}
    for vote in votes:
        if vote.verdict is not None:
            cast.setdefault(vote.rubric_id or "", []).append(vote)
    texts = _texts(side, eval_id, turn, criterion, reason)
    return {name: _item(name, texts.get(name, ""), found) for name, found in cast.items()}


def _item(name: str, text: str, votes: Sequence[Vote]) -> Item:
    """Return what votes come to, where a tie speaks against the agent, as it does when a ballot is counted."""
    labels = Counter(vote.verdict or "" for vote in votes)
    binary = _KNOWN.issuperset(labels)
    good = sum(count for label, count in labels.items() if label in _GOOD) * 2 > labels.total() if binary else None
    side = [vote for vote in votes if good is None or (vote.verdict in _GOOD) == good]
    verdict = Counter(vote.verdict or "" for vote in side).most_common(1)[0][0]
    tally = ", ".join(f"{label} {count}" for label, count in labels.most_common())
    spokesman = next(vote for vote in side if vote.verdict == verdict)
    return Item(id=name, text=text, verdict=verdict, good=good, tally=tally, explanation=spokesman.explanation)


def _texts(side: Side, eval_id: str, turn: int, criterion: str, reason: str) -> Mapping[str, str]:
    """Return what the items of a cell are about, as far as it is known."""
    settings = side.settings(eval_id, criterion)
    if isinstance(settings, HallucinationsSettings):
        return {found["id"]: found["text"] for found in _SENTENCE.finditer(reason)}
    return dict(_rubrics(side, eval_id, turn, criterion, settings))


def _rubrics(side: Side, eval_id: str, turn: int, criterion: str, settings: CriterionSettings | None) -> Iterator[tuple[str, str]]:
    case = next((case for case in side.eval_set.eval_cases if case.eval_id == eval_id), None)
    if not isinstance(settings, RubricSettings) or case is None or criterion not in rubric_types():
        return
    written = case.conversation or ()
    yield from rubrics_of_conversation(criterion, settings, case, turns_of(written)).texts.items()
    yield from rubrics_of_turn(criterion, settings, case, *written[turn : turn + 1]).texts.items()


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
