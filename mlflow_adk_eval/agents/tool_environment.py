"""The tool environment: what answers some tool calls in place of the tools, the same way in every evaluation.

`tool_environment` reads it from the config; `ToolEnvironment.open` gives each conversation its `CaseTools`, which the agent's session asks
before each tool call. An injection (an error, a response, a delay) applies by the call's arguments, its number, and a probability whose
draw depends only on seed, case, run and call. What was done is kept as `Injection` objects; `notes` reports tools that were named in vain.
"""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from mlflow_adk_eval.config.environment import EnvironmentSimulationConfig, InjectionConfig
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.criteria.text.alignment import json_equal
from mlflow_adk_eval.errors import ConfigError, Problem, did_you_mean, json_path, nearest
from mlflow_adk_eval.evalset import EvalSet, Invocation
from mlflow_adk_eval.evalset.conversation import Injection, InjectionKind
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.results.outcomes import CaseResult

_DECLARATIONS = ("function_declarations", "functionDeclarations")
_MAX_NAMED = 5


def notes(config: EvalConfig, cases: Sequence[CaseResult]) -> tuple[str, ...]:
    """Return sentences on the tools that the environment names and no agent has, and on those of which it changed no call.

    Args:
        config: what the tools were to be.
        cases: what took place.
    """
    environments = [settings for case in cases if case.actual and (settings := config.environment_of(case.eval_id))]
    named = dict.fromkeys(tool.tool_name for settings in environments for tool in settings.tool_simulation_configs)
    if not named:
        return ()
    injected = {injection.tool for case in cases for injection in case.injections}
    known = injected.union(*(_tools(turn) for case in cases for turn in case.actual))
    idle = [tool for tool in named if tool in known - injected]
    unheeded = [f"the tool environment answered or delayed no call of {_few(idle)}"] if idle else []
    return (*_on_unknown([tool for tool in named if tool not in known], known - named.keys()), *unheeded)


def _on_unknown(named: Iterable[str], others: set[str]) -> Iterator[str]:
    meant = {tool: nearest(tool, others) for tool in named}
    for tool, near in meant.items():
        if near:
            yield f"the tool environment names {tool!r}, which no agent has or called; did you mean {near!r}?"
    strange = [tool for tool, near in meant.items() if not near]
    if strange:
        yield f"the tool environment names {_few(strange)}, which no agent has or called"


def _tools(turn: Invocation) -> set[str]:
    """Return the tools that were called or declared."""
    agents = turn.app_details.agent_details.values() if turn.app_details else ()
    declared = {function["name"] for agent in agents for tool in agent.tool_declarations for function in _functions(tool)}
    return declared | {call.name for call in turn.tool_calls if call.name}


def _functions(declaration: Any) -> Iterable[Any]:
    return next((declaration[key] for key in _DECLARATIONS if key in declaration), ())


def _few(named: Sequence[str]) -> str:
    return ", ".join(map(repr, named[:_MAX_NAMED])) + (f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else "")


_SEED = 0


@dataclass(frozen=True, slots=True)
class ToolEnvironment:
    """The tools of an evaluation that are not the real ones."""

    config: EvalConfig

    def open(self, eval_id: str, run_index: int) -> CaseTools | None:
        """Return the tools of one conversation; ``None`` where all are the real ones."""
        settings = self.config.environment_of(eval_id)
        return CaseTools(settings, eval_id, run_index) if settings else None


def tool_environment(config: EvalConfig, eval_set: EvalSet) -> ToolEnvironment | None:
    """Return the tool environment that `config` asks for; ``None`` where it asks for none.

    Raises:
        ConfigError: naming each case that has an environment of its own and is not in the eval set.
    """
    known = dict.fromkeys(eval_set.eval_ids)
    problems = [_unknown(eval_id, known) for eval_id in config.case_environments if eval_id not in known]
    if problems:
        raise ConfigError("config", problems)
    return ToolEnvironment(config) if any(config.environment_of(eval_id) for eval_id in known) else None


def _unknown(eval_id: str, known: Iterable[str]) -> Problem:
    path = json_path("$.case_environments", [eval_id])
    return Problem(path, "tools for a case that is not in the eval set", "the id of a case", did_you_mean(eval_id, known))


@dataclass(slots=True)
class CaseTools:
    """The tools of one conversation."""

    settings: EnvironmentSimulationConfig
    eval_id: str
    run_index: int
    done: list[Injection] = field(default_factory=list[Injection])
    matched: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    """How many calls had the arguments that an injection asks for, by tool and index of the injection."""
    turn: int = -1
    asked: Counter[str] = field(default_factory=Counter[str])
    """How often each tool was called in this turn."""

    def next_turn(self) -> None:
        """Note that the next turn begins."""
        self.turn += 1
        self.asked.clear()

    @property
    def injections(self) -> tuple[Injection, ...]:
        """What was done so far."""
        return tuple(self.done)

    async def answer(self, tool: str, args: Mapping[str, Any], /) -> Json | None:
        """Return what `tool` is to have answered to a call; ``None``: it is to be called itself, perhaps after a delay."""
        call_index = self.asked[tool]
        self.asked[tool] += 1
        injection = self._chosen(tool, args)
        if injection is None:
            return None
        delay = injection.injected_latency_seconds
        # Before the delay, so that a turn whose time is up meanwhile tells why.
        self.done.append(Injection(invocation_index=self.turn, tool=tool, kind=_kind(injection), latency_s=delay, call_index=call_index))
        if delay:
            await anyio.sleep(delay)
        return _answer(injection)

    def _chosen(self, tool: str, args: Mapping[str, Any]) -> InjectionConfig | None:
        """Return the first injection that applies to a call, after each that it matches has counted it."""
        found = next((one for one in self.settings.tool_simulation_configs if one.tool_name == tool), None)
        if found is None:
            return None
        matching = [(index, one) for index, one in enumerate(found.injection_configs) if _matches(args, one.match_args)]
        applying = [one for index, one in matching if self._applies(tool, index, one)]
        return applying[0] if applying else None

    def _applies(self, tool: str, index: int, injection: InjectionConfig) -> bool:
        """Whether an injection happens to a call that it matches."""
        number = self.matched[tool, index]
        self.matched[tool, index] += 1
        seed = _SEED if injection.random_seed is None else injection.random_seed
        drawn = draw(seed, self.eval_id, self.run_index, tool, index, number)
        return _is_due(injection, number) and drawn < injection.injection_probability


def _is_due(injection: InjectionConfig, number: int) -> bool:
    if injection.on_calls is not None:
        return number in injection.on_calls
    return injection.first_calls is None or number < injection.first_calls


def _matches(args: Mapping[str, Any], wanted: Json | None) -> bool:
    return all(name in args and json_equal(args[name], value) for name, value in (wanted or {}).items())


def draw(*key: int | str) -> float:
    """Return a number from 0 up to 1, without 1, that depends on `key` alone: the same whatever was drawn before.

    >>> draw(7, "case", 0) == draw(7, "case", 0), draw(7, "case", 0) == draw(7, "case", 1)
    (True, False)
    """
    digest = hashlib.sha256(canonical_json(key)).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def _kind(injection: InjectionConfig) -> InjectionKind:
    if injection.injected_error is not None:
        return "error"
    return "latency" if injection.injected_response is None else "response"


def _answer(injection: InjectionConfig) -> Json | None:
    """Return the answer in ADK's shape, as a copy, since callbacks may change what tools answer."""
    if injection.injected_error is not None:
        return {
            "error_code": injection.injected_error.injected_http_error_code,
            "error_message": injection.injected_error.error_message,
        }
    return copy.deepcopy(injection.injected_response)
