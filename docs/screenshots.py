"""Take the pictures of MLflow's pages that the documentation shows, from the store that `make demo` left.

make demo && make screenshots
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlflow.tracking import MlflowClient
from playwright.sync_api import Error, Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
SETTLE_MS = 6_000
NO_TELEMETRY = "try { localStorage.setItem('mlflow.telemetry.enabled', 'false') } catch (e) {}"


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: a page, and what is clicked on it first."""

    name: str
    path: str
    clicks: tuple[str, ...] = ()


def shots(store: str) -> list[Shot]:
    """Return the pictures of the demo's two runs."""
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("home_automation").experiment_id
    runs = {run.info.run_name: run.info.run_id for run in client.search_runs([experiment])}
    good, bad = runs["home_automation_agent"], runs["home_automation_agent_regressed"]
    page = f"/experiments/{experiment}"
    compared = f"{page}/evaluation-runs?selectedRunUuid={bad}&compareToRunUuid={good}"
    return [
        Shot("evaluation_runs", f"{page}/evaluation-runs"),
        Shot("run_rows", f"{page}/evaluation-runs", ("text=home_automation_agent_regressed",)),
        Shot(
            "rationale",
            f"{page}/evaluation-runs",
            (
                "text=home_automation_agent_regressed",
                "text=[turn_off_light #1]",
                "[role=dialog] button:has-text('Assess')",
                "[data-component-id$=toggle-assessment-expanded] >> nth=1",
            ),
        ),
        Shot("compare", compared, ("[aria-label='Refresh traces']",)),
        Shot("run_overview", f"{page}/runs/{bad}"),
        Shot("agent_versions", f"{page}/models"),
        Shot("registered_model", "/models/home_automation"),
        Shot("champion", "/models/home_automation/versions/1"),
    ]


@contextlib.contextmanager
def server(store: str) -> Iterator[str]:
    """Run an MLflow server on `store`; yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--port", str(port), "--workers", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{address}/health")
        yield address
    finally:
        process.terminate()
        process.wait()


def wait_for(address: str, seconds: float = 90) -> None:
    """Wait until an address answers."""
    end = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(address, timeout=2).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.3)
        else:
            return


def take(page: Page, address: str, shot: Shot) -> Path:
    """Open a page, close MLflow's assistant, click, and save the picture."""
    page.goto(f"{address}/#{shot.path}", wait_until="load")
    page.wait_for_timeout(SETTLE_MS)
    close_assistant(page)
    for selector in shot.clicks:
        page.locator(selector).first.click(timeout=15_000)
        page.wait_for_timeout(SETTLE_MS)
    file = IMAGES / f"{shot.name}.png"
    page.screenshot(path=file)
    return file


def close_assistant(page: Page) -> None:
    """Close the panel that takes a third of the window, where it is open."""
    with contextlib.suppress(Error):
        page.locator("[aria-label='Close']").last.click(timeout=2_000)


def main() -> None:
    """Take every picture."""
    store = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{Path('demo').resolve()}/mlflow.db"
    chromium = shutil.which("chromium") or os.environ.get("CHROMIUM", "")
    if not chromium:
        sys.exit("chromium is not installed; on Debian: apt-get install chromium")
    IMAGES.mkdir(exist_ok=True)
    flags = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-sync",
        "--no-first-run",
    ]
    with server(store) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        context = browser.new_context(viewport={"width": 1800, "height": 1000})
        context.add_init_script(NO_TELEMETRY)
        for shot in shots(store):
            page = context.new_page()
            print(take(page, address, shot).relative_to(Path.cwd()))
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
