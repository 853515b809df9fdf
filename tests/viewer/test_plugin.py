"""The viewer inside a real MLflow server, below a prefix, with two workers and artifacts that clients reach through the server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import httpx
import pytest

from tests.mlflow_kit import Server, copied, free_port
from tests.tracking.small import CONFIG, answering, rooms
from tests.viewer.test_browser import CHROMIUM, FLAGS, SIZE

pytestmark = pytest.mark.slow
EXPERIMENT = "in the server"


@pytest.fixture(scope="module")
def server(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("plugin")
    copied(template, folder)
    found = Server(folder, free_port(), prefix="/ml", options=("--app-name", "adk-eval", "--workers", "2")).start()
    yield found
    found.kill()


@pytest.fixture(scope="module")
def run_id(server: Server) -> str:
    import mlflow_adk_eval as adk_eval

    agent = answering(rooms(), heat="it is set to 12 degrees")
    options: dict[str, Any] = {"experiment": EXPERIMENT, "tracking_uri": server.uri, "run_name": "one", "traces": False, "ledger": False}
    run = adk_eval.evaluate(rooms(), agent, CONFIG, **options)
    return run.run_id or ""


def test_the_server_shows_its_own_runs_and_only_to_whom_it_shows_its_pages(server: Server, run_id: str) -> None:
    with httpx.Client(base_url=f"{server.uri}/adk-eval", timeout=60, follow_redirects=True) as client:
        for _ in range(4):  # whichever worker answers
            assert f'href="/ml/adk-eval/runs/{run_id}"' in client.get("/").text
            page = client.get(f"/runs/{run_id}")
        assert page.status_code == 200, page.text
        assert "verified" in page.text
        assert "below its threshold" in page.text
        experiment = page.text.partition("/#/experiments/")[2].partition("/")[0]
        assert f'href="/ml/#/experiments/{experiment}/runs/{run_id}"' in page.text
        assert client.get("").status_code == 200
        assert client.get("/", headers={"host": "evil.example"}).status_code == 403
        for path in ("/", f"/runs/{run_id}", f"/runs/{run_id}/label"):
            assert client.post(path, headers={"origin": server.uri.removesuffix("/ml")}).status_code in (404, 405)
    assert httpx.get(f"{server.uri}/", timeout=60).status_code == 200
    assert httpx.get(f"{server.uri}/version", timeout=60).status_code == 200


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; on Debian: apt-get install chromium")
def test_a_browser_goes_from_the_list_to_a_case_and_to_mlflow_in_the_server(server: Server, run_id: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(viewport=SIZE)
        context.set_default_timeout(60_000)
        page, complaints = context.new_page(), []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{server.uri}/adk-eval")
        page.get_by_role("link", name="one", exact=True).click()
        page.get_by_role("link", name="Failed 1").click()
        page.wait_for_url("**/ml/adk-eval/runs/*verdict=failed*")
        page.locator("[role=status]", has_text="1 case").wait_for(state="attached")
        page.locator("#search").press_sequentially("degrees")
        page.wait_for_url("**q=degrees**")
        page.locator(".case summary").click()
        page.get_by_role("link", name="Open this case").click()
        page.wait_for_url("**/ml/adk-eval/runs/*/case**")
        assert page.locator(".turn").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") == SIZE["width"]
        assert complaints == []
        with context.expect_page() as opened:
            page.get_by_role("link", name="Open in MLflow").click()
        opened.value.wait_for_url(f"**/ml/#/experiments/*/runs/{run_id}**")
        opened.value.get_by_text("case_pass_rate").first.wait_for()
        browser.close()


def test_a_server_with_permissions_of_its_own_does_not_start_with_the_viewer(tmp_path: Path, template: Path) -> None:
    uri = copied(template, tmp_path)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--port", str(free_port()), "--app-name", "adk-eval"]
    env = {**os.environ, "MLFLOW_AUTH_CONFIG_PATH": "auth.ini", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert (
        "Error: --app-name adk-eval does not work with MLFLOW_AUTH_CONFIG_PATH: the viewer would bypass its users' permissions"
        in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_neither_does_one_with_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_WORKSPACES", "true")
    monkeypatch.delitem(sys.modules, "mlflow_adk_eval.viewer.plugin", raising=False)
    with pytest.raises(click.ClickException, match="the viewer does not separate its workspaces"):
        import_module("mlflow_adk_eval.viewer.plugin")
