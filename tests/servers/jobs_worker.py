"""Does jobs as told on standard input, all at the same moment, each in a process of its own; prints what came of each."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import mlflow
import mlflow.store.model_registry.sqlalchemy_store
import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

from mlflow_adk_eval.errors import AdkEvalError
from mlflow_adk_eval.gating.api import promote
from mlflow_adk_eval.tracking.agent_versions import register
from mlflow_adk_eval.tracking.evaluate import evaluate
from tests.tracking.small import CONFIG, rooms

Task = dict[str, Any]


def do(task: Task) -> Task:
    """Evaluate, register and promote, as far as the task says."""
    done: Task = {}
    try:
        report = evaluate(rooms(), agent_in(Path(task["agent"])), CONFIG, experiment=task["experiment"], tracking_uri=task["uri"])
        done |= {"run_id": report.run_id, "verdict": report.verdict}
        if model := task.get("model"):
            done["version"] = version = register(report, model, tracking_uri=task["uri"])
            decision = promote(model, version, run_id=report, wait_s=task["wait_s"], tracking_uri=task["uri"], raise_on_failure=False)
            done |= {"decision": decision.verdict, "reasons": decision.reasons}
    except AdkEvalError as error:
        done |= {"exit_code": error.exit_code, "error": type(error).__name__, "said": str(error)}
    except BaseException:  # noqa: BLE001 - whatever it is, the test tells it
        done |= {"error": "traceback", "said": traceback.format_exc()}
    return done


def agent_in(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module.agent


def forked(task: Task, go: int) -> int:
    """Return where the result of a process can be read, which waits until `go` ends."""
    read, write = os.pipe()
    if os.fork():
        os.close(write)
        return read
    os.close(read)
    os.read(go, 1)
    Path(task["folder"]).mkdir(parents=True, exist_ok=True)
    os.chdir(task["folder"])
    with os.fdopen(write, "w") as result:
        result.write(json.dumps(do(task)))
    os._exit(0)


def main() -> None:
    tasks = json.load(sys.stdin)
    go, start = os.pipe()
    os.set_blocking(start, False)
    results = [forked(task, go) for task in tasks]
    os.write(start, b"!" * len(tasks))
    found = []
    for result in results:
        with os.fdopen(result) as said:
            found.append(json.loads(said.read() or '{"error": "died"}'))
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
