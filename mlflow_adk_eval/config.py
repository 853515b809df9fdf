"""How an eval set is evaluated: the criteria with their thresholds and settings, strictly checked.

The JSON is ADK's ``test_config.json``. Where ADK ignores a slip of the pen, this module names it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from mlflow_adk_eval.errors import ConfigError, Problem, did_you_mean, shown
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.evalset.models import Json, Rubric
from mlflow_adk_eval.evalset.parse import decode, read_text, wanted

CONFIG_FILE = "test_config.json"
EFFICIENCY = ("tool_call_count_v1", "inference_call_count_v1", "token_usage_v1", "invocation_duration_v1")
"""Measured on every run, as information; given a threshold, they decide, and then lower is better."""


class Settings(BaseModel):
    """The base of all settings: immutable, both spellings, nothing unknown."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class CriterionSettings(Settings):
    """The settings that every criterion has."""

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    greater_is_better: ClassVar[bool] = True

    threshold: float = Field(allow_inf_nan=False)
    """What a case must reach; in the unit of the score."""
    include_intermediate_responses_in_final: bool = False


_MATCH_TYPES = ("EXACT", "IN_ORDER", "ANY_ORDER")
MatchType = Literal["EXACT", "IN_ORDER", "ANY_ORDER"]


def _match_type(value: Any) -> Any:
    """Read a match type as ADK does: its number, or its name in any case, with dashes or spaces."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(_MATCH_TYPES):
        return _MATCH_TYPES[value]
    return value.strip().upper().replace("-", "_").replace(" ", "_") if isinstance(value, str) else value


class ToolTrajectorySettings(CriterionSettings):
    """How tool calls must match the expected ones."""

    match_type: Annotated[MatchType, BeforeValidator(_match_type)] = "EXACT"
    ignore_args: bool = False


class JudgeModelOptions(Settings):
    """Which model judges, and how often it is asked."""

    judge_model: str = "gemini-2.5-flash"
    judge_model_config: Json | None = None
    num_samples: int = Field(default=5, ge=1)
    parallelism_limit: int = Field(default=1, ge=1)


class JudgedSettings(CriterionSettings):
    """A criterion that a model decides."""

    judge_model_options: JudgeModelOptions = JudgeModelOptions()


class RubricSettings(JudgedSettings):
    """A criterion that a model decides by rubrics."""

    rubrics: tuple[Rubric, ...] = ()


class HallucinationsSettings(JudgedSettings):
    """Whether what the agent said is supported by what it knew."""

    evaluate_intermediate_nl_responses: bool = False


class UserSimulatorSettings(JudgedSettings):
    """Whether the simulated user kept to its plan."""

    stop_signal: str = "</finished>"


class CoherenceSettings(CriterionSettings):
    """A rating from 1 to 5."""

    bounds = (1.0, 5.0)


class EfficiencySettings(CriterionSettings):
    """A measured quantity, where lower is better."""

    bounds = (0.0, math.inf)
    greater_is_better = False


class FinalStateSettings(CriterionSettings):
    """How the session's final state must match the expected one."""

    match_type: Literal["EXACT", "SUBSET"] = "SUBSET"
    """``SUBSET``: the expected keys with their values must be there; ``EXACT``: and no others."""
    only_where_expected: bool = False
    """Whether cases that expect no state are left out of the plan instead of missing evidence."""


class CustomSettings(CriterionSettings):
    """A function of the user's own; whatever else is given is passed to it."""

    model_config = ConfigDict(extra="allow")
    bounds = (-math.inf, math.inf)


SETTINGS: Mapping[str, type[CriterionSettings]] = {
    "tool_trajectory_avg_score": ToolTrajectorySettings,
    "response_match_score": CriterionSettings,
    "response_evaluation_score": CoherenceSettings,
    "final_response_match_v2": JudgedSettings,
    "rubric_based_final_response_quality_v1": RubricSettings,
    "rubric_based_tool_use_quality_v1": RubricSettings,
    "rubric_based_multi_turn_trajectory_quality_v1": RubricSettings,
    "hallucinations_v1": HallucinationsSettings,
    "safety_v1": CriterionSettings,
    "per_turn_user_simulator_quality_v1": UserSimulatorSettings,
    "multi_turn_task_success_v1": CriterionSettings,
    "multi_turn_trajectory_quality_v1": CriterionSettings,
    "multi_turn_tool_use_quality_v1": CriterionSettings,
    **dict.fromkeys(EFFICIENCY, EfficiencySettings),
    "final_session_state": FinalStateSettings,
}
"""Every criterion by name, with the class of its settings."""


class CodeConfig(Settings):
    """A function, by its import path."""

    name: str


class Interval(Settings):
    """A range of values."""

    min_value: float
    open_at_min: bool = False
    max_value: float
    open_at_max: bool = False


class MetricValueInfo(Settings):
    """What values a metric takes."""

    interval: Interval | None = None


class MetricInfo(Settings):
    """What a custom metric says of itself."""

    metric_name: str
    description: str | None = None
    metric_value_info: MetricValueInfo = MetricValueInfo()
    requires_threshold: bool = True


class CustomMetricConfig(Settings):
    """A metric of the user's own."""

    code_config: CodeConfig
    metric_info: MetricInfo | None = None
    description: str = ""
    greater_is_better: bool = True
    """Our addition; ADK ignores it."""


class UserSimulatorConfig(Settings):
    """Who plays the user in scenario cases. Settings of other simulators are kept."""

    model_config = ConfigDict(extra="allow")
    type: Literal["llm_backed", "llm_audio"] = "llm_backed"
    model: str = "gemini-2.5-flash"
    model_configuration: Json | None = None
    max_allowed_invocations: int = Field(default=20, ge=-1)
    custom_instructions: str | None = None
    include_function_calls: bool = False


class LiveModelConfig(Settings):
    """How to run bidirectional streaming models."""

    timeout_seconds: int = Field(default=300, gt=0)


Criteria = dict[str, SerializeAsAny[CriterionSettings]]


class EvalConfig(Settings):
    """The criteria that decide, in order, and how the agent is run."""

    criteria: Criteria
    custom_metrics: dict[str, CustomMetricConfig] | None = None
    user_simulator_config: UserSimulatorConfig | None = None
    live_model_config: LiveModelConfig | None = None
    case_criteria: dict[str, Criteria] = {}
    """Criteria of single cases, by eval id, instead of `criteria`. Our addition; ADK ignores it."""

    def criteria_of(self, eval_id: str) -> Criteria:
        """Return the criteria that decide one case."""
        return self.case_criteria.get(eval_id, self.criteria)

    def greater_is_better(self, criterion: str) -> bool:
        """Whether a higher score of `criterion` is better."""
        if self.custom_metrics and criterion in self.custom_metrics:
            return self.custom_metrics[criterion].greater_is_better
        return SETTINGS[criterion].greater_is_better

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
        if not self.case_criteria:
            del dumped["case_criteria"]
        return dumped

    def digest(self) -> str:
        """Return ``sha256:<hex>`` of the config with every default spelt out."""
        return "sha256:" + hashlib.sha256(canonical_json(self.to_json())).hexdigest()


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
        return load_config(found) if found and found.is_file() else DEFAULT_CONFIG
    if isinstance(source, EvalConfig):
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
    custom = value.get("custom_metrics") or value.get("customMetrics") or {}
    names = custom if isinstance(custom, dict) else {}
    criteria = _criteria(value.get("criteria"), "$.criteria", names, problems, required="criteria" in value)
    overrides_key = "caseCriteria" if "caseCriteria" in value else "case_criteria"
    overrides = value.get(overrides_key) or {}
    cases = (
        {eval_id: _criteria(found, f"$.{overrides_key}[{eval_id!r}]", names, problems) for eval_id, found in overrides.items()}
        if isinstance(overrides, dict)
        else overrides
    )
    rest = {key: item for key, item in value.items() if key not in {"criteria", overrides_key}}
    config = _validated(EvalConfig, rest | {"criteria": criteria, "case_criteria": cases}, "$", problems)
    if config is not None:
        problems += _unused(config)
    if problems or config is None:
        raise ConfigError(source, problems)
    return config


def _criteria(value: Any, at: str, custom: Mapping[str, Any], problems: list[Problem], *, required: bool = True) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        found = "nothing" if not required else "no criterion" if value == {} else shown(value)
        problems.append(Problem(at, found, "at least one criterion with its threshold, since without one everything passes"))
        return {}
    read = {}
    for name, given in value.items():
        here = f"{at}.{name}"
        settings_class = CustomSettings if name in custom else SETTINGS.get(name)
        if settings_class is None:
            hint = did_you_mean(name, [*SETTINGS, *custom]) or f"Known are {', '.join(SETTINGS)}"
            problems.append(Problem(here, "an unknown criterion", "one of ADK's criteria, or a name in custom_metrics", hint))
            continue
        settings = _settings(settings_class, given, here, problems)
        if settings is not None:
            problems += _out_of_bounds(settings, here, custom.get(name))
            read[name] = settings
    return read


def _settings(cls: type[CriterionSettings], given: Any, at: str, problems: list[Problem]) -> CriterionSettings | None:
    if isinstance(given, bool | int | float | str):
        given = {"threshold": given}
    if not isinstance(given, dict):
        problems.append(Problem(at, shown(given), "a threshold, or an object with a threshold"))
        return None
    return _validated(cls, given, at, problems)


def _out_of_bounds(settings: CriterionSettings, at: str, custom: Any) -> Iterator[Problem]:
    low, high = settings.bounds
    interval = custom
    for key, camel in (("metric_info", "metricInfo"), ("metric_value_info", "metricValueInfo"), ("interval", "interval")):
        interval = (interval.get(key) or interval.get(camel)) if isinstance(interval, dict) else None
    if isinstance(interval, dict):
        ends = (interval.get("min_value", interval.get("minValue")), interval.get("max_value", interval.get("maxValue")))
        if all(isinstance(end, int | float) for end in ends):
            low, high = float(ends[0]), float(ends[1])
    if not low <= settings.threshold <= high:
        yield Problem(f"{at}.threshold", f"{settings.threshold:g}", f"a number from {low:g} to {high:g}")


def _unused(config: EvalConfig) -> Iterator[Problem]:
    used = {name for criteria in (config.criteria, *config.case_criteria.values()) for name in criteria}
    for name in config.custom_metrics or {}:
        if name not in used:
            yield Problem(f"$.custom_metrics.{name}", "a metric that no criterion names", f"a threshold for it at $.criteria.{name}")


def _validated(cls: Any, value: Any, at: str, problems: list[Problem]) -> Any:
    try:
        return cls.model_validate(value)
    except ValidationError as error:
        problems += [_problem(cls, detail, at) for detail in error.errors(include_url=False)]
        return None


def _problem(cls: type[BaseModel], detail: ErrorDetails, at: str) -> Problem:
    steps = detail["loc"]
    path = at + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    if detail["type"] == "extra_forbidden":
        owner = cls
        for step in steps[:-1]:
            owner = _inner(owner, step)
        known = sorted(owner.model_fields)
        hint = did_you_mean(str(steps[-1]), known)
        return Problem(path, "an unknown key", f"one of {', '.join(known)}", hint)
    return Problem(path, "nothing" if detail["type"] == "missing" else shown(detail["input"]), wanted(detail))


def _inner(cls: type[BaseModel], step: int | str) -> type[BaseModel]:
    """Return the model class of a field, looking through optionals and containers; `cls` itself for keys and indexes."""
    for name, info in cls.model_fields.items():
        if step in {name, info.alias}:
            found = [kind for kind in _models(info.annotation)]
            return found[0] if found else cls
    return cls


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models(argument)


DEFAULT_CONFIG = parse_config({"criteria": {"tool_trajectory_avg_score": 1.0, "response_match_score": 0.8}}, "ADK's defaults")
"""What ADK uses where no config is given."""


def dumps_config(config: EvalConfig) -> str:
    """Return the config as indented JSON text."""
    return json.dumps(config.to_json(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
