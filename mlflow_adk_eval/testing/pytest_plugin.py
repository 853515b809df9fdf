"""Eval sets as tests of pytest: ``pytest --adk-agent home_automation_agent tests/evals``.

Loaded into every pytest session of everybody who has this package, so it imports nothing of weight, and does nothing
without an agent.
"""

from __future__ import annotations

import pytest

from mlflow_adk_eval.testing.pytest_options import HELP, options_of


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, each also as a key of the ini file."""
    group = parser.getgroup("adk", "ADK eval sets (mlflow-adk-eval)")
    for name, (metavar, text) in HELP.items():
        group.addoption(f"--adk-{name.replace('_', '-')}", dest=f"adk_{name}", metavar=metavar, default=None, help=text)
        parser.addini(f"adk_{name}", f"As --adk-{name.replace('_', '-')}.", default=None)


def pytest_configure(config: pytest.Config) -> None:
    """Begin, if there is an agent."""
    options = options_of(config)
    if options is None:
        return
    if options.experiment and config.getoption("dist", "no") != "no":
        raise pytest.UsageError(
            "--adk-experiment: the cases of one MLflow run must come from one process; leave out -n, since conversations are had side by side anyway"
        )
    config.addinivalue_line("markers", "adk: a case of an ADK eval set.")
    from mlflow_adk_eval.testing.pytest_session import AdkSession  # noqa: PLC0415 - only where there is an agent

    config.pluginmanager.register(AdkSession(config, options), "mlflow_adk_eval_session")
