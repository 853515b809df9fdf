"""What the viewer's pages say, over HTTP."""

from __future__ import annotations

import math
import re
from html import unescape
from types import SimpleNamespace

import httpx
import pytest
from markupsafe import escape

from mlflow_adk_eval.evalset.files import parse_eval_set
from mlflow_adk_eval.runs.listed import RunRow, row_of
from mlflow_adk_eval.viewer.listing import runs_page
from mlflow_adk_eval.viewer.query import Query, filtered, link, paged
from mlflow_adk_eval.viewer.store import RunStore
from mlflow_adk_eval.viewer.trend import trend_page
from tests.report.pages import QUALITY
from tests.viewer.conftest import View


def rows(html: str) -> list[str]:
    """Return the names of the runs that are listed."""
    return re.findall(r'<th [^>]*class="name"><a[^>]*>([^<]*)</a>', html.replace("<wbr>", ""))


def cases(html: str) -> list[str]:
    return re.findall(r'<h3 dir="auto">([^<]*)</h3>', html)


def test_the_list_has_the_answer_of_each_run(view: View) -> None:
    html = view.text("/?eval_set=rooms")
    assert rows(html) == ["third", "second", "first"]
    second = html[html.index(">second</a>") : html.index(">first</a>")]
    assert "failed</span>" in second
    assert re.findall(r"(\d+%)", second) == ["67%"]
    assert 'title="tool_trajectory_avg_score"' in html
    assert "≥ 0.8" in html
    assert "judge" in html.lower()


def test_filters_and_orders_are_links(view: View) -> None:
    html = view.text("/?eval_set=rooms")
    assert 'href="/?eval_set=rooms&amp;verdict=failed"' in html
    assert rows(view.text("/?eval_set=rooms&verdict=failed")) == ["second"]
    assert rows(view.text("/?eval_set=rooms&sort=response_match_score"))[0] == "second"
    assert rows(view.text("/?eval_set=rooms&sort=started")) == ["first", "second", "third"]
    assert "No matching runs" in view.text("/?version=nobody")


def test_a_run_says_its_verdict_and_reasons_before_all_else(view: View) -> None:
    html = view.text(f"/runs/{view.runs['second']}")
    assert html.index("failed</span>") < html.index("below its threshold") < html.index("<h2 id=")
    assert "verified" in html
    assert f"http://mlflow.example/#/experiments/1/runs/{view.runs['second']}" in html
    assert cases(html)[0] == "lamp"
    assert f"/compare?run={view.runs['first']}&amp;run={view.runs['second']}" in html


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=LAMP+ON", ["good"]),
        ("q=beep", []),
        ("q=hall+is+on", ["lamp"]),
        ("criterion=response_match_score", ["lamp"]),
        ("verdict=passed&criterion=response_match_score", []),
    ],
)
def test_cases_are_found_by_text_criterion_and_verdict(view: View, query: str, found: list[str]) -> None:
    assert cases(view.text(f"/runs/{view.runs['second']}?{query}")) == found


def test_a_case_shows_both_sides_the_scores_and_the_votes(view: View) -> None:
    html = view.text(f"/runs/{view.runs['second']}/case?eval_id=lamp&run_index=0")
    assert "the lamp in the hall is <del>off</del> now" in html
    assert "the lamp in the hall is <ins>on</ins> now" in html
    assert QUALITY in html
    assert "Votes: " in html


def compared(view: View, *names: str, rest: str = "") -> str:
    return view.text("/compare?" + "&".join(f"run={view.runs[name]}" for name in names) + rest)


def test_two_runs_are_compared_as_the_command_does_it(view: View) -> None:
    from mlflow_adk_eval.report.comparison import format_counts
    from mlflow_adk_eval.tracking.compare import compare

    html = compared(view, "first", "second")
    found = compare(view.runs["first"], view.runs["second"], tracking_uri=view.uri)
    assert list(format_counts(found).values()) == ["1 now fails"]
    assert "1 now fails" in html
    assert cases_compared(html) == ["lamp"]
    (_, cause), *_ = found.flipped[0].all_causes()
    assert str(escape(cause.sentence)) in html
    assert cases_compared(compared(view, "first", "second", rest="&kind=all"))[0] == "lamp"
    assert len(cases_compared(compared(view, "first", "second", rest="&kind=all"))) == 3
    assert cases_compared(compared(view, "first", "second", rest="&kind=better")) == []
    assert cases_compared(compared(view, "first", "second", rest="&criterion=response_match_score")) == ["lamp"]
    changed = html[html.index("Cases by changed criterion") :].partition("</ul>")[0]
    assert re.findall(r'dir="auto">(\w+) <span', changed) == sorted(one.criterion for one in found.flipped[0].criteria)
    assert cases_compared(compared(view, "first", "third")) == []


def cases_compared(html: str) -> list[str]:
    return re.findall(r'<h3 dir="auto"><bdi>([^<]*)</bdi></h3>', html)


def test_three_runs_stand_side_by_side_by_case_and_turn(view: View) -> None:
    html = compared(view, "first", "second", "third")
    assert cases_compared(html) == ["lamp"]
    summary = re.search(r"<summary>.*?</summary>", html, re.DOTALL)
    assert summary is not None
    assert re.findall(r'badge (\w+)"', summary[0]) == ["passed", "failed", "passed"]
    said = re.search(r"Answer and calls</th>(.*?)</tr>", html, re.DOTALL)
    assert said is not None
    assert re.findall(r"hall is (\w+) now", said[1]) == ["off", "on", "off"]
    assert f'href="/compare?run={view.runs["second"]}&amp;run={view.runs["first"]}&amp;run={view.runs["third"]}"' in html
    assert re.findall(r'class="letter">(\w)</strong> <a[^>]*>(\w+)</a>\s*<span class="badge (\w+)', html) == [
        ("A", "first", "passed"),
        ("B", "second", "failed"),
        ("C", "third", "passed"),
    ]
    assert "same verdict and scores" in html


def test_a_comparison_of_large_runs_is_read_step_by_step_also_without_scripts(unseen: View) -> None:
    address, said = f"/compare?run={unseen.runs['small']}&run={unseen.runs['large']}&kind=all", []
    for _ in range(4):
        html = unseen.text(address)
        said += re.findall(r'role="status">([^<]*)<', html)
        refresh = re.search(r'<noscript><meta http-equiv="refresh" content="0; url=([^"]*)">', html)
        address = unescape(refresh[1]) if refresh else address
    assert said == ["Reading run 1 of 2: 1 case…", "Reading run 2 of 2: 260 cases…", "Comparing 260 cases…", "1 case shown"]
    assert cases_compared(html) == ["case 000"]
    assert "259 cases only in the second run" in html
    assert 'role="status">1 case shown' in compared(unseen, "small", "large", rest="&kind=all")


@pytest.mark.parametrize("count", [0, 1, 7])
def test_too_few_or_too_many_runs_are_not_compared(view: View, count: int) -> None:
    found = view.get("/compare?" + "&".join(f"run={number}" for number in range(count)))
    assert found.status_code == 400
    assert "select 2 to 6 on the Runs page" in found.text


@pytest.mark.parametrize("path", ["/runs/nothing", "/runs/nothing/case", "/nothing"])
def test_what_is_not_there_is_said_on_a_page(view: View, path: str) -> None:
    found = view.get(path)
    assert found.status_code == 404
    assert "Not found</h1>" in found.text


def test_a_run_whose_evidence_does_not_hold_says_so(view: View) -> None:
    from mlflow import MlflowClient

    run_id, client = view.runs["third"], MlflowClient(view.uri)
    client.log_metric(run_id, "case_pass_rate", 0.5)
    try:
        assert "cannot be trusted" not in view.text(f"/runs/{view.runs['first']}")
        html = view.text(f"/runs/{run_id}?verify=again")
        assert "The evidence of this run cannot be trusted" in html
        assert "the logged metric case_pass_rate is 0.5" in html
    finally:
        client.log_metric(run_id, "case_pass_rate", 1.0, step=1)
    assert "cannot be trusted" not in view.text(f"/runs/{run_id}?verify=again")


def test_a_large_run_shows_its_first_cases_and_no_verdict_before_it_is_verified(unseen: View) -> None:
    run = f"/runs/{unseen.runs['large']}"
    first = unseen.text(run)
    assert "Verifying the evidence of 1,040 turns. The verdict and all 260 case runs will follow." in first
    assert f'hx-get="{run}?verify=now"' in first
    head = first[first.index("<main") : first.index("<h2")]
    assert "badge" not in head
    assert "verified" not in head
    whole = unseen.text(f"{run}?verify=now")
    assert "Verifying" not in whole
    assert "verified" in whole
    assert cases(first) == cases(whole)[:8]
    assert len(cases(whole)) == 20
    bodies = [html[html.index('<details class="case') :].partition('<p class="links"')[0].split("</section>")[0] for html in (first, whole)]
    assert bodies[0] == bodies[1]
    assert "Verifying" not in unseen.text(run)


def test_a_filter_of_a_large_run_that_nobody_looked_at_is_answered_once_it_is_verified(unseen: View) -> None:
    filtered = f"/runs/{unseen.runs['large']}?verdict=passed"
    first = unseen.text(filtered)
    assert cases(first) == []
    assert "verdict=passed&amp;verify=now" in first
    assert cases(unseen.get(filtered, headers={"hx-request": "true"}).text)[0] == "case 000"


def test_only_this_machines_browser_gets_in(view: View) -> None:
    assert view.get("/", headers={"host": "evil.example"}).status_code == 400
    assert view.get("/", headers={"host": "127.0.0.1.evil.example"}).status_code == 400
    found = view.get("/")
    assert found.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in found.headers["content-security-policy"]
    assert not re.search(r"<script(?! src=)| on\w+=| style=", found.text)


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://127.0.0.1:1"])
def test_what_another_page_sends_is_refused(view: View, origin: str | None) -> None:
    headers = {"origin": origin} if origin else {}
    assert httpx.post(f"{view.url}/label", headers=headers).status_code == 403


def would(view: View, query: str) -> tuple[str, list[str]]:
    html = view.text(f"/runs/{view.runs['second']}?{query}")
    found = html[html.index("The run would be") :]
    return re.findall(r"</span> (\w+)</span>", found)[0], re.findall(r"([\d,]+ case runs?) would|run_index=0\" dir=\"auto\">(\w+)<", found)


def test_other_thresholds_say_what_would_have_passed(view: View) -> None:
    lower = "threshold.tool_trajectory_avg_score=0&threshold.response_match_score=0.1"
    assert would(view, lower) == ("failed", [("3 case runs", ""), ("0 case runs", ""), ("0 case runs", "")])
    lower += f"&threshold.{QUALITY}=0"
    assert would(view, lower) == ("passed", [("3 case runs", ""), ("1 case run", ""), ("", "lamp"), ("0 case runs", "")])
    assert would(view, "threshold.response_match_score=0.8")[0] == "failed"
    assert "The run would be" not in view.text(f"/runs/{view.runs['second']}")
    verdicts = view.text(f"/runs/{view.runs['second']}?{lower}&verdict=failed")
    assert cases(verdicts) == ["lamp"], "the run itself is what it was"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("response_match_score=2", "from 0 to 1"),
        ("response_match_score=a", "from 0 to 1"),
        ("nothing=1", "not a criterion with a threshold"),
    ],
)
def test_thresholds_that_make_no_sense_are_named(view: View, query: str, said: str) -> None:
    found = view.get(f"/runs/{view.runs['second']}?threshold.{query}")
    assert (found.status_code, said in found.text) == (404, True)


def test_the_trend_has_each_criterion_over_the_runs_of_an_eval_set(view: View) -> None:
    html = view.text("/trend?eval_set=rooms")
    assert rows(html) == ["third", "second", "first"]
    drawn = html[html.index('aria-label="response_match_score over 3 runs') :].partition("</svg>")[0]
    assert re.findall(r'<circle class="(\w+)" cx="([\d.]+)"', drawn) == [("reached", x) for x in ("12.0", "360.0", "708.0")]
    assert drawn.count('class="threshold"') == 3
    assert "threshold 0.8" in drawn
    attacks = view.text("/trend?eval_set=attacks").partition("response_match_score over")[2].partition("</svg>")[0]
    assert re.findall(r'<circle class="(\w+)"', attacks) == ["hollow"] * 2  # some are no words, which ROUGE cannot compare
    assert rows(view.text("/trend")) == rows(view.text("/trend?eval_set=attacks"))


def row_in(html: str, name: str) -> str:
    """Return the row of the run by an agent of that name, as text with what its tags say."""
    return next(row for row in html.split(" data-row ")[1:] if f">{name} ·" in row.replace("<wbr>", "")).partition("</tr>")[0]


def test_what_has_no_score_is_hatched_in_the_list_and_hollow_in_the_trend(view: View) -> None:
    html = view.text("/?eval_set=home_automation")
    evidence = {
        name: re.findall(r'<span class="lacks">([^<]*scored)</span>', row_in(html, name)) for name in ("v_good", "v_crash", "v_undecided")
    }
    assert evidence == {"v_good": [], "v_crash": ["8 of 11 scored"] * 4, "v_undecided": ["7 of 11 scored"]}
    assert row_in(html, "v_crash").count('<span class="lacks">1</span>') == 3
    assert "lacks" not in row_in(html, "v_regressed")
    assert rows(view.text("/?eval_set=home_automation&sort=-response_match_score"))[-1].startswith("v_crash")
    trend = view.text("/trend?eval_set=home_automation")
    assert re.findall(r"<h2 id=\"line-1\"[^>]*>([^<]*)", trend) == ["Cases passed"]
    charts = [re.findall(r'<circle class="(\w+)"', chart) for chart in trend.split("<svg")[1:]]
    assert charts == [
        ["reached", "hollow", "hollow", "missed"],
        ["reached", "hollow", "reached", "missed"],
        ["reached", "hollow", "reached", "reached"],
        ["reached", "hollow", "hollow", "missed"],
    ]
    assert f'<a href="/runs/{view.runs["v_crash"]}" aria-label="v_crash ·' in trend
    assert row_in(trend, "v_crash").count("8 of 11 scored") == 3


def listed(name: str, **metrics: float) -> RunRow:
    """Return a run of an eval set that MLflow would list so."""
    info = SimpleNamespace(run_id=name, run_name=name, experiment_id="1", start_time=60_000 * int(name[-1]))
    tags = {"adk_eval.eval_set_id": "old", "adk_eval.verdict": "passed", "branch": name[:-1], "mlflow.user": "anna"}
    metrics = {name.replace("_of_", "/"): value for name, value in metrics.items()} | {"case_pass_rate": 1.0, "cases": 3}
    return row_of(SimpleNamespace(info=info, data=SimpleNamespace(tags=tags, params={"threshold.s": "0.5"}, metrics=metrics)))


def test_a_line_breaks_where_a_run_has_no_score_and_an_old_run_does_not_count_as_complete() -> None:
    runs = [
        listed("a1", s_of_mean=1, s_of_missing=0),
        listed("b2", s_of_mean=math.nan, s_of_missing=3, s_of_planned=3),
        listed("a3", s_of_mean=1),
        listed("a4", s_of_mean=0.4, s_of_missing=0),
    ]
    _, line = trend_page(runs, Query("/trend", []))["lines"]
    assert line.paths == ("12.0,0.0", "476.0,0.0 708.0,72.0")
    assert [point.kind for point in line.points] == ["reached", "gap", "hollow", "missed"]
    assert [point.text.partition(": ")[2] for point in line.points] == [
        "1, threshold 0.5",
        "0 of 3 scored",
        "1, threshold 0.5, scored: unknown",
        "0.4, threshold 0.5",
    ]
    page = runs_page(runs, Query("/", [("group", "tag.branch"), ("sort", "started")]), None, None)
    assert [(title, size, [row.name for row in group]) for title, size, group in page["groups"]] == [
        ("Tag branch: a", 3, ["a1", "a3", "a4"]),
        ("Tag branch: b", 1, ["b2"]),
    ]
    assert page["unanswered"]
    assert [row.name for row in runs_page(runs, Query("/", [("q", "BRANCH=b old")]), None, None)["rows"].items] == ["b2"]


def test_a_run_says_what_the_registry_says_and_is_compared_with_the_champion_and_a_baseline(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, crash, bad = (view.runs[name] for name in ("v_good", "v_crash", "v_regressed"))
    html = view.text("/?q=home_automation")
    champion = [name for name in ("v_good", "v_crash", "v_undecided", "v_regressed") if 'class="alias"' in row_in(html, name)]
    assert (champion, rows(view.text("/?q=CHAMPION"))) == (["v_good"], [name for name in rows(html) if name.startswith("v_good")])
    assert f'href="/compare?run={good}&amp;run={crash}"' in row_in(html, "v_crash")
    assert "/compare?" not in row_in(html, "v_good")
    assert [
        "gate: failed" in row_in(html, "v_regressed"),
        "gate: passed" in row_in(html, "v_good"),
        "gate:" in row_in(html, "v_crash"),
    ] == [
        True,
        True,
        False,
    ]
    page = view.text(f"/runs/{bad}?baseline={crash}")
    assert f"http://mlflow.example/#/experiments/2/runs/{bad}/artifacts/" in page
    assert "mlflow-adk-eval verify home 2</code> checks it" in page
    for title, other in (("the champion, version 1 of home", good), ("the baseline, v_crash", crash)):
        assert re.search(rf'href="/compare\?run={other}&amp;run={bad}&amp;baseline={crash}"[^>]*>Compare with {title}', page)
    addresses = set(re.findall(r'<a [^>]*href="(/[^"]*)"', view.text(f"/?baseline={crash}&q=v_good"))) - {"/?q=v_good"}
    assert {"/", "/trend"} <= {address.partition("?")[0] for address in addresses}
    assert [address for address in addresses if "baseline=" not in address] == []
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "nothing://here")
    store = RunStore(view.uri)
    assert (len(store.rows()) > 4, store.registry()) == (True, None)


@pytest.mark.slow
def test_a_case_is_saved_so_that_adk_and_this_package_read_it(view: View) -> None:
    from google.adk.evaluation.eval_set import EvalSet as AdkEvalSet

    path = f"/runs/{view.runs['second']}/case.evalset.json?eval_id=lamp&run_index=0"
    for more, eval_id, answers in (
        ("", "lamp", ["the lamp in the hall is on now"] * 2),
        ("&what=expected", "lamp", ["the lamp in the hall is off now", "you are welcome"]),
        ("&turn=1", "lamp_turn_1", ["the lamp in the hall is on now"]),
    ):
        found = view.get(path + more)
        assert found.headers["content-disposition"] == f'attachment; filename="{eval_id}.evalset.json"'
        (case,) = parse_eval_set(found.content, "saved", stem="saved").eval_cases
        assert (case.eval_id, [turn.final_text for turn in case.conversation or ()]) == (eval_id, answers)
        AdkEvalSet.model_validate_json(found.content)
        assert html_link(view, more)


def html_link(view: View, more: str) -> bool:
    html = view.text(f"/runs/{view.runs['second']}/case?eval_id=lamp&run_index=0")
    return f'case.evalset.json?eval_id=lamp&amp;run_index=0{more.replace("&", "&amp;")}" download' in html


def test_nothing_can_be_labelled_unless_that_was_asked_for(view: View, labelled: View) -> None:
    path = f"/runs/{view.runs['first']}/label"
    assert view.get(path).status_code == 404
    assert httpx.post(view.url + path, headers={"origin": view.url}).status_code == 404
    assert '/label"' not in view.text(f"/runs/{view.runs['first']}")


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://localhost:1"])
def test_no_other_page_can_label(labelled: View, origin: str | None) -> None:
    path = f"{labelled.url}/runs/{labelled.runs['run']}/label"
    key = re.findall(r'name="cell" value="(\w+)"', labelled.text(f"/runs/{labelled.runs['run']}/label"))
    form = {"cell": key[0], "label": "pass"}
    before = labels_of(labelled)
    assert httpx.post(path, data=form, headers={"origin": origin} if origin else {}).status_code == 403
    site = {"origin": labelled.url, "sec-fetch-site": "cross-site"}
    assert httpx.post(path, data=form, headers=site).status_code == 403
    assert labels_of(labelled) == before


def labels_of(labelled: View) -> int:
    from mlflow import MlflowClient

    client = MlflowClient(labelled.uri)
    run = client.get_run(labelled.runs["run"])
    traces = client.search_traces(locations=[run.info.experiment_id], max_results=100)
    return sum(one.source.source_type == "HUMAN" for trace in traces for one in trace.info.assessments)


def test_a_label_that_makes_no_sense_is_refused(labelled: View) -> None:
    path = f"{labelled.url}/runs/{labelled.runs['run']}/label"
    key = re.findall(r'name="cell" value="(\w+)"', labelled.text(f"/runs/{labelled.runs['run']}/label"))[0]
    for form, said in (
        ({"cell": "x", "label": "pass"}, "No judge decided this turn"),
        ({"cell": key, "label": "maybe"}, "wanted pass or fail"),
    ):
        found = httpx.post(path, data=form, headers={"origin": labelled.url})
        assert (found.status_code, said in found.text) == (404, True)
    assert httpx.post(path, content=b"x" * 200_000, headers={"origin": labelled.url}).status_code == 413


def test_addresses_keep_what_they_do_not_change() -> None:
    query = Query("/", [("verdict", "failed"), ("page", "3"), ("run", "a"), ("run", "b"), ("q", "")])
    assert query(sort="-started") == "/?verdict=failed&run=a&run=b&sort=-started"
    assert query(verdict="", page=4) == "/?run=a&run=b&page=4"
    assert link("/case", eval_id="\ud800&é") == "/case?eval_id=%3F%26%C3%A9"


def test_pages_end_where_the_list_does() -> None:
    page = paged(list(range(45)), Query("/", [("page", "999")]), 20)
    assert (list(page.items), page.first, page.last, page.before, page.after) == (list(range(40, 45)), 41, 45, "/?page=2", "")
    assert paged([], Query("/", []), 20).first == 0


def test_a_filter_counts_what_the_others_leave() -> None:
    items = [("a", "x"), ("a", "y"), ("b", "y")]
    facets = {"one": ("One", lambda item: item[0]), "two": ("Two", lambda item: item[1])}
    left, (one, two) = filtered(items, facets, Query("/", [("one", "a")]))
    assert left == items[:2]
    assert [(choice.title, choice.count) for choice in one.choices] == [("a", 2), ("b", 1)]
    assert [(choice.title, choice.count) for choice in two.choices] == [("x", 1), ("y", 1)]


def test_the_page_of_a_crashed_run_says_the_cause_once_and_hatches_what_has_no_score(view: View) -> None:
    run = f"/runs/{view.runs['v_crash']}"
    html = view.text(run)
    head = html[html.index("<h1") : html.index("<h2")]
    assert re.match(r'<h1 dir="auto">v_crash · \d\d:\d\d</h1>\n<p class="verdict undecided"><span class="badge undecided">', head)
    assert "<span>8 of 11 cases passed, 3 undecided</span>" in head
    assert re.findall(r'class="square (\w+)" href', head) == ["passed"] * 6 + ["undecided"] * 2 + ["passed"] * 2 + ["undecided"]
    assert 'aria-label="too_hot undecided: ConnectionError: thermostat service timed out after 30 s"' in head
    causes = re.findall(r'<span class="what" dir="auto">([^<]*)</span></a> <span class="quiet">([^<]*)</span>', head)
    assert causes == [("ConnectionError: thermostat service timed out after 30 s", "3 cases, 3 criteria")]
    assert "s · 1.167 tool calls (12 of 16 turns)" in head
    assert html.count('title="Show the 3 case runs without a score">8 of 11 scored</a>') == 3
    lost = ["set_temperature", "too_hot", "warm_up"]
    for query in ("cause=1", "criterion=response_match_score&score=missing", "verdict=undecided&criterion=response_match_score"):
        assert cases(view.text(f"{run}?{query}")) == lost
    assert len(cases(view.text(f"{run}?criterion=response_match_score&low=1&high=1"))) == 8
    assert view.get(f"{run}?criterion=response_match_score&low=much").status_code == 404
    grid = view.text(f"{run}?view=matrix")
    assert grid.count('class="cell is-missing"') == 9
    for name in lost:
        assert "is-reached" not in grid[grid.index(f'title="{name}"') :].partition("</tr>")[0]


def grid_of(view: View, query: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the rows of a matrix: the case, and the state and the text of each cell."""
    html = view.text(f"/runs/{view.runs['v_regressed']}?view=matrix&{query}")
    rows_of = re.findall(r"<tr role=\"row\" data-row.*?</tr>", html, re.DOTALL)
    cells = r'class="cell is-(\w+)"[^>]*><a[^>]*>(.*?)</a>'
    return [(re.findall(r'class="cut"[^>]*>(\w+)<', row)[0], re.findall(cells, row)) for row in rows_of]


def test_the_matrix_sorts_by_score_and_by_loss_and_shows_the_cases_that_are_asked_for(view: View) -> None:
    worst = ["already_off", "unknown_device", "set_temperature", "turn_off_light"]
    by_score = [(name, float(cells[1][1])) for name, cells in grid_of(view, "sort=0.response_match_score")]
    assert [score for _, score in by_score] == sorted(score for _, score in by_score)
    assert by_score[0][0] == "turn_off_light"
    assert [name for name, _ in grid_of(view, "sort=-0.response_match_score")][-1] == "turn_off_light"
    assert {name for name, _ in grid_of(view, "criterion=tool_trajectory_avg_score")} == set(worst)
    both = grid_of(view, f"baseline={view.runs['v_good']}")
    assert {name for name, _ in both[:4]} == set(worst)
    name, cells = both[0]
    assert cells[:2] == [("reached", "1"), ("missed", '0 <small class="worse">−1</small>')], name
    back = view.text(f"/runs/{view.runs['v_good']}?view=matrix&baseline={view.runs['v_crash']}")
    assert back.count('class="cell is-missing"') == 9
    assert "A: not evaluated" in back
    assert "largest loss first" in back
