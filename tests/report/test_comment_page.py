"""The page of a decision for a pull request: what stands on it, what it does not know, and that it stays a page whatever is on it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval import score
from mlflow_adk_eval.gating.policy.model import Price
from mlflow_adk_eval.gating.rules.measures import Measured, measure
from mlflow_adk_eval.report.pull_request import comment_of
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.testing import ScriptedJudge
from mlflow_adk_eval.tracking.compare import review_page
from tests.report.compare_pages import comparison, hostile
from tests.report.pages import CONFIG, rooms
from tests.report.test_decisions import GRANTED, HOSTILE, REFUSED


def report() -> Report:
    cases, actual = rooms()
    return score(cases, actual, CONFIG, judge=ScriptedJudge("yes", rationale="It says *please*."))


def page(decision: Decision = REFUSED, **about: str) -> str:
    return comment_of(decision, report(), comparison(), {}, about)


def test_the_verdict_is_first_then_reasons_causes_changes_and_cost() -> None:
    text = page(title="version 3 of home", outcome="champion was not moved")
    assert text.startswith("### ❌ Agent gate: failed · version 3 of home\n\nchampion was not moved\n\n- response&#95;match&#95;score fell")
    places = [text.index(head) for head in ("- cost&#58; no price", "**Why cases did not pass**", "**Compared with monday**", "**Cost**")]
    assert places == sorted(places)
    assert "- Passed before, fails now: lamp\n" in text
    assert re.search(r"^\| cases passed \| 100.0% \|", text, re.MULTILINE)


def test_what_is_too_much_is_folded_and_counted() -> None:
    text = page(replace(REFUSED, reasons=tuple(f"reason {number}" for number in range(150))))
    assert "- reason 4\n\n<details><summary>145 more</summary>\n\n- reason 5\n" in text
    assert "- reason 9\n- and 140 more\n\n</details>" in text


def test_a_cost_that_is_not_known_in_full_is_no_number_that_looks_like_it() -> None:
    text = page()
    assert "- Tokens of the agent: unknown (no token usage was recorded)\n" in text
    assert "- Money at the policy's prices: unknown (the policy has no prices)\n" in text
    priced = comment_of(REFUSED, report(), None, {"another": Price(tokens=1.0)}, {})
    assert re.search(
        r"- Money at the policy's prices, without the agent: (at least [\d.]+ \(\d+ are unknown, such as|unknown \().* price", priced
    )
    assert "Not included: simulated users, tools and the baseline's own evaluation" in text


def test_a_cost_that_is_known_is_a_sum_over_all_cases() -> None:
    found = report()
    counted = measure("judge_tokens", found)
    assert isinstance(counted, Measured)
    assert not counted.missing
    known = sum(map(sum, counted.values.values()))
    text = comment_of(REFUSED, found, None, {"scripted": Price(tokens=2_000_000.0)}, {})
    assert f"- Tokens of judges, with answers from the ledger: {known:,.0f}\n" in text
    assert f"- Money at the policy's prices, without the agent: {2 * known:,.0f}\n" in text


@pytest.mark.parametrize(
    ("address", "linked"),
    [
        ("https://mlflow.example/#/experiments/1/runs/abc", True),
        ("http://127.0.0.1:5000/#/experiments/1/runs/abc\n  served by: mlflow ui", False),
        ("https://mlflow.example/?token=abc", False),
        ("https://mlflow.example/) [x](http://evil.example", False),
    ],
)
def test_only_the_address_of_a_server_is_a_link(address: str, *, linked: bool) -> None:
    assert (f"[The run in MLflow]({address})" in page(page=address)) == linked


def test_runs_that_cannot_be_read_leave_a_page_that_says_so(tmp_path: Path) -> None:
    text = review_page(GRANTED, None, f"sqlite:///{tmp_path / 'no.db'}")
    assert text.startswith("### ✅ Agent gate: passed · run r1\n\n- all is well\n\nThis page is incomplete: ")
    assert "**Cost**" not in text


@given(st.sampled_from([HOSTILE, "<!-- mlflow-adk-eval:0 -->", "@", "\n# top\n", "&#64;a"]), st.integers(1, 400))
def test_hostile_text_is_text_and_the_page_has_room(text: str, times: int) -> None:
    decision = replace(REFUSED, reasons=(text * times,) * 300)
    made = comment_of(
        decision, report(), hostile(text), {}, {"title": text * times, "outcome": text, "missing": text * times, "page": text}
    )
    assert len(made) <= 60_000
    shown = re.sub(r"</?details>|</?summary>|<br>", "", made)
    assert not re.search(r"[`<>@\x00\x1b]|\]\(|!\[|##\[|&#64;(?!&#8203;)|^#(?!## ❌ Agent gate: failed)", shown, re.MULTILINE)
