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
from mlflow_adk_eval.criteria.alignment import (
    MATCH_TYPES,
    GeneratedIds,
    MatchType,
    Step,
    align,
    call_differences,
    compared_args,
    same_args,
    trajectory_matches,
)
from mlflow_adk_eval.criteria.criterion import CaseRun, judge_pairs
from mlflow_adk_eval.criteria.expected import ExpectedCallsSettings
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


class InnerCallSettings(CriterionSettings):
    """Whether the calls of agents that are tools count."""

    # Not written where it is off: then the config has the digest that it always had.
    include_inner_calls: bool = Field(
        default=False, exclude_if=not_, description="whether the calls of ``AgentTool`` agents count as well."
    )
    """Our addition; ADK ignores it."""

    @property
    def reads_inner_calls(self) -> bool:
        """Whether the criterion looks at these calls."""
        return self.include_inner_calls

    @property
    def more_needs(self) -> tuple[Need, ...]:
        """The calls of agents that are tools, where they count."""
        return ("inner_calls",) if self.include_inner_calls else ()


class ToolCallSettings(ExpectedCallsSettings, InnerCallSettings):
    """Which tool calls are compared with the expected ones."""


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
        if not super().applies_to(case):
            return False
        return case.conversation is None or _is_open(case) or any(turn.tool_calls for turn in case.conversation)

    def scores_turn(self, case: EvalCase, index: int) -> bool:
        """Leave out a turn that expects no call."""
        if not super().scores_turn(case, index):
            return False
        return _is_open(case) or all(turn.tool_calls for turn in (case.conversation or ())[index : index + 1])


def _is_open(case: EvalCase) -> bool:
    """Whether nobody has written yet which calls are expected."""
    return OPEN in case.tags or OPEN_CALLS in case.tags


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

        return judge_pairs(run, judge, self.settings)


def made_calls(actual: Invocation | None, inner: Sequence[InnerCall] | None, turn: int, settings: ToolCallSettings) -> list[FunctionCall]:
    """Return the calls of a turn that count, as far as they are known, in the order in which they began.

    Args:
        actual: what the agent did in the turn; ``None`` where it did not get there.
        inner: the calls of agents that are tools, in all turns; ``None``: not known.
        turn: the turn, counted from 0.
        settings: whether these count.
    """
    if settings.include_inner_calls:
        return all_calls(actual, inner, turn)
    return actual.tool_calls if actual else []


def all_calls(actual: Invocation | None, inner: Sequence[InnerCall] | None, turn: int) -> list[FunctionCall]:
    """Return the calls of a turn and of agents that are tools, as far as they are known, in the order in which they began."""
    calls = actual.tool_calls if actual else []
    if not inner or not calls:  # without a call, no agent was called as a tool
        return calls
    within = ((one.after, FunctionCall(name=one.tool, args=one.args)) for one in inner if one.turn == turn and not one.unseen)
    return [call for _, call in sorted([*enumerate(calls, start=1), *within], key=lambda one: one[0])]


def ignored_by(settings: ToolTrajectorySettings) -> str:
    """Return what is said of a call that was not expected and does not count, as ``IN_ORDER`` and ``ANY_ORDER`` have it.

    >>> ignored_by(ToolTrajectorySettings(threshold=1.0, match_type="IN_ORDER"))
    'not expected; ignored by IN_ORDER'
    """
    return f"not expected; ignored by {settings.match_type}"


def ignored_calls(got: Sequence[FunctionCall], want: Sequence[FunctionCall], settings: ToolTrajectorySettings) -> list[FunctionCall]:
    """Return the calls that were not expected and that the match type ignores."""
    if settings.match_type == "EXACT" or not got:
        return []
    steps = align(got, want, ordered=settings.match_type != "ANY_ORDER", ignore_args=settings.ignore_args)
    return [step.actual for step in steps if step.kind == "unexpected" and step.actual]


@cache
def _agreement(expected: int) -> Scored:
    if not expected:
        return Scored(1.0, "No call was expected or made.")
    return Scored(1.0, f"{_all_made(expected)}.")


def _all_made(expected: int) -> str:
    return "The expected call was made" if expected == 1 else f"All {expected} expected calls were made"


def _counted_were(number: int) -> str:
    return f"{number} {'was' if number == 1 else 'were'}"


def _agreement_with_more(got: Sequence[FunctionCall], want: Sequence[FunctionCall], settings: ToolTrajectorySettings) -> Scored:
    head = f"{_all_made(len(want))}." if want else f"No call was expected, {_counted_were(len(got))} made."
    more = [Step("unexpected", None, call) for call in ignored_calls(got, want, settings)]
    return Scored(1.0, _blaming(head, more, unexpected=ignored_by(settings)))


def trajectory(got: Sequence[FunctionCall], want: Sequence[FunctionCall], settings: ToolTrajectorySettings) -> Scored:
    """Return 1 if calls match the expected ones, else 0, with each call that is not as expected.

    Source: ADK's evaluation criteria. The rationale of a 0 is the alignment of both sides.
    """
    kind, ignore = settings.match_type, settings.ignore_args
    if trajectory_matches(got, want, kind, ignore_args=ignore):
        return _agreement_with_more(got, want, settings) if len(got) > len(want) else _agreement(len(want))
    steps = align(got, want, ordered=kind != "ANY_ORDER", ignore_args=ignore)
    blamed = [step for step in steps if step.kind != "same"]
    how = f"{kind}, arguments ignored" if ignore else kind
    if want:
        head = f"{len(steps) - len(blamed)} of {len(want)} expected calls match ({how})."
    else:
        head = f"No call was expected, {_counted_were(len(got))} made."
    any_order, in_order = (trajectory_matches(got, want, each, ignore_args=ignore) for each in ("ANY_ORDER", "IN_ORDER"))
    if kind != "ANY_ORDER" and any_order and not in_order:
        head += " All of them were made, but not in the expected order."
    return Scored(0.0, _blaming(head, blamed, unexpected="unexpected" if kind == "EXACT" else ignored_by(settings)))


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
        following, due, made = place + 1, compared_args(call), compared_args(got[place])
        given = {name: made[name] for name in due if name in made}
        ids = GeneratedIds()
        equal = sum(same_args(value, due[name], ids) for name, value in given.items())
        shares.append(equal / len(due) if due else 1.0)
        if equal < len(due):
            blamed.append(Step("changed", call, FunctionCall(name=call.name, args=given)))
    head = f"{len(want) - len(blamed)} of {len(want)} expected calls were made with the expected arguments."
    return Scored(mean(shares), _blaming(head, blamed, unexpected="unexpected") if blamed else head)


def _blaming(head: str, blamed: Sequence[Step], *, unexpected: str) -> str:
    lines = [line for step in blamed[:_MAX_SHOWN] for line in _lines(step, unexpected=unexpected)]
    if len(blamed) > _MAX_SHOWN:
        lines.append(f"- and {len(blamed) - _MAX_SHOWN} more")
    return "\n".join([head, "", *lines])


def _lines(step: Step, *, unexpected: str) -> Iterator[str]:
    want, got = step.expected, step.actual
    if want and got:
        yield f"- `{want.name}` was called with different arguments:"
        for place in islice(call_differences(got, want), _MAX_SHOWN):
            yield f"  - `{place.path}`: expected {place.expected}, got {place.actual}"
    elif want:
        yield f"- missing: `{_call(want)}`"
    elif got:
        yield f"- {unexpected}: `{_call(got)}`"


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
