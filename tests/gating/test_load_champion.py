"""What is deployed: the version that verifies, and the agent that it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents.adk.agent import AdkAgent
from mlflow_adk_eval.results.decision import GateFailed
from tests.gating.attacks.test_10_agent_identity import Shop, demanding, edit_prompt, forget
from tests.gating.entrant import Entrant
from tests.gating.gate_kit import Lab


@pytest.fixture
def shop(store: str, tmp_path: Path) -> Iterator[Shop]:
    yield Shop(store, tmp_path / "project")
    forget()


@pytest.mark.needs("google-adk")
def test_the_champion_comes_with_the_agent_that_was_evaluated(shop: Shop) -> None:
    report = shop.evaluate()
    assert shop.promote(shop.register(report), report).passed
    forget()
    champion = adk_eval.load_champion(shop.name, agent=shop.home, tracking_uri=shop.uri)
    assert (champion.version, champion.alias, champion.decision.run_id) == ("1", "champion", report.run_id)
    assert champion.uri == f"models:/{shop.run(report).data.params['adk_eval.model_id']}"
    assert isinstance(champion.agent, AdkAgent)
    assert champion.agent.root.name == "shop"
    assert adk_eval.load_champion(shop.name, tracking_uri=shop.uri).agent is None


@pytest.mark.needs("google-adk")
def test_an_agent_that_was_edited_since_is_not_the_champion(shop: Shop) -> None:
    report = shop.evaluate()
    assert shop.promote(shop.register(report), report).passed
    edit_prompt(shop.home)
    forget()
    with pytest.raises(GateFailed, match=r"the agent is not version 1 of .*: its source is sha256 .* was evaluated"):
        adk_eval.load_champion(shop.name, agent=shop.home, tracking_uri=shop.uri)


def test_a_champion_that_does_not_verify_is_not_loaded(lab: Lab, model: str) -> None:
    champion, other = Entrant(lab, model), Entrant(lab, model)
    with pytest.raises(adk_eval.UsageError, match="has no alias champion"):
        adk_eval.load_champion(model, tracking_uri=lab.uri)
    champion.promote()
    assert adk_eval.load_champion(model, tracking_uri=lab.uri).model_id == champion.model_id
    strict = {"name": "production", "min_cases": 50, "thresholds": True}
    with pytest.raises(GateFailed, match="does not meet the policy 'production'"):
        adk_eval.load_champion(model, policy=strict, tracking_uri=lab.uri)
    with pytest.raises(GateFailed, match="has no source digest"):
        adk_eval.load_champion(model, agent=lambda text: text, tracking_uri=lab.uri)
    other.set_by_hand()
    with pytest.raises(GateFailed, match="it was moved by hand"):
        adk_eval.load_champion(model, tracking_uri=lab.uri)


@pytest.mark.needs("google-adk")
def test_who_deploys_may_demand_an_attestation(shop: Shop, tmp_path: Path) -> None:
    from mlflow_adk_eval.signing.keys import make_key

    public, report = make_key(tmp_path / "key.pem"), shop.evaluate()
    assert shop.promote(shop.register(report), report).passed
    with pytest.raises(GateFailed, match="the run has no attestation"):
        adk_eval.load_champion(shop.name, policy=demanding(public), tracking_uri=shop.uri)
