"""The same two runs have the same numbers in the gate and in `compare`; where the verdicts differ, the line says why."""

from __future__ import annotations

from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.report.comparison import verdict_on
from tests.gating.gate_kit import RESPONSE, TRAJECTORY, Lab
from tests.tracking.small import answering, many

ELEVEN = many(11)
CONFIG = {"criteria": {TRAJECTORY: 1.0, RESPONSE: 0.5, "tool_call_count_v1": 5, "final_session_state": 1.0}}


def _runs(lab: Lab, wrong: int, config: dict[str, Any] | None = None) -> tuple[adk_eval.Report, adk_eval.Report]:
    wrongly = {f"case_{index:04}": "no idea" for index in range(wrong)}
    agents = (answering(ELEVEN), answering(ELEVEN, **wrongly))
    first, second = (
        adk_eval.evaluate(ELEVEN, agent, config or CONFIG, tracking_uri=lab.uri, experiment="verdicts", ledger="off") for agent in agents
    )
    return first, second


@pytest.mark.parametrize("wrong", [0, 3, 4, 5, 7])
def test_drop_interval_and_p_value_are_the_same(lab: Lab, wrong: int) -> None:
    config = {"criteria": {TRAJECTORY: 1.0}}
    first, second = _runs(lab, wrong, config)
    policy = {"rules": {TRAJECTORY: {"max_drop": 0.05}}, "baseline": {"run": first.run_id}}
    (check,) = adk_eval.gate(second.run_id, policy, tracking_uri=lab.uri, raise_on_failure=False).checks
    delta = adk_eval.compare(first.run_id, second.run_id, tracking_uri=lab.uri).delta(TRAJECTORY)
    assert delta is not None
    assert (check.difference, check.low, check.high) == (delta.difference, delta.low, delta.high)
    if wrong:
        assert check.p_value == delta.p_value == delta.p_adjusted
    assert (check.verdict == "failed") == (verdict_on(delta, 0.95) == "worse") == (wrong >= 5)
    assert ((check.high or 0) < 0) == (wrong >= 5)


def test_seven_of_eleven_is_a_drop_in_both(lab: Lab) -> None:
    """The demo: p was 0.016 here, "more than luck", and 0.078 there, "may be chance", beside an interval without zero."""
    first, second = _runs(lab, 7, {"criteria": {TRAJECTORY: 1.0, RESPONSE: 0.5, "tool_call_count_v1": 5}})
    rules = {name: {"max_drop": 0.05} for name in (TRAJECTORY, RESPONSE)}
    decision = adk_eval.gate(
        second.run_id, {"rules": rules, "baseline": {"run": first.run_id}}, tracking_uri=lab.uri, raise_on_failure=False
    )
    found = adk_eval.compare(first.run_id, second.run_id, tracking_uri=lab.uri)
    for check in decision.checks:
        delta = found.delta(check.measure)
        assert delta is not None
        assert delta.p_value is not None
        assert check.verdict == "failed"
        assert f"adjusted for 2 comparisons; {delta.p_value:.2g} alone" in check.reason
        assert verdict_on(delta, 0.95) == "worse"
        assert (check.low, check.high) == (delta.low, delta.high)
