"""The whole path on one screen: two versions of an agent, one promoted, one refused."""

from __future__ import annotations

import importlib
import logging
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.rule import Rule
from rich.text import Text

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.report.console import console, decision_view, progress_bar, report_view

if TYPE_CHECKING:
    from mlflow_adk_eval.results.decision import Decision

MODEL = "home_automation"
EXPERIMENT = "home_automation"
_EXAMPLE = Path("home_automation")
_POLICY = "judged_gate.yaml"
_MODEL_KEYS = ("GOOGLE_API_KEY", "GEMINI_API_KEY")
"""With one of them the example would ask Gemini, which costs and says something else each time."""
_LEFT_BY_RUNS = shutil.ignore_patterns("__pycache__", ".*", "mlruns", "*.db")
"""What Python and evaluations leave in a checkout's example, or in an installed one."""


def example_folder() -> Path:
    """Return the example project: inside the installed package, or beside it in a checkout.

    Raises:
        UsageError: if it is in neither place.
    """
    package = Path(__file__).parents[1]
    for home in (package / "_examples", package.parent / "example_projects"):
        if (home / _EXAMPLE).is_dir():
            return home / _EXAMPLE
    raise UsageError("the example project is not installed with this package")


def copy_example(folder: Path) -> None:
    """Copy the example project into a folder that is new or empty, and print its files and the next command.

    Raises:
        UsageError: if something is there already.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"--copy: {folder} is not an empty folder; name a new one")
    shutil.copytree(example_folder(), folder, dirs_exist_ok=True, ignore=_LEFT_BY_RUNS)
    screen = console()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        screen.print(Text(f"wrote {file}"), soft_wrap=True)
    enter = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    screen.print(Text(f"next: {enter}mlflow-adk-eval run home_automation_agent home_automation.evalset.json"), soft_wrap=True)


def run_demo(folder: Path) -> None:
    """Evaluate both versions into an MLflow store in `folder`, and try to promote each.

    Raises:
        AdkEvalError: if a step does not end as it should.
    """
    from mlflow_adk_eval.tracking.client import open_store  # noqa: PLC0415 - MLflow costs seconds

    for key in _MODEL_KEYS:
        os.environ.pop(key, None)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    project = example_folder()
    sys.path.insert(0, str(project))
    store = open_store(folder, experiment=EXPERIMENT)
    screen = console()
    good, promoted = _attempt("1. The good agent", "home_automation_agent", project, store)
    bad, refused = _attempt("2. The same agent after a regression", "home_automation_agent_regressed", project, store)
    screen.print(Rule("3. What the regression changed", align="left"))
    explained = _compare(good, bad, store)
    screen.print(Rule("4. Next steps", align="left"))
    screen.print(_next_steps(folder, store, good, bad, explained), soft_wrap=True)
    if not promoted.passed or refused.passed:
        raise UsageError("the demo went wrong: it should promote the good version and refuse the other")


def _attempt(title: str, agent: str, project: Path, store: str) -> tuple[str, Decision]:
    """Evaluate an agent and try to promote it; return the run and the decision."""
    screen = console()
    screen.print(Rule(title, align="left"))
    with progress_bar("evaluating") as progress:
        eval_set, config = project / "home_automation.evalset.json", project / "judged_config.json"
        how: Any = {"judge": importlib.import_module("home_automation_judge").names_and_numbers, "ledger": False, "progress": progress}
        report = adk_eval.evaluate(eval_set, agent=agent, config=config, experiment=EXPERIMENT, tracking_uri=store, **how)
    screen.print(report_view(report))
    version = adk_eval.register(report, MODEL, tracking_uri=store)
    screen.print(Text(f"MLflow run {report.run_id}, registered as version {version} of {MODEL}\n"))
    run_id, policy = report.run_id or "", project / _POLICY
    decision = adk_eval.promote(MODEL, version, run_id=run_id, policy=policy, raise_on_failure=False, tracking_uri=store)
    command = f"$ mlflow-adk-eval promote {MODEL} --version {version} --alias champion --run-id {run_id} --policy {_POLICY}"
    screen.print(Text(command, style="bold"), soft_wrap=True)
    screen.print(decision_view(decision))
    screen.print(Text(f"champion is now version {version}\n" if decision.passed else "champion was not moved\n"))
    return run_id, decision


def _compare(before: str, after: str, store: str) -> str:
    """Tell what changed from one run to the other; return where MLflow shows it."""
    from mlflow_adk_eval.report.comparison import comparison_view  # noqa: PLC0415
    from mlflow_adk_eval.report.html.compare import compare_html  # noqa: PLC0415
    from mlflow_adk_eval.report.html.page import Texts  # noqa: PLC0415
    from mlflow_adk_eval.tracking.compare import log_comparison  # noqa: PLC0415

    screen = console()
    screen.print(Text(f"$ mlflow-adk-eval compare {before} {after} --log", style="bold"), soft_wrap=True)
    comparison, secrets = adk_eval.compare(before, after, tracking_uri=store), secrets_of()
    screen.print(comparison_view(comparison, Texts(secrets).words))
    screen.print()
    return log_comparison(comparison, compare_html(comparison, secrets=secrets), tracking_uri=store)


def _next_steps(folder: Path, store: str, good: str, bad: str, explained: str) -> str:
    from mlflow_adk_eval.tracking.client import experiment_id  # noqa: PLC0415

    experiment = experiment_id(store, EXPERIMENT)
    mlflow = Path(sys.executable).parent / "mlflow"
    command = mlflow.relative_to(Path.cwd()) if mlflow.is_relative_to(Path.cwd()) else "mlflow"
    base = f"http://127.0.0.1:5000/#/experiments/{experiment}"
    pages = {
        "both runs with their scores (click a run for its turns, then a turn for the reasons)": f"{base}/evaluation-runs",
        "the two versions side by side, turn by turn": f"{base}/evaluation-runs?selectedRunUuid={bad}&compareToRunUuid={good}",
        "the differences between them, with causes": explained.split(maxsplit=1)[0],
        "the versions of the agent with their metrics": f"{base}/models",
        "the registered model, its champion and the promotion record": f"http://127.0.0.1:5000/#/models/{MODEL}",
    }
    lines = "\n".join(f"  {page}\n    {url}" for page, url in pages.items())
    return f"Start MLflow (the store is in {folder}):\n\n  {command} ui --backend-store-uri {store} --port 5000\n\nThen open:\n\n{lines}\n"
