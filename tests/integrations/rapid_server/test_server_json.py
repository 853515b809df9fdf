"""The JSON of requests: what is understood, and what is refused with its place."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.criteria.rapid.messages import RequestError
from mlflow_adk_eval.integrations.rapid_server.app import read_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=9), inner, max_size=4),
    max_leaves=12,
)


def refused(raw: bytes) -> tuple[str, str]:
    with pytest.raises(RequestError) as raised:
        read_json(raw)
    problem = raised.value.problems[0]
    return problem.path, str(problem)


@given(JSON, st.booleans())
def test_what_is_json_is_read_as_such(value: Any, ascii_only: bool) -> None:
    assert read_json(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(JSON)
def test_a_comma_after_the_last_value_changes_nothing(value: Any) -> None:
    plain = json.dumps({"a": [value, 1], "b": value})
    assert read_json(f'{{"x": {plain[:-1]},\n }} , }}'.encode()) == {"x": json.loads(plain)}


@given(st.binary(max_size=60) | st.text('[]{},:"\\ \n1a', max_size=60).map(str.encode))
def test_nothing_but_a_problem_comes_of_anything_else(raw: bytes) -> None:
    with suppress(RequestError):
        json.dumps(read_json(raw), ensure_ascii=False, allow_nan=False).encode()


def test_repeated_instances_are_several_instances() -> None:
    raw = b'{"rouge_input": {"instances": {"prediction": "a"}, "metric_spec": {}, "instances": [{"prediction": "b"}, {"prediction": "c"}]}}'
    assert read_json(raw) == {
        "rouge_input": {"instances": [{"prediction": "a"}, {"prediction": "b"}, {"prediction": "c"}], "metric_spec": {}}
    }


def test_a_byte_order_mark_says_nothing() -> None:
    assert read_json(b"\xef\xbb\xbf{}") == {}


def test_commas_within_texts_stay() -> None:
    assert read_json(rb'{"a": "x, ]", "b": "\",}", }') == {"a": "x, ]", "b": '",}'}


PROBLEMS: dict[str, tuple[bytes, str, str]] = {
    "nothing": (b"", "$", "not JSON"),
    "cut off": (b'{"a": "b', "$", "Unterminated string"),
    "only a comma": (b"[,]", "$", "line 1, column 2"),
    "two commas": (b"[1,,]", "$", "not JSON"),
    "the place behind a trailing comma": (b'{"a": [1,],\n "b": x}', "$", "line 2, column 7"),
    "two keys": (b'{"fluency_input": {"instance": 1, "instance": 2}}', "$.fluency_input.instance", "more than once"),
    "two keys deeper": (b'{"a": [{"b": 1, "b": 1}]}', "$.a[0].b", "more than once"),
    "NaN": (b'{"a": NaN}', "$.a", "found NaN"),
    "infinity": (b"[-Infinity]", "$[0]", "found -Infinity"),
    "beyond floats": (b'{"a": 1e999}', "$.a", "a finite number"),
    "an endless integer": (b'{"a": ' + b"9" * 5000 + b"}", "$.a", "a finite number"),
    "half a character": (b'{"a": "\\ud83d"}', "$.a", "surrogate"),
    "half a character in a key": (b'{"\\ud83d": 1}', r"$['\ud83d']", "surrogate"),
    "no UTF-8": (b'{"a": "\xff"}', "$", "offset 7"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "$", "UTF-8"),
    "a bomb of lists": (b"[" * 500_000, "$", "too deeply nested brackets"),
    "a bomb of objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "$", "too deeply nested brackets"),
    "many keys": (json.dumps(dict.fromkeys(map(str, range(50_000)))).encode(), "$", "50000 keys"),
    "a long key": (b'{"' + b"A" * 500_000 + b'": 1}', "$", "a key of 500000 characters"),
    "quotes without an end": (b'"' + b'\\"' * 400_000, "$", "not JSON"),
    "commas without an end": (b", " * 400_000, "$", "not JSON"),
}


@pytest.mark.parametrize(("raw", "path", "words"), PROBLEMS.values(), ids=PROBLEMS)
def test_what_is_wrong_is_named_with_its_place(raw: bytes, path: str, words: str) -> None:
    found, message = refused(raw)
    assert found == path
    assert words in message


def test_problems_are_all_named_but_not_without_end() -> None:
    with pytest.raises(RequestError) as raised:
        read_json(b"[" + b"NaN," * 1000 + b"]")
    assert len(raised.value.problems) == 50
