"""What a run holds as files that others read, of small runs and of those that are only kept in parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.evalset.conversation import parse_result
from mlflow_adk_eval.evalset.files import load_eval_set
from mlflow_adk_eval.evalset.models import eval_set_digest
from mlflow_adk_eval.results.report import CasesInMemory
from mlflow_adk_eval.runs import collect
from mlflow_adk_eval.tracking import bundle
from tests.mlflow_kit import copied
from tests.tracking.small import expected_of, rooms, turn

CONFIG = {"criteria": {"tool_trajectory_avg_score": 1.0, "response_match_score": 0.5}}


def cold() -> dict[str, list[Any]]:
    """Return a recording in which the agent is wrong about the heating."""
    return expected_of(rooms()) | {"heat": [turn("21 degrees please", "no")]}


@pytest.fixture(params=["small", "large"])
def logged(request: Any, template: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Any, str]:
    if request.param == "large":
        monkeypatch.setattr(collect, "SMALL_TURNS", 2)
        monkeypatch.setattr(bundle, "SMALL_TURNS", 2)
    uri = copied(template, tmp_path)
    monkeypatch.chdir(tmp_path)
    return adk_eval.evaluate(rooms(), agent=cold(), config=CONFIG, tracking_uri=uri, traces=False), uri


def exported(what: str, file: Path, logged: tuple[Any, str]) -> Path:
    report, uri = logged
    result = CliRunner().invoke(cli, ["export", report.run_id, what, "-o", str(file), "--tracking-uri", uri], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "3 cases" in result.output
    return file


@pytest.mark.parametrize("ending", [".evalset.json", ".jsonl", ".parquet"])
def test_the_eval_set_is_the_one_that_was_evaluated(logged: tuple[Any, str], tmp_path: Path, ending: str) -> None:
    file = exported("eval-set", tmp_path / f"set{ending}", logged)
    assert eval_set_digest(load_eval_set(file)) == eval_set_digest(rooms())


def test_the_result_is_what_adk_reads(logged: tuple[Any, str], tmp_path: Path) -> None:
    result = parse_result(exported("result", tmp_path / "result.evalset_result.json", logged).read_bytes(), "result")
    assert [case.eval_id for case in result.eval_case_results] == ["light", "heat", "both"]
    assert [case.actual for case in result.eval_case_results] == [tuple(case.actual) for case in logged[0].cases]
    assert [[found.score for found in case.overall_eval_metric_results[:2]] for case in result.eval_case_results] == [
        [found.score for found in case.results[:2]] for case in logged[0].cases
    ]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_rows_score_again_as_they_did(logged: tuple[Any, str], tmp_path: Path, ending: str) -> None:
    again = adk_eval.score(exported("rows", tmp_path / f"rows{ending}", logged), config=CONFIG)
    assert again.scores == logged[0].scores
    assert again.verdicts == logged[0].verdicts


def test_a_large_run_has_no_documents_of_adk(logged: tuple[Any, str], tmp_path: Path) -> None:
    report, uri = logged
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    names = {Path(found.path).name for found in client.list_artifacts(report.run_id, "adk_eval")}
    large = not isinstance(report.cases, CasesInMemory)
    assert ("eval_set.json" in names, "result.evalset_result.json" in names) == (not large, not large)
    table = json.loads(Path(client.download_artifacts(report.run_id, "adk_eval/invocations.json", str(tmp_path))).read_text("utf-8"))
    assert len(table["data"]) == (1 if large else 5)  # of two turns that may be shown, the one of the case that failed
    assert ("sample of 1 of 5 turns" in client.get_run(report.run_id).data.tags["mlflow.note.content"]) == large


def test_a_changed_run_is_refused(logged: tuple[Any, str], tmp_path: Path) -> None:
    report, uri = logged
    from mlflow import MlflowClient

    (tmp_path / "part-00000.parquet").write_bytes(b"something else")
    MlflowClient(uri).log_artifact(report.run_id, str(tmp_path / "part-00000.parquet"), "adk_eval/cells")
    command = ["export", report.run_id, "result", "-o", str(tmp_path / "out.json"), "--tracking-uri", uri]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code != 0
    assert "cells/part-00000.parquet was changed after the run" in str(result.exception)
    assert not (tmp_path / "out.json").exists()


def test_a_large_report_says_what_the_small_one_says(logged: tuple[Any, str]) -> None:
    report, _ = logged
    plain = adk_eval.score(rooms(), cold(), CONFIG)
    assert replace(report, run_id=None, notes=()) == replace(plain, notes=())
    assert report.to_frame("invocations").equals(plain.to_frame("invocations"))
