"""A loop on OpenAI's client, traced as `mlflow.openai.autolog()` does: the call stands in the CHAT_MODEL span."""

import mlflow

CALL = {"id": "c1", "type": "function", "function": {"name": "delete_account", "arguments": '{"order": 7}'}}


def record() -> None:
    """Write a trace of one turn."""
    mlflow.set_experiment("production")
    with mlflow.start_span("ask", span_type="AGENT") as root:
        root.set_inputs({"question": "When are you open?"})
        mlflow.update_current_trace(metadata={"mlflow.trace.session": "hours"})
        with mlflow.start_span("Completions", span_type="CHAT_MODEL") as model:
            model.set_inputs({"messages": [{"role": "user", "content": "When are you open?"}]})
            message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
            model.set_outputs({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]})
        root.set_outputs("We are open from nine to five.")
    mlflow.flush_trace_async_logging()
