"""What the server takes and answers, as an OpenAPI document made from the catalogue of metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from pydantic.alias_generators import to_pascal

from mlflow_adk_eval.config.rapid_catalogue import CHOICES, RAPID_METRICS, RapidMetric
from mlflow_adk_eval.evalset.models import Json

MAX_KEYS, MAX_KEY = 100, 100
"""More keys in one object, or more characters in one key, than any request has: what would only keep a server busy."""
VERSIONS = ("v1beta1", "v1")
"""Of the API; their metrics are the same here."""
ERRORS = (400, 401, 403, 404, 405, 408, 413, 415, 500, 503)
_ROUGE_TYPES = [*(f"{stem}{n}" for stem in ("rouge", "rougen") for n in range(1, 10)), "rougeL", "rougeLsum"]
_ABOUT = (
    "The metrics of Google's Rapid Eval API. A request contains the input of exactly one metric. Keys may also be in camelCase, and "
    "null means the same as a missing key."
)
_TEXT: Json = {"type": "string"}
_BOUNDS: Json = {"maxProperties": MAX_KEYS, "propertyNames": {"maxLength": MAX_KEY}}
_ANYTHING: Json = {"$ref": "#/components/schemas/Anything"}
_JSON_TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", str: "string"}


def openapi(*, token: bool) -> Json:
    """Return the document.

    Args:
        token: whether requests need one.
    """
    names = ("project", "location")
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in names]
    paths: Json = {}
    for version in VERSIONS:
        operation = {
            "operationId": f"evaluateInstances_{version}",
            "summary": "Evaluate instances by one metric.",
            "requestBody": {"required": True, "content": _json({"$ref": "#/components/schemas/Request"})},
            "responses": _responses("The values of the metric.", {"$ref": "#/components/schemas/Answer"}),
        }
        path = f"/{version}/projects/{{project}}/locations/{{location}}:evaluateInstances"
        paths[path] = {"parameters": parameters, "post": operation}
    up, about = _responses("It is.", {"type": "object"}), "Reports whether the server is up. Needs no token."
    health = {"operationId": "health", "summary": about, "responses": up, "security": []}
    failed = _json({"$ref": "#/components/schemas/Error"})
    errors = {str(code): {"description": HTTPStatus(code).phrase, "content": failed} for code in ERRORS}
    described: Json = {
        "openapi": "3.1.0",
        "info": {"title": "Rapid Eval", "version": "1", "description": _ABOUT},
        "paths": {**paths, "/health": {"get": health}},
        "components": {"schemas": dict(_schemas()), "responses": errors},
    }
    if token:
        described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"token": []}]
    return described


def _responses(about: str, schema: Json) -> Json:
    errors = {str(code): {"$ref": f"#/components/responses/{code}"} for code in ERRORS}
    return {"200": {"description": about, "content": _json(schema)}, **errors}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _schemas() -> Iterator[tuple[str, Json]]:
    for metric in RAPID_METRICS.values():
        name = to_pascal(metric.name)
        # The input has one instance or several and, if the reference is to be shown, references.
        uses = (False, True) if "use_reference" in metric.spec else (False,)
        ways = {"anyOf": [_input(metric, key, use_reference=use) for use in uses for key in ("instance", "instances")]}
        request = _given({metric.input_key: ways, "location": _ANYTHING}, required=(metric.input_key,))
        yield f"{name}Request", {**request, "description": metric.about}
        yield f"{name}Answer", _answer(metric)
    yield "Anything", {**_BOUNDS, "additionalProperties": _ANYTHING, "items": _ANYTHING}
    names = [to_pascal(name) for name in RAPID_METRICS]
    for kind in ("Request", "Answer"):
        yield kind, {"oneOf": [{"$ref": f"#/components/schemas/{name}{kind}"} for name in names]}
    said = {"code": {"type": "integer"}, "message": _TEXT, "status": _TEXT, "details": {"type": "array", "items": {"type": "object"}}}
    yield "Error", _object({"error": _object(said, required=("code", "message", "status"))})


def _object(properties: Json, *, required: tuple[str, ...] | None = None, others: Json | None = None) -> Json:
    """Return an object; without `required`, all of its properties are."""
    needed = list(properties if required is None else required)
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": others or False}


def _given(properties: Json, *, required: tuple[str, ...] = ()) -> Json:
    """Return an object of a request, in which null is what is left out, whatever its key."""
    return _object(properties, required=required, others={"type": "null"}) | _BOUNDS


def _input(metric: RapidMetric, key: str, *, use_reference: bool) -> Json:
    fields = (*metric.fields, *metric.optional) if use_reference else metric.fields
    optional: Json = {} if use_reference else dict.fromkeys(metric.optional, _or_null(_TEXT))
    instance = _given(dict.fromkeys(fields, _TEXT) | optional, required=fields)
    several = {"anyOf": [instance, {"type": "array", "items": instance, "minItems": 1}]}
    given = {"metric_spec": _spec(metric, use_reference=use_reference), key: several}
    return _given(given, required=("metric_spec", key) if use_reference else (key,))


def _spec(metric: RapidMetric, *, use_reference: bool) -> Json:
    settings: Json = {name: _or_null({"type": _JSON_TYPES[kind]}) for name, kind in metric.spec.items()}
    if "rouge_type" in settings:
        settings["rouge_type"] = {"enum": [*_ROUGE_TYPES, None]}
    if use_reference:
        return _given({**settings, "use_reference": {"const": True}}, required=("use_reference",))
    if "use_reference" in settings:
        settings["use_reference"] = {"enum": [False, None]}
    return _or_null(_given(settings))


def _or_null(schema: Json) -> Json:
    return {**schema, "type": [schema["type"], "null"]}


def _answer(metric: RapidMetric) -> Json:
    share: Json = {"type": "number", "minimum": 0, "maximum": 1}
    if metric.kind == "computed":
        values = {"type": "array", "items": _object({"score": share})}
        return _object({metric.result_key: _object({metric.values_key: values})})
    verdict: Json = {"score": {"type": "number", "minimum": metric.bounds[0], "maximum": metric.bounds[1]}}
    if metric.kind == "pairwise":
        verdict = {"pairwise_choice": {"enum": list(CHOICES)}}
    said: dict[str, Any] = {**verdict, "explanation": _TEXT, "confidence": share}
    result = _object(said)
    return _object({metric.result_key: {"anyOf": [result, {"type": "array", "items": result, "minItems": 2}]}})
