"""From evidence to a decision, without MLflow."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.gating.policy.load import parse_policy
from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.runs.manifest import Evidence, key_of_criterion
from mlflow_adk_eval.tracking.bundle import metrics_of
from tests.gating.gate_kit import (
    CONFIG,
    CONVERSATIONS,
    RESPONSE,
    TRAJECTORY,
    Row,
    changed,
    decide_on,
    eval_set_of,
    evidence_of,
    file_of,
    report_of,
    row_of,
    with_artifact,
    with_table,
)
from tests.gating.policy_kit import JUDGED, report_with, vote

GOOD = evidence_of(report_of())
BAD = evidence_of(report_of(wrong=["heating"]))


def test_a_good_run_passes_and_says_what_was_checked() -> None:
    decision = decide_on(GOOD)
    assert decision.passed
    assert decision.reasons == (
        "3 cases of eval set 'home' evaluated on 2 criteria, nothing left out",
        "tool_trajectory_avg_score: 3 cases reached the threshold 1.0 (mean 1)",
        "response_match_score: 3 cases reached the threshold 0.5 (mean 1)",
    )
    assert decision.scores == {TRAJECTORY: 1.0, RESPONSE: 1.0}
    assert decision.evidence_sha256 == GOOD.params["adk_eval.manifest_sha256"]
    assert decision.policy_sha256 == DEFAULT_POLICY.digest()


def test_a_missed_threshold_fails_with_the_numbers_and_the_worst_case() -> None:
    decision = decide_on(BAD)
    assert decision.verdict == "failed"
    (reason,) = decision.reasons
    assert reason.startswith("tool_trajectory_avg_score: 1 of 3 cases below the threshold 1.0 (mean 0.6667); worst: heating 0 (")
    assert decision.scores[TRAJECTORY] == pytest.approx(2 / 3)


def test_the_worst_three_cases_are_named_worst_first() -> None:
    conversations = {f"case_{index}": CONVERSATIONS["heating"] * 5 for index in range(5)}
    report = report_of(eval_set=eval_set_of(conversations))

    def spoil(rows: list[Row]) -> None:
        for row in rows:
            wrong = row["invocation_index"] < int(row["eval_id"][-1])
            row |= {f"{TRAJECTORY}/score": 0.0 if wrong else 1.0, f"{TRAJECTORY}/reason": f"because\n{row['key']}" if wrong else "fine"}

    evidence = changed(with_table(evidence_of(report), spoil), "metrics", {f"{TRAJECTORY}/mean": None})
    (reason,) = decide_on(changed(evidence, "tags", {"adk_eval.verdict": "failed"})).reasons
    assert "4 of 5 cases below" in reason
    assert reason.endswith("worst: case_4 0.2 (because); case_3 0.4 (because); case_2 0.6 (because)")


def test_a_score_is_not_rounded_to_the_threshold_it_missed() -> None:
    evidence = evidence_of(report_of(config={"criteria": {RESPONSE: 0.9}}))
    almost = 0.9 - 1e-8

    def lower(rows: list[Row]) -> None:
        row_of(rows, "heating")[f"{RESPONSE}/score"] = almost

    evidence = changed(with_table(evidence, lower), "tags", {"adk_eval.verdict": "failed"})
    (reason,) = decide_on(changed(evidence, "metrics", {f"{RESPONSE}/mean": None})).reasons
    assert f"worst: heating {almost!r} (" in reason


@pytest.mark.parametrize(("scores", "threshold"), [([0.7] * 3, 0.7), ([0.8, 0.7999999999999999], 0.8), ([0.1] * 10, 0.1)])
def test_a_mean_that_reaches_its_threshold_but_for_rounding_passes(scores: list[float], threshold: float) -> None:
    conversations = {"one": CONVERSATIONS["heating"] * len(scores)}
    evidence = evidence_of(report_of(eval_set=eval_set_of(conversations), config={"criteria": {RESPONSE: threshold}}))

    def fill(rows: list[Row]) -> None:
        for row in rows:
            row[f"{RESPONSE}/score"] = scores[row["invocation_index"]]

    assert decide_on(changed(with_table(evidence, fill), "metrics", {f"{RESPONSE}/mean": None})).passed


def test_a_metric_where_lower_is_better_fails_above_its_threshold() -> None:
    report = report_of(config={"criteria": {"tool_call_count_v1": 0.5}})
    decision = decide_on(evidence_of(report))
    assert decision.verdict == "failed"
    assert decision.reasons[0].startswith(
        "tool_call_count_v1: 2 of 3 cases above the threshold 0.5 (mean 0.8333); worst: lights 1; heating 1"
    )


def test_a_run_that_was_not_evaluated_everywhere_is_undecided() -> None:
    report = report_of(silent=["lights"])
    decision = decide_on(evidence_of(report))
    assert decision.verdict == "undecided"
    assert decision.reasons == (
        "lights: the agent did not finish: the model is down",
        f"{TRAJECTORY}: 1 of 5 scores errored, so they are missing: the agent did not finish",
        f"{RESPONSE}: 1 of 5 scores errored, so they are missing: the agent did not finish",
    )


def test_the_verdict_is_that_of_the_report_also_where_something_was_missed_and_something_not_evaluated() -> None:
    report = report_of(silent=["lights"], wrong=["heating"])
    decision = decide_on(evidence_of(report))
    assert decision.verdict == report.verdict == "failed"
    assert len(decision.reasons) == 4


def test_evidence_that_cannot_be_believed_decides_nothing_but_still_names_what_was_missed() -> None:
    decision = decide_on(changed(BAD, "tags", {"adk_eval.status": "partial"}))
    assert decision.verdict == "undecided"
    assert "partial" in decision.reasons[0]
    assert "below the threshold" in decision.reasons[1]


def test_every_run_of_every_case_counts() -> None:
    evidence = evidence_of(report_of(num_runs=3))
    assert decide_on(evidence).reasons[0] == "9 case runs of eval set 'home' evaluated on 2 criteria, nothing left out"

    def spoil(rows: list[Row]) -> None:
        row_of(rows, "film", 1, 2).update({f"{TRAJECTORY}/score": 0.0, f"{TRAJECTORY}/reason": "wrong tool"})

    spoilt = changed(with_table(evidence, spoil), "tags", {"adk_eval.verdict": "failed"})
    (reason,) = decide_on(changed(spoilt, "metrics", {f"{TRAJECTORY}/mean": None})).reasons
    assert (
        reason == "tool_trajectory_avg_score: 1 of 9 case runs below the threshold 1.0 (mean 0.9444); worst: film (run 3) 0.5 (wrong tool)"
    )


def test_a_case_score_of_the_criterions_own_decides_instead_of_the_mean() -> None:
    def own(rows: list[Row]) -> None:
        for row in rows:
            last = row["invocation_index"] == len(CONVERSATIONS[row["eval_id"]]) - 1
            row[f"{RESPONSE}/case_score"] = (0.4 if row["eval_id"] == "film" else 0.9) if last else None
            row[f"{RESPONSE}/case_status"] = "scored" if last else None

    evidence = changed(with_table(GOOD, own), "metrics", {f"{RESPONSE}/mean": None})
    decision = decide_on(changed(evidence, "tags", {"adk_eval.verdict": "failed"}))
    assert decision.verdict == "failed"
    assert "1 of 3 cases below the threshold 0.5 (mean 0.7333); worst: film 0.4" in decision.reasons[0]


def test_cases_that_expect_no_state_may_be_left_out() -> None:
    value = eval_set_of().model_dump(mode="json", exclude_unset=True)
    value["eval_cases"][0]["final_session_state"] = {"light": "off"}
    eval_set = EvalSet.model_validate(value)
    config = {"criteria": {RESPONSE: 0.5, "final_session_state": {"threshold": 1.0, "only_where_expected": True}}}
    report = report_of(eval_set=eval_set, config=config)
    decision = decide_on(evidence_of(report))
    assert decision.verdict == report.verdict == "undecided"
    assert decision.reasons == (
        "final_session_state: 1 of 1 scores errored, so they are missing: lights, turn 2: the session's final state is unknown",
    )


def test_a_criterion_that_applies_to_no_case_is_not_missed() -> None:
    config = {"criteria": {RESPONSE: 0.5, "final_session_state": {"threshold": 1.0, "only_where_expected": True}}}
    assert decide_on(evidence_of(report_of(config=config))).passed


def test_turns_and_cases_that_expect_no_call_need_no_score_of_their_arguments() -> None:
    name = "tool_parameter_match"
    eval_set = eval_set_of({**CONVERSATIONS, "thanks": [("Thank you.", "You are welcome.", "")]})
    evidence = evidence_of(report_of(eval_set=eval_set, config={"criteria": {name: 1.0, RESPONSE: 0.5}}))
    assert decide_on(evidence).reasons[1:] == (
        f"{name}: 3 cases reached the threshold 1.0 (mean 1)",
        f"{RESPONSE}: 4 cases reached the threshold 0.5 (mean 1)",
    )

    def unscored(rows: list[Row]) -> None:
        row_of(rows, "film", 0).update({f"{name}/score": None, f"{name}/status": None})

    refused = decide_on(with_table(evidence, unscored))
    assert refused.reasons == (f"case 'film', turn 1: {name} has no status",)


def test_a_run_on_which_no_criterion_applies_is_undecided() -> None:
    config = {"criteria": {"final_session_state": {"threshold": 1.0, "only_where_expected": True}}}
    decision = decide_on(evidence_of(report_of(config=config)))
    assert decision.verdict == "undecided"
    assert decision.reasons[0] == "lights: no criterion applies"


def test_cases_with_criteria_of_their_own_are_held_to_those() -> None:
    config = {**CONFIG, "case_criteria": {"heating": {RESPONSE: 0.9}}}
    report = report_of(config=config, wrong=["heating"])
    assert report.verdict == "passed"
    decision = decide_on(evidence_of(report))
    assert decision.passed
    assert decision.reasons[1:] == (
        "tool_trajectory_avg_score: 2 cases reached the threshold 1.0 (mean 1)",
        "response_match_score: 3 cases reached the threshold 0.5 | 0.9 (mean 1)",
    )


def test_a_finished_run_without_an_end_is_no_evidence() -> None:
    assert decide_on(replace(GOOD, end_time=None)).reasons == ("the run has the status FINISHED but no end time",)


@pytest.fixture
def custom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evidence:
    """Return the evidence of a run with a metric of the user's own, whose code is not there any more."""
    (tmp_path / "own_metrics.py").write_text("def politeness(metric, actual, expected, scenario):\n    return [7.0] * len(actual)\n")
    info = {"metric_name": "polite?", "metric_value_info": {"interval": {"min_value": 0, "max_value": 10}}}
    metric = {"code_config": {"name": "own_metrics.politeness"}, "metric_info": info}
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        report = report_of(config={"criteria": {"polite?": 6}, "custom_metrics": {"polite?": metric}})
    del sys.modules["own_metrics"]
    return evidence_of(report)


def test_a_users_metric_is_decided_on_without_running_its_code(custom: Evidence) -> None:
    assert decide_on(custom).reasons[1] == "polite?: 3 cases reached the threshold 6.0 (mean 7)"
    assert "own_metrics" not in sys.modules


@pytest.mark.parametrize("score", [11, -0.1, 1e308, float("inf"), float("-inf")])
def test_a_users_metric_is_held_to_its_own_range(custom: Evidence, score: float) -> None:
    def put(rows: list[Row]) -> None:
        row_of(rows, "heating")["polite?/score"] = score

    (reason,) = decide_on(with_table(custom, put)).reasons
    assert reason.startswith("case 'heating', turn 1: the score of polite? is ")
    assert reason.endswith(", outside its range from 0 to 10")


@pytest.mark.parametrize("score", [1e308, -1e151])
def test_scores_whose_sum_would_be_no_number_are_no_evidence(score: float) -> None:
    def put(rows: list[Row]) -> None:
        for row in rows:
            row["tool_call_count_v1/score"] = score

    (reason, *_) = decide_on(with_table(evidence_of(report_of(config={"criteria": {"tool_call_count_v1": 9}})), put)).reasons
    assert reason.endswith("outside its range from 0 to 1e+150")


@given(st.text(min_size=1) | st.sampled_from((TRAJECTORY, "a" * 300, ".", " x", "ü-ß")))
def test_criteria_have_the_keys_that_the_log_of_a_run_gives_them(name: str) -> None:
    from mlflow_adk_eval.tracking.storable import key_of_criterion as key_in_the_log

    assert key_of_criterion(name) == key_in_the_log(name)


# What follows holds for any table, also for one whose writer sealed it.

rows_to_keep = st.lists(st.booleans(), min_size=5, max_size=5).filter(lambda kept: any(kept) and not all(kept))
cells = st.tuples(st.integers(0, 4), st.sampled_from((TRAJECTORY, RESPONSE)))


@given(rows_to_keep)
def test_a_table_with_fewer_rows_never_passes(kept: list[bool]) -> None:
    for evidence in (GOOD, GOOD):
        decision = decide_on(with_table(evidence, lambda rows: [row for row, keep in zip(rows, kept, strict=True) if keep]))
        assert decision.verdict == "undecided"
        assert all("is not in the table" in reason or "is not in adk_eval/cells/part-" in reason for reason in decision.reasons)


@given(st.sampled_from((GOOD, BAD, GOOD, BAD)), cells, st.sampled_from(("errored", "skipped", None, "scored")))
def test_a_cell_without_score_never_turns_another_decision_into_a_pass(
    evidence: Evidence, cell: tuple[int, str], status: str | None
) -> None:
    number, criterion = cell

    def empty(rows: list[Row]) -> None:
        rows[number] |= {f"{criterion}/score": None, f"{criterion}/status": status}

    assert not decide_on(with_table(evidence, empty)).passed


@given(st.permutations(range(5)), st.sampled_from((GOOD, BAD)))
def test_rows_in_another_order_decide_the_same_or_nothing(order: list[int], evidence: Evidence) -> None:
    shuffled = decide_on(with_table(evidence, lambda rows: [rows[index] for index in order]))
    same = replace(shuffled, evidence_sha256="") == replace(decide_on(evidence), evidence_sha256="")
    assert same or shuffled.verdict == "undecided"


scores = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.integers(), st.booleans(), st.text(max_size=3), st.just([1.0]))


@given(cells, scores)
def test_whatever_stands_in_place_of_a_score_the_gate_decides_and_passes_only_on_what_reaches_the_threshold(
    cell: tuple[int, str], score: Any
) -> None:
    number, criterion = cell

    def put(rows: list[Row]) -> None:
        rows[number][f"{criterion}/score"] = score

    decision = decide_on(with_table(GOOD, put))
    if decision.passed:
        assert type(score) in (int, float)
        assert math.isclose(score, 1.0, abs_tol=1e-8)


@given(st.dictionaries(st.sampled_from(list(GOOD.params) + list(GOOD.tags)), st.none() | st.text(max_size=8), min_size=1, max_size=3))
def test_no_change_of_params_and_tags_that_matter_goes_unnoticed(changes: dict[str, str | None]) -> None:
    params = {key: value for key, value in changes.items() if key in GOOD.params}
    tags = {key: value for key, value in changes.items() if key in GOOD.tags and key != "adk_eval.eval_set_id"}
    harmless = set(params) <= {"adk_eval.model_id"} and not tags and params.get("adk_eval.model_id") is None
    decision = decide_on(changed(changed(GOOD, "params", params), "tags", tags))
    assert decision.passed == harmless


@given(st.binary(max_size=40), st.sampled_from(("config.json", *(file_of(folder, 1) for folder in ("cases", "actual", "cells")))))
def test_an_artifact_of_any_content_leads_to_a_decision(content: bytes, name: str) -> None:
    decision = decide_on(with_artifact(GOOD, name, content))
    assert decision.verdict == "undecided"
    assert decision.reasons


@given(st.sampled_from(("cases", "actual", "cells")), st.integers(0, 10**6), st.binary(min_size=1, max_size=3))
def test_a_part_with_other_bytes_somewhere_never_raises(folder: str, place: int, noise: bytes) -> None:
    """Other bytes are not always seen, such as those of an explanation; but they never end in anything but a decision."""
    name = file_of(folder, 1)
    content = bytearray(GOOD.artifacts[name])
    start = place % len(content)
    content[start : start + len(noise)] = noise
    assert decide_on(with_artifact(GOOD, name, bytes(content))).verdict in ("passed", "failed", "undecided")


# What a policy pins.

NOW = datetime(2027, 1, 31, 12, tzinfo=UTC)
DIGEST = GOOD.params["adk_eval.eval_set_digest"]
PINS: dict[str, Any] = {"thresholds": True}


def pinned(evidence: Evidence, **pins: Any) -> Decision:
    return decide_on(evidence, parse_policy({**PINS, **pins}, "policy"), now=NOW)


def ended(**ago: float) -> Evidence:
    return replace(GOOD, end_time=int((NOW - timedelta(**ago)).timestamp() * 1000))


def test_a_run_on_the_pinned_eval_set_passes_and_says_so() -> None:
    decision = pinned(ended(days=6), eval_set={"id": "home", "digest": DIGEST}, max_age="7d", judge={"models": ["gemini-2.5-flash"]})
    assert decision.passed
    assert decision.reasons[1:4] == (
        "the eval set has the id 'home', as the policy requires",
        f"the digest of the eval set is {DIGEST[:19]}…, as pinned",
        "the run ended within the last 1w",
    )


@pytest.mark.parametrize(
    ("evidence", "pins", "said"),
    [
        (GOOD, {"eval_set": {"id": "garden"}}, "the run used the eval set 'home', but the policy pins 'garden'"),
        (
            GOOD,
            {"eval_set": {"digest": "sha256:" + "0" * 64}},
            f"the eval set is not the pinned one: its digest is {DIGEST[:19]}…, but the policy pins sha256:000000000000…",
        ),
        (ended(days=8), {"max_age": "7d"}, "the run ended at 2027-01-23 12:00 UTC, more than 1w before 2027-01-31 12:00 UTC"),
        (
            ended(minutes=-6),
            {"max_age": "7d"},
            "the run ended at 2027-01-31 12:06 UTC, but it is only 2027-01-31 12:00 UTC now",
        ),
        (replace(GOOD, end_time=10**20), {"max_age": "7d"}, "the run's end time 100000000000000000000 is not a valid time"),
    ],
)
def test_a_run_of_another_kind_decides_nothing(evidence: Evidence, pins: dict[str, Any], said: str) -> None:
    decision = pinned(evidence, **pins)
    assert decision.verdict == "undecided"
    assert decision.reasons == (said,)


def test_clocks_may_differ_a_little() -> None:
    assert pinned(ended(minutes=-4), max_age="1h").passed


def test_a_pin_comes_before_what_failed() -> None:
    decision = pinned(BAD, eval_set={"id": "garden"})
    assert decision.verdict == "undecided"
    assert len(decision.reasons) == 2


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"adk_eval.judge_model": "gemini-2.5-flash"}, None),
        (
            {"adk_eval.judge_model": "gemini-2.5-flash | gpt-5"},
            "gpt-5 judged, but the policy allows only gemini-2.5-flash",
        ),
        ({}, "the run has no parameter adk_eval.judge_model, so the judge of final_response_match_v2 is unknown"),
    ],
)
def test_only_the_pinned_judges_may_have_judged(params: dict[str, str], said: str | None) -> None:
    report = report_with(
        {JUDGED: {"a": [1]}}, thresholds={JUDGED: 0.5}, votes=[vote("a", 0, "valid", host="generativelanguage.googleapis.com")]
    )
    decision = pinned(changed(evidence_of(report), "params", params), judge={"models": ["gemini-2.5-flash"]})
    assert decision.passed == (said is None)
    assert decision.reasons == (said,) if said else "only gemini-2.5-flash judged" in decision.reasons


# Metrics of repeated runs, which can be rewritten like all others.


@pytest.mark.parametrize("name", ["pass_hat_1", "pass_hat_3", "flaky_cases", "case_pass_rate_run_std", f"{RESPONSE}/run_std"])
def test_a_rewritten_metric_of_repeated_runs_is_a_contradiction(name: str) -> None:
    scores = {"a": [0.9, 0.2, 0.8], "b": [1.0, 1.0, 0.9], "c": [0.1, 0.2, 0.0]}
    report = report_with({RESPONSE: scores})
    logged = dict(metrics_of(report))
    assert name in logged
    whole = replace(evidence_of(report), metrics=logged)
    assert decide_on(whole).verdict == "failed"  # and not a word of contradictions
    decision = decide_on(changed(whole, "metrics", {name: logged[name] + 0.1}))
    assert decision.verdict == "undecided"
    assert decision.reasons[0] == f"the logged metric {name} is {logged[name] + 0.1:g}, but the table gives {logged[name]:g}"


def test_the_checks_of_the_default_policy_are_its_thresholds() -> None:
    assert [(check.measure, check.demand, check.verdict, check.value) for check in decide_on(BAD).checks] == [
        (TRAJECTORY, "threshold 1.0", "failed", pytest.approx(2 / 3)),
        (RESPONSE, "threshold 0.5", "passed", 1),
    ]


@pytest.mark.parametrize(
    ("pin", "refused"),
    [({}, True), ({"eval_set": {"id": "home"}}, True), ({"eval_set": {"digest": GOOD.params["adk_eval.eval_set_digest"]}}, False)],
)
def test_a_run_of_the_cases_that_failed_counts_only_for_a_policy_that_pins_these_cases(pin: Any, refused: bool) -> None:
    part = changed(GOOD, "params", {"adk_eval.failed_of": "r-0"})
    decision = decide_on(part, parse_policy({"rules": {RESPONSE: {"min": 0.5}}, **pin}, "policy"))
    reason = "the run covers only the cases that did not pass in run r-0, so it is not evidence for the whole eval set"
    assert (reason in decision.reasons) is refused
    assert decision.verdict == ("undecided" if refused else "passed")
