"""How an eval set is evaluated: the criteria with their thresholds and settings, strictly checked.

The JSON is ADK's ``test_config.json``. Where ADK ignores a slip of the pen, this module names it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, SerializeAsAny, ValidationError
from pydantic_core import ErrorDetails

from mlflow_adk_eval.config.criteria import (
    CriterionSettings,
    CustomMetricConfig,
    CustomSettings,
    LiveModelConfig,
    RubricSettings,
    Settings,
    UserSimulatorConfig,
)
from mlflow_adk_eval.config.environment import EnvironmentSimulationConfig
from mlflow_adk_eval.config.spec import CRITERIA, CriterionSpec, is_measure
from mlflow_adk_eval.errors import ConfigError, Problem, did_you_mean, json_path, shown
from mlflow_adk_eval.evalset.digest import canonical, canonical_json
from mlflow_adk_eval.evalset.models import EvalCase, Json
from mlflow_adk_eval.evalset.parse import decode, problems_of, read_text
from mlflow_adk_eval.evalset.schema import unknown_keys

CONFIG_FILE = "test_config.json"
"""What the config beside an eval set is called."""

S = TypeVar("S", bound=Settings)

Criteria = dict[str, SerializeAsAny[CriterionSettings]]

_BY_CASE = ("case_criteria", "case_environments")


class EvalConfig(Settings):
    """The criteria that decide, in order, and how the agent is run."""

    criteria: Criteria
    custom_metrics: dict[str, CustomMetricConfig] | None = None
    user_simulator_config: UserSimulatorConfig | None = None
    live_model_config: LiveModelConfig | None = None
    environment_simulation_config: EnvironmentSimulationConfig | None = None
    """What answers tool calls in the place of tools. ADK has the class but no place for it here, and ignores it."""
    case_environments: dict[str, EnvironmentSimulationConfig | None] = Field(default_factory=dict)
    """What does so in single cases, by eval id, instead of that; ``None``: nothing. Our addition; ADK ignores it."""
    case_criteria: dict[str, Criteria] = Field(default_factory=dict)
    """Criteria of single cases, by eval id, instead of `criteria`. Our addition; ADK ignores it."""

    @cached_property
    def source(self) -> str:
        """What messages call it: the path of its file, where it has one. It is no part of what configs are compared by."""
        return "config"

    def criteria_of(self, eval_id: str) -> Criteria:
        """Return the criteria that decide one case."""
        return self.case_criteria.get(eval_id, self.criteria)

    def planned(self, case: EvalCase) -> Criteria:
        """Return the criteria that decide one case, without those whose settings leave it out."""
        return {name: settings for name, settings in self.criteria_of(case.eval_id).items() if settings.applies_to(case)}

    def without(self, eval_ids: Iterable[str]) -> EvalConfig:
        """Return the config without what it says of single cases, such as those that were left out of a selection."""
        left_out = set(eval_ids)
        kept = {name: {key: found for key, found in getattr(self, name).items() if key not in left_out} for name in _BY_CASE}
        return self.model_copy(update=kept)

    def environment_of(self, eval_id: str) -> EnvironmentSimulationConfig | None:
        """Return what answers tool calls in one case; ``None``: the tools."""
        return self.case_environments.get(eval_id, self.environment_simulation_config)

    def surroundings_of(self, eval_id: str) -> str:
        """Return the tool environment that only some cases have, as text: in another one the same words are another case."""
        environment = self.environment_of(eval_id) if self.case_environments else None
        return environment.model_dump_json() if environment else ""

    def greater_is_better(self, criterion: str) -> bool:
        """Whether a higher score of `criterion` is better."""
        return self._described(criterion).greater_is_better

    def bounds(self, criterion: str) -> tuple[float, float]:
        """Return the least and the greatest score of `criterion`; infinite where there is none."""
        return self._described(criterion).bounds

    def _described(self, criterion: str) -> CustomMetricConfig | CriterionSpec:
        """Return who tells the range and the direction of `criterion`: a name in `custom_metrics` stands for that metric."""
        return (self.custom_metrics or {}).get(criterion) or CRITERIA[criterion]

    def thresholds(self) -> dict[str, str]:
        """Return each deciding criterion's threshold as text; several, smallest first, where cases differ."""
        found: dict[str, set[float]] = {}
        for criteria in (self.criteria, *self.case_criteria.values()):
            for name, settings in criteria.items():
                found.setdefault(name, set()).add(settings.threshold)
        return {name: " | ".join(repr(value) for value in sorted(values)) for name, values in found.items()}

    def to_json(self) -> Json:
        """Return the config with every default spelt out, as ADK reads it."""
        dumped: Json = self.model_dump(mode="json", exclude_none=True)
        return {name: value for name, value in dumped.items() if value or name not in _BY_CASE}

    def digest(self) -> str:
        """Return ``sha256:<hex>`` of the config with every default spelt out."""
        return "sha256:" + hashlib.sha256(canonical_json(canonical(self.to_json()))).hexdigest()


def load_config(source: str | Path | Mapping[str, Any] | EvalConfig | None, *, beside: Path | None = None) -> EvalConfig:
    """Return the config from a file, a dict or an object.

    Args:
        source: where it is; ``None``: the ``test_config.json`` beside the eval set, else ADK's defaults.
        beside: the folder of the eval set, if it has one.

    Raises:
        ConfigError: with every problem of the config, or if a named file does not exist.
    """
    if source is None:
        found = beside / CONFIG_FILE if beside else None
        return load_config(found) if found and found.is_file() else default_config()
    if isinstance(source, EvalConfig):
        parse_config(source.to_json(), "config")  # one made by hand is held to the same rules
        return source
    if isinstance(source, Mapping):
        return parse_config(dict(source), "config")
    path = Path(source)
    return parse_config(decode(read_text(path, error=ConfigError), str(path), error=ConfigError), str(path))


def parse_config(value: Any, source: str) -> EvalConfig:
    """Return a decoded config.

    Raises:
        ConfigError: with every problem of the config.
    """
    if not isinstance(value, dict):
        raise ConfigError(source, [Problem("$", shown(value), "an object with criteria")])
    problems: list[Problem] = []
    frame = _read(EvalConfig, _without_criteria(value), "$", problems)
    customs = _custom_metrics(frame, value)
    problems += _taken_names(customs)
    criteria = _criteria(value["criteria"], "$.criteria", customs, problems) if "criteria" in value else {}
    cases = {
        str(eval_id): _criteria(found, f"$.{key}[{eval_id!r}]", customs, problems)
        for key in _CASE_CRITERIA
        for eval_id, found in _object(value.get(key)).items()
    }
    if not problems:
        problems += _unused(customs, (criteria, *cases.values()))
    if problems or frame is None:
        raise ConfigError(source, problems)
    config = frame.model_copy(update={"criteria": criteria, "case_criteria": cases})
    vars(config)["source"] = source
    return config


_CASE_CRITERIA = ("case_criteria", "caseCriteria")


def _without_criteria(value: dict[str, Any]) -> dict[str, Any]:
    """Return a config in which every group of criteria is empty, to be read apart, since each name has settings of its own."""
    groups: dict[str, Any] = {key: {} for key in _CASE_CRITERIA if isinstance(value.get(key), dict)}
    return value | groups | ({"criteria": {}} if "criteria" in value else {})


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _custom_metrics(frame: EvalConfig | None, value: dict[str, Any]) -> Mapping[str, CustomMetricConfig | None]:
    """Return the custom metrics; of a config that is wrong elsewhere, only their names."""
    if frame is not None:
        return frame.custom_metrics or {}
    return dict.fromkeys(_object(value.get("custom_metrics")) | _object(value.get("customMetrics")))


def _taken_names(customs: Iterable[str]) -> Iterator[Problem]:
    """Yield the custom metrics that stand in the place of something else: a rule on that would be about them, unseen."""
    for name in customs:
        if name in CRITERIA:
            found = "the name of a built-in criterion"
        elif is_measure(str(name)):
            found = "the name of a measure of the gate"
        else:
            continue
        yield Problem(json_path("$.custom_metrics", [name]), found, "a name of its own")


def _criteria(value: Any, at: str, customs: Mapping[str, CustomMetricConfig | None], problems: list[Problem]) -> Criteria:
    if not value or not isinstance(value, dict):
        found = "no criterion" if value == {} else shown(value)
        problems.append(Problem(at, found, "at least one criterion with its threshold, since without one everything passes"))
    read: Criteria = {}
    for name, given in _object(value).items():
        here = json_path(at, [name])
        if name not in customs and name not in CRITERIA:
            hint = did_you_mean(str(name), [*CRITERIA, *customs]) or f"Known are {', '.join(CRITERIA)}"
            problems.append(Problem(here, "an unknown criterion", "one of ADK's criteria, or a name in custom_metrics", hint))
            continue
        settings = _settings(name, given, here, customs, problems)
        if settings is not None:
            read[name] = settings
    return read


def _settings(
    name: str, given: Any, at: str, customs: Mapping[str, CustomMetricConfig | None], problems: list[Problem]
) -> CriterionSettings | None:
    bare = isinstance(given, bool | int | float | str)
    if not bare and not isinstance(given, dict):
        problems.append(Problem(at, shown(given), "a threshold, or an object with a threshold"))
        return None
    found: list[Problem] = []
    custom = name in customs
    cls = CustomSettings if custom else CRITERIA[name].settings
    settings = _read(cls, {"threshold": given} if bare else given, at, found, strict=not custom)
    if settings is not None:
        found += _out_of_bounds(settings.threshold, f"{at}.threshold", customs[name] if custom else CRITERIA[name])
        found += _bad_rubrics(settings, f"{at}.rubrics")
    problems += [replace(problem, path=at) for problem in found] if bare else found
    return settings


def _out_of_bounds(threshold: float, at: str, described: CustomMetricConfig | CriterionSpec | None) -> Iterator[Problem]:
    """Yield that no score can be the threshold; ``None``: a metric that could not be read, so nothing is known of its range."""
    if described is None:
        return
    low, high = described.bounds
    interval = described.interval if isinstance(described, CustomMetricConfig) else None
    open_end = interval is not None and ((interval.open_at_min and threshold == low) or (interval.open_at_max and threshold == high))
    if open_end or not low <= threshold <= high:
        wanted = f"a number of at least {low:g}" if math.isinf(high) else f"a number from {low:g} to {high:g}"
        yield Problem(at, f"{threshold:g}", f"a number between {low:g} and {high:g}" if open_end else wanted)


def _bad_rubrics(settings: CriterionSettings, at: str) -> Iterator[Problem]:
    rubrics = settings.rubrics if isinstance(settings, RubricSettings) else ()
    seen: set[str] = set()
    for index, rubric in enumerate(rubrics):
        if rubric.rubric_id in seen:
            yield Problem(f"{at}[{index}].rubric_id", f"{shown(rubric.rubric_id)} a second time", "an id of its own")
        if not (rubric.rubric_content.text_property or "").strip():
            yield Problem(f"{at}[{index}].rubric_content.text_property", "no text", "what the judge is to look for")
        seen.add(rubric.rubric_id)


def _unused(customs: Iterable[str], groups: Iterable[Criteria]) -> Iterator[Problem]:
    used = {name for criteria in groups for name in criteria}
    for name in customs:
        if name not in used:
            wanted = f"a threshold for it at {json_path('$.criteria', [name])}"
            yield Problem(json_path("$.custom_metrics", [name]), "a metric that no criterion names", wanted)


def _read(cls: type[S], value: Any, at: str, problems: list[Problem], *, strict: bool = False) -> S | None:
    """Return `value` as settings, or ``None`` after adding to `problems`; `strict`: whether models that keep unknown keys refuse them here."""
    unknown = [key for key in unknown_keys(cls, value) if strict or key.amiss]
    details: list[ErrorDetails] = []
    settings = None
    try:
        settings = cls.model_validate(value, extra="forbid" if strict else None)
    except ValidationError as error:
        details = error.errors(include_url=False)
    found = problems_of(cls, value, details, unknown, at=at)
    problems += found
    return None if found else settings


@cache
def default_config() -> EvalConfig:
    """Return what ADK uses where no config is given."""
    return parse_config({"criteria": {"tool_trajectory_avg_score": 1.0, "response_match_score": 0.8}}, "ADK's defaults")


def dumps_config(config: EvalConfig) -> str:
    """Return the config as indented JSON text."""
    return json.dumps(config.to_json(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
