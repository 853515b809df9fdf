"""A loopback server that speaks the Rapid Eval API of Vertex AI, and requests for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic.alias_generators import to_camel, to_snake

from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS, RapidMetric
from tests.judge.providers.vertex_server import LOCATION, PROJECT
from tests.judge.servers import Call, Handler, Reply

PATH = f"/v1beta1/projects/{PROJECT}/locations/{LOCATION}:evaluateInstances"

Said = dict[str, Any] | Reply
"""What the service says of an input: the fields of a result, those of a value for each instance, or a whole reply."""


def camel(value: Any) -> Any:
    """Return a message with its keys as Google's client sends them."""
    if isinstance(value, dict):
        return {to_camel(key): camel(item) for key, item in value.items()}
    return [camel(item) for item in value] if isinstance(value, list) else value


def asked_in(call: Call) -> tuple[RapidMetric, Any]:
    """Return the metric of a call, and its input."""
    assert (call.method, call.path) == ("POST", PATH)
    ((key, given),) = call.body.items()
    return RAPID_METRICS[to_snake(key).removesuffix("_input")], given


def rapid(say: Callable[[str, Any], Said], *, after_s: float = 0.0) -> Handler:
    """Return a handler that answers with ``say(metric, instance)``."""

    def handler(call: Call) -> Reply:
        metric, given = asked_in(call)
        found = [say(metric.name, one) for one in given.get("instances") or [given["instance"]]]
        whole = next((one for one in found if isinstance(one, Reply)), None)
        return (whole or replied(metric, *found)).after(after_s)

    return handler


def replied(metric: RapidMetric, *found: Any) -> Reply:
    """Return the reply with what the service found."""
    result = {metric.values_key: list(found)} if metric.kind == "computed" else found[0]
    return Reply(body=camel({metric.result_key: result}))


def usual(name: str, _instance: Any = None) -> Said:
    """Return what the service may say: the greatest score, or a choice."""
    metric = RAPID_METRICS[name]
    if metric.kind == "computed":
        return {"score": 0.75}
    verdict = {"pairwise_choice": "CANDIDATE"} if metric.kind == "pairwise" else {"score": metric.bounds[1]}
    return {**verdict, "explanation": f"because of {name}", "confidence": 0.8}


def texts(metric: RapidMetric, **given: str) -> dict[str, str]:
    """Return an instance."""
    return {field: f"some {field}" for field in metric.fields} | given


def body_of(name: str, *instances: dict[str, str], **spec: Any) -> dict[str, Any]:
    """Return a request as the document writes it."""
    metric = RAPID_METRICS[name]
    several = metric.kind == "computed" or len(instances) > 1
    given = list(instances) or [texts(metric)]
    return {metric.input_key: {"metric_spec": spec, **({"instances": given} if several else {"instance": given[0]})}}
