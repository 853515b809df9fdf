"""Stores that are in trouble: runs that are cut off, gone or have endless names, in a narrow window and in many tabs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.tracking.client import open_store
from tests.mlflow_kit import copied
from tests.report.pages import ATTACKS, rooms
from tests.tracking.small import answering
from tests.viewer.conftest import View, serving
from tests.viewer.evaluations import EXPERIMENT, evaluated
from tests.viewer.test_browser import CHROMIUM, FLAGS

pytestmark = pytest.mark.slow
NARROW = {"width": 400, "height": 800}
LONG = "a name that goes on " * 12 + "x" * 240


@pytest.fixture(scope="module")
def troubled(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    """Two hundred runs with long names, and one of each trouble."""
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("troubled")
    uri = copied(template, folder)
    for name in (EXPERIMENT, "gone"):
        open_store(folder, experiment=name)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(EXPERIMENT).experiment_id
    agent = answering(rooms()[0])
    runs = {name: evaluated(uri, agent, name).run_id or "" for name in ("whole", "bare", "lost")}
    texts = [*ATTACKS, LONG, "日本語" * 80, chr(0x202E) + "gnp.exe"]
    for number in range(200):
        text = texts[number % len(texts)].encode("utf-8", "replace").decode().replace("\0", "0")
        tags = {
            "adk_eval.status": "complete",
            "adk_eval.verdict": "failed",
            "adk_eval.eval_set_id": text[:4000],
            "adk_eval.agent_version": f"{text[:200]}@{text[:200]}",
        }
        run = client.create_run(experiment, run_name=f"{number} {text[:240]}", tags=tags)
        client.log_metric(run.info.run_id, f"criterion_{number % 9}_{'y' * 200}/mean", float("nan") if number % 5 else 1e300)
        client.log_param(run.info.run_id, f"threshold.criterion_{number % 9}_{'y' * 200}", text[:50])
        client.set_terminated(run.info.run_id)
    writing = client.create_run(experiment, run_name="being written", tags={"adk_eval.status": "running"})
    runs["writing"] = writing.info.run_id
    gone = client.get_experiment_by_name("gone").experiment_id
    runs["gone"] = client.create_run(gone, run_name="gone", tags={"adk_eval.status": "complete"}).info.run_id
    client.delete_experiment(gone)
    for name in ("bare", "lost"):
        place = Path(client.get_run(runs[name]).info.artifact_uri.removeprefix("file://")) / "adk_eval"
        shutil.rmtree(place / "cells") if name == "lost" else shutil.rmtree(place)
    with serving(uri, runs) as found:
        yield found


PROBLEMS = {
    "bare": (404, "contains no finished evaluation"),
    "lost": (502, "adk_eval/cells/part-00000.parquet is missing"),
    "writing": (404, "contains no finished evaluation"),
    "gone": (404, "contains no finished evaluation"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_run_that_cannot_be_shown_has_a_page_that_says_why(troubled: View, name: str) -> None:
    run_id = troubled.runs[name]
    for path in (
        f"/runs/{run_id}",
        f"/runs/{run_id}?verify=again",
        f"/runs/{run_id}/case?eval_id=x",
        f"/compare?run={run_id}&run={troubled.runs['whole']}",
    ):
        found = troubled.get(path)
        assert (found.status_code, PROBLEMS[name][1] in found.text) == (PROBLEMS[name][0], True), found.text
    assert troubled.get(f"/runs/{troubled.runs['whole']}").status_code == 200


def test_every_list_shows_hundreds_of_strange_runs(troubled: View) -> None:
    for path in (
        "/",
        "/?page=5",
        "/?sort=-pass_rate",
        "/?sort=version",
        "/?verdict=running",
        "/?page=-1&sort=%00",
        "/trend?eval_set=rooms",
        "/trend",
    ):
        assert troubled.get(path).status_code == 200, path
    for number in range(9):
        assert troubled.get(f"/?sort=-criterion_{number}_{'y' * 200}").status_code == 200


def test_ten_tabs_at_once_all_get_their_page(troubled: View) -> None:
    whole = troubled.runs["whole"]
    paths = ["/", f"/runs/{whole}", f"/runs/{whole}?verify=again", "/trend", f"/runs/{troubled.runs['lost']}"] * 2
    with ThreadPoolExecutor(10) as tabs:
        assert [one.status_code for one in tabs.map(troubled.get, paths)] == [200, 200, 200, 200, 502] * 2


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; on Debian: apt-get install chromium")
def test_no_page_is_wider_than_a_narrow_window(troubled: View, view: View) -> None:
    from playwright.sync_api import sync_playwright

    runs = view.runs
    pages = [
        *(f"{troubled.url}{path}" for path in ("/", "/?page=3", "/trend", f"/trend?eval_set={LONG}", f"/runs/{troubled.runs['lost']}")),
        *(f"{view.url}{path}" for path in ("/", "/trend", f"/runs/{runs['second']}", f"/runs/{runs['hostile']}")),
        f"{view.url}/compare?run={runs['first']}&run={runs['second']}&run={runs['third']}&kind=all",
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page: Any = browser.new_page(viewport=NARROW)
        found = {}
        for address in pages:
            page.goto(address)
            page.evaluate("for (const one of document.querySelectorAll('details:not(.facet)')) one.open = true")
            found[address] = page.evaluate("document.documentElement.scrollWidth")
            assert page.evaluate("window.pwned") is None
        browser.close()
    assert set(found.values()) == {NARROW["width"]}, found
