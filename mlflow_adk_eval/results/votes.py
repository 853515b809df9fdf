"""What judges voted: item by item within a cell, and as the Parquet file that a run keeps.

A judge is asked about *items*: each rubric, each sentence of an answer, or the cell as a whole. Criteria record in the details of a
score what the votes on each item came to; `item_results` reads that back and joins it with the votes themselves, so that every page,
trace and result file tells the same of the votes, also where there were too few votes for a verdict.

The file has one row per vote, in columns that are the same whatever the votes are (`VOTE_COLUMNS`); the gate reads it to check them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from mlflow_adk_eval.config.criteria import JudgedSettings
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.results.outcomes import Outcome, Scored, Vote
from mlflow_adk_eval.results.parquet import Kind, read_columns
from mlflow_adk_eval.results.table import VOTE_COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResult:
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


def item_results(cell: Outcome, votes: Sequence[Vote]) -> tuple[ItemResult, ...]:
    """Return what the votes came to on each item of a cell, in the order of its details; without a verdict, what the votes say.

    Args:
        cell: the outcome, in whose details each item stands as an object that has its ``votes``, or an ``id`` and a ``verdict``.
        votes: those on this cell.
    """
    recorded = dict(_recorded(None, cell.details)) if isinstance(cell, Scored) else {}
    by_item: dict[str | None, list[Vote]] = {}
    for vote in votes:
        by_item.setdefault(vote.rubric_id, []).append(vote)
    scored = isinstance(cell, Scored)
    return tuple(
        _item_result(item, by_item.get(item, ()), recorded.get(item), scored=scored) for item in dict.fromkeys((*recorded, *by_item))
    )


def _recorded(name: str | None, value: Any) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """Yield the records of items within details, each by its item's id, or else by what it is called."""
    if isinstance(value, Mapping):
        if isinstance(value.get("votes"), Mapping) or {"id", "verdict"} <= value.keys():
            yield value.get("id", name), value
        for key, inner in value.items():
            yield from _recorded(str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _recorded(name, inner)


def _item_result(item: str | None, votes: Sequence[Vote], recorded: Mapping[str, Any] | None, *, scored: bool) -> ItemResult:
    cast = Counter(vote.verdict for vote in votes if vote.verdict is not None)
    errors = tuple(dict.fromkeys(vote.error for vote in votes if vote.error))
    found = recorded or {}
    return ItemResult(
        id=item,
        score=found.get("score"),
        rationale=str(found.get("rationale", "")),
        tally=dict(cast.most_common()),
        dissent=tuple(map(str, found.get("dissent", ()))),
        errors=errors,
        settled=recorded is not None or (scored and not errors),
    )


_THEIR_WORDS = frozenset({"explanation", "model", "error", "raw", "host", "asked_in"})
"""What others than the user wrote. The rest ties a vote to its cell and is never changed."""


def judged_criteria(config: EvalConfig) -> dict[str, tuple[JudgedSettings, ...]]:
    """Return the criteria that a model decides, each with its settings: one, or several where cases differ."""
    found: dict[str, list[JudgedSettings]] = {}
    for criteria in (config.criteria, *config.case_criteria.values()):
        for name, settings in criteria.items():
            if isinstance(settings, JudgedSettings) and settings not in found.setdefault(name, []):
                found[name].append(settings)
    return {name: tuple(settings) for name, settings in found.items()}


def dump_votes(votes: Iterable[Vote], clean: Callable[[str], str] = str) -> bytes:
    """Return votes as a Parquet file; `clean` makes others' words fit to be kept."""
    import pandas as pd  # noqa: PLC0415 - a second that only runs with judges should pay

    listed = list(votes)
    columns = {name: [getattr(vote, name) for vote in listed] for name in VOTE_COLUMNS}
    columns |= {name: [clean(text) for text in columns[name]] for name in _THEIR_WORDS}
    frame = pd.DataFrame(columns, dtype=object).astype(dict(VOTE_COLUMNS))
    content = BytesIO()
    frame.to_parquet(content, engine="pyarrow", compression="zstd", index=False)
    return content.getvalue()


def parse_votes(content: bytes, source: str, *, rows: int | None = None) -> tuple[Vote, ...]:
    """Return the votes in a Parquet file; `rows`: how many there must be.

    Raises:
        InputError: if it holds something else.
    """
    columns = read_columns(content, source, _KINDS, rows=rows)
    return tuple(Vote(**dict(zip(_KINDS, row, strict=True))) for row in zip(*columns.values(), strict=True))


_KIND_OF_TYPE: Mapping[str, Kind] = {"string": "text", "int64": "whole number", "float64": "number", "bool": "truth"}
_KINDS: Mapping[str, Kind] = {name: _KIND_OF_TYPE[dtype.lower()] for name, dtype in VOTE_COLUMNS.items()}
