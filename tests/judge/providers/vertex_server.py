"""A loopback server that speaks Vertex AI's ``evaluateInstances``, to google-cloud-aiplatform's clients of either kind.

Both ways to spell a request are understood: that of the API client (``agentEvalData``), which this package uses, and that of the SDK
(``agent_eval_data``), which ADK uses. `evaluating` makes a handler for `tests.judge.servers.serving` from what each instance is worth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from google.auth.credentials import AnonymousCredentials

from mlflow_adk_eval.judge.providers.vertex import VertexClient
from tests.judge.servers import Call, Handler, Reply, Server, gemini_error

PROJECT, LOCATION = "acme", "us-central1"
_PATH = re.compile(rf"/v1beta1/projects/{PROJECT}/locations/{LOCATION}/?:evaluateInstances")

error = gemini_error
"""The reply that is an error: Google words them all alike."""


def verdict(rubric_id: str, *, met: bool, description: str = "", reasoning: str = "") -> dict[str, Any]:
    """Return a verdict; like the service, it leaves out what is false or empty."""
    rubric: dict[str, Any] = {"rubricId": rubric_id} if rubric_id else {}
    if description:
        rubric["content"] = {"property": {"description": description}}
    said = {"verdict": True} if met else {}
    return {"evaluatedRubric": rubric, **said, **({"reasoning": reasoning} if reasoning else {})}


def row(score: Any = None, explanation: str = "", *verdicts: Mapping[str, Any], error: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the result for one instance."""
    found = {"score": score, "explanation": explanation or None, "rubricVerdicts": list(verdicts) or None, "error": error}
    return {name: value for name, value in found.items() if value is not None}


def evaluating(judge: Callable[[str, str], Mapping[str, Any] | Reply], *, after_s: float = 0.0) -> Handler:
    """Return a handler that answers with ``judge(metric, text)``: a result, or a whole reply.

    The text is all that the instance says, which is enough to tell instances apart.
    """

    def handler(call: Call) -> Reply:
        if not _PATH.fullmatch(call.path):
            return Reply(status=404, body=b"<html>no such page</html>")
        metric = metric_of(call)
        found = judge(metric, said_in(call))
        if isinstance(found, Reply):
            return found.after(after_s)
        body = {"coherenceResult": found} if metric == "coherence" else {"metricResults": [found]}
        return Reply(body=body).after(after_s)

    return handler


def metric_of(call: Call) -> str:
    """Return the metric that is asked for."""
    if "coherenceInput" in call.body:
        return "coherence"
    metric = call.body["metrics"][0]
    spec = metric.get("predefinedMetricSpec") or metric["predefined_metric_spec"]
    return str(spec.get("metricSpecName") or spec["metric_spec_name"])


def said_in(call: Call) -> str:
    """Return every text in the instance, in order, separated by ``|``."""
    if "coherenceInput" in call.body:
        return str(call.body["coherenceInput"]["instance"]["prediction"])
    data = call.body["instance"].get("agentEvalData") or call.body["instance"]["agent_eval_data"]
    events = [event for turn in data["turns"] for event in turn["events"]]
    return "|".join(part["text"] for event in events for part in event.get("content", {}).get("parts", ()) if "text" in part)


def client_of(server: Server, **settings: Any) -> VertexClient:
    """Return the client under test for a server."""
    return client_at(server.url, **settings)


def client_at(url: str, **settings: Any) -> VertexClient:
    """Return a client of nobody's for an address."""
    nobody: dict[str, Any] = {"credentials": AnonymousCredentials()}
    return VertexClient(endpoint=url, project=PROJECT, location=LOCATION, **(nobody | settings))
