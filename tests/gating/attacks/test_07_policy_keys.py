"""Attack 7, second half: keys of a policy that mean something else than they show, and numbers that are texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import PolicyError
from tests.gating.gate_kit import RESPONSE, Lab, evidence_of, report_of

pytestmark = pytest.mark.slow

RULE = {"min": 0.9}
POLICIES: dict[str, tuple[dict[str, Any], str, str]] = {
    "rule": ({"rules": {RESPONSE: RULE, f" {RESPONSE}": {"min": 0.1}}}, f"$.rules[' {RESPONSE}']", "without leading or trailing spaces"),
    "slice": (
        {"slices": {"money": {"ids": ["*"], "rules": {RESPONSE: RULE}}, "money\t": {"ids": ["film"], "rules": {RESPONSE: RULE}}}},
        "$.slices['money\\t']",
        "without leading or trailing spaces",
    ),
    "rule of a slice": (
        {"slices": {"s": {"ids": ["*"], "rules": {RESPONSE: RULE, f"{RESPONSE}\n": {"min": 0.1}}}}},
        f"$.slices.s.rules['{RESPONSE}\\n']",
        "without leading or trailing spaces",
    ),
    "price": (
        {"rules": {"cost": {"max": 1.0}}, "prices": {"agent ": {"tokens": 0.0}}},
        "$.prices['agent ']",
        "without leading or trailing spaces",
    ),
    "must_pass": ({"must_pass": ["film", " film"]}, "$.must_pass[1]", "without leading or trailing spaces"),
    "waiver": (
        {"thresholds": True, "waivers": [{"case": "film ", "owner": "Ada", "reason": "x", "expires": "2030-01-01"}]},
        "$.waivers[0].case",
        "without leading or trailing spaces",
    ),
    "judge": ({"thresholds": True, "judge": {"models": ["gemini "]}}, "$.judge.models[0]", "without leading or trailing spaces"),
    "confidence": ({"rules": {RESPONSE: RULE}, "confidence": "0.95"}, "$.confidence", "a number"),
    "confidence of a rule": ({"rules": {RESPONSE: RULE | {"confidence": "0.95"}}}, f"$.rules.{RESPONSE}.confidence", "a number"),
    "power": ({"rules": {RESPONSE: RULE}, "power": "0.8"}, "$.power", "a number"),
    "confidence that is true": ({"rules": {RESPONSE: RULE}, "confidence": True}, "$.confidence", "a number"),
    "thresholds": ({"thresholds": "yes"}, "$.thresholds", "true or false"),
}


@pytest.fixture(scope="module")
def run_id(lab: Lab) -> str:
    return lab.log(evidence_of(report_of(), model_id=lab.agent()))


@pytest.mark.parametrize("name", POLICIES)
def test_it_is_refused_and_named(lab: Lab, run_id: str, name: str) -> None:
    policy, path, wanted = POLICIES[name]
    with pytest.raises(PolicyError) as caught:
        adk_eval.gate(run_id, policy, tracking_uri=lab.uri)
    (problem,) = [problem for problem in caught.value.problems if problem.path == path]
    assert wanted in problem.wanted


def test_so_it_is_in_files(lab: Lab, run_id: str, tmp_path: Path) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text(f"rules:\n  {RESPONSE}: {{min: 0.9}}\n  ' {RESPONSE}': {{min: 0.1}}\nconfidence: '0.95'\n")
    with pytest.raises(PolicyError) as caught:
        adk_eval.gate(run_id, file, tracking_uri=lab.uri)
    assert [problem.path for problem in caught.value.problems] == ["$.confidence", f"$.rules[' {RESPONSE}']"]


def test_what_people_read_may_end_with_a_line(lab: Lab, run_id: str, tmp_path: Path) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text("thresholds: true\nwaivers:\n  - case: film\n    owner: Ada\n    expires: 2090-01-01\n    reason: |\n      ticket 7\n")
    assert adk_eval.gate(run_id, file, tracking_uri=lab.uri).waived == ("case 'film': waived by Ada until 2090-01-01: ticket 7",)
