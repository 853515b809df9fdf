"""Which of the cells that a judge decided are worth a label, and what the labelled ones then say of all cells.

Most labels of a random sample go to cells on which judge and people would agree anyway. So half of a sample are *close* cells (votes that
differ, or a score near the threshold), and the rest are as many passed as failed ones. Each of these strata is sampled at random, and each
cell counts for as many as its stratum has for one labelled cell (Horvitz and Thompson), so that the rates are those of all cells.
The sample follows from the run, its size and its seed alone: nothing on the sheet that people fill in tells them a cell's verdict.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection
from itertools import cycle

from pydantic import Field

from mlflow_adk_eval.analysis.calibration.labels import JudgeDecision, Unit, Units
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.models import Strict
from mlflow_adk_eval.results.outcomes import grouped

Stratum = tuple[str, str]
"""A criterion, and what its judge said: *close*, *passed* or *failed*."""

_NEAR = 0.1
"""How near to the threshold a score is close, as a share of the range."""
_TURNS = ("close", "passed", "close", "failed")
_TEXT = re.compile(r"(\d+):(\d+)")


class CellSample(Strict):
    """Which sample it is: the same run, size and seed give the same cells."""

    size: int = Field(ge=1)
    seed: int = Field(default=0, ge=0)

    def __str__(self) -> str:
        """Return the sample as a sheet names it."""
        return f"{self.size}:{self.seed}"

    @staticmethod
    def read(text: str) -> CellSample | None:
        """Return the sample that a sheet names; ``None`` if it is none."""
        match = _TEXT.fullmatch(text)
        return CellSample(size=int(match[1]), seed=int(match[2])) if match and int(match[1]) else None

    def drawn(self, units: Units) -> dict[Unit, Stratum]:
        """Return the cells of the sample with their strata, in an order that tells nothing of them.

        Raises:
            UsageError: if it is too small for the strata that there are.
        """
        strata = _strata(units)
        ranked = grouped((strata[unit], unit) for unit in sorted(strata, key=self._rank))
        criteria = list(dict.fromkeys(name for name, _ in ranked))
        if not ranked:
            raise UsageError("there is nothing to label: these runs have no judged verdicts")
        if self.size < len(ranked):
            raise UsageError(
                f"a sample of {self.size}: wanted at least {len(ranked)}: one for each kind of verdict of {', '.join(criteria)}"
            )
        wanted = min(self.size, len(strata))
        counts = dict.fromkeys(ranked, 1)
        turns = cycle([(name, kind) for kind in _TURNS for name in criteria])
        while sum(counts.values()) < wanted:
            stratum = next(turns)
            if stratum in counts and counts[stratum] < len(ranked[stratum]):
                counts[stratum] += 1
        chosen = {unit: stratum for stratum, count in counts.items() for unit in ranked[stratum][:count]}
        return dict(sorted(chosen.items(), key=lambda item: self._rank(item[0])))

    def weights(self, units: Units, labelled: Collection[Unit]) -> dict[Unit, float]:
        """Return for how many cells each labelled one counts; those of a stratum without a label are counted by nobody."""
        strata = _strata(units)
        sizes, counts = (Counter(strata[unit] for unit in chosen if unit in strata) for chosen in (strata, labelled))
        return {unit: sizes[strata[unit]] / counts[strata[unit]] for unit in labelled if unit in strata}

    def unlabelled(self, units: Units, labelled: Collection[Unit], criterion: str) -> list[str]:
        """Return the kinds of verdicts on a criterion of which no cell is labelled."""
        strata = _strata(units)
        labelled_strata = {strata[unit] for unit in labelled if unit in strata}
        return [kind for name, kind in dict.fromkeys(strata.values()) if name == criterion and (name, kind) not in labelled_strata]

    def _rank(self, unit: Unit) -> bytes:
        return hashlib.sha256(f"{self.seed} {unit}".encode("utf-8", "replace")).digest()


def _strata(units: Units) -> dict[Unit, Stratum]:
    """Return the strata of the cells that can be drawn: those with a verdict on a whole criterion."""
    return {
        unit: (unit.criterion, _kind(judged))
        for unit, judged in units.judged.items()
        if unit.rubric_id is None and judged.judged and judged.passed is not None and unit.invocation_index is not None
    }


def _kind(judged: JudgeDecision) -> str:
    (low, high), score, threshold = judged.bounds, judged.score, judged.threshold
    near = score is not None and threshold is not None and low < score < high and abs(score - threshold) <= _NEAR * (high - low) < math.inf
    return "close" if near or judged.certainty < 1 else "passed" if judged.passed else "failed"
