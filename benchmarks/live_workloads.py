"""What is measured where an agent speaks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from job import OURS, Job, Workload
from speaking import Speaking

TURNS = 3
_SIZES = (4, 16)
_CONTENDERS = {
    "ours": OURS,
    "adk": "google-adk: LocalEvalService",
    "floor": "google-adk's Runner alone",
}


def _table(cases: int, sizes: Iterable[int]) -> list[Job]:
    """Return a table of all contenders on so many cases, with so many conversations at the same time."""
    group = f"{cases:,} conversations of three turns"
    return [
        Job(f"{label}: {at_once} at once", side, cases=cases, turns=TURNS, group=group, speaking=Speaking(at_once=at_once))
        for side, label in _CONTENDERS.items()
        for at_once in sizes
    ]


def _live(cases: int) -> list[Job]:
    default = [replace(job, label=f"{job.label}, as it comes") if job.side == "adk" else job for job in _table(cases * 2, _SIZES[:1])]
    return [*_table(cases, _SIZES), *default]


LIVE = {
    "w8": Workload(
        "Speaking with an agent of google-adk and scoring {rows:,} turns",
        "An agent that calls one tool a turn, through the real client of google-genai, with a model that answers within 50 ms; then "
        "tool_trajectory_avg_score and response_match_score. Ideal is what the model itself takes: two answers a turn.",
        _live,
        100,
        turns=TURNS,
    ),
}
