"""What MLflow's own pages show of our runs, in a real browser on a real server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import mlflow_adk_eval as adk_eval
from docs.screenshots import server
from mlflow_adk_eval.tracking.store import experiment_id, open_store

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; on Debian: apt-get install chromium"),
]
EXPERIMENT = "pages"
CONFIG = {"criteria": {"tool_trajectory_avg_score": 1, "response_match_score": 0.8}}
EVAL_SET = adk_eval.EvalSet.model_validate(
    {
        "eval_set_id": "lights",
        "eval_cases": [
            {
                "eval_id": eval_id,
                "conversation": [
                    {
                        "user_content": {"parts": [{"text": f"turn {eval_id}"}]},
                        "final_response": {"parts": [{"text": f"the light is {eval_id}"}]},
                        "intermediate_data": {"tool_uses": [{"name": "switch", "args": {"to": eval_id}}]},
                    }
                ],
            }
            for eval_id in ("on", "off")
        ],
    }
)


def good(user_text: str, session: adk_eval.Session) -> dict[str, object]:
    return {
        "final_response": f"the light is {session.eval_id}",
        "intermediate_data": {"tool_uses": [{"name": "switch", "args": {"to": session.eval_id}}]},
    }


def broken(user_text: str, session: adk_eval.Session) -> dict[str, object]:
    if session.eval_id == "off":
        raise ConnectionError("the house does not answer")
    return good(user_text, session) | {"intermediate_data": {"tool_uses": [{"name": "switch", "args": {"to": "off"}}]}}


@dataclass(frozen=True, slots=True)
class Pages:
    """A server with two runs of one eval set."""

    base: str
    good: str
    broken: str


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    store = open_store(tmp_path_factory.mktemp("pages"), experiment=EXPERIMENT)
    runs = [
        adk_eval.evaluate(EVAL_SET, agent=agent, config=CONFIG, experiment=EXPERIMENT, tracking_uri=store, run_name=name).run_id or ""
        for agent, name in ((good, "the good one"), (broken, "the broken one"))
    ]
    with server(store) as address:
        yield Pages(f"{address}/#/experiments/{experiment_id(store, EXPERIMENT)}", *runs)


def text_of(path: str, *, until: str) -> str:
    """Return what a page shows once it shows `until`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
        )
        page = browser.new_page(viewport={"width": 2400, "height": 1000})
        page.goto(path, wait_until="load")
        page.get_by_text(until).first.wait_for(timeout=60_000)
        page.wait_for_timeout(1_500)
        shown = page.locator("body").inner_text()
        browser.close()
    return str(shown)


def test_the_evaluation_runs_page_lists_both_runs_with_their_dataset_and_scores(pages: Pages) -> None:
    shown = text_of(f"{pages.base}/evaluation-runs", until="the broken one")
    assert {"the good one", "the broken one", "lights", "tool_trajectory_avg_score/mean"} <= set(shown.splitlines())


def test_two_runs_are_compared_turn_by_turn_and_an_error_is_no_zero(pages: Pages) -> None:
    shown = text_of(f"{pages.base}/evaluation-runs?selectedRunUuid={pages.broken}&compareToRunUuid={pages.good}", until="[on #1] turn on")
    lines = shown.splitlines()
    assert [line for line in lines if "#1] turn" in line] == ["[on #1] turn on", "[off #1] turn off"]
    assert "adk_passed" in lines
    assert "Error" in lines


def test_the_runs_page_shows_the_verdict_and_the_reason(pages: Pages) -> None:
    shown = text_of(f"{pages.base}/runs/{pages.broken}", until="tool_trajectory_avg_score/pass_rate")
    assert "failed: 0 of 2 conversations passed (lights)" in shown
