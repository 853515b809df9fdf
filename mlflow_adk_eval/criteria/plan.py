"""From a config to the criteria that will be applied to each case, with every obstacle found before any work starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlflow_adk_eval.config.eval_config import Criteria, EvalConfig
from mlflow_adk_eval.config.spec import CRITERIA, CriterionSettings, CriterionSpec, JudgedSettings, RubricSettings, VertexSettings
from mlflow_adk_eval.criteria.coverage import Coverage
from mlflow_adk_eval.criteria.criterion import Criterion, Planned
from mlflow_adk_eval.criteria.custom import CustomMetric, load_function
from mlflow_adk_eval.criteria.rubrics import rubric_problem
from mlflow_adk_eval.errors import ConfigError, Problem, UsageError
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet
from mlflow_adk_eval.evalset.observation import Need
from mlflow_adk_eval.text import Few

if TYPE_CHECKING:
    from mlflow_adk_eval.judge.session import JudgeSession

_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """The criteria of each case, in the order of the config; then the efficiency metrics, as information."""

    default: tuple[Planned, ...]
    by_case: Mapping[str, tuple[Planned, ...]]
    judged: bool = False
    """Whether any criterion asks a judge."""
    pairwise: tuple[str, ...] = ()
    """The criteria that need a baseline."""
    coverage: Coverage | None = None
    """What the criteria read of the cases; ``None`` where no plan was made of any."""

    def criteria(self, config: EvalConfig) -> tuple[str, ...]:
        """Return the names of all criteria: in the order of the config, then those that are information."""
        configured = config.by_criterion
        planned = dict.fromkeys(one.name for plan in (self.default, *self.by_case.values()) for one in plan)
        return (*(name for name in configured if name in planned), *(name for name in planned if name not in configured))

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
        ConfigError: naming each criterion that cannot be applied to a case, or each endpoint that the caller does not allow.
        JudgeError: if a judge cannot be set up.
    """
    if judging is None:
        from mlflow_adk_eval.judge.session import JudgeSession  # noqa: PLC0415 - reading a config loads this module, and asks no judge

        judging = JudgeSession()
    judging.check(config)
    places = {id(config.criteria): _Place("$.criteria", config, config.criteria)}
    for eval_id, criteria in config.case_criteria.items():
        places.setdefault(id(criteria), _Place(f"$.case_criteria[{eval_id!r}]", config, criteria))
    coverage = Coverage(config)
    for case in eval_set.eval_cases:  # once: a set of a million cases is read from disk
        planned_for_case = config.planned(case)
        places[id(config.criteria_of(case.eval_id))].see(case, planned_for_case)
        coverage.see(case, planned_for_case)
    check_ids(eval_set)
    if problems := list(_problems(config, eval_set, list(places.values()))):
        raise ConfigError("config", problems)
    default = tuple(_planned(config, config.criteria, judging))
    by_case: dict[str, tuple[Planned, ...]] = {}
    for place in places.values():
        planned = default if place.criteria is config.criteria else tuple(_planned(config, place.criteria, judging))
        for eval_id, left_out in place.exceptions.items():
            by_case[eval_id] = tuple(one for one in planned if one.name not in left_out)
    pairwise = dict.fromkeys(name for place in places.values() for name, needs in place.needs.items() if "baseline" in needs)
    return Plan(default, by_case, judged=judging.asked, pairwise=tuple(pairwise), coverage=coverage)


class _Place:
    """Criteria at one place of the config, and what there is to know of the cases that they decide."""

    def __init__(self, at: str, config: EvalConfig, criteria: Criteria) -> None:
        self.at, self.config, self.criteria = at, config, criteria
        self.needs = {name: () if name in (config.custom_metrics or {}) else CRITERIA[name].needs for name in criteria}
        """What each criterion cannot judge without; nothing for one of the user's own, which says nothing about that."""
        self.lacking: dict[tuple[str, Need], Few] = {}
        """The cases of a kind that a criterion cannot judge, by criterion and by what it needs."""
        self.rubric_problems: dict[tuple[str, str], Few] = {}
        """The cases by criterion and by what is wrong."""
        self.exceptions: dict[str, frozenset[str]] = {}
        """The cases that are not planned like most, each with the criteria that leave it out."""
        self._by_kind: dict[Need, list[str]] = {
            "reference": [name for name, needs in self.needs.items() if "reference" in needs],
            "scenario": [name for name, needs in self.needs.items() if "scenario" in needs],
        }
        self._by_rubrics = {name: settings for name, settings in criteria.items() if isinstance(settings, RubricSettings)}

    def see(self, case: EvalCase, planned: Criteria) -> None:
        """Take note of a case and of the criteria that are planned for it."""
        lacking: Need = "reference" if case.conversation is None else "scenario"
        for name in self._by_kind[lacking]:
            if name in planned:
                self.lacking.setdefault((name, lacking), Few()).add([case.eval_id])
        for name, settings in self._by_rubrics.items():
            if name in planned and (problem := rubric_problem(name, settings, case)):
                self.rubric_problems.setdefault((name, problem), Few()).add([case.eval_id])
        if len(planned) < len(self.criteria) or self.criteria is not self.config.criteria:
            self.exceptions[case.eval_id] = frozenset(self.criteria.keys() - planned.keys())


def check_ids(eval_set: EvalSet) -> None:
    """Raise an error that names the ids by which cases of `eval_set` could not be told apart, or not be stored."""
    eval_ids = eval_set.eval_ids
    if broken := [eval_id for eval_id in eval_ids if eval_id != eval_id.encode("utf-8", "replace").decode()]:
        raise UsageError(f"eval set {eval_set.eval_set_id!r} has the id {broken[0]!r}: not valid Unicode (half a surrogate pair)")
    if len(set(eval_ids)) < len(eval_ids):
        twice = [eval_id for eval_id, count in Counter(eval_ids).items() if count > 1]
        named = ", ".join(map(repr, twice[:_MAX_NAMED]))
        raise UsageError(f"eval set {eval_set.eval_set_id!r} has several cases with the same id: {named}")


_KINDS: Mapping[Need, tuple[str, str]] = {
    "reference": ("a reference conversation", "scenarios"),
    "scenario": ("a conversation scenario", "written conversations"),
}
"""What a criterion may need that cases of the other kind never have, and what those are called."""


def _problems(config: EvalConfig, eval_set: EvalSet, places: Sequence[_Place]) -> Iterator[Problem]:
    """Yield the criteria that need what some of their cases lack, rubrics that are contradictory or missing, and cases that are not there."""
    for place in places:
        for (name, need), affected in place.lacking.items():
            noun, kind = _KINDS[need]
            wanted = f"a criterion without that need, because these cases are {kind}: {affected}"
            hint = "only_where_expected: true leaves them out"
            yield Problem(f"{place.at}.{name}", f"a criterion that needs {noun}", wanted, hint)
    for place in places:
        for (name, problem), affected in place.rubric_problems.items():
            yield Problem(f"{place.at}.{name}", f"{problem} in these cases: {affected}", "rubrics, here or in the eval set")
    known = set(eval_set.eval_ids) if config.case_criteria else set[str]()
    for eval_id in config.case_criteria:
        if eval_id not in known:
            yield Problem(f"$.case_criteria[{eval_id!r}]", "criteria for a case that is not in the eval set", "the id of a case")


def _planned(config: EvalConfig, criteria: Criteria, judges: JudgeSession) -> Iterator[Planned]:
    for name, settings in criteria.items():
        custom = (config.custom_metrics or {}).get(name)
        if custom:
            yield Planned(
                name=name,
                criterion=CustomMetric(name, load_function(name, custom), settings),
                threshold=config.threshold_of(name, settings),
                greater_is_better=config.greater_is_better(name),
            )
        else:
            spec = CRITERIA[name]
            decides = config.threshold_of(name, settings) is not None
            yield planned_by(spec, _criterion(spec, settings, judges), settings, decides=decides)
    for name in CRITERIA.informative:
        if name not in criteria:
            spec = CRITERIA[name]
            yield planned_by(spec, spec.make(None), None)


def _criterion(spec: CriterionSpec, settings: CriterionSettings, judges: JudgeSession) -> Criterion:
    """Return what judges by the settings, with its judge where it needs one."""
    criterion: Criterion
    if spec.by_service and isinstance(settings, VertexSettings) and settings.backend == "vertex":
        criterion = spec.by_service(settings, judges.vertex())
    elif isinstance(settings, JudgedSettings):
        criterion = spec.make(settings, judges.vote_collector(settings, spec.prompts))
    else:
        criterion = spec.make(settings)
    return criterion


def planned_by(
    spec: CriterionSpec,
    criterion: Criterion,
    settings: CriterionSettings | None,
    *,
    decides: bool = True,
) -> Planned:
    """Return a criterion of this package as it is planned.

    Args:
        spec: the criterion.
        criterion: what judges.
        settings: by which it judges; ``None``: it is measured as information.
        decides: whether its threshold can be missed.
    """
    return Planned(
        name=spec.name,
        criterion=criterion,
        threshold=settings.threshold if settings and decides else None,
        greater_is_better=spec.greater_is_better,
        judged=isinstance(settings, JudgedSettings),
        needs=spec.needs_by(settings),
        whole=spec.scope == "case",
        worst_of_nothing=spec.worst_of_nothing,
    )
