"""What is missing around a run: a registry that refuses, credentials, a client of the artifacts, room in the temporary folder, a folder to write to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.cli.test_cli import EXPECTED, invoke, written
from tests.cli.test_cli_mlflow import good
from tests.kit import turn_json
from tests.mlflow_kit import opened


@pytest.fixture
def lights(tmp_path: Path) -> Path:
    return written(tmp_path / "lights.evalset.json", EXPECTED)


@pytest.fixture
def store(template: Path, tmp_path: Path) -> str:
    return opened(template, tmp_path / "store", "home")


def test_a_registry_that_refuses_does_not_lose_the_run(lights: Path, store: str, tmp_path: Path) -> None:
    at = ("--tracking-uri", store)
    result = invoke("run", good(tmp_path), lights, *at, "--experiment", "home", "--register", "no/name", "--json")
    said = json.loads(result.stdout)
    assert (result.exit_code, said["verdict"], said["exit_code"]) == (3, "passed", 3)
    run_id = said["run_id"]
    assert f"run {run_id} is complete, but not registered: " in said["error"]
    assert f"register it with: mlflow-adk-eval register {run_id} no/name --tracking-uri {store}" in result.stderr
    assert MlflowClient(store).get_run(run_id).data.tags["adk_eval.status"] == "complete"
    done = invoke("register", run_id, "lights", *at, "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"model": "lights", "version": "1", "run_id": run_id})
    assert invoke("register", run_id, "lights", *at).stdout.startswith(f"version 1 of lights is the agent of run {run_id}\nnext: ")
    assert invoke("promote", "lights", "--version", "1", "--run-id", run_id, *at).exit_code == 0


def test_in_text_the_report_comes_before_what_could_not_be_done(lights: Path, store: str, tmp_path: Path) -> None:
    (tmp_path / "full.json").symlink_to("/dev/full")
    given = ("--experiment", "home", "--register", "no/name", "--tracking-uri", store, "--save-recording", tmp_path / "full.json")
    result = invoke("run", good(tmp_path), lights, *given)
    assert result.exit_code == 64  # a file that is there is refused before the agent is called
    (tmp_path / "full.json").unlink()
    result = invoke("run", good(tmp_path), lights, *given[:-2])
    assert result.exit_code == 3
    assert "verdict: passed" in result.stdout
    assert "run id: " in result.stdout
    assert "is complete, but not registered" in result.stderr


@pytest.mark.parametrize("run_id", ["0123", ""])
def test_a_run_that_does_not_exist_cannot_be_registered(run_id: str, store: str) -> None:
    result = invoke("register", run_id, "lights", "--tracking-uri", store)
    assert (result.exit_code, "Traceback" in result.stderr) == (64, False)


@pytest.fixture
def locked() -> Iterator[str]:
    """A server that wants credentials."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b"You are not authenticated. Please see the documentation on how to authenticate."
            self.send_response(401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST  # noqa: N815 - http.server's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_missing_credentials_are_not_called_an_unreachable_server(lights: Path, locked: str, tmp_path: Path) -> None:
    result = invoke("run", good(tmp_path), lights, "--tracking-uri", locked)
    assert result.exit_code == 3
    assert f"error: MLflow at {locked}: the credentials are missing or wrong (401). Set MLFLOW_TRACKING_USERNAME" in result.stderr
    assert "cannot be reached" not in result.stderr


def test_a_missing_client_of_the_artifacts_is_found_before_the_agent_is_called(
    lights: Path, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MlflowClient(store).create_experiment("bucket", artifact_location="s3://bucket/artifacts")
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "counting_agent.py").write_text("def agent(text):\n    open('called', 'w').close()\n    return text\n")
    monkeypatch.chdir(tmp_path)
    result = invoke("run", "counting_agent:agent", lights, "--tracking-uri", store, "--experiment", "bucket")
    assert result.exit_code == 64, result.stderr
    assert "MLflow needs the package boto3" in result.stderr
    assert not (tmp_path / "called").exists()
    recorded = invoke("run", good(tmp_path), lights, "--tracking-uri", store, "--experiment", "bucket")  # whose source is not stored first
    assert recorded.exit_code == 64, recorded.stderr
    assert not (tmp_path / "adk_eval_pending").exists()


def test_a_comparison_with_itself_can_be_exported_and_edits_of_it_cannot(lights: Path, store: str, tmp_path: Path) -> None:
    at = ("--tracking-uri", store)
    run_id = json.loads(invoke("run", lights, lights, *at, "--experiment", "home", "--json").stdout)["run_id"]
    assert invoke("gate", run_id, *at).exit_code == 2
    for what, name in (("eval-set", "a.evalset.json"), ("result", "a.json"), ("rows", "a.jsonl")):
        exported = invoke("export", run_id, what, "-o", tmp_path / name, *at)
        assert exported.exit_code == 0, exported.stderr
    MlflowClient(store).log_text(run_id, "{}", "adk_eval/eval_set.json")
    assert invoke("export", run_id, "rows", "-o", tmp_path / "b.jsonl", *at).exit_code == 3


class Mounted:
    """A file system of its own."""

    def __init__(self, folder: Path, options: str) -> None:
        self.folder = folder
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("a file system of its own cannot be mounted here")

    def __enter__(self) -> Path:
        return self.folder

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


def test_a_folder_that_takes_no_ledger_stops_only_what_needs_one(
    lights: Path, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_ADK_EVAL_LEDGER")
    recording = good(tmp_path)
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "echoing_agent.py").write_text("def agent(text): return text\n")
    monkeypatch.syspath_prepend(tmp_path / "agents")
    with Mounted(tmp_path / "fixed", "ro") as here, monkeypatch.context() as there:
        there.chdir(here)
        assert invoke("score", lights, "--actual", recording).exit_code == 0
        assert invoke("run", recording, lights, "--tracking-uri", store, "--experiment", "home").exit_code == 0
        refused = invoke("run", "echoing_agent:agent", lights, "--tracking-uri", store, "--experiment", "home")
        assert refused.exit_code == 64
        assert "--ledger" in refused.stderr
        named = invoke("score", lights, "--actual", recording, "--ledger", here / "ledger.sqlite")
        assert named.exit_code == 64


@pytest.mark.slow
@pytest.mark.parametrize("size", ["60k", "400k", "1200k"])
def test_a_full_temporary_folder_is_one_sentence_that_names_it(size: str, tmp_path: Path, store: str) -> None:
    said = [turn_json("hi " + "word " * 20, "hello")]
    answered = [said[0] | {"final_response": {"parts": [{"text": "hello you"}]}}]
    rows = [json.dumps({"eval_id": f"c{number}", "conversation": said}) for number in range(20_000)]
    (tmp_path / "cases.jsonl").write_text("\n".join(rows))
    actual = [{"eval_id": f"c{number}", "conversation": answered} for number in range(20_000)]
    written(tmp_path / "recording.json", {"eval_set_id": "cases", "eval_cases": actual})
    config = written(tmp_path / "config.json", {"criteria": {"response_match_score": 0.1}})
    arguments = ["run", "recording.json", "cases.jsonl", "--config", str(config), "--tracking-uri", store, "--experiment", "home"]
    with Mounted(tmp_path / "small", f"size={size}") as folder:
        env = {**os.environ, "TMPDIR": str(folder)}
        command = [sys.executable, "-m", "mlflow_adk_eval", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert "mistake" not in done.stderr
    assert "error: cannot write: [Errno 28]" in done.stderr
    assert f"Free disk space, or set TMPDIR to another folder (now {folder})" in done.stderr
    (run,) = MlflowClient(store).search_runs([MlflowClient(store).get_experiment_by_name("home").experiment_id])
    assert run.info.status == "FAILED"
