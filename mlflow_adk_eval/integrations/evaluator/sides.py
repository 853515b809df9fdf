"""The two sides of an evaluation, what was expected and what the agent did, from whatever MLflow was given as data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from mlflow.entities import Dataset

from mlflow_adk_eval.agents import Agent, Limits, load_recording
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config.eval_config import EvalConfig, load_config
from mlflow_adk_eval.config.inputs import load_inputs
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.integrations.evaluator.choices import SIDES, Choices
from mlflow_adk_eval.integrations.evaluator.dataset import EvalSetDataset, EvalSetTable
from mlflow_adk_eval.integrations.evaluator.model_agent import ModelAgent
from mlflow_adk_eval.integrations.evaluator.tables import table_of
from mlflow_adk_eval.tracking.evaluate import inputs_of

SELF_COMPARISON = "self_comparison"
"""The status of a run in which what the agent did was compared with itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
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


def sides_of(asked: Asked, choices: Choices) -> Sides:
    """Return both sides.

    Raises:
        UsageError: if the data cannot be held against what was named, or is held against several things.
        AgentError: if the agent cannot be loaded.
    """
    named = [name for name in SIDES if getattr(choices, name) is not None] + (["model"] if asked.model is not None else [])
    if len(named) > 1:
        raise UsageError(f"the data can be held against one thing, and {' and '.join(named)} were named")
    if isinstance(asked.dataset, EvalSetTable):
        return _of_eval_set(asked, asked.dataset.dataset, choices, compared=bool(named))
    if named:
        wanted = "data of mlflow.data.from_adk_evalset; a table says by itself what was expected and what the agent did"
        raise UsageError(f"{named[0]} wants {wanted}")
    return _of_table(asked, choices)


def _of_eval_set(asked: Asked, data: EvalSetDataset, choices: Choices, *, compared: bool) -> Sides:
    if choices.expected is not None:
        eval_set, config, dataset = inputs_of(choices.expected, choices.config)
        return Sides(eval_set=eval_set, config=config, agent=load_recording(data.eval_set), dataset=dataset)
    if not compared:
        warnings.warn(_PROVES_NOTHING, UserWarning, stacklevel=2)
    return Sides(
        eval_set=data.eval_set,
        config=load_inputs(data.named)[1] if choices.config is None and data.named else load_config(choices.config),
        agent=_agent(asked, choices) if compared else load_recording(data.eval_set),
        dataset=Dataset(**data.to_dict()),
        status="complete" if compared else SELF_COMPARISON,
    )


_PROVES_NOTHING = (
    "the data is taken as what was expected and as what the agent did, so criteria that compare the two prove nothing, and the run is "
    "no evidence for the gate; name what was expected or what the agent did: evaluator_config={'expected': ...}, 'actual' or 'agent'"
)


def _of_table(asked: Asked, choices: Choices) -> Sides:
    config = load_config(choices.config)
    eval_set, recording = table_of(asked.dataset, choices.col_mapping).sides(config)
    return Sides(eval_set=eval_set, config=config, agent=recording)


def _agent(asked: Asked, choices: Choices) -> Agent:
    """Return who answers, or what was answered."""
    if asked.model is not None:
        return ModelAgent(model=asked.model, column=asked.predictions)
    if choices.actual is not None:
        return load_recording(choices.actual)
    return resolve_agent(
        choices.agent, agent_name=choices.agent_name, limits=Limits(case_s=choices.case_timeout_s, turn_s=choices.turn_timeout_s)
    )
