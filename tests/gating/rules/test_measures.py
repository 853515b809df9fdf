"""What rules can be about: every measure by an example, and why one cannot be had."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.gating.policy.model import Price
from mlflow_adk_eval.gating.rules.measures import Measured, answers_of, criteria_behind, measure, price_of
from mlflow_adk_eval.results.outcomes import Vote
from mlflow_adk_eval.results.report import Report
from tests.gating.gate_kit import RESPONSE, TRAJECTORY
from tests.gating.policy_kit import JUDGED, report_with, vote

TOKENS = "token_usage_v1"
FLASH = {"gemini-2.5-flash": Price(input=1.0, output=10.0)}


def measured(name: str, report: Report, prices: Mapping[str, Price] | None = None) -> Measured:
    found = measure(name, report, prices)
    assert isinstance(found, Measured), found
    return found


def absent(name: str, report: Report, prices: Mapping[str, Price] | None = None) -> str:
    found = measure(name, report, prices)
    assert isinstance(found, str), found
    return found


REPORT = report_with({RESPONSE: {"a": [0.9, 0.3], "b": [0.7, 0.8], "c": [0.1, 0.2]}, TOKENS: {"a": [10, 20], "b": [30, 40], "c": [5, 5]}})


def test_a_criterion_is_measured_by_its_case_scores_and_the_case_is_the_unit() -> None:
    found = measured(RESPONSE, REPORT)
    assert found.values == {"a": (0.9, 0.3), "b": (0.7, 0.8), "c": (0.1, 0.2)}
    assert found.value == pytest.approx(0.5)
    assert (found.greater_is_better, found.bounds, found.proportion) == (True, (0.0, 1.0), True)


def test_what_is_information_is_measured_too_and_is_no_proportion() -> None:
    found = measured(TOKENS, REPORT)
    assert found.value == pytest.approx(55 / 3)
    assert (found.greater_is_better, found.bounds, found.proportion) == (False, (0.0, math.inf), False)


def test_grades_have_their_own_bounds_and_are_no_proportion() -> None:
    found = measured(
        "response_evaluation_score", report_with({"response_evaluation_score": {"a": [4]}}, thresholds={"response_evaluation_score": 3})
    )
    assert (found.bounds, found.proportion) == ((1.0, 5.0), False)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (f"{RESPONSE}/pass_rate", {"a": (1.0, 0.0), "b": (1.0, 1.0), "c": (0.0, 0.0)}),
        ("case_pass_rate", {"a": (0.0,), "b": (1.0,), "c": (0.0,)}),
        ("pass^1", {"a": (0.5,), "b": (1.0,), "c": (0.0,)}),
        ("pass^2", {"a": (0.0,), "b": (1.0,), "c": (0.0,)}),
        ("pass_hat_2", {"a": (0.0,), "b": (1.0,), "c": (0.0,)}),
        ("flaky_rate", {"a": (1.0,), "b": (0.0,), "c": (0.0,)}),
    ],
)
def test_passing_and_failing(name: str, values: dict[str, tuple[float, ...]]) -> None:
    assert measured(name, REPORT).values == values


def test_the_case_pass_rate_and_pass_hat_are_those_that_mlflow_shows() -> None:
    from mlflow_adk_eval.tracking.bundle import metrics_of

    logged = dict(metrics_of(REPORT))
    assert measured("case_pass_rate", REPORT).value == pytest.approx(logged["case_pass_rate"])
    assert measured("pass^2", REPORT).value == pytest.approx(logged["pass_hat_2"])
    assert measured(f"{RESPONSE}/pass_rate", REPORT).value == pytest.approx(logged[f"{RESPONSE}/pass_rate"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pass^3", "it needs at least 3 runs of each case (num_runs 3), but there are 2"),
        ("hallucinations_v1", ("the run has no criterion hallucinations_v1. It has response_match_score, token_usage_v1; other measures are case_pass_rate, "
         "flaky_rate, judge_flip_rate, cost, judge_tokens, judge_calls")),
        ("response_match", "the run has no measure 'response_match'. Did you mean 'response_match_score'?"),
        ("case_passrate", "the run has no measure 'case_passrate'. Did you mean 'case_pass_rate'?"),
        ("response_match_score/passrate", "the run has no measure 'response_match_score/passrate'. Did you mean 'response_match_score/pass_rate'?"),
        ("hallucinations_v1/pass_rate", ("the run has no criterion hallucinations_v1. It has response_match_score, token_usage_v1; other measures are "
         "case_pass_rate, flaky_rate, judge_flip_rate, cost, judge_tokens, judge_calls")),
        (f"{TOKENS}/pass_rate", "token_usage_v1 has no threshold in the run's config, so its scores neither pass nor fail"),
        ("judge_flip_rate", "no judge voted twice on the same turn"),
        (f"{RESPONSE}/flip_rate", "no judge voted twice on the same turn for response_match_score"),
        ("cost", "nothing in the run has a price: no judge voted, and the policy has no price for the agent"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_says_why(name: str, said: str) -> None:
    assert absent(name, REPORT) == said


def test_one_run_of_each_case_says_nothing_of_flakiness() -> None:
    report = report_with({RESPONSE: {"a": [0.9]}})
    assert absent("flaky_rate", report) == "it needs at least 2 runs of each case (num_runs 2), but there is 1"


def test_a_case_without_a_score_in_one_run_is_missing_and_in_no_number() -> None:
    report = report_with({RESPONSE: {"a": [0.9, None], "b": [0.7, 0.8]}})
    for name in (RESPONSE, f"{RESPONSE}/pass_rate", "case_pass_rate", "flaky_rate"):
        found = measured(name, report)
        assert list(found.values) == ["b"]
        (why,) = found.missing
        assert why.startswith("a (run 2): ")
        assert "the judge is down" in why


def test_which_criteria_a_measure_rests_on() -> None:
    assert criteria_behind(TOKENS, REPORT) == [TOKENS]
    assert criteria_behind(f"{RESPONSE}/pass_rate", REPORT) == [RESPONSE]
    assert criteria_behind("case_pass_rate", REPORT) == [RESPONSE]


# What judges did.

VOTES = (
    vote("a", 0, "valid"), vote("a", 1, "invalid"), vote("a", 2, "valid"), vote("a", 3, None, input_tokens=None, output_tokens=None),
    vote("b", 0, "valid", reused=True), vote("b", 1, "valid"),
)  # fmt: skip
VOTED = report_with(
    {JUDGED: {"a": [1], "b": [1], "c": [0]}, TRAJECTORY: {"a": [1], "b": [1], "c": [1]}},
    thresholds={JUDGED: 0.5, TRAJECTORY: 1},
    votes=VOTES,
)


def test_the_flip_rate_is_the_share_of_votes_against_the_verdict_over_the_cases_that_were_voted_on() -> None:
    for name in ("judge_flip_rate", f"{JUDGED}/flip_rate"):
        found = measured(name, VOTED)
        assert found.values == {"a": (pytest.approx(1 / 3),), "b": (0.0,)}
        assert not found.greater_is_better


def test_one_vote_alone_says_nothing_of_how_often_votes_flip() -> None:
    alone = report_with({JUDGED: {"a": [1]}}, thresholds={JUDGED: 0.5}, votes=[vote("a", 0, "valid")])
    assert measure("judge_flip_rate", alone) == "no judge voted twice on the same turn"


def test_labels_of_a_sentence_that_are_worth_the_same_do_not_contradict_each_other() -> None:
    name = "hallucinations_v1"
    cast = [vote("a", 0, "unsupported", criterion=name, rubric_id="1"), vote("a", 1, "contradictory", criterion=name, rubric_id="1"),
            vote("a", 2, "supported", criterion=name, rubric_id="1"), vote("a", 0, "supported", criterion=name, rubric_id="2"),
            vote("a", 1, "not_applicable", criterion=name, rubric_id="2")]  # fmt: skip
    report = report_with({name: {"a": [0.5]}}, thresholds={name: 0.5}, votes=cast)
    assert measured("judge_flip_rate", report).values == {"a": (0.2,)}


def test_calls_and_tokens_count_what_was_paid_for_before_too() -> None:
    assert measured("judge_calls", VOTED).values == {"a": (4.0,), "b": (2.0,), "c": (0.0,)}
    assert measured("judge_tokens", VOTED).values == {"a": (3300.0,), "b": (2200.0,), "c": (0.0,)}


def test_one_answer_on_several_things_is_one_call_and_two_questions_of_a_turn_are_two() -> None:
    several = [vote("a", 0, "yes", rubric_id="1"), vote("a", 0, "no", rubric_id="2", input_tokens=None, output_tokens=None)]
    again = [replace(found, rubric_id=f"second {found.rubric_id}") for found in several]
    report = report_with({JUDGED: {"a": [1]}}, thresholds={JUDGED: 0.5}, votes=[*several, *again])
    (case,) = report.cases
    assert [len(answer) for answer in answers_of(case.results)] == [2, 2]
    assert measured("judge_tokens", report).value == 2200


def test_the_cost_of_a_case_run_is_that_of_its_judges_and_where_it_has_a_price_of_its_agent() -> None:
    judged = 1000 * 1.0 / 1e6 + 100 * 10.0 / 1e6
    assert measured("cost", VOTED, FLASH).values == {"a": (pytest.approx(3 * judged),), "b": (pytest.approx(2 * judged),), "c": (0.0,)}
    assert measured("cost", VOTED, {"gemini-2.5-flash": Price(tokens=1.0)}).value == pytest.approx(5 * 1100 / 1e6 / 3)
    agent = {"agent": Price(tokens=2.0)}
    assert measured("cost", REPORT, agent).values["a"] == (pytest.approx(20 / 1e6), pytest.approx(40 / 1e6))


@pytest.mark.parametrize(
    ("prices", "changes", "said"),
    [
        ({"gpt-5": Price(tokens=1)}, {}, "a: the policy has no price for the judge gemini-2.5-flash-001"),
        (FLASH, {"input_tokens": None, "output_tokens": None}, "a: the judge gemini-2.5-flash-001 does not report token counts"),
        ({**FLASH, "agent": Price(tokens=1)}, {}, "a: the run has no token_usage_v1, so the agent's cost is unknown"),
    ],
)
def test_a_cost_that_is_not_known_is_no_number(prices: dict[str, Price], changes: dict[str, Any], said: str) -> None:
    report = report_with({JUDGED: {"a": [1]}}, thresholds={JUDGED: 0.5}, votes=[vote("a", 0, "valid", **changes)])
    assert measured("cost", report, prices).missing == (said,)


def test_the_cost_of_an_agent_whose_tokens_are_not_known_is_no_number() -> None:
    report = report_with({RESPONSE: {"a": [1]}, TOKENS: {"a": [None]}})
    assert measured("cost", report, {"agent": Price(tokens=1)}).missing == ("a: the agent's cost is unknown: the judge is down",)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gemini-2.5-flash", "gemini-2.5-flash"),
        ("gemini-2.5-flash-001", "gemini-2.5-flash"),
        ("gpt-5-mini-2025-08-07", "openai/gpt-5-mini"),
        ("openai/gpt-5-mini", "openai/gpt-5-mini"),
        ("claude-x@20250805", "claude-x"),
        ("gemini-2.5-flash-lite", None),
        ("gpt-5-mini-fast", None),
        ("agent", None),
        ("", None),
    ],
)
def test_a_version_has_the_price_of_its_model_and_no_other(model: str, name: str | None) -> None:
    names = ("gemini-2.5-flash", "openai/gpt-5-mini", "gpt-5", "claude-x", "agent")
    prices = {found: Price(tokens=float(index)) for index, found in enumerate(names)}
    assert price_of(model, prices) is (prices[name] if name else None)


verdicts = st.lists(st.sampled_from(["valid", "invalid", None]), min_size=1, max_size=7)


@given(st.lists(verdicts, min_size=1, max_size=4))
def test_laws_of_flips(ballots: list[list[str | None]]) -> None:
    cast: list[Vote] = [
        vote("a", number, said, rubric_id=str(item)) for item, found in enumerate(ballots) for number, said in enumerate(found)
    ]
    report = report_with({JUDGED: {"a": [1]}}, thresholds={JUDGED: 0.5}, votes=cast)
    found = measure("judge_flip_rate", report)
    assert isinstance(found, Measured) == any(sum(said is not None for said in ballot) > 1 for ballot in ballots)
    if isinstance(found, Measured):
        assert 0 <= (found.value or 0) <= 0.5
        unanimous = all(len({said for said in ballot if said}) <= 1 for ballot in ballots)
        assert (found.value == 0) == unanimous
