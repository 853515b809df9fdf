"""The settings of the tool environment, in ADK's shape: which calls of tools are answered or delayed in the place of the tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from mlflow_adk_eval.config.criteria import Settings
from mlflow_adk_eval.errors import shown
from mlflow_adk_eval.evalset.models import Json

T = TypeVar("T")

_EFFECTS = ("injected_error", "injected_response", "injected_latency_seconds")
_ORDINALS = ("first_calls", "on_calls")
_NO_MODEL = "nothing, since what a model makes up differs from run to run; write what the tool is to answer as an injected_response"


def _unwanted(found: str, wanted: str, *, of: tuple[str, ...] = ()) -> PydanticCustomError:
    return PydanticCustomError("unwanted", "{wanted}", {"found": found, "wanted": wanted, "of": of})


def _json_object(value: Json | None) -> Json | None:
    """Return a copy that holds nothing but JSON."""
    try:
        copied: Json | None = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise _unwanted(f"an object that is no JSON ({error})", "an object of JSON values") from None
    return copied


def _at_least_one(noun: str) -> Callable[[tuple[T, ...]], tuple[T, ...]]:
    def some(values: tuple[T, ...]) -> tuple[T, ...]:
        if not values:
            raise _unwanted("an empty list", f"at least one {noun}")
        return values

    return some


def _no_strategy(value: Any) -> None:
    """Read ADK's ways to say that no model answers."""
    if value not in (None, 0, "MOCK_STRATEGY_UNSPECIFIED"):
        raise _unwanted(shown(value), _NO_MODEL)


def _no_model(value: Any) -> None:
    if value is not None:
        raise _unwanted(shown(value), _NO_MODEL)


_JsonObject = Annotated[Json | None, AfterValidator(_json_object)]
_Nothing = Annotated[None, BeforeValidator(_no_model)]
_Ordinal = Annotated[int, Field(ge=0)]


class InjectedError(Settings):
    """The failure that a tool call is answered with."""

    injected_http_error_code: int
    """What the agent finds as ``error_code``."""
    error_message: str
    """What the agent finds as ``error_message``."""


class InjectionConfig(Settings):
    """What happens to some calls of a tool: an error or a fixed response in place of its own, or just a delay."""

    injection_probability: float = Field(default=1.0, ge=0, le=1)
    """How likely it happens to a call that it could happen to."""
    match_args: _JsonObject = None
    """Only to calls with these arguments, among others."""
    first_calls: int | None = Field(default=None, ge=1)
    """Only to so many of those calls in a conversation, from the first one on. Our addition; ADK ignores it."""
    on_calls: Annotated[tuple[_Ordinal, ...], AfterValidator(_at_least_one("call, counted from 0"))] | None = None
    """Only to these of those calls in a conversation, counted from 0. Our addition; ADK ignores it."""
    injected_latency_seconds: float = Field(default=0.0, ge=0, le=120)
    """How long the call takes before anything else happens. Alone it delays the tool; ADK wants an answer besides."""
    random_seed: int | None = None
    """Another number draws other calls; none is 0. In ADK none differs from run to run."""
    injected_error: InjectedError | None = None
    injected_response: _JsonObject = None
    """What the tool answers. ``{}`` is an answer; ADK takes it for none."""

    @model_validator(mode="after")
    def _one_effect(self) -> Self:
        if self.injected_error is not None and self.injected_response is not None:
            raise _unwanted("both injected_error and injected_response", "one of them", of=_EFFECTS)
        if self.injected_error is None and self.injected_response is None and not self.injected_latency_seconds:
            raise _unwanted("nothing to inject", f"{', '.join(_EFFECTS[:-1])} or {_EFFECTS[-1]}", of=_EFFECTS)
        if self.first_calls is not None and self.on_calls is not None:
            raise _unwanted("both first_calls and on_calls", "one of them", of=_ORDINALS)
        return self


def _name(value: str) -> str:
    if not value.strip():
        raise _unwanted(shown(value), "the name of a tool")
    return value


class ToolSimulationConfig(Settings):
    """What happens to the calls of one tool."""

    tool_name: Annotated[str, AfterValidator(_name)]
    injection_configs: Annotated[tuple[InjectionConfig, ...], AfterValidator(_at_least_one("injection"))]
    """The first one that applies to a call happens to it; where none does, the tool itself answers."""
    mock_strategy_type: Annotated[None, BeforeValidator(_no_strategy)] = None
    """In ADK, how a model makes up answers. Refused."""


def _distinct(tools: tuple[ToolSimulationConfig, ...]) -> tuple[ToolSimulationConfig, ...]:
    first: dict[str, int] = {}
    for index, tool in enumerate(tools):
        earlier = first.setdefault(tool.tool_name, index)
        if earlier != index:
            raise _unwanted(f"{shown(tool.tool_name)} at [{earlier}] and again at [{index}]", "one entry for each tool")
    return tools


class EnvironmentSimulationConfig(Settings):
    """The tools that are not to be the real ones, in ADK's shape."""

    tool_simulation_configs: Annotated[tuple[ToolSimulationConfig, ...], AfterValidator(_at_least_one("tool")), AfterValidator(_distinct)]
    simulation_model: _Nothing = None
    """In ADK, which model makes up answers. Refused, as are the next three."""
    simulation_model_configuration: _Nothing = None
    tracing: _Nothing = None
    environment_data: _Nothing = None
