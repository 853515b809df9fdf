"""From the cells of a row of somebody's table to an eval case and what an agent did on it.

Tables come from pandas, Arrow, Spark or a CSV file, so that a list may be a numpy array, a missing value NaN, and an object a JSON text;
`plain` and `is_missing` even that out. `row_of` then reads the cells that `CELLS` names: ``predictions`` is what the agent did, ``targets``
what it should have done, and the others say more of either. The result, a `Row`, is a case and a `Conversation`, as an eval set and an
agent would give them, and what the row lacks, so that a criterion that needs it can say so. `tables.records` makes cells of
``mlflow.genai`` records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from pydantic import TypeAdapter

from mlflow_adk_eval.agents import Conversation
from mlflow_adk_eval.agents.turn_log import invocation_of
from mlflow_adk_eval.criteria.rubrics import rubric_types
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
_EMPTY_MESSAGE = Content(role="user", parts=())


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing, which tables also write as NaN.

    >>> is_missing(None), is_missing(float("nan")), is_missing("")
    (True, True, False)
    """
    return value is None or (isinstance(value, Real) and math.isnan(value)) or type(value).__name__ in {"NAType", "NaTType"}


def is_list(value: Any) -> bool:
    """Whether a cell holds a list.

    >>> is_list(("a", "b")), is_list("ab")
    (True, False)
    """
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def plain(value: Any) -> Any:
    """Return a value with lists and numbers in place of those of numpy, which columns of Arrow hold, too."""
    if type(value).__module__ == "numpy":
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def object_of(value: Any, path: str, wanted: str, source: str) -> Json | None:
    """Return an object, also where a table holds it as a text; ``None`` where there is none.

    Raises:
        EvalSetError: if it is anything else.
    """
    found = _decoded(value, path, wanted, source)
    if found is None or isinstance(found, Mapping):
        return None if found is None else dict(found)
    raise EvalSetError(source, [Problem(path, shown(found), wanted)])


def _decoded(value: Any, path: str, wanted: str, source: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise EvalSetError(source, [Problem(path, f"a text that is no JSON ({error})", wanted)]) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row as a case and what the agent did."""

    case: EvalCase
    conversation: Conversation
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
    reader = _Reader({name: plain(value) for name, value in cells.items() if not is_missing(value)}, source)
    if "predictions" not in reader.cells:
        raise reader.problem("predictions", "nothing", CELLS["predictions"])
    actual = reader.invocations("predictions", MADE)
    case = reader.case(len(actual))
    unfinished = bool(reader.whole_number("unfinished", most=1))
    conversation = Conversation(
        actual=_with_messages(actual, case),
        session_state=reader.json_object("session_state"),
        error=reader.error() or ("its last turn is unfinished" if unfinished else ""),
        unfinished=unfinished,
    )
    return Row(case=case, conversation=conversation, run_index=reader.whole_number("run_index"), lacks=reader.lacks())


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the cells of one row. Every method raises an `EvalSetError` for a cell that is not what `CELLS` says."""

    cells: Json
    """Those that hold something."""
    source: str

    def problem(self, name: str, found: str, wanted: str) -> EvalSetError:
        return EvalSetError(self.source, [Problem(f"$.{name}", found, wanted)])

    def json_object(self, name: str) -> Json | None:
        return object_of(self.cells.get(name), f"$.{name}", CELLS[name], self.source)

    def json_list(self, name: str) -> Sequence[Any]:
        found = _decoded(self.cells[name], f"$.{name}", CELLS[name], self.source)
        if is_list(found):
            return found  # type: ignore[no-any-return] # narrowed above
        raise self.problem(name, shown(found), CELLS[name])

    def whole_number(self, name: str, *, most: float = math.inf) -> int:
        """Return a number from 0 up to `most`, or a truth value, which a table with gaps may write as 1.0."""
        value = self.cells.get(name, 0)
        if isinstance(value, int | float) and 0 <= value <= most and float(value).is_integer():
            return int(value)
        raise self.problem(name, shown(value), CELLS[name])

    def error(self) -> str:
        error = self.cells.get("error", "")
        if not isinstance(error, str):
            raise self.problem("error", shown(error), "a text")
        return error

    @property
    def eval_id(self) -> str:
        return str(self.cells.get("eval_id", self.source))

    def case(self, turns: int) -> EvalCase:
        """Return the case; `turns`: how many the agent had."""
        target, rubrics, state = self.cells.get("targets"), self.rubrics(), self.json_object("expected_session_state")
        if isinstance(target, EvalCase) or (isinstance(target, Mapping) and _CASE_KEYS & set(target)):
            return self.whole_case(target, rubrics, state)
        return EvalCase(
            eval_id=self.eval_id,
            conversation=self.expected(turns),
            session_input=self.session(),
            rubrics=rubrics,
            final_session_state=state,
        )

    def whole_case(self, target: Any, rubrics: tuple[Rubric, ...] | None, state: Json | None) -> EvalCase:
        """Return a case that a cell holds, with further rubrics, and the state to expect instead of its own."""
        if CALLS in self.cells:
            raise self.superfluous(CALLS, "an eval case")
        named = {} if isinstance(target, EvalCase) or {"eval_id", "evalId"} & set(target) else {"eval_id": self.eval_id}
        case = target if isinstance(target, EvalCase) else parse(_CASE, named | dict(target), f"{self.source}, targets")
        added: Json = {} if state is None else {"final_session_state": state}
        if rubrics is not None:
            added["rubrics"] = (*(case.rubrics or ()), *rubrics)
        return case.model_copy(update=added) if added else case

    def session(self) -> SessionInput | None:
        session = self.cells.get("session_input")
        if isinstance(session, SessionInput):
            return session
        started = self.json_object("session_input")
        return None if started is None else parse(_SESSION, started, f"{self.source}, session_input")

    def rubrics(self) -> tuple[Rubric, ...] | None:
        if "rubrics" not in self.cells:
            return None
        typed = [rubric for number, one in enumerate(self.json_list("rubrics"), 1) for rubric in _typed(one, number)]
        return parse(_RUBRICS, typed, f"{self.source}, rubrics")

    def expected(self, turns: int) -> tuple[Invocation, ...]:
        """Return the reference, with what the user said where it does not say so itself."""
        if "targets" in self.cells or turns == 1:
            expected = self.invocations("targets", CALLS)
        elif CALLS in self.cells:
            raise self.superfluous(CALLS, f"a conversation of {turns} turns")
        else:
            expected = (Invocation(user_content=_EMPTY_MESSAGE),) * turns
        inputs = self.cells.get("inputs")
        if inputs is None or inputs == []:
            return expected
        messages = inputs if is_list(inputs) else [inputs]
        if len(messages) != len(expected):
            raise self.problem("inputs", f"{len(messages)} texts", f"as many as the {len(expected)} turns of the conversation")
        texts = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False, default=str) for one in messages]
        return tuple(turn if turn.user_text else _said_by_user(turn, text) for turn, text in zip(expected, texts, strict=True))

    def invocations(self, name: str, calls: str) -> tuple[Invocation, ...]:
        """Return one side of a row; the tool calls of a cell beside it belong to its only turn."""
        value: Any = self.cells.get(name)
        turns = tuple(invocation_of(turn, f"{self.source}, {name}") for turn in (value if is_list(value) else [value]))
        if calls not in self.cells:
            return turns
        if len(turns) != 1:
            raise self.superfluous(calls, f"a conversation of {len(turns)} turns")
        return (turns[0].model_copy(update={"intermediate_data": self.tool_uses(calls)}),)

    def superfluous(self, calls: str, beside: str) -> EvalSetError:
        return self.problem(calls, "a cell", f"no such cell beside {beside}, which holds its own tool calls")

    def tool_uses(self, name: str) -> IntermediateData:
        """Return what a list of tool calls says, with the answers of the tools where they are given."""
        calls: list[FunctionCall] = []
        responses: list[FunctionResponse] = []
        for index, call in enumerate(self.json_list(name)):
            if isinstance(call, FunctionCall):
                calls.append(call)
                continue
            here = f"{name}[{index}]"
            if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
                raise self.problem(here, shown(call), 'a tool call: {"name", "args"}')
            identity = call.get("id") or f"call_{index + 1}"
            calls.append(FunctionCall(id=identity, name=call["name"], args=self.arguments(call, here)))
            if call.get("response") is not None:
                answer = call["response"] if isinstance(call["response"], Mapping) else {"result": call["response"]}
                responses.append(FunctionResponse(id=identity, name=call["name"], response=dict(answer)))
        return IntermediateData(tool_uses=tuple(calls), tool_responses=tuple(responses))

    def arguments(self, call: Mapping[str, Any], name: str) -> Json:
        unknown = set(call) - {"id", "name", "args", "arguments", "response"}
        if unknown:
            raise self.problem(name, f"unknown keys {', '.join(sorted(map(str, unknown)))}", "name, args, response and id")
        key = "arguments" if call.get("args") is None else "args"
        return object_of(call.get(key), f"$.{name}.{key}", "an object", self.source) or {}

    def lacks(self) -> frozenset[str]:
        """Return which cells that criteria need are missing. An invocation is taken at its word; a text says nothing of tools."""
        lacking = {name for name in (RESPONSE, CALLS, MADE) if name not in self.cells}
        sides = {"predictions": MADE, RESPONSE: CALLS}
        lacking -= {calls for side, calls in sides.items() if side in self.cells and not _has_text(self.cells[side])}
        return frozenset(lacking)


def _said_by_user(turn: Invocation, text: str) -> Invocation:
    return turn.model_copy(update={"user_content": Content(role="user", parts=(Part(text=text),))})


def _with_messages(actual: tuple[Invocation, ...], case: EvalCase) -> tuple[Invocation, ...]:
    """Return what the agent did with what the user said, where it does not say so itself."""
    expected = case.conversation or ()
    return tuple(
        turn.model_copy(update={"user_content": expected[index].user_content}) if index < len(expected) and not turn.user_text else turn
        for index, turn in enumerate(actual)
    )


def _typed(value: Any, number: int) -> list[Any]:
    """Return a rubric in ADK's format; one without a type is for every criterion that judges by rubrics."""
    rubric = {"rubric_id": f"rubric_{number}", "rubric_content": {"text_property": value}} if isinstance(value, str) else value
    if not isinstance(rubric, Mapping) or rubric.get("type"):
        return [rubric]
    return [{**rubric, "type": kind} for kind in rubric_types().values()]


def _has_text(value: Any) -> bool:
    """Whether a cell is a text, or a list with one."""
    return any(isinstance(one, str) for one in (value if is_list(value) else [value]))
