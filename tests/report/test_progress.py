"""How far an evaluation is, on a terminal and elsewhere."""

from __future__ import annotations

import re

import pytest

from mlflow_adk_eval.report.console import progress_bar, progress_line

LINE = r"scoring: {} of 1,000 conversations, [\d,.e+]+ a second, [\d:]+ left\n"


def test_elsewhere_than_on_a_terminal_it_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("scoring", line_every_s=0.0) as progress:
        assert progress
        progress(1, 1000)
        progress(500, 1000)
    shown = capsys.readouterr()
    assert re.fullmatch(LINE.format(1) + LINE.format(500), shown.err)
    assert shown.out == ""


def test_what_is_over_within_seconds_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("scoring", line_every_s=3600.0) as progress:
        assert progress
        progress(1, 2)
        progress(2, 2)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_it_is_a_bar_with_rate_and_time_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with progress_bar("scoring") as progress:
        assert progress
        for done in range(501):
            progress(done, 1000)
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert re.search(r"scoring .* 500/1000 [\d,.e+]+/s 0:00:\d\d 0:00:\d\d", plain)


def test_it_is_quiet_where_nothing_is_to_be_shown() -> None:
    with progress_bar("scoring", shown=False) as progress:
        assert progress is None


@pytest.mark.parametrize(
    ("done", "total", "elapsed", "expected"),
    [
        (0, 10, 5.0, "x: 0 of 10 conversations, 0 a second"),
        (10, 10, 5.0, "x: 10 of 10 conversations, 2 a second, 0:00:00 left"),
        (1, None, 0.0, "x: 1 conversation, 0 a second"),
        (1, 1_000_000, 1.0, "x: 1 of 1,000,000 conversations, 1 a second, 11 days, 13:46:39 left"),
    ],
)
def test_a_line_says_only_what_is_known(done: int, total: int | None, elapsed: float, expected: str) -> None:
    assert progress_line("x", done, total, elapsed) == expected
