"""A config or a policy as thresholds for MLflow's own validation, as far as that can express them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlflow.models import MetricThreshold

from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import PolicyError, Problem
from mlflow_adk_eval.gating.evidence.integrity import key_of_criterion
from mlflow_adk_eval.gating.policy.model import Policy, Rule

if TYPE_CHECKING:
    from mlflow.models import EvaluationResult

_LOGGED = {"case_pass_rate": "case_pass_rate", "judge_flip_rate": "judge/flip_rate"}
"""The measures of policies that are metrics of their own."""
_PASS_HAT = re.compile(r"pass(?:\^|_hat_)(\d+)")
_WANTED = "something that a MetricThreshold of MLflow can express; lossy=True leaves it out, and adk_eval.gate decides on it"
_LOWER_IS_BETTER = {"judge_flip_rate"}
_UNKNOWN_HERE = {"flaky_rate", "cost", "judge_tokens", "judge_calls"}


@dataclass(frozen=True, slots=True)
class _Bound:
    """One thing that a rule demands of a metric."""

    greater_is_better: bool
    value: float | None
    """``None``: to be no worse than the baseline's."""


def thresholds_of_config(config: EvalConfig) -> dict[str, MetricThreshold]:
    """Return the thresholds of a config: every case must reach each of them, so that each pass rate is 1."""
    return {f"{key_of_criterion(name)}/pass_rate": MetricThreshold(threshold=1.0, greater_is_better=True) for name in config.thresholds()}


def thresholds_of_policy(
    policy: Policy, config: EvalConfig | None, baseline: EvaluationResult | None, *, lossy: bool
) -> dict[str, MetricThreshold]:
    """Return what a policy demands of the metrics of a run.

    Args:
        policy: what is demanded.
        config: the config that ``thresholds: true`` is about.
        baseline: what ``max_drop`` is about.
        lossy: whether to leave out what cannot be expressed.

    Raises:
        PolicyError: with everything that cannot be expressed.
    """
    problems = list(_inexpressible(policy, config))
    found = thresholds_of_config(config) if policy.thresholds and config else {}
    if policy.min_cases > 1:
        found["cases"] = MetricThreshold(threshold=policy.min_cases, greater_is_better=True)
    for measure, rule in policy.rules.items():
        name = metric_of_measure(measure)
        bounds = list(_bounds(rule, _greater_is_better(measure, config), None if baseline is None else baseline.metrics.get(name or "")))
        problems += _rule_problems(rule, f"$.rules.{measure}", name, bounds)
        if name is not None and bounds and rule.use in (None, "mean"):
            found[name] = _threshold(bounds)
    if problems and not lossy:
        raise PolicyError(f"policy {policy.name!r}", problems)
    return found


def metric_of_measure(measure: str) -> str | None:
    """Return the metric of a run that a measure of policies is; ``None`` if there is none.

    >>> metric_of_measure("safety_v1"), metric_of_measure("pass^3"), metric_of_measure("cost")
    ('safety_v1/mean', 'pass_hat_3', None)
    """
    if measure in _UNKNOWN_HERE or measure.endswith("/flip_rate"):
        return None
    if found := _PASS_HAT.fullmatch(measure):
        return f"pass_hat_{found[1]}"
    if measure.endswith("/pass_rate"):
        return f"{key_of_criterion(measure.removesuffix('/pass_rate'))}/pass_rate"
    return _LOGGED.get(measure) or f"{key_of_criterion(measure)}/mean"


def _inexpressible(policy: Policy, config: EvalConfig | None) -> Iterator[Problem]:
    if policy.thresholds and config is None:
        yield Problem("$.thresholds", "the thresholds of a config", "that config, as config=...")
    demands = {
        "eval_set": policy.eval_set,
        "config": policy.config,
        "judge": policy.judge,
        "max_age": policy.max_age,
        "slices": policy.slices,
        "must_pass": policy.must_pass,
        "waivers": policy.waivers,
    }
    for name, demand in demands.items():
        if demand:
            yield Problem(f"$.{name}", f"a demand that no metric stands for ({name})", _WANTED)


def _rule_problems(rule: Rule, at: str, name: str | None, bounds: Sequence[_Bound]) -> Iterator[Problem]:
    if name is None:
        yield Problem(at, "a measure that runs do not log as a metric", _WANTED)
    if rule.judge is not None:
        yield Problem(f"{at}.judge", "how well a judge must be known", _WANTED)
    if rule.range is not None:
        yield Problem(f"{at}.range", "what a single case may count", _WANTED)
    if rule.use not in (None, "mean"):
        yield Problem(f"{at}.use", f"a bound of an interval ({rule.use})", _WANTED)
    if len({bound.greater_is_better for bound in bounds}) > 1:
        yield Problem(at, "both a least and a most", f"{_WANTED}: one bound for each metric")
    if rule.max_drop is not None and rule.use is None:
        yield Problem(f"{at}.max_drop", "a drop that is tested", f"{_WANTED}: the means alone, as `use: mean` says")
    if rule.max_drop and sum(found is not None for found in (rule.min, rule.max)) == len(bounds):
        yield Problem(
            f"{at}.max_drop", "an allowed drop", "max_drop: 0, or the baseline's result as baseline=..., from which the least follows"
        )


def _greater_is_better(measure: str, config: EvalConfig | None) -> bool:
    if config is not None and measure in config.thresholds():
        return config.greater_is_better(measure)
    return CRITERIA[measure].greater_is_better if measure in CRITERIA else measure not in _LOWER_IS_BETTER


def _bounds(rule: Rule, greater_is_better: bool, before: float | None) -> Iterator[_Bound]:
    """Yield what a rule demands of its metric, given the baseline's value; an allowed drop from an unknown value demands nothing."""
    if rule.min is not None:
        yield _Bound(greater_is_better=True, value=rule.min)
    if rule.max is not None:
        yield _Bound(greater_is_better=False, value=rule.max)
    if rule.max_drop is not None and before is not None:
        yield _Bound(greater_is_better, before - rule.max_drop if greater_is_better else before + rule.max_drop)
    elif rule.max_drop == 0:
        yield _Bound(greater_is_better, None)


def _threshold(bounds: Sequence[_Bound]) -> MetricThreshold:
    """Return the strictest of the bounds that look the same way as the first."""
    up = bounds[0].greater_is_better
    values = [bound.value for bound in bounds if bound.greater_is_better == up and bound.value is not None]
    compared = any(bound.value is None and bound.greater_is_better == up for bound in bounds)
    strictest = float(max(values) if up else min(values)) if values else None
    return MetricThreshold(threshold=strictest, min_relative_change=0.0 if compared else None, greater_is_better=up)
