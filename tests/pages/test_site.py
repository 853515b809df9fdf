"""The documentation site: it is built strictly, and its search finds things in a real browser."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed; on Debian: apt-get install chromium")
def test_the_search_finds_a_word_of_a_page_and_leads_to_it(tmp_path: Path) -> None:
    from docs.screenshots import browser_page

    pages = tmp_path / "docs"
    pages.mkdir()
    for name in ("reference/policy.md", "gate.schema.json"):
        shutil.copy(ROOT / "docs" / name, pages)
    (pages / "index.md").write_text("# Home\n\n```{toctree}\npolicy\n```\n")
    site = tmp_path / "site"
    build(pages, site)  # with complaints about the pages that were not copied
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with browser_page(f"http://127.0.0.1:{server.server_port}") as page:
            page.goto("/index.html")
            page.get_by_placeholder("Search").fill("waivers")
            page.keyboard.press("Enter")
            page.locator("#search-results li a", has_text="Policies").first.click()
            page.wait_for_url("**/policy.html**")
            assert page.get_by_role("heading", name="Policies").is_visible()
        server.shutdown()
