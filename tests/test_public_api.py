"""The public surface: its names, and what importing it costs."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval import metrics, rapid_eval, scorers, testing
from mlflow_adk_eval.config.spec import CRITERIA

HEAVY = {"mlflow", "google.adk", "google.genai", "pandas", "numpy", "nltk", "scipy", "pydantic", "anyio", "rich", "click", "rouge_score"}


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(adk_eval.__all__) == [
        "A2AAgent", "AdkEvalError", "AgentError", "AliasBusyError", "Answer", "AttestationError", "BenchError", "Budget", "Calibration",
        "CalibrationError", "CallCache", "CaseResult", "Champion", "Check", "ClaimLogError", "ConfigError", "ConversationScenario",
        "CriterionResult", "Decision", "Ending", "Errored", "EvalCase", "EvalConfig", "EvalSet", "EvalSetError", "ExitError",
        "GateFailed", "HttpError", "InputError", "Invocation", "JudgeError", "JudgeOptions", "LabelError", "OpenAIChatAgent",
        "OutputError", "Policy", "PolicyError", "Problem", "ProductionCases", "Rate", "Recording", "Refused", "Report", "Request", "RunError", "Scored", "ScoredTraces", "Scoring",
        "Session", "Skipped", "Stratum", "TrackingError", "Unavailable", "UnrecordedError", "UsageError", "UserPersona", "Vote", "aevaluate", "audit", "calibrate",
        "capture", "cases_from_traces", "compare", "compare_paired", "eval_set_digest", "evaluate", "export_attestation", "gate", "genai_data",
        "judge_bench", "label_sheet", "load_calibration", "load_champion", "load_config", "load_eval_set", "load_policy",
        "load_recording", "make_holdout_evaluator", "make_key", "make_reevaluator", "metrics", "migrate", "model_fn", "open_cases", "open_store", "policy_schema",
        "power", "predict_fn", "promote", "proportion_interval", "pull_eval_set", "push_eval_set", "rapid_eval", "record",
        "recording_of_report", "register", "rollback", "save_recording", "score", "score_batch", "score_traces", "scorers", "spark", "testing",
        "upload", "verify", "verify_attestation", "write_eval_set", "write_parts",
    ], "a public name is added here, in _HOMES and in __init__.pyi for type checkers, and described in docs/reference/api"  # fmt: skip


def test_type_checkers_see_each_public_name_at_its_home() -> None:
    stub = Path(adk_eval.__file__).with_suffix(".pyi").read_text("utf-8")
    seen = re.findall(r"^from mlflow_adk_eval\.?(\S*) import (\w+) as \2$", stub, re.MULTILINE)
    homes = {name: home for home, names in vars(adk_eval)["_HOMES"].items() for name in names}
    assert sorted(seen) == sorted((homes.get(name, ""), name) for name in adk_eval.__all__)


PAGES = sorted((Path(__file__).parents[1] / "docs" / "reference" / "api").glob("*.md"))
DESCRIBED = [
    name for page in PAGES for name in re.findall(r"^\.\. auto\w+:: mlflow_adk_eval\.(\S+)$", page.read_text("utf-8"), re.MULTILINE)
]
MODULES = {
    "metrics": dir(metrics),
    "rapid_eval": rapid_eval.__all__,
    "scorers": scorers.__all__,
    "testing": [name for name in testing.__all__ if name not in adk_eval.__all__],
    "spark": ["evaluate"],
}


def test_the_pages_describe_every_public_name_exactly_once() -> None:
    of_modules = [f"{module}.{name}" for module, names in MODULES.items() for name in names if name not in CRITERIA]
    assert sorted(DESCRIBED) == sorted([*of_modules, *(name for name in adk_eval.__all__ if name not in MODULES)])


@pytest.mark.parametrize("name", DESCRIBED)
def test_what_the_pages_describe_is_there_and_says_what_it_is(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(f"mlflow_adk_eval.{module}".rstrip(".")) if module != "spark" else adk_eval, attribute)
    assert module == "spark" or inspect.getdoc(found)


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "index"], ids=lambda page: page.stem)
def test_every_page_begins_with_a_sentence_and_an_example(page: Path) -> None:
    assert re.match(r"# .+\n\n[^\n]+\n\n```(python|bash)\n", page.read_text("utf-8"))


@pytest.mark.parametrize("name", adk_eval.__all__)
def test_every_public_name_resolves_and_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(adk_eval, name))


def test_every_error_that_may_be_raised_is_public() -> None:
    sources = [path.read_text("utf-8") for path in Path(adk_eval.__file__).parent.rglob("*.py")]
    errors = {
        name
        for source in sources
        for name in re.findall(r"^class ([A-Z]\w+)\((?:Adk\w+|Usage|Input|Run|Agent)Error\b", source, re.MULTILINE)
    }
    assert {"AliasBusyError", "GateFailed", "LabelError", "RequestError"} <= errors
    assert errors - {*adk_eval.__all__, *adk_eval.rapid_eval.__all__} == set()


def test_pages_and_examples_import_public_modules_only() -> None:
    root = Path(adk_eval.__file__).parents[1]
    files = [
        root / "README.md",
        *(root / "docs").rglob("*.md"),
        *(root / "example_projects").rglob("*.py"),
        *(root / "example_projects").rglob("*.md"),
    ]
    modules = {name for file in files for name in re.findall(r"\bmlflow_adk_eval\.([\w.]+) import\b", file.read_text("utf-8"))}
    assert "testing" in modules
    assert modules - {"metrics", "rapid_eval", "scorers", "spark", "testing"} == set()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'evaluat'"):
        _ = adk_eval.evaluat


@pytest.mark.parametrize("prelude", ["", "import mlflow_adk_eval.gating.policy.model", "from mlflow_adk_eval.gating.api import gate"])
def test_gate_is_a_function_and_a_package_whatever_was_imported_before(prelude: str) -> None:
    code = (
        f"{prelude}\nimport mlflow_adk_eval as adk_eval\nassert callable(adk_eval.gate)\n"
        "import mlflow_adk_eval.gating.policy.model as policy\nassert policy.DEFAULT_POLICY\nassert callable(adk_eval.gate)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, mlflow_adk_eval; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not HEAVY & set(loaded)


def test_the_command_line_shows_its_help_without_mlflow() -> None:
    code = "import sys\nfrom mlflow_adk_eval.cli.main import run_here\nsys.argv[1:] = ['--help']\nrun_here()\nprint('mlflow' in sys.modules or 'google.adk' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "Exit codes" in shown
    assert shown.rstrip().endswith("False")
