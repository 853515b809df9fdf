"""Metrics of the user's own: a function by its import path, called as ADK calls it, with the threshold enforced here."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import SimpleNamespace
from typing import Any

import anyio.to_thread

from mlflow_adk_eval.config.spec import CriterionSettings, CustomMetricConfig
from mlflow_adk_eval.criteria.criterion import CaseRun, whole_case
from mlflow_adk_eval.errors import ConfigError, Problem, did_you_mean, foreign_code, shown
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.results.outcomes import Errored, Judged, Outcome, Scored, mean

MetricFunction = Callable[..., Any]

_ARGUMENTS = "(eval_metric, actual_invocations, expected_invocations, conversation_scenario)"
_ADK = "google.adk"
_ABSENT = object()
_RELATIVE = 1e-12
"""How far a metric's own mean may be from the correctly rounded one: further than any way of adding up takes it."""


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """A user's function; it gets copies, so that it cannot change what others see, and its own verdict is not asked for."""

    name: str
    function: MetricFunction
    settings: CriterionSettings

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Call the function; an ordinary one in a thread, so that a slow one does not hold up the others."""
        arguments = self._arguments(run)
        if inspect.iscoroutinefunction(self.function):
            answer = await self.function(*arguments)
        else:
            answer = await anyio.to_thread.run_sync(lambda: self.function(*arguments))
            answer = await answer if inspect.isawaitable(answer) else answer
        return judged_of(answer, run)

    def _arguments(self, run: CaseRun) -> tuple[Any, ...]:
        """Return ADK's own arguments, or for a function that knows nothing of ADK what stands in for them.

        The threshold is in the metric's criterion, and beside it only for the first releases of ADK, which insist.
        """
        settings, scenario = self.settings.model_dump(), run.scenario
        if knows_adk(self.function):
            case, metrics = (importlib.import_module(f"{_ADK}.evaluation.{name}") for name in ("eval_case", "eval_metrics"))
            insists = metrics.EvalMetric.model_fields["threshold"].is_required()
            beside = {"threshold": self.settings.threshold} if insists else {}
            metric = metrics.EvalMetric(metric_name=self.name, criterion=metrics.BaseCriterion.model_validate(settings), **beside)
            played = [[case.Invocation.model_validate(dump(turn)) for turn in turns or ()] for turns in (run.actual, run.expected)]
            plan = case.ConversationScenario.model_validate(dump(scenario)) if scenario else None
        else:
            criterion = SimpleNamespace(**settings)
            metric = SimpleNamespace(metric_name=self.name, threshold=None, criterion=criterion, custom_function_path=None)
            played = [[turn.model_copy(deep=True) for turn in turns or ()] for turns in (run.actual, run.expected)]
            plan = scenario.model_copy(deep=True) if scenario else None
        return metric, played[0], None if run.expected is None else played[1], plan


def knows_adk(function: MetricFunction) -> bool:
    """Whether a function, or the module it is written in, imports google-adk, and so wants ADK's own objects."""
    written = inspect.unwrap(function)
    names = [getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in getattr(written, "__globals__", {}).values()]
    names += getattr(getattr(written, "__code__", None), "co_names", ())
    return any(isinstance(name, str) and f"{name}.".startswith(f"{_ADK}.") for name in names)


def judged_of(answer: Any, run: CaseRun) -> Judged:
    """Return what a metric function answered: a number, a list of numbers by turn, or a result as ADK's functions return it.

    An ADK result is read by attribute or by key: ``overall_score`` and ``per_invocation_results`` with a ``score`` each. It
    scores the conversation as a whole if it has an overall score and no turn has one.

    Raises:
        TypeError: if the answer is nothing of the kind.
    """
    if isinstance(answer, Real):
        return whole_case(run, _cell(answer))
    if isinstance(answer, list | tuple):
        return Judged(_cells([_cell(score) for score in answer], run))
    overall, results = _get(answer, "overall_score"), _get(answer, "per_invocation_results")
    if results is _ABSENT and overall is _ABSENT:
        raise TypeError(f"the metric returned {shown(answer)}; wanted a number, a list of numbers or an evaluation result")
    listed = [] if results is _ABSENT else results or []
    if all(_get(result, "score") is None for result in listed):
        return whole_case(run, _cell(overall))
    cells = _cells([_cell(_get(result, "score"), _reasons(_get(result, "rubric_scores"))) for result in listed], run)
    if overall in (_ABSENT, None):
        return Judged(cells)
    whole, scores = _cell(overall), [cell.score for cell in cells if isinstance(cell, Scored)]
    averaged = scores and isinstance(whole, Scored) and math.isclose(whole.score, mean(scores), rel_tol=_RELATIVE)
    return Judged(cells, overall=None if averaged else whole)


def _get(answer: Any, name: str) -> Any:
    return answer.get(name, _ABSENT) if isinstance(answer, Mapping) else getattr(answer, name, _ABSENT)


def _cells(cells: Sequence[Outcome], run: CaseRun) -> tuple[Outcome, ...]:
    if len(cells) != len(run.actual):
        raise TypeError(f"the metric returned {len(cells)} scores for {len(run.actual)} turns")
    return tuple(cells)


def _cell(score: Any, rationale: str = "") -> Outcome:
    if score is None or score is _ABSENT:
        return Errored("the metric gave no score")
    if not isinstance(score, Real):
        return Errored(f"the metric gave {shown(score)}, not a number")
    try:
        return Scored(float(score), rationale)
    except ValueError as error:
        return Errored(f"the metric gave no usable score: {error}")


def _reasons(rubrics: Any) -> str:
    """Return the reasons in a turn's rubric scores, one per line."""
    listed = [(_get(rubric, "rubric_id"), _get(rubric, "rationale")) for rubric in (rubrics if isinstance(rubrics, list | tuple) else ())]
    return "\n".join(f"- {rubric_id}: {reason}" for rubric_id, reason in listed if isinstance(reason, str) and reason)


def load_function(name: str, config: CustomMetricConfig) -> MetricFunction:
    """Return the function that a custom metric names.

    Raises:
        ConfigError: if it cannot be imported or cannot take the four arguments.
    """
    path = config.code_config.name
    module_name, _, attribute = path.rpartition(".")
    try:
        with foreign_code("it"):
            module = importlib.import_module(module_name)
    except Exception as error:  # importing runs the user's own code: anything can go wrong
        raise _unusable(name, f"{path!r}, which cannot be imported ({type(error).__name__}: {error})") from error
    function: MetricFunction | None = getattr(module, attribute, None)
    if not callable(function):
        hint = did_you_mean(attribute, [known for known in vars(module) if not known.startswith("_")])
        raise _unusable(name, f"{path!r}, but {module_name} has no function {attribute}", hint=hint)
    try:
        inspect.signature(function).bind(None, None, None, None)
    except TypeError as error:
        raise _unusable(name, f"{path!r}, which does not take them ({error})", wanted=f"a function of {_ARGUMENTS}") from error
    except ValueError:
        return function  # one written in C need not tell its parameters
    return function


def _unusable(name: str, found: str, *, wanted: str = "package.module.function", hint: str = "") -> ConfigError:
    return ConfigError("config", [Problem(f"$.custom_metrics.{name}.code_config.name", found, wanted, hint)])
