"""How the tool calls of the same turn differ between two runs, and what the reference says of each difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from mlflow_adk_eval.criteria.text.alignment import (
    Difference,
    Step,
    align,
    differences,
    same_call,
)
from mlflow_adk_eval.evalset import FunctionCall

_MOST_PLACES = 20

CallKind = Literal["same", "changed", "gone", "new", "moved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentChange:
    """One place in the arguments of a call that is not the same in both runs, each value as text."""

    path: str
    """A JSON path."""
    before: str
    after: str
    wanted: str
    """What the reference has there; empty where it has no such call, or none to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallChange:
    """A call of the first run beside the one that stands for it in the second."""

    kind: CallKind
    """*gone*: only before; *new*: only after; *moved*: on this side of a call that is elsewhere on the other."""
    before: FunctionCall | None
    after: FunctionCall | None
    expected: FunctionCall | None
    """The call of the reference that this one stands for."""
    right_before: bool | None
    """Whether the first run's call is as expected; ``None`` where it has none, or nothing is expected of the turn."""
    right_after: bool | None
    arguments: tuple[ArgumentChange, ...] = ()

    @property
    def tool(self) -> str:
        """The name of the tool."""
        call = self.after or self.before
        return (call.name if call else None) or "tool"


def call_changes(
    before: Sequence[FunctionCall], after: Sequence[FunctionCall], expected: Sequence[FunctionCall] | None
) -> tuple[CallChange, ...]:
    """Return both runs' calls side by side, in their order.

    Args:
        before: the calls of the first run.
        after: the calls of the second run.
        expected: those of the reference; ``None``: there is none.
    """
    wanted_before, wanted_after = _partners(before, expected), _partners(after, expected)
    steps = align(after, before)
    moved = _moved(steps)
    return tuple(_change(step, wanted_before, wanted_after, moved=id(step) in moved, compared=expected is not None) for step in steps)


def _partners(calls: Sequence[FunctionCall], expected: Sequence[FunctionCall] | None) -> dict[int, Step]:
    """Return for each call, by its identity, the step that pairs it with a call of the reference."""
    found = align(calls, expected) if expected is not None else []
    return {id(step.actual): step for step in found if step.actual is not None}


def _moved(steps: Sequence[Step]) -> set[int]:
    """Return the steps, by identity, whose call is both gone in one place and new in another."""
    gone = [step for step in steps if step.kind == "missing"]
    found: set[int] = set()
    for step in steps:
        if step.kind != "unexpected" or step.actual is None:
            continue
        twin = next((one for one in gone if id(one) not in found and one.expected and same_call(step.actual, one.expected)), None)
        if twin is not None:
            found |= {id(step), id(twin)}
    return found


_KINDS: dict[str, CallKind] = {"same": "same", "changed": "changed", "missing": "gone", "unexpected": "new"}


def _change(step: Step, wanted_before: dict[int, Step], wanted_after: dict[int, Step], *, moved: bool, compared: bool) -> CallChange:
    """Return a step of the alignment, in which the first run stands where a reference usually does."""
    left, right = wanted_before.get(id(step.expected)), wanted_after.get(id(step.actual))
    expected = next((found.expected for found in (right, left) if found and found.expected), None)
    found = CallChange(
        kind="moved" if moved else _KINDS[step.kind],
        before=step.expected,
        after=step.actual,
        expected=expected,
        right_before=_right(step.expected, left, compared=compared),
        right_after=_right(step.actual, right, compared=compared),
    )
    return replace(found, arguments=tuple(_arguments(found))) if found.kind == "changed" else found


def _right(call: FunctionCall | None, partner: Step | None, *, compared: bool) -> bool | None:
    return None if call is None or not compared else partner is not None and partner.kind == "same"


def _arguments(change: CallChange) -> Iterator[ArgumentChange]:
    before, after, expected = (call.args or {} if call else {} for call in (change.before, change.after, change.expected))
    unlike = {found.path: found.expected for found in differences(after, expected)}
    for found in islice(differences(after, before), _MOST_PLACES):
        wanted = _wanted(found, unlike) if change.expected else ""
        yield ArgumentChange(path=found.path, before=found.expected, after=found.actual, wanted=wanted)


def _wanted(found: Difference, unlike: Mapping[str, str]) -> str:
    """Return what the reference has where both runs differ; empty where it differs from the second run only further inside."""
    if found.path in unlike:
        return unlike[found.path]
    inside = any(path.startswith((f"{found.path}.", f"{found.path}[")) for path in unlike)
    return "" if inside else found.actual


def calls_of(value: Any) -> list[FunctionCall]:
    """Return the calls in a cell of a run's table."""
    listed = [call for call in value if isinstance(call, dict)] if isinstance(value, list) else []
    # A run has ten thousands of them, and what was just looked at needs no model to look at it again.
    return [FunctionCall.model_construct(name=str(call.get("name") or ""), args=_object(call.get("args"))) for call in listed]


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None
