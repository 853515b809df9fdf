"""A run says the same however many parts it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.analysis.comparison.compare import compared
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.rules.comparable import Baseline
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.examined import ReadableRun, examine
from mlflow_adk_eval.runs.manifest import Evidence, recomputed_metrics
from mlflow_adk_eval.tracking.compare import readable_run, run_of_examined
from tests.gating.gate_kit import CONVERSATIONS, RESPONSE, TRAJECTORY, decide_on, eval_set_of, evidence_of, report_of
from tests.profiles import examples
from tests.tracking import judged

TAGGED = eval_set_of().model_dump(mode="json", exclude_unset=True)
for number, case in enumerate(TAGGED["eval_cases"]):
    case["tags"] = [("a", "b")[number % 2]]
COPIED = {**CONVERSATIONS, "heating again": CONVERSATIONS["heating"], "film again": CONVERSATIONS["film"]}
POLICIES: dict[str, Any] = {
    "thresholds": {"thresholds": True},
    "rules": {
        "rules": {
            TRAJECTORY: {"min": 0.5, "use": "ci_low"},
            RESPONSE: {"min": 0.3, "max_drop": 0.1, "range": [0.1, 0.9]},
            "case_pass_rate": {"min": 0.2, "max_drop": 0.5, "use": "mean"},
            f"{TRAJECTORY}/pass_rate": {"min": 0.5},
            "pass^1": {"min": 0.5},
            "flaky_rate": {"max": 0.5},
            "tool_call_count_v1": {"max": 5, "max_drop": 1},
            "judge_calls": {"max": 100},
        },
        "slices": {"film": {"ids": ["film*", "none"], "rules": {TRAJECTORY: {"min": 0.9}}}},
        "must_pass": ["lights"],
        "min_cases": 3,
        "waivers": [
            {"case": "heating", "criterion": TRAJECTORY, "owner": "me", "reason": "why", "expires": "2999-01-01"},
            {"case": "nobody", "owner": "me", "reason": "why", "expires": "2999-01-01"},
        ],
        "baseline": {"run": "r-0"},
    },
}
names = st.sets(st.sampled_from(list(COPIED)))


def report_on(wrong: set[str], silent: set[str], num_runs: int, *, copies: bool) -> Report:
    eval_set = eval_set_of(COPIED if copies else None)
    return report_of(wrong=wrong - silent, silent=silent, num_runs=num_runs, eval_set=eval_set)


def decided(evidence: Evidence, before: Evidence, policy: str) -> Decision:
    found = decide_on(evidence, load_policy({"name": "p", **POLICIES[policy]}), baseline=Baseline(name="before", run=examine(before)))
    return replace(found, evidence_sha256="", baseline_sha256="")


@examples(40)
@given(names, names, names, st.integers(1, 3), st.booleans(), st.sampled_from((1, 2, 3)), st.sampled_from(list(POLICIES)))
def test_the_same_report_in_more_parts_is_decided_in_the_same_way(
    wrong: set[str], silent: set[str], wrong_before: set[str], num_runs: int, copies: bool, part_turns: int, policy: str
) -> None:
    report, before = report_on(wrong, silent, num_runs, copies=copies), report_on(wrong_before, set(), num_runs, copies=copies)
    in_one = [evidence_of(one, run_id=run_id, part_turns=1000) for one, run_id in ((report, "r-1"), (before, "r-0"))]
    in_parts = [evidence_of(one, run_id=run_id, part_turns=part_turns) for one, run_id in ((report, "r-1"), (before, "r-0"))]
    assert decided(in_parts[0], in_parts[1], policy) == decided(in_one[0], in_one[1], policy)
    assert decided(in_parts[0], in_one[1], policy) == decided(in_one[0], in_one[1], policy)


@pytest.mark.parametrize("report", [report_of(wrong=["film"], silent=["lights"], num_runs=2), judged.report()], ids=["computed", "judged"])
@pytest.mark.parametrize("part_turns", [1, 3, 1000])
def test_a_run_in_parts_comes_to_what_its_report_did(report: Report, part_turns: int) -> None:
    run = examine(evidence_of(report, part_turns=part_turns))
    assert isinstance(run, ReadableRun)
    assert run.problems == ()
    assert recomputed_metrics(run.report) == recomputed_metrics(report)
    assert (run.report.verdict, run.report.criteria, run.report.reasons) == (report.verdict, report.criteria, report.reasons)
    assert [case.verdict for case in run.report.cases] == [case.verdict for case in report.cases]
    for found, case in zip(run.report.cases, report.cases, strict=True):
        assert found.results == tuple(case.results)
        assert [one.counts for one in found.results] == [one.counts for one in case.results]
    assert tuple(run.report.eval_set.eval_cases) == report.eval_set.eval_cases
    assert run.report.repeats == report.repeats


@pytest.mark.parametrize("criteria", [None, {"criteria": {TRAJECTORY: 1.0}}])
def test_two_runs_in_parts_are_compared_as_in_one(criteria: Any) -> None:
    more = {"config": criteria} if criteria else {}
    reports = report_of(wrong=["film"], num_runs=2), report_of(wrong=["lights"], silent=["heating"], num_runs=2, **more)
    found = [
        compared(*(run_of_examined(readable_run(evidence_of(report, part_turns=part_turns))) for report in reports)).to_json(every=True)
        for part_turns in (1, 1000)
    ]
    assert found[0] == found[1]


def test_tags_select_cases_of_a_run_in_parts() -> None:
    from mlflow_adk_eval.evalset.models import EvalSet

    report = report_of(wrong=["heating"], eval_set=EvalSet.model_validate(TAGGED))
    policy = {"slices": {one: {"tags": [one], "rules": {TRAJECTORY: {"min": 1.0}}} for one in ("a", "b", "aa")}}
    for part_turns in (1, 1000):
        run = examine(evidence_of(report, part_turns=part_turns))
        assert isinstance(run, ReadableRun)
        assert run.tags == [("a",), ("b",), ("a",)]
        checks = decide_on(run.evidence, load_policy(policy)).checks
        assert [(check.slice, check.verdict, check.cases) for check in checks] == [
            ("a", "passed", 2),
            ("b", "failed", 1),
            ("aa", "undecided", 0),
        ]
        assert "no case has the tag 'aa'" in checks[2].reason
