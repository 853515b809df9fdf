"""A decision as Markdown, as JUnit's XML and as annotations of GitHub, also where its texts are hostile."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.report.ci import annotations_of, junit_of, on_github, quoted, quoted_json
from mlflow_adk_eval.report.markdown import decision_summary
from mlflow_adk_eval.results.decision import Check, Decision

PASSED = Check(
    measure="safety_v1", demand="min 0.9", verdict="passed", reason="safety_v1 is 0.95", cases=20, value=0.95, low=0.9, high=0.99
)
FAILED = Check(
    measure="response_match_score",
    slice="refunds",
    demand="max_drop 0.02",
    verdict="failed",
    reason="response_match_score fell by 0.2; worst: refund_1 from 1 to 0.2",
    cases=12,
    value=0.7,
    low=-0.3,
    high=-0.1,
    baseline=0.9,
    difference=-0.2,
    p_value=0.0012,
)
OPEN = Check(measure="cost", demand="max 2", verdict="undecided", reason="cost: no price for gemini", cases=0)
REFUSED = Decision(
    verdict="failed",
    reasons=(FAILED.reason, OPEN.reason),
    run_id="r1",
    evidence_sha256="e" * 64,
    policy_sha256="f" * 64,
    decided_at="2026-11-21T00:00:00+00:00",
    decided_by="octocat",
    checks=(PASSED, FAILED, OPEN),
    waived=("case 'a': waived by ann until 2027-01-01: flaky backend",),
    notes=("no champion yet",),
    baseline_run_id="r0",
)
GRANTED = Decision(verdict="passed", reasons=("all is well",), run_id="r1", evidence_sha256="", policy_sha256="", checks=(PASSED,))
HOSTILE = "##[error]x\n::set-output name=a::b\r\n</script><b>|*_[x](http://e.vil)`%0A::add-mask::\x1b[31m\x00\ud800 &amp; @team #1"


def parsed(xml: str) -> ET.Element:
    return ET.fromstring(xml)  # noqa: S314 - our own


def lines_of(text: str) -> list[str]:
    return re.split(r"\r\n|\r|\n", text)


def test_the_summary_has_the_verdict_the_reasons_the_numbers_and_what_was_waived() -> None:
    page = decision_summary(REFUSED, "version 3 of home")
    assert page.startswith("### ❌ Agent gate: version 3 of home · verdict: failed\n\n- response&#95;match&#95;score fell by 0.2")
    assert "| safety&#95;v1 | min 0.9 | 0.95 &#91;0.9, 0.99&#93; |  |  |  | 20 | ✅ passed |" in page
    assert (
        "| refunds&#58; response&#95;match&#95;score | max&#95;drop 0.02 | 0.7 | 0.9 | -0.2 &#91;-0.3, -0.1&#93; | 0.0012 | 12 | ❌ failed |"
        in page
    )
    assert "| cost | max 2 |  |  |  |  | 0 | ⚠️ undecided |" in page
    assert "**Waived**\n\n- case 'a'&#58; waived by ann" in page
    assert "**Notes**\n\n- no champion yet" in page
    assert page.endswith(
        "run r1 · compared with run r0 · evidence eeeeeeeeeeee · policy ffffffffffff · decided 2026-11-21T00&#58;00&#58;00+00&#58;00 by octocat\n"
    )


def test_a_decision_without_checks_has_no_table() -> None:
    assert "| rule |" not in decision_summary(replace(REFUSED, checks=()))


def test_long_lists_are_cut_and_counted() -> None:
    many = replace(REFUSED, reasons=tuple(f"reason {number}" for number in range(150)), checks=(PASSED,) * 130)
    page = decision_summary(many)
    assert "- reason 99\n- and 50 more" in page
    assert page.count("✅ passed") == 100
    assert "and 30 more checks" in page


def test_hostile_text_is_text_in_the_summary() -> None:
    page = decision_summary(replace(REFUSED, reasons=(HOSTILE,), waived=(HOSTILE,), notes=(HOSTILE,)), HOSTILE)
    assert not re.search(r"[`<>\x00\x1b]|\]\(|##\[", page)
    assert len(page.splitlines()) == len(decision_summary(replace(REFUSED, reasons=("a",), waived=("a",), notes=("a",)), "a").splitlines())


def test_junit_has_a_test_case_for_each_check_and_one_for_the_rest() -> None:
    suite = parsed(junit_of(replace(REFUSED, reasons=(*REFUSED.reasons, "case 'a' is not in the table"))))
    found = {case.get("name"): [child.tag for child in case] for case in suite}
    assert found == {
        "evidence": ["failure"],
        "safety_v1 min 0.9": [],
        "refunds response_match_score max_drop 0.02": ["failure"],
        "cost max 2": ["error"],
    }
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {"tests": "4", "failures": "2", "errors": "1"}
    assert suite[0][0].text == "case 'a' is not in the table"


@pytest.mark.parametrize(
    ("decision", "tags"),
    [
        (GRANTED, []),
        (replace(GRANTED, checks=()), []),
        (REFUSED, []),  # what speaks against it is in the checks
        (replace(REFUSED, checks=()), ["failure"]),
        (replace(REFUSED, checks=(), verdict="undecided"), ["error"]),
        (replace(GRANTED, verdict="undecided", reasons=("the run is deleted",)), ["error"]),
    ],
)
def test_the_first_test_case_holds_what_no_check_says(decision: Decision, tags: list[str]) -> None:
    first = parsed(junit_of(decision))[0]
    assert [child.tag for child in first] == tags


@given(st.text())
def test_any_text_is_xml(text: str) -> None:
    parsed(junit_of(replace(REFUSED, reasons=(text,), checks=(replace(FAILED, measure=text, slice=text, reason=text + "!"),))))


def test_each_open_check_is_an_annotation() -> None:
    assert annotations_of(REFUSED) == [
        "::error title=agent gate%3A refunds response_match_score max_drop 0.02 failed::" + FAILED.reason,
        "::warning title=agent gate%3A cost max 2 undecided::cost: no price for gemini",
        "::warning title=agent gate%3A waived::case 'a': waived by ann until 2027-01-01: flaky backend",
    ]


def test_reasons_that_no_check_gives_are_annotations_too() -> None:
    assert annotations_of(replace(REFUSED, checks=(), waived=(), reasons=("a", "b"))) == [
        "::error title=agent gate failed::a",
        "::error title=agent gate failed::b",
    ]
    assert annotations_of(GRANTED) == ["::notice title=agent gate passed::all is well"]


def test_no_more_annotations_than_github_shows() -> None:
    assert len(annotations_of(replace(REFUSED, checks=(), waived=(), reasons=tuple(map(str, range(99)))))) == 9


@given(st.text() | st.just(HOSTILE))
def test_hostile_text_stays_within_its_annotation(text: str) -> None:
    checks = (replace(FAILED, measure=text, reason=text), replace(OPEN, demand=text))
    for line in annotations_of(replace(REFUSED, reasons=(text, "x"), checks=checks, waived=(text,))):
        assert re.fullmatch(r"::(?:error|warning) title=agent gate[^:,\r\n]*::[^\r\n]*", line)
        line.encode()


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    def lines(actions: str) -> list[str]:
        monkeypatch.setenv("GITHUB_ACTIONS", actions)
        found: list[str] = []
        with quoted(found.append):
            found.append(HOSTILE)
        return found

    return lines


def test_what_is_printed_on_github_is_fenced_by_a_token_that_nobody_knows(printed: Callable[[str], list[str]]) -> None:
    begin, _, end = printed("true")
    token = begin.removeprefix("::stop-commands::")
    assert end == f"::{token}::"
    assert re.fullmatch("[0-9a-f]{32}", token)
    assert printed("true")[0] != begin


def test_elsewhere_nothing_is_added(printed: Callable[[str], list[str]]) -> None:
    assert printed("") == [HOSTILE]
    assert not on_github()


@given(st.text() | st.just(HOSTILE))
def test_json_on_github_is_the_same_value_without_a_command(text: str) -> None:
    page = quoted_json({"reason": text})
    assert json.loads(page) == {"reason": text}
    assert not any("##[" in line or line.strip().startswith("::") for line in lines_of(page))
