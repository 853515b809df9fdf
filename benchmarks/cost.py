"""What a turn costs, in numbers that no load and no machine changes: `python benchmarks/cost.py` fails where it has grown by a tenth.

Loading, scoring, making the table, logging and the gate each do their work on the same 200 turns. Counted are the calls of Python functions
of this package and those that it makes itself, by cProfile, and the bytes that are held at once at most, by tracemalloc. A first pass imports
and fills caches. `--renew` writes what was counted to ``cost.json``, which is committed. Counts depend on the versions of Python and MLflow,
so they are compared only where these are the committed ones.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import logging
import os
import pstats
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import store
from contenders import ours
from data import data_set

COMMITTED = Path(os.environ.get("COST_FILE", Path(__file__).parent / "cost.json"))
_PACKAGE = str(Path(__file__).parents[1] / "mlflow_adk_eval") + os.sep
_CASES, _TURNS = 40, 5
_ALLOWED = 1.1
_NOISE = 0.5
"""What a caller that starts with an empty cache adds to a small count, a turn."""
Costs = dict[str, dict[str, float]]
"""By step: ``calls`` and ``bytes`` a turn."""


def steps(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the steps of an evaluation by name; each is to be done before the next is asked for."""
    import mlflow_adk_eval as adk_eval
    from mlflow_adk_eval.results.table import table_of
    from mlflow_adk_eval.tracking.evaluate import log_report

    done: dict[str, Any] = {}

    def step(name: str, work: Callable[[], Any]) -> tuple[str, Callable[[], Any]]:
        return name, lambda: done.__setitem__(name, work())

    yield step("load", lambda: ours.load(folder))
    yield step("score", lambda: adk_eval.score(*done["load"], ours.CONFIG))
    yield step("table", lambda: table_of(done["score"].cases, done["score"].criteria).dumps())
    yield step("log", lambda: log_report(done["score"], agent_name="bench", experiment="bench", traces=False))
    yield step("gate", lambda: adk_eval.gate(done["log"].run_id, raise_on_failure=False))


def measured() -> Costs:
    """Return what each step costs a turn, in this process."""
    logging.disable(logging.CRITICAL)
    folder = data_set(_CASES, _TURNS)
    with tempfile.TemporaryDirectory(prefix="adk_eval_cost_") as scratch:
        store.make(Path(scratch))
        for _, work in steps(folder):
            work()
        calls = {name: _calls(work) for name, work in steps(folder)}
        held = {name: _bytes(work) for name, work in steps(folder)}
    turns = _CASES * _TURNS
    return {name: {"calls": round(calls[name] / turns, 1), "bytes": round(held[name] / turns)} for name in calls}


def _calls(work: Callable[[], Any]) -> int:
    """Return how many calls of the package's functions there were, and by these of others'."""
    profile = cProfile.Profile()
    profile.runcall(work)
    stats: Any = pstats.Stats(profile)
    return sum(
        calls if function[0].startswith(_PACKAGE) else sum(made[0] for caller, made in callers.items() if caller[0].startswith(_PACKAGE))
        for function, (_, calls, _, _, callers) in stats.stats.items()
    )


def _bytes(work: Callable[[], Any]) -> int:
    """Return how many bytes more than before were held at once."""
    gc.collect()
    tracemalloc.start()
    work()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def grown(found: Costs, committed: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a sentence for each cost that is more than a tenth, and half a unit, above the committed one."""
    return [
        f"{step}: {found[step][unit]:,} {unit} a turn, more than a tenth above the committed {cost:,}"
        for step, costs in committed.items()
        for unit, cost in costs.items()
        if found[step][unit] > max(cost * _ALLOWED, cost + _NOISE)
    ]


def versions() -> str:
    """Return what the counts depend on."""
    return f"Python {sys.version_info[0]}.{sys.version_info[1]}, MLflow {version('mlflow')}, pydantic {version('pydantic')}"


def main() -> int:
    """Compare with what is committed, or renew it; return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks/cost.py", description="Count what a turn costs, and fail where that has grown.")
    parser.add_argument("--renew", action="store_true", help=f"write what was counted to {COMMITTED.name}")
    renew = parser.parse_args().renew
    committed = json.loads(COMMITTED.read_text("utf-8")) if COMMITTED.is_file() else {}
    if not renew and versions() not in committed:
        print(f"costs are not compared: {COMMITTED.name} has those of {'; '.join(committed)}, and this is {versions()}")
        return 0
    found = measured()
    for step, costs in found.items():
        print(f"{step:6} {costs['calls']:8,} calls a turn {costs['bytes']:8,} bytes a turn")
    if renew:
        COMMITTED.write_text(json.dumps({**committed, versions(): found}, indent=2) + "\n", "utf-8")
        return 0
    problems = grown(found, committed[versions()])
    for problem in problems:
        print(f"GROWN: {problem}", file=sys.stderr)
    if problems:
        print(
            "Win it back; or, if it is worth that, renew the counts with `python benchmarks/cost.py --renew`, commit benchmarks/cost.json "
            "and say in the message what the cost buys.",
            file=sys.stderr,
        )
    return 1 if problems else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets decides how some are compared, and each variable of the environment is looked at for secrets.
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "PYTHONPATH", "COST_FILE") if name in os.environ}
        sys.exit(subprocess.run([sys.executable, *sys.argv], env={**kept, "PYTHONHASHSEED": "0"}, check=False).returncode)
    sys.exit(main())
