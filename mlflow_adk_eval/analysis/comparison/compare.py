"""Two runs on the same cases: which cases flipped, why, and how far the means lie apart.

`compared` is the whole comparison. It asks what the runs themselves differ in (`runs`), how far their means lie apart (`delta`), and what
became of each case (`case_change`), with the causes of each change (`causes_of`) found turn by turn (`turns`). Pure: it reads nothing and writes
nothing. Pages are made of a `Comparison`; `Comparison.to_json` has the same for programs.

A `Cause` is data (which kind, which turn, what before, what after, what the reference has) and words its own `Cause.sentence`.
`causes_of` asks one finder per kind of criterion: tool calls for trajectories, the votes on each rubric or sentence for judged
criteria, the sentences of the answer for response matching, the paths that differ for session state. Where none of them finds
anything, the criterion's own reasons stand for the cause; where the agent did the same as before, that is said first.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, partial
from itertools import accumulate, islice, product
from operator import and_
from typing import Any, Literal, TypeVar

from mlflow_adk_eval.analysis.comparison.delta import Delta, deltas_of
from mlflow_adk_eval.analysis.comparison.runs import ComparedRun, Difference, JudgeCost, Pairing, Sides, differences_of, pairing_of
from mlflow_adk_eval.analysis.comparison.turns import CellChange, ComparedTurn, TurnChange, outcomes_differ, turn_changes
from mlflow_adk_eval.config.spec import JudgedSettings, RubricSettings
from mlflow_adk_eval.criteria.final_state import FinalStateSettings
from mlflow_adk_eval.criteria.hallucinations import HallucinationsSettings
from mlflow_adk_eval.criteria.rubrics import rubric_types, rubrics_of_conversation, rubrics_of_turn, turns_of
from mlflow_adk_eval.criteria.text import sentences
from mlflow_adk_eval.criteria.trajectory import ToolTrajectorySettings
from mlflow_adk_eval.evalset.models import FunctionCall
from mlflow_adk_eval.redact import cut
from mlflow_adk_eval.results.notebook import MOST, summary_html
from mlflow_adk_eval.results.outcomes import CaseResult, Outcome, Scored, Stored, Verdict, Vote, explanation_of, grouped
from mlflow_adk_eval.text import counted, unlike

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
                was, now = unlike(before, after)
                new = f"says “{after}”{now} instead of “{before}”{was}" if before else f"also says “{after}”"
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


T = TypeVar("T")

CasePair = tuple[CaseResult, CaseResult]
"""A run of the case on each side."""
Flip = Literal["worse", "better", "undecided", "flaky", "none"]
"""What became of a case's verdict: *worse* and *better* where every run of it passed on one side and failed on the other,
*undecided* where evidence was lost or gained, *flaky* where the runs of one side disagree and not as those of the other; or *none*."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionChange:
    """A criterion whose case score is not what it was."""

    criterion: str
    before: Outcome | None
    """``None``: the criterion was no part of the run."""
    after: Outcome | None
    passed_before: bool | None
    passed_after: bool | None
    threshold_before: float | None
    threshold_after: float | None
    greater_is_better: bool
    causes: Sequence[Cause]
    """By turn, the most telling one first; found when somebody looks at them, as that takes all turns of the case."""

    @property
    def crossed(self) -> bool:
        """Whether it stands in the way of one run only: what is no part of a run does not."""
        before = True if self.before is None else self.passed_before
        return before is not (True if self.after is None else self.passed_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseChange:
    """A case that both runs have."""

    eval_id: str
    flip: Flip
    before: tuple[Verdict, ...]
    """By run."""
    after: tuple[Verdict, ...]
    runs: tuple[int, int]
    """The indexes of the runs of the case that stand for the others: where verdicts differ, two that do."""
    criteria: tuple[CriterionChange, ...]
    """Those that decide and whose score changed; those that crossed their threshold first."""
    causes: Sequence[Cause]
    """Further causes: that the agent did not finish, or finished again."""
    turns: Sequence[TurnChange]
    """Every turn of the two runs that stand for the others; of runs that are stored, read when somebody looks at them."""

    @property
    def changed(self) -> bool:
        """Whether the verdict or a deciding score is not what it was."""
        return self.flip != "none" or bool(self.criteria) or bool(self.causes)

    @property
    def same(self) -> bool:
        """Whether both runs did, said and scored the same."""
        return not self.changed and all(turn.same for turn in self.turns)

    def all_causes(self) -> Iterator[tuple[str, Cause]]:
        """Yield every cause once, with its criterion, empty for those of the case; of a flip only from criteria that crossed, if any did."""
        crossed = [change for change in self.criteria if change.crossed]
        causes = [("", cause) for cause in self.causes]
        causes += [(change.criterion, cause) for change in crossed or self.criteria for cause in change.causes]
        seen: set[Cause] = set()
        for criterion, cause in causes:
            if cause not in seen:
                seen.add(cause)
                yield criterion, cause


Read = Callable[[str, tuple[int, int]], tuple[CasePair, Sequence[TurnChange]]]
"""Returns two runs of a case, one of each side, with their turns."""


def case_change(sides: Sides, eval_id: str, read: Read) -> CaseChange:
    """Return what became of a case that both sides have results of."""
    before, after = (_one(side.verdicts(eval_id)) for side in sides)
    flip = flip_of(before, after)
    pair = _pair([*sides[0].cases[eval_id].values()], [*sides[1].cases[eval_id].values()], flip)
    runs = _one((pair[0].run_index, pair[1].run_index))
    causes = cache(lambda: _causes(sides, *read(eval_id, runs)))
    stopped = bool(pair[0].error) != bool(pair[1].error)
    criteria = tuple(sorted(_criteria(pair, lambda name: causes()[name]), key=lambda change: not change.crossed))
    others, turns = Stored(1, lambda: causes()[""]) if stopped else (), Stored(None, lambda: read(eval_id, runs)[1])
    return CaseChange(eval_id=eval_id, flip=flip, before=before, after=after, runs=runs, criteria=criteria, causes=others, turns=turns)


@lru_cache(maxsize=1_000)
def _one(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the same tuple for all that are equal, as most cases have those of many others."""
    return values


def flip_of(before: Sequence[Verdict], after: Sequence[Verdict]) -> Flip:
    """Return what became of a verdict, given that of each run.

    >>> flip_of(["passed"], ["failed"]), flip_of(["failed"] * 3, ["passed"] * 3), flip_of(["passed"], ["undecided"])
    ('worse', 'better', 'undecided')
    >>> flip_of(["passed"] * 3, ["passed", "failed", "passed"]), flip_of(["passed", "failed"], ["failed", "passed"])
    ('flaky', 'none')
    """
    left, right = ({verdict: count / len(runs) for verdict, count in Counter(runs).items()} for runs in (before, after))
    if left == right:
        return "none"
    if len(left) > 1 or len(right) > 1:
        return "flaky"
    if "undecided" in left | right:
        return "undecided"
    return "worse" if "passed" in left else "better"


def _pair(before: Sequence[CaseResult], after: Sequence[CaseResult], flip: Flip) -> CasePair:
    """Return the two runs of a case that show best what changed: with the verdicts of the flip, and the same index if possible."""
    rose = sum(case.verdict == "passed" for case in after) / len(after) > sum(case.verdict == "passed" for case in before) / len(before)
    better, worse = (1, 0) if rose else (0, 1)

    def badness(pair: CasePair) -> tuple[bool, bool, bool]:
        shown = pair[better].verdict == "passed" and pair[worse].verdict != "passed"
        return flip != "none" and not shown, flip != "none" and pair[0].verdict == pair[1].verdict, pair[0].run_index != pair[1].run_index

    return min(product(before, after), key=badness)


def _criteria(pair: CasePair, find: Callable[[str], Sequence[Cause]]) -> Iterator[CriterionChange]:
    """Yield the deciding criteria whose result changed; `find`: returns the causes of one."""
    left, right = ({result.criterion: result for result in case.results if result.decides} for case in pair)
    for name in dict.fromkeys([*right, *left]):
        was, now = left.get(name), right.get(name)
        change = CriterionChange(
            criterion=name,
            before=was.overall if was else None,
            after=now.overall if now else None,
            passed_before=was.passed if was else None,
            passed_after=now.passed if now else None,
            threshold_before=was.threshold if was else None,
            threshold_after=now.threshold if now else None,
            greater_is_better=(now or left[name]).greater_is_better,
            causes=Stored(None, partial(find, name)),
        )
        if change.crossed or (was and now and outcomes_differ(change.before, change.after)):
            yield change


def _causes(sides: Sides, pair: CasePair, turns: Sequence[TurnChange]) -> Mapping[str, Sequence[Cause]]:
    """Return the causes by criterion, and under ``""`` that the agent did not finish, or finished again."""
    errors = [f"the agent did not finish: {shortened(case.error)}" if case.error else "" for case in pair]
    where = next((turn.index for turn in turns if any(side and side.error for side in (turn.before, turn.after))), None)
    causes: dict[str, Sequence[Cause]] = {"": (Cause(kind="error", turn=where, before=errors[0], after=errors[1]),)}
    alike = [*accumulate((turn.same_behaviour for turn in turns), and_, initial=True)]
    for change in _criteria(pair, causes.__getitem__):
        before, after = ("" if value is None else f"{value:g}" for value in (change.threshold_before, change.threshold_after))
        found = [Cause(kind="threshold", before=before, after=after)] if before != after else []
        cells = [(turn, cell) for turn in turns for cell in turn.cells if cell.criterion == change.criterion and cell.differs]
        for turn, cell in sorted(cells, key=lambda one: _weight(one[1], change)):
            found += causes_of(ChangedCell(sides=sides, pair=pair, turn=turn, cell=cell, alike_until=alike[turn.index]))
        causes[change.criterion] = found
    return causes


def _weight(cell: CellChange, change: CriterionChange) -> float:
    """Return how much a turn did for the change of the case score, the most first: negative where it went the same way."""
    if not isinstance(cell.before, Scored) or not isinstance(cell.after, Scored):
        return -2.0
    moved = cell.after.score - cell.before.score
    before, after = (outcome.score if isinstance(outcome, Scored) else 0.0 for outcome in (change.before, change.after))
    whole = after - before
    return -abs(moved) if moved * whole >= 0 else abs(moved)


FLIPS: tuple[Flip, ...] = ("worse", "better", "undecided", "flaky")
"""In the order in which pages list them."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """What changed from one run to another."""

    before: ComparedRun
    after: ComparedRun
    confidence: float
    differences: tuple[Difference, ...]
    """What the runs themselves differ in."""
    pairing: Pairing
    deltas: tuple[Delta, ...]
    """The case pass rate, the criteria that decide, then those that are information."""
    cases: tuple[CaseChange, ...]
    """Every case that both runs have, in the order of the second run."""

    def __repr__(self) -> str:
        """Return the counts; the whole comparison may be a gigabyte."""
        counts = ", ".join(f"{flip} {count}" for flip, count in self.counts.items())
        return f"<Comparison of {len(self.cases)} cases: {counts}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: how many cases flipped, the means, and the first flipped cases, each with its first cause."""
        flips, flipped = "".join(f", {count:,} {flip}" for flip, count in self.counts.items() if count), self.flipped
        lines = [f"{case.eval_id}, {case.flip}: {cause.sentence}" for case in flipped[:MOST] for _, cause in islice(case.all_causes(), 1)]
        title = f"{self.before.name} → {self.after.name}: {counted(len(self.cases), 'case')} in both runs{flips}"
        columns = ("name", "before", "after", "difference", "p_adjusted", "cases")
        return summary_html(title, columns, self.deltas, lines, len(flipped) - len(lines))

    @property
    def judging(self) -> tuple[JudgeCost, JudgeCost]:
        """What the judges of each run took; counted when somebody asks, as that takes all votes."""
        return self.before.judge_cost(), self.after.judge_cost()

    @property
    def counts(self) -> dict[Flip, int]:
        """How many cases flipped, by how."""
        counts = Counter(case.flip for case in self.cases)
        return {flip: counts[flip] for flip in FLIPS}

    @property
    def flipped(self) -> tuple[CaseChange, ...]:
        """The cases whose verdict flipped: for the worse first, then for the better, undecided and flaky ones."""
        return tuple(case for flip in FLIPS for case in self.cases if case.flip == flip)

    @property
    def shifted(self) -> tuple[CaseChange, ...]:
        """The cases that kept their verdict with other scores."""
        return tuple(case for case in self.cases if case.flip == "none" and case.changed)

    def delta(self, name: str) -> Delta | None:
        """Return the delta of a criterion, or of ``case_pass_rate``; ``None`` where there is none."""
        return next((delta for delta in self.deltas if delta.name == name), None)

    def to_json(self, *, every: bool = False) -> dict[str, Any]:
        """Return the comparison as JSON values; `every`: with the cases that did not flip."""
        sides = [
            {"name": side.name, "run_id": side.run_id or None, "facts": dict(side.facts), "warnings": list(side.warnings)}
            for side in (self.before, self.after)
        ]
        unpaired = {name: list(getattr(self.pairing, name)) for name in ("only_before", "only_after", "altered")}
        return {
            "before": sides[0],
            "after": sides[1],
            "confidence": self.confidence,
            "differences": [asdict(difference) for difference in self.differences],
            "cases": {"compared": len(self.cases), **self.counts, "shifted": len(self.shifted), **unpaired},
            "deltas": [asdict(delta) | {"clear": delta.clear(self.confidence)} for delta in self.deltas],
            "judging": {name: asdict(cost) for name, cost in zip(("before", "after"), self.judging, strict=True)},
            "changes": [_case(case) for case in (self.cases if every else self.flipped)],
        }


def compared(before: ComparedRun, after: ComparedRun, *, confidence: float = 0.95) -> Comparison:
    """Return what changed from one run to another.

    Args:
        before: the run to compare with.
        after: the run in question.
        confidence: the confidence level of each interval bound; 1 − confidence is the false-alarm rate. Between 0.5 and 1.
    """
    sides = (before, after)
    pairing = pairing_of(sides)

    @lru_cache(maxsize=1)  # those of the last case, as those of all may be a gigabyte
    def read(eval_id: str, runs: tuple[int, int]) -> tuple[CasePair, Sequence[TurnChange]]:
        pair = before.cases[eval_id][runs[0]], after.cases[eval_id][runs[1]]
        return pair, turn_changes(pair)

    differences, deltas = tuple(differences_of(sides)), deltas_of(sides, pairing.paired, confidence)
    cases = tuple(case_change(sides, eval_id, read) for eval_id in pairing.paired)
    return Comparison(
        before=before, after=after, confidence=confidence, differences=differences, pairing=pairing, deltas=deltas, cases=cases
    )


def _case(case: CaseChange) -> dict[str, Any]:
    criteria: list[dict[str, Any]] = []
    for change in case.criteria:
        before, after = (outcome.score if isinstance(outcome, Scored) else None for outcome in (change.before, change.after))
        names = ("passed_before", "passed_after", "threshold_before", "threshold_after", "crossed")
        values = {name: getattr(change, name) for name in names}
        causes = [_cause(cause) for cause in change.causes]
        criteria.append({"criterion": change.criterion, "before": before, "after": after, **values, "causes": causes})
    return {
        "eval_id": case.eval_id,
        "flip": case.flip,
        **{name: list(getattr(case, name)) for name in ("before", "after", "runs")},
        "causes": [_cause(cause) for cause in case.causes],
        "criteria": criteria,
        "turns": [
            {
                "index": turn.index,
                "before": turn.before and _record(turn.before),
                "after": turn.after and _record(turn.after),
                "expected_response": turn.expected_response or None,
            }
            for turn in case.turns
            if not turn.same
        ],
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {name: value for name, value in asdict(cause).items() if value not in (None, "")} | {"sentence": cause.sentence}


def _record(record: ComparedTurn) -> dict[str, Any]:
    calls = [{"name": call.name, "args": call.args or {}} for call in record.calls]
    return {"user": record.user, "response": record.response, "calls": calls, "error": record.error or None}
