"""Turns from the spans that ADK exports: of today's schema and of the one before, for which ADK still has a switch.

A turn is the outermost span of an agent or a workflow. Below it, `_steps` finds the calls of models and tools, each with the agent that
made it; `traces.spans` reads what a model was asked and answered; `_events` puts both into the order in which ADK's events came,
each answer of a model followed by what its tools returned. Spans hold that only if the agent's environment lets ADK capture content;
where it does not, the error names the variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlflow_adk_eval.agents.traces.spans import ModelCall, Span, Trace, TracedTurn, decoded, error_of, model_call, spent, unreadable
from mlflow_adk_eval.agents.turns import TurnEvent, is_busy, object_of
from mlflow_adk_eval.errors import InputError
from mlflow_adk_eval.evalset import models as evals
from mlflow_adk_eval.evalset.events import split_answer

_OPERATION, _AGENT = "gen_ai.operation.name", "gen_ai.agent.name"
_CALL_ID, _TOOL = "gen_ai.tool.call.id", "gen_ai.tool.name"
_AGENTS = {"invoke_agent", "invoke_workflow"}
_NAMED = "agent_run ["
"""How google-adk 1.x began the name of an agent's span."""
_NO_ID = "<not specified>"
_SWITCH = (
    "The agent's spans contain no messages: set OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY "
    "(SPAN_AND_EVENT also works; true does not) in the agent's environment. With ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN=1 "
    "or google-adk 1.x, ADK_CAPTURE_MESSAGE_CONTENT_IN_SPANS must not be false instead."
)
_WRAPPER = "Add your own span around the agent, with the user's text as inputs and the answer as outputs."


@dataclass(frozen=True, slots=True)
class _Step:
    """A call of a model or of a tool."""

    span: Span
    author: str
    is_tool: bool = False
    inner: tuple[Span, ...] = ()
    """Of a model, the spans of the same call below it."""
    ended_ns: int = 0
    """When the answer of a model was there: its span may end only after the tools that the answer asked for."""

    @property
    def timed(self) -> Span:
        """The span that measures the model alone."""
        timed = self.inner[-1] if self.inner else self.span
        return replace(timed, end_ns=min(timed.end_ns, self.ended_ns))


def is_turn(span: Span) -> bool:
    """Whether a span is a turn of an ADK agent, if none above it is."""
    return span.text(_OPERATION) in _AGENTS or (span.name == "invocation" and any(map(_is_agent, span.children)))


def calls_tools(span: Span) -> bool:
    """Whether a tool was called within a turn."""
    return any(map(_is_tool, span.walk()))


def adk_turn(trace: Trace, span: Span) -> TracedTurn:
    """Return what happened in a turn.

    Raises:
        InputError: if its content was not captured.
    """
    steps = sorted(_steps(span, _agent_of(span)), key=lambda step: step.span.start_ns)
    models, tools = [step for step in steps if not step.is_tool], [step for step in steps if step.is_tool]
    known = _calls(models)
    unknown = len(known) < sum(not model.span.failed for model in models) or _ends_unseen(span)
    user = next((call.user for _, call in known if call.user), evals.Content(role="user", parts=()) if span.failed else None)
    if unknown or user is None:
        raise _not_captured(trace, span, tools, models=bool(models), complete=len(known) == len(models))
    inside = [step for tool in tools for step in _steps_inside(tool) if not step.is_tool]
    within = _calls(inside)
    costs = ((model.ended_ns, _event(model, call)) for model, call in within)
    timed = sorted((*_events(known, tools), *costs), key=lambda pair: pair[0])
    final, events = split_answer([event for _, event in timed])
    agents: dict[str, evals.AgentDetails] = {}
    for model, call in sorted([*known, *within], key=lambda pair: pair[0].span.start_ns):  # as they were when they first asked a model
        agents.setdefault(model.author, evals.AgentDetails(name=model.author, instructions=call.instructions, tool_declarations=call.tools))
    ids = (span.text("gcp.vertex.agent.invocation_id") for model in models for span in (model.span, *model.inner))
    times = spent(span, (model.timed for model in (*models, *inside)), (tool.span for tool in tools))
    said: evals.Json = {"invocation_id": next(filter(None, ids), trace.id), "user_content": user, "final_response": final}
    details = evals.AppDetails(agent_details=agents) if agents else None
    done = evals.InvocationEvents(invocation_events=events)
    said["inference_call_count"] = len(models) + len(inside)
    invocation = evals.Invocation(intermediate_data=done, app_details=details, **said, **times)
    return TracedTurn(invocation=invocation, error=error_of(span), agent=_agent_of(span))


def _calls(models: Iterable[_Step]) -> list[tuple[_Step, ModelCall]]:
    """Return the models whose spans say what they were asked, with that."""
    return [(model, call) for model in models if (call := model_call(model.span, model.inner))]


def _is_agent(span: Span) -> bool:
    return span.text(_OPERATION) in _AGENTS or span.name.startswith(_NAMED)


def _is_tool(span: Span) -> bool:
    return span.text(_OPERATION) == "execute_tool" or span.name.startswith("execute_tool ")


def _is_model(span: Span) -> bool:
    return span.name == "call_llm" or span.text(_OPERATION) in {"generate_content", "chat", "text_completion"}


def _agent_of(span: Span) -> str:
    """Return the name of the agent that a span is about, or of the first one below it."""
    named = span.text(_AGENT) or span.text("gen_ai.workflow.name")
    if not named and span.name.startswith(_NAMED):
        named = span.name.removeprefix(_NAMED).removesuffix("]")
    return named or (_agent_of(span.children[0]) if span.children else "")


def _steps(span: Span, author: str) -> Iterator[_Step]:
    """Yield the calls of models and tools below a span, but not what happened inside a tool."""
    steps = list(_found(span, author))
    began = [(step.author, step.span.start_ns) for step in steps if step.is_tool]
    for step in steps:
        if step.is_tool:
            yield step
        else:
            tools = (start for name, start in began if name == step.author and start >= step.span.start_ns)
            yield replace(step, ended_ns=min([step.span.end_ns, *tools]))


def _found(span: Span, author: str, *, in_model: bool = False) -> Iterator[_Step]:
    """Yield models and tools below a span; below a model's span its tools, and in google-adk 1.x the agent that took over from its own."""
    for child in span.children:
        if _is_tool(child):
            if child.text(_TOOL) != "(merged tools)":
                yield _Step(child, child.text(_AGENT) or author, is_tool=True)
        elif _is_model(child) and not in_model:
            inner = tuple(_inner_models(child))
            name = next(filter(None, (one.text(_AGENT) for one in (child, *inner))), author)
            yield _Step(child, name, inner=inner)
            yield from _found(child, name, in_model=True)
        elif _is_agent(child):
            yield from _found(child, _agent_of(child))
        else:
            yield from _found(child, author, in_model=in_model)


def _inner_models(span: Span) -> Iterator[Span]:
    for child in span.children:
        if not _is_tool(child) and not _is_agent(child):
            yield from (child,) if _is_model(child) else ()
            yield from _inner_models(child)


def _steps_inside(tool: _Step) -> Iterator[_Step]:
    """Yield what happened inside a tool that is an agent, and inside its tools."""
    for step in _steps(tool.span, tool.author):
        yield step
        if step.is_tool:
            yield from _steps_inside(step)


def _ends_unseen(turn: Span) -> bool:
    """Whether an agent had the last word without asking a model: a callback or code of its own, whose words no span has."""
    return not turn.failed and _is_agent(max((span for span in turn.walk() if not span.children), key=lambda span: span.start_ns))


def _not_captured(trace: Trace, turn: Span, tools: Sequence[_Step], *, models: bool, complete: bool) -> InputError:
    names = ", ".join(tool.span.text(_TOOL) or tool.span.name for tool in tools)
    called = f", and tools ({names}) without arguments" if tools else ""
    if models and not complete:
        what, wanted, hint = "calls of a model without their messages", "the messages", _SWITCH
    else:
        what = "a model call without a user message" if models else "no call of a model"
        what = "a last answer that did not come from a model" if models and _ends_unseen(turn) else what
        wanted, hint = "the answer's text; ADK's spans contain it only for model calls", _WRAPPER
    return unreadable(trace.id, f"span {turn.name!r}", what + called, wanted, hint)


Timed = tuple[int, TurnEvent]


def _events(models: Sequence[tuple[_Step, ModelCall]], tools: Sequence[_Step]) -> Iterator[Timed]:
    """Yield each answer of a model, and after it in one event what its tools returned, as ADK has it."""
    waiting = list(tools)
    for model, call in models:
        parts: list[evals.Part] = []
        took: list[_Step] = []
        for part in (call.answer.parts if call.answer else None) or ():
            called = part.function_call
            tool = _taken(called, model, waiting) if called else None
            took += [tool] if tool else []
            identity = tool.span.text(_CALL_ID) if tool else ""
            known = {"function_call": called.model_copy(update={"id": identity})} if called and identity not in {"", _NO_ID} else {}
            parts.append(part.model_copy(update=known))  # the call gets the id that ADK gave it
        yield model.ended_ns, _event(model, call, call.answer.model_copy(update={"parts": tuple(parts)}) if call.answer else None)
        if answered := [(tool, answer) for tool in took if (answer := _response(tool.span))]:
            yield max(tool.span.end_ns for tool, _ in answered), _returned(model.author, [answer for _, answer in answered])
    for tool in waiting:  # whose calls no answer of a model holds, as when a planner makes them
        span = tool.span
        call_of_planner = evals.FunctionCall(id=span.text(_CALL_ID) or None, name=span.text(_TOOL), args=_args(span))
        content = evals.Content(role="model", parts=(evals.Part(function_call=call_of_planner),))
        yield span.start_ns, TurnEvent(author=tool.author, content=content)
        if response := _response(span):
            yield span.end_ns, _returned(tool.author, [response])


def _taken(call: evals.FunctionCall, model: _Step, waiting: list[_Step]) -> _Step | None:
    """Take the tool that a call led to out of those that wait: by its id, else by name and arguments, else by name."""
    mine = [tool for tool in waiting if tool.author == model.author and tool.span.start_ns >= model.span.start_ns]
    named = [tool for tool in mine if tool.span.text(_TOOL) == call.name]
    same_args = [tool for tool in named if _args(tool.span) == (call.args or {})]
    same_id = [tool for tool in mine if call.id and tool.span.text(_CALL_ID) == call.id]
    if taken := next(iter((*same_id, *same_args, *named)), None):
        waiting.remove(taken)
    return taken


def _event(model: _Step, call: ModelCall, content: evals.Content | None = None) -> TurnEvent:
    """Return an answer of a model; without `content` only what it cost, as of a call that an agent made as a tool."""
    cost: evals.Json = {"usage_metadata": call.usage, "model_version": call.version, "final": not is_busy(content)}
    return TurnEvent(author=model.author, content=content, grounding_metadata=call.grounding if content else None, **cost)


def _returned(author: str, responses: Iterable[evals.FunctionResponse]) -> TurnEvent:
    parts = tuple(evals.Part(function_response=response) for response in responses)
    return TurnEvent(author=author, content=evals.Content(role="user", parts=parts))


def _args(span: Span) -> evals.Json:
    given = decoded(span.attributes.get("gen_ai.tool.call.arguments", span.attributes.get("gcp.vertex.agent.tool_call_args")))
    return dict(given) if isinstance(given, Mapping) else {}


def _response(span: Span) -> evals.FunctionResponse | None:
    """Return what a tool returned; ``None`` where it raised, or is still at work."""
    given: Any = span.attributes.get("gen_ai.tool.call.result", span.attributes.get("gcp.vertex.agent.tool_response"))
    identity = span.text(_CALL_ID)
    if given is None or identity == _NO_ID:
        return None
    return evals.FunctionResponse(id=identity or None, name=span.text(_TOOL), response=object_of(decoded(given)))
