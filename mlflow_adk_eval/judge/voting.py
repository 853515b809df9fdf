"""Asking one judge several times until the verdict stands: from a question to votes, and from votes to a verdict.

A `Question` has one or several items, such as rubrics or sentences, and the labels that a judge may give each of them. One answer of the
judge is a vote on every item (`JudgeResponse`). `VoteCollector.decide` asks for as many votes as it takes at least to reach a verdict, all at
the same time, looks at what came back, and asks for more only while a verdict could still change; votes that failed are replaced
within a bound. The verdict on an item is the median of the values of its labels, the lower one of two: for two labels that is the
majority, and a tie loses, as in ADK. What comes out is a `VotingResult`: one `VotedItem` for each item, and a record of every vote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import ceil
from statistics import median_low
from typing import Any

from mlflow_adk_eval.judge.question import ItemVerdict, JudgedItem, Question
from mlflow_adk_eval.results.outcomes import Errored, Scored, Vote
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
class JudgeResponse:
    """One vote on a question: what came of asking once, retries included."""

    verdicts: tuple[ItemVerdict, ...]
    """What it says of each item, in their order; errors where there was no answer."""
    model: str
    latency_s: float = 0.0
    """How long the answer took, in seconds, without waiting for a permit to ask."""
    input_tokens: int | None = None
    """Of all attempts that were paid for; ``None`` where the provider does not say."""
    output_tokens: int | None = None
    raw: str = ""
    """What the model wrote, where it cannot be used."""
    reused: bool = False
    """Whether the ledger held the answer."""
    final: bool = False
    """Whether there is no point in asking again, as without budget or with the judge out of order."""


Ask = Callable[[Question, int], Awaitable[JudgeResponse]]
"""Asks a question for the vote of a number, from 0. Returns what went wrong instead of raising it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellKey:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteCounts:
    """How the votes on one question were spread; for the usage of the run."""

    items: int
    """What got a verdict, or should have got one."""
    saved: int
    """Votes that were not asked for, since they could not have mattered."""
    agreeing: int
    dissenting: int
    """By item, over all items."""
    split: int
    """Items on which the votes did not all agree."""


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
    count: Callable[[VoteCounts], None] = field(default=lambda _counts: None)

    async def decide(self, question: Question, cell: CellKey) -> VotingResult:
        """Return the verdict on each item of `question`, whose votes are recorded as those on `cell`."""
        responses: list[JudgeResponse] = []
        most = self.num_samples + ceil(self.num_samples / 2)
        while more := min(self._wanted(question, responses), most - len(responses)):
            numbers = range(len(responses), len(responses) + more)
            new = await gathered(partial(self.ask, question, number) for number in numbers)
            responses += new
            if all(response.final for response in new):
                break
        self.count(_counts(question, responses, self.num_samples))
        results = tuple(self._result(question, index, responses) for index in range(len(question.items)))
        return VotingResult(results=results, votes=tuple(_votes(question, responses, cell)))

    def _wanted(self, question: Question, responses: Sequence[JudgeResponse]) -> int:
        """Return how many more votes to ask for at the same time."""
        values = tuple(question.label_values.values())
        usable = [_usable(question, index, responses) for index in range(len(question.items))]
        if not self.early_stop:
            return max(self.num_samples - len(votes) for votes in usable)
        return max(needed(votes, of=self.num_samples, values=values) for votes in usable)

    def _result(self, question: Question, index: int, responses: Sequence[JudgeResponse]) -> VotedItem:
        item, values = question.items[index], question.label_values
        votes = _usable(question, index, responses)[: self.num_samples]
        score = early_verdict(votes, of=self.num_samples, lowest=min(values.values()), highest=max(values.values()))
        verdicts = [response.verdicts[index] for response in responses]
        if score is None:
            return VotedItem(item=item, outcome=Errored(_missing(len(votes), self.num_samples, verdicts)))
        return _scored(item, score, values, verdicts)


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


def _missing(usable: int, of: int, verdicts: Sequence[ItemVerdict]) -> str:
    errors = Counter(verdict.error for verdict in verdicts if verdict.error)
    reasons = "; ".join(error if count == 1 else f"{error} ({count} times)" for error, count in errors.items())
    return f"{usable} of {of} votes could be had, too few for a verdict: {reasons}"


def _counts(question: Question, responses: Sequence[JudgeResponse], num_samples: int) -> VoteCounts:
    """Count the votes on a question, its items together."""
    agreeing = dissenting = split = 0
    for index in range(len(question.items)):
        votes = Counter(_usable(question, index, responses))
        most = max(votes.values(), default=0)
        agreeing, dissenting, split = agreeing + most, dissenting + votes.total() - most, split + (len(votes) > 1)
    complete = bool(responses) and not any(response.final for response in responses)
    return VoteCounts(
        items=len(question.items),
        saved=max(num_samples - len(responses), 0) if complete else 0,
        agreeing=agreeing,
        dissenting=dissenting,
        split=split,
    )


def _votes(question: Question, responses: Sequence[JudgeResponse], cell: CellKey) -> list[Vote]:
    """Return a record of each vote on each item. What an answer cost stands with its first item only, so that sums are right."""
    return [
        Vote(
            eval_id=cell.eval_id,
            run_index=cell.run_index,
            invocation_index=cell.invocation_index,
            criterion=cell.criterion,
            rubric_id=item.id,
            vote_index=number,
            verdict=verdict.label,
            explanation=verdict.rationale,
            model=response.model,
            latency_s=response.latency_s,
            input_tokens=response.input_tokens if index == 0 else None,
            output_tokens=response.output_tokens if index == 0 else None,
            error=verdict.error,
            raw=response.raw if verdict.error else "",
            reused=response.reused,
        )
        for number, response in enumerate(responses)
        for index, (item, verdict) in enumerate(zip(question.items, response.verdicts, strict=True))
    ]
