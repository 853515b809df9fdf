from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given

from mlflow_adk_eval.agents.functions import CallableAgent
from mlflow_adk_eval.agents.protocol import Limits
from mlflow_adk_eval.agents.recordings import Recording, invocation_of, load_recording
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.errors import EvalSetError, UsageError
from mlflow_adk_eval.evalset.conversation import Conversation, EvalSetResult, parse_result
from mlflow_adk_eval.evalset.files import dump, write_eval_set
from mlflow_adk_eval.evalset.models import Content, FunctionCall, IntermediateData, Invocation
from tests.kit import call, case, cases, message, turn, turn_json
from tests.strategies import invocations

TURN = turn_json("hi", "yes")


def answers(recording: Recording) -> dict[str, list[list[str]]]:
    return {eval_id: [[found.final_text for found in played.actual] for played in runs] for eval_id, runs in recording.runs.items()}


def result_of(*entries: dict[str, Any]) -> dict[str, Any]:
    """A result file as ADK writes it."""
    return {
        "eval_set_result_id": "app_set_1",
        "eval_set_id": "set",
        "eval_case_results": [{"final_eval_status": 1} | entry for entry in entries],
    }


def called(name: str, args: Any) -> Invocation:
    """A turn with a call that no file was read for."""
    calls = IntermediateData(tool_uses=(FunctionCall.model_construct(name=name, args=args),))
    return turn("done").model_copy(update={"intermediate_data": calls})


def judged(*turns: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"actual_invocation": found, "expected_invocation": TURN, "eval_metric_results": []} for found in turns]


def test_an_eval_set_holds_actuals(tmp_path: Path) -> None:
    eval_set = cases(case("a", turn("one"), turn("two")), case("b", turn("three"), final_session_state={"x": 1}))
    write_eval_set(eval_set, tmp_path / "actual.evalset.json")
    for recorded in (eval_set, tmp_path / "actual.evalset.json", str(tmp_path / "actual.evalset.json")):
        recording = load_recording(recorded)
        assert answers(recording) == {"a": [["one", "two"]], "b": [["three"]]}
        assert recording.runs["a"][0].session_state is None
        assert recording.runs["b"][0].session_state == {"x": 1}


def test_an_empty_state_in_an_eval_set_is_an_unknown_one() -> None:
    assert load_recording(cases(case("a", turn(), final_session_state={}))).runs["a"][0].session_state is None


@pytest.mark.parametrize("spelling", ["as ADK writes it", "in a string, as old versions did"])
def test_a_result_file_of_adk_holds_actuals_and_runs(tmp_path: Path, spelling: str) -> None:
    state = {"booked": True, "__llm_request_key__": "x", "temp:scratch": 1, "user:name": "Bob"}
    first = {"eval_id": "a", "session_details": {"id": "s", "state": state}, "eval_metric_result_per_invocation": judged(TURN, TURN)}
    text = json.dumps(result_of(first, {"eval_id": "a", "eval_metric_result_per_invocation": judged(TURN)}, {"eval_id": "b"}))
    (tmp_path / "r.json").write_text(text if spelling.startswith("as") else json.dumps(text))
    recording = load_recording(tmp_path / "r.json")
    assert answers(recording) == {"a": [["yes", "yes"], ["yes"]], "b": [[]]}
    assert recording.runs["a"][0].session_state == {"booked": True, "user:name": "Bob"}
    assert recording.runs["a"][1].session_state is None
    assert recording.runs["b"][0].error == "ADK recorded no turn of this case, so its inference failed; ADK does not store the reason"


def test_a_result_object_is_a_recording() -> None:
    result = parse_result(json.dumps(result_of({"eval_id": "a", "eval_metric_result_per_invocation": judged(TURN)})).encode(), "r")
    assert isinstance(result, EvalSetResult)
    assert answers(load_recording(result)) == {"a": [["yes"]]}


def test_an_eval_set_that_talks_about_results_is_an_eval_set(tmp_path: Path) -> None:
    said = turn_json('what is "eval_case_results"?')
    (tmp_path / "x.json").write_text(json.dumps({"eval_set_id": "s", "eval_cases": [{"eval_id": "a", "conversation": [said]}]}))
    assert answers(load_recording(tmp_path / "x.json")) == {"a": [[""]]}


def test_a_list_of_cases_holds_actuals_and_runs(tmp_path: Path) -> None:
    entries = [{"eval_id": "a", "invocations": [TURN]}, {"eval_id": "b", "invocations": []}, {"eval_id": "a", "invocations": [TURN, TURN]}]
    (tmp_path / "list.json").write_text(json.dumps(entries))
    assert answers(load_recording(tmp_path / "list.json")) == {"a": [["yes"], ["yes", "yes"]], "b": [[]]}


def test_a_legacy_file_holds_actuals(tmp_path: Path) -> None:
    (tmp_path / "old.test.json").write_text(json.dumps([{"query": "hi", "reference": "yes"}]))
    assert answers(load_recording(tmp_path / "old.test.json")) == {"old": [["yes"]]}


def test_a_dict_may_hold_invocations_dicts_and_texts() -> None:
    short = {"user_content": "hi", "finalResponse": "short", "intermediate_data": {"tool_uses": [{"name": "f"}]}}
    recording = load_recording({"a": [turn("object"), TURN, short, "text", {"final_response": "no user"}]})
    assert answers(recording) == {"a": [["object", "yes", "short", "text", "no user"]]}
    assert recording.runs["a"][0].actual[2].user_text == "hi"
    assert recording.runs["a"][0].actual[2].tool_calls == [call("f")]


@pytest.mark.parametrize(
    ("recorded", "wrong"),
    [
        ({"a": "text"}, "recording of case 'a': 1 problem in this eval set\n  $: found 'text'; wanted a list of invocations"),
        ({"a": {"x": 1}}, "$: found an object with x; wanted a list of invocations"),
        (
            {"a": [3]},
            "recording of case 'a', turn 1: 1 problem in this eval set\n  $: found 3; wanted a text, an Invocation or a dict of one",
        ),
        ({"a": ["x", {"final_respones": "y"}]}, "Did you mean 'final_response'?"),
        ({"a": [{"final_response": {"parts": "x"}}]}, "$.final_response.parts: found 'x'; wanted a list"),
    ],
)
def test_a_dict_that_is_no_recording_is_an_error_that_names_the_turn(recorded: Any, wrong: str) -> None:
    with pytest.raises(EvalSetError) as caught:
        load_recording(recorded)
    assert wrong in str(caught.value)


def test_several_runs_are_a_list_of_recordings_or_lists_in_a_dict() -> None:
    first, second = {"a": ["one"], "b": ["x"]}, {"a": ["two"]}
    for several in ([first, load_recording(second)], {"a": [["one"], ["two"]], "b": [["x"]]}, {"a": (["one"], ("two",)), "b": ["x"]}):
        found = load_recording(several)
        assert [run.actual[0].final_text for run in found.runs["a"]] == ["one", "two"]
        assert (found.num_runs(["a", "b"]), len(found.runs["b"])) == (2, 1)
    assert load_recording({"a": []}).runs["a"][0].actual == ()
    with pytest.raises(UsageError, match=r"or a list of such, not a list of 0"):
        load_recording([])


def test_other_things_are_refused() -> None:
    with pytest.raises(UsageError, match=r"a recording is an eval set, a result of ADK, .*, not 3"):
        load_recording(3)  # type: ignore[arg-type]
    with pytest.raises(EvalSetError, match="no such file"):
        load_recording("missing.json")


def test_what_was_recorded_is_played() -> None:
    recording = load_recording({"a": ["x"]})
    assert anyio.run(recording.converse, case("a", turn()), 0) == recording.runs["a"][0]
    assert anyio.run(recording.converse, case("a", turn()), 1) == Conversation(
        actual=(), error="the recording does not contain run 2 of case 'a'"
    )
    assert anyio.run(recording.converse, case("b", turn()), 0) == Conversation(actual=(), error="the recording does not contain case 'b'")


def test_the_users_message_is_added_where_an_answer_has_none() -> None:
    user = message("user", "asked")
    assert [invocation_of(answer, "x", user=user).user_text for answer in ("text", None, {"final_response": "dict"})] == ["asked"] * 3
    assert invocation_of({"user_content": "said"}, "x", user=user).user_text == "said"
    assert invocation_of(dump(turn(user="dumped")), "x", user=user).user_text == "dumped"


# What an agent may be


def test_a_json_file_is_a_recording_and_another_name_a_module(tmp_path: Path) -> None:
    write_eval_set(cases(case("a", turn("one"))), tmp_path / "actual.json")
    for source in (tmp_path / "actual.json", str(tmp_path / "actual.json")):
        assert isinstance(resolve_agent(source), Recording)
    with pytest.raises(UsageError, match="there is no module 'no_such_module'"):
        resolve_agent("no_such_module")


def test_objects_that_hold_recordings_are_recordings() -> None:
    assert answers(resolve_agent({"a": ["x"]})) == {"a": [["x"]]}  # type: ignore[arg-type]
    assert answers(resolve_agent(cases(case("a", turn("x"))))) == {"a": [["x"]]}  # type: ignore[arg-type]
    recording = load_recording({"a": ["x"]})
    assert resolve_agent(recording) is recording


def test_a_function_is_an_agent_of_its_name() -> None:
    def my_bot(text: str, session: Any) -> str:
        return text

    agent = resolve_agent(my_bot, limits=Limits(case_s=3))
    assert isinstance(agent, CallableAgent)
    assert (agent.name, agent.limits) == ("my_bot", Limits(case_s=3))


def test_a_callable_object_is_an_agent_named_by_its_class() -> None:
    class Bot:
        def __call__(self, text: str, session: Any) -> str:
            return text

    assert resolve_agent(Bot()).name == "Bot"


@pytest.mark.parametrize("source", [3, None, ["a"]])
def test_anything_else_is_no_agent(source: Any) -> None:
    with pytest.raises(
        UsageError, match="an agent is a module name, an ADK agent, a callable, an address, a recording or traces of MLflow"
    ):
        resolve_agent(source)


def test_a_recording_is_a_recording() -> None:
    recording = load_recording({"a": [{"final_response": "hello"}]})
    assert load_recording(recording) is recording


def test_a_sub_agent_of_what_is_no_adk_agent_is_refused() -> None:
    with pytest.raises(UsageError, match="only an ADK agent has sub-agents"):
        resolve_agent({"a": []}, agent_name="helper")


@given(invocations())
def test_a_turn_that_was_read_is_taken_as_it_is_and_any_other_as_it_would_be_read(raw: dict[str, Any]) -> None:
    read = Invocation.model_validate_json(json.dumps(raw))
    (taken,) = load_recording({"a": [read]}).runs["a"][0].actual
    plain = Invocation.model_validate(read.model_dump(mode="json", exclude_unset=True))
    assert taken == plain
    assert taken.model_dump(exclude_unset=True) == plain.model_dump(exclude_unset=True)


@pytest.mark.parametrize(
    "args", [{"rooms": ("hall", "bath")}, {"deep": [{"rooms": ("hall", "bath")}]}, {1: "hall"}, {"who": Content(role="user")}]
)
def test_arguments_that_json_has_not_are_taken_as_it_would_have_them(args: Any) -> None:
    made = called("light", args)
    (taken,) = load_recording({"a": [made]}).runs["a"][0].actual
    assert taken.tool_calls[0].args == json.loads(json.dumps(args, default=lambda model: model.model_dump(exclude_unset=True)))


def test_a_turn_that_a_file_held_is_not_copied() -> None:
    read = Invocation.model_validate_json('{"userContent": {"parts": [{"text": "hi"}]}, "new": {"field": [1, null, true]}}')
    assert load_recording({"a": [read]}).runs["a"][0].actual[0] is read


def test_arguments_nested_too_deep_for_json_stay_as_they_are() -> None:
    deep: list[Any] = []
    for _ in range(2_000):
        deep = [deep]
    made = called("light", {"deep": deep})
    assert load_recording({"a": [made]}).runs["a"][0].actual[0] is made


def test_rows_hold_what_is_recorded_or_else_what_their_cases_say(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    plain = dump(case("a", turn("one"), final_session_state={"x": 1}))
    file.write_text(json.dumps(plain))
    assert answers(load_recording(file)) == {"a": [["one"]]}
    assert load_recording(file).runs["a"][0].session_state == {"x": 1}
    runs = [{"invocations": [TURN], "session_state": {"y": 2}}, {"invocations": [], "error": "broke off"}]
    records = [{"eval_id": "a", "case": plain, "run_index": index, "recorded": run} for index, run in enumerate(runs)]
    file.write_text("\n".join(map(json.dumps, records)))
    for recorded in (file, str(file)):
        recording = load_recording(recorded)
        assert answers(recording) == {"a": [["yes"], []]}
        assert [(found.session_state, found.error) for found in recording.runs["a"]] == [({"y": 2}, ""), (None, "broke off")]
    assert isinstance(resolve_agent(str(file)), Recording)


@pytest.mark.needs("google-adk")
def test_a_folder_with_code_is_an_agent_though_rows_lie_in_it(tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text(json.dumps(dump(case("a", turn("one")))))
    assert isinstance(resolve_agent(str(tmp_path)), Recording)
    (tmp_path / "__init__.py").write_text("")
    with pytest.raises(UsageError, match=r"contains no agent; looked in .* for root_agent"):
        resolve_agent(str(tmp_path))
