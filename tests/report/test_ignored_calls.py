"""Calls that were not expected and that a match type ignores: every page shows and counts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.report.html.report import html_of
from mlflow_adk_eval.report.sentences import circumstances
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.recordings import score
from mlflow_adk_eval.runs.ignored_calls import ignored_calls_of
from mlflow_adk_eval.testing.failure import conversation_lines, text_of
from mlflow_adk_eval.text import plain
from tests.cli.test_cli import invoke
from tests.kit import TRAJECTORY, case_json, eval_set_json, turn_json
from tests.mlflow_kit import opened

POLICY, REFUND = ("check_policy", {"order": "A102"}), ("issue_refund", {"amount": 39.9})
SENTENCE = "3 calls in 2 cases were not expected; IN_ORDER ignores them"


def written(*more: Any) -> dict[str, Any]:
    return eval_set_json(
        case_json("denied", turn_json("Refund A102", "No", POLICY, *more)),
        case_json("again", turn_json("Refund A102", "No", POLICY, *more, *more)),
        eval_set_id="refunds",
    )


def an_eval_set(*more: Any) -> EvalSet:
    return EvalSet.model_validate(written(*more))


def config(match_type: str) -> dict[str, Any]:
    return {"criteria": {TRAJECTORY: {"threshold": 1.0, "match_type": match_type}}}


def reported(match_type: str) -> Report:
    return score(an_eval_set(), an_eval_set(REFUND), config(match_type))


def test_they_are_counted_in_conversations() -> None:
    report = reported("IN_ORDER")
    assert report.verdict == "passed"
    assert str(ignored_calls_of(report)) == SENTENCE
    assert circumstances(report)["Calls not expected"] == SENTENCE


def test_exact_ignores_none() -> None:
    report = reported("EXACT")
    assert report.verdict == "failed"
    assert not str(ignored_calls_of(report))
    assert "Calls not expected" not in circumstances(report)


def test_cases_with_their_own_criteria_are_counted_by_them() -> None:
    own = config("EXACT") | {"case_criteria": {"denied": config("ANY_ORDER")["criteria"]}}
    report = score(an_eval_set(), an_eval_set(REFUND), own)
    assert str(ignored_calls_of(report)) == "1 call in 1 case was not expected; ANY_ORDER ignores it"


@pytest.mark.parametrize("match_type", ["IN_ORDER", "ANY_ORDER"])
def test_pages_show_them(match_type: str) -> None:
    report = reported(match_type)
    page = html_of(report, title="refunds", facts={}, secrets={})
    assert f'<span class="missing">not expected; ignored by {match_type}</span>' in page
    assert "3 calls in 2 cases were not expected" in page
    shown = text_of(conversation_lines(report.cases[0], report.config))
    assert f'~ issue_refund({{"amount": 39.9}})  (not expected; ignored by {match_type})' in shown


@pytest.mark.slow
def test_a_run_and_its_gate_count_them(template: Path, tmp_path: Path) -> None:
    store = opened(template, tmp_path / "store", "refunds")
    for name, content in (("refunds.evalset.json", written()), ("made.json", written(REFUND)), ("config.json", config("IN_ORDER"))):
        (tmp_path / name).write_text(json.dumps(content))
    where = ("--tracking-uri", store)
    files = (tmp_path / "made.json", tmp_path / "refunds.evalset.json", "--config", tmp_path / "config.json")
    told = invoke("run", *files, "--experiment", "refunds", "--detailed", *where)
    assert told.exit_code == 0, told.stderr
    assert SENTENCE in told.stdout
    assert 'not expected; ignored by IN_ORDER: `issue_refund({"amount": 39.9})`' in told.stdout
    as_json = json.loads(invoke("run", *files, "--experiment", "refunds", "--json", *where).stdout)
    assert as_json["ignored_calls"] == 3
    decided = invoke("gate", as_json["run_id"], "--comment", tmp_path / "comment.md", *where)
    assert decided.exit_code == 0
    assert f"note: {SENTENCE}" in decided.stdout
    assert plain(SENTENCE) in (tmp_path / "comment.md").read_text()
