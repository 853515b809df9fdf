"""Evaluations that are killed at any moment and resumed: a real judge client, a server that counts, a SQLite store."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.ledger import CallCache
from tests.judge.servers import Call, Server, gemini_answer, serving
from tests.kit import case_json, eval_set_json, turn_json
from tests.tracking.resume_worker import CALLS

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("resume_worker.py")
CASES, TURNS, RUNS = 6, 2, 2
CONFIG = {
    "criteria": {
        "response_match_score": 0.1,
        "final_response_match_v2": {"threshold": 0.5, "judge_model_options": {"num_samples": 3}},
        "rubric_based_final_response_quality_v1": {
            "threshold": 0.5,
            "judge_model_options": {"num_samples": 3},
            "rubrics": [
                {"rubric_id": name, "rubric_content": {"text_property": f"The answer is {name}."}, "type": "FINAL_RESPONSE_QUALITY"}
                for name in ("polite", "short")
            ],
        },
    },
    "anchors": 0,  # a run that had ended is resumed as a new one, whose judge would judge answers of the former again
}
IN_FLIGHT = 3


def eval_set() -> dict[str, Any]:
    def turn(case: int, number: int) -> dict[str, Any]:
        question = f"question {case}.{number}"
        return turn_json(question, f"the answer to {question}")

    cases = (case_json(f"case {case}", *(turn(case, number) for number in range(TURNS))) for case in range(CASES))
    return eval_set_json(*cases, eval_set_id="resumed")


def recording() -> dict[str, Any]:
    found = json.loads(json.dumps(eval_set()).replace("the answer to question 2", "nothing about"))
    for case in found["eval_cases"]:
        for turn in case["conversation"]:
            turn["duration"] = 0.5
    return found


def reply(call: Call) -> Any:
    """Say the same of the same material, however often it is asked."""

    def filled(schema: Mapping[str, Any]) -> dict[str, Any]:
        names = schema["properties"]
        if "verdict" not in names:
            return {name: filled(names[name]) for name in names}
        labels = names["verdict"]["enum"]
        return dict.fromkeys(names, "because") | {"verdict": labels[-1] if "nothing about" in call.text else labels[0]}

    return gemini_answer(json.dumps(filled(call.schema))).after(0.02)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(reply) as running:
        yield running


@dataclass(frozen=True)
class Starter:
    """Has evaluations carried out."""

    process: subprocess.Popen[str]

    def begin(self, folder: Path, **job: Any) -> None:
        environ = {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
        told = {"folder": str(folder), "environ": environ, "run": None, "agent": None, "in_flight": IN_FLIGHT, **job}
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()

    def end(self) -> int:
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def start(server: Server) -> Iterator[Starter]:
    import os

    hidden = ("GOOGLE_", "GEMINI_", "MLFLOW_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environ |= {
        "GEMINI_API_KEY": "AIza-never-to-be-seen-0123456789",
        "GOOGLE_GEMINI_BASE_URL": server.url,
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    process = subprocess.Popen(
        [sys.executable, str(WORKER)],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ | {"PYTHONPATH": str(WORKER.parents[2])},
    )
    with process:
        assert process.stdout.readline() == "ready\n"
        yield Starter(process)
        process.stdin.close()


@dataclass(frozen=True)
class Evaluation:
    """The same evaluation, in a folder of its own."""

    folder: Path
    start: Starter
    server: Server
    how: str
    """``command``: `mlflow-adk-eval run` with a recording; ``agent``: `evaluate` with an agent that counts its calls."""

    @property
    def client(self) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(f"sqlite:///{self.folder}/mlflow.db")

    def run(self, resume: str | None = None, kill: tuple[int, float] | None = None) -> int:
        """Carry it out, or kill it so many requests to the judge and seconds after its start; return the exit code."""
        before = self.calls()
        (self.folder / "kill").unlink(missing_ok=True)
        if self.how == "command":
            going_on = ["--resume", resume] if resume else []
            options = ["--experiment", "resumed", "--config-file-path", "config.json", "--judge-concurrency", str(IN_FLIGHT)]
            self.start.begin(self.folder, run=["recording.json", "eval_set.json", *options, *going_on])
        else:
            told = {"config": "config.json", "experiment": "resumed", "resume": resume, "num_runs": RUNS, "concurrency": 2}
            self.start.begin(self.folder, agent=told)
        if kill:
            self._kill(before + kill[0], kill[1])
        return self.start.end()

    def _kill(self, calls: int, after_s: float) -> None:
        deadline = time.monotonic() + 300
        while len(self.server.calls) < calls:
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.0005)
        time.sleep(after_s)
        (self.folder / "kill").touch()

    def output(self) -> str:
        return (self.folder / "output.txt").read_text()

    def calls(self) -> int:
        """Return how many requests the server has got, once those that were under way have been answered."""
        while True:
            before = len(self.server.calls)
            time.sleep(0.05)
            if before == len(self.server.calls) and not self.server.in_flight:
                return before

    def turns(self) -> Counter[str]:
        """Return how often the agent was called for each turn of each case."""
        path = self.folder / CALLS
        return Counter(path.read_text().splitlines()) if path.exists() else Counter()

    def kept(self) -> tuple[int, int]:
        """Return how many answers and conversations the ledger holds."""
        path = self.folder / ".adk_eval" / "ledger.sqlite"
        if not path.exists():
            return 0, 0
        with closing(sqlite3.connect(path)) as connection:
            known = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            queries = ("SELECT count(*) FROM answer WHERE body IS NOT NULL", "SELECT count(*) FROM conversation")
            counts = [connection.execute(query).fetchone()[0] if known else 0 for query in queries]
        return counts[0], counts[1]

    def last_run(self) -> str | None:
        with CallCache(self.folder / ".adk_eval" / "ledger.sqlite") as ledger:
            return next((run.run_id for run in ledger.runs()), None)

    def result(self) -> dict[str, Any]:
        """Return all that the last run says, but for what it took."""
        import pandas as pd

        run_id = self.last_run()
        run = self.client.get_run(run_id)
        folder = Path(self.client.download_artifacts(run_id, "adk_eval", str(self.folder)))
        votes = pd.read_parquet(folder / "votes").drop(columns=["latency_s", "reused", "asked_at"])
        traces = self.client.search_traces(locations=[run.info.experiment_id], run_id=run_id, max_results=500)
        table = json.loads((folder / "invocations.json").read_text())
        return {
            "status": (run.info.status, *(run.data.tags[f"adk_eval.{name}"] for name in ("status", "verdict"))),
            "metrics": {name: value for name, value in run.data.metrics.items() if not name.startswith("judge/")},
            "answers": sum(run.data.metrics[f"judge/{name}"] for name in ("calls", "reused", "shared")),
            "params": {
                name: value
                for name, value in run.data.params.items()
                if name
                not in {
                    "adk_eval.manifest_sha256",
                    "adk_eval.model_id",
                    "adk_eval.evaluation",
                    "adk_eval.from_ledger",
                    "adk_eval.resumed_from",
                }
            },
            "table": [dict(zip(table["columns"], row, strict=True)) for row in table["data"]],
            "votes": votes.to_dict("records"),
            "traces": sorted((trace.info.request_preview, len(trace.info.assessments)) for trace in traces),
        }


@pytest.fixture
def new_evaluation(tmp_path_factory: pytest.TempPathFactory, template: Path, start: Starter, server: Server) -> Any:
    def make(how: str) -> Evaluation:
        folder = tmp_path_factory.mktemp(how)
        shutil.copy(template, folder / "mlflow.db")
        for name, content in (("eval_set", eval_set()), ("recording", recording()), ("config", CONFIG)):
            (folder / f"{name}.json").write_text(json.dumps(content))
        made = Evaluation(folder, start, server, how)
        made.client.create_experiment("resumed", artifact_location=(folder / "artifacts").as_uri())
        return made

    return make


def moments(seed: str, answers: int) -> list[tuple[int, float]]:
    """Return moments to kill an evaluation: while it starts, while it asks judges, and while it is logged."""
    chance = random.Random(seed)
    starting = [(0, chance.uniform(0, 0.5)) for _ in range(1)]
    judging = [(chance.randrange(1, answers), chance.uniform(0, 0.02)) for _ in range(3)]
    logging = [(answers, chance.uniform(0, 0.5)) for _ in range(2)]
    return starting + judging + logging


@pytest.mark.slow
@pytest.mark.parametrize("how", ["command", "agent"])
def test_killed_at_any_moment_and_resumed_it_finds_the_same_and_pays_for_nothing_twice(how: str, new_evaluation: Any) -> None:
    whole = new_evaluation(how)
    assert whole.run() == 1, whole.output()
    wanted, (answers, plays) = whole.result(), whole.kept()
    assert whole.turns().total() == plays * TURNS
    seen = set()
    for number, moment in enumerate(moments(how, answers)):
        tried = new_evaluation(how)
        before = tried.calls()
        tried.run(kill=moment)
        killed, turns = tried.calls(), tried.turns()
        kept_answers, kept_plays = tried.kept()
        assert 0 <= killed - before - kept_answers <= IN_FLIGHT, "more than what was under way was lost"
        seen.add(kept_answers)
        last = tried.last_run()
        assert tried.run(resume=last and ("latest" if number % 2 else last)) == 1, tried.output()
        assert tried.calls() - killed == answers - kept_answers
        assert (tried.turns() - turns).total() == (plays - kept_plays) * TURNS
        assert tried.result() == wanted
    assert len(seen - {0, answers}) > 1, "the moments were ill chosen"


@pytest.mark.slow
def test_killed_again_and_again_it_gets_to_the_same_end(new_evaluation: Any) -> None:
    whole, tried = new_evaluation("agent"), new_evaluation("agent")
    assert whole.run() == 1, whole.output()
    before = tried.calls()
    for _ in range(5):
        tried.run(resume=tried.last_run(), kill=(8, 0.005))
    killed, (kept_answers, _), (answers, _) = tried.calls(), tried.kept(), whole.kept()
    assert 0 < kept_answers < answers
    assert killed - before - kept_answers <= 5 * IN_FLIGHT
    assert tried.run(resume="latest") == 1, tried.output()
    assert tried.calls() - killed == answers - kept_answers
    assert tried.result() == whole.result()
