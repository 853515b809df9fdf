"""What criteria read of cases: said before the agent is paid, and again at the gate."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.coverage import Coverage, coverage_of
from mlflow_adk_eval.errors import ConfigError
from mlflow_adk_eval.evalset.models import IntermediateData, Part
from mlflow_adk_eval.results.outcomes import Scored
from mlflow_adk_eval.runner.recordings import score
from tests.kit import RESPONSE, TRAJECTORY, call, case, cases, scenario, turn

STATE, JUDGED = "final_session_state", "final_response_match_v2"
ONLY = {"threshold": 0.5, "only_where_expected": True}
EMOJI = case("emoji", turn("👍"))
SILENT = case("silent", turn(None))
SAID = case("said", turn("yes"))


def coverage(criteria: dict[str, Any], *listed: Any, **more: Any) -> Coverage:
    return coverage_of(parse_config({"criteria": criteria} | more, "config"), listed)


def test_cases_without_a_reference_are_named_with_the_remedy() -> None:
    late = case("late", turn("yes"), turn(None))
    found = coverage({RESPONSE: 0.5, TRAJECTORY: 1}, SAID, SILENT, EMOJI, late)
    remedy = "write it, or set only_where_expected: true, which leaves out what lacks it"
    assert found.obstacles == (
        f"{RESPONSE} cannot decide 2 of 4 cases, which lack an expected response (silent, late turn 2); {remedy}",
        f"{RESPONSE} cannot decide 1 of 4 cases, which lacks words in the expected response (emoji); {remedy}",
    )
    found.check("config")


@pytest.mark.parametrize("lacking", [(SILENT,), (EMOJI,), (SILENT, EMOJI), (case("open", turn("yes"), tags=("open",)),)])
def test_a_criterion_that_can_be_evaluated_on_no_case_is_refused(lacking: Any) -> None:
    with pytest.raises(ConfigError, match=rf"\$\.criteria\.{RESPONSE}: found "):
        coverage({RESPONSE: 0.5, "tool_call_count_v1": 9}, *lacking).check("config")
    coverage({RESPONSE: 0, "tool_call_count_v1": 9}, *lacking).check("config")  # which decides nothing
    coverage({RESPONSE: ONLY, "tool_call_count_v1": 9}, *lacking).check("config")
    coverage({RESPONSE: 0.5, "tool_call_count_v1": 9}, *lacking, SAID).check("config")


def test_a_judge_reads_an_emoji_that_rouge_cannot() -> None:
    assert coverage({JUDGED: 0.5}, EMOJI).obstacles == ()


def test_a_state_that_is_not_expected_is_named() -> None:
    with_state = case("with", turn("yes"), final_session_state={"a": 1})
    (found,) = coverage({STATE: 1, RESPONSE: 0.5}, with_state, SAID).obstacles
    assert found.startswith(f"{STATE} cannot decide 1 of 2 cases, which lacks an expected final_session_state (said); ")


def test_a_reference_that_a_judge_is_to_see_is_named() -> None:
    name = "rapid_eval_question_answering_quality"
    assert coverage({name: {"threshold": 3}}, SILENT).obstacles == ()
    (found,) = coverage({name: {"threshold": 3, "use_reference": True}}, SILENT, SAID).obstacles
    assert "an expected response (silent)" in found


@pytest.mark.parametrize("name", [RESPONSE, JUDGED, "rapid_eval_exact_match", "rapid_eval_rouge", TRAJECTORY, "tool_parameter_match"])
def test_what_is_not_expected_is_left_out_and_counted(name: str) -> None:
    mixed = case("mixed", turn("yes", call("f")), turn(None))
    criteria = {name: ONLY, "tool_call_count_v1": 9}
    found = coverage(criteria, case("full", turn("yes", call("f"))), mixed, case("none", turn(None)), scenario("played"))
    assert found.obstacles == ()
    assert found.gap
    assert f"{name} leaves out 2 of 4 cases (none, played) and 1 turn of other cases, which do not say what it needs" in found.notes


def test_a_turn_that_is_left_out_leaves_the_score_of_the_others() -> None:
    expected = case("mixed", turn("yes", call("f")), turn(None), turn("👍"))
    report = score(cases(expected, SILENT), {"mixed": [turn("yes", call("f")), turn("no"), turn("no")], "silent": [turn("no")]},
                   {"criteria": {RESPONSE: ONLY, TRAJECTORY: ONLY, "tool_call_count_v1": 9}})  # fmt: skip
    mixed, silent = report.cases
    response, trajectory = mixed.result(RESPONSE), mixed.result(TRAJECTORY)
    assert response is not None
    assert trajectory is not None
    assert [type(cell) for cell in response.per_invocation] == [Scored, type(None), type(None)]
    assert (response.score, trajectory.score, mixed.verdict) == (1.0, 1.0, "passed")
    assert (silent.result(RESPONSE), silent.verdict, report.verdict) == (None, "passed", "passed")


def test_a_case_that_nothing_decides_any_more_is_undecided() -> None:
    report = score(cases(SAID, SILENT), {"said": [turn("yes")], "silent": [turn("no")]}, {"criteria": {RESPONSE: ONLY}})
    assert [one.verdict for one in report.cases] == ["passed", "undecided"]
    (obstacle,) = coverage({RESPONSE: ONLY}, SAID, SILENT).obstacles
    assert obstacle == "no criterion decides 1 case (silent); add one whose threshold a score can miss"


EXPECTING = case(
    "all",
    turn("yes").model_copy(
        update={"intermediate_data": IntermediateData(tool_uses=(call("f"),), intermediate_responses=(("agent", (Part(text="wait"),)),))}
    ),
    final_session_state={"a": 1},
)


def kinds(found: Coverage) -> list[str]:
    return [note.partition(" that no criterion reads")[0].removeprefix("1 case expects ") for note in found.notes]


@pytest.mark.parametrize(
    ("criteria", "unread"),
    [
        ({"tool_call_count_v1": 3}, ["a final_session_state", "tool calls", "a response", "intermediate responses"]),
        ({STATE: 1}, ["tool calls", "a response", "intermediate responses"]),
        ({TRAJECTORY: 1}, ["a final_session_state", "a response", "intermediate responses"]),
        ({RESPONSE: 1}, ["a final_session_state", "tool calls", "intermediate responses"]),
        ({JUDGED: 1}, ["a final_session_state", "tool calls", "intermediate responses"]),
        ({"rapid_eval_tool_name_match": 1, "rapid_eval_bleu": 1}, ["a final_session_state", "intermediate responses"]),
        (
            {RESPONSE: {"threshold": 1, "include_intermediate_responses_in_final": True}, TRAJECTORY: 1, STATE: 1},
            [],
        ),
    ],
)
def test_what_no_criterion_reads_is_named_once_for_each_kind(criteria: dict[str, Any], unread: list[str]) -> None:
    found = coverage(criteria, EXPECTING)
    assert kinds(found) == unread
    assert bool(found.gap) == bool(unread)


def test_what_no_criterion_reads_is_counted_and_has_a_remedy() -> None:
    states = [case(f"s{number}", turn("yes"), final_session_state={"a": 1}) for number in range(5)]
    assert coverage({RESPONSE: 1}, *states, SAID).notes == (
        "5 cases expect a final_session_state that no criterion reads (s0, s1, s2 and 2 more); add final_session_state: 1.0 to the criteria",
    )


def test_a_custom_metric_is_given_the_conversation_but_no_state() -> None:
    custom = {"custom_metrics": {"mine": {"code_config": {"name": "a.b"}}}}
    assert kinds(coverage({"mine": 1}, EXPECTING, **custom)) == ["a final_session_state"]


def test_criteria_of_single_cases_are_looked_at_case_by_case() -> None:
    own = {"case_criteria": {"all": {STATE: 1, TRAJECTORY: 1, RESPONSE: 0}}}
    found = coverage({RESPONSE: 1}, EXPECTING, SAID, **own)
    assert found.notes[0] == f"{RESPONSE}: threshold 0: information only in 1 case (all), since every possible score reaches it"
    assert kinds(found)[1:] == ["intermediate responses"]


@pytest.mark.parametrize("threshold", [0, 0.0, 1e-10, "0"])
def test_a_config_in_which_nothing_decides_never_passes(threshold: Any) -> None:
    found = coverage({RESPONSE: threshold}, SAID)
    assert "information only, since every possible score reaches it" in found.notes[0]
    assert found.obstacles == ("no criterion decides 1 case (said); add one whose threshold a score can miss",)
    report = score(cases(SAID), {"said": [turn("yes")]}, {"criteria": {RESPONSE: threshold}})
    assert (report.verdict, report.summaries()[RESPONSE].mean) == ("undecided", 1.0)
    assert "no criterion decides this case" in report.reasons[0]


@pytest.mark.parametrize("name", list(CRITERIA))
def test_the_worst_end_of_each_range_decides_nothing(name: str) -> None:
    spec = CRITERIA[name]
    low, high = spec.bounds
    worst, best = (low, high) if spec.greater_is_better else (high, low)
    more = {"tools": ["erase"]} if name == "forbidden_tools_v1" else {}
    if worst == float("inf"):  # a quantity has no worst value
        worst = 1e149
        config = parse_config({"criteria": {name: worst}}, "config")
        assert config.threshold_of(name, config.criteria[name]) == worst
        return
    config = parse_config({"criteria": {name: {"threshold": worst, **more}}}, "config")
    assert (config.threshold_of(name, config.criteria[name]), config.deciding_thresholds()) == (None, {})
    config = parse_config({"criteria": {name: {"threshold": best, **more}}}, "config")
    assert config.threshold_of(name, config.criteria[name]) == best


@pytest.mark.parametrize(
    ("more", "threshold", "decides"),
    [
        ({}, 0, True),
        ({"metric_info": {"metric_name": "mine", "metric_value_info": {"interval": {"min_value": -1, "max_value": 1}}}}, -1, False),
        ({"metric_info": {"metric_name": "mine", "metric_value_info": {"interval": {"min_value": -1, "max_value": 1}}}}, 0, True),
        (
            {
                "greater_is_better": False,
                "metric_info": {"metric_name": "mine", "metric_value_info": {"interval": {"min_value": 0, "max_value": 9}}},
            },
            9,
            False,
        ),
        ({"greater_is_better": False}, 9, True),
    ],
)
def test_a_custom_metric_has_the_ends_of_its_interval(more: dict[str, Any], threshold: float, *, decides: bool) -> None:
    config = parse_config({"criteria": {"mine": threshold}, "custom_metrics": {"mine": {"code_config": {"name": "a.b"}} | more}}, "config")
    assert (config.threshold_of("mine", config.criteria["mine"]) is not None) == decides
