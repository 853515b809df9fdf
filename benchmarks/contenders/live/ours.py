"""mlflow_adk_eval: what `evaluate` does before it logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data import EVAL_SET

from contenders import Cells, ours
from contenders.live import import_all


def imports() -> None:
    """Import all that the work needs."""
    ours.imports(logging=False)
    import_all("mlflow_adk_eval.agents.adk.agent", "mlflow_adk_eval.runner")


def load(folder: Path) -> Any:
    """Return the eval set and the agent."""
    from contenders.live.agent import root_agent
    from mlflow_adk_eval import load_eval_set
    from mlflow_adk_eval.agents.adk.agent import load_adk_agent

    return load_eval_set(folder / EVAL_SET), load_adk_agent(root_agent)


def converse(data: Any, at_once: int) -> Cells:
    """Have all conversations and score them."""
    from mlflow_adk_eval.config.eval_config import parse_config
    from mlflow_adk_eval.runner.evaluation import Options, run

    eval_set, agent = data
    return ours.cells(run(eval_set, agent, parse_config(ours.CONFIG, "config"), Options(concurrency=at_once)))
