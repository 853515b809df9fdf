"""What holds for every test."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.version import Version

from mlflow_adk_eval import redact
from tests.attackers_host import attackers_host
from tests.mlflow_kit import forget_statements, new_server, server, store, template
from tests.profiles import PROFILE  # before a test module says how many examples it wants
from tests.wheel_kit import scripts

__all__ = ["attackers_host", "new_server", "scripts", "server", "store", "template"]


def pytest_configure(config: pytest.Config) -> None:
    # The agents of the tests are in no repository: this one changes while they run. Git looks below a ceiling only.
    os.environ["GIT_CEILING_DIRECTORIES"] = str(Path(__file__).parents[1])
    # In CI a ledger in the working directory counts only as far as the same job wrote it: the tests that are about that say so.
    os.environ.pop("COLUMNS", None)  # pytest-xdist gives its workers a terminal of 80 columns
    os.environ.pop("CI", None)
    # In a worker of xdist, pyspark, which MLflow imports where it finds it, takes a main module without file for its doctests and ends the process.
    main = sys.modules["__main__"]
    main.__file__ = getattr(main, "__file__", None)
    config.addinivalue_line(
        "markers", "needs(package, version='0'): skipped where the package is absent or older, as in parts of `make matrix`"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In CI, try one in two or three of a slow test's variants where there are three or more, and one in four of the gate's over HTTP: all are tried on SQLite.

    `make test-all` tries all.
    """
    if PROFILE != "ci":
        return
    variants = defaultdict[tuple[str, bool], list[pytest.Item]](list)
    for item in items:
        if (variant := getattr(item, "callspec", None)) is None:
            continue
        served = "server" in variant.id.split("-") and "gating" in item.path.parts
        if served or any(item.iter_markers("slow")):
            variants[item.nodeid.partition("[")[0], served].append(item)
    left_out = set[pytest.Item]()
    for (_, served), alike in variants.items():
        step = 4 if served else 3 if len(alike) > 3 else 2 if len(alike) > 2 else 1
        left_out |= {item for index, item in enumerate(alike) if index % step}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        if reason := _too_old(*marker.args):
            pytest.skip(reason)


def _too_old(package: str, oldest: str = "0") -> str | None:
    try:
        installed = version(package)
    except PackageNotFoundError:
        return f"{package} is not installed"
    if Version(installed) < Version(oldest):
        return f"{package} {installed} is older than {oldest}"
    return None


_OF_EXTRAS = {
    "a2a": ("a2a-sdk",),
    "fsspec": ("fsspec",),
    "google.adk": ("google-adk",),
    "google.cloud.aiplatform_v1beta1": ("google-cloud-aiplatform",),
    "jwt": ("PyJWT",),
    "litellm": ("litellm",),
    "mcp": ("mcp", "2"),  # google-adk 1 brings an older one
    "psycopg": ("psycopg",),
    "sacrebleu": ("sacrebleu",),
    "sigstore": ("sigstore",),
    "starlette": ("starlette",),
    "uvicorn": ("uvicorn",),
    "watchfiles": ("watchfiles",),
}
"""The modules that only extras install, and what `needs` takes of each."""


def _absent(error: BaseException | None) -> str | None:
    """Say which package is absent, if an import of what only an extra installs failed for that reason."""
    if not isinstance(error, ImportError):
        return None
    missing = f"{error.name}."
    named = (needed for module, needed in _OF_EXTRAS.items() if f"{module}.".startswith(missing) or missing.startswith(f"{module}."))
    return next((reason for needed in named if (reason := _too_old(*needed))), None)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module of tests that imports what is not installed."""
    report = yield
    failed = report.call.excinfo if report.failed and report.call else None
    if failed is not None and (reason := _absent(failed.value.__cause__)):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {reason}")
    if report.skipped:  # pytest leaves it in half, and other modules import from it
        for name in [name for name, module in sys.modules.items() if getattr(module, "__file__", None) == str(collector.path)]:
            del sys.modules[name]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Skip a test that imports what is not installed, itself or in a fixture."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if reason := _absent(error):
            pytest.skip(reason)
        raise


pytest_fixture_setup = pytest_pyfunc_call


@pytest.fixture(autouse=True)
def _no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep nothing between tests, unless a test says where."""
    monkeypatch.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")


_MLFLOW_REMEMBERS = {
    "mlflow.tracking.fluent": "_active_experiment_id",
    "mlflow.tracking._tracking_service.utils": "_tracking_uri",
    "mlflow.tracking._model_registry.utils": "_registry_uri",
}
"""What MLflow keeps for the whole process: the experiment that somebody chose does not exist in the next test's store."""


@pytest.fixture(autouse=True, scope="module")
def _no_store_but_the_modules_own() -> Iterator[None]:
    """Let the store and the experiment that the tests of one module chose be nobody else's."""
    chosen = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_")}
    remembered = {module: getattr(sys.modules.get(module), name, None) for module, name in _MLFLOW_REMEMBERS.items()}
    yield
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        del os.environ[name]
    os.environ.update(chosen)
    for module, name in _MLFLOW_REMEMBERS.items():
        if module in sys.modules:
            setattr(sys.modules[module], name, remembered[module])
    forget_statements()
    redact._FILES.clear()  # pyright: ignore[reportPrivateUsage] - the .env files of their agents
