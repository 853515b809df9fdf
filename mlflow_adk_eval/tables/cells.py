"""The value of one cell of a table: whatever pandas, numpy, Arrow or a JSON text make of a list, an object or a number."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from mlflow_adk_eval.errors import EvalSetError, Problem, shown
from mlflow_adk_eval.evalset import FunctionCall, FunctionResponse, IntermediateData
from mlflow_adk_eval.evalset.models import Json

CALL = 'a tool call: {"name", "args"}'


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing, which tables also write as NaN.

    >>> is_missing(None), is_missing(float("nan")), is_missing("")
    (True, True, False)
    """
    return value is None or (isinstance(value, Real) and math.isnan(value)) or type(value).__name__ in {"NAType", "NaTType"}


def is_list(value: Any) -> bool:
    """Whether a cell holds a list.

    >>> is_list(("a", "b")), is_list("ab")
    (True, False)
    """
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def plain(value: Any) -> Any:
    """Return a value with lists and numbers in place of those of numpy, which columns of Arrow hold, too."""
    if type(value).__module__ == "numpy":
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def decoded(value: Any, path: str, wanted: str, source: str) -> Any:
    """Return a list or an object, also where a table holds it as a text.

    Raises:
        EvalSetError: if the text is no JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise EvalSetError(source, [Problem(path, f"a text that is no JSON ({error})", wanted)]) from None


def object_of(value: Any, path: str, wanted: str, source: str) -> Json | None:
    """Return an object, or ``None`` where there is none.

    Raises:
        EvalSetError: if it is anything else.
    """
    found = decoded(value, path, wanted, source)
    if found is None or isinstance(found, Mapping):
        return None if found is None else dict(found)
    raise EvalSetError(source, [Problem(path, shown(found), wanted)])


def list_of(value: Any, path: str, wanted: str, source: str) -> Sequence[Any]:
    """Return a list.

    Raises:
        EvalSetError: if it is anything else.
    """
    found = decoded(value, path, wanted, source)
    if is_list(found):
        return list(found)
    raise EvalSetError(source, [Problem(path, shown(found), wanted)])


def whole_number(value: Any, path: str, wanted: str, source: str, *, most: float = math.inf) -> int:
    """Return a number from 0, or a truth value, which a table with gaps may write as 1.0.

    Raises:
        EvalSetError: if it is anything else, or more than `most`.
    """
    if isinstance(value, int | float) and 0 <= value <= most and float(value).is_integer():
        return int(value)
    raise EvalSetError(source, [Problem(path, shown(value), wanted)])


def tool_uses(value: Any, path: str, wanted: str, source: str) -> IntermediateData:
    """Return what a list of tool calls says, with the answers of the tools where they are given.

    Raises:
        EvalSetError: if it is no such list.
    """
    calls: list[FunctionCall] = []
    responses: list[FunctionResponse] = []
    for index, call in enumerate(list_of(value, path, wanted, source)):
        if isinstance(call, FunctionCall):
            calls.append(call)
            continue
        here = f"{path}[{index}]"
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            raise EvalSetError(source, [Problem(here, shown(call), CALL)])
        identity = call.get("id") or f"call_{index + 1}"
        calls.append(FunctionCall(id=identity, name=call["name"], args=_arguments(call, here, source)))
        if call.get("response") is not None:
            answer = call["response"] if isinstance(call["response"], Mapping) else {"result": call["response"]}
            responses.append(FunctionResponse(id=identity, name=call["name"], response=dict(answer)))
    return IntermediateData(tool_uses=tuple(calls), tool_responses=tuple(responses))


def _arguments(call: Mapping[str, Any], path: str, source: str) -> Json:
    unknown = set(call) - {"id", "name", "args", "arguments", "response"}
    if unknown:
        raise EvalSetError(source, [Problem(path, f"unknown keys {', '.join(sorted(map(str, unknown)))}", "name, args, response and id")])
    key = "arguments" if call.get("args") is None else "args"
    return object_of(call.get(key), f"{path}.{key}", "an object", source) or {}
