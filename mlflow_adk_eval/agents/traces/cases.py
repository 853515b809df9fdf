"""Conversations in traces as eval cases, in which what the agent did is the reference, with every text redacted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mlflow_adk_eval.agents.traces.conversations import TracedConversation, agent_name, all_of
from mlflow_adk_eval.errors import InputError, UsageError, shown
from mlflow_adk_eval.evalset import (
    Content,
    EvalCase,
    FunctionCall,
    FunctionResponse,
    IntermediateData,
    Invocation,
    InvocationEvent,
    InvocationEvents,
    Part,
    SessionInput,
)
from mlflow_adk_eval.redact import redacted, secrets_of, without_credentials

Redact = Callable[[str], str]
_USER_ID = "test_user_id"  # what ADK calls the user of a case without a session


def cases_of(conversations: Iterable[TracedConversation], redact: Redact | None = None) -> tuple[EvalCase, ...]:
    """Return each conversation as a case.

    Args:
        conversations: what was said and done.
        redact: what is done to every text that came from users, tools and the agent; media are left out then.

    Raises:
        InputError: with every trace that does not say what was said.
        UsageError: if `redact` raises, or returns no text.
    """
    scrub = _scrub(redact)
    cases: list[EvalCase] = []
    problems: list[InputError] = []
    for conversation in conversations:
        try:
            cases.append(_case(conversation, _eval_id(conversation, cases), scrub, media=redact is None))
        except InputError as error:
            problems.append(error)
    if problems:
        raise all_of(problems, "traces")
    return tuple(cases)


def _scrub(redact: Redact | None) -> Redact:
    secrets = secrets_of()

    def scrub(text: str) -> str:
        clean = redacted(without_credentials(text), secrets)
        return clean if redact is None else _checked(redact, clean)

    return scrub


def _checked(redact: Redact, text: str) -> str:
    try:
        found: Any = redact(text)
    except Exception as error:  # the function is the user's own code: anything can go wrong
        raise UsageError(f"redact raised {type(error).__name__}; nothing was captured") from error
    if not isinstance(found, str):
        raise UsageError(f"redact returned {shown(found)}; wanted a text")
    return found


def _eval_id(conversation: TracedConversation, before: Sequence[EvalCase]) -> str:
    """Return the id of the case, session or trace, with a number where it is taken, as by several runs of one case."""
    wanted = conversation.case or conversation.session or conversation.traces[0].id
    taken = {case.eval_id for case in before}
    return next(name for number in range(1, len(taken) + 2) if (name := wanted if number == 1 else f"{wanted}_{number}") not in taken)


def _case(conversation: TracedConversation, eval_id: str, scrub: Redact, *, media: bool) -> EvalCase:
    turns = conversation.turns()
    played = conversation.played_from(turns)
    if not turns:
        raise UsageError(f"{conversation.label} has no turn")
    app, user = agent_name(turns), conversation.traces[0].user
    session = SessionInput(app_name=app, user_id=scrub(user) if user else _USER_ID) if app or user else None
    state = _scrubbed(dict(played.session_state), scrub) if played.session_state else None
    return EvalCase(
        eval_id=eval_id,
        conversation=tuple(_reference(turn.invocation, scrub, media=media) for turn in turns),
        session_input=session,
        creation_timestamp=conversation.traces[0].time_ms / 1000,
        final_session_state=state,
    )


def _reference(turn: Invocation, scrub: Redact, *, media: bool) -> Invocation:
    """Return what the agent did as a reference: without what it cost and without its instructions."""
    final = _content(turn.final_response, scrub, media=media) if turn.final_response else None
    return Invocation(
        invocation_id=turn.invocation_id,
        user_content=_content(turn.user_content, scrub, media=media),
        final_response=final,
        intermediate_data=_intermediate(turn, scrub, media=media),
        creation_timestamp=turn.creation_timestamp,
    )


def _intermediate(turn: Invocation, scrub: Redact, *, media: bool) -> InvocationEvents | IntermediateData:
    match turn.intermediate_data:
        case InvocationEvents(invocation_events=events):
            said = ((event, event.content) for event in events)
            return InvocationEvents(
                invocation_events=tuple(
                    InvocationEvent(author=event.author, content=_content(content, scrub, media=media))
                    for event, content in said
                    if content
                )
            )
        case IntermediateData(tool_uses=calls, tool_responses=responses, intermediate_responses=said):
            return IntermediateData(
                tool_uses=tuple(_call(call, scrub) for call in calls),
                tool_responses=tuple(_response(response, scrub) for response in responses),
                intermediate_responses=tuple((author, tuple(_parts(parts, scrub, media=media))) for author, parts in said),
            )
        case None:
            return IntermediateData()


def _content(content: Content, scrub: Redact, *, media: bool) -> Content:
    return Content(role=content.role, parts=tuple(_parts(content.parts or (), scrub, media=media)))


def _parts(parts: Iterable[Part], scrub: Redact, *, media: bool) -> Iterable[Part]:
    for part in parts:
        match part:
            case Part(function_call=FunctionCall() as call):
                yield Part(function_call=_call(call, scrub))
            case Part(function_response=FunctionResponse() as response):
                yield Part(function_response=_response(response, scrub))
            case Part(text=str(text)):
                yield Part(text=scrub(text), thought=part.thought)
            case _:
                yield part if media else Part(text=f"[{_kind(part)}]")


def _kind(part: Part) -> str:
    """Return what a part is that has no text of its own."""
    blob = part.inline_data or part.file_data
    named = blob.get("mime_type") or blob.get("mimeType") if isinstance(blob, Mapping) else None
    return str(named or next((name for name in part.model_fields_set if getattr(part, name) is not None), "nothing"))


def _call(call: FunctionCall, scrub: Redact) -> FunctionCall:
    return FunctionCall(**_identity(call), args=_scrubbed(call.args or {}, scrub))


def _response(response: FunctionResponse, scrub: Redact) -> FunctionResponse:
    return FunctionResponse(**_identity(response), response=_scrubbed(response.response or {}, scrub))


def _identity(part: FunctionCall | FunctionResponse) -> dict[str, Any]:
    return {name: value for name, value in (("id", part.id), ("name", part.name)) if value is not None}


def _scrubbed(value: Any, scrub: Redact) -> Any:
    """Return JSON with every text in it redacted; its keys stay."""
    match value:
        case str():
            return scrub(value)
        case Mapping():
            return {key: _scrubbed(item, scrub) for key, item in value.items()}
        case list() | tuple():
            return [_scrubbed(item, scrub) for item in value]
        case _:
            return value
