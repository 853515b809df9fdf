"""What a policy says of recorded answers, and runs that met different worlds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlflow_adk_eval.evalset.world import World
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.rules.comparable import Baseline
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.report import CasesInMemory
from mlflow_adk_eval.runs.examined import examine
from mlflow_adk_eval.tracking.bundle import evidence_of_report
from tests.gating.gate_kit import decide_on
from tests.tracking.small import CONFIG
from tests.tracking.worlds import replayed, world

MODELS = world(models=True)


def decided(met: World | None, *injected: str, replay: dict[str, str] | None = None, live: tuple[str, ...] = ()) -> Decision:
    policy = {"thresholds": True} | ({"replay": replay} if replay else {})
    return decide_on(evidence_of_report(replayed(met, *injected, live=live)), load_policy(policy))


@pytest.mark.parametrize(
    ("met", "injected", "live", "replay", "reason"),
    [
        (world(), (), (), {"tools": "strict", "models": "never"}, ""),
        (world(), (), ("heat",), {"tools": "strict"}, "recording, not that of heat in turn 1 of heat, but the policy requires it of every"),
        (world("live"), (), (), {"tools": "strict"}, "3 of 3 tool calls were answered from a recording in the mode live, but the policy"),
        (None, (), (), {"tools": "strict"}, "nothing was replayed, but the policy requires it of every tool call, in strict mode"),
        (world(), (), (), {"tools": "never"}, "3 of 3 tool calls were answered from a recording, but the policy allows it of none"),
        (world("record"), (), (), {"tools": "never", "models": "never"}, ""),
        (None, (), (), {"tools": "never"}, ""),
        (MODELS, ("root",), (), {"models": "never"}, "3 of an unknown number of requests to the agent's model were answered from a recording"),
        (MODELS, ("root",), (), {"models": "always"}, "3 of an unknown number of requests to the agent's model were answered from a"),
        (None, (), (), {"models": "always"}, "nothing was replayed, but the policy requires it of every one: run it with --replay-models"),
    ],
)  # fmt: skip
def test_a_policy_may_demand_or_rule_out_recorded_answers(
    met: World | None, injected: tuple[str, ...], live: tuple[str, ...], replay: dict[str, str], reason: str
) -> None:
    decision = decided(met, *injected, replay=replay, live=live)
    assert decision.verdict == ("undecided" if reason else "passed")
    assert reason in "\n".join(decision.reasons)


def test_a_decision_says_what_was_replayed_where_the_policy_does_not_mind() -> None:
    decision = decided(MODELS, "root")
    assert decision.verdict == "passed"
    assert [note for note in decision.notes if "3 of 3 tool calls and 3 of an unknown number of requests to the agent's model" in note]
    assert "recording" not in "".join(decided(None).notes)


def test_a_call_that_was_never_recorded_is_an_error_of_its_case_and_no_contradiction() -> None:
    report = replayed(world(), live=("heat", "switch"))
    broken = [replace(case, conversation=replace(case.conversation, error="turn 1: heat({}) was never recorded")) for case in report.cases]
    reasons = decide_on(evidence_of_report(replace(report, cases=CasesInMemory(broken)))).reasons
    assert reasons[0] == "light, heat, both: the agent did not finish: heat({}) was never recorded"


def test_a_decision_says_which_arguments_the_config_ignores_unless_it_is_pinned() -> None:
    evidence = evidence_of_report(replayed(world(), config=CONFIG | {"replay": {"ignore": ["$.room"]}}))
    note = "the run's config ignores $.room when it looks for the recorded call"
    assert note in decide_on(evidence).notes
    pinned = load_policy({"thresholds": True, "config": {"digest": evidence.params["adk_eval.config_digest"]}})
    assert note not in decide_on(evidence, pinned).notes


@pytest.mark.parametrize(
    ("met", "config", "reason"),
    [
        (world("record"), {}, ""),
        (world(answer="refused"), {}, "evaluate both with --replay of the same source, as --reevaluate --champion-agent AGENT does"),
        (None, {}, f"run r-0 met no recorded world, but the candidate met the world {world().digest[:19]}…"),
        (world(), {"replay": {"ignore": ["$.room"]}}, "its config has another replay"),
    ],
)
def test_runs_that_met_different_worlds_are_not_compared(met: World | None, config: dict[str, Any], reason: str) -> None:
    policy = load_policy({"rules": {"response_match_score": {"max_drop": 0.1, "use": "mean"}}, "baseline": {"run": "r-0"}})
    before, now = (evidence_of_report(replayed(one, config=CONFIG | own)) for one, own in ((met, config), (world(), {})))

    decision = decide_on(replace(now, run_id="r-1"), policy, baseline=Baseline(name="r-0", run=examine(replace(before, run_id="r-0"))))
    assert decision.verdict == ("undecided" if reason else "passed")
    assert reason in "\n".join(decision.reasons)
