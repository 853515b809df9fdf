"""What a measurement is, and what a section of the report is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from judging import Judging
from speaking import Speaking

TURNS = 5
_CRITERIA = 2

Side = Literal["ours", "integrations", "adk", "mlflow_scorers", "floor", "floor_uncollected"]


@dataclass(frozen=True)
class Job:
    """One contender on one data set, or an import."""

    label: str
    side: Side
    call: str = ""
    """The function of the contender's module."""
    cases: int = 0
    logs: Literal["", "traces", "table"] = ""
    most_rounds: int = 1_000
    """Few for what takes minutes to show that it does not work."""
    turns: int = TURNS
    judging: Judging | None = None
    """Where a model judges, what it is asked for."""
    speaking: Speaking | None = None
    """Where an agent speaks, how many conversations it has."""
    group: str = ""
    """The title of its table, where a section has several."""
    limit_s: int = 1_800
    """How long it may take."""
    targets: tuple[str, ...] | None = None
    """What an import job imports; ``None`` for work."""

    @property
    def name(self) -> str:
        """What tells it from the others of a section."""
        return f"{self.label} ({self.group})" if self.group else self.label

    @property
    def rows(self) -> int:
        """The number of invocations."""
        return self.cases * self.turns

    @property
    def is_baseline(self) -> bool:
        """Whether it imports nothing, to know what a bare Python holds."""
        return self.targets == ()

    @property
    def logged(self) -> int:
        """How many scores on traces, or rows of a table, the store must hold."""
        return self.rows * (_CRITERIA if self.logs == "traces" else 1)

    def lost(self, result: Mapping[str, Any]) -> int:
        """Return how many of them it does not hold."""
        return self.logged - int(result["assessments" if self.logs == "traces" else "table_rows"])


@dataclass(frozen=True)
class Workload:
    """A section of the report."""

    title: str
    about: str
    jobs: Callable[[int], Sequence[Job]]
    """From the number of cases."""
    cases: int = 0
    turns: int = TURNS
    reference: Side = "adk"
    """Whose scores those of the others are compared with; if it does not take part, the floor's."""


OURS = "**mlflow_adk_eval**"
