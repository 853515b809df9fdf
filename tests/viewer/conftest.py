"""One store and one viewer for all tests of the viewer, as they only read."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from mlflow_adk_eval.integrations.rapid_server.server import Serving, listening, url_of
from mlflow_adk_eval.testing import Request, answer_for
from mlflow_adk_eval.tracking.client import open_store
from mlflow_adk_eval.viewer.app import application
from mlflow_adk_eval.viewer.store import RunStore
from tests.analysis.calibrated import EXPERIMENT as LABELS
from tests.analysis.calibrated import evaluated, judge
from tests.mlflow_kit import copied
from tests.viewer.evaluations import EXPERIMENT, HOME, LARGE, OTHER, filled, home, hostile, large
from tests.workers import made_once


@dataclass(frozen=True)
class View:
    """A viewer that serves."""

    url: str
    uri: str
    """Of the store."""
    runs: dict[str, str]
    """The ids by name."""

    def get(self, path: str, **options: object) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=60, **options)  # type: ignore[arg-type]

    def text(self, path: str) -> str:
        found = self.get(path)
        assert found.status_code == 200, found.text
        return found.text


@contextmanager
def serving(uri: str, runs: dict[str, str], **options: str) -> Generator[View]:
    """Serve a store."""
    app = application(RunStore(uri), mlflow_url="http://mlflow.example", **options)
    with listening(Serving(port=0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield View(url_of(listener), uri, runs)
        finally:
            server.should_exit = True
            thread.join()


def steady(request: Request) -> Any:
    """Judge as the tests of calibrations do, but never be down."""
    try:
        return judge(request)
    except ConnectionError:
        return answer_for(request, "valid" if "verdict" in request.schema["properties"] else {"item_1": "yes", "item_2": "yes"})


@pytest.fixture(scope="session")
def labelled(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    """A viewer in which anna may label."""
    folder = tmp_path_factory.mktemp("labelled")
    uri = copied(template, folder)
    open_store(folder, experiment=LABELS)
    with serving(uri, {"run": evaluated(uri, by=steady).run_id or ""}, labeller="anna") as found:
        yield found


@pytest.fixture(scope="session")
def view(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    def make(folder: Path) -> None:
        uri = copied(template, folder)
        for experiment in (EXPERIMENT, HOME, OTHER):
            open_store(folder, experiment=experiment)
        runs = {**filled(uri), **home(uri), "hostile": hostile(uri), "hostile again": hostile(uri, more="a little more")}
        (folder / "runs.json").write_text(json.dumps(runs))

    made = made_once(tmp_path_factory, "viewer", make)
    # Of the database each worker has a copy, as one test edits a metric for a while; the artifacts stay where the runs say that they are.
    with serving(copied(made / "mlflow.db", tmp_path_factory.mktemp("viewer")), json.loads((made / "runs.json").read_text())) as found:
        yield found


@pytest.fixture(scope="session")
def many(template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a large run and a small one of its cases, and the runs' ids, each behind a blank."""

    def make(folder: Path) -> None:
        uri = copied(template, folder)
        open_store(folder, experiment=LARGE)
        (folder / "found").write_text(f"{uri} {large(uri)} {large(uri, 1)}")

    return (made_once(tmp_path_factory, "many", make) / "found").read_text()


@pytest.fixture
def unseen(many: str) -> Iterator[View]:
    """A viewer on a large run that nobody has looked at yet."""
    uri, *run_ids = many.split()
    with serving(uri, dict(zip(("large", "small"), run_ids, strict=True))) as found:
        yield found
