"""Criteria as metrics of ``mlflow.models.evaluate``, and configs and policies as thresholds for its validation.

MLflow brings columns of a table and takes scores, reasons and aggregates.

The columns become rows (`shapes.rows`), `RowScoring` judges them side by side, and the results go back as a `MetricValue`. A row that cannot be
read or judged has no score, and its justification begins with ``NOT_EVALUATED``: it never counts as zero, and never as passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from mlflow.metrics import MetricValue
from mlflow.models import EvaluationMetric, EvaluationResult, MetricThreshold, make_metric

from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.spec import CRITERIA, PASS_HAT, JudgedSettings, VertexSettings
from mlflow_adk_eval.errors import ConfigError, EvalSetError, PolicyError, Problem, UsageError, shown
from mlflow_adk_eval.gating.policy.model import Policy, Rule
from mlflow_adk_eval.integrations.scoring import NOT_EVALUATED, RowScoring, explained
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.results.outcomes import CriterionResult, mean
from mlflow_adk_eval.runs.manifest import key_of_criterion
from mlflow_adk_eval.shapes.records import row_of_table
from mlflow_adk_eval.shapes.rows import CELLS, Row
from mlflow_adk_eval.tracking.storable import storable, storable_text

_NAMES = ("predictions", *(name for name in CELLS if name != "predictions"))
"""The parameters of a metric. MLflow calls one whose first of two has another name in another way."""


def metric_of(scoring: RowScoring, criterion: str) -> EvaluationMetric:
    """Return one criterion as a metric.

    Raises:
        ConfigError: if MLflow has no such name for a metric.
    """
    if "/" in criterion:
        raise ConfigError("config", [Problem("$.custom_metrics", shown(criterion), "a name without '/' for a metric of MLflow")])
    custom = (scoring.config.custom_metrics or {}).get(criterion)
    about, better = (custom.description or None) if custom else CRITERIA[criterion].about, scoring.config.greater_is_better(criterion)
    judge, known = ColumnMetric(scoring, criterion), _described(scoring, criterion)
    return make_metric(eval_fn=judge, name=criterion, greater_is_better=better, metric_details=about, genai_metric_args=known)


class ColumnMetric:
    """A criterion that takes the columns of a table, by the names in `CELLS`, and returns a score and a reason for each row."""

    __signature__ = Signature(
        [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=Parameter.empty if name == "predictions" else None) for name in _NAMES]
    )

    def __init__(self, scoring: RowScoring, criterion: str) -> None:
        """Take the criterion."""
        self._scoring = scoring
        self._criterion = criterion
        self._tried: tuple[Row, CriterionResult] | None = None

    def __call__(self, *columns: Any, **named: Any) -> MetricValue:
        """Judge each row. A row that cannot be judged has no score, and its reason says why.

        Raises:
            UsageError: if a column is none, or too short.
        """
        table = _table(self.__signature__.bind(*columns, **named).arguments)
        secrets = secrets_of()
        rows: list[Row | str] = []
        for number, cells in enumerate(table, 1):
            try:
                rows.append(row_of_table(cells, f"row {number}"))
            except EvalSetError as problem:
                rows.append(str(problem))
        results = iter(self._results([row for row in rows if isinstance(row, Row)]))
        scores: list[float | None] = []
        reasons: list[str] = []
        passed = asked = 0
        for row in rows:
            if isinstance(row, str):
                score, reason = None, f"{NOT_EVALUATED}: {row}"
                asked += 1  # and did not pass
            else:
                result, error = next(results), row.conversation.error
                score, reason = None if result.score is None else float(result.score), explained(result)
                if error and score is not None:  # what an agent did before it failed may have a score, but no row passes by that
                    reason = f"the agent did not finish: {error}\n\n{reason}"
                passed += result.passed is True and not error
                asked += self._scoring.concerns(row.case, self._criterion)
            scores.append(score)
            reasons.append(storable_text(reason, secrets))
        evaluated = [score for score in scores if score is not None]
        shares = ({"mean": mean(evaluated)} if evaluated else {}) | ({"pass_rate": passed / asked} if asked else {})
        known: Any = scores  # MLflow takes None, too
        return MetricValue(scores=known, justifications=reasons, aggregate_results={**shares, "evaluated": len(evaluated)})

    def _results(self, rows: Sequence[Row]) -> list[CriterionResult]:
        """Judge the rows, but for the first where it was judged a moment ago: MLflow tries each metric on the first row alone."""
        tried, self._tried = self._tried, None
        known = [tried[1]] if tried and rows and tried[0] == rows[0] else []
        results = known + self._scoring.results(rows[len(known) :], self._criterion)
        if len(rows) == 1 and not known:
            self._tried = rows[0], results[0]
        return results


def _table(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the cells of each row. A column may be longer than the predictions, of which MLflow first brings one."""
    given: dict[str, list[Any]] = {}
    for name, column in columns.items():
        if column is None or isinstance(column, MetricValue):
            continue
        if isinstance(column, str | Mapping) or not hasattr(column, "__iter__"):
            raise UsageError(f"{name}: found {shown(column)}; wanted a column, with a value for each row")
        given[name] = list(column)
    count = len(given.get("predictions", ()))
    for name, values in given.items():
        if len(values) < count:
            raise UsageError(f"{name}: {len(values)} values for {count} rows; wanted one for each row")
    return [{name: values[index] for name, values in given.items()} for index in range(count)]


def _described(scoring: RowScoring, criterion: str) -> dict[str, Any]:
    """Return what MLflow is to log of a metric beside its name."""
    config = scoring.config
    settings = config.criteria.get(criterion)
    cases = {eval_id: found[criterion] for eval_id, found in config.case_criteria.items() if criterion in found}
    described = {
        "name": criterion,
        "criterion": criterion,
        "threshold": settings.threshold if settings else config.thresholds()[criterion],
        "greater_is_better": config.greater_is_better(criterion),
        "settings": settings.model_dump(mode="json", exclude_none=True) if settings else {},
        "case_settings": {eval_id: found.model_dump(mode="json", exclude_none=True) for eval_id, found in cases.items()},
        "judge_model": deciding_model(scoring, settings or next(iter(cases.values()))),
    }
    return dict(storable({name: value for name, value in described.items() if value not in ({}, "")}, secrets_of()))


def deciding_model(scoring: RowScoring, settings: Any) -> str:
    """Return who decides; empty where no model does."""
    if not isinstance(settings, JudgedSettings):
        return ""
    if isinstance(settings, VertexSettings) and settings.backend == "vertex":
        return "vertex"
    named = settings.judge_panel or (settings.judge_model_options.judge_model,)
    asked = scoring.usage.models if scoring.usage and scoring.own_judge else named
    return ", ".join(model for model in asked if model != "vertex")


_LOGGED = {"case_pass_rate": "case_pass_rate", "judge_flip_rate": "judge/flip_rate"}
"""The measures of policies that are metrics of their own."""
_WANTED = "a demand that MLflow's MetricThreshold can express; lossy=True drops the others, and adk_eval.gate decides them"
_LOWER_IS_BETTER = {"judge_flip_rate"}
_IN_METRICS = {"name", "thresholds", "min_cases", "rules", "confidence", "power", "baseline", "calibration", "prices"}
"""The keys of a policy that metrics stand for, and those that only say how rules decide. Any other is a demand that would be lost."""
_UNKNOWN_HERE = {"flaky_rate", "cost", "judge_tokens", "judge_calls"}
_Bound = tuple[bool, float | None]
"""One thing that a rule demands of a metric: whether greater is better, and the value; ``None``: to be no worse than the baseline's."""


def thresholds_of_config(config: EvalConfig) -> dict[str, MetricThreshold]:
    """Return the thresholds of a config that decide: every case must reach each of them, so that each pass rate is 1."""
    names = config.deciding_thresholds()
    return {f"{key_of_criterion(name)}/pass_rate": MetricThreshold(threshold=1.0, greater_is_better=True) for name in names}


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
    problems = []
    if policy.thresholds and config is None:
        problems.append(Problem("$.thresholds", "the thresholds of a config", "that config as config=..."))
    demands = [name for name in type(policy).model_fields if name not in _IN_METRICS and getattr(policy, name)]
    problems += [Problem(f"$.{name}", f"a demand without a metric ({name})", _WANTED) for name in demands]
    thresholds = thresholds_of_config(config) if policy.thresholds and config else {}
    if policy.min_cases > 1:
        thresholds["cases"] = MetricThreshold(threshold=policy.min_cases, greater_is_better=True)
    for measure, rule in policy.rules.items():
        name = metric_of_measure(measure)
        higher = CRITERIA[measure].greater_is_better if measure in CRITERIA else measure not in _LOWER_IS_BETTER
        if config is not None and measure in config.thresholds():
            higher = config.greater_is_better(measure)
        bounds = list(_bounds(rule, higher, None if baseline is None else baseline.metrics.get(name or "")))
        problems += _rule_problems(rule, f"$.rules.{measure}", name, bounds)
        if name is not None and bounds and rule.use in (None, "mean"):
            up = bounds[0][0]  # the strictest of the bounds that look the same way as the first
            values = [value for greater_is_better, value in bounds if greater_is_better == up and value is not None]
            is_compared = (up, None) in bounds
            strictest = float(max(values) if up else min(values)) if values else None
            thresholds[name] = MetricThreshold(threshold=strictest, min_relative_change=0.0 if is_compared else None, greater_is_better=up)
    if problems and not lossy:
        raise PolicyError(f"policy {policy.name!r}", problems)
    return thresholds


def metric_of_measure(measure: str) -> str | None:
    """Return the metric of a run that a measure of policies is; ``None`` if there is none.

    >>> metric_of_measure("safety_v1"), metric_of_measure("pass^3"), metric_of_measure("cost")
    ('safety_v1/mean', 'pass_hat_3', None)
    """
    if measure in _UNKNOWN_HERE or measure.endswith("/flip_rate"):
        return None
    if found := PASS_HAT.fullmatch(measure):
        return f"pass_hat_{found[1]}"
    if measure.endswith("/pass_rate"):
        return f"{key_of_criterion(measure.removesuffix('/pass_rate'))}/pass_rate"
    return _LOGGED.get(measure) or f"{key_of_criterion(measure)}/mean"


def _rule_problems(rule: Rule, at: str, name: str | None, bounds: Sequence[_Bound]) -> Iterator[Problem]:
    if name is None:
        yield Problem(at, "a measure that runs do not log as a metric", _WANTED)
    if rule.judge is not None:
        yield Problem(f"{at}.judge", "a demand on judges", _WANTED)
    if rule.range is not None:
        yield Problem(f"{at}.range", "a range for single cases", _WANTED)
    if rule.use not in (None, "mean"):
        yield Problem(f"{at}.use", f"a bound of an interval ({rule.use})", _WANTED)
    if len({greater_is_better for greater_is_better, _ in bounds}) > 1:
        yield Problem(at, "both a min and a max", f"{_WANTED}: one bound for each metric")
    if rule.max_drop is not None and rule.use is None:
        yield Problem(f"{at}.max_drop", "a drop tested for significance", f"{_WANTED}: a comparison of means, with `use: mean`")
    if rule.max_drop and sum(found is not None for found in (rule.min, rule.max)) == len(bounds):
        yield Problem(f"{at}.max_drop", "an allowed drop", "max_drop: 0, or the baseline's result as baseline=... to compute the minimum")


def _bounds(rule: Rule, greater_is_better: bool, before: float | None) -> Iterator[_Bound]:
    """Yield what a rule demands of its metric, given the baseline's value; an allowed drop from an unknown value demands nothing."""
    if rule.min is not None:
        yield True, rule.min
    if rule.max is not None:
        yield False, rule.max
    if rule.max_drop is not None and before is not None:
        yield greater_is_better, before - rule.max_drop if greater_is_better else before + rule.max_drop
    elif rule.max_drop == 0:
        yield greater_is_better, None
