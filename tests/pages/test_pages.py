"""What MLflow's own pages show of our runs, in a real browser on a real server."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlflow
import pytest
from mlflow import MlflowClient
from playwright.sync_api import expect

import mlflow_adk_eval as adk_eval
from docs.screenshots import browser_page, open_page, server
from mlflow_adk_eval.tracking.client import experiment_id, open_store
from tests.kit import case_json, eval_set_json, turn_json

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; on Debian: apt-get install chromium"),
]
EXPERIMENT = "pages"
CONFIG = {"criteria": {"tool_trajectory_avg_score": 1, "response_match_score": 0.8}}
EVAL_SET = adk_eval.EvalSet.model_validate(
    eval_set_json(
        *(
            case_json(eval_id, turn_json(f"turn {eval_id}", f"the light is {eval_id}", ("switch", {"to": eval_id})))
            for eval_id in ("on", "off")
        ),
        eval_set_id="lights",
    )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """A browser on a server with two runs of one eval set, the eval set as a dataset, and a session of an agent."""

    page: Page
    base: str
    broken: str
    """The id of the run of the broken agent."""
    good: str
    dataset: str
    unnamed: str
    """The id of a run of the broken agent that was given no name."""
    model_id: str
    """Of the agent version that the broken run is about."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    store = open_store(tmp_path_factory.mktemp("pages"), experiment=EXPERIMENT)
    dataset = adk_eval.push_eval_set(EVAL_SET, experiment=EXPERIMENT, tracking_uri=store)
    runs = {
        name: adk_eval.evaluate(EVAL_SET, agent=agent, config=CONFIG, experiment=EXPERIMENT, tracking_uri=store, run_name=name).run_id or ""
        for agent, name in ((good, "the good one"), (broken, "the broken one"), (broken, None))
    }
    talk(store)
    with server(store) as address, browser_page(address, width=2400, height=1000) as page:
        yield Pages(
            page=page,
            base=f"/experiments/{experiment_id(store, EXPERIMENT)}",
            broken=runs["the broken one"],
            good=runs["the good one"],
            dataset=dataset.dataset_id,
            unnamed=runs[None],
            model_id=MlflowClient(store).get_run(runs["the broken one"]).data.params["adk_eval.model_id"],
        )


def talk(store: str) -> None:
    """Leave the traces of a session, and a scorer's feedback on it."""
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(store)
    try:
        mlflow.set_experiment(EXPERIMENT)
        predict = adk_eval.predict_fn(good)
        for record in adk_eval.genai_data(EVAL_SET):
            with mlflow.start_span("app"):
                mlflow.update_current_trace(metadata={"mlflow.trace.session": "monday"})
                predict(**record["inputs"])
        mlflow.flush_trace_async_logging()
    finally:
        mlflow.set_tracking_uri(before)


def text_of(pages: Pages, path: str, *, until: str) -> str:
    """Return what a page, and the frames in it, show once it shows `until`."""
    open_page(pages.page, path, until)
    return "\n".join(str(frame.locator("body").inner_text()) for frame in pages.page.frames)


def test_the_evaluation_runs_page_lists_both_runs_with_their_dataset_and_scores(pages: Pages) -> None:
    shown = text_of(pages, f"{pages.base}/evaluation-runs", until="the broken one")
    assert {"the good one", "the broken one", "lights", "tool_trajectory_avg_score/mean"} <= set(shown.splitlines())


def test_two_runs_are_compared_turn_by_turn_and_an_error_is_no_zero(pages: Pages) -> None:
    shown = text_of(
        pages, f"{pages.base}/evaluation-runs?selectedRunUuid={pages.broken}&compareToRunUuid={pages.good}", until="[on #1] turn on"
    )
    lines = shown.splitlines()
    assert [line for line in lines if "#1] turn" in line] == ["[on #1] turn on", "[off #1] turn off"]
    assert "adk_passed" in lines
    assert "Error" in lines


def test_the_runs_page_shows_the_verdict_and_the_reason(pages: Pages) -> None:
    shown = text_of(pages, f"{pages.base}/runs/{pages.broken}", until="tool_trajectory_avg_score/pass_rate")
    assert "0 of 2 cases passed in lights · verdict: failed" in " ".join(shown.split())
    assert "ConnectionError: the house does not answer · 1 case, 2 criteria" in shown


def test_the_rows_of_a_run_show_scores_answers_and_errors(pages: Pages) -> None:
    shown = text_of(pages, f"{pages.base}/runs/{pages.broken}/traces", until="[on #1] turn on").splitlines()
    assert {"[on #1] turn on", "[off #1] turn off", "the light is on", "False", "response_match_score"} <= set(shown)
    assert "Error" in shown


def test_a_trace_of_a_run_shows_the_reason(pages: Pages) -> None:
    open_page(pages.page, f"{pages.base}/runs/{pages.broken}/traces", "[on #1] turn on")
    pages.page.get_by_text("[on #1] turn on").first.click()
    pages.page.locator("[role=dialog] button:has-text('Assess')").click()
    pages.page.locator("[data-component-id$=toggle-assessment-expanded]").nth(1).click()
    pages.page.get_by_text("0 of 1 expected calls match (EXACT).").wait_for()


def test_the_dataset_page_shows_its_records(pages: Pages) -> None:
    shown = text_of(pages, f"{pages.base}/datasets/{pages.dataset}", until="expected_response")
    assert "2 records" in shown
    assert '{"expected_response":"the light is off"' in shown


def test_a_session_shows_its_turns(pages: Pages) -> None:
    shown = text_of(pages, f"{pages.base}/chat-sessions/monday", until="Turn 2")
    assert "Turn 1" in shown
    assert "Turn 3" not in shown


def test_the_report_is_shown_among_the_artifacts(pages: Pages) -> None:
    shown = text_of(pages, f"{pages.base}/runs/{pages.broken}/artifacts/adk_eval/report.html", until="adk_eval/report.html")
    assert "0 of 2 cases passed" in shown
    assert "the house does not answer" in shown


def test_the_table_of_turns_is_shown_as_one(pages: Pages) -> None:
    shown = text_of(pages, f"{pages.base}/runs/{pages.broken}/artifacts/adk_eval/invocations.json", until="off #1").splitlines()
    assert {"View as table", "key", "verdict", "on #1", "off #1"} <= set(shown)


def test_the_page_of_an_agent_version_shows_its_metrics_and_runs(pages: Pages) -> None:
    shown = text_of(pages, f"{pages.base}/models/{pages.model_id}", until="tool_trajectory_avg_score/mean").splitlines()
    assert {"tool_trajectory_avg_score/mean", "the broken one"} <= set(shown)


@pytest.fixture
def small(pages: Pages) -> Iterator[Page]:
    """The browser in the size of many people's, with MLflow's sidebar open."""
    pages.page.set_viewport_size({"width": 1440, "height": 900})
    yield pages.page
    pages.page.set_viewport_size({"width": 2400, "height": 1000})


def test_agent_and_pass_rate_are_in_view_in_the_list_of_runs(pages: Pages, small: Page) -> None:
    open_page(small, f"{pages.base}/evaluation-runs", "broken")
    for text in (re.compile("^broken"), "case_pass_rate", re.compile("^tool_trajectory")):
        expect(small.get_by_text(text).first).to_be_in_viewport()


def test_the_description_of_a_run_has_its_links_in_view(pages: Pages, small: Page) -> None:
    open_page(small, f"{pages.base}/runs/{pages.unnamed}", "0 of 2 cases passed")
    for text in (
        re.compile(r"^broken · \d\d:\d\d$"),
        re.compile("below its threshold 1 · 1 case, 1 criterion"),
        "case_pass_rate",
        "tool_trajectory_avg_score/threshold",
    ):
        expect(small.get_by_text(text).first).to_be_in_viewport()
    with small.context.expect_page() as opened:
        small.get_by_role("link", name="report", exact=True).click()
    assert opened.value.url.endswith(f"{pages.base}/runs/{pages.unnamed}/artifacts/adk_eval/report.html")
    opened.value.close()
