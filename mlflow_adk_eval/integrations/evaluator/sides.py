"""The two sides of an evaluation, what was expected and what the agent did, from whatever MLflow was given as data.

The data is an eval set (`EvalSetTable`), which is held against one thing that ``evaluator_config`` or MLflow names: a recording, an agent, a
model, or other expectations. Or it is anybody's table with a row for each conversation, in the words of `CELLS`, which holds both sides.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio.to_thread
from mlflow.entities import Dataset

from mlflow_adk_eval.agents import Agent, Conversation, Limits, Recording, load_recording
from mlflow_adk_eval.agents.conversation import NO_USER, described
from mlflow_adk_eval.agents.recordings import Recorded
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config.eval_config import EvalConfig, load_config
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, did_you_mean, shown
from mlflow_adk_eval.evalset import EvalCase, EvalSet, dump
from mlflow_adk_eval.evalset.digest import canonical
from mlflow_adk_eval.foreign import foreign_code
from mlflow_adk_eval.integrations.evaluator.dataset import EvalSetDataset, EvalSetTable
from mlflow_adk_eval.integrations.scoring import needed_cells
from mlflow_adk_eval.judge.setup import JudgeArgs
from mlflow_adk_eval.runner.keywords import AgentArgs, TraceLimit
from mlflow_adk_eval.tables.records import cells_of
from mlflow_adk_eval.tables.rows import CELLS, Row, row_of
from mlflow_adk_eval.tracking.bundle import SELF_COMPARISON
from mlflow_adk_eval.tracking.evaluate import inputs_of

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


def read_config(evaluator_config: Mapping[str, Any]) -> EvaluatorConfig:
    """Return what `evaluator_config` says.

    Raises:
        UsageError: if it holds an unknown key.
    """
    known = list(EvaluatorConfig.__annotations__)
    for name in evaluator_config:
        if name in _OF_THE_RUN:
            raise UsageError(f"evaluator_config: {name} is no setting here, since MLflow has opened the run: say it to MLflow")
        if name not in known:
            hint = did_you_mean(str(name), known)
            raise UsageError(f"evaluator_config: unknown key {name!r}; known are {', '.join(known)}. {hint}".rstrip())
    return cast("EvaluatorConfig", dict(evaluator_config))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorCall:
    """What MLflow was asked to evaluate."""

    dataset: Any
    """The data as MLflow hands it to evaluators."""
    model: Any
    """A model of MLflow, or ``None``."""
    predictions: str | None
    """The column of the model's output that counts."""
    model_id: str | None
    """The LoggedModel that the metrics are about, if MLflow knows one."""
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What was expected, and who did or does something about it."""

    eval_set: EvalSet
    config: EvalConfig
    agent: Agent
    dataset: Dataset | None = None
    """What MLflow knows the eval set as, if it knows it."""
    status: str = "complete"


def sides_of(asked: EvaluatorCall, settings: EvaluatorConfig) -> Sides:
    """Return both sides.

    Raises:
        UsageError: if the data cannot be held against what was named, or is held against several things.
        AgentError: if the agent cannot be loaded.
    """
    named = [name for name in SIDES if settings.get(name) is not None] + (["model"] if asked.model is not None else [])
    if len(named) > 1:
        raise UsageError(f"the data can be held against one thing, and {' and '.join(named)} were named")
    if isinstance(asked.dataset, EvalSetTable):
        return _of_eval_set(asked, asked.dataset.dataset, settings, compared=bool(named))
    if named:
        wanted = "data of mlflow.data.from_adk_evalset; a table says by itself what was expected and what the agent did"
        raise UsageError(f"{named[0]} wants {wanted}")
    return _of_table(asked, settings)


def _of_eval_set(asked: EvaluatorCall, data: EvalSetDataset, settings: EvaluatorConfig, *, compared: bool) -> Sides:
    expected, source = settings.get("expected"), settings.get("config")
    if expected is not None:
        eval_set, config, dataset = inputs_of(expected, source)
        return Sides(eval_set=eval_set, config=config, agent=load_recording(data.eval_set), dataset=dataset)
    if not compared:
        warnings.warn(_PROVES_NOTHING, UserWarning, stacklevel=2)
    return Sides(
        eval_set=data.eval_set,
        config=load_inputs(data.named)[1] if source is None and data.named else load_config(source),
        agent=_agent(asked, settings) if compared else load_recording(data.eval_set),
        dataset=Dataset(**data.to_dict()),
        status="complete" if compared else SELF_COMPARISON,
    )


_PROVES_NOTHING = (
    "the data is taken as what was expected and as what the agent did, so criteria that compare the two prove nothing, and the run is "
    "no evidence for the gate; name what was expected or what the agent did: evaluator_config={'expected': ...}, 'actual' or 'agent'"
)


def _of_table(asked: EvaluatorCall, settings: EvaluatorConfig) -> Sides:
    config = load_config(settings.get("config"))
    eval_set, recording = table_of(asked.dataset, settings.get("col_mapping", {})).sides(config)
    return Sides(eval_set=eval_set, config=config, agent=recording)


def _agent(asked: EvaluatorCall, settings: EvaluatorConfig) -> Agent:
    """Return who answers, or what was answered."""
    if asked.model is not None:
        return ModelAgent(model=asked.model, column=asked.predictions)
    actual = settings.get("actual")
    if actual is not None:
        return load_recording(actual)
    limits = Limits(case_s=settings.get("case_timeout_s"), turn_s=settings.get("turn_timeout_s"))
    return resolve_agent(settings.get("agent"), agent_name=settings.get("agent_name"), limits=limits)


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
            return row_of(cells_of(None, output) | {"targets": case}, f"output for case {case.eval_id!r}").conversation
        except Exception as error:  # noqa: BLE001 - a model may be anybody's code, and must not cost the other cases
            return Conversation(actual=(), error=described(error))

    def _output(self, case: EvalCase) -> Any:
        from pandas import DataFrame  # noqa: PLC0415 - slow

        said = [turn.user_text for turn in case.conversation or ()]
        session = dump(case.session_input) if case.session_input else None
        row = {"eval_id": case.eval_id, "inputs": said[0] if len(said) == 1 else said, "session_input": session}
        return self._only(self.model.predict(DataFrame([row])))

    def _only(self, outputs: Any) -> Any:
        """Return the only row of what the model returned."""
        if isinstance(outputs, str | dict):
            return outputs
        if hasattr(outputs, "columns"):
            columns = [self.column] if self.column else list(outputs.columns)
            if len(columns) != 1 or columns[0] not in outputs.columns:
                found = ", ".join(map(str, outputs.columns))
                raise UsageError(f"the model returned the columns {found}; predictions= names the one that counts")
            outputs = outputs[columns[0]]
        listed = outputs.tolist() if hasattr(outputs, "tolist") else outputs
        if not isinstance(listed, list | tuple) or len(listed) != 1:
            raise UsageError(f"the model returned {shown(listed)} for a table of one row; wanted a list of one output")
        return listed[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseTable:
    """The cells of each row that we have a word for."""

    name: str
    rows: tuple[Mapping[str, Any], ...]

    def sides(self, config: EvalConfig) -> tuple[EvalSet, Recording]:
        """Return what was expected, and what the agent did. Several rows of one case are its runs, in the order of ``run_index``.

        Raises:
            EvalSetError: with the problem of a cell, or naming the cells that a criterion needs and a row does not have.
        """
        rows = [row_of(cells, f"row {number}") for number, cells in enumerate(self.rows, 1)]
        if problems := [problem for row in rows for problem in _lacking(row, config)]:
            raise EvalSetError(self.name, problems)
        runs: dict[str, list[Row]] = {}
        for row in rows:
            runs.setdefault(row.case.eval_id, []).append(row)
        ordered = {eval_id: sorted(found, key=lambda row: row.run_index) for eval_id, found in runs.items()}
        recording = Recording({eval_id: tuple(row.conversation for row in found) for eval_id, found in ordered.items()})
        return self._eval_set(row.case for row in rows), recording

    def _eval_set(self, found: Iterable[EvalCase]) -> EvalSet:
        cases: dict[str, EvalCase] = {}
        for case in found:
            first = cases.setdefault(case.eval_id, case)
            if canonical(first) != canonical(case):
                wanted = "the same in all rows of a case"
                raise EvalSetError(self.name, [Problem(f"case {case.eval_id!r}", "rows that expect different things", wanted)])
        return EvalSet(eval_set_id=self.name, eval_cases=tuple(cases.values()))


def table_of(dataset: Any, col_mapping: Mapping[str, str]) -> CaseTable:
    """Return the table that MLflow hands to evaluators.

    Args:
        dataset: MLflow's.
        col_mapping: which column holds a cell, where that is not the one of its name.

    Raises:
        UsageError: if it is no table, or a column does not exist.
    """
    frame = dataset.features_data
    if not hasattr(frame, "columns"):
        wanted = "data of mlflow.data.from_adk_evalset, or a DataFrame with a row for each conversation"
        raise UsageError(f"the adk evaluator wants {wanted}, not {shown(frame)}")
    given = {cell: frame[column].tolist() for cell, column in _columns(frame.columns, col_mapping).items()}
    if dataset.has_targets:
        given["targets"] = list(dataset.labels_data)
    if dataset.has_predictions:
        given["predictions"] = list(dataset.predictions_data)
    rows = tuple({cell: values[index] for cell, values in given.items()} for index in range(len(frame)))
    return CaseTable(name=f"{dataset.name}_cases", rows=rows)


def _columns(found: Iterable[Any], col_mapping: Mapping[str, str]) -> dict[str, Any]:
    """Return which column holds each cell; columns that hold none are somebody else's."""
    columns = list(found)
    for cell, column in col_mapping.items():
        if cell not in CELLS:
            raise UsageError(f"col_mapping: unknown cell {cell!r}; known are {', '.join(CELLS)}. {did_you_mean(cell, CELLS)}".rstrip())
        if column not in columns and cell not in _APART:
            raise UsageError(f"col_mapping: {cell} is column {column!r}, which is not there; there are {', '.join(map(str, columns))}")
    return {cell: column for cell in CELLS if (column := col_mapping.get(cell, cell)) in columns}


_APART = {"targets", "predictions"}
"""Cells whose columns MLflow takes out of the table where its arguments of that name say so."""


def _lacking(row: Row, config: EvalConfig) -> Iterator[Problem]:
    """Yield the cells that criteria need and the row does not have: what nobody said is no evidence."""
    for criterion in config.criteria_of(row.case.eval_id):
        for cell in needed_cells(criterion, config):
            if cell in row.lacks:
                yield Problem(f"case {row.case.eval_id!r}", f"no {cell}", f"what {criterion} needs: {CELLS[cell]}")
