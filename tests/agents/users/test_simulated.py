"""A model as the user: what it says, when it ends, and what happens when it says nothing that could be used."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from mlflow_adk_eval.agents.functions import CallableAgent, Session
from mlflow_adk_eval.agents.protocol import Limits
from mlflow_adk_eval.errors import ConfigError, JudgeError, UsageError
from mlflow_adk_eval.judge.setup import JudgeSetup
from mlflow_adk_eval.testing import Answer, Refused, ScriptedJudge, Unavailable
from tests.agents.users.user_kit import ENDS, QUICK, STOP, echo, ending, evaluated, in_order, player, result, said, says, scenario
from tests.judge.providers.gemini_kit import empty_environment
from tests.kit import RESPONSE, TRAJECTORY


def never(text: str, session: Session) -> str:
    raise AssertionError


def test_a_conversation_begins_with_the_starting_prompt_and_goes_on_until_the_model_ends_it() -> None:
    user = player(says("and tomorrow?"))
    report = evaluated(user, scenario(prompt=" hi {{ plan }} </finished>\n"))
    assert said(report) == [" hi {{ plan }} </finished>\n", "and tomorrow?"]
    assert [turn.final_text for turn in result(report).actual] == ["echo  hi {{ plan }} </finished>\n", "echo and tomorrow?"]
    assert ending(report) == ("goal", "all done")
    assert len(user.requests) == 2
    assert report.passed


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (STOP, ""),
        ("</FINISHED>", ""),
        (f"\n`{STOP}`.", ""),
        (f"**{STOP}**", ""),
        (f"Thanks, bye! {STOP}", "Thanks, bye!"),
        (f"{STOP} Thanks, bye!\n", "Thanks, bye!"),
        (f"It is 5 < 6.{STOP}", "It is 5 < 6."),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_the_stop_signal_ends_the_conversation_and_text_beside_it_is_heard(text: str, kept: str, *, finished: bool) -> None:
    user = player(says("one"), says(text, finished=finished, reason="enough"), says("never said"))
    report = evaluated(user)
    assert said(report) == ["hi", "one", *([kept] if kept else [])]
    assert ending(report) == ("goal", "enough")
    assert len(user.requests) == 2


def test_a_last_message_is_heard_before_the_conversation_ends_without_another_call() -> None:
    user = player(says("Thank you!", finished=True, reason="it rains"), says("never said"))
    report = evaluated(user)
    assert said(report) == ["hi", "Thank you!"]
    assert ending(report) == ("goal", "it rains")
    assert len(user.requests) == 1


def test_a_last_message_may_be_the_last_one_that_is_allowed() -> None:
    assert ending(evaluated(player(says(f"Thank you! {STOP}", reason="it rains")), max_allowed_invocations=2)) == ("goal", "it rains")


@pytest.mark.parametrize(("limit", "turns"), [(0, 0), (1, 1), (3, 3)])
def test_the_limit_counts_the_starting_prompt(limit: int, turns: int) -> None:
    user = ScriptedJudge(lambda _: says("more"))
    report = evaluated(user, max_allowed_invocations=limit)
    assert said(report) == ["hi", "more", "more"][:turns]
    assert ending(report) == ("limit", f"max_allowed_invocations of {limit}")
    assert len(user.requests) == max(turns - 1, 0)
    assert result(report).error == ""


def test_there_are_twenty_turns_unless_the_config_says_otherwise() -> None:
    assert len(said(evaluated(ScriptedJudge(lambda _: says("more"))))) == 20


def test_without_a_limit_only_the_model_ends_it() -> None:
    report = evaluated(player(*[says(f"{number}") for number in range(30)]), max_allowed_invocations=-1)
    assert len(said(report)) == 31
    assert ending(report)[0] == "goal"


UNUSABLE = {
    "empty": (Answer(text=""), "the answer is empty"),
    "thoughts only": (Answer(text="", problem="no text"), "the answer is empty (no text)"),
    "blocked": (Answer(text="", problem="SAFETY"), "the answer is empty (SAFETY)"),
    "cut off": (Answer(text='{"reason": "so', problem="MAX_TOKENS"), "the answer was cut off"),
    "prose": (Answer(text="I would like rain."), "the answer is not JSON: "),
    "a list": (Answer(text="[]"), "the answer is a list of 0, not an object"),
    "no decision": (Answer(text='{"message": "x"}'), "finished is null, not true or false"),
    "a word": (Answer(text='{"message": "x", "finished": "no"}'), "finished is 'no', not true or false"),
    "no text": (Answer(text='{"message": 3, "finished": false}'), "the message is 3, not a text"),
    "nothing said": (says(" \n"), "the message is empty"),
    "ambiguous": (Answer(text='{"message": "x", "finished": false, "finished": true}'), "the answer is not JSON: "),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_an_answer_that_cannot_be_used_is_asked_for_again(kind: str) -> None:
    bad, _ = UNUSABLE[kind]
    user = in_order(says("one"), bad, bad, says("two"), bad)
    report = evaluated(user)
    assert said(report) == ["hi", "one", "two"]
    assert ending(report)[0] == "goal"
    assert len(user.requests) == 6


@pytest.mark.parametrize("kind", UNUSABLE)
def test_after_three_attempts_the_conversation_ends_with_an_error_and_all_its_turns(kind: str) -> None:
    bad, why = UNUSABLE[kind]
    user = in_order(says("one"), bad, bad, bad, says("never said"))
    report = evaluated(user)
    assert said(report) == ["hi", "one"]
    assert [turn.final_text for turn in result(report).actual] == ["echo hi", "echo one"]
    reason, detail = ending(report)
    assert reason == "error"
    assert detail.startswith(f"the simulated user gave no message for turn 3: {why}")
    assert detail.endswith("(3 attempts)")
    assert result(report).error == detail
    assert len(user.requests) == 4
    assert report.verdict == "undecided"


def test_a_reason_is_not_needed_and_null_is_no_message() -> None:
    report = evaluated(in_order(Answer(text='{"finished": false, "message": "one"}'), Answer(text='{"finished": true, "message": null}')))
    assert said(report) == ["hi", "one"]
    assert ending(report) == ("goal", "")


def test_a_message_may_be_in_any_language_and_fenced() -> None:
    text = json.dumps({"reason": "次", "finished": False, "message": "明日の天気は？ ☂ \ud800"})
    assert said(evaluated(player(Answer(text=f"```json\n{text}\n```"))))[1] == "明日の天気は？ ☂ ?"


@pytest.mark.parametrize("failure", [Refused("no permission", every_request=True), Unavailable("overloaded")])
def test_a_model_that_is_down_costs_the_rest_of_a_conversation_and_none_of_its_turns(failure: Exception) -> None:
    report = evaluated(player(says("one"), failure))
    assert said(report) == ["hi", "one"]
    reason, detail = ending(report)
    assert reason == "error"
    assert detail.startswith("the simulated user gave no message for turn 3: ")
    assert str(failure) in detail
    assert result(report).error == detail
    assert report.verdict == "undecided"


def test_a_model_that_is_given_up_is_asked_nothing_more_and_the_usage_says_so() -> None:
    user = in_order(says("one"), *[Refused("no permission", every_request=True)] * 9)
    report = evaluated(user, *[scenario(f"c{number}") for number in range(4)])
    assert {ending(case)[0] for case in report.cases} == {"error"}
    assert all(said(case)[0] == "hi" for case in report.cases)
    assert report.simulating is not None
    assert "no permission" in report.simulating.outage
    assert report.simulating.calls == len(user.requests) <= 5


def test_a_model_whose_code_fails_is_named_as_such() -> None:
    class Broken(ScriptedJudge):
        async def ask(self, request: Any) -> Answer:
            raise KeyError("x")

    assert ending(evaluated(Broken("so")))[1].endswith("the simulated user's model failed with KeyError: 'x'")


def test_the_time_of_a_case_runs_while_the_model_thinks() -> None:
    class Slow(ScriptedJudge):
        async def ask(self, request: Any) -> Answer:
            if len(self.requests) == 1:
                await anyio.sleep_forever()
            return await super().ask(request)

    report = evaluated(Slow(lambda _: says("one")), agent=CallableAgent(function=echo, name="fn", limits=Limits(case_s=1)))
    assert said(report) == ["hi", "one"]
    assert ending(report) == ("error", "the case took longer than its limit of 1 s")


def test_what_the_agent_fails_at_ends_the_conversation_as_an_error_of_its_own() -> None:
    def brittle(text: str, session: Session) -> str:
        if session.history:
            raise ValueError("no such room")
        return "yes"

    report = evaluated(player(says("one"), says("two")), agent=brittle)
    assert said(report) == ["hi"]
    assert ending(report) == ("error", "turn 2: ValueError: no such room")


def test_written_conversations_beside_scenarios_are_had_as_they_are_written() -> None:
    from tests.kit import case, turn

    user = player(says("one"))
    report = evaluated(user, case("w", turn("x", user="as written")), scenario("s"))
    assert [said(found) for found in report.cases] == [["as written"], ["hi", "one"]]
    assert report.cases[0].ending is None
    assert len(user.requests) == 2


# Before the agent is called


def test_a_model_without_a_key_is_refused_before_the_agent_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    empty_environment(monkeypatch)
    with pytest.raises(JudgeError, match=r"the simulated user: .*GOOGLE_API_KEY"):
        evaluated(None, agent=never)


@pytest.mark.parametrize("name", ["gemini", "llama three"])
def test_a_model_that_nobody_knows_is_refused_before_the_agent_is_called(name: str) -> None:
    with pytest.raises(UsageError, match=f"the simulated user: '{name}' is not a judge model"):
        evaluated(None, agent=never, model=name)
    with pytest.raises(UsageError, match=f"the simulated user: '{name}' is not a judge model"):
        evaluated(name, agent=never)


def test_an_object_that_is_no_judge_is_refused() -> None:
    class Half:
        async def ask(self, request: Any) -> Answer:
            raise AssertionError

    with pytest.raises(UsageError, match=r"the simulated user: .*no model, address, aclose"):
        evaluated(Half(), agent=never)
    with pytest.raises(UsageError, match="user_simulator=3"):
        evaluated(3, agent=never)


def test_settings_that_the_model_does_not_take_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    empty_environment(monkeypatch)
    monkeypatch.setenv("GEMINI_API_KEY", "x")
    with pytest.raises(ConfigError, match=r"\$.user_simulator_config.model_configuration.temprature: found a setting that") as refused:
        evaluated(None, agent=never, model_configuration={"temprature": 1})
    assert "Did you mean 'temperature'?" in str(refused.value)


def test_a_user_who_is_heard_is_refused_and_no_silent_one_takes_the_place() -> None:
    with pytest.raises(ConfigError, match=r"\$.user_simulator_config.type: found llm_audio, a speaking user; wanted llm_backed"):
        evaluated(player(), agent=never, type="llm_audio")
    assert said(evaluated(lambda scenario, turns: None, type="llm_audio")) == ["hi"]


@pytest.mark.parametrize("name", [TRAJECTORY, RESPONSE, "final_response_match_v2"])
def test_criteria_that_need_a_reference_are_refused_before_anybody_is_asked(name: str) -> None:
    user = player()
    with pytest.raises(ConfigError, match="a criterion that needs a reference conversation"):
        evaluated(user, agent=never, criteria={name: 0.5}, judges=JudgeSetup(judge=user, options=QUICK))
    assert user.requests == []


def test_the_judge_of_an_evaluation_plays_no_user() -> None:
    judge, user = ScriptedJudge("valid"), player(says("one"))
    report = evaluated(user, criteria={"per_turn_user_simulator_quality_v1": 0.5}, judges=JudgeSetup(judge=judge, options=QUICK))
    assert report.passed
    assert {request.name for request in user.requests} == {"user_simulator"}
    assert all(request.name.startswith("per_turn_user_simulator") for request in judge.requests)
    assert judge.requests


@pytest.mark.parametrize(("limit", "asked"), [(2, 0), (3, 1)])
def test_a_user_who_was_cut_off_is_not_judged_for_where_the_conversation_ended(limit: int, asked: int) -> None:
    judge = ScriptedJudge({"per_turn_user_simulator_quality_v1": "valid", "per_turn_user_simulator_stop": "invalid"})
    setup = JudgeSetup(judge=judge, options=QUICK)
    report = evaluated(
        player(says("one")), criteria={"per_turn_user_simulator_quality_v1": 1.0}, judges=setup, max_allowed_invocations=limit
    )
    assert ending(report)[0] == ("goal" if asked else "limit")
    assert len(judge.asked("per_turn_user_simulator_stop")) == asked * 3
    assert report.verdict == ("failed" if asked else "passed")


def test_the_callers_own_model_is_left_open() -> None:
    user = player(ENDS)
    evaluated(user)
    assert not user.closed


def test_a_user_who_was_not_shown_what_the_agent_sent_says_no_more() -> None:
    """What it said next would be made up. ADK's user reads the words of the agent alone, and goes on."""
    drawn = {"parts": [{"text": "Here."}, {"inline_data": {"mime_type": "image/png", "data": "aGk=", "display_name": "chart.png"}}]}
    user = player(says("Nice!"))
    report = evaluated(user, agent=lambda _text: {"final_response": {"role": "model", **drawn}})
    reason, detail = ending(report)
    assert reason == "error"
    assert detail.endswith("the simulated user's model was not shown chart.png (image/png)")
    assert user.requests == []
    assert report.verdict == "undecided"
