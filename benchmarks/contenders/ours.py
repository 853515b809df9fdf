"""mlflow_adk_eval, through the functions that users call."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from data import ACTUAL, EVAL_SET

from contenders import CRITERIA, THRESHOLD, Cells

CONFIG = {"criteria": dict.fromkeys(CRITERIA, THRESHOLD)}


def imports(*, logging: bool) -> None:
    """Import all that the work needs, scipy for the intervals included."""
    from mlflow_adk_eval import load_eval_set, score  # noqa: F401
    from mlflow_adk_eval.criteria.text import tokens

    tokens("warm up")
    if logging:
        import scipy.stats  # noqa: F401

        from mlflow_adk_eval import evaluate  # noqa: F401


def load(folder: Path) -> Any:
    """Return the eval set and the recorded invocations by eval id."""
    from mlflow_adk_eval import load_eval_set
    from mlflow_adk_eval.agents.recordings import load_recording

    eval_set, recording = load_eval_set(folder / EVAL_SET), load_recording(folder / ACTUAL)
    return eval_set, {eval_id: played[0].actual for eval_id, played in recording.runs.items()}


def score(data: Any) -> Cells:
    """Score without MLflow."""
    import mlflow_adk_eval as adk_eval

    eval_set, actual = data
    return cells(adk_eval.score(eval_set, actual, CONFIG))


def log_traces(data: Any) -> Cells:
    """Score and log a run with a trace per invocation."""
    return cells(_evaluate(data, traces=True))


def log_table(data: Any) -> Cells:
    """Score and log a run without traces."""
    return cells(_evaluate(data, traces=False))


def _evaluate(data: Any, *, traces: bool) -> Any:
    import mlflow

    import mlflow_adk_eval as adk_eval

    eval_set, actual = data
    return adk_eval.evaluate(
        eval_set, agent=actual, config=CONFIG, experiment="bench", tracking_uri=mlflow.get_tracking_uri(), traces=traces
    )


def cells(report: Any, criteria: Collection[str] = CRITERIA) -> Cells:
    """Return the scores in the common shape, without those that are measured as information."""
    for case in report.cases:
        for result in case.results:
            if result.criterion in criteria:
                for turn, cell in enumerate(result.per_invocation):
                    yield result.criterion, case.eval_id, turn, getattr(cell, "score", None)
