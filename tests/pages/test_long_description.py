"""README.md in the repository and as a package index shows it, with what pyproject.toml takes out of it; and the tables of all pages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def described() -> str:
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = README
    for one in hook["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    return text


def tokens(text: str) -> Iterator[Token]:
    def all_of(found: Sequence[Token]) -> Iterator[Token]:
        for token in found:
            yield token
            yield from all_of(token.children or ())

    return all_of(MarkdownIt().enable("table").parse(text))


def test_no_link_or_picture_is_relative_on_a_package_index() -> None:
    links = [token.attrGet("href") or token.attrGet("src") for token in tokens(described()) if token.type in {"link_open", "image"}]
    assert [link for link in links if not str(link).startswith("https://")] == []
    assert "<!--" not in described()


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))], ids=lambda page: str(page.relative_to(ROOT)))
def test_no_table_of_a_page_is_broken(page: Path) -> None:
    text = page.read_text("utf-8")
    blocks = {"table_open", "fence", "code_block"}
    within = {line for token in tokens(text) if token.type in blocks and token.map for line in range(*token.map)}
    rows = [line for number, line in enumerate(text.splitlines()) if line.startswith("|") and number not in within]
    assert rows == []


def test_readme_is_one_screen_with_two_commands_and_one_picture() -> None:
    lines = README.splitlines()
    assert len(lines) <= 60
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []
    assert re.findall(r"^    make (\S+)", README, re.MULTILINE) == ["demo", "test"]
    assert sum(token.type == "image" for token in tokens(README)) == 1


def test_code_is_left_as_it_is() -> None:
    code = [token.content for token in tokens(README) if token.type in {"fence", "code_block"}]
    assert code == [token.content for token in tokens(described()) if token.type in {"fence", "code_block"}]
