"""Cases as records and back, without a store: what MLflow does to records in between is modelled here and checked in test_datasets."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.errors import EvalSetError
from mlflow_adk_eval.evalset.files import load_eval_set, parse_eval_set
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, eval_set_digest
from mlflow_adk_eval.tracking.dataset_records import (
    Changes,
    Stored,
    cases_of,
    changes,
    records_of,
)
from tests.kit import turn_json
from tests.strategies import QUICK, eval_sets, legacy_cases
from tests.tracking.small import rooms, turn

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "adk"
FILES = sorted(path for path in DATA.rglob("*.json") if path.name.endswith((".test.json", ".evalset.json")))
Json = dict[str, Any]


def loaded(value: Any) -> EvalSet:
    return parse_eval_set(json.dumps(value).encode(), "set.json", stem="set")


def of_cases(*cases: Json) -> EvalSet:
    return loaded({"eval_set_id": "s", "eval_cases": list(cases)})


def as_stored(records: list[Json], seed: int = 0) -> list[Stored]:
    """Return records as a store gives them back: as JSON, in any order."""
    listed = [
        Stored(record_id=f"dr-{index}", inputs=record["inputs"], expectations=record["expectations"], tags=record["tags"])
        for index, record in enumerate(json.loads(json.dumps(records)))
    ]
    random.Random(seed).shuffle(listed)
    return listed


def merged(stored: list[Stored], todo: Changes) -> list[Stored]:
    """Do what MLflow does: delete, then merge by inputs; expectations and tags that a record does not name stay."""
    left = {json.dumps(one.inputs, sort_keys=True): one for one in stored if one.record_id not in todo.delete}
    for number, record in enumerate(json.loads(json.dumps(todo.upsert))):
        key = json.dumps(record["inputs"], sort_keys=True)
        old = left.get(key, Stored(record_id=f"new-{number}", inputs=record["inputs"]))
        left[key] = Stored(
            record_id=old.record_id,
            inputs=old.inputs,
            expectations={**old.expectations, **record["expectations"]},
            tags={**old.tags, **record["tags"]},
        )
    return list(left.values())


def text_of(cases: tuple[EvalCase, ...]) -> str:
    """Return all of the cases, so that 1, 1.0 and true differ."""
    return json.dumps([case.model_dump(mode="json") for case in cases], sort_keys=True)


def there_and_back(eval_set: EvalSet, seed: int = 0) -> EvalSet:
    return eval_set.model_copy(update={"eval_cases": cases_of(as_stored(records_of(eval_set), seed), "dataset")})


@QUICK
@given(eval_sets() | legacy_cases(), st.integers(0, 9))
def test_nothing_is_lost_in_whatever_order_records_come(value: Any, seed: int) -> None:
    eval_set = loaded(value)

    back = there_and_back(eval_set, seed)

    assert back == eval_set
    assert text_of(back.eval_cases) == text_of(eval_set.eval_cases)
    assert eval_set_digest(back) == eval_set_digest(eval_set)


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, id=file.relative_to(DATA).as_posix()) for file in FILES]
    or [pytest.param(None, marks=pytest.mark.skip(reason="ADK's sample files are not at ../shared/data/adk beside the project"))],
)
def test_adks_own_eval_sets_come_back_as_they_are(file: Path) -> None:
    eval_set = load_eval_set(file)

    assert there_and_back(eval_set) == eval_set


def test_even_an_unknown_null_comes_back() -> None:
    eval_set = of_cases(
        {"eval_id": "c", "conversation": [{**turn("hi", "ho", ("f", {"n": None, "i": 1, "f": 1.0, "b": True})), "new": None}]}
    )

    back = there_and_back(eval_set)

    assert (back.eval_cases[0].conversation or ())[0].model_extra == {"new": None}
    assert text_of(back.eval_cases) == text_of(eval_set.eval_cases)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_lacks_is_refused_by_its_path(number: float) -> None:
    eval_set = of_cases({"eval_id": "c", "conversation": [turn("hi", "ho", ("f", {"n": [0, number]}))]})

    with pytest.raises(EvalSetError) as caught:
        records_of(eval_set)

    path = "$.eval_cases[0].conversation[0].intermediate_data.tool_uses[0].args.n[1]"
    assert [(found.path, found.wanted) for found in caught.value.problems] == [(path, "a finite number")]


def test_what_is_no_json_is_refused() -> None:
    case = EvalCase.model_validate({"eval_id": "c", "conversation": [turn("hi", "ho", ("f", {"object": object()}))]})

    with pytest.raises(EvalSetError, match=r"eval_cases\[0\]: found a value that is not JSON"):
        records_of(EvalSet(eval_set_id="s", eval_cases=(case,)))


def test_what_would_be_read_as_a_slip_of_the_pen_is_refused_before_it_is_written() -> None:
    case = EvalCase.model_validate(
        {"eval_id": "c", "conversation": [turn("hi", "ho")], "session_inputs": {"app_name": "a", "user_id": "u"}}
    )

    with pytest.raises(EvalSetError, match="Did you mean 'session_input'"):
        records_of(EvalSet(eval_set_id="s", eval_cases=(case,)))


def test_two_cases_of_one_id_are_refused() -> None:
    case = rooms().eval_cases[0]

    with pytest.raises(EvalSetError, match=r"eval_cases\[1\]\.eval_id: found 'light', the same as \$\.eval_cases\[0\]\.eval_id"):
        records_of(EvalSet(eval_set_id="s", eval_cases=(case, case)))


@QUICK
@given(eval_sets(), eval_sets(), st.integers(0, 9))
def test_after_the_changes_a_dataset_holds_the_new_set_and_nothing_else(before: Any, after: Any, seed: int) -> None:
    wanted = records_of(loaded(after))
    stored = as_stored(records_of(loaded(before)), seed)

    held = merged(stored, changes(stored, wanted))

    assert cases_of(held, "dataset") == loaded(after).eval_cases
    assert not changes(held, wanted)


def test_only_what_differs_is_written() -> None:
    cases = list(rooms().eval_cases)
    told = cases[1].model_dump(mode="json", exclude_unset=True)
    told["conversation"][0]["intermediate_data"]["tool_uses"][0]["args"]["to"] = 21.0
    wanted = records_of(EvalSet(eval_set_id="rooms", eval_cases=(cases[0], EvalCase.model_validate(told), cases[2])))

    todo = changes(as_stored(records_of(rooms())), wanted)

    assert todo.delete == ()
    assert [record["inputs"]["eval_id"] for record in todo.upsert] == ["heat"]


def test_a_record_that_loses_an_expectation_is_written_anew_since_mlflow_would_keep_it() -> None:
    told = copy.deepcopy(rooms().eval_cases[1].model_dump(mode="json", exclude_unset=True))
    del told["conversation"][0]["final_response"]
    wanted = records_of(of_cases(told))
    stored = as_stored(records_of(rooms()))

    todo = changes(stored, wanted)

    assert set(todo.delete) == {"dr-0", "dr-1", "dr-2"}
    assert [set(one.expectations) for one in merged(stored, todo)] == [{"eval_case"}]


def edited(**changed: Any) -> Stored:
    """Return the record of a case of one turn, of which somebody has edited some expectations."""
    (record,) = as_stored(records_of(of_cases({"eval_id": "c", "conversation": [turn("21 please", "it is 21", ("heat", {"to": 21}))]})))
    expectations = record.expectations
    if "case" in changed:
        expectations["eval_case"]["conversation"][0] |= changed.pop("case")
    return Stored(record_id="dr-7", inputs=changed.pop("inputs", record.inputs), expectations={**expectations, **changed}, tags=record.tags)


def the_turn(record: Stored) -> Any:
    (case,) = cases_of([record], "dataset 'd'")
    return (case.conversation or ())[0]


def test_an_edited_expected_response_is_the_cases_answer() -> None:
    found = the_turn(edited(expected_response="set to 21"))

    assert (found.final_text, found.final_response.role) == ("set to 21", "model")
    assert found.tool_calls[0].args == {"to": 21}


def test_an_edit_on_mlflows_page_is_known_though_the_page_rewrites_numbers() -> None:
    (record,) = as_stored(records_of(of_cases({"eval_id": "c", "conversation": [turn("hi", "ho", ("f", {"n": 1.0, "big": 1e21}))]})))
    as_a_browser_writes = json.loads(json.dumps(record.expectations["eval_case"]).replace("1.0", "1"))
    expectations = {"expected_response": "hello", "eval_case": as_a_browser_writes}

    found = the_turn(Stored(record_id="dr-7", inputs=record.inputs, expectations=expectations, tags=record.tags))

    assert (found.final_text, found.tool_calls[0].args) == ("hello", {"n": 1, "big": 1e21})


def test_an_edited_case_counts_though_the_expected_response_beside_it_is_old() -> None:
    answer = {"final_response": {"role": "model", "parts": [{"text": "21 it is"}]}}

    assert the_turn(edited(case=answer)).final_text == "21 it is"
    assert the_turn(edited(case=answer, expected_response="21 it is")).final_text == "21 it is"


def test_a_case_whose_users_text_was_edited_counts_though_the_inputs_beside_it_are_old() -> None:
    assert the_turn(edited(case=turn_json("22 please"))).user_text == "22 please"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (
            {"case": {"final_response": {"parts": [{"text": "a"}]}}, "expected_response": "b"},
            r"record dr-7, \$\.expectations\.expected_response: found an answer that differs from eval_case",
        ),
        ({"expected_response": ["no", "text"]}, r"record dr-7, \$\.expectations\.expected_response: found a list of 2"),
        ({"expected_tool_calls": []}, r"record dr-7, \$\.expectations\.expected_tool_calls: found an expectation in addition to eval_case"),
        ({"inputs": {"eval_id": "c", "messages": ["other"]}}, r"record dr-7, \$\.inputs: found inputs that differ from its eval_case"),
        ({"eval_case": {"eval_id": "c"}}, r"record dr-7, \$\.expectations\.eval_case: found neither of them"),
        ({"case": {"user_content": 5}}, r"record dr-7, \$\.expectations\.eval_case\.conversation\[0\]\.user_content: found 5"),
    ],
)
def test_an_edit_that_may_mean_two_things_is_refused_with_the_records_name(changed: Json, problem: str) -> None:
    with pytest.raises(EvalSetError, match=problem):
        the_turn(edited(**changed))


def test_an_answer_of_several_parts_is_edited_in_the_case_only() -> None:
    told = {"eval_id": "c", "conversation": [{**turn("hi", ""), "final_response": {"parts": [{"text": "a"}, {"text": "b"}]}}]}
    (record,) = as_stored(records_of(of_cases(told)))
    record.expectations["expected_response"] = "c"

    with pytest.raises(EvalSetError, match="the answer of eval_case; edit it there"):
        cases_of([record], "dataset 'd'")


def test_expectations_of_mlflows_own_scorers_are_kept_and_pushed_again() -> None:
    (case,) = cases_of([edited(guidelines=["be brief"])], "dataset 'd'")

    (record,) = records_of(EvalSet(eval_set_id="s", eval_cases=(case,)))

    assert case.model_extra == {"mlflow_expectations": {"guidelines": ["be brief"]}}
    assert record["expectations"] == edited(guidelines=["be brief"]).expectations


def foreign(inputs: Any, **expectations: Any) -> EvalCase:
    (case,) = cases_of([Stored(record_id="dr-9", inputs=inputs, expectations=expectations)], "dataset 'd'")
    return case


def test_a_record_that_somebody_wrote_is_a_case() -> None:
    calls = [{"name": "heat", "args": {"to": 21}}]

    case = foreign({"question": "21 please"}, expected_response="it is 21", expected_tool_calls=calls, guidelines="be brief")

    (only,) = case.conversation or ()
    assert (case.eval_id, only.user_text, only.final_text) == ("dr-9", "21 please", "it is 21")
    assert [(call.name, call.args) for call in only.tool_calls] == [("heat", {"to": 21})]
    assert case.model_extra == {"mlflow_expectations": {"guidelines": "be brief"}}


def test_a_record_with_no_expectation_is_a_case_with_no_answer() -> None:
    (only,) = foreign({"whatever": "hi"}).conversation or ()

    assert (only.user_text, only.final_response) == ("hi", None)


def test_messages_are_turns_and_the_assistants_are_their_answers() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}, "book it", {"parts": [{"text": "now"}]}]

    case = foreign({"eval_id": "mine", "messages": messages, "session_input": {"app_name": "a", "user_id": "u"}}, expected_response="done")

    assert [(one.user_text, one.final_text) for one in case.conversation or ()] == [("hi", "hello"), ("book it", ""), ("now", "done")]
    assert case.eval_id == "mine"
    assert case.session_input is not None
    assert case.session_input.user_id == "u"


def test_other_expectations_find_their_fields() -> None:
    case = foreign({"messages": ["a", "b"]}, expected_conversation=["1", "2"], expected_session_state={"n": 1}, rubrics=["kind"])

    assert [(one.user_text, one.final_text) for one in case.conversation or ()] == [("a", "1"), ("b", "2")]
    assert case.final_session_state == {"n": 1}
    assert {rubric.rubric_content.text_property for rubric in case.rubrics or ()} == {"kind"}


def test_a_scenario_that_somebody_wrote_is_a_case() -> None:
    case = foreign({"conversation_scenario": {"starting_prompt": "hi", "conversation_plan": "book"}}, expected_session_state={"n": 1})

    assert case.conversation_scenario is not None
    assert (case.eval_id, case.conversation_scenario.conversation_plan, case.final_session_state) == ("dr-9", "book", {"n": 1})


@pytest.mark.parametrize(
    ("inputs", "expectations", "problem"),
    [
        ({"question": "hi", "context": "c"}, {}, r"\$\.inputs: found inputs named context, question; wanted one"),
        ({}, {}, r"\$\.inputs: found inputs named nothing"),
        ({"goal": "book", "persona": "angry"}, {}, r"a goal for MLflow's simulated user \(goal, persona\)"),
        ({"question": 5}, {}, r"\$\.inputs, message 1: found 5; wanted a text"),
        ({"messages": []}, {}, r"\$\.inputs: found no message"),
        ({"messages": [{"role": "system", "content": "be brief"}, "hi"]}, {}, r"message 1: found .* of role 'system'"),
        ({"messages": [{"role": "assistant", "content": "hello"}]}, {}, r"message 1: found .* of role 'model'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
            {},
            r"message 1: found an object with role, content",
        ),
        ({"messages": ["hi", {"role": "assistant", "content": "a"}]}, {"expected_response": "b"}, "a second answer to the last message"),
        ({"messages": ["a", "b"]}, {"expected_tool_calls": []}, "expected_tool_calls"),
        ({"messages": ["a"]}, {"expected_response": 5}, "final_response: found 5"),
        ({"messages": ["a"]}, {"expected_response": "b", "expected_conversation": ["b"]}, "answers in addition"),
        ({"conversation_scenario": {"starting_prompt": "hi"}}, {}, "conversation_plan"),
        ({"conversation_scenario": {}}, {"expected_response": "x"}, "an expectation for a scenario"),
        ("text", {}, "found 'text'; wanted an object"),
    ],
)
def test_what_a_case_cannot_hold_is_refused_with_the_records_name(inputs: Any, expectations: Json, problem: str) -> None:
    with pytest.raises(EvalSetError, match=problem) as caught:
        foreign(inputs, **expectations)

    assert all(found.path.startswith("record dr-9, $") for found in caught.value.problems)


def test_every_record_that_is_no_case_is_named() -> None:
    with pytest.raises(EvalSetError) as caught:
        cases_of(
            [Stored(record_id="dr-1", inputs={}), Stored(record_id="dr-2", inputs={"q": "hi"}), Stored(record_id="dr-3", inputs=[])], "d"
        )

    assert [found.path.split(",")[0] for found in caught.value.problems] == ["record dr-1", "record dr-3"]


def test_two_records_of_one_eval_id_are_refused() -> None:
    records = [Stored(record_id=f"dr-{text}", inputs={"eval_id": "c", "q": text}) for text in "ab"]

    with pytest.raises(EvalSetError, match=r"record dr-b, \$\.inputs\.eval_id: found 'c', the same as record dr-a"):
        cases_of(records, "d")


def test_what_others_added_comes_after_the_eval_set_by_age() -> None:
    added = [Stored(record_id=name, inputs={"q": name}, created=created) for name, created in (("dr-x", 5), ("dr-y", 4))]

    cases = cases_of([*added, *as_stored(records_of(rooms()))], "d")

    assert [case.eval_id for case in cases] == ["light", "heat", "both", "dr-y", "dr-x"]
