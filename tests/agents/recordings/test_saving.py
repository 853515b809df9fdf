"""What an agent did, saved and scored again: the same report, whatever happened in it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents.recordings import (
    ConversationCache,
    Recording,
    conversation_of,
    dumps_recording,
    load_recording,
    recorded_run,
    recording_of_report,
)
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config.eval_config import EvalConfig, parse_config
from mlflow_adk_eval.errors import EvalSetError, UsageError
from mlflow_adk_eval.evalset.conversation import Conversation, Ending, Injection, InnerCall, Origin, RecordedRun
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, Invocation
from mlflow_adk_eval.ledger import CallCache, StartedRun
from mlflow_adk_eval.report.adk_result import result_of
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.evaluation import Options, run
from mlflow_adk_eval.runner.recordings import score
from tests.agents.environments import ERROR, injecting
from tests.agents.scripted import Script, call, llm, results, text
from tests.kit import call as tool_call
from tests.kit import case, cases, scenario, turn, turn_json
from tests.strategies import QUICK, eval_sets, invocations, json_values, objects, texts

CRITERIA = {
    "tool_trajectory_avg_score": 1,
    "response_match_score": 0.5,
    "final_session_state": {"threshold": 1, "only_where_expected": True},
    "tool_call_count_v1": 3,
}
WITHOUT_REFERENCE = {"tool_call_count_v1": 3}


def config_for(eval_set: EvalSet, **more: Any) -> EvalConfig:
    """Every criterion that can be asked of each case."""
    scenarios = [case.eval_id for case in eval_set.eval_cases if not case.conversation]  # or without a turn
    return parse_config({"criteria": CRITERIA, "case_criteria": dict.fromkeys(scenarios, WITHOUT_REFERENCE), **more}, "config")


def replayed(report: Report, path: Path) -> Report:
    """Save what the agent did, and score the file."""
    adk_eval.save_recording(report, path)
    return score(report.eval_set, path, report.config)


def assert_same(report: Report, again: Report) -> None:
    assert again.cases == report.cases
    assert (again.verdict, again.reasons, again.num_runs) == (report.verdict, report.reasons, report.num_runs)


def courses() -> st.SearchStrategy[dict[str, Any]]:
    """How conversations may go."""
    seconds = st.floats(0, 9)
    ending = st.builds(Ending, reason=st.sampled_from(("goal", "limit", "error")), detail=texts())
    injection = st.builds(
        lambda **given: Injection(**given),  # noqa: PLW0108 - else hypothesis fills in fields by their aliases, too
        invocation_index=st.integers(0, 3),
        tool=texts(),
        kind=st.sampled_from(("error", "response", "latency")),
        latency_s=seconds,
        call_index=st.none() | st.integers(0, 2),
    )
    where = {"turn": st.integers(0, 3), "after": st.integers(0, 2), "agent": texts(), "tool": texts(), "args": objects()}
    inner = st.fixed_dictionaries(where | {"unseen": st.booleans()}).map(lambda given: InnerCall(**given))
    return st.fixed_dictionaries(
        {
            "session_state": st.none() | objects(),
            "error": st.just("") | texts(),
            "unfinished": st.booleans(),
            "ending": st.none() | ending,
            "injections": st.lists(injection, max_size=2).map(tuple),
            "inner_calls": st.none() | st.lists(inner, max_size=2).map(tuple),
        }
    )


def plays() -> st.SearchStrategy[Conversation]:
    turns = st.lists(invocations().map(Invocation.model_validate), max_size=3).map(tuple)
    return st.builds(lambda actual, course: Conversation(actual=actual, **course), turns, courses())


class TestAnyConversation:
    @QUICK
    @given(st.dictionaries(texts(), st.lists(plays(), max_size=2).map(tuple), max_size=3), st.integers(1, 3), texts())
    def test_is_read_as_it_was_written(
        self, tmp_path_factory: pytest.TempPathFactory, runs: dict[str, Any], num_runs: int, word: str
    ) -> None:
        digests = dict.fromkeys(runs, f"sha256:{word}")
        origin = Origin(agent=word, agent_version=word, recorded_at=word, eval_set_id=word, eval_set_digest=word, case_digests=digests)
        recording = Recording(runs, origin=replace(origin, num_runs=max([num_runs, *map(len, runs.values())])))
        path = tmp_path_factory.getbasetemp() / "any.recording.json"
        adk_eval.save_recording(recording, path)
        assert load_recording(path) == recording

    @QUICK
    @given(eval_sets(min_cases=1), st.data())
    def test_is_judged_as_it_was_when_it_was_had(
        self, tmp_path_factory: pytest.TempPathFactory, given_set: Any, data: st.DataObject
    ) -> None:
        drawn = EvalSet.model_validate(given_set)
        decidable = case("decidable " + "".join(drawn.eval_ids), turn())  # without such a case, criteria may be refused
        eval_set = drawn.model_copy(update={"eval_cases": (*drawn.eval_cases, decidable)})
        num_runs = data.draw(st.integers(1, 2))
        had = {(eval_id, index): data.draw(_like(eval_set, eval_id)) for eval_id in eval_set.eval_ids for index in range(num_runs)}
        report = run(eval_set, _Had(had), config_for(eval_set), Options(num_runs=num_runs))
        assert_same(report, replayed(report, tmp_path_factory.getbasetemp() / "judged.recording.json"))
        assert load_recording(result_of(report)).runs == adk_eval.recording_of_report(report).runs


def _like(eval_set: EvalSet, eval_id: str) -> st.SearchStrategy[Conversation]:
    """Conversations that are often what the case asks for."""
    expected = next(case.conversation for case in eval_set.eval_cases if case.eval_id == eval_id)
    right = courses().map(lambda course: Conversation(actual=expected or (), **course))
    return right | plays()


@dataclass(frozen=True)
class _Had:
    """An agent whose conversations were thought up before."""

    had: dict[tuple[str, int], Conversation]
    name: str = "had"

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:
        return self.had[case.eval_id, run_index]


def test_every_field_of_a_conversation_is_kept() -> None:
    assert {field.name for field in fields(Conversation)} == set(RecordedRun.model_fields) - {"invocations"} | {"actual"}


# Real agents

TRIP = cases(
    case(
        "plain",
        turn("booked", tool_call("book", city="Rome"), user="book Rome"),
        turn("welcome", user="thanks"),
        final_session_state={"n": 2},
    ),
    case("fails", turn("booked", user="book Oslo"), turn("again", user="boom"), turn("never", user="more")),
    case("silent", turn("something", user="silence")),
    scenario("talk"),
    scenario("talks on"),
    scenario("breaks"),
    eval_set_id="trips",
)
FUNCTION = {"user_simulator_config": {"max_allowed_invocations": 4}}


def traveller(told: Any, turns: Sequence[Invocation]) -> str | None:
    """A user who never finds an end in every second conversation."""
    said = len(turns)
    return f"message {said}" if said < 2 or told.conversation_plan == "talk on" else None


def trips() -> EvalSet:
    """`TRIP`, with a scenario that has no end and one whose agent fails."""

    def planned(one: EvalCase) -> EvalCase:
        plans = {"talks on": "talk on", "breaks": "talk on"}
        told = one.conversation_scenario
        return (
            one
            if told is None
            else one.model_copy(
                update={"conversation_scenario": told.model_copy(update={"conversation_plan": plans.get(one.eval_id, "ask")})}
            )
        )

    return TRIP.model_copy(update={"eval_cases": tuple(map(planned, TRIP.eval_cases))})


def function(user_text: str, session: Any) -> Any:
    session.state["n"] = len(session.history) + 1
    if user_text == "boom" or (session.eval_id == "breaks" and session.history):
        raise RuntimeError("no seat left")
    if user_text == "silence":
        return None
    used = {"name": "book", "args": {"city": user_text.removeprefix("book "), "dates": (1, Decimal("2.5"))}}
    return {"final_response": "booked", "intermediate_data": {"tool_uses": [used] if user_text.startswith("book") else []}}


def book(city: str) -> dict[str, str]:
    """Book a trip."""
    return {"city": city}


def adk_agent() -> Any:
    def script(request: Any) -> Any:
        said = [content.parts[0].text for content in request.contents if content.role == "user" and content.parts[0].text][-1]
        if said in {"boom", "message 2"}:
            raise RuntimeError("the model is gone")
        if said == "silence":
            return []
        if not results(request) and said.startswith(("book", "message")):
            return [call("book", city=said.removeprefix("book "))]
        return text("booked")

    model: Script = script
    return llm(model, tools=[book])


AGENTS: dict[str, Callable[[], Any]] = {"function": lambda: function, "ADK": adk_agent}


@pytest.mark.parametrize("kind", AGENTS)
def test_a_live_run_is_scored_again_as_it_was(kind: str, tmp_path: Path) -> None:
    eval_set = trips()
    environment = {"environment_simulation_config": injecting(book=[ERROR | {"match_args": {"city": "Rome"}}])}
    config = config_for(eval_set, **FUNCTION, **environment)
    report = run(eval_set, resolve_agent(AGENTS[kind]()), config, Options(num_runs=2, user_simulator=traveller))
    by_id = {found.eval_id: found for found in report.cases}
    assert {found.eval_id for found in report.cases if found.error} == {"fails", "breaks"} | ({"talks on"} if kind == "ADK" else set())
    assert by_id["talk"].ending == Ending(reason="goal")
    assert str(by_id["breaks"].ending).startswith("error: turn ")
    if kind == "ADK":
        assert by_id["fails"].conversation.unfinished
        assert [(done.tool, done.kind) for done in by_id["plain"].injections] == [("book", "error")]
    else:
        assert by_id["talks on"].ending == Ending(reason="limit", detail="max_allowed_invocations of 4")
    assert_same(report, score(eval_set, adk_eval.recording_of_report(report), config))
    again = replayed(report, tmp_path / "trips.recording.json")
    assert_same(report, again)
    assert again.notes == ("final_session_state leaves out 2 of 3 cases (fails, silent), which do not say what it needs",)
    assert_same(again, replayed(again, tmp_path / "again.recording.json"))
    assert (tmp_path / "again.recording.json").read_bytes() == (tmp_path / "trips.recording.json").read_bytes()


def test_a_recorded_scenario_needs_nobody_to_play_its_user(tmp_path: Path) -> None:
    eval_set = cases(scenario("talk"))
    config = config_for(eval_set)
    report = run(eval_set, resolve_agent(function), config, Options(user_simulator=traveller))
    again = replayed(report, tmp_path / "talk.recording.json")
    assert again.simulating is None
    assert [len(found.actual) for found in again.cases] == [2]
    assert again.cases[0].ending == Ending(reason="goal")


def test_values_that_json_lacks_count_the_same_before_and_after(tmp_path: Path) -> None:
    def agent(user_text: str) -> Any:
        return {
            "final_response": "x",
            "intermediate_data": {"tool_uses": [{"name": "f", "args": {"pair": (1, 2), "on": date(2026, 1, 2)}}]},
        }

    eval_set = cases(case("c", turn("x", tool_call("f", pair=[1, 2], on="2026-01-02"))))
    report = run(eval_set, resolve_agent(agent), parse_config({"criteria": {"tool_trajectory_avg_score": 1}}, "config"))
    assert report.passed
    assert_same(report, replayed(report, tmp_path / "x.json"))


# Files


def one(tmp_path: Path, **played: Any) -> Path:
    recording = Recording({"c": (Conversation(**({"actual": (turn("yes"),)} | played)),)})
    adk_eval.save_recording(recording, tmp_path / "one.recording.json")
    return tmp_path / "one.recording.json"


def test_numbers_that_json_lacks_and_odd_states_are_kept(tmp_path: Path) -> None:
    args = {"low": -math.inf, "none": math.nan}
    found = load_recording(one(tmp_path, actual=(turn("x", tool_call("f", args)),), session_state={"tags": {"a"}, 1: b"\xff"})).runs["c"][0]
    assert math.isnan(found.actual[0].tool_calls[0].args["none"])  # type: ignore[index]
    assert found.actual[0].tool_calls[0].args["low"] == -math.inf  # type: ignore[index]
    assert found.session_state == {"tags": ["a"], "1": "b'\\xff'"}


def test_half_a_surrogate_pair_does_not_lose_the_rest(tmp_path: Path) -> None:
    found = load_recording(one(tmp_path, actual=(turn("x", tool_call("f", {"emoji": "\ud83d"})),))).runs["c"][0]
    assert found.actual[0].tool_calls == [tool_call("f", {"emoji": "?"})]


def test_keys_do_not_get_into_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_API_KEY", "12345678901")
    state = {"said": "my key is 12345678901", "number": 12345678901, "nan": math.nan}
    path = one(tmp_path, actual=(turn("the key 12345678901"),), session_state=state)
    assert '"12345678901' not in path.read_text()
    found = load_recording(path).runs["c"][0]
    assert found.actual[0].final_text == "the key [WEATHER_API_KEY]"
    assert found.session_state
    assert (found.session_state["said"], found.session_state["number"]) == ("my key is [WEATHER_API_KEY]", 12345678901)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere/x\.json: cannot be written: No such file"):
        adk_eval.save_recording(Recording({}), tmp_path / "nowhere" / "x.json")


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    one(tmp_path)
    path = one(tmp_path, error="broke off")
    assert load_recording(path).runs["c"][0].error == "broke off"
    assert [found.name for found in tmp_path.iterdir()] == ["one.recording.json"]


def changed(path: Path, change: Callable[[Any], Any]) -> Path:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda file: file.update(adk_eval_recording=2), "$.adk_eval_recording: found 2; wanted 1, the only format version"),
        (lambda file: file.pop("cases"), "$.cases: found nothing; wanted this required field"),
        (lambda file: file["cases"].append(file["cases"][0]), "$.cases[1].eval_id: found 'c', the same as $.cases[0].eval_id"),
        (lambda file: file["cases"][0]["runs"][0].update(eror="x"), "Did you mean 'error'?"),
        (lambda file: file["cases"][0]["runs"][0].update(ending={"reason": "gaol"}), "$.cases[0].runs[0].ending.reason: found 'gaol'"),
        (lambda file: file["cases"][0]["runs"][0].pop("invocations"), "$.cases[0].runs[0].invocations: found nothing"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, change: Callable[[Any], Any], wrong: str) -> None:
    with pytest.raises(EvalSetError) as caught:
        load_recording(changed(one(tmp_path), change))
    assert wrong in str(caught.value)


def test_an_eval_set_that_talks_about_recordings_is_an_eval_set(tmp_path: Path) -> None:
    said = turn_json('what is "adk_eval_recording": 1?')
    (tmp_path / "x.json").write_text(json.dumps({"eval_set_id": "s", "eval_cases": [{"eval_id": "a", "conversation": [said]}]}))
    assert load_recording(tmp_path / "x.json").origin is None


# What a recording is of


TWO = cases(case("a", turn("yes")), case("b", turn("yes")), eval_set_id="two")
ONLY_RESPONSES = parse_config({"criteria": {"response_match_score": 1}}, "config")


def recorded(tmp_path: Path, num_runs: int = 1) -> Path:
    report = run(TWO, resolve_agent(lambda text: "yes"), ONLY_RESPONSES, Options(num_runs=num_runs))
    adk_eval.save_recording(report, tmp_path / "two.recording.json")
    return tmp_path / "two.recording.json"


def test_the_file_says_whose_conversations_it_holds(tmp_path: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    file = json.loads(recorded(tmp_path, num_runs=2).read_text())
    assert (file["adk_eval_recording"], file["eval_set_id"], file["agent"], file["num_runs"]) == (1, "two", "<lambda>", 2)
    assert before <= datetime.fromisoformat(file["recorded_at"]) <= datetime.now(UTC)
    assert [(one["eval_id"], len(one["runs"])) for one in file["cases"]] == [("a", 2), ("b", 2)]


def test_a_case_that_was_changed_since_is_named(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    other = TWO.model_copy(update={"eval_cases": (TWO.eval_cases[0], case("b", turn("no")))})
    report = score(other, path, ONLY_RESPONSES)
    assert report.notes == ("1 case has changed since the recording: b",)
    assert report.verdict == "failed"
    assert score(TWO, path, ONLY_RESPONSES).notes == ()
    assert score(TWO.model_copy(update={"eval_cases": TWO.eval_cases[:1]}), path, ONLY_RESPONSES).notes == (
        "1 recorded case is not in the eval set: b",
    )


def test_a_run_that_was_taken_out_of_a_file_is_missed(tmp_path: Path) -> None:
    path = changed(recorded(tmp_path, num_runs=2), lambda file: [one["runs"].pop() for one in file["cases"]])
    report = score(TWO, path, ONLY_RESPONSES)
    assert (report.verdict, report.num_runs) == ("undecided", 2)
    assert report.reasons[0] == "a (run 2): the agent did not finish: the recording does not contain run 2 of case 'a'"


def test_a_case_that_was_taken_out_of_a_file_is_missed(tmp_path: Path) -> None:
    report = score(TWO, changed(recorded(tmp_path), lambda file: file["cases"].pop()), ONLY_RESPONSES)
    assert report.reasons[0] == "b: the agent did not finish: the recording does not contain case 'b'"


def test_a_recording_of_a_recording_is_of_the_same_agent(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    origin = load_recording(path).origin
    changed_set = cases(case("a", turn("no")), case("b", turn("yes")), eval_set_id="three")
    again = recording_of_report(score(changed_set, path, ONLY_RESPONSES))
    assert again.origin == origin


# Without judging


def agent_of_two(user_text: str, session: Any) -> str:
    if session.eval_id == "b":
        raise RuntimeError("no")
    return "yes"


TIMES = ("creation_timestamp", "duration", "model_duration", "tool_duration")


def without_time(recording: Recording) -> Any:
    return {
        eval_id: [replace(one, actual=tuple(found.model_copy(update=dict.fromkeys(TIMES)) for found in one.actual)) for one in runs]
        for eval_id, runs in recording.runs.items()
    }


def test_recording_alone_is_what_an_evaluation_would_record() -> None:
    seen: list[tuple[int, int]] = []
    recording = adk_eval.record(TWO, agent_of_two, num_runs=2, agent_version="v7", progress=lambda done, of: seen.append((done, of)))
    report = run(TWO, resolve_agent(agent_of_two), ONLY_RESPONSES, Options(num_runs=2))
    assert without_time(recording) == without_time(adk_eval.recording_of_report(report))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert recording.origin
    expected = adk_eval.recording_of_report(report).origin
    assert expected
    assert recording.origin == replace(expected, agent_version="v7", recorded_at=recording.origin.recorded_at)


def test_criteria_and_their_judges_do_not_matter_to_a_recording() -> None:
    config = {"criteria": {"tool_trajectory_avg_score": 1, "safety_v1": 1}}
    assert not adk_eval.record(cases(scenario("talk")), agent_of_two, config, user_simulator=traveller).runs["talk"][0].error


def test_ids_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(UsageError, match="several cases with the same id"):
        adk_eval.record(cases(case("a", turn()), case("a", turn())), agent_of_two)


def test_an_interruption_keeps_what_was_recorded(tmp_path: Path) -> None:
    async def agent(user_text: str, session: Any) -> str:
        if session.eval_id == "b":
            raise KeyboardInterrupt
        return "yes"

    with pytest.raises(KeyboardInterrupt):
        adk_eval.record(TWO, agent, concurrency=1, save_to=tmp_path / "part.json")
    found = load_recording(tmp_path / "part.json").runs
    assert [turn.final_text for turn in found["a"][0].actual] == ["yes"]
    assert found["b"] == (Conversation(actual=(), error="the recording was interrupted before this conversation ended"),)


# What a ledger keeps


def kept_in(path: Path) -> tuple[CallCache, ConversationCache]:
    ledger = CallCache(path)
    about: dict[str, Any] = dict.fromkeys(("eval_set_digest", "config_digest", "agent_name", "agent_version"), "x")
    ledger.begin(StartedRun(run_id="run", started_at=datetime.now(UTC), **about))
    return ledger, ConversationCache(ledger, "run", "agent", ONLY_RESPONSES)


def test_a_ledger_keeps_endings_injections_and_states(tmp_path: Path) -> None:
    injection = Injection(invocation_index=0, tool="f", kind="latency", latency_s=2, call_index=1)
    ending = Ending(reason="limit", detail="max_allowed_invocations of 2")
    played = Conversation(actual=(turn("x"),), session_state={"n": [1, None]}, unfinished=True, ending=ending, injections=(injection,))
    ledger, kept = kept_in(tmp_path / "ledger.sqlite")
    with ledger:
        kept.keep(scenario("s"), 1, played)
        assert kept.get(scenario("s"), 1) == played
        assert kept.get(scenario("s"), 0) is None


def test_a_conversation_that_another_version_kept_is_had_again(tmp_path: Path) -> None:
    ledger, kept = kept_in(tmp_path / "ledger.sqlite")
    with ledger:
        ledger.keep_conversation("run", kept._key(scenario("s"), 0), b'{"actual": [], "error": ""}')
        assert kept.get(scenario("s"), 0) is None


@QUICK
@given(st.dictionaries(texts(), json_values()))
def test_a_state_that_is_json_is_kept_as_it_is(state: dict[str, Any]) -> None:
    played = Conversation(actual=(), session_state=state)
    assert conversation_of(recorded_run(played)) == played


def test_dumping_what_has_no_origin_names_no_agent() -> None:
    assert json.loads(dumps_recording(Recording({}))) == {"adk_eval_recording": 1, "num_runs": 1, "cases": []}
