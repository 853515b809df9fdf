"""Parts that outlive a killed process: who takes them over comes to what nobody disturbed, bit for bit, and takes no other part."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from mlflow import MlflowClient

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.evalset.models import eval_set_digest
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner import evaluation as evaluation_module
from mlflow_adk_eval.runs import collect
from mlflow_adk_eval.runs.collect import InParts
from tests.mlflow_kit import copied
from tests.tracking.small import turn

CONFIG: dict[str, Any] = {"criteria": {"tool_trajectory_avg_score": 1.0, "response_match_score": 0.6}}
TURNS, A_PART = 2, 20
"""Turns in a case, and cases in a part."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_module, "SMALL_TURNS", 0)
    defaults: Any = InParts.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "part_turns", TURNS * A_PART)


class StoppedError(Exception):
    """Stands for whatever ends an evaluation early."""


def written(path: Path, cases: int = 50, turns: int = TURNS, other: Mapping[int, str] = MappingProxyType({})) -> Path:
    """Write cases, every third of which is answered wrongly; `other`: what is answered in a case by its number."""
    with path.open("w") as file:
        for number in range(cases):
            answer = other.get(number, f"answer {number}" if number % 3 else "nonsense")
            asked = [turn(f"question {number} {index}", f"answer {number}") for index in range(turns)]
            done = [turn(f"question {number} {index}", answer) for index in range(turns)]
            case = {"eval_id": f"case {number}", "conversation": asked}
            file.write(json.dumps({"eval_id": case["eval_id"], "case": case, "recorded": done}) + "\n")
    return path


def scored(path: Path, stop_at: int = 0, config: Any = None, **options: Any) -> tuple[int, Report | None]:
    """Return with how many cases an evaluation began, and its report; it is stopped after so many cases."""
    told: list[int] = []

    def progress(done: int, _: int) -> None:
        told.append(done)
        if done == stop_at:
            raise StoppedError

    report = None
    try:
        given: dict[str, Any] = {"ledger": path.with_name("ledger.sqlite"), **options}
        report = adk_eval.score(path, config=config or CONFIG, progress=progress, **given)
    except* StoppedError:
        assert stop_at
    return told[0] if told[0] > 1 else 0, report


def facts(report: Report | None) -> Any:
    assert report
    return tuple(report.cases), report.scores, report.reasons, eval_set_digest(report.eval_set), report.num_runs, report.notes


def test_a_stopped_evaluation_goes_on_after_its_last_whole_part(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl")
    undisturbed = adk_eval.score(path, config=CONFIG, ledger=False)
    scored(path, stop_at=30)
    assert scored(path, stop_at=44) == (A_PART, None)  # stopped again
    assert len(list(tmp_path.glob("parts/*/part-*.json"))) == 2
    began, report = scored(path)
    assert began == 2 * A_PART
    assert facts(report) == facts(undisturbed)
    assert not list(tmp_path.glob("parts/*"))
    assert scored(path)[0] == 0  # nothing is left to be taken over


def edited(folder: Path) -> None:
    (part,) = folder.glob("parts/*/cells/part-00000.parquet")
    part.write_bytes(part.read_bytes()[:-1] + b"!")


def swapped(folder: Path) -> None:
    first, second = sorted(folder.glob("parts/*/cells/part-*.parquet"))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def garbled(folder: Path) -> None:
    (listed,) = folder.glob("parts/*/part-00000.json")
    listed.write_text('{"part": {}}')


def removed(folder: Path) -> None:
    (part,) = folder.glob("parts/*/actual/part-00000.parquet")
    part.unlink()


@pytest.mark.parametrize("change", [edited, swapped, garbled, removed])
def test_a_part_that_was_changed_is_scored_again(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = written(tmp_path / "rows.jsonl")
    scored(path, stop_at=46)
    change(tmp_path)
    began, report = scored(path)
    assert began == 0
    assert facts(report) == facts(adk_eval.score(path, config=CONFIG, ledger=False))


@pytest.mark.parametrize(("number", "taken"), [(7, 0), (A_PART + 7, A_PART)])
def test_a_part_of_changed_rows_is_scored_again(tmp_path: Path, number: int, taken: int) -> None:
    path = written(tmp_path / "rows.jsonl")
    scored(path, stop_at=46)
    written(path, other={number: "something else"})
    began, report = scored(path)
    assert began == taken
    assert facts(report) == facts(adk_eval.score(path, config=CONFIG, ledger=False))


def test_rows_that_were_put_in_another_order_or_taken_out_are_scored_again(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl")
    scored(path, stop_at=46)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(reversed(lines)))
    assert scored(path, stop_at=46) == (0, None)
    path.write_text("".join(lines[:30]))
    began, report = scored(path)
    assert began == 0  # the folder is the same, its parts are now those of the reversed rows
    assert facts(report) == facts(adk_eval.score(path, config=CONFIG, ledger=False))


@pytest.mark.parametrize("what", ["config", "code", "installed", "num_runs"])
def test_another_evaluation_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    path = written(tmp_path / "rows.jsonl")
    scored(path, stop_at=46)
    config = CONFIG
    if what == "config":
        config = {"criteria": CONFIG["criteria"] | {"response_match_score": 0.7}}
    elif what == "code":
        monkeypatch.setattr(collect, "_PACKAGE", tmp_path)
    elif what == "installed":
        (tmp_path / "other-2.0.dist-info").mkdir()
        monkeypatch.syspath_prepend(tmp_path)
    else:  # a further run of the last case, so that all others lack one
        path.write_text(path.read_text() + json.dumps({"eval_id": "case 49", "run_index": 1, "recorded": []}) + "\n")
    assert scored(path, config=config)[0] == 0


def test_what_is_not_computed_here_alone_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours.py").write_text("def metric(metric, actual, expected, scenario):\n    return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = {"criteria": {"ours": 0.5}, "custom_metrics": {"ours": {"code_config": {"name": "ours.metric"}}}}
    path = written(tmp_path / "rows.jsonl")
    for options in ({"config": config}, {"baseline": {}}):
        scored(path, stop_at=46, **options)
        assert not (tmp_path / "parts").exists()
    scored(path, stop_at=46, ledger=False)
    assert not (tmp_path / "parts").exists()


WORKER = """
import json, sys, time
import mlflow_adk_eval as adk_eval

def progress(done, total):
    if done == 0.6 * total:
        print("there", flush=True)
        time.sleep(600)

adk_eval.evaluate("rows.jsonl", config=json.loads(sys.argv[1]), experiment="e", tracking_uri=sys.argv[2], traces=False, progress=progress)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_is_gone_on_with(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the parts of the other process are as large as anybody's
    monkeypatch.chdir(tmp_path)
    uri = copied(template, tmp_path)
    written(Path("rows.jsonl"), 100, turns=45)
    with subprocess.Popen([sys.executable, "-c", WORKER, json.dumps(CONFIG), uri], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "there\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    told = list[int]()
    where: dict[str, Any] = {"config": CONFIG, "experiment": "e", "tracking_uri": uri, "traces": False}
    resumed = adk_eval.evaluate("rows.jsonl", resume="latest", progress=lambda done, _: told.append(done), **where)
    undisturbed = adk_eval.evaluate("rows.jsonl", ledger=False, **where)
    assert told == [45, *range(46, 101)]  # a part ends with the case that has its 2,000th turn
    assert not list(Path(".adk_eval/parts").iterdir())
    one, other = (evidence(report, uri) for report in (resumed, undisturbed))
    assert one == other
    policy = {"rules": {"response_match_score": {"min": 0.5, "use": "ci_low"}}, "must_pass": ["case 1"], "thresholds": False}
    one, other = (decision(report, policy, uri) for report in (resumed, undisturbed))
    assert one == other
    experiment = MlflowClient(uri).get_experiment_by_name("e")
    assert experiment
    assert len(MlflowClient(uri).search_runs([experiment.experiment_id])) == 2  # the killed run was gone on with


def evidence(report: Report, uri: str) -> Any:
    """Return what a run holds that does not name it."""
    assert report.run_id
    client = MlflowClient(uri)
    run = client.get_run(report.run_id)
    folder = Path(client.download_artifacts(report.run_id, "adk_eval"))
    parts = {path.relative_to(folder): path.read_bytes() for kind in ("cases", "actual", "cells") for path in (folder / kind).iterdir()}
    assert len(parts) == 9
    params = {name: value for name, value in run.data.params.items() if name not in {"adk_eval.manifest_sha256", "adk_eval.evaluation"}}
    metrics = {name: value for name, value in run.data.metrics.items() if not name.startswith("system/")}
    return parts, params, metrics, json.loads((folder / "manifest.json").read_bytes())["parts"]


def decision(report: Report, policy: Any, uri: str) -> Any:
    assert report.run_id
    found = adk_eval.gate(report.run_id, policy, tracking_uri=uri, raise_on_failure=False)
    return found.verdict, found.reasons, found.checks, found.scores, found.notes
