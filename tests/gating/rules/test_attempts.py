"""Many candidates against one champion: what each may spend of the error, and what a decision says of its place."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mlflow_adk_eval.errors import PolicyError
from mlflow_adk_eval.gating.rules.attempts import Attempt, share_of
from tests.gating.gate_kit import RESPONSE, decide_on
from tests.gating.policy_kit import cases, champion, policy, run_with

LIMIT = "attempts: {spend: N} in the policy limits that"
RISK = "with a chance of at most 0.05, any of the candidates exactly at the limit passes"
COMPARED = {"rules": {RESPONSE: {"max_drop": 0.25}}, "baseline": {"alias": "champion"}}


@pytest.mark.parametrize("spend", [None, 1, 20, 100, "unlimited"])
def test_all_attempts_together_spend_no_more_than_the_error(spend: Any) -> None:
    shares = [share_of(spend, number) for number in range(1, 5001)]
    assert shares == sorted(shares, reverse=True)
    if spend is None:
        assert set(shares) == {1.0}
    else:
        assert math.isclose(sum(shares), 1, rel_tol=2e-4)
        assert sum(shares) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("spend", "number", "verdict"),
    # All of 10 cases pass: the interval of the rate begins at 0.72 with 95 % confidence, at 0.52 with 99.75 %.
    [(None, 7, "passed"), (20, 7, "undecided"), (20, 21, "undecided"), ("unlimited", 1, "passed"), ("unlimited", 7, "undecided")],
)
def test_a_later_attempt_needs_more_evidence(spend: Any, number: int, verdict: str) -> None:
    demanded = policy(rules={"case_pass_rate": {"min": 0.6, "use": "ci_low"}}, **({"attempts": {"spend": spend}} if spend else {}))
    found, more = (decide_on(run_with(cases(*[1.0] * count)), demanded, attempt=Attempt(number)) for count in (10, 30))
    assert (found.verdict, found.attempt) == (verdict, number)
    assert more.verdict == ("undecided" if number == 21 else "passed")


@pytest.mark.parametrize(
    ("spend", "attempt", "told"),
    [
        (None, Attempt(1), []),
        (
            None,
            Attempt(7),
            [
                f"{Attempt(7)}: with a chance of up to 0.35, one of 7 candidates exactly at the limit passes; {LIMIT}",
            ],
        ),
        (None, Attempt(1, uncounted=("champion.0002 is not a claim",)), ["not counted as an attempt: champion.0002 is not a claim"]),
        (
            20,
            Attempt(3, every_eval_set=True),
            [f"{Attempt(3, every_eval_set=True)}, of 20, decided with 0.05 of the error: {RISK}"],
        ),
        (20, None, ["promote counts the attempts; this decision is that on a first attempt"]),
    ],
)
def test_a_decision_says_its_place_and_the_risk(spend: Any, attempt: Attempt | None, told: list[str]) -> None:
    run = run_with(cases(*[1.0] * 30))
    demanded = policy(**COMPARED, **({"attempts": {"spend": spend}} if spend else {}))
    notes = decide_on(run, demanded, baseline=champion(run), attempt=attempt).notes
    assert [note for note in notes if "attempt" in note] == told


def test_spent_attempts_say_what_helps() -> None:
    run, demanded = run_with(cases(*[1.0] * 30)), policy(**COMPARED, attempts={"spend": 20})
    decision = decide_on(run, demanded, baseline=champion(run), attempt=Attempt(21))
    assert decision.reasons[0].startswith(
        "it is the 21st attempt against this champion on this eval set, but the policy allows 20: use new"
    )


@pytest.mark.parametrize("number", [1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111, 113])
def test_places_are_written_as_people_do(number: int) -> None:
    suffixes = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 101: "st"}
    assert str(Attempt(number)).startswith(f"the {number}{suffixes.get(number, 'th')} attempt")


@pytest.mark.parametrize(
    ("demands", "wanted"),
    [
        ({"attempts": {"spend": True}}, "attempts.spend"),
        ({"attempts": {"spend": 0}}, "a number of attempts from 1, or unlimited"),
        ({"holdout": {"tags": ["x"], "uses": 3}}, "at least one of min and max_drop"),
        ({"holdout": {"uses": 3, "min": 0.9}}, "which cases are held out"),
        ({"holdout": {"ids": ["x"], "uses": 3, "max_drop": 0.2}}, "a baseline, such as"),
    ],
)
def test_what_a_policy_cannot_mean_is_refused(demands: dict[str, Any], wanted: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy(rules={RESPONSE: {"min": 0.5}}, **demands)
    assert len(caught.value.problems) == 1
    assert wanted in str(caught.value)
