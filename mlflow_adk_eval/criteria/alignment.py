"""Comparing tool calls: equality as JSON, the three match types, and which call differs from which, and how.

ADK gives each call a random id, and writes such ids into the arguments of its own calls, as in ``adk_request_confirmation``. No id of today is
the same as one of a recording. So two of them in the same place are equal, unless one stands for two others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product, zip_longest
from typing import Any, Literal

from mlflow_adk_eval.errors import json_path, shown
from mlflow_adk_eval.evalset.models import FunctionCall, Json
from mlflow_adk_eval.text import appearance, unlike

MATCH_TYPES = ("EXACT", "IN_ORDER", "ANY_ORDER")
"""How strictly calls must match; ADK numbers them in this order."""
MatchType = Literal["EXACT", "IN_ORDER", "ANY_ORDER"]

_GENERATED_ID = re.compile(r"adk-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The ids that ADK gives to calls."""
_ID_PATHS: Mapping[str, tuple[str, ...]] = {
    "adk_request_confirmation": ("originalFunctionCall", "id"),
    "adk_request_credential": ("functionCallId",),
    "adk_request_input": ("interruptId",),
}
"""Where ADK's own calls have the id of a call or of a request, whoever made it. It may also be left out."""
_LARGEST_TABLE = 250_000
_LONG = 60
"""From this many characters on, two texts are shown from a little before the place where they part."""
_BEFORE = 20
_MISSING = object()


def json_equal(left: Any, right: Any) -> bool:
    """Whether two values are the same JSON: order of keys free, ``1 == 1.0``, ``true != 1``.

    >>> json_equal({"a": 1, "b": [1.0]}, {"b": [1], "a": 1}), json_equal({"a": True}, {"a": 1})
    (True, False)
    """
    return bool(left == right) and (left is right or _same_booleans(left, right))


def _same_booleans(left: Any, right: Any) -> bool:
    """Whether two values that Python calls equal have their booleans in the same places."""
    kind = type(left)
    if kind is dict:
        for key, value in left.items():  # noqa: SIM110 - a generator would cost half as much again, on the arguments of every call
            if type(value) is not str and not _same_booleans(value, right[key]):
                return False
        return True
    if kind is list or kind is tuple:
        return all(map(_same_booleans, left, right))
    return (kind is bool) == (type(right) is bool)


def same_call(actual: FunctionCall, expected: FunctionCall, *, ignore_args: bool = False) -> bool:
    """Whether two calls are the same; no arguments equal ``{}``, and ids that ADK made up are equal."""
    if actual.name != expected.name:
        return False
    if ignore_args:
        return True
    if actual.name in _ID_PATHS:
        return same_args(compared_args(actual), compared_args(expected))
    return same_args(actual.args or {}, expected.args or {})


def compared_args(call: FunctionCall) -> Json:
    """Return the arguments of a call that are compared: all but the id in a call of ADK's own.

    >>> call = FunctionCall(name="adk_request_confirmation", args={"originalFunctionCall": {"id": "adk-1", "name": "pay"}})
    >>> compared_args(call)
    {'originalFunctionCall': {'name': 'pay'}}
    """
    args = call.args or {}
    path = _ID_PATHS.get(call.name or "")
    return without(args, path) if path else args


def without(value: Json, path: Sequence[str]) -> Json:
    """Return an object without what is at a path of keys."""
    first, rest = path[0], path[1:]
    if not rest:
        return {key: item for key, item in value.items() if key != first}
    inner = value.get(first)
    return {**value, first: without(inner, rest)} if isinstance(inner, dict) else value


def same_args(actual: Any, expected: Any, ids: GeneratedIds | None = None) -> bool:
    """Whether two values are the same JSON, except for ids that ADK made up.

    Args:
        actual: a value of today.
        expected: the recorded one.
        ids: which ids stand for each other elsewhere in the same call; ``None``: nothing else is compared.

    >>> one, other = "adk-" + "-".join(["0" * 8, *["0" * 4] * 3, "0" * 12]), "adk-" + "-".join(["1" * 8, *["1" * 4] * 3, "1" * 12])
    >>> same_args({"of": one, "in": [one]}, {"of": other, "in": [other]}), same_args([one, one], [one, other])
    (True, False)
    """
    if json_equal(actual, expected):
        return True
    return _same_but_ids(actual, expected, GeneratedIds() if ids is None else ids)


@dataclass(slots=True)
class GeneratedIds:
    """Which id of one side stands for which of the other."""

    of_actual: dict[str, str] = field(default_factory=dict[str, str])
    of_expected: dict[str, str] = field(default_factory=dict[str, str])

    def pair(self, actual: Any, expected: Any) -> bool:
        """Whether two values are such ids, and stand for each other wherever they are."""
        if not (_is_generated(actual) and _is_generated(expected)):
            return False
        stands_for = self.of_actual.setdefault(actual, expected)
        return bool(stands_for == expected and self.of_expected.setdefault(expected, actual) == actual)


def _is_generated(value: Any) -> bool:
    return isinstance(value, str) and _GENERATED_ID.fullmatch(value) is not None


def _same_but_ids(actual: Any, expected: Any, ids: GeneratedIds) -> bool:
    if isinstance(actual, dict) and isinstance(expected, dict):
        if actual.keys() != expected.keys():
            return False
        return all(_same_but_ids(actual[key], value, ids) for key, value in expected.items())
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(_same_but_ids(got, want, ids) for got, want in zip(actual, expected, strict=True))
    return ids.pair(actual, expected) or json_equal(actual, expected)


def trajectory_matches(
    actual: Sequence[FunctionCall], expected: Sequence[FunctionCall], match_type: MatchType, *, ignore_args: bool = False
) -> bool:
    """Whether the actual calls match the expected ones.

    Source: ADK's ``tool_trajectory_avg_score``.

    >>> search, book = FunctionCall(name="search"), FunctionCall(name="book")
    >>> trajectory_matches([search, search, book], [search, book], "EXACT")
    False
    >>> trajectory_matches([search, search, book], [search, book], "IN_ORDER")
    True
    >>> trajectory_matches([book, search], [search, book], "ANY_ORDER")
    True
    """
    same = partial(same_call, ignore_args=ignore_args)
    match match_type:
        case "EXACT":
            return len(actual) == len(expected) and all(map(same, actual, expected))
        case "IN_ORDER":
            rest = iter(actual)  # `any` consumes it, so each hit comes after the one before
            return all(any(same(got, want) for got in rest) for want in expected)
        case "ANY_ORDER":
            left = list(actual)
            return all(_take(left, want, ignore_args=ignore_args) for want in expected)


def _take(calls: list[FunctionCall], wanted: FunctionCall, *, ignore_args: bool) -> FunctionCall | None:
    """Remove the first call that is the wanted one, and return it."""
    index = next((index for index, call in enumerate(calls) if same_call(call, wanted, ignore_args=ignore_args)), None)
    return None if index is None else calls.pop(index)


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where two JSON values differ."""

    path: str
    """A JSON path."""
    expected: str
    actual: str


def call_differences(actual: FunctionCall, expected: FunctionCall) -> Iterator[Difference]:
    """Yield every place where the arguments of two calls differ. An id that ADK made up and another such are no difference."""
    return differences(compared_args(actual), compared_args(expected), ids=GeneratedIds())


def differences(actual: Any, expected: Any, path: str = "$", *, ids: GeneratedIds | None = None) -> Iterator[Difference]:
    """Yield every place where two JSON values differ.

    Args:
        actual: one of them.
        expected: the other.
        path: where they are.
        ids: which ids that ADK made up stand for each other; ``None``: these are values like any other.

    >>> [found.path for found in differences({"a": [1, 2], "b": 1}, {"a": [1, 3], "c": 1})]
    ['$.a[1]', '$.c', '$.b']
    """
    if isinstance(actual, dict) and isinstance(expected, dict):
        characters = _keys_that_look_alike(expected, actual)
        for key in dict.fromkeys([*expected, *actual]):
            place = json_path(path, [key]) + characters.get(key, "")
            yield from differences(actual.get(key, _MISSING), expected.get(key, _MISSING), place, ids=ids)
    elif isinstance(actual, list) and isinstance(expected, list):
        for index, (got, want) in enumerate(zip_longest(actual, expected, fillvalue=_MISSING)):
            yield from differences(got, want, json_path(path, [index]), ids=ids)
    elif not json_equal(actual, expected) and not (ids is not None and ids.pair(actual, expected)):
        yield Difference(path, *_shown_apart(expected, actual))


def _keys_that_look_alike(left: Mapping[Any, Any], right: Mapping[Any, Any]) -> dict[Any, str]:
    """Return the keys that only one side has although the other has one that looks the same, each with the characters by which it differs."""
    alone = {appearance(key): key for key in left if key not in right and isinstance(key, str)}
    found: dict[Any, str] = {}
    if not alone:
        return found
    for key in right:
        twin = alone.get(appearance(key)) if key not in left and isinstance(key, str) else None
        if twin is not None:
            found[twin], found[key] = unlike(twin, key)
    return found


def _shown_apart(expected: Any, actual: Any) -> tuple[str, str]:
    """Return two different values so that a reader sees the difference, also where long texts begin alike, or look the same."""
    if not isinstance(expected, str) or not isinstance(actual, str):
        return _shown(expected), _shown(actual)
    want, got = _texts_apart(expected, actual)
    want_characters, got_characters = unlike(expected, actual)
    return want + want_characters, got + got_characters


def _texts_apart(expected: str, actual: str) -> tuple[str, str]:
    if max(len(expected), len(actual)) >= _LONG:
        apart = next((index for index, (want, got) in enumerate(zip_longest(expected, actual)) if want != got), 0)
        start = max(apart - _BEFORE, 0)
        dots = "…" if start else ""
        return dots + shown(expected[start:]), dots + shown(actual[start:])
    return shown(expected), shown(actual)


def _shown(value: Any) -> str:
    return "nothing" if value is _MISSING else shown(value)


@dataclass(frozen=True, slots=True)
class Step:
    """One line of an alignment: a call on either side, or a pair."""

    kind: Literal["same", "changed", "missing", "unexpected"]
    expected: FunctionCall | None
    actual: FunctionCall | None


def align(
    actual: Sequence[FunctionCall], expected: Sequence[FunctionCall], *, ordered: bool = True, ignore_args: bool = False
) -> list[Step]:
    """Return which actual call stands for which expected one, so that as few as possible are left over.

    Two calls are paired if they are the same, or else if they have the same name.

    Args:
        actual: the agent's calls.
        expected: the reference's calls.
        ordered: whether pairs must keep the order of both sides. Not kept for hundreds of calls on both sides.
        ignore_args: whether calls of one name are the same.
    """
    if ordered and len(actual) * len(expected) <= _LARGEST_TABLE:
        return list(_align_ordered(actual, expected, ignore_args=ignore_args))
    return _align_free(actual, expected, ignore_args=ignore_args)


def _align_ordered(actual: Sequence[FunctionCall], expected: Sequence[FunctionCall], *, ignore_args: bool) -> Iterator[Step]:
    """Align by edit distance. A pair costs 0 if its calls are the same and 1 if only their names are; leaving a call out costs 2."""
    rows, columns = len(actual), len(expected)
    same = partial(same_call, ignore_args=ignore_args)
    costs = [[None if got.name != want.name else 0 if same(got, want) else 1 for want in expected] for got in actual]
    # The cost of what follows the i-th actual and the j-th expected call.
    best = [[2 * (rows - i + columns - j) for j in range(columns + 1)] for i in range(rows + 1)]
    for i, j in product(range(rows - 1, -1, -1), range(columns - 1, -1, -1)):
        cost, apart = costs[i][j], 2 + min(best[i + 1][j], best[i][j + 1])
        best[i][j] = apart if cost is None else min(apart, cost + best[i + 1][j + 1])
    i = j = 0
    while i < rows or j < columns:
        cost = costs[i][j] if i < rows and j < columns else None
        if cost is not None and best[i][j] == cost + best[i + 1][j + 1]:
            yield Step("changed" if cost else "same", expected[j], actual[i])
            i, j = i + 1, j + 1
        elif j < columns and (i == rows or best[i][j] == 2 + best[i][j + 1]):
            yield Step("missing", expected[j], None)
            j += 1
        else:
            yield Step("unexpected", None, actual[i])
            i += 1


def _align_free(actual: Sequence[FunctionCall], expected: Sequence[FunctionCall], *, ignore_args: bool) -> list[Step]:
    """Pair the same calls first, then those of one name, whatever their order."""
    left = list(actual)
    same = [_take(left, want, ignore_args=ignore_args) for want in expected]
    steps: list[Step] = []
    for want, got in zip(expected, same, strict=True):
        if got is not None:
            steps.append(Step("same", want, got))
        elif (namesake := _take(left, want, ignore_args=True)) is not None:
            steps.append(Step("changed", want, namesake))
        else:
            steps.append(Step("missing", want, None))
    return [*steps, *(Step("unexpected", None, got) for got in left)]
