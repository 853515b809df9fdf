"""The tables of criteria say what the specs say, and looking a criterion up imports only it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_adk_eval import criteria
from mlflow_adk_eval.config.spec import CRITERIA, CriterionRegistry
from mlflow_adk_eval.judge.prompt import load_prompt

ROOT = Path(__file__).parents[2]


def test_the_tables_are_true() -> None:
    subprocess.run([sys.executable, "docs/criteria_table.py", "--check"], cwd=ROOT, check=True)


def test_each_table_of_the_reference_lists_every_criterion_once() -> None:
    rows = [line.split("`")[1] for line in (ROOT / "docs/reference/criteria.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    first, second = sorted(rows[: len(CRITERIA)]), sorted(rows[len(CRITERIA) :])
    assert first == second == sorted(CRITERIA), "run `make generated`, which writes both tables of docs/reference/criteria.md"


def test_every_prompt_that_a_criterion_names_is_there() -> None:
    assert all(load_prompt(name).text for spec in CRITERIA.values() for name in spec.prompts)
    assert all(bool(spec.prompts) == spec.judged for spec in CRITERIA.values())


def loaded_by(code: str) -> set[str]:
    """Return the modules of criteria that a new process has imported after running `code`."""
    shown = f"import sys\nfrom mlflow_adk_eval.config.spec import CRITERIA\n{code}\nprint(*(name for name in sys.modules if '.criteria.' in name))"
    return set(subprocess.run([sys.executable, "-c", shown], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("CRITERIA['tool_trajectory_avg_score']", {"trajectory"}),
        ("assert CRITERIA.informative == ('tool_call_count_v1', 'inference_call_count_v1', 'token_usage_v1', 'invocation_duration_v1')", {"efficiency"}),
        ("assert 'final_session_state' in CRITERIA", {"final_state"}),
    ],
)  # fmt: skip
def test_what_is_asked_of_one_criterion_imports_no_other(code: str, modules: set[str]) -> None:
    found = {name.rpartition(".")[2] for name in loaded_by(code)}
    assert found & {*criteria.MODULES.values()} == modules


@pytest.mark.parametrize("code", ["'my_metric' in CRITERIA", "list(CRITERIA)", "len(CRITERIA)"])
def test_what_is_asked_of_all_imports_all(code: str) -> None:
    assert {f"mlflow_adk_eval.criteria.{module}" for module in criteria.MODULES.values()} <= loaded_by(code)


@pytest.mark.parametrize("first", ["CRITERIA['tool_trajectory_avg_score']", "CRITERIA.informative"])
def test_the_order_does_not_depend_on_what_was_asked_first(first: str) -> None:
    code = f"{first}\nassert [*CRITERIA] == {[*CRITERIA]}, [*CRITERIA]"
    assert loaded_by(code)


def test_a_criterion_in_a_file_that_is_not_yet_listed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CriterionRegistry(criteria.__name__)
    monkeypatch.setattr(criteria, "MODULES", {"tool_trajectory_avg_score": "trajectory", "final_session_state": "trajectory"})
    assert (registry["final_session_state"], registry["safety_v1"]) == (CRITERIA["final_session_state"], CRITERIA["safety_v1"])
