"""How many small mistakes in the gate its quick tests see: `python benchmarks/mutants.py` makes some, one at a time, and fails below 90 %.

A mutant has another comparison, operator, constant or returned value than the package, or lacks an operand, an element, a condition or a
statement; `--seed` draws which. Coverage records once which quick tests run which line, and a mutant has to fail one of those of its line. Each is
tried in a copy, by a fork of this process, which has imported MLflow already. Tools from the package index do not fit: mutmut 3 leaves out decorated
functions and class bodies and draws no sample, cosmic-ray runs the same tests for each mutant, and mutatest needs Python 3.8.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import importlib
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from coverage import CoverageData

ROOT = Path(__file__).parents[1]
GATE = "mlflow_adk_eval/gating"
EQUIVALENT = {
    f'mlflow_adk_eval/gating/promotion/claim_log.py: T = TypeVar("T", "Claim", "Confirmation", "End"): \'{name}\' -> \'{name}x\'': "only type checkers read it"
    for name in ("T", "Claim", "Confirmation", "End")
}
"""Mutants that nobody could tell from the original, as ``file: line: before -> after``, with the reason."""
_COPIED = ("mlflow_adk_eval", "tests", "example_projects", "docs", "benchmarks", "conftest.py", "pyproject.toml", "README.md")
_STORES = "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.model_registry.sqlalchemy_store"
_QUICK = ["-q", "-p", "no:randomly", "-m", "not slow and not browser"]
_ALONE = ["-x", "--tb=line", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
_LEAST = 0.9
_TESTS = 60
"""As many are run for a mutant at most: those of the file itself, and those that run the least besides."""
_LONGEST_S = 300
_COMPARED = {ast.Eq: ast.NotEq, ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.LtE: ast.Lt, ast.GtE: ast.Gt, ast.In: ast.NotIn, ast.Is: ast.IsNot}
_COMPARED |= {ast.NotEq: ast.Eq, ast.NotIn: ast.In, ast.IsNot: ast.Is}
_OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr}


class Mutant(NamedTuple):
    file: str
    line: int
    change: str
    """The line without indentation, and what becomes of a part of it."""
    source: Callable[[], str]
    """Returns the file as it is to be."""


def mutants(file: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    text = file.read_text("utf-8")
    lines, tree, path = text.splitlines(), ast.parse(text), str(file.relative_to(ROOT))
    for home, key in _places(tree):
        node = home[key]
        for changed in _changes(node):
            before, after = (re.sub(r"\s+", " ", ast.unparse(one)) for one in (node, changed))
            change = f"{lines[node.lineno - 1].strip()}: {before} -> {after}"
            yield Mutant(path, node.lineno, change, partial(_changed, tree, home, key, changed))


def _changed(tree: ast.Module, home: Any, key: str | int, changed: ast.AST) -> str:
    node, home[key] = home[key], changed
    source = ast.unparse(tree)
    home[key] = node
    return source


def _places(node: ast.AST) -> Iterator[tuple[dict[str, ast.AST] | list[ast.AST], str | int]]:
    """Yield where each node is kept that a test can see the effect of: not in annotations, docstrings and settings of decorators."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "keys") or isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr):
            continue
        home, keys = (value, range(len(value))) if isinstance(value, list) else (vars(node), [field])
        for key in keys:
            child = home[key]
            if not isinstance(child, ast.AST) or (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                continue
            if hasattr(child, "lineno"):
                yield home, key
            yield from _places(child)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[one]) if type(one) in _COMPARED:
            yield _with(node, ops=[_COMPARED[type(one)]()])
        case ast.BoolOp(op=op, values=values):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            yield from (_with(node, values=rest) if len(rest) > 1 else rest[0] for rest in _one_less(values))
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            yield _with(node, op=_OPERATORS[type(op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(value=str() as value) if value and " " not in value:
            yield ast.Constant(value + "x")
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.Tuple(elts=[_, _, *_], ctx=ast.Load()) | ast.List(elts=[_, _, *_], ctx=ast.Load()) | ast.Set(elts=[_, _, *_]):
            yield from (_with(node, elts=rest) for rest in _one_less(node.elts))
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp() if node.generators[0].ifs:
            yield _with(node, generators=[_with(node.generators[0], ifs=[]), *node.generators[1:]])
        case ast.If():
            yield from (_with(node, test=ast.Constant(value)) for value in (True, False))
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()


def _one_less(nodes: Sequence[ast.expr]) -> Iterator[list[ast.expr]]:
    return ([*nodes[:index], *nodes[index + 1 :]] for index in range(len(nodes)))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    vars(changed).update(fields)
    return changed


def recorded(tests: Sequence[str]) -> dict[str, dict[int, set[str]]]:
    """Return which quick tests run a line, by file and line; recorded once for a state of package and tests."""
    files = sorted(file for folder in ("mlflow_adk_eval", "tests") for file in (ROOT / folder).rglob("*.py"))
    state = hashlib.sha256(b"".join([*(file.read_bytes() for file in files), *(test.encode() for test in tests)])).hexdigest()[:16]
    kept = ROOT / ".pytest_cache" / f"mutants-{state}.coverage"
    if not kept.exists():
        print("recording which quick tests run which line (some minutes)", flush=True)
        command = [sys.executable, "-m", "pytest", *_QUICK, "-n", str(os.cpu_count()), "--dist", "worksteal", "--cov-report=", *tests]
        kept.parent.mkdir(exist_ok=True)
        environment = {**os.environ, "COVERAGE_FILE": f"{kept}.new"}
        subprocess.run([*command, f"--cov={GATE}", "--cov-context=test"], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        Path(f"{kept}.new").rename(kept)
    data = CoverageData(str(kept))
    data.read()
    lines = {Path(file).relative_to(ROOT).as_posix(): data.contexts_by_lineno(file) for file in data.measured_files()}
    return {
        file: {line: {name.partition("|")[0] for name in names if name} for line, names in found.items()} for file, found in lines.items()
    }


def tests_of(mutant: Mutant, lines: Mapping[str, Mapping[int, set[str]]]) -> list[str]:
    """Return the quick tests that run a mutant's line, or its file, if only the import runs the line: the file's own first, then those that run the least of it."""
    found = lines.get(mutant.file, {})
    ran = Counter(test for tests in found.values() for test in tests)
    line = max((line for line in found if line <= mutant.line), default=0)
    mirror = f"/test_{Path(mutant.file).stem}.py::"
    return sorted(found.get(line) or ran, key=lambda test: (mirror not in test, ran[test], test))[:_TESTS]


def end_of(job: tuple[str, str, Sequence[str]], last: float) -> str | None:
    """Return by what a mutant died, in this process and a copy of package and tests; empty: it lives, ``None``: there was no time.

    Args:
        job: the file, its source and the tests.
        last: until when it is tried, on the monotonic clock.
    """
    file, source, tests = job
    if time.monotonic() > last or not tests:
        return "" if not tests else None
    signal.signal(signal.SIGALRM, _take_too_long)
    signal.alarm(_LONGEST_S)
    with tempfile.TemporaryDirectory(prefix="mutant_") as folder:
        for name in _COPIED:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, Path(folder, name))
        Path(folder, file).write_text(source, "utf-8")
        os.chdir(folder)
        os.environ["PYTHONPATH"] = folder
        sys.path.insert(0, folder)
        for name in [
            name for name in sys.modules if name.startswith("mlflow_adk_eval")
        ]:  # which MLflow has imported: they are plugins of it
            del sys.modules[name]
        log = os.open("log", os.O_RDWR | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        status = pytest.main([*_QUICK, *_ALONE, *tests])
        return Path("log").read_text("utf-8", "replace").strip().rpartition("\n")[2] if status else ""


def _take_too_long(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=26)
    parser.add_argument("--number", type=int, default=60, help="how many mutants to make")
    parser.add_argument("--seconds", type=float, default=120, help="begin no mutant later than this")
    parser.add_argument("--code", default=GATE, help="the file or folder to change")
    parser.add_argument("tests", nargs="*", default=["tests/gating", "tests/analysis"])
    options = parser.parse_args()
    lines, place = recorded(options.tests), ROOT / options.code
    every = [
        one for file in sorted(place.rglob("*.py")) or [place] for one in mutants(file) if f"{one.file}: {one.change}" not in EQUIVALENT
    ]
    sample = random.Random(options.seed).sample(every, min(options.number, len(every)))
    tests = [tests_of(one, lines) for one in sample]
    jobs = [(one.file, one.source(), chosen) for one, chosen in zip(sample, tests, strict=True)]
    some = sorted({test for chosen in tests for test in chosen[:1]})
    for name in _STORES:
        importlib.import_module(name)
    with multiprocessing.get_context("fork").Pool(maxtasksperchild=1) as pool:
        for source, lives in (((ROOT / GATE / "__init__.py").read_text("utf-8"), True), ("raise AssertionError", False)):
            end = pool.apply(end_of, ((f"{GATE}/__init__.py", source, some), math.inf))
            if lives != (end == ""):
                raise SystemExit(f"the tests {'fail without any mutant' if lives else 'do not run what is changed'}: {end}")
        living, tried = 0, 0
        last = time.monotonic() + options.seconds
        for one, end in zip(sample, pool.imap(partial(end_of, last=last), jobs), strict=True):
            tried += end is not None
            living += end == ""
            if end is not None:
                print(f"{one.file}:{one.line}: {one.change}: {end or 'LIVES'}", flush=True)
    print(f"seed {options.seed}: {tried} of {len(every)} mutants tried, {1 - living / tried:.0%} killed by quick tests")
    raise SystemExit(1 - living / tried < _LEAST)


if __name__ == "__main__":
    main()
