"""The tables of criteria say what the specs say, and looking a criterion up imports only it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.criteria_table import EXAMPLES
from mlflow_adk_eval import EvalConfig, criteria, load_config
from mlflow_adk_eval.config.spec import CRITERIA, CriterionRegistry, CriterionSettings, CustomMetricConfig, JudgedSettings
from mlflow_adk_eval.judge.prompt import load_prompt

ROOT = Path(__file__).parents[2]


def test_the_tables_are_true() -> None:
    subprocess.run([sys.executable, "docs/criteria_table.py", "--check"], cwd=ROOT, check=True)


def test_each_table_of_the_reference_lists_every_criterion_once() -> None:
    page = (ROOT / "docs/reference/criteria.md").read_text("utf-8")
    rows = re.findall(r"^\| \[`(\w+)`\]\[\1\] \|", page, re.MULTILINE)
    first, second = sorted(rows[: len(CRITERIA)]), sorted(rows[len(CRITERIA) :])
    assert first == second == sorted(CRITERIA), "run `make generated`, which writes both tables of docs/reference/criteria.md"


def test_every_criterion_has_a_section_with_a_config_that_loads() -> None:
    pages = {name: (ROOT / "docs/reference" / name).read_text("utf-8") for name in ("criteria.md", "rapid_eval.md")}
    for name, spec in CRITERIA.items():
        heading, page = ("### ", "rapid_eval.md") if spec.origin == "rapid_eval" else ("## ", "criteria.md")
        (section,) = re.findall(rf"^{heading}{name}\n(.*?)(?=^##|\Z)", pages[page], re.MULTILINE | re.DOTALL)
        (example,) = re.findall(r"^```json\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        config = load_config(json.loads(example))
        assert list(config.criteria) == [name]
        missing = [
            field for field in spec.settings.model_fields if field not in CriterionSettings.model_fields and f"`{field}`" not in section
        ]
        assert set(missing) <= JudgedSettings.model_fields.keys()
    assert sorted(EXAMPLES) == sorted(name for name, spec in CRITERIA.items() if spec.origin != "rapid_eval")


@pytest.mark.parametrize("page", ["criteria.md", "config.md", "rapid_eval.md"])
def test_every_config_on_a_page_loads(page: str) -> None:
    blocks = re.findall(r"^```json\n(.*?)^```", (ROOT / "docs/reference" / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    configs = [json.loads(re.sub(r"^//.*\n", "", block)) for block in blocks if '"criteria"' in block]
    assert configs
    for config in configs:
        load_config(config)


def test_every_key_of_a_config_is_on_its_page() -> None:
    keys = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/config.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(keys) == sorted([*EvalConfig.model_fields, *CustomMetricConfig.model_fields])


def test_the_settings_of_judges_are_on_the_page_with_their_defaults() -> None:
    section = (ROOT / "docs/reference/criteria.md").read_text("utf-8").partition("## Settings of judged criteria\n")[2]
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (?:`(.*?)`|none) \|", section, re.MULTILINE))
    own = {name: field for name, field in JudgedSettings.model_fields.items() if name not in CriterionSettings.model_fields}
    options = own.pop("judge_model_options").default
    fields = own | {f"judge_model_options.{name}": field for name, field in type(options).model_fields.items()}
    assert rows == {name: "" if field.default is None else json.dumps(field.default) for name, field in fields.items()}


def test_every_prompt_that_a_criterion_names_is_there() -> None:
    assert all(load_prompt(name).text for spec in CRITERIA.values() for name in spec.prompts)
    assert all(bool(spec.prompts) == (spec.judged and spec.origin != "vertex") for spec in CRITERIA.values())


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
