"""Requests and answers of the Rapid Eval API, in the documented shapes.

A request holds exactly one ``<metric>_input``. As proto-JSON allows, keys may be in snake_case or camelCase, and null means that
something is left out. An input may hold ``instance`` or ``instances``, one instance or a list of them; an answer is in the
documented shape of its metric.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_snake

from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS, RapidMetric
from mlflow_adk_eval.errors import AdkEvalError, InputError, Problem, did_you_mean, json_path, shown
from mlflow_adk_eval.evalset.models import Json

ROUGE_TYPE = re.compile(r"rougen?[1-9]|rougeL|rougeLsum")
"""The document writes ``rougen[1-9]`` for what rouge-score calls ``rouge1`` to ``rouge9``."""
_INPUTS = {metric.input_key: metric for metric in RAPID_METRICS.values()}
_LONGEST_KEY = 100
_MOST_VIOLATIONS = 50
_IGNORED = ("location",)
"""What Google's client may put into the body besides; it says nothing here."""
_TYPES: Mapping[type, str] = {str: "a text", bool: "true or false", int: "a whole number"}


class RequestError(InputError):
    """A request that cannot be evaluated."""

    noun = "request"


@dataclass(frozen=True, slots=True, kw_only=True)
class RapidRequest:
    """One request, read."""

    metric: RapidMetric
    spec: Mapping[str, Any]
    """The settings that were given."""
    instances: tuple[Mapping[str, str], ...]
    """At least one; the texts by field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """What a metric found about one instance."""

    score: float | None = None
    """``None`` for a pairwise metric."""
    choice: str | None = None
    """One of `CHOICES`, for a pairwise metric."""
    explanation: str = ""
    confidence: float | None = None
    """The share of votes that agree; ``None`` where nothing was voted on."""


def read_request(body: Any, source: str = "request") -> RapidRequest:
    """Return a decoded request.

    Raises:
        RequestError: with every problem of it.
    """
    if not isinstance(body, Mapping):
        raise RequestError(source, [Problem("$", shown(body), f"an object with one of {', '.join(_INPUTS)}")])
    # An input that is there in both spellings is refused: which of them is meant would be a guess.
    names = Counter(_name(key) for key, item in body.items() if item is not None)
    if twins := [Problem(json_path("$", [name]), "two spellings of one key", "one of them") for name, count in names.items() if count > 1]:
        raise RequestError(source, twins)
    given = _snake(body)
    inputs = [key for key in given if key in _INPUTS]
    unknown, wanted = [key for key in given if key not in inputs and key not in _IGNORED], "one of the inputs of a metric"
    problems = [Problem(json_path("$", [key]), "an unknown key", wanted, did_you_mean(key, _INPUTS)) for key in unknown]
    if len(inputs) > 1 or not (inputs or problems):
        found = ", ".join(inputs) or "none"
        problems.append(Problem("$", f"{found} of the inputs", "exactly one of the inputs of a metric"))
    if problems:
        raise RequestError(source, problems)
    return _input(_INPUTS[inputs[0]], given[inputs[0]], source)


def answer(request: RapidRequest, rated: Sequence[Rated]) -> Json:
    """Return the answer to a request in its documented shape: for computed metrics a list of values, else one result."""
    metric = request.metric
    if metric.kind == "computed":
        return {metric.result_key: {metric.values_key: [{"score": one.score} for one in rated]}}
    results: list[Json] = []
    for one in rated:
        verdict: Json = {"score": one.score} if one.choice is None else {"pairwise_choice": one.choice}
        results.append({**verdict, "explanation": one.explanation, "confidence": one.confidence})
    return {metric.result_key: results[0] if len(results) == 1 else results}


def error_body(error: AdkEvalError) -> Json:
    """Return an error in the shape of Google's APIs: a bad request with each field's violation, or a service that has no answer."""
    if isinstance(error, RequestError):
        problems = error.problems[:_MOST_VIOLATIONS]
        violations = [{"field": problem.path.removeprefix("$."), "description": str(problem)} for problem in problems]
        details = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}]
        return {"error": {"code": 400, "message": str(error), "status": "INVALID_ARGUMENT", "details": details}}
    return {"error": {"code": 503, "message": str(error), "status": "UNAVAILABLE"}}


def _snake(value: Mapping[Any, Any]) -> Json:
    """Return an object without nulls, its keys in snake_case."""
    return {_name(key): item for key, item in value.items() if item is not None}


def _name(key: Any) -> str:
    text = str(key)
    return to_snake(text) if len(text) <= _LONGEST_KEY else text  # which takes ever longer


def _input(metric: RapidMetric, value: Any, source: str) -> RapidRequest:
    at = f"$.{metric.input_key}"
    if not isinstance(value, Mapping):
        raise RequestError(source, [Problem(at, shown(value), "an object with metric_spec and instances")])
    given = _snake(value)
    known = ("metric_spec", "instance", "instances")
    unknown, wanted = [key for key in given if key not in known], f"one of {', '.join(known)}"
    problems = [Problem(f"{at}.{key}", "an unknown key", wanted, did_you_mean(key, known)) for key in unknown]
    spec = _spec(metric, given.get("metric_spec", {}), f"{at}.metric_spec", problems)
    instances = tuple(_instances(metric, given, at, problems))
    if spec.get("use_reference") is True and any("reference" not in one for one in instances):
        here = f"{at}.metric_spec.use_reference"
        problems.append(Problem(here, "true, and an instance without reference", "a reference in each instance"))
    if problems:
        raise RequestError(source, problems)
    return RapidRequest(metric=metric, spec=spec, instances=instances)


def _spec(metric: RapidMetric, value: Any, at: str, problems: list[Problem]) -> Json:
    if not isinstance(value, Mapping):
        problems.append(Problem(at, shown(value), "an object"))
        return {}
    given = _snake(value)
    for key, item in given.items():
        wanted = metric.spec.get(key)
        if wanted is None:
            known = ", ".join(metric.spec) or "nothing"
            problems.append(Problem(f"{at}.{key}", "an unknown key", f"{known}, for {metric.name}", did_you_mean(key, metric.spec)))
        elif type(item) is not wanted:
            problems.append(Problem(f"{at}.{key}", shown(item), _TYPES[wanted]))
    rouge_type = given.get("rouge_type")
    if metric.name == "rouge" and isinstance(rouge_type, str) and not ROUGE_TYPE.fullmatch(rouge_type):
        problems.append(Problem(f"{at}.rouge_type", shown(rouge_type), "rouge1 to rouge9, rougeL or rougeLsum"))
    return given


def _instances(metric: RapidMetric, given: Json, at: str, problems: list[Problem]) -> Iterator[Mapping[str, str]]:
    """Yield the texts of each instance."""
    keys = [key for key in ("instance", "instances") if key in given]
    if len(keys) != 1:
        problems.append(Problem(at, "both instance and instances" if keys else "neither instance nor instances", "one of them"))
        return
    value = given[keys[0]]
    listed = value if isinstance(value, list | tuple) else [value]
    if not listed:
        problems.append(Problem(f"{at}.{keys[0]}", "an empty list", "at least one instance"))
    for index, item in enumerate(listed):
        here = f"{at}.{keys[0]}[{index}]" if listed is value else f"{at}.{keys[0]}"
        yield _instance(metric, item, here, problems)


def _instance(metric: RapidMetric, value: Any, at: str, problems: list[Problem]) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        problems.append(Problem(at, shown(value), f"an object with {', '.join(metric.fields)}"))
        return {}
    given = _snake(value)
    known, pair = (*metric.fields, *metric.optional), RAPID_METRICS.get(f"pairwise_{metric.name}")
    for key, item in given.items():
        if key not in known:
            hint = f"Did you mean {pair.input_key!r}?" if pair and key in pair.fields else did_you_mean(key, known)
            problems.append(Problem(f"{at}.{key}", "an unknown field", f"one of {', '.join(known)}", hint))
        elif not isinstance(item, str):
            problems.append(Problem(f"{at}.{key}", shown(item), "a text"))
    problems += [Problem(f"{at}.{key}", "nothing", "a text") for key in metric.fields if key not in given]
    return {key: item for key, item in given.items() if isinstance(item, str)}
