"""Criteria as scorers for ``mlflow.genai.evaluate``: all criteria of a config with `from_config`, or each as a function with its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.config.inputs import ConfigSource
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.integrations.genai_scorers import ExpectationScorer, scorers_of, stored
from mlflow_adk_eval.integrations.scoring import CriterionFunctions
from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup
from mlflow_adk_eval.runner.keywords import keywords
from mlflow_adk_eval.shapes.records import EXPECTATIONS

if TYPE_CHECKING:
    from mlflow.genai.scorers import Scorer

__all__ = ["expectations", "from_config", "stored"]


@keywords(JudgeArgs, judge_setup)
def from_config(config: ConfigSource, *, session_level: bool = False, **judging: Unpack[JudgeArgs]) -> list[Scorer]:
    """Return a scorer for each criterion of a config, in its order. They share judges, limits and budget.

    Args:
        config: the path of a config, a dict or an `EvalConfig`; ``None``: ADK's defaults.
        session_level: whether each session of traces is scored as one conversation, instead of each row by itself.
        judge: the judge, instead of the config's models: a model's name, a judge object or a callable; a list is a panel that
            votes together.
        judge_hosts: hosts, with or without a port, that the config may use as the endpoint of a judge or simulated user,
            in addition to ``MLFLOW_ADK_EVAL_JUDGE_HOSTS``.
        judge_options: parallelism, time limits and retries of requests to judges.
        budget: the limit for judges and simulated users: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and
            ``name``.
        ledger: stores judges' answers: a file or a ``postgresql://`` URL; ``None``: ``MLFLOW_ADK_EVAL_LEDGER``, else
            ``.adk_eval/ledger.sqlite``; ``False``: none.
        rejudge_failed: whether to ask again if a stored answer of a judge cannot be parsed.

    Raises:
        InputError: with every problem of the config.
        JudgeError: if a judge cannot be set up.
    """
    return scorers_of(load_config(config), judging, session_level=session_level)


def expectations(*names: str) -> list[Scorer]:
    """Return scorers that score nothing, so that ``result.passed`` of MLflow means that every criterion passed.

    Where rows have expectations, MLflow takes each for a score, and those that are neither true nor "yes" for failures.

    Args:
        names: the expectations of the rows; none: those that criteria read, such as ``expected_response``.
    """
    return [ExpectationScorer(name=name) for name in names or EXPECTATIONS]


_functions = CriterionFunctions(lambda config, _, judging: scorers_of(config, judging)[0], __name__)


def __getattr__(name: str) -> Callable[..., Scorer]:
    """Return the function of a criterion."""
    return _functions.named(name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted([*__all__, *CRITERIA])
