"""From a question to a vote: what is retried, kept, used again and paid for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from mlflow_adk_eval.judge import Answer, Budget, JudgeOptions, JudgeResponse, Refused, Request, Unavailable
from mlflow_adk_eval.judge.client import JudgeClient
from mlflow_adk_eval.judge.session import Voter
from mlflow_adk_eval.judge.usage import UsageTracker
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


class Memory(dict[str, Answer]):
    """A ledger in memory."""

    def put(self, address: str, answer: Answer, /) -> None:
        self[address] = answer


def voter(judge: Scripted, answers: Memory | None = None, budget: Budget | None = None, **more: Any) -> Voter:
    client = JudgeClient(JudgeOptions(attempts=2, outage_s=20), UsageTracker(budget), answers)
    return Voter(judge=judge, client=client, **more)


def votes(start: Callable[[], Voter], *numbers: int) -> list[JudgeResponse]:
    async def main() -> list[JudgeResponse]:
        asking = start()
        return [await asking.vote(question(), number) for number in numbers]

    return anyio.run(main)


def test_an_answer_is_a_vote() -> None:
    (response,) = votes(lambda: voter(Scripted(GOOD)), 0)
    assert [verdict.label for verdict in response.verdicts] == ["valid"]
    assert (response.model, response.input_tokens, response.output_tokens, response.reused) == ("scripted-001", 10, 2, False)


def test_an_answer_that_cannot_be_read_is_asked_for_once_more() -> None:
    judge = Scripted(BAD, GOOD)
    (response,) = votes(lambda: voter(judge), 0)
    assert response.verdicts[0].label == "valid"
    assert (response.input_tokens, response.output_tokens) == (20, 4)
    assert len({request.text for request in judge.requests}) == 2


def test_an_answer_that_stays_unreadable_is_kept_as_it_is() -> None:
    judge = Scripted(BAD)
    (response,) = votes(lambda: voter(judge), 0)
    assert (len(judge.requests), response.raw) == (2, BAD)
    assert response.verdicts[0].label is None
    assert response.verdicts[0].error.startswith("the answer is no JSON")


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
    assert (len(judge.requests), kept.raw) == (2, BAD)
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
