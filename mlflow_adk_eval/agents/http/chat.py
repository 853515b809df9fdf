"""Agents with the API of a chat model, OpenAI's ``chat/completions``.

The agent keeps nothing: each request holds the whole conversation so far. The answer of a request is one turn, with its tool calls and
its tokens in Gemini's words.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from mlflow_adk_eval.agents.conversation import chat_messages
from mlflow_adk_eval.agents.http.http_agent import HttpAgent, HttpRequest, require_real_tools
from mlflow_adk_eval.agents.protocol import UNTOLD, AgentSession, Turn
from mlflow_adk_eval.agents.replay import Tools
from mlflow_adk_eval.agents.turns import TurnEvent, TurnLog
from mlflow_adk_eval.errors import AgentError
from mlflow_adk_eval.evalset.media import media_parts
from mlflow_adk_eval.evalset.models import Content, EvalCase, FunctionCall, Invocation, Json, Part, value_at
from mlflow_adk_eval.evalset.observation import Unknown

_NO_CALLS = (
    "no message of the agent had tool_calls, which servers leave out that call their tools themselves; "
    "have it return them in its message, or evaluate it as a function that reports them"
)


class _Function(BaseModel):
    name: str
    arguments: Any = None


class _ToolCall(BaseModel):
    id: str | None = None
    function: _Function | None = None


class _Message(BaseModel):
    content: str | list[Json] | None = None
    audio: Any = None
    images: Any = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_Choice]
    model: str | None = None
    usage: dict[str, Any] | None = None


def answer_of(completion: Any, author: str) -> tuple[TurnEvent, str] | None:
    """Return what an agent answered, and why that is no answer after all, if so; ``None``: it is no chat completion."""
    try:
        parsed = _Completion.model_validate(completion)
        choice = parsed.choices[0]
    except (ValidationError, IndexError):
        return None
    message = choice.message
    text = _text(message.content) or message.refusal or ""
    parts = [Part(text=text)] if text else []
    parts += media_parts(message.model_dump(include={"content", "audio", "images"}))
    parts += [Part(function_call=_call(call.id, call.function)) for call in message.tool_calls or () if call.function]
    said, usage = Content(role="model", parts=tuple(parts)) if parts else None, _usage(parsed.usage or {})
    cut = "MAX_TOKENS" if choice.finish_reason == "length" and text else None  # as ADK calls it
    event = TurnEvent(author=author, content=said, final=True, usage_metadata=usage, model_version=parsed.model, error_code=cut)
    if choice.finish_reason == "content_filter":
        return event, "a content filter withheld the answer (finish_reason content_filter)"
    if choice.finish_reason == "length" and not text:
        return event, "the token limit was reached before the answer began (finish_reason length)"
    return event, ""


def _text(content: str | list[Json] | None) -> str:
    if isinstance(content, str):
        return content
    texts = (block.get("text") for block in content or ())
    return "".join(text for text in texts if isinstance(text, str))


def _call(call_id: str | None, function: _Function) -> FunctionCall:
    """Return a tool call; arguments that are no JSON object are kept as they are."""
    given = function.arguments
    try:
        args = from_json(given.strip() or "{}") if isinstance(given, str) else given or {}
    except ValueError:
        args = given
    return FunctionCall(id=call_id, name=function.name, args=args if isinstance(args, dict) else {"arguments": args})


def _usage(usage: Json) -> Json | None:
    """Return token counts as Gemini words them, where what a model thinks is no part of its answer.

    >>> _usage({"prompt_tokens": 9, "completion_tokens": 7, "completion_tokens_details": {"reasoning_tokens": 4}})
    {'prompt_token_count': 9, 'candidates_token_count': 3, 'thoughts_token_count': 4}
    """
    thoughts = _number(usage, "completion_tokens_details", "reasoning_tokens")
    answer = _number(usage, "completion_tokens")
    counts = {
        "prompt_token_count": _number(usage, "prompt_tokens"),
        "candidates_token_count": answer - (thoughts or 0) if answer is not None else None,
        "thoughts_token_count": thoughts,
        "cached_content_token_count": _number(usage, "prompt_tokens_details", "cached_tokens"),
        "total_token_count": _number(usage, "total_tokens"),
    }
    return {name: count for name, count in counts.items() if count is not None} or None


def _number(usage: Any, *path: str) -> int | None:
    value = value_at(usage, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


PATH = "/chat/completions"


@dataclass(frozen=True, slots=True)
class OpenAIChatAgent(HttpAgent):
    """An agent behind ``{url}/chat/completions``, which receives the whole conversation on each turn."""

    _: KW_ONLY
    model: str | None = None
    """The model name in each request; ``None``: none, for servers with a single agent."""
    system: str | None = None
    """The first message of each request, if any."""
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of each request, such as ``temperature``."""

    @property
    def endpoint(self) -> str:
        """Where requests go."""
        split = urlsplit(self.address)
        path = split.path.rstrip("/")
        return split._replace(path=path if path.endswith(PATH) else path + PATH).geturl()

    @asynccontextmanager
    async def open(self, case: EvalCase, run_index: int, tools: Tools | None, /) -> AsyncGenerator[ChatSession]:  # noqa: ARG002 - each conversation is new to the agent
        """Begin a conversation."""
        require_real_tools(tools)
        yield ChatSession(self)


@dataclass(slots=True)
class ChatSession(AgentSession):
    """One conversation; the agent keeps nothing of it."""

    agent: OpenAIChatAgent
    history: list[Invocation] = field(default_factory=list[Invocation])
    reports_calls: bool = False
    """Whether a message so far has held tool calls."""

    def unknown(self) -> Sequence[Unknown]:
        """Return what completions do not say of the agent behind them."""
        why = "a chat completion does not say what the agent behind it asked of models"
        unknown = [Unknown(what="model_calls", why=why), Unknown(what="model_errors", why=why)]
        if not self.reports_calls:
            unknown += [Unknown(what=what, why=_NO_CALLS) for what in UNTOLD]
        return unknown

    async def turn(self, user: Content, /) -> Turn:
        """Send the conversation, the user's message last."""
        log = TurnLog(author=self.agent.name, user=user)
        number = len(self.history) + 1
        try:
            event, error = await self._answer(user)
        except AgentError as failure:
            return Turn(invocation=None, error=f"turn {number}: {failure}")
        log.add(event)
        self.reports_calls = self.reports_calls or bool(event.get_function_calls())
        if error:
            return Turn(invocation=log.unfinished(), error=f"turn {number}: {error}")
        invocation = log.finished()
        self.history.append(invocation)
        return Turn(invocation=invocation)

    async def _answer(self, user: Content) -> tuple[TurnEvent, str]:
        for part in user.parts or ():
            others = ("inline_data", "file_data", "function_call", "function_response")
            lost = next((name for name in others if getattr(part, name) is not None), None)
            if lost:
                raise AgentError(f"the user's message has more than text ({lost}); chat completions cannot send it")
        agent = self.agent
        system = [{"role": "system", "content": agent.system}] if agent.system else []
        body = {**({"model": agent.model} if agent.model else {}), **agent.body, "messages": [*system, *chat_messages(self.history, user)]}
        request = HttpRequest(url=agent.endpoint, body=body)
        completion = await agent.send(request)
        answer = answer_of(completion, agent.name)
        if answer is None:
            raise agent.unexpected(request, completion, "a chat completion")
        return answer
