"""The page that explains what changed: what it says, and that no text in it is anything but text."""

from __future__ import annotations

import re

import pytest

from mlflow_adk_eval import score
from mlflow_adk_eval.analysis.comparison.compare import compared
from mlflow_adk_eval.analysis.comparison.runs import compared_run
from mlflow_adk_eval.report.html.compare import HALF_WIDTH
from mlflow_adk_eval.tracking.compare import compare
from tests.analysis.test_comparison import with_set
from tests.report.compare_pages import comparison, hostile_page, page
from tests.report.pages import ATTACKS, Elements
from tests.results.repeated import FAILED, PASSED, repeated
from tests.tracking.small import eval_set, turn

PLAIN = "zebra"


def visible(html: str) -> str:
    """Return the text of a page, without its style, on one line."""
    return " ".join(Elements(html[html.index("<body>") :]).text.split())


def test_the_page_says_what_flipped_and_why() -> None:
    text = visible(page(comparison()))
    assert "monday → tuesday" in text
    assert "1 now fails 1 changed to or from undecided of 3 cases in both runs" in text
    assert "Passed before, fails now (1)" in text
    assert "Turn 1: switch is called with $.room = 'all', was 'hall' (expected 'hall')" in text
    assert "Turn 1: beep({}) is now called (the reference does not)" in text
    assert "Changed to or from undecided (1)" in text
    assert "Turn 2: not evaluated: the agent did not finish: 1 turn took place, but the case has 2" in text
    assert "Same verdict and scores: 1 case, good" in text


def test_both_runs_stand_side_by_side_with_their_differences_marked() -> None:
    html = page(comparison())
    assert re.search(r"Answer in A</span><div[^>]*>the lamp in the hall is <del>off</del> now", html)
    assert re.search(r"Answer in B</span><div[^>]*>the lamp in the hall is <ins>on</ins> now", html)
    assert re.search(r"<del>hall</del>.*<ins>all</ins>", html, re.DOTALL)
    assert 'Call in B <span class="wrong">not called before</span>' in html
    assert "Expected call" in html


def test_a_case_of_several_runs_says_which_stand_for_the_others() -> None:
    runs = (with_set(repeated({"a": scores})) for scores in ([PASSED] * 3, [PASSED, FAILED, FAILED]))
    text = visible(page(compare(*runs)))
    assert "1 is flaky, with a different pass rate of 1 case in both runs" in text
    assert "passed → 1 of 3 passed a" in text
    assert "Why (before run 2 of 3, now run 2 of 3)" in text


def test_what_else_differs_is_said_before_the_scores() -> None:
    cases = eval_set({"a": [turn("hi", "hello")]})
    lax, strict = (score(cases, cases, {"criteria": {"response_match_score": threshold}}) for threshold in (0.5, 0.8))
    text = visible(page(compare(lax, strict)))
    assert "The agent is not the only difference, so it may not have caused every change below:" in text
    assert text.index("Config $.criteria.response_match_score.threshold: 0.5 → 0.8") < text.index("Scores")
    assert "No verdict flipped (1 case in both runs)" in text


def test_cases_without_a_partner_are_named() -> None:
    before, after = (eval_set({name: [turn("hi", "hello")], "b": [turn("hi", edited)]}) for name, edited in (("a", "x"), ("c", "y")))
    text = visible(page(compare(*(score(cases, cases, {"criteria": {"response_match_score": 0.5}}) for cases in (before, after)))))
    assert "1 case in both eval sets with different turns or expectations, so not compared: b" in text
    assert "1 case only in the first run: a" in text
    assert "1 case only in the second run: c" in text
    assert "The runs have no case in common" in text


def test_cases_that_kept_their_scores_are_shown_on_demand() -> None:
    cases = eval_set({"a": [turn("hi", "hello")], "b": [turn("hi", "hello")]})
    config = {"criteria": {"tool_trajectory_avg_score": 1.0}}
    after = {"a": [turn("hi", "hullo")], "b": [turn("hi", "hello")]}
    found = compare(score(cases, cases, config), score(cases, after, config))
    assert "Same verdict and scores: 2 cases, a, b" in visible(page(found))
    every = visible(page(found, every=True))
    assert "Same verdict and scores, different behaviour (1)" in every
    assert "Same behaviour, verdict and scores: 1 case, b" in every


@pytest.mark.slow
def test_a_comparison_too_large_for_a_page_shows_the_flips_and_says_so() -> None:
    names = [f"case_{number:04}" for number in range(2_100)]
    before, after = (with_set(repeated({name: [verdict] for name in names})) for verdict in (PASSED, FAILED))
    html = page(compared(compared_run(before, "before"), compared_run(after, "after")))
    assert html.count('<details class="case worse">') == 2_000
    assert "100 changed cases are not shown, to keep the page small" in html


def test_the_picture_of_an_interval_stays_within_its_frame() -> None:
    drawn = re.findall(r'class="reach" x1="([-\d.]+)" y1="8" x2="([-\d.]+)"', page(comparison()))
    assert len(drawn) > 4
    assert all(-HALF_WIDTH <= float(low) <= float(high) <= HALF_WIDTH for low, high in drawn)


def test_secrets_are_struck_out() -> None:
    cases = eval_set({"a": [turn("hi", "hello")]})
    after = {"a": [turn("hi", "the key is s3cret-42", ("call", {"key": "s3cret-42"}))]}
    config = {"criteria": {"response_match_score": 0.8, "tool_trajectory_avg_score": 1.0}}
    html = page(compare(score(cases, cases, config), score(cases, after, config)), secrets={"s3cret-42": "[KEY]"})
    assert "s3cret" not in html
    assert html.count("[KEY]") > 3


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_no_text_brings_elements_or_attributes_of_its_own(attack: str) -> None:
    plain, found = Elements(hostile_page(PLAIN)), Elements(hostile_page(attack))
    own = {"ul", "ol", "li", "code", "pre", "p", "br", "del", "ins"}  # what a rationale's lists and a diff may have
    assert found.tags - own == plain.tags - own
    assert found.attributes <= plain.attributes | {"start"}
    assert "script" not in found.tags


@pytest.mark.parametrize("attack", ATTACKS[:10], ids=range(10))
def test_every_text_stands_there_as_it_was_written(attack: str) -> None:
    assert Elements(hostile_page(attack)).text.count(attack[:40]) > 20


def test_the_page_needs_nothing_from_elsewhere() -> None:
    html = page(comparison())
    found = Elements(html)
    policy = next(attributes["content"] for _, attributes in found.found if attributes.get("http-equiv") == "Content-Security-Policy")
    assert re.fullmatch(r"default-src 'none'; style-src 'sha256-[\w+/]{43}='; base-uri 'none'; form-action 'none'", policy or "")
    assert not {"script", "link", "img", "iframe", "object", "embed", "form", "a", "base"} & found.tags
    assert not {"src", "href", "style", "srcdoc", "action"} & found.attributes
    assert "url(" not in html
    assert html.startswith("<!DOCTYPE html>")


def test_hundreds_of_calls_are_counted() -> None:
    cases = eval_set({"a": [turn("hi", "hello", *[("look", {"n": number}) for number in range(230)])]})
    config = {"criteria": {"tool_trajectory_avg_score": 1.0}}
    text = visible(page(compare(score(cases, cases, config), score(cases, {"a": [turn("hi", "hello")]}, config))))
    assert "30 more tool calls are not shown." in text
    assert "and 180 more" in text
