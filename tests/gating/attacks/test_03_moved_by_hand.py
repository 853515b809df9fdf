"""Attack 3: move or delete the champion's alias by hand, so that a candidate is compared with somebody else, or with nobody."""

from __future__ import annotations

import pytest

from tests.gating.entrant import Entrant
from tests.gating.gate_kit import TRAJECTORY, Lab, evidence_of, report_of

pytestmark = pytest.mark.slow

POLICY = {"rules": {TRAJECTORY: {"min": 0.3, "max_drop": 0.05, "use": "mean"}}, "baseline": {"alias": "champion"}}


def lenient(lab: Lab, model: str) -> Entrant:
    """Return a poor version that passed once, by a policy that demanded little."""
    poor = Entrant(lab, model, good=False)
    assert poor.promote(policy={"rules": {TRAJECTORY: {"min": 0.1}}}).passed
    return poor


@pytest.mark.parametrize("how", ["moved to a former champion", "moved to a stranger", "deleted"])
def test_an_alias_that_is_not_where_its_claim_log_has_it_is_compared_with_nobody(how: str, lab: Lab, model: str) -> None:
    poor, good = lenient(lab, model), Entrant(lab, model)
    good.promote()
    regressed = Entrant(lab, model, good=False)
    if how == "deleted":
        lab.client.delete_registered_model_alias(model, "champion")
    elif how == "moved to a stranger":
        stranger = Entrant(lab, model)
        stranger.run_id = lab.log(evidence_of(report_of(wrong=["lights", "heating", "film"]), model_id=stranger.model_id))
        stranger.set_by_hand()
    else:
        poor.set_by_hand()
    before = lab.alias(model)
    decision = regressed.promote(policy=POLICY, raise_on_failure=False)
    assert decision.verdict == "undecided"
    assert f"but its claim log says version {good.version}: it was moved by hand" in "\n".join(decision.reasons)
    assert lab.alias(model) == before


def test_an_alias_that_was_only_ever_set_by_hand_is_compared_with_by_nobody(lab: Lab, model: str) -> None:
    poor = Entrant(lab, model, good=False)
    poor.set_by_hand()
    decision = Entrant(lab, model).promote(policy=POLICY, raise_on_failure=False)
    assert decision.verdict == "undecided"
    assert "its claim log does not show that promotion: it was set by hand" in "\n".join(decision.reasons)
