"""Our own process is killed while it writes to a server: what it had is on disk, and one `upload` completes the run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.cli.test_cli import invoke
from tests.servers.conftest import SPOILT, Site
from tests.servers.proxy import Fault, Request

pytestmark = pytest.mark.slow
JOB = """
from mlflow_adk_eval.tracking.evaluate import evaluate
from tests.tracking.small import CONFIG, expected_of, rooms

evaluate(rooms(), expected_of(rooms()), CONFIG, experiment="killed", tracking_uri={uri!r})
"""
MOMENTS = (
    ("/manifest.json", 1, "cut"),
    ("/mlflow/traces", 1, None),
    ("/mlflow/traces", 4, "cut"),
    ("/v1/traces", 1, None),
    ("/v1/traces", 1, "cut"),
    ("/traces/search", 2, None),
    ("/runs/update", 1, "cut"),
)
"""The path of a request, which of its kind it is, and what becomes of it once the process is killed."""


@pytest.mark.parametrize(("path", "number", "fate"), MOMENTS if SPOILT else MOMENTS[2:4])
def test_an_upload_completes_what_a_killed_process_was_writing(
    on_sqlite: Site, here: Path, path: str, number: int, fate: Fault | None
) -> None:
    seen: list[str] = []

    def killing(request: Request) -> Fault | None:
        seen.append(request.path)
        if not request.path.endswith(path) or sum(one.endswith(path) for one in seen) != number:
            return None
        process.send_signal(signal.SIGKILL)
        process.wait()
        return fate

    with on_sqlite.proxy.spoiling(killing):
        job = JOB.format(uri=on_sqlite.uri)
        process = subprocess.Popen([sys.executable, "-c", job], cwd=here, env={"PYTHONPATH": str(Path(__file__).parents[2])})
        assert process.wait() == -signal.SIGKILL
    (folder,) = here.glob("adk_eval_pending/*")
    client = MlflowClient(on_sqlite.server.uri)
    said = client.get_run(folder.name).data.tags
    assert "mlflow-adk-eval upload adk_eval_pending/" in said["mlflow.note.content"] or said["adk_eval.status"] == "complete"
    for _ in range(2):
        assert invoke("upload", folder, "--tracking-uri", on_sqlite.server.uri).exit_code == 0
    run = client.get_run(folder.name)
    assert (run.info.status, run.data.tags["adk_eval.status"]) == ("FINISHED", "complete")
    assert "upload" not in run.data.tags["mlflow.note.content"]
    traces = client.search_traces(locations=[run.info.experiment_id], run_id=folder.name)
    assert sorted(len(trace.data.spans) for trace in traces) == [1, 1, 2, 2, 2]
    assert [len({found.name for found in trace.info.assessments}) for trace in traces] == [5] * 5
    assert [len(trace.info.assessments) for trace in traces] == [5] * 5
    assert {len(client.get_metric_history(folder.name, name)) for name in run.data.metrics} == {1}
    assert invoke("gate", folder.name, "--tracking-uri", on_sqlite.server.uri).exit_code == 0
