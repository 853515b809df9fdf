"""An evaluation in a run that MLflow has opened, and what comes of it in MLflow's words.

MLflow hands over data, perhaps a model, and ``evaluator_config``. `sides_of` makes an eval set and an agent of them, `LoggedEvaluation` does
the rest as for `mlflow_adk_eval.evaluate`, except that the run is joined and stays open, and the bundle is returned as MLflow's artifacts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
from mlflow.models.evaluation.artifacts import JsonEvaluationArtifact, ParquetEvaluationArtifact, TextEvaluationArtifact
from mlflow.models.evaluation.base import EvaluationArtifact, EvaluationResult

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.integrations.evaluator.sides import EvaluatorCall, ModelAgent, read_config, sides_of
from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.results.parts import PART_FOLDERS
from mlflow_adk_eval.runner import Options
from mlflow_adk_eval.runner.keywords import selected
from mlflow_adk_eval.tracking.agent_versions import find_version
from mlflow_adk_eval.tracking.bundle import TABLE, TABLES, Bundle
from mlflow_adk_eval.tracking.client import connect, reaching_mlflow
from mlflow_adk_eval.tracking.evaluate import LoggedEvaluation
from mlflow_adk_eval.tracking.logged_run import RunTarget
from mlflow_adk_eval.tracking.run_facts import FOLDER

__all__ = ["EvaluatorCall", "LoggedJson", "LoggedParquet", "LoggedText", "evaluated", "refuse_extras"]

RESULTS = "eval_results_table"
"""What MLflow's own evaluators call their table."""


def refuse_extras(**given: Any) -> None:
    """Say that MLflow's own additions are computed by MLflow's own evaluators.

    Raises:
        UsageError: if any was given.
    """
    for name, value in given.items():
        if value:
            way_out = "put criteria of your own into the config's custom_metrics, or evaluate a table with evaluators='default'"
            raise UsageError(f"{name} is not for the adk evaluator, which computes the criteria of its config; {way_out}")


def evaluated(asked: EvaluatorCall, evaluator_config: Mapping[str, Any]) -> EvaluationResult:
    """Evaluate, log and return the metrics and artifacts."""
    settings = read_config(evaluator_config)
    sides = sides_of(asked, settings)
    judges = judge_setup(**selected(settings, JudgeArgs))
    given: dict[str, Any] = {**selected(settings, Options), "judges": judges}
    if given.get("concurrency") is None:
        given["concurrency"] = 1 if isinstance(sides.agent, ModelAgent) else 4  # a model need not stand more
    target = replace(
        RunTarget(**selected(settings, RunTarget)),
        agent_version=_agent_version(settings.get("agent_version"), asked.model_id),
        run_id=asked.run_id,
        dataset=sides.dataset,
        status=sides.status,
    )
    with opened(judges.ledger) as ledger:
        _, bundle = LoggedEvaluation(sides.eval_set, sides.agent, sides.config, Options(**given), target, ledger).execute()
    _log_table(bundle)
    return EvaluationResult(metrics=dict(bundle.metrics), artifacts=_artifacts(bundle), run_id=asked.run_id)


def _agent_version(agent_version: str | None, model_id: str | None) -> str | None:
    """Return the version that is evaluated: the one that was named, which is MLflow's model if there is one.

    Raises:
        UsageError: if MLflow would give the metrics to another model than the one that was named.
    """
    if agent_version is None or model_id is None:
        return agent_version or model_id
    client = connect()
    with reaching_mlflow("the agent version could not be looked up"):
        named = find_version(client, agent_version, agent_name="", experiment_id="").model_id
    if named != model_id:
        raise UsageError(f"agent_version {agent_version!r} is the model {named}, and MLflow evaluates {model_id}")
    return agent_version


def _log_table(bundle: Bundle) -> None:
    """Log the table once more where `EvaluationResult.tables` looks for tables, which is not in folders."""
    client = mlflow.MlflowClient()
    run_id = bundle.run.run_id
    with reaching_mlflow("the table could not be logged"):
        client.log_text(run_id, bundle.artifacts[TABLE].decode(), f"{RESULTS}.json")
        tables = json.loads(client.get_run(run_id).data.tags[TABLES])
        client.set_tag(run_id, TABLES, json.dumps([*tables, {"path": f"{RESULTS}.json", "type": "table"}]))


class _Late(EvaluationArtifact):  # type: ignore[misc]  # mypy sees nothing of MLflow
    """An artifact that is read when it is first wanted, be it to save it elsewhere."""

    def _save(self, output_artifact_path: str) -> None:
        self._content = self.content
        super()._save(output_artifact_path)  # pyright: ignore[reportAbstractUsage] - of the class beside this one


class LoggedJson(_Late, JsonEvaluationArtifact):  # type: ignore[misc]
    """A JSON file of the run."""


class LoggedText(_Late, TextEvaluationArtifact):  # type: ignore[misc]
    """A text file of the run."""


class LoggedParquet(_Late, ParquetEvaluationArtifact):  # type: ignore[misc]
    """A folder of the run's parts, such as the votes."""


_KINDS: Mapping[str, type[EvaluationArtifact]] = {
    ".json": LoggedJson,
    ".parquet": LoggedParquet,
    ".html": LoggedText,
    ".diff": LoggedText,
}


def _artifacts(bundle: Bundle) -> dict[str, EvaluationArtifact]:
    """Return the artifacts by what they are called; the table also by MLflow's name for it."""
    names = dict.fromkeys(name.partition("/")[0] for name in bundle.artifacts)
    found = {name: LoggedParquet if name in PART_FOLDERS else _KINDS.get(Path(name).suffix) for name in names}
    artifacts = {name.partition(".")[0]: kind(mlflow.get_artifact_uri(f"{FOLDER}/{name}")) for name, kind in found.items() if kind}
    return {RESULTS: LoggedJson(mlflow.get_artifact_uri(f"{RESULTS}.json")), **artifacts}
