"""From a question to a vote: what is retried, kept, used again and paid for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from mlflow_adk_eval.judge.client import JudgeClient
from mlflow_adk_eval.judge.identity import Identity
from mlflow_adk_eval.judge.prompt import Block, load_prompt
from mlflow_adk_eval.judge.protocol import Answer, Refused, Request, Unavailable
from mlflow_adk_eval.judge.providers.resolve import resolve_judge
from mlflow_adk_eval.judge.question import Question
from mlflow_adk_eval.judge.session import Voter
from mlflow_adk_eval.judge.setup import Budget, JudgeOptions
from mlflow_adk_eval.judge.usage import UsageTracker
from mlflow_adk_eval.judge.voting import JudgeResponse
from tests.judge.answers_kit import Memory
from tests.judge.voting_kit import question

GOOD = json.dumps({"rationale": "since", "verdict": "valid"})
BAD = '{"rationale": "cut o'


class Scripted:
    """A judge that gives one answer, or failure, after the other."""

    model = "scripted"

    def __init__(self, *script: str | Answer | Exception, address: str | None = "scripted") -> None:
        self.script, self.address = list(script), address
        self.requests: list[Request] = []

    async def ask(self, request: Request, /) -> Answer:
        self.requests.append(request)
        given = self.script[min(len(self.requests), len(self.script)) - 1]
        if isinstance(given, Exception):
            raise given
        return given if isinstance(given, Answer) else Answer(text=given, model="scripted-001", input_tokens=10, output_tokens=2)

    async def aclose(self) -> None:
        return None


def voter(judge: Scripted, answers: Memory | None = None, budget: Budget | None = None, scope: str | None = None, **more: Any) -> Voter:
    client = JudgeClient(JudgeOptions(attempts=2, outage_s=20), UsageTracker(budget), answers)
    resolved = resolve_judge(judge)
    return Voter(judge=resolved, client=client, identity=Identity(resolved, answers, scope=scope), **more)


def votes(start: Callable[[], Voter], *numbers: int) -> list[JudgeResponse]:
    async def main() -> list[JudgeResponse]:
        asking = start()
        return [await asking.vote(question(), number) for number in numbers]

    return anyio.run(main)


def test_an_answer_is_a_vote() -> None:
    (response,) = votes(lambda: voter(Scripted(GOOD)), 0)
    assert [verdict.label for verdict in response.verdicts] == ["valid"]
    assert (response.model, response.input_tokens, response.output_tokens, response.reused) == ("scripted-001", 10, 2, False)


def test_a_variant_of_the_prompt_is_asked_noted_and_kept_apart() -> None:
    asked = Question(unshown=(), prompt=load_prompt("safety_v1"), blocks=(Block("response", "42"),), label_values={"safe": 1.0})
    judge, answers, prompts = Scripted('{"rationale": "", "verdict": "safe"}'), Memory(), dict[str, str]()

    async def main() -> None:
        for variant in ("standard", "repeated", "repeated"):
            await voter(judge, answers, variant=variant, prompts=prompts).vote(asked, 0)

    anyio.run(main)
    assert [request.text.endswith("is safe to show to the user.") for request in judge.requests] == [False, True]
    assert len(answers) == 2
    assert [name.endswith("+repeated") for name in prompts] == [False, True]


def test_an_answer_that_cannot_be_read_is_asked_for_once_more() -> None:
    judge = Scripted(BAD, GOOD)
    (response,) = votes(lambda: voter(judge), 0)
    assert response.verdicts[0].label == "valid"
    assert (response.input_tokens, response.output_tokens) == (20, 4)
    first, second = (request.text for request in judge.requests)
    assert second.startswith(first)
    assert second.endswith("could not be read. Answer with one JSON object that follows the given schema, and nothing else.")


def test_an_answer_that_stays_unreadable_is_kept_as_it_is() -> None:
    judge = Scripted(BAD)
    (response,) = votes(lambda: voter(judge), 0)
    assert (len(judge.requests), response.text) == (2, BAD)
    assert response.verdicts[0].label is None
    assert response.verdicts[0].error.startswith("the answer is not JSON")


def test_what_the_provider_says_of_an_empty_answer_is_said() -> None:
    (response,) = votes(lambda: voter(Scripted(Answer(text="", problem="SAFETY"))), 0)
    assert response.verdicts[0].error == "the answer is empty (SAFETY)"


@pytest.mark.parametrize(
    ("failure", "calls", "final"),
    [
        (Unavailable("503"), 2, False),
        (Refused("400"), 1, True),
        (Refused("403", every_request=True), 1, True),
        (ValueError("bug"), 1, False),
    ],
)
def test_a_request_without_an_answer_is_an_error_of_that_vote(failure: Exception, calls: int, final: bool) -> None:
    judge = Scripted(failure)
    (response,) = votes(lambda: voter(judge), 0)
    assert str(failure) in response.verdicts[0].error
    assert response.final is final
    assert len(judge.requests) == calls


def test_what_was_paid_for_is_not_asked_again() -> None:
    memory, judge = Memory(), Scripted(BAD, GOOD, GOOD)
    first = votes(lambda: voter(judge, memory), 0, 1)
    again = votes(lambda: voter(judge, memory), 0, 1)
    assert len(judge.requests) == 3
    assert [response.verdicts for response in again] == [response.verdicts for response in first]
    assert [response.reused for response in again] == [True, True]
    assert again[0].latency_s == first[0].latency_s > 0


def test_an_unreadable_answer_is_paid_for_too_and_asked_anew_only_on_demand() -> None:
    memory, judge = Memory(), Scripted(BAD, BAD, GOOD)
    votes(lambda: voter(judge, memory), 0)
    (kept,) = votes(lambda: voter(judge, memory), 0)
    assert (len(judge.requests), kept.text) == (2, BAD)
    (anew,) = votes(lambda: voter(judge, memory, rejudge_failed=True), 0)
    assert (len(judge.requests), anew.verdicts[0].label) == (3, "valid")
    (known,) = votes(lambda: voter(judge, memory), 0)
    assert (len(judge.requests), known.verdicts[0].label) == (3, "valid")


def test_failures_on_the_way_are_not_kept() -> None:
    memory, judge = Memory(), Scripted(Refused("400"), GOOD)
    votes(lambda: voter(judge, memory), 0)
    assert memory == {}
    assert votes(lambda: voter(judge, memory), 0)[0].verdicts[0].label == "valid"


def test_a_judge_without_an_address_is_known_within_its_run_only() -> None:
    memory, judge = Memory(), Scripted(GOOD, address=None)
    votes(lambda: voter(judge, memory), 0)
    assert memory == {}
    for run in ("run-1", "run-1", "run-2"):
        votes(lambda run=run: voter(judge, memory, scope=run), 0)  # type: ignore[misc]
    assert len(judge.requests) == 3


def test_each_vote_and_each_setting_has_an_address_of_its_own() -> None:
    memory, judge = Memory(), Scripted(GOOD)
    votes(lambda: voter(judge, memory), 0, 1, 2)
    votes(lambda: voter(judge, memory, settings={"temperature": 1}), 0)
    assert len(judge.requests) == len(memory) == 4


def test_a_spent_budget_is_said_and_ends_the_vote() -> None:
    judge = Scripted(GOOD)
    first, second = votes(lambda: voter(judge, budget=Budget(max_calls=1)), 0, 1)
    assert first.verdicts[0].label == "valid"
    assert second.final
    assert "1" in second.verdicts[0].error
    assert len(judge.requests) == 1


def test_what_the_first_attempt_says_counts_if_the_second_brings_nothing() -> None:
    partly = json.dumps({"item_1": {"rationale": "", "verdict": "yes"}})
    asked = question("a", "b", label_values={"yes": 1.0, "no": 0.0})

    async def main() -> JudgeResponse:
        return await voter(Scripted(partly, Refused("400"))).vote(asked, 0)

    response = anyio.run(main)
    assert [verdict.label for verdict in response.verdicts] == ["yes", None]
    assert response.final


class TestBreaker:
    """A model of which no answer can be read is not asked for ever."""

    def made(
        self, judge: Scripted, questions: int, memory: Memory | None = None, unreadable: int = 20
    ) -> tuple[list[JudgeResponse], JudgeClient]:
        client = JudgeClient(JudgeOptions(unreadable=unreadable), UsageTracker(), memory)
        resolved = resolve_judge(judge)
        asking = Voter(judge=resolved, client=client, identity=Identity(resolved))

        async def main() -> list[JudgeResponse]:
            return [await asking.vote(question(text=f"answer {number}"), vote) for number in range(questions) for vote in range(5)]

        return anyio.run(main), client

    def test_it_is_given_up_after_twenty_answers_once_a_third_question_met_it_and_the_reason_is_one_sentence(self) -> None:
        judge = Scripted("The answer is valid, I think.")
        made, client = self.made(judge, 10)
        assert len(judge.requests) == 21  # of five votes, each asked for twice
        assert all(one.verdicts[0].error for one in made)
        assert made[-1].final
        assert client.outage == (
            "21 answers of the judge in a row could not be parsed: the last is 'The answer is valid, I think.' (the answer is not JSON: "
            "Expecting value: line 1 column 1 (char 0)), wanted a JSON object whose verdict is valid or invalid; use a larger model or a "
            "server that enforces a JSON schema, or check max_output_tokens; requests saved: 40"
        )

    def test_the_limit_is_the_callers(self) -> None:
        judge = Scripted(BAD)
        self.made(judge, 10, unreadable=31)
        assert len(judge.requests) == 31

    def test_one_question_may_be_at_fault_itself(self) -> None:
        judge = Scripted(BAD)
        _, client = self.made(judge, 2, unreadable=2)
        assert (len(judge.requests), client.outage) == (20, "")

    def test_one_readable_answer_among_them_is_enough(self) -> None:
        judge = Scripted(*([BAD] * 19 + [GOOD]) * 5)
        _, client = self.made(judge, 8)
        assert client.outage == ""

    def test_what_the_provider_withholds_says_nothing_of_the_model(self) -> None:
        _, client = self.made(Scripted(Answer(text="", problem="SAFETY")), 10)
        assert client.outage == ""
        _, client = self.made(Scripted(Answer(text="", problem="no text")), 10)
        assert client.outage

    def test_what_was_kept_is_not_counted_again(self) -> None:
        memory = Memory()
        self.made(Scripted(BAD), 10, memory)
        judge = Scripted(GOOD)
        _, client = self.made(judge, 10, memory)
        assert client.outage == ""

    def test_after_a_pause_it_has_another_chance(self) -> None:
        _, client = self.made(Scripted(BAD), 10)
        client.recover()
        assert client.outage == ""
