"""The gate inside a test: an `AssertionError` that says what was demanded and what was found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from typing import Any

from rich.console import Console

from mlflow_adk_eval.errors import foreign_code
from mlflow_adk_eval.gating.api import decided, gate
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.promotion.baseline_search import BaselineSearch, overridden
from mlflow_adk_eval.gating.promotion.record import stamped
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.gating.rules.comparable import Reevaluate
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.report.console import decision_view
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.examined import examine
from mlflow_adk_eval.tracking.bundle import evidence_of_report

_NOTE = "the report was not logged to MLflow: this decision rests on the report alone, and nobody can verify it later"


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
        reevaluate: evaluates the baseline again where it cannot be compared as it is.
        agent_version: the agent that must have been evaluated.
        tracking_uri: where MLflow is.

    Raises:
        AssertionError: if the decision is not *passed*, with the reasons and what each rule came to.
        UsageError: if there is no such run or baseline.
        TrackingError: if MLflow is unreachable.
    """
    __tracebackhide__ = True
    demanded = overridden(load_policy(policy), baseline)
    if isinstance(report, Report) and report.run_id is None:
        run = examine(evidence_of_report(report))
        if demanded.compares or agent_version or demanded.calibration:
            with store_at(tracking_uri) as store:
                search = BaselineSearch(store=store, policy=demanded, model=model, reevaluate=reevaluate)
                decision = decided(run, search, agent_version)
        else:
            now = datetime.now(UTC)
            decision = stamped(decide(run, demanded, now=now), now)
        decision = replace(decision, run_id="(not logged)", notes=(*decision.notes, _NOTE))
    else:
        named = {"model": model, "agent_version": agent_version, "tracking_uri": tracking_uri}
        decision = gate(report, demanded, reevaluate=reevaluate, raise_on_failure=False, **named)
    if not decision.passed:
        page = StringIO()
        Console(file=page, width=140, highlight=False, no_color=True).print(decision_view(decision))
        raise AssertionError("\n".join(line.rstrip() for line in page.getvalue().splitlines()))
    return decision
