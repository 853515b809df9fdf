"""The settings of each criterion and of what surrounds it, with ADK's names, defaults and spellings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NoReturn

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from mlflow_adk_eval.config.template import placeholders
from mlflow_adk_eval.errors import did_you_mean
from mlflow_adk_eval.evalset.models import Json, Rubric

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


def _named(value: Any) -> Any:
    """Read a name as ADK does: in any case, with dashes or spaces."""
    return value.strip().upper().replace("-", "_").replace(" ", "_") if isinstance(value, str) else value


def _match_type(value: Any) -> Any:
    """Read a match type as ADK does: its number, or its name."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(_MATCH_TYPES):
        return _MATCH_TYPES[value]
    return _named(value)


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
    early_stop: bool = True
    """Whether voting ends as soon as the missing votes cannot change the verdict. Our addition; ADK ignores it."""


class RubricSettings(JudgedSettings):
    """A criterion that a model decides by rubrics."""

    rubrics: tuple[Rubric, ...] = ()


class HallucinationsSettings(JudgedSettings):
    """Whether what the agent said is supported by what it knew."""

    evaluate_intermediate_nl_responses: bool = False


class UserSimulatorSettings(JudgedSettings):
    """Whether the simulated user kept to its plan."""

    stop_signal: str = "</finished>"


class VertexSettings(JudgedSettings):
    """A criterion of Vertex's evaluation service, which our own judge can decide instead."""

    backend: Literal["vertex", "judge"] = "vertex"
    """Who decides: the service, or `judge_model_options` with our prompts. Our addition; ADK ignores it."""


class CoherenceSettings(VertexSettings):
    """A rating from 1 to 5."""

    bounds = (1.0, 5.0)


class EfficiencySettings(CriterionSettings):
    """A measured quantity, where lower is better."""

    bounds = (0.0, math.inf)
    greater_is_better = False


class FinalStateSettings(CriterionSettings):
    """How the session's final state must match the expected one."""

    match_type: Annotated[Literal["EXACT", "SUBSET"], BeforeValidator(_named)] = "SUBSET"
    """``SUBSET``: the expected keys with their values must be there; ``EXACT``: and no others."""
    only_where_expected: bool = False
    """Whether cases that expect no state are left out of the plan instead of missing evidence."""


class CustomSettings(CriterionSettings):
    """A function of the user's own; whatever else is given is passed to it."""

    model_config = ConfigDict(extra="allow")
    bounds = (-math.inf, math.inf)

    @model_serializer(mode="wrap")
    def _with_nulls(self, handler: SerializerFunctionWrapHandler) -> Json:
        """Keep null as a value of the function's own settings, whatever is left out elsewhere."""
        return {**handler(self), **(self.model_extra or {})}


SETTINGS: Mapping[str, type[CriterionSettings]] = {
    "tool_trajectory_avg_score": ToolTrajectorySettings,
    "response_match_score": CriterionSettings,
    "response_evaluation_score": CoherenceSettings,
    "final_response_match_v2": JudgedSettings,
    "rubric_based_final_response_quality_v1": RubricSettings,
    "rubric_based_tool_use_quality_v1": RubricSettings,
    "rubric_based_multi_turn_trajectory_quality_v1": RubricSettings,
    "hallucinations_v1": HallucinationsSettings,
    "safety_v1": VertexSettings,
    "per_turn_user_simulator_quality_v1": UserSimulatorSettings,
    "multi_turn_task_success_v1": VertexSettings,
    "multi_turn_trajectory_quality_v1": VertexSettings,
    "multi_turn_tool_use_quality_v1": VertexSettings,
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

    @property
    def interval(self) -> Interval | None:
        """The values that the metric can take, where it says so."""
        return self.metric_info.metric_value_info.interval if self.metric_info else None


def _simulator_type(value: Any) -> Any:
    return "llm_backed" if value is None else value


_FILLED_IN = ("stop_signal", "conversation_plan", "conversation_history")
"""What the instructions of a simulated user cannot do without."""


def _instructions(template: str) -> str:
    """Refuse instructions that would leave the model without what it needs to know, or that name what nobody fills in."""
    try:
        named = placeholders(template)
    except ValueError as error:
        _refuse(f"a template that is not valid: {error}", "a template of Jinja")
    if missing := [name for name in _FILLED_IN if name not in named]:
        found = " and no ".join(f"{{{{ {name} }}}}" for name in missing)
        _refuse(f"no {found}", "a template of Jinja with " + ", ".join(f"{{{{ {name} }}}}" for name in _FILLED_IN))
    if unknown := sorted(named.difference(_FILLED_IN, ("persona",))):
        known = (*_FILLED_IN, "persona")
        _refuse(f"{{{{ {unknown[0]} }}}}, which nobody fills in", f"only {', '.join(known)}", did_you_mean(unknown[0], known))
    return template


def _refuse(found: str, wanted: str, near: str = "") -> NoReturn:
    raise PydanticCustomError("unwanted", "{wanted}", {"found": found, "wanted": wanted, "near": near})


class UserSimulatorConfig(Settings):
    """Who plays the user in scenario cases. Settings of other simulators are kept."""

    model_config = ConfigDict(extra="allow")
    type: Annotated[Literal["llm_backed", "llm_audio"], BeforeValidator(_simulator_type)] = "llm_backed"
    model: str = "gemini-2.5-flash"
    model_configuration: Json | None = None
    max_allowed_invocations: int = Field(default=20, ge=-1)
    """How often the user may speak, the starting prompt included; ``-1``: without limit."""
    custom_instructions: Annotated[str, AfterValidator(_instructions)] | None = None
    """What the model is told instead of our own words: a template of Jinja."""
    include_function_calls: bool = False
    """Whether the model is shown the agent's tool calls and what they returned."""


class LiveModelConfig(Settings):
    """How to run bidirectional streaming models."""

    timeout_seconds: int = Field(default=300, gt=0)
