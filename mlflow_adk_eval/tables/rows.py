"""From the cells of a row, in the words of somebody's table, to an eval case and what an agent did on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from mlflow_adk_eval.agents import Conversation
from mlflow_adk_eval.agents.recordings.recording import invocation_of
from mlflow_adk_eval.criteria.rubrics import rubric_types
from mlflow_adk_eval.errors import EvalSetError, Problem, shown
from mlflow_adk_eval.evalset import Content, EvalCase, Invocation, Part, Rubric, SessionInput
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.tables.cells import (
    is_list,
    is_missing,
    list_of,
    object_of,
    plain,
    tool_uses,
    whole_number,
)

__all__ = ["CALLS", "CELLS", "MADE", "RESPONSE", "Row", "is_missing", "row_of"]

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
    played: Conversation
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
    given = _given(cells)
    if "predictions" not in given:
        raise EvalSetError(source, [Problem("$.predictions", "nothing", CELLS["predictions"])])
    actual = _conversation(given["predictions"], given, MADE, source)
    case = _case(given, len(actual), source)
    unfinished = bool(_number(given, "unfinished", source, most=1))
    played = Conversation(
        actual=_asked(actual, case),
        session_state=_object(given, "session_state", source),
        error=_error(given, source) or ("its last turn is unfinished" if unfinished else ""),
        unfinished=unfinished,
    )
    return Row(case=case, played=played, run_index=_number(given, "run_index", source), lacks=_lacks(given))


def _given(cells: Mapping[str, Any]) -> Json:
    """Return the cells that hold something."""
    return {name: plain(value) for name, value in cells.items() if not is_missing(value)}


def _object(given: Mapping[str, Any], name: str, source: str) -> Json | None:
    return object_of(given.get(name), f"$.{name}", CELLS[name], source)


def _number(given: Mapping[str, Any], name: str, source: str, **limits: float) -> int:
    return whole_number(given.get(name, 0), f"$.{name}", CELLS[name], source, **limits)


def _error(given: Mapping[str, Any], source: str) -> str:
    error = given.get("error", "")
    if not isinstance(error, str):
        raise EvalSetError(source, [Problem("$.error", shown(error), "a text")])
    return error


def _case(given: Mapping[str, Any], turns: int, source: str) -> EvalCase:
    target: Any = given.get("targets")
    rubrics = _rubrics(given.get("rubrics"), source)
    state = _object(given, "expected_session_state", source)
    if _is_case(target):
        return _completed(_whole_case(target, given, source), rubrics, state)
    expected = _expected(target, given, turns, source)
    return EvalCase(
        eval_id=_eval_id(given, source),
        conversation=_asked_by(expected, given.get("inputs"), source),
        session_input=_session(given, source),
        rubrics=rubrics,
        final_session_state=state,
    )


def _session(given: Mapping[str, Any], source: str) -> SessionInput | None:
    session: Any = given.get("session_input")
    if isinstance(session, SessionInput):
        return session
    started = _object(given, "session_input", source)
    return None if started is None else parse(_SESSION, started, f"{source}, session_input")


def _eval_id(given: Mapping[str, Any], source: str) -> str:
    return str(given.get("eval_id", source))


def _is_case(target: Any) -> bool:
    return isinstance(target, EvalCase) or (isinstance(target, Mapping) and bool(_CASE_KEYS & set(target)))


def _whole_case(target: Any, given: Mapping[str, Any], source: str) -> EvalCase:
    if CALLS in given:
        raise _superfluous(CALLS, "an eval case", source)
    if isinstance(target, EvalCase):
        return target
    named = {} if {"eval_id", "evalId"} & set(target) else {"eval_id": _eval_id(given, source)}
    return parse(_CASE, named | dict(target), f"{source}, targets")


def _completed(case: EvalCase, rubrics: tuple[Rubric, ...] | None, state: Json | None) -> EvalCase:
    """Return a case with what the cells beside it say: further rubrics, and the state to expect instead of its own."""
    added: Json = {}
    if rubrics is not None:
        added["rubrics"] = (*(case.rubrics or ()), *rubrics)
    if state is not None:
        added["final_session_state"] = state
    return case.model_copy(update=added) if added else case


def _expected(target: Any, given: Mapping[str, Any], turns: int, source: str) -> tuple[Invocation, ...]:
    if target is not None or turns == 1:
        return _conversation(target, given, CALLS, source)
    if CALLS in given:
        raise _superfluous(CALLS, f"a conversation of {turns} turns", source)
    return (Invocation(user_content=_NO_USER),) * turns


def _conversation(value: Any, given: Mapping[str, Any], calls: str, source: str) -> tuple[Invocation, ...]:
    """Return one side of a row as invocations; the tool calls of a cell beside it belong to its only turn."""
    name = "predictions" if calls == MADE else "targets"
    said = [invocation_of(turn, f"{source}, {name}") for turn in (value if is_list(value) else [value])]
    if calls not in given:
        return tuple(said)
    if len(said) != 1:
        raise _superfluous(calls, f"a conversation of {len(said)} turns", source)
    made = tool_uses(given[calls], f"$.{calls}", CELLS[calls], source)
    return (said[0].model_copy(update={"intermediate_data": made}),)


def _superfluous(calls: str, beside: str, source: str) -> EvalSetError:
    return EvalSetError(source, [Problem(f"$.{calls}", "a cell", f"no such cell beside {beside}, which holds its own tool calls")])


def _asked_by(expected: tuple[Invocation, ...], inputs: Any, source: str) -> tuple[Invocation, ...]:
    """Return the reference with what the user said, where it does not say so itself."""
    said = list(inputs) if is_list(inputs) else [inputs] if inputs is not None else []
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
    listed = list_of(value, "$.rubrics", CELLS["rubrics"], source)
    typed = [rubric for number, one in enumerate(listed, 1) for rubric in _typed(one, number)]
    return parse(_RUBRICS, typed, f"{source}, rubrics")


def _typed(value: Any, number: int) -> list[Any]:
    """Return a rubric in ADK's format; one that says nothing of its type is for every criterion that judges by rubrics."""
    rubric = {"rubric_id": f"rubric_{number}", "rubric_content": {"text_property": value}} if isinstance(value, str) else value
    if not isinstance(rubric, Mapping) or rubric.get("type"):
        return [rubric]
    return [{**rubric, "type": kind} for kind in rubric_types().values()]


def _lacks(given: Mapping[str, Any]) -> frozenset[str]:
    """Return which cells that criteria need are missing. An invocation is taken at its word; a text says nothing of tools."""
    lacking = {name for name in (RESPONSE, CALLS, MADE) if name not in given}
    if _tells_of_tools(given["predictions"]):
        lacking.discard(MADE)
    if RESPONSE in given and _tells_of_tools(given["targets"]):
        lacking.discard(CALLS)
    return frozenset(lacking)


def _tells_of_tools(said: Any) -> bool:
    return not any(isinstance(one, str) for one in (said if is_list(said) else [said]))
