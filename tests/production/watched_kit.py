"""A store with traces of some hours ago, and a webhook that holds what it is sent against MLflow's own signature."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.integrations.genai import tracking

SECRET = "a-secret-of-the-webhook"  # noqa: S105 - of this test


@pytest.fixture
def production(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The store that MLflow's tracing and this package log to."""
    monkeypatch.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")
    with tracking(store):
        yield store


@dataclass
class Webhook:
    """What a webhook got, and what it answers."""

    url: str
    got: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    status: int = 200


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    from mlflow.webhooks.constants import WEBHOOK_DELIVERY_ID_HEADER, WEBHOOK_SIGNATURE_HEADER, WEBHOOK_TIMESTAMP_HEADER
    from mlflow.webhooks.delivery import _generate_hmac_signature  # noqa: PLC2701 - MLflow's own rule, which has no public name

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            delivery, at = self.headers[WEBHOOK_DELIVERY_ID_HEADER], self.headers[WEBHOOK_TIMESTAMP_HEADER]
            signed = self.headers[WEBHOOK_SIGNATURE_HEADER] == _generate_hmac_signature(SECRET, delivery, at, body)
            hook.got.append({"signed": signed, "delivery": delivery, "at": int(at), **json.loads(body)})
            self.send_response(hook.status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    monkeypatch.setenv("MLFLOW_ADK_EVAL_WEBHOOK_SECRET", SECRET)
    server = HTTPServer(("127.0.0.1", 0), Handler)
    hook = Webhook(f"http://127.0.0.1:{server.server_port}/alarms")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield hook
    server.shutdown()
    server.server_close()
    thread.join()


EXPERIMENT = "production"


def talk(answers: Iterable[str], *, hours_ago: float, **tags: str) -> None:
    """Log a trace for each answer, one a second from so many hours ago on. Where it is "bad", a tool was called."""
    import mlflow

    mlflow.set_experiment(EXPERIMENT)
    began = time.time_ns() - int(hours_ago * 3600 * 1e9)
    for number, answer in enumerate(answers):
        at = began + number * 1_000_000_000
        asked = {"messages": [{"role": "user", "content": f"question {number}"}]}
        root = mlflow.start_span_no_context("agent", span_type="AGENT", inputs=asked, start_time_ns=at, tags=tags)
        if answer == "bad":
            tool = mlflow.start_span_no_context("look_up", span_type="TOOL", parent_span=root, inputs={"q": "x"}, start_time_ns=at + 1000)
            tool.end(outputs="y", end_time_ns=at + 2000)
        said = {"choices": [{"message": {"role": "assistant", "content": answer}}]}  # and asked for no other call
        model = mlflow.start_span_no_context("model", span_type="CHAT_MODEL", parent_span=root, inputs=asked, start_time_ns=at + 3000)
        model.end(outputs=said, end_time_ns=at + 4000)
        root.end(outputs={"messages": [{"role": "assistant", "content": answer}]}, end_time_ns=at + 500_000_000)
    mlflow.flush_trace_async_logging()
