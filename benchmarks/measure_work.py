"""What loading, scoring and logging cost a contender, in a process of its own: `measure_work.py RESULT_FILE WORK_AS_JSON`."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import store
from contenders import Cells
from peak import peak_mb

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


def measure(work: dict[str, Any]) -> dict[str, Any]:
    """Let a contender import, load and do its work; keep its scores and count what arrived in MLflow."""
    contender = import_module(f"contenders.{work['contender']}")
    data, scratch, logs = Path(work["data"]), Path(work["scratch"]), bool(work["logs"])
    _, imported = timed(lambda: contender.imports(logging=logs))
    if logs:
        store.make(scratch)
    inputs, loaded = timed(lambda: contender.load(data))
    loaded_mb = peak_mb()
    cells, worked = timed(lambda: getattr(contender, work["call"])(inputs))
    result = {
        "import_s": imported.wall,
        "load_s": loaded.wall,
        "load_cpu_s": loaded.cpu,
        "work_s": worked.wall,
        "work_cpu_s": worked.cpu,
        "loaded_mb": loaded_mb,
        "peak_mb": peak_mb(),
    }
    return {**result, "scores": by_criterion(cells), **(store.arrived(scratch) if logs else {})}


def by_criterion(cells: Cells) -> dict[str, dict[str, float | None]]:
    """Return scores by criterion and by ``eval_id#turn``."""
    scores: dict[str, dict[str, float | None]] = defaultdict(dict)
    for criterion, eval_id, turn, score in cells:
        scores[criterion][f"{eval_id}#{turn}"] = score
    return scores


def main(result: Path, work: dict[str, Any]) -> None:
    """Measure and leave the result in a file."""
    logging.disable(logging.CRITICAL)  # who logs most should not be slowed by our capturing it
    result.write_text(json.dumps(measure(work)))
    os._exit(0)  # the exit handlers of MLflow and gRPC take seconds


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
