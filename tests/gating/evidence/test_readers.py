"""What reads a run in parts, besides the gate."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import InputError, TrackingError
from mlflow_adk_eval.evalset.models import eval_set_digest
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.runs.files import StoredFiles, files_in
from mlflow_adk_eval.tracking.earlier_runs import recording_of_run
from tests.gating.gate_kit import CONFIG, Lab, evidence_of, file_of, report_of, with_artifact, with_file

REPORT = report_of(wrong=["heating"], silent=["film"], num_runs=3)


def test_a_recording_of_a_run_in_parts_is_what_its_report_would_save(lab: Lab) -> None:
    run_id = lab.log(evidence_of(REPORT, model_id=lab.agent()))
    found, saved = recording_of_run(run_id, lab.uri), adk_eval.recording_of_report(REPORT)
    assert found.runs == saved.runs
    assert found.origin
    assert saved.origin
    assert found.origin.case_digests == saved.origin.case_digests
    assert (found.origin.eval_set_id, found.origin.eval_set_digest) == ("home", eval_set_digest(REPORT.eval_set))
    assert found.origin.recorded_at.startswith("20")
    assert found.origin.num_runs == found.num_runs(REPORT.eval_set.eval_ids) == 3
    assert found.num_runs(["nobody"]) == 3
    assert "nobody" not in found.runs


def test_a_run_in_parts_is_judged_again_without_its_agent(lab: Lab) -> None:
    run_id = lab.log(evidence_of(REPORT, model_id=lab.agent()))
    again = adk_eval.score(REPORT.eval_set, recording_of_run(run_id, lab.uri), CONFIG)
    assert again.cases == REPORT.cases


def test_conversations_that_were_changed_or_are_none_are_not_judged_again(lab: Lab) -> None:
    evidence, name = evidence_of(REPORT, model_id=lab.agent()), file_of("actual", 0)
    changed = replace(evidence, artifacts={**evidence.artifacts, name: b"x"})
    with pytest.raises(TrackingError, match=r"actual/part-00000\.parquet was changed after the run, so its conversations cannot"):
        recording_of_run(lab.log(changed), lab.uri)
    with pytest.raises(TrackingError, match=r"actual/part-00000\.parquet cannot be read: \$: found not a Parquet file"):
        recording_of_run(lab.log(with_artifact(evidence, name, b"x")), lab.uri)
    spoilt = with_file(evidence, name, lambda rows: rows[0].update(recorded="{"))
    with pytest.raises(InputError, match=r"actual/part-00000\.parquet: 1 problem(.|\n)*\$\[0\]\.recorded: found something else"):
        recording_of_run(lab.log(spoilt), lab.uri).runs["lights"]


# Sockets that other tests left open are collected here, too.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_the_files_of_a_run_stay_as_long_as_somebody_uses_them(lab: Lab) -> None:
    run_id = lab.log(evidence_of(REPORT, model_id=lab.agent()))
    artifacts = MlflowStore(lab.uri).evidence(run_id).artifacts
    assert isinstance(artifacts, StoredFiles)
    file = artifacts._files["config.json"]  # pyright: ignore[reportPrivateUsage]
    gc.collect()
    assert artifacts["config.json"] == file.read_bytes()
    assert artifacts == MlflowStore(lab.uri).evidence(run_id).artifacts
    assert artifacts != artifacts.without("config.json")
    some = artifacts.below("cells")
    del artifacts
    gc.collect()
    assert some["part-00000.parquet"]
    del some
    gc.collect()
    assert not file.exists()


def test_files_are_equal_if_their_bytes_are(tmp_path: Path) -> None:
    for folder, text in (("one", "a"), ("two", "a"), ("three", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text(text)
    one, two, three = (files_in(tmp_path / folder) for folder in ("one", "two", "three"))
    assert one == two == {"file": b"a"}
    assert one not in (three, {}, {"file": b"b"})
