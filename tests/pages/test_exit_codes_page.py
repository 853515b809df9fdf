"""docs/reference/exit_codes.md is the one place for exit codes, and says what the code does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from docs.cli_page import commands
from mlflow_adk_eval import errors
from mlflow_adk_eval.cli.options import EXIT_CODES
from mlflow_adk_eval.report import ci
from mlflow_adk_eval.results.decision import Decision, GateFailed
from mlflow_adk_eval.results.outcomes import Verdict

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "exit_codes.md").read_text("utf-8")
VERDICTS = set(ci.EXIT_CODES.values())


def table(heading: str) -> dict[str, list[str]]:
    """Return the rows of the first table after a heading, by their first cell."""
    section = PAGE.partition(f"{heading}\n")[2]
    (found,) = re.findall(r"\A(?:[^|\n][^\n]*\n|\n)*((?:\|[^\n]*\n)+)", section)
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in found.splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}


def classes(of: type[errors.AdkEvalError] = errors.AdkEvalError) -> Iterator[type[errors.AdkEvalError]]:
    for one in of.__subclasses__():
        if one.__module__ == errors.__name__:
            yield one
        yield from classes(one)


def test_the_codes_are_those_of_the_code() -> None:
    known = VERDICTS | {one.exit_code for one in classes()}
    assert {int(code) for code in table("# Exit codes")} == known
    assert {int(code) for code in re.findall(r"^  (\d+)", EXIT_CODES, re.MULTILINE)} == known
    for verdict, code in ci.EXIT_CODES.items():
        assert table("## GitHub action")[str(code)][0] == f"`{verdict}`"


def test_each_error_is_in_the_row_of_its_code() -> None:
    said = {name: code for code, (names,) in table("## Errors in Python").items() for name in re.findall(r"`(\w+)`", names)}
    assert said == {one.__name__: str(one.exit_code) for one in classes()} | {GateFailed.__name__: "1 or 2"}
    verdicts: tuple[Verdict, ...] = ("failed", "undecided")
    exits = {
        GateFailed(Decision(verdict=verdict, reasons=(), run_id="1", evidence_sha256="", policy_sha256="")).exit_code
        for verdict in verdicts
    }
    assert exits == {1, 2}


@pytest.mark.parametrize(("name", "command"), [(name, command) for _, name, command in commands() if not isinstance(command, click.Group)])
def test_a_command_that_returns_a_verdict_is_in_the_table_of_those(name: str, command: click.Command) -> None:
    codes = {int(code) for code in re.findall(r"(?:^  |: |; )(\d+) ", command.epilog or "", re.MULTILINE)}
    listed = {one: cells for row, cells in table("## Commands that return a verdict").items() for one in re.findall(r"`([\w -]+)`", row)}
    assert (name in listed) == (1 in codes)
    if name in listed:
        assert (listed[name][2] != "–") == (2 in codes)


def test_the_codes_of_pytest_are_those_of_pytest() -> None:
    assert {int(code) for code in table("## pytest")} >= {int(code) for code in pytest.ExitCode}  # those of older versions are fewer


@pytest.mark.parametrize(("name", "command"), [(name, command) for _, name, command in commands() if not isinstance(command, click.Group)])
def test_the_help_of_each_command_names_its_exit_codes(name: str, command: click.Command) -> None:
    codes = [int(code) for code in re.findall(r"(?:^  |: |; )(\d+) ", command.epilog or "", re.MULTILINE)]
    assert codes == sorted({*codes, 0, 3, 4, 64}), name
