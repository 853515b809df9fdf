"""What models were asked and answered, from the attributes of their spans: ADK's own spelling, and that of OpenTelemetry.

ADK's schema before OpenTelemetry's has the request and the response as JSON of its own types. OpenTelemetry's has lists of messages with
typed parts, in which an answer of a tool has only the id of its call, and a streamed answer may come in several messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.agents.traces.spans import INSTRUCTIONS, Span, decoded, object_of
from mlflow_adk_eval.evalset import AgentDetails, Content, FunctionCall, FunctionResponse, Part
from mlflow_adk_eval.evalset.models import Json

_REQUEST, _RESPONSE = "gcp.vertex.agent.llm_request", "gcp.vertex.agent.llm_response"
_ASKED, _ANSWERED = "gen_ai.input.messages", "gen_ai.output.messages"
_TOOLS = "gen_ai.tool.definitions"
_NOT_CAPTURED: tuple[Any, ...] = (None, {})
_QUOTED = "For context:"
"""How ADK begins the message that tells a model what other agents did."""
_ROLES = {"assistant": "model"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One call of a model."""

    asked: tuple[Content, ...]
    answer: Content | None
    """``None`` where the model answered nothing."""
    usage: Json | None = None
    version: str | None = None
    grounding: Json | None = None
    instructions: str = ""
    tools: tuple[Any, ...] = ()

    @property
    def user(self) -> Content | None:
        """What the user said last, if the request has it."""
        return next((content for content in reversed(self.asked) if content.role == "user" and not _is_quoted(content)), None)

    def agent(self, name: str) -> AgentDetails:
        """Return the agent `name` that made this call, as it was."""
        return AgentDetails(name=name, instructions=self.instructions, tool_declarations=self.tools)


def model_call(span: Span, inner: Sequence[Span]) -> ModelCall | None:
    """Return what a span says of the call of a model; ``None`` where it does not hold the messages.

    Args:
        span: the span.
        inner: the spans of the same call below it.
    """
    attributes = {name: value for one in (*reversed(inner), span) for name, value in one.attributes.items()}
    request = decoded(attributes.get(_REQUEST))
    if isinstance(request, Mapping) and request not in _NOT_CAPTURED:
        return _of_adk(request, decoded(attributes.get(_RESPONSE)), attributes)
    asked = decoded(attributes.get(_ASKED))
    return _of_otel(asked, attributes) if isinstance(asked, list) else None


def usage_of(attributes: Mapping[str, Any]) -> Json | None:
    """Return the tokens that a span reports, in ADK's terms; ``None`` where it reports none."""
    usage = decoded(attributes.get("mlflow.chat.tokenUsage"))
    chat = usage if isinstance(usage, Mapping) else {}
    out = attributes.get("gen_ai.usage.output_tokens", chat.get("output_tokens"))
    thoughts = attributes.get("gen_ai.usage.reasoning.output_tokens")
    found = {
        "prompt_token_count": attributes.get("gen_ai.usage.input_tokens", chat.get("input_tokens")),
        "candidates_token_count": out - thoughts if out is not None and thoughts is not None else out,
        "thoughts_token_count": thoughts,
        "cached_content_token_count": attributes.get("gen_ai.usage.cache_read.input_tokens"),
    }
    return {name: count for name, count in found.items() if count is not None} or None


def model_name(attributes: Mapping[str, Any]) -> str | None:
    """Return which model answered, as far as a span says."""
    names = ("gen_ai.response.model", "mlflow.llm.model", "gen_ai.request.model")
    return next((str(attributes[name]) for name in names if attributes.get(name)), None)


def instructions_of(attributes: Mapping[str, Any]) -> str:
    """Return the instructions that a span has as an attribute, a text or a list of parts; empty where it has none."""
    found = decoded(attributes.get(INSTRUCTIONS)) or ()
    return found if isinstance(found, str) else "\n".join(str(part.get("content") or part.get("text") or "") for part in found)


def _of_adk(request: Mapping[str, Any], response: Any, attributes: Mapping[str, Any]) -> ModelCall:
    answered: Mapping[str, Any] = response if isinstance(response, Mapping) else {}
    config = request.get("config") or {}
    instruction = config.get("system_instruction") or ""
    content = answered.get("content")
    return ModelCall(
        asked=tuple(Content.model_validate(one) for one in request.get("contents") or ()),
        answer=Content.model_validate(content) if content else None,
        usage=answered.get("usage_metadata") or usage_of(attributes),
        version=answered.get("model_version"),
        grounding=answered.get("grounding_metadata"),
        instructions=instruction if isinstance(instruction, str) else Content.model_validate(instruction).text,
        tools=tuple(config.get("tools") or ()),
    )


def _of_otel(asked: Sequence[Any], attributes: Mapping[str, Any]) -> ModelCall:
    contents = _contents(asked)
    answers = _contents(decoded(attributes.get(_ANSWERED)) or ())
    return ModelCall(
        asked=contents,
        answer=_joined(answers),
        usage=usage_of(attributes),
        version=model_name(attributes),
        instructions=instructions_of(attributes),
        tools=tuple(declarations(decoded(attributes.get(_TOOLS)) or ())),
    )


def _is_quoted(content: Content) -> bool:
    parts = content.parts or ()
    return bool(parts) and (parts[0].text or "").startswith(_QUOTED)


def _contents(messages: Iterable[Mapping[str, Any]]) -> tuple[Content, ...]:
    """Return messages as ADK has them. An answer of a tool has only the id of its call, which has the tool's name."""
    found: list[Content] = []
    names: dict[str, str] = {}
    for message in messages:
        parts = tuple(part for raw in message.get("parts") or () if (part := _part(raw, names)))
        names |= {call.id: call.name for part in parts if (call := part.function_call) and call.id and call.name}
        role = message.get("role") or "model"
        found.append(Content(role=_ROLES.get(role, role), parts=parts))
    return tuple(found)


def _part(raw: Mapping[str, Any], names: Mapping[str, str]) -> Part | None:
    match raw.get("type"):
        case "text" | "reasoning" as kind:
            return Part(text=raw.get("content") or "", thought=True if kind == "reasoning" else None)
        case "tool_call":
            args = decoded(raw.get("arguments"))
            return Part(function_call=FunctionCall(id=raw.get("id"), name=raw.get("name"), args={} if args is None else object_of(args)))
        case "tool_call_response":
            given, identity = decoded(raw.get("response", raw.get("result"))), raw.get("id") or ""
            name = names.get(identity, identity.rpartition("_")[0])
            return Part(function_response=FunctionResponse(id=identity, name=name, response=None if given is None else object_of(given)))
        case "blob":
            return Part(inline_data={"mime_type": raw.get("mime_type") or "application/octet-stream"})
        case "file_data" | "uri":
            return Part(file_data={"mime_type": raw.get("mime_type") or "", "file_uri": raw.get("uri") or ""})
        case _:
            return None


def _joined(answers: Sequence[Content]) -> Content | None:
    """Return an answer that came in several messages as one; if the last repeats what came before, it is all of it."""
    if len(answers) <= 1:
        return answers[0] if answers else None
    *before, last = ["".join(part.text or "" for part in content.parts or ()) for content in answers]
    if last and "".join(before) == last:
        return answers[-1]
    parts: list[Part] = []
    for part in (part for content in answers for part in content.parts or ()):
        if parts and part.text is not None and parts[-1].text is not None and part.thought == parts[-1].thought:
            parts[-1] = parts[-1].model_copy(update={"text": parts[-1].text + part.text})
        else:
            parts.append(part)
    return Content(role="model", parts=tuple(parts))


def declarations(definitions: Iterable[Mapping[str, Any]]) -> Iterable[Json]:
    """Yield the tools as ADK's requests declare them."""
    names = {"description": "description", "name": "name", "parameters": "parameters_json_schema"}
    definitions = [{**tool, **(tool.get("function") or {})} for tool in definitions]
    functions = [
        {name: tool[key] for key, name in names.items() if tool.get(key) is not None}
        for tool in definitions
        if tool.get("type") == "function"
    ]
    if functions:
        yield {"function_declarations": functions}
    yield from ({str(tool.get("name")): {}} for tool in definitions if tool.get("type") != "function")
