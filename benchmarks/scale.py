"""How an evaluation, the gate and a comparison grow with the number of turns: CPU a turn, peak memory and bytes on disk.

`python benchmarks/scale.py 1000 10000 100000` makes Parquet of so many turns, five a case, with what an agent did beside them, evaluates it into a
store of its own, lets the gate decide on the run, alone and with a champion, a slice, an interval and cases that must pass, compares both runs, and
prints a table. The champion's run is a copy of the first one, as the gate reads both. Each step is a process of its own, so that its peak is its
own. With ``--write`` each row goes into benchmarks/scale.md, and its main columns into docs/how_to/scale.md, as soon as it is measured.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peak import peak_mb

HERE = Path(__file__).resolve().parent
RESULTS, QUOTED = HERE / "scale.md", HERE.parent / "docs" / "how_to" / "scale.md"
HEAD = ("| turns | what | CPU ms a turn | CPU s | wall s | peak MB | MB on disk | commit |", "|---|---|---|---|---|---|---|---|")
QUOTED_COLUMNS = (0, 1, 3, 5)
"""Turns, what, CPU seconds and peak memory."""
TURNS_A_CASE = 5
_DISTINCT = 2_000
"""How many conversations are made up; the others are the same with other first words, so that no case is a copy."""
_CASES_AT_ONCE = 500
CONFIG = {"criteria": {"tool_trajectory_avg_score": {"threshold": 0.8, "match_type": "IN_ORDER"}, "response_match_score": 0.5}}
POLICY = {
    "baseline": None,
    "rules": {
        "tool_trajectory_avg_score": {"min": 0.5, "use": "ci_low", "max_drop": 0.05},
        "response_match_score": {"min": 0.5, "max_drop": 0.05},
        "case_pass_rate": {"min": 0.01, "max_drop": 0.05},
    },
    "slices": {"even": {"ids": ["case-*[02468]"], "rules": {"response_match_score": {"min": 0.5, "max_drop": 0.05}}}},
    "must_pass": [f"case-{number:07}" for number in range(100)],
    "min_cases": 100,
}


def rows(cases: int, folder: Path) -> Path:
    """Write cases with recordings as Parquet, if that was not done before, and return the file."""
    target = folder / f"rows{cases}.parquet"
    if target.exists():
        return target
    import pyarrow as pa
    import pyarrow.parquet as pq
    from data import Generator

    generator = Generator()
    made = [generator.case("CASE", TURNS_A_CASE)[:2] for _ in range(min(cases, _DISTINCT))]
    texts = [
        tuple(json.dumps(value, ensure_ascii=False) for value in (case, {"invocations": played["invocations"]})) for case, played in made
    ]
    partial = target.with_suffix(".partial")
    kinds = pa.schema([("eval_id", pa.string()), ("case", pa.string()), ("recorded", pa.string())])
    with pq.ParquetWriter(partial, kinds, compression="zstd") as writer:
        for start in range(0, cases, _CASES_AT_ONCE):
            numbers = range(start, min(cases, start + _CASES_AT_ONCE))
            ids = [f"case-{number:07}" for number in numbers]
            both = [[_told(text, number, ids[number - start]) for text in texts[number % len(texts)]] for number in numbers]
            writer.write_table(pa.table([ids, [case for case, _ in both], [played for _, played in both]], schema=kinds))
    partial.replace(target)
    return target


def _told(text: str, number: int, eval_id: str) -> str:
    return text.replace('"CASE"', f'"{eval_id}"').replace('"text": "', f'"text": "{number}: ', 1)


def _connect(work: Path) -> str:
    import mlflow

    uri = f"sqlite:///{work}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    os.chdir(work)
    if mlflow.get_experiment_by_name("scale") is None:
        mlflow.create_experiment("scale", artifact_location=(work / "artifacts").as_uri())
    return uri


def do_evaluate(work: Path, file: str) -> dict[str, Any]:
    """Evaluate the rows, and return the run."""
    import mlflow_adk_eval as adk_eval

    uri = _connect(work)
    report = adk_eval.evaluate(file, config=CONFIG, experiment="scale", tracking_uri=uri, traces=False, run_name="scale")
    return {"run_id": report.run_id, "cases": len(report.cases)}


def do_copy(work: Path, run_id: str) -> dict[str, Any]:
    """Make a second run of a first one, with the same artifacts, and return it: the gate reads both, and one evaluation is enough."""
    import shutil

    from mlflow import MlflowClient
    from mlflow.entities import LoggedModelInput, Metric, Param, RunTag

    _connect(work)
    client = MlflowClient()
    first = client.get_run(run_id)
    found = client.create_run(first.info.experiment_id, first.info.start_time, first.data.tags)
    data = first.data
    client.log_batch(
        found.info.run_id,
        [Metric(name, value, 0, 0) for name, value in data.metrics.items()],
        [Param(name, value) for name, value in data.params.items()],
        [RunTag(name, value) for name, value in data.tags.items()],
    )
    client.log_inputs(found.info.run_id, None, [LoggedModelInput(model.model_id) for model in first.inputs.model_inputs])
    before, after = (run.info.artifact_uri.removeprefix("file://") for run in (first, found))
    shutil.copytree(before, after, copy_function=os.link)
    client.set_terminated(found.info.run_id, "FINISHED", first.info.end_time)
    return {"run_id": found.info.run_id}


def do_gate(work: Path, run_id: str, before: str) -> dict[str, Any]:
    """Let the gate decide, compared with another run."""
    import mlflow_adk_eval as adk_eval

    policy = {**POLICY, "baseline": {"run": before}}
    decision = adk_eval.gate(run_id, policy, tracking_uri=_connect(work), raise_on_failure=False)
    return {"verdict": decision.verdict, "reasons": decision.reasons[:3], "checks": len(decision.checks)}


def do_alone(work: Path, run_id: str) -> dict[str, Any]:
    """Let the gate decide on one run."""
    import mlflow_adk_eval as adk_eval

    rules = {name: {"min": rule["min"]} for name, rule in POLICY["rules"].items()}
    policy = {"rules": rules, "min_cases": 100}
    decision = adk_eval.gate(run_id, policy, tracking_uri=_connect(work), raise_on_failure=False)
    return {"verdict": decision.verdict, "reasons": decision.reasons[:3], "checks": len(decision.checks)}


def do_compare(work: Path, run_id: str, before: str) -> dict[str, Any]:
    """Compare two runs."""
    import mlflow_adk_eval as adk_eval

    found = adk_eval.compare(before, run_id, tracking_uri=_connect(work))
    return {"compared": type(found).__name__}


def step(name: str, work: Path, *args: str) -> dict[str, Any]:
    """Do one thing in a process of its own; return what it says, with its CPU seconds, seconds and peak in MB."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = ["/usr/bin/env", sys.executable, __file__, "--step", name, str(work), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(done.stdout.splitlines()[-1]), "cpu": cpu, "wall": time.perf_counter() - started}


def measured(turns: int, folder: Path) -> Iterator[str]:
    """Yield the rows of the table for so many turns."""
    file = rows(turns // TURNS_A_CASE, folder)
    work = Path(tempfile.mkdtemp(dir=folder))
    print(f"store: sqlite:///{work}/mlflow.db", file=sys.stderr, flush=True)
    first = step("evaluate", work, str(file))
    size = sum(path.stat().st_size for path in (work / "artifacts").rglob("*") if path.is_file())
    yield _line(turns, "evaluate", first, f"{size / 1e6:,.0f}")
    yield _line(turns, "gate", step("alone", work, first["run_id"]))
    run, before = first["run_id"], step("copy", work, first["run_id"])["run_id"]
    yield _line(turns, "gate, with a champion", step("gate", work, run, before))
    yield _line(turns, "compare", step("compare", work, run, before))


def _line(turns: int, what: str, found: dict[str, Any], size: str = "") -> str:
    each = found["cpu"] / turns * 1000
    numbers = f"{each:.2f} | {found['cpu']:,.1f} | {found['wall']:,.1f} | {found['peak']:,.0f} | {size}"
    line = f"| {turns:,} | {what} | {numbers} | {_commit()} |"
    print(line, *(str(found[key]) for key in ("run_id", "verdict", "reasons") if key in found), flush=True)
    return line


def _commit() -> str:
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=HERE).stdout.strip()


def write(lines: list[str]) -> None:
    """Put rows into benchmarks/scale.md, in place of those of the same name, and their main columns into docs/how_to/scale.md."""
    old = RESULTS.read_text("utf-8").splitlines() if RESULTS.is_file() else []
    found = {_key(line): line for line in (*old, *lines) if line.startswith("| ") and line not in HEAD}
    table = [*HEAD, *(found[key] for key in sorted(found, key=lambda key: int(key[0].replace(",", ""))))]
    RESULTS.write_text(
        "\n".join(("Measured by `python benchmarks/scale.py`; each row names its commit.", "", *table, "")), encoding="utf-8"
    )
    head, *rows = (narrow(line) for line in table)
    before, _, rest = QUOTED.read_text("utf-8").partition(f"{head}\n")
    after = rest[rest.index("\n\n") :]
    QUOTED.write_text(before + "\n".join((head, *rows)) + after, encoding="utf-8")


def narrow(line: str) -> str:
    """Return a line of the table with the columns that fit into a page."""
    cells = line.split("|")[1:-1]
    return f"|{'|'.join(cells[column] for column in QUOTED_COLUMNS)}|"


def _key(line: str) -> tuple[str, str]:
    turns, what = line.strip("| ").split(" | ")[:2]
    return turns, what


def main() -> None:
    """Measure, or do one step."""
    if sys.argv[1] == "--step":
        steps = {"evaluate": do_evaluate, "gate": do_gate, "copy": do_copy, "alone": do_alone, "compare": do_compare}
        found = steps[sys.argv[2]](Path(sys.argv[3]), *sys.argv[4:])
        print(json.dumps({**found, "peak": peak_mb()}))
        return
    folder = Path(os.environ.get("BENCH_DATA") or Path(tempfile.gettempdir()) / "adk_eval_scale")
    folder.mkdir(parents=True, exist_ok=True)
    print(*HEAD, sep="\n")
    for turns in [int(argument) for argument in sys.argv[1:] if argument.isdigit()]:
        for line in measured(turns, folder):
            if "--write" in sys.argv:
                write([line])


if __name__ == "__main__":
    main()
