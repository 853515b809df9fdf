"""The planted lies and the tools that meet them: what the files of benchmarks/lies say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIES = HERE / "lies"
BASE = LIES / "base"
ENVIRONMENTS = HERE.parent / ".lies"
VERDICTS = ("passed", "failed", "undecided", "refused")
GROUPS = ("Judge", "Agent", "Tools", "Cases", "Config", "Evidence", "Control")
_KEYS = {
    "group",
    "planted",
    "honest",
    "told",
    "judge",
    "like",
    "note",
    "commands",
    "cold",
    "seconds",
    "environment",
}


@dataclass(frozen=True)
class Lie:
    """A folder of `benchmarks/lies`."""

    name: str
    group: str
    planted: str
    honest: tuple[str, ...]
    """The verdicts that are right."""
    told: dict[str, str]
    """By tool, what a success must say so that it does not count as a lie."""
    commands: dict[str, tuple[str, ...]]
    """By tool."""
    judge: str = "right"
    note: str = ""
    cold: tuple[str, ...] = ()
    """Tools whose commands are processes of their own here, since the plant ends the process."""
    seconds: int = 100
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Return where its files are."""
        return LIES / self.name

    @property
    def is_control(self) -> bool:
        """Return whether nothing is planted."""
        return self.group == "Control"


def lies() -> list[Lie]:
    """Return all lies and controls, by group and name."""
    found = [load(path.parent) for path in LIES.glob("*/lie.toml")]
    return sorted(found, key=lambda lie: (GROUPS.index(lie.group), lie.name))


def load(folder: Path) -> Lie:
    """Read a lie."""
    content = tomllib.loads((folder / "lie.toml").read_text("utf-8"))
    if unknown := content.keys() - _KEYS:
        raise ValueError(f"{folder.name}/lie.toml: unknown {', '.join(sorted(unknown))}")
    commands: dict[str, Any] = {}
    if "like" in content:
        commands |= tomllib.loads((BASE / "expressions.toml").read_text("utf-8"))[content["like"]]
    commands |= content.get("commands", {})
    return Lie(
        name=folder.name,
        group=content["group"],
        planted=content["planted"],
        honest=tuple(content["honest"]),
        told=content.get("told", {}),
        commands={tool: tuple(words) for tool, words in commands.items() if words},
        judge=content.get("judge", "right"),
        note=content.get("note", ""),
        cold=tuple(content.get("cold", ())),
        seconds=content.get("seconds", 100),
        environment=content.get("environment", {}),
    )


@dataclass(frozen=True)
class Tool:
    """A tool that evaluates, with the environment that it is installed in."""

    name: str
    title: str
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    environment: str = ""
    """The tool whose environment it shares."""

    @property
    def folder(self) -> Path:
        """Return where it is installed."""
        return ENVIRONMENTS / (self.environment or self.name)

    @property
    def bin(self) -> Path:
        """Return the folder of its commands."""
        if self.name == "ours":
            return Path(sys.executable).parent
        if self.npm:
            return self.folder / "node_modules" / ".bin"
        return self.folder / "bin"

    def install(self) -> None:
        """Make its environment, unless it is there."""
        done = self.folder / ".done"
        wanted = "\n".join(self.pip + self.npm)
        if self.name == "ours" or self.environment or (done.exists() and done.read_text() == wanted):
            return
        print(f"installing {wanted.replace(chr(10), ', ')}", file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        environment = {**os.environ, "UV_SYSTEM_CERTS": "1"}
        if self.npm:
            subprocess.run(
                ["npm", "install", "--silent", "--no-audit", "--no-fund", *self.npm],
                cwd=self.folder,
                check=True,
            )
        else:
            uv = str(Path(sys.executable).parent / "uv")
            subprocess.run(
                [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(self.folder)],
                check=True,
                env=environment,
            )
            python = str(self.folder / "bin" / "python")
            subprocess.run(
                [uv, "pip", "install", "--quiet", "--python", python, *self.pip],
                check=True,
                env=environment,
            )
        done.write_text(wanted)


def tools() -> dict[str, Tool]:
    """Return all tools by name, in the order of the table."""
    found: dict[str, Tool] = {}
    for name, content in tomllib.loads((LIES / "tools.toml").read_text("utf-8")).items():
        found[name] = Tool(
            name=name,
            title=content["title"],
            pip=tuple(content.get("pip", ())),
            npm=tuple(content.get("npm", ())),
            environment=content.get("environment", ""),
        )
    for name, tool in list(found.items()):
        if tool.environment:
            found[name] = Tool(name, tool.title, found[tool.environment].pip, environment=tool.environment)
    return found
