"""What a reader should know of a tool environment after a run: where it names a tool and nothing came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.errors import nearest
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.results.report import CaseResult

_DECLARATIONS = ("function_declarations", "functionDeclarations")
_MAX_NAMED = 5


def notes(config: EvalConfig, cases: Sequence[CaseResult]) -> tuple[str, ...]:
    """Return sentences on the tools that the environment names and that no agent has, and on those whose calls it let be.

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
