"""``forbidden_tools_v1``: whether the agent left alone what it must never do.

A trajectory says what should happen, and some of its match types ignore every other call. This criterion says what must not happen. It needs
no reference: 1 for a turn without a forbidden call, else 0 with each such call.

Calls of agents that are tools count wherever they are known. Names are compared by what people see: ``Delete_Account`` forbids
``delete_account``, since a name that no tool has would forbid nothing, and say nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import not_
from typing import Any

from pydantic import Field, field_validator

from mlflow_adk_eval.config.spec import CriterionSpec, Settings
from mlflow_adk_eval.criteria.alignment import json_equal
from mlflow_adk_eval.criteria.criterion import CaseRun, missing_turns
from mlflow_adk_eval.criteria.trajectory import InnerCallSettings, all_calls
from mlflow_adk_eval.evalset.models import FunctionCall, Invocation, Json, unwanted
from mlflow_adk_eval.evalset.observation import unseen_inner_calls
from mlflow_adk_eval.redact import cut
from mlflow_adk_eval.results.outcomes import Errored, Judged, Outcome, Scored
from mlflow_adk_eval.text import appearance, counted

_MAX_SHOWN = 20
_MAX_ARGS = 200
_A_NAME = "the name of a tool"


class ForbiddenTool(Settings):
    """A tool that must not be called, or must not be called with certain arguments."""

    name: str
    args: Json | None = None
    """The call is forbidden only if it has these arguments, with these values, among others; ``None``: with any."""

    @field_validator("name")
    @classmethod
    def _named(cls, name: str) -> str:
        if not name.strip():
            raise unwanted("an empty text", _A_NAME)
        return name

    def forbids(self, call: FunctionCall) -> bool:
        """Whether a call is one of these."""
        return _same_name(self.name, call.name or "") and (self.args is None or contains(call.args or {}, self.args))

    def __str__(self) -> str:
        """Return the tool, and the arguments with which it is forbidden."""
        return self.name if self.args is None else _written(self.name, self.args)


def _same_name(one: str, other: str) -> bool:
    return one == other or appearance(one).casefold() == appearance(other).casefold()


def contains(value: Any, part: Any) -> bool:
    """Whether JSON has a part: of objects the keys with their values, at every level; all else is equal.

    >>> contains({"a": 1, "b": {"c": True, "d": []}}, {"b": {"c": True}}), contains({"a": [1, 2]}, {"a": [1]})
    (True, False)
    """
    if isinstance(value, dict) and isinstance(part, dict):
        return all(key in value and contains(value[key], wanted) for key, wanted in part.items())
    return json_equal(value, part)


class ForbiddenToolsSettings(InnerCallSettings):
    """Which tools must not be called."""

    tools: tuple[str | ForbiddenTool, ...] = Field(
        description="the tools that must not be called: a list of names, or of objects with `name` and the forbidden `args`."
    )

    include_inner_calls: bool = Field(
        default=False,
        exclude_if=not_,
        description="whether a turn has no score where the calls of ``AgentTool`` agents are not known. Known ones always count.",
    )

    @field_validator("tools")
    @classmethod
    def _some(cls, tools: tuple[str | ForbiddenTool, ...]) -> tuple[str | ForbiddenTool, ...]:
        if not tools:
            raise unwanted("no tool", "at least one tool that must not be called")
        if any(isinstance(tool, str) and not tool.strip() for tool in tools):
            raise unwanted("an empty text", _A_NAME)
        return tools

    @property
    def reads_inner_calls(self) -> bool:
        """It looks at all calls that are known."""
        return True

    @property
    def forbidden(self) -> tuple[ForbiddenTool, ...]:
        """The tools; a name alone stands for a tool with any arguments."""
        return tuple(ForbiddenTool(name=tool) if isinstance(tool, str) else tool for tool in self.tools)


@dataclass(frozen=True, slots=True)
class ForbiddenTools:
    """1 for each turn without a forbidden call, else 0; the case score is the mean."""

    settings: ForbiddenToolsSettings

    def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn that happened on its own."""
        cells = [self._turn(run, index, actual) for index, actual in enumerate(run.actual)]
        return Judged((*cells, *missing_turns(run)))

    def _turn(self, run: CaseRun, index: int, actual: Invocation) -> Outcome:
        calls = all_calls(actual, run.inner_calls, index)
        found = [(call, tool) for call in calls if (tool := self._forbidding(call)) is not None]
        if found:
            return Scored(0.0, _blaming(found))
        # What is known is enough to fail, but a call that nobody saw is not a call that was not made.
        if actual.tool_calls and (unknown := self._unknown(run, index)):
            return Errored(f"no forbidden call is known, but {unknown}")
        return Scored(1.0, f"No forbidden tool was called in {counted(len(calls), 'call')}." if calls else "No tool was called.")

    def _forbidding(self, call: FunctionCall) -> ForbiddenTool | None:
        return next((tool for tool in self.settings.forbidden if tool.forbids(call)), None)

    def _unknown(self, run: CaseRun, index: int) -> str:
        if run.inner_calls is None and not self.settings.include_inner_calls:
            return ""
        return unseen_inner_calls(run.inner_calls, index)


def _blaming(found: Sequence[tuple[FunctionCall, ForbiddenTool]]) -> str:
    lines = [f"- `{_written(call.name or '', call.args or {})}` is forbidden by `{tool}`" for call, tool in found[:_MAX_SHOWN]]
    if len(found) > _MAX_SHOWN:
        lines.append(f"- and {len(found) - _MAX_SHOWN} more")
    were = "call was" if len(found) == 1 else "calls were"
    return "\n".join([f"{len(found)} forbidden {were} made:", "", *lines])


def _written(name: str, args: Json) -> str:
    return f"{name}({cut(json.dumps(args, ensure_ascii=False, default=str), _MAX_ARGS)})"


SPECS = (
    CriterionSpec(
        name="forbidden_tools_v1",
        origin="ours",
        about="1 for each turn without a forbidden tool call, else 0; needs no reference",
        kept="the forbidden calls",
        settings=ForbiddenToolsSettings,
        needs=("calls",),
        make=ForbiddenTools,
    ),
)
