"""What a chat completion says, in the words of invocations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from mlflow_adk_eval.agents.turn_log import Piece
from mlflow_adk_eval.evalset import Content, FunctionCall, Part
from mlflow_adk_eval.evalset.models import Json


class _Function(BaseModel):
    name: str
    arguments: Any = None


class _ToolCall(BaseModel):
    id: str | None = None
    function: _Function | None = None


class _Text(BaseModel):
    text: str | None = None


class _Message(BaseModel):
    content: str | list[_Text] | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_Choice]
    model: str | None = None
    usage: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An answer."""

    text: str
    calls: tuple[FunctionCall, ...]
    usage: Json | None
    """As Gemini words it."""
    model: str | None
    error: str
    """Why it is none after all; empty where it is one."""

    def piece(self, author: str) -> Piece:
        """Return it as a piece of a turn."""
        parts = [Part(text=self.text)] if self.text else []
        parts += [Part(function_call=call) for call in self.calls]
        content = Content(role="model", parts=tuple(parts)) if parts else None
        return Piece(author=author, content=content, final=True, usage_metadata=self.usage, model_version=self.model)


def completion_of(said: Any) -> Completion | None:
    """Return what an agent answered; ``None``: it is no chat completion."""
    try:
        parsed = _Completion.model_validate(said)
        choice = parsed.choices[0]
    except (ValidationError, IndexError):
        return None
    message = choice.message
    texts = [part.text for part in message.content or () if part.text] if not isinstance(message.content, str) else [message.content]
    text = "".join(texts) or message.refusal or ""
    return Completion(
        text=text,
        calls=tuple(_call(call.id, call.function) for call in message.tool_calls or () if call.function),
        usage=_usage(parsed.usage or {}),
        model=parsed.model,
        error=_error(choice.finish_reason, text),
    )


def _call(call_id: str | None, function: _Function) -> FunctionCall:
    """Return a tool call; arguments that are no JSON object are kept as they are."""
    given = function.arguments
    try:
        args = from_json(given.strip() or "{}") if isinstance(given, str) else given or {}
    except ValueError:
        args = given
    return FunctionCall(id=call_id, name=function.name, args=args if isinstance(args, dict) else {"arguments": args})


def _error(finish_reason: str | None, text: str) -> str:
    if finish_reason == "content_filter":
        return "a content filter withheld the answer (finish_reason content_filter)"
    if finish_reason == "length" and not text:
        return "the limit of tokens was reached before the answer began (finish_reason length)"
    return ""


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
    found = usage
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None
