"""Paying once, keeping what was paid for, and ending in bounded time, in simulated time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.judge.client import CallResult, JudgeClient
from mlflow_adk_eval.judge.protocol import Answer, NoAnswer, Refused, Unavailable
from mlflow_adk_eval.judge.setup import Budget, JudgeOptions
from mlflow_adk_eval.judge.usage import UsageTracker
from mlflow_adk_eval.results.usage import JudgeUsage
from tests.judge.answers_kit import Memory
from tests.judge.simulated import BROKEN, DOWN, NOT_THIS, Provider, all_of, between, simulated, sometimes
from tests.strategies import QUICK

OPTIONS = JudgeOptions()


class Case:
    """The calls to a provider."""

    def __init__(
        self,
        provider: Provider,
        options: JudgeOptions = OPTIONS,
        *,
        budget: Budget | None = None,
        book: Memory | None = None,
        unknown: bool = False,
    ) -> None:
        self.provider, self.options, self.budget, self.book, self.unknown = provider, options, budget, book, unknown
        self.took = 0.0

    def make(self, count: int, address: Callable[[int], str | None] = str) -> list[CallResult]:
        """Ask for so many answers at the same time."""

        async def work() -> list[CallResult]:
            self.accounts = UsageTracker(self.budget)
            self.calls = JudgeClient(self.options, self.accounts, self.book, unknown=self.unknown)
            made = await all_of(count, lambda number: self.calls.request(self.provider, address(number)))
            self.took = anyio.current_time()
            return made

        made = simulated(work)
        assert len(self.calls._limiter._out) == 0
        assert not self.calls._pending
        assert not self.calls._waiting
        return made

    @property
    def usage(self) -> Counter[str]:
        usage = self.accounts.usage((), {})
        return Counter(calls=usage.calls, failed=usage.failed_calls, reused=usage.reused, shared=usage.shared, tokens=usage.tokens)


def answered(made: list[CallResult]) -> int:
    return sum(one.answer is not None for one in made)


def failing(*errors: NoAnswer) -> Callable[[int, float], NoAnswer | None]:
    """A fault that meets the first requests, in this order."""
    return lambda number, now: errors[number] if number < len(errors) else None


def test_an_answer_says_how_long_it_took_without_waiting_for_leave_to_ask() -> None:
    case = Case(Provider(latency_s=2), JudgeOptions(max_concurrency=1))
    first, second = case.make(2)
    wanted = Answer(text="{}", input_tokens=9, output_tokens=1, latency_s=2, host="this process")
    assert [one.answer and replace(one.answer, asked_at="") for one in (first, second)] == [wanted, wanted]
    assert (case.took, case.usage) == (4, Counter(calls=2, tokens=20))
    assert case.accounts.usage((), {}).latency_s == 4


def test_what_the_ledger_holds_is_not_asked() -> None:
    kept = Answer(text="kept")
    case = Case(Provider(), book=Memory({"0": kept}))
    known, new = case.make(2)
    assert known == CallResult(answer=replace(kept, asked_in="unknown"), reused=True)
    assert not new.reused
    assert case.usage == Counter(calls=1, reused=1, tokens=10)


def test_what_another_process_paid_for_while_this_one_waited_is_not_asked() -> None:
    book = Memory()
    provider = Provider(latency_s=1)
    case = Case(provider, JudgeOptions(max_concurrency=1), book=book)
    provider.fault = lambda number, now: book.put("5", Answer(text="theirs"))
    made = case.make(10)
    assert [one.answer.text for one in made if one.answer and one.reused] == ["theirs"]
    assert len(provider.sent) == 9


def test_an_answer_is_kept_before_anything_else_happens_to_it() -> None:
    async def work() -> None:
        accounts = UsageTracker()

        class Writing(Memory):
            def put(self, address: str, answer: Answer, /) -> None:
                super().put(address, answer)
                assert answer.latency_s == 1
                assert len(calls._limiter._out) == 1
                assert accounts.usage((), {}).tokens == 0
                scope.cancel()  # whoever asked gives up at this very moment

        book = Writing()
        calls = JudgeClient(OPTIONS, accounts, book)
        with anyio.CancelScope() as scope:
            await calls.request(Provider(latency_s=1), "a")
        assert list(book) == ["a"]
        assert len(calls._limiter._out) == 0
        assert accounts.usage((), {}).tokens == 10

    simulated(work)


def test_without_an_address_nothing_is_looked_up_or_kept() -> None:
    book = Memory()
    case = Case(Provider(), book=book)
    made = case.make(3, lambda _: None)
    assert answered(made) == len(case.provider.sent) == 3
    assert not book
    assert not any(one.reused for one in made)


def test_asked_anew_an_answer_takes_the_place_of_the_kept_one() -> None:
    book = Memory({"a": Answer(text="old")})

    async def work() -> list[CallResult]:
        calls = JudgeClient(OPTIONS, UsageTracker(), book)
        return [await calls.request(Provider(), "a", may_reuse=lambda _kept: False), await calls.request(Provider(), "a")]

    new, again = simulated(work)
    assert (new.reused, again.reused) == (False, True)
    assert new.answer == book["a"] != Answer(text="old")
    assert again.answer == replace(book["a"], asked_in="unknown"), "a client without an evaluation cannot know its own"


@pytest.mark.parametrize("book", [None, Memory()], ids=["no ledger", "ledger"])
def test_the_same_request_under_way_twice_is_paid_once(book: Memory | None) -> None:
    case = Case(Provider(), book=book)
    made = case.make(60, lambda number: str(number % 3))
    assert len(case.provider.sent) == 3
    assert sum(one.reused for one in made) == case.usage["shared"] == 57
    assert case.usage["reused"] == 0, "nothing is from the ledger"
    assert {one.answer.asked_in for one in made if one.answer} == {""}
    assert answered(made) == 60


def test_a_failure_is_shared_too() -> None:
    case = Case(Provider(fault=lambda number, now: NOT_THIS))
    made = case.make(5, lambda _: "same")
    assert len(case.provider.sent) == 1
    assert set(made) == {CallResult(answer=None, error="400 the prompt is too long", final=True)}
    assert case.usage["reused"] == 0


def test_if_the_one_who_asked_gives_up_another_asks() -> None:
    provider = Provider(latency_s=5)

    async def work() -> CallResult:
        calls = JudgeClient(OPTIONS, UsageTracker())

        async def impatient() -> None:
            with anyio.move_on_after(1):
                await calls.request(provider, "a")

        async with anyio.create_task_group() as group:
            group.start_soon(impatient)
            await anyio.sleep(0.5)
            return await calls.request(provider, "a")
        raise AssertionError("a group of tasks swallows no result")

    made = simulated(work)
    assert made.answer
    assert provider.sent == [0, 1]


def test_a_judge_that_is_unavailable_is_asked_again() -> None:
    case = Case(Provider(fault=failing(BROKEN, DOWN, BROKEN)))
    [made] = case.make(1)
    assert made.answer
    assert case.usage == Counter(calls=4, failed=3, tokens=10)


@given(attempts=st.integers(1, 8))
@QUICK
def test_no_more_attempts_than_allowed(attempts: int) -> None:
    case = Case(Provider(fault=lambda number, now: BROKEN), JudgeOptions(attempts=attempts))
    [made] = case.make(1)
    assert len(case.provider.sent) == attempts
    after = f" (after {attempts} requests)" if attempts > 1 else ""
    assert made == CallResult(answer=None, error=f"500 Internal Server Error{after}")


def test_the_waits_grow_and_differ() -> None:
    def waits() -> list[float]:
        provider = Provider(latency_s=0.0, fault=lambda number, now: BROKEN)
        Case(provider, JudgeOptions(attempts=5)).make(1)
        return [after - before for before, after in zip(provider.sent, provider.sent[1:], strict=False)]

    many = [waits() for _ in range(50)]
    means = [sum(column) / len(many) for column in zip(*many, strict=True)]
    assert means == sorted(means)
    assert max(wait for one in many for wait in one[:1]) <= 0.5
    assert len({wait for one in many for wait in one}) == 200


def test_a_wait_that_was_asked_for_is_the_least() -> None:
    case = Case(Provider(fault=failing(Unavailable("500", retry_after_s=9.0))))
    [made] = case.make(1)
    assert made.answer
    assert case.provider.sent[1] >= 9


def test_no_answer_in_time_is_a_failure_like_others() -> None:
    case = Case(Provider(hangs=lambda number, now: number == 0), JudgeOptions(timeout_s=3))
    made = case.make(20)
    assert answered(made) == 20
    assert case.usage["failed"] == 1
    assert 3 <= case.took <= 4
    case = Case(Provider(hangs=lambda number, now: True), JudgeOptions(timeout_s=3, attempts=2))
    assert case.make(1) == [CallResult(answer=None, error="no answer within 3 s (after 2 requests)")]


def test_what_is_refused_is_not_asked_again() -> None:
    case = Case(Provider(fault=failing(NOT_THIS)))
    made = case.make(10)
    assert made[0] == CallResult(answer=None, error="400 the prompt is too long", final=True)
    assert answered(made) == 9
    assert len(case.provider.sent) == 10
    assert case.calls.outage == ""


def test_a_judge_that_refuses_everything_is_given_up_at_once() -> None:
    refused = Refused("401 the API key is not valid", every_request=True)
    case = Case(Provider(latency_s=1, fault=lambda number, now: refused))
    made = case.make(1000)
    assert set(made) == {CallResult(answer=None, error="401 the API key is not valid", final=True)}
    assert case.calls.outage == "401 the API key is not valid"
    assert len(case.provider.sent) == 16
    assert case.took == 0.5


def test_a_bug_in_a_judge_costs_one_vote() -> None:
    async def broken() -> Answer:
        msg = "list index out of range"
        raise IndexError(msg)

    async def work() -> list[CallResult]:
        calls = JudgeClient(OPTIONS, UsageTracker())
        return [await calls.request(broken, "a"), await calls.request(Provider(), "b")]

    lost, fine = simulated(work)
    assert lost == CallResult(answer=None, error="the judge failed with IndexError: list index out of range")
    assert fine.answer


def test_errors_hold_no_secrets_and_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "AIza-0123456789")
    error = Refused("403 no access\n  with key=AIza-0123456789 " + "x" * 5000, every_request=True)
    case = Case(Provider(fault=lambda number, now: error))
    [made] = case.make(1)
    for text in (made.error, case.calls.outage):
        assert text.startswith("403 no access with key=[GEMINI_API_KEY] x")
        assert len(text) <= 400


@given(max_calls=st.integers(1, 60), count=st.integers(1, 80), failing=st.floats(0, 0.9), most=st.integers(1, 64))
@QUICK
def test_a_budget_of_calls_is_never_exceeded(max_calls: int, count: int, failing: float, most: int) -> None:
    provider = Provider(fault=sometimes(failing, BROKEN))
    case = Case(provider, JudgeOptions(max_concurrency=most), budget=Budget(max_calls=max_calls))
    made = case.make(count)
    assert len(provider.sent) == case.usage["calls"] <= max_calls
    assert answered(made) == case.usage["calls"] - case.usage["failed"]
    undecided = [one for one in made if one.final]
    assert all("budget of" in one.error for one in undecided)
    assert len(provider.sent) == max_calls or not undecided


def test_who_waits_learns_at_once_that_the_budget_is_spent() -> None:
    case = Case(Provider(per_s=1, burst=1), budget=Budget(max_calls=8))
    made = case.make(500)
    assert case.took < 10
    assert {one.error for one in made if one.final} == {"the budget of 8 judge calls is used up"}


def test_a_budget_of_tokens_stops_new_calls_once_it_is_reached() -> None:
    case = Case(Provider(tokens=100), JudgeOptions(max_concurrency=4), budget=Budget(max_tokens=950))
    made = case.make(100)
    assert 950 <= case.usage["tokens"] < 950 + 4 * 100
    assert answered(made) == len(case.provider.sent)
    assert made[-1].final
    assert made[-1].error.startswith("the budget of 950 tokens for judges is used up")


def test_one_budget_holds_for_all_judges() -> None:
    async def work() -> list[CallResult]:
        accounts = UsageTracker(Budget(max_calls=10))
        judges = [JudgeClient(JudgeOptions(max_concurrency=1), accounts) for _ in range(2)]
        return await all_of(40, lambda number: judges[number % 2].request(Provider(), str(number)))

    made = simulated(work)
    assert answered(made) == 10
    assert sum(one.final for one in made) == 30


@pytest.mark.parametrize("hints", [True, False])
@pytest.mark.parametrize("per_s", [20, 2.5, 1 / 30])
def test_a_slow_quota_makes_a_run_slow_and_nothing_else(per_s: float, hints: bool) -> None:
    case = Case(Provider(per_s=per_s, burst=5, hints=hints), JudgeOptions(attempts=3))
    assert answered(case.make(100)) == 100
    assert case.took < 100 / per_s * 1.3


@pytest.mark.slow
def test_a_request_that_alone_is_told_to_come_back_later_is_given_up() -> None:
    poison = Provider(fault=lambda number, now: Unavailable("429 too many tokens", overloaded=True, retry_after_s=0.1))
    fine = Provider(latency_s=1)

    async def work() -> tuple[list[CallResult], str]:
        calls = JudgeClient(JudgeOptions(attempts=3), UsageTracker())
        made = await all_of(5000, lambda number: calls.request(fine if number else poison, str(number)))
        return made, calls.outage

    made, outage = simulated(work)
    assert answered(made) == 4999
    assert made[0].error.startswith("429 too many tokens (after ")
    assert not made[0].final
    assert outage == ""


ALWAYS = {
    "refused connections": Unavailable("connection refused"),
    "overload": DOWN,
    "pauses": Unavailable("429", overloaded=True, retry_after_s=2.0),
    "pauses without end": Unavailable("429", overloaded=True, retry_after_s=3600.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 40, 1000])
@pytest.mark.parametrize("error", ALWAYS.values(), ids=ALWAYS)
def test_an_outage_ends_everything_in_bounded_time(error: Unavailable, count: int) -> None:
    options = JudgeOptions(timeout_s=5, outage_s=30, attempts=50)
    case = Case(Provider(fault=lambda number, now: error), options)
    made = case.make(count)
    assert {(one.answer, one.final, one.error) for one in made} == {(None, True, case.calls.outage)}
    assert case.calls.outage.startswith("the judge returned only failures for 30 s (")
    assert case.calls.outage.endswith(f"the last: {error}")
    assert 30 <= case.took <= 36
    assert len(case.provider.sent) < 100 + 5 * count


@pytest.mark.parametrize("count", [3, 1000])
def test_a_judge_that_never_answers_is_given_up_in_bounded_time(count: int) -> None:
    case = Case(Provider(hangs=lambda number, now: True), JudgeOptions(timeout_s=5, outage_s=30))
    made = case.make(count)
    assert all(one.final for one in made)
    assert 30 <= case.took <= 30 + 2 * 5  # the last ones may be sent just before the others fail


def test_after_an_outage_nothing_is_sent() -> None:
    provider = Provider(fault=lambda number, now: BROKEN)

    async def work() -> tuple[int, CallResult]:
        calls = JudgeClient(JudgeOptions(outage_s=5), UsageTracker())
        await all_of(50, lambda number: calls.request(provider, str(number)))
        return len(provider.sent), await calls.request(provider, "later")

    before, made = simulated(work)
    assert len(provider.sent) == before
    assert made.final
    assert made.error.startswith("the judge returned only failures")


@pytest.mark.slow
@pytest.mark.parametrize("error", [BROKEN, DOWN], ids=["500", "503"])
@pytest.mark.parametrize("length", [5, 50])
def test_an_outage_that_ends_in_time_loses_nothing(error: Unavailable, length: float) -> None:
    case = Case(Provider(latency_s=0.5, fault=between(2, 2 + length, error)))
    assert answered(case.make(500)) == 500
    assert case.took < 2 + length + 35


def test_a_few_slow_answers_among_refusals_are_no_outage() -> None:
    """Two requests take 70 seconds each; all others are told to come back meanwhile."""

    class Busy(Provider):
        async def __call__(self) -> Answer:
            if self.in_flight >= 2:
                raise Unavailable("429", overloaded=True, retry_after_s=5.0)
            return await super().__call__()

    case = Case(Busy(latency_s=70))
    assert answered(case.make(10)) == 10
    assert case.took == pytest.approx(5 * 70, rel=0.3)


def test_a_request_that_always_fails_is_no_outage_while_others_are_answered() -> None:
    fine, broken = Provider(latency_s=1), Provider(fault=lambda number, now: BROKEN)

    async def work() -> tuple[list[CallResult], str]:
        calls = JudgeClient(JudgeOptions(outage_s=3, attempts=4), UsageTracker())
        made = await all_of(2000, lambda number: calls.request(fine if number else broken, str(number)))
        return made, calls.outage

    made, outage = simulated(work)
    assert answered(made) == 1999
    assert outage == ""


@given(seed=st.integers(0, 999))
@QUICK
def test_who_gives_up_leaves_nothing_behind(seed: int) -> None:
    provider = Provider(latency_s=0.5, fault=sometimes(0.3, BROKEN, seed=seed))

    async def work() -> tuple[JudgeClient, list[CallResult]]:
        calls = JudgeClient(JudgeOptions(max_concurrency=4), UsageTracker())
        with anyio.move_on_after(seed / 500):
            await all_of(40, lambda number: calls.request(provider, str(number % 30)))
        assert len(calls._limiter._out) == 0
        return calls, await all_of(8, lambda number: calls.request(provider, str(number)))

    calls, made = simulated(work)
    assert answered(made) == 8
    assert not calls._pending
    assert not calls._waiting


@pytest.mark.slow
def test_the_storm_loses_nothing() -> None:
    chance = [sometimes(0.04, BROKEN), sometimes(0.04, DOWN, seed=1), sometimes(0.02, Unavailable("connection reset"), seed=2)]
    hangs = sometimes(0.02, BROKEN, seed=3)
    provider = Provider(
        per_s=20,
        burst=20,
        fault=lambda number, now: next(filter(None, (fault(number, now) for fault in chance)), None),
        hangs=lambda number, now: hangs(number, now) is not None,
    )
    case = Case(provider, JudgeOptions(timeout_s=10))
    assert answered(case.make(1000)) == 1000
    assert case.took < 1000 * 1.12 / 20 * 1.15 + 3 * 10  # the last request may hang more than once
    assert len(provider.refused) < 0.1 * len(provider.sent)


def test_the_accounts_count_ballots() -> None:
    accounts = UsageTracker()
    accounts.count(JudgeUsage(ballots=1, calls_saved=2, votes=3))
    accounts.count(JudgeUsage(ballots=3, votes=5, dissenting_votes=2, split_ballots=1, repaired=2))
    accounts.count(JudgeUsage(ballots=2, votes=2, lone_votes=2))
    usage = accounts.usage(("gemini-2.5-flash",), {"safety_v1@1": "ab"})
    assert (usage.calls_saved, usage.ballots, usage.split_ballots, usage.votes, usage.dissenting_votes) == (2, 6, 1, 10, 2)
    assert (usage.flip_rate, usage.repaired) == (0.25, 2)
    assert (usage.models, usage.prompts) == (("gemini-2.5-flash",), {"safety_v1@1": "ab"})


def test_the_bad_luck_of_one_request_is_no_reason_to_wait_as_for_a_judge_that_is_down() -> None:
    """The last request of a run fails five times, and nobody else is asking who could show that the judge works."""

    async def work() -> tuple[CallResult, float]:
        sent = 0

        async def send() -> Answer:
            nonlocal sent
            sent += 1
            if sent <= 5:
                raise Unavailable("500")
            return Answer(text="{}")

        made = await JudgeClient(JudgeOptions(), UsageTracker()).request(send, None)
        return made, anyio.current_time()

    for _ in range(20):
        made, took = simulated(work)
        assert made.answer is not None
        assert took <= 0.5 + 1 + 2 + 4 + 8


class Abandoned(Provider):
    """A server that works on one request after the other, also on those that nobody waits for any more."""

    busy_until = 0.0

    def longest(self, number: int) -> float:
        return self.latency_s

    async def __call__(self) -> Answer:
        now, number = anyio.current_time(), len(self.sent)
        self.sent.append(now)
        self.busy_until = max(self.busy_until, now) + self.longest(number)
        await anyio.sleep(self.busy_until - now)
        return Answer(text="{}", input_tokens=9, output_tokens=1)


@pytest.mark.parametrize("provider", [Provider(latency_s=100, servers=1), Abandoned(latency_s=100)], ids=["stops", "goes on"])
def test_a_server_with_one_slot_that_nobody_knows_loses_nothing_and_is_never_overrun(provider: Provider) -> None:
    case = Case(provider, unknown=True)
    assert answered(case.make(20)) == 20
    assert (case.took, case.usage["failed"]) == (2000, 0)
    assert case.accounts.usage((), {}).latency_s == 2000  # what was waited for a slot is no latency


@given(share=st.floats(0.01, 0.95), slots=st.integers(1, 6), count=st.integers(1, 60))
@QUICK
def test_however_many_slots_a_steady_server_has_it_answers_all_in_time(share: float, slots: int, count: int) -> None:
    case = Case(Provider(latency_s=share * OPTIONS.timeout_s, servers=slots), unknown=True)
    assert answered(case.make(count)) == count
    assert case.usage["failed"] == 0


def test_a_fast_server_that_nobody_knows_is_soon_asked_as_much_as_any() -> None:
    provider = Provider(latency_s=1)
    case = Case(provider, unknown=True)
    case.make(64 * 10)
    assert provider.sent[:4] == [0, 1, 1, 2]
    assert provider.most_in_flight == 64
    assert case.took <= 16  # ten are needed with 64 in flight from the start, and 1, 2, 4, 8, 16, 32 come first


def test_a_judge_that_is_swamped_by_the_first_requests_is_asked_for_one_answer_at_a_time() -> None:
    case = Case(Provider(latency_s=100, servers=1))
    assert answered(case.make(40)) == 40
    assert case.usage["failed"] <= 15 + 3  # fifteen of the first sixteen
    assert case.calls.outage == ""


@pytest.mark.parametrize("unknown", [True, False])
@pytest.mark.parametrize("length", [300, 800])
def test_a_slow_server_that_stalls_and_goes_on_loses_nothing(length: int, unknown: bool) -> None:
    provider = Provider(latency_s=90, servers=1, hangs=lambda number, now: 500 <= now < 500 + length)
    case = Case(provider, unknown=unknown)
    assert answered(case.make(12)) == 12
    assert case.calls.outage == ""
    assert case.usage["failed"] >= 3


@pytest.mark.parametrize(("unknown", "requests"), [(True, 3), (False, 16 + 2)])
def test_a_judge_that_never_answered_has_time_for_three_requests_one_after_the_other(unknown: bool, requests: int) -> None:
    case = Case(Provider(hangs=lambda number, now: True), unknown=unknown)
    made = case.make(100)
    assert all(one.final for one in made)
    assert 3 * 120 <= case.took <= 3 * 120 + 20
    assert len(case.provider.sent) == requests
    assert case.calls.outage == (f"the judge returned only failures for 360 s ({requests} requests), the last: no answer within 120 s")


def test_a_judge_that_answered_before_has_time_for_all_attempts_of_a_request() -> None:
    case = Case(Provider(latency_s=60, hangs=lambda number, now: now >= 300), unknown=True)
    made = case.make(100)
    assert answered(made) >= 5
    assert "returned only failures for 960 s" in case.calls.outage
    end = 300 + 60 + 8 * 120
    assert end - 120 <= case.took <= end + 2 * 120


def test_a_server_that_is_gone_is_given_up_after_a_minute_though_it_was_slow_before() -> None:
    gone = Unavailable("connection refused")
    provider = Provider(latency_s=90, servers=1, hangs=lambda number, now: 400 <= now < 600, fault=between(600, math.inf, gone))
    case = Case(provider, unknown=True)
    made = case.make(40)
    assert answered(made) >= 4
    assert "returned only failures for 60 s" in case.calls.outage
    assert 660 <= case.took <= 600 + 2 * 120 + 80


def test_timeouts_say_nothing_of_a_quota() -> None:
    case = Case(Provider(hangs=lambda number, now: number < 200), JudgeOptions(timeout_s=5, outage_s=10_000))
    case.make(60)
    assert case.calls._limiter.pace.rate is None
