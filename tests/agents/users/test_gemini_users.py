"""Users that Gemini plays: the real client, and a server of ours on the loopback."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mlflow_adk_eval.judge.hosts import host_of
from mlflow_adk_eval.judge.setup import JudgeOptions, JudgeSetup
from mlflow_adk_eval.judge.user_model import SCHEMA
from mlflow_adk_eval.results.report import Report
from tests.agents.users.user_kit import STOP, ending, evaluated, result, said, says, scenario
from tests.judge.providers.gemini_kit import KEY, MODEL, with_key
from tests.judge.servers import RESET, Call, Reply, Server, gemini_answer, gemini_blocked, gemini_error, replies, serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:aiohttp.*")


def answer(message: str = "", **more: Any) -> Reply:
    return gemini_answer(says(message, **more).text)


OVER = answer(finished=True, reason="all done")


def played_with(
    monkeypatch: pytest.MonkeyPatch, handler: Callable[[Call], Reply], *cases: Any, options: JudgeOptions | None = None, **more: Any
) -> tuple[Report, Server]:
    with serving(handler) as server:
        with_key(monkeypatch, server.url)
        judges = JudgeSetup(options=options or JudgeOptions(attempts=1, timeout_s=20))
        return evaluated(more.pop("user", None), *cases, judges=judges, **more), server


def test_the_model_of_the_config_plays_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"model": "gemini-2.5-pro", "model_configuration": {"temperature": 0.5, "thinking_config": {"thinking_budget": 128}}}
    report, server = played_with(monkeypatch, replies(answer("one"), OVER), scenario(persona="EXPERT"), **settings)
    assert said(report) == ["hi", "one"]
    assert ending(report) == ("goal", "all done")
    assert [call.model for call in server.calls] == ["gemini-2.5-pro"] * 2
    first = server.calls[0]
    assert first.schema == SCHEMA
    assert first.generation["temperature"] == 0.5
    assert list(first.generation["thinkingConfig"].values()) == [128]
    assert first.instructions.startswith("You play a person")
    assert "Ask for rain, then stop." in first.text
    assert "Ask for rain, then stop." not in first.instructions
    assert report.simulating is not None
    assert (report.simulating.models, report.simulating.input_tokens, report.simulating.output_tokens) == (
        (f"gemini-2.5-pro at {host_of(server.url)}",),
        22,
        14,
    )


def test_a_model_by_name_takes_the_place_of_the_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    _, server = played_with(monkeypatch, replies(OVER), user="gemini-2.5-flash-lite", model="gemini-2.5-pro")
    assert [call.model for call in server.calls] == ["gemini-2.5-flash-lite"]


def test_without_settings_it_is_adks_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    report, server = played_with(monkeypatch, replies(OVER))
    assert [call.model for call in server.calls] == [MODEL]
    assert report.simulating is not None
    assert report.simulating.models == (f"{MODEL} at {host_of(server.url)}",)


def test_thoughts_are_neither_said_nor_do_they_end_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    thinking = gemini_answer(says("one").text, thoughts=(f"Should I say {STOP}?", says(finished=True).text))
    report, _ = played_with(monkeypatch, replies(thinking, OVER))
    assert said(report) == ["hi", "one"]


@pytest.mark.parametrize(
    "hiccup",
    [
        gemini_answer(None),
        gemini_answer("", thoughts=("hm",)),
        gemini_answer(None, thoughts=("hm",), finish="MAX_TOKENS"),
        gemini_answer(None, finish="SAFETY"),
        gemini_blocked(),
    ],
    ids=["no parts", "thoughts only", "thoughts to the end", "unsafe", "blocked"],
)
def test_an_empty_or_blocked_answer_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, hiccup: Reply) -> None:
    report, server = played_with(monkeypatch, replies(answer("one"), hiccup, hiccup, answer("two"), OVER))
    assert said(report) == ["hi", "one", "two"]
    assert len(server.calls) == 5
    assert report.passed


def test_a_prompt_that_stays_blocked_ends_the_conversation_with_what_the_provider_said(monkeypatch: pytest.MonkeyPatch) -> None:
    report, server = played_with(monkeypatch, replies(answer("one"), gemini_blocked()))
    assert said(report) == ["hi", "one"]
    assert ending(report) == (
        "error", "the simulated user gave no message for turn 3: the answer is empty (PROHIBITED_CONTENT) (3 attempts)"
    )  # fmt: skip
    assert len(server.calls) == 4


def test_a_busy_provider_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = gemini_error(503)
    report, server = played_with(monkeypatch, replies(busy, answer("one"), busy, busy, OVER), options=JudgeOptions(timeout_s=20))
    assert said(report) == ["hi", "one"]
    assert len(server.calls) == 5
    assert report.simulating is not None
    assert (report.simulating.calls, report.simulating.failed_calls) == (5, 3)


@pytest.mark.parametrize(
    ("trouble", "why"), [(gemini_error(403), "403 PERMISSION_DENIED"), (RESET, "Error")], ids=["forbidden", "broken off"]
)
def test_an_outage_in_the_middle_keeps_all_turns(monkeypatch: pytest.MonkeyPatch, trouble: Reply, why: str) -> None:
    report, _ = played_with(monkeypatch, replies(answer("one"), trouble))
    assert said(report) == ["hi", "one"]
    reason, detail = ending(report)
    assert reason == "error"
    assert detail.startswith("the simulated user gave no message for turn 3: ")
    assert why in detail
    assert KEY not in detail
    assert result(report).error == detail


def test_conversations_go_on_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(call: Call) -> Reply:
        said_so_far = call.text.count('"user":')
        return (OVER if said_so_far == 3 else answer(f"message {said_so_far}")).after(0.2)

    report, server = played_with(monkeypatch, handler, *[scenario(f"c{number}") for number in range(4)])
    assert [said(case) for case in report.cases] == [["hi", "message 1", "message 2"]] * 4
    assert server.most_in_flight > 1
    assert json.dumps(report.scores) == '{"tool_call_count_v1": 0.0}'
