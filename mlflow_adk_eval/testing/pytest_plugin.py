"""Eval sets as tests of pytest: ``pytest --adk-agent home_automation_agent tests/evals``.

pytest loads this module in every session of everybody who has this package installed. So it imports nothing but pytest and the standard
library, declares the options, and does nothing more unless there is an agent. With one, `pytest_session.PytestSession` is registered as
a second plugin: it collects eval sets, has their cases run side by side, and sums up.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def _yes(text: str) -> bool:
    if text.lower() not in {"yes", "no", "true", "false"}:
        raise pytest.UsageError(f"--adk-replay-models={text}: wanted yes or no")
    return text.lower() in {"yes", "true"}


HELP: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "agent": (
        "AGENT",
        "Run *.test.json and *.evalset.json files on this agent: a module or folder with a root_agent, or a recording.",
        str,
    ),
    "config": ("FILE", "The eval config. Default: test_config.json in each file's folder, else ADK's defaults.", Path),
    "num_runs": ("N", "Times to repeat each conversation. Default: 1.", int),
    "judge": ("MODEL", "A model, or a function as module:name, that judges every criterion. Default: the config's models.", str),
    "concurrency": ("N", "Conversations to run in parallel. Default: 4.", int),
    "case_timeout": ("S", "Seconds allowed for one case. Default: no limit.", float),
    "turn_timeout": ("S", "Seconds the agent has to answer one message. Default: no limit.", float),
    "user_simulator": ("MODEL", "A model, or a function as module:name, that plays the user. Default: the config's model.", str),
    "replay": ("SOURCE", "Answer tool calls from this recording, world.json or MLflow run. No tool is called.", str),
    "replay_models": ("", "Also answer the agent's requests to its models from --adk-replay.", _yes),
    "experiment": ("NAME", "Log the results as a run in this MLflow experiment.", str),
}
"""The options: for each its placeholder, empty for a flag, its help and what makes a value of its text. On the command line they begin with ``--adk-``, in the ini file with ``adk_``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, each also as a key of the ini file."""
    group = parser.getgroup("adk", "ADK eval sets (mlflow-adk-eval)")
    for name, (metavar, text, _) in HELP.items():
        kind: dict[str, str] = {"metavar": metavar} if metavar else {"action": "store_const", "const": "yes"}
        group.addoption(_flag(name), dest=f"adk_{name}", default=None, help=text, **kind)
        parser.addini(f"adk_{name}", f"As {_flag(name)}.", default=None)


def pytest_configure(config: pytest.Config) -> None:
    """Begin, if there is an agent."""
    if not _value(config, "agent", str):
        return
    from mlflow_adk_eval.testing.pytest_session import AdkOptions, PytestSession  # noqa: PLC0415 - only where there is an agent

    given = {name: _value(config, name, kind) for name, (_, _, kind) in HELP.items()}
    options = AdkOptions(**{name: value for name, value in given.items() if value is not None})
    if options.experiment and config.getoption("dist", "no") != "no":
        raise pytest.UsageError(
            "--adk-experiment: the cases of one MLflow run must come from one process; remove -n (conversations run in parallel anyway)"
        )
    config.addinivalue_line("markers", "adk: a case of an ADK eval set.")
    config.pluginmanager.register(PytestSession(config, options), "mlflow_adk_eval_session")


def _value(config: pytest.Config, name: str, kind: Callable[[str], Any]) -> Any:
    """Return the value of an option; a path in the ini file starts at the ini file, and a number must be above 0."""
    value: str | None = config.getoption(f"adk_{name}")
    if value is None:
        value = config.getini(f"adk_{name}")
        if value and name in ("agent", "config", "replay") and (name == "config" or (config.rootpath / value).exists()):
            value = str(config.rootpath / value)
    if not value or kind not in (int, float):
        return kind(value) if value else None
    try:
        number = kind(value)
    except ValueError:
        number = 0
    if not number > 0:
        wanted = "a whole number of at least 1" if kind is int else "a number of seconds above 0"
        raise pytest.UsageError(f"{_flag(name)}={value}: wanted {wanted}")
    return number


def _flag(name: str) -> str:
    return f"--adk-{name.replace('_', '-')}"
