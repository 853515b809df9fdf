"""``tool_trajectory_avg_score``: whether the agent called the expected tools, and which call is to blame."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from mlflow_adk_eval.config import ToolTrajectorySettings
from mlflow_adk_eval.criteria.alignment import Difference, Step, align, differences, trajectory_matches
from mlflow_adk_eval.criteria.base import CaseRun, judge_pairs, register
from mlflow_adk_eval.evalset import FunctionCall, Invocation
from mlflow_adk_eval.outcome import Judged, Scored

_MAX_SHOWN = 20
_MAX_ARGS = 200


@register("tool_trajectory_avg_score")
@dataclass(frozen=True, slots=True)
class ToolTrajectory:
    """1 for each turn whose tool calls match the expected ones, else 0; the case score is the mean.

    Source: ADK's evaluation criteria. Beside the score, the alignment of both sides is kept.
    """

    settings: ToolTrajectorySettings

    def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own."""
        return judge_pairs(run, self._turn)

    def _turn(self, actual: Invocation, expected: Invocation) -> Scored:
        got, want = actual.tool_calls, expected.tool_calls
        settings = self.settings
        if trajectory_matches(got, want, settings.match_type, ignore_args=settings.ignore_args):
            return Scored(1.0, _agreement(got, want))
        steps = align(got, want, ordered=settings.match_type != "ANY_ORDER", ignore_args=settings.ignore_args)
        return Scored(0.0, rationale(steps, settings), {"alignment": [_record(step) for step in steps]})


def _agreement(actual: Sequence[FunctionCall], expected: Sequence[FunctionCall]) -> str:
    more = len(actual) - len(expected)
    if not expected:
        return "No call was expected, and none was made." if not actual else f"No call was expected; {more} made, which this match type allows."
    called = "The expected call was made." if len(expected) == 1 else f"All {len(expected)} expected calls were made."
    return f"{called[:-1]}, and {more} more, which this match type allows." if more else called


def rationale(steps: Sequence[Step], settings: ToolTrajectorySettings) -> str:
    """Return an alignment as Markdown: a sentence, then a line for each call that is not as expected."""
    expected = sum(step.expected is not None for step in steps)
    same = sum(step.kind == "same" for step in steps)
    blamed = [step for step in steps if step.kind != "same"]
    head = f"{same} of {expected} expected calls match ({settings.match_type}{', arguments ignored' if settings.ignore_args else ''})."
    lines = [line for step in blamed[:_MAX_SHOWN] for line in _lines(step)]
    if len(blamed) > _MAX_SHOWN:
        lines.append(f"- and {len(blamed) - _MAX_SHOWN} more")
    if not blamed:
        lines.append("- the calls are the same, but not in the expected order")
    return "\n".join([head, "", *lines])


def _lines(step: Step) -> Iterator[str]:
    match step:
        case Step("changed", FunctionCall() as want, FunctionCall() as got):
            yield f"- `{want.name}` was called with other arguments:"
            for found in islice(_different(got, want), _MAX_SHOWN):
                yield f"  - `{found.path}`: expected {found.expected}, got {found.actual}"
        case Step("missing", FunctionCall() as want, _):
            yield f"- missing: `{_call(want)}`"
        case Step("unexpected", _, FunctionCall() as got):
            yield f"- unexpected: `{_call(got)}`"


def _different(actual: FunctionCall, expected: FunctionCall) -> Iterator[Difference]:
    return differences(actual.args or {}, expected.args or {})


def _call(call: FunctionCall) -> str:
    args = json.dumps(call.args or {}, ensure_ascii=False, default=str)
    return f"{call.name}({args[: _MAX_ARGS - 1] + '…' if len(args) > _MAX_ARGS else args})"


def _record(step: Step) -> dict[str, object]:
    record: dict[str, object] = {"kind": step.kind}
    for side, call in (("expected", step.expected), ("actual", step.actual)):
        if call is not None:
            record[side] = {"name": call.name, "args": call.args or {}}
    if step.kind == "changed" and step.actual and step.expected:
        record["differences"] = [
            {"path": found.path, "expected": found.expected, "actual": found.actual}
            for found in islice(_different(step.actual, step.expected), _MAX_SHOWN)
        ]
    return record
