"""Champions that are evaluated again, on the cases and by the criteria of a candidate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.models import EvalSet, eval_set_digest
from mlflow_adk_eval.gating.api import gate
from mlflow_adk_eval.gating.rules.comparable import Reevaluate
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.testing import ScriptedJudge
from mlflow_adk_eval.tracking.agent_versions import register
from mlflow_adk_eval.tracking.evaluate import make_reevaluator
from tests.tracking.small import answering, eval_set, many, reevaluation_request, turn

pytestmark = pytest.mark.slow

TRAJECTORY, MATCH = "tool_trajectory_avg_score", "final_response_match_v2"
POLICY = {"rules": {TRAJECTORY: {"max_drop": 0.35}}, "baseline": {"alias": "champion", "model": "helper"}}
STRICT = {"criteria": {TRAJECTORY: 1.0, "response_match_score": 0.5}}
LENIENT = {"criteria": {TRAJECTORY: {"threshold": 1.0, "match_type": "IN_ORDER"}, "response_match_score": 0.5}}
JUDGED = {"criteria": {MATCH: 0.5}}
BROKEN = {"tool_name": "look", "injection_configs": [{"injected_error": {"injected_http_error_code": 500, "error_message": "down"}}]}
EIGHT = many(8)


def named(name: str, agent: Callable[..., Any]) -> Callable[..., Any]:
    """Return an agent that is a version of its own, by its name."""
    agent.__name__ = name
    return agent


@dataclass
class Bench:
    """A store with a champion."""

    uri: str

    def evaluate(self, name: str, cases: EvalSet = EIGHT, config: Any = STRICT, **options: Any) -> adk_eval.Report:
        return adk_eval.evaluate(
            cases, named(name, answering(cases)), config, experiment=name, tracking_uri=self.uri, traces=False, **options
        )

    def crown(self, cases: EvalSet = EIGHT, config: Any = STRICT, **options: Any) -> str:
        report = self.evaluate("champion", cases, config, **options)
        version = register(report, "helper", tracking_uri=self.uri)
        assert adk_eval.promote("helper", version, run_id=report, tracking_uri=self.uri).passed
        return str(report.run_id)

    def again(self, agent: Any = None, cases: EvalSet = EIGHT, config: Any = STRICT, **options: Any) -> Reevaluate:
        return make_reevaluator(agent, eval_set=cases, config=config, tracking_uri=self.uri, **options)

    def gate(self, candidate: adk_eval.Report, again: Any, policy: Any = POLICY) -> Decision:
        return gate(candidate, policy, reevaluate=again, tracking_uri=self.uri, raise_on_failure=False)

    def run(self, run_id: str) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(self.uri).get_run(run_id)


@pytest.fixture
def bench(store: str) -> Bench:
    return Bench(store)


def told(decision: Decision) -> str:
    return "\n".join(decision.reasons)


def test_what_the_champion_did_is_judged_again_by_the_candidates_config(bench: Bench) -> None:
    champion = bench.crown()
    candidate = bench.evaluate("candidate", config=LENIENT)
    assert "has different settings for tool_trajectory_avg_score" in told(bench.gate(candidate, None))
    decision = bench.gate(candidate, bench.again(config=LENIENT))
    assert decision.passed
    new, old, ours = (bench.run(run_id) for run_id in (decision.baseline_run_id, champion, candidate.run_id or ""))
    assert new.data.params["adk_eval.model_id"] == old.data.params["adk_eval.model_id"] != ours.data.params["adk_eval.model_id"]
    assert new.data.params["adk_eval.config_digest"] == ours.data.params["adk_eval.config_digest"]
    assert new.info.experiment_id == ours.info.experiment_id != old.info.experiment_id
    assert new.info.run_name == "helper v1 evaluated again"


def test_a_case_that_the_champion_never_had_needs_the_champion(bench: Bench) -> None:
    bench.crown()
    more = many(9)
    candidate = bench.evaluate("candidate", more)
    refused = bench.gate(candidate, bench.again(cases=more))
    assert refused.verdict == "undecided"
    assert "it never ran case 'case_0008'; name its agent to run it instead" in told(refused)
    calls: list[str] = []

    def counted(text: str, session: Any) -> Any:
        calls.append(session.eval_id)
        return answering(more)(text, session)

    impostor = bench.gate(candidate, bench.again(counted, more))
    assert impostor.verdict == "undecided"
    assert "has a different source" in told(impostor)
    champion = answering(more, **dict.fromkeys(more.eval_ids, counted))
    decision = bench.gate(candidate, bench.again(champion, more))
    assert decision.passed
    assert sorted(calls) == sorted(more.eval_ids)
    assert bench.gate(candidate, None).verdict == "undecided"  # a run that no promotion recorded could be anybody's


def test_a_champion_that_is_no_good_on_the_new_case_does_not_stand_in_the_way(bench: Bench) -> None:
    bench.crown()
    more = many(14)
    agent = answering(more, **{f"case_{number:04}": "I do not know" for number in range(8, 14)})
    again = bench.again(agent, more)
    assert bench.gate(bench.evaluate("candidate", more), again).passed


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (turn("question 0", "another answer", ("look", {"n": 0})), ""),
        (turn("another question", "answer 0", ("look", {"n": 0})), "case 'case_0000' has different user messages now"),
    ],
)
def test_another_expectation_is_judged_again_and_another_question_asked_again(bench: Bench, changed: Any, expected: str) -> None:
    bench.crown()
    cases = EIGHT.model_copy(update={"eval_cases": (eval_set({"case_0000": [changed]}).eval_cases[0], *EIGHT.eval_cases[1:])})
    decision = bench.gate(bench.evaluate("candidate", cases), bench.again(cases=cases))
    assert (decision.verdict, expected in told(decision)) == ("undecided" if expected else "passed", True)


def test_what_tools_answered_is_a_part_of_what_it_was_asked(bench: Bench) -> None:
    bench.crown()
    config = STRICT | {"environment_simulation_config": {"tool_simulation_configs": [BROKEN]}}
    decision = bench.gate(bench.evaluate("candidate", config=config), bench.again(config=config))
    assert "case 'case_0000' has a different tool environment now" in told(decision)
    assert "and 5 more of this kind" in told(decision)


def test_another_judge_judges_both(bench: Bench) -> None:
    def first(request: Any) -> Any:
        return {"rationale": "fine", "verdict": "valid"}

    def second(request: Any) -> Any:
        return {"rationale": "fine, too", "verdict": "valid"}

    policy = {"rules": {MATCH: {"max_drop": 0.35}}, "baseline": {"alias": "champion", "model": "helper"}}
    bench.crown(config=JUDGED, judge=first, ledger=False)
    candidate = bench.evaluate("candidate", config=JUDGED, judge=second, ledger=False)
    assert "has a different judge for final_response_match_v2" in told(bench.gate(candidate, None, policy))
    wrong = bench.gate(candidate, bench.again(config=JUDGED, judge=first, ledger=False), policy)
    assert "it was evaluated again, but run" in told(wrong)
    assert bench.gate(candidate, bench.again(config=JUDGED, judge=second, ledger=False), policy).passed


def test_as_many_runs_as_there_were_are_judged_again(bench: Bench) -> None:
    bench.crown(num_runs=2)
    decision = bench.gate(bench.evaluate("candidate", config=LENIENT, num_runs=3), bench.again(config=LENIENT))
    assert decision.passed
    assert bench.run(decision.baseline_run_id).data.params["adk_eval.num_runs"] == "2"


def test_what_was_edited_since_is_not_judged_again(bench: Bench) -> None:
    from mlflow import MlflowClient

    MlflowClient(bench.uri).log_text(bench.crown(), "{}", "adk_eval/result.evalset_result.json")
    decision = bench.gate(bench.evaluate("candidate", config=LENIENT), bench.again(config=LENIENT))
    assert "cannot be judged again: the artifact adk_eval/result.evalset_result.json was changed after the run" in told(decision)


def test_without_a_run_there_is_nothing_to_judge_again() -> None:
    with pytest.raises(UsageError, match="models:/helper/1 has no run to judge again"):
        make_reevaluator(eval_set=EIGHT, config=STRICT)(reevaluation_request(EIGHT, STRICT))


def test_a_champion_that_does_not_exist_leaves_the_comparison_undecided(bench: Bench) -> None:
    pytest.importorskip("google.adk")
    bench.crown()
    decision = bench.gate(bench.evaluate("candidate", many(9)), bench.again("no_such_module", many(9)))
    assert decision.verdict == "undecided"
    assert any("there is no module 'no_such_module'" in reason for reason in decision.reasons)


def test_progress_and_judges_are_passed_on(bench: Bench) -> None:
    judge, steps = ScriptedJudge({MATCH: "valid"}), list[tuple[int, int]]()
    bench.crown()
    config = {"criteria": {TRAJECTORY: {"threshold": 1.0, "match_type": "ANY_ORDER"}, MATCH: 0.5}}
    again = bench.again(config=config, judge=judge, ledger=False, progress=lambda done, total: steps.append((done, total)))
    candidate = bench.evaluate("candidate", config=config, judge=judge, ledger=False)
    assert bench.gate(candidate, again).passed
    assert steps[-1] == (8, 8)


def test_eval_set_and_config_come_from_the_caller_or_are_pinned(bench: Bench) -> None:
    bench.crown()
    candidate = bench.evaluate("candidate", config=LENIENT)
    digests = {"eval_set": {"digest": eval_set_digest(EIGHT)}, "config": {"digest": parse_config(LENIENT, "config").digest()}}
    nothing, only_set, only_config = (
        make_reevaluator(tracking_uri=bench.uri, **given) for given in ({}, {"eval_set": EIGHT}, {"config": LENIENT})
    )
    assert "the eval set is known only from the candidate's run" in told(bench.gate(candidate, nothing))
    assert "the digest of your config" in told(bench.gate(candidate, only_set))  # ADK's defaults, as for `evaluate`
    assert "the eval set is known only from the candidate's run" in told(bench.gate(candidate, only_config))
    assert bench.gate(candidate, only_config, POLICY | {"eval_set": digests["eval_set"]}).passed
    assert "the config is known only" in told(bench.gate(candidate, nothing, POLICY | {"eval_set": digests["eval_set"]}))
    assert bench.gate(candidate, nothing, POLICY | digests).passed


def test_a_champion_is_evaluated_again_in_the_candidates_world(bench: Bench) -> None:
    called: list[str] = []

    def looking(text: str, session: Any) -> str:
        number = text.split()[1]
        return f"answer {session.tool(look)(n=int(number))}"

    def look(n: int) -> int:
        called.append("look")
        return n

    config = STRICT | {"criteria": {TRAJECTORY: 1.0}}
    how: dict[str, Any] = {"config": config, "tracking_uri": bench.uri, "traces": False}
    champion = adk_eval.evaluate(EIGHT, named("champion", looking), experiment="champion", **how)
    version = register(champion, "helper", tracking_uri=bench.uri)
    assert adk_eval.promote("helper", version, run_id=champion, tracking_uri=bench.uri).passed
    candidate = adk_eval.evaluate(EIGHT, named("candidate", looking), experiment="candidate", record=True, **how)
    assert "met no recorded world, but the candidate met the world" in told(bench.gate(candidate, None))
    refused = bench.gate(candidate, bench.again(config=config))
    assert "it met another recorded world than the candidate, or none; name its agent to run it instead" in told(refused)
    made = len(called)
    decision = bench.gate(candidate, bench.again(named("champion", looking), config=config))
    assert decision.passed
    assert len(called) == made == 2 * len(EIGHT.eval_cases)
    params = bench.run(decision.baseline_run_id).data.params
    assert (params["adk_eval.replay"], params["adk_eval.world_run"]) == ("strict", candidate.run_id)
    # The rounds of a run until decided know the world, whose recorded answers would be no evidence without it.
    policy = {"rules": {TRAJECTORY: {"min": 0.5}}, "replay": {"tools": "strict"}}
    rounds = {"policy": policy, "until_decided": True, "replay": candidate.run_id, "experiment": "candidate"}
    report = adk_eval.evaluate(EIGHT, named("candidate", looking), **rounds, **how)
    assert report.until_decided
    assert report.until_decided.stopped.startswith("decided")
    assert bench.gate(report, None, policy).passed
    assert len(called) == made
