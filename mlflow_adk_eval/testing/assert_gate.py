"""The gate inside a test: an `AssertionError` that says what was demanded and what was found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from typing import Any

from rich.console import Console

from mlflow_adk_eval.foreign import foreign_code
from mlflow_adk_eval.gating.api import decided, gate
from mlflow_adk_eval.gating.baseline.comparable import Reevaluate
from mlflow_adk_eval.gating.baseline.search import BaselineSearch, overridden
from mlflow_adk_eval.gating.evidence.examine import examine
from mlflow_adk_eval.gating.mlflow_store import store_at
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.promotion.record import stamped
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.report.console import decision_view
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.tracking.bundle import evidence_of_report

_NOT_LOGGED = "(not logged)"
_NOTE = "the report was not logged in MLflow: this was decided from the report itself, and nobody can verify it later"
_WIDTH = 140


@foreign_code("code that decides")
def assert_gate(
    report: Report | str,
    policy: Any = None,
    *,
    baseline: str | None = None,
    model: str | None = None,
    reevaluate: Reevaluate | None = None,
    agent_version: str | None = None,
    tracking_uri: str | None = None,
) -> Decision:
    """Hold a report, or the run with an id, to a policy, and return the decision, which is *passed*.

    A report that was not logged needs no MLflow, unless the policy compares with a champion.

    Args:
        report: the report, or the id of a run.
        policy: as of `mlflow_adk_eval.gate`, and so are the other arguments.
        baseline: what it is compared with, instead of the policy's baseline.
        model: the registered model of the policy's baseline.
        reevaluate: evaluates the baseline anew where it cannot be compared as it is.
        agent_version: the agent that must have been evaluated.
        tracking_uri: where MLflow is.

    Raises:
        AssertionError: if the decision is not *passed*, with the reasons and what each rule came to.
        UsageError: if there is no such run, or nothing that the policy's baseline could be.
        TrackingError: if MLflow cannot be reached.
    """
    __tracebackhide__ = True
    demanded = overridden(load_policy(policy), baseline)
    how: dict[str, Any] = {"model": model, "reevaluate": reevaluate, "agent_version": agent_version, "tracking_uri": tracking_uri}
    if isinstance(report, Report) and report.run_id is None:
        decision = _unlogged(report, demanded, **how)
    else:
        decision = gate(report, demanded, **how, raise_on_failure=False)
    if not decision.passed:
        raise AssertionError(_told(decision))
    return decision


def _unlogged(
    report: Report,
    policy: Policy,
    *,
    model: str | None,
    reevaluate: Reevaluate | None,
    agent_version: str | None,
    tracking_uri: str | None,
) -> Decision:
    run = examine(evidence_of_report(report))
    if policy.compares or agent_version or policy.calibration:
        with store_at(tracking_uri) as store:
            search = BaselineSearch(store=store, policy=policy, model=model, reevaluate=reevaluate)
            decision = decided(run, search, agent_version)
    else:
        decision = stamped(decide(run, policy), datetime.now(UTC))
    return replace(decision, run_id=_NOT_LOGGED, notes=(*decision.notes, _NOTE))


def _told(decision: Decision) -> str:
    page = StringIO()
    Console(file=page, width=_WIDTH, highlight=False, no_color=True).print(decision_view(decision))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())
