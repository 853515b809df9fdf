"""What a run is compared with: found by alias, version or run, refused, or evaluated again, in a real MLflow store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.models import EvalSet, eval_set_digest
from mlflow_adk_eval.gating.api import gate, promote
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.promotion.baseline_search import BaselineSearch, overridden
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.gating.rules.comparable import ReevaluationRequest
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.runs.examined import examine
from mlflow_adk_eval.runs.manifest import Evidence
from tests.gating.gate_kit import TRAJECTORY, Lab, changed, eval_set_of, evidence_of, report_of, with_artifact


def cases(count: int) -> EvalSet:
    return eval_set_of({f"case_{number}": [(f"Do {number}.", f"Done {number}.", "tool")] for number in range(count)})


EIGHT, NINE = cases(8), cases(9)
ALL_BUT_ONE = [f"case_{number}" for number in range(1, 8)]
POLICY: dict[str, Any] = {
    "rules": {TRAJECTORY: {"max_drop": 0.35}, "response_match_score": {"min": 0.5}},
    "baseline": {"alias": "champion"},
}


def demanding(**baseline: Any) -> dict[str, Any]:
    return POLICY | {"baseline": baseline}


def made_of(model_id: str, *, wrong: Iterable[str] = (), eval_set: EvalSet = EIGHT, **config: Any) -> Evidence:
    return evidence_of(report_of(eval_set=eval_set, wrong=wrong, **config), model_id=model_id)


@dataclass
class Scene:
    """A registered model in a store."""

    lab: Lab
    name: str

    def register(self) -> tuple[str, str]:
        """Return the number of a new version, and its LoggedModel."""
        model_id = self.lab.agent()
        return self.lab.register(self.name, f"models:/{model_id}"), model_id

    def run(self, model_id: str, **how: Any) -> str:
        return self.lab.log(made_of(model_id, **how))

    def champion(self, **how: Any) -> str:
        """Promote a first version and return its run."""
        version, model_id = self.register()
        run_id = self.run(model_id, **how)
        assert self.promote(version, run_id, policy=None).passed
        return run_id

    def candidate(self, **how: Any) -> str:
        return self.run(self.lab.agent(), **how)

    def gate(self, run_id: str, policy: Any = POLICY, **options: Any) -> Decision:
        return gate(run_id, policy, **{"model": self.name} | options, tracking_uri=self.lab.uri, raise_on_failure=False)

    def promote(self, version: str, run_id: str, policy: Any = POLICY, **options: Any) -> Decision:
        how = {"run_id": run_id, "policy": policy, "tracking_uri": self.lab.uri}
        return promote(self.name, version, **how, **options, raise_on_failure=False)


@pytest.fixture
def scene(lab: Lab, model: str) -> Scene:
    return Scene(lab, f"{model}_compared")


def about(decision: Decision) -> str:
    """Return why nothing was compared."""
    return next(reason for reason in decision.reasons if reason.startswith("not compared with"))


@pytest.mark.slow
def test_a_run_is_compared_with_the_run_of_the_champions_record(scene: Scene) -> None:
    champion = scene.champion()
    decision = scene.gate(scene.candidate())
    assert decision.passed
    assert decision.baseline_run_id == champion
    assert decision.baseline_sha256 == scene.lab.client.get_run(champion).data.params["adk_eval.manifest_sha256"]


def test_a_worse_run_is_refused_and_told_against_whom(scene: Scene) -> None:
    scene.champion()
    decision = scene.gate(scene.candidate(wrong=ALL_BUT_ONE))
    assert decision.verdict == "failed"
    assert f"against 1 for the champion, version 1 of {scene.name!r}" in decision.reasons[0]


@pytest.mark.slow
def test_a_promotion_is_compared_with_the_champion_of_its_own_model(scene: Scene) -> None:
    champion = scene.champion()
    version, model_id = scene.register()
    decision = scene.promote(version, scene.run(model_id))
    assert decision.passed
    assert decision.baseline_run_id == champion
    assert scene.lab.alias(scene.name) == version


def test_a_worse_version_does_not_become_champion(scene: Scene) -> None:
    scene.champion()
    version, model_id = scene.register()
    assert scene.promote(version, scene.run(model_id, wrong=ALL_BUT_ONE)).verdict == "failed"
    assert scene.lab.alias(scene.name) == "1"


@pytest.mark.slow
def test_the_champion_may_be_promoted_again(scene: Scene) -> None:
    champion = scene.champion()
    decision = scene.promote("1", champion)
    assert decision.passed
    assert any("itself" in note for note in decision.notes)


def test_without_a_champion_the_absolute_rules_decide(scene: Scene) -> None:
    version, model_id = scene.register()
    run_id = scene.run(model_id)
    decision = scene.gate(run_id)
    assert decision.passed
    assert f"the champion of {scene.name!r}" in decision.notes[0]
    assert scene.gate(run_id, demanding(alias="champion", if_missing="refuse")).verdict == "undecided"
    assert scene.promote(version, run_id).passed


def test_a_model_that_does_not_exist_is_no_missing_champion(scene: Scene) -> None:
    run_id = scene.candidate()
    with pytest.raises(UsageError, match=r"'misspelt' does not exist .*--register misspelt` registers its first version"):
        scene.gate(run_id, model="misspelt")
    with pytest.raises(UsageError, match="names no registered model"):
        scene.gate(run_id, model=None)


@pytest.mark.slow
def test_the_policy_may_name_the_model_a_version_or_a_run(scene: Scene) -> None:
    champion = scene.champion()
    candidate = scene.candidate()
    for baseline in ({"alias": "champion", "model": scene.name}, {"version": 1, "model": scene.name}, {"run": champion}):
        assert scene.gate(candidate, demanding(**baseline), model=None).baseline_run_id == champion
    with pytest.raises(UsageError, match="run 'nonsense' does not exist"):
        scene.gate(candidate, demanding(run="nonsense"))
    with pytest.raises(UsageError, match="version 7 of the registered model"):
        scene.gate(candidate, demanding(version=7))


@pytest.mark.slow
def test_the_caller_may_name_another_baseline(scene: Scene) -> None:
    champion, candidate = scene.champion(), scene.candidate()
    other = scene.candidate(wrong=ALL_BUT_ONE)
    assert scene.gate(other, baseline=f"runs:/{other}").verdict == "undecided"  # with itself
    assert scene.gate(candidate, baseline=f"runs:/{other}").baseline_run_id == other
    for baseline in (f"models:/{scene.name}@champion", f"models:/{scene.name}/1"):
        assert scene.gate(candidate, baseline=baseline, model=None).baseline_run_id == champion


@pytest.mark.parametrize("named", ["champion", "models:/home", "runs:/", "models:/home/x", "runs:/a/b"])
def test_a_baseline_is_named_as_mlflow_names_things(named: str) -> None:
    with pytest.raises(UsageError, match="wanted runs:/ID, models:/NAME/VERSION or models:/NAME@ALIAS"):
        overridden(load_policy(POLICY), named)


def test_another_baseline_keeps_what_the_policy_says_of_baselines() -> None:
    policy = overridden(load_policy(demanding(alias="champion", if_incomparable="refuse", if_missing="refuse")), "models:/a/7")
    assert policy.baseline is not None
    assert policy.baseline.model_dump(exclude_none=True) == {
        "version": 7,
        "model": "a",
        "if_missing": "refuse",
        "if_incomparable": "refuse",
    }
    assert overridden(policy, None) is policy


def test_a_baseline_for_a_policy_that_compares_nothing_is_a_mistake(scene: Scene) -> None:
    with pytest.raises(UsageError, match="the policy 'default' compares nothing"):
        scene.gate(scene.candidate(), policy=None, baseline="runs:/a")


def test_a_policy_that_compares_nothing_asks_for_no_champion(scene: Scene) -> None:
    policy = {"rules": {TRAJECTORY: {"min": 0.5}}, "baseline": {"alias": "champion"}}
    assert scene.gate(scene.candidate(), policy, model=None).passed


@pytest.mark.slow
def test_a_champion_that_was_set_by_hand_is_not_compared_with_until_it_is_promoted_itself(scene: Scene) -> None:
    version, model_id = scene.register()
    scene.lab.client.set_registered_model_alias(scene.name, "champion", version)
    champion, candidate = scene.run(model_id), scene.candidate()
    by_hand = f"version 1 of {scene.name!r} holds the alias champion, but its claim log does not show that promotion: it was set by hand"
    assert by_hand in about(scene.gate(candidate))
    assert scene.promote(version, champion).passed
    assert scene.gate(candidate).baseline_run_id == champion


def test_a_version_that_was_never_promoted_is_known_by_a_run_that_is_named_or_made(scene: Scene) -> None:
    version, model_id = scene.register()
    policy = POLICY | {"baseline": {"version": int(version)}}
    candidate = scene.candidate()
    run_id = scene.run(model_id)
    missing = scene.gate(candidate, policy)
    assert about(missing) == f"not compared with version 1 of {scene.name!r}: no promotion record names a run of it"
    evaluate = f"mlflow-adk-eval run AGENT EVAL_SET --agent-version models:/{scene.name}/1"
    remedy = f"evaluate it ({evaluate}) and name that run: --baseline runs:/ID, or baseline: {{run: ID}} in the policy"
    assert remedy in "\n".join(missing.reasons)
    assert scene.gate(candidate, policy, baseline=f"runs:/{run_id}").baseline_run_id == run_id
    rematches = Rematches(scene)
    assert scene.gate(candidate, policy, reevaluate=rematches).passed
    assert [request.run_id for request in rematches.asked] == [""]


def test_the_champions_own_run_on_other_cases_is_compared_with_nothing(scene: Scene, lab: Lab) -> None:
    model_id = lab.client.get_run(scene.champion()).data.params["adk_eval.model_id"]
    scene.run(model_id, eval_set=NINE, wrong=ALL_BUT_ONE)
    own, rematches = scene.run(model_id, eval_set=NINE), Rematches(scene)
    decision = scene.gate(own, reevaluate=rematches)
    assert (decision.verdict, decision.baseline_run_id, rematches.asked) == ("passed", own, [])
    assert f"the run belongs to the champion, version 1 of {scene.name!r}, the baseline itself" in decision.notes[0]


def test_a_champion_that_is_no_logged_model_cannot_be_compared_with(scene: Scene, lab: Lab) -> None:
    version = lab.register(scene.name, "s3://bucket/model")
    lab.client.set_registered_model_alias(scene.name, "champion", version)
    assert "it was made from 's3://bucket/model', not from a LoggedModel" in about(scene.gate(scene.candidate()))


@pytest.mark.parametrize("spoil", ["deleted", "edited"])
def test_a_champion_whose_evidence_does_not_hold_is_not_compared_with(scene: Scene, lab: Lab, spoil: str) -> None:
    champion, candidate = scene.champion(), scene.candidate()
    if spoil == "deleted":
        lab.client.delete_run(champion)
    else:
        lab.client.log_text(champion, "{}", "adk_eval/cells/part-00000.parquet")
    decision = scene.gate(candidate)
    assert decision.verdict == "undecided"
    reason = "the run is deleted" if spoil == "deleted" else "the artifact adk_eval/cells/part-00000.parquet was changed after the run"
    assert about(decision).endswith(f": run {champion}: {reason}")


def test_a_run_that_says_nothing_of_its_agent_is_only_compared_as_it_is(scene: Scene) -> None:
    known = evidence_of(report_of(eval_set=EIGHT))
    nameless = replace(changed(known, "params", {"adk_eval.model_id": None}), model_ids=())
    run_id = scene.lab.log(nameless)
    assert scene.gate(scene.candidate(), baseline=f"runs:/{run_id}").passed
    refused = scene.gate(scene.candidate(eval_set=NINE), baseline=f"runs:/{run_id}", reevaluate=Rematches(scene))
    assert "used a different eval set" in about(refused)


class Rematches:
    """Evaluates champions anew, as far as the gate is concerned."""

    def __init__(self, scene: Scene, *, model_id: str | None = None, **how: Any) -> None:
        self.scene, self.model_id, self.how, self.asked = scene, model_id, how, list[ReevaluationRequest]()

    def __call__(self, rematch: ReevaluationRequest) -> str:
        self.asked.append(rematch)
        return self.scene.run(
            self.model_id or rematch.model_id, eval_set=rematch.candidate.eval_set, config=rematch.candidate.report.config, **self.how
        )


@pytest.mark.slow
def test_a_champion_on_other_cases_is_evaluated_anew(scene: Scene, lab: Lab) -> None:
    champion, candidate = scene.champion(), scene.candidate(eval_set=NINE)
    rematches = Rematches(scene)
    decision = scene.gate(candidate, reevaluate=rematches)
    assert decision.passed
    (rematch,) = rematches.asked
    asked_for = rematch.candidate
    params = lab.client.get_run(candidate).data.params
    assert (rematch.run_id, asked_for.evidence.run_id, asked_for.report.num_runs) == (champion, candidate, 1)
    assert rematch.agent_version == f"models:/{scene.name}/1"
    assert eval_set_digest(asked_for.eval_set) == params["adk_eval.eval_set_digest"]
    assert asked_for.report.config.digest() == params["adk_eval.config_digest"]
    assert "used a different eval set" in rematch.reasons[0]
    assert (rematch.policy.eval_set, rematch.policy.config) == (None, None)
    assert decision.baseline_run_id not in (champion, candidate)
    assert scene.gate(candidate).verdict == "undecided"  # whoever can run the champion can leave such a run


def test_a_run_that_was_made_for_a_decision_serves_when_it_is_decided_anew(scene: Scene, lab: Lab) -> None:
    scene.champion()
    rematches = Rematches(scene)
    with store_at(lab.uri) as store:
        search = BaselineSearch(store=store, policy=load_policy(POLICY), model=scene.name, reevaluate=rematches)
        candidate = examine(store.evidence(scene.candidate(eval_set=NINE)))
        first, second = search(candidate), search(candidate)
    assert first is not None
    assert first.run is not None
    assert first == second
    assert len(rematches.asked) == 1


def test_the_new_run_is_what_decides_and_it_is_named(scene: Scene) -> None:
    scene.champion()
    rematches = Rematches(scene, wrong=ALL_BUT_ONE)
    decision = scene.gate(scene.candidate(eval_set=NINE, wrong=ALL_BUT_ONE), reevaluate=rematches)
    assert decision.passed  # the champion is no better on these cases
    worse = scene.gate(scene.candidate(eval_set=NINE, wrong=[*ALL_BUT_ONE, "case_0", "case_8"]), reevaluate=rematches)
    assert f"(evaluated again as run {worse.baseline_run_id})" in "\n".join(worse.reasons)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["nobody", "refused"])
def test_without_anybody_to_do_it_or_the_policys_leave_nothing_is_evaluated_anew(scene: Scene, how: str) -> None:
    scene.champion()
    rematches = Rematches(scene)
    policy = demanding(alias="champion", if_incomparable="refuse") if how == "refused" else POLICY
    decision = scene.gate(scene.candidate(eval_set=NINE), policy, reevaluate=rematches if how == "refused" else None)
    assert decision.verdict == "undecided"
    assert "used a different eval set" in about(decision)
    assert ("--champion-agent" in "\n".join(decision.reasons)) == (how == "nobody")
    assert not rematches.asked


@pytest.mark.slow
def test_a_new_run_must_be_evidence_about_the_champion(scene: Scene) -> None:
    scene.champion()
    decision = scene.gate(scene.candidate(eval_set=NINE), reevaluate=Rematches(scene, model_id=scene.lab.agent()))
    assert decision.verdict == "undecided"
    assert "it was evaluated again, but run" in about(decision)
    assert "the run evaluated another agent version" in about(decision)


@pytest.mark.slow
def test_why_it_cannot_be_evaluated_anew_is_a_reason(scene: Scene) -> None:
    def refuse(rematch: ReevaluationRequest) -> str:
        raise UsageError("it never ran case 'case_8'")

    scene.champion()
    decision = scene.gate(scene.candidate(eval_set=NINE), reevaluate=refuse)
    assert "it could not be evaluated again: it never ran case 'case_8'" in "\n".join(decision.reasons)


@pytest.mark.slow
def test_nothing_is_paid_for_a_run_that_fails_by_itself_or_is_no_evidence(scene: Scene, lab: Lab) -> None:
    scene.champion()
    rematches = Rematches(scene)
    policy = {"rules": {TRAJECTORY: {"min": 0.9, "max_drop": 0.35}}, "baseline": {"alias": "champion"}}
    bad = scene.gate(scene.candidate(eval_set=NINE, wrong=ALL_BUT_ONE), policy, reevaluate=rematches)
    assert bad.verdict == "failed"
    assert "it was not evaluated again, because the run cannot pass anyway: " in "\n".join(bad.reasons)
    edited = lab.log(replace(with_artifact(made_of(lab.agent(), eval_set=NINE), "config.json", b"{}"), manifest=b"{}"))
    assert scene.gate(edited, reevaluate=rematches).verdict == "undecided"
    assert not rematches.asked


@pytest.mark.slow
def test_a_dry_run_evaluates_anew_only_if_asked_and_leaves_the_registry_alone(scene: Scene, lab: Lab) -> None:
    scene.champion()
    version, model_id = scene.register()
    run_id = scene.run(model_id, eval_set=NINE)
    assert "--reevaluate" in "\n".join(scene.promote(version, run_id, dry_run=True).reasons)
    rematches = Rematches(scene)
    assert scene.promote(version, run_id, dry_run=True, reevaluate=rematches).passed
    assert len(rematches.asked) == 1
    assert (lab.alias(scene.name), lab.tags(scene.name, version)) == ("1", {})


@pytest.mark.slow
def test_the_module_takes_what_the_function_takes(scene: Scene) -> None:
    champion, candidate = scene.champion(), scene.candidate()
    decision = adk_eval.gate(candidate, POLICY, model=scene.name, tracking_uri=scene.lab.uri, registry_uri=scene.lab.uri)
    assert decision.baseline_run_id == champion
    named = adk_eval.gate(candidate, POLICY, baseline=f"runs:/{champion}", reevaluate=None, tracking_uri=scene.lab.uri)
    assert named.baseline_run_id == champion
