"""What is to be logged, as plain data: its parts, and its way into a folder and back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval import UsageError, score
from mlflow_adk_eval.results.table import LEAD, TAIL, Table
from mlflow_adk_eval.tracking.bundle import Bundle, Run, bundle_of, load, metrics_of
from mlflow_adk_eval.tracking.storable import clean_table, storable
from tests.tracking.small import CONFIG, expected_of, rooms

RUN = Run(
    run_id="0" * 32,
    experiment_id="1",
    model_id="m-1",
    dataset_name="rooms",
    dataset_digest="0123",
    agent_name="agent",
    started_ms=1_700_000_000_000,
    agent_diff="+x = 1\n",
)


def bundle(**options: Any) -> Bundle:
    report = score(rooms(), expected_of(rooms()), CONFIG)
    return bundle_of(report, RUN, **({"traces": True, "secrets": {}} | options))


def test_a_bundle_survives_its_folder(tmp_path: Path) -> None:
    made = bundle()
    made.save(tmp_path / "kept")
    assert load(tmp_path / "kept") == made


def test_the_same_report_is_the_same_bundle() -> None:
    assert bundle() == bundle()


def test_half_a_bundle_is_none(tmp_path: Path) -> None:
    bundle().save(tmp_path)
    (tmp_path / "bundle.json").rename(tmp_path / "bundle.json.partial")
    with pytest.raises(UsageError, match=r"bundle\.json is missing"):
        load(tmp_path)


@pytest.mark.parametrize("change", ["edit", "remove", "add"])
def test_a_bundle_that_was_touched_is_refused(tmp_path: Path, change: str) -> None:
    bundle().save(tmp_path)
    table = tmp_path / "artifacts" / "invocations.json"
    match change:
        case "edit":
            table.write_bytes(table.read_bytes().replace(b"passed", b"failed"))
        case "remove":
            table.unlink()
        case _:
            table = table.with_name("more.json")
            table.write_text("{}")
    with pytest.raises(UsageError, match=f"changed after it was written: {table.name}"):
        load(tmp_path)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"run": 1}'])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "bundle.json").write_bytes(text)
    with pytest.raises(UsageError, match="the pending evaluation cannot be read"):
        load(tmp_path)
    with pytest.raises(UsageError, match="not a pending evaluation"):
        load(tmp_path / "nowhere")


def test_values_that_are_no_json_become_text() -> None:
    import numpy as np

    assert storable({1: np.float32(0.5), "list": np.arange(2), "nan": math.nan, "set": {"x"}, "object": range(2)}, {}) == {
        "1": 0.5,
        "list": [0, 1],
        "nan": "nan",
        "set": ["x"],
        "object": "range(0, 2)",
    }


def test_a_table_is_cleaned_only_where_it_must_be_and_keeps_its_keys() -> None:
    key = ("secret-key #1", "failed", "secret-key", 0, 0)
    fine, odd = (
        Table((*LEAD, *TAIL[1:], "user"), ((*key, "hi"),)),
        Table((*LEAD, *TAIL[1:], "user"), ((*key, "\ud83d secret-key"), (*key, {1, 2}), (*key, math.inf))),
    )
    assert clean_table(fine, {})[0] is fine
    assert clean_table(fine, {"secret-key": "[A]"})[0].rows == fine.rows
    cleaned, text = clean_table(odd, {"secret-key": "[A]"})
    assert cleaned.rows == ((*key, "? [A]"), (*key, [1, 2]), (*key, "inf"))
    assert text == cleaned.dumps()


def test_every_metric_is_a_finite_number() -> None:
    report = score(rooms(), {"light": expected_of(rooms())["light"]}, CONFIG)
    metrics = dict(metrics_of(report))
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["case_pass_rate"] == pytest.approx(1 / 3)
    assert metrics["response_match_score/errored"] == 3
    assert "response_match_score/ci_low" not in metrics
