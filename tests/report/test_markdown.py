"""Results as Markdown: that a real parser reads the page as it was meant, whatever an agent wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.report.ci import STEP_SUMMARY, append_step_summary
from mlflow_adk_eval.report.markdown import step_summary
from mlflow_adk_eval.report.tally import CaseLine, case_line, totals
from mlflow_adk_eval.results.outcomes import CriterionResult, Errored, PlannedCriterion, Scored, Tally, verdict_of
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.text import plain
from tests.kit import case_result

HOSTILE = "a | b\n\n</td></tr><script>alert(1)</script> ![x](http://e.vil/y) `code` **bold** [l](http://e.vil) &lt;b&gt; $x$ ~~s~~ @you #1 \\| \x1b[31m"
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def result(criterion: str, outcome: Scored | Errored, threshold: float | None = 0.8) -> CriterionResult:
    return CriterionResult(criterion=criterion, threshold=threshold, greater_is_better=True, overall=outcome, per_invocation=(outcome,))


def case(label: str, *results: CriterionResult, error: str = "") -> CaseLine:
    return case_line(case_result(eval_id=label, run_index=0, actual=(), expected=None, results=results, error=error), label)


GOOD = case("good", result("match", Scored(1.0)), result("tokens", Scored(70.0), threshold=None))
BAD = case("bad", result("match", Scored(0.25)))
UNKNOWN = case("unknown", result("match", Errored("the judge | is down")))


def inline(text: str) -> list[Token]:
    return [child for token in MARKDOWN.parse(text) for child in token.children or ()]


def cells(text: str) -> list[list[str]]:
    """The rows of all tables, header rows included."""
    rows: list[list[str]] = []
    tokens = MARKDOWN.parse(text)
    for index, token in enumerate(tokens):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            rows[-1].append("".join(child.content for child in tokens[index + 1].children or ()))
    return rows


def test_the_page() -> None:
    usage = JudgeUsage(calls=3, input_tokens=10, models=("gemini-2.5-flash",))
    text = step_summary([GOOD, BAD, UNKNOWN], missing=2, judging=usage, notes=["MLflow run abc"])
    assert text.startswith("### ❌ ADK evaluation: 1 of 3 cases passed, 2 more did not finish · verdict: failed\n")
    assert [token.content for token in inline(text) if token.type == "text"][1:5] == [
        "❌ match below its threshold 0.8 · 1 case, 1 criterion",
        "bad: the score is 0.25",
        "⚠️ the judge | is down · 1 case, 1 criterion",
        "unknown",
    ]
    assert cells(text) == [["criterion", "mean", "threshold", "passed"], ["match", "0.625 · 2 of 3 scored", "≥ 0.8", "1 of 3"]]
    assert "Judged by gemini-2.5-flash&#58; 3 calls, 10 tokens" in text
    assert text.endswith("\n\nMLflow run abc\n")


def test_nothing_an_agent_says_becomes_markup() -> None:
    hostile = case(HOSTILE, result(HOSTILE, Errored(HOSTILE)), error=HOSTILE)
    text = step_summary([hostile], notes=[HOSTILE])
    assert {token.type for token in inline(text)} <= {"text", "softbreak", "text_special"}
    assert [len(row) for row in cells(text)] == [4, 4]
    assert "html_block" not in {token.type for token in MARKDOWN.parse(text)}
    assert "\x1b" not in text


@given(st.text())
def test_plain_text_stays_what_it_is(words: str) -> None:
    shown = plain(f"x{words}x", limit=10_000)
    assert "\n" not in shown
    tokens = inline(shown)
    assert {token.type for token in tokens} <= {"text", "text_special"}
    visible = "".join(char if char.isprintable() else " " for char in f"x{words}x")
    # A mark without width follows @ and #, so that nobody is mentioned.
    assert "".join(token.content for token in tokens).replace("\u200b", "").split() == visible.split()
    assert not re.search(r"[@#](?!\u200b)", "".join(token.content for token in tokens))


def test_long_texts_are_cut() -> None:
    assert plain("word " * 1000) == ("word " * 1000)[:499] + "…"
    many = step_summary([case(f"bad{number}", result("match", Scored(0.0))) for number in range(150)])
    assert sum(token.type == "list_item_open" for token in MARKDOWN.parse(many)) == 1 + 100 + 1
    assert "  - and 50 more cases\n" in many


@pytest.mark.parametrize(
    ("cases", "missing", "verdict"),
    [
        ([GOOD], 0, "passed"),
        ([GOOD], 1, "undecided"),
        ([GOOD, UNKNOWN], 0, "undecided"),
        ([BAD, UNKNOWN], 3, "failed"),
        ([], 0, "undecided"),
    ],
)
def test_verdict(cases: list[CaseLine], missing: int, verdict: str) -> None:
    assert verdict_of((case.verdict for case in cases), missing=missing) == verdict
    assert f"verdict: {verdict}\n" in step_summary(cases, missing=missing)


def test_a_judge_that_was_out_of_order_is_said_first() -> None:
    text = step_summary([UNKNOWN], judging=JudgeUsage(models=("m",), outage="503 | all the time"))
    assert text.splitlines()[2] == "**Attention:** a judge stopped responding&#58; 503 &#124; all the time"


def test_totals_of_files_that_differ() -> None:
    strict = Tally(PlannedCriterion("match", threshold=0.9, greater_is_better=True), score=None, scored=0, errored=1, skipped=0)
    (found,) = totals([GOOD, CaseLine(label="b", verdict="undecided", why="", findings=(), tallies=(strict,))])
    assert (found.threshold, found.evidence, found.passed) == ("≥ 0.8 | 0.9", "1 · 1 of 2 scored", 1)


def test_lines_survive_the_way_between_processes() -> None:
    assert [CaseLine.from_json(line.to_json()) for line in (GOOD, BAD, UNKNOWN)] == [GOOD, BAD, UNKNOWN]


def test_the_file_of_github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STEP_SUMMARY, raising=False)
    append_step_summary("nowhere")
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    monkeypatch.setenv(STEP_SUMMARY, str(file))
    append_step_summary("# one")
    append_step_summary("# two \ud83d")
    assert file.read_text() == "before\n\n# one\n\n# two \\ud83d\n"
    monkeypatch.setenv(STEP_SUMMARY, str(tmp_path))
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        append_step_summary("x")
