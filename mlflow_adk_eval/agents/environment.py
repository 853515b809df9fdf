"""The tool environment: what answers some tool calls in the place of the tools, deterministically."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow_adk_eval.course import Injection
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.settings import EnvironmentSimulationConfig


@dataclass(frozen=True, slots=True)
class ToolEnvironment:
    """The tools of an evaluation that are not the real ones."""

    config: EnvironmentSimulationConfig

    def open(self, eval_id: str, run_index: int) -> CaseTools:
        """Return the tools of one conversation."""
        return CaseTools(self.config, eval_id, run_index)


@dataclass(slots=True)
class CaseTools:
    """The tools of one conversation."""

    config: EnvironmentSimulationConfig
    eval_id: str
    run_index: int
    done: list[Injection] = field(default_factory=list[Injection])
    turn: int = -1

    def next_turn(self) -> None:
        """Note that the agent hears the user's next message."""
        self.turn += 1

    @property
    def injections(self) -> tuple[Injection, ...]:
        """What was done so far."""
        return tuple(self.done)

    async def answer(self, tool: str, args: Mapping[str, Any], /) -> Json | None:
        """Return what the tool is to have answered; ``None``: it is to be called itself."""
        raise NotImplementedError
