"""Who is measured. Each module offers `imports`, `load` and one function per way of using it.

Such a function does its work and returns the scores as an iterator: what it takes to bring them into a common shape stays
outside the clock.
"""

from __future__ import annotations

from collections.abc import Iterator

TRAJECTORY, RESPONSE_MATCH = "tool_trajectory_avg_score", "response_match_score"
CRITERIA = (TRAJECTORY, RESPONSE_MATCH)
THRESHOLD = 0.5

Cell = tuple[str, str, int, float | None]
"""Criterion, eval id, turn and score; ``None`` where the contender gave none."""
Cells = Iterator[Cell]
