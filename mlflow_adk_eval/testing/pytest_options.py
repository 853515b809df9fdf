"""The options of the pytest plugin. Loaded into every session of pytest, so it imports nothing of weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HELP = {
    "agent": (
        "AGENT",
        "Have the conversations of *.test.json and *.evalset.json files with this agent: a module or folder with a root_agent.",
    ),
    "config": ("FILE", "The eval config. Default: test_config.json beside each file, else ADK's defaults."),
    "num_runs": ("N", "How often to have each conversation. Default: 1."),
    "judge": ("MODEL", "The model that judges, or a judge of your own as module:name. Default: those that the config names."),
    "concurrency": ("N", "Conversations at the same time. Default: 4."),
    "case_timeout": ("S", "Seconds that one case may take. Default: as long as it takes."),
    "turn_timeout": ("S", "Seconds that the agent may take to answer one message. Default: as long as it takes."),
    "user_simulator": (
        "MODEL",
        "The model that plays the user of scenarios, or a function as module:name. Default: the one that the config names.",
    ),
    "experiment": ("NAME", "Log the results as a run in this MLflow experiment."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdkOptions:
    """What the command line, or else the ini file, says."""

    agent: str
    config: Path | None
    num_runs: int
    judge: str | None
    concurrency: int
    case_timeout_s: float | None
    turn_timeout_s: float | None
    user_simulator: str | None
    experiment: str | None


def options_of(config: pytest.Config) -> AdkOptions | None:
    """Return the options of a session, or ``None`` without an agent."""
    agent = _given(config, "agent")
    if not agent:
        return None
    named = _given(config, "config")
    return AdkOptions(
        agent=agent,
        config=Path(named) if named else None,
        num_runs=_number(config, "num_runs", int) or 1,
        judge=_given(config, "judge"),
        concurrency=_number(config, "concurrency", int) or 4,
        case_timeout_s=_number(config, "case_timeout", float),
        turn_timeout_s=_number(config, "turn_timeout", float),
        user_simulator=_given(config, "user_simulator"),
        experiment=_given(config, "experiment"),
    )


def _given(config: pytest.Config, name: str) -> str | None:
    """Return an option; a path in the ini file starts at the ini file."""
    value: str | None = config.getoption(f"adk_{name}")
    if value is not None:
        return value or None
    found: str | None = config.getini(f"adk_{name}") or None
    if found and name in ("agent", "config") and (name == "config" or (config.rootpath / found).exists()):
        return str(config.rootpath / found)
    return found


def _number(config: pytest.Config, name: str, kind: Callable[[str], Any]) -> Any:
    value = _given(config, name)
    if value is None:
        return None
    try:
        number = kind(value)
    except ValueError:
        number = 0
    if not number > 0:
        wanted = "a whole number of at least 1" if kind is int else "a number of seconds above 0"
        raise pytest.UsageError(f"--adk-{name.replace('_', '-')}={value}: wanted {wanted}")
    return number
