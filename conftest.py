"""The examples of README, docs and docstrings are tests: `make docs` runs them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from sybil import Document, Example, Region, Sybil
from sybil.integration.pytest import SybilItem
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown import SkipParser
from sybil.sybil import SybilCollection

from docs.examples import Session, blocks

_PROJECT = Path(__file__).parent / "example_projects" / "home_automation"
_WRITE = bool(os.environ.get("WRITE_SHOWN"))
"""Whether what comes is written into the pages instead of compared, as `make shown` does."""


def _enter_empty(namespace: dict[str, Any]) -> None:
    """Run a page's blocks in an empty folder, where MLflow's store is its default one: mlflow.db."""
    folder = Path(tempfile.mkdtemp(prefix="adk_eval_docs_")).resolve()
    namespace["_before"] = (Path.cwd(), dict(os.environ), folder)
    namespace["_session"], namespace["_printed"], namespace["_written"] = Session.of(folder), "", []
    os.chdir(folder)
    for name in os.environ.keys() - namespace["_session"].environment.keys():
        if not name.startswith("PYTEST_"):
            del os.environ[name]
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
    sys.path.insert(0, str(folder))
    _forget_mlflow()


def _enter_example(namespace: dict[str, Any]) -> None:
    """Run a page's blocks where a user would: in a copy of the example project."""
    _enter_empty(namespace)
    shutil.copytree(_PROJECT, namespace["_session"].folder, dirs_exist_ok=True)


def _leave(namespace: dict[str, Any]) -> None:
    cwd, variables, folder = namespace["_before"]
    for path, block, text in sorted(namespace["_written"], key=lambda change: -change[1].start):
        page = path.read_text("utf-8")
        path.write_text(page[: block.start] + text + page[block.end :], "utf-8")
    os.chdir(cwd)
    sys.path.remove(str(folder))
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]  # its files are about to go, and with them what an agent is made of
    os.environ.clear()
    os.environ.update(variables)
    _forget_mlflow()
    shutil.rmtree(folder, ignore_errors=True)


def _forget_mlflow() -> None:
    """Make MLflow forget what the process told it, other than by variables: the store, the experiment and runs that are open."""
    if "mlflow" in sys.modules:
        import mlflow  # noqa: PLC0415 - takes seconds, and not every document needs it

        mlflow.flush_trace_async_logging()
        mlflow.tracing.reset()  # what writes traces keeps the store
        while mlflow.active_run():
            mlflow.end_run()
        mlflow.set_tracking_uri(None)
        mlflow.tracking.fluent._active_experiment_id = None  # noqa: SLF001 - there is no other way


def _shown(document: Document) -> Iterator[Region]:
    """Yield the blocks of a page that are run, compared or written."""
    run = {"python": _python, "output": _output, "console": _console}
    for block in blocks(document.text):
        evaluate = _file if block.file else run.get(block.language)
        if evaluate is not None:
            yield Region(block.start, block.end, block, evaluate)


def _file(example: Example) -> None:
    example.namespace["_session"].write(example.parsed)


def _python(example: Example) -> None:
    code = compile("\n" * example.parsed.line + example.parsed.text, example.path, "exec", dont_inherit=True)
    with redirect_stdout(StringIO()) as printed:
        exec(code, example.namespace)  # noqa: S102 - a page's own example
    example.namespace["_printed"] = printed.getvalue()


def _output(example: Example) -> None:
    block, session = example.parsed, example.namespace["_session"]
    printed = example.namespace["_printed"].replace(f"{session.folder}/", "")
    _keep(example, session.compare(block.text, printed, write=_WRITE, after="the block of Python above"))


def _console(example: Example) -> None:
    _keep(example, example.namespace["_session"].follow(example.parsed.text, write=_WRITE))


def _keep(example: Example, text: str) -> None:
    if text != example.parsed.text:
        example.namespace["_written"].append((Path(example.path), example.parsed, text))


_STARTED = Sybil(
    path="docs", patterns=["start/*.md", "tutorials/*.md"], parsers=[_shown, SkipParser()], setup=_enter_empty, teardown=_leave
)
_DOCUMENTS = Sybil(
    patterns=["*.md"],
    excludes=["docs/start/*.md", "docs/tutorials/*.md"],
    parsers=[_shown, SkipParser()],
    setup=_enter_example,
    teardown=_leave,
)
_DOCSTRINGS = Sybil(parsers=[DocTestParser()], path="mlflow_adk_eval", patterns=["*.py"])

pytest_collect_file = SybilCollection([_STARTED, _DOCUMENTS, _DOCSTRINGS]).pytest()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the examples of a document in their order, whatever pytest-randomly does with tests: each builds on those before it."""
    places = [number for number, item in enumerate(items) if isinstance(item, SybilItem)]
    examples = sorted((items[number] for number in places), key=lambda item: (item.path, item.example.line))
    for number, example in zip(places, examples, strict=True):
        items[number] = example
