"""``tool_trajectory_avg_score`` and ``tool_parameter_match``: whether the agent called the expected tools, and which call is to blame.

The calls of a turn are compared with those of its reference. The trajectory matches or not, by `alignment`: ``EXACT`` wants the same calls in the
same order, ``IN_ORDER`` allows others between them, ``ANY_ORDER`` allows any order. Arguments are compared as JSON values, unless ``ignore_args``
compares names only. A mismatch is explained by the cheapest alignment of both sides, so that its rationale names single calls and arguments.
``tool_parameter_match`` gives credit for each expected argument; it pairs calls by name, as ADK does.

Both compare the calls that the events of a turn report. Where ``include_inner_calls`` asks for it, those of agents that are tools are among them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count, islice
from operator import not_
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from mlflow_adk_eval.config.spec import CriterionSettings, CriterionSpec, read_name
from mlflow_adk_eval.criteria.alignment import MATCH_TYPES, MatchType, Step, align, differences, json_equal, trajectory_matches
from mlflow_adk_eval.criteria.criterion import CaseRun, judge_pairs
from mlflow_adk_eval.evalset.conversation import InnerCall
from mlflow_adk_eval.evalset.models import OPEN, OPEN_CALLS, EvalCase, FunctionCall, Invocation
from mlflow_adk_eval.evalset.observation import Need
from mlflow_adk_eval.redact import cut
from mlflow_adk_eval.results.outcomes import Judged, Outcome, Scored, mean

_MAX_SHOWN = 20
_MAX_ARGS = 200


def _match_type(value: Any) -> Any:
    """Read a match type as ADK does: its number, or its name."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(MATCH_TYPES):
        return MATCH_TYPES[value]
    return read_name(value)


class ToolCallSettings(CriterionSettings):
    """Which tool calls are compared with the expected ones."""

    # Not written where it is off: then the config has the digest that it always had.
    include_inner_calls: bool = Field(
        default=False, exclude_if=not_, description="whether the calls of ``AgentTool`` agents count as well."
    )
    """Our addition; ADK ignores it."""

    @property
    def more_needs(self) -> tuple[Need, ...]:
        """The calls of agents that are tools, where they count."""
        return ("inner_calls",) if self.include_inner_calls else ()


class ToolTrajectorySettings(ToolCallSettings):
    """How tool calls must match the expected ones."""

    match_type: Annotated[MatchType, BeforeValidator(_match_type)] = Field(
        default="EXACT", description="how strictly the calls must match the expected calls."
    )
    ignore_args: bool = Field(default=False, description="whether the arguments of tool calls may differ.")


class ToolParameterSettings(ToolCallSettings):
    """Which arguments are compared with the expected ones."""

    def applies_to(self, case: EvalCase) -> bool:
        """Leave out a case that expects no call: it has no argument to compare."""
        is_open = OPEN in case.tags or OPEN_CALLS in case.tags
        return case.conversation is None or is_open or any(turn.tool_calls for turn in case.conversation)

    def scores_turn(self, case: EvalCase, index: int) -> bool:
        """Leave out a turn that expects no call."""
        return OPEN in case.tags or all(turn.tool_calls for turn in (case.conversation or ())[index : index + 1])


Compare = Callable[[Sequence[FunctionCall], Sequence[FunctionCall], Any], Scored | None]
"""From the calls of a turn, the expected ones and the settings to a score; ``None`` where there is nothing to score."""


@dataclass(frozen=True, slots=True)
class ComparedCalls:
    """Compares the calls of each turn with the expected ones; the case score is the mean."""

    settings: ToolCallSettings
    compare: Compare

    def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own."""
        turns = count()

        def judge(actual: Invocation, expected: Invocation) -> Outcome | None:
            calls = made_calls(actual, run.inner_calls, next(turns), self.settings)
            return self.compare(calls, expected.tool_calls, self.settings)

        return judge_pairs(run, judge)


def made_calls(actual: Invocation | None, inner: Sequence[InnerCall] | None, turn: int, settings: ToolCallSettings) -> list[FunctionCall]:
    """Return the calls of a turn that count, as far as they are known, in the order in which they began.

    Args:
        actual: what the agent did in the turn; ``None`` where it did not get there.
        inner: the calls of agents that are tools, in all turns; ``None``: not known.
        turn: the turn, counted from 0.
        settings: whether these count.
    """
    calls = actual.tool_calls if actual else []
    if not (settings.include_inner_calls and inner and calls):  # without a call, no agent was called as a tool
        return calls
    within = ((one.after, FunctionCall(name=one.tool, args=one.args)) for one in inner if one.turn == turn and not one.unseen)
    return [call for _, call in sorted([*enumerate(calls, start=1), *within], key=lambda one: one[0])]


@cache
def _agreement(actual: int, expected: int) -> Scored:
    more = f"{actual - expected} more, as this match type allows." if actual > expected else ""
    if not expected:
        return Scored(1.0, f"No call was expected; {actual} made, as this match type allows." if more else "No call was expected or made.")
    called = "The expected call was made" if expected == 1 else f"All {expected} expected calls were made"
    return Scored(1.0, f"{called}, and {more}" if more else f"{called}.")


def trajectory(got: Sequence[FunctionCall], want: Sequence[FunctionCall], settings: ToolTrajectorySettings) -> Scored:
    """Return 1 if calls match the expected ones, else 0, with each call that is not as expected.

    Source: ADK's evaluation criteria. The rationale of a 0 is the alignment of both sides.
    """
    kind, ignore = settings.match_type, settings.ignore_args
    if trajectory_matches(got, want, kind, ignore_args=ignore):
        return _agreement(len(got), len(want))
    steps = align(got, want, ordered=kind != "ANY_ORDER", ignore_args=ignore)
    blamed = [step for step in steps if step.kind != "same"]
    head = f"{len(steps) - len(blamed)} of {len(want)} expected calls match ({kind}{', arguments ignored' if ignore else ''})."
    any_order, in_order = (trajectory_matches(got, want, each, ignore_args=ignore) for each in ("ANY_ORDER", "IN_ORDER"))
    if kind != "ANY_ORDER" and any_order and not in_order:
        head += " All of them were made, but not in the expected order."
    return Scored(0.0, _blaming(head, blamed, extra_allowed=kind != "EXACT"))


def parameters(got: Sequence[FunctionCall], want: Sequence[FunctionCall], _: ToolParameterSettings) -> Scored | None:
    """Return the share of the expected arguments that calls have with equal values, as the mean over the expected calls.

    Source: ADK's ``tool_parameter_match``. Each expected call is paired with the next call of its name, and further arguments do not matter.
    """
    if not want:
        return None
    shares, blamed, following = list[float](), list[Step](), 0
    for call in want:
        place = next((place for place in range(following, len(got)) if got[place].name == call.name), None)
        if place is None:
            shares.append(0.0)
            blamed.append(Step("missing", call, None))
            continue
        following, due, made = place + 1, call.args or {}, got[place].args or {}
        given = {name: made[name] for name in due if name in made}
        equal = sum(json_equal(value, due[name]) for name, value in given.items())
        shares.append(equal / len(due) if due else 1.0)
        if equal < len(due):
            blamed.append(Step("changed", call, FunctionCall(name=call.name, args=given)))
    head = f"{len(want) - len(blamed)} of {len(want)} expected calls were made with the expected arguments."
    return Scored(mean(shares), _blaming(head, blamed, extra_allowed=True) if blamed else head)


def _blaming(head: str, blamed: Sequence[Step], *, extra_allowed: bool) -> str:
    lines = [line for step in blamed[:_MAX_SHOWN] for line in _lines(step, extra_allowed=extra_allowed)]
    if len(blamed) > _MAX_SHOWN:
        lines.append(f"- and {len(blamed) - _MAX_SHOWN} more")
    return "\n".join([head, "", *lines])


def _lines(step: Step, *, extra_allowed: bool) -> Iterator[str]:
    want, got = step.expected, step.actual
    if want and got:
        yield f"- `{want.name}` was called with different arguments:"
        for place in islice(differences(got.args or {}, want.args or {}), _MAX_SHOWN):
            yield f"  - `{place.path}`: expected {place.expected}, got {place.actual}"
    elif want:
        yield f"- missing: `{_call(want)}`"
    elif got:
        yield f"- {'in addition, as allowed' if extra_allowed else 'unexpected'}: `{_call(got)}`"


def _call(call: FunctionCall) -> str:
    return f"{call.name}({cut(json.dumps(call.args or {}, ensure_ascii=False, default=str), _MAX_ARGS)})"


SPECS = (
    CriterionSpec(
        name="tool_trajectory_avg_score",
        origin="adk",
        about="1 for each turn whose tool calls match the expected ones, else 0",
        kept="the calls that are missing, unexpected or have different arguments",
        settings=ToolTrajectorySettings,
        needs=("reference", "expected_calls", "calls"),
        make=partial(ComparedCalls, compare=trajectory),
    ),
    CriterionSpec(
        name="tool_parameter_match",
        origin="adk",
        about="the share of the expected arguments that each turn's tool calls have; turns that expect no call have no score",
        kept="the arguments that differ, and the calls that are missing",
        settings=ToolParameterSettings,
        needs=("reference", "expected_calls", "calls"),
        make=partial(ComparedCalls, compare=parameters),
    ),
)
