"""What a command imports, which is most of what a short one costs, and that its process collects cycles no more than it must."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "example_projects" / "home_automation"
FILES = ("home_automation.evalset.json", "test_config.json")
COMMAND = """
import atexit, gc, json, sys
def tell():
    with open("told.json", "w") as file:
        json.dump({"modules": sorted(sys.modules), "frozen": gc.get_freeze_count(), "objects": len(gc.get_objects())}, file)
atexit.register(tell)  # what is registered first is done last
from mlflow_adk_eval.cli.main import main
sys.argv[0] = "mlflow-adk-eval"
main()
"""
MLFLOW = """
import atexit, json, sys
from mlflow import MlflowClient
MlflowClient("sqlite:///mlflow.db").search_experiments(max_results=1)
with open("told.json", "w") as file:
    json.dump({"modules": sorted(sys.modules)}, file)
"""
OF_THE_CONFIG = {"trajectory", "response_match", "final_state"}
"""The modules of the criteria in the example's config."""
OF_JUDGES = {"judge.providers.gemini", "judge.providers.litellm", "judge.providers.vertex"}
OF_OTHERS = {
    "analysis.calibration",
    "analysis.comparison",
    "gating.rules.decide",
    "integrations",
    "rapid_eval",
    "testing",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the example without its policy, which `run` would read to name the next command."""
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("gate.yaml"))
    return tmp_path


def told(folder: Path, code: str, *arguments: str) -> tuple[set[str], dict[str, int]]:
    """Run a program, and return what it has imported when it ends, and what it counts then."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in {0, 1}, done.stderr  # 1: evaluated, and not passed
    found = json.loads((folder / "told.json").read_text())
    return set(found.pop("modules")), found


def packages(modules: Iterable[str]) -> set[str]:
    """Return the packages of others that modules belong to."""
    tops = {".".join(module.split(".")[: 2 if module.startswith("google.") else 1]) for module in modules}
    others = {top for top in tops if top not in sys.stdlib_module_names and not top.startswith("_")}
    # Namespaces, and what a distribution adds: every start of Python imports them.
    starts = {"google", "google.cloud", "sitecustomize", "usercustomize"}
    return others - {"mlflow_adk_eval", *starts}


def ours(modules: Iterable[str]) -> set[str]:
    """Return the modules of this package among modules, by their names within it."""
    return {module.partition(".")[2] for module in modules if module.startswith("mlflow_adk_eval.")}


def criteria(modules: Iterable[str]) -> set[str]:
    """Return the modules of criteria among modules."""
    from mlflow_adk_eval.criteria import MODULES

    return {module.removeprefix("criteria.") for module in ours(modules)} & set(MODULES.values())


def test_help_imports_click_and_cloup_alone(folder: Path) -> None:
    modules, _ = told(folder, COMMAND, "--help")
    assert packages(modules) <= {"click", "cloup", "typing_extensions"}
    rooms = {name.partition(".")[0] for name in ours(modules)}
    assert rooms == {"cli", "errors", "redact", "text"}, "import what a command needs within its function: `--help` stays fast"


def test_validate_imports_what_reads_the_files(folder: Path) -> None:
    modules, _ = told(folder, COMMAND, "validate", *FILES)
    assert packages(modules) <= {
        "click",
        "cloup",
        "jiter",
        "pydantic",
        "pydantic_core",
        "annotated_types",
        "typing_extensions",
        "typing_inspection",
        "jinja2",
        "markupsafe",
    }
    assert criteria(modules) == OF_THE_CONFIG
    assert not [module for module in modules if module.startswith(("mlflow_adk_eval.judge", "mlflow_adk_eval.agents", "asyncio"))]


@pytest.mark.slow
def test_score_without_judges_imports_no_client(folder: Path) -> None:
    modules, _ = told(folder, COMMAND, "score", FILES[0], "--actual", FILES[0], "--config", FILES[1])
    assert not packages(modules) & {
        "mlflow",
        "google.genai",
        "google.adk",
        "google.auth",
        "aiohttp",
        "httpx",
        "numpy",
        "pandas",
        "scipy",
        "jinja2",
        "sqlalchemy",
        "sacrebleu",
        "rouge_score",
    }
    assert ours(modules) & (OF_JUDGES | OF_OTHERS) == set()


@pytest.mark.slow
def test_run_on_a_recording_without_judges_adds_little_to_what_mlflow_imports(folder: Path) -> None:
    mlflows, _ = told(folder, MLFLOW)
    modules, counts = told(folder, COMMAND, "run", FILES[0], FILES[0], "--config", FILES[1])
    assert packages(modules - mlflows) <= {
        "click",
        "cloup",
        "mlflow",
        "rich",
        "jinja2",
        "markupsafe",
        "markdown_it",
        "mdurl",
        "anyio",
        "sniffio",
        "tenacity",
        "scipy",
        "pydantic",
        "jiter",
        "pyarrow",
        *("git", "gitdb", "smmap"),  # MLflow asks git where a new dataset comes from
    }
    added = {module for module in modules - mlflows if module.startswith(("scipy", "pydantic", "mlflow."))}
    assert {module for module in added if module.startswith("scipy") and not module.startswith("scipy.special")} == set()
    assert not [
        module for module in added if module.startswith(("mlflow.pyfunc", "mlflow.genai", "mlflow.models", "mlflow.sklearn", "mlflow.data"))
    ]
    assert criteria(modules) <= OF_THE_CONFIG | {"efficiency", "rubrics"}
    assert ours(modules) & (OF_JUDGES | OF_OTHERS - {"integrations"}) == set()
    # What is left when the process ends is not looked through for cycles once more.
    assert counts["frozen"] > 100_000
    assert counts["objects"] < counts["frozen"] / 10


@pytest.mark.slow
def test_a_judge_of_ones_own_imports_no_client_of_a_model(folder: Path) -> None:
    judged = ("--config", "judged_config.json", "--judge", "home_automation_judge:names_and_numbers", "--ledger", "off")
    modules, _ = told(folder, COMMAND, "score", FILES[0], "--actual", FILES[0], *judged)
    assert not packages(modules) & {"google.genai", "google.adk", "google.auth", "aiohttp", "litellm", "mlflow"}
    assert ours(modules) & (OF_JUDGES) == set()
