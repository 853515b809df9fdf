"""Planted lies: evaluations that could report success although nothing was shown, and which tools do.

`python benchmarks/lies.py` runs each folder of benchmarks/lies through ours, `adk eval`, MLflow, DeepEval, Inspect,
pydantic-evals and promptfoo, and prints who passes what. Name lies to run some; `--tools ours` to run ours only.
It ends with 1 if ours lies or fails wrongly.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lies_catalogue import GROUPS, HERE, LIES, Lie, Tool, lies, tools
from lies_judge import judge_server
from lies_run import Outcome, Runner

MEASURED = LIES / "measured.json"
PAGE = HERE.parent / "docs" / "explanation" / "lies.md"
_BEGIN, _END = "<!-- lies: written by benchmarks/lies.py -->", "<!-- end of lies -->"
_SIGNS = {"honest": "✓", "told": "✓", "lied": "✗", "wrong": "!", "late": "?", "broken": "broken"}
Cells = dict[str, dict[str, dict[str, Any]]]
"""By lie and tool."""


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for, and say whether ours is honest."""
    options = _options(arguments)
    if options.page:
        _write_page()
        return 0
    chosen = _chosen(options.lies)
    used = [tools()[name] for name in options.tools.split(",")]
    for tool in used:
        tool.install()
    outcomes = run(chosen, used, jobs=options.jobs, cold=options.cold, keep=options.keep)
    cells = cells_of(outcomes)
    text = table(chosen, [tool.name for tool in used], cells)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n", "utf-8")
    if options.save:
        _save(cells)
    bad = [outcome for outcome in outcomes if outcome.tool == "ours" and outcome.mark not in {"honest", "told"}]
    for outcome in bad:
        wanted = " or ".join(outcome.lie.honest)
        print(
            f"{outcome.lie.name}: ours says {outcome.verdict} (exit {outcome.codes[-1]}), honest: {wanted}",
            file=sys.stderr,
        )
    return int(bool(bad))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lies", nargs="*", metavar="LIE", help="folders of benchmarks/lies; default: all")
    parser.add_argument(
        "--tools",
        default=",".join(tools()),
        help="names of benchmarks/lies/tools.toml, joined by commas",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table to a file")
    parser.add_argument(
        "--save",
        action="store_true",
        help="put what was measured into benchmarks/lies/measured.json",
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help="only write the table of measured.json into docs/explanation/lies.md",
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many lies run at a time")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write what each run printed into a folder")
    parser.add_argument(
        "--cold",
        action="store_true",
        help="start a process for each command, also where a fork of a warm one would do",
    )
    return parser.parse_args(arguments)


def _chosen(names: list[str]) -> list[Lie]:
    found = lies()
    unknown = set(names) - {lie.name for lie in found}
    if unknown:
        raise SystemExit(f"no lie is called {', '.join(sorted(unknown))}; see benchmarks/lies")
    return [lie for lie in found if not names or lie.name in names]


def run(
    chosen: list[Lie],
    used: list[Tool],
    *,
    jobs: int = 2,
    cold: bool = False,
    keep: Path | None = None,
) -> list[Outcome]:
    """Run lies through tools: a tool after the other."""
    outcomes: list[Outcome] = []
    with (
        judge_server() as judge,
        tempfile.TemporaryDirectory(prefix="lies-", ignore_cleanup_errors=True) as folder,
    ):
        runner = Runner(judge, Path(folder), cold=cold, keep=keep)
        try:
            runner.make_store(tools()["ours"])
            for tool in used:
                expressed = [lie for lie in chosen if tool.name in lie.commands]
                with ThreadPoolExecutor(jobs) as pool:
                    for outcome in pool.map(runner.run, expressed, [tool] * len(expressed)):
                        print(
                            f"{tool.name} {outcome.lie.name}: {outcome.mark} {outcome.reading}",
                            file=sys.stderr,
                            flush=True,
                        )
                        outcomes.append(outcome)
        finally:
            runner.close()
    return outcomes


def cells_of(outcomes: Iterable[Outcome]) -> Cells:
    """Return what is kept of outcomes."""
    cells: Cells = {}
    for outcome in outcomes:
        row = cells.setdefault(outcome.lie.name, {})
        row[outcome.tool] = {"mark": outcome.mark, "reading": outcome.reading}
    return cells


def table(chosen: list[Lie], names: list[str], cells: Cells) -> str:
    """Return the table of who passes what, in Markdown."""
    titles = [tools()[name].title for name in names]
    lines = [
        f"| Lie | What is planted | Honest | {' | '.join(titles)} |",
        f"|---|---|---|{'---|' * len(names)}",
    ]
    for group in GROUPS:
        members = [lie for lie in chosen if lie.group == group]
        if members:
            lines.append(f"| **{group}** | | |{' |' * len(names)}")
        for lie in members:
            shown = [_shown(cells.get(lie.name, {}).get(name)) for name in names]
            lines.append(f"| `{lie.name}` | {lie.planted} | {_honest(lie)} | {' | '.join(shown)} |")
    lines.append(f"| **lied / tried** | | | {' | '.join(_total(chosen, name, cells) for name in names)} |")
    return "\n".join(lines)


def _honest(lie: Lie) -> str:
    verdicts = list(lie.honest)
    if lie.told:
        verdicts.append("told")
    if len(verdicts) == 1:
        return verdicts[0]
    return f"{', '.join(verdicts[:-1])} or {verdicts[-1]}"


def _shown(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "·"
    if cell["mark"] == "told":
        return "✓ told"
    if cell["mark"] in {"late", "broken"}:
        return _SIGNS[cell["mark"]]
    return f"{_SIGNS[cell['mark']]} {cell['reading']}"


def _total(chosen: list[Lie], name: str, cells: Cells) -> str:
    marks = [cells[lie.name][name]["mark"] for lie in chosen if not lie.is_control and name in cells.get(lie.name, {})]
    return f"{marks.count('lied')} / {len(marks)}"


def _save(cells: Cells) -> None:
    """Put cells among those measured before; each tool has the commit and the day of its last measurement."""
    before: dict[str, Any] = {"runs": {}, "cells": {}}
    if MEASURED.exists():
        before = json.loads(MEASURED.read_text("utf-8"))
    for name in {name for row in cells.values() for name in row}:
        before["runs"][name] = {
            "commit": _commit(),
            "day": _today(),
            "versions": _versions(tools()[name]),
        }
    for lie, row in cells.items():
        before["cells"].setdefault(lie, {}).update(row)
    kept: Cells = {}
    for lie in lies():
        row = before["cells"].get(lie.name, {})
        kept[lie.name] = {name: row[name] for name in tools() if name in row and name in lie.commands}
    runs = {name: before["runs"][name] for name in tools() if name in before["runs"]}
    text = json.dumps({"runs": runs, "cells": kept}, indent=1, ensure_ascii=False)
    MEASURED.write_text(text + "\n", "utf-8")


def _versions(tool: Tool) -> str:
    """Return what was measured, in words."""
    python = f"Python {platform.python_version()}"
    if tool.name == "ours":
        names = ("mlflow-adk-eval", "google-adk", "mlflow")
        return ", ".join([*(f"{name} {version(name)}" for name in names), python])
    packages = [package.replace("==", " ").replace("@", " ") for package in tool.pip + tool.npm]
    return ", ".join(packages) + (f", {python}" if tool.pip else "")


def _write_page() -> None:
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    PAGE.write_text(f"{before}{_BEGIN}\n\n{page_table()}\n\n{_END}{after}", "utf-8")


def page_table() -> str:
    """Return what the page shows of measured.json."""
    measured = json.loads(MEASURED.read_text("utf-8"))
    lines = [table(lies(), list(tools()), measured["cells"]), ""]
    for name, tool in tools().items():
        run_ = measured["runs"][name]
        lines.append(f"- {tool.title}: {run_['versions']}; {run_['day']}, package of commit `{run_['commit']}`")
    return "\n".join(lines)


def _commit() -> str:
    """Return the last commit that changed the package: what is measured, whatever has changed beside it."""
    command = ["git", "log", "-1", "--format=%h", "--abbrev=8", "--", "mlflow_adk_eval"]
    answer = subprocess.run(command, cwd=HERE.parent, check=True, capture_output=True, text=True)
    return answer.stdout.strip()


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


if __name__ == "__main__":
    sys.exit(main())
