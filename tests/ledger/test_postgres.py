"""What a ledger on PostgreSQL is called, what it says where it fails, and that runs can be resumed from another host."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mlflow_adk_eval.errors import RunError, UsageError
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.judge.setup import judge_setup
from mlflow_adk_eval.ledger import CallCache, StartedRun, is_shared, ledger_source
from tests.postgres_kit import Postgres

SECRET = "hunter2-and-more"  # noqa: S105 - nobody's


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg2", "postgresql+psycopg", "postgres"])
def test_a_password_is_in_no_name_message_or_repr(scheme: str) -> None:
    pytest.importorskip("psycopg")
    url = f"{scheme}://me:{SECRET}@127.0.0.1:1/there?sslpassword={SECRET}"
    assert SECRET not in repr(judge_setup(ledger=url))
    with CallCache(url) as ledger:
        assert ledger.shared
        assert ledger.name == "postgresql://127.0.0.1:1/there"
        with pytest.raises(RunError, match=r"postgresql://127.0.0.1:1/there: the ledger cannot be used \(") as caught:
            ledger.check()
        ledger.put("a", Answer(text="paid"))
        assert ledger.get("a") == Answer(text="paid")
        assert ledger.trouble
        assert SECRET not in str(caught.value) + ledger.trouble + repr(ledger)


@pytest.mark.parametrize("url", ["mysql://me:hunter2-and-more@there/x", "sqlite://", "postgresql+x+y://me:hunter2-and-more@there/x"])
def test_another_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError, match="ledger: wanted a path, postgresql://…, sqlite:///FILE or 'off'") as caught:
        ledger_source(url)
    assert SECRET not in str(caught.value)


def test_a_url_of_sqlite_is_its_file(tmp_path: Path) -> None:
    assert ledger_source("sqlite:///there.sqlite") == Path("there.sqlite")
    assert ledger_source(f"sqlite:///{tmp_path}/x.sqlite") == tmp_path / "x.sqlite"
    assert not is_shared(f"sqlite:///{tmp_path}/x.sqlite")


@pytest.mark.slow
def test_runs_and_their_conversations_are_those_of_every_host(anywhere: str) -> None:
    def started(run_id: str) -> StartedRun:
        texts = {"lineage": "a", "eval_set_digest": "1", "config_digest": "2", "agent_name": "home", "agent_version": "m"}
        return StartedRun(run_id=run_id, started_at=datetime(2026, 3, 1, 12, tzinfo=UTC), **texts)

    with CallCache(anywhere) as one:
        one.begin(started("a"))
        one.keep_conversation("a", "case", b'["said"]')
    with CallCache(anywhere) as other:
        assert other.runs() == (started("a"),)
        other.begin(started("b"))
        other.keep_conversation("b", "other case", b'["later"]')
        assert other.scope("b") == "a"
        assert other.conversation("b", "case") == b'["said"]'
        other.finish("b")
        assert [run.status for run in other.runs()] == ["finished", "running"]
        other.put("x", Answer(text="x"))
        assert other.prune(0) == (1, 2, 2)
        assert other.trouble == ""


@pytest.mark.slow
def test_a_server_that_restarts_costs_nothing_and_one_that_stays_away_is_named(postgres: Postgres) -> None:
    url = postgres.new_database()
    with CallCache(url) as one, CallCache(url) as other:
        one.put("a", Answer(text="a"))
        assert other.get("a") == Answer(text="a")
        postgres.stop()
        try:
            one.put("b", Answer(text="b"))
            assert one.trouble.startswith("Paid answers could not be saved for a later run: postgresql://127.0.0.1:")
            assert (one.get("a"), one.get("b"), one.claim("c"), one.account("x")) == (None, Answer(text="b"), True, None)
        finally:
            postgres.start()
        other.put("c", Answer(text="c"))
        assert (other.get("c"), other.trouble) == (Answer(text="c"), "")
