"""From a config to the criteria that will be applied to each case, with every obstacle found before any work starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlflow_adk_eval.config.eval_config import (
    EFFICIENCY,
    Criteria,
    CriterionSettings,
    EvalConfig,
    FinalStateSettings,
    JudgedSettings,
    PairwiseSettings,
    RubricSettings,
    VertexSettings,
)
from mlflow_adk_eval.criteria.criterion import Criterion, Planned
from mlflow_adk_eval.criteria.custom import CustomMetric, load_function
from mlflow_adk_eval.criteria.rapid.criteria import RAPID_COMPUTED
from mlflow_adk_eval.criteria.registry import JUDGED, REGISTRY, VERTEX
from mlflow_adk_eval.criteria.rubrics import rubric_problem
from mlflow_adk_eval.errors import ConfigError, Problem, UsageError
from mlflow_adk_eval.evalset import EvalCase, EvalSet
from mlflow_adk_eval.judge.session import JudgeSession

_NEED_REFERENCE = {"tool_trajectory_avg_score", "response_match_score", "final_response_match_v2", *RAPID_COMPUTED}
_NEED_SCENARIO = {"per_turn_user_simulator_quality_v1"}
_MAX_NAMED = 5

Place = tuple[str, Criteria, list[EvalCase]]
"""Where in the config criteria stand, the criteria, and the cases they decide."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The criteria of each case, in the order of the config; then the efficiency metrics, as information."""

    default: tuple[Planned, ...]
    by_case: Mapping[str, tuple[Planned, ...]]
    judged: bool = False
    """Whether any criterion asks a judge."""
    pairwise: tuple[str, ...] = ()
    """The criteria that need a baseline."""

    def of(self, eval_id: str) -> tuple[Planned, ...]:
        """Return the criteria of one case."""
        return self.by_case.get(eval_id, self.default)


def plan(config: EvalConfig, eval_set: EvalSet, judging: JudgeSession | None = None) -> Plan:
    """Return what `config` asks for on `eval_set`.

    Args:
        config: the criteria.
        eval_set: the cases.
        judging: the judges; ``None``: those that the config names.

    Raises:
        UsageError: if the eval set holds an id twice.
        ConfigError: naming each criterion that cannot be applied to a case.
        JudgeError: if a judge cannot be had.
    """
    refuse_duplicates(eval_set)
    judges = judging or JudgeSession()
    places = _places(config, eval_set)
    problems = [*_inapplicable(config, places), *_without_rubrics(places), *_without_case(config, eval_set)]
    if problems:
        raise ConfigError("config", problems)
    default = tuple(_planned(config, config.criteria, judges))
    by_case: dict[str, tuple[Planned, ...]] = {}
    for _, criteria, cases in places:
        planned = default if criteria is config.criteria else tuple(_planned(config, criteria, judges))
        stateless = _without_state_criterion(planned, criteria)
        for case in cases:
            chosen = planned if case.final_session_state else stateless
            if chosen is not default:
                by_case[case.eval_id] = chosen
    return Plan(default, by_case, judged=judges.asked, pairwise=_pairwise(places))


def _places(config: EvalConfig, eval_set: EvalSet) -> list[Place]:
    """Return every set of criteria in a config once, also where several cases share it."""
    places: dict[int, Place] = {id(config.criteria): ("$.criteria", config.criteria, [])}
    for eval_id, criteria in config.case_criteria.items():
        places.setdefault(id(criteria), (f"$.case_criteria[{eval_id!r}]", criteria, []))
    for case in eval_set.eval_cases:
        places[id(config.criteria_of(case.eval_id))][2].append(case)
    return list(places.values())


def refuse_duplicates(eval_set: EvalSet) -> None:
    """Raise an error that names the ids that several cases of `eval_set` have."""
    twice = [eval_id for eval_id, count in Counter(eval_set.eval_ids).items() if count > 1]
    if twice:
        named = ", ".join(map(repr, twice[:_MAX_NAMED]))
        raise UsageError(f"eval set {eval_set.eval_set_id!r} has several cases of one id, which could not be told apart: {named}")


def _planned(config: EvalConfig, criteria: Criteria, judges: JudgeSession) -> Iterator[Planned]:
    for name, settings in criteria.items():
        yield Planned(
            name=name,
            criterion=_criterion(config, name, settings, judges),
            threshold=settings.threshold,
            greater_is_better=config.greater_is_better(name),
            judged=isinstance(settings, JudgedSettings),
        )
    for name in EFFICIENCY:
        if name not in criteria:
            yield Planned(name=name, criterion=REGISTRY[name](None), threshold=None, greater_is_better=False)


def _criterion(config: EvalConfig, name: str, settings: CriterionSettings, judges: JudgeSession) -> Criterion:
    custom = (config.custom_metrics or {}).get(name)
    if custom:
        return CustomMetric(name, load_function(name, custom), settings)
    if isinstance(settings, VertexSettings) and settings.backend == "vertex":
        return VERTEX[name](settings, judges.vertex())
    if isinstance(settings, JudgedSettings):
        return JUDGED[name](settings, judges.vote_collector(settings))
    return REGISTRY[name](settings)


def _without_state_criterion(planned: tuple[Planned, ...], criteria: Criteria) -> tuple[Planned, ...]:
    """Return what is planned for a case that expects no state: the same, unless the settings leave such cases out."""
    left_out = {name for name, settings in criteria.items() if isinstance(settings, FinalStateSettings) and settings.only_where_expected}
    return tuple(criterion for criterion in planned if criterion.name not in left_out) if left_out else planned


def _inapplicable(config: EvalConfig, places: list[Place]) -> Iterator[Problem]:
    """Yield the criteria that need what some of their cases do not have."""
    customs = set(config.custom_metrics or {})
    for at, criteria, cases in places:
        scenarios = [case.eval_id for case in cases if case.conversation is None]
        written = [case.eval_id for case in cases if case.conversation is not None]
        for name in criteria:
            if name in _NEED_REFERENCE - customs and scenarios:
                wanted = f"one that needs none, since these cases are scenarios: {_few(scenarios)}"
                yield Problem(f"{at}.{name}", "a criterion that needs a reference conversation", wanted)
            if name in _NEED_SCENARIO - customs and written:
                wanted = f"one that needs none, since these cases are written conversations: {_few(written)}"
                yield Problem(f"{at}.{name}", "a criterion that needs a conversation scenario", wanted)


def _without_rubrics(places: list[Place]) -> Iterator[Problem]:
    """Yield the rubric criteria that some of their cases have no rubrics for, or contradictory ones."""
    for at, criteria, cases in places:
        for name, settings in criteria.items():
            if isinstance(settings, RubricSettings):
                found = {case.eval_id: problem for case in cases if (problem := rubric_problem(name, settings, case))}
                for problem in dict.fromkeys(found.values()):
                    affected = _few([eval_id for eval_id, said in found.items() if said == problem])
                    yield Problem(f"{at}.{name}", f"{problem} in these cases: {affected}", "rubrics, here or in the eval set")


def _pairwise(places: list[Place]) -> tuple[str, ...]:
    found = (name for _, criteria, _ in places for name, settings in criteria.items() if isinstance(settings, PairwiseSettings))
    return tuple(dict.fromkeys(found))


def _few(named: list[str]) -> str:
    return ", ".join(named[:_MAX_NAMED]) + (f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else "")


def _without_case(config: EvalConfig, eval_set: EvalSet) -> Iterator[Problem]:
    known = set(eval_set.eval_ids)
    for eval_id in config.case_criteria:
        if eval_id not in known:
            yield Problem(f"$.case_criteria[{eval_id!r}]", "criteria for a case that is not in the eval set", "the id of a case")
