"""From the cells of a row of somebody's table to an eval case and what an agent did on it.

Tables come from pandas, Arrow, Spark or a CSV file, so that a list may be a numpy array, a missing value NaN, and an object a JSON text;
`plain` and `is_missing` even that out. `row_of` then reads the cells that `CELLS` names: ``predictions`` is what the agent did, ``targets``
what it should have done, and the others say more of either. The result, a `Row`, is a case and a `Conversation`, as an eval set and an
agent would give them; what the row does not say is unknown of the conversation, so that a criterion that needs it has no score. `shapes.records` makes cells of
``mlflow.genai`` records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlflow_adk_eval.criteria.rubrics import rubric_types
from mlflow_adk_eval.errors import EvalSetError, Problem, shown
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import Content, EvalCase, Invocation, Json, Part, Rubric, SessionInput
from mlflow_adk_eval.evalset.observation import Need, Unknown
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.shapes.answers import Told, decoded_of, is_list, is_missing, object_of, plain, text_of, told_of, tool_uses

CELLS: Mapping[str, str] = {
    "inputs": "the user's message: a text, or a list of texts, one per turn",
    "predictions": "the agent's turns: its answer as a text, an invocation (a dict in ADK's format), or a list of invocations",
    "targets": "the expected turns: a text, an invocation, a list of invocations, or an eval case",
    "tool_calls": 'the tools it called, for a row with one turn: a list of {"name", "args"}, optionally with "response"',
    "expected_tool_calls": 'the tools it should have called: a list of {"name", "args"}',
    "rubrics": "rubrics for the judge: a list of texts, or of rubrics in ADK's format",
    "session_input": "the session at the start, in ADK's format",
    "session_state": "the session state after the last turn, as a dict",
    "expected_session_state": "the expected session state after the last turn",
    "eval_id": "the name of the case",
    "run_index": "which run of the case it is, from 0",
    "error": "why the agent did not finish the case; empty if it did",
    "unfinished": "whether the agent failed in the last turn",
    "unknown": 'what nobody could see of the conversation: a list of {"what", "why"}, optionally with "turn", counted from 0',
}
"""Every cell that a row may have, by name, and what it holds. All but ``predictions`` may be missing."""

CALLS, MADE = "expected_tool_calls", "tool_calls"
CELL_OF: Mapping[Need, str] = {"expected_response": "targets", "expected_calls": CALLS, "calls": MADE}
"""The cells that some criteria cannot do without, by what they need."""

_CASE_KEYS = {"conversation", "conversation_scenario", "conversationScenario"}
_EMPTY_MESSAGE = Content(role="user", parts=())


def is_case(target: Any) -> bool:
    """Whether what is expected is a whole case."""
    return isinstance(target, EvalCase) or (isinstance(target, Mapping) and not _CASE_KEYS.isdisjoint(target))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row as a case and what the agent did."""

    case: EvalCase
    conversation: Conversation
    run_index: int = 0


def row_of(cells: Mapping[str, Any], source: str = "row") -> Row:
    """Return what the cells of a row say.

    Args:
        cells: by the names in `CELLS`; ``None`` and NaN stand for a missing cell. Lists and dicts may also be JSON texts, but for
            the three that may be plain texts.
        source: what errors call the row, and the case if it has no name.

    Raises:
        EvalSetError: with the problem of a cell.
    """
    read = _Cells({name: plain(value) for name, value in cells.items() if not is_missing(value)}, source)
    if "predictions" not in read.cells:
        raise read.problem("predictions", "nothing", CELLS["predictions"])
    did = read.side("predictions", MADE)
    state, rubrics = read.json_object("expected_session_state"), None
    if "rubrics" in read.cells:
        typed = [rubric for number, one in enumerate(read.json_list("rubrics"), 1) for rubric in _typed(one, number)]
        rubrics = parse(tuple[Rubric, ...], typed, f"{source}, rubrics")
    target = read.cells.get("targets")
    if is_case(target):
        case, is_told = read.whole_case(target, rubrics, state), True
    else:
        expected = read.expected(did)
        is_told = expected.calls
        session = read.cells.get("session_input")
        if session is not None and not isinstance(session, SessionInput):
            started = read.json_object("session_input")
            session = None if started is None else parse(SessionInput, started, f"{source}, session_input")
        name = str(read.cells.get("eval_id", source))
        case = EvalCase(eval_id=name, conversation=expected.turns, session_input=session, rubrics=rubrics, final_session_state=state)
    said: dict[Need, bool] = {"expected_response": "targets" in read.cells, "expected_calls": is_told, "calls": did.calls}
    unsaid = tuple(Unknown(what=need, why=f"the row has no {CELL_OF[need]}") for need, is_said in said.items() if not is_said)
    stated = parse(tuple[Unknown, ...], read.json_list("unknown") if "unknown" in read.cells else (), f"{source}, unknown")
    error, unfinished = read.cells.get("error", ""), bool(read.whole_number("unfinished", most=1))
    if not isinstance(error, str):
        raise read.problem("error", shown(error), "a text")
    asked = case.conversation or ()
    conversation = Conversation(
        actual=tuple(  # with what the user said, where the agent does not say so itself
            turn.model_copy(update={"user_content": asked[index].user_content}) if index < len(asked) and not turn.user_text else turn
            for index, turn in enumerate(did.turns)
        ),
        session_state=read.json_object("session_state"),
        error=error or ("its last turn is unfinished" if unfinished else ""),
        unfinished=unfinished,
        unknown=unsaid + stated,
    )
    return Row(case=case, conversation=conversation, run_index=read.whole_number("run_index"))


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of one row. Every method raises an `EvalSetError` for a cell that is not what `CELLS` says."""

    cells: Json
    """Those that hold something."""
    source: str

    def problem(self, name: str, found: str, wanted: str) -> EvalSetError:
        return EvalSetError(self.source, [Problem(f"$.{name}", found, wanted)])

    def json_object(self, name: str) -> Json | None:
        return object_of(self.cells.get(name), f"$.{name}", CELLS[name], self.source)

    def json_list(self, name: str) -> Sequence[Any]:
        listed = decoded_of(self.cells[name], f"$.{name}", CELLS[name], self.source)
        if is_list(listed):
            return listed  # type: ignore[no-any-return] # narrowed above
        raise self.problem(name, shown(listed), CELLS[name])

    def whole_number(self, name: str, *, most: float = math.inf) -> int:
        """Return a number from 0 up to `most`, or a truth value, which a table with gaps may write as 1.0."""
        value = self.cells.get(name, 0)
        if isinstance(value, int | float) and 0 <= value <= most and float(value).is_integer():
            return int(value)
        raise self.problem(name, shown(value), CELLS[name])

    def whole_case(self, target: Any, rubrics: tuple[Rubric, ...] | None, state: Json | None) -> EvalCase:
        """Return a case that a cell holds, with further rubrics, and the state to expect instead of its own."""
        if CALLS in self.cells:
            raise self.superfluous(CALLS, "an eval case")
        case: EvalCase = target
        if not isinstance(target, EvalCase):
            named = {} if {"eval_id", "evalId"} & set(target) else {"eval_id": str(self.cells.get("eval_id", self.source))}
            case = parse(EvalCase, named | dict(target), f"{self.source}, targets")
        added: Json = {} if state is None else {"final_session_state": state}
        if rubrics is not None:
            added["rubrics"] = (*(case.rubrics or ()), *rubrics)
        return case.model_copy(update=added) if added else case

    def expected(self, did: Told) -> Told:
        """Return the reference, with what the user said where it does not say so itself; `did`: what the agent did."""
        count = len(did.turns)
        if "targets" in self.cells or count == 1:
            expected = self.side("targets", CALLS)
        elif CALLS in self.cells:
            raise self.superfluous(CALLS, f"a conversation of {count} turns")
        else:
            expected = Told((Invocation(user_content=_EMPTY_MESSAGE),) * count, calls=False)
        inputs = self.cells.get("inputs")
        if inputs is None or inputs == []:
            return expected
        messages = inputs if is_list(inputs) else [inputs]
        if len(expected.turns) == 1 and not did.is_conversation:
            messages = messages[-1:]  # one answer is to the last message; the others are what went before
        if len(messages) != len(expected.turns):
            raise self.problem("inputs", f"{len(messages)} texts", f"as many as the {len(expected.turns)} turns of the conversation")
        contents = [Content(role="user", parts=(Part(text=text_of(message)),)) for message in messages]
        asked = zip(expected.turns, contents, strict=True)
        turns = (turn if turn.user_text else turn.model_copy(update={"user_content": said}) for turn, said in asked)
        return replace(expected, turns=tuple(turns))

    def side(self, name: str, calls: str) -> Told:
        """Return what a cell tells; tool calls of a cell beside it belong to its only turn."""
        value = self.cells.get(name)
        if value is None:
            told = Told((Invocation(user_content=_EMPTY_MESSAGE),), calls=False)
        else:
            told = value if isinstance(value, Told) else told_of(value, f"{self.source}, {name}")
        if calls not in self.cells:
            return told
        if len(told.turns) != 1:
            raise self.superfluous(calls, f"a conversation of {len(told.turns)} turns")
        steps = tool_uses(self.json_list(calls), self.source, calls)
        return replace(told, turns=(told.turns[0].model_copy(update={"intermediate_data": steps}),), calls=True)

    def superfluous(self, calls: str, beside: str) -> EvalSetError:
        return self.problem(calls, "a cell", f"nothing: {beside} already contains the tool calls")


def _typed(value: Any, number: int) -> list[Any]:
    """Return a rubric in ADK's format; one without a type is for every criterion that judges by rubrics."""
    rubric = {"rubric_id": f"rubric_{number}", "rubric_content": {"text_property": value}} if isinstance(value, str) else value
    if not isinstance(rubric, Mapping) or rubric.get("type"):
        return [rubric]
    return [{**rubric, "type": kind} for kind in rubric_types().values()]
