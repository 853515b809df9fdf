"""Several processes with one ledger, on SQLite and on PostgreSQL: what they ask, as the server counts it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.ledger import CallCache, StartedRun, cache

WORKER = Path(__file__).with_name("sharing_worker.py")


class Counting(ThreadingHTTPServer):
    """Answers each question with its number, a little later, and counts."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, after_s: float) -> None:
        self.arrived: list[tuple[str, float]] = []
        self.answered = Counter[str]()
        self.asked_by: dict[str, Counter[str]] = {}
        """What each process asked, by the name it gives."""
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with server.lock:
                    server.arrived.append((self.path, time.monotonic()))
                    server.asked_by.setdefault(self.headers["User-Agent"], Counter())[self.path] += 1
                time.sleep(after_s)
                text = f"answer to {self.path}".encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                with server.lock:
                    server.answered[self.path] += 1

            def log_message(self, *_: object) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def asked(self) -> Counter[str]:
        with self.lock:
            return Counter(path for path, _ in self.arrived)


@contextmanager
def counting(after_s: float = 0.02) -> Iterator[Counting]:
    with Counting(after_s) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def begun(ledger: str, server: Counting, count: int, **told: Any) -> subprocess.Popen[str]:
    command = [sys.executable, str(WORKER), ledger, server.url, str(count), json.dumps(told)]
    return subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=WORKER.parents[2]
    )


def let_go(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()


def told_by(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


@pytest.mark.slow
def test_two_processes_ask_each_question_once(anywhere: str) -> None:
    with counting() as server:
        processes = [begun(anywhere, server, 100) for _ in range(2)]
        let_go(*processes)
        first, second = map(told_by, processes)
    assert server.asked == Counter({f"/{number}": 1 for number in range(100)})
    assert first["said"] == second["said"] == {str(number): f"answer to /{number}" for number in range(100)}
    assert first["calls"] + second["calls"] == 100
    assert first["trouble"] == second["trouble"] == ""


@pytest.mark.slow
def test_what_a_killed_process_paid_for_is_not_paid_again_and_what_it_was_asking_is_asked(anywhere: str) -> None:
    with counting(0.05) as server:
        killed, other = (begun(anywhere, server, 100, asker=name) for name in ("killed", "other"))
        let_go(killed)
        while sum(server.answered.values()) < 30:
            time.sleep(0.005)
        killed.kill()
        killed.communicate()
        with CallCache(anywhere) as ledger:
            kept = {f"/{number}" for number in range(100) if ledger.get(str(number))}
        assert len(kept) >= 10
        let_go(other)
        found = told_by(other)
    assert found["said"] == {str(number): f"answer to /{number}" for number in range(100)}
    again = server.asked_by["other"]  # what the other one had sent may arrive after it was killed
    assert not set(again) & kept
    assert set(again.values()) == {1}


@pytest.mark.slow
def test_several_processes_keep_one_quota(anywhere: str) -> None:
    quota, quota_s = 40, 2.0
    with counting(0.0) as server:
        processes = [begun(anywhere, server, 30, name=f"of {number}: ", quota=quota, quota_s=quota_s) for number in range(4)]
        start = time.monotonic()
        let_go(*processes)
        assert [told_by(process)["calls"] for process in processes] == [30] * 4
    arrived = sorted(at - start for _, at in server.arrived)
    # Whatever delays a request lets it arrive later, so this holds on any machine.
    for number, at in enumerate(arrived, start=1):
        assert number <= quota * (at // quota_s + 1)
    assert len(arrived) == 120


@pytest.mark.slow
def test_several_processes_have_one_budget(anywhere: str) -> None:
    with counting(0.01) as server:
        processes = [begun(anywhere, server, 40, name=f"of {number}: ", max_calls=70) for number in range(3)]
        let_go(*processes)
        told = list(map(told_by, processes))
    assert sum(found["calls"] for found in told) == server.asked.total()
    assert 70 - 3 * 8 <= server.asked.total() <= 70
    sentences = {text for found in told for text in found["said"].values() if not text.startswith("answer")}
    assert sentences == {"the budget of 70 model calls for all processes is used up"}


def test_a_claim_is_ones_own_until_it_is_answered_or_given_up(anywhere: str) -> None:
    with CallCache(anywhere) as one, CallCache(anywhere) as other:
        assert one.claim("a")
        assert not other.claim("a")
        assert not one.claim("a")
        assert other.get("a") is None
        one.give_up("a")
        assert other.claim("a")
        other.put("a", Answer(text="x"))
        assert not one.claim("a")
        assert one.get("a") == Answer(text="x")
        assert one.claim("a", again=True)
        assert not other.claim("a", again=True)
        one.close()
        assert other.claim("a", again=True)


def test_a_claim_is_renewed_while_it_is_held_and_free_once_it_is_not(anywhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LEASE_S", 3.0)
    monkeypatch.setattr(cache, "_RENEWED_EVERY_S", 0.2)
    with CallCache(anywhere) as one, CallCache(anywhere) as other:
        assert one.claim("held")
        assert one.claim("dropped")
        del one._claims["dropped"]  # as if its process were dead
        deadline = time.monotonic() + 60
        while not other.claim("dropped"):
            assert time.monotonic() < deadline
            assert not other.claim("held")
            time.sleep(0.05)
        assert not other.claim("held")


def test_an_account_changes_only_from_the_version_that_was_read(anywhere: str) -> None:
    with CallCache(anywhere) as one, CallCache(anywhere) as other:
        assert one.set_account("a", "1", version=0)
        assert not other.set_account("a", "2", version=0)
        found = other.account("a")
        assert found
        assert (found.version, found.body) == (1, "1")
        assert other.set_account("a", "2", version=1)
        assert not one.set_account("a", "3", version=1)


def test_what_is_held_is_counted_and_forgotten_by_model_or_run(anywhere: str) -> None:
    with CallCache(anywhere) as ledger, CallCache(anywhere) as other:
        for number in range(1_200):
            ledger.put(f"{number:04}", Answer(text="x", model=f"m{number % 3}", input_tokens=10, output_tokens=number % 2))
        for run_id in ("a", "b"):
            run = StartedRun(
                run_id=run_id,
                eval_set_digest="",
                config_digest="",
                agent_name="",
                agent_version="",
                started_at=datetime(2026, 3, 1, tzinfo=UTC),
            )
            ledger.begin(run)
            ledger.keep_conversation(run_id, "case", b"[]")
        assert other.claim("asked")
        assert other.claim("0000", again=True)
        assert ledger.set_account("budget: build", "[7, 90]", version=0)
        assert ledger.set_account("quota: m0", "{}", version=0)
        found = ledger.contents()
        assert (found.answers, found.conversations, found.runs, found.asking) == (1_200, 2, 2, 2)
        assert [(one.model, one.answers, one.input_tokens, one.output_tokens) for one in found.models] == [
            (f"m{number}", 400, 4_000, 200) for number in range(3)
        ]
        assert [(one.name, one.calls, one.tokens) for one in found.budgets] == [("build", 7, 90)]
        assert found.oldest
        assert found.newest
        assert found.oldest <= found.newest
        assert ledger.prune(model="m0", dry_run=True) == (399, 0, 0), "what is asked again is not forgotten"
        assert ledger.prune(1.0, model="m0") == (0, 0, 0)
        assert ledger.prune(model="m0") == (399, 0, 0)
        assert ledger.prune(run_id="a", dry_run=True) == (0, 1, 1)
        assert ledger.prune(run_id="a") == (0, 1, 1)
        assert [run.run_id for run in ledger.runs()] == ["b"]
        for wrong, said in (
            ({}, "name what to prune"),
            ({"model": "m", "run_id": "b"}, "cannot be combined"),
            ({"run_id": "z"}, "has no run z"),
        ):
            with pytest.raises(UsageError, match=said):
                ledger.prune(**wrong)
        assert not ledger.claim("asked"), "a claim under way was forgotten"
        assert (ledger.contents().answers, ledger.contents().asking) == (801, 2)
