"""From a config to the criteria that will be applied to each case, with every obstacle found before any work starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlflow_adk_eval.config import EFFICIENCY, Criteria, CriterionSettings, EvalConfig
from mlflow_adk_eval.criteria.base import REGISTRY, Criterion, Planned
from mlflow_adk_eval.criteria.custom import CustomMetric, load_function
from mlflow_adk_eval.errors import ConfigError, Problem
from mlflow_adk_eval.evalset import EvalSet

_NEED_REFERENCE = ("tool_trajectory_avg_score", "response_match_score", "final_response_match_v2", "response_evaluation_score")


@dataclass(frozen=True, slots=True)
class Plan:
    """The criteria of each case, in the order of the config; then the efficiency metrics, as information."""

    default: tuple[Planned, ...]
    by_case: Mapping[str, tuple[Planned, ...]]

    def of(self, eval_id: str) -> tuple[Planned, ...]:
        """Return the criteria of one case."""
        return self.by_case.get(eval_id, self.default)


def plan(config: EvalConfig, eval_set: EvalSet) -> Plan:
    """Return what `config` asks for on `eval_set`.

    Raises:
        ConfigError: naming each criterion that cannot be had, or cannot be applied to a case.
    """
    made: dict[int, tuple[Planned, ...]] = {}
    problems = [*_without_judge(config), *_without_reference(config, eval_set), *_without_case(config, eval_set)]
    if problems:
        raise ConfigError("config", problems)
    for criteria in (config.criteria, *config.case_criteria.values()):
        made[id(criteria)] = tuple(_planned(config, criteria))
    by_case = {eval_id: made[id(criteria)] for eval_id, criteria in config.case_criteria.items()}
    return Plan(made[id(config.criteria)], by_case)


def _planned(config: EvalConfig, criteria: Criteria) -> Iterator[Planned]:
    for name, settings in criteria.items():
        yield Planned(
            name=name,
            criterion=_criterion(config, name, settings),
            threshold=settings.threshold,
            greater_is_better=config.greater_is_better(name),
        )
    for name in EFFICIENCY:
        if name not in criteria:
            yield Planned(name=name, criterion=REGISTRY[name](None), threshold=None, greater_is_better=False)


def _criterion(config: EvalConfig, name: str, settings: CriterionSettings) -> Criterion:
    custom = (config.custom_metrics or {}).get(name)
    return CustomMetric(name, load_function(name, custom), settings) if custom else REGISTRY[name](settings)


def _without_judge(config: EvalConfig) -> Iterator[Problem]:
    custom = config.custom_metrics or {}
    for at, criteria in _places(config):
        for name in criteria:
            if name not in REGISTRY and name not in custom:
                yield Problem(f"{at}.{name}", "a criterion that a model judges", f"one that this version can apply: {', '.join(REGISTRY)}")


def _without_reference(config: EvalConfig, eval_set: EvalSet) -> Iterator[Problem]:
    scenarios = [case.eval_id for case in eval_set.eval_cases if case.conversation is None]
    for at, criteria in _places(config):
        for name in criteria:
            here = [eval_id for eval_id in scenarios if name in config.criteria_of(eval_id) and config.criteria_of(eval_id) is criteria]
            if name in _NEED_REFERENCE and here:
                yield Problem(f"{at}.{name}", "a criterion that needs a reference conversation", f"one without, since these cases are scenarios: {', '.join(here[:5])}")


def _without_case(config: EvalConfig, eval_set: EvalSet) -> Iterator[Problem]:
    known = set(eval_set.eval_ids)
    for eval_id in config.case_criteria:
        if eval_id not in known:
            yield Problem(f"$.case_criteria[{eval_id!r}]", "criteria for a case that is not in the eval set", "the id of a case")


def _places(config: EvalConfig) -> Iterator[tuple[str, Criteria]]:
    yield "$.criteria", config.criteria
    for eval_id, criteria in config.case_criteria.items():
        yield f"$.case_criteria[{eval_id!r}]", criteria
