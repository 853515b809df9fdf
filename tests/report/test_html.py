"""The HTML report: what it says, in which order, and that texts of others stay texts."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval import score
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.report.html.page import LONGEST, Texts, common_subsequence, differing, rationale_html
from mlflow_adk_eval.report.html.report import WIDTH, chart_of, shown_cases
from mlflow_adk_eval.results.report import CasesInMemory, CriterionSummary
from tests.kit import case_result
from tests.report.pages import ATTACKS, Elements, hostile_page, page, report, visible
from tests.tracking.small import CONFIG, eval_set, expected_of, many, rooms, turn

PLAIN = "nothing"


def test_the_share_and_the_verdict_come_first_and_each_cause_once() -> None:
    text = visible(page(report()))
    assert text.startswith(
        "rooms nightly 1 of 3 cases passed, 1 failed, 1 undecided Verdict: ✗ failed "
        "tool_trajectory_avg_score below its threshold 1 · 1 case, 1 criterion for example lamp: turn 1: tool_trajectory_avg_score: missing: look"
    )
    assert text.count("· 1 case, 3 criteria") == 1
    assert "✗ failed lamp turn the lamp off turn 1: tool_trajectory_avg_score: missing: look" in text
    assert "below its threshold" not in text[text.index("Cases All") :]
    facts = text.index("Eval setrooms Agent versionabc123 JudgesJudged by scripted: 12 calls, ")
    assert facts < text.index("Criteria Criterion Threshold") < text.index("it never counts as zero, in a mean, or as a pass")


def test_a_pass_needs_no_causes() -> None:
    text = visible(page(score(rooms(), expected_of(rooms()), CONFIG)))
    assert text.startswith("rooms nightly 3 of 3 cases passed Verdict: ✓ passed Eval setrooms")


def test_a_criterion_has_its_mean_interval_threshold_pass_rate_and_counts() -> None:
    text = visible(page(report()))
    assert (
        "tool_trajectory_avg_score ≥ 1 0.75 2 of 3 scored 0.0103 to 0.999 33.3% 4 1 1 error "
        "1 of 2 case scores reach the threshold; lowest 0.5, median 0.75, highest 1; 1 have no score" in text
    )


def test_without_a_score_there_is_no_number() -> None:
    text = visible(page(score(eval_set({"a": [turn("q", "yes")]}), {}, CONFIG)))
    assert "tool_trajectory_avg_score ≥ 1 not evaluated 0 of 1 scored 0.0% 0 1 1 error –" in text
    assert "0 of 1 case passed, 1 undecided Verdict: ? undecided" in text


def test_failed_cases_come_before_undecided_ones_and_those_before_passed_ones() -> None:
    found = [attributes["data-verdict"] for tag, attributes in Elements(page(report())).found if "data-verdict" in attributes]
    assert found == ["failed", "undecided", "passed"]


def test_answers_stand_side_by_side_with_the_words_that_differ() -> None:
    html = page(report())
    assert "the lamp in the hall is <del>off</del> now" in html
    assert "the lamp in the hall is <ins>on</ins> now" in html


def test_tool_calls_stand_beside_those_they_stand_for() -> None:
    text = visible(page(report()))
    assert (
        'Expected calllook Actual call missingno call Expected callswitch {"room": "hall", "to": 1} '
        'Actual call other argumentsswitch {"room": "all", "to": 1} Expected callno call Actual call unexpectedbeep' in text
    )
    assert '{"room": "<del>hall</del>", "to": 1}' in page(report()).replace("&#34;", '"')


@pytest.mark.parametrize(("match_type", "label"), [("EXACT", "unexpected"), ("IN_ORDER", "not expected; ignored by IN_ORDER")])
def test_a_further_call_is_called_wrong_only_where_it_is(match_type: str, label: str) -> None:
    cases = eval_set({"a": [turn("q", "yes", ("look", {}))]})
    config = {"criteria": {"tool_trajectory_avg_score": {"threshold": 1.0, "match_type": match_type}}}
    found = score(cases, {"a": [turn("q", "yes", ("look", {}), ("beep", {}))]}, config)
    assert f"Expected callno call Actual call {label}beep" in visible(page(found))


def test_of_very_many_calls_the_first_are_shown() -> None:
    cases = eval_set({"a": [turn("q", "yes", *[("look", {"n": n}) for n in range(203)])]})
    text = visible(page(score(cases, expected_of(cases), CONFIG)))
    assert text.count("as expected") == 200
    assert "3 more tool calls are not shown." in text


def test_votes_are_told_by_rubric_with_the_dissent() -> None:
    text = visible(page(report()))
    assert "Votes: yes 2, no 1 – the judges disagree polite: yes 2, no 1 dissent: no: It says *please*." in text


def test_a_turn_that_the_agent_did_not_reach_says_so() -> None:
    text = visible(page(report()))
    assert "Expected answerstill here Actual answerthe agent did not get here ?not evaluated" in text
    assert "the agent did not finish: 1 turn took place, but the case has 2" in text


def test_without_a_reference_there_is_only_what_the_agent_did() -> None:
    cases = eval_set({"a": []})
    talk = {"eval_id": "a", "conversation_scenario": {"starting_prompt": "Begin here.", "conversation_plan": "Then ask on."}}
    cases = cases.model_validate({"eval_set_id": "rooms", "eval_cases": [talk]})
    found = score(cases, {"a": [turn("Begin here.", "Yes?", ("look", {"n": 1}))]}, {"criteria": {"tool_call_count_v1": 3}})
    text = visible(page(found))
    assert "starts withBegin here.and follows this planThen ask on. Turn 1 ✓ passed" in text
    assert 'Actual answerYes? Actual calllook {"n": 1} ' in text
    assert "Expected" not in text


def test_several_runs_of_a_case_are_told_apart() -> None:
    found = report()
    text = visible(page(replace(found, cases=found.cases[:1] * 2, num_runs=2)))
    assert "2 of 2 case runs passed" in text
    assert "Runs of each case2" in text
    assert "good (run 1)" in text


def test_notes_and_an_outage_are_told() -> None:
    found = report()
    assert found.judging is not None
    text = visible(page(replace(found, notes=("3 recorded cases are not in the eval set",), judging=replace(found.judging, outage="503"))))
    assert "Attention: a judge stopped responding: 503" in text
    assert "Note: 3 recorded cases are not in the eval set" in text


def test_many_causes_are_folded_and_very_many_are_counted() -> None:
    cases = [case_result("a", error=f"{'x' * number} is lost") for number in range(1, 60)]
    head = page(replace(report(), cases=CasesInMemory(cases))).partition('<dl class="facts">')[0]
    assert "<summary>55 more causes</summary>" in head
    assert head.count("<li") == 50 + 1
    assert "and 10 more" in head


def test_of_a_large_run_only_cases_that_did_not_pass_are_shown_and_it_says_so() -> None:
    cases = many(40)
    recorded = expected_of(cases) | {eval_id: [turn("q", "no")] for eval_id in cases.eval_ids[10:15]}
    found = score(cases, recorded, CONFIG)
    (small, nothing), (large, of_large), (huge, of_huge) = (shown_cases(found, most) for most in (40, 39, 3))
    assert (len(small), nothing) == (40, "")
    assert [case.eval_id for case in large] == list(cases.eval_ids[10:15])
    assert of_large.startswith("This run has 40 turns, too many for one page. This page shows only cases that did not pass. ")
    assert [case.eval_id for case in huge] == list(cases.eval_ids[10:13])
    assert ": the first 3 of 5. " in of_huge


@pytest.mark.slow
def test_a_run_of_thousands_of_turns_gives_a_page_of_its_failures() -> None:
    cases = many(2_001)
    found = score(cases, expected_of(cases) | {"case_0007": [turn("q", "no")]}, CONFIG)
    html = page(found)
    assert "This run has 2,001 turns" in html
    assert html.count('<details class="case') == 1
    assert len(html) < 60_000


def test_the_page_needs_nothing_from_elsewhere_and_allows_nothing_else() -> None:
    found = Elements(page(report()))
    assert not {"link", "img", "iframe", "object", "embed", "form", "a", "base"} & found.tags
    assert not {"src", "href", "style", "srcdoc", "action"} & found.attributes
    policy = next(attributes["content"] for _, attributes in found.found if attributes.get("http-equiv") == "Content-Security-Policy")
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-[\w+/]{43}='; script-src 'sha256-[\w+/]{43}='; base-uri 'none'; form-action 'none'",
        policy or "",
    )


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_no_text_adds_an_element_or_an_attribute(attack: str) -> None:
    plain, found = Elements(hostile_page(PLAIN)), Elements(hostile_page(attack))
    assert found.tags - plain.tags <= {"ul", "li", "code", "br", "pre"}  # of rationales, which may have lists and code
    assert found.attributes <= plain.attributes
    assert not [name for name in found.attributes if name.startswith("on")]
    assert [attributes for tag, attributes in found.found if tag == "script"] == [{}]


@pytest.mark.parametrize("attack", ATTACKS[:10], ids=range(10))
def test_every_text_is_shown_as_it_is_written(attack: str) -> None:
    in_arguments = 5  # where JSON escapes quotes
    assert Elements(hostile_page(attack)).text.count(attack) >= Elements(hostile_page("zebra")).text.count("zebra") - in_arguments > 30


def test_a_secret_is_nowhere_on_the_page() -> None:
    secret = 's3cret-"42"\\x'  # noqa: S105 - that is what it is
    html = page(
        score(
            eval_set({secret: [turn(secret, f"the key is {secret} ok", ("look", {"key": secret, secret: 1}))]}),
            {secret: [turn(secret, f"a key is {secret} ok", ("look", {"key": f"my {secret}"}))]},
            CONFIG,
        ),
        title=secret,
        facts={"Where": f"https://me:pass@example.org/{secret}"},
        secrets=secrets_of({"API_KEY": secret}),
    )
    text = Elements(html).text
    assert "s3cret" not in text
    assert 'look {"key": "[API_KEY]", "[API_KEY]": 1}' in visible(html)
    assert "https://example.org/[API_KEY]" in text


def test_what_would_be_invisible_is_shown_and_languages_are_left_alone() -> None:
    words = Texts({}).words
    assert words("pay \u202e001$\u2066 \x1b[0m \ud800") == "pay ⟨U+202E⟩001$⟨U+2066⟩ ⟨U+001B⟩[0m ⟨U+D800⟩"
    for text in ("مرحبا بالعالم", "שלום", "你好，世界", "สวัสดี", "नमस्ते", "👩‍👩‍👧", "line\nline\ttab"):
        assert words(text) == text
        assert text in Elements(page(score(eval_set({"a": [turn(text, text)]}), {"a": [turn(text, text)]}, CONFIG))).text


def test_an_endless_text_is_cut_and_says_so() -> None:
    shown = Texts({"secret-123": "[KEY]"}).words("x" * (LONGEST - 3) + "secret-123" + "y" * 1_000_000)
    assert len(shown) < LONGEST + 60
    assert shown.endswith("x[KE… (1,000,002 more characters are not shown)")


@pytest.mark.slow
def test_a_page_with_endless_texts_is_made_at_once() -> None:
    for text in ("x" * 1_000_000, "a b " * 250_000, "* `" * 300_000, "://" * 300_000, "\u202e" * 300_000):
        began = time.process_time()
        assert len(hostile_page(text)) < 8_000_000
        assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a < b & `c > d`", "<p>a &lt; b &amp; <code>c &gt; d</code></p>\n"),
        ("one\ntwo", "<p>one<br>\ntwo</p>\n"),
        ("- one\n  - two", "<ul>\n<li>one\n<ul>\n<li>two</li>\n</ul>\n</li>\n</ul>\n"),
        ("[x](javascript:1) ![y](z) <b> http://e.org __init__", "<p>[x](javascript:1) ![y](z) &lt;b&gt; http://e.org __init__</p>\n"),
        ("# no heading", "<p># no heading</p>\n"),
    ],
)
def test_rationales_have_lists_and_code_and_nothing_else(text: str, html: str) -> None:
    assert rationale_html(text) == html


def test_what_is_nested_too_deeply_for_the_parser_is_not_lost() -> None:
    deep = "\n".join(f"{'  ' * depth}- level {depth}" for depth in range(40))
    assert "level 39" in rationale_html(deep)


@given(st.text(alphabet=st.sampled_from("-*1. `a<\n\t>[]"), max_size=60))
def test_no_letter_of_a_rationale_is_lost(text: str) -> None:
    assert Elements(rationale_html(text)).text.count("a") == text.count("a")


@given(st.lists(st.sampled_from("abc"), max_size=10), st.lists(st.sampled_from("abcd"), max_size=10))
def test_the_common_words_are_as_many_as_can_be(left: list[str], right: list[str]) -> None:
    pairs = sorted(common_subsequence(left, right))
    assert all(left[i] == right[j] for i, j in pairs)
    assert all(before[0] < after[0] and before[1] < after[1] for before, after in pairwise(pairs))
    table = [[0] * (len(right) + 1)]
    for word in left:
        row = [0]
        for j, other in enumerate(right):
            row.append(table[-1][j] + 1 if word == other else max(table[-1][j + 1], row[j]))
        table.append(row)
    assert len(pairs) == table[-1][-1]


@given(st.text(max_size=40), st.text(max_size=40))
def test_the_pieces_are_the_texts(left: str, right: str) -> None:
    pieces = differing(left, right)
    assert tuple("".join(text for text, _ in side) for side in pieces) == (left, right)


@pytest.mark.parametrize(
    ("left", "right", "alone"),
    [
        ("21 degrees.", "22 degrees.", (["21 "], ["22 "])),
        ("我把灯打开了", "我把灯关上了", (["打开"], ["关上"])),
        ("entirely other", "nothing alike", ([], [])),
        ("same", "same", ([], [])),
    ],
)
def test_what_differs_is_a_word(left: str, right: str, alone: tuple[list[str], list[str]]) -> None:
    assert tuple([text for text, marked in side if marked] for side in differing(left, right)) == alone


def summary(*scores: float, threshold: float | None = 0.5, criterion: str = "mine") -> CriterionSummary:
    return CriterionSummary(
        criterion=criterion,
        threshold=threshold,
        greater_is_better=True,
        mean=None,
        pass_rate=None,
        evaluated=len(scores),
        errored=0,
        skipped=0,
        scored=len(scores),
        missing=0,
        case_scores={str(index): (value,) for index, value in enumerate(scores)},
    )


def test_the_picture_shows_scores_on_both_sides_of_the_threshold() -> None:
    chart = chart_of(summary(0.0, 0.0, 0.48, 0.5, 1.0))
    assert chart is not None
    assert [(bar.x, bar.kind) for bar in chart.bars] == [(0, "missed"), (90, "missed"), (100, "reached"), (190, "reached")]
    assert chart.bars[0].height == 2 * chart.bars[1].height
    assert (chart.threshold, chart.low, chart.high) == (WIDTH / 2, "0", "1")
    assert chart.text == "2 of 5 case scores reach the threshold; lowest 0, median 0.48, highest 1"


def test_what_has_no_score_stands_apart_in_the_picture_and_is_never_filled() -> None:
    chart = chart_of(replace(summary(1.0), missing=2))
    assert chart is not None
    scored, missing = chart.bars
    assert (missing.kind, missing.height) == ("missing", 2 * scored.height)
    assert missing.x > WIDTH
    assert '<rect class="missing" fill="url(#hatch)"' in page(report())


def test_the_picture_of_counts_reaches_as_far_as_they_do() -> None:
    chart = chart_of(summary(0, 40, threshold=None, criterion="token_usage_v1"))
    assert chart is not None
    assert (chart.low, chart.high, chart.threshold) == ("0", "40", None)
    assert {bar.kind for bar in chart.bars} == {"plain"}


@pytest.mark.parametrize("scores", [(), (7.0,), (-3.0, -3.0), (0.0,), (1e300, 1.0)])
def test_any_scores_have_a_picture_but_none(scores: tuple[float, ...]) -> None:
    chart = chart_of(summary(*scores))
    assert (chart is None) == (not scores)
    for bar in chart.bars if chart else ():
        assert 0 <= bar.x < WIDTH
        assert bar.y >= 0
