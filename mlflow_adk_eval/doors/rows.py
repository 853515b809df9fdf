"""From the cells of a row, in the words of somebody's table, to an eval case and what an agent did on it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from mlflow_adk_eval.agents import Played
from mlflow_adk_eval.agents.recording import invocation_of
from mlflow_adk_eval.criteria.rubrics import RUBRIC_TYPES
from mlflow_adk_eval.errors import EvalSetError, Problem, shown
from mlflow_adk_eval.evalset import (
    Content,
    EvalCase,
    FunctionCall,
    FunctionResponse,
    IntermediateData,
    Invocation,
    Part,
    Rubric,
    SessionInput,
)
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.evalset.parse import parse

CELLS: Mapping[str, str] = {
    "inputs": "what the user said: a text, or a list of texts, one per turn",
    "predictions": "what the agent did: its answer as a text, an invocation (a dict in ADK's format), or a list of invocations",
    "targets": "what it should have done: a text, an invocation, a list of invocations, or an eval case",
    "tool_calls": 'the tools it called, in a row of one turn: a list of {"name", "args"} and perhaps "response"',
    "expected_tool_calls": 'the tools it should have called: a list of {"name", "args"}',
    "rubrics": "what a judge should look for: a list of texts, or of rubrics in ADK's format",
    "session_input": "the session it started in, in ADK's format",
    "session_state": "the state of its session after the last turn, as a dict",
    "expected_session_state": "the state that it should have left",
    "eval_id": "the name of the case",
    "run_index": "which run of the case it is, from 0",
    "error": "why the agent did not finish the case; nothing where it did",
    "unfinished": "whether the last turn is the one in which the agent failed",
}
"""Every cell that a row may have, by name, and what it holds. All but ``predictions`` may be missing."""

RESPONSE, CALLS, MADE = "targets", "expected_tool_calls", "tool_calls"
"""Cells that some criteria cannot do without."""

_CASE = TypeAdapter(EvalCase)
_SESSION = TypeAdapter(SessionInput)
_RUBRICS = TypeAdapter(tuple[Rubric, ...])
_CASE_KEYS = {"conversation", "conversation_scenario", "conversationScenario"}
_NO_USER = Content(role="user", parts=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row as a case and what the agent did."""

    case: EvalCase
    played: Played
    run_index: int = 0
    lacks: frozenset[str] = field(default_factory=frozenset)
    """The cells that the row does not have, so that criteria which need them cannot say anything."""


def row_of(cells: Mapping[str, Any], source: str = "row") -> Row:
    """Return what the cells of a row say.

    Args:
        cells: by the names in `CELLS`; ``None`` and NaN stand for a missing cell. Lists and dicts may also be JSON texts, but for
            the three that may be plain texts.
        source: what errors call the row, and the case if it has no name.

    Raises:
        EvalSetError: with the problem of a cell.
    """
    given = {name: value for name, value in cells.items() if not is_missing(value)}
    if "predictions" not in given:
        raise EvalSetError(source, [Problem("$.predictions", "nothing", CELLS["predictions"])])
    actual = _conversation(given["predictions"], given, MADE, source)
    case = _case(given, len(actual), source)
    played = Played(
        actual=_asked(actual, case),
        session_state=_json(given.get("session_state"), "session_state", source),
        error=str(given.get("error", "")),
        unfinished=bool(given.get("unfinished", False)),
    )
    return Row(case=case, played=played, run_index=int(given.get("run_index", 0)), lacks=_lacks(given))


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing, which tables also write as NaN.

    >>> is_missing(None), is_missing(float("nan")), is_missing("")
    (True, True, False)
    """
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in {"NAType", "NaTType"}


def _case(given: Mapping[str, Any], turns: int, source: str) -> EvalCase:
    target: Any = given.get("targets")
    eval_id = str(given.get("eval_id", source))
    if isinstance(target, EvalCase):
        return target
    if isinstance(target, Mapping) and _CASE_KEYS & set(target):
        return parse(_CASE, dict(target), f"{source}, targets")
    expected = _expected(target, given, turns, source)
    session = given.get("session_input")
    return EvalCase(
        eval_id=eval_id,
        conversation=_asked_by(expected, given.get("inputs"), source),
        session_input=None if session is None else parse(_SESSION, _json(session, "session_input", source), f"{source}, session_input"),
        rubrics=_rubrics(given.get("rubrics"), source),
        final_session_state=_json(given.get("expected_session_state"), "expected_session_state", source),
    )


def _expected(target: Any, given: Mapping[str, Any], turns: int, source: str) -> tuple[Invocation, ...]:
    if target is not None or turns == 1:
        return _conversation(target, given, CALLS, source)
    return (Invocation(user_content=_NO_USER),) * turns


def _conversation(value: Any, given: Mapping[str, Any], calls: str, source: str) -> tuple[Invocation, ...]:
    """Return one side of a row as invocations; the tool calls of a cell beside it belong to its only turn."""
    name = "predictions" if calls == MADE else "targets"
    turns = list(value) if _is_list(value) else [value]
    said = [invocation_of(turn, f"{source}, {name}") for turn in turns]
    if calls not in given:
        return tuple(said)
    if len(said) != 1:
        wanted = f"no such cell beside a conversation of {len(said)} turns, whose invocations hold their own tool calls"
        raise EvalSetError(source, [Problem(f"$.{calls}", "a cell", wanted)])
    return (said[0].model_copy(update={"intermediate_data": _tool_uses(given[calls], f"{source}, {calls}")}),)


def _tool_uses(value: Any, source: str) -> IntermediateData:
    listed = _json(value, "", source)
    if not _is_list(listed):
        raise EvalSetError(source, [Problem("$", shown(listed), 'a list of {"name", "args"}')])
    calls: list[FunctionCall] = []
    responses: list[FunctionResponse] = []
    for number, call in enumerate(listed, 1):
        if isinstance(call, FunctionCall):
            calls.append(call)
            continue
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            raise EvalSetError(source, [Problem(f"$[{number - 1}]", shown(call), 'a tool call: {"name", "args"}')])
        identity = call.get("id") or f"call_{number}"
        calls.append(FunctionCall(id=identity, name=call["name"], args=_arguments(call, f"{source}, call {number}")))
        if "response" in call:
            answer = call["response"] if isinstance(call["response"], Mapping) else {"result": call["response"]}
            responses.append(FunctionResponse(id=identity, name=call["name"], response=dict(answer)))
    return IntermediateData(tool_uses=tuple(calls), tool_responses=tuple(responses))


def _arguments(call: Mapping[str, Any], source: str) -> Json:
    unknown = set(call) - {"id", "name", "args", "arguments", "response"}
    if unknown:
        raise EvalSetError(source, [Problem("$", f"unknown keys {', '.join(sorted(map(str, unknown)))}", "name, args, response and id")])
    arguments = _json(call.get("args", call.get("arguments")), "args", source)
    if arguments is not None and not isinstance(arguments, Mapping):
        raise EvalSetError(source, [Problem("$.args", shown(arguments), "an object")])
    return dict(arguments or {})


def _asked_by(expected: tuple[Invocation, ...], inputs: Any, source: str) -> tuple[Invocation, ...]:
    """Return the reference with what the user said, where it does not say so itself."""
    said = list(inputs) if _is_list(inputs) else [inputs] if inputs is not None else []
    if len(said) not in {0, len(expected)}:
        wanted = f"as many as the {len(expected)} turns of the conversation"
        raise EvalSetError(source, [Problem("$.inputs", f"{len(said)} texts", wanted)])
    texts = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False, default=str) for one in said]
    return tuple(
        turn if turn.user_text else turn.model_copy(update={"user_content": Content(role="user", parts=(Part(text=text),))})
        for turn, text in zip(expected, texts, strict=True)
    ) if texts else expected  # fmt: skip


def _asked(actual: tuple[Invocation, ...], case: EvalCase) -> tuple[Invocation, ...]:
    """Return what the agent did with what the user said, where it does not say so itself."""
    written = case.conversation or ()
    return tuple(
        turn.model_copy(update={"user_content": written[index].user_content}) if index < len(written) and not turn.user_text else turn
        for index, turn in enumerate(actual)
    )


def _rubrics(value: Any, source: str) -> tuple[Rubric, ...] | None:
    if value is None:
        return None
    listed = _json(value, "rubrics", source)
    if not _is_list(listed):
        raise EvalSetError(source, [Problem("$.rubrics", shown(listed), CELLS["rubrics"])])
    typed = [rubric for number, one in enumerate(listed, 1) for rubric in _typed(one, number)]
    return parse(_RUBRICS, typed, f"{source}, rubrics")


def _typed(value: Any, number: int) -> list[Any]:
    """Return a rubric in ADK's format; one that says nothing of its type is for every criterion that judges by rubrics."""
    rubric = {"rubric_id": f"rubric_{number}", "rubric_content": {"text_property": value}} if isinstance(value, str) else value
    if not isinstance(rubric, Mapping) or rubric.get("type"):
        return [rubric]
    return [{**rubric, "type": kind} for kind in RUBRIC_TYPES.values()]


def _lacks(given: Mapping[str, Any]) -> frozenset[str]:
    """Return which cells that criteria need are missing. An invocation is taken at its word; a text says nothing of tools."""
    lacking = {name for name in (RESPONSE, CALLS, MADE) if name not in given}
    if not isinstance(given["predictions"], str):
        lacking.discard(MADE)
    if RESPONSE in given and not isinstance(given["targets"], str):
        lacking.discard(CALLS)
    return frozenset(lacking)


def _is_list(value: Any) -> bool:
    return (isinstance(value, Sequence) and not isinstance(value, str | bytes)) or type(value).__name__ == "ndarray"


def _json(value: Any, name: str, source: str) -> Any:
    """Return a list or dict, also where a table holds it as a text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise EvalSetError(
            source, [Problem(f"$.{name}".rstrip("."), f"a text that is no JSON ({error})", CELLS.get(name, "JSON"))]
        ) from None
