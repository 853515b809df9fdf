"""The threat model's list of attacks names a test for what it says: each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = "docs/development/security_tests.md"
PAGE = (ROOT / FILE).read_text("utf-8")
NAMED = sorted(set(re.findall(r"`((?:tests/[\w/]+?/)?test_\w+)\.py`(?: \(`(test_\w+)…?`\))?", PAGE)))
"""The file without its ending, below the attacks on the gate unless it says a folder; and the beginning of a test in it, if one is named."""
_INPUTS, _ATTACKS = PAGE.partition("\n## Inputs\n")[2].split("\n## Attacks\n")
ATTACKS = _ATTACKS.partition("\n## ")[0]
TESTS = r"Tests: (?:–|`[^`]+`(?: \(`[^`]+`\))?(?:, `[^`]+`(?: \(`[^`]+`\))?)*)"


def _entries(text: str) -> list[str]:
    """Return the entries of lists, without their line breaks."""
    return [" ".join(entry.split()) for entry in re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)]


@pytest.mark.parametrize(("file", "function"), NAMED)
def test_what_the_threat_model_names_is_there(file: str, function: str) -> None:
    path = ROOT / (file if "/" in file else f"tests/gating/attacks/{file}")
    where = f"name the file and the test in {FILE} where they are now, instead of {file}.py::{function}"
    assert path.with_suffix(".py").is_file(), where
    assert not function or f"def {function}" in path.with_suffix(".py").read_text("utf-8"), where


@pytest.mark.parametrize("folder", sorted(set(re.findall(r"`(tests/[\w/]+)`", PAGE))))
def test_a_folder_that_the_threat_model_names_has_tests(folder: str) -> None:
    assert list((ROOT / folder).glob("test_*.py"))


def test_each_attack_has_a_result_and_names_a_test_or_says_that_there_is_none() -> None:
    attacks = _entries(ATTACKS)
    assert len(attacks) > 100
    form = re.compile(rf"- [A-Z].*\*\*(?:prevented|detected|neither)\b.* {TESTS}", re.IGNORECASE)
    assert [attack for attack in attacks if not form.fullmatch(attack)] == [], f"end each of these in {FILE} with its result and its tests"


def test_each_input_says_who_writes_it_what_it_may_cause_and_names_a_test() -> None:
    inputs = _entries(_INPUTS)
    assert len(inputs) >= 19
    form = re.compile(rf"- \*\*.+\.\*\* - Written by: .+\. - May cause: .+\. - Cannot cause: .+\. - (?!Tests: –){TESTS}")
    assert [one for one in inputs if not form.fullmatch(one)] == [], f"give each of these in {FILE} its four lines"


def test_each_file_of_attacks_stands_on_the_page() -> None:
    attacks = {path.stem for path in (ROOT / "tests/gating/attacks").glob("test_*.py")}
    assert attacks - {file for file, _ in NAMED} == set(), f"name each of these files in {FILE}"
