"""A jury: one judge asked several times, until the verdict stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import ceil
from statistics import median_low
from typing import Any

from mlflow_adk_eval.judge.question import Item, ItemVerdict, Question
from mlflow_adk_eval.results.outcomes import Errored, Scored, Vote
from mlflow_adk_eval.runtime import gathered


def early_verdict(votes: Sequence[float], *, of: int, lowest: float, highest: float) -> float | None:
    """Return the verdict of a ballot, or ``None`` while the missing votes could change it.

    Args:
        votes: what the votes cast so far are worth.
        of: how many votes the full ballot has.
        lowest: the least that a vote can be worth.
        highest: the most.

    >>> early_verdict([1, 1, 1], of=5, lowest=0, highest=1), early_verdict([1, 1, 0], of=5, lowest=0, highest=1)
    (1, None)
    >>> early_verdict([0, 1, 0, 1], of=4, lowest=0, highest=1), early_verdict([0, 0], of=4, lowest=0, highest=1)
    (0, 0)
    """
    missing = max(of - len(votes), 0)
    least, most = median_low([*votes, *[lowest] * missing]), median_low([*votes, *[highest] * missing])
    return least if least == most else None


def needed(votes: Sequence[float], *, of: int, worths: Sequence[float]) -> int:
    """Return how many more votes it takes at least to settle a ballot; none if it is settled.

    Asking for so many at the same time wastes none: with fewer, the verdict could not stand.

    >>> needed([], of=5, worths=[0, 1]), needed([1, 1, 0], of=5, worths=[0, 1]), needed([1, 1, 1], of=5, worths=[0, 1])
    (3, 1, 0)
    """
    return _needed(tuple(votes), of, tuple(worths))


@cache  # of few votes with few labels, asked about again and again
def _needed(votes: tuple[float, ...], of: int, worths: tuple[float, ...]) -> int:
    lowest, highest = min(worths), max(worths)
    missing = max(of - len(votes), 0)
    for more in range(missing):
        if any(early_verdict([*votes, *[worth] * more], of=of, lowest=lowest, highest=highest) is not None for worth in worths):
            return more
    return missing


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeResponse:
    """One vote on a question: what came of asking once, retries included."""

    readings: tuple[ItemVerdict, ...]
    """What it says of each item, in their order; errors where there was no answer."""
    model: str
    latency_s: float = 0.0
    """How long the answer took, without waiting for leave to ask."""
    input_tokens: int | None = None
    """Of all attempts that were paid for; ``None`` where the provider does not say."""
    output_tokens: int | None = None
    raw: str = ""
    """What the model wrote, where it cannot be used."""
    reused: bool = False
    """Whether the ledger held the answer."""
    hopeless: bool = False
    """Whether there is no point in asking again, as without budget or with the judge out of order."""


Ask = Callable[[Question, int], Awaitable[JudgeResponse]]
"""Asks a question for the vote of a number, from 0. Returns what went wrong instead of raising it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellKey:
    """What a ballot is about, as its votes record it."""

    eval_id: str
    run_index: int
    invocation_index: int
    criterion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a ballot found about one item."""

    item: Item
    outcome: Scored | Errored
    label: str | None = None
    """What the judges call it: the most frequent label on the winning side; ``None`` without a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """The end of a ballot: a finding on each item, and every vote."""

    findings: tuple[Finding, ...]
    votes: tuple[Vote, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a jury counts besides; for the accounts of the run."""

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
class Jury:
    """How a question is put to the vote."""

    ask: Ask
    num_samples: int = 5
    early_stop: bool = True
    """Whether to stop as soon as the missing votes cannot change any verdict. The verdicts are the same either way."""
    count: Callable[[Tally], None] = field(default=lambda _tally: None)

    async def decide(self, question: Question, place: CellKey) -> Ballot:
        """Return the verdict on each item of `question`.

        A vote that failed is replaced, up to half the number of votes. If votes are still missing, a verdict stands only
        if they could not have changed it.
        """
        papers: list[JudgeResponse] = []
        most = self.num_samples + ceil(self.num_samples / 2)
        while more := min(self._wanted(question, papers), most - len(papers)):
            numbers = range(len(papers), len(papers) + more)
            cast = await gathered(partial(self.ask, question, number) for number in numbers)
            papers += cast
            if all(paper.hopeless for paper in cast):
                break
        self.count(_tally(question, papers, self.num_samples))
        findings = tuple(self._finding(question, index, papers) for index in range(len(question.items)))
        return Ballot(findings=findings, votes=tuple(_votes(question, papers, place)))

    def _wanted(self, question: Question, papers: Sequence[JudgeResponse]) -> int:
        """Return how many more votes to ask for at the same time."""
        worths = tuple(question.worth.values())
        cast = [_cast(question, index, papers) for index in range(len(question.items))]
        if not self.early_stop:
            return max(self.num_samples - len(votes) for votes in cast)
        return max(needed(votes, of=self.num_samples, worths=worths) for votes in cast)

    def _finding(self, question: Question, index: int, papers: Sequence[JudgeResponse]) -> Finding:
        item, worth = question.items[index], question.worth
        votes = _cast(question, index, papers)[: self.num_samples]
        score = early_verdict(votes, of=self.num_samples, lowest=min(worth.values()), highest=max(worth.values()))
        readings = [paper.readings[index] for paper in papers]
        if score is None:
            return Finding(item=item, outcome=Errored(_missing(len(votes), self.num_samples, readings)))
        return _won(item, score, worth, readings)


def _cast(question: Question, index: int, papers: Sequence[JudgeResponse]) -> list[float]:
    """Return what the usable votes on an item are worth, in their order."""
    labels = (paper.readings[index].label for paper in papers)
    return [question.worth[label] for label in labels if label is not None]


def _won(item: Item, score: float, worth: Mapping[str, float], readings: Sequence[ItemVerdict]) -> Finding:
    """Return a verdict with the first explanation on its side; what the others said is kept beside it."""
    cast = [reading for reading in readings if reading.label is not None]
    winners = [reading for reading in cast if reading.label is not None and worth[reading.label] == score]
    labels = Counter(reading.label for reading in winners)
    label = labels.most_common(1)[0][0]
    spokesman = next(reading for reading in winners if reading.label == label)
    details: dict[str, Any] = {"votes": dict(Counter(str(reading.label) for reading in cast)), **spokesman.remarks}
    if dissent := [f"{reading.label}: {reading.rationale}" for reading in cast if reading not in winners]:
        details["dissent"] = dissent
    return Finding(item=item, outcome=Scored(score, spokesman.rationale, details), label=label)


def _missing(cast: int, of: int, readings: Sequence[ItemVerdict]) -> str:
    errors = Counter(reading.error for reading in readings if reading.error)
    reasons = "; ".join(error if count == 1 else f"{error} ({count} times)" for error, count in errors.items())
    return f"{cast} of {of} votes could be had, too few for a verdict: {reasons}"


def _tally(question: Question, papers: Sequence[JudgeResponse], num_samples: int) -> Tally:
    """Count a ballot, its items together."""
    agreeing = dissenting = split = 0
    for index in range(len(question.items)):
        votes = Counter(_cast(question, index, papers))
        most = max(votes.values(), default=0)
        agreeing, dissenting, split = agreeing + most, dissenting + votes.total() - most, split + (len(votes) > 1)
    complete = bool(papers) and not any(paper.hopeless for paper in papers)
    return Tally(
        items=len(question.items),
        saved=max(num_samples - len(papers), 0) if complete else 0,
        agreeing=agreeing,
        dissenting=dissenting,
        split=split,
    )


def _votes(question: Question, papers: Sequence[JudgeResponse], place: CellKey) -> list[Vote]:
    """Return a record of each vote on each item. What an answer cost stands with its first item only, so that sums are right."""
    return [
        Vote(
            eval_id=place.eval_id,
            run_index=place.run_index,
            invocation_index=place.invocation_index,
            criterion=place.criterion,
            rubric_id=item.id,
            vote_index=number,
            verdict=reading.label,
            explanation=reading.rationale,
            model=paper.model,
            latency_s=paper.latency_s,
            input_tokens=paper.input_tokens if first else None,
            output_tokens=paper.output_tokens if first else None,
            error=reading.error,
            raw=paper.raw if reading.error else "",
            reused=paper.reused,
        )
        for number, paper in enumerate(papers)
        for item, reading, first in zip(question.items, paper.readings, [True] + [False] * (len(question.items) - 1), strict=True)
    ]
