"""What a measurement of live conversations asks a contender for."""

from __future__ import annotations

from dataclasses import dataclass, field

from conditions import Conditions

CALLS = 2
"""How often the agent asks its model in a turn: what to look up, and what to say then."""

LATENCY_MS = "BENCH_LATENCY_MS"
"""The environment variable that says how long a model within the process takes; 0: the model is behind its client."""


@dataclass(frozen=True, kw_only=True)
class Speaking:
    """How many conversations an agent has at the same time, with a model that answers at a constant pace."""

    at_once: int
    by_client: bool = True
    """Whether the model is behind the real client of google-genai, or answers within the process."""
    conditions: Conditions = field(default_factory=Conditions)

    def ideal_s(self, turns: int) -> float:
        """Return how long so many turns take at least: the time that the model takes, and nothing else."""
        return turns * CALLS * self.conditions.latency_ms / 1000 / self.at_once
