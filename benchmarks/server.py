"""What logging costs on an MLflow server: wall time, server CPU and requests a turn, beside `mlflow.genai.evaluate`.

`python benchmarks/server.py` starts a PostgreSQL of its own and `mlflow server` on it, evaluates recorded conversations through a wire that counts
requests and adds latency, and the same into PostgreSQL and SQLite directly, and prints a table. Each measurement is a process of its own; the best
of the rounds counts. With ``--write`` the table goes into docs/development/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from data import data_set
from machine import description
from wire import wire

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # where the tests' PostgreSQL is

PAGE = HERE.parent / "docs" / "development" / "benchmarks.md"
_BEGIN, _END = "<!-- server -->", "<!-- end of server -->"
_TURNS_A_CASE = 5
_LATENCIES_MS = (0, 100)
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "TQDM_DISABLE": "1", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


@dataclass(frozen=True)
class Server:
    """A running `mlflow server`."""

    port: int
    group: int

    def cpu_s(self) -> float:
        """Return the CPU seconds that its processes have taken."""
        fields = (path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat") if path.exists())
        return sum(int(one[11]) + int(one[12]) for one in fields if int(one[2]) == self.group) / os.sysconf("SC_CLK_TCK")


@contextmanager
def mlflow_server(store: str, folder: Path) -> Generator[Server]:
    """Provide an MLflow server on a store, with as many workers as it has by itself."""
    from tests.mlflow_kit import free_port

    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", store]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env={**os.environ, **_QUIET}, start_new_session=True)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield Server(port, process.pid)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def databases() -> Generator[tuple[str, str] | None]:
    """Provide the URIs of two empty PostgreSQL databases; ``None`` where there is no PostgreSQL."""
    from tests.postgres_kit import Postgres

    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="postgres"))
    running = Postgres(programs[-1].parent, folder)
    try:
        first, second = (running.new_database().replace("postgresql://", "postgresql+psycopg://") for _ in range(2))
        yield first, second
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)


def do_work(side: str, uri: str, cases: int) -> dict[str, float]:
    """Evaluate recorded conversations and log them; return the seconds, without those of imports and of making the store."""
    import contextlib
    import io

    import mlflow

    folder = data_set(cases, _TURNS_A_CASE)
    mlflow.set_tracking_uri(uri)
    os.environ["MLFLOW_TRACKING_URI"] = uri
    if uri.startswith("http"):
        mlflow.set_experiment("bench")
    elif mlflow.get_experiment_by_name("bench") is None:
        mlflow.create_experiment("bench", artifact_location=Path(tempfile.mkdtemp()).as_uri())
    if side == "genai":
        from contenders import mlflow_scorers

        mlflow_scorers.imports(logging=True)
        rows = mlflow_scorers.load(folder)
        started = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            mlflow_scorers.evaluate_tuned(rows)
    else:
        from contenders import ours

        ours.imports(logging=True)
        data = ours.load(folder)
        started = time.perf_counter()
        if side == "plain":
            from mlflow_adk_eval.tracking import traces

            traces.RestStore = None
        (ours.log_table if side == "table" else ours.log_traces)(data)
    return {"wall": time.perf_counter() - started}


_WRITES = re.compile(r"^POST .*/(v1/traces|mlflow/traces)(/tr-\w+/assessments)?$")


def step(side: str, uri: str, cases: int) -> dict[str, float]:
    """Do the work in a process of its own."""
    command = [sys.executable, str(HERE / "server.py"), "--step", side, uri, str(cases)]
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **_QUIET}, cwd=empty)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


_NAMES = {
    "traces": "mlflow-adk-eval, a trace per turn",
    "plain": "the same, traces by MLflow's client one after the other",
    "table": "mlflow-adk-eval, no traces",
    "genai": "`mlflow.genai.evaluate`",
}


def over_http(server: Server, side: str, turns: int, latency_ms: int) -> list[float]:
    """Return milliseconds, server CPU milliseconds, requests and those that write traces, all a turn."""
    with wire(server.port, latency_ms / 1000) as line:
        before = server.cpu_s()
        wall = step(side, f"http://127.0.0.1:{line.port}", turns // _TURNS_A_CASE)["wall"]
        cpu = server.cpu_s() - before
        writing = sum(count for name, count in line.requests.items() if _WRITES.search(name))
        found = [wall * 1000 / turns, cpu * 1000 / turns, line.requests.total() / turns, writing / turns]
        print(side, latency_ms, *(f"{value:.2f}" for value in found), file=sys.stderr, flush=True)
        return found


def best_over_http(server: Server, latency_ms: int, turns: int, genai_turns: int, rounds: int) -> list[str]:
    """Return the rows of the table for a latency. In a round everybody has a turn, so that a slow minute hits all alike."""
    sizes = {side: genai_turns if side == "genai" else turns for side in _NAMES}
    found = [{side: over_http(server, side, size, latency_ms) for side, size in sizes.items()} for _ in range(rounds)]
    lines = []
    for side, size in sizes.items():
        best = min(one[side] for one in found)
        values = " | ".join(f"{value:,.{digits}f}" for value, digits in zip(best, (1, 1, 2, 3), strict=True))
        lines.append(f"| {_NAMES[side]} | {latency_ms} ms | {size:,} | {values} |")
    return lines


def directly(uri: str, turns: int, rounds: int) -> float:
    """Return the milliseconds a turn of the best round without a server."""
    return min(step("traces", uri, turns // _TURNS_A_CASE)["wall"] for _ in range(rounds)) * 1000 / turns


def table(turns: int, genai_turns: int, rounds: int) -> str:
    """Measure and return the tables as Markdown."""
    folder = Path(tempfile.mkdtemp(prefix="adk_eval_server_"))
    lines = [
        "| | latency | turns | ms a turn | server CPU ms a turn | requests a turn | of these, writing traces |",
        "|---|---|---|---|---|---|---|",
    ]
    with databases() as stores:
        with mlflow_server(stores[0] if stores else f"sqlite:///{folder}/server.db", folder) as server:
            step("table", f"http://127.0.0.1:{server.port}", 1)
            for latency_ms in _LATENCIES_MS:
                lines += best_over_http(server, latency_ms, turns, genai_turns, rounds)
        lines += ["", "| a trace per turn, without a server | turns | ms a turn |", "|---|---|---|"]
        places = {"SQLite": f"sqlite:///{folder}/direct.db", **({"PostgreSQL": stores[1]} if stores else {})}
        for name, uri in places.items():
            step("table", uri, 1)
            lines.append(f"| {name} | {turns * 5:,} | {directly(uri, turns * 5, rounds):,.2f} |")
    shutil.rmtree(folder, ignore_errors=True)
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    """Measure, or do one step."""
    if argv[:1] == ["--step"]:
        print(json.dumps(do_work(argv[1], argv[2], int(argv[3]))))
        return
    parser = argparse.ArgumentParser(prog="benchmarks/server.py", description="Measure logging on an MLflow server.")
    parser.add_argument("--turns", type=int, default=200, help="turns that are logged (default: 200; five times as many without a server)")
    parser.add_argument("--genai-turns", type=int, default=50, help="turns for mlflow.genai.evaluate (default: 50)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: 3)")
    parser.add_argument("--write", action="store_true", help="write the table into docs/development/benchmarks.md")
    chosen = parser.parse_args(argv)
    place = description()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=HERE).stdout.strip()
    found = table(chosen.turns, chosen.genai_turns, chosen.rounds)
    text = (
        f"{_BEGIN}\n{found}\n\n<sub>Measured at {commit} by `python benchmarks/server.py`; best of {chosen.rounds}. {place}</sub>\n{_END}"
    )
    print(text)
    if chosen.write:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(re.sub(f"{_BEGIN}.*{_END}", lambda _: text, page, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
