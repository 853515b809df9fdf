"""Each figure that a page shows has a row in docs/development/evidence.md: the claim, and the command or test that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "development" / "evidence.md"
UNIT = r"(?:ms|µs|s|seconds?|minutes?|hours?|k?B|[KMG]i?B|gigabytes|%|×|tokens|calls|requests|processes|columns|lines)"
FIGURE = re.compile(rf"(?<![\w.,/-])\d[\d,.]*(?:\s|\u00a0)?{UNIT}(?![\w-])")
GENERATED = re.compile(r"<!-- (?P<name>[\w ]+?)(?:: written by [^>]*)? -->.*?<!-- end of (?P=name) -->", re.DOTALL)
"""Tables that a command writes and checks."""
DEVELOPERS = ("docs/development/", "docs/reference/cli.md")


def prose(text: str) -> str:
    """Return a page without its code and without what is generated."""
    return re.sub(r"`[^`\n]*`", "`", re.sub(r"^( *)```.*?^\1```", "", GENERATED.sub("", text), flags=re.MULTILINE | re.DOTALL))


def figures() -> Iterator[tuple[str, str]]:
    for file in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        name = str(file.relative_to(ROOT))
        if not name.startswith(DEVELOPERS):
            yield from ((name, found[0]) for found in FIGURE.finditer(prose(file.read_text("utf-8"))))


def rows() -> list[tuple[str, str, str]]:
    """Return page, claim and evidence of each row."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return [
        (str((PAGE.parent / link[1]).resolve().relative_to(ROOT)), row[1], row[2])
        for row in cells
        if (link := re.match(r"\[[^\]]+\]\(([^)]+)\)", row[0]))
    ]


def test_each_figure_of_a_page_has_its_evidence() -> None:
    claims = rows()
    missing = [(page, figure) for page, figure in figures() if not any(page == row and figure in claim for row, claim, _ in claims)]
    assert missing == [], "name each of these in docs/development/evidence.md, with the command or the test that shows it"


def test_no_row_is_about_a_figure_that_no_page_shows() -> None:
    shown = {*figures()}
    stale = [(page, found[0]) for page, claim, _ in rows() for found in FIGURE.finditer(claim) if (page, found[0]) not in shown]
    assert stale == [], "take these out of docs/development/evidence.md"


def test_each_row_names_a_command_a_test_or_a_line_of_code_that_is_there() -> None:
    for page, claim, evidence in rows():
        named = re.findall(r"`((?:[\w./-]+/)?[\w.-]+\.(?:py|md|json))(?:::(\w+))?", evidence)
        assert named or "arithmetic" in evidence, f"{page}: {claim}"
        for file, function in named:
            assert (ROOT / file).is_file(), f"{page}: {evidence}"
            assert not function or re.search(rf"\b{function}\b", (ROOT / file).read_text("utf-8")), f"{page}: {evidence}"
