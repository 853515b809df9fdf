"""ADK's two formats from before its data had a schema, read into today's models.

A list of *cases* (``name``, ``data``, ``initial_session``) and a list of *turns* (``query``, ``reference``,
``expected_tool_use`` …), which is one case. Ids and times are derived from the file, not drawn anew at each load as ADK
does, so that the same file is the same set tomorrow.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, TypeAdapter

from mlflow_adk_eval.evalset.models import (
    Content,
    EvalCase,
    EvalSet,
    FunctionCall,
    IntermediateData,
    Invocation,
    Json,
    Model,
    Part,
    SessionInput,
)
from mlflow_adk_eval.evalset.parse import parse


class _ToolUse(Model):
    tool_name: str
    tool_input: Json | None
    mock_tool_output: Any = None


class _AgentResponse(Model):
    author: str
    text: str


class Turn(Model):
    """One turn of a legacy file."""

    query: str
    reference: str = ""
    expected_tool_use: tuple[_ToolUse, ...] = ()
    expected_intermediate_agent_responses: tuple[_AgentResponse, ...] = ()


class InitialSession(Model):
    """The session of a legacy case, or of a separate initial-session file."""

    state: Json = Field(default_factory=dict)
    app_name: str = ""
    user_id: str = ""


class _Case(Model):
    name: str
    data: tuple[Turn, ...]
    initial_session: InitialSession | None = None


_CASES = TypeAdapter(tuple[_Case, ...])
_TURNS = TypeAdapter(tuple[Turn, ...])
SESSION = TypeAdapter(InitialSession)


def is_list_of_turns(value: list[Any]) -> bool:
    """Whether a legacy list holds turns, and so is one case, rather than cases."""
    return bool(value) and isinstance(value[0], dict) and "data" not in value[0] and "name" not in value[0]


def convert(value: list[Any], source: str, *, stem: str, session: InitialSession | None = None) -> EvalSet:
    """Return the legacy list `value` as an eval set named `stem`.

    Raises:
        EvalSetError: with every problem of the list.
    """
    if is_list_of_turns(value):
        cases = [_case(stem, parse(_TURNS, value, source), session)]
    else:
        cases = [_case(case.name, case.data, case.initial_session or session) for case in parse(_CASES, value, source)]
    return EvalSet(eval_set_id=stem, name=stem, eval_cases=tuple(cases))


def _case(eval_id: str, turns: tuple[Turn, ...], session: InitialSession | None) -> EvalCase:
    conversation = tuple(_invocation(turn) for turn in turns)
    if session is None or not session.model_fields_set:
        return EvalCase(eval_id=eval_id, conversation=conversation)
    session_input = SessionInput(app_name=session.app_name, user_id=session.user_id, state=session.state)
    return EvalCase(eval_id=eval_id, conversation=conversation, session_input=session_input)


def _invocation(turn: Turn) -> Invocation:
    return Invocation(
        user_content=Content(role="user", parts=(Part(text=turn.query),)),
        final_response=Content(role="model", parts=(Part(text=turn.reference),)),
        intermediate_data=IntermediateData(
            tool_uses=tuple(FunctionCall(name=use.tool_name, args=use.tool_input) for use in turn.expected_tool_use),
            intermediate_responses=tuple(
                (response.author, (Part(text=response.text),)) for response in turn.expected_intermediate_agent_responses
            ),
        ),
    )
