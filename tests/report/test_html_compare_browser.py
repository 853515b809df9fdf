"""The page of a comparison in a real browser: in MLflow's frame, in the dark, on a telephone, and without scripts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.report.compare_pages import comparison, page
from tests.report.test_html_browser import CONTRAST, Tab, browser, pytestmark, tab

__all__ = ["browser", "pytestmark", "tab"]  # fixtures, and what is needed for them
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true })"


@pytest.mark.parametrize("sandboxed", [False, True], ids=["alone", "in MLflow's frame"])
def test_cases_unfold_without_a_script(tab: Tab, *, sandboxed: bool) -> None:
    frame = tab.show(page(comparison()), sandboxed=sandboxed)
    assert frame.locator(".case h3:visible").all_inner_texts() == ["lamp", "lost"]
    assert frame.locator("h4:visible").count() == 0
    frame.locator(".case > summary").first.click()
    assert frame.locator("h4:visible").all_inner_texts() == ["Turn 1", "Turn 2"]
    assert frame.get_by_text("switch is called with $.room").is_visible()
    assert tab.complaints == []
    assert len(tab.requests) == (2 if sandboxed else 1)


@pytest.mark.parametrize("width", [360, 800, 1280])
def test_nothing_is_wider_than_the_window(tab: Tab, width: int) -> None:
    tab.page.set_viewport_size({"width": width, "height": 800})
    frame = tab.show(page(comparison(), every=True))
    frame.evaluate(OPEN_ALL)
    assert frame.evaluate("document.documentElement.scrollWidth") <= width
    frames = "[...document.querySelectorAll('.wide')].filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    assert frame.evaluate(frames) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(browser: Any, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme)
    frame = Tab(context.new_page()).show(page(comparison()))
    frame.evaluate(OPEN_ALL)
    assert frame.evaluate(CONTRAST) == []
    context.close()


def test_headings_tables_and_pictures_have_names(tab: Tab) -> None:
    tree = tab.show(page(comparison())).locator("body").aria_snapshot()
    for line in (
        'heading "monday → tuesday" [level=1]',
        'heading "Scores" [level=2]',
        'heading "Passed before, fails now (1)" [level=2]',
        'table "The two runs"',
        'table "Decides"',
        'rowheader "tool_trajectory_avg_score"',
        'img "from ',
    ):
        assert line in tree
