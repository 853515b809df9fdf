"""What a workflow of ADK 2 answers: what it gives out as a whole."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

pytest.importorskip("google.adk.workflow", reason="workflows came with google-adk 2")

from google.adk import Workflow
from google.adk.agents import Agent, LlmAgent
from google.adk.events.event import Event
from google.adk.workflow import JoinNode
from google.genai import types
from pydantic import BaseModel

from tests.agents.scripted import case_of, finals, llm, play, text

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:google")  # of what ADK calls experimental


class Bill(BaseModel):
    total: int = 48
    currency: str = "€"


def writer() -> LlmAgent:
    return llm(lambda _: text("40 euros"), name="writer")


def correct(node_input: Any) -> str:
    return "48 euros"


def silent(node_input: Any) -> None:
    return None


def bill(node_input: Any) -> Bill:
    return Bill()


def mapping(node_input: Any) -> dict[str, int]:
    return {"total": 48}


def number(node_input: Any) -> int:
    return 48


def content(node_input: Any) -> types.Content:
    return types.Content(role="model", parts=text("48 euros"))


def message(node_input: Any) -> Event:
    return Event.model_validate({"message": "48 euros"})


def both(node_input: Any) -> Event:
    return Event.model_validate({"message": "done", "output": "48 euros"})


def step_by_step(node_input: Any) -> Generator[Any]:
    yield Event.model_validate({"message": "adding VAT"})
    yield "48 euros"


def one(node_input: Any) -> str:
    return "1"


def of(*edge: Any, name: str = "flow") -> Workflow:
    return Workflow(name=name, edges=[("START", *edge)])


ANSWERS: dict[str, tuple[Callable[[], Workflow], str]] = {
    "a function": (lambda: of(correct), "48 euros"),
    "a function after an agent": (lambda: of(writer(), correct), "48 euros"),
    "an agent after a function": (lambda: of(correct, writer()), "40 euros"),
    "a function that gives nothing, after an agent": (lambda: of(writer(), silent), "40 euros"),
    "a model of pydantic": (lambda: of(bill), '{"total": 48, "currency": "€"}'),
    "a dict": (lambda: of(mapping), '{"total": 48}'),
    "a number": (lambda: of(number), "48"),
    "a content": (lambda: of(content), "48 euros"),
    "a message": (lambda: of(message), "48 euros"),
    "a message and an output": (lambda: of(both), "48 euros"),
    "messages, then an output": (lambda: of(step_by_step), "48 euros"),
    "a workflow in a workflow": (lambda: of(of(writer(), correct, name="inner")), "48 euros"),
    "an agent after a workflow": (lambda: of(of(correct, name="inner"), writer()), "40 euros"),
    "branches that are joined": (lambda: of((one,), JoinNode(name="join")), '{"one": "1"}'),
    "an agent with a schema": (
        lambda: of(Agent(name="w", model=llm(lambda _: text('{"total":3,"currency":"F"}')).model, output_schema=Bill)),
        '{"total":3,"currency":"F"}',
    ),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_the_answer_of_a_workflow_is_what_it_gives_out(what: str) -> None:
    make, answer = ANSWERS[what]
    played = play(make(), case_of("how much?"))
    assert (played.error, finals(played)) == ("", [answer])


def test_what_an_agent_said_on_the_way_to_the_output_is_kept() -> None:
    (turn,) = play(of(writer(), correct), case_of("how much?")).actual
    assert [(event.author, event.content and event.content.text) for event in turn.events] == [("writer", "40 euros"), ("flow", None)]


def test_adk_takes_the_words_before_the_output_for_the_answer() -> None:
    from google.adk.evaluation.evaluation_generator import EvaluationGenerator

    said = Event(invocation_id="i", author="writer", content=types.Content(role="model", parts=text("40 euros")))
    given = Event(invocation_id="i", author="flow", output="48 euros")
    (turn,) = EvaluationGenerator.convert_events_to_eval_invocations([said, given])
    assert turn.final_response is not None
    assert turn.final_response.parts is not None
    assert turn.final_response.parts[0].text == "40 euros", "google-adk 2.13"


def test_branches_that_each_give_something_out_are_an_error_as_in_adk() -> None:
    played = play(Workflow(name="flow", edges=[("START", one), ("START", correct)]), case_of("how much?"))
    assert "multiple terminal nodes produced output" in played.error
    assert played.unfinished


def test_a_model_that_fails_in_a_node_ends_the_turn_whatever_comes_after_it() -> None:
    from google.adk.models.llm_response import LlmResponse

    blocked = llm(lambda _: LlmResponse(error_code="SAFETY"), name="writer")
    assert play(of(blocked, correct), case_of("how much?")).error == "turn 1: SAFETY"
