"""Attack 25: have `latest`, `champion` or the beginning of an id mean a run that its author likes better."""

from __future__ import annotations

import time

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.named_runs import run_id_at
from tests.gating.entrant import Entrant
from tests.gating.gate_kit import Lab

POLICY = {"rules": {"case_pass_rate": {"max_drop": 0}}, "baseline": {"alias": "champion"}}


def test_latest_goes_by_what_nobody_can_take_back(lab: Lab, model: str) -> None:
    good, bad = Entrant(lab, model), Entrant(lab, model, good=False)
    for run, status in ((good, "complete"), (bad, "failed")):  # all that anybody may write says that the good run is the later one
        lab.client.set_tag(run.run_id, "adk_eval.status", status)
        lab.client.set_tag(run.run_id, "adk_eval.verdict", "passed" if run is good else "failed")
    lab.client.set_tag(good.run_id, "latest", "latest")
    lab.client.delete_tag(bad.run_id, "adk_eval.verdict")
    lab.client.set_terminated(bad.run_id, "FAILED")
    lab.client.update_run(good.run_id, name="latest")
    decision = adk_eval.gate("latest", tracking_uri=lab.uri, raise_on_failure=False)
    assert (decision.run_id, decision.passed) == (bad.run_id, False)

    # Something that only looks like an evaluation is decided on, and not passed over.
    decoy = lab.client.create_run(lab.experiment_id).info.run_id
    lab.client.log_param(decoy, "adk_eval.manifest_sha256", "0" * 64)
    lab.client.set_terminated(decoy)
    decision = adk_eval.gate("runs:/latest", tracking_uri=lab.uri, raise_on_failure=False)
    assert (decision.run_id, decision.verdict) == (decoy, "undecided")
    lab.client.delete_run(decoy)

    # A version is promoted on its own latest run, whatever was evaluated since.
    assert good.run_id != bad.run_id
    assert adk_eval.promote(model, good.version, run_id="latest", tracking_uri=lab.uri).run_id == good.run_id
    refused = adk_eval.promote(model, good.version, run_id=bad.run_id[:31], tracking_uri=lab.uri, raise_on_failure=False)
    assert (refused.run_id, refused.passed) == (bad.run_id, False)
    assert "evaluated another" in " ".join(refused.reasons) or bad.model_id in " ".join(refused.reasons)


def test_a_run_of_the_future_is_no_latest_one(lab: Lab) -> None:
    planted = lab.client.create_run(lab.experiment_id, start_time=int((time.time() + 3600) * 1000), run_name="mine\x1b[2J").info.run_id
    lab.client.log_param(planted, "adk_eval.manifest_sha256", "0" * 64)
    try:
        with pytest.raises(UsageError, match=f"run {planted} claims to start in the future, mine�") as refused:
            adk_eval.gate("latest", tracking_uri=lab.uri)
        assert "\x1b" not in str(refused.value)
    finally:
        lab.client.delete_run(planted)


def test_champion_goes_by_the_claim_log_and_not_by_tags(lab: Lab, model: str) -> None:
    champion, rival = Entrant(lab, model), Entrant(lab, model)
    champion.promote()
    place = champion.tags["adk_eval.gate.record"]
    lab.client.set_model_version_tag(model, champion.version, "adk_eval.gate.record", place.replace(champion.run_id, rival.run_id))
    for name in (f"{model}@champion", f"models:/{model}@champion", f"runs:/{model}@champion"):
        with pytest.raises(UsageError, match=r"the tag adk_eval\.gate\.record disagrees with the promotion record"):
            run_id_at(name, lab.uri)
    lab.client.set_model_version_tag(model, champion.version, "adk_eval.gate.record", place)
    assert run_id_at(f"{model}@champion", lab.uri) == champion.run_id
    assert adk_eval.gate("champion", model=model, tracking_uri=lab.uri).run_id == champion.run_id
    # As an opponent, a run is named by whoever decides: the candidate could have left the latest one there.
    with pytest.raises(UsageError, match="the author of the candidate could choose it"):
        adk_eval.gate(rival.run_id, POLICY, baseline="runs:/latest", tracking_uri=lab.uri)
    compared = adk_eval.gate(rival.run_id, POLICY, baseline=f"runs:/{champion.run_id[:30]}", tracking_uri=lab.uri, raise_on_failure=False)
    assert compared.baseline_run_id == champion.run_id
    rival.set_by_hand()
    with pytest.raises(UsageError, match="it was moved by hand"):
        run_id_at(f"{model}@champion", lab.uri)
    with pytest.raises(UsageError, match="has no alias challenger"):
        run_id_at(f"{model}@challenger", lab.uri)
    # Of several models that have a champion, none is taken.
    Entrant(lab, f"{model}_too").promote()
    with pytest.raises(UsageError, match=r"'champion': .*@champion, .* exist; wanted an id"):
        run_id_at("champion", lab.uri)
