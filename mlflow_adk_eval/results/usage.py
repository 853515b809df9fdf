"""What the models of a run took: requests, tokens and time, and how far judges agreed.

The judge's client counts while it runs; the report, the MLflow metrics and every page read the sum from here. The same class serves
for models that judge and for those that play users, which leave no votes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeUsage:
    """The usage of all judges of a run, or of all models that played users in it."""

    calls: int = 0
    """Requests sent to a model in this run, the failed ones included."""
    failed_calls: int = 0
    """Requests that brought no answer."""
    calls_saved: int = 0
    """Votes that a full ballot would have asked for, and that could not have changed its verdict."""
    reused: int = 0
    """Answers that were paid for before: the ledger held them, or the same was asked twice in this run."""
    input_tokens: int = 0
    output_tokens: int = 0
    latency_s: float = 0.0
    """The seconds that all answered requests took, added up."""
    ballots: int = 0
    """Things that were voted on: turns, rubrics, sentences."""
    split_ballots: int = 0
    """Those on which the votes did not all agree."""
    votes: int = 0
    """Usable votes of all ballots."""
    dissenting_votes: int = 0
    """Votes for another verdict than the one that won."""
    models: tuple[str, ...] = ()
    """The judges, as the config names them."""
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    """The hash of each prompt, in hex, by its name and version."""
    outage: str = ""
    """Why a judge was given up as out of order; empty where none was."""

    @property
    def tokens(self) -> int:
        """All tokens paid for in this run."""
        return self.input_tokens + self.output_tokens

    @property
    def flip_rate(self) -> float | None:
        """The share of votes that contradict the verdict they took part in; ``None`` without votes."""
        return self.dissenting_votes / self.votes if self.votes else None
