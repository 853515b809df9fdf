"""The scripted judge, which users' own tests rely on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from mlflow_adk_eval.judge.prompt import Block, Prompt
from mlflow_adk_eval.judge.protocol import NoAnswer
from mlflow_adk_eval.judge.question import JudgedItem, Question
from mlflow_adk_eval.testing import Answer, Refused, Request, ScriptedJudge, Unavailable, answer_for

WORTH = {"yes": 1.0, "no": 0.0}
ONE = Question(
    unshown=(), prompt=Prompt(name="safety_v1", version="1", text="Judge."), blocks=(Block("response", "good day"),), label_values=WORTH
)
SEVERAL = Question(
    unshown=(),
    prompt=Prompt(name="rubric_quality_v1_extra", version="1", text="Judge."),
    blocks=(Block("response", "good day"),),
    items=(JudgedItem("polite", "Is it polite?"), JudgedItem("short", "Is it short?")),
    label_values=WORTH,
    remarks={"evidence": "where"},
)


def labels_of(question: Question, answer: Answer) -> list[str | None]:
    return [reading.label for reading in question.read(answer.text)]


def asked(judge: ScriptedJudge, *questions: Question) -> list[Any]:
    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(judge.ask(question.request({})) for question in questions), return_exceptions=True)

    return asyncio.run(ask_all())


def answered(judge: ScriptedJudge, question: Question) -> Answer:
    (answer,) = asked(judge, question)
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, Answer)
    return answer


class TestAnswerFor:
    def test_one_verdict(self) -> None:
        answer = answer_for(ONE.request({}), "no", "too rude")
        assert json.loads(answer.text) == {"rationale": "too rude", "verdict": "no"}

    def test_one_verdict_for_each(self) -> None:
        answer = answer_for(SEVERAL.request({}), "yes", "fine", {"evidence": "line 1"})
        verdict = {"rationale": "fine", "evidence": "line 1", "verdict": "yes"}
        assert json.loads(answer.text) == {"item_1": verdict, "item_2": verdict}

    @pytest.mark.parametrize("labels", [{"item_1": "no", "item_2": "yes"}, {"Is it short?": "yes", "Is it polite?": "no"}])
    def test_each_its_own(self, labels: Mapping[str, str]) -> None:
        assert labels_of(SEVERAL, answer_for(SEVERAL.request({}), labels)) == ["no", "yes"]

    def test_one_left_out(self) -> None:
        answer = answer_for(SEVERAL.request({}), {"item_1": "no", "item_2": None})
        assert [reading.error for reading in SEVERAL.read(answer.text)] == ["", "the answer omits it"]
        assert ONE.read(answer_for(ONE.request({}), {"": None}).text)[0].error

    def test_labels_that_nobody_offered(self) -> None:
        assert "not one of yes, no" in ONE.read(answer_for(ONE.request({}), "maybe").text)[0].error

    @pytest.mark.parametrize(("question", "labels"), [(SEVERAL, {"item_1": "no"}), (ONE, {"item_1": "no", "item_2": "yes"}), (ONE, {})])
    def test_labels_that_do_not_fit(self, question: Question, labels: Mapping[str, str]) -> None:
        with pytest.raises(ValueError, match=r"no label for item_2 \(Is it short\?\)|wanted one verdict; the script gives [02]"):
            answer_for(question.request({}), labels)


class TestScripts:
    def test_a_label(self) -> None:
        judge = ScriptedJudge("yes", rationale="so it is")
        assert labels_of(SEVERAL, answered(judge, SEVERAL)) == ["yes", "yes"]
        assert ONE.read(answered(judge, ONE).text)[0].rationale == "so it is"

    def test_by_criterion(self) -> None:
        judge = ScriptedJudge({"safety_v1": "no", "rubric": "no", "rubric_quality_v1": {"item_1": "yes", "Is it short?": "no"}})
        assert labels_of(ONE, answered(judge, ONE)) == ["no"]
        assert labels_of(SEVERAL, answered(judge, SEVERAL)) == ["yes", "no"]

    def test_by_a_function(self) -> None:
        judge = ScriptedJudge(lambda request: "yes" if "good" in request.blocks["response"] else "no")
        assert labels_of(ONE, answered(judge, ONE)) == ["yes"]

    def test_an_answer_in_its_own_words(self) -> None:
        given = Answer(text="I'd rather not", model="m", input_tokens=1, output_tokens=2, latency_s=3.0, problem="SAFETY")
        assert answered(ScriptedJudge({"safety_v1": given}), ONE) == given

    @pytest.mark.parametrize("error", [Unavailable("later"), Refused("never")])
    def test_an_error(self, error: NoAnswer) -> None:
        with pytest.raises(type(error)) as raised:
            answered(ScriptedJudge(lambda _request: error), ONE)
        assert raised.value is error

    def test_an_error_that_a_function_raises(self) -> None:
        def fail(_request: Request) -> str:
            raise Unavailable("later", retry_after_s=1)

        with pytest.raises(Unavailable, match="later"):
            answered(ScriptedJudge(fail), ONE)

    def test_any_error_of_the_script_shows(self) -> None:
        with pytest.raises(ZeroDivisionError):
            answered(ScriptedJudge({"safety_v1": ZeroDivisionError()}), ONE)

    @pytest.mark.parametrize(
        ("script", "message"),
        [
            ({"hallucinations_v1": "supported"}, "no entry for 'safety_v1', only for hallucinations_v1"),
            ({}, "no entry for 'safety_v1', only for nothing"),
            (lambda request: request.blocks["reply"], "KeyError: 'reply'"),
            (lambda _request: None, "the judge's script"),
        ],
    )
    def test_what_the_script_gets_wrong(self, script: Any, message: str) -> None:
        with pytest.raises(Refused) as error:
            answered(ScriptedJudge(script), ONE)
        assert message in str(error.value)


class TestRecord:
    def test_requests_in_order(self) -> None:
        judge = ScriptedJudge("yes")
        asked(judge, ONE, SEVERAL, ONE)
        assert [request.name for request in judge.requests] == ["safety_v1", "rubric_quality_v1_extra", "safety_v1"]
        assert [request.name for request in judge.asked("rubric_quality_v1")] == ["rubric_quality_v1_extra"]
        assert isinstance(judge.requests[0], Request)

    def test_latency_and_how_many_at_the_same_time(self) -> None:
        judge = ScriptedJudge("yes", latency_s=0.05)
        answers = asked(judge, ONE, ONE, ONE)
        assert judge.most_in_flight == 3
        assert [answer.latency_s for answer in answers] == [0.05] * 3

    def test_every_nth_call_fails(self) -> None:
        judge = ScriptedJudge("yes", fail_every=3)
        outcomes = asked(judge, *[ONE] * 7)
        assert [isinstance(outcome, Unavailable) for outcome in outcomes] == [False, False, True, False, False, True, False]
        assert outcomes[2].overloaded
        assert len(judge.requests) == 7

    def test_how_it_fails(self) -> None:
        failure = Refused("no more", every_request=True)
        assert asked(ScriptedJudge("yes", fail_every=1, failure=failure), ONE) == [failure]

    def test_the_same_every_time(self) -> None:
        first, second = (answered(ScriptedJudge("yes"), ONE) for _ in range(2))
        assert first == second
        assert first.input_tokens
        assert first.output_tokens

    def test_what_it_is_called(self) -> None:
        assert (ScriptedJudge("yes").model, ScriptedJudge("yes").address) == ("scripted", None)
        judge = ScriptedJudge("yes", model="mine", address="mine@1")
        assert (judge.model, judge.address, answered(judge, ONE).model) == ("mine", "mine@1", "mine")

    def test_closing(self) -> None:
        judge = ScriptedJudge("yes")
        assert not judge.closed
        asyncio.run(judge.aclose())
        assert judge.closed
