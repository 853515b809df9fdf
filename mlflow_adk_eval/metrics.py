"""ADK's criteria as metrics for ``mlflow.models.evaluate``: all of a config, or each by its own name.

::

    mlflow.models.evaluate(
        data=table, predictions="answer", targets="expected", extra_metrics=adk_eval.metrics.from_config("test_config.json")
    )

Each criterion is also a function, such as ``metrics.tool_trajectory_avg_score(match_type="IN_ORDER", threshold=1.0)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mlflow_adk_eval.doors.factories import JudgeArgs, criterion_functions
from mlflow_adk_eval.errors import did_you_mean
from mlflow_adk_eval.inputs import ConfigSource
from mlflow_adk_eval.judge import JudgeOptions
from mlflow_adk_eval.judge.judging import BudgetSource, JudgeSource
from mlflow_adk_eval.ledger import LedgerSource

if TYPE_CHECKING:
    from mlflow.models import EvaluationMetric

    from mlflow_adk_eval.config import EvalConfig


def from_config(
    config: ConfigSource = None,
    *,
    judge: JudgeSource = None,
    judge_options: JudgeOptions | None = None,
    budget: BudgetSource = None,
    ledger: LedgerSource = None,
    rejudge_failed: bool = False,
) -> list[EvaluationMetric]:
    """Return the criteria of a config as metrics, in the config's order. They share their judges, limits and budget.

    Args:
        config: the path of a config, a dict or an `EvalConfig`; ``None``: ADK's defaults.
        judge: who judges, instead of the models that the config names: a model's name or a callable.
        judge_options: how judges are asked.
        budget: how much may be spent on them: a `Budget`, or a dict with ``max_calls`` and ``max_tokens``.
        ledger: the file that keeps what judges answered; ``None``: as ``ADK_EVAL_LEDGER`` says, else ``.adk_eval/ledger.sqlite``;
            ``False``: none.
        rejudge_failed: whether to ask again where a judge's kept answer cannot be read.

    Raises:
        ConfigError: with every problem of the config.
        JudgeError: if a judge cannot be had.
    """
    from mlflow_adk_eval.tracking.metrics import metrics_of  # noqa: PLC0415 - mlflow takes seconds

    judging = JudgeArgs(judge=judge, judge_options=judge_options, budget=budget, ledger=ledger, rejudge_failed=rejudge_failed)
    return metrics_of(judging.scoring(config), own_judge=judge is not None)


def _metric(config: EvalConfig, name: str, judging: JudgeArgs) -> EvaluationMetric:
    from mlflow_adk_eval.tracking.metrics import metric_of  # noqa: PLC0415 - mlflow takes seconds

    return metric_of(judging.scoring(config), name, own_judge=judging.judge is not None)


_CRITERIA = criterion_functions(_metric, __name__)


def __getattr__(name: str) -> Callable[..., EvaluationMetric]:
    """Return the function of a criterion."""
    if name in _CRITERIA:
        return _CRITERIA[name]
    msg = f"module {__name__!r} has no attribute {name!r}. {did_you_mean(name, _CRITERIA)}"
    raise AttributeError(msg.strip())


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(["from_config", *_CRITERIA])
