"""Conversations of every source, each had twice: once with much that can happen in a turn, and once with a text as the answer and nothing else.

What is *seen* in the first and *none* in the second is known to the source; what is *unknown* where it did not happen is known only where
it did. `docs/observations.py` writes the table of that, and `evalset/test_observation.py` compares each of its cells with these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from mlflow_adk_eval.agents.functions import CallableAgent, Session
from mlflow_adk_eval.agents.http.a2a import A2AAgent
from mlflow_adk_eval.agents.http.chat import OpenAIChatAgent
from mlflow_adk_eval.agents.recordings import load_recording, recording_of_report, save_recording
from mlflow_adk_eval.agents.traces.conversations import conversation_from_traces
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import Content, EvalCase, EvalSet, Invocation, Json, Part
from mlflow_adk_eval.evalset.observation import OBSERVATIONS, Observation, Sight, observed
from mlflow_adk_eval.shapes.rows import row_of
from tests.agents.http.http_kit import A2AServer, completion, had, tool_call
from tests.agents.scripted import call, llm, play, results, text
from tests.agents.traces.test_traces import span, trace
from tests.judge.servers import Call, replies, serving

SAID = "It is on."
IMAGE: Json = {"inline_data": {"mime_type": "image/png", "data": "iVBORw0KGgo="}}
LAMP: Json = {"name": "lamp", "args": {"on": True}}
CASE = EvalCase(eval_id="c", conversation=(Invocation(user_content=Content(role="user", parts=(Part(text="Light!"),))),))


def lamp(on: bool, tool_context: ToolContext) -> Json:
    """Switch the lamp."""
    tool_context.state["lamp"] = on
    return {"ok": True}


def _adk(*, rich: bool) -> Conversation:
    expert = llm(lambda request: text("Bright.") if results(request) else [call("measure")], name="expert", tools=[_measure])

    def script(request: Any) -> Any:
        if not rich or len(results(request)) == 2:
            grounding = types.GroundingMetadata(retrieval_queries=["lamp"]) if rich else None
            parts = text(SAID) + ([types.Part(inline_data=types.Blob(mime_type="image/png", data=b"\x89PNG"))] if rich else [])
            usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=1) if rich else None
            return LlmResponse(content=types.Content(role="model", parts=parts), usage_metadata=usage, grounding_metadata=grounding)
        return [call("lamp", on=True), call("expert", request="How bright?")]

    return play(llm(script, tools=[lamp, AgentTool(expert)]), CASE)


def _measure() -> Json:
    """Measure."""
    return {"lux": 100}


def _text_function(*, rich: bool) -> Conversation:
    def agent(message: str, session: Session) -> Any:
        if rich:
            session.state["lamp"] = True
        return SAID

    return anyio.run(CallableAgent(function=agent, name="house").converse, CASE, 0)


def _function_with_tools(*, rich: bool) -> Conversation:
    def switch(on: bool) -> Json:
        return {"ok": on}

    def agent(message: str, session: Session) -> Any:
        wrapped = session.tool(switch, name="lamp")
        if rich:
            session.state["lamp"] = True
            wrapped(on=True)
        return SAID

    return anyio.run(CallableAgent(function=agent, name="house").converse, CASE, 0)


def _function_with_events(*, rich: bool) -> Conversation:
    def agent(message: str) -> Any:
        if rich:
            usage = {"prompt_token_count": 1}
            yield {"author": "house", "content": {"parts": [{"function_call": LAMP}]}, "usage_metadata": usage, "model_version": "m"}
            answered = {"function_response": {"name": "lamp", "response": {"ok": True}}}
            yield {"author": "house", "content": {"parts": [answered]}, "grounding_metadata": {"retrieval_queries": ["lamp"]}}
        final = [{"text": SAID}, IMAGE] if rich else [{"text": SAID}]
        yield {"author": "house", "content": {"role": "model", "parts": final}}

    return anyio.run(CallableAgent(function=agent, name="house").converse, CASE, 0)


def _chat(*, rich: bool) -> Conversation:
    calls = (tool_call("lamp", '{"on": true}'),) if rich else ()
    usage = {"prompt_tokens": 1, "completion_tokens": 1} if rich else None
    with serving(replies(completion(SAID, *calls, usage=usage))) as server:
        return had(OpenAIChatAgent(server.url, attempts=1), CASE)[0]


def _a2a(*, rich: bool) -> Conversation:
    def answer(server: A2AServer, asked: Call) -> Any:
        artifacts = [server.artifact({"text": SAID})]
        return server.task(asked, "completed", artifacts=artifacts)

    with serving(A2AServer(answer)) as server:
        return had(A2AAgent(server.url, attempts=1), CASE)[0]


def _written(*, rich: bool) -> Json:
    """A turn as people write it in an eval set."""
    turn: Json = {"user_content": {"parts": [{"text": "Light!"}]}, "final_response": {"parts": [{"text": SAID}]}}
    if rich:
        turn["final_response"]["parts"].append(IMAGE)
        turn["intermediate_data"] = {"tool_uses": [LAMP], "tool_responses": [{"name": "lamp", "response": {"ok": True}}]}
        turn |= {"duration": 1.0, "inference_call_count": 2}
    return turn


def _eval_set(*, rich: bool) -> Conversation:
    listed = {"eval_set_id": "s", "eval_cases": [{"eval_id": "c", "conversation": [_written(rich=rich)]}]}
    recording = load_recording(EvalSet.model_validate(listed))
    return recording.runs["c"][0]


def _recording(*, rich: bool) -> Conversation:
    """The conversation of an ADK agent, written to a file of this package and read again."""
    from mlflow_adk_eval.agents.recordings import Recording
    from mlflow_adk_eval.config.eval_config import parse_config
    from mlflow_adk_eval.runner.recordings import score

    config = parse_config({"criteria": {"tool_call_count_v1": 9}}, "config")
    eval_set = EvalSet(eval_set_id="s", eval_cases=(CASE,))
    report = score(eval_set, Recording({"c": (_adk(rich=rich),)}), config)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "recording.json"
        save_recording(recording_of_report(report), file)
        return load_recording(file).runs["c"][0]


def _row(*, rich: bool) -> Conversation:
    cells: Json = {"predictions": SAID}
    if rich:
        answered = {**LAMP, "response": {"ok": True}}
        cells |= {"tool_calls": [answered], "session_state": {"lamp": True}}
    return row_of(cells).conversation


def _chat_row(*, rich: bool) -> Conversation:
    asked = {"role": "user", "content": "Light!"}
    said = {"role": "assistant", "content": SAID}
    between: list[Json] = []
    if rich:
        between = [
            {"role": "assistant", "content": None, "tool_calls": [tool_call("lamp", '{"on": true}')]},
            {"role": "tool", "tool_call_id": "t1", "content": '{"ok": true}'},
        ]
    return row_of({"predictions": {"messages": [asked, *between, said]}}).conversation


def _traced(*, rich: bool) -> Conversation:
    """A trace in which tools, models and a retriever have spans."""
    spans = [span("ask", 1, kind="AGENT", inputs={"question": "Light!"}, outputs=SAID, took=5)]
    usage = {"mlflow.chat.tokenUsage": {"input_tokens": 7, "output_tokens": 2}} if rich else {}
    message = {"choices": [{"message": {"role": "assistant", "content": SAID}, "finish_reason": "stop"}]}
    asked = {"messages": [{"role": "user", "content": "Light!"}]}
    spans.append(span("chat", 2, 1, kind="CHAT_MODEL", inputs=asked, outputs=message, at=3, took=1, attributes=usage))
    if rich:
        spans.append(span("lamp", 3, 1, kind="TOOL", inputs={"on": True}, outputs={"ok": True}, at=1, took=1))
        found = [{"page_content": "The lamp is in the hall."}]
        spans.append(span("search", 4, 1, kind="RETRIEVER", inputs={"query": "lamp"}, outputs=found, at=2, took=1))
    return conversation_from_traces(trace(*spans))


def _traced_models(*, rich: bool) -> Conversation:
    """A trace in which only models have spans, with their messages."""
    spans = [span("ask", 1, kind="AGENT", inputs={"question": "Light!"}, outputs=SAID, took=5)]
    asked = [{"role": "user", "content": "Light!"}]
    usage = {"mlflow.chat.tokenUsage": {"input_tokens": 7, "output_tokens": 2}} if rich else {}
    if rich:
        calling = {"role": "assistant", "content": None, "tool_calls": [tool_call("lamp", '{"on": true}')]}
        answer = {"choices": [{"message": calling, "finish_reason": "tool_calls"}]}
        spans.append(span("chat", 2, 1, kind="CHAT_MODEL", inputs={"messages": asked}, outputs=answer, at=1, took=1))
        asked = [*asked, calling, {"role": "tool", "tool_call_id": "t1", "content": '{"ok": true}'}]
        asked.insert(0, {"role": "system", "content": "Be brief."})
        asked.insert(1, {"role": "system", "content": "Context: the lamp is in the hall."})
    message = {"choices": [{"message": {"role": "assistant", "content": SAID}, "finish_reason": "stop"}]}
    spans.append(span("chat", 3, 1, kind="CHAT_MODEL", inputs={"messages": asked}, outputs=message, at=3, took=1, attributes=usage))
    return conversation_from_traces(trace(*spans))


def _traced_function(*, rich: bool) -> Conversation:
    """A trace of a function alone."""
    return conversation_from_traces(trace(span("ask", 1, kind="AGENT", inputs={"question": "Light!"}, outputs=SAID, took=5)))


Source = Callable[..., Conversation]

SOURCES: Mapping[str, Source] = {
    "an ADK agent": _adk,
    "a function that returns texts": _text_function,
    "a function that wraps its tools": _function_with_tools,
    "a function that yields events": _function_with_events,
    "a chat server": _chat,
    "an A2A server that returns texts": _a2a,
    "a recording of this package": _recording,
    "an eval set as a recording": _eval_set,
    "a row of a table": _row,
    "a row with chat messages": _chat_row,
    "a trace with spans of tools": _traced,
    "a trace with spans of models only": _traced_models,
    "a trace of a function alone": _traced_function,
}
"""Every source of conversations, by how the table calls it: makes a conversation of one turn, `rich` or not."""


def knowledge(source: Source) -> Mapping[Observation, str]:
    """Return what a source knows of each observation: ``always``, ``if it happened`` or ``never``."""
    rich, bare = (observed(source(rich=rich), 0) for rich in (True, False))
    return {what: _known(rich[what], bare[what]) for what in OBSERVATIONS}


def _known(rich: Sight, bare: Sight) -> str:
    if rich == "unknown":
        return "never"
    return "if it happened" if bare == "unknown" else "always"
