"""Cases that were picked by name are no evidence for their eval set, and everything that names the set says so."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.config.inputs import load_inputs, merge_files, read_file
from mlflow_adk_eval.evalset.files import load_eval_set, select
from mlflow_adk_eval.testing import assert_gate
from tests.kit import turn_json
from tests.mlflow_kit import copied

SHARE = "1 of 4 cases of the eval set, picked by name"
POLICY = {"min_cases": 1, "thresholds": True}


def cases(*names: str) -> list[dict[str, Any]]:
    return [{"eval_id": name, "conversation": [turn_json(name, "hello")]} for name in names]


@pytest.fixture(name="four")
def _four(tmp_path: Path) -> Path:
    path = tmp_path / "four.evalset.json"
    path.write_text(json.dumps({"eval_set_id": "four", "eval_cases": cases("o1", "o2", "o3", "o4")}))
    (tmp_path / "test_config.json").write_text(json.dumps({"criteria": {"response_match_score": 0.5}}))
    return path


def hello(_: str) -> str:
    return "hello"


@pytest.mark.parametrize(
    ("selection", "wanted"),
    [("", 0), (":o1", 4), (":o2,o4", 4), (":o1,o2,o3,o4", 0), (":o4,o3,o2,o1", 0)],
)
def test_a_selection_knows_of_how_many_it_is(four: Path, selection: str, wanted: int) -> None:
    chosen = load_eval_set(f"{four}{selection}")
    by_run, _ = load_inputs(f"{four}{selection}")
    assert (chosen.picked_from, by_run.picked_from) == (wanted, wanted)
    assert pickle.loads(pickle.dumps(by_run)).picked_from == wanted  # noqa: S301 - our own
    assert by_run == select(load_eval_set(four), by_run.eval_ids)
    assert "picked" not in by_run.model_dump_json()


def test_rows_and_several_files_know_it_too(four: Path) -> None:
    rows = four.with_name("rows.jsonl")
    rows.write_text("".join(json.dumps(case) + "\n" for case in cases("r1", "r2", "r3")))
    assert load_inputs(f"{rows}:r2")[0].picked_from == 3
    assert load_inputs([f"{rows}:r2", str(four)])[0].picked_from == 7
    assert load_inputs([str(rows), str(four)])[0].picked_from == 0


def test_tests_that_pytest_deselects_leave_a_part(four: Path) -> None:
    part = read_file(four).selected(["o2"])
    assert merge_files([part]).eval_set.picked_from == 4
    assert read_file(four).selected(["o1", "o2", "o3", "o4"]).eval_set.picked_from == 0


def test_a_file_of_its_own_is_whole(four: Path, template: Path, tmp_path: Path) -> None:
    one = four.with_name("one.evalset.json")
    one.write_text(json.dumps({"eval_set_id": "one", "eval_cases": cases("o1")}))
    uri = copied(template, tmp_path)
    report = adk_eval.evaluate(one, agent=hello, tracking_uri=uri, ledger=False)
    decision = adk_eval.gate(report, POLICY, tracking_uri=uri, raise_on_failure=False)
    assert decision.passed
    assert "1 case of eval set 'one' evaluated on 1 criterion, nothing left out" in decision.reasons


def test_a_run_of_picked_cases_is_no_evidence_for_the_set(four: Path, template: Path, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = copied(template, tmp_path)
    report = adk_eval.evaluate(f"{four}:o1", agent=hello, tracking_uri=uri, ledger=False)
    assert report.verdict == "passed"
    assert f"{SHARE}: o1" in report.notes
    run = MlflowClient(uri).get_run(str(report.run_id))
    assert run.data.params["adk_eval.picked"] == "1 of 4"
    assert f"{SHARE}: o1" in run.data.tags["mlflow.note.content"]
    decision = adk_eval.gate(report, POLICY, tracking_uri=uri, raise_on_failure=False)
    assert decision.verdict == "undecided"
    assert decision.reasons == (f"the run covers only {SHARE}, so it is not evidence for the whole eval set",)
    pinned = {**POLICY, "eval_set": {"digest": run.data.params["adk_eval.eval_set_digest"]}}
    decided = adk_eval.gate(report, pinned, tracking_uri=uri, raise_on_failure=False)
    assert decided.passed
    assert f"1 case of eval set 'four' evaluated on 1 criterion, only {SHARE}" in decided.reasons
    shown = CliRunner().invoke(cli, ["explain", str(report.run_id), "--tracking-uri", uri]).output
    assert f"covers_only: {SHARE}" in shown


def test_a_report_that_was_not_logged_says_so_as_well(four: Path) -> None:
    report = adk_eval.score(f"{four}:o1", four)
    assert f"{SHARE}: o1" in report.notes
    with pytest.raises(AssertionError, match="the run covers only 1 of 4 cases of the eval set"):
        assert_gate(report, POLICY)


def test_what_a_policy_holds_out_is_no_choice_of_the_user(four: Path, template: Path, tmp_path: Path) -> None:
    policy = {**POLICY, "holdout": {"ids": ["o4"], "uses": 3, "min": 0.5}}
    uri = copied(template, tmp_path)
    report = adk_eval.evaluate(four, agent=hello, policy=policy, tracking_uri=uri, ledger=False)
    assert len(report.cases) == 3
    assert not any("picked by name" in note for note in report.notes)
