"""What Gemini itself may do to an ADK agent: block, say nothing, fail, hang or be busy, by the real client of google-genai."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.genai import types

from mlflow_adk_eval.agents.adk.agent import load_adk_agent
from mlflow_adk_eval.agents.protocol import Limits
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.results.outcomes import Errored, Scored
from mlflow_adk_eval.runner.evaluation import Options, run
from tests.agents.adk.gemini_models import ONCE, Scripts, gemini_scripts
from tests.agents.scripted import call, calls, case_of, echo, finals, llm, ping, play, results, text, user_text
from tests.judge.providers.gemini_kit import KEY, MODEL
from tests.judge.servers import CUT, HANG, RESET, Reply, gemini_answer, gemini_blocked, gemini_error
from tests.kit import RESPONSE, TRAJECTORY, case, cases, config, turn
from tests.kit import call as tool

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:google"),  # of what ADK calls experimental
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # nobody closes ADK's clients
]


@pytest.fixture
def gemini(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripts]:
    with gemini_scripts(monkeypatch) as scripts:
        yield scripts


def troubled(gemini: Scripts, reply: Reply, **settings: Any) -> LlmAgent:
    """An agent that echoes, but for a user who says *trouble*, whom `reply` is sent to."""

    def answer(request: LlmRequest) -> Any:
        return reply if user_text(request) == "trouble" else echo(request)

    return llm(answer, model=gemini.model(answer), **({"generate_content_config": ONCE} | settings))


NOTHING = {
    "prompt blocked": (gemini_blocked("SAFETY"), ["SAFETY"], {"prompt_token_count": 11}),
    "answer blocked": (gemini_answer(None, finish="SAFETY"), ["SAFETY"], {"prompt_token_count": 11, "candidates_token_count": 7}),
    "no room left": (gemini_answer(None, finish="MAX_TOKENS"), ["MAX_TOKENS"], {"prompt_token_count": 11, "candidates_token_count": 7}),
}


@pytest.mark.parametrize("why", NOTHING)
def test_a_model_that_says_nothing_is_an_invocation_that_says_why_and_ends_the_conversation(gemini: Scripts, why: str) -> None:
    reply, errors, tokens = NOTHING[why]
    played = play(troubled(gemini, reply), case_of("hi", "trouble", "still there?"))
    assert played.error.startswith(f"turn 2: {errors[0]}")
    assert played.unfinished
    assert finals(played) == ["echo hi", ""], "the conversation ends, as with an error that is raised"
    blocked = played.actual[1]
    assert blocked.final_response is None
    assert [found.partition(":")[0] for found in blocked.errors] == errors
    (event,) = blocked.events
    assert (event.author, event.content) == ("agent", None)
    assert event.usage_metadata is not None
    assert {name: event.usage_metadata.get(name) for name in tokens} == tokens, "what was paid is known"
    assert played.actual[0].errors == []


def test_an_answer_without_any_candidate_is_an_invocation_without_an_answer(gemini: Scripts) -> None:
    played = play(troubled(gemini, Reply(body={"modelVersion": "gemini-test-001"})), case_of("trouble", "hi"))
    assert (played.error, finals(played)) == ("", ["", "echo hi"])
    assert played.actual[0].final_response is None
    assert [event.model_version for event in played.actual[0].events] == ["gemini-test-001"], "it was asked"


@pytest.mark.needs("google-adk", "2.13")
def test_adk_reads_the_record_of_a_blocked_model(gemini: Scripts) -> None:
    from google.adk.evaluation.eval_case import Invocation as AdkInvocation

    (turn_,) = play(troubled(gemini, gemini_blocked("SAFETY")), case_of("trouble")).actual
    read = AdkInvocation.model_validate(dump(turn_))
    assert read.intermediate_data.invocation_events[0].usage_metadata.prompt_token_count == 11


FAILURES = {
    "bad request": (gemini_error(400, "bad key"), "turn 2: ClientError: 400 INVALID_ARGUMENT."),
    "internal": (gemini_error(500), "turn 2: ServerError: 500 INTERNAL."),
    "reset": (RESET, "turn 2: Client"),
    "cut": (CUT, "turn 2: Client"),
    "no JSON": (Reply(body=b"<html>"), "turn 2: "),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_model_that_fails_is_an_error_of_its_turn(gemini: Scripts, failure: str) -> None:
    reply, message = FAILURES[failure]
    played = play(troubled(gemini, reply), case_of("hi", "trouble", "never"))
    assert played.error.startswith(message)
    assert KEY not in played.error
    assert finals(played) == ["echo hi", ""]
    assert played.unfinished
    assert played.actual[1].user_text == "trouble"
    assert played.actual[1].app_details is not None


def test_the_time_of_a_model_that_failed_is_counted(gemini: Scripts) -> None:
    played = play(troubled(gemini, gemini_error(400).after(0.2)), case_of("trouble"))
    assert played.error.startswith("turn 1: ClientError: 400")
    assert played.actual[0].model_duration is not None
    assert played.actual[0].model_duration >= 0.19


def test_a_model_that_hangs_is_cut_off(gemini: Scripts) -> None:
    played = play(troubled(gemini, HANG), case_of("trouble"), limits=Limits(turn_s=1.0))
    assert played.error == "turn 1 took longer than its limit of 1 s"
    assert played.actual[0].user_text == "trouble"


def test_a_busy_model_is_asked_again(gemini: Scripts) -> None:
    seen: list[str] = []

    def busy(request: LlmRequest) -> Any:
        seen.append(user_text(request))
        return gemini_error(503) if len(seen) == 1 else echo(request)

    soon = types.HttpRetryOptions(attempts=2, initial_delay=0.01, jitter=0.0)
    patient = types.GenerateContentConfig(http_options=types.HttpOptions(retry_options=soon))
    played = play(llm(busy, model=gemini.model(busy), generate_content_config=patient), case_of("hi"))
    assert (played.error, finals(played), seen) == ("", ["echo hi"], ["hi", "hi"])


@pytest.mark.slow
def test_the_rest_of_a_run_is_unharmed(gemini: Scripts) -> None:
    def answer(request: LlmRequest) -> Any:
        match user_text(request):
            case "block":
                return gemini_blocked("SAFETY")
            case "fail":
                return gemini_error(400)
            case "hang":
                return HANG
            case "raise":
                return [call("broken")]
            case "silence":
                return []
        return echo(request)

    def broken() -> None:
        """Break."""
        raise OSError("disk full")

    agent = llm(answer, model=gemini.model(answer), tools=[broken], generate_content_config=ONCE)
    troubles = ("block", "fail", "hang", "raise", "silence")
    listed = [case(name, turn("echo hi"), turn("x", user=name), turn("echo bye", user="bye")) for name in troubles]
    fine = [case(f"fine {number}", turn("echo hi"), turn("echo bye", user="bye")) for number in range(3)]
    eval_set = cases(*(found for pair in zip(fine, listed[:3], strict=True) for found in pair), *listed[3:], case("last", turn("echo hi")))
    report = run(eval_set, load_adk_agent(agent, limits=Limits(turn_s=3.0)), config(RESPONSE), Options(concurrency=2))
    found = {result.eval_id: result for result in report.cases}
    silent = found.pop("silence")
    assert {eval_id: result.verdict for eval_id, result in found.items()} == {
        "fine 0": "passed",
        "block": "undecided",
        "fine 1": "passed",
        "fail": "undecided",
        "fine 2": "passed",
        "hang": "undecided",
        "raise": "undecided",
        "last": "passed",
    }
    ended = {eval_id: len(result.actual) for eval_id, result in found.items() if result.error}
    assert ended == {"block": 2, "fail": 2, "hang": 2, "raise": 2}
    assert [found[name].error.partition(":")[0] for name in ("block", "fail", "raise")] == ["turn 2"] * 3
    assert found["block"].actual[1].errors[0].startswith("SAFETY")
    assert silent.verdict in ("failed", "undecided"), "an empty answer is an error of the model in google-adk 2.13, and 0 before"
    assert not any(cell.score for cell in silent.results[0].per_invocation[1:2] if isinstance(cell, Scored))
    kinds = [type(cell) for cell in found["raise"].results[0].per_invocation]
    assert kinds == [Scored, Errored, Errored], "what was said before is judged"
    assert calls(found["raise"].actual[1]) == [("broken", {})]


def test_thoughts_and_what_they_cost_are_kept(gemini: Scripts) -> None:
    reply = gemini_answer("42", thoughts=("Let me see.",), thought_tokens=5)
    (found,) = play(troubled(gemini, reply), case_of("trouble")).actual
    assert found.final_response is not None
    assert [(part.text, part.thought) for part in found.final_response.parts or ()] == [("Let me see.", True), ("42", None)]
    assert found.events[0].usage_metadata == {"prompt_token_count": 11, "candidates_token_count": 7, "thoughts_token_count": 5}
    assert found.events[0].model_version == "gemini-test-001"


# As `adk eval` finds them: folders and modules whose models are only named

AGENT = f"""
    from google.adk.agents import LlmAgent

    def ping() -> dict:
        "Answer."
        return {{"pong": True}}

    def made(name="agent"):
        return LlmAgent(name=name, model="{MODEL}", instruction="Ping.", tools=[ping])
"""
SOURCES = {
    "root_agent": "root_agent = made()",
    "get_agent_async": "from contextlib import AsyncExitStack\nasync def get_agent_async(): return made(), AsyncExitStack()",
    "app": "from google.adk.apps.app import App\napp = App(name='shop', root_agent=made())",
    "inner": "root_agent = LlmAgent(name='root', model='none', sub_agents=[made('inner')])",
}


@pytest.mark.parametrize("by", ["folder", "module"])
@pytest.mark.parametrize("holder", SOURCES)
def test_agents_are_loaded_and_played_from_their_files(
    holder: str, by: str, gemini: Scripts, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{holder}_by_{by}"
    folder = project / "agents" / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from . import agent")
    (folder / "agent.py").write_text(dedent(AGENT) + SOURCES[holder])
    monkeypatch.syspath_prepend(project / "agents")
    gemini.scripts[MODEL] = lambda request: text("pong") if results(request) else [call("ping")]
    agent = load_adk_agent(f"agents/{name}" if by == "folder" else name, agent_name="inner" if holder == "inner" else None)
    wanted = turn("pong", tool("ping", {}))
    pinned = case("pings", wanted, wanted, session_input={"app_name": "shop", "user_id": "u", "session_id": "pinned"})
    report = run(cases(pinned), agent, config(TRAJECTORY, RESPONSE), Options(num_runs=2))
    assert report.passed, report.reasons
    assert agent.name == ("inner" if holder == "inner" else name)
    author = "inner" if holder == "inner" else "agent"
    for found in (found for result in report.cases for found in result.actual):
        assert [event.author for event in found.events] == [author] * 3
        assert found.app_details is not None
        assert found.app_details.agent_details[author].instructions.startswith("Ping.")
    asked = [len(request.body["contents"]) for request in gemini.server.calls]
    assert sorted(asked) == [1, 1, 3, 3, 5, 5, 7, 7], "the second run of a pinned session begins anew"


def test_every_run_asks_in_a_session_of_its_own(gemini: Scripts) -> None:
    asked: list[int] = []

    def count(request: LlmRequest) -> list[types.Part]:
        asked.append(len(request.contents))
        return text("ok")

    agent = load_adk_agent(llm(count, model=gemini.model(count), tools=[ping]))
    played: list[Conversation] = [play(agent, case_of("a", "b", session_id="pinned"), run_index=index) for index in range(2)]
    assert [finals(one) for one in played] == [["ok", "ok"]] * 2
    assert asked == [1, 3, 1, 3]
