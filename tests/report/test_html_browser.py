"""The HTML report in a real browser: what it does, and what no text in it can make it do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from mlflow_adk_eval import score
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.testing import ScriptedJudge
from tests.report.pages import ATTACKS, CONFIG, hostile_page, page, report
from tests.tracking.small import eval_set, turn

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; on Debian: apt-get install chromium"),
]
ADDRESS = "http://report.test/"
VIEWER = """<!DOCTYPE html><title>viewer</title><script>
fetch('/report').then((answer) => answer.text()).then((text) => {
  const frame = document.createElement('iframe')
  frame.setAttribute('sandbox', 'allow-scripts')
  frame.src = URL.createObjectURL(new Blob([text], { type: 'text/html' }))
  document.body.append(frame)
})
</script>"""
"""Shows the report as MLflow's viewer of artifacts does."""


@dataclass
class Tab:
    """A page in the browser, with all that it tried to fetch, to say and to complain about."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def show(self, html: str, *, sandboxed: bool = False) -> Any:
        """Open a report; return the frame that holds it."""
        self.page.unroute_all()
        self.page.route(ADDRESS + "**", lambda route: route.fulfill(body=html, content_type="text/html; charset=utf-8"))
        if sandboxed:
            self.page.route(ADDRESS + "viewer", lambda route: route.fulfill(body=VIEWER, content_type="text/html"))
        self.requests.clear()
        self.complaints.clear()
        self.page.goto(ADDRESS + ("viewer" if sandboxed else "report"), wait_until="load")
        if not sandboxed:
            return self.page.main_frame
        self.page.wait_for_selector("iframe")
        frame = self.page.query_selector("iframe").content_frame()
        frame.wait_for_selector("main")
        return frame


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield started
        started.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = Tab(context.new_page())
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    opened.page.on("console", lambda message: opened.complaints.append(message.text))
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.on("dialog", lambda dialog: (opened.complaints.append("dialog"), dialog.dismiss()))
    yield opened
    context.close()


@pytest.mark.parametrize("sandboxed", [False, True], ids=["alone", "in MLflow's frame"])
def test_no_text_runs_or_fetches_anything(tab: Tab, *, sandboxed: bool) -> None:
    for attack in ATTACKS:
        frame = tab.show(hostile_page(attack), sandboxed=sandboxed)
        frame.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        frame.locator(".criterion").first.hover()
        tab.page.wait_for_timeout(150)
        assert frame.title().startswith("failed: ")
        assert frame.evaluate("[typeof pwned, typeof parent === 'object' && parent !== self]") == ["undefined", sandboxed]
        assert [url for url in tab.requests if "evil" in url] == []
        assert len(tab.requests) == (2 if sandboxed else 1)
        assert tab.complaints == []  # not even something that the policy had to stop
        assert frame.locator(".case").bounding_box()["width"] > 100


def test_the_policy_stops_what_would_get_past_the_escaping(tab: Tab) -> None:
    inserted = page(report()).replace("<main>", "<main><script>window.pwned=1</script><img src='http://evil.test/a' onerror='pwned=2'>", 1)
    stopped: list[tuple[str, str]] = []
    tab.page.on("requestfailed", lambda request: stopped.append((request.url, request.failure)))
    frame = tab.show(inserted)
    assert frame.evaluate("typeof pwned") == "undefined"
    assert stopped == [("http://evil.test/a", "csp")]
    assert any("Content Security Policy" in complaint for complaint in tab.complaints)


@pytest.mark.parametrize("sandboxed", [False, True], ids=["alone", "in MLflow's frame"])
def test_cases_are_filtered_by_verdict_and_text(tab: Tab, *, sandboxed: bool) -> None:
    frame = tab.show(page(report()), sandboxed=sandboxed)

    def shown() -> list[str]:
        return [str(text) for text in frame.locator(".case:visible h3").all_inner_texts()]

    assert shown() == ["lamp", "lost", "good"]
    frame.get_by_role("button", name="Undecided 1").click()
    assert shown() == ["lost"]
    assert frame.locator("#shown").inner_text() == "1 of 3 shown"
    frame.get_by_role("button", name="All 3").click()
    frame.get_by_role("searchbox").fill("BEEP")
    frame.locator("#shown", has_text="1 of 3 shown").wait_for()
    assert shown() == ["lamp"]
    assert frame.evaluate("[...CSS.highlights.get('found')].map(String)") == ["beep"] * 2
    assert frame.locator(".case[open]").count() == 0
    frame.get_by_role("searchbox").press("Enter")
    assert frame.locator(".case[open] h3").all_inner_texts() == ["lamp"]
    frame.get_by_role("searchbox").fill("hall is on")  # of which one word is marked as different
    tab.page.wait_for_timeout(250)
    assert frame.evaluate("[...CSS.highlights.get('found')].map(String)") == ["hall is on"]
    frame.get_by_role("searchbox").fill("")
    frame.locator(".case:visible h3").nth(2).wait_for()
    assert shown() == ["lamp", "lost", "good"]
    assert tab.complaints == []


def test_cases_unfold_with_the_keyboard_and_all_at_once(tab: Tab) -> None:
    frame = tab.show(page(report()))
    assert frame.locator("h4:visible").count() == 0
    frame.locator(".case > summary").first.focus()
    tab.page.keyboard.press("Enter")
    assert frame.locator("h4:visible").all_inner_texts() == ["Turn 1 ✗ failed", "Turn 2 ✓ passed"]
    frame.get_by_role("button", name="Unfold all").click()
    assert frame.locator("h4:visible").count() == 5


def eleven() -> Report:
    """Return a report on seven cases that failed, one that was lost on the way, and three that passed, with calls and votes."""
    names = [f"case {number}" for number in range(11)]
    off = "The lights in the hall and in the kitchen are off now."
    cases = {
        name: [
            turn(f"{name}: lights off, please", off, ("switch", {"room": "hall", "to": 0})),
            turn(
                f"{name}: how warm is it?", f"It is {20 + place} degrees in the {name}.", ("look", {"what": name}), ("note", {"of": name})
            ),
        ]
        for place, name in enumerate(names)
    }
    done = {name: [*turns] for name, turns in cases.items()}
    for name in names[:8]:
        done[name][1] = turn(f"{name}: how warm is it?", f"In the {name}, it is far too warm.", ("look", {"what": "sky"}), ("beep", {}))
    done[names[7]] = cases[names[7]][:1]
    judge = ScriptedJudge(lambda request: "no" if "too warm" in request.text else "yes", rationale="It says *please*, and why.")
    return score(eval_set(cases), done, CONFIG, judge=judge)


def test_a_printout_has_what_did_not_pass_and_counts_the_rest(tab: Tab) -> None:
    tab.show(page(eleven()))
    tab.page.set_viewport_size({"width": 703, "height": 1000})
    pdf = tab.page.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 6
    tab.page.emulate_media(media="print")
    tab.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.page.locator(".case:visible").count() == 8
    assert tab.page.get_by_text("3 passed cases are not printed.").is_visible()
    assert tab.page.locator(".failed .side:visible").count() > 20
    assert tab.page.locator(".turn.passed .side:visible").count() == 0
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 703
    tab.page.evaluate("dispatchEvent(new Event('afterprint'))")
    tab.page.emulate_media(media="screen")
    assert tab.page.locator(".side:visible, .unprinted:visible").count() == 0
    tab.page.get_by_role("button", name="Passed 3").click()
    tab.page.emulate_media(media="print")
    assert tab.page.locator(".case:visible").count() == 3


def test_without_javascript_everything_can_be_read(browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = Tab(context.new_page())
    frame = tab.show(page(report()))
    assert frame.locator("button:visible, input:visible").count() == 0
    frame.locator(".case > summary").first.click()
    assert frame.get_by_text("the lamp in the hall is on now").is_visible()
    context.close()


@pytest.mark.parametrize("width", [360, 400, 800, 1280])
def test_nothing_is_wider_than_the_window(tab: Tab, width: int) -> None:
    tab.page.set_viewport_size({"width": width, "height": 800})
    for html in (page(report()), hostile_page("w" * 3000)):
        frame = tab.show(html)
        frame.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        assert frame.evaluate("document.documentElement.scrollWidth") <= width
    labels = "[...document.querySelectorAll('td')].map(cell => getComputedStyle(cell, '::before').content)"
    assert ("none" in frame.evaluate(labels)) == (width > 928)  # where the heads are out of sight, each value has its own


CONTRAST = """() => {
  const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number)
  const light = ([red, green, blue]) => 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue)
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = numbers(getComputedStyle(one).backgroundColor)
      if (found.length === 3 || found[3] === 1) return found
    }
    throw new Error('nothing behind')
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  const poor = []
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement
    if (!walker.currentNode.textContent.trim() || element.closest('script, svg, .unseen')) continue
    const [front, back] = [light(numbers(getComputedStyle(element).color)), light(behind(element))]
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05)
    if (ratio < 4.5) poor.push([ratio, walker.currentNode.textContent])
  }
  return poor
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(browser: Any, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme)
    tab = Tab(context.new_page())
    frame = tab.show(page(report()))
    frame.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert frame.evaluate(CONTRAST) == []
    background = frame.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
    context.close()


def test_headings_and_controls_have_names(tab: Tab) -> None:
    frame = tab.show(page(report()))
    tree = frame.locator("body").aria_snapshot()
    for line in (
        'heading "rooms nightly" [level=1]',
        'heading "Criteria" [level=2]',
        'heading "Cases" [level=2]',
        'table "Criteria"',
        'rowheader "response_match_score"',
        'img "1 of 2 case scores reach the threshold; lowest 0.5, median 0.75, highest 1; 1 have no score"',
        'group "Show cases by verdict"',
        'searchbox "Search all text"',
    ):
        assert line in tree
