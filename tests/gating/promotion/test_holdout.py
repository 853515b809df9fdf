"""Cases that only a promotion scores: never run before, one number, so many uses and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.tracking.agent_versions import register
from tests.gating.promotion.claim_kit import claim_log_of
from tests.tracking.small import answering, many

RESPONSE = "response_match_score"
CONFIG = {"criteria": {"tool_trajectory_avg_score": 1.0, RESPONSE: 0.5}}
WHOLE = many(14)
HELD = [f"case_{number:04}" for number in range(8, 14)]
POLICY: dict[str, Any] = {
    "rules": {"case_pass_rate": {"min": 0.9}},
    "config": CONFIG,
    "holdout": {"ids": ["case_0008", "case_0009", "case_001*"], "uses": 2, "min": 0.9},
}


@dataclass
class Bench:
    """A model, its candidates and where they are."""

    uri: str

    def candidate(self, name: str, **wrong: Any) -> tuple[str, str, Callable[..., Any], list[str]]:
        """Return version and run of a candidate, its agent and the cases that it was asked."""
        asked: list[str] = []
        answer = answering(WHOLE, **wrong)

        def agent(text: str, session: Any) -> Any:
            asked.append(session.eval_id)
            return answer(text, session)

        agent.__name__ = name
        report = adk_eval.evaluate(WHOLE, agent, CONFIG, experiment="helpers", policy=POLICY, tracking_uri=self.uri, traces=False)
        assert report.verdict == "passed"
        assert not set(asked) & set(HELD)
        asked.clear()
        return register(report, "helper", tracking_uri=self.uri), str(report.run_id), agent, asked

    def promote(self, version: str, run_id: str, agent: Any = None, policy: Any = POLICY, **options: Any) -> Decision:
        scored, eval_set = options.pop("scored", None), options.pop("eval_set", WHOLE)
        if agent is not None:
            scored = adk_eval.make_holdout_evaluator(agent, eval_set=eval_set, config=CONFIG, tracking_uri=self.uri)
        how = {"tracking_uri": self.uri, "raise_on_failure": False, **options}
        return adk_eval.promote("helper", version, run_id=run_id, policy=policy, holdout=scored, **how)

    def uses(self) -> list[str]:
        log = claim_log_of(MlflowStore(self.uri), "helper")
        return [entry.claim.version.number for entry in log.entries if entry.claim.holdout]


@pytest.fixture
def bench(store: str) -> Bench:
    return Bench(store)


def test_held_out_cases_are_scored_when_all_else_passes_and_leave_one_number(bench: Bench) -> None:
    version, run_id, agent, asked = bench.candidate("good")
    assert adk_eval.gate(run_id, POLICY, tracking_uri=bench.uri).passed
    dry = bench.promote(version, run_id, agent, dry_run=True)
    assert dry.passed
    assert "the cases that the policy holds out are scored only by promote, if everything else passes" in dry.notes
    hopeless = {**POLICY, "min_cases": 99}
    assert bench.promote(version, run_id, agent, hopeless).verdict == "undecided"
    assert "nobody scores them" in bench.promote(version, run_id).reasons[0]
    assert (asked, bench.uses()) == ([], [])
    decision = bench.promote(version, run_id, agent)
    assert decision.passed
    assert sorted(asked) == HELD
    assert bench.uses() == [version]
    assert decision.reasons[-1] == "holdout: pass rate 1 over 6 held-out cases, min 0.9: passed"
    assert "case_00" not in str(decision)
    assert "are scored only by promote" not in str(decision.notes)
    (check,) = [check for check in decision.checks if check.measure == "holdout"]
    assert (check.verdict, check.value, check.cases) == ("passed", 1.0, 6)
    held_run = MlflowStore(bench.uri).client.get_run(decision.notes[-1].split(" run ")[1])
    experiment = MlflowStore(bench.uri).client.get_experiment(held_run.info.experiment_id)
    assert experiment.name == "helpers holdout"
    assert adk_eval.verify("helper", alias="champion", tracking_uri=bench.uri).passed
    assert adk_eval.verify("helper", alias="champion", policy={**POLICY, "holdout": None}, tracking_uri=bench.uri).passed
    # What the number rests on is evidence like other.
    MlflowStore(bench.uri).client.log_text(held_run.info.run_id, "{}", "adk_eval/config.json")
    MlflowStore(bench.uri).client.log_text(held_run.info.run_id, "{}", "adk_eval/manifest.json")
    assert "the evidence of its held-out cases in run " in adk_eval.verify("helper", alias="champion", tracking_uri=bench.uri).reasons[0]


def test_a_refusal_uses_them_and_what_is_used_up_is_replaced(bench: Bench) -> None:
    version, run_id, agent, asked = bench.candidate("overfitted", **dict.fromkeys(HELD[:3], "I do not know"))
    first = bench.promote(version, run_id, agent)
    assert (first.verdict, first.reasons) == ("failed", ("holdout: pass rate 0.5 over 6 held-out cases, min 0.9: failed",))
    assert "use 1 of 2 of the held-out cases, in run " in first.notes[-1]
    asked.clear()

    scored = adk_eval.make_holdout_evaluator(agent, eval_set=WHOLE, config=CONFIG, tracking_uri=bench.uri)

    def killed(request: Any) -> str:
        scored(request)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # after the number was there, and before the decision was
        bench.promote(version, run_id, scored=killed)
    assert asked, "the agent was called"
    asked.clear()
    third = bench.promote(version, run_id, agent)
    expected = "holdout: the held-out cases were scored 2 times, and the policy allows 2: replace these cases"
    assert (third.verdict, third.reasons) == ("undecided", (expected,))
    assert (asked, bench.uses()) == ([], [version, version])
    other = bench.promote(version, run_id, agent, {**POLICY, "holdout": {"ids": HELD[3:], "uses": 1, "min": 0.9}})
    assert "the run scored" not in str(other.reasons)
    assert other.passed


def test_only_the_candidates_own_agent_and_config_count(bench: Bench) -> None:
    version, run_id, agent, _ = bench.candidate("good")
    refused = bench.promote(version, run_id, answering(WHOLE))
    assert refused.verdict == "undecided"
    assert "has a different source" in refused.reasons[0]
    scored = adk_eval.make_holdout_evaluator(agent, eval_set=WHOLE, config={"criteria": {RESPONSE: 0.1}}, tracking_uri=bench.uri)
    assert "the digest of your config is" in bench.promote(version, run_id, scored=scored).reasons[0]
    assert "holds out no case" in bench.promote(version, run_id, agent, eval_set=many(8)).reasons[0]

    def exits(_: Any) -> str:
        raise SystemExit(0)

    assert bench.promote(version, run_id, scored=exits).reasons == ("holdout: SystemExit: 0",)


def test_a_run_that_scored_held_out_cases_is_refused(bench: Bench) -> None:
    report = adk_eval.evaluate(WHOLE, answering(WHOLE), CONFIG, tracking_uri=bench.uri, traces=False)
    decision = adk_eval.gate(report, POLICY, tracking_uri=bench.uri, raise_on_failure=False)
    assert decision.verdict == "undecided"
    assert decision.reasons[0].startswith("the run scored 6 cases that the policy holds out (case_0008, ")
    with pytest.raises(UsageError, match="the policy holds out every case"):
        adk_eval.evaluate(
            WHOLE, answering(WHOLE), CONFIG, tracking_uri=bench.uri, policy={**POLICY, "holdout": {"ids": ["*"], "uses": 1, "min": 0.5}}
        )


def test_the_share_is_compared_with_that_of_the_champion(bench: Bench) -> None:
    policy = {**POLICY, "baseline": {"alias": "champion"}, "holdout": {**POLICY["holdout"], "uses": 5, "max_drop": 0.6, "min": 0.1}}
    version, run_id, agent, _ = bench.candidate("first")
    assert adk_eval.promote("helper", version, run_id=run_id, tracking_uri=bench.uri).passed
    second = bench.candidate("second", case_0013="I do not know")
    never = bench.promote(*second[:3], policy)
    assert (
        "the held-out cases were not scored when version 1 of 'helper', was promoted: promote it again by this policy" in never.reasons[0]
    )
    assert bench.promote(version, run_id, agent, policy).passed
    decision = bench.promote(*second[:3], policy)
    assert "holdout: pass rate 0.8333 over 6 held-out cases, against 1 of version 1 of 'helper', max_drop 0.6: " in str(decision.reasons)
