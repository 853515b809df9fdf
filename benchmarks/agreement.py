"""Whether contenders found the same scores, to the last bit, and the true ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contenders import CRITERIA, TRAJECTORY
from data import ACTUAL, TRUTH, Json
from judging import Judging
from truth import score

Scores = Mapping[str, Mapping[str, float | None]]
"""By criterion and by ``eval_id#turn``."""


@dataclass(frozen=True)
class Agreement:
    """How the scores of one compare with a reference."""

    cells: int
    """Of the reference."""
    missing: int
    different: int

    @property
    def complete(self) -> bool:
        """Whether all are there and the same."""
        return not self.missing and not self.different

    def __str__(self) -> str:
        """Return the numbers for a table."""
        found = [f"{self.different:,} differ"] * bool(self.different) + [f"{self.missing:,} missing"] * bool(self.missing)
        return f"{', '.join(found)} of {self.cells:,}" if found else f"all {self.cells:,}"


def compare(scores: Scores, reference: Scores) -> Agreement:
    """Compare scores bit by bit.

    >>> compare({"a": {"x": 0.3, "y": None}}, {"a": {"x": 0.1 + 0.2, "y": 1.0}})
    Agreement(cells=2, missing=1, different=1)
    """
    pairs = [(scores.get(criterion, {}).get(key), wanted) for criterion, cells in reference.items() for key, wanted in cells.items()]
    missing = sum(found is None for found, _ in pairs)
    return Agreement(len(pairs), missing, sum(found is not None and found != wanted for found, wanted in pairs))


def truth(folder: Path) -> Scores:
    """Return the trajectory scores that the generator of a data set knows to be true."""
    turns = json.loads((folder / TRUTH).read_bytes())
    return {TRAJECTORY: {f"{eval_id}#{turn}": float(known["EXACT"]) for eval_id, case in turns.items() for turn, known in enumerate(case)}}


def judged_truth(folder: Path, judging: Judging) -> Scores:
    """Return the scores that a judge who knows the truth gives the answers of a data set."""
    found = {
        f"{case['eval_id']}#{turn}": score(judging.criterion, _answer(invocation), judging.conditions.dissent, judging.votes)
        for case in json.loads((folder / ACTUAL).read_bytes())
        for turn, invocation in enumerate(case["invocations"])
    }
    return {judging.criterion: found}


def live_truth(cases: int, turns: int) -> Scores:
    """Return the scores of an agent that does just what the references say."""
    keys = [f"case_{case:05d}#{turn}" for case in range(cases) for turn in range(turns)]
    return {criterion: dict.fromkeys(keys, 1.0) for criterion in CRITERIA}


def _answer(invocation: Json) -> str:
    return "".join(part["text"] for part in invocation["final_response"]["parts"])
