"""The arithmetic of quotas: no window sees more than the quota, and nobody waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.judge.limiter import USED_WITHIN, Block, lease
from tests.profiles import examples

STEPS = st.lists(st.tuples(st.floats(0, 40), st.integers(1, 20)), min_size=1, max_size=60)


@given(STEPS, st.integers(1, 30), st.floats(0.5, 120))
@examples(200)
def test_no_window_sees_more_than_the_quota_wherever_it_begins(steps: list[tuple[float, int]], quota: int, quota_s: float) -> None:
    """Each block may be used from when it was granted to the end of its use, so the worst window holds all that can fall into it."""
    now, blocks, granted = 0.0, (), list[Block]()
    for after_s, wanted in steps:
        now += after_s
        found = lease(blocks, now, wanted, quota, quota_s)
        blocks = found.blocks
        assert found.granted <= wanted
        if found.granted:
            granted.append(Block(now, found.granted))
    used_s = quota_s * USED_WITHIN
    for last in granted:
        window = [block for block in granted if last.at - quota_s - used_s < block.at <= last.at]
        assert sum(block.requests for block in window) <= quota


@given(STEPS, st.integers(1, 30), st.floats(0.5, 120))
@examples(200)
def test_whoever_waits_as_long_as_told_gets_something(steps: list[tuple[float, int]], quota: int, quota_s: float) -> None:
    now, blocks = 0.0, ()
    for after_s, wanted in steps:
        now += after_s
        found = lease(blocks, now, wanted, quota, quota_s)
        if not found.granted:
            assert 0 < found.wait_s <= quota_s * (1 + USED_WITHIN) + 1e-9
            now += found.wait_s + 1e-6
            found = lease(found.blocks, now, wanted, quota, quota_s)
            assert found.granted
        blocks = found.blocks


def test_a_clock_that_was_put_back_makes_nobody_wait_for_longer_than_a_window() -> None:
    found = lease([Block(1e9, 5)], 100.0, 1, 5, 60.0)
    assert found.granted == 0
    assert found.wait_s <= 63.0
