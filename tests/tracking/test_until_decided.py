"""Evaluations that go on only until their policy is decided: when they stop, what they say, how they resume, and what the gate makes of forged ones."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.files import select
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.gating.rules.comparable import Baseline
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.report.console import console, report_view
from mlflow_adk_eval.report.markdown import note_of
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.report import CasesInMemory, Report
from mlflow_adk_eval.results.sequence import Round
from mlflow_adk_eval.runs.examined import ExaminedRun, ReadableRun, examine
from mlflow_adk_eval.tracking.bundle import evidence_of_report
from tests.kit import case, cases, turn
from tests.mlflow_kit import copied

pytestmark = pytest.mark.filterwarnings("ignore")

CASES, CONFIG = 60, {"criteria": {"response_match_score": 0.5}}
SET = cases(*(case(f"case_{number:02}", turn("yes", user=f"case_{number:02}")) for number in range(CASES)), eval_set_id="sixty")
MANY_WRONG = {f"case_{number:02}" for number in range(0, CASES, 3)}


def agent(wrong: Collection[str] = (), asked: list[str] | None = None, stop_at: int | None = None) -> Callable[[str], str]:
    said = [] if asked is None else asked

    def yes(message: str) -> str:
        if len(said) == stop_at:
            raise KeyboardInterrupt
        said.append(message)
        return "no" if message in wrong else "yes"

    return yes


@pytest.fixture(scope="module")
def store(template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return copied(template, tmp_path_factory.mktemp("until"))


@pytest.fixture(scope="module")
def baseline(store: str) -> str:
    return str(adk_eval.evaluate(SET, agent({"case_07"}), CONFIG, experiment="until", tracking_uri=store, traces=False).run_id)


def policy_of(baseline: str, max_drop: float = 0.25, **more: Any) -> dict[str, Any]:
    return {"rules": {"response_match_score": {"max_drop": max_drop}}, "baseline": {"run": baseline}, **more}


def until_decided(store: str, policy: dict[str, Any], played: Callable[[str], str], **options: Any) -> tuple[Report, Decision]:
    where: dict[str, Any] = {"experiment": "until", "tracking_uri": store, "traces": False}
    report = adk_eval.evaluate(SET, played, CONFIG, policy=policy, until_decided=True, **where, **options)
    return report, adk_eval.gate(str(report.run_id), policy, raise_on_failure=False, tracking_uri=store)


@pytest.fixture(scope="module")
def stopped(store: str, baseline: str) -> tuple[Report, Decision]:
    return until_decided(store, policy_of(baseline, must_pass=["case_40", "case_11"]), agent({"case_07"}))


def rounds_of(report: Report) -> list[tuple[int, int, int]]:
    assert report.until_decided is not None
    return [(one.cases, one.runs, len(one.open)) for one in report.until_decided.rounds]


def test_what_is_decided_is_not_run_any_further(store: str, stopped: tuple[Report, Decision]) -> None:
    from mlflow import MlflowClient

    report, decision = stopped
    assert rounds_of(report) == [(20, 1, 0)]
    assert {case.eval_id for case in report.cases} >= {"case_11", "case_40"}  # those that must pass come first
    assert decision.passed, decision.reasons
    assert "decided: every demand is met" in decision.notes[0]
    assert MlflowClient(store).get_run(str(report.run_id)).data.params["adk_eval.until_decided"] == "20 of 60 cases (until decided)"
    examined = examined_at(store, str(report.run_id))
    assert examined.eval_set.eval_ids == SET.eval_ids
    screen = console()
    with screen.capture() as shown:
        screen.print(report_view(examined.report))
    for text in (shown.get(), note_of(report), " ".join(decision.reasons)):
        assert "20 of 60 cases (until decided)" in text


def examined_at(store: str, run_id: str) -> ReadableRun:
    with store_at(store) as opened:
        run = examine(opened.evidence(run_id))
    assert isinstance(run, ReadableRun)
    assert not run.problems
    return run


def test_a_drop_that_is_shown_ends_it_as_well(store: str, baseline: str) -> None:
    told: list[str] = []
    report, decision = until_decided(store, policy_of(baseline, max_drop=0.1), agent(MANY_WRONG), on_round=told.append)
    assert decision.verdict == "failed"
    assert rounds_of(report)[-1][0] < CASES
    assert rounds_of(report)[-1][2] == 0
    assert told[0] == "round 1: 20 of 60 cases; response_match_score max_drop 0.1 open"


def test_what_stays_open_is_run_again_as_often_as_it_may(store: str, baseline: str) -> None:
    report, decision = until_decided(store, policy_of(baseline, max_drop=0.01), agent({"case_07"}), max_runs=2)
    assert rounds_of(report) == [(20, 1, 1), (30, 1, 1), (45, 1, 1), (60, 1, 1), (60, 2, 1)]
    assert report.num_runs == 2
    assert decision.verdict == "undecided"
    assert decision.reasons[0].startswith("response_match_score: ")  # and nothing against how it went
    limited, _ = until_decided(store, policy_of(baseline, max_drop=0.01), agent({"case_07"}), max_runs=2, max_conversations=33)
    assert rounds_of(limited) == [(20, 1, 1), (30, 1, 1), (33, 1, 1)]
    assert "budget of 33 conversations" in str(limited.until_decided and limited.until_decided.stopped)


def test_rules_about_the_eval_set_as_it_is_need_all_cases(store: str, baseline: str) -> None:
    policy = {"thresholds": True, "rules": {"response_match_score": {"min": 0.9}}}
    whole, decision = until_decided(store, policy, agent())
    assert rounds_of(whole)[-1] == (60, 1, 0)
    assert decision.passed
    missed, decision = until_decided(store, policy, agent(MANY_WRONG))
    assert rounds_of(missed) == [(20, 1, 0)]
    assert decision.verdict == "failed"


def test_a_killed_evaluation_goes_on_where_it_was(store: str, baseline: str, tmp_path: Path) -> None:
    policy, asked, where = policy_of(baseline, max_drop=0.05), list[str](), {"ledger": tmp_path / "ledger.sqlite"}
    with pytest.raises(KeyboardInterrupt):
        until_decided(store, policy, agent(asked=asked, stop_at=25), concurrency=1, **where)
    report, decision = until_decided(store, policy, agent(asked=asked), concurrency=1, resume="latest", **where)
    assert len(asked) == len(set(asked)) == rounds_of(report)[-1][0] > 25
    assert not [reason for reason in decision.reasons if "round" in reason]


Forgery = Callable[[Report], Report]


def without_a_case(report: Report) -> Report:
    """Leave out a case that was run, and take another one instead."""
    assert report.until_decided is not None
    left = report.until_decided.left
    (_, other), gone = left[0], report.eval_set.eval_cases[0]
    whole = report.whole
    chosen = [eval_id for eval_id in report.eval_set.eval_ids if eval_id != gone.eval_id] + [other.eval_id]
    played = report.cases.changed(lambda case: replace(case, eval_id=other.eval_id) if case.eval_id == gone.eval_id else case)
    results = {case.eval_id: case for case in played}
    now = tuple((at, case) for at, case in enumerate(whole.eval_cases) if case.eval_id not in chosen)
    kept = select(whole, chosen)
    return replace(
        report,
        eval_set=kept,
        cases=CasesInMemory(results[eval_id] for eval_id in kept.eval_ids),
        until_decided=replace(report.until_decided, left=now),
    )


def changed(**how: Any) -> Forgery:
    return lambda report: replace(report, until_decided=replace(report.until_decided, **how)) if report.until_decided else report


def reordered(report: Report) -> Report:
    assert report.until_decided is not None
    first, second, *others = report.until_decided.order
    return changed(order=(second, first, *others))(report)


def twice(report: Report) -> Report:
    """Two runs of each case, of which only the first is owned up to."""
    again = [replace(case, run_index=run) for case in report.cases for run in (0, 1)]
    return replace(report, cases=CasesInMemory(again), num_runs=2)


def before_what_must_pass(report: Report) -> Report:
    """Stop after the first case, of those two that must pass."""
    assert report.until_decided is not None
    first, whole = report.until_decided.order[0], report.whole
    left = tuple((at, case) for at, case in enumerate(whole.eval_cases) if case.eval_id != first)
    kept = report.cases.changed(lambda case: case if case.eval_id == first else None)
    how = replace(report.until_decided, left=left, rounds=(Round(1, 1, ("response_match_score max_drop 0.25",)),))
    return replace(report, eval_set=select(whole, [first]), cases=kept, until_decided=how)


FORGERIES: dict[str, tuple[Forgery, str]] = {
    "a case left out": (without_a_case, "it leaves out"),
    "another order": (reordered, "not run in the order"),
    "the stage understated": (twice, "do not lead to 20 cases with 2 runs"),
    "gone on although decided": (changed(rounds=(Round(19, 1, ()), Round(20, 1, ()))), "went on after round 1"),
    "rounds of other sizes": (changed(rounds=(Round(45, 1, ()),)), "do not lead to 20 cases"),
    "an open rule hidden": (changed(rounds=(Round(20, 1, ("response_match_score max_drop 0.25",)),)), "the results say nothing"),
    "another baseline": (changed(baseline_sha256="0" * 64), "run it again"),
    "a case that must pass not reached": (before_what_must_pass, "which must pass"),
    "another policy": (changed(policy_sha256="0" * 64), "another policy"),
    "a case forgotten": (changed(left=()), "is not the evaluated one"),
}


@pytest.mark.parametrize("forged", FORGERIES)
def test_a_run_that_did_not_go_as_it_says_decides_nothing(store: str, baseline: str, stopped: tuple[Report, Decision], forged: str) -> None:
    change, told = FORGERIES[forged]
    policy = load_policy(policy_of(baseline, must_pass=["case_40", "case_11"]))
    compared = Baseline(name="the baseline", run=examined_at(store, baseline))
    honest = examine(evidence_of_report(stopped[0]))
    evidence = evidence_of_report(change(stopped[0]))
    digest = honest.evidence.params["adk_eval.eval_set_digest"]
    run: ExaminedRun = examine(replace(evidence, params={**evidence.params, "adk_eval.eval_set_digest": digest}))
    decisions = [decide(each, policy, now=datetime.now(UTC), baseline=compared) for each in (honest, run)]
    assert decisions[0].passed, decisions[0].reasons
    assert decisions[1].verdict == "undecided"
    assert any(told in reason for reason in decisions[1].reasons), decisions[1].reasons


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"until_decided": True}, "wanted the policy"),
        ({"max_runs": 2}, "limit until_decided"),
        ({"until_decided": True, "policy": {"thresholds": True}, "num_runs": 2}, "max_runs= instead of num_runs="),
        ({"until_decided": True, "policy": {"thresholds": True}, "max_conversations": 0}, "wanted a whole number"),
        (
            {
                "until_decided": True,
                "policy": {"rules": {"case_pass_rate": {"max_drop": 0.1}}, "baseline": {"run": "a"}},
                "max_runs": 2,
            },
            "as many runs",
        ),
    ],
    ids=["no policy", "no rounds", "runs", "budget", "incomparable"],
)
def test_what_cannot_be_is_refused_before_the_agent_is_called(store: str, options: dict[str, Any], told: str) -> None:
    asked: list[str] = []
    with pytest.raises(UsageError, match=told):
        adk_eval.evaluate(SET, agent(asked=asked), CONFIG, tracking_uri=store, **options)
    assert not asked


def test_the_eval_set_is_whole_again(stopped: tuple[Report, Decision]) -> None:
    assert isinstance(stopped[0].whole, EvalSet)
    assert stopped[0].whole == SET
