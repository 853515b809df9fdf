"""How the package is laid out, in numbers: ``make house``, or ``python benchmarks/house.py --before 33b8bb5`` beside an earlier commit.

``--check`` fails where the package outgrows the budget in ``house.json`` or a journey its own in ``journeys.py``. A larger budget is a commit
of its own that says why, and what was made simpler for it. Reads the sources and runs none of them, but for the journeys (`journeys.py`), which it runs in a process of their own.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from journeys import exceeded

PACKAGE = "mlflow_adk_eval"
BUDGET = Path(__file__).with_name("house.json")
ROOT = Path(__file__).parents[1]
FOREIGN: dict[str, frozenset[str]] = {
    "shapes/answers.py": frozenset({"to_dict"}),  # messages and responses of MLflow
    "agents/adk/agent.py": frozenset({"app", "include_plugins", "name", "partial"}),  # modules, agents and tools of google-adk
    "agents/adk/modules.py": frozenset({"agent"}),  # modules
    "agents/scenarios.py": frozenset({"description", "name", "tools"}),  # agents and tools of google-adk
    "agents/source.py": frozenset({"model"}),  # agents of google-adk
    "analysis/calibration/bench.py": frozenset({"model"}),  # the user's judges
    "agents/traces/spans.py": frozenset({"data", "value"}),  # MLflow's traces
    "agents/turns.py": frozenset({"partial"}),  # events of google-adk
    "config/spec.py": frozenset({"rubric_type"}),  # a criterion's spec, or a metric of the user's own
    "criteria/coverage.py": frozenset({"use_reference"}),  # settings of any criterion
    "evalset/events.py": frozenset({"finish_reason", "node_info", "output"}),  # events of google-adk of any version
    "evalset/parse.py": frozenset({"place_of"}),  # models that any caller may have given
    "evalset/files.py": frozenset({"source"}),  # datasets of MLflow
    "integrations/agent_functions.py": frozenset({"columns"}),  # tables of pandas and others
    "judge/providers/gemini.py": frozenset({"headers"}),  # responses of google-genai
    "judge/providers/litellm.py": frozenset({"headers", "refusal", "response", "usage", "value"}),  # responses and errors of LiteLLM
    "judge/protocol.py": frozenset({"__call__"}),  # the user's functions
    "judge/providers/resolve.py": frozenset({"address", "model"}),  # the user's judges
    "judge/providers/vertex.py": frozenset({"headers"}),  # responses of google-genai
    "store/reaching.py": frozenset({"error_code", "response"}),  # MLflow's errors
    "tracking/traces.py": frozenset({"error"}),  # MLflow's feedback
}
"""The attributes that a file may probe for, since the objects that it asks are not ours."""
JOURNEYS = ("evaluate", "gate", "vote", "scorer")
_SMALL_FILE = 60
_LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One module: its name, its text and what the parser makes of it."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    def lines(self) -> int:
        return self.text.count("\n")

    def tokens(self) -> Iterator[tokenize.TokenInfo]:
        return tokenize.generate_tokens(io.StringIO(self.text).readline)

    def docstrings(self) -> set[int]:
        """Return the lines of docstrings, those of fields and constants included."""
        found: set[int] = set()
        for node in ast.walk(self.tree):
            for child in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
                if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) and isinstance(child.value.value, str):
                    found |= _span(child)
        return found

    def comments(self) -> set[int]:
        """Return the lines that hold a comment, alone or behind code."""
        return {token.start[0] for token in self.tokens() if token.type == tokenize.COMMENT}

    def code(self) -> set[int]:
        """Return the lines that hold code: neither blank, nor comment, nor docstring."""
        found: set[int] = set()
        for token in self.tokens():
            if token.type not in (*_LAYOUT, tokenize.COMMENT):
                found |= set(range(token.start[0], token.end[0] + 1))
        return found - self.docstrings()

    def code_text(self) -> str:
        """Return the lines that hold code, without the comments behind them."""
        lines, code = self.text.splitlines(), self.code()
        for token in self.tokens():
            if token.type == tokenize.COMMENT:
                line, column = token.start
                lines[line - 1] = lines[line - 1][:column].rstrip()
        return "\n".join(line for number, line in enumerate(lines, 1) if number in code)

    def imports(self) -> set[int]:
        """Return the lines of import statements, wherever they stand."""
        return {line for node in ast.walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom) for line in _span(node)}

    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))


def _span(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def sources(root: Path) -> list[Source]:
    """Return every module of the package below `root`."""
    found = []
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        found.append(Source(".".join(parts).removesuffix(".__init__"), path, text, ast.parse(text)))
    return found


def imports_between(modules: list[Source], *, lazy: bool = True) -> dict[str, set[str]]:
    """Return which module imports which; `lazy`: also in functions and for type checkers."""
    known = {module.name for module in modules}
    found: dict[str, set[str]] = {module.name: set() for module in modules}
    for module in modules:
        for node in ast.walk(module.tree) if lazy else module.tree.body:
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                named = [both if (both := f"{node.module}.{alias.name}") in known else node.module for alias in node.names]
            else:
                continue
            found[module.name] |= {name for name in named if name in known and name != module.name}
    return found


def largest_circle(edges: Mapping[str, set[str]]) -> int:
    """Return how many modules the largest import circle has; 0 if there is none."""
    reached = {name: reachable(name, edges) for name in edges}
    circles = ({other for other in reached[name] if name in reached[other]} for name in edges)
    return max((len(circle) for circle in circles if len(circle) > 1), default=0)


def reachable(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    """Return what a module imports, directly or through others."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = edges[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def measured(root: Path) -> dict[str, str]:
    """Return what is measured of the package below `root`, by what it is called."""
    modules = sources(root)
    lines = sum(module.lines() for module in modules)
    written = sum(bool(line.strip()) for module in modules for line in module.text.splitlines())
    explaining = sum(len(module.docstrings() | module.comments()) for module in modules)
    lengths = sorted((node.end_lineno or 0) - node.lineno + 1 for module in modules for node in module.functions())
    names = Counter(node.name for module in modules for node in module.tree.body if isinstance(node, Function))
    classes = Counter(node.name for module in modules for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))
    stems = Counter(module.path.stem for module in modules if module.path.stem != "__init__")
    loose = [path for path in (root / PACKAGE).glob("*.py") if path.stem not in ("__init__", "__main__")]
    return {
        "files": str(len(modules)),
        "lines": f"{lines:,}",
        "lines of code": f"{sum(len(module.code()) for module in modules):,}",
        "docstrings and comments, of the lines that are not blank": f"{explaining / written:.1%}",
        "share of import lines": f"{sum(len(module.imports()) for module in modules) / lines:.1%}",
        "loose modules at the root": str(len(loose)),
        "modules in the largest import circle": str(largest_circle(imports_between(modules))),
        "lines of a function: median, p90, largest": f"{statistics.median(lengths):.0f}, {lengths[int(len(lengths) * 0.9)]}, {lengths[-1]}",
        "median lines of a file": f"{statistics.median(module.lines() for module in modules):.0f}",
        f"files under {_SMALL_FILE} lines": str(sum(module.lines() < _SMALL_FILE for module in modules)),
        "top-level functions that share a name": f"{sum(n for n in names.values() if n > 1) / sum(names.values()):.0%}",
        "objects of ours that are probed by getattr": str(len(undeclared_interfaces(modules))),
        "class names that exist twice": str(sum(n > 1 for n in classes.values())),
        "file stems that repeat": str(sum(n > 1 for n in stems.values())),
    }


def journeys(root: Path) -> dict[str, str]:
    """Return how much of the package below `root` each journey enters."""
    figures = figures_of_journeys(root)
    return {f"{name}: files, functions, depth": "{files}, {functions}, {depth}".format(**figures[name]) for name in JOURNEYS}


def figures_of_journeys(root: Path) -> dict[str, dict[str, int]]:
    """Return the functions, files and depth of each journey through the package below `root`."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("journeys.py")), "--json", *JOURNEYS]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(root)})
    if not ran.stdout.strip():
        sys.exit(f"the journeys failed:\n{ran.stderr}")
    figures: dict[str, dict[str, int]] = json.loads(ran.stdout.splitlines()[-1])
    return figures


def undeclared_interfaces(modules: list[Source]) -> list[str]:
    """Return where an object of ours is probed for an attribute, as ``file:line name``: a protocol should declare it.

    An object of ours is one whose attribute a class of this package defines. What belongs to others, as agents and their models, is in `FOREIGN`.
    """
    own = {name for module in modules for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef) for name in _attributes(node)}
    probes: list[str] = []
    for module in modules:
        file = "/".join(module.name.split(".")[1:]) + ".py"
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(func=ast.Name("getattr"), args=[_, ast.Constant(str(name)), _]) if name in own - FOREIGN.get(
                    file, frozenset()
                ):
                    probes.append(f"{file}:{node.lineno} {name}")
                case _:
                    pass
    return probes


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    for child in node.body:
        if isinstance(child, Function):
            yield child.name
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.target.id


def outgrown(root: Path) -> list[str]:
    """Return a sentence for each budget that the package below `root` exceeds."""
    modules = sources(root)
    budget = json.loads(BUDGET.read_text(encoding="utf-8"))
    figures = {"lines of code": sum(len(module.code()) for module in modules), "files": len(modules)}
    grown = [
        f"{name}: {figures[name]:,}, but benchmarks/house.json allows {most:,}" for name, most in budget.items() if figures[name] > most
    ]
    circle = largest_circle(imports_between(modules))
    return [
        *grown,
        *([f"modules import one another in a circle of {circle}"] if circle else []),
        *(f"{place} is probed with getattr: declare it in a protocol" for place in undeclared_interfaces(modules)),
        *exceeded(figures_of_journeys(root)),
    ]


def at_commit(commit: str, folder: Path) -> Path:
    """Put the package of an earlier commit into `folder`."""
    archive = subprocess.run(["git", "archive", commit, PACKAGE, "example_projects"], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def main() -> None:
    """Print a table, of one tree or of two side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="COMMIT", help="an earlier commit to measure as well")
    parser.add_argument("--no-journeys", action="store_true", help="only what can be read from the sources")
    parser.add_argument("--check", action="store_true", help="fail where the package outgrows its budget")
    options = parser.parse_args()
    if options.check:
        problems = outgrown(ROOT)
        print(*problems or ["the package is within its budget"], sep="\n", file=sys.stderr if problems else sys.stdout)
        sys.exit(1 if problems else 0)
    with tempfile.TemporaryDirectory() as folder:
        roots = {"now": ROOT} if options.before is None else {options.before: at_commit(options.before, Path(folder)), "now": ROOT}
        found = {title: measured(root) | ({} if options.no_journeys else journeys(root)) for title, root in roots.items()}
    print(f"| | {' | '.join(found)} |\n|---|{'---|' * len(found)}")
    for row in next(iter(found.values())):
        print(f"| {row} | {' | '.join(columns.get(row, '') for columns in found.values())} |")


if __name__ == "__main__":
    main()
