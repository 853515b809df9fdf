"""How fluent the viewer is, beside MLflow's own pages: seconds to the first row of a page, and of a filter, over many runs and one of many turns.

`python benchmarks/viewer.py` makes a store in a temporary folder (or the one named by ``--folder``, which is used again the next time) with 200 runs,
one of 10,000 turns and two of 2,000 turns that differ in every answer, starts the viewer and MLflow's server on it, and prints two tables: how long chromium takes until it shows the first row of
each of their pages, and how long each answer of the viewer takes over HTTP. The first column is a page that nobody has asked for since the servers
started, the second the median of some more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from differing import two_recordings
from scale import CONFIG, TURNS_A_CASE, rows

AGAIN, AGAIN_IN_BROWSER = 5, 2
EXPERIMENT = "viewer"


COMPARED_TURNS = 2_000


def filled(folder: Path, runs: int, turns: int) -> tuple[str, list[str]]:
    """Return the store with the runs, making it if it is not there, and the ids of the large run and of the two that differ."""
    os.chdir(folder)
    known = folder / f"large-{runs}-{turns}"
    uri = f"sqlite:///{folder}/mlflow.db"
    if known.exists():
        return uri, known.read_text().split()
    import mlflow_adk_eval as adk_eval
    from mlflow_adk_eval.tracking.client import open_store

    uri = open_store(folder, experiment=EXPERIMENT)
    options = {"config": CONFIG, "experiment": EXPERIMENT, "tracking_uri": uri, "traces": False}
    few = rows(4, folder)
    for number in range(runs):
        adk_eval.evaluate(str(few), run_name=f"run {number:03}", **options)
    large = {"large": rows(turns // TURNS_A_CASE, folder), **dict(zip("AB", two_recordings(COMPARED_TURNS, folder), strict=True))}
    run_ids = [adk_eval.evaluate(str(file), run_name=name, **options).run_id or "" for name, file in large.items()]
    known.write_text(" ".join(run_ids))
    return uri, run_ids


@contextmanager
def viewer(uri: str) -> Iterator[str]:
    """Run the viewer on a store; yield its address."""
    command = [sys.executable, "-m", "mlflow_adk_eval", "view", "--tracking-uri", uri, "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.split()[-1].rstrip("/")
        finally:
            process.terminate()


@contextmanager
def mlflow_server(uri: str) -> Iterator[str]:
    """Run MLflow's own server on a store; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--backend-store-uri", uri, "--port", str(port), "--workers", "1"]
    command = [sys.executable, "-m", "mlflow", "server", *options]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}, **quiet) as process:
        address = f"http://127.0.0.1:{port}"
        try:
            for _ in range(600):
                with suppress(OSError):
                    urllib.request.urlopen(f"{address}/health", timeout=5).close()
                    break
                time.sleep(0.2)
            yield address
        finally:
            process.terminate()


Step = Callable[[Any], object]


def in_browser(view: str, mlflow: str, uri: str, run_ids: list[str], runs: int, turns: int) -> None:
    """Print how long chromium takes to show the first row of a page, and of a filter, in the viewer and in MLflow."""
    from mlflow import MlflowClient
    from playwright.sync_api import sync_playwright

    run_id, *others = run_ids
    compared = f"{view}/compare?" + "&".join(f"run={other}" for other in others)
    experiment = MlflowClient(uri).get_run(run_id).info.experiment_id
    run, theirs = f"{view}/runs/{run_id}", f"{mlflow}/#/experiments/{experiment}"

    only_large = "[...document.querySelectorAll('.ag-row a')].map(one => one.textContent).filter(Boolean).join() === 'large'"
    search = urllib.parse.quote("attributes.run_name = 'large'")
    pages: dict[str, tuple[Step, Step]] = {
        f"viewer: {runs} runs": (lambda page: page.goto(view), lambda page: page.locator("table.runs tbody tr").first.wait_for()),
        "viewer: filter by verdict": (
            lambda page: page.goto(f"{view}/?verdict=failed"),
            lambda page: page.locator("table.runs tbody tr").first.wait_for(),
        ),
        f"viewer: run of {turns:,} turns, first case": (
            lambda page: page.goto(run),
            lambda page: page.locator(".case summary").first.wait_for(),
        ),
        "viewer: its cases, filtered": (
            lambda page: page.goto(f"{run}?criterion=tool_trajectory_avg_score"),
            lambda page: page.locator("#results .case summary").first.wait_for(),
        ),
        f"viewer: two runs of {COMPARED_TURNS:,} turns, first case that differs": (
            lambda page: page.goto(compared),
            lambda page: page.locator(".case summary").first.wait_for(),
        ),
        f"MLflow: {runs} runs": (lambda page: page.goto(f"{theirs}/runs"), lambda page: page.locator(".ag-row a").first.wait_for()),
        "MLflow: filter by name": (
            lambda page: page.goto(f"{theirs}/runs?searchFilter={search}"),
            lambda page: page.wait_for_function(only_large),
        ),
        f"MLflow: run of {turns:,} turns, its description": (
            lambda page: page.goto(f"{theirs}/runs/{run_id}"),
            lambda page: page.get_by_text("cases passed").first.wait_for(),
        ),
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        print("| page in chromium | first time, s | again, s |\n|---|---|---|")
        for name, (go, wait) in pages.items():
            times = [_opened(browser, go, wait) for _ in range(AGAIN_IN_BROWSER + 1)]
            print(f"| {name} | {times[0]:.2f} | {statistics.median(times[1:]):.2f} |", flush=True)
        browser.close()


def _opened(browser: Any, go: Step, wait: Step) -> float:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)
    started = time.perf_counter()
    go(page)
    wait(page)
    seconds = time.perf_counter() - started
    context.close()
    return seconds


def measured(fetch: Callable[[], int]) -> tuple[float, float, int]:
    """Return the seconds of the first time, the median of some more, and the bytes that came."""
    times: list[float] = []
    size = 0
    for _ in range(AGAIN + 1):
        started = time.perf_counter()
        size = fetch()
        times.append(time.perf_counter() - started)
    return times[0], statistics.median(times[1:]), size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="keeps the store, and uses it again")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--turns", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        uri, run_ids = filled(folder, given.runs, given.turns)
        run = f"/runs/{run_ids[0]}"
        compared = "/compare?" + "&".join(f"run={run_id}" for run_id in run_ids[1:])
        pages = {
            f"{given.runs} runs: first row": "/",
            "filter by verdict": "/?verdict=failed",
            "sort by a criterion": "/?sort=-response_match_score",
            f"run of {given.turns:,} turns: first cases": run,
            "its verdict and all cases": f"{run}?verify=now",
            "filter by a criterion": f"{run}?criterion=tool_trajectory_avg_score",
            "search in all texts": f"{run}?q=kitchen",
            "last page": f"{run}?page=9999",
            "another threshold": f"{run}?threshold.response_match_score=0.5",
            "one case": f"{run}/case?eval_id=case-0000007&run_index=0",
            f"two runs of {COMPARED_TURNS:,} turns: names and progress": compared,
            "the first cases that differ": f"{compared}&read=3",
        }
        print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
        with viewer(uri) as address, mlflow_server(uri) as mlflow:
            in_browser(address, mlflow, uri, run_ids, given.runs, given.turns)
        print()
        with viewer(uri) as address:
            print("| page | first time, s | again, s | KB |\n|---|---|---|---|")
            for name, path in pages.items():
                url = address + urllib.parse.quote(path, safe="/?=&-_")
                first, again, size = measured(lambda url=url: len(urllib.request.urlopen(url, timeout=120).read()))
                print(f"| {name} | {first:.2f} | {again:.3f} | {size / 1e3:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
