"""Laws of decisions on the first cases: what is settled stays settled, bets err no more than they may, and nobody chooses the order."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_adk_eval.gating.policy.model import Rule
from mlflow_adk_eval.gating.rules.checks import RuleTarget
from mlflow_adk_eval.gating.rules.limits import check_limit, limits_of
from mlflow_adk_eval.gating.rules.measures import SHARE, Measured
from mlflow_adk_eval.gating.rules.sequential import Progress, look_at_limit, mean_above
from mlflow_adk_eval.results.decision import Check
from mlflow_adk_eval.results.sequence import order_of

VALUES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=12)


def looked(values: list[float], run: int, rule: Rule) -> tuple[Check, bool]:
    """Look at a limit when so many of the values are there."""
    order = tuple(f"case_{number}" for number in range(len(values)))
    measured = Measured(values={order[at]: (values[at],) for at in range(run)}, greater_is_better=True, bounds=SHARE)
    target = RuleTarget(measure="score", slice="", rule=rule, confidence=0.95)
    (limit,) = limits_of(target)
    left = frozenset(order[run:])
    return look_at_limit(check_limit(target, limit, measured), target, limit, measured, Progress(order, left, 1), len(left))


@given(VALUES, st.sampled_from([Rule(min=0.3), Rule(max=0.7), Rule(min=0.5)]))
@settings(max_examples=60, deadline=None)
def test_what_no_case_to_come_can_change_is_what_all_cases_say(values: list[float], rule: Rule) -> None:
    whole, more = looked(values, len(values), rule)
    assert not more
    for run in range(1, len(values)):
        check, more = looked(values, run, rule)
        assert more == (check.verdict == "undecided")
        assert more or check.verdict == whole.verdict


@given(st.lists(st.floats(0, 1), max_size=40), st.floats(0.05, 0.95), st.floats(0.01, 0.2))
@settings(max_examples=60, deadline=None)
def test_bets_on_a_mean_and_on_its_mirror_image_agree(values: list[float], bound: float, error: float) -> None:
    mirrored = {"passed": "failed", "failed": "passed", "undecided": "undecided"}
    turned = mean_above([-value for value in values], -bound, (-1.0, 0.0), error)
    assert mirrored[turned] == mean_above(values, bound, SHARE, error)


def test_looking_after_every_case_errs_no_more_often_than_it_may() -> None:
    chance, wrong, histories = random.Random(7), 0, 400
    for _ in range(histories):
        values = [float(chance.random() < 0.8) for _ in range(150)]
        wrong += any(mean_above(values[:end], 0.8, SHARE, 0.05) == "passed" for end in range(10, 151, 10))
    assert wrong <= 0.05 * histories
    surely = [float(chance.random() < 0.97) for _ in range(150)]
    assert mean_above(surely, 0.8, SHARE, 0.05) == "passed"


@given(st.permutations([f"case_{number}" for number in range(8)]), st.sampled_from(["sha256:a", "sha256:b"]))
@settings(max_examples=30, deadline=None)
def test_the_order_follows_from_the_eval_set_and_the_policy(eval_ids: list[str], digest: str) -> None:
    copies = {"case_5": "case_2"}
    groups = order_of(eval_ids, digest, ["case_6", "case_5"], copies)
    sets = [set(group) for group in groups]
    assert sets == [set(group) for group in order_of(sorted(eval_ids), digest, ["case_5", "case_6"], copies)]
    assert {"case_5", "case_2"} in sets
    assert set().union(*sets[:2]) == {"case_2", "case_5", "case_6"}
    assert sum(map(len, groups)) == len(eval_ids)


def test_another_digest_is_another_order() -> None:
    ids = [f"case_{number}" for number in range(8)]
    assert order_of(ids, "sha256:a", (), {}) != order_of(ids, "sha256:b", (), {})
