"""What surrounds criteria in a config, with ADK's names, defaults and spellings: simulated users, the tool environment and replays.

The instructions of a simulated user may be a template of Jinja, filled in within its sandbox (`filled`; Jinja is loaded when there is one).
The tool environment (`EnvironmentSimulationConfig`) says which calls of tools are answered or delayed in the place of the tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from mlflow_adk_eval.config.spec import Settings
from mlflow_adk_eval.errors import did_you_mean, shown
from mlflow_adk_eval.evalset.models import Json, unwanted

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

_FILLED_IN = ("stop_signal", "conversation_plan", "conversation_history")
"""What the instructions of a simulated user cannot do without."""


def _instructions(template: str) -> str:
    """Refuse instructions that would leave the model without what it needs to know, or that name what nobody fills in."""
    try:
        named = placeholders(template)
    except ValueError as error:
        raise unwanted(f"an invalid template: {error}", "a Jinja template") from None
    if missing := [name for name in _FILLED_IN if name not in named]:
        found = " and no ".join(f"{{{{ {name} }}}}" for name in missing)
        raise unwanted(f"no {found}", "a Jinja template with " + ", ".join(f"{{{{ {name} }}}}" for name in _FILLED_IN))
    if unknown := sorted(named.difference(_FILLED_IN, ("persona",))):
        known = (*_FILLED_IN, "persona")
        wanted = f"only {', '.join(known)}"
        raise unwanted(f"{{{{ {unknown[0]} }}}}, an unknown placeholder", wanted, near=did_you_mean(unknown[0], known))
    return template


class UserSimulatorConfig(Settings):
    """Who plays the user in scenario cases. Settings of other simulators are kept."""

    model_config = ConfigDict(extra="allow")
    type: Annotated[Literal["llm_backed", "llm_audio"], BeforeValidator(lambda value: "llm_backed" if value is None else value)] = (
        "llm_backed"
    )
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


_BROKEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What the code of a template may raise besides Jinja's own errors."""


def placeholders(template: str) -> frozenset[str]:
    """Return the names that a template needs values for.

    Raises:
        ValueError: if it is no template.

    >>> sorted(placeholders("{% for b in persona.behaviors %}{{ b.name }}{% endfor %} {{ stop_signal }}"))
    ['persona', 'stop_signal']
    """
    from jinja2 import TemplateError, meta  # noqa: PLC0415

    environment = _jinja()
    try:
        environment.from_string(template)  # which finds unknown filters, too
        return frozenset(meta.find_undeclared_variables(environment.parse(template)))
    except TemplateError as error:
        raise ValueError(_reason(error)) from None


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Return a template with these values in it. Values are text, never templates themselves.

    Raises:
        ValueError: if it cannot be filled in.

    >>> filled("{{ plan }}!", {"plan": "{{ 6 * 7 }}"})
    '{{ 6 * 7 }}!'
    """
    from jinja2 import TemplateError  # noqa: PLC0415

    try:
        return _jinja().from_string(template).render(values)
    except (TemplateError, *_BROKEN) as error:
        raise ValueError(_reason(error)) from None


def _jinja() -> SandboxedEnvironment:
    from jinja2 import StrictUndefined  # noqa: PLC0415
    from jinja2.sandbox import SandboxedEnvironment  # noqa: PLC0415

    # Of a value that is none, a template shows nothing.
    environment = SandboxedEnvironment(undefined=StrictUndefined, finalize=lambda value: "" if value is None else value)
    environment.filters["render_string_filter"] = str  # ADK's templates have it; what it fills in is filled in already
    return environment


def _reason(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    return f"{error} (line {line})" if line else str(error)


_EFFECTS = ("injected_error", "injected_response", "injected_latency_seconds")
_NO_MODEL = "nothing: a model's made-up answers differ from run to run; set a fixed answer as injected_response"


def _json_object(value: Json | None) -> Json | None:
    """Return a copy that holds nothing but JSON."""
    try:
        copied: Json | None = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise unwanted(f"an object that is not JSON ({error})", "an object of JSON values") from None
    return copied


def _must(holds: Callable[[Any], Any], wanted: str, found: Callable[[Any], str] = shown) -> Callable[[Any], Any]:
    """Return what refuses a value of which something does not hold, and tells how it looks and what is wanted."""

    def checked(value: Any) -> Any:
        if not holds(value):
            raise unwanted(found(value), wanted)
        return value

    return checked


def _at_least_one(noun: str) -> Callable[[Any], Any]:
    return _must(bool, f"at least one {noun}", lambda _: "an empty list")


def _no_strategy(value: Any) -> None:
    """Read ADK's ways to say that no model answers."""
    if value not in (None, 0, "MOCK_STRATEGY_UNSPECIFIED"):
        raise unwanted(shown(value), _NO_MODEL)


_JsonObject = Annotated[Json | None, AfterValidator(_json_object)]
_Nothing = Annotated[None, BeforeValidator(_must(lambda value: value is None, _NO_MODEL))]


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
    on_calls: Annotated[tuple[Annotated[int, Field(ge=0)], ...], AfterValidator(_at_least_one("call, counted from 0"))] | None = None
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
            raise unwanted("both injected_error and injected_response", "one of them", of=_EFFECTS)
        if self.injected_error is None and self.injected_response is None and not self.injected_latency_seconds:
            raise unwanted("nothing to inject", f"{', '.join(_EFFECTS[:-1])} or {_EFFECTS[-1]}", of=_EFFECTS)
        if self.first_calls is not None and self.on_calls is not None:
            raise unwanted("both first_calls and on_calls", "one of them", of=("first_calls", "on_calls"))
        return self


class ToolSimulationConfig(Settings):
    """What happens to the calls of one tool."""

    tool_name: Annotated[str, AfterValidator(_must(str.strip, "the name of a tool"))]
    injection_configs: Annotated[tuple[InjectionConfig, ...], AfterValidator(_at_least_one("injection"))]
    """The first one that applies to a call happens to it; where none does, the tool itself answers."""
    mock_strategy_type: Annotated[None, BeforeValidator(_no_strategy)] = None
    """In ADK, how a model makes up answers. Refused."""


def _distinct(tools: tuple[ToolSimulationConfig, ...]) -> tuple[ToolSimulationConfig, ...]:
    first: dict[str, int] = {}
    for index, tool in enumerate(tools):
        earlier = first.setdefault(tool.tool_name, index)
        if earlier != index:
            raise unwanted(f"{shown(tool.tool_name)} at [{earlier}] and again at [{index}]", "one entry for each tool")
    return tools


class EnvironmentSimulationConfig(Settings):
    """The tools that are not to be the real ones, in ADK's shape."""

    tool_simulation_configs: Annotated[tuple[ToolSimulationConfig, ...], AfterValidator(_at_least_one("tool")), AfterValidator(_distinct)]
    simulation_model: _Nothing = None
    """In ADK, which model makes up answers. Refused, as are the next three."""
    simulation_model_configuration: _Nothing = None
    tracing: _Nothing = None
    environment_data: _Nothing = None


_JSON_PATH = re.compile(r"\$(\.[^.\[\]]+|\[(\*|\d+)\])+")
_Path = Annotated[str, AfterValidator(_must(_JSON_PATH.fullmatch, "a JSON path of an argument, such as $.request_id or $.items[*].id"))]


class ReplayConfig(Settings):
    """How calls are compared with recorded ones. Our addition; ADK ignores it."""

    ignore: tuple[_Path, ...] = ()
    """Arguments that do not matter, such as ``$.request_id``; for all tools."""
