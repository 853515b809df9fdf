"""The examples of README, docs and docstrings are tests: `make docs` runs them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from sybil import Sybil
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


def _leave_example(namespace: dict[str, Any]) -> None:
    cwd, tracking_uri, folder = namespace["_before"]
    os.chdir(cwd)
    sys.path.remove(str(folder))
    if tracking_uri is None:
        del os.environ["MLFLOW_TRACKING_URI"]
    else:
        os.environ["MLFLOW_TRACKING_URI"] = tracking_uri
    shutil.rmtree(folder, ignore_errors=True)


_documents = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()], patterns=["*.md"], setup=_enter_example, teardown=_leave_example)
_docstrings = Sybil(parsers=[DocTestParser()], path="mlflow_adk_eval", patterns=["*.py"])

pytest_collect_file = (_documents + _docstrings).pytest()
