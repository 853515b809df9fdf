"""A database that restarts, or goes away for a while, costs no answer, no quota and no budget."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest

from mlflow_adk_eval.errors import RunError
from mlflow_adk_eval.judge.limiter import Quota
from mlflow_adk_eval.judge.protocol import Account, Answer
from mlflow_adk_eval.judge.setup import Budget
from mlflow_adk_eval.judge.usage import BudgetLease
from mlflow_adk_eval.ledger import CallCache, cache, opened
from tests.judge.answers_kit import Memory
from tests.ledger.test_sharing import begun, counting, let_go, told_by
from tests.postgres_kit import Postgres

IN_FLIGHT = 16


@contextmanager
def away(server: Postgres, *, for_s: float) -> Iterator[None]:
    server.stop()
    restarting = threading.Timer(for_s, server.start)
    restarting.start()
    yield
    restarting.join()


@pytest.mark.slow
def test_a_restart_in_mid_run_costs_no_more_than_what_is_in_flight(postgres: Postgres) -> None:
    url, count = postgres.new_database(), 200
    with counting(after_s=0.05) as judge:
        processes = [begun(url, judge, count, asker=name, quota=600, max_calls=1_000) for name in ("one", "two")]
        let_go(*processes)
        while sum(judge.asked.values()) < count / 4:
            time.sleep(0.01)
        with away(postgres, for_s=0.6):
            pass
        told = [told_by(process) for process in processes]
        assert [one["trouble"] for one in told] == ["", ""]
        assert all(one["said"] == {str(number): f"answer to /{number}" for number in range(count)} for one in told)
        assert sum(judge.asked.values()) <= count + 2 * IN_FLIGHT
        later = begun(url, judge, count, asker="later")
        let_go(later)
        told_by(later)
        assert sum(judge.asked_by.get("later", {}).values()) == 0


@pytest.mark.slow
def test_what_was_paid_for_while_the_database_was_away_is_written_when_it_is_back(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow_adk_eval.ledger import postgres as ledger_database

    monkeypatch.setattr(ledger_database, "AWAY_S", 0.1)
    monkeypatch.setattr(cache, "LEASE_S", 0.2)
    url = postgres.new_database()
    with CallCache(url) as ledger:
        ledger.put("before", Answer(text="before"))
        postgres.stop()
        try:
            ledger.put("meanwhile", Answer(text="meanwhile"))
            ledger.keep_conversation("run", "key", b"[]")
            assert "could not be saved" in ledger.trouble
            assert (ledger.get("meanwhile"), ledger.account("x"), ledger.conversation("run", "key")) == (
                Answer(text="meanwhile"),
                None,
                b"[]",
            )
        finally:
            postgres.start()
        time.sleep(0.25)
        assert ledger.account("x") is not None
        ledger.put("after", Answer(text="after"))
        assert ledger.settle() == ""
    with CallCache(url) as other:
        assert [other.get(name) for name in ("before", "meanwhile", "after")] == [
            Answer(text=name) for name in ("before", "meanwhile", "after")
        ]
        assert other.conversation("run", "key") == b"[]"


def test_a_database_that_is_down_at_the_start_is_no_mistake_of_the_user() -> None:
    pytest.importorskip("psycopg")
    with (
        pytest.raises(RunError, match=r"postgresql://127.0.0.1:1/there: the ledger cannot be used") as caught,
        opened("postgresql://127.0.0.1:1/there"),
    ):
        pytest.fail("nobody is there")
    assert caught.value.exit_code == 3


class Flaky(Memory):
    """Accounts that cannot be reached for a while."""

    shared = True

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures, self.bodies, self.changes = failures, "", 0

    def account(self, name: str, /) -> Account | None:
        self.failures -= 1
        return None if self.failures >= 0 else Account(now=time.monotonic(), version=self.changes, body=self.bodies)

    def set_account(self, name: str, body: str, /, *, version: int) -> bool:
        self.changes, self.bodies = self.changes + 1, body
        return True


def test_a_quota_is_shared_again_once_the_ledger_is_back() -> None:
    accounts = Flaky(failures=1)

    async def work() -> None:
        quota = Quota(1_200, 60.0, "judge", accounts)
        for _ in range(101):  # a block is a twelfth
            await quota.place(waiting=100)

    anyio.run(work)
    assert accounts.changes == 1


def test_a_budget_waits_for_the_ledger_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlflow_adk_eval.judge.usage._LOOK_S", 0.001)
    accounts = Flaky(failures=3)
    lease = BudgetLease(Budget(max_calls=10), accounts, "build")
    assert anyio.run(lease.take, 0)
    assert (lease.spent, accounts.changes) == ("", 1)


# Only one process goes on with a run


def test_a_run_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with CallCache(tmp_path / "l.sqlite") as one, CallCache(tmp_path / "l.sqlite") as other:
        one.hold("run")
        with pytest.raises(
            RunError, match=r"has been running this evaluation in process \d+ since 20.* UTC; wait until it ends, or 15 s"
        ) as caught:
            other.hold("run")
        assert caught.value.exit_code == 3
        other.hold("another run")
        assert one.contents().asking == 0
        one.release("run")
        other.hold("run")


def test_a_killed_process_holds_a_run_no_more_on_its_host_at_once_and_elsewhere_after_the_lease(
    anywhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "LEASE_S", 0.5)
    monkeypatch.setattr(cache, "_RENEWED_EVERY_S", 60.0)
    with CallCache(anywhere) as dead, CallCache(anywhere) as other:
        dead._owner = f"0123 {2**22 + 1} {cache.user_at_host()}"  # no system has such a process
        dead.hold("run")
        other.hold("run")
        other.release("run")
        assert dead.claim("question")
        assert other.claim("question")
        other.give_up("question")
        dead._owner = f"0123 {2**22 + 1} me@another.host"
        dead._claims.clear()
        assert dead.claim("question")
        assert not other.claim("question")
        dead.hold("run")
        with pytest.raises(RunError, match=r"me@another\.host has been running"):
            other.hold("run")
        time.sleep(0.6)
        other.hold("run")
        assert other.claim("question")


@pytest.mark.parametrize("process", ["9" * 5_000, str(2**80), "1", "-1", "x"])
def test_only_a_process_that_is_surely_dead_loses_its_claim_at_once(process: str, tmp_path: Path) -> None:
    with CallCache(tmp_path / "l.sqlite") as one, CallCache(tmp_path / "l.sqlite") as other:
        one._owner = f"0123 {process} {cache.user_at_host()}"
        assert one.claim("question")
        assert not other.claim("question")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the state of a process in /proc")
def test_a_killed_process_that_nobody_waited_for_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    with CallCache(tmp_path / "l.sqlite") as dead, CallCache(tmp_path / "l.sqlite") as other:
        dead._owner = f"0123 {process.pid} {cache.user_at_host()}"
        assert dead.claim("question")
        assert not other.claim("question")
        process.kill()
        while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "Z":
            time.sleep(0.01)
        assert other.claim("question")
    process.wait()


def test_a_forged_claim_delays_nobody_for_ever(tmp_path: Path) -> None:
    import sqlite3

    with CallCache(tmp_path / "l.sqlite") as ledger:
        ledger.put("other", Answer(text="x"))
        with closing(sqlite3.connect(tmp_path / "l.sqlite")) as connection, connection:
            connection.execute("INSERT INTO answer (address, kept_at, owner, until) VALUES ('asked', 0, 'nobody', 1e18)")
        assert ledger.claim("asked")
