"""Promotes and edits in an MLflow store as told on standard input, a task per line, at the moment that each task names."""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from mlflow_adk_eval.errors import AliasBusyError, UsageError
from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY
from mlflow_adk_eval.gating.promotion.promote import promote_in
from mlflow_adk_eval.gating.promotion.record import Target
from tests.gating.promotion.claim_kit import Dawdling, Watched, without_waiting_for_the_disk

Task = dict[str, Any]


def promote(uri: str, task: Task) -> Task:
    dawdling = Dawdling(task["seed"])
    target = Target(name=task["name"], version=task["version"], alias="champion")
    try:
        decision = promote_in(Watched(uri, dawdling), target, task["run_id"], DEFAULT_POLICY)
    except AliasBusyError as busy:
        return {"verdict": "busy", "reasons": [str(busy)], "times": dawdling.times}
    except (UsageError, MlflowException) as error:  # the version is gone, or an artifact was overwritten while it was read
        return {"verdict": "undecided", "reasons": [str(error)], "times": dawdling.times}
    except Exception:  # noqa: BLE001 - whatever it is, the test tells it
        return {"verdict": "crashed", "reasons": [traceback.format_exc()], "times": dawdling.times}
    return {"verdict": decision.verdict, "reasons": decision.reasons, "times": dawdling.times}


def edit(client: MlflowClient, task: Task) -> Task:
    began = time.monotonic()
    try:
        _edit(client, task)
    except MlflowException as error:
        return {"failed": str(error).partition("\n")[0]}
    return {"began": began, "ended": time.monotonic()}


def _edit(client: MlflowClient, task: Task) -> None:
    name, version, run_id = task["name"], task["version"], task["run_id"]
    match task["kind"]:
        case "alias moved":
            client.set_registered_model_alias(name, "champion", version)
        case "alias deleted":
            client.delete_registered_model_alias(name, "champion")
        case "version deleted":
            client.delete_model_version(name, version)
        case "run tag edited":
            client.set_tag(run_id, "adk_eval.verdict", "failed")
        case "artifact overwritten":
            client.log_text(run_id, "{}", "adk_eval/cells/part-00000.parquet")
        case "metric edited":
            client.log_metric(run_id, "cases", 500)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(uri: str) -> None:
    without_waiting_for_the_disk()
    client = MlflowClient(uri, uri)
    client.search_registered_models(max_results=1)
    say("ready")
    for line in sys.stdin:
        task = json.loads(line)
        time.sleep(max(0.0, task["at"] - time.monotonic()))
        say(json.dumps(promote(uri, task) if task["do"] == "promote" else edit(client, task)))


if __name__ == "__main__":
    main(sys.argv[1])
