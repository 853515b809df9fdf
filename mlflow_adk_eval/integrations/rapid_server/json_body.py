"""The JSON of a request, read as leniently as the API's documentation writes it.

Its examples for curl have trailing commas and say ``instances`` once for each instance, within one object. Both are understood here;
anything else that is no JSON, or that says nothing in particular, such as another key given twice, is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from mlflow_adk_eval.criteria.rapid.messages import RequestError
from mlflow_adk_eval.errors import Problem, json_path, shown

_SEVERAL = "instances"
"""The key that may be repeated."""
_COMMAS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{:,]\s*+,|(,)(?=\s*+[\]}])', re.DOTALL)
"""Strings, commas that follow no value, and, as a group, commas after the last value. Possessive, so that no text takes it long."""
_SURROGATES = re.compile("[\ud800-\udfff]")
_DIGITS = 400
"""No number with more digits is finite as a float."""
_MAX_PROBLEMS = 50
MAX_KEYS, MAX_KEY = 100, 100
"""More keys in one object, or more characters in one key, than any request has: what would only keep a server busy."""


def read_json(raw: bytes, source: str = "request") -> Any:
    r"""Return what the body of a request says.

    Args:
        raw: the body.
        source: what messages call it.

    Raises:
        RequestError: if it is no JSON in UTF-8, is nested too deeply, repeats a key other than ``instances``, or holds what no
            other reader of JSON would take (numbers that are not finite, halves of surrogate pairs), or keys without measure.

    >>> read_json(b'{"instances": {"prediction": "a",}, "instances": {"prediction": "b"}}')
    {'instances': [{'prediction': 'a'}, {'prediction': 'b'}]}
    """
    try:
        body = _parsed(raw.decode("utf-8-sig"))
        problems = list(islice(_faults(body, []), _MAX_PROBLEMS))
    except RecursionError:
        problems = [Problem("$", "brackets within brackets, hundreds deep", "an object with the input of a metric")]
    except UnicodeDecodeError as error:
        problems = [Problem("$", f"a byte that is no UTF-8 at offset {error.start}", "JSON in UTF-8")]
    except json.JSONDecodeError as error:
        problems = [Problem("$", f"no JSON: {error.msg}, in line {error.lineno}, column {error.colno}", "a JSON object")]
    else:
        if not problems:
            return body
    raise RequestError(source, problems)


class _Repeating(dict[str, Any]):
    """An object that had some of its keys more than once."""

    repeated: tuple[str, ...] = ()


def _parsed(text: str) -> Any:
    try:
        return _decoded(text)
    except json.JSONDecodeError:
        # A space in place of each comma, so that the position of what else is wrong stays.
        return _decoded(_COMMAS.sub(lambda found: " " if found[1] else found[0], text))


def _decoded(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_object, parse_int=lambda digits: int(digits) if len(digits) < _DIGITS else math.inf)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    counts = Counter(key for key, _ in pairs)
    if counts.pop(_SEVERAL, 0) > 1:
        given = (value for key, value in pairs if key == _SEVERAL)
        found[_SEVERAL] = [item for value in given for item in (value if isinstance(value, list) else [value])]
    repeating = _Repeating(found)
    repeating.repeated = tuple(key for key, count in counts.items() if count > 1)
    return repeating


def _faults(value: Any, path: list[str | int]) -> Iterator[Problem]:
    """Yield what must not be said at `path` or below."""
    match value:
        case str() if _SURROGATES.search(value):
            yield Problem(json_path("$", path), f"half of a surrogate pair in {shown(value)}", "a text in Unicode")
        case float() if not math.isfinite(value):
            yield Problem(json_path("$", path), shown(value), "a finite number")
        case dict() if len(value) > MAX_KEYS:
            yield Problem(json_path("$", path), f"an object with {len(value)} keys", f"one with at most {MAX_KEYS}")
        case dict():
            for key in getattr(value, "repeated", ()):
                yield Problem(json_path("$", [*path, key]), "the key more than once", "each key once")
            yield from _faults_within(value.items(), path)
        case list():
            yield from _faults_within(enumerate(value), path)
        case _:
            pass


def _faults_within(items: Iterable[tuple[str | int, Any]], path: list[str | int]) -> Iterator[Problem]:
    for step, item in items:
        if isinstance(step, str) and len(step) > MAX_KEY:
            yield Problem(json_path("$", path), f"a key of {len(step)} characters", f"keys of at most {MAX_KEY}")
            continue
        path.append(step)
        yield from _faults(step, path) if isinstance(step, str) else ()
        yield from _faults(item, path)
        path.pop()
