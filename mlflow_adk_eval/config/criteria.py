"""The settings that criteria share, and those of what surrounds them, with ADK's names, defaults and spellings.

What a single criterion takes besides stands beside its code, in a subclass of `CriterionSettings`, `JudgedSettings`, `RubricSettings` or
`VertexSettings`; the subclass also says who decides. A field's description is what the criterion's function says of its keyword.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from mlflow_adk_eval.config.template import placeholders
from mlflow_adk_eval.errors import did_you_mean
from mlflow_adk_eval.evalset.models import EvalCase, Json, Rubric


class Settings(BaseModel):
    """The base of all settings: immutable, both spellings, nothing unknown."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class CriterionSettings(Settings):
    """The settings that every criterion has."""

    threshold: float = Field(
        allow_inf_nan=False,
        description="what a row must reach (or, where lower is better, not exceed) to pass; in the unit of the score.",
    )
    include_intermediate_responses_in_final: bool = Field(
        default=False, description="whether what the agent said on the way belongs to its answer."
    )

    def applies_to(self, case: EvalCase) -> bool:  # noqa: ARG002 - for subclasses that leave cases out
        """Whether the criterion is planned for a case; else the case passes or fails without it."""
        return True


def read_name(value: Any) -> Any:
    """Read the name of a choice as ADK does: in any case, with dashes or spaces."""
    return value.strip().upper().replace("-", "_").replace(" ", "_") if isinstance(value, str) else value


class JudgeModelOptions(Settings):
    """Which model judges, and how often it is asked."""

    judge_model: str = "gemini-2.5-flash"
    judge_model_config: Json | None = None
    num_samples: int = Field(default=5, ge=1)
    parallelism_limit: int = Field(default=1, ge=1)


PromptVariant = Literal["standard", "repeated", "examples", "listed"]


class JudgedSettings(CriterionSettings):
    """A criterion that a model decides."""

    judge_model_options: JudgeModelOptions = Field(
        default=JudgeModelOptions(), description="which model judges and how often it is asked: a dict, as in a config."
    )
    early_stop: bool = Field(default=True, description="whether voting ends as soon as the missing votes cannot change the verdict.")
    """Our addition; ADK ignores it."""
    judge_panel: tuple[str, ...] | None = Field(
        default=None, min_length=2, description="several models that judge together, instead of `judge_model`; each casts as many votes."
    )
    """Our addition; ADK ignores it."""

    prompt: PromptVariant | None = Field(
        default=None,
        description="how the judge is asked: `standard`; `repeated`, with the task once more after the material; `examples`, with two worked examples; "
        "`listed`, with all rubrics or sentences in one block.",
    )
    """Our addition; ADK ignores it."""


class RubricSettings(JudgedSettings):
    """A criterion that a model decides by rubrics."""

    rubrics: tuple[Rubric, ...] = Field(default=(), description="what to look for in every row: a list of rubrics, as in a config.")


BACKEND = "who decides: Vertex AI's evaluation service, or the judge of `judge_model_options` with our prompts."


class VertexSettings(JudgedSettings):
    """A criterion of Vertex's evaluation service, which our own judge can decide instead."""

    backend: Literal["vertex", "judge"] = Field(default="vertex", description=BACKEND)
    """Our addition; ADK ignores it."""


class CustomSettings(CriterionSettings):
    """A function of the user's own; whatever else is given is passed to it."""

    model_config = ConfigDict(extra="allow")

    @model_serializer(mode="wrap")
    def _with_nulls(self, handler: SerializerFunctionWrapHandler) -> Json:
        """Keep null as a value of the function's own settings, whatever is left out elsewhere."""
        return {**handler(self), **(self.model_extra or {})}


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

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest score; infinite where the metric does not say."""
        return (self.interval.min_value, self.interval.max_value) if self.interval else (-math.inf, math.inf)


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
