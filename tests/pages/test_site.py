"""The documentation site: it is built strictly, and its search finds things in a real browser."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.workers import made_once

ROOT = Path(__file__).parents[2]
NEEDS_CHROMIUM = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="chromium is not installed; on Debian: apt-get install chromium"
)


def build(pages: Path, site: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build pages as ``make site`` does, with the settings of the real ones."""
    strict = ("-q", "-E", "-W", "--keep-going", "-c", str(ROOT / "docs"))
    command = [sys.executable, "-m", "sphinx", *strict, *options, "-d", str(site / ".doctrees"), str(pages), str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def written(folder: Path, links: str, more: str = "# Lost\n\n## Rules\n") -> Path:
    """Write a page of links, another page, and a file beside the folder of both."""
    pages = folder / "docs"
    pages.mkdir()
    (folder / "README.md").write_text("read me")
    (pages / "policy.md").write_text("# Policy\n\n## Rules\n")
    (pages / "index.md").write_text(f"# Home\n\n{links}\n\n```{{toctree}}\npolicy\n```\n")
    if more:
        (pages / "lost.md").write_text(more)
    return pages


@pytest.mark.slow
def test_what_leads_nowhere_and_pages_outside_the_navigation_fail(tmp_path: Path) -> None:
    links = "[a](one.md) [a](policy.md#two) [a](../three.md) ![a](four.png)"
    done = build(written(tmp_path, links), tmp_path / "site")
    assert done.returncode != 0
    assert [word for word in ("one", "two", "three", "four", "lost.md") if word not in done.stderr] == []


@pytest.mark.slow
def test_what_leads_somewhere_passes(tmp_path: Path) -> None:
    done = build(written(tmp_path, "[a](policy.md) [a](policy.md#rules) [a](../README.md)", more=""), tmp_path / "site")
    assert (done.returncode, done.stderr) == (0, "")
    assert [file.read_text() for file in (tmp_path / "site" / "_downloads").rglob("README.md")] == ["read me"]


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the project's own pages."""

    def make(folder: Path) -> None:
        done = build(ROOT / "docs", folder)
        assert (done.returncode, done.stderr) == (0, "")

    return made_once(tmp_path_factory, "site", make)


@pytest.fixture(scope="module")
def page(site: Path) -> Iterator[Any]:
    """A browser that looks at the site."""
    from docs.screenshots import browser_page

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with browser_page(f"http://127.0.0.1:{server.server_port}") as opened:
            yield opened
        server.shutdown()


def widths(page: Any) -> Iterator[int]:
    """Make the window as wide as a desktop's and as narrow as half of one."""
    for width in (1440, 800):
        page.set_viewport_size({"width": width, "height": 900})
        yield width


MEASURED = """() => {
  const wide = (box) => box.scrollWidth > box.clientWidth + 1;
  const lines = (cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return new Set([...range.getClientRects()].map((box) => Math.round(box.bottom / 6))).size;
  };
  const told = (box) => box.textContent.trim().slice(0, 100);
  const narrow = (cell) => {
    const words = cell.innerText.trim().split(/\\s+/).length;
    return words > 5 && lines(cell) > 0.7 * words;
  };
  const tables = [...document.querySelectorAll(".content table")];
  return {
    page: wide(document.documentElement) ? [`${document.documentElement.scrollWidth} pixels`] : [],
    code: [...document.querySelectorAll(".content pre")].filter(wide).map(told),
    table: tables.filter((table) => wide(table.parentElement) || wide(table)).map(told),
    "cell with a word a line": [...document.querySelectorAll(".content td")].filter(narrow).map(told),
    "code without a copy button": [...document.querySelectorAll(".content .highlight")].filter((box) => !box.querySelector(".copybtn")).map(told),
  };
}"""
"""What is wider than its place, or so narrow that each word has a line."""


@pytest.mark.slow
@pytest.mark.browser
@NEEDS_CHROMIUM
def test_nothing_on_any_page_is_cut_off(page: Any) -> None:
    pages = sorted(str(file.relative_to(ROOT / "docs").with_suffix(".html")) for file in (ROOT / "docs").rglob("*.md"))
    found: list[str] = []
    for name in pages:
        page.goto(f"/{name}", wait_until="load")
        for width in widths(page):
            found += [f"{name} at {width}: {what}: {text}" for what, texts in page.evaluate(MEASURED).items() for text in texts]
    assert found == [], "\n".join(found)


@pytest.mark.slow
@pytest.mark.browser
@NEEDS_CHROMIUM
def test_home_shows_installation_code_and_a_picture_at_once(page: Any) -> None:
    for width in widths(page):
        page.goto("/index.html", wait_until="load")
        install, command = (page.locator(".content pre", has_text=text).first for text in ("pip install", "mlflow-adk-eval demo"))
        tops = [box["y"] for one in (install, command, page.locator(".content img").first) if (box := one.bounding_box())]
        assert len(tops) == 3
        assert max(tops) < 700, f"the picture begins too low to be seen in {width} pixels"


@pytest.mark.slow
@pytest.mark.browser
@NEEDS_CHROMIUM
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("tool_trajectory_avg_score", "reference/criteria.html"),
        ("hallucinations_v1", "reference/criteria.html"),
        ("final_response_match_v2", "reference/criteria.html"),
        ("waivers", "reference/policy.html"),
        ("promote", "how_to/promotions.html|reference/cli.html"),
    ],
)
def test_the_search_shows_users_pages_before_those_of_developers(page: Any, words: str, wanted: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto("/index.html")
    page.get_by_placeholder("Search").fill(words)
    page.keyboard.press("Enter")
    page.locator("#search-results li a").first.wait_for()
    page.locator("#search-results .search-summary").filter(has_text="found").wait_for()
    links = [str(link.get_attribute("href")).partition("#")[0].partition("?")[0] for link in page.locator("#search-results li > a").all()]
    first = page.locator("#search-results li > a").first
    assert links[0] in wanted.split("|"), links[:8]
    developers = [number for number, link in enumerate(links) if link.startswith("development/")]
    assert not developers or developers[0] >= len(links) - len(developers), links
    first.click()
    page.wait_for_url(f"**/{links[0]}**")


@pytest.mark.slow
def test_each_page_is_there_as_markdown_and_llms_txt_leads_to_it(site: Path) -> None:
    listed = re.findall(r"\]\(([^)]+\.md)\)", (site / "llms.txt").read_text("utf-8"))
    pages = {str(file.relative_to(ROOT / "docs")) for file in (ROOT / "docs").rglob("*.md")}
    assert pages - {"index.md"} <= {*listed}
    assert [name for name in listed if not (site / name).is_file()] == []
    assert "AdkEvalError" in "".join(file.read_text("utf-8") for file in (site / "reference" / "api").glob("*.md"))
