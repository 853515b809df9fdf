"""The page of the command line shows each command and option, and every command line of other pages and files is one that exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from cloup import Context
from markdown_it import MarkdownIt

from docs.cli_page import EXAMPLES, NAME, PAGE, commands, written
from mlflow_adk_eval.cli.main import cli

ROOT = Path(__file__).parents[2]
COMMANDS = {name: command for _, name, command in commands()}
LEAVES = {name: command for name, command in COMMANDS.items() if not isinstance(command, click.Group)}
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page != PAGE),
    *sorted((ROOT / "example_projects").rglob("README.md")),
]
SCRIPTS = [
    ROOT / "action.yml",
    *sorted((ROOT / ".github" / "workflows").glob("*.y*ml")),
    *sorted((ROOT / "example_projects").rglob("*.y*ml")),
    *sorted((ROOT / "mlflow_adk_eval" / "cli" / "templates").iterdir()),
]
_PLACEHOLDER = re.compile(r"[\[\]{}…|]|\.\.\.")
"""What marks a synopsis, of which only the names of options are held to be real."""


def lines_of(file: Path) -> Iterator[str]:
    """Yield what may hold command lines: code of a page, and each line of another file."""
    text = file.read_text("utf-8")
    code = [text]
    if file.suffix == ".md":
        tokens = [inner for token in MarkdownIt().enable("table").parse(text) for inner in (token, *(token.children or ()))]
        code = [token.content for token in tokens if token.type in {"fence", "code_block", "code_inline"}]
    for one in code:
        yield from re.sub(r" *\\\n\s*", " ", one).splitlines()


def command_lines(file: Path) -> Iterator[str]:
    """Yield what follows the name of the program, up to the end of the command."""
    for line in lines_of(file):
        for found in re.finditer(rf"(?<![\w/-]){NAME} +(?=[a-z-])(.*)", line):
            if not re.search(r"pip install|\bof $", line[: found.start()]):
                words = re.split(" {3,}", found[1])[0]  # what follows says what the command does
                yield words.partition("`")[0] if line[: found.start()].endswith("`") else words


def words_of(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";<>&")
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(";<>&|"):
                return words[:-1] if f" 2{word}" in line and words[-1:] == ["2"] else words
            words.append(word.rstrip(","))
            if word.endswith(","):  # the sentence that names the command goes on
                break
    except ValueError:  # a quote that ends on another line
        pass
    return words


def resolved(words: list[str]) -> tuple[str, click.Command, list[str]]:
    """Return the command that the first words name, and what follows."""
    name, command, rest = "", cli, list(words)
    while rest and rest[0] == "--log-format":
        rest = rest[2:]
    while isinstance(command, click.Group) and rest:
        child = command.get_command(Context(command), rest[0])
        assert child is not None, f"there is no command {rest[0]!r}"
        name, command = f"{name} {rest.pop(0)}".strip(), child
    return name, command, rest


def check(line: str) -> None:
    words = words_of(line)
    if words[0] in {"--help", "--version"} or "COMMAND" in words:
        return
    _, command, rest = resolved(words)
    context = Context(command, token_normalize_func=cli.context_settings["token_normalize_func"])
    if isinstance(command, click.Group) or any(_PLACEHOLDER.search(word) for word in rest) or rest == []:
        known = {
            option.replace("_", "-")
            for one in (*command.params, command.get_help_option(context))
            if one
            for option in (*one.opts, *one.secondary_opts)
        }
        named = {word.strip("[](),").partition("=")[0].replace("_", "-") for word in rest if word.lstrip("[(").startswith("-")}
        assert named <= known, f"{sorted(named - known)}: no such option"
        return
    values, left, _ = command.make_parser(context).parse_args(rest)
    assert left == []
    for one in command.params:
        value = values.get(str(one.name))
        assert value is not None or not one.required, f"{one.human_readable_name} is missing"
        if isinstance(one.type, click.Choice) and value is not None:
            one.type_cast_value(context, value)


@pytest.mark.parametrize("file", [*PAGES, *SCRIPTS], ids=lambda file: str(file.relative_to(ROOT)))
def test_every_command_line_that_is_written_down_exists(file: Path) -> None:
    wrong: list[str] = []
    for line in command_lines(file):
        try:
            check(line)
        except (AssertionError, click.ClickException) as error:
            wrong.append(f"{NAME} {line}: {error}")
    assert wrong == []


def test_such_lines_are_found_and_a_wrong_one_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        f"Use `{NAME} run A B --workerz 2`.\n\n    $ {NAME} fly away && {NAME} score \\\n      B\n\n`{NAME} run A B --traces`\n"
    )
    found = list(command_lines(page))
    assert found == ["run A B --workerz 2", f"fly away && {NAME} score B", "run A B --traces"]
    for line in found:
        with pytest.raises((AssertionError, click.ClickException)):
            check(line)
    assert sum(1 for file in PAGES for _ in command_lines(file)) > 50


def test_the_page_is_what_the_commands_say() -> None:
    assert PAGE.read_text("utf-8") == written(), "run `make generated`"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_has_every_command_with_every_option(name: str) -> None:
    (section,) = re.findall(rf"^### {name}\n(.*?)(?=^##|\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    options = [option for one in COMMANDS[name].params if isinstance(one, click.Option) for option in (*one.opts, *one.secondary_opts)]
    assert [option for option in options if not re.search(rf"`{option}[ `]", section)] == []


def test_every_command_has_an_example_and_no_example_is_of_another() -> None:
    assert sorted(EXAMPLES) == sorted(LEAVES)


@pytest.mark.parametrize("name", LEAVES)
def test_the_example_of_a_command_parses(name: str) -> None:
    found, _, rest = resolved(shlex.split(EXAMPLES[name]))
    assert found == name
    check(EXAMPLES[name])
    assert not any(_PLACEHOLDER.search(word) for word in rest)
