"""What a notebook shows of a report and of a comparison: small, without anything that runs, and with the texts of others as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mlflow_adk_eval.results.notebook import MOST
from mlflow_adk_eval.results.report import Report
from tests.kit import RESPONSE, case, case_result, cases, config, turn
from tests.report import compare_pages, pages
from tests.report.pages import ATTACKS, Elements

SHOWN = {"div", "b", "table", "tr", "th", "td", "ul", "li"}
KINDS: dict[str, Callable[[str], Any]] = {"report": pages.hostile, "comparison": compare_pages.hostile}


def html_of(shown: Any) -> str:
    """Return what IPython asks an object for."""
    text: str = shown._repr_html_()
    return text


def test_a_report_shows_its_verdict_criteria_and_reasons() -> None:
    found = pages.report()
    text = Elements(html_of(found)).text
    assert f"in {found.eval_set.eval_set_id} · verdict: {found.verdict}" in text
    without = {name for name, one in found.summaries().items() if one.threshold is None and not one.scored}
    assert {name for name in found.criteria if name not in text} == without != set()
    assert found.reasons[0].split(":")[0] in text


def test_a_comparison_shows_what_flipped_and_why() -> None:
    text = Elements(html_of(compare_pages.comparison())).text
    assert "monday → tuesday: " in text
    assert "1 worse" in text
    assert "lamp, worse: " in text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_no_text_adds_an_element_or_an_attribute(kind: str, attack: str) -> None:
    found = Elements(html_of(KINDS[kind](attack)))
    assert (found.tags, found.attributes) == (SHOWN, {"dir", "class"})
    assert found.text.count("<") >= attack[:200].count("<"), "it is shown as text"


@pytest.mark.parametrize("kind", KINDS)
def test_formulas_markdown_and_turned_text_stay_text(kind: str) -> None:
    html = html_of(KINDS[kind]("$\\href{javascript:alert(1)}{x}$ **b** \u202egnp.exe\n\x1b[31m"))
    assert not {"$", "*", "\\", "\n", "\u202e", "\x1b"} & set(html)
    assert 'class="tex2jax_ignore mathjax_ignore"' in html


@pytest.mark.parametrize("kind", KINDS)
def test_secrets_are_hidden_and_endless_texts_cut(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "s3cr3t-0123456789")
    html = html_of(KINDS[kind]("key s3cr3t-0123456789 at https://me:pass-word@example.org/ " + "x" * 100_000))
    assert not {word for word in ("s3cr3t", "pass-word") if word in html}
    assert "MY" in html
    assert len(html) < 100_000


def test_a_large_run_shows_the_first_findings_and_counts_the_others() -> None:
    names = [f"case_{number}" for number in range(3_000)]
    found = [case_result(eval_id=name, run_index=0, actual=(turn(),), expected=(turn(),), results=(), error="no network") for name in names]
    large = Report(eval_set=cases(*(case(name) for name in names)), config=config(RESPONSE), cases=found)
    html = html_of(large)
    assert html.count("<li>") == MOST + 1
    assert f"and {len(large.reasons) - MOST:,} more</li>" in html
    assert len(html) < 20_000
