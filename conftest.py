"""The examples of README, docs and docstrings are tests: `make docs` runs them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from sybil import Sybil
from sybil.integration.pytest import SybilItem
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

_PROJECT = Path(__file__).parent / "example_projects" / "home_automation"


def _enter_example(namespace: dict[str, Any]) -> None:
    """Run a document's blocks where a user would: in a copy of the example project, with an MLflow store of its own."""
    folder = Path(tempfile.mkdtemp(prefix="adk_eval_docs_"))
    shutil.copytree(_PROJECT, folder, dirs_exist_ok=True)
    namespace["_before"] = (Path.cwd(), os.environ.get("MLFLOW_TRACKING_URI"), folder)
    os.chdir(folder)
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
    sys.path.insert(0, str(folder))
    _forget_mlflow()


def _leave_example(namespace: dict[str, Any]) -> None:
    cwd, tracking_uri, folder = namespace["_before"]
    os.chdir(cwd)
    sys.path.remove(str(folder))
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]  # its files are about to go, and with them what an agent is made of
    if tracking_uri is None:
        del os.environ["MLFLOW_TRACKING_URI"]
    else:
        os.environ["MLFLOW_TRACKING_URI"] = tracking_uri
    _forget_mlflow()
    shutil.rmtree(folder, ignore_errors=True)


def _forget_mlflow() -> None:
    """Make MLflow forget what the process told it: the store, the experiment and runs that are open."""
    os.environ.pop("MLFLOW_EXPERIMENT_ID", None)
    if "mlflow" in sys.modules:
        import mlflow  # noqa: PLC0415 - takes seconds, and not every document needs it

        mlflow.flush_trace_async_logging()
        mlflow.tracing.reset()  # what writes traces keeps the store
        while mlflow.active_run():
            mlflow.end_run()
        mlflow.set_tracking_uri(None)
        mlflow.tracking.fluent._active_experiment_id = None  # noqa: SLF001 - there is no other way


_documents = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()], patterns=["*.md"], setup=_enter_example, teardown=_leave_example)
_docstrings = Sybil(parsers=[DocTestParser()], path="mlflow_adk_eval", patterns=["*.py"])

pytest_collect_file = (_documents + _docstrings).pytest()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the examples of a document in their order, whatever pytest-randomly does with tests: each builds on those before it."""
    places = [number for number, item in enumerate(items) if isinstance(item, SybilItem)]
    examples = sorted((items[number] for number in places), key=lambda item: (item.path, item.example.line))
    for number, example in zip(places, examples, strict=True):
        items[number] = example
