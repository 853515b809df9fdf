"""From a config to the criteria that will be applied to each case, with every obstacle found before any work starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlflow_adk_eval.config.criteria import CriterionSettings, JudgedSettings, RubricSettings, VertexSettings
from mlflow_adk_eval.config.eval_config import Criteria, EvalConfig
from mlflow_adk_eval.config.spec import CRITERIA, Need
from mlflow_adk_eval.criteria.criterion import Criterion, Planned
from mlflow_adk_eval.criteria.custom import CustomMetric, load_function
from mlflow_adk_eval.criteria.rubrics import rubric_problem
from mlflow_adk_eval.errors import ConfigError, Problem, UsageError
from mlflow_adk_eval.evalset import EvalCase, EvalSet

if TYPE_CHECKING:
    from mlflow_adk_eval.judge.session import JudgeSession

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
        UsageError: if the eval set holds an id twice, or one that is no text.
        ConfigError: naming each criterion that cannot be applied to a case.
        JudgeError: if a judge cannot be had.
    """
    check_ids(eval_set)
    judges = judging or _judges()
    places = _places(config, eval_set)
    problems = [*_inapplicable(config, places), *_without_rubrics(places), *_without_case(config, eval_set)]
    if problems:
        raise ConfigError("config", problems)
    default = tuple(_planned(config, config.criteria, judges))
    by_case: dict[str, tuple[Planned, ...]] = {}
    for _, criteria, cases in places:
        planned = default if criteria is config.criteria else tuple(_planned(config, criteria, judges))
        for case in cases:
            left_out = criteria.keys() - config.planned(case).keys()
            if left_out or planned is not default:
                by_case[case.eval_id] = tuple(one for one in planned if one.name not in left_out)
    return Plan(default, by_case, judged=judges.asked, pairwise=_pairwise(config, places))


def _judges() -> JudgeSession:
    from mlflow_adk_eval.judge.session import JudgeSession  # noqa: PLC0415 - reading a config loads this module, and asks no judge

    return JudgeSession()


def _places(config: EvalConfig, eval_set: EvalSet) -> list[Place]:
    """Return every set of criteria in a config once, also where several cases share it."""
    places: dict[int, Place] = {id(config.criteria): ("$.criteria", config.criteria, [])}
    for eval_id, criteria in config.case_criteria.items():
        places.setdefault(id(criteria), (f"$.case_criteria[{eval_id!r}]", criteria, []))
    for case in eval_set.eval_cases:
        places[id(config.criteria_of(case.eval_id))][2].append(case)
    return list(places.values())


def check_ids(eval_set: EvalSet) -> None:
    """Raise an error that names the ids by which cases of `eval_set` could not be told apart, or not be stored."""
    if broken := [eval_id for eval_id in eval_set.eval_ids if eval_id != eval_id.encode("utf-8", "replace").decode()]:
        raise UsageError(f"eval set {eval_set.eval_set_id!r} has the id {broken[0]!r}, which is no text in Unicode: half a surrogate pair")
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
    for name in CRITERIA.informative:
        if name not in criteria:
            spec = CRITERIA[name]
            yield Planned(name=name, criterion=spec.make(None), threshold=None, greater_is_better=spec.greater_is_better)


def _criterion(config: EvalConfig, name: str, settings: CriterionSettings, judges: JudgeSession) -> Criterion:
    custom = (config.custom_metrics or {}).get(name)
    if custom:
        return CustomMetric(name, load_function(name, custom), settings)
    spec = CRITERIA[name]
    made: Criterion
    if spec.by_service and isinstance(settings, VertexSettings) and settings.backend == "vertex":
        made = spec.by_service(settings, judges.vertex())
    elif isinstance(settings, JudgedSettings):
        made = spec.make(settings, judges.vote_collector(settings))
    else:
        made = spec.make(settings)
    return made


def _needs(config: EvalConfig, name: str) -> tuple[Need, ...]:
    """Return what a criterion cannot judge without; nothing for one of the user's own, which says nothing about that."""
    return () if name in (config.custom_metrics or {}) else CRITERIA[name].needs


def _inapplicable(config: EvalConfig, places: list[Place]) -> Iterator[Problem]:
    """Yield the criteria that need what some of their cases do not have."""
    for at, criteria, cases in places:
        scenarios = [case.eval_id for case in cases if case.conversation is None]
        written = [case.eval_id for case in cases if case.conversation is not None]
        lacking: tuple[tuple[Need, list[str], str, str], ...] = (
            ("reference", scenarios, "a reference conversation", "scenarios"),
            ("scenario", written, "a conversation scenario", "written conversations"),
        )
        for name in criteria:
            for need, affected, noun, kind in lacking:
                if need in _needs(config, name) and affected:
                    wanted = f"one that needs none, since these cases are {kind}: {_few(affected)}"
                    yield Problem(f"{at}.{name}", f"a criterion that needs {noun}", wanted)


def _without_rubrics(places: list[Place]) -> Iterator[Problem]:
    """Yield the rubric criteria that some of their cases have no rubrics for, or contradictory ones."""
    for at, criteria, cases in places:
        for name, settings in criteria.items():
            if isinstance(settings, RubricSettings):
                found = {case.eval_id: problem for case in cases if (problem := rubric_problem(name, settings, case))}
                for problem in dict.fromkeys(found.values()):
                    affected = _few([eval_id for eval_id, said in found.items() if said == problem])
                    yield Problem(f"{at}.{name}", f"{problem} in these cases: {affected}", "rubrics, here or in the eval set")


def _pairwise(config: EvalConfig, places: list[Place]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for _, criteria, _ in places for name in criteria if "baseline" in _needs(config, name)))


def _few(named: list[str]) -> str:
    return ", ".join(named[:_MAX_NAMED]) + (f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else "")


def _without_case(config: EvalConfig, eval_set: EvalSet) -> Iterator[Problem]:
    known = set(eval_set.eval_ids)
    for eval_id in config.case_criteria:
        if eval_id not in known:
            yield Problem(f"$.case_criteria[{eval_id!r}]", "criteria for a case that is not in the eval set", "the id of a case")
