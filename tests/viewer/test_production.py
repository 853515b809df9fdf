"""Production in the viewer: as a line among the evaluation runs, with the sample behind each look, and whatever somebody writes into MLflow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_adk_eval.runs.listed import RunRow, row_of
from mlflow_adk_eval.viewer.production import MOST_CRITERIA, MOST_EVALUATIONS, MOST_LOOKS, production_page, sample_of, time_of
from mlflow_adk_eval.viewer.query import Query
from tests.integrations.genai import QUIET
from tests.mlflow_kit import copied
from tests.report.pages import ATTACKS, Elements
from tests.viewer.conftest import View, serving
from tests.viewer.looks import FOREIGN, LIVE, SAID, SAMPLE, SCORED, looks
from tests.viewer.test_browser import CHROMIUM, FLAGS, SIZE, UNMARKED, UNREACHABLE, check_with_axe, cut_off
from tests.workers import made_once

pytestmark = QUIET
PAGE = "/production?experiment="


@pytest.fixture(scope="session")
def watched(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    def make(folder: Path) -> None:
        copied(template, folder)
        (folder / "runs.json").write_text(json.dumps(looks(folder)))

    made = made_once(tmp_path_factory, "watched", make)
    with serving(f"sqlite:///{made / 'mlflow.db'}", json.loads((made / "runs.json").read_text())) as found:
        yield found


def points(html: str) -> dict[str, str]:
    """Return what each point of the first chart says, by the id of its run."""
    chart = html[html.index("<svg") : html.index("</svg>")]
    return {run: unescape(said) for run, said in re.findall(r'<a href="/runs/(\w+)" aria-label="([^"]*)"', chart)}


def test_production_is_a_line_among_the_evaluation_runs_with_the_champion_and_the_alarms(watched: View) -> None:
    html = watched.text(PAGE + LIVE.replace(" ", "+"))
    said = points(html)
    assert list(said) == [watched.runs[name] for name in ("v_good", "v_regressed", *(f"watch {hour:02}" for hour in range(1, 13)))]
    assert said[watched.runs["v_good"]].endswith(f"passed: 100.0% of cases passed, the champion, version 1 of {LIVE}")
    assert said[watched.runs["v_regressed"]].endswith("failed: 81.8% of cases passed")
    assert said[watched.runs["watch 01"]].endswith("92.0% of all conversations passed (88.0% to 95.0%)")
    assert said[watched.runs["watch 05"]].endswith("no readable pass rate")
    assert said[watched.runs["watch 09"]].endswith(f"73.0% of all conversations passed (69.0% to 76.0%), alarm: {SAID}")
    chart = html[html.index("<svg") : html.index("</svg>")]
    drawn = {'<line class="look"': 9, "<polygon": 9, '<circle class="look"': 11, "<rect": 2, 'class="ring"': 1, 'class="alarm"': 2}
    drawn |= {'class="gap"': 1, 'class="threshold"': 1}
    assert {one: chart.count(one) for one in drawn} == drawn
    alarms = html[html.index("2 alarms") : html.index("</section>")]
    assert alarms.count(SAID) == 2
    assert f'href="/runs/{watched.runs["watch 09"]}?verdict=failed#cases"' in alarms
    assert '<strong class="missing">1 look</strong> without a readable estimate' in html
    table = html[html.index("<tbody") :]
    assert table.count("production</td>") == 12
    assert table.count("evaluation</td>") == 2
    assert '<span class="alias" dir="auto">champion</span>' in table


def test_an_alarm_leads_to_the_run_and_from_there_to_the_traces_that_failed(watched: View) -> None:
    from mlflow import MlflowClient

    run = watched.runs["scored"]
    assert f'href="/runs/{run}?verdict=failed#cases"' in watched.text(PAGE + SCORED)
    html = watched.text(f"/runs/{run}?verdict=failed")
    linked = re.findall(r'href="http://mlflow.example/#/experiments/(\d+)/traces\?selectedEvaluationId=(tr-\w+)"', html)
    client = MlflowClient(watched.uri)
    of_session = {
        client.get_trace(trace).info.request_metadata["mlflow.trace.session"]: client.get_trace(trace).info.experiment_id
        for _, trace in linked
    }
    assert of_session == dict.fromkeys(("rude", "rude_again", "busy"), client.get_experiment_by_name(SCORED).experiment_id)
    assert {place for place, _ in linked} == set(of_session.values())
    assert len(linked) == 4
    assert watched.text(f"/runs/{run}?verdict=undecided").count("Trace of turn 1 in MLflow") == 2
    case = watched.text(f"/runs/{run}/case?eval_id=rude_again&run_index=0")
    for number, turn in enumerate(case.split('id="turn-')[1:], 1):
        assert re.findall(r"Trace of turn (\d)", turn) == [str(number)]


def test_the_page_of_a_look_says_what_was_drawn_and_that_its_share_is_of_the_sample(watched: View) -> None:
    html = " ".join(watched.text(f"/runs/{watched.runs['scored']}").split())
    assert f"Alarm: {SAID}" in html
    assert re.search(
        r"<strong>16\.7%</strong> of 6 conversations from [-\d: ]+ to [-\d: ]+ passed, by a weighted estimate \(95% interval", html
    )
    assert "The sample has all of them." in html
    assert "<dt>Found</dt> <dd>6 conversations</dd>" in html
    assert "6 of them, 6 at random" in html
    assert "Compare with" not in html
    attacked = watched.text(f"/runs/{watched.runs['attacked']}")
    assert "The share at the top is that of the sample alone" in attacked
    assert "<dt>Already scored with this config</dt> <dd>16</dd>" in attacked
    assert "14 unreadable conversations" in attacked


def test_the_list_marks_looks_and_the_trend_leaves_them_out(watched: View) -> None:
    html = watched.text("/?q=scored")
    row = html[html.index(">scored</a>") :]
    assert f'<a class="alias" href="/production?experiment={SCORED}">production</a>' in row
    assert f'title="{SAID}">alarm</strong>' in row
    assert "1 of 6 in the sample" in row
    trend = watched.text("/trend")
    assert watched.runs["v_good"] in trend
    assert watched.runs["scored"] not in trend


def test_a_store_without_looks_says_how_to_get_one(template: Path, tmp_path: Path) -> None:
    with serving(copied(template, tmp_path), {}) as view:
        for address in ("/production", "/production?experiment=nobody"):
            assert "mlflow-adk-eval traces score EXPERIMENT" in view.text(address)


def test_what_others_write_into_mlflow_stays_text_and_is_limited(watched: View) -> None:
    pages = [watched.text(PAGE + FOREIGN.replace(" ", "+")), watched.text("/?q=watch"), watched.text("/")]
    pages += [watched.text(f"/runs/{watched.runs[name]}") for name in ("attacked", "broken", "bare")]
    for html in pages:
        assert len(html) < 400_000
        elements = Elements(html)
        assert not elements.tags & {"img", "iframe", "object", "base", "style", "animate"}
        assert not any(name.startswith("on") for name in elements.attributes)
        assert all(attributes.get("src") for tag, attributes in elements.found if tag == "script")
        assert all((attributes.get("href") or "/").startswith(("/", "#", "http://mlflow.example/")) for _, attributes in elements.found)
    said = points(pages[0])
    assert len(said) == 3 + len(ATTACKS)
    assert sum("50.0% of all conversations passed, alarm" in one for one in said.values()) == 2
    assert sum("no readable pass rate" in one for one in said.values()) == len(said) - 2
    assert "17 looks</strong> without a readable estimate or time" in pages[0]
    for html in pages[4:]:
        assert "sample.json is missing or unreadable" in html
        assert html.count("<tbody") == 1 + html.count('aria-labelledby="information"')


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"found": -1},
        {"found": "many"},
        {"unreadable": "all"},
        {"from": "0001-01-01T00:00:00+14:00"},
        {"to": "2026-11-20T05:00:00"},
        {"strata": [{"name": "rest", "conversations": 10**10, "drawn": 1}]},
        {"strata": [{"name": "rest", "conversations": 5, "drawn": -1}]},
        {"strata": [{"name": "rest"}]},
        {"strata": SAMPLE["strata"] * 51},
        {"rates": [SAMPLE["rates"][0] | {"value": 1e300}]},
        {"rates": [SAMPLE["rates"][0] | {"low": float("nan")}]},
        {"rates": [SAMPLE["rates"][0] | {"evaluated": -5}]},
        {"at_random": [["s-1"]]},
    ],
    ids=str,
)
def test_a_sample_that_says_what_none_can_is_no_sample(change: dict[str, Any]) -> None:
    assert sample_of(json.dumps(SAMPLE).encode())
    assert sample_of(json.dumps(SAMPLE | change).encode()) is None


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"null", b"[" * 100_000, b'{"schema":' * 100_000, b"\xff\xfe", b" " * (17 << 20) + b"{}"]
)
def test_what_is_no_json_of_a_readable_size_is_no_sample(content: bytes | None) -> None:
    assert sample_of(content) is None


def row(run_id: str, *, production: bool = True, at: int = 0, metrics: dict[str, float] | None = None, until: str = "") -> RunRow:
    params = {"adk_eval.production": "score", "adk_eval.production_to": until} if production else {}
    info = SimpleNamespace(run_id=run_id, experiment_id="1", run_name=run_id, start_time=at * 1000)
    return row_of(SimpleNamespace(info=info, data=SimpleNamespace(tags={}, params=params, metrics=metrics or {})), "live")


def test_a_look_stands_at_the_end_of_its_time_where_that_can_be_read() -> None:
    assert time_of(row("a", until="2026-11-20T04:00:00")) == time_of(row("b", until="2026-11-20T05:00:00+01:00"))
    for wrong in ("", "soon", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        assert time_of(row("a", at=5, until=wrong)).timestamp() == 5
    assert row("a", production=False).production is None


@pytest.mark.parametrize(
    ("metrics", "rates"),
    [
        ({"": 0.5, "_low": 0.4, "_high": 0.6}, {"": (0.5, 0.4, 0.6)}),
        ({"": 0.5}, {"": (0.5, 0.5, 0.5)}),
        ({"": 0.5, "_low": 0.6, "_high": 0.7}, {"": (0.5, 0.5, 0.5)}),
        ({"": 0.5, "_low": float("nan"), "_high": float("inf")}, {"": (0.5, 0.5, 0.5)}),
        ({"": 1.5}, {}),
        ({"": float("nan")}, {}),
        ({"_low": 0.4}, {}),
    ],
)
def test_a_rate_is_one_between_0_and_1_and_its_interval_is_around_it(
    metrics: dict[str, float], rates: dict[str, tuple[float, float, float]]
) -> None:
    look = row("a", metrics={f"production/pass_rate{end}": value for end, value in metrics.items()}).production
    assert look is not None
    assert dict(look.rates) == rates


def test_a_chart_has_the_latest_looks_and_evaluations_and_few_criteria() -> None:
    wanted = {f"production/c{number}/pass_rate": 0.97 for number in range(9)}
    rows = [row(f"look {at}", at=at, metrics={"production/pass_rate": 0.95, **wanted}) for at in range(500, 0, -1)]
    rows += [row(f"evaluation {at}", production=False, at=at, metrics={"case_pass_rate": 0.72}) for at in range(40, 0, -1)]
    rows.append(replace(row("elsewhere", production=False, metrics={"case_pass_rate": 0.1}), experiment_id="2"))
    page = production_page(rows, Query("/production", []), None)
    assert (len(page["looks"]), page["left_out"], len(page["charts"])) == (MOST_LOOKS, 500 - MOST_LOOKS, 1 + MOST_CRITERIA)
    assert len(page["runs"]) == MOST_LOOKS + MOST_EVALUATIONS
    assert page["runs"][-1].run_id == "look 500"
    assert (page["charts"][""], page["charts"]["c0"]) == (0.7, 0.9)
    assert page["unanswered"]


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; on Debian: apt-get install chromium")
def test_the_pages_of_production_fit_take_the_keyboard_and_run_nothing_of_others(watched: View) -> None:
    from playwright.sync_api import sync_playwright

    addresses = [PAGE + LIVE, PAGE + FOREIGN, *(f"/runs/{watched.runs[name]}" for name in ("scored", "attacked"))]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport=SIZE, base_url=watched.url)
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(watched.url) else complaints.append(request.url))
        found = {}
        for address in addresses:
            page.goto(address)
            wrong = [*cut_off(page), *page.evaluate(UNMARKED)]
            found[address] = wrong + check_with_axe(page, SIZE["width"]) + page.evaluate(UNREACHABLE)
            assert page.evaluate("window.pwned") is None
            assert page.title().endswith("· mlflow-adk-eval")
        assert [one for one in found.items() if one[1]] == []
        page.goto(PAGE + LIVE)
        assert page.locator("svg .threshold").first.bounding_box()["y"] < SIZE["height"]
        page.goto(PAGE + SCORED)
        page.locator("svg a:has(.alarm)").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/runs/{watched.runs['scored']}")
        page.goto(PAGE + SCORED)
        page.get_by_role("link", name="Failed conversations").click()
        page.locator(".case summary").first.click()
        assert page.get_by_role("link", name="Trace of turn 1 in MLflow").first.is_visible()
        browser.close()
    assert complaints == []
