"""A turn with two calls, of which one has a span of its own."""

import mlflow

CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": '{"order": 7}'}},
    {"id": "c2", "type": "function", "function": {"name": "delete_account", "arguments": '{"order": 7}'}},
]


def record() -> None:
    """Write a trace of one turn."""
    mlflow.set_experiment("production")
    with mlflow.start_span("ask", span_type="AGENT") as root:
        root.set_inputs({"question": "Refund order 7, please."})
        mlflow.update_current_trace(metadata={"mlflow.trace.session": "o7"})
        with mlflow.start_span("Completions", span_type="CHAT_MODEL") as model:
            model.set_inputs({"messages": [{"role": "user", "content": "Refund order 7, please."}]})
            message = {"role": "assistant", "content": None, "tool_calls": CALLS}
            model.set_outputs({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]})
        with mlflow.start_span("refund", span_type="TOOL") as tool:
            tool.set_inputs({"order": 7})
            tool.set_outputs({"status": "refunded"})
        root.set_outputs("Order 7 is refunded.")
    mlflow.flush_trace_async_logging()
