"""ADK's criteria as metrics for ``mlflow.models.evaluate``: all criteria of a config, or each by name.

::

    mlflow.models.evaluate(
        data=table, predictions="answer", targets="expected", extra_metrics=adk_eval.metrics.from_config("test_config.json")
    )

Each criterion is also a function, such as ``metrics.tool_trajectory_avg_score(match_type="EXACT", threshold=1.0)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from mlflow_adk_eval.config.eval_config import EvalConfig, load_config
from mlflow_adk_eval.config.inputs import ConfigSource
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.evalset.parse import decode, read_text
from mlflow_adk_eval.integrations.scoring import CriterionFunctions, scoring
from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup
from mlflow_adk_eval.runner.keywords import keywords

if TYPE_CHECKING:
    from mlflow.models import EvaluationMetric, EvaluationResult, MetricThreshold


@keywords(JudgeArgs, judge_setup)
def from_config(config: ConfigSource = None, **judging: Unpack[JudgeArgs]) -> list[EvaluationMetric]:
    """Return the criteria of a config as metrics, in the config's order. They share their judges, limits and budget.

    Args:
        config: the path of a config, a dict or an `EvalConfig`; ``None``: ADK's defaults.
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
        ConfigError: with every problem of the config.
        JudgeError: if a judge cannot be set up.
    """
    from mlflow_adk_eval.integrations.classic_metrics import metric_of  # noqa: PLC0415 - mlflow takes seconds

    criteria = scoring(config, **judging)
    return [metric_of(criteria, name) for name in criteria.config.by_criterion]


def thresholds(
    source: Any = None, *, config: ConfigSource = None, baseline: EvaluationResult | None = None, lossy: bool = False
) -> dict[str, MetricThreshold]:
    """Return a config or a policy of the gate as thresholds for `mlflow.validate_evaluation_results`.

    Args:
        source: an `EvalConfig` or a `Policy`, its path, or a dict; ``None``: ADK's default criteria. Every case must reach each threshold
            of a config; a policy demands what its rules say.
        config: the config that a policy with ``thresholds: true`` is about, and that says where lower is better.
        baseline: the result of the baseline, from which rules with ``max_drop`` and ``use: mean`` get the least that passes.
        lossy: whether to leave out what MLflow cannot express: intervals, tests, slices, waivers, required cases, pins.

    Raises:
        PolicyError: with everything that MLflow cannot express.
        InputError: with every problem of a config or a policy.
    """
    from mlflow_adk_eval.gating.policy.load import load_policy  # noqa: PLC0415 - seldom needed
    from mlflow_adk_eval.integrations.classic_metrics import thresholds_of_config, thresholds_of_policy  # noqa: PLC0415 - mlflow takes seconds

    is_json = isinstance(source, str | Path) and Path(source).suffix == ".json"
    content = decode(read_text(Path(source)), str(source)) if is_json else source
    # Configs have criteria, and policies have not.
    if content is None or isinstance(content, EvalConfig) or (isinstance(content, Mapping) and "criteria" in content):
        return thresholds_of_config(load_config(source))
    return thresholds_of_policy(load_policy(source), None if config is None else load_config(config), baseline, lossy=lossy)


def _metric(config: EvalConfig, name: str, judging: JudgeArgs) -> EvaluationMetric:
    from mlflow_adk_eval.integrations.classic_metrics import metric_of  # noqa: PLC0415 - mlflow takes seconds

    return metric_of(scoring(config, **judging), name)


_functions = CriterionFunctions(_metric, __name__)


def __getattr__(name: str) -> Callable[..., EvaluationMetric]:
    """Return the function of a criterion."""
    return _functions.named(name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(["from_config", "thresholds", *CRITERIA])
