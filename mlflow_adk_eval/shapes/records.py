"""Eval cases as records of ``mlflow.genai``: inputs, outputs and expectations; and the cells that such a record holds.

`record_of` and `outputs_of` write records; `case_of` reads what an agent is asked; `cells_of` makes of a whole record the cells that
`shapes.rows.row_of` reads. Records that somebody else made may be in any of the shapes of `shapes.answers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlflow_adk_eval.errors import EvalSetError
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import EvalCase, Invocation, Json
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.shapes.answers import STEPS, Told, is_list, is_missing, messages_in, plain, said_beside, text_of, told_of
from mlflow_adk_eval.shapes.rows import Row, is_case, row_of

CASE = "eval_case"
"""The expectation that holds a whole case."""

_OF_THEIR_OWN = ("expected_tool_calls", "expected_session_state", "rubrics")
_EXPECTED = dict.fromkeys(("expected_response", "expected_conversation", CASE), "targets") | {name: name for name in _OF_THEIR_OWN}
"""Expectations and the cells that they are; of several for one cell, the later here counts."""
EXPECTATIONS = tuple(_EXPECTED)
"""The names of the expectations that criteria read."""
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
    contents = (one if isinstance(one, Mapping) and "parts" in one else {"parts": [{"text": text_of(one)}]} for one in listed)
    turns = [{"user_content": {"role": "user", **content}} for content in contents]
    return parse(EvalCase, asked | {"conversation": turns}, "inputs")


def outputs_of(conversation: Conversation) -> dict[str, Any]:
    """Return what an agent did as the outputs of a record; first, for people, its last answer."""
    outputs: Json = {"response": conversation.actual[-1].final_text if conversation.actual else ""}
    outputs["conversation"] = [dump(turn) for turn in conversation.actual]
    if conversation.session_state is not None:
        outputs["session_state"] = dict(conversation.session_state)
    if conversation.error:
        outputs |= {"error": conversation.error, "unfinished": conversation.unfinished}
    if conversation.unknown:
        outputs["unknown"] = [entry.model_dump(exclude_none=True) for entry in conversation.unknown]
    return outputs


def cells_of(inputs: Any, outputs: Any, expectations: Mapping[str, Any] | None = None, *, source: str = "row") -> dict[str, Any]:
    """Return the cells that a record's inputs, outputs and expectations hold.

    Raises:
        EvalSetError: if the outputs are nothing that an agent did, or what is expected is nothing that it could do.
    """
    inputs, outputs = plain(inputs), plain(outputs)
    asked = inputs if isinstance(inputs, Mapping) else {}
    cells: Json = {"predictions": None if is_missing(outputs) else told_of(outputs, source, "$.outputs"), **said_beside(outputs)}
    cells |= {name: asked[name] for name in ("eval_id", "session_input") if name in asked}
    for name, cell in _EXPECTED.items():
        value = plain((expectations or {}).get(name))
        if not is_missing(value):
            cells[cell] = value if cell != "targets" or is_case(value) else told_of(value, source, f"$.expectations.{name}")
    messages = messages_in(inputs)
    cells["inputs"] = list(map(text_of, messages)) if is_list(messages) else messages
    if "targets" in cells and not isinstance(cells["targets"], Told):
        cells.pop("expected_tool_calls", None)  # the case says it all
    return cells


def row_of_table(cells: Mapping[str, Any], source: str) -> Row:
    """Return a row of a table. Inputs may be messages of a chat, and predictions all that a model tells of itself.

    Raises:
        EvalSetError: with the problem of a cell.
    """
    read = cells_of(cells.get("inputs"), cells.get("predictions"), source=source)
    return row_of({**cells, **{name: value for name, value in read.items() if not is_missing(value)}}, source)


def has_tools(outputs: Any) -> bool:
    """Whether outputs say which tools were called, so that nothing else needs to be asked."""
    if isinstance(outputs, Mapping) and ("tool_calls" in said_beside(outputs) or not outputs.keys().isdisjoint({"conversation", *STEPS})):
        return True
    return any(turn.tool_calls for turn in _turns(outputs))


def has_answer(outputs: Any) -> bool:
    """Whether outputs hold an answer."""
    return any(turn.final_text for turn in _turns(outputs)[-1:])


def with_turns(outputs: Any, turns: Sequence[Invocation]) -> dict[str, Any]:
    """Return outputs that say no more than an answer, with the turns that led to it; the answer is that of the last one."""
    answers = [turn.final_response for turn in _turns(outputs)[-1:] if turn.final_text]
    if answers and turns:
        turns = [*turns[:-1], turns[-1].model_copy(update={"final_response": answers[0]})]
    return {"conversation": list(turns), **said_beside(outputs)}


def _turns(outputs: Any) -> tuple[Invocation, ...]:
    """Return what outputs tell; nothing where they are in no shape that is known."""
    try:
        return () if is_missing(outputs) else told_of(outputs, "outputs").turns
    except EvalSetError:
        return ()
