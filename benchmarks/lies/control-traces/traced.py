"""A turn whose call has a span of its own."""

import mlflow


def record() -> None:
    """Write a trace of one turn."""
    mlflow.set_experiment("production")
    with mlflow.start_span("ask", span_type="AGENT") as root:
        root.set_inputs({"question": "Refund order 7, please."})
        mlflow.update_current_trace(metadata={"mlflow.trace.session": "o7"})
        with mlflow.start_span("refund", span_type="TOOL") as tool:
            tool.set_inputs({"order": 7})
            tool.set_outputs({"status": "refunded"})
        root.set_outputs("Order 7 is refunded.")
    mlflow.flush_trace_async_logging()
