"""The viewer in a real browser: axe finds nothing, the keyboard suffices, and texts of others stay texts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.analysis.calibrated import MATCH, deserves
from tests.viewer.conftest import View
from tests.viewer.evaluations import OTHER, TIMED_OUT

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; on Debian: apt-get install chromium"),
]
AXE = (Path(__file__).parent / "axe.min.js").read_text()
SIZE = {"width": 1440, "height": 900}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Any, view: View) -> Iterator[Any]:
    """A page that may neither complain nor ask anything of anybody but the viewer."""
    context = browser.new_context(viewport=SIZE, base_url=view.url)
    opened, complaints = context.new_page(), []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("dialog", lambda dialog: (complaints.append("dialog"), dialog.dismiss()))
    opened.on("request", lambda request: None if request.url.startswith(view.url) else complaints.append(request.url))
    yield opened
    context.close()
    assert complaints == []


@pytest.fixture
def label_page(browser: Any, labelled: View) -> Iterator[Any]:
    context = browser.new_context(viewport=SIZE, base_url=labelled.url)
    yield context.new_page()
    context.close()


def pages(view: View) -> dict[str, str]:
    """Return the address of each page by its name."""
    run = f"/runs/{view.runs['second']}"
    return {
        "runs": "/",
        "run": run,
        "filtered": f"{run}?verdict=failed&q=lamp",
        "case": f"{run}/case?eval_id=lamp&run_index=0",
        "compare": f"/compare?run={view.runs['first']}&run={view.runs['second']}&kind=all",
        "compare 3": f"/compare?run={view.runs['first']}&run={view.runs['second']}&run={view.runs['third']}",
        "what if": f"{run}?threshold.response_match_score=0.1",
        "trend": "/trend?eval_set=home_automation",
        "crashed": f"/runs/{view.runs['v_crash']}",
        "matrix": f"/runs/{view.runs['v_crash']}?view=matrix&baseline={view.runs['v_regressed']}",
        "all four": "/compare?" + "&".join(f"run={view.runs[name]}" for name in ("v_good", "v_crash", "v_undecided", "v_regressed")),
        "crashed case": f"/runs/{view.runs['v_crash']}/case?eval_id=warm_up&run_index=0",
    }


WIDTHS = (SIZE["width"], 1280, 800)
OTHERWISE = {"runs", "trend", "crashed", "matrix", "all four", "label"}
"""Where a narrow window has other elements, or the same in other roles."""
UNMARKED = """() => {
  const seen = one => one.checkVisibility() && one.innerText.trim() !== "";
  const alone = one => getComputedStyle(one).display !== "table-cell" && getComputedStyle(one, "::before").content.length < 5;
  return [...document.querySelectorAll("td")].filter(one => seen(one) && alone(one)).map(one => one.outerHTML.slice(0, 150));
}"""
"""What stands in no table any more, as a narrow window has none, and without its head."""
UNREACHABLE = """() => {
  const points = [...document.querySelectorAll("main a, main button, main input:not([type=hidden]), main summary, main svg a")];
  const reached = one => (one.focus(), document.activeElement === one) && one.tabIndex >= 0;
  return points.filter(one => one.checkVisibility() && !reached(one)).map(one => one.outerHTML.slice(0, 150));
}"""
FRAMES = "[...document.querySelectorAll('.wide:not(.scroll)')].filter(one => one.scrollWidth > one.clientWidth + 1).length"


def cut_off(page: Any) -> list[Any]:
    """Return the windows in which a page, or a frame of it that does not scroll, is cut off."""
    wider = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": SIZE["height"]})
        if page.evaluate("document.documentElement.scrollWidth") != width or page.evaluate(FRAMES):
            wider.append(width)
    return wider


def test_each_page_fits_its_window_labels_its_values_takes_the_keyboard_and_has_nothing_that_axe_finds(
    page: Any, label_page: Any, view: View, labelled: View
) -> None:
    found: dict[str, Any] = {}
    walked = [(page, name, view.url + address) for name, address in pages(view).items()]
    walked += [(label_page, "problem", f"{view.url}/nothing"), (label_page, "label", f"{labelled.url}/runs/{labelled.runs['run']}/label")]
    for tab, name, address in walked:
        tab.goto(address)
        wrong = [one for one in ("h1", "main") if tab.locator(one).count() != 1] + cut_off(tab)
        wrong += tab.evaluate(UNMARKED)
        if name in OTHERWISE:
            wrong += check_with_axe(tab, WIDTHS[-1])
        wrong += check_with_axe(tab, WIDTHS[0]) + tab.evaluate(UNREACHABLE)
        if name == "filtered":
            tab.emulate_media(color_scheme="dark")
            wrong += check_with_axe(tab, WIDTHS[0])
            tab.emulate_media(color_scheme="light")
        if wrong:
            found[name] = wrong
    assert found == {}


def check_with_axe(page: Any, width: int) -> list[Any]:
    """Return what axe finds on a page with all that is folded open, in a window of that width."""
    page.set_viewport_size({"width": width, "height": SIZE["height"]})
    page.evaluate("for (const one of document.querySelectorAll('details')) { one.removeAttribute('name'); one.open = true; }")
    found = with_axe(page)
    assert len(found["passes"]) > 15
    return [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]]


def with_axe(page: Any) -> Any:
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"() => {{ {AXE} }}")
    return page.evaluate("axe.run()")


def test_the_keyboard_alone_reaches_a_failed_turn(page: Any, view: View) -> None:
    page.goto("/?eval_set=rooms")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "search"
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Verdict"
    page.keyboard.press("Enter")
    for _ in range(2):
        page.keyboard.press("Tab")
    while "failed" not in page.evaluate("document.activeElement.textContent"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**verdict=failed**")
    page.locator("[role=status]", has_text="1 run").wait_for()
    assert page.evaluate("document.activeElement !== document.body")
    while page.evaluate("document.activeElement.textContent") != "second":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")
    while page.evaluate("document.activeElement.tagName") != "SUMMARY" or "lamp" not in page.evaluate("document.activeElement.textContent"):
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    assert page.locator(".case[open] del").first.inner_text() == "off"


def test_a_crashed_run_is_found_and_read_at_any_width_with_the_keyboard(page: Any, view: View) -> None:
    page.goto("/")
    for width in (SIZE["width"], 1280, 800):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert (
            page.evaluate("[...document.querySelectorAll('.wide, .name a')].filter(one => one.scrollWidth > one.clientWidth + 1).length")
            == 0
        )
    labels = "[...document.querySelectorAll('td')].map(cell => getComputedStyle(cell, '::before').content).filter(text => text.length < 5)"
    assert page.evaluate(labels) == []
    page.keyboard.press("/")
    page.keyboard.type("v_cr")
    page.locator("[role=status]", has_text="1 run").wait_for()
    assert page.evaluate("[document.activeElement.id, document.activeElement.value, location.search]") == ["search", "v_cr", "?q=v_cr"]
    page.keyboard.press("Tab")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent").startswith("v_crash · ")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{view.runs['v_crash']}")
    page.goto("/trend?eval_set=home_automation")
    page.get_by_role("link", name="Skip to the numbers").focus()
    for _ in range(2):
        page.keyboard.press("Tab")
    assert "8 of 11 cases passed, scores are missing" in page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert page.evaluate("document.activeElement.querySelector('title').textContent === document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{view.runs['v_crash']}")


def test_a_runs_page_says_all_above_the_fold_and_each_mark_leads_on_with_the_keyboard(page: Any, view: View) -> None:
    for name, shown in (("v_regressed", 1), ("v_crash", 2)):
        page.goto(f"/runs/{view.runs[name]}")
        tops = [page.locator(one).first.bounding_box() for one in (".title", ".strip", ".listed li", ".criteria", ".case")]
        assert [box["y"] for box in tops] == sorted(box["y"] for box in tops)
        assert page.locator(".case").nth(shown - 1).bounding_box()["y"] < SIZE["height"]
    marks = page.locator(".strip a, .criteria .chart a, .listed a, .criteria .lacks")
    assert marks.count() == 11 + 6 + 1 + 3
    assert (
        marks.evaluate_all(
            "all => all.filter(one => (one.focus(), document.activeElement !== one) || !one.matches(':focus-visible')).length"
        )
        == 0
    )
    square = page.locator(".strip .undecided").first
    square.focus()
    assert "thermostat service timed out" in page.evaluate("getComputedStyle(document.activeElement, '::after').content")
    for width in (1280, 800):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width
    labels = "[...document.querySelectorAll('.criteria td')].filter(cell => getComputedStyle(cell, '::before').content.length < 5).length"
    assert page.evaluate(labels) == 0
    page.locator(".criteria .chart a").last.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**score=missing#cases")
    assert page.locator(".case h3").all_inner_texts() == ["set_temperature", "too_hot", "warm_up"]
    page.get_by_role("link", name="Matrix").focus()
    page.keyboard.press("Enter")
    page.locator(".matrix .is-missing").nth(8).wait_for()
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent") == "set_temperature"
    page.get_by_role("link", name="Show all again").focus()
    page.keyboard.press("Enter")
    page.locator("[role=status]", has_text="11 cases").wait_for(state="attached")
    page.get_by_role("link", name="tool trajectory").focus()
    page.keyboard.press("Enter")
    page.locator(".matrix th[aria-sort=ascending]").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 800


def test_a_case_says_why_it_failed_and_is_read_and_searched_with_single_keys(page: Any, view: View) -> None:
    run = f"/runs/{view.runs['v_regressed']}"
    page.goto(f"{run}/case?eval_id=set_temperature&run_index=0")
    assert page.locator(".held .because").inner_text().endswith("with different arguments: $.temperature: expected 21, got 12")
    assert "below its threshold" not in page.locator("main").inner_text()
    result = page.locator(".calls .result")
    assert result.locator("summary").inner_text().startswith('Result: {"log": "heating heating')
    assert result.get_attribute("open") is None
    page.locator(".transcript summary").first.click()
    events = page.locator(".transcript .who").all_inner_texts()
    call = "home says", "Agent calls set_temperature (call 1)", "Agent gets the result of set_temperature (call 1)"
    assert events == ["User", *call, "Final answer"]
    page.keyboard.press("/")
    page.keyboard.type("one moment")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=one+moment**")
    assert page.locator("mark").all_inner_texts() == ["One moment"]
    assert 0 < page.locator("mark").bounding_box()["y"] < SIZE["height"]  # its transcript is open, and scrolled to
    page.keyboard.press("?")
    assert "Next case that did not pass" in page.get_by_role("dialog", name="Keyboard").inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("dialog").is_visible()
    page.goto(f"{run}?q=Bedroom")
    assert page.locator(".case[open] mark").count() > 0
    page.goto(run)
    page.keyboard.press("n")
    assert page.evaluate("document.activeElement.closest('.case').dataset.verdict") == "failed"
    first = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent") != first
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    assert page.evaluate("[document.activeElement.textContent, document.activeElement.parentElement.open]") == [first, True]
    page.goto(f"/runs/{view.runs['v_crash']}/case?eval_id=warm_up&run_index=0")
    assert page.locator(".held .because").inner_text().endswith(f"ConnectionError: {TIMED_OUT}")
    assert page.locator("details.sheet").evaluate_all("turns => turns.map(turn => turn.open)") == [False, True, True]
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    assert page.locator("details.sheet").evaluate_all("turns => turns.map(turn => turn.open)") == [False, True, False]
    page.goto(f"{run}/case?eval_id=already_off&run_index=0")
    page.keyboard.press("n")
    page.wait_for_url("**eval_id=unknown_device**")


GREEN = """inside => {
  const shown = ["color", "backgroundColor", "fill", "borderTopColor"];
  const green = ([red, green, blue, opacity = 1]) => green > red + 10 && green > blue + 10 && opacity > 0;
  const all = [...document.querySelectorAll(inside)].flatMap(one => [one, ...one.querySelectorAll("*")]);
  const coloured = one => shown.some(name => green((getComputedStyle(one)[name].match(/[.\\d]+/g) || [0, 0, 0]).map(Number)));
  return all.filter(coloured).map(one => one.outerHTML.slice(0, 150));
}"""
"""What is green in a part of a page."""


def test_nothing_about_a_crashed_run_is_green_and_each_of_its_means_says_what_it_leaves_out(page: Any, view: View) -> None:
    crash, good = (f"[href*='{view.runs[name]}']" for name in ("v_crash", "v_good"))
    column = "main > section:first-of-type tbody td:nth-child(3)"
    for address, inside, passed, lacks in (
        ("/?eval_set=home_automation", f"tbody tr:has(th {crash})", f"tbody tr:has(th {good}) .badge.passed", 3),
        (
            "/trend?eval_set=home_automation",
            f"tbody tr:has(th {crash}), svg a{crash}",
            f"tbody tr:has(th {good}) .badge.passed, svg a{good} circle",
            3,
        ),
        (pages(view)["crashed"], ".criteria td:not(:has(svg)), .title .badge", ".case .badge.passed", 3),
        (pages(view)["all four"], column, ".badge.passed, .state.passed, .state .passed", 3),
        (pages(view)["crashed case"], ".held", "details.sheet .badge.passed", 0),
    ):
        page.goto(address)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": SIZE["height"]})
            assert page.locator(inside).count() > 0, (address, width)
            assert page.evaluate(GREEN, inside) == [], (address, width)
            assert page.evaluate(GREEN, passed) != [], (address, width)
            said = " ".join(" ".join(page.locator(inside).all_text_contents()).split())
            assert said.count("8 of 11 scored") >= lacks, (address, width, said)


def test_runs_are_chosen_and_compared_with_the_keyboard(page: Any, view: View) -> None:
    page.goto("/?eval_set=rooms")
    for name in ("third", "second"):
        page.get_by_label(f"Compare {name} of").focus()
        page.keyboard.press("Space")
    page.get_by_role("button", name="Compare selected runs").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/compare?**")
    assert page.locator("thead th a.cut").all_inner_texts() == ["second", "third"]
    page.get_by_role("link", name="All 3").focus()
    page.keyboard.press("Enter")
    page.locator("[role=status]", has_text="3 cases").wait_for(state="attached")
    assert "kind=all" in page.url
    page.locator(".case summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".case[open] .turn ins").first.inner_text() == "off"


def test_four_runs_are_compared_at_any_width_and_say_what_is_missing(page: Any, view: View) -> None:
    page.goto("/compare?" + urlencode([("run", view.runs[name]) for name in ("v_good", "v_crash", "v_undecided", "v_regressed")]))
    heads = page.locator(".compared thead th").all_inner_texts()[1:5]
    assert [head.split()[:2] for head in heads] == [["A", "v_good"], ["B", "v_crash"], ["C", "v_undecided"], ["D", "v_regressed"]]
    assert [head.splitlines()[0].split()[-1] for head in heads] == ["passed", "undecided", "undecided", "failed"]
    rows = {row.locator("th").inner_text(): row.locator("td") for row in page.locator("main > section tbody > tr").all()}
    assert next(iter(rows)) == "cases passed"
    assert rows["cases passed"].all_inner_texts()[1].startswith("8 of 11 (72.7%) 3 undecided")
    crashed = rows["tool_trajectory_avg_score"].nth(1)
    assert "1 8 of 11 scored the same over 8 of 11 cases" in " ".join(crashed.inner_text().split())
    assert crashed.locator(".lacks").inner_text() == "8 of 11 scored"
    lefts = "[...document.querySelectorAll('.state:nth-child(4)')].map(one => Math.round(one.getBoundingClientRect().left))"
    assert len(set(page.evaluate(lefts))) == 1
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.querySelector('h3').textContent") == "turn_off_light"
    page.keyboard.press("Enter")
    for width in (1280, 800):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("[...document.querySelectorAll('.wide')].filter(one => one.scrollWidth > one.clientWidth + 1).length") == 0
        lines = "one => { const text = document.createRange(); text.selectNodeContents(one); return new Set([...text.getClientRects()].map(line => line.top)).size; }"
        assert page.evaluate(f"Math.max(...[...document.querySelectorAll('main > section:first-of-type tbody th')].map({lines}))") == 1
    label = "getComputedStyle(document.querySelector('.compared td:nth-child(3)'), '::before').content"
    assert page.evaluate(label).startswith('"B v_crash')
    page.get_by_role("link", name="Matrix").click()
    page.locator(".matrix tbody tr").nth(7).wait_for()
    page.locator(".compared thead a", has_text="Make this A").first.click()
    page.locator(".compared thead th:nth-child(2) a", has_text="v_crash").wait_for()


def test_a_comparison_of_large_runs_says_how_far_it_is(browser: Any, unseen: View) -> None:
    page = browser.new_page(viewport=SIZE)
    said: list[str] = []
    page.route("**read=*", lambda route: (said.append(page.locator("[role=status]").inner_text()), route.continue_()))
    page.goto(f"{unseen.url}/compare?run={unseen.runs['small']}&run={unseen.runs['large']}&kind=all")
    page.locator(".case h3", has_text="case 000").wait_for()
    assert [text.partition(":")[0] for text in said] == ["Reading run 1 of 2", "Reading run 2 of 2", "Comparing 260 cases…"]
    assert page.locator("main").count() == 1
    page.close()


def test_another_threshold_is_tried_with_the_keyboard(page: Any, view: View) -> None:
    page.goto(f"/runs/{view.runs['second']}")
    page.get_by_label("What if the threshold of response_match_score were").focus()
    page.keyboard.type("0.5")
    page.keyboard.press("Enter")
    page.wait_for_url("**threshold.response_match_score=0.5**")
    assert "of 3 case runs would pass" in page.locator("#what-if").inner_text()


def test_a_search_changes_the_list_as_one_types_and_the_back_button_undoes_it(page: Any, view: View) -> None:
    page.goto(f"/runs/{view.runs['second']}")
    page.locator("#search").press_sequentially("you there")
    page.locator("[role=status]", has_text="1 case").wait_for(state="attached")
    assert page.evaluate("document.activeElement.id") == "search"
    assert page.locator("#search").input_value() == "you there"
    assert "q=you" in page.url
    page.go_back()
    page.locator(".case").nth(2).wait_for()


def test_a_case_that_is_being_read_stays_open_when_the_rest_of_a_large_run_comes(browser: Any, unseen: View) -> None:
    context = browser.new_context(viewport=SIZE, bypass_csp=True)  # for axe
    page = context.new_page()
    waiting: list[Any] = []
    page.route("**verify=now", lambda route: waiting.append(route))  # noqa: PLW0108 - playwright marks what it is given
    page.goto(f"{unseen.url}/runs/{unseen.runs['large']}")
    summary = page.locator(".case summary").nth(2)
    summary.click()
    assert "Verifying" in page.locator("[role=status]").inner_text()
    assert with_axe(page)["violations"] == []
    before = summary.bounding_box()["y"]
    waiting[0].continue_()
    page.get_by_role("heading", name="Criteria").wait_for(state="attached")
    assert page.locator(".case[open] h3").all_inner_texts() == ["case 029"]
    assert abs(page.locator(".case[open] summary").bounding_box()["y"] - before) < 2
    assert page.locator("main").count() == 1
    page.goto(f"{unseen.url}/runs/{unseen.runs['large']}")
    page.get_by_role("heading", name="Criteria").wait_for()
    context.close()


def test_the_first_look_at_a_large_run_needs_no_script(browser: Any, unseen: View) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{unseen.url}/runs/{unseen.runs['large']}")
    page.get_by_role("heading", name="Criteria").wait_for()
    context.close()


def test_hostile_texts_stay_texts(page: Any, view: View) -> None:
    run = f"/runs/{view.runs['hostile']}"
    page.goto("/?agent=agent")
    assert page.title() == "Runs · mlflow-adk-eval"
    page.goto(run)
    ids = page.locator(".case h3").all_inner_texts()
    assert len(ids) == 15
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") == SIZE["width"]
    assert page.evaluate("window.pwned") is None
    assert "pwned" not in page.title().replace("document.title='pwned'", "")
    assert page.evaluate("document.querySelectorAll('img, iframe, object, embed, base, main a[href^=javascript]').length") == 0
    for link in page.locator(".case .links a").evaluate_all("links => links.map(link => link.getAttribute('href'))")[:15]:
        page.goto(link)
        assert page.locator(".turn").count() == 1
        assert page.locator(".transcript li").count() == 4
        assert page.evaluate("document.documentElement.scrollWidth") == SIZE["width"]
    page.goto(f"/compare?run={view.runs['hostile']}&run={view.runs['first']}&run={view.runs['hostile again']}&kind=all")
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.locator(".case h3").count() == 15
    assert page.evaluate("document.documentElement.scrollWidth") == SIZE["width"]
    assert page.evaluate("document.querySelectorAll('img, iframe, object, embed, base, main a[href^=javascript]').length") == 0
    assert page.evaluate("window.pwned") is None
    page.goto(f"/trend?eval_set={OTHER}")
    assert page.locator("circle").count() == 6
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.documentElement.scrollWidth") == SIZE["width"]
    page.goto(f"{run}?{urlencode({'q': '</script><script>window.pwned=1</script>', 'verdict': '<b>', 'criterion': chr(0x202E)})}")
    assert page.evaluate("window.pwned") is None
    assert page.locator("#search").input_value().startswith("</script>")


@pytest.mark.slow
def test_ten_labels_of_a_person_calibrate_the_judge_and_the_gate_relies_on_them(
    browser: Any, label_page: Any, labelled: View, tmp_path: Path
) -> None:
    import mlflow_adk_eval as adk_eval

    page, run_id = label_page, labelled.runs["run"]
    page.goto(f"/runs/{run_id}")
    page.get_by_role("link", name="Label", exact=True).click()
    page.get_by_role("link", name=f"{MATCH} ").first.click()
    assert check_with_axe(page, WIDTHS[-1]) + check_with_axe(page, WIDTHS[0]) == []
    page.reload()  # with everything folded again
    assert page.get_by_role("heading", name="Does the answer say what was expected?").is_visible()
    buttons = page.get_by_role("button", name="Pass")
    place, said = buttons.bounding_box(), list[bool]()
    while len(said) < 10 or min(said.count(True), said.count(False)) < 5:
        assert "it is" not in page.locator(".asked").inner_text(), "the judge's reason"
        assert page.locator(".asked :is(.off, .wrong, .badge, .mark, mark)").count() == 0, "what differs"
        assert buttons.bounding_box() == place, "the buttons stay where they are"
        answer = page.locator(".asked > .sheet .side .text").last.inner_text()
        before = page.locator("input[name=cell]").input_value()
        if len(said) < 10 or said.count(deserves(answer)) < 5:
            if not said:
                page.locator("#reason").press_sequentially("fair <b>enough</b>")
                page.keyboard.press("Tab")
            said.append(deserves(answer))
            page.keyboard.press("p" if said[-1] else "f")
            page.get_by_role("heading", name=f"Your last label: {'pass' if said[-1] else 'fail'}").wait_for()
            page.wait_for_function("before => document.querySelector('input[name=cell]')?.value !== before", arg=before)
            page.wait_for_load_state()  # only then it listens to keys
            assert page.locator("[role=status]").inner_text().startswith(f"{len(said)} of 20 labelled, {20 - len(said)} left")
            if len(said) == 1:  # taken back, the same turn is asked again
                page.keyboard.press("u")
                page.wait_for_function("before => document.querySelector('input[name=cell]')?.value === before", arg=before)
                page.wait_for_load_state()  # only then it listens to keys
                assert page.locator("[role=status]").inner_text().startswith("0 of 20 labelled, 20 left")
                page.keyboard.press("p" if said[-1] else "f")
                page.wait_for_function("before => document.querySelector('input[name=cell]')?.value !== before", arg=before)
                page.wait_for_load_state()  # only then it listens to keys
        else:
            page.keyboard.press("s")
            page.wait_for_url(f"**skip={before}**")
            page.wait_for_load_state()  # only then it listens to keys
    assert check_with_axe(page, WIDTHS[0]) == []
    found = adk_eval.calibrate(run_id, tracking_uri=labelled.uri)
    judged = found.criteria[MATCH]
    agreed = page.locator(".agreed")
    assert f"calibrate {run_id} -o calibration.json" in agreed.inner_text()
    rows = [row.locator("th, td").all_inner_texts()[:2] for row in agreed.locator("tbody tr").all()]
    assert rows[:2] == [["labelled", str(len(said))], ["agreement", f"{judged.rates.agreement:.0%}"]]
    assert (found.labels.count, judged.rates.labelled) == (len(said), len(said))
    assert (judged.rates.passes, judged.rates.failures) == (said.count(True), said.count(False))
    (tmp_path / "calibration.json").write_text(found.dumps())
    policy = {
        "rules": {MATCH: {"min": 0.1}},
        "judge": {"calibrated": True, "labels": 10},
        "calibration": str(tmp_path / "calibration.json"),
    }
    decision = adk_eval.gate(run_id, policy, tracking_uri=labelled.uri, raise_on_failure=False)
    assert any(f"calibrated on {len(said)} labelled verdicts" in note for note in decision.notes)
    assert decision.passed
    policy["judge"] = {"calibrated": True, "labels": 1000}
    assert not adk_eval.gate(run_id, policy, tracking_uri=labelled.uri, raise_on_failure=False).passed
