"""From what two runs did on a turn to the causes of another score, by what the criterion looks at.

A `Cause` is data (which kind, which turn, what before, what after, what the reference has) and words its own `Cause.sentence`.
`causes_of` asks one finder per kind of criterion: tool calls for trajectories, the votes on each rubric or sentence for judged
criteria, the sentences of the answer for response matching, the paths that differ for session state. Where none of them finds
anything, the criterion's own reasons stand for the cause; where the agent did the same as before, that is said first.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from mlflow_adk_eval.analysis.comparison.runs import ComparedRun, Sides
from mlflow_adk_eval.analysis.comparison.turns import CellChange, TurnChange
from mlflow_adk_eval.config.spec import JudgedSettings, RubricSettings
from mlflow_adk_eval.criteria.final_state import FinalStateSettings
from mlflow_adk_eval.criteria.hallucinations import HallucinationsSettings
from mlflow_adk_eval.criteria.rubrics import rubric_types, rubrics_of_conversation, rubrics_of_turn, turns_of
from mlflow_adk_eval.criteria.text import sentences
from mlflow_adk_eval.criteria.trajectory import ToolTrajectorySettings
from mlflow_adk_eval.evalset.models import FunctionCall
from mlflow_adk_eval.redact import cut
from mlflow_adk_eval.results.outcomes import CaseResult, Scored, Vote, explanation_of, grouped

Kind = Literal["call", "argument", "response", "item", "state", "same", "error", "threshold", "reason"]
"""What changed: a call of a tool, an argument of one, the response, a rubric or sentence, the session's state; nothing that the agent
did (*same*); that there is a score at all (*error*); the threshold; or something that only the criterion's own *reason* tells."""

_LONGEST = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that is not the same in both runs. What is unknown is empty."""

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
        before, after, wanted = self.before, self.after, self.wanted
        match self.kind:
            case "call":
                came = f"{after} is called at a different point" if before else f"{after} is now called"
                reference = {"yes": " (the reference calls it)", "no": " (the reference does not)"}
                text = (came if after else f"{before} is no longer called") + reference.get(wanted, "")
            case "argument":
                text = f"{self.subject} is called with {self.path} = {after}, was {before}" + (f" (expected {wanted})" if wanted else "")
            case "response":
                new = f"says “{after}” instead of “{before}”" if before else f"also says “{after}”"
                text = f"the response {new if after else f'no longer says “{before}”'}"
            case "item":
                verdict = f"judged {after}{f', was {before}' if before else ''}" if after else f"no longer judged; was {before}"
                text = ": ".join(filter(None, (self.subject, verdict, self.said)))
            case "state":
                text = f"the session ends with {self.path} = {after}, was {before} (expected {wanted})"
            case "same":
                text = f"the agent behaved the same on this turn in both runs; the difference is {self.subject}"
            case "error":
                text = f"not evaluated: {after}" if after else f"evaluated again; not evaluated before: {before}"
            case "threshold":
                known = f"the threshold is {after}, was {before}" if after else "the second run does not have this criterion"
                text = known if before else f"the criterion is new, with the threshold {after}"
            case "reason":
                text = (after or "no reason given") + (f" (before: {before})" if before else "")
        return text


def shortened(text: str) -> str:
    """Return a text on one line, not too long to stand in a sentence."""
    return cut(" ".join(text.split()), _LONGEST)


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
    """The first explanation on the side that won."""


def _item(name: str, text: str, votes: Sequence[Vote]) -> Item:
    """Return what votes come to, where a tie speaks against the agent, as it does when a ballot is counted."""
    labels = Counter(vote.verdict or "" for vote in votes)
    binary = _KNOWN.issuperset(labels)
    good = sum(count for label, count in labels.items() if label in _GOOD) * 2 > labels.total() if binary else None
    side = [vote for vote in votes if good is None or (vote.verdict in _GOOD) == good]
    verdict = Counter(vote.verdict or "" for vote in side).most_common(1)[0][0]
    tally = ", ".join(f"{label} {count}" for label, count in labels.most_common())
    explanation = next(vote.explanation for vote in side if vote.verdict == verdict)
    return Item(id=name, text=text, verdict=verdict, good=good, tally=tally, explanation=explanation)


def _texts(side: ComparedRun, eval_id: str, turn: int, criterion: str, reason: str) -> Mapping[str, str]:
    """Return what the items of a cell are about, as far as it is known."""
    settings = side.settings(eval_id, criterion)
    if isinstance(settings, HallucinationsSettings):
        return {sentence["id"]: sentence["text"] for sentence in _SENTENCE.finditer(reason)}
    case = side.eval_set.named((eval_id,)).get(eval_id)  # of a stored run, each case that is looked at has to be read
    if not isinstance(settings, RubricSettings) or case is None or criterion not in rubric_types():
        return {}
    written = case.conversation or ()
    of_turn = rubrics_of_turn(criterion, settings, case, *written[turn : turn + 1])
    return {**rubrics_of_conversation(criterion, settings, case, turns_of(written)).texts, **of_turn.texts}


_RESPONSES = frozenset({"response_match_score", "final_response_match_v2"})
"""Criteria that compare the response with the expected one."""
_STATE = re.compile(r"^- `(?P<path>[^`\n]+)`: expected (?P<wanted>.*), got (?P<found>.*)$", re.MULTILINE)
"""A line of the reason that ``final_session_state`` gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedCell:
    """A cell whose score changed, in both runs, with what was done there."""

    sides: Sides
    pair: tuple[CaseResult, CaseResult]
    turn: TurnChange
    cell: CellChange
    alike_until: bool = True
    """Whether nothing differs on the turns before."""

    def items(self, which: int) -> dict[str, Item]:
        """Return what judges held of the cell's items in the first run (0) or the second (1), by their ids, in the order of the votes."""
        side, case, index, criterion = self.sides[which], self.pair[which], self.turn.index, self.cell.criterion
        votes = [vote for vote in side.votes(case.eval_id, case.run_index) if (vote.criterion, vote.invocation_index) == (criterion, index)]
        cast = grouped((vote.rubric_id or "", vote) for vote in votes if vote.verdict is not None)
        texts = _texts(side, case.eval_id, index, criterion, explanation_of((self.cell.before, self.cell.after)[which]))
        return {name: _item(name, texts.get(name, ""), given) for name, given in cast.items()}


def causes_of(where: ChangedCell) -> tuple[Cause, ...]:
    """Return why a criterion scored a turn otherwise, the most telling cause first; at least one."""
    cell, index = where.cell, where.turn.index
    reasons = [shortened(explanation_of(outcome)) for outcome in (cell.before, cell.after)]
    scored = [isinstance(outcome, Scored) for outcome in (cell.before, cell.after)]
    if not all(scored):
        before, after = ("" if known else reason or "no turn to score" for known, reason in zip(scored, reasons, strict=True))
        return (Cause(kind="error", turn=index, before=before, after=after),)
    settings = next(filter(None, (side.settings(where.pair[0].eval_id, cell.criterion) for side in reversed(where.sides))), None)
    finders = {
        _calls: isinstance(settings, ToolTrajectorySettings),
        _items: isinstance(settings, JudgedSettings),
        _response: cell.criterion in _RESPONSES,
        _state: isinstance(settings, FinalStateSettings),
    }
    causes = [cause for find, applies in finders.items() if applies for cause in find(where)]
    causes = causes or [Cause(kind="reason", turn=index, before=reasons[0], after=reasons[1])]
    if not where.turn.same_behaviour or any(cause.kind == "state" for cause in causes):
        return tuple(causes)
    if not where.alike_until:  # the agent is not to blame, or not on this turn
        changed = "in earlier turns"
    elif where.items(0) or where.items(1):
        changed = "the judge's verdict or its other input: instructions, tools and their answers"
    else:
        changed = "the scoring or the tools' answers"
    return (Cause(kind="same", turn=index, subject=changed), *causes)


def _calls(where: ChangedCell) -> Iterator[Cause]:
    """Yield the calls that are not what they were; those that agree with the reference only now, or no more, first."""
    changed = [call for call in where.turn.calls if call.kind != "same"]
    for call in sorted(changed, key=lambda call: call.right_before == call.right_after):
        index, moved = where.turn.index, call.kind == "moved"
        if call.kind == "changed":
            yield from (Cause(kind="argument", turn=index, subject=call.tool, **asdict(change)) for change in call.arguments)
        elif not moved or call.after:  # a call that moved is named once
            right = call.right_after if call.after else call.right_before
            wanted = "" if right is None or moved else "yes" if right else "no"
            before, after = (call_text(one) if one else "" for one in (call.after if moved else call.before, call.after))
            yield Cause(kind="call", turn=index, subject=call.tool, before=before, after=after, wanted=wanted)


def call_text(call: FunctionCall) -> str:
    """Return a call as text.

    >>> call_text(FunctionCall(name="heat", args={"to": 21}))
    'heat({"to": 21})'
    """
    return shortened(f"{call.name or 'tool'}({json.dumps(call.args or {}, ensure_ascii=False, default=str)})")


def _items(where: ChangedCell) -> Iterator[Cause]:
    """Yield the rubrics and sentences whose verdict changed. Sentences are known by what they say, since each run has its own."""
    before, after = ({_subject(item): item for item in where.items(which).values()} for which in (0, 1))
    for subject in dict.fromkeys([*after, *before]):
        was, now = before.get(subject), after.get(subject)
        if was and now:  # does it speak otherwise for the agent than before?
            turned = was.verdict != now.verdict and (was.good is None or was.good != now.good)
        else:  # does one that only one run has speak against it there?
            turned = any(item is not None and item.good is not True for item in (was, now))
        known = now or was
        if known and turned:
            yield Cause(
                kind="item",
                turn=where.turn.index,
                subject=shortened(subject),
                before=f"{was.verdict} ({was.tally})" if was else "",
                after=f"{now.verdict} ({now.tally})" if now else "",
                said=shortened(known.explanation),
            )


def _subject(item: Item) -> str:
    if item.text.startswith("“"):
        return f"sentence {item.text}"
    return f"rubric {item.id} ({item.text})" if item.text and item.text != item.id else f"rubric {item.id}" if item.id else ""


def _response(where: ChangedCell) -> Iterator[Cause]:
    """Yield what the responses say otherwise, sentence by sentence, as one cause."""
    before, after = (sentences((side.response if side else None) or "") for side in (where.turn.before, where.turn.after))
    gone, new = ([one for one in these if one not in those] for these, those in ((before, after), (after, before)))
    if gone or new:
        yield Cause(kind="response", turn=where.turn.index, before=shortened(" ".join(gone)), after=shortened(" ".join(new)))


def _state(where: ChangedCell) -> Iterator[Cause]:
    """Yield where the session's state differs from the expected one in one run only."""
    before, after = (
        {line["path"]: line for line in _STATE.finditer(explanation_of(cell))} for cell in (where.cell.before, where.cell.after)
    )
    for path in dict.fromkeys([*after, *before]):
        was, now = before.get(path), after.get(path)
        wanted = next(line["wanted"] for line in (now, was) if line)
        old, new = (line["found"] if line else wanted for line in (was, now))
        if old != new:
            yield Cause(
                kind="state", turn=where.turn.index, path=path, before=shortened(old), after=shortened(new), wanted=shortened(wanted)
            )
