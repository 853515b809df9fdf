"""One measurement in a process of its own, which `run.py` starts: `measure.py work|import JOB_AS_JSON RESULT_FILE`."""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

Json = dict[str, Any]
T = TypeVar("T")


class Clock(NamedTuple):
    """How long something took, in seconds."""

    wall: float
    cpu: float


def timed(work: Callable[[], T]) -> tuple[T, Clock]:
    """Return what `work` returns, and how long it and all its threads took."""
    wall, cpu = time.perf_counter(), time.process_time()
    value = work()
    return value, Clock(time.perf_counter() - wall, time.process_time() - cpu)


def peak_mb() -> float:
    """Return the most memory that this process has held so far, in MiB."""
    status = Path("/proc/self/status")
    if status.is_file():  # its number starts anew at exec; that of getrusage starts with the parent's
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def measure_import(job: Json) -> Json:
    """Import modules, or names of modules as ``module:name``; none of them to know what a bare Python holds."""

    def work() -> None:
        for target in job["targets"]:
            module, _, name = target.partition(":")
            imported = import_module(module)
            if name:
                getattr(imported, name)

    _, clock = timed(work)
    return {"import_s": clock.wall, "peak_mb": peak_mb()}


def measure_work(job: Json) -> Json:
    """Let a contender import, load and do its work; keep its scores and count what arrived in MLflow."""
    import store

    contender = import_module(f"contenders.{job['contender']}")
    _, imported = timed(lambda: contender.imports(logging=bool(job["logs"])))
    if job["logs"]:
        store.make(Path(job["scratch"]))
    data, loaded = timed(lambda: contender.load(Path(job["data"])))
    loaded_mb = peak_mb()
    cells, worked = timed(lambda: getattr(contender, job["call"])(data))
    result = {
        "import_s": imported.wall,
        "load_s": loaded.wall,
        "load_cpu_s": loaded.cpu,
        "work_s": worked.wall,
        "work_cpu_s": worked.cpu,
        "loaded_mb": loaded_mb,
        "peak_mb": peak_mb(),
    }
    scores: dict[str, dict[str, float | None]] = defaultdict(dict)
    for criterion, eval_id, turn, score in cells:
        scores[criterion][f"{eval_id}#{turn}"] = score
    return result | {"scores": scores} | (store.arrived(Path(job["scratch"])) if job["logs"] else {})


def main() -> None:
    """Measure and leave the result in a file."""
    kind, job, result = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    logging.disable(logging.CRITICAL)  # who logs most should not be slowed by our capturing it
    measured = {"work": measure_work, "import": measure_import}[kind](job)
    result.write_text(json.dumps(measured))
    os._exit(0)  # the exit handlers of MLflow and gRPC take seconds


if __name__ == "__main__":
    main()
