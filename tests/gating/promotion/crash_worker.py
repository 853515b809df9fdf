"""Promotes as told on standard input, each in a process of its own that dies after a step; prints how each ended."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from mlflow import MlflowClient  # noqa: F401 - imported once, for all

from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY
from mlflow_adk_eval.gating.promotion.promote import promote_in
from mlflow_adk_eval.gating.promotion.record import Target
from tests.gating.promotion.claim_kit import Dying, Watched, without_waiting_for_the_disk


def promote(task: dict[str, str]) -> None:
    store = Watched(task["uri"], Dying(task["moment"]))
    target = Target(name=task["name"], version=task["version"], alias="champion")
    decision = promote_in(store, target, task["run_id"], DEFAULT_POLICY)
    os._exit(0 if decision.passed else 1)


def died(task: dict[str, str]) -> int:
    child = os.fork()
    if child == 0:
        promote(task)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    without_waiting_for_the_disk()
    codes = [died(task) for task in json.load(sys.stdin)]
    sys.stdout.write(json.dumps(codes))
