"""Spark gives the run that one process gives. Every session of Spark is a process of its own, as only one of them can be in a process."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.tracking.earlier_runs import recording_of_run
from tests.judge.servers import Server, judging, serving
from tests.kit import turn_json
from tests.mlflow_kit import copied
from tests.postgres_kit import Postgres, postgres

__all__ = ["postgres"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed"),
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no java"),
]

CONFIG = {"criteria": {"tool_trajectory_avg_score": 0.5, "response_match_score": {"threshold": 0.4}}}

JOB = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
import mlflow_adk_eval as adk_eval
from mlflow_adk_eval import spark

def main():
    given = json.loads(sys.argv[1])
    session = (SparkSession.builder.master(given["master"]).config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", given["path"]).getOrCreate())
    session.sparkContext.setLogLevel("OFF")
    frame = session.read.parquet(given["rows"])
    frame = frame.repartition(5) if given["shuffled"] else frame
    frame = frame.drop(*given["drop"])
    try:
        report = spark.evaluate(frame, given["config"], given["out"], eval_set_id="rows", experiment="spark", tracking_uri=given["uri"],
            **given["options"])
        print(json.dumps({"run_id": report.run_id, "verdict": report.verdict, "notes": report.notes, "left": [str(one) for one in Path(given["out"]).rglob("*")]}))
    except adk_eval.AdkEvalError as error:
        print(json.dumps({"error": type(error).__name__, "said": str(error)}))
    session.stop()

if __name__ == "__main__":
    main()
"""


def turn(number: int) -> dict[str, Any]:
    call = ("find", {"n": number % 3, "none": None})
    return turn_json(f"What is {number}?", f"It is {number % 7} or 東京", call, invocation_id="")


def rows(cases: int, runs: int = 2) -> list[dict[str, Any]]:
    """Rows in an order that is not that of the ids; in one case a run broke off, in one it is missing."""
    found = []
    for number in range(cases):
        eval_id = f"case-{(number * 7919) % cases:05}"
        case = json.dumps({"eval_id": eval_id, "conversation": [turn(number), turn(number + 1)]}, ensure_ascii=False)
        for run in range(runs if number != 3 else 1):
            recorded: dict[str, Any] = {"invocations": [turn(number + (number % 4 == 0)), turn(number + 1 + run)]}
            if number == 5 and run:
                recorded |= {"invocations": recorded["invocations"][:1], "error": "HTTP 500", "unfinished": True}
            found.append({"case_no": number, "eval_id": eval_id, "run_index": run, "case": case, "recorded": json.dumps(recorded)})
    return found


def parquet(path: Path, found: list[dict[str, Any]]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(found), path)
    return path


def job(folder: Path, path: Path, uri: str, **given: Any) -> dict[str, Any]:
    (folder / "job.py").write_text(JOB)
    root = str(Path(__file__).parents[1])
    given = {
        "master": "local[2]",
        "config": CONFIG,
        "shuffled": False,
        "drop": [],
        "options": {},
        "path": f"{root}:{folder}",
        "out": str(folder / "out"),
        **given,
    }
    command = [sys.executable, str(folder / "job.py"), json.dumps({**given, "rows": str(path), "uri": uri})]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=500, cwd=folder, env={**environment(), "PYTHONPATH": given["path"]}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def facts(run_id: str, uri: str) -> dict[str, Any]:
    """What a run holds, and what the gate makes of it."""
    from mlflow import MlflowClient, artifacts

    from mlflow_adk_eval.evalset.rows import open_cases

    found = MlflowClient(uri).get_run(run_id)
    folder = Path(artifacts.download_artifacts(run_id=run_id, artifact_path="adk_eval", tracking_uri=uri))
    decision = adk_eval.gate(run_id, tracking_uri=uri, raise_on_failure=False)
    kept = {"adk_eval.eval_set_digest", "adk_eval.config_digest", "adk_eval.num_runs"}
    return {
        "cells": columns(folder / "cells"),
        "cases": columns(folder / "cases"),
        "actual": columns(folder / "actual"),
        "again": [(row.case.eval_id, len(row.runs or ())) for batch in open_cases(folder).batches() for row in batch],
        "metrics": found.data.metrics,
        "params": {name: value for name, value in found.data.params.items() if name in kept or name.startswith("threshold.")},
        "verdict": found.data.tags["adk_eval.verdict"],
        "decision": (decision.verdict, decision.reasons, decision.checks),
    }


def columns(folder: Path) -> dict[str, list[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return dict(pa.concat_tables([pq.read_table(file) for file in sorted(folder.iterdir())]).to_pydict())


def one_process(path: Path, uri: str, config: Any = None, **options: Any) -> dict[str, Any]:
    report = adk_eval.evaluate(path, config=config or CONFIG, experiment="spark", tracking_uri=uri, **options)
    return facts(report.run_id or "", uri)


@pytest.fixture
def uri(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return copied(template, tmp_path)


def test_spark_gives_the_run_of_one_process(uri: str, tmp_path: Path) -> None:
    found = rows(500)
    path = parquet(tmp_path / "rows.parquet", found)
    done = job(tmp_path, path, uri, shuffled=True)
    assert done["left"] == []
    plain = parquet(tmp_path / "plain.parquet", [{key: value for key, value in row.items() if key != "case_no"} for row in found])
    expected = one_process(plain, uri)
    assert facts(done["run_id"], uri) == expected
    assert one_process(plain, uri, workers=2) == expected
    assert recording_of_run(done["run_id"], uri).num_runs(["case-00000"]) == 2


def test_without_case_no_the_order_is_that_of_the_ids(uri: str, tmp_path: Path) -> None:
    found = rows(30)
    done = job(tmp_path, parquet(tmp_path / "rows.parquet", found), uri, drop=["case_no"])
    ordered = [{key: value for key, value in row.items() if key != "case_no"} for row in sorted(found, key=lambda row: row["eval_id"])]
    assert facts(done["run_id"], uri) == one_process(parquet(tmp_path / "plain.parquet", ordered), uri)


KILLER = """
import os
from pathlib import Path

def metric(metric, actual_invocations, expected_invocations, scenario):
    mark = Path({mark!r})
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return 1.0
    os.kill({victim}, 9)
"""


@pytest.mark.parametrize(
    ("master", "victim"),
    [
        ("local[2,2]", "os.getpid()"),
        ("local-cluster[2,1,1024]", "int(Path(f'/proc/{os.getppid()}/stat').read_text().rpartition(')')[2].split()[1])"),
    ],
)
def test_what_a_killed_task_did_is_done_again(uri: str, tmp_path: Path, master: str, victim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "killed"
    (tmp_path / "killer.py").write_text(KILLER.format(mark=str(mark), victim=victim))
    monkeypatch.syspath_prepend(tmp_path)
    custom = {
        "code_config": {"name": "killer.metric"},
        "metric_info": {"metric_name": "killing", "metric_value_info": {"interval": {"min_value": 0, "max_value": 1}}},
    }
    config = {"criteria": {"tool_trajectory_avg_score": 0.5, "killing": 0.5}, "custom_metrics": {"killing": custom}}
    found = rows(500)
    done = job(tmp_path, parquet(tmp_path / "rows.parquet", found), uri, master=master, config=config)
    assert mark.exists(), done
    assert done["left"] == []
    plain = parquet(tmp_path / "plain.parquet", [{key: value for key, value in row.items() if key != "case_no"} for row in found])
    assert facts(done["run_id"], uri) == one_process(plain, uri, config)


JUDGED = {
    "criteria": {"final_response_match_v2": {"threshold": 0.3, "judge_model_options": {"num_samples": 1}}, "tool_trajectory_avg_score": 0.5}
}
KILLER_LATER = """
import os
from pathlib import Path

def metric(metric, actual_invocations, expected_invocations, scenario):
    mark = Path({mark!r})
    if "What is 150?" in str(actual_invocations[0].user_content) and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)
    return 1.0
"""


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(judging(lambda call: "valid" if "It is 1 " in call.text else "invalid")) as running:
        monkeypatch.setenv("GOOGLE_API_KEY", "a-key-for-tests")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", running.url)
        for name in ("GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"):
            monkeypatch.delenv(name, raising=False)
        yield running


def judged_facts(run_id: str, uri: str) -> dict[str, Any]:
    """What a run holds, but for what depends on time and on what was asked where."""
    from mlflow import artifacts

    folder = Path(artifacts.download_artifacts(run_id=run_id, artifact_path="adk_eval/votes", tracking_uri=uri))
    votes = {name: values for name, values in columns(folder).items() if name not in {"latency_s", "reused", "asked_in", "asked_at"}}
    found = facts(run_id, uri)
    kept = {name: value for name, value in found["metrics"].items() if not name.startswith("judge/") or name == "judge/votes"}
    return {**found, "metrics": kept, "votes": votes}


@pytest.mark.parametrize("killed", [False, True])
def test_judges_are_asked_once_where_all_hosts_share_a_ledger(
    uri: str, tmp_path: Path, judge: Server, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    mark = tmp_path / "killed"
    (tmp_path / "later.py").write_text(KILLER_LATER.format(mark=str(mark)))
    monkeypatch.syspath_prepend(tmp_path)
    mark.touch()  # nothing is killed in this process
    custom = {
        "code_config": {"name": "later.metric"},
        "metric_info": {"metric_name": "killing", "metric_value_info": {"interval": {"min_value": 0, "max_value": 1}}},
    }
    config = {"criteria": {**JUDGED["criteria"], "killing": 0.5}, "custom_metrics": {"killing": custom}}
    found = rows(200)
    plain = parquet(tmp_path / "plain.parquet", [{key: value for key, value in row.items() if key != "case_no"} for row in found])
    whole = adk_eval.evaluate(plain, config=config, experiment="spark", tracking_uri=uri, ledger=tmp_path / "one.sqlite")
    asked = len(judge.calls)
    assert asked > 200
    if killed:
        mark.unlink()
    ledger = postgres.new_database()
    done = job(tmp_path, parquet(tmp_path / "rows.parquet", found), uri, master="local[2,4]", config=config, options={"ledger": ledger})
    assert mark.exists()
    again = len(judge.calls) - asked
    assert (asked < again <= asked + 2 * 64) if killed else again == asked, "more than what was under way was asked twice"
    assert judged_facts(done["run_id"], uri) == judged_facts(whole.run_id or "", uri)
    if not killed:
        taken = adk_eval.evaluate(plain, config=config, experiment="spark", tracking_uri=uri, ledger=ledger)
        assert taken.judging
        assert (taken.judging.calls, len(judge.calls)) == (0, 2 * asked)


def test_a_panel_votes_on_spark_as_in_one_process(uri: str, tmp_path: Path, judge: Server, postgres: Postgres) -> None:
    panel = ["gemini-2.5-pro", "gemini-2.5-flash"]
    found = rows(30)
    plain = parquet(tmp_path / "plain.parquet", [{key: value for key, value in row.items() if key != "case_no"} for row in found])
    whole = adk_eval.evaluate(plain, config=JUDGED, experiment="spark", tracking_uri=uri, ledger=tmp_path / "one.sqlite", judge=panel)
    asked = len(judge.calls)
    given = {"ledger": postgres.new_database(), "judge": panel}
    done = job(tmp_path, parquet(tmp_path / "rows.parquet", found), uri, config=JUDGED, options=given)
    assert judged_facts(done["run_id"], uri) == judged_facts(whole.run_id or "", uri)
    assert len(judge.calls) == 2 * asked
    members = {name for name in facts(done["run_id"], uri)["metrics"] if name.startswith("judge/agreement/")}
    assert members == {f"judge/agreement/{name}" for name in panel}


def test_a_budget_is_one_budget_of_all_tasks(uri: str, tmp_path: Path, judge: Server, postgres: Postgres) -> None:
    given = {"ledger": postgres.new_database(), "budget": {"max_calls": 20}}
    done = job(tmp_path, parquet(tmp_path / "rows.parquet", rows(40)), uri, config=JUDGED, options=given)
    assert (done["verdict"] != "passed", len(judge.calls)) == (True, 20)


def test_traces_are_the_recorded_runs_of_the_cases(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("production")
    for number in range(12):
        for run in range(2 if number % 3 else 1):
            for text in (f"What is {number}?", f"What is {number + 1}?"):
                with mlflow.start_span("assistant", span_type="AGENT") as root:
                    root.set_inputs({"question": text})
                    mlflow.update_current_trace(metadata={"mlflow.trace.session": f"s{number}-{run}"})
                    root.set_outputs(f"It is {number % 7} or 東京" if not run else "I do not know")
    with mlflow.start_span("assistant", span_type="AGENT") as root:
        root.set_inputs({"question": "stranger"})
        root.set_outputs("who?")
    mlflow.flush_trace_async_logging()
    traces = mlflow.search_traces(return_type="list")
    cases = [{"eval_id": f"case-{number}", "conversation": [turn(number), turn(number + 1)]} for number in range(14)]
    (tmp_path / "set.evalset.json").write_text(json.dumps({"eval_set_id": "set", "eval_cases": cases}))
    path = parquet(tmp_path / "traces.parquet", [{"trace": trace.to_json()} for trace in traces])
    done = job(tmp_path, path, uri, shuffled=True, options={"eval_set": "set.evalset.json"})
    report = adk_eval.evaluate("set.evalset.json", agent=traces, config=CONFIG, experiment="spark", tracking_uri=uri)
    assert facts(done["run_id"], uri) == facts(report.run_id or "", uri)
    assert report.num_runs == 2
    assert [note for note in done["notes"] if "of no case" in note] == [f"1 recorded conversation is of no case: trace {stranger(traces)}"]


def stranger(traces: Any) -> str:
    (found,) = [trace.info.trace_id for trace in traces if "stranger" in (trace.info.request_preview or "")]
    return str(found)


def test_the_command_scores_on_spark(uri: str, tmp_path: Path) -> None:
    ordered = sorted(rows(30), key=lambda row: row["eval_id"])
    path = parquet(tmp_path / "rows.parquet", [{key: value for key, value in row.items() if key != "case_no"} for row in ordered])
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    given = ["--config", "config.json", "--experiment", "spark", "--tracking-uri", uri, "--json", "--backend", "spark"]
    command = [sys.executable, "-m", "mlflow_adk_eval", "run", "rows.parquet", *given]
    done = subprocess.run([*command, "--staging", "out"], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment())
    assert done.returncode == 1, done.stderr[-4000:]
    assert facts(json.loads(done.stdout)["run_id"], uri) == one_process(path, uri)
    wrong = subprocess.run([*command, "--workers", "2"], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment())
    assert (wrong.returncode, wrong.stderr.strip().splitlines()[-1]) == (
        64,
        "error: '--workers': cannot be combined with --backend spark",
    )


def test_what_is_wrong_is_one_error(uri: str, tmp_path: Path) -> None:
    found = rows(4)
    path = parquet(tmp_path / "rows.parquet", found)
    judged = job(tmp_path, path, uri, config={"criteria": {"final_response_match_v2": 0.5}})
    assert judged["said"].startswith(
        "judges decide final_response_match_v2: without a shared ledger, Spark's hosts would pay for answers twice"
    )
    assert job(tmp_path, path, uri, drop=["recorded"])["said"].startswith(
        "the DataFrame has no column recorded; wanted eval_id, case, recorded"
    )
    found[1]["recorded"] = '{"invocatons": []}'
    broken = job(tmp_path, parquet(tmp_path / "broken.parquet", found), uri)
    assert broken["error"] == "UsageError"
    assert broken["said"].startswith(
        f"rows: 1 problem in this eval set\n  case '{found[1]['eval_id']}', run 2: $.recorded.invocatons: found"
    )
