"""Has conversations with real ADK agents whose spans go to MLflow, and writes down what they really did.

``python traced_worker.py STORE OUT``: OpenTelemetry can be set up once in a process, and reads its switches when it is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mlflow
from google.adk.agents import BaseAgent, ParallelAgent, SequentialAgent
from google.adk.events import Event
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from mlflow_adk_eval.agents.adk.agent import load_adk_agent
from tests.agents.scripted import call, case_of, llm, play, results, team, text, user_text


def get_weather(city: str, opts: dict[str, Any] | None = None) -> dict[str, Any]:
    """Tell the weather."""
    return {"temp": 20, "city": city}


def number(x: int) -> str:
    """Return a text."""
    return f"got {x}"


def boom(x: int) -> dict[str, Any]:
    """Raise."""
    raise ValueError("no such room")


def refuse(x: int) -> dict[str, Any]:
    """Return an error."""
    return {"error": "bad"}


def talk(request: Any) -> Any:
    said, answers = user_text(request), results(request)
    if answers:
        return text("20 °C in Paris." if "weather" in said else f"The tool says {json.dumps(answers)}")
    if "weather" in said:
        return [
            types.Part(text="Let me look."),
            call("get_weather", city="Paris", opts={"u": "C"}),
            call("number", x=3),
            call("number", x=4),
        ]
    if "boom" in said:
        return [call("boom", x=1)]
    if "refuse" in said:
        return [call("refuse", x=1)]
    if "down" in said:
        raise RuntimeError("model is down")
    if "silent" in said:
        return []
    if "tokens" in said:
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=7, candidates_token_count=5, thoughts_token_count=3, cached_content_token_count=2
        )
        return LlmResponse(content=types.Content(role="model", parts=text("counted")), usage_metadata=usage, model_version="scripted-2")
    return text("You are welcome.")


def single(**settings: Any) -> Any:
    return llm(talk, name="front", instruction="Be nice.", tools=[get_weather, number, refuse, boom], **settings)


def nested() -> Any:
    inner = llm(lambda request: text("inner says 7"), name="calc", description="calculates")
    return llm(
        lambda request: text("it is 7") if results(request) else [call("calc", request="7?")], name="outer", tools=[AgentTool(inner)]
    )


def chain() -> Any:
    first = llm(lambda request: text("a draft"), name="writer")
    second = llm(lambda request: text("polished") if results(request) else [call("number", x=1)], name="editor", tools=[number])
    return SequentialAgent(name="chain", sub_agents=[first, second])


def both() -> Any:
    return ParallelAgent(
        name="both", sub_agents=[llm(lambda request: text("one"), name="one"), llm(lambda request: text("two"), name="two")]
    )


def guarded() -> Any:
    def guard(callback_context: Any, llm_request: Any) -> Any:
        return LlmResponse(content=types.Content(role="model", parts=text("I may not.")))

    return llm(talk, name="front", before_model_callback=guard)


class Own(BaseAgent):
    """An agent that answers without a model."""

    async def _run_async_impl(self, ctx: Any) -> Any:
        yield Event(author=self.name, invocation_id=ctx.invocation_id, content=types.Content(role="model", parts=text("by code")))


SCENARIOS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "single": (single, ("weather?", "thanks", "refuse it", "silent", "tokens?")),
    "boom": (single, ("hello", "boom", "never asked")),
    "down": (single, ("hello", "you are down")),
    "team": (team, ("bill?", "again")),
    "nested": (nested, ("how?", "and now?")),
    "chain": (chain, ("write",)),
    "both": (both, ("both of you",)),
    "guarded": (guarded, ("hi",)),
    "code": (lambda: Own(name="own"), ("hi",)),
}


def main(store: str, out: Path) -> None:
    mlflow.set_tracking_uri(store)
    experiment = mlflow.set_experiment("traced").experiment_id
    mlflow.tracing.enable()  # else MLflow listens from its first own span on
    found: dict[str, Any] = {}
    for name, (make, turns) in SCENARIOS.items():
        case = case_of(*turns, session_id=f"session-{name}", user_id="ann@example.com")
        played = play(load_adk_agent(make()), case)
        found[name] = {"played": [turn.model_dump(mode="json", exclude_unset=True) for turn in played.actual], "error": played.error}
    with mlflow.start_span("predict", span_type="CHAIN") as span:
        span.set_inputs({"question": "hello"})
        play(load_adk_agent(single()), case_of("hello", "weather?", session_id="session-wrapped"))
        span.set_outputs("20 °C in Paris.")
    mlflow.flush_trace_async_logging()
    traces = mlflow.search_traces(locations=[experiment], return_type="list", max_results=500)
    out.write_text(json.dumps({"own": found, "traces": [trace.to_dict() for trace in traces]}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
