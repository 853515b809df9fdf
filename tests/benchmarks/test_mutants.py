"""The small mistakes that `make mutants` puts into the gate."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CODE = '''
"""Says what it is."""
from one import two

def allowed(value: "int", names=("a", "b")) -> "bool":
    """Say whether."""
    log(value)
    if not value and value in names or value < 3:
        return value + 1 == 2
    return f"a {value} of {names[0]}"
'''


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import mutants as module

    yield module
    del sys.modules["mutants"]


def test_each_is_one_change_of_what_a_test_can_see(mutants: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(CODE)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    made = list(mutants.mutants(tmp_path / "code.py"))
    whole = ast.unparse(ast.parse(CODE))
    assert len({one.source() for one in made} | {whole}) == len(made) + 1
    changes = [one.change.partition(": ")[2].rpartition(": ")[2] for one in made if one.line == 8]
    assert "not value -> value" in changes
    assert "value in names -> value not in names" in changes
    assert "value < 3 -> value <= 3" in changes
    assert "3 -> 4" in changes
    assert "not value and value in names -> value in names" in changes
    assert [one.change for one in made if one.line == 5] == [
        'def allowed(value: "int", names=("a", "b")) -> "bool":: (\'a\', \'b\') -> (\'b\',)',
        'def allowed(value: "int", names=("a", "b")) -> "bool":: (\'a\', \'b\') -> (\'a\',)',
        'def allowed(value: "int", names=("a", "b")) -> "bool":: \'a\' -> \'ax\'',
        'def allowed(value: "int", names=("a", "b")) -> "bool":: \'b\' -> \'bx\'',
    ]
    assert [one.change for one in made if one.line == 7] == ["log(value): log(value) -> pass"]
    assert not [one for one in made if one.line in (2, 3, 6)]


def test_each_that_is_left_out_is_one_that_would_be_made(mutants: Any) -> None:
    files = {name.partition(": ")[0] for name in mutants.EQUIVALENT}
    made = {f"{one.file}: {one.change}" for file in files for one in mutants.mutants(ROOT / file)}
    assert set(mutants.EQUIVALENT) <= made


def test_the_tests_of_a_line_are_tried_those_of_its_file_first(mutants: Any) -> None:
    def tests(file: str, line: int) -> list[str]:
        lines = {
            "gate/rule.py": {1: set(), 3: {"tests/test_b.py::b", "tests/test_rule.py::a", "tests/test_b.py::c"}, 4: {"tests/test_b.py::c"}}
        }
        found: list[str] = mutants.tests_of(mutants.Mutant(file, line, "", str), lines)
        return found

    assert tests("gate/rule.py", 3) == ["tests/test_rule.py::a", "tests/test_b.py::b", "tests/test_b.py::c"]
    assert tests("gate/rule.py", 9) == ["tests/test_b.py::c"]
    assert tests("gate/rule.py", 1) == tests("gate/rule.py", 3)
    assert tests("gate/other.py", 1) == []
