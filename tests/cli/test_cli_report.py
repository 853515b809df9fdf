"""``mlflow-adk-eval report``: the report that a run holds, or why it is not to be had."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from mlflow_adk_eval.tracking.client import experiment_id
from tests.cli.test_cli import invoke
from tests.mlflow_kit import opened

HTML = "<!DOCTYPE html><title>passed: a report</title>ü"
NO_RUN = "0" * 32


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(scope="module")
def store(template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return opened(template, tmp_path_factory.mktemp("store"), "reports")


def logged(store: str, *, report: str | None = HTML, named: str | None = HTML, manifest: bool = True, vouched: str | None = None) -> str:
    """Log a run with a report and what vouches for it; return its id.

    Args:
        store: where.
        report: the artifact; ``None``: none.
        named: the report whose hash the manifest has; ``None``: it names none.
        manifest: whether there is one.
        vouched: the manifest's hash according to the run; ``None``: the right one; ``""``: no such parameter.
    """
    from mlflow import MlflowClient

    client = MlflowClient(store)
    run_id = str(client.create_run(experiment_id(store, "reports")).info.run_id)
    text = json.dumps({"schema": 1, "artifacts": {} if named is None else {"report.html": sha256(named)}})
    if report is not None:
        client.log_text(run_id, report, "adk_eval/report.html")
    if manifest:
        client.log_text(run_id, text, "adk_eval/manifest.json")
    if vouched != "":
        client.log_param(run_id, "adk_eval.manifest_sha256", vouched or sha256(text))
    return run_id


def test_the_report_is_saved_byte_by_byte(store: str, tmp_path: Path) -> None:
    run_id = logged(store)
    file = tmp_path / "night.html"
    result = invoke("report", run_id, "-o", file, "--tracking-uri", store)
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, f"{file}: the report of run {run_id}")
    assert f"open: {file.as_uri()}" in result.stdout
    assert file.read_bytes() == HTML.encode()


def test_it_may_go_to_a_folder_or_where_one_is(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = logged(store)
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    assert invoke("report", run_id, "-o", "there", "--tracking-uri", store).exit_code == 0
    assert invoke("report", run_id, "--tracking-uri", store).exit_code == 0
    assert (tmp_path / "there/report.html").read_text(encoding="utf-8") == (tmp_path / "report.html").read_text(encoding="utf-8") == HTML


def test_a_file_is_only_overwritten_on_demand(store: str, tmp_path: Path) -> None:
    run_id = logged(store)
    file = tmp_path / "report.html"
    file.write_text("mine", encoding="utf-8")
    result = invoke("report", run_id, "-o", file, "--tracking-uri", store)
    assert result.exit_code == 64
    assert f"{file} already exists; --force overwrites it" in result.stderr
    assert file.read_text(encoding="utf-8") == "mine"
    assert invoke("report", run_id, "-o", file, "--force", "--tracking-uri", store).exit_code == 0
    assert file.read_bytes() == HTML.encode()


@pytest.mark.parametrize(
    ("run", "exit_code", "said"),
    [
        ({"report": None, "named": None}, 64, "has no report: its version of mlflow-adk-eval did not write one"),
        ({"report": None, "manifest": False}, 64, "has no report: it contains no finished evaluation"),
        ({"report": None}, 64, "has lost its report: the manifest lists report.html, but the artifact is gone"),
        ({"named": "another"}, 3, "report.html was changed after the run, so its report cannot be trusted"),
        ({"named": None}, 3, "report.html was added after the run: manifest.json does not list it"),
        ({"vouched": sha256("another")}, 3, "manifest.json was changed after the run"),
        ({"vouched": ""}, 3, "the parameter adk_eval.manifest_sha256 is missing"),
        ({"manifest": False}, 3, "manifest.json is missing"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_believed_is_not_saved(store: str, tmp_path: Path, run: dict[str, str], exit_code: int, said: str) -> None:
    run_id = logged(store, **run)  # type: ignore[arg-type]
    result = invoke("report", run_id, "-o", tmp_path / "report.html", "--tracking-uri", store)
    assert result.exit_code == exit_code
    assert said in result.stderr
    assert run_id in result.stderr
    assert not (tmp_path / "report.html").exists()


def test_a_run_that_does_not_exist_is_bad_usage(store: str, tmp_path: Path) -> None:
    result = invoke("report", NO_RUN, "-o", tmp_path / "report.html", "--tracking-uri", store)
    assert result.exit_code == 64
    assert f"run '{NO_RUN}' does not exist" in result.stderr


def test_a_folder_that_does_not_exist_is_named(store: str, tmp_path: Path) -> None:
    result = invoke("report", logged(store), "-o", tmp_path / "nowhere/report.html", "--tracking-uri", store)
    assert result.exit_code == 64
    assert "nowhere/report.html cannot be written: there is no folder" in result.stderr


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_a_failed_run(tmp_path: Path) -> None:
    result = invoke("report", NO_RUN, "-o", tmp_path / "report.html", "--tracking-uri", "http://127.0.0.1:1")
    assert result.exit_code == 3
    assert "MLflow could not be queried" in result.stderr
