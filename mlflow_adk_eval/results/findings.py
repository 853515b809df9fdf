"""What judges voted on in a cell, item by item: each rubric, each sentence, or the cell as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.results.outcomes import Outcome, Scored, Vote


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the votes on one item came to."""

    id: str | None
    """A rubric's or sentence's id; ``None``: the question was about one thing."""
    score: float | None = None
    """``None`` without a verdict, and where the cell's score is all there is."""
    rationale: str = ""
    tally: Mapping[str, int]
    """Usable votes by label, the most frequent first; empty where nobody had to be asked."""
    dissent: tuple[str, ...] = ()
    """What was said by those who did not win."""
    errors: tuple[str, ...] = ()
    """Why the other votes cannot be used."""
    settled: bool = True
    """Whether there is a verdict."""

    @property
    def split(self) -> bool:
        """Whether the votes contradict each other; without a verdict, whether they differ."""
        return bool(self.dissent) if self.settled else len(self.tally) > 1

    @property
    def counts(self) -> str:
        """The tally as text, such as ``valid 4, invalid 1``."""
        return ", ".join(f"{label} {count}" for label, count in self.tally.items())


def votes_by_turn(votes: Iterable[Vote]) -> dict[int, list[Vote]]:
    """Return the votes on each turn, by its index."""
    found: dict[int, list[Vote]] = {}
    for vote in votes:
        found.setdefault(vote.invocation_index, []).append(vote)
    return found


def findings_of(cell: Outcome, votes: Sequence[Vote]) -> tuple[Finding, ...]:
    """Return what was found about each item of a cell, in the order of its details; without a verdict, what the votes say.

    Args:
        cell: the outcome, in whose details each finding stands as an object that has its ``votes``, or an ``id`` and a ``verdict``.
        votes: those on this cell.
    """
    told = dict(_told(None, cell.details)) if isinstance(cell, Scored) else {}
    by_item: dict[str | None, list[Vote]] = {}
    for vote in votes:
        by_item.setdefault(vote.rubric_id, []).append(vote)
    scored = isinstance(cell, Scored)
    return tuple(_finding(item, by_item.get(item, ()), told.get(item), scored=scored) for item in dict.fromkeys((*told, *by_item)))


def _told(name: str | None, value: Any) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """Yield the findings within details, each by its item's id, or else by what it is called."""
    if isinstance(value, Mapping):
        if isinstance(value.get("votes"), Mapping) or {"id", "verdict"} <= value.keys():
            yield value.get("id", name), value
        for key, inner in value.items():
            yield from _told(str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _told(name, inner)


def _finding(item: str | None, votes: Sequence[Vote], told: Mapping[str, Any] | None, *, scored: bool) -> Finding:
    cast = Counter(vote.verdict for vote in votes if vote.verdict is not None)
    errors = tuple(dict.fromkeys(vote.error for vote in votes if vote.error))
    found = told or {}
    return Finding(
        id=item,
        score=found.get("score"),
        rationale=str(found.get("rationale", "")),
        tally=dict(cast.most_common()),
        dissent=tuple(map(str, found.get("dissent", ()))),
        errors=errors,
        settled=told is not None or (scored and not errors),
    )
