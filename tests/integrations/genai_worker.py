"""Processes of their own for evaluations whose environment matters from the first import on. Prints what MLflow has afterwards."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import mlflow


def rows(count: str) -> None:
    """Score rows of a table by three criteria."""
    from mlflow_adk_eval import scorers

    wanted = int(count)
    data = [
        {
            "inputs": {"query": f"question {number}"},
            "outputs": {"response": f"answer {number}", "tool_calls": []},
            "expectations": {"expected_response": f"answer {number}", "expected_tool_calls": []},
        }
        for number in range(wanted)
    ]
    made = scorers.from_config({"criteria": {"tool_trajectory_avg_score": 1, "response_match_score": 0.5, "tool_call_count_v1": 2}})
    _report(mlflow.genai.evaluate(data=data, scorers=made), 0)


def agent(whose: str) -> None:
    """Have an ADK agent predict, by our function or by one as people write it."""
    from tests.agents.scripted import call, llm, ping, results, text

    asked: list[str] = []

    def script(request: Any) -> Any:
        asked.append("once")
        return text("pong came") if results(request) else [call("ping")]

    made = llm(script, tools=[ping])
    from mlflow_adk_eval import scorers
    from mlflow_adk_eval.integrations.agent_functions import predict_fn

    data = [{"inputs": {"query": f"question {number}"}, "expectations": {"expected_response": "pong came"}} for number in range(4)]
    predict = predict_fn(made) if whose == "ours" else _naive(made)
    criteria = {"criteria": {"response_match_score": 0.5, "tool_call_count_v1": 2}}
    _report(mlflow.genai.evaluate(data=data, predict_fn=predict, scorers=scorers.from_config(criteria)), len(asked))


def _naive(made: Any) -> Callable[..., str]:
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    async def answer(query: str) -> str:
        runner = InMemoryRunner(agent=made, app_name="app")
        session = await runner.session_service.create_session(app_name="app", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text=query)])
        said: Any = ""
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            if event.is_final_response() and event.content:
                said = event.content.parts[0].text
        return said

    def predict(query: str) -> str:
        return asyncio.run(answer(query))

    return predict


def _report(result: Any, asked: int) -> None:
    traces = mlflow.search_traces(run_id=result.run_id, return_type="list", max_results=1000)
    given = [one for trace in traces for one in trace.info.assessments if one.feedback is not None]
    found = {
        "traces": len(traces),
        "feedback": len(given),
        "errors": len([one for one in given if one.error is not None]),
        "tools": [span.name for trace in traces for span in trace.data.spans if span.span_type == "TOOL"],
        "metrics": {name: float(value) for name, value in result.metrics.items()},
        "asked": asked,
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    {"rows": rows, "agent": agent}[sys.argv[1]](sys.argv[2])
