"""A promotion that dies between any two of its steps leaves an alias with its record, and does not stand in the way for ever."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_adk_eval.errors import AliasBusyError
from mlflow_adk_eval.gating.api import verify
from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY
from mlflow_adk_eval.gating.promotion.aliases import audit_in
from mlflow_adk_eval.gating.promotion.promote import promote_in
from mlflow_adk_eval.gating.promotion.record import Target
from mlflow_adk_eval.gating.registry import MlflowStore
from tests.gating.gate_kit import Lab, evidence_of, report_of
from tests.gating.promotion.claim_kit import claim_log_of, two_against_one, version_of

pytestmark = pytest.mark.slow
WORKER = Path(__file__).parent / "crash_worker.py"


MOMENTS = {
    "after evidence": "none",
    "after claim 0002": "open",
    "after write": "open",
    "after tag": "open",
    "after claim 0002.go": "confirmed, not set",
    "after set_alias": "confirmed, set",
    "after tag x2": "confirmed, set",
    "after claim 0002.end": "done",
}
"""After which step the process dies, and how far its claim has got then."""


def test_a_promotion_that_dies_at_any_step_leaves_nothing_without_a_record(lab: Lab, model: str) -> None:
    report, store = report_of(), MlflowStore(lab.uri, lab.uri)
    agents = [lab.agent() for _ in range(3)]
    runs = [lab.log(evidence_of(report, model_id=agent)) for agent in agents]
    tasks = []
    for number, moment in enumerate([*MOMENTS, "never"]):
        name = f"{model}_{number}"
        for agent in agents:
            lab.register(name, f"models:/{agent}")
        assert promote_in(store, Target(name=name, version="1", alias="champion"), runs[0], DEFAULT_POLICY).passed
        tasks.append({"uri": lab.uri, "name": name, "version": "2", "run_id": runs[1], "moment": moment})

    assert _die(tasks) == [9] * len(MOMENTS) + [0]
    for task in tasks:
        state = _after_death(store, lab, task["name"], runs[2])
        assert state == MOMENTS.get(task["moment"], "done"), task["moment"]


def _die(tasks: list[dict[str, str]]) -> list[int]:
    """Let a process for each task die; all are forks of one, so that MLflow is imported once."""
    worker = subprocess.run([sys.executable, str(WORKER)], input=json.dumps(tasks), capture_output=True, text=True, check=False)
    assert worker.returncode == 0, worker.stderr[-2000:]
    return [int(code) for code in json.loads(worker.stdout)]


def _after_death(store: MlflowStore, lab: Lab, name: str, next_run: str) -> str:
    """Check what a dead promotion left, and that the next one works; return how far its claim had got."""
    holder, claims = lab.alias(name), claim_log_of(store, name)
    assert holder in ("1", "2")
    assert verify(name, alias="champion", tracking_uri=lab.uri).passed
    (found,) = audit_in(store, name, "champion")
    assert found.valid
    assert found.kind == "promotion"
    mine = claims.entry(2)
    state = "none" if mine is None else mine.state + {"confirmed1": ", not set", "confirmed2": ", set"}.get(f"{mine.state}{holder}", "")

    target = Target(name=name, version="3", alias="champion")
    if mine is not None and mine.pending:
        with pytest.raises(AliasBusyError, match=r"the alias champion is being set: a promotion to version 2, by .*, try again after 20"):
            promote_in(store, target, next_run, DEFAULT_POLICY)
        assert lab.alias(name) == holder
    impatient = MlflowStore(lab.uri)
    impatient.grace_s = 0
    decision = promote_in(impatient, target, next_run, DEFAULT_POLICY)
    assert decision.passed, decision.reasons
    assert lab.alias(name) == "3"
    assert verify(name, alias="champion", tracking_uri=lab.uri).passed
    assert not two_against_one(claim_log_of(store, name), version_of(store, name, "3"), None)
    return state
