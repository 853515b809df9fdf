"""Functions as agents whose tools are replayed: the same answers, errors, states and durations, and no tool is called."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.agents.functions import CallableAgent, Session
from mlflow_adk_eval.agents.recordings import dumps_recording, load_recording, recording_of_report
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.errors import EvalSetError, UsageError
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.evaluation import Options, run
from mlflow_adk_eval.runner.recordings import record
from tests.agents.scripted import case_of
from tests.strategies import QUICK

_CONFIG = {"criteria": {"tool_trajectory_avg_score": 0.0}}
Calls = Sequence[tuple[str, Any]]


class Desk:
    """Tools whose every answer is another one, and how often they were really called."""

    def __init__(self) -> None:
        self.called = Counter[str]()
        self.lock = threading.Lock()

    def find(self, city: Any = None, request_id: str = "") -> Any:
        """A sync tool; its answers are numbers, texts, lists and nothing."""
        with self.lock:
            self.called["find"] += 1
            number = self.called["find"]
        return [number, f"{city} {number}", [city, number], {"result": number}, None][number % 5]

    async def book(self, city: Any = None) -> dict[str, Any]:
        """An async tool that fails now and then, with an error of a library."""
        self.called["book"] += 1
        if self.called["book"] % 3 == 0:
            raise sqlite3.OperationalError(f"{city} is locked")
        return {"booked": city, "number": self.called["book"]}

    def agent(self, script: Callable[[str], Calls], ids: str = "") -> CallableAgent:
        async def travel(text: str, session: Session) -> str:
            find, book = session.tool(self.find, name="find"), session.tool(self.book, name="book")

            def noted(city: str) -> None:
                """Change the session's state."""
                self.called["note"] += 1
                session.state.setdefault("cities", []).append(f"{city} {self.called['note']}")

            note = session.tool(noted, name="note")
            said: list[Any] = []
            for name, value in script(text):
                if name == "find":
                    said.append(find(value, request_id=f"{ids}{text}") if ids else find(value))
                elif name == "note":
                    note(value)
                else:
                    try:
                        said.append(await book(value))
                    except sqlite3.OperationalError as error:
                        said.append(f"{type(error).__name__}: {error}")
            return repr(said)

        return CallableAgent(function=travel, name="travel")


def had(agent: CallableAgent, texts: Sequence[str], *, ids: Sequence[str] = ("c1",), ignore: Sequence[str] = (), **options: Any) -> Report:
    cases = tuple(case_of(*texts).model_copy(update={"eval_id": name}) for name in ids)
    config = parse_config(_CONFIG | {"replay": {"ignore": list(ignore)}}, "config")
    return run(EvalSet(eval_set_id="s", eval_cases=cases), agent, config, Options(**options))


def told(report: Report) -> list[Any]:
    return [
        (
            case.eval_id,
            case.run_index,
            [
                (turn.final_text, [call.args for call in turn.tool_calls], [one.response for one in turn.tool_responses])
                for turn in case.actual
            ],
            case.conversation.session_state,
            case.error,
        )
        for case in report.cases
    ]


_VALUES = st.sampled_from(["Rome", 3, 3.0, True, None, {"a": [1, {"b": "x"}]}, ["y"]])
_CALLS = st.lists(st.tuples(st.sampled_from(["find", "book", "note"]), _VALUES), max_size=6)


@QUICK
@given(turns=st.lists(_CALLS, min_size=1, max_size=3), runs=st.integers(1, 3), concurrency=st.integers(1, 16))
def test_whatever_is_called_answers_as_it_did(turns: list[Calls], runs: int, concurrency: int) -> None:
    texts = [str(number) for number in range(len(turns))]
    ids = [f"c{number}" for number in range(3)]
    desk, away = Desk(), Desk()
    live = had(desk.agent(lambda text: turns[int(text)]), texts, ids=ids, num_runs=runs, record=True)
    if not sum(desk.called.values()):
        return
    again = load_recording(recording_of_report(live))
    replayed = had(away.agent(lambda text: turns[int(text)]), texts, ids=ids, num_runs=runs, replay=again, concurrency=concurrency)
    assert told(replayed) == told(live)
    assert not away.called
    assert live.world
    assert replayed.world
    assert replayed.world.digest == live.world.digest


@QUICK
@given(calls=_CALLS.filter(bool), order=st.randoms(use_true_random=False))
def test_in_another_order_a_call_has_the_answers_of_the_same_calls(calls: list[tuple[str, Any]], order: Any) -> None:
    desk, away = Desk(), Desk()
    live = had(desk.agent(lambda _: calls), ["go"], record=True)
    shuffled = list(calls)
    order.shuffle(shuffled)
    replayed = had(away.agent(lambda _: shuffled), ["go"], replay=recording_of_report(live))
    for report in (live, replayed):
        assert report.cases[0].error == ""
    before, after = (
        Counter(f"{call.name} {call.args} {answer and answer.response}" for call, answer in report.cases[0].actual[0].answered_calls())
        for report in (live, replayed)
    )
    assert before == after
    assert not away.called


def test_the_place_in_the_conversation_decides_between_answers() -> None:
    desk, away = Desk(), Desk()
    live = had(desk.agent(lambda text: [("find", "Rome")] * (2 if text == "0" else 1)), ["0", "1", "2"], record=True)
    replayed = had(away.agent(lambda text: [("find", "Rome")] if text == "2" else []), ["0", "1", "2"], replay=recording_of_report(live))
    assert replayed.cases[0].actual[2].final_text == live.cases[0].actual[2].final_text
    more = had(away.agent(lambda text: [("find", "Rome")] * 3 if text == "2" else []), ["0", "1", "2"], replay=recording_of_report(live))
    assert more.cases[0].actual[2].final_text == "[None, None, None]"  # never what was answered before
    early = had(away.agent(lambda text: [("find", "Rome")] * 5 if text == "0" else []), ["0", "1", "2"], replay=recording_of_report(live))
    assert early.cases[0].actual[0].final_text == "['Rome 1', ['Rome', 2], {'result': 3}, None, None]"
    assert not away.called


def test_a_call_that_was_never_recorded_is_an_error_whatever_the_agent_makes_of_it() -> None:
    desk, away = Desk(), Desk()
    live = had(desk.agent(lambda _: [("find", {"to": "Rome", "day": 1})]), ["go"], ids=["c1", "c2"], record=True)

    async def careless(_: str, session: Session) -> str:
        try:
            return str(session.tool(away.find, name="find")({"to": "Rome", "day": 2}))
        except Exception:  # noqa: BLE001 - that is what careless is
            return "all is well"

    found = had(CallableAgent(function=careless, name="careless"), ["go", "on"], replay=recording_of_report(live)).cases[0]
    assert found.error == (
        'turn 1: find({"city": {"to": "Rome", "day": 2}}) was never recorded; the nearest recording differs in $.city.day'
    )
    assert [turn.final_text for turn in found.actual] == ["all is well"]
    assert found.conversation.unfinished
    other = had(desk.agent(lambda _: [("book", "Rome")]), ["go"], replay=recording_of_report(live)).cases[0]
    assert other.error == 'turn 1: book({"city": "Rome"}) was never recorded, nor was any call of \'book\'; recorded are find'
    assert away.called + desk.called == {"find": 2}


def test_live_calls_what_was_never_recorded_and_adds_it() -> None:
    desk = Desk()
    live = had(desk.agent(lambda _: [("find", "Rome")]), ["go"], record=True)
    both = had(desk.agent(lambda _: [("find", "Rome"), ("find", "Oslo")]), ["go"], replay=recording_of_report(live), record=True)
    assert desk.called["find"] == 2
    assert both.world
    assert both.world.tools == "live"
    away = Desk()
    replayed = had(away.agent(lambda _: [("find", "Rome"), ("find", "Oslo")]), ["go"], replay=load_recording_of(both))
    assert told(replayed) == told(both)
    assert replayed.world
    assert replayed.world.digest == both.world.digest
    assert not away.called


def load_recording_of(report: Report) -> Any:
    """What `--replay runs:/<id>` reads."""
    from mlflow_adk_eval.agents.recordings import recording_of_set

    assert report.world
    assert report.world.recorded
    return recording_of_set(report.world.recorded)


def test_arguments_that_never_matter_are_left_out() -> None:
    desk, away = Desk(), Desk()
    live = had(desk.agent(lambda _: [("find", "Rome")], ids="a"), ["go"], record=True)
    strange = had(away.agent(lambda _: [("find", "Rome")], ids="b"), ["go"], replay=recording_of_report(live))
    assert "differs in $.request_id" in strange.cases[0].error
    same = had(away.agent(lambda _: [("find", "Rome")], ids="b"), ["go"], replay=recording_of_report(live), ignore=["$.request_id"])
    assert [turn.final_text for turn in same.cases[0].actual] == [turn.final_text for turn in live.cases[0].actual]
    assert not away.called


def test_the_time_that_calls_took_counts_and_nobody_waits() -> None:
    def slow() -> str:
        time.sleep(1)
        return "done"

    async def patient(_: str, session: Session) -> str:
        tool = session.tool(slow)
        return tool() + tool()

    agent = CallableAgent(function=patient, name="patient")
    live = had(agent, ["go"], record=True)
    began = time.perf_counter()
    turn = had(agent, ["go"], replay=recording_of_report(live)).cases[0].actual[0]
    assert time.perf_counter() - began < 2
    assert turn.tool_duration == pytest.approx(live.cases[0].actual[0].tool_duration, abs=0.01)  # recordings have milliseconds
    assert turn.tool_duration >= 1.99
    assert turn.duration >= 1.99


def test_a_recording_without_calls_answers_with_what_its_turns_show(tmp_path: Any) -> None:
    desk, away = Desk(), Desk()
    live = had(desk.agent(lambda _: [("find", "Rome"), ("find", "Rome")]), ["go"])
    file = tmp_path / "recorded.json"
    file.write_text(dumps_recording(recording_of_report(live)))
    replayed = had(away.agent(lambda _: [("find", "Rome"), ("find", "Rome")]), ["go"], replay=load_recording(file))
    assert told(replayed) == told(live)
    assert not away.called


def test_what_cannot_be_replayed_is_refused() -> None:
    desk = Desk()
    nothing = recording_of_report(had(desk.agent(lambda _: []), ["go"], record=True))
    with pytest.raises(UsageError, match="the recording holds no tool call and no answer of a model"):
        had(desk.agent(lambda _: []), ["go"], replay=nothing)
    with pytest.raises(UsageError, match="replay_models: wanted something to replay"):
        had(desk.agent(lambda _: []), ["go"], replay_models=True)
    some = recording_of_report(had(desk.agent(lambda _: [("find", "Rome")]), ["go"], record=True))
    with pytest.raises(UsageError, match="holds no answer of a model"):
        had(desk.agent(lambda _: []), ["go"], replay=some, replay_models=True)
    with pytest.raises(UsageError, match="wanted an agent that calls tools now"):
        run(EvalSet(eval_set_id="s", eval_cases=(case_of("go"),)), some, parse_config(_CONFIG, "config"), Options(replay=some))


def test_what_record_saves_is_replayed(tmp_path: Any) -> None:
    desk, away = Desk(), Desk()
    script: Callable[[str], Calls] = lambda _: [("book", "Rome")] * 3 + [("note", "Oslo")]  # noqa: E731
    record(EvalSet(eval_set_id="s", eval_cases=(case_of("go", "on"),)), desk.agent(script), _CONFIG, save_to=tmp_path / "w.json")
    replayed = had(away.agent(script), ["go", "on"], replay=load_recording(tmp_path / "w.json"))
    assert [(turn.final_text, replayed.cases[0].error) for turn in replayed.cases[0].actual] == [
        ("[{'booked': 'Rome', 'number': 1}, {'booked': 'Rome', 'number': 2}, 'OperationalError: Rome is locked']", ""),
        ("[{'booked': 'Rome', 'number': 4}, {'booked': 'Rome', 'number': 5}, 'OperationalError: Rome is locked']", ""),
    ]
    assert replayed.cases[0].conversation.session_state == {"cities": ["Oslo 1", "Oslo 2"]}
    assert not away.called


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda call: call.pop("answer"), "$.cases[0].runs[0].calls[0]: found neither an answer nor an error; wanted one of them"),
        (lambda call: call.update(answr=call.pop("answer")), "$.cases[0].runs[0].calls[0].answr"),
        (lambda call: call.update(turn=-1), "$.cases[0].runs[0].calls[0].turn"),
        (lambda call: call.pop("tool"), "$.cases[0].runs[0].calls[0].tool"),
    ],
)
def test_a_recording_that_lacks_something_is_one_error(change: Callable[[Any], Any], problem: str, tmp_path: Path) -> None:
    live = had(Desk().agent(lambda _: [("book", "Rome")]), ["go"], record=True)
    file = tmp_path / "world.json"
    text = dumps_recording(recording_of_report(live))
    whole = json.loads(text)
    change(whole["cases"][0]["runs"][0]["calls"][0])
    file.write_text(json.dumps(whole))
    with pytest.raises(EvalSetError) as caught:
        load_recording(file)
    assert problem in str(caught.value)
    file.write_text(text[: len(text) // 2])
    with pytest.raises(EvalSetError, match=r"world\.json"):
        load_recording(file)
