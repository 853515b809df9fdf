"""Attack 12: have whoever deploys believe a version by what others chose or added after the fact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.agents.source import source_of
from mlflow_adk_eval.results.decision import GateFailed
from mlflow_adk_eval.signing.keys import make_key
from tests.gating.entrant import Entrant
from tests.gating.gate_kit import TRAJECTORY, Lab, eval_set_of, evidence_of, report_of

pytestmark = pytest.mark.slow
CASES = eval_set_of({f"case_{number}": [(f"Question {number}", f"Answer {number}", "look_up")] for number in range(30)})
LENIENT = {"criteria": {TRAJECTORY: 0.1}}
RULES = {"rules": {TRAJECTORY: {"min": 0.5, "max_drop": 0.1}}}
OURS: dict[str, Any] = {"name": "ours", **RULES, "baseline": {"alias": "champion"}}


def entrant(lab: Lab, model: str, *, wrong: int = 0) -> Entrant:
    found = Entrant(lab, model)
    report = report_of(eval_set=CASES, config=LENIENT, wrong=[f"case_{number}" for number in range(wrong)])
    found.run_id = lab.log(evidence_of(report, model_id=found.model_id))
    return found


@pytest.mark.parametrize("kind", ["alias", "version", "run"])
def test_who_promotes_does_not_choose_what_the_policy_of_who_deploys_compares_with(kind: str, lab: Lab, model: str) -> None:
    champion, regressed, poor = entrant(lab, model), entrant(lab, model, wrong=12), entrant(lab, model, wrong=12)
    assert champion.promote(policy=OURS).passed
    assert regressed.promote(policy=OURS, dry_run=True, raise_on_failure=False).verdict == "failed"
    assert poor.promote("lesser", policy={"rules": {TRAJECTORY: {"max": 0.9}}}).passed
    theirs = {"alias": {"alias": "nobody"}, "version": {"version": int(poor.version)}, "run": {"run": poor.run_id}}[kind]
    assert regressed.promote(policy={"name": "theirs", **RULES, "baseline": theirs}).passed
    assert regressed.verify().passed
    refused = regressed.verify(policy=OURS)
    assert refused.verdict == "undecided"
    assert (
        f"version 2 of {model!r} was promoted with the policy 'theirs', but that compared with another baseline ({kind} "
        in refused.reasons[1]
    )
    with pytest.raises(GateFailed, match="compared with another baseline"):
        adk_eval.load_champion(model, policy=OURS, tracking_uri=lab.uri)
    without = {"name": "without", "rules": {TRAJECTORY: {"min": 0.5}}}
    assert regressed.verify(policy=without).passed


def test_a_policy_of_who_deploys_takes_the_comparison_with_the_baseline_that_it_names(lab: Lab, model: str) -> None:
    champion, second = entrant(lab, model), entrant(lab, model)
    for each in (champion, second):
        assert each.promote(policy=OURS).passed
    named = {**OURS, "baseline": {"alias": "champion", "model": model, "if_missing": "refuse"}}
    assert second.verify(policy=named).passed
    assert champion.verify(policy=named, alias=None, version=champion.version).verdict == "undecided"  # there was nobody before it


def test_a_source_that_was_added_to_the_parameters_of_the_run_is_not_the_one_that_was_evaluated(
    lab: Lab, model: str, tmp_path: Path
) -> None:
    champion, public = Entrant(lab, model), make_key(tmp_path / "key.pem")
    champion.promote(signing_key=tmp_path / "key.pem")

    def other(text: str) -> str:
        return text

    lab.client.log_param(champion.run_id, "adk_eval.agent.source_sha256", source_of(resolve_agent(other)).sha256)
    assert champion.verify(verify_key=public).passed
    with pytest.raises(GateFailed, match="has no source digest"):
        adk_eval.load_champion(model, agent=other, verify_key=public, tracking_uri=lab.uri)
