from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.criteria.alignment import (
    Step,
    align,
    differences,
    json_equal,
    same_call,
    trajectory_matches,
)
from mlflow_adk_eval.evalset.models import FunctionCall
from tests.kit import call
from tests.strategies import json_values

CALLS = st.lists(st.builds(call, st.sampled_from("abc"), st.dictionaries(st.sampled_from("xy"), st.integers(0, 1), max_size=1)), max_size=5)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 1.0),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": [1, {"b": 0.0}]}, {"a": [1.0, {"b": 0}]}),
        ([None], [None]),
        (10**20, 1e20),
        ("ä", "ä"),
    ],
)
def test_the_same_json_is_equal(left: Any, right: Any) -> None:
    assert json_equal(left, right)
    assert json_equal(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, True),
        (0, False),
        ({"a": 1.0}, {"a": True}),
        ([1, [True]], [1, [1]]),
        ({"a": {"b": [0]}}, {"a": {"b": [False]}}),
        (1, "1"),
        (None, {}),
        ([], {}),
        ({"a": None}, {}),
        ([1, 2], [2, 1]),
        (float("nan"), float("nan")),
        ("é", "e\u0301"),
    ],
)
def test_other_json_is_not_equal(left: Any, right: Any) -> None:
    assert not json_equal(left, right)
    assert not json_equal(right, left)


@given(json_values(), json_values())
def test_values_differ_exactly_where_there_are_differences(left: Any, right: Any) -> None:
    assert json_equal(left, right) == (not list(differences(left, right)))
    assert not list(differences(left, left))


@given(json_values(), json_values())
def test_differences_are_at_the_same_places_from_either_side(left: Any, right: Any) -> None:
    there, back = ({(found.path, found.expected, found.actual) for found in differences(*pair)} for pair in ((left, right), (right, left)))
    assert there == {(path, actual, expected) for path, expected, actual in back}


@pytest.mark.parametrize(
    ("actual", "expected", "found"),
    [
        ({"a": 1}, {"a": 2}, ("$.a", "2", "1")),
        ({"a": True}, {"a": 1}, ("$.a", "1", "true")),
        ({"a": "1"}, {"a": 1}, ("$.a", "1", "'1'")),
        ({}, {"a": None}, ("$.a", "null", "nothing")),
        ({"a": [1, 2]}, {"a": [1]}, ("$.a[1]", "nothing", "2")),
        ({"a": [{"b": {}}]}, {"a": [{"b": []}]}, ("$.a[0].b", "a list of 0", "an object with no keys")),
        ({"room 1": 1}, {"room 1": 2}, ("$['room 1']", "2", "1")),
        ({"a": "x" * 100 + "!"}, {"a": "x" * 100 + "?"}, ("$.a", f"…'{'x' * 20}?'", f"…'{'x' * 20}!'")),
        ({"a": "y" * 70}, {"a": "x"}, ("$.a", "'x'", f"'{'y' * 70}'")),
    ],
)
def test_a_difference_names_its_place_and_both_values(actual: Any, expected: Any, found: tuple[str, str, str]) -> None:
    (difference,) = differences(actual, expected)
    assert (difference.path, difference.expected, difference.actual) == found


def test_no_arguments_are_empty_arguments() -> None:
    assert same_call(call("f"), call("f", {}))
    assert not same_call(call("f"), call("f", {"x": None}))
    assert not same_call(call("f"), call("g"))
    assert same_call(call("f", {"x": 1}), call("f", {"x": 2}), ignore_args=True)


def test_a_call_without_a_name_is_only_like_another_without_a_name() -> None:
    assert same_call(FunctionCall(), FunctionCall())
    assert not same_call(FunctionCall(), call("f"))


@pytest.mark.parametrize(
    ("actual", "expected", "exact", "in_order", "any_order"),
    [
        ("", "", True, True, True),
        ("a", "", False, True, True),
        ("", "a", False, False, False),
        ("ab", "ab", True, True, True),
        ("ba", "ab", False, False, True),
        ("axb", "ab", False, True, True),
        ("aab", "ab", False, True, True),
        ("ab", "aab", False, False, False),
        ("bxa", "ab", False, False, True),
        ("abab", "abba", False, False, True),
    ],
)
def test_the_three_match_types(actual: str, expected: str, exact: bool, in_order: bool, any_order: bool) -> None:
    got, want = ([call(name) for name in names] for names in (actual, expected))
    assert [trajectory_matches(got, want, kind) for kind in ("EXACT", "IN_ORDER", "ANY_ORDER")] == [exact, in_order, any_order]


@given(CALLS, CALLS, st.booleans())
def test_a_stricter_match_is_also_a_looser_one(actual: list[FunctionCall], expected: list[FunctionCall], ignore: bool) -> None:
    exact, in_order, any_order = (
        trajectory_matches(actual, expected, kind, ignore_args=ignore) for kind in ("EXACT", "IN_ORDER", "ANY_ORDER")
    )
    assert exact <= in_order <= any_order


@given(CALLS, CALLS, st.booleans(), st.booleans())
def test_an_alignment_has_every_call_once(actual: list[FunctionCall], expected: list[FunctionCall], ordered: bool, ignore: bool) -> None:
    steps = align(actual, expected, ordered=ordered, ignore_args=ignore)
    assert [step.expected for step in steps if step.expected] == expected
    got = [step.actual for step in steps if step.actual]
    assert got == actual if ordered else sorted(map(repr, got)) == sorted(map(repr, actual))
    for step in steps:
        assert _kind(step, ignore) == step.kind


def _kind(step: Step, ignore: bool) -> str:
    if step.expected is None or step.actual is None:
        return "missing" if step.expected else "unexpected"
    assert step.expected.name == step.actual.name
    return "same" if same_call(step.actual, step.expected, ignore_args=ignore) else "changed"


@given(CALLS, CALLS, st.booleans())
def test_calls_match_exactly_where_every_step_is_the_same(actual: list[FunctionCall], expected: list[FunctionCall], ignore: bool) -> None:
    steps = align(actual, expected, ignore_args=ignore)
    assert trajectory_matches(actual, expected, "EXACT", ignore_args=ignore) == all(step.kind == "same" for step in steps)


@given(CALLS, CALLS)
def test_an_alignment_in_any_order_leaves_no_pair_apart(actual: list[FunctionCall], expected: list[FunctionCall]) -> None:
    steps = align(actual, expected, ordered=False)
    missing = {step.expected.name for step in steps if step.kind == "missing" and step.expected}
    assert not missing & {step.actual.name for step in steps if step.kind == "unexpected" and step.actual}


@pytest.mark.parametrize(
    ("actual", "expected", "kinds"),
    [
        ([call("a", x=1), call("b")], [call("a", x=2), call("b")], ["changed", "same"]),
        ([call("b")], [call("a"), call("b")], ["missing", "same"]),
        ([call("a", x=1), call("a", x=2)], [call("a", x=2)], ["unexpected", "same"]),
        ([call("b"), call("a")], [call("a"), call("b")], ["missing", "same", "unexpected"]),
    ],
)
def test_the_alignment_with_the_fewest_leftovers_is_found(actual: Any, expected: Any, kinds: list[str]) -> None:
    assert [step.kind for step in align(actual, expected)] == kinds


def test_hundreds_of_calls_are_aligned_without_their_order() -> None:
    many = [call("f", x=index) for index in range(600)]
    steps = align(many[::-1], many)
    assert {step.kind for step in steps} == {"same"}
    assert len(steps) == 600


@pytest.mark.parametrize(
    ("expected", "actual", "characters"),
    [
        (
            "Zürich",
            "Zu\u0308rich",
            ("U+00FC LATIN SMALL LETTER U WITH DIAERESIS", "U+0075 LATIN SMALL LETTER U, U+0308 COMBINING DIAERESIS"),
        ),
        ("gate A", "gate \u0410", ("U+0041 LATIN CAPITAL LETTER A", "U+0410 CYRILLIC CAPITAL LETTER A")),
        ("a b", "a\u00a0b", ("U+0020 SPACE", "U+00A0 NO-BREAK SPACE")),
        ("ok", "o\u200bk", ("without a character there", "U+200B ZERO WIDTH SPACE")),
        ("ok", "ok ", ("without a character there", "U+0020 SPACE")),
        ("x" * 300 + "-", "x" * 300 + "\u2011", ("U+002D HYPHEN-MINUS", "U+2011 NON-BREAKING HYPHEN")),
        ("don't", "don’t", ("U+0027 APOSTROPHE", "U+2019 RIGHT SINGLE QUOTATION MARK")),
    ],
)
def test_texts_that_look_the_same_are_shown_with_their_characters(expected: str, actual: str, characters: tuple[str, str]) -> None:
    (found,) = differences({"city": actual}, {"city": expected})
    assert found.expected.endswith(f" ({characters[0]})")
    assert found.actual.endswith(f" ({characters[1]})")


def test_texts_that_look_different_are_shown_without() -> None:
    (found,) = differences("Oslo", "Rom")
    assert (found.expected, found.actual) == ("'Rom'", "'Oslo'")


def test_keys_that_look_the_same_are_shown_with_their_characters() -> None:
    found = [place.path for place in differences({"n\u0430me": 1}, {"name": 1})]
    assert found == ["$.name (U+0061 LATIN SMALL LETTER A)", "$.n\u0430me (U+0430 CYRILLIC SMALL LETTER A)"]
