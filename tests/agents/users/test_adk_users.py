"""Simulated users beside google-adk: real agents of its, and its own simulator on the same answers of a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import anyio
import pytest

from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.testing import Answer
from tests.agents.users.user_kit import STOP, ending, evaluated, in_order, player, result, said, says, scenario

pytest.importorskip("google.adk.agents", reason="the extra [adk] is not installed")
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.models.registry import LLMRegistry
from google.genai import types

from mlflow_adk_eval.agents.adk.agent import load_adk_agent
from tests.agents.scripted import call, llm, results, team, text, user_text
from tests.agents.scripted import echo as repeats
from tests.quirks.test_quirks_in_adk import SERVICE, manager_of

pytestmark = pytest.mark.filterwarnings("ignore")  # ADK's evaluation package is experimental
BY_ADK = pytest.mark.needs("google-adk", "2.10")
MODEL = "scripted-user-for-adk"


def weather(day: str) -> dict[str, str]:
    """Return the weather of a day."""
    return {"sky": f"grey on {day}"}


def reports(request: Any) -> Any:
    found = results(request)
    return text(found[0]["sky"]) if found else [call("weather", day=user_text(request))]


def test_a_real_agent_is_led_through_a_conversation() -> None:
    user = player(says("tuesday"), says("Thanks!", finished=True, reason="both days are known"))
    report = evaluated(
        user, scenario(prompt="monday"), agent=load_adk_agent(llm(reports, tools=[weather])), include_function_calls=True
    )  # fmt: skip
    assert said(report) == ["monday", "tuesday", "Thanks!"]
    assert [turn.final_text for turn in result(report).actual][:2] == ["grey on monday", "grey on tuesday"]
    assert [tool.args for turn in result(report).actual for tool in turn.tool_calls][:2] == [{"day": "monday"}, {"day": "tuesday"}]
    assert ending(report) == ("goal", "both days are known")
    assert '"returns":{"sky":"grey on tuesday"}' in user.requests[1].blocks["conversation"]
    assert report.passed


def test_a_team_of_agents_is_one_agent_to_the_user() -> None:
    user = player(says("and now?"))
    report = evaluated(user, agent=load_adk_agent(team()))
    assert said(report) == ["hi", "and now?"]
    assert user.requests[0].blocks["conversation"].split("\n")[-1] == '{"turn":1,"final_response":"The bill is 3 francs."}'


# ADK's own simulator


class _User(BaseLlm):
    """Answers as the script of the moment says."""

    script: ClassVar[list[Sequence[types.Part] | str]] = []
    prompts: ClassVar[list[str]] = []

    @classmethod
    def supported_models(cls) -> list[str]:
        return [MODEL]

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        _User.prompts.append(llm_request.contents[0].parts[0].text)
        spoken = _User.script.pop(0)
        parts = [types.Part(text=spoken)] if isinstance(spoken, str) else list(spoken)
        yield LlmResponse(content=types.Content(role="model", parts=parts))


LLMRegistry.register(_User)


@dataclass
class InAdk:
    """A conversation led by ADK's simulator."""

    said: list[str]
    status: str
    """How it ended, in ADK's words; the name of an error that it ended in."""
    prompts: list[str]


def in_adk(*answers: Sequence[types.Part] | str, persona: str | None = None, **settings: Any) -> InAdk:
    """Have the conversation of `evaluated`: an agent that echoes."""
    return anyio.run(_led, list(answers), persona, settings)


async def _led(answers: list[Any], persona: str | None, settings: dict[str, Any]) -> InAdk:
    from google.adk.evaluation.conversation_scenarios import ConversationScenario
    from google.adk.evaluation.simulation.llm_backed_user_simulator import LlmBackedUserSimulator, LlmBackedUserSimulatorConfig
    from google.adk.events.event import Event

    _User.script, _User.prompts = answers, []
    told = ConversationScenario.model_validate(dump(scenario(persona=persona).conversation_scenario))
    config = LlmBackedUserSimulatorConfig(model=MODEL, **settings)
    simulator = LlmBackedUserSimulator(config=config, conversation_scenario=told)
    events: list[Event] = []
    heard: list[str] = []
    while True:
        try:
            found = await simulator.get_next_user_message(events)
        except RuntimeError as error:
            return InAdk(heard, f"RuntimeError: {error}", _User.prompts)
        if found.user_message is None:
            return InAdk(heard, found.status.name, _User.prompts)
        heard.append(found.user_message.parts[0].text)
        events.append(Event(author="user", content=found.user_message))
        events.append(Event(author="agent", content=types.Content(role="model", parts=[types.Part(text=f"echo {heard[-1]}")])))


@BY_ADK
@pytest.mark.parametrize(
    ("answers", "settings"),
    [
        ([STOP], {}),
        (["one", STOP], {}),
        (["one", "two", "three", "</FiNiShEd>"], {}),
        (["more"] * 9, {"max_allowed_invocations": 4}),
        (["more"] * 9, {"max_allowed_invocations": 1}),
        (["more"] * 9, {"max_allowed_invocations": 0}),
        (["more"] * 25 + [STOP], {"max_allowed_invocations": -1}),
        (["more"] * 25, {}),
    ],
)
def test_the_same_answers_make_the_same_conversation_as_in_adk(answers: list[str], settings: dict[str, Any]) -> None:
    theirs = in_adk(*answers, **settings)
    user = in_order(*map(says, answers))
    ours = evaluated(user, **settings)
    assert said(ours) == theirs.said
    assert len(user.requests) == len(theirs.prompts)
    assert ending(ours)[0] == {"STOP_SIGNAL_DETECTED": "goal", "TURN_LIMIT_REACHED": "limit"}[theirs.status]


@BY_ADK
@pytest.mark.parametrize("persona", ["EXPERT", "NOVICE", "EVALUATOR"])
def test_own_instructions_are_filled_in_as_adk_fills_them_in(persona: str) -> None:
    template = "{{ persona.description }}|{% for b in persona.behaviors %}{{ loop.index }} {% endfor %}|{{ stop_signal }}|"
    template += "{{ conversation_plan }}|{{ conversation_history }}"
    theirs = in_adk(STOP, persona=persona, custom_instructions=template).prompts[0].split("|")
    user = player()
    evaluated(user, scenario(persona=persona), custom_instructions=template)
    ours = user.requests[0].text.split("|")
    assert ours[1:3] == theirs[1:3]
    assert theirs[3] in ours[3]


@BY_ADK
@pytest.mark.parametrize("template", ["{{ stop_signal }} {{ conversation_plan }}", "no fields", "{{ stop_signal }} {% if %}"])
def test_adk_refuses_the_same_instructions(template: str) -> None:
    with pytest.raises(ValueError, match="custom_instructions must contain"):
        in_adk(STOP, custom_instructions=template)


# Q35


@BY_ADK
def test_q35_text_beside_the_stop_signal_is_heard() -> None:
    """ADK drops it: the user's last words never reach the agent."""
    assert in_adk(f"No, the blue one. {STOP}").said == ["hi"]
    assert said(evaluated(player(says(f"No, the blue one. {STOP}")))) == ["hi", "No, the blue one."]


@BY_ADK
def test_q35_running_into_the_limit_is_told_from_reaching_the_goal() -> None:
    """ADK's simulator knows, but what its service records of both is the same."""
    assert (in_adk(STOP).status, in_adk("more", max_allowed_invocations=2).status) == ("STOP_SIGNAL_DETECTED", "TURN_LIMIT_REACHED")
    reached, cut_off = evaluated(player()), evaluated(player(says("more")), max_allowed_invocations=2)
    assert (ending(reached)[0], ending(cut_off)[0]) == ("goal", "limit")


@BY_ADK
@pytest.mark.parametrize("hiccup", [[], [types.Part(text="hm", thought=True)]], ids=["empty", "thoughts only"])
def test_q35_one_empty_answer_costs_nothing(hiccup: list[types.Part]) -> None:
    """ADK raises, so that the whole case fails and what was said before is lost."""
    assert in_adk("one", hiccup, "two", STOP).status.startswith("RuntimeError: Failed to generate a user message")
    report = evaluated(in_order(says("one"), Answer(text=""), says("two"), says(STOP)))
    assert said(report) == ["hi", "one", "two"]
    assert report.passed


@BY_ADK
@pytest.mark.slow
def test_q35_in_adks_service_all_turns_are_lost_and_the_limit_passes_for_success() -> None:
    lost = anyio.run(_inferred, ["one", []], {})
    assert (lost.status.name, lost.inferences) == ("FAILURE", None)
    cut_off = anyio.run(_inferred, ["more"], {"max_allowed_invocations": 2})
    reached = anyio.run(_inferred, ["more", STOP], {})
    assert cut_off.status == reached.status
    assert reached.status.name == "SUCCESS"
    assert len(cut_off.inferences) == len(reached.inferences) == 2


async def _inferred(answers: list[Any], settings: dict[str, Any]) -> Any:
    """Return what ADK's service makes of a conversation."""
    pytest.importorskip(SERVICE, reason="google-adk[eval] is not installed")
    from google.adk.evaluation.base_eval_service import InferenceConfig, InferenceRequest
    from google.adk.evaluation.local_eval_service import LocalEvalService
    from google.adk.evaluation.simulation.llm_backed_user_simulator import LlmBackedUserSimulatorConfig
    from google.adk.evaluation.simulation.user_simulator_provider import UserSimulatorProvider

    _User.script, _User.prompts = answers, []
    config = LlmBackedUserSimulatorConfig(model=MODEL, **settings)
    service = LocalEvalService(
        root_agent=llm(repeats),
        eval_sets_manager=manager_of([scenario()], None),
        user_simulator_provider=UserSimulatorProvider(user_simulator_config=config),
    )
    request = InferenceRequest(app_name="app", eval_set_id="s", inference_config=InferenceConfig())
    (found,) = [found async for found in service.perform_inference(request)]
    return found
