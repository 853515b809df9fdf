"""Conversations in traces as eval cases, in which what the agent did is the reference, with every text redacted.

A captured case keeps what the user said, what the agent answered, and its tool calls; costs, instructions and metadata are left out. Every
text passes through a `_Redactor`, which masks the secrets of the environment and then calls the caller's function, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
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
from mlflow_adk_eval.foreign import foreign_code
from mlflow_adk_eval.redact import redacted, secrets_of, without_credentials

Redact = Callable[[str], str]
_USER_ID = "test_user_id"  # what ADK calls the user of a case without a session


def cases_of(conversations: Iterable[TracedConversation], redact: Redact | None = None) -> tuple[EvalCase, ...]:
    """Return each conversation as a case, in order of time.

    A conversation is not kept once its case is made: its traces may hold 50 MB each, and whoever yields them may load them one by one.

    Args:
        conversations: what was said and done.
        redact: what is done to every text that came from users, tools and the agent; media are left out then.

    Raises:
        InputError: with every trace that does not say what was said.
        UsageError: if `redact` raises, or returns no text.
    """
    redactor = _Redactor(redact)
    cases: list[tuple[int, EvalCase]] = []
    problems: list[tuple[int, InputError]] = []
    for conversation in conversations:
        order = _order(conversation)
        try:
            cases.append((order, _case(conversation, redactor)))
        except InputError as error:
            problems.append((order, error.with_traceback(None)))  # the traceback holds the conversation
    if problems:
        raise all_of([error for _, error in sorted(problems, key=_first)], "traces")
    return tuple(_with_own_ids(case for _, case in sorted(cases, key=_first)))


def reference_of(turn: Invocation) -> Invocation:
    """Return what an agent did in a turn as what is expected, with the secrets of the environment masked."""
    return _Redactor(None).reference(turn)


def _first(pair: tuple[int, object]) -> int:
    return pair[0]


def _order(conversation: TracedConversation) -> int:
    """Return what sorts conversations. An evaluation dates its first case last, so that MLflow, which lists the newest first, keeps its order."""
    return -conversation.began if conversation.case else conversation.began


def _with_own_ids(cases: Iterable[EvalCase]) -> Iterator[EvalCase]:
    """Yield the cases, with a number in the ids that are taken, as by several runs of one case."""
    taken: set[str] = set()
    for case in cases:
        names = (case.eval_id if number == 1 else f"{case.eval_id}_{number}" for number in count(1))
        name = next(name for name in names if name not in taken)
        taken.add(name)
        yield case if name == case.eval_id else case.model_copy(update={"eval_id": name})


def _case(conversation: TracedConversation, redactor: _Redactor) -> EvalCase:
    turns = conversation.turns()
    session_state = conversation.conversation(turns).session_state
    if not turns:
        raise UsageError(f"{conversation.label} has no turn")
    app, user = agent_name(turns), conversation.traces[0].user
    session = SessionInput(app_name=app, user_id=redactor.text(user) if user else _USER_ID) if app or user else None
    return EvalCase(
        eval_id=conversation.case or conversation.session or conversation.traces[0].id,
        conversation=tuple(redactor.reference(turn.invocation) for turn in turns),
        session_input=session,
        creation_timestamp=conversation.traces[0].time_ms / 1000,
        final_session_state=redactor.json(dict(session_state)) if session_state else None,
    )


@dataclass(frozen=True, slots=True)
class _Redactor:
    """Makes a reference of what an agent did, and redacts every text in it."""

    redact: Redact | None
    """The caller's function. With one, media are left out, since it could not look into them."""
    secrets: Mapping[str, str] = field(default_factory=secrets_of)

    def text(self, text: str) -> str:
        clean = redacted(without_credentials(text), self.secrets)
        if self.redact is None:
            return clean
        try:
            with foreign_code("it"):
                found: Any = self.redact(clean)
        except Exception as error:  # the function is the user's own code: anything can go wrong
            raise UsageError(f"redact raised {type(error).__name__}; nothing was captured") from error
        if not isinstance(found, str):
            raise UsageError(f"redact returned {shown(found)}; wanted a text")
        return found

    def json(self, value: Any) -> Any:
        """Return JSON with every text in it redacted; its keys stay."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {key: self.json(item) for key, item in value.items()}
            case list() | tuple():
                return [self.json(item) for item in value]
            case _:
                return value

    def reference(self, turn: Invocation) -> Invocation:
        """Return what the agent did as a reference: without what it cost and without its instructions."""
        return Invocation(
            invocation_id=turn.invocation_id,
            user_content=self.content(turn.user_content),
            final_response=self.content(turn.final_response) if turn.final_response else None,
            intermediate_data=self.intermediate(turn),
            creation_timestamp=turn.creation_timestamp,
        )

    def intermediate(self, turn: Invocation) -> InvocationEvents | IntermediateData:
        match turn.intermediate_data:
            case InvocationEvents(invocation_events=events):
                kept = (InvocationEvent(author=event.author, content=self.content(event.content)) for event in events if event.content)
                return InvocationEvents(invocation_events=tuple(kept))
            case IntermediateData(tool_uses=calls, tool_responses=responses, intermediate_responses=texts):
                return IntermediateData(
                    tool_uses=tuple(map(self.call, calls)),
                    tool_responses=tuple(map(self.response, responses)),
                    intermediate_responses=tuple((author, tuple(map(self.part, parts))) for author, parts in texts),
                )
            case None:
                return IntermediateData()

    def content(self, content: Content) -> Content:
        return Content(role=content.role, parts=tuple(map(self.part, content.parts or ())))

    def part(self, part: Part) -> Part:
        match part:
            case Part(function_call=FunctionCall() as call):
                return Part(function_call=self.call(call))
            case Part(function_response=FunctionResponse() as response):
                return Part(function_response=self.response(response))
            case Part(text=str(text)):
                return Part(text=self.text(text), thought=part.thought)
            case _:
                return part if self.redact is None else Part(text=f"[{_kind(part)}]")

    def call(self, call: FunctionCall) -> FunctionCall:
        return FunctionCall(**_identity(call), args=self.json(call.args or {}))

    def response(self, response: FunctionResponse) -> FunctionResponse:
        return FunctionResponse(**_identity(response), response=self.json(response.response or {}))


def _kind(part: Part) -> str:
    """Return what a part is that has no text of its own."""
    blob = part.inline_data or part.file_data
    named = blob.get("mime_type") or blob.get("mimeType") if isinstance(blob, Mapping) else None
    return str(named or next((name for name in part.model_fields_set if getattr(part, name) is not None), "nothing"))


def _identity(part: FunctionCall | FunctionResponse) -> dict[str, Any]:
    return {name: value for name, value in (("id", part.id), ("name", part.name)) if value is not None}
