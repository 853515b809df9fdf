"""Metrics of the user's own: a function by its import path, called as ADK calls it, with the threshold enforced here."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import anyio.to_thread

from mlflow_adk_eval.config import CriterionSettings, CustomMetricConfig
from mlflow_adk_eval.criteria.base import CaseRun
from mlflow_adk_eval.errors import ConfigError, Problem, did_you_mean, shown
from mlflow_adk_eval.outcome import Errored, Judged, Outcome, Scored, mean

MetricFunction = Callable[..., Any]
_ARGUMENTS = "(eval_metric, actual_invocations, expected_invocations, conversation_scenario)"


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """A user's function; it gets copies, so that it cannot change what others see, and its own verdict is not asked for."""

    name: str
    function: MetricFunction
    settings: CriterionSettings

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Call the function; an ordinary one in a thread, so that a slow one does not hold up the others."""
        arguments = (
            _metric(self.name, self.settings),
            [turn.model_copy(deep=True) for turn in run.actual],
            None if run.expected is None else [turn.model_copy(deep=True) for turn in run.expected],
            run.scenario.model_copy(deep=True) if run.scenario else None,
        )
        if inspect.iscoroutinefunction(self.function):
            answer = await self.function(*arguments)
        else:
            answer = await anyio.to_thread.run_sync(lambda: self.function(*arguments))
            answer = await answer if isinstance(answer, Awaitable) else answer
        return judged_of(answer, turns=len(run.actual))


def _metric(name: str, settings: CriterionSettings) -> SimpleNamespace:
    """Return what stands in for ADK's ``EvalMetric``: the threshold is in the criterion, as in ADK."""
    criterion = SimpleNamespace(**settings.model_dump())
    return SimpleNamespace(metric_name=name, threshold=None, criterion=criterion, custom_function_path=None)


def judged_of(answer: Any, *, turns: int) -> Judged:
    """Return what a metric function answered: a number, a list of numbers by turn, or a result as ADK's functions return it.

    An ADK result is read by attribute or by key: ``overall_score`` and ``per_invocation_results`` with a ``score`` each.

    Raises:
        TypeError: if the answer is nothing of the kind.
    """
    match answer:
        case bool() | int() | float():
            return Judged((*[None] * (max(turns, 1) - 1), _cell(answer)))
        case None:
            raise TypeError("the metric returned None")
        case list() | tuple():
            return Judged(_cells(answer, turns))
    overall, results = _get(answer, "overall_score"), _get(answer, "per_invocation_results")
    if results is _ABSENT and overall is _ABSENT:
        raise TypeError(f"the metric returned {shown(answer)}; wanted a number, a list of numbers or an evaluation result")
    scores = [] if results in (_ABSENT, None) else [_get(result, "score") for result in results]
    if not scores:
        return Judged((*[None] * (max(turns, 1) - 1), _cell(overall)))
    cells = _cells(scores, turns)
    own = overall not in (_ABSENT, None) and all(isinstance(cell, Scored) for cell in cells)
    differs = own and _cell(overall) != Scored(mean(cell.score for cell in cells if isinstance(cell, Scored)))
    return Judged(cells, overall=_cell(overall) if differs else None)


_ABSENT = object()


def _get(answer: Any, name: str) -> Any:
    return answer.get(name, _ABSENT) if isinstance(answer, Mapping) else getattr(answer, name, _ABSENT)


def _cells(scores: Sequence[Any], turns: int) -> tuple[Outcome, ...]:
    if len(scores) != turns:
        raise TypeError(f"the metric returned {len(scores)} scores for {turns} turns")
    return tuple(_cell(score) for score in scores)


def _cell(score: Any) -> Outcome:
    if score is None or score is _ABSENT:
        return Errored("the metric gave no score")
    try:
        return Scored(float(score))
    except (TypeError, ValueError) as error:
        return Errored(f"the metric gave no usable score: {error}")


def load_function(name: str, config: CustomMetricConfig) -> MetricFunction:
    """Return the function that a custom metric names.

    Raises:
        ConfigError: if it cannot be imported or cannot take the four arguments.
    """
    path = config.code_config.name
    place = f"$.custom_metrics.{name}.code_config.name"
    module_name, _, attribute = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise ConfigError("config", [Problem(place, f"{path!r}, which cannot be imported ({error})", "package.module.function")]) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        hint = did_you_mean(attribute, [known for known in vars(module) if not known.startswith("_")])
        raise ConfigError("config", [Problem(place, f"{path!r}, but {module_name} has no function {attribute}", "package.module.function", hint)])
    try:
        inspect.signature(function).bind(None, None, None, None)
    except TypeError as error:
        raise ConfigError("config", [Problem(place, f"{path!r}, which does not take them ({error})", f"a function of {_ARGUMENTS}")]) from error
    return function
