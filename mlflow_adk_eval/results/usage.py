"""What the models of a run took: requests, tokens and time, and how far judges agreed.

The judge's client counts while it runs; the report, the MLflow metrics and every page read the sum from here. The same class serves
for models that judge and for those that play users, which leave no votes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeUsage:
    """The usage of all judges of a run, or of all models that played users in it."""

    calls: int = 0
    """Requests sent to a model in this run, the failed ones included."""
    failed_calls: int = 0
    """Requests that brought no answer."""
    calls_saved: int = 0
    """Votes that voting in full would have asked for, and that could not have changed its verdict."""
    reused: int = 0
    """Answers that the ledger held: this run did not pay for them."""
    asked_elsewhere: int = 0
    """Those of them that another evaluation asked for, not this one before it was resumed."""
    shared: int = 0
    """Answers to what was being asked in this run already."""
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
    lone_votes: int = 0
    """Usable votes that were the only one on their ballot, which nothing could contradict."""
    repaired: int = 0
    """Answers that were read although they had a slip that leaves no doubt: a code fence, or raw line breaks in a string."""
    models: tuple[str, ...] = ()
    """The judges, as the config names them."""
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    """The hash of each prompt, in hex, by its name and version."""
    outage: str = ""
    """Why a judge was given up as out of order; empty where none was."""
    members: Mapping[str, tuple[int, int, int]] = field(default_factory=dict[str, tuple[int, int, int]])
    """Of panels, by member: votes for the verdict that they took part in, votes against it, and votes that could not be had."""

    @property
    def tokens(self) -> int:
        """All tokens paid for in this run."""
        return self.input_tokens + self.output_tokens

    @property
    def flip_rate(self) -> float | None:
        """The share of votes that contradict the verdict that they and others came to; ``None`` where no ballot has two."""
        compared = self.votes - self.lone_votes
        return self.dissenting_votes / compared if compared else None


NUMBERS = tuple(each.name for each in fields(JudgeUsage) if each.default == 0)
"""The fields that are added up."""


def merged(first: Mapping[str, tuple[int, int, int]], second: Mapping[str, tuple[int, int, int]]) -> dict[str, tuple[int, int, int]]:
    """Return the votes of members of panels, those of both accounts together."""
    total = dict(first)
    for name, (agreeing, against, missing) in second.items():
        before = total.get(name, (0, 0, 0))
        total[name] = before[0] + agreeing, before[1] + against, before[2] + missing
    return total


def added(usages: Sequence[JudgeUsage]) -> JudgeUsage:
    """Return several accounts as one.

    >>> added([JudgeUsage(calls=1, models=("m",)), JudgeUsage(calls=2, models=("m",))]).calls
    3
    """
    total = usages[0]
    for usage in usages[1:]:
        numbers = {name: getattr(total, name) + getattr(usage, name) for name in NUMBERS}
        total = replace(
            total,
            **numbers,
            models=tuple(dict.fromkeys((*total.models, *usage.models))),
            prompts={**total.prompts, **usage.prompts},
            members=merged(total.members, usage.members),
            outage="; ".join(dict.fromkeys(filter(None, (total.outage, usage.outage)))),
        )
    return total
