"""An agent in production that switches lights: its traces, and a run that scored them in a store."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.production.score import ScoredTraces
from mlflow_adk_eval.testing import Request, answer_for

EXPERIMENT = "production"
POLITE = "rubric_based_final_response_quality_v1"
SESSIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "good": (("Light on, please.", "The light is on."),),
    "rude": ((" light  ON,\nplease.", "No."),),
    "rude_again": (("Light off. I am ann@example.com", "No."), ("Why?", "The light is tired.")),
    "crash": (("Play music", ""),),
    "crash_again": (("Play jazz", ""),),
    "busy": (("Dim the light", "The light is dim."),),
}
"""What users said and what came, by session; an empty answer is a crash. The busy one takes three calls."""
CONFIG: dict[str, Any] = {
    "criteria": {
        POLITE: {
            "threshold": 1.0,
            "rubrics": [{"rubric_id": "polite", "rubric_content": {"text_property": "The answer is polite."}}],
            "judge_model_options": {"num_samples": 1},
        },
        "tool_call_count_v1": 2,
    }
}


def judge(request: Request) -> Any:
    """Judge answers that say no as impolite."""
    return answer_for(request, "no" if "No." in request.blocks["response"] else "yes", rationale="as it says")


def talk() -> None:
    """Write the traces of all sessions into the current store."""
    import mlflow

    mlflow.set_experiment(EXPERIMENT)
    for session, turns in SESSIONS.items():
        for text, answer in turns:
            with suppress(ConnectionError):
                _say(session, text, answer)
    mlflow.flush_trace_async_logging()


def _say(session: str, text: str, answer: str) -> None:
    import mlflow

    with mlflow.start_span("assistant", span_type="AGENT") as span:
        span.set_inputs({"question": text})
        mlflow.update_current_trace(metadata={"mlflow.trace.session": session})
        if not answer:
            message = f"player {len(text)} of ann@example.com does not answer"
            raise ConnectionError(message)
        for _ in range(3 if session == "busy" else 0):
            with mlflow.start_span("dim", span_type="TOOL") as tool:
                tool.set_inputs({"room": "hall"})
                tool.set_outputs("dimmer")
        with mlflow.start_span("model", span_type="CHAT_MODEL") as model:  # which says that it asked for no other call
            model.set_inputs({"messages": [{"role": "user", "content": text}]})
            model.set_outputs({"choices": [{"message": {"role": "assistant", "content": answer}}]})
        span.set_outputs(answer)


def scored(store: str, **options: Any) -> ScoredTraces:
    """Score all traces of a store."""
    how: dict[str, Any] = {"config": CONFIG, "sample": None, "judge": judge, "tracking_uri": store, "ledger": False, **options}
    return adk_eval.score_traces(EXPERIMENT, **how)
