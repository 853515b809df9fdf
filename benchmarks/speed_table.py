"""Writes the table of speeds in docs/explanation/performance.md from results.md; ``--check`` says whether it is true, and whether the results are of this code.

Each section of results.md names its commit and the hash of its hot path: the code of the modules that loading, scoring, judging or logging
import. Comments, docstrings and blank lines are no part of it.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import house

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "explanation" / "performance.md", ROOT / "benchmarks" / "results.md"
_BEGIN, _END = "<!-- speed: written by benchmarks/speed_table.py -->\n\n", "\n<!-- end of speed -->"
_WORK = frozenset(["agents", "criteria", "evalset", "judge", "ledger", "report", "results", "runner", "runs", "tracking"])
"""The rooms that do a turn's work. The others are entered once a run, if at all."""
_HOT = {
    "w1": ("evalset.files", "agents.recordings", "runner.recordings"),
    "w2": ("evalset.files", "agents.recordings", "runner.evaluation", "tracking.evaluate"),
    "w3": ("evalset.files", "runner.recordings", "judge.session", "judge.providers.gemini"),
}
"""Where the work of a section begins: what these modules import, one through the other, is its hot path.

These sections must be of this code. The others take an hour together, so the page says of which commit they are.
"""
_STAMP = re.compile(r"at commit (\w+), hot path (\w+)")
_ROUNDS = re.compile(r"rounds: (\d+)")
_PEERS_ONCE = "is measured once."
OURS = "**mlflow_adk_eval**"


class Row(NamedTuple):
    """A row of the table: which rows of results.md it quotes, by how they begin; empty where there is none."""

    work: str
    section: str
    table: int
    ours: str
    adk: str
    mlflow: str
    column: str = "s (min–max)"
    """In megabytes where it says so."""


_SERVICE, _LOOP = "google-adk: LocalEvalService", "google-adk: evaluator classes"
_16 = (f"{OURS}: 16", f"{_SERVICE}, 16 cases × 1", "MLflow: its ADK scorer in 16")
ROWS = (
    Row("load 2,000 recorded conversations of five turns", "w1", 0, OURS, "google-adk", "MLflow"),
    Row("score them by trajectory and ROUGE-1: the same 20,000 scores", "w1", 1, OURS, _LOOP, "MLflow"),
    Row("score 1,000 turns and log them into SQLite, a trace with reasons for each", "w2", 0, f"{OURS}: a trace", "", "MLflow"),
    Row("the same without traces; google-adk with a table by hand", "w2", 0, f"{OURS}: no traces", _SERVICE, ""),
    Row("judge 200 turns by five votes, 16 requests of 50 ms in flight: the same verdicts", "w3", 0, *_16),
    Row("the same with 64 in flight", "w3", 0, f"{OURS}: 64", f"{_SERVICE}, 16 cases × 4", "MLflow: its ADK scorer in 64"),
    Row("judge 100 turns by five votes: quota of 1,200 a minute, 10 % failures", "w5", 0, *_16),
    Row("judge 100 turns by five votes where 1 % of the requests never end", "w5", 2, *_16),
    Row(
        "import what loading and scoring need", "import", 0, "… and what loading and scoring need", "`import google.adk", "`import mlflow`"
    ),
    Row("peak memory at 10,000 turns", "w1", 1, OURS, _SERVICE, "MLflow", "peak MB"),
    Row("peak memory at 100,000 turns", "memory", 0, f"{OURS} | 100,000", "", "", "peak MB after scoring"),
)


def table(results: str) -> Iterator[str]:
    """Yield the lines of the table, and whence it is."""
    sections = _sections(results)
    yield from ("| work | here | the best of google-adk | MLflow |", "|---|---|---|---|")
    for row in ROWS:
        quoted = re.findall(r"^\|  \| .*?(?=\n\n|\Z)", sections[row.section], flags=re.MULTILINE | re.DOTALL)[row.table].splitlines()
        yield f"| {' | '.join((row.work, *(_cell(quoted, label, row) for label in (row.ours, row.adk, row.mlflow))))} |"
    yield ""
    measured = [f"{when} ({', '.join(names)})" for when, names in _measured(sections).items()]
    yield from textwrap.wrap(f"Measured {'; '.join(measured)}.", 110)


def _sections(results: str) -> dict[str, str]:
    _, *found = re.split(r"^<!-- (\w+) -->$", results, flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2], strict=True))


def _measured(sections: dict[str, str]) -> dict[str, list[str]]:
    """Return the quoted sections by when, and in how many rounds, they were measured."""
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(row.section for row in ROWS):
        noted, rounds = _STAMP.search(sections[name]), _ROUNDS.findall(sections[name])[-1]
        when = f"at commit {noted[1]}" if noted else "before results named their commit"
        peers = " with one of the peers" if _PEERS_ONCE in sections[name] and rounds != "1" else ""
        found.setdefault(f"{when}, {'one round' if rounds == '1' else f'medians of {rounds} rounds'}{peers}", []).append(name)
    return found


def _cell(lines: list[str], label: str, row: Row) -> str:
    """Return a number of a table with its unit, and how many calls it took where that is what differs."""
    if not label:
        return "–"
    heads, cells = ([cell.strip() for cell in line[1:].split("|")] for line in (lines[0], _line(lines, label)))
    text = cells[heads.index(row.column)].split(" (")[0]
    if "not done" in text:
        return text
    megabytes = "MB" in row.column
    number = float(text.replace(",", "")) / (1000 if megabytes else 1)
    calls = f", {cells[heads.index('calls')]} calls" if row.section == "w3" else ""
    return f"{f'{number:,.0f}' if number >= 100 else f'{number:.2g}'} {'GB' if megabytes else 's'}{calls}"


def _line(lines: list[str], label: str) -> str:
    return next(line for line in lines if line.startswith(f"| {label}"))


def stamp(section: str) -> str:
    """Return the commit and the hash of a section's hot path, as results.md notes them."""
    commit = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return f"at commit {commit or 'unknown'}, hot path {hot_path(section)}"


def hot_path(section: str) -> str:
    """Return a hash over the code of a section's hot path."""
    modules = {module.name: module for module in house.sources(ROOT)}
    edges = house.imports_between(list(modules.values()), lazy=False)
    waiting = [f"{house.PACKAGE}.{start}" for start in _HOT.get(section, ())]
    reached = {name for start in waiting for name in (start, *house.reachable(start, edges))}
    digest = hashlib.sha256()
    for name in sorted(reached):
        if name.split(".")[1] in _WORK:
            digest.update(f"{name}\0{modules[name].code_text()}\0".encode())
    for text in sorted((ROOT / house.PACKAGE / "judge" / "prompts").glob("*.md")) if section == "w3" else ():
        digest.update(text.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def stale(results: str) -> list[str]:
    """Return the sections that the page quotes and that were not measured on this code."""
    sections = _sections(results)
    return [name for name in _HOT if f"hot path {hot_path(name)}" not in sections[name]]


def written(page: str, results: str) -> str:
    """Return the page as it should be."""
    head, _, rest = page.partition(_BEGIN)
    lines = "\n".join(table(results))
    return f"{head}{_BEGIN}{lines}\n{_END}{rest.partition(_END)[2]}"


def main() -> int:
    """Write the page, or check it and the results; return the exit code."""
    page, results = PAGE.read_text("utf-8"), RESULTS.read_text("utf-8")
    if "--check" not in sys.argv:
        PAGE.write_text(written(page, results), "utf-8")
        return 0
    problems = (
        []
        if written(page, results) == page
        else ["the table of docs/explanation/performance.md is not that of results.md: run benchmarks/speed_table.py"]
    )
    if old := stale(results):
        problems.append(
            f"benchmarks/results.md was measured before the hot path changed ({', '.join(old)}): run `make bench` and commit it"
        )
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
