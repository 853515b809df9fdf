from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.evalset.conversion import migrate
from mlflow_adk_eval.evalset.files import dumps, load_eval_set, parse_eval_set
from mlflow_adk_eval.evalset.models import eval_set_digest
from tests.strategies import QUICK, eval_sets, legacy_cases, legacy_turns, respelt


def digest(value: Any) -> str:
    return eval_set_digest(parse_eval_set(json.dumps(value).encode(), "set.json", stem="set"))


def one_turn(**turn: Any) -> dict[str, Any]:
    invocation = {"user_content": {"parts": [{"text": "hi"}]}} | turn
    return {"eval_set_id": "s", "eval_cases": [{"eval_id": "c", "conversation": [invocation]}]}


def with_args(args: Any) -> dict[str, Any]:
    return one_turn(intermediate_data={"tool_uses": [{"name": "f", "args": args}]})


@QUICK
@given(eval_sets(), st.integers(0, 2**32))
def test_spelling_and_key_order_do_not_matter(value: Any, seed: int) -> None:
    assert digest(respelt(value, seed)) == digest(value)


@QUICK
@given(eval_sets(allow_nan=True))
def test_writing_and_reading_do_not_matter(value: Any) -> None:
    eval_set = parse_eval_set(json.dumps(value).encode(), "set.json", stem="set")
    assert eval_set_digest(parse_eval_set(dumps(eval_set).encode(), "x", stem="x")) == eval_set_digest(eval_set)


@QUICK
@given(legacy_turns() | legacy_cases())
def test_a_legacy_file_and_its_migration_are_the_same(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    folder = tmp_path_factory.mktemp("legacy")
    old, new = folder / "set.test.json", folder / "new.evalset.json"
    old.write_text(json.dumps(value), encoding="utf-8")
    migrate(old, new)
    assert eval_set_digest(load_eval_set(old)) == digest(json.loads(new.read_text(encoding="utf-8"))) == digest(value)


@QUICK
@given(eval_sets(min_cases=1), st.floats(1, 9))
def test_names_times_and_ids_of_invocations_do_not_matter(value: Any, time: float) -> None:
    other = copy.deepcopy(value) | {"eval_set_id": "other", "name": "other", "description": "other", "creation_timestamp": time}
    for case in other["eval_cases"]:
        case["creation_timestamp"] = time
        for turn in case.get("conversation", ()):
            turn |= {"creation_timestamp": time, "invocation_id": f"id {time}"}
    assert digest(other) == digest(value)


@QUICK
@given(eval_sets(min_cases=2))
def test_the_order_of_cases_matters(value: Any) -> None:
    assert digest(value | {"eval_cases": value["eval_cases"][::-1]}) != digest(value)


@QUICK
@given(eval_sets(min_cases=1), st.data())
def test_no_case_can_be_left_out(value: Any, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(value["eval_cases"]) - 1))
    fewer = value["eval_cases"][:index] + value["eval_cases"][index + 1 :]
    assert digest(value | {"eval_cases": fewer}) != digest(value)


@QUICK
@given(eval_sets(min_cases=1), st.data())
def test_a_text_that_changes_matters_wherever_it_is(value: Any, data: st.DataObject) -> None:
    free = [path for path in _texts(value["eval_cases"]) if path[-1] not in {"invocation_id", "user_persona"}]
    path = data.draw(st.sampled_from(free))
    changed = copy.deepcopy(value)
    holder: Any = changed["eval_cases"]
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = "something else " * 2
    assert digest(changed) != digest(value)


def _texts(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, str):
        return [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in items for found in _texts(item, (*path, key))]


CHANGES = {
    "an expected argument": (with_args({"x": 1}), with_args({"x": 2})),
    "the type of an argument": (with_args({"x": 1}), with_args({"x": "1"})),
    "true and 1": (with_args({"x": True}), with_args({"x": 1})),
    "false and 0": (with_args({"x": [False]}), with_args({"x": [0]})),
    "null and absent, in arguments": (with_args({"x": None}), with_args({})),
    "null and absent, nested": (with_args({"x": {"y": None}}), with_args({"x": {}})),
    "null and empty, in arguments": (with_args({"x": None}), with_args({"x": ""})),
    "the case of a user's key": (with_args({"a_b": 1}), with_args({"aB": 1})),
    "the order of a list in arguments": (with_args({"x": [1, 2]}), with_args({"x": [2, 1]})),
    "the order of tool calls": (
        one_turn(intermediate_data={"tool_uses": [{"name": "f"}, {"name": "g"}]}),
        one_turn(intermediate_data={"tool_uses": [{"name": "g"}, {"name": "f"}]}),
    ),
    "a rubric's text": (
        one_turn(rubrics=[{"rubric_id": "r", "rubric_content": {"text_property": "polite"}}]),
        one_turn(rubrics=[{"rubric_id": "r", "rubric_content": {"text_property": "brief"}}]),
    ),
    "the final answer": (one_turn(final_response={"parts": [{"text": "a"}]}), one_turn(final_response={"parts": [{"text": "b"}]})),
    "whether a text is a thought": (
        one_turn(final_response={"parts": [{"text": "a"}]}),
        one_turn(final_response={"parts": [{"text": "a", "thought": True}]}),
    ),
    "a picture": (
        one_turn(final_response={"parts": [{"inline_data": {"mime_type": "image/png", "data": "aGk="}}]}),
        one_turn(final_response={"parts": [{"inline_data": {"mime_type": "image/png", "data": "aGo="}}]}),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_demands_changes_the_digest(change: str) -> None:
    before, after = CHANGES[change]
    assert digest(before) != digest(after)


def of_case(**case: Any) -> dict[str, Any]:
    value = one_turn()
    value["eval_cases"][0] |= case
    return value


def of_turns(*texts: str) -> dict[str, Any]:
    return of_case(conversation=[{"user_content": {"parts": [{"text": text}]}} for text in texts])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (of_turns("a", "b"), of_turns("b", "a")),
        (of_turns("a"), of_turns("a", "a")),
        (
            of_case(session_input={"app_name": "a", "user_id": "u", "state": {"k": 1}}),
            of_case(session_input={"app_name": "a", "user_id": "u", "state": {"k": 2}}),
        ),
        (
            of_case(session_input={"app_name": "a", "user_id": "u", "state": {"k": None}}),
            of_case(session_input={"app_name": "a", "user_id": "u", "state": {}}),
        ),
        (of_case(final_session_state={"k": 1}), of_case(final_session_state={"k": True})),
        (of_case(note="a"), of_case(note="b")),
        (of_case(eval_id="a"), of_case(eval_id="b")),
    ],
    ids=["order of turns", "number of turns", "state value", "null in the state", "final state", "a field of the user's own", "eval id"],
)
def test_what_changes_a_case_changes_the_digest(before: Any, after: Any) -> None:
    assert digest(before) != digest(after)


PICTURE = {"inlineData": {"mimeType": "image/png", "data": "-_8="}, "videoMetadata": None}
PICTURE_AGAIN = {"inline_data": {"data": "+/8=", "mime_type": "image/png", "display_name": None}}
USAGE = {"author": "a", "usage_metadata": {"prompt_token_count": 3, "total_token_count": None}}
USAGE_AGAIN = {"author": "a", "usageMetadata": {"promptTokenCount": 3}, "invocationIndex": 4, "toolUseIndex": 1}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (with_args({"x": 1, "y": [2.0]}), with_args({"y": [2], "x": 1.0})),
        (with_args({}), one_turn(intermediate_data={"tool_uses": [{"name": "f"}]})),
        (one_turn(final_response=None, rubrics=None, intermediate_data=None), one_turn()),
        (one_turn(final_response={"parts": [PICTURE]}), one_turn(final_response={"parts": [PICTURE_AGAIN]})),
        (
            one_turn(final_response={"parts": [{"text": "a", "thought_signature": "-_8"}]}),
            one_turn(final_response={"parts": [{"text": "a", "thoughtSignature": "+/8="}]}),
        ),
        (
            one_turn(intermediate_data={"invocation_events": [USAGE]}),
            one_turn(intermediate_data={"invocationEvents": [USAGE_AGAIN]}),
        ),
        (of_case(final_session_state={}, note=None), of_case()),
    ],
    ids=["1 and 1.0", "no args and {}", "null fields", "picture", "signature", "usage", "empty state"],
)
def test_what_adk_would_not_notice_does_not_change_the_digest(one: Any, other: Any) -> None:
    assert digest(one) == digest(other)


def test_names_in_a_users_part_metadata_are_left_alone() -> None:
    one, other = ({"parts": [{"text": "a", "part_metadata": {key: 1}}]} for key in ("my_key", "myKey"))
    assert digest(one_turn(final_response=one)) != digest(one_turn(final_response=other))


def test_the_digest_is_stable_across_versions() -> None:
    """Runs of different days are compared by it: when this fails, give the digest another prefix."""
    assert digest(with_args({"x": [1, None, "é"]})) == "sha256:fc873915337354cf970dd4e21c00a444c162a5e6a52e4b46cbf15e1c7022b90c"
