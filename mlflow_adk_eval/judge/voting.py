"""Asking one judge several times until the verdict stands: from a question to votes, and from votes to a verdict.

A `Question` has one or several items, such as rubrics or sentences, and the labels that a judge may give each of them. One answer of the
judge is a vote on every item (`JudgeResponse`). `VoteCollector.decide` asks for as many votes as it takes at least to reach a verdict, all at
the same time, looks at what came back, and asks for more only while a verdict could still change; votes that failed are replaced
within a bound. The verdict on an item is the median of the values of its labels, the lower one of two: for two labels that is the
majority, and a tie loses, as in ADK. Of a panel, several judges, each has the same share of the votes. What comes out is a `VotingResult`: one `VotedItem` for each item, and a record of every vote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import ceil
from statistics import median_low
from typing import Any, NamedTuple, TypeVar

from mlflow_adk_eval.evalset.material import not_shown
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.judge.question import ItemVerdict, JudgedItem, Question
from mlflow_adk_eval.results.outcomes import Errored, Scored, Vote
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runtime import gathered


def early_verdict(votes: Sequence[float], *, of: int, lowest: float, highest: float) -> float | None:
    """Return the verdict of a vote, or ``None`` while the missing votes could change it.

    Args:
        votes: the values of the votes so far.
        of: how many votes there are to be in all.
        lowest: the least value that a vote can have.
        highest: the greatest.

    >>> early_verdict([1, 1, 1], of=5, lowest=0, highest=1), early_verdict([1, 1, 0], of=5, lowest=0, highest=1)
    (1, None)
    >>> early_verdict([0, 1, 0, 1], of=4, lowest=0, highest=1), early_verdict([0, 0], of=4, lowest=0, highest=1)
    (0, 0)
    """
    missing = max(of - len(votes), 0)
    least, most = median_low([*votes, *[lowest] * missing]), median_low([*votes, *[highest] * missing])
    return least if least == most else None


def needed(votes: Sequence[float], *, of: int, values: Sequence[float]) -> int:
    """Return how many more votes it takes at least to reach a verdict; none if it stands.

    Asking for so many at the same time wastes none: with fewer, the verdict could not stand.

    Args:
        votes: the values of the votes so far.
        of: how many votes there are to be in all.
        values: every value that a vote can have.

    >>> needed([], of=5, values=[0, 1]), needed([1, 1, 0], of=5, values=[0, 1]), needed([1, 1, 1], of=5, values=[0, 1])
    (3, 1, 0)
    """
    return _needed(tuple(votes), of, tuple(values))


@cache  # of few votes with few labels, asked about again and again
def _needed(votes: tuple[float, ...], of: int, values: tuple[float, ...]) -> int:
    lowest, highest = min(values), max(values)
    missing = max(of - len(votes), 0)
    for more in range(missing):
        if any(early_verdict([*votes, *[value] * more], of=of, lowest=lowest, highest=highest) is not None for value in values):
            return more
    return missing


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeResponse(Answer):
    """One vote on a question: what came of asking once, retries included. Time and tokens are those of all attempts that were paid for."""

    text: str = ""
    verdicts: tuple[ItemVerdict, ...]
    """What it says of each item, in their order; errors where there was no answer."""
    reused: bool = False
    """Whether this vote did not pay for the answer: the ledger held it, or an equal question shares it."""
    final: bool = False
    """Whether there is no point in asking again, as without budget or with the judge out of order."""
    member: str = ""
    """Who of a panel cast it."""


_NOT_ASKED = Errored("the judge is not asked about this")
T = TypeVar("T")

Ask = Callable[[Question, int], Awaitable[JudgeResponse]]
"""Asks a question for the vote of a number, from 0. Returns what went wrong instead of raising it."""


class CellKey(NamedTuple):
    """What is voted on, as the votes record it."""

    eval_id: str
    run_index: int
    invocation_index: int
    criterion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VotedItem:
    """What the votes on one item come to."""

    item: JudgedItem
    outcome: Scored | Errored
    label: str | None = None
    """What the judge calls it: the most frequent label with the value of the verdict; ``None`` without a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VotingResult:
    """The result for each item of a question, and every vote."""

    results: tuple[VotedItem, ...]
    votes: tuple[Vote, ...]
    unasked: Errored | None = None
    """Why no judge was asked, which is the outcome of each item, too; ``None`` where one was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteCollector:
    """Collects the votes of one judge until the verdict stands.

    With five votes and a clear case, three are asked for at the same time, and the other two are saved. An unusable vote is replaced, up to
    half the number of votes. If votes are still missing, a verdict stands only if they could not have changed it; else the item
    is `Errored` and says why, since a guess would look like a verdict.
    """

    ask: Ask
    num_samples: int = 5
    early_stop: bool = True
    """Whether to stop as soon as the missing votes cannot change any verdict. The verdicts are the same either way."""
    count: Callable[[JudgeUsage], None] = field(default=lambda _counts: None)
    panel: Mapping[str, Ask] = field(default_factory=dict[str, Ask])
    """The members of a panel by name, who share the votes evenly; `num_samples` is a multiple of how many they are. None: `ask` has all votes."""
    only: frozenset[CellKey] | None = None
    """The cells to decide, without asking about others; ``None``: all."""

    async def decide(self, question: Question, cell: CellKey) -> VotingResult:
        """Return the verdict on each item of `question`, whose votes are recorded as those on `cell`.

        No judge is asked about media that it was not shown: its answer would be about their names.
        """
        if self.only is not None and cell not in self.only:
            return _unasked(question, _NOT_ASKED)
        if question.unshown:
            return _unasked(question, Errored(not_shown(question.unshown)))
        responses = await (self._of_panel(question) if self.panel else self._of_one(question))
        self.count(_counts(question, responses, self.num_samples))
        results = tuple(self._result(question, index, responses) for index in range(len(question.items)))
        return VotingResult(results=results, votes=tuple(_votes(question, responses, cell)))

    async def _of_one(self, question: Question) -> list[JudgeResponse]:
        responses: list[JudgeResponse] = []
        most = self.num_samples + ceil(self.num_samples / 2)
        while more := min(self._wanted(question, responses), most - len(responses)):
            numbers = range(len(responses), len(responses) + more)
            new = await gathered(partial(self.ask, question, number) for number in numbers)
            responses += new
            if all(response.final for response in new):
                break
        return responses

    async def _of_panel(self, question: Question) -> list[JudgeResponse]:
        """Ask the members in turn. Nobody votes in another's place, so a verdict that needs a vote which cannot be had is none."""
        responses: list[JudgeResponse] = []
        names = [*self.panel]
        place = names.index(first_of(names, question))
        order = names[place:] + names[:place]
        counts, ended = Counter[str](), set[str]()
        while more := self._wanted(question, responses):
            seats: list[tuple[str, int]] = []
            for name in self._seats(question, responses, order, counts, ended)[:more]:
                seats.append((name, counts[name]))
                counts[name] += 1
            if not seats:
                break
            votes = await gathered(partial(self.panel[name], question, number) for name, number in seats)
            for (name, _), vote in zip(seats, votes, strict=True):
                verdicts = tuple(replace(each, error=f"{name}: {each.error}") if each.error else each for each in vote.verdicts)
                responses.append(replace(vote, verdicts=verdicts, member=name))
                if vote.final:
                    ended.add(name)
        return responses

    def _seats(
        self, question: Question, responses: Sequence[JudgeResponse], order: Sequence[str], counts: Mapping[str, int], ended: Container[str]
    ) -> list[str]:
        """Return who may vote next, in turn: each member until it has its share of votes on every item, or has failed too often."""
        each = self.num_samples // len(self.panel)
        free: dict[str, int] = {}
        for name in order:
            own = [response for response in responses if response.member == name]
            lacking = each - min(len(_usable(question, index, own)) for index in range(len(question.items)))
            free[name] = 0 if name in ended else max(min(lacking, each + ceil(each / 2) - counts[name]), 0)
        return [name for turn in range(each) for name in order if turn < free[name]]

    def _wanted(self, question: Question, responses: Sequence[JudgeResponse]) -> int:
        """Return how many more votes to ask for at the same time."""
        values = tuple(question.label_values.values())
        usable = [self._counted(question, index, responses) for index in range(len(question.items))]
        if not self.early_stop:
            return max(self.num_samples - len(votes) for votes in usable)
        return max(needed(votes, of=self.num_samples, values=values) for votes in usable)

    def _result(self, question: Question, index: int, responses: Sequence[JudgeResponse]) -> VotedItem:
        item, values = question.items[index], question.label_values
        votes = self._counted(question, index, responses)
        score = early_verdict(votes, of=self.num_samples, lowest=min(values.values()), highest=max(values.values()))
        verdicts = [response.verdicts[index] for response in responses]
        if score is None:
            errors = Counter(verdict.error for verdict in verdicts if verdict.error)
            reasons = "; ".join(error if count == 1 else f"{error} ({count} times)" for error, count in errors.items())
            reason = f"{len(votes)} of {self.num_samples} votes are available, too few for a verdict: {reasons}"
            return VotedItem(item=item, outcome=Errored(reason))
        voted = _scored(item, score, values, verdicts)
        if not self.panel or not isinstance(voted.outcome, Scored):
            return voted
        words = {name: _said([response.verdicts[index] for response in responses if response.member == name]) for name in self.panel}
        return replace(voted, outcome=replace(voted.outcome, details={**voted.outcome.details, "panel": words}))

    def _counted(self, question: Question, index: int, responses: Sequence[JudgeResponse]) -> list[float]:
        """Return the values of the votes on an item that count: of a judge, or each member of a panel, no more than its share."""
        each, seen = self.num_samples // max(len(self.panel), 1), Counter[str]()
        counted: list[JudgeResponse] = []
        for response in responses:
            if response.verdicts[index].label is not None and seen[response.member] < each:
                seen[response.member] += 1
                counted.append(response)
        return _usable(question, index, counted)


def _unasked(question: Question, why: Errored) -> VotingResult:
    """Return the result of a question that is put to nobody."""
    results = tuple(VotedItem(item=item, outcome=why) for item in question.items)
    return VotingResult(results=results, votes=(), unasked=why)


def first_of(members: Sequence[T], question: Question) -> T:
    """Return who of a panel is asked first: another one from question to question, so that all are asked as often where voting stops early."""
    return members[int(question.address("", {})[:8], 16) % len(members)]


def _usable(question: Question, index: int, responses: Sequence[JudgeResponse]) -> list[float]:
    """Return the values of the usable votes on an item, in their order."""
    labels = (response.verdicts[index].label for response in responses)
    return [question.label_values[label] for label in labels if label is not None]


def _scored(item: JudgedItem, score: float, values: Mapping[str, float], verdicts: Sequence[ItemVerdict]) -> VotedItem:
    """Return the result with the first explanation for it; what the other votes said is kept beside it."""
    usable = [verdict for verdict in verdicts if verdict.label is not None]
    agreeing = [verdict for verdict in usable if values[str(verdict.label)] == score]
    label = Counter(verdict.label for verdict in agreeing).most_common(1)[0][0]
    first = next(verdict for verdict in agreeing if verdict.label == label)
    details: dict[str, Any] = {"votes": dict(Counter(str(verdict.label) for verdict in usable)), **first.remarks}
    if dissent := [f"{verdict.label}: {verdict.rationale}" for verdict in usable if verdict not in agreeing]:
        details["dissent"] = dissent
    return VotedItem(item=item, outcome=Scored(score, first.rationale, details), label=label)


def _said(verdicts: Sequence[ItemVerdict]) -> str:
    """Return what one member of a panel said of an item."""
    labels = Counter(verdict.label for verdict in verdicts if verdict.label is not None)
    words = [f"{label} {count}" for label, count in labels.items()]
    words += [f"no vote: {error}" for error in dict.fromkeys(verdict.error for verdict in verdicts if verdict.error)]
    return ", ".join(words) or "not asked, because its votes could not change the verdict"


def _members(question: Question, responses: Sequence[JudgeResponse]) -> dict[str, tuple[int, int, int]]:
    """Return of each member of a panel its votes for the verdicts, those against them, and those that could not be had."""
    counts: dict[str, list[int]] = {response.member: [0, 0, 0] for response in responses if response.member}
    values = question.label_values
    for index in range(len(question.items) if counts else 0):
        votes = _usable(question, index, responses)
        verdict = median_low(votes) if votes else None
        for response in responses:
            label = response.verdicts[index].label
            counts[response.member][2 if label is None else int(values[label] != verdict)] += 1
    return {name: (agreeing, against, missing) for name, (agreeing, against, missing) in counts.items()}


def _counts(question: Question, responses: Sequence[JudgeResponse], num_samples: int) -> JudgeUsage:
    """Count the votes on a question, its items together."""
    agreeing = dissenting = split = lone = 0
    for index in range(len(question.items)):
        values = Counter(_usable(question, index, responses))
        most = max(values.values(), default=0)
        agreeing, dissenting, split = agreeing + most, dissenting + values.total() - most, split + (len(values) > 1)
        lone += values.total() == 1
    complete = bool(responses) and not any(response.final for response in responses)
    saved = max(num_samples - len(responses), 0) if complete else 0
    repaired = sum(any(verdict.repair for verdict in response.verdicts) for response in responses)
    votes: dict[str, Any] = {"votes": agreeing + dissenting, "dissenting_votes": dissenting, "lone_votes": lone, "split_ballots": split}
    members = _members(question, responses)
    return JudgeUsage(calls_saved=saved, ballots=len(question.items), repaired=repaired, members=members, **votes)


_OF_ANSWER = ("model", "latency_s", "input_tokens", "output_tokens", "host", "asked_in", "asked_at")


def vote_on(cell: CellKey, answer: Answer, **said: Any) -> Vote:
    """Return the record of a vote, with what its answer says of itself; `said`: the other fields."""
    return Vote(**cell._asdict(), **{name: getattr(answer, name) for name in _OF_ANSWER}, **said)


def _votes(question: Question, responses: Sequence[JudgeResponse], cell: CellKey) -> list[Vote]:
    """Return a record of each vote on each item. What an answer cost stands with its first item only, so that sums are right."""
    return [
        vote_on(
            cell,
            response if index == 0 else replace(response, input_tokens=None, output_tokens=None),
            rubric_id=item.id,
            vote_index=number,
            verdict=verdict.label,
            explanation=verdict.rationale,
            error=verdict.error,
            raw=response.text if verdict.error or verdict.repair else "",
            reused=response.reused,
            value=None if verdict.label is None else question.label_values[verdict.label],
        )
        for number, response in enumerate(responses)
        for index, (item, verdict) in enumerate(zip(question.items, response.verdicts, strict=True))
    ]
