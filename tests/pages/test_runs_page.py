"""docs/reference/runs.md names every key that a run has, and every key on it is one that the code writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import mlflow
import pandas as pd
import pytest
from mlflow import MlflowClient

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.results.outcomes import VERDICTS
from mlflow_adk_eval.results.table import VOTE_COLUMNS
from mlflow_adk_eval.runs.manifest import FOLDER, NOT_COMPLETE
from mlflow_adk_eval.runs.parts import CASE_KINDS, HEAD, RUN_KINDS, SCHEMA, case_columns, cell_columns, cell_kind
from tests.kit import case_json, eval_set_json, turn_json

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "runs.md").read_text("utf-8")
CODE = "\n".join(file.read_text("utf-8") for file in sorted((ROOT / "mlflow_adk_eval").rglob("*.py")))
EVAL_SET = adk_eval.EvalSet.model_validate(
    eval_set_json(*(case_json(name, turn_json("on", f"it is {name}", ("switch", {"to": name}))) for name in ("a", "b")))
)
CONFIG = {
    "criteria": {
        "tool_trajectory_avg_score": 1,
        "final_response_match_v2": {"threshold": 0.5, "judge_model_options": {"num_samples": 2}},
    }
}


def keys_of(*headings: str) -> list[str]:
    """Return what is set as code in the first cells of the tables of these sections."""
    sections = [re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[0] for heading in headings]
    rows = [row for section in sections for row in re.findall(r"^\|(.*)\|$", section, re.MULTILINE)]
    return [key for row in rows for key in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def unnamed(given: Iterable[str], keys: Iterable[str]) -> list[str]:
    """Return the keys that no pattern of the page stands for."""
    patterns = [re.sub(r"<\w+>|\\\*", ".+", re.escape(key)) for key in keys]
    return [key for key in given if not any(re.fullmatch(pattern, key) for pattern in patterns)]


def judge(request: object) -> dict[str, str]:
    return {"rationale": "as it should be", "verdict": "valid"}


def strict(request: object) -> dict[str, str]:
    return {"rationale": "not as it should be", "verdict": "invalid"}


def agent(user_text: str, session: adk_eval.Session) -> str:
    return f"it is {session.eval_id}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[mlflow.entities.Run, Path, MlflowClient]:
    """A run with a panel of judges and two runs of each case, its artifacts, and the client that knows it."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('runs')}/mlflow.db"
    client = MlflowClient(uri)
    report = adk_eval.evaluate(EVAL_SET, agent=agent, config=CONFIG, judge=[judge, strict], num_runs=2, tracking_uri=uri, ledger=False)
    run_id = str(report.run_id)
    folder = client.download_artifacts(run_id, "", str(tmp_path_factory.mktemp("artifacts")))
    return client.get_run(run_id), Path(folder), client


def test_every_key_of_a_run_is_on_the_page(run: tuple[mlflow.entities.Run, Path, MlflowClient]) -> None:
    data = run[0].data
    assert unnamed(data.tags, keys_of("Tags")) == []
    assert unnamed(data.params, keys_of("Parameters")) == []
    assert unnamed(data.metrics, keys_of("Metrics")) == []
    assert {"judge/agreement/judge", "pass_hat_2", "case_pass_rate_by_run", "judge/calls"} <= data.metrics.keys() | {
        "judge/agreement/judge"
    }


def test_every_artifact_and_every_column_is_on_the_page_with_its_type(run: tuple[mlflow.entities.Run, Path, MlflowClient]) -> None:
    files = [file.relative_to(run[1]).as_posix() for file in run[1].rglob("*") if file.is_file()]
    named = keys_of("Artifacts")
    assert [file for file in files if file not in named and f"{'/'.join(file.split('/')[:2])}/" not in named] == []
    types = dict(re.findall(r"^\| `([^`]+)` \| (text|int64|float64|bool) \|", PAGE, re.MULTILINE))
    for folder in ("cases", "actual", "cells", "votes"):
        frame = pd.read_parquet(run[1] / FOLDER / folder)
        assert unnamed(frame.columns, types) == []


def test_the_columns_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (text|int64|float64|bool) \|", PAGE, re.MULTILINE)
    kinds = {"text": "text", "whole number": "int64", "number": "float64"}
    of_cells = (*HEAD, *cell_columns("<criterion>"), *case_columns("<criterion>"))
    votes = {"string": "text", "int64": "int64", "Int64": "int64", "float64": "float64", "Float64": "float64", "bool": "bool"}
    assert rows == [
        *((name, kinds[kind]) for name, kind in CASE_KINDS.items()),
        *((name, kinds[kind]) for name, kind in RUN_KINDS.items()),
        *((name, kinds[cell_kind(name) or "text"]) for name in of_cells),
        *((name, votes[kind]) for name, kind in VOTE_COLUMNS.items()),
    ]


def test_every_key_in_the_code_is_on_the_page() -> None:
    code = re.sub(r"^ *(>>>|\[?').*$", "", CODE, flags=re.MULTILINE)  # examples in docstrings, which name keys of others
    literals = set(re.findall(r"[\"'](adk_eval\.[a-z_.]*[a-z_](?:\d+)?)[\"']", code))
    page = set(re.findall(r"`(adk_eval\.[^`]+)`", PAGE))
    assert unnamed(sorted(literals), page) == []
    prefixes = set(re.findall(r"f\"(adk_eval\.[a-z_.]+)\{", CODE))
    assert [prefix for prefix in prefixes if not any(key.startswith(prefix) for key in page)] == []


def test_every_key_on_the_page_is_in_the_code() -> None:
    keys = {key.partition("<")[0].partition("*")[0].rstrip(".") for key in re.findall(r"`(adk_eval\.[^`]+)`", PAGE)}
    composed = {"adk_eval.gate.claim_log", "adk_eval.user_simulator_outage"}  # of parts, in `gating.registry`
    assert [key for key in sorted(keys - composed) if key not in CODE] == []


def test_status_verdicts_and_schema_are_those_of_the_code() -> None:
    assert sorted(keys_of("Status")) == sorted([*NOT_COMPLETE, "complete", "adk_eval.status"])
    assert [verdict for verdict in VERDICTS if f"`{verdict}`" not in PAGE] == []
    assert f"Layout of the run; now `{SCHEMA}`" in PAGE


def test_the_manifest_has_what_the_page_says(run: tuple[mlflow.entities.Run, Path, MlflowClient]) -> None:
    manifest = json.loads((run[1] / FOLDER / "manifest.json").read_text())
    assert [name for name in manifest["parts"][0] if f"`{name}`" not in PAGE] == []
