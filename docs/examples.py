"""What the pages show is typed and compared: Python blocks, the output below them, and console blocks with commands and what they print.

Conventions, for every page:

- ```` ```console ````: lines after ``$ `` are typed into a shell (``\\`` at the end and here-documents go on), the lines below are what that prints.
  A command may fail only if the next one is ``echo $?``. ``...`` alone on a line stands for any lines, ``…`` within a line for any text.
- ```` ```python ```` is run; ```` ```output ```` right after it is what it printed. Blocks of one page share their names.
- A block of any language whose first line is a comment with a file name alone, such as ``# bot.py``, is written to that file.
- ```` ```bash ```` is shown and not run. Installing is done by whoever prepares the environment, so ``pip install`` is passed over.

Ids, hashes, times, dates and ports differ from run to run: they must only look alike. An id that a page shows stands for the one that came instead,
also in later commands. ``make shown PAGES=docs/...`` runs pages and writes what came into them.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

WIDTH = 88
"""Columns of a terminal that fits into the site at 800 pixels."""
_READERS = {"LANG", "LC_ALL", "TMPDIR", "USER", "LOGNAME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"}

_VARYING = re.compile(
    r"(?P<id>\b(?:m-)?[0-9a-f]{32}\b)"
    r"|(?P<hash>\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b)"
    r"|(?P<date>\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d| UTC)?)?)"
    r"|(?P<clock>(?<=· )\d\d:\d\d\b)"
    r"|(?P<file>\b\d{8}-\d{6}-\d+(?=\.txt\b))"
    r"|(?P<span>\b\d+(?:\.\d+)?(?= ?(?:ms|s|seconds|min|MB|KB|kB|bytes)\b))"
    r"|(?P<port>(?<=127\.0\.0\.1:)\d+|(?<=localhost:)\d+)"
)
_PROGRESS = re.compile(r"[a-z ]+: [\d,]+ of [\d,]+ .* a second")
"""What a slow machine prints every few seconds, and a terminal shows as a bar that is gone in the end."""
_FILE = re.compile(r"(?:#|//) (?P<name>[\w./-]+\.\w+)\n")
_HEREDOC = re.compile(r"<<-?\s*'?(\w+)'?")
_FENCE = re.compile(r"^(?P<fence>```+)(?P<language>[\w-]*)\n(?P<text>.*?)^(?P=fence)\n?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, and where that text begins and ends in the page."""

    language: str
    text: str
    start: int
    end: int
    line: int

    @property
    def file(self) -> str | None:
        """The name of the file that the block shows."""
        found = _FILE.match(self.text)
        return found["name"] if found else None


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    for found in _FENCE.finditer(page):
        yield Block(found["language"], found["text"], found.start("text"), found.end("text"), page.count("\n", 0, found.start()) + 1)


@dataclass(frozen=True)
class Typed:
    """A command of a console block, and what the page shows below it."""

    command: str
    shown: str


def typed(text: str) -> list[Typed]:
    """Return the commands of a console block.

    Raises:
        ValueError: if it does not begin with a command.
    """
    found: list[Typed] = []
    lines = iter(text.splitlines(keepends=True))
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            heredoc = _HEREDOC.search(line)
            while heredoc or command.rstrip("\n").endswith("\\"):
                command += (more := next(lines))
                if heredoc and more.strip() == heredoc[1]:
                    break
            found.append(Typed(command.rstrip("\n"), ""))
        elif not found:
            message = f"a console block begins with a command after `$ `, not with {line!r}"
            raise ValueError(message)
        else:
            found[-1] = Typed(found[-1].command, found[-1].shown + line)
    return found


@dataclass
class Session:
    """Where a page is followed: a folder, an environment, and the ids that came for those that the page shows."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    ids: dict[str, str] = field(default_factory=dict[str, str])
    status: int = 0
    renamed: dict[str, str] = field(default_factory=dict[str, str])
    last_id: str = "RUN_ID"
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    def of(cls, folder: Path, scripts: Path | None = None) -> Session:
        """Return a session in a folder with the commands in `scripts`, by default those of this Python.

        Only what a reader's shell has is taken from this process's variables: pytest prints longer lines where CI is set, for example.
        """
        kept = {name: value for name, value in os.environ.items() if name in _READERS}
        path = f"{scripts or Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "PYTHONWARNINGS": "ignore", "NO_COLOR": "1"}
        return cls(folder, kept | quiet | {"PATH": path, "COLUMNS": str(WIDTH), "HOME": str(folder)})

    def write(self, block: Block) -> None:
        """Write the file that a block shows."""
        file = self.folder / str(block.file)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text.partition("\n")[2], "utf-8")

    def type(self, command: str) -> str:
        """Type a command as a reader would, and return what it printed."""
        for shown, came in self.ids.items():
            command = command.replace(shown, came)
        if command.startswith(("pip install ", "python -m pip install ")):
            return ""
        if command.startswith("cd "):
            self.folder = (self.folder / command[3:].strip()).resolve()
            return ""
        if exported := re.fullmatch(r"export (\w+)=(\S*)", command):
            self.environment[exported[1]] = exported[2].strip("'\"").replace("$PWD", str(self.folder))
            return ""
        done = subprocess.run(
            ["bash", "-c", f"(exit {self.status})\n{command}"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=300,
            check=False,
        )
        self.status = done.returncode
        lines = [line.rstrip() for line in done.stdout.replace(f"{self.folder}/", "").splitlines() if not _PROGRESS.match(line)]
        return "\n".join(lines) + "\n" if lines else ""

    def follow(self, text: str, *, write: bool = False) -> str:
        """Type the commands of a console block; return the block with what came.

        Args:
            text: the block.
            write: accept whatever comes, for who writes a page. ``RUN_ID`` in a command is the run that was printed last, and becomes its id.

        Raises:
            AssertionError: if a command fails and the page does not say so, or what came is not what is shown, unless that is to be written.
        """
        commands = typed(text)
        came: list[str] = []
        for number, one in enumerate(commands):
            command = one.command
            for old, new in {**self.renamed, **({"RUN_ID": self.last_id} if write else {})}.items():
                command = command.replace(old, new)
            printed = self.type(command)
            expected = number + 1 < len(commands) and commands[number + 1].command == "echo $?"
            assert not self.status or expected, f"$ {command}\nended with {self.status}\n{printed}"
            kept = self.compare(one.shown, printed, write=write, after=command)
            came.append(f"$ {command}\n{kept}")
        return "".join(came)

    def compare(self, shown: str, printed: str, *, write: bool, after: str) -> str:
        """Return what a page is to show.

        Raises:
            AssertionError: if that is not what it shows, and it is not to be written.
        """
        if found := re.search(r"run id: (\w{32})", printed):
            self.last_id = found[1]
        if self.alike(shown, printed):
            return shown
        assert write, f"{after}\n--- the page shows\n{shown}--- it printed\n{printed}"
        old, new = ([one["id"] for one in _VARYING.finditer(text) if one["id"]] for text in (shown, printed))
        self.renamed.update(zip(old, new, strict=False))
        return printed

    def alike(self, shown: str, printed: str) -> bool:
        """Whether what a page shows is what was printed but for what varies; learn which id stands for which."""
        pattern = "".join(self._line(line) for line in shown.rstrip().splitlines())
        found = re.fullmatch(pattern, printed.rstrip() + "\n" if printed.strip() else "")
        if found is None:
            return False
        wanted = [one["id"] for line in shown.splitlines() if line.strip() != "..." for one in _VARYING.finditer(line) if one["id"]]
        self.ids.update(zip(wanted, [text for name, text in found.groupdict().items() if name.startswith("id")], strict=False))
        return True

    def _line(self, line: str) -> str:
        if line.strip() in {"...", "…"}:
            return r"(?:.*\n)*?"
        if "duration" in line:  # criteria measure it
            return re.sub(r"\d+(?:\\\.\d+)?", r"\\d+(?:\\.\\d+)?", _literal(line)) + r"[ ]*\n"
        pattern, at = "", 0
        for one in _VARYING.finditer(line):
            pattern += _literal(line[at : one.start()])
            at = one.end()
            match one.lastgroup:
                case "id":
                    pattern += rf"(?P<id{next(self._numbers)}>(?:m-)?[0-9a-f]{{32}})"
                case "hash":
                    pattern += rf"[0-9a-f]{{{len(one[0])}}}"
                case "date" | "clock" | "file":
                    pattern += re.sub(r"\d+", r"\\d+", re.escape(one[0]))
                case _:
                    pattern += r"\d+(?:\.\d+)?"
        return pattern + _literal(line[at:]).rstrip() + r"[ ]*\n"


def _literal(text: str) -> str:
    spaced = re.sub(r"(?:\\ )+", r"[ ]+", ".*".join(re.escape(part) for part in text.split("…")))
    return re.sub(r"([━─])\1*", r"\1+", spaced)  # a column is as wide as its widest cell
