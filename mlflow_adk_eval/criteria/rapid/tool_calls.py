"""Tool calls as the Rapid Eval API writes them, and the metrics on them.

A response is the text of a JSON object with ``content``, what the model said, and ``tool_calls``, a list of objects with ``name`` and
``arguments``; the list may itself be the text of JSON. What cannot be read has no calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlflow_adk_eval.criteria.text.alignment import align, json_equal
from mlflow_adk_eval.evalset import FunctionCall


def read_calls(response: str) -> tuple[FunctionCall, ...] | None:
    """Return the tool calls in a response; ``None`` if it is no such response.

    >>> read_calls('{"content": "", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}')[0].name
    'f'
    >>> read_calls('{"tool_calls": [{"arguments": {}}]}') is None
    True
    """
    value = _decoded(response)
    listed = value.get("tool_calls", []) if isinstance(value, dict) else None
    listed = _decoded(listed) if isinstance(listed, str) else listed
    if not isinstance(listed, list):
        return None
    calls = [_call(item) for item in listed]
    return None if None in calls else tuple(call for call in calls if call is not None)


def valid(prediction: str) -> float:
    """Return 1 if a response holds at least one tool call and nothing that is none, else 0."""
    return float(bool(read_calls(prediction)))


def name_match(prediction: str, reference: str) -> float:
    """Return 1 if the called tools are those of the reference, in its order, else 0."""
    got, want = read_calls(prediction), read_calls(reference)
    return float(got is not None and want is not None and [call.name for call in got] == [call.name for call in want])


def key_match(prediction: str, reference: str) -> float:
    """Return the share of the reference's parameters whose names the same calls of the prediction have."""
    return _share(prediction, reference, lambda got, name, _: name in got)


def kv_match(prediction: str, reference: str, *, use_strict_string_match: bool = False) -> float:
    """Return the share of the reference's parameters that the same calls of the prediction have with equal values.

    Args:
        prediction: what is scored.
        reference: what it should call.
        use_strict_string_match: whether values must be written alike, so that 1 and 1.0 differ; else they are compared as JSON.
    """
    same = _same_text if use_strict_string_match else json_equal
    return _share(prediction, reference, lambda got, name, value: name in got and same(got[name], value))


def _share(prediction: str, reference: str, hit: Callable[[Mapping[str, Any], str, Any], bool]) -> float:
    """Return the share of the reference's parameters that are hit; without parameters, whether all of its tools were called."""
    got, want = read_calls(prediction), read_calls(reference)
    if got is None or want is None:
        return 0.0
    pairs = _pairs(got, want)
    hits = [call is not None and hit(call.args or {}, name, value) for call, one in pairs for name, value in (one.args or {}).items()]
    return sum(hits) / len(hits) if hits else float(all(call is not None for call, _ in pairs))


def _pairs(got: Sequence[FunctionCall], want: Sequence[FunctionCall]) -> list[tuple[FunctionCall | None, FunctionCall]]:
    """Return each expected call with the one that stands for it, as the trajectory criterion aligns them."""
    return [(step.actual, step.expected) for step in align(got, want) if step.expected is not None]


def _same_text(left: Any, right: Any) -> bool:
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _call(value: Any) -> FunctionCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    args = value.get("arguments", {})
    args = _decoded(args) if isinstance(args, str) else args
    return FunctionCall(name=value["name"], args=args) if isinstance(args, dict) else None
