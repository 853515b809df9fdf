"""What is measured where an agent speaks."""

from __future__ import annotations

from collections.abc import Iterable

from job import OURS, Job, Workload
from speaking import Speaking

TURNS = 3
_SIZES = (4, 16)
_CONTENDERS = {
    "ours": OURS,
    "adk": "google-adk: LocalEvalService",
    "floor": "google-adk's Runner alone",
}


def _table(cases: int, sizes: Iterable[int], *, by_client: bool) -> list[Job]:
    """Return a table of all contenders on so many cases, with so many conversations at the same time."""
    group = f"{cases:,} conversations of three turns, {'by the client of google-genai' if by_client else 'with a model in the process'}"
    return [
        Job(
            f"{label}: {at_once} at once",
            side,
            cases=cases,
            turns=TURNS,
            group=group,
            speaking=Speaking(at_once=at_once, by_client=by_client),
        )
        for side, label in _CONTENDERS.items()
        for at_once in sizes
    ]


def _live(cases: int) -> list[Job]:
    few, many = _SIZES
    return [
        *_table(cases, (few, many), by_client=True),
        *_table(cases * 2, (few,), by_client=True),
        *_table(cases * 2, (few, many), by_client=False),
    ]


LIVE = {
    "w8": Workload(
        "Speaking with an agent of google-adk and scoring {rows:,} turns",
        "An agent that calls one tool a turn, with a model that answers within 50 ms, behind the real client of google-genai or in the process; "
        "then tool_trajectory_avg_score and response_match_score. Ideal is what the model itself takes: two answers a turn.",
        _live,
        100,
        turns=TURNS,
    ),
}
