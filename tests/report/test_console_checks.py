"""What a decision looks like in a terminal."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from mlflow_adk_eval.report.console import console, decision_view
from mlflow_adk_eval.results.decision import Check, Decision

LIMIT = Check(
    measure="response_match_score",
    demand="min 0.8 (ci_low)",
    verdict="undecided",
    reason="open",
    cases=39,
    value=0.8219,
    low=0.788,
    high=0.851,
)
DROP = Check(
    measure="response_match_score",
    slice="[refunds]",
    demand="max_drop 0.02",
    verdict="failed",
    reason="worse",
    cases=12,
    value=0.8,
    low=-0.09,
    high=-0.02,
    baseline=0.85,
    difference=-0.05,
    p_value=0.0123,
)


def screen_of(*checks: Check, width: int = 160) -> list[str]:
    decision = Decision(
        verdict="failed",
        reasons=("one reason",),
        run_id="r-1",
        evidence_sha256="",
        policy_sha256="",
        checks=checks,
        waived=("case 'a': waived by Ada",),
        notes=("there is no [champion] yet",),
    )
    page = StringIO()
    Console(file=page, width=width, highlight=False).print(decision_view(decision))
    return [line.rstrip() for line in page.getvalue().splitlines() if line.strip()]


def test_each_demand_is_a_row_with_its_numbers() -> None:
    lines = screen_of(LIMIT, DROP)
    assert lines[0] == "Checks"
    assert lines[1].split() == ["verdict", "demand", "value", "baseline", "difference", "p", "cases"]
    assert " ".join(lines[3].split()) == "undecided response_match_score min 0.8 (ci_low) 0.8219 (0.788 to 0.851) 39"
    assert " ".join(lines[4].split()) == "failed [refunds]: response_match_score max_drop 0.02 0.8 0.85 -0.05 (-0.09 to -0.02) 0.0123 12"
    assert lines[5:] == [
        "gate on run r-1 · verdict: failed",
        "  - one reason",
        "waived: case 'a': waived by Ada",
        "note: there is no [champion] yet",
    ]


def test_without_comparisons_there_are_no_columns_for_them() -> None:
    assert screen_of(LIMIT)[1].split() == ["verdict", "demand", "value", "cases"]
    assert screen_of()[0] == "gate on run r-1 · verdict: failed"


@pytest.mark.parametrize("width", [60, 80])
def test_on_a_narrow_terminal_nothing_is_cut_off(width: int) -> None:
    text = "".join(screen_of(LIMIT, DROP, width=width))
    assert "…" not in text
    assert "undecided" in text


def test_at_100_columns_each_name_is_whole_and_no_value_reads_like_the_number_that_it_missed() -> None:
    name = "rubric_based_final_response_quality_v1"
    missed = replace(LIMIT, verdict="failed", measure=name, value=0.79999, low=None, high=None)
    lines = screen_of(missed, replace(DROP, slice="", measure=name, value=0.79999), width=100)
    assert sum(name in line for line in lines) == 2
    assert lines[1].split() == ["verdict", "demand", "value", "baseline", "difference", "p", "cases"]
    assert lines[3].split()[2:] == ["0.79999", "39"]
    assert max(map(len, lines)) <= 100


def test_no_word_is_lost_from_a_line_with_control_characters(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for length in range(1, 60):
        text = f"{'x' * length} \x1b[2J\x1b\u202e [bold] " + "abc " * 30
        console().print(text, markup=False)
        assert capsys.readouterr().out.split() == text.replace("\x1b", "�").replace("\u202e", "�").split()
