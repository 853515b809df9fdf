"""A comparison in a terminal: what it tells, and that no text of others is a command to the terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from mlflow_adk_eval import score
from mlflow_adk_eval.analysis.comparison.compare import Comparison, compared
from mlflow_adk_eval.analysis.comparison.runs import compared_run
from mlflow_adk_eval.report.comparison import comparison_view
from mlflow_adk_eval.report.console import console
from mlflow_adk_eval.report.html.page import Texts
from mlflow_adk_eval.tracking.compare import compare
from tests.analysis.test_comparison import with_set
from tests.report.compare_pages import comparison, hostile
from tests.report.pages import ATTACKS
from tests.results.repeated import FAILED, PASSED, repeated
from tests.tracking.small import eval_set, turn


def printed(found: Comparison, *, every: bool = False) -> str:
    """Return what a terminal that knows colours would get."""
    screen = io.StringIO()
    Console(file=screen, width=200, force_terminal=True, color_system=None).print(comparison_view(found, Texts({}).words, every=every))
    return screen.getvalue()


def test_it_tells_numbers_flips_and_causes() -> None:
    text = printed(comparison())
    assert re.match(r"A  monday  3 of 3 cases passed · verdict: passed\nB  tuesday  1 of 3 cases passed · verdict: failed\n", text)
    assert "Of 3 cases in both runs, 1 now fails, 1 changed to or from undecided" in text
    assert "  lamp  passed → failed" in text
    assert "    - tool_trajectory_avg_score turn 1: switch is called with $.room = 'all', was 'hall' (expected 'hall')" in text
    assert "may be chance" in text


def test_it_says_what_else_differs_and_warns() -> None:
    cases = eval_set({"a": [turn("hi", "hello there")]})
    lax, strict = (score(cases, {"a": [turn("hi", "hello")]}, {"criteria": {"response_match_score": at}}) for at in (0.5, 0.6))
    side = replace(compared_run(lax, "lax"), warnings=("the run was killed",))
    text = printed(compared(side, compared_run(strict, "strict")))
    assert "attention: A: the run was killed" in text
    assert "The agent is not the only difference:\n  - Config $.criteria.response_match_score.threshold: 0.5 → 0.6" in text


def test_what_kept_its_verdict_is_told_on_demand() -> None:
    cases = eval_set({"a": [turn("hi", "hello there friend")]})
    config = {"criteria": {"response_match_score": 0.5}}
    found = compare(score(cases, cases, config), score(cases, {"a": [turn("hi", "hello there")]}, config))
    assert "1 case kept its verdict with different scores; --all lists them" in printed(found)
    assert "Same verdict, different scores (1)\n  a  passed\n" in printed(found, every=True)


def test_many_flips_are_counted_and_told_on_demand() -> None:
    names = [f"case_{number:02}" for number in range(25)]
    found = compare(*(with_set(repeated({name: [verdict] for name in names})) for verdict in (PASSED, FAILED)))
    assert "  and 5 more; --all lists them" in printed(found)
    assert printed(found).count("passed → failed") == 20
    assert printed(found, every=True).count("passed → failed") == 25


def test_many_causes_of_a_case_are_counted() -> None:
    cases = eval_set({"a": [turn("hi", "hello", *[(f"tool_{number}", {}) for number in range(9)])]})
    config = {"criteria": {"tool_trajectory_avg_score": 1.0}}
    found = compare(score(cases, cases, config), score(cases, {"a": [turn("hi", "hello")]}, config))
    assert "    - and 3 more" in printed(found)
    assert "tool_8({}) is no longer called" in printed(found, every=True)


def test_no_text_is_a_command_to_the_terminal_or_its_markup() -> None:
    for attack in (*ATTACKS, "[bold red]x[/] [link=http://evil.test]y[/link]", "\x1b]8;;http://evil.test\x07z", "w" * 1_000_000):
        text = printed(hostile(attack), every=True)
        assert not [char for char in text if ord(char) < 32 and char != "\n"]
        assert not set("\u202e\u2066\u2069\x9b\x07") & set(text)
        assert len(text) < 2_000_000
    assert "[bold red]x[/]" in printed(hostile("[bold red]x[/]"))


def test_the_numbers_fit_into_a_terminal_of_88_columns() -> None:
    found, screen = comparison(), io.StringIO()
    Console(file=screen, width=88).print(comparison_view(found, Texts({}).words))
    numbers = screen.getvalue().partition("Of 3 cases")[2]
    assert re.search(r"bounds 95% +p \(Holm\) +cases", numbers)
    assert re.search(r"cases *\n", numbers)
    assert re.search(
        r"rubric_based_final_ +1 +1 +0 +1\.000 +2 of 3 *\n *response_quality_v1 +2 of 3 +−0\.776 to \+0\.776 +the same over *\n +scored +2 of 3 cases",
        numbers,
    )
    assert "Means and differences are over the cases that have a score in both runs." in numbers
    assert [delta.name for delta in found.deltas[1:] if len(delta.name) <= 25 and delta.name not in numbers] == []


@pytest.mark.parametrize("width", [60, 80, 84, 88, 100])
def test_no_digit_is_cut_off(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A mean of seven characters, an interval of 24 and a name of 25 once left one column for "11" cases."""
    monkeypatch.setenv("COLUMNS", str(width))
    found = comparison()
    one = replace(found.deltas[0], name="tool_trajectory_avg_score", before=0.03906, after=0.03683, low=-0.00428, high=-0.000143, cases=11)
    console().print(comparison_view(replace(found, deltas=(found.deltas[0], one)), Texts({}).words))
    text = capsys.readouterr().out.partition("Of 3 cases")[2]
    last = text[text.index("0.03906") :]
    assert "0.03683" in last
    assert re.search(r"\b11\b", last)
