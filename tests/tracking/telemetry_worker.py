"""Evaluates and decides in a process that has configured OpenTelemetry, and writes the spans and metrics that it got as JSON.

With the argument ``mlflow`` MLflow is all that collects spans, and the names of its traces are written.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.judge.protocol import Answer, Unavailable

EVAL_SET = {
    "eval_set_id": "lights",
    "eval_cases": [
        {
            "eval_id": "on",
            "conversation": [
                {"user_content": {"parts": [{"text": "Light on"}]}, "final_response": {"parts": [{"text": "It is on."}]}},
                {"user_content": {"parts": [{"text": "And off"}]}, "final_response": {"parts": [{"text": "It is off."}]}},
            ],
        }
    ],
}


class Judge:
    """Is busy at the first request, then finds everything valid."""

    model, address = "scripted-1", None

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, request: Any) -> Answer:
        self.asked += 1
        if self.asked == 1:
            raise Unavailable("busy", overloaded=True)
        return Answer(text='{"rationale": "As said.", "verdict": "valid"}', input_tokens=100, output_tokens=7)

    async def aclose(self) -> None:
        pass


def agent(user_text: str) -> str:
    trace.get_tracer("agent").start_span("answer").end()
    return f"It is {user_text.rpartition(' ')[2]}."


def evaluate_and_decide() -> str:
    criteria = {"final_response_match_v2": {"threshold": 0.5, "judge_model_options": {"num_samples": 1}}}
    report = adk_eval.evaluate(
        adk_eval.EvalSet.model_validate(EVAL_SET), agent, {"criteria": criteria}, judge=Judge(), traces=False, ledger=False
    )
    assert report.run_id
    adk_eval.gate(report.run_id, raise_on_failure=False)
    return report.run_id


def main() -> None:
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader]))
    run_id = evaluate_and_decide()
    ours = [
        span for span in spans.get_finished_spans() if span.instrumentation_scope and span.instrumentation_scope.name == "mlflow_adk_eval"
    ]
    names = {span.context.span_id: span.name for span in spans.get_finished_spans() if span.context}
    told = [
        {
            "name": span.name,
            "parent": names.get(span.parent.span_id) if span.parent else None,
            "ok": span.status.is_ok,
            **(span.attributes or {}),
        }
        for span in ours
    ]
    data = reader.get_metrics_data()
    found: list[Any] = (
        [metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics] if data else []
    )
    points = {metric.name: [(dict(point.attributes), point.count, point.sum) for point in metric.data.data_points] for metric in found}
    answers = [span.parent and span.parent.span_id for span in spans.get_finished_spans() if span.name == "answer"]
    json.dump({"run_id": run_id, "agent_parents": answers, "spans": told, "metrics": points}, sys.stdout)


def mlflow_collects() -> None:
    import mlflow

    mlflow.tracing.enable()
    evaluate_and_decide()
    mlflow.flush_trace_async_logging()
    client = mlflow.MlflowClient()
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    json.dump([span.name for found in client.search_traces(locations=everywhere) for span in found.data.spans], sys.stdout)


if sys.argv[1:] == ["mlflow"]:
    mlflow_collects()
else:
    main()
