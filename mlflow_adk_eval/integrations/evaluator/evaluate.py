"""An evaluation in a run that MLflow has opened, and what comes of it in MLflow's words.

MLflow hands over data, perhaps a model, and ``evaluator_config``. `sides_of` makes an eval set and an agent of them, `LoggedEvaluation` does
the rest as for `mlflow_adk_eval.evaluate`, except that the run is joined and stays open, and the bundle is returned as MLflow's artifacts.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import anyio.to_thread
import mlflow
from mlflow.entities import Dataset
from mlflow.models.evaluation.artifacts import JsonEvaluationArtifact, ParquetEvaluationArtifact, TextEvaluationArtifact
from mlflow.models.evaluation.base import EvaluationArtifact, EvaluationResult

from mlflow_adk_eval.agents.conversation import NO_USER, described
from mlflow_adk_eval.agents.protocol import Agent, Limits
from mlflow_adk_eval.agents.recordings import Recorded, Recording, load_recording
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config.eval_config import EvalConfig, load_config
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, did_you_mean, foreign_code, shown
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, canonical
from mlflow_adk_eval.integrations.evaluator.dataset import EvalSetTable
from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.runner.evaluation import Options
from mlflow_adk_eval.runner.keywords import AgentArgs, TraceLimit, selected
from mlflow_adk_eval.runs.manifest import FOLDER
from mlflow_adk_eval.runs.parts import PART_FOLDERS
from mlflow_adk_eval.shapes.records import cells_of, row_of_table
from mlflow_adk_eval.shapes.rows import CELL_OF, CELLS, Row, row_of
from mlflow_adk_eval.store.reaching import reaching_mlflow
from mlflow_adk_eval.tracking.agent_versions import find_version
from mlflow_adk_eval.tracking.bundle import SELF_COMPARISON, TABLE, TABLES
from mlflow_adk_eval.tracking.client import connect
from mlflow_adk_eval.tracking.evaluate import LoggedEvaluation, inputs_of
from mlflow_adk_eval.tracking.logged_run import RunTarget

SIDES = ("actual", "agent", "expected")
"""What the data is held against; at most one."""
_OF_THE_RUN = ("experiment", "run_name", "tracking_uri", "resume")
"""Arguments of `adk_eval.evaluate` that are about the run, which here is MLflow's."""


class EvaluatorConfig(JudgeArgs, AgentArgs, total=False):
    """What a user may say in ``evaluator_config``. Where nothing else is said, each means what it means as an argument of `adk_eval.evaluate`."""

    config: ConfigSource
    actual: Recorded | None
    """What the agent did, the data being what was expected."""
    agent: Any
    """Who is to have the conversations of the data."""
    expected: EvalSetSource | None
    """What was expected, the data being what the agent did."""
    agent_version: str | None
    num_runs: int
    traces: TraceLimit
    pending_folder: str | Path | None
    register_prompts: bool
    col_mapping: Mapping[str, str]
    """Of a table: which column holds a cell, by the cell's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What was expected, and who did or does something about it."""

    eval_set: EvalSet
    config: EvalConfig
    agent: Agent
    dataset: Dataset | None = None
    """What MLflow knows the eval set as, if it knows it."""
    status: str = "complete"


def sides_of(dataset: Any, model: Any, predictions: str | None, settings: EvaluatorConfig) -> Sides:
    """Return both sides.

    Args:
        dataset: the data as MLflow hands it to evaluators.
        model: a model of MLflow, or ``None``.
        predictions: the column of the model's output that counts.
        settings: what else was asked for.

    Raises:
        UsageError: if the data cannot be held against what was named, or is held against several things.
        AgentError: if the agent cannot be loaded.
    """
    named = [name for name in SIDES if settings.get(name) is not None] + (["model"] if model is not None else [])
    if len(named) > 1:
        raise UsageError(f"the data can be compared with one thing, but you named {' and '.join(named)}")
    source = settings.get("config")
    if not isinstance(dataset, EvalSetTable):
        if named:
            wanted = "data from mlflow.data.from_adk_evalset; a table already contains the expected and actual turns"
            raise UsageError(f"{named[0]} wants {wanted}")
        config = load_config(source)
        eval_set, recording = compared(f"{dataset.name}_cases", table_of(dataset, settings.get("col_mapping", {})), config)
        return Sides(eval_set=eval_set, config=config, agent=recording)
    data, expected, actual = dataset.dataset, settings.get("expected"), settings.get("actual")
    if expected is not None:
        eval_set, config, known = inputs_of(expected, source)
        return Sides(eval_set=eval_set, config=config, agent=load_recording(data.eval_set), dataset=known)
    agent: Agent
    if model is not None:
        agent = ModelAgent(model=model, column=predictions)
    elif named == ["agent"]:
        limits = Limits(case_s=settings.get("case_timeout_s"), turn_s=settings.get("turn_timeout_s"))
        agent = resolve_agent(settings.get("agent"), agent_name=settings.get("agent_name"), limits=limits)
    else:
        agent = load_recording(data.eval_set if actual is None else actual)
    if not named:
        warnings.warn(_PROVES_NOTHING, UserWarning, stacklevel=2)
    config = load_inputs(data.named)[1] if source is None and data.named else load_config(source)
    status = "complete" if named else SELF_COMPARISON
    return Sides(eval_set=data.eval_set, config=config, agent=agent, dataset=Dataset(**data.to_dict()), status=status)


_PROVES_NOTHING = (
    "the data is used as both the expected and the actual turns, so criteria that compare the two prove nothing, and the gate "
    "refuses the run; set evaluator_config={'expected': ...}, 'actual' or 'agent'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAgent:
    """A model that answers a table with columns ``eval_id``, ``inputs`` and ``session_input`` by one output for its only row."""

    model: Any
    """Anything with MLflow's ``predict``."""
    column: str | None = None
    """The column that counts where the output is a table."""
    name: str = "model"

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:  # noqa: ARG002 - the protocol's
        """Have the whole conversation in one call. Whatever the model raises is returned."""
        if case.conversation is None:
            return Conversation(actual=(), error=NO_USER)
        try:
            with foreign_code("the model"):
                output = await anyio.to_thread.run_sync(self._output, case)
            row = row_of(cells_of(None, output) | {"targets": case}, f"output for case {case.eval_id!r}")
        except Exception as error:  # noqa: BLE001 - a model may be anybody's code, and must not cost the other cases
            return Conversation(actual=(), error=described(error))
        if row.unreadable:  # without its calls, the turn would be one in which no tool was called
            return Conversation(actual=(), error=f"the model's tool calls cannot be read ({row.unreadable})")
        return row.conversation

    def _output(self, case: EvalCase) -> Any:
        """Return the only row of what the model returns."""
        from pandas import DataFrame  # noqa: PLC0415 - slow

        said = [turn.user_text for turn in case.conversation or ()]
        session = dump(case.session_input) if case.session_input else None
        row = {"eval_id": case.eval_id, "inputs": said[0] if len(said) == 1 else said, "session_input": session}
        outputs = self.model.predict(DataFrame([row]))
        if isinstance(outputs, str | dict):
            return outputs
        if hasattr(outputs, "columns"):
            columns = [self.column] if self.column else list(outputs.columns)
            if len(columns) != 1 or columns[0] not in outputs.columns:
                found = ", ".join(map(str, outputs.columns))
                raise UsageError(f"the model returned the columns {found}; name the one to use with predictions=")
            outputs = outputs[columns[0]]
        listed = outputs.tolist() if hasattr(outputs, "tolist") else outputs
        if not isinstance(listed, list | tuple) or len(listed) != 1:
            raise UsageError(f"the model returned {shown(listed)} for a table of one row; wanted a list of one output")
        return listed[0]


def compared(name: str, table: Iterable[Mapping[str, Any]], config: EvalConfig) -> tuple[EvalSet, Recording]:
    """Return what the rows of a table expect, and what the agent did. Several rows of one case are its runs, in the order of ``run_index``.

    Raises:
        EvalSetError: with the problem of a cell, or naming the cells that a criterion needs and a row does not have.
    """
    rows = [row_of_table(cells, f"row {number}") for number, cells in enumerate(table, 1)]
    if problems := [problem for row in rows for problem in _unsaid(row, config)]:
        raise EvalSetError(name, problems)
    runs: dict[str, list[Row]] = {}
    for row in rows:
        case_runs = runs.setdefault(row.case.eval_id, [])
        case_runs.append(row)
        if canonical(case_runs[0].case) != canonical(row.case):
            wanted = "the same in all rows of a case"
            raise EvalSetError(name, [Problem(f"case {row.case.eval_id!r}", "rows with different expectations", wanted)])
    eval_set = EvalSet(eval_set_id=name, eval_cases=tuple(case_runs[0].case for case_runs in runs.values()))
    ordered = {eval_id: sorted(case_runs, key=lambda row: row.run_index) for eval_id, case_runs in runs.items()}
    return eval_set, Recording({eval_id: tuple(row.conversation for row in case_runs) for eval_id, case_runs in ordered.items()})


def _unsaid(row: Row, config: EvalConfig) -> Iterator[Problem]:
    """Yield what criteria need and a row does not say: what nobody said is no evidence, nor are calls that cannot be read."""
    if row.unreadable:
        yield Problem(f"case {row.case.eval_id!r}", f"tool calls that cannot be read ({row.unreadable})", "tool calls with name and args")
        return
    lacking = {entry.what: entry.why for entry in row.conversation.unknown if entry.what in CELL_OF}
    for criterion, settings in config.criteria_of(row.case.eval_id).items():
        if criterion not in CRITERIA:
            continue  # a metric of the user's own says nothing of what it needs
        for need in CRITERIA[criterion].needs_by(settings):
            if need in lacking:
                found = lacking[need].removeprefix("the row has ")
                yield Problem(f"case {row.case.eval_id!r}", found, f"what {criterion} needs: {CELLS[CELL_OF[need]]}")


def table_of(dataset: Any, col_mapping: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the cells that we have a word for, of each row of the table that MLflow hands to evaluators.

    Args:
        dataset: MLflow's.
        col_mapping: which column holds a cell, where that is not the one of its name.

    Raises:
        UsageError: if it is no table, or a column does not exist.
    """
    frame = dataset.features_data
    if not hasattr(frame, "columns"):
        wanted = "data from mlflow.data.from_adk_evalset, or a DataFrame with one row per conversation"
        raise UsageError(f"the adk evaluator wants {wanted}, not {shown(frame)}")
    columns = list(frame.columns)
    for cell, column in col_mapping.items():
        if cell not in CELLS:
            raise UsageError(f"col_mapping: unknown cell {cell!r}; known are {', '.join(CELLS)}. {did_you_mean(cell, CELLS)}".rstrip())
        # MLflow takes these two out of the table where its arguments say so.
        if column not in columns and cell not in {"targets", "predictions"}:
            raise UsageError(f"col_mapping: {cell} names the unknown column {column!r}; there are {', '.join(map(str, columns))}")
    # Columns that hold no cell are somebody else's.
    given = {cell: frame[column].tolist() for cell in CELLS if (column := col_mapping.get(cell, cell)) in columns}
    if dataset.has_targets:
        given["targets"] = list(dataset.labels_data)
    if dataset.has_predictions:
        given["predictions"] = list(dataset.predictions_data)
    return [{cell: values[index] for cell, values in given.items()} for index in range(len(frame))]


RESULTS = "eval_results_table"
"""What MLflow's own evaluators call their table."""


def refuse_extras(**given: Any) -> None:
    """Say that MLflow's own additions are computed by MLflow's own evaluators.

    Raises:
        UsageError: if any was given.
    """
    for name, value in given.items():
        if value:
            way_out = "put your own criteria into the config's custom_metrics, or evaluate a table with evaluators='default'"
            raise UsageError(f"{name} has no effect on the adk evaluator: it computes the criteria of its config; {way_out}")


def evaluated(
    evaluator_config: Mapping[str, Any], *, dataset: Any, model: Any, predictions: str | None, model_id: str | None, run_id: str
) -> EvaluationResult:
    """Evaluate, log and return the metrics and artifacts; `model_id` is the LoggedModel that the metrics are about, if MLflow knows one."""
    known = list(EvaluatorConfig.__annotations__)
    for name in evaluator_config:
        if name in _OF_THE_RUN:
            raise UsageError(f"evaluator_config: {name} cannot be set here, because MLflow opened the run: pass it to MLflow")
        if name not in known:
            hint = did_you_mean(str(name), known)
            raise UsageError(f"evaluator_config: unknown key {name!r}; known are {', '.join(known)}. {hint}".rstrip())
    settings = cast("EvaluatorConfig", dict(evaluator_config))
    sides = sides_of(dataset, model, predictions, settings)
    judges = judge_setup(**selected(settings, JudgeArgs))
    given: dict[str, Any] = {**selected(settings, Options), "judges": judges}
    if given.get("concurrency") is None:
        given["concurrency"] = 1 if isinstance(sides.agent, ModelAgent) else 4  # a model need not stand more
    version, target = _agent_version(settings.get("agent_version"), model_id), RunTarget(**selected(settings, RunTarget))
    target = replace(target, agent_version=version, run_id=run_id, dataset=sides.dataset, status=sides.status)
    with opened(judges.ledger) as ledger:
        _, bundle = LoggedEvaluation(sides.eval_set, sides.agent, sides.config, Options(**given), target, ledger).execute()
    client = mlflow.MlflowClient()
    with reaching_mlflow("the table could not be logged"):
        # Once more, where `EvaluationResult.tables` looks for it, which is not in folders.
        client.log_text(run_id, bundle.artifacts[TABLE].decode(), f"{RESULTS}.json")
        tables = json.loads(client.get_run(run_id).data.tags[TABLES])
        client.set_tag(run_id, TABLES, json.dumps([*tables, {"path": f"{RESULTS}.json", "type": "table"}]))
    artifacts: dict[str, EvaluationArtifact] = {RESULTS: LoggedJson(mlflow.get_artifact_uri(f"{RESULTS}.json"))}
    for name in dict.fromkeys(name.partition("/")[0] for name in bundle.artifacts):
        kind = LoggedParquet if name in PART_FOLDERS else _KINDS.get(Path(name).suffix)
        if kind:
            artifacts[name.partition(".")[0]] = kind(mlflow.get_artifact_uri(f"{FOLDER}/{name}"))
    return EvaluationResult(metrics=dict(bundle.metrics), artifacts=artifacts, run_id=run_id)


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
        raise UsageError(f"agent_version {agent_version!r} is the model {named}, but MLflow evaluates {model_id}")
    return agent_version


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


_KINDS: Mapping[str, type[EvaluationArtifact]] = {".json": LoggedJson, ".parquet": LoggedParquet, ".html": LoggedText, ".diff": LoggedText}
