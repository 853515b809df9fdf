"""What scoring production's traces where they are costs: time a trace, peak memory, and what is there after kill -9.

`python benchmarks/production.py 2000 100000` makes so many traces (`traffic.py`) in a database, scores a sample of them and then all by the
command `mlflow-adk-eval traces score`, and calls it again, which must write nothing. Copies of the database are scored by commands that are killed with
SIGKILL, once while they evaluate and once while they write assessments, and then called again: the assessments must be the same ones. Beside that,
`mlflow.genai.evaluate` scores 500 traces with its best settings, and the command the same 500.

``--store`` says where: sqlite, postgresql (a server of its own, directly) or server (`mlflow server` on that). Peak memory and CPU are those of the
command's process. With ``--write`` the rows go into docs/development/benchmarks.md. The command fails if anything was lost, doubled or written twice.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import description
from server import HERE, PAGE, databases, mlflow_server
from traffic import EXPERIMENT

_BEGIN, _END = "<!-- production -->", "<!-- end of production -->"
HEAD = ("| traces | store | what | ms a trace | CPU ms a trace | wall s | peak MB | assessments |", "|---|---|---|---|---|---|---|---|")
CONFIG = {"criteria": {"tool_call_count_v1": 8, "token_usage_v1": 5000, "invocation_duration_v1": 30}}
_SAMPLE, _BESIDE = 200, 500
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "TQDM_DISABLE": "1",
    "PYTHONWARNINGS": "ignore",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
_UNDECIDED = 2
"""The greatest exit code of a command that did what it was asked to."""


@dataclass(frozen=True)
class Store:
    """A database full of traces, and how a command reaches it."""

    name: str
    database: str
    tracking_uri: str
    folder: Path


@dataclass(frozen=True)
class Ended:
    """A command that ended."""

    exit_code: int
    wall: float
    cpu: float
    peak_mb: float
    said: str


class Command:
    """`mlflow-adk-eval traces score`, running."""

    def __init__(self, store: Store, *options: str) -> None:
        config = store.folder / "config.json"
        config.write_text(json.dumps(CONFIG))
        command = [
            sys.executable,
            "-m",
            "mlflow_adk_eval",
            "traces",
            "score",
            EXPERIMENT,
            "--config",
            str(config),
            "--since",
            "30d",
            *options,
        ]
        environment = {**os.environ, **_QUIET, "MLFLOW_TRACKING_URI": store.tracking_uri, "PYTHONPATH": str(HERE.parent)}
        self._log = store.folder / "command.log"
        self._began = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=store.folder)

    def ended(self) -> Ended:
        """Wait for its end."""
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        wall, said = time.perf_counter() - self._began, self._log.read_text("utf-8", errors="replace")
        if not 0 <= self._process.returncode <= _UNDECIDED:
            raise SystemExit(f"exit code {self._process.returncode}\n{said[-3000:]}")
        return Ended(self._process.returncode, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, said)

    def killed(self, when: Callable[[float], bool]) -> bool:
        """Kill it as soon as it is time, which is asked with the seconds that have passed; return whether it still ran."""
        while not when(time.perf_counter() - self._began):
            if self._process.poll() is not None:
                return False
            time.sleep(0.05)
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        return True


def step(name: str, *args: str) -> dict[str, Any]:
    """Do one thing in a process of its own."""
    with tempfile.TemporaryDirectory() as empty:
        command = [sys.executable, __file__, "--step", name, *args]
        environment = {**os.environ, **_QUIET, "PYTHONPATH": str(HERE.parent)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=empty)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def do_fill(uri: str, count: str, heavy: str, artifacts: str) -> dict[str, Any]:
    """Make traces."""
    from traffic import fill

    fill(uri, int(count), heavy=int(heavy), artifacts=artifacts)
    return {}


def do_count(uri: str) -> dict[str, Any]:
    """Return how many traces there are, how many assessments the command wrote, how many twice, how many runs, and a digest of the assessments."""
    import hashlib

    from sqlalchemy import create_engine, text

    ours = "from assessments where source_id != 'reader@example.com'"
    with create_engine(uri).connect() as connection:

        def number(query: str) -> int:
            return int(connection.execute(text(query)).scalar_one())

        digest = hashlib.sha256()
        rows = connection.execute(text(f"select assessment_id, trace_id, name, value, error {ours} order by assessment_id"))
        for row in rows.yield_per(1000):
            digest.update(repr(tuple(row)).encode())
        return {
            "traces": number("select count(*) from trace_info"),
            "assessments": number(f"select count(*) {ours}"),
            "assessed": number(f"select count(distinct trace_id) {ours}"),
            "twice": number(f"select count(*) from (select 1 {ours} group by trace_id, name having count(*) > 1) as twice"),
            "runs": number("select count(*) from runs"),
            "digest": digest.hexdigest()[:16],
        }


def do_genai(uri: str, count: str) -> dict[str, Any]:
    """Score traces with `mlflow.genai.evaluate`, with the best settings known; imports and connecting are not measured."""
    import contextlib
    import io

    # Few enough threads for the pool of connections, and no rate limits.
    os.environ |= {"MLFLOW_GENAI_EVAL_MAX_WORKERS": "4", "MLFLOW_GENAI_EVAL_SCORER_RATE_LIMIT": "0"}
    import mlflow
    from mlflow.entities import Feedback
    from mlflow.genai.scorers import scorer

    @scorer
    def token_usage(trace: Any) -> Feedback:
        found = (trace.info.token_usage or {}).get("total_tokens", 0)
        return Feedback(value=found, rationale=f"{found} tokens")

    @scorer
    def tool_calls(trace: Any) -> Feedback:
        found = len(trace.search_spans(span_type="TOOL"))
        return Feedback(value=found, rationale=f"{found} calls")

    @scorer
    def seconds(trace: Any) -> Feedback:
        found = trace.info.execution_duration / 1000
        return Feedback(value=found, rationale=f"{found} s")

    mlflow.set_tracking_uri(uri)
    experiment = mlflow.set_experiment(EXPERIMENT)
    wall, cpu = time.perf_counter(), time.process_time()
    traces = mlflow.search_traces(locations=[experiment.experiment_id], max_results=int(count), return_type="list")
    with contextlib.redirect_stdout(io.StringIO()):
        mlflow.genai.evaluate(data=[{"trace": trace} for trace in traces], scorers=[token_usage, tool_calls, seconds])
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "traces": len(traces)}


class Places:
    """Makes stores of one kind, and copies of them."""

    def __init__(self, kind: str, folder: Path, stack: ExitStack) -> None:
        self._kind, self._folder, self._stack = kind, folder, stack
        self._made = 0
        self._postgres = "" if kind == "sqlite" else self._stack.enter_context(_postgres())

    def filled(self, count: int, heavy: int) -> Store:
        """Return a store with so many traces."""
        store = self._new()
        artifacts = "mlflow-artifacts:/production" if self._kind == "server" else (store.folder / "artifacts").as_uri()
        step("fill", store.database, str(count), str(heavy), artifacts)
        return self._served(store)

    def copy(self, first: Store) -> Store:
        """Return a copy of a store to which no server is connected."""
        return self._served(self._new(first.database))

    def _new(self, template: str = "") -> Store:
        self._made += 1
        folder = self._folder / f"{self._kind}{self._made}"
        folder.mkdir()
        if self._kind == "sqlite":
            if template:
                shutil.copy(template.removeprefix("sqlite:///"), folder / "mlflow.db")
            uri = f"sqlite:///{folder}/mlflow.db"
        else:
            uri = _new_database(self._postgres, f"{self._kind}{self._made}_{os.getpid()}", template.rpartition("/")[2])
        return Store(self._kind, uri, uri, folder)

    def _served(self, store: Store) -> Store:
        if self._kind != "server":
            return store
        running = self._stack.enter_context(mlflow_server(store.database, store.folder))
        return Store(store.name, store.database, f"http://127.0.0.1:{running.port}", store.folder)


@contextmanager
def _postgres() -> Iterator[str]:
    with databases() as made:
        if made is None:
            raise SystemExit("PostgreSQL is not installed: apt install postgresql")
        yield made[0]


def _new_database(server: str, name: str, template: str) -> str:
    """Make a database, as a copy of another one if that is named, whose connections are ended."""
    import psycopg

    with psycopg.connect(server.replace("postgresql+psycopg://", "postgresql://"), autocommit=True) as connection:
        if template:
            connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (template,))
        connection.execute(f'create database "{name}"' + (f' template "{template}"' if template else ""))
    return f"{server.rpartition('/')[0]}/{name}"


@dataclass(frozen=True)
class Bench:
    """What is measured of a number of traces."""

    places: Places
    count: int
    heavy: int
    kills: bool

    def lines(self) -> Iterator[str]:
        """Yield the rows of the table."""
        began = time.perf_counter()
        first = self.places.filled(self.count, self.heavy)
        print(f"{first.name}: {self.count:,} traces made in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        fresh = [self.places.copy(first) for _ in range(3 if self.kills else 0)]
        yield self._line(first, f"a sample of {_SAMPLE}", _SAMPLE, "--sample", str(_SAMPLE))
        yield self._line(first, "all others", self.count, *self._all)
        counted = step("count", first.database)
        yield self._line(first, "all again", self.count, *self._all)
        again = step("count", first.database)
        print(again, file=sys.stderr, flush=True)
        if again["digest"] != counted["digest"] or again["twice"]:
            raise SystemExit(f"the second call changed something: {counted}, then {again}")
        if fresh:
            whole = Command(fresh[0], *self._all).ended()
            expected = step("count", fresh[0].database)
            self._killed(fresh[1], "while it evaluates", expected, lambda seconds: seconds > whole.wall * 0.3)
            asked = [0.0]

            def is_writing(seconds: float) -> bool:
                if seconds < asked[0]:
                    return False
                asked[0] = seconds + whole.wall / 200
                return bool(step("count", fresh[2].database)["assessments"] > expected["assessments"] * 0.2)

            self._killed(fresh[2], "while it writes assessments", expected, is_writing)

    @property
    def _all(self) -> tuple[str, str]:
        return "--sample", "0"

    def _line(self, store: Store, what: str, traces: int, *options: str) -> str:
        before = step("count", store.database)["assessments"]
        ended = Command(store, *options).ended()
        (store.folder / f"{what.replace(' ', '_')}.log").write_text(ended.said)
        written = step("count", store.database)["assessments"] - before
        line = _row(self.count, store.name, what, traces, ended.wall, ended.cpu, f"{ended.peak_mb:,.0f}", written)
        print(line, flush=True)
        return line

    def _killed(self, store: Store, when: str, expected: dict[str, Any], moment: Callable[[float], bool]) -> None:
        killed = Command(store, *self._all).killed(moment)
        left = step("count", store.database)
        ended = Command(store, *self._all).ended()
        found = step("count", store.database)
        same = all(found[name] == expected[name] for name in ("assessments", "assessed", "twice", "digest"))
        done = (
            f"{'killed' if killed else 'NOT KILLED'} {when}, {left['assessments']:,} assessments written; the next call: {ended.wall:.0f} s"
        )
        print(f"{store.name}: {done}; {found}; {'nothing lost, nothing doubled' if same else f'NOT {expected}'}", flush=True)
        if not same or not killed:
            raise SystemExit(1)


def _row(count: int, store: str, what: str, traces: int, wall: float, cpu: float, peak: str, written: int | str) -> str:
    each = f"{wall / traces * 1000:.2f} | {cpu / traces * 1000:.2f} | {wall:,.1f} | {peak}"
    return f"| {count:,} | {store} | {what} | {each} | {written if isinstance(written, str) else format(written, ',')} |"


def beside(places: Places, count: int) -> Iterator[str]:
    """Yield what `mlflow.genai.evaluate` costs, and the command on the same traces."""
    first = places.filled(count, 0)
    copy = places.copy(first)
    found = step("genai", first.tracking_uri, str(count))
    written = step("count", first.database)
    print(written, file=sys.stderr, flush=True)
    wall, cpu, traces = found["wall"], found["cpu"], found["traces"]
    yield _row(traces, first.name, "`mlflow.genai.evaluate`", traces, wall, cpu, "", written["assessments"])
    ended = Command(copy, "--sample", "0").ended()
    mine = step("count", copy.database)["assessments"]
    yield _row(traces, copy.name, "the same traces", traces, ended.wall, ended.cpu, f"{ended.peak_mb:,.0f}", mine)


def main(argv: Sequence[str]) -> None:
    """Measure, or do one step."""
    if argv[:1] == ["--step"]:
        steps: dict[str, Callable[..., dict[str, Any]]] = {"fill": do_fill, "count": do_count, "genai": do_genai}
        print(json.dumps(steps[argv[1]](*argv[2:])))
        return
    parser = argparse.ArgumentParser(prog="benchmarks/production.py", description="Measure the scoring of production's traces.")
    parser.add_argument("counts", type=int, nargs="*", help="how many traces, for each table")
    parser.add_argument("--store", choices=("sqlite", "postgresql", "server"), default="sqlite", help="where (default: sqlite)")
    parser.add_argument("--heavy", type=int, default=20, help="traces of 40 MB among them (default: 20)")
    parser.add_argument("--beside", type=int, default=_BESIDE, help="traces for mlflow.genai.evaluate; 0: none (default: 500)")
    parser.add_argument("--no-kills", action="store_true", help="kill nothing")
    parser.add_argument("--write", action="store_true", help="write the rows into docs/development/benchmarks.md")
    chosen = parser.parse_args(argv)
    place = description()
    print(*HEAD, sep="\n", flush=True)
    lines: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="adk_eval_production_", dir=os.environ.get("BENCH_DATA")))
    try:
        with ExitStack() as stack:
            places = Places(chosen.store, folder, stack)
            for count in chosen.counts:
                lines += Bench(places, count, chosen.heavy, not chosen.no_kills).lines()
            for line in beside(places, chosen.beside) if chosen.beside else ():
                print(line, flush=True)
                lines.append(line)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if chosen.write:
        write(lines, place)


def write(lines: Sequence[str], place: str) -> None:
    """Put rows into the page, in place of those of the same name."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=HERE).stdout.strip()
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(f"{_BEGIN}\n")
    old, _, after = rest.partition(_END)
    rows = {tuple(line.split(" | ")[:3]): line for line in (*old.splitlines(), *lines) if line.startswith("| ") and line not in HEAD}
    stamp = f"<sub>Measured at {commit} by `python benchmarks/production.py`. {place}</sub>"
    PAGE.write_text(f"{before}{_BEGIN}\n" + "\n".join((*HEAD, *rows.values(), "", stamp, "")) + _END + after, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
