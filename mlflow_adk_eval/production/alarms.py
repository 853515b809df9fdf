"""Alarms about an agent in production: a test of each criterion that stays valid however often one looks, and what it remembers between looks.

Somebody bets at each look that fewer conversations pass than the level says, at the odds of the level, with what was won so far and a new share of a
stake of 1. If the level is met the stake is not expected to grow, so it ever grows to `keys` / `ALPHA` for one of so many criteria with a chance of at
most `ALPHA` (Ville's inequality), over all looks together. The shares become smaller with time, and never run out.

Strata were drawn from unequally, and each conversation counts by how many it stands for. That keeps the bet fair: the product of what strata yield on
average is largest where all yield the same, as the logarithm is concave.

A judge that became stricter looks like an agent that became worse. So there is a stake for each size of such a change in `CHANGES`, bet against the level
less that size. Earlier conversations that are judged again refute the sizes: an agent is accused only if for each size either its own stake or that of the
earlier conversations, or both together, has grown enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from mlflow_adk_eval.analysis.stats.betting import log_wealth

ALPHA = 0.05
"""The chance at most, over all looks together, that there is an alarm about an agent that meets its levels."""
PLANNED = 0.1
"""The drop that is bet on; others are found as well, larger ones sooner."""
CHANGES = tuple(-step / 100 for step in range(51))
"""The changes of a judge that are reckoned with; larger ones are refuted by earlier conversations alone."""
HIGHEST, LOWEST = 0.995, 0.05
"""Where levels end: one failure among many conversations is no drop, and hardly any conversation that passes cannot become fewer."""
_SOON = 50
"""Half of the stake is bet on a drop within so many looks."""
_MOST, _LARGEST = 0.75, 1e100
Cause = Literal["agent", "judge"]


class Drawn(NamedTuple):
    """What a look saw of one stratum: the conversations in it, those that were drawn, and how many of these failed."""

    found: int
    drawn: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A criterion that is watched."""

    criterion: str
    """Empty: whether a conversation passed all."""
    level: float
    """The share of conversations that passes at least."""
    judged: bool
    """Whether a judge decides."""
    part: str = ""
    """The tag or metadata that a trace must have to count, such as ``language=de``; empty: all count."""
    looks: int = 0
    asked: int = 0
    """How often earlier conversations were judged again."""
    tried: int = 0
    """How often the agent could have been accused then."""
    again: tuple[float, ...] = ()
    """What they won against each change the last time."""
    judged_before: int = 0
    """How many they were."""
    stakes: tuple[float, ...] = ()
    """By the changes of a judge that they allow for; of a criterion without one, only the first."""
    cause: Cause | None = None
    """Why there is an open alarm, during which nothing is tested; ``None``: there is none."""
    alarm: str = ""
    """The open alarm as a sentence."""
    run_id: str = ""
    """The look that found it."""

    def __post_init__(self) -> None:
        """Refuse numbers of which nothing follows: they were kept where others can write."""
        stakes = all(0 < stake <= _LARGEST for stake in self.stakes) and len(self.stakes) in (0, len(CHANGES) if self.judged else 1)
        again = all(map(math.isfinite, self.again)) and len(self.again) in (0, len(CHANGES))
        if not (stakes and again and LOWEST <= self.level <= HIGHEST and min(self.looks, self.asked, self.tried, self.judged_before) >= 0):
            raise ValueError(f"no evidence about {self.criterion or 'all criteria'}")

    def reset(self) -> Watched:
        """Return it as it was before the first look."""
        return Watched(criterion=self.criterion, level=self.level, judged=self.judged, part=self.part)

    def after(self, look: Sequence[Drawn]) -> Watched:
        """Return what it knows after a look; conversations without a verdict are to count as passed."""
        drawn, found = sum(each.drawn for each in look), sum(each.found for each in look)
        if self.cause or not drawn:
            return self
        count = self.looks + 1
        share = _SOON / ((count + _SOON - 1) * (count + _SOON))
        # Each by its weight, how many passed, and how many failed. Of a stratum that was not drawn from, as many as fit are taken to have passed.
        counts = [(each.found / found * drawn, each.drawn, each.failed) for each in look if each.found]
        cells = [(fair / (count or fair), (count or fair) - failed, failed) for fair, count, failed in counts]
        heaviest, stakes = max(weight for weight, *_ in cells), list[float]()
        for change, stake in zip(CHANGES if self.judged else CHANGES[:1], self.stakes or (0.0,) * len(CHANGES), strict=False):
            gain, level, edge = 0.0, self.level + change, max(PLANNED + change, PLANNED / 4)
            if level >= LOWEST:
                bet = min(edge / (level * (1 - level) + edge * edge), _MOST / (1 - level) / heaviest)
                gain = sum(
                    passed * math.log1p(bet * weight * (level - 1)) + failed * math.log1p(bet * weight * level)
                    for weight, passed, failed in cells
                )
            stakes.append(min((stake + share) * math.exp(min(gain, 200.0)), _LARGEST))
        return replace(self, looks=count, stakes=tuple(stakes))

    def suspected(self, keys: int) -> bool:
        """Whether too many failed, of `keys` criteria that are watched, if it is not a judge that changed."""
        return not self.cause and bool(self.stakes) and self.stakes[0] >= keys / ALPHA

    def worth_asking(self, keys: int, earlier: int) -> bool:
        """Whether so many earlier conversations are to be judged again: at once if too many failed, and then only if that may show who changed."""
        return self.suspected(keys) and earlier > 0 and (not self.asked or self._may_accuse(keys, earlier))

    def judged_again(self, keys: int, differences: Sequence[float]) -> Watched:
        """Return it with who changed, as far as that is known.

        Args:
            keys: how many criteria are watched.
            differences: the new verdicts of the judge on earlier conversations less the old ones, each from −1 to 1; at least one.
        """
        again, accusing = tuple(_won(differences)), self._may_accuse(keys, len(differences))
        stricter = log_wealth([-each for each in differences], 0.0, worst=-1.0, spread=PLANNED / 2)[-1]
        named: Cause | None = "judge" if stricter >= _wanted(1, self.asked) else None
        cause: Cause | None = "agent" if accusing and self._refuted(keys, again) else named
        tried = self.tried + accusing
        return replace(self, asked=self.asked + 1, tried=tried, again=again, judged_before=len(differences), cause=cause)

    def _may_accuse(self, keys: int, earlier: int) -> bool:
        """Whether the agent is accused if so many earlier conversations come out as the last time; before the first time, if they all come out as before."""
        before = self.again or tuple(_won([0.0] * earlier))
        return self._refuted(keys, [wealth * earlier / (self.judged_before or earlier) for wealth in before])

    def _refuted(self, keys: int, again: Sequence[float]) -> bool:
        """Whether no change of the judge explains the failures; `again`: the logarithm of what earlier conversations won against each change."""
        wanted = _wanted(keys, self.tried)
        return all(math.log(stake) + wealth >= wanted for stake, wealth in zip((*self.stakes[1:], 1.0), again, strict=True))


def _wanted(keys: int, before: int) -> float:
    """Return the logarithm of the stake that decides; of the chance of an error the first attempt may use a half, the next a sixth, then a twelfth."""
    return math.log(keys / ALPHA * (before + 1) * (before + 2))


def _won(differences: Sequence[float]) -> Iterator[float]:
    """Yield the logarithm of what the differences win against each change of a judge, by bets that it changed less."""
    return (log_wealth(differences, change, worst=-1.0, spread=PLANNED / 2)[-1] for change in CHANGES)
