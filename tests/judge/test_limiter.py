"""How many requests are in flight and how fast they follow each other, in simulated time."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.judge.limiter import START, CallOutcome, ConcurrencyLimit, Limiter, Pace
from mlflow_adk_eval.judge.protocol import Answer, NoAnswer, Unavailable
from tests.judge.simulated import DOWN, Provider, all_of, between, simulated, sometimes
from tests.strategies import QUICK


async def sent(limiter: Limiter, provider: Callable[[], object]) -> bool:
    """Send one request through the limiter. Return whether it was answered."""
    permit = await limiter.acquire()
    try:
        await provider()  # type: ignore[misc]
    except Unavailable as error:
        limiter.release(permit, CallOutcome.OVERLOAD if error.overloaded else CallOutcome.FAILURE, retry_after_s=error.retry_after_s)
        return False
    except BaseException:
        limiter.release(permit, CallOutcome.NOTHING)
        raise
    limiter.release(permit, CallOutcome.ANSWER)
    return True


async def until_answered(limiter: Limiter, provider: Callable[[], object]) -> None:
    while not await sent(limiter, provider):
        pass


def run(count: int, provider: Provider, *, most: int = 64) -> tuple[Limiter, float]:
    """Ask until so many requests are answered. Return the limiter and how long it took."""

    async def work() -> tuple[Limiter, float]:
        limiter = Limiter(most, longest_pause_s=60)
        await all_of(count, lambda _: until_answered(limiter, provider))
        assert len(limiter._out) == 0
        return limiter, anyio.current_time()

    return simulated(work)


def rounds(window: ConcurrencyLimit, shares: list[float], *, latency_s: float = 1.0, now: float = 0.0) -> float:
    """Let a window live through a round trip for each share of overloads; somebody always waits. Return the time."""
    for share in shares:
        window.crowded()
        size = window.size
        for number in range(size):
            overload = number < round(share * size)
            window.note(CallOutcome.OVERLOAD if overload else CallOutcome.ANSWER, sent_at=now, now=now + latency_s)
        now += latency_s + 1e-6
    return now


@given(
    most=st.integers(1, 40),
    count=st.integers(1, 150),
    seed=st.integers(0, 999),
    failing=st.floats(0, 0.6),
    hint=st.sampled_from([None, 0.3]),
)
@QUICK
def test_never_more_in_flight_than_allowed_and_everybody_gets_through(
    most: int, count: int, seed: int, failing: float, hint: float | None
) -> None:
    fault = sometimes(failing, Unavailable("429", overloaded=True, retry_after_s=hint), seed=seed)
    provider = Provider(latency_s=0.2, fault=fault)
    limiter, _ = run(count, provider, most=most)
    assert provider.most_in_flight <= min(most, count)
    assert 1 <= limiter.concurrency.size <= most


def test_first_come_first_served() -> None:
    order: list[int] = []

    async def work() -> None:
        limiter = Limiter(3, longest_pause_s=60)

        async def ask(number: int) -> None:
            async def provider() -> None:
                order.append(number)
                await anyio.sleep(1)

            await sent(limiter, provider)

        await all_of(50, ask)

    simulated(work)
    assert order == list(range(50))


def test_the_window_opens_within_a_few_round_trips_while_all_is_well() -> None:
    provider = Provider(latency_s=1)
    _, took = run(64 * 10, provider)
    assert provider.most_in_flight == 64
    assert took <= 12  # ten are needed with 64 in flight from the start


def test_the_window_stays_where_nobody_needs_more() -> None:
    limiter, _ = run(10, Provider())
    assert limiter.concurrency.size == START


def test_a_burst_of_refusals_is_one_signal() -> None:
    window = ConcurrencyLimit(64)
    now = rounds(window, [0, 0])
    assert window.size == 64
    for number in range(64):
        window.note(CallOutcome.OVERLOAD, sent_at=now, now=now + 0.001 * number)
    assert window.size == 32


def test_a_second_decrease_waits_for_a_second() -> None:
    window = ConcurrencyLimit(64)
    rounds(window, [1.0] * 90, latency_s=0.01)
    assert window.size == 8


@pytest.mark.parametrize(("share", "size"), [(0.0, 64), (0.25, 56), (0.5, 48), (1.0, 32)])
def test_the_decrease_is_in_proportion_to_the_share_of_overloads(share: float, size: int) -> None:
    window = ConcurrencyLimit(64)
    now = rounds(window, [0, 0])
    for number in range(8):
        window.note(CallOutcome.OVERLOAD if number < share * 8 else CallOutcome.ANSWER, sent_at=now, now=now + 1)
    assert window.size == size


def test_a_judge_that_is_sometimes_too_busy_is_not_abandoned_for_that() -> None:
    provider = Provider(latency_s=3, fault=sometimes(0.04, DOWN))
    _, took = run(3000, provider)
    assert provider.most_in_flight > 2 * START
    assert took < 3000 * 3 / START


def test_after_an_overload_the_window_opens_again() -> None:
    window = ConcurrencyLimit(64)
    now = rounds(window, [0, 0, 0.6])
    narrow = window.size
    assert narrow < 64
    now = rounds(window, [0] * 5, now=now)
    assert window.size == narrow + 5
    rounds(window, [0] * 60, now=now)
    assert window.size == 64


def test_after_an_outage_the_window_doubles_up_to_half_of_what_it_was() -> None:
    window = ConcurrencyLimit(64)
    now = rounds(window, [0, 0, *[1.0] * 9])
    assert window.size == 1
    now = rounds(window, [0] * 5, now=now)
    assert window.size == 32
    rounds(window, [0], now=now)
    assert window.size == 33


def test_a_judge_whose_queue_makes_it_slow_is_asked_less() -> None:
    provider = Provider(latency_s=1, servers=8)
    limiter, took = run(1200, provider)
    assert provider.most_in_flight == 64
    assert 8 <= limiter.concurrency.size <= 34  # three times slower is tolerated
    assert took == pytest.approx(1200 / 8, rel=0.01)  # and it never runs dry


def test_answers_that_take_longer_for_another_reason_cost_nothing() -> None:
    window = ConcurrencyLimit(64)
    now = rounds(window, [0] * 10, latency_s=1)
    now = rounds(window, [0] * 2, latency_s=5, now=now)
    assert window.size < 64
    rounds(window, [0], latency_s=5, now=now)
    assert window.size == 64


def test_a_pause_holds_for_everybody() -> None:
    provider = Provider(latency_s=0.1, fault=between(0, 0.01, Unavailable("429", overloaded=True, retry_after_s=7.0)))
    run(100, provider)
    later = [at for at in provider.sent if at > 0.001]
    assert len(later) == 100
    assert min(later) >= 7.0


def test_a_pause_is_never_longer_than_the_patience() -> None:
    provider = Provider(fault=between(0, 0.01, Unavailable("429", overloaded=True, retry_after_s=86_400)))
    _, took = run(1, provider)
    assert took == pytest.approx(60, abs=1)


@pytest.mark.parametrize(
    ("per_s", "burst", "latency_s", "hints", "refused"),
    [
        pytest.param(20, 20, 0.05, True, 0.2, id="1200 a minute"),
        pytest.param(2.5, 5, 0.05, True, 0.15, id="150 a minute"),
        pytest.param(2.5, 5, 3, True, 0.15, id="150 a minute, slow answers"),
        pytest.param(1 / 30, 1, 3, True, 0.25, id="2 a minute"),
        pytest.param(2.5, 5, 0.05, False, 0.6, id="150 a minute, without hints"),
        pytest.param(2.5, 5, 3, False, 0.6, id="150 a minute, slow answers, without hints"),
    ],
)
def test_a_quota_is_used_up_but_rarely_refuses(per_s: float, burst: float, latency_s: float, hints: bool, refused: float) -> None:
    provider = Provider(per_s=per_s, burst=burst, latency_s=latency_s, hints=hints)
    _, took = run(300, provider)
    assert took <= (300 - burst) / per_s * 1.1 + latency_s
    assert len(provider.refused) <= refused * len(provider.sent)


def test_once_a_quota_is_met_requests_are_spread_evenly() -> None:
    provider = Provider(per_s=10, burst=20)
    run(300, provider)
    late = [after - before for before, after in pairwise(at for at in provider.sent if at > 5)]
    assert sum(gap < 0.05 for gap in late) < 0.1 * len(late)


def test_a_larger_quota_is_found() -> None:
    provider = Provider(per_s=2, burst=5)

    async def work() -> float | None:
        limiter = Limiter(64, longest_pause_s=60)
        await all_of(100, lambda _: until_answered(limiter, provider))
        provider.per_s = 20.0
        await all_of(1500, lambda _: until_answered(limiter, provider))
        return limiter.pace.rate

    rate = simulated(work)
    assert rate is not None
    assert rate > 10


def test_time_in_which_nobody_asks_does_not_lower_the_rate() -> None:
    provider = Provider(per_s=10, burst=5)

    async def work() -> tuple[float, float]:
        limiter = Limiter(64, longest_pause_s=60)
        await all_of(100, lambda _: until_answered(limiter, provider))
        before = limiter.pace.rate or 0
        for _ in range(5):
            await anyio.sleep(100)
            await all_of(40, lambda _: until_answered(limiter, provider))
        return before, limiter.pace.rate or 0

    before, after = simulated(work)
    assert after > 0.7 * before


@pytest.mark.slow
def test_after_a_time_in_which_nothing_works_the_full_speed_comes_back() -> None:
    provider = Provider(latency_s=0.5, fault=between(3, 33, DOWN))
    _, took = run(3000, provider)
    assert len([at for at in provider.sent if 5 <= at < 33]) < 300  # a judge that is down is left in peace
    assert took < 33 + 3000 / 64 * 0.5 + 20


def test_without_a_quota_there_is_no_pace() -> None:
    limiter, _ = run(500, Provider(fault=sometimes(0.1, DOWN)))
    assert limiter.pace.rate is None
    assert limiter.pace.next_at < 0


def test_the_rate_is_never_so_low_that_nobody_finds_out_how_things_are() -> None:
    pace = Pace(longest_pause_s=60)
    for second in range(0, 1000, 2):
        pace.sent(float(second), waited=True)
        pace.refused(second + 0.1, sent_at=float(second), in_flight=0, retry_after_s=0.1)
    assert pace.rate == pytest.approx(12 / 60)


@given(seed=st.integers(0, 999), per_s=st.sampled_from([None, 20.0]))
@QUICK
def test_who_gives_up_leaves_nothing_behind(seed: int, per_s: float | None) -> None:
    chance = random.Random(seed)
    provider = Provider(latency_s=0.5, per_s=per_s)

    async def work() -> tuple[int, int, float]:
        limiter = Limiter(4, longest_pause_s=60)

        async def ask(number: int) -> bool:
            with anyio.move_on_after(chance.uniform(0, 3) if number % 2 else None):
                await until_answered(limiter, provider)
                return True
            return False

        done = await all_of(40, ask)
        left = len(limiter._out)
        start = anyio.current_time()
        await all_of(4, lambda _: until_answered(limiter, provider))
        return sum(done), left, anyio.current_time() - start

    done, left, took = simulated(work)
    assert left == 0
    assert done >= 20
    assert took <= 4


def test_what_is_not_sent_or_not_waited_for_says_nothing() -> None:
    async def work() -> tuple[int, float]:
        limiter = Limiter(64, longest_pause_s=60)
        for _ in range(100):
            limiter.release(await limiter.acquire(), CallOutcome.NOTHING)
        return limiter.concurrency.size, limiter.pace.refusing

    assert simulated(work) == (START, 0.0)


def test_the_provider_of_these_tests_keeps_its_quota() -> None:
    async def work() -> list[Answer | NoAnswer]:
        provider = Provider(per_s=10, burst=3)

        async def ask(_: int) -> Answer | NoAnswer:
            try:
                return await provider()
            except NoAnswer as error:
                return error

        return await all_of(10, ask)

    assert [isinstance(found, Answer) for found in simulated(work)] == [True] * 3 + [False] * 7


def test_nobody_waits_longer_than_the_longest_pause_however_often_a_provider_refuses() -> None:
    """Refusals that have nothing to do with the rate must not slow it down without end."""
    fault = sometimes(0.6, Unavailable("429", overloaded=True, retry_after_s=0.3), seed=3)
    provider = Provider(latency_s=0.2, fault=fault)
    run(150, provider, most=8)
    gaps = [later - earlier for earlier, later in pairwise(provider.sent)]
    assert max(gaps) <= 60 + 1
