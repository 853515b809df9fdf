"""Eval cases as records of ``mlflow.genai``: inputs, outputs and expectations; and the cells that such a record holds.

`record_of` and `outputs_of` write records; `case_of` reads what an agent is asked; `cells_of` makes of a whole record the cells that
`shapes.rows.row_of` reads. Records that somebody else made may be in any of the shapes of `shapes.answers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlflow_adk_eval.errors import EvalSetError, Problem, shown
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.media import has_media
from mlflow_adk_eval.evalset.models import Content, EvalCase, Invocation, Json
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.shapes.answers import (
    BESIDE,
    STEPS,
    Told,
    beside_message,
    content_of,
    is_list,
    is_missing,
    messages_in,
    plain,
    said_beside,
    told_of,
)
from mlflow_adk_eval.shapes.rows import PLACES, RESPONSE, Row, is_case, row_of

CASE = "eval_case"
"""The expectation that holds a whole case."""

_OF_THEIR_OWN = ("expected_tool_calls", "expected_session_state", "rubrics")
_EXPECTED = dict.fromkeys(("expected_response", "expected_conversation", CASE), "targets") | {name: name for name in _OF_THEIR_OWN}
"""Expectations and the cells that they are; of several for one cell, the later here counts."""
EXPECTATIONS = tuple(_EXPECTED)
"""The names of the expectations that criteria read."""
_BY_INPUTS = ("eval_id", "session_input")
RECORD_PLACES: Mapping[str, str] = {
    "inputs": "inputs",
    "predictions": "outputs",
    "targets": "expectations.expected_response",
    **{name: f"expectations.{name}" for name in _OF_THEIR_OWN},
    **{name: f"outputs.{name}" for name in BESIDE},
    **{name: f"inputs.{name}" for name in _BY_INPUTS},
}
"""Where a record has what a table has in its cells."""
_SCENARIO = "conversation_scenario"


def record_of(case: EvalCase) -> dict[str, Any]:
    """Return a case as a record: what the user says as inputs, the whole case as an expectation.

    The last turn's answer is an expectation of its own, since MLflow's pages show that one beside the agent's.
    """
    asked: Json = {"eval_id": case.eval_id}
    if case.conversation is None:
        asked[_SCENARIO] = dump(case.conversation_scenario) if case.conversation_scenario else {}
    else:
        asked["messages"] = []
        for turn in case.conversation:
            dumped = dump(turn.user_content)
            # As chats have it, which MLflow's own scorers read, if a text is all there is to it.
            is_text = dumped.keys() <= {"parts", "role"} and [part.keys() for part in dumped.get("parts") or ()] == [{"text"}]
            asked["messages"].append({"role": "user", "content": turn.user_text} if is_text else {"parts": [], **dumped})
    if case.session_input:
        asked["session_input"] = dump(case.session_input)
    last = case.conversation[-1].final_text if case.conversation else ""
    expected = {"expected_response": last} if last else {}
    return {"inputs": asked, "expectations": {**expected, CASE: dump(case)}}


def case_of(inputs: Mapping[str, Any]) -> EvalCase:
    """Return what a record's inputs ask an agent for: each text or message of the user as a turn, or a scenario.

    Raises:
        EvalSetError: if the inputs are not what an agent can be asked.
    """
    asked: Json = {"eval_id": str(inputs.get("eval_id", "row")), "session_input": inputs.get("session_input")}
    if _SCENARIO in inputs:
        return parse(EvalCase, asked | {_SCENARIO: inputs[_SCENARIO]}, "inputs")
    messages = messages_in(inputs)
    listed = messages if is_list(messages) else [messages]
    contents = (one if isinstance(one, Mapping) and "parts" in one else dump(content_of(one)) for one in listed)
    turns = [{"user_content": {"role": "user", **content}} for content in contents]
    return parse(EvalCase, asked | {"conversation": turns}, "inputs")


def outputs_of(conversation: Conversation) -> dict[str, Any]:
    """Return what an agent did as the outputs of a record; first, for people, its last answer."""
    outputs: Json = {"response": conversation.actual[-1].shown_answer if conversation.actual else ""}
    outputs["conversation"] = [dump(turn) for turn in conversation.actual]
    if conversation.session_state is not None:
        outputs["session_state"] = dict(conversation.session_state)
    if conversation.error:
        outputs |= {"error": conversation.error, "unfinished": conversation.unfinished}
    if conversation.unknown:
        outputs["unknown"] = [entry.model_dump(exclude_none=True) for entry in conversation.unknown]
    return outputs


def cells_of(
    inputs: Any,
    outputs: Any,
    expectations: Mapping[str, Any] | None = None,
    *,
    source: str = "row",
    places: Mapping[str, str] = RECORD_PLACES,
) -> dict[str, Any]:
    """Return the cells that a record's inputs, outputs and expectations hold.

    Args:
        inputs: what the agent was asked.
        outputs: what it did.
        expectations: what it should have done, by name.
        source: what errors call the record.
        places: where the user of this door writes each cell.

    Raises:
        EvalSetError: if the outputs are nothing that an agent did, or what is expected is nothing that it could do.
    """
    inputs, outputs = plain(inputs), plain(outputs)
    asked = inputs if isinstance(inputs, Mapping) else {}
    cells: Json = {"predictions": None, **said_beside(outputs)}
    if not is_missing(outputs):
        cells["predictions"] = told_of(outputs, source, f"$.{places['predictions']}")
    cells |= {name: asked[name] for name in _BY_INPUTS if name in asked}
    for name, value in _expected(expectations, source).items():
        cell = _EXPECTED[name]
        cells[cell] = value if cell != RESPONSE or is_case(value) else told_of(value, source, f"$.expectations.{name}")
    messages = messages_in(inputs)
    listed = list(messages) if is_list(messages) else [messages]
    beside = beside_message(inputs)
    if beside and listed:
        last = content_of(listed[-1])
        listed[-1] = dump(last.model_copy(update={"parts": (*(last.parts or ()), *beside)}))
    each = list(map(_user_cell, listed))
    cells["inputs"] = each if is_list(messages) else each[0]
    if RESPONSE in cells and not isinstance(cells[RESPONSE], Told):
        cells.pop("expected_tool_calls", None)  # the case says it all
    return cells


def _user_cell(message: Any) -> Any:
    """Return a message of the user as a text if a text is all that it is; one with media as it is, so that they stay."""
    if not isinstance(message, Mapping):
        return message
    content = content_of(message)
    return message if has_media(content) else content.text


def _expected(expectations: Any, source: str) -> Json:
    """Return the expectations that criteria read and that hold something, in the order in which they count."""
    if is_missing(expectations):
        return {}
    if not isinstance(expectations, Mapping):
        wanted = f"an object with any of {', '.join(EXPECTATIONS)}"
        raise EvalSetError(source, [Problem("$.expectations", shown(expectations), wanted)])
    given = {name: plain(expectations.get(name)) for name in EXPECTATIONS}
    return {name: value for name, value in given.items() if not is_missing(value)}


def row_of_record(inputs: Any, outputs: Any, expectations: Mapping[str, Any] | None, source: str = "row") -> Row:
    """Return the row that a record is.

    Raises:
        EvalSetError: with the problem of a cell, by the place where a record has it.
    """
    cells = cells_of(inputs, outputs, expectations, source=source)
    targets = [name for name in _expected(expectations, source) if _EXPECTED[name] == RESPONSE]
    places = {**RECORD_PLACES, RESPONSE: f"expectations.{targets[-1]}"} if targets else RECORD_PLACES
    return row_of(cells, source, places)


def row_of_table(cells: Mapping[str, Any], source: str) -> Row:
    """Return a row of a table. Inputs may be messages of a chat, and predictions all that a model tells of itself.

    Raises:
        EvalSetError: with the problem of a cell.
    """
    read = cells_of(cells.get("inputs"), cells.get("predictions"), source=source, places=PLACES)
    return row_of({**cells, **{name: value for name, value in read.items() if not is_missing(value)}}, source)


def has_tools(outputs: Any) -> bool:
    """Whether outputs say which tools were called, so that nothing else needs to be asked."""
    if isinstance(outputs, Mapping) and ("tool_calls" in said_beside(outputs) or not outputs.keys().isdisjoint({"conversation", *STEPS})):
        return True
    return any(turn.tool_calls for turn in _turns(outputs))


def has_answer(outputs: Any) -> bool:
    """Whether outputs hold an answer."""
    return bool(_answers(outputs))


def with_turns(outputs: Any, turns: Sequence[Invocation]) -> dict[str, Any]:
    """Return outputs that say no more than an answer, with the turns that led to it; the answer is that of the last one."""
    answers = _answers(outputs)
    if answers and turns:
        turns = [*turns[:-1], turns[-1].model_copy(update={"final_response": answers[0]})]
    return {"conversation": list(turns), **said_beside(outputs)}


def _answers(outputs: Any) -> list[Content]:
    """Return the answer that outputs end with: a text or media; none where there is none."""
    last = [turn.final_response for turn in _turns(outputs)[-1:]]
    return [answer for answer in last if answer is not None and (answer.text or has_media(answer))]


def _turns(outputs: Any) -> tuple[Invocation, ...]:
    """Return what outputs tell; nothing where they are in no shape that is known."""
    try:
        return () if is_missing(outputs) else told_of(outputs, "outputs").turns
    except EvalSetError:
        return ()
