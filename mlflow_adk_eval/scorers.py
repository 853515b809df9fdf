"""Criteria as scorers for ``mlflow.genai.evaluate``: all of a config by `from_config`, or each by a function of its own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mlflow_adk_eval.config.eval_config import EvalConfig, load_config
from mlflow_adk_eval.config.inputs import ConfigSource
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.integrations.functions import CriterionFunctions, JudgeArgs
from mlflow_adk_eval.integrations.genai_scorers import expectation_scorers, scorers_of, stored
from mlflow_adk_eval.judge import JudgeOptions
from mlflow_adk_eval.judge.session import BudgetSource, JudgeSource
from mlflow_adk_eval.ledger import LedgerSource

if TYPE_CHECKING:
    from mlflow.genai.scorers import Scorer

__all__ = ["expectations", "from_config", "stored"]


def from_config(
    config: ConfigSource,
    *,
    judge: JudgeSource = None,
    judge_options: JudgeOptions | None = None,
    budget: BudgetSource = None,
    ledger: LedgerSource = None,
    rejudge_failed: bool = False,
    session_level: bool = False,
) -> list[Scorer]:
    """Return a scorer for each criterion of a config, in its order. They share judges, limits and budget.

    Args:
        config: the path of a config, a dict or an `EvalConfig`; ``None``: ADK's defaults.
        judge: who judges, instead of the models that the config names: a model's name or a callable.
        judge_options: how judges are asked.
        budget: how much may be spent on them: a `Budget`, or a dict with ``max_calls`` and ``max_tokens``.
        ledger: the file that keeps what judges answered; ``None``: as ``ADK_EVAL_LEDGER`` says, else ``.adk_eval/ledger.sqlite``;
            ``False``: none.
        rejudge_failed: whether to ask again where a judge's kept answer cannot be read.
        session_level: whether each session of traces is scored as one conversation, instead of each row by itself.

    Raises:
        InputError: with every problem of the config.
        JudgeError: if a judge cannot be had.
    """
    judging = JudgeArgs(judge=judge, judge_options=judge_options, budget=budget, ledger=ledger, rejudge_failed=rejudge_failed)
    return _made(load_config(config), judging, session_level=session_level)


def expectations(*names: str) -> list[Scorer]:
    """Return scorers that score nothing, so that ``result.passed`` of MLflow means that every criterion passed.

    Where rows have expectations, MLflow takes each for a score, and those that are neither true nor "yes" for failures.

    Args:
        names: the expectations of the rows; none: those that criteria read, such as ``expected_response``.
    """
    return expectation_scorers(*names)


def _made(config: EvalConfig, judging: JudgeArgs, *, session_level: bool = False) -> list[Scorer]:
    return scorers_of(config, judging, session_level=session_level)


_functions = CriterionFunctions(lambda config, _, judging: _made(config, judging)[0], __name__)


def __getattr__(name: str) -> Callable[..., Scorer]:
    """Return the function of a criterion."""
    return _functions.named(name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted([*__all__, *CRITERIA])
