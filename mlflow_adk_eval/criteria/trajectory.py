"""``tool_trajectory_avg_score``: whether the agent called the expected tools, and which call is to blame.

The calls of a turn are compared with those of its reference by `alignment`: ``EXACT`` wants the same calls in the same order, ``IN_ORDER``
allows others between them, ``ANY_ORDER`` allows any order. Arguments are compared as JSON values, unless ``ignore_args`` compares names only.
A mismatch is explained by the cheapest alignment of both sides, so that its rationale names single calls and arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from mlflow_adk_eval.config.spec import CriterionSettings, CriterionSpec, read_name
from mlflow_adk_eval.criteria.alignment import MATCH_TYPES, MatchType, Step, align, differences, trajectory_matches
from mlflow_adk_eval.criteria.criterion import CaseRun, judge_pairs
from mlflow_adk_eval.evalset.models import FunctionCall, Invocation
from mlflow_adk_eval.redact import cut
from mlflow_adk_eval.results.outcomes import Judged, Scored

_MAX_SHOWN = 20
_MAX_ARGS = 200


def _match_type(value: Any) -> Any:
    """Read a match type as ADK does: its number, or its name."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(MATCH_TYPES):
        return MATCH_TYPES[value]
    return read_name(value)


class ToolTrajectorySettings(CriterionSettings):
    """How tool calls must match the expected ones."""

    match_type: Annotated[MatchType, BeforeValidator(_match_type)] = Field(
        default="EXACT", description="how strictly the calls must match the expected calls."
    )
    ignore_args: bool = Field(default=False, description="whether the arguments of tool calls may differ.")


@dataclass(frozen=True, slots=True)
class ToolTrajectory:
    """1 for each turn whose tool calls match the expected ones, else 0; the case score is the mean.

    Source: ADK's evaluation criteria. The rationale of a 0 is the alignment of both sides.
    """

    settings: ToolTrajectorySettings

    def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own."""
        return judge_pairs(run, self._turn)

    def _turn(self, actual: Invocation, expected: Invocation) -> Scored:
        got, want = actual.tool_calls, expected.tool_calls
        if trajectory_matches(got, want, self.settings.match_type, ignore_args=self.settings.ignore_args):
            return _agreement(len(got), len(want))
        return Scored(0.0, rationale(got, want, self.settings))


@cache
def _agreement(actual: int, expected: int) -> Scored:
    more = f"{actual - expected} more, as this match type allows." if actual > expected else ""
    if not expected:
        return Scored(1.0, f"No call was expected; {actual} made, as this match type allows." if more else "No call was expected or made.")
    called = "The expected call was made" if expected == 1 else f"All {expected} expected calls were made"
    return Scored(1.0, f"{called}, and {more}" if more else f"{called}.")


def rationale(actual: Sequence[FunctionCall], expected: Sequence[FunctionCall], settings: ToolTrajectorySettings) -> str:
    """Return why calls do not match, as Markdown: a sentence or two, then a line for each call that is not as expected."""
    ordered = settings.match_type != "ANY_ORDER"
    steps = align(actual, expected, ordered=ordered, ignore_args=settings.ignore_args)
    same = sum(step.kind == "same" for step in steps)
    head = f"{same} of {len(expected)} expected calls match ({settings.match_type}{', arguments ignored' if settings.ignore_args else ''})."
    any_order, in_order = (
        trajectory_matches(actual, expected, kind, ignore_args=settings.ignore_args) for kind in ("ANY_ORDER", "IN_ORDER")
    )
    if ordered and any_order and not in_order:
        head += " All of them were made, but not in the expected order."
    blamed = [step for step in steps if step.kind != "same"]
    lines = [line for step in blamed[:_MAX_SHOWN] for line in _lines(step, extra_allowed=settings.match_type != "EXACT")]
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
        make=ToolTrajectory,
    ),
)
