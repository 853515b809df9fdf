"""The tool environment: what answers some tool calls in place of the tools, the same way in every evaluation.

`tool_environment` reads it from the config; `case_tools` gives each conversation its `CaseTools`, which the agent's session asks
before each tool call. An injection (an error, a response, a delay) applies by the call's arguments, its number, and a probability whose
draw depends only on seed, case, run and call. What was done is kept as `Injection` objects; `notes` reports tools that were named in vain.
"""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio

from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.surroundings import EnvironmentSimulationConfig, InjectionConfig
from mlflow_adk_eval.criteria.alignment import json_equal
from mlflow_adk_eval.criteria.transcript import DECLARATIONS
from mlflow_adk_eval.errors import ConfigError, Problem, did_you_mean, json_path, nearest
from mlflow_adk_eval.evalset.conversation import Injection, InjectionKind
from mlflow_adk_eval.evalset.models import EvalSet, Json, canonical_json
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.text import listed

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
    known = set(injected)
    for turn in (turn for case in cases for turn in case.actual):
        known |= {call.name for call in turn.tool_calls if call.name}
        for agent in turn.app_details.agent_details.values() if turn.app_details else ():
            declared = [tool[key] for tool in agent.tool_declarations for key in DECLARATIONS if key in tool]
            known |= {function["name"] for functions in declared for function in functions}
    others = known - named.keys()
    meant = {tool: nearest(tool, others) for tool in named if tool not in known}
    nobody = "but no agent has or called that tool; did you mean"
    sentences = [f"the tool environment names {tool!r}, {nobody} {near!r}?" for tool, near in meant.items() if near]
    strange = [repr(tool) for tool, near in meant.items() if not near]
    if strange:
        them = "them" if len(strange) > 1 else "that tool"
        sentences.append(f"the tool environment names {listed(strange, _MAX_NAMED)}, but no agent has or called {them}")
    idle = [repr(tool) for tool in named if tool in known - injected]
    if idle:
        sentences.append(f"the tool environment answered or delayed no call of {listed(idle, _MAX_NAMED)}")
    return tuple(sentences)


def tool_environment(config: EvalConfig, eval_set: EvalSet) -> Callable[[str, int], CaseTools | None] | None:
    """Return what makes the `case_tools` of a case and run, if `config` asks for a tool environment; ``None`` where it asks for none.

    Raises:
        ConfigError: naming each case that has an environment of its own and is not in the eval set.
    """
    known = dict.fromkeys(eval_set.eval_ids)
    stray, wanted = "tools for a case that is not in the eval set", "the id of a case"
    strays = [eval_id for eval_id in config.case_environments if eval_id not in known]
    if strays:
        places = {eval_id: json_path("$.case_environments", [eval_id]) for eval_id in strays}
        raise ConfigError("config", [Problem(at, stray, wanted, did_you_mean(eval_id, known)) for eval_id, at in places.items()])
    return partial(case_tools, config) if any(config.environment_of(eval_id) for eval_id in known) else None


def case_tools(config: EvalConfig, eval_id: str, run_index: int) -> CaseTools | None:
    """Return the tools of one conversation; ``None`` where all are the real ones."""
    settings = config.environment_of(eval_id)
    return CaseTools(settings, eval_id, run_index) if settings else None


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
    calls: Counter[str] = field(default_factory=Counter[str])
    """How often each tool was called in this turn."""
    world: None = None

    def next_turn(self) -> None:
        """Note that the next turn begins."""
        self.turn += 1
        self.calls.clear()

    @property
    def injections(self) -> tuple[Injection, ...]:
        """What was done so far."""
        return tuple(self.done)

    async def answer(self, tool: str, args: Mapping[str, Any], /) -> Json | None:
        """Return what `tool` is to have answered to a call; ``None``: it is to be called itself, perhaps after a delay."""
        call_index = self.calls[tool]
        self.calls[tool] += 1
        injection = self._chosen(tool, args)
        if injection is None:
            return None
        delay, error, response = injection.injected_latency_seconds, injection.injected_error, injection.injected_response
        kind: InjectionKind = "error" if error is not None else "latency" if response is None else "response"
        # Before the delay, so that a turn whose time is up meanwhile tells why.
        self.done.append(Injection(invocation_index=self.turn, tool=tool, kind=kind, latency_s=delay, call_index=call_index))
        if delay:
            await anyio.sleep(delay)
        if error is not None:  # in ADK's shape
            return {"error_code": error.injected_http_error_code, "error_message": error.error_message}
        return copy.deepcopy(response)  # since callbacks may change what tools answer

    def _chosen(self, tool: str, args: Mapping[str, Any]) -> InjectionConfig | None:
        """Return the first injection that applies to a call, after each that it matches has counted it."""
        configs = next((one.injection_configs for one in self.settings.tool_simulation_configs if one.tool_name == tool), ())
        applying: list[InjectionConfig] = []
        for index, injection in enumerate(configs):
            wanted = injection.match_args or {}
            if not all(name in args and json_equal(args[name], value) for name, value in wanted.items()):
                continue
            number = self.matched[tool, index]
            self.matched[tool, index] += 1
            due = injection.first_calls is None or number < injection.first_calls
            if injection.on_calls is not None:
                due = number in injection.on_calls
            drawn = draw(injection.random_seed or 0, self.eval_id, self.run_index, tool, index, number)
            if due and drawn < injection.injection_probability:
                applying.append(injection)
        return applying[0] if applying else None


def draw(*key: int | str) -> float:
    """Return a number from 0 up to 1, without 1, that depends on `key` alone: the same whatever was drawn before.

    >>> draw(7, "case", 0) == draw(7, "case", 0), draw(7, "case", 0) == draw(7, "case", 1)
    (True, False)
    """
    digest = hashlib.sha256(canonical_json(key)).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53
