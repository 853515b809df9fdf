"""Criteria as metrics of ``mlflow.models.evaluate``, which brings columns of a table and takes scores, reasons and aggregates.

The columns become rows (`tables.rows`), `Scoring` judges them side by side, and the results go back as a `MetricValue`. A row that cannot be
read or judged has no score, and its justification begins with ``NOT_EVALUATED``: it never counts as zero, and never as passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

from mlflow.metrics import MetricValue
from mlflow.models import EvaluationMetric, make_metric

from mlflow_adk_eval.config.criteria import JudgedSettings, VertexSettings
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import ConfigError, EvalSetError, Problem, UsageError, shown
from mlflow_adk_eval.integrations.scoring import NOT_EVALUATED, Scoring, explained
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.results.outcomes import CriterionResult, mean
from mlflow_adk_eval.tables.records import cells_of
from mlflow_adk_eval.tables.rows import CELLS, Row, is_missing, plain, row_of
from mlflow_adk_eval.tracking.storable import storable, storable_text

_NAMES = ("predictions", *(name for name in CELLS if name != "predictions"))
"""The parameters of a metric. MLflow calls one whose first of two has another name in another way."""


def metrics_of(scoring: Scoring, *, own_judge: bool = False) -> list[EvaluationMetric]:
    """Return each criterion of a config as a metric, in the config's order.

    Args:
        scoring: the criteria with their judges.
        own_judge: whether the caller named a judge, who then decides in place of the config's models.

    Raises:
        ConfigError: if MLflow has no such name for a metric.
    """
    return [metric_of(scoring, name, own_judge=own_judge) for name in scoring.criteria]


def metric_of(scoring: Scoring, criterion: str, *, own_judge: bool = False) -> EvaluationMetric:
    """Return one criterion as a metric; see `metrics_of`."""
    if "/" in criterion:
        raise ConfigError("config", [Problem("$.custom_metrics", shown(criterion), "a name without '/' for a metric of MLflow")])
    return make_metric(
        eval_fn=ColumnMetric(scoring, criterion),
        name=criterion,
        greater_is_better=scoring.config.greater_is_better(criterion),
        metric_details=_about(scoring, criterion),
        genai_metric_args=_described(scoring, criterion, own_judge=own_judge),
    )


def _about(scoring: Scoring, criterion: str) -> str | None:
    """Return what the score is; of a metric of the user's own, what the config says of it."""
    custom = (scoring.config.custom_metrics or {}).get(criterion)
    return (custom.description or None) if custom else CRITERIA[criterion].about


@dataclass(frozen=True, slots=True)
class _Judged:
    """What a criterion made of one row."""

    score: float | None
    passed: bool
    reason: str
    asked: bool = True
    """Whether the config asks for the criterion in this row's case."""


class ColumnMetric:
    """A criterion that takes the columns of a table, by the names in `CELLS`, and returns a score and a reason for each row."""

    __signature__ = Signature(
        [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=Parameter.empty if name == "predictions" else None) for name in _NAMES]
    )

    def __init__(self, scoring: Scoring, criterion: str) -> None:
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
        judged = self._judged([_read(cells, f"row {number}") for number, cells in enumerate(table, 1)])
        return MetricValue(
            scores=[one.score for one in judged],  # pyright: ignore[reportArgumentType] - MLflow takes None, too
            justifications=[storable_text(one.reason, secrets) for one in judged],
            aggregate_results=_aggregates(judged),
        )

    def _judged(self, rows: Sequence[Row | str]) -> list[_Judged]:
        """Return what the criterion makes of each row; a text is why there is no row."""
        read = [row for row in rows if isinstance(row, Row)]
        asked = (self._scoring.concerns(row.case, self._criterion) for row in read)
        judged = iter(map(_judged, read, self._results(read), asked))
        return [_Judged(None, passed=False, reason=f"{NOT_EVALUATED}: {row}") if isinstance(row, str) else next(judged) for row in rows]

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
    listed = {name: _values(column, name) for name, column in columns.items()}
    given = {name: values for name, values in listed.items() if values is not None}
    count = len(given.get("predictions", ()))
    for name, values in given.items():
        if len(values) < count:
            raise UsageError(f"{name}: {len(values)} values for {count} rows; wanted one for each row")
    return [{name: values[index] for name, values in given.items()} for index in range(count)]


def _values(column: Any, name: str) -> list[Any] | None:
    """Return the values of a column; nothing for a metric of that name, which MLflow brings where there is no such column."""
    if column is None or isinstance(column, MetricValue):
        return None
    if isinstance(column, str | Mapping) or not hasattr(column, "__iter__"):
        raise UsageError(f"{name}: found {shown(column)}; wanted a column, with a value for each row")
    return list(column)


def _read(cells: Mapping[str, Any], source: str) -> Row | str:
    """Return a row, or why it cannot be read. Inputs may be messages of a chat, and predictions all that a model tells of itself."""
    try:
        read = cells_of(plain(cells.get("inputs")), plain(cells["predictions"]), source=source)
        return row_of({**cells, **{name: value for name, value in read.items() if not is_missing(value)}}, source)
    except EvalSetError as error:
        return str(error)


def _judged(row: Row, result: CriterionResult, asked: bool) -> _Judged:
    """Return what a criterion made of a row. What an agent did before it failed may have a score, but no row passes by that."""
    error, reason = row.conversation.error, explained(result)
    explanation = f"the agent did not finish: {error}\n\n{reason}" if error and result.score is not None else reason
    return _Judged(
        None if result.score is None else float(result.score), passed=result.passed is True and not error, reason=explanation, asked=asked
    )


def _aggregates(judged: Sequence[_Judged]) -> dict[str, float]:
    """Return the mean of the scores that there are, and how many rows passed among all that should: one without a score did not."""
    scores = [one.score for one in judged if one.score is not None]
    asked = sum(one.asked for one in judged)
    passed = sum(one.passed for one in judged)
    return {
        **({"mean": mean(scores)} if scores else {}),
        **({"pass_rate": passed / asked} if asked else {}),
        "evaluated": len(scores),
    }


def _described(scoring: Scoring, criterion: str, *, own_judge: bool) -> dict[str, Any]:
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
        "judge_model": _judge_model(scoring, settings or next(iter(cases.values())), own_judge=own_judge),
    }
    return dict(storable({name: value for name, value in described.items() if value not in ({}, "")}, secrets_of()))


def _judge_model(scoring: Scoring, settings: Any, *, own_judge: bool) -> str:
    """Return who decides; empty where no model does."""
    if not isinstance(settings, JudgedSettings):
        return ""
    if isinstance(settings, VertexSettings) and settings.backend == "vertex":
        return "vertex"
    asked = scoring.usage.models if scoring.usage and own_judge else settings.judge_panel or (settings.judge_model_options.judge_model,)
    return ", ".join(model for model in asked if model != "vertex")
