"""Attack 16: run the champion's own source, crippled by its environment, so that its newest run is one that anybody beats."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.gating.rules.comparable import Reevaluate
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.signing.keys import make_key
from mlflow_adk_eval.tracking.agent_versions import register
from tests.gating.gate_kit import RESPONSE, Lab
from tests.tracking.small import many

pytestmark = pytest.mark.slow

CONFIG = {"criteria": {RESPONSE: 0.5}}
POLICY: dict[str, Any] = {"rules": {RESPONSE: {"max_drop": 0.05, "use": "mean"}}, "baseline": {"alias": "champion"}}
SIX, SEVEN = many(6), many(7)


def careful(text: str, session: Any) -> str:
    return "I do not know" if os.environ.get("CRIPPLED") else f"answer {text.split()[1]}"


def hasty(text: str, session: Any) -> str:
    return "I do not know" if text.endswith(("0", "1", "2")) else f"answer {text.split()[1]}"


@dataclass
class Shop:
    """A champion that was promoted on six cases, while everybody is evaluated on seven now."""

    lab: Lab
    name: str
    key: str | None = None

    def run(self, agent: Any, cases: EvalSet = SEVEN, *, key: str | None = None) -> adk_eval.Report:
        how: dict[str, Any] = {
            "tracking_uri": self.lab.uri,
            "experiment": f"{self.name}_runs",
            "traces": False,
            "signing_key": key or self.key,
        }
        return adk_eval.evaluate(cases, agent, CONFIG, **how)

    def crown(self, policy: Any = None) -> adk_eval.Report:
        report = self.run(careful, SIX)
        assert self.promote(report, policy).passed
        return report

    def promote(self, report: adk_eval.Report, policy: Any = POLICY, again: Reevaluate | None = None) -> Decision:
        version = register(report, self.name, tracking_uri=self.lab.uri)
        how: dict[str, Any] = {"run_id": report, "policy": policy, "tracking_uri": self.lab.uri, "raise_on_failure": False}
        return adk_eval.promote(self.name, version, reevaluate=again, **how)


@pytest.fixture
def shop(lab: Lab, model: str) -> Iterator[Shop]:
    yield Shop(lab, model)
    assert lab.alias(model) in (None, "1")


def told(decision: Decision) -> str:
    return "\n".join(decision.reasons)


def crippled_run(shop: Shop, monkeypatch: pytest.MonkeyPatch, **how: Any) -> str:
    """Return the newest run of the champion's LoggedModel, in which it could do nothing."""
    monkeypatch.setenv("CRIPPLED", "1")
    report = shop.run(careful, **how)
    monkeypatch.delenv("CRIPPLED")
    assert report.scores[RESPONSE] == 0
    return str(report.run_id)


def test_a_run_that_no_promotion_recorded_does_not_speak_for_the_champion(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.crown()
    poor = crippled_run(shop, monkeypatch)
    decision = shop.promote(shop.run(hasty))
    assert decision.verdict == "undecided"
    assert decision.baseline_run_id != poor
    assert "used a different eval set" in told(decision)
    assert "--reevaluate --eval-set FILE" in told(decision)


def test_a_new_evaluation_speaks_for_it_although_there_is_such_a_run(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.crown()
    poor = crippled_run(shop, monkeypatch)
    again = adk_eval.make_reevaluator(careful, eval_set=SEVEN, config=CONFIG, tracking_uri=shop.lab.uri)
    decision = shop.promote(shop.run(hasty), again=again)
    assert decision.verdict == "failed"
    assert decision.baseline_run_id != poor
    assert "(evaluated again as run" in told(decision)


def test_where_a_new_evaluation_is_not_possible_such_a_run_does_not_take_its_place(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.crown()
    crippled_run(shop, monkeypatch)
    again = adk_eval.make_reevaluator(eval_set=SEVEN, config=CONFIG, tracking_uri=shop.lab.uri)
    decision = shop.promote(shop.run(hasty), again=again)
    assert decision.verdict == "undecided"
    assert "it never ran case 'case_0006'" in told(decision)


def test_nor_does_it_speak_for_a_version_that_was_never_promoted(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    register(shop.run(careful), shop.name, tracking_uri=shop.lab.uri)
    poor = crippled_run(shop, monkeypatch)
    candidate = shop.run(hasty)
    decision = shop.promote(candidate, POLICY | {"baseline": {"version": 1}})
    assert decision.verdict == "undecided"
    assert "baseline: {run: ID} in the policy" in told(decision)
    assert decision.baseline_run_id != poor


def test_an_attested_run_speaks_for_it_where_the_policy_demands_that(shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    public = make_key(tmp_path / "gate.pem")
    make_key(tmp_path / "other.pem")
    shop.key = str(tmp_path / "gate.pem")
    policy = POLICY | {"attestation": {"keys": [public.read_text()], "source": "optional"}}
    shop.crown(policy | {"rules": {RESPONSE: {"min": 0.5}}})
    attested = shop.run(careful)
    poor = crippled_run(shop, monkeypatch, key=str(tmp_path / "other.pem"))
    decision = shop.promote(shop.run(hasty), policy)
    assert decision.verdict == "failed"
    assert decision.baseline_run_id == attested.run_id != poor
    assert f"(by its attested run {attested.run_id})" in told(decision)
