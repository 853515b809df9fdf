"""The law of batches: however cases are cut and wherever they are scored, the run is the same."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents.recordings import load_recording, recording_beside
from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.errors import Problem
from mlflow_adk_eval.evalset.files import open_inputs
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, eval_set_digest
from mlflow_adk_eval.evalset.rows import open_cases, streamed
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.batches import BatchRow, Scoring, batches_of, engine_of, score_batch, taken
from mlflow_adk_eval.runner.evaluation import CaseExecutor, Evaluation, Options, wait
from mlflow_adk_eval.runs.collect import InParts
from mlflow_adk_eval.runs.stored_run import StoredRun, loaded
from tests.kit import turn_json
from tests.profiles import examples
from tests.strategies import respelt

COMPUTED = {"criteria": {"tool_trajectory_avg_score": 0.5, "response_match_score": {"threshold": 0.4}}}
CONFIG = {"criteria": {**COMPUTED["criteria"], "final_session_state": 1.0}}
WORDS = ("the lamp is on", "it is 20 °C", "東京は晴れ", "", "door locked & shut", "nobody is home")


def turn(text: str, asked: str, tools: Sequence[str]) -> dict[str, Any]:
    return {"intermediate_data": {"tool_uses": []}} | turn_json(asked, text, *((name, {"n": 1}) for name in tools), invocation_id="")


turns = st.builds(turn, st.sampled_from(WORDS), st.sampled_from(WORDS), st.lists(st.sampled_from(("find", "set")), max_size=2))


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of cases with their runs; some runs are missing, some broke off, some have a state."""
    found: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 7))):
        eval_id = f"case-{number}"
        expected = draw(st.lists(turns, min_size=1, max_size=3))
        case = {"eval_id": eval_id, "conversation": expected, **({"final_session_state": {"on": True}} if draw(st.booleans()) else {})}
        for run in range(draw(st.integers(1, 2))):
            recorded = {"invocations": draw(st.lists(turns, max_size=3))}
            recorded |= draw(
                st.sampled_from(({}, {"error": "HTTP 500", "unfinished": True}, {"session_state": {"on": True, "n": [1, None]}}))
            )
            told = recorded["invocations"] if len(recorded) == 1 and draw(st.booleans()) else recorded
            found.append({"eval_id": eval_id, "run_index": run, **({} if run else {"case": case}), "recorded": told})
    return found


def written(path: Path, found: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in found), "utf-8")
    return path


def evaluation_of(path: Path, **options: Any) -> Evaluation:
    eval_set = streamed(open_cases(path))
    recording = recording_beside(eval_set, open_inputs(path))
    assert recording is not None
    return Evaluation(eval_set, load_config(CONFIG), CaseExecutor(recording, Options(**options)))


def facts(report: Report) -> dict[str, Any]:
    """What a report says, without where it is kept."""
    return {
        "cases": [plain(case) for case in report.cases],
        "verdict": report.verdict,
        "reasons": report.reasons,
        "means": {name: summary.mean for name, summary in report.summaries().items()},
        "digest": eval_set_digest(report.eval_set),
        "ids": tuple(report.eval_set.eval_ids),
        "num_runs": report.num_runs,
        "notes": report.notes,
    }


def plain(case: Any) -> Any:
    found = loaded(case)
    length = found.turns or 1
    cells = [(one.criterion, one.threshold, one.overall, (*one.per_invocation, *(None,) * length)[:length]) for one in found.results]
    return (
        found.eval_id,
        found.run_index,
        found.actual,
        found.expected,
        found.error,
        found.conversation.unfinished,
        found.session_state,
        cells,
    )


def contents(parts: InParts) -> dict[str, Any]:
    """What the parts hold, as one table each."""
    reader = StoredRun(parts.files, parts.parts, "run")
    columns: dict[str, list[Any]] = {}
    for part in reader:
        for name, values in part.cells.items():
            columns.setdefault(name, []).extend(values)
    return {
        "case_ids": [one for part in reader for one in part.case_ids],
        "documents": [one for part in reader for one in part.documents],
        "runs": [one for part in reader for one in part.run_ids],
        "recorded": [json.loads(one) for part in reader for one in part.recorded],
        "cells": columns,
        "places": [place for part in parts.parts for place in range(part.first_case_no, part.last_case_no + 1)],
    }


def one_process(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    evaluation = evaluation_of(path)
    parts = evaluation.collector()
    assert parts is not None
    report = wait(lambda: evaluation.execute(collector=parts))
    return facts(report), contents(parts)


def in_batches(path: Path, size: int, *, large: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Score batches of some cases each, all pickled on the way there and back; `large`: as if there were too many turns for the memory."""
    evaluation = evaluation_of(path)
    parts = evaluation.collector()
    assert parts is not None
    parts._in_memory = None if large else parts._in_memory

    async def collect() -> None:
        cases: list[list[BatchRow]] = []
        for row in (row for batch in batches_of(evaluation) for row in batch):
            if row.case is not None:
                cases.append([])
            cases[-1].append(row)
        for start in range(0, len(cases), size):
            batch = [row for case in cases[start : start + size] for row in case]
            sent = pickle.loads(pickle.dumps((batch, Scoring(evaluation.config, parts.criteria, evaluation.num_runs))))  # noqa: S301 - our own
            taken(evaluation, parts, pickle.loads(pickle.dumps(score_batch(*sent))))  # noqa: S301 - our own

    report = wait(lambda: evaluation.execute(collector=parts, engine=collect))
    return facts(report), contents(parts)


@examples(25)
@given(found=rows(), size=st.integers(1, 8), large=st.booleans(), seed=st.integers(0, 2**32))
def test_however_cases_are_cut_the_run_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, found: list[dict[str, Any]], size: int, large: bool, seed: int
) -> None:
    path = written(tmp_path_factory.mktemp("law") / "rows.jsonl", respelt(found, seed))
    assert in_batches(path, size, large=large) == one_process(path)


EDGES = [
    {"eval_id": "whole", "run_index": 0, "case": {"eval_id": "whole", "conversation": [turn("hi", "hi", ["find"])]}, "recorded": [turn("hi", "hi", ["find"])]},
    {"eval_id": "whole", "run_index": 1, "recorded": {"invocations": [], "error": "HTTP 500"}},
    {"eval_id": "bare", "case": {"eval_id": "bare", "conversation": [turn("no", "no", [])]}},
    {"eval_id": "short", "case": {"eval_id": "short", "conversation": [turn("a", "b", []), turn("c", "d", [])]}, "recorded": [turn("a", "b", [])]},
]  # fmt: skip


def test_runs_that_are_missing_are_missing_in_the_same_words(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", EDGES)
    expected = one_process(path)
    assert [in_batches(path, size, large=size > 1) for size in (1, 2, 3)] == [expected] * 3
    assert [(case[0], case[1], case[4]) for case in expected[0]["cases"] if "does not contain" in case[4]] == [
        ("bare", 0, "the recording does not contain case 'bare'"),
        ("bare", 1, "the recording does not contain run 2 of case 'bare'"),
        ("short", 1, "the recording does not contain run 2 of case 'short'"),
    ]


def test_what_is_wrong_with_rows_is_said_also_across_processes() -> None:
    scoring = Scoring(load_config(CONFIG), ("tool_trajectory_avg_score",))
    with pytest.raises(adk_eval.EvalSetError) as raised:
        score_batch([("a", 0, "{", None), ("b", 0, '{"eval_id": "b"}', "[]")], scoring)
    again = pickle.loads(pickle.dumps(raised.value))  # noqa: S301 - our own
    assert (str(again), again.problems) == (str(raised.value), raised.value.problems)
    assert again.problems[0] == Problem("case 'a': $", again.problems[0].found, "JSON text")
    assert "2 problems" in str(again)


def test_judges_do_not_decide_in_batches() -> None:
    scoring = Scoring(load_config({"criteria": {"final_response_match_v2": 0.5}}), ("final_response_match_v2",))
    with pytest.raises(
        adk_eval.UsageError, match="judges decide final_response_match_v2: without a shared ledger, batches would pay for answers twice"
    ):
        score_batch([], scoring)


def test_several_processes_take_no_agent_and_no_judge(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", EDGES)
    with pytest.raises(
        adk_eval.UsageError, match=r"workers=2: several processes can only apply computed criteria, but judges decide final_"
    ):
        adk_eval.score(path, config={"criteria": {"final_response_match_v2": 0.5}}, judge=lambda question: "valid", workers=2)
    with pytest.raises(adk_eval.UsageError, match=r"workers=2: several processes can only score recordings; record the agent first"):
        adk_eval.evaluate(path, agent=lambda text: text, config=COMPUTED, tracking_uri=f"sqlite:///{tmp_path}/none.db", workers=2)
    with pytest.raises(adk_eval.UsageError, match="workers=0: wanted a whole number of at least 1"):
        adk_eval.score(path, config=CONFIG, workers=0)


def many(path: Path, cases: int) -> Path:
    said = [turn("the lamp is on", "on?", ["set"])] * 20
    found = [{"eval_id": f"c{n}", "case": {"eval_id": f"c{n}", "conversation": said}, "recorded": said[n % 3 :]} for n in range(cases)]
    return written(path, found)


def with_workers(path: Path, workers: int) -> tuple[dict[str, Any], dict[str, Any]]:
    evaluation = evaluation_of(path, workers=workers)
    parts = evaluation.collector()
    assert parts is not None
    engine = engine_of(evaluation, parts) if workers > 1 else None
    report = wait(lambda: evaluation.execute(collector=parts, engine=engine))
    return facts(report), contents(parts)


@pytest.mark.slow
def test_several_processes_give_the_same_run(tmp_path: Path) -> None:
    path = many(tmp_path / "rows.jsonl", 450)  # 9,000 turns: five parts, and more than are kept in memory
    expected = one_process(path)
    assert [with_workers(path, workers) for workers in (2, 3)] == [expected] * 2


@pytest.mark.slow
def test_a_recording_apart_from_the_cases_gives_the_same_report(tmp_path: Path) -> None:
    said = [turn("the lamp is on", "on?", ["set"])]
    eval_set = EvalSet.model_validate({"eval_set_id": "s", "eval_cases": [{"eval_id": f"c{n}", "conversation": said} for n in range(3)]})
    recording = load_recording({f"c{n}": [turn("the lamp is off", "on?", [])] for n in range(1, 4)})
    one = adk_eval.score(eval_set, recording, CONFIG)
    assert facts(adk_eval.score(eval_set, recording, CONFIG, workers=2)) == facts(one)
    assert one.notes[0] == "1 recorded case is not in the eval set: c3"


KILLED = """
import os, signal, sys, threading, time
from contextlib import suppress
from pathlib import Path
import mlflow_adk_eval as adk_eval

def read(path):
    try:
        return Path(path).read_text()
    except OSError:  # it ended meanwhile
        return ""

def children(pid):
    return [int(child) for child in read(f"/proc/{pid}/task/{pid}/children").split()]

def workers():
    below = [pid for child in children(os.getpid()) for pid in [child, *children(child)]]
    return [pid for pid in below if "forkserver" in read(f"/proc/{pid}/cmdline")][1:]

def at_work(pid):
    # multiprocessing itself waits for ever for one that dies while it is being started
    user, system = (read(f"/proc/{pid}/stat").rpartition(")")[2].split()[11:13] or (0, 0))
    return int(user) + int(system) >= 15

def kill():
    for _ in range(int(sys.argv[2])):
        while not (found := [pid for pid in workers() if at_work(pid)]):
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.kill(found[0], signal.SIGKILL)
        while found[0] in workers():
            time.sleep(0.01)

if __name__ == "__main__":
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    report = adk_eval.score(sys.argv[1], config={"criteria": {"tool_trajectory_avg_score": 0.5}}, workers=2)
    print(killer.is_alive(), report.verdict, report.summaries()["tool_trajectory_avg_score"].mean)
"""


def killing(tmp_path: Path, times: int) -> subprocess.CompletedProcess[str]:
    (tmp_path / "killed.py").write_text(KILLED)
    path = many(tmp_path / "rows.jsonl", 450)
    command = [sys.executable, str(tmp_path / "killed.py"), str(path), str(times)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_the_cases_of_a_killed_worker_are_scored_again(tmp_path: Path) -> None:
    done = killing(tmp_path, 1)
    expected = adk_eval.score(tmp_path / "rows.jsonl", config={"criteria": {"tool_trajectory_avg_score": 0.5}})
    assert done.stdout.split() == ["False", expected.verdict, str(expected.summaries()["tool_trajectory_avg_score"].mean)], done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_a_worker_that_is_killed_again_and_again_is_one_error(tmp_path: Path) -> None:
    done = killing(tmp_path, 1000)
    assert done.returncode
    assert "RunError: a worker process died twice on the same cases, perhaps out of memory; use fewer workers." in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
@pytest.mark.parametrize(
    ("signal_number", "processes"),  # besides the tracker of resources and the process itself: 1 the fork server, 3 both workers
    [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGINT, 3), (signal.SIGKILL, 2)],
)
def test_no_worker_outlives_what_started_it(tmp_path: Path, signal_number: int, processes: int) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), str(many(tmp_path / "rows.jsonl", 2000)), "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - a shell ignores it in what runs in the background
    )
    while len(group(process.pid)) < 2 + processes:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal_number) if signal_number == signal.SIGKILL else os.killpg(process.pid, signal_number)
    _, said = process.communicate(timeout=240)
    assert process.returncode
    assert "ForkServerProcess" not in said  # a worker's traceback
    assert "multiprocessing/forkserver.py" not in said  # the fork server's
    deadline = time.monotonic() + 60
    while group(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert group(process.pid) == []


def group(leader: int) -> list[str]:
    """Return the processes of a group, but for those that have ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


@pytest.mark.needs("fsspec")
def test_rows_of_arrow_become_part_files_that_are_read_back(tmp_path: Path) -> None:
    import pyarrow as pa

    from mlflow_adk_eval.runner.arrow import Folder, read_part, write_parts

    said = [turn("the lamp is on", "on?", ["set"])]
    found = [
        {"eval_id": f"c{n}", "run_index": 0, "case": json.dumps({"eval_id": f"c{n}", "conversation": said}), "recorded": json.dumps(said)}
        for n in range(1000)
    ]
    scoring = Scoring(load_config(CONFIG), ("tool_trajectory_avg_score",))
    out = str(tmp_path / "out")
    named = [
        row for batch in write_parts(pa.Table.from_pylist(found).to_batches(max_chunksize=7), scoring, out) for row in batch.to_pylist()
    ]
    assert [(row["first_id"], row["cases"], row["turns"]) for row in named] == [("c0", 400, 400), ("c400", 400, 400), ("c800", 200, 200)]
    folder = Folder(out)
    rows = [BatchRow(row["eval_id"], 0, row["case"], row["recorded"]) for row in found[:400]]
    assert read_part(folder, named[0], ("cases", "actual", "cells")) == score_batch(rows, scoring)
    folder.remove()
    assert not (tmp_path / "out").exists()


def test_traces_in_arrow_become_runs_of_the_cases_that_they_are_of() -> None:
    import pyarrow as pa

    from mlflow_adk_eval.agents.traces.conversations import TracedCases
    from mlflow_adk_eval.runner.arrow import keyed_traces, traced_runs

    def trace(number: int, session: str, question: str, answer: str) -> str:
        times = {"start_time_unix_nano": number * 1_000, "end_time_unix_nano": number * 1_000 + 10}
        root = {
            **times,
            "name": "assistant",
            "span_id": f"{number:016x}",
            "parent_span_id": None,
            "trace_id": f"{number:032x}",
            "attributes": {"mlflow.spanType": "AGENT", "mlflow.spanInputs": {"question": question}, "mlflow.spanOutputs": answer},
        }
        info = {"trace_id": f"tr-{number}", "request_time": "1970-01-01T00:00:00Z", "trace_metadata": {"mlflow.trace.session": session}}
        return json.dumps({"info": info, "data": {"spans": [root]}})

    said = [trace(4, "b", "and now?", "off"), trace(1, "a", "on?", "yes"), trace(2, "b", "on?", "no"), trace(3, "a", "and now?", "still")]
    strangers = [trace(5, "c", "who?", "me"), json.dumps({"info": {"trace_id": "tr-6"}, "data": {"spans": []}})]
    table = pa.Table.from_pylist([{"trace": text} for text in [*said, *strangers]])
    keyed = pa.Table.from_batches(keyed_traces(table.to_batches(max_chunksize=2))).sort_by("key")
    conversation = [turn("yes", "on?", []), turn("still", "and now?", [])]
    cases = TracedCases([EvalCase.model_validate({"eval_id": name, "conversation": conversation}) for name in ("b", "other")])
    found = [row for batch in traced_runs(keyed.to_batches(max_chunksize=1), cases) for row in batch.to_pylist()]
    *of_a, of_b = (row for row in found if row["eval_id"])
    assert (of_b["eval_id"], of_b["first_trace"], of_b["began"]) == ("b", "tr-2", 2_000)
    assert [one["final_response"]["parts"][0]["text"] for one in json.loads(of_b["recorded"])["invocations"]] == ["no", "off"]
    assert {row["eval_id"]: json.loads(row["recorded"])["error"].partition(";")[0] for row in of_a} == dict.fromkeys(
        ("b", "other"), "session a matches several cases, 'b', 'other'"
    )
    lost = {row["label"]: row["problem"] for row in found if not row["eval_id"]}
    assert lost["session c"] is None
    assert "trace tr-6" in lost["trace tr-6"]
