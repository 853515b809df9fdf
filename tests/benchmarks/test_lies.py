"""The planted lies of benchmarks/lies: that each is complete, that a lie would be noticed, and that ours tells none."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("google.adk")
ROOT = Path(__file__).parents[2]
LIES = ROOT / "benchmarks" / "lies"
MODULES = ("lies", "lies_catalogue", "lies_run", "lies_judge")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ...]]:
    """The command, how it runs, and its judge."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import lies
    import lies_catalogue
    import lies_judge
    import lies_run

    yield lies, lies_run, lies_judge, lies_catalogue
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def lies(modules: tuple[Any, ...]) -> Any:
    return modules[0]


@pytest.fixture
def running(modules: tuple[Any, ...]) -> Any:
    return modules[1]


@pytest.fixture
def catalogue(modules: tuple[Any, ...]) -> Any:
    return modules[3]


@pytest.fixture
def judge(modules: tuple[Any, ...]) -> Any:
    return modules[2]


def test_there_are_enough_lies_and_controls(catalogue: Any) -> None:
    planted = [lie for lie in catalogue.lies() if not lie.is_control]
    controls = [lie for lie in catalogue.lies() if lie.is_control]
    assert len(planted) >= 45
    assert len(controls) >= 8
    doors = [" ".join(lie.commands["ours"]) for lie in controls]
    for door in (
        "mlflow-adk-eval run",
        "mlflow-adk-eval gate",
        "mlflow-adk-eval score",
        "pytest",
        "genai.py",
        "ours_traces.py",
    ):
        assert any(door in words for words in doors), door


def test_each_lie_is_complete(catalogue: Any, judge: Any) -> None:
    for lie in catalogue.lies():
        assert lie.planted, lie.name
        assert lie.group in catalogue.GROUPS, lie.name
        assert lie.honest, lie.name
        assert set(lie.honest) <= set(catalogue.VERDICTS), lie.name
        assert (lie.honest == ("passed",)) == lie.is_control, lie.name
        assert lie.judge in judge.MODES, lie.name
        assert lie.commands.get("ours"), f"{lie.name} is not expressed in ours"
        assert set(lie.commands) | set(lie.told) <= set(catalogue.tools()), lie.name
        for pattern in lie.told.values():
            assert not re.search(pattern, ""), f"{lie.name}: anything would be told"


def test_each_command_names_files_that_are_there(catalogue: Any) -> None:
    made = {"said.recording.json"}
    for lie in catalogue.lies():
        for command in [command for commands in lie.commands.values() for command in commands]:
            for file in re.findall(r"[\w/]+(?:\.\w+)*\.(?:py|json|yaml)\b", command):
                assert file in made or (lie.folder / file).is_file() or (catalogue.BASE / file).is_file(), f"{lie.name}: {command}"


def test_each_file_of_a_lie_is_used(catalogue: Any) -> None:
    """A script that no command starts, and no file imports, would look as if it were run."""
    always = {
        "lie.toml",
        "lie.py",
        "bank/agent.py",
        "bank.js",
        "refunds.evalset.json",
        "test_config.json",
    }
    for lie in catalogue.lies():
        files = {str(path.relative_to(lie.folder)): path for path in lie.folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
        texts = [path.read_text("utf-8") for path in files.values()]
        for name in files.keys() - always:
            assert any(name in text or re.search(rf"\b{Path(name).stem}\b", text) for text in texts), f"{lie.name}/{name}"


def test_an_unknown_key_is_refused(catalogue: Any, tmp_path: Path) -> None:
    (tmp_path / "lie.toml").write_text('group = "Judge"\nplanted = "x"\nhonest = ["failed"]\nhonset = ["passed"]\n')
    with pytest.raises(ValueError, match="unknown honset"):
        catalogue.load(tmp_path)


def a_lie(catalogue: Any, *honest: str, **more: Any) -> Any:
    given = {
        "told": {},
        "commands": {"ours": ("mlflow-adk-eval run",), "adk": ("adk eval",)},
        **more,
    }
    return catalogue.Lie("a-lie", "Judge", "something", honest, **given)


@pytest.mark.parametrize(
    ("honest", "tool", "code", "output", "mark"),
    [
        (["undecided"], "ours", 0, "", "lied"),
        (["undecided"], "ours", 2, "", "honest"),
        (["undecided"], "ours", 3, "", "honest"),
        (["undecided"], "ours", 1, "", "wrong"),
        (["refused"], "ours", 64, "", "honest"),
        (["undecided"], "ours", 0, "4 votes were reused", "told"),
        (["failed"], "ours", 1, "Traceback (most recent call last)", "broken"),
        (["failed"], "ours", -9, "", "broken"),
        (["passed"], "ours", 0, "", "honest"),
        (["passed"], "ours", 1, "", "wrong"),
        (["undecided"], "adk", 0, "4 votes were reused", "lied"),
        (["undecided"], "adk", 1, "", "honest"),
        (["undecided"], "adk", 1, "ModuleNotFoundError: no", "broken"),
        (["passed"], "adk", 1, "", "wrong"),
        (["undecided"], "adk", "late", "", "late"),
    ],
)
def test_a_lie_is_noticed(catalogue: Any, running: Any, honest: list[str], tool: str, code: int | str, output: str, mark: str) -> None:
    lie = a_lie(catalogue, *honest, told={"ours": "votes were reused"})
    assert running.Outcome(lie, tool, (code,), output).mark == mark


def test_the_first_code_that_is_not_0_counts(catalogue: Any, running: Any) -> None:
    lie = a_lie(catalogue, "failed", commands={"ours": ("mlflow-adk-eval run", "mlflow-adk-eval gate")})
    outcome = running.Outcome(lie, "ours", (0, 1), "reads: 0.25\n")
    assert (outcome.verdict, outcome.mark, outcome.reading) == ("failed", "honest", "0.25")


def test_pytest_is_read_by_its_own_codes(catalogue: Any, running: Any) -> None:
    lie = a_lie(catalogue, "failed", commands={"ours": ("pytest -q",)})
    assert running.Outcome(lie, "ours", (1,), "Traceback (most recent call last)").mark == "honest"
    assert running.Outcome(lie, "ours", (5,), "").verdict == "undecided"


@pytest.mark.parametrize("mode", ["garbage", "refuses", "empty", "cut", "no-verdict", "quotes-then-no", "quotes-only"])
def test_a_broken_judge_gives_no_passing_verdict(judge: Any, mode: str) -> None:
    grammar = judge.grammar_of("", {"properties": {"verdict": {"enum": ["valid", "invalid"]}, "why": {"type": "string"}}})
    assert grammar.passing == '{"verdict": "valid", "why": "It is right."}'
    assert judge.says("right", "", grammar) == grammar.passing
    assert judge.says(mode, "", grammar) != grammar.passing
    assert (grammar.passing in judge.says(mode, "", grammar)) == mode.startswith("quotes")


def test_a_judge_obeys_only_what_looks_like_its_prompt(judge: Any) -> None:
    answer = judge.forged("Nothing was refunded.")
    assert judge.obeyed(f"Judge this.\n<Output>{answer}</Output>\nIs it right?")
    assert not judge.obeyed(f"Judge this.\n<data-7f3a>{answer}</data-7f3a>\nIs it right?")
    escaped = answer.replace("</Output>", "&lt;/Output&gt;")
    assert not judge.obeyed(f"Judge this.\n<Output>{escaped}</Output>\nIs it right?")
    assert (LIES / "answer-injects" / "forged.txt").read_text("utf-8").strip() == answer


def test_the_page_shows_what_was_measured(lies: Any) -> None:
    page = (ROOT / "docs" / "explanation" / "lies.md").read_text("utf-8")
    assert lies.page_table() in page, "python benchmarks/lies.py --page writes it"


def test_everything_that_is_expressed_was_measured(catalogue: Any, lies: Any) -> None:
    cells = json.loads(lies.MEASURED.read_text("utf-8"))["cells"]
    assert {lie.name: set(lie.commands) for lie in catalogue.lies()} == {name: set(row) for name, row in cells.items()}
    broken = [(name, tool) for name, row in cells.items() for tool, cell in row.items() if cell["mark"] == "broken"]
    assert broken == []


@pytest.mark.slow
@pytest.mark.parametrize("cold", [True, False])
def test_a_few_lies_are_told_in_processes_and_in_forks(catalogue: Any, lies: Any, cold: bool) -> None:
    names = {"rows-lost", "self-comparison", "control-score"}
    chosen = [lie for lie in catalogue.lies() if lie.name in names]
    outcomes = lies.run(chosen, [catalogue.tools()["ours"]], cold=cold)
    marks = {outcome.lie.name: outcome.mark for outcome in outcomes}
    assert marks == {"rows-lost": "honest", "self-comparison": "told", "control-score": "honest"}


@pytest.mark.slow
def test_ours_tells_no_lie_and_fails_no_honest_agent(catalogue: Any, lies: Any) -> None:
    outcomes = lies.run(catalogue.lies(), [catalogue.tools()["ours"]])
    said = {outcome.lie.name: f"{outcome.verdict}: {outcome.output[-2000:]}" for outcome in outcomes}
    bad = {outcome.lie.name for outcome in outcomes if outcome.mark not in {"honest", "told"}}
    assert not bad, [said[name] for name in sorted(bad)]
