"""With a key, only entries count that were written with it, each in its place; on SQLite and on PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.ledger import CallCache, StartedRun

KEY, OTHER_KEY = "0123456789abcdef" * 2, "fedcba9876543210" * 2


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def ledger(source: str, key: str | None, monkeypatch: pytest.MonkeyPatch) -> CallCache:
    if key is None:
        monkeypatch.delenv("MLFLOW_ADK_EVAL_LEDGER_KEY", raising=False)
    else:
        monkeypatch.setenv("MLFLOW_ADK_EVAL_LEDGER_KEY", key)
    return CallCache(source)


def run_of(run_id: str, lineage: str = "", version: str = "m-1") -> StartedRun:
    texts: dict[str, Any] = {"eval_set_digest": "1", "config_digest": "2", "agent_name": "home", "agent_version": version}
    return StartedRun(run_id=run_id, lineage=lineage, started_at=datetime(2026, 3, 1, 12, tzinfo=UTC), **texts)


def fill(found: CallCache) -> None:
    found.begin(run_of("r", "first"))
    found.put("address", Answer(text="good"))
    found.keep_conversation("r", "case", b'["said"]')
    assert found.set_account("budget: build", "[3, 0]", version=0)


def test_without_a_key_everything_counts_and_with_one_what_was_written_with_it(anywhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ledger(anywhere, None, monkeypatch) as found:
        fill(found)
    for key, counts in ((None, True), (KEY, False), (OTHER_KEY, False)):
        with ledger(anywhere, key, monkeypatch) as found:
            assert (found.get("address") is not None) == counts
            assert (found.scope("r"), len(found.runs())) == (("first", 1) if counts else ("r", 0))
            assert (found.account("budget: build").body == "[3, 0]") == counts
            assert found.trouble == ("" if counts else "3 ledger entries were not written with your key and not used")
    with ledger(anywhere, KEY, monkeypatch) as found:
        assert found.claim("address") is False  # nobody looked, so nobody knows that it does not count
        assert found.get("address") is None
        assert found.claim("address")
        found.put("address", Answer(text="bad"))
        found.begin(run_of("r", "second"))
        assert found.conversation("r", "case") is None
        found.keep_conversation("r", "case", b'["again"]')
    with ledger(anywhere, KEY, monkeypatch) as found:
        assert (found.get("address"), found.conversation("r", "case"), found.trouble) == (Answer(text="bad"), b'["again"]', "")


@pytest.mark.parametrize(
    "forgery",
    [
        "INSERT INTO {p}answer SELECT 'asked', body, code, kept_at, NULL, NULL FROM {p}answer WHERE address = 'address'",
        "UPDATE {p}answer SET address = 'asked'",
        "UPDATE {p}conversation SET lineage = 'asked', key = 'asked'",
        "UPDATE {p}conversation SET key = 'asked'",
        "UPDATE {p}run SET lineage = 'better'",
        "UPDATE {p}run SET run_id = 'asked' WHERE run_id = 'r'",
        "UPDATE {p}run SET agent_version = 'm-2'",
        "UPDATE {p}account SET name = 'asked'",
        "UPDATE {p}account SET body = '[0, 0]'",
        "UPDATE {p}run SET code = NULL",
    ],
)
def test_an_entry_counts_only_where_it_was_written(anywhere: str, forgery: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ledger(anywhere, KEY, monkeypatch) as found:
        fill(found)
        found.begin(run_of("better", "better"))
        found._database.change(forgery.format(p="adk_eval_" if found.shared else ""), {})
    with ledger(anywhere, KEY, monkeypatch) as found:
        assert found.get("asked") is None
        assert found.scope("asked") == "asked"
        assert (found.conversation("asked", "asked"), found.conversation("r", "asked")) == (None, None)
        assert all(run.agent_version == "m-1" for run in found.runs())
        assert found.scope("r") in ("first", "r")
        assert found.account("asked").body == ""
        assert found.account("budget: build").body in ("[3, 0]", "")
        assert found.trouble.endswith("not written with your key and not used")


def test_scored_parts_are_kept_where_nobody_finds_them_without_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [ledger(str(tmp_path / "l.sqlite"), key, monkeypatch).parts for key in (None, KEY, OTHER_KEY)]
    assert len(set(folders)) == 3
    assert {folder.relative_to(tmp_path).parts[0] for folder in folders} == {"parts"}


@pytest.mark.parametrize("key", ["", "short"])
def test_a_key_that_is_none_is_refused(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=rf"MLFLOW_ADK_EVAL_LEDGER_KEY: found {len(key)} characters; wanted at least 32, such as"):
        ledger(str(tmp_path / "l.sqlite"), key, monkeypatch)


def test_the_key_of_a_ci_job_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CI", "1")
    for job in ("one", "two"):
        (tmp_path.parent / f"{tmp_path.name}_{job}").mkdir()
        monkeypatch.setenv("RUNNER_TEMP", str(tmp_path.parent / f"{tmp_path.name}_{job}"))
        with ledger("l.sqlite", None, monkeypatch) as found:
            assert found.get("a") is None
            found.put("a", Answer(text=job))
        with ledger("l.sqlite", None, monkeypatch) as found:
            assert found.get("a") == Answer(text=job)
    (key,) = (tmp_path.parent / f"{tmp_path.name}_two").iterdir()
    key.chmod(0o644)
    with pytest.raises(UsageError, match="someone else may have written this key"):
        ledger("l.sqlite", None, monkeypatch)
    monkeypatch.setenv("RUNNER_TEMP", str(tmp_path))
    with pytest.raises(UsageError, match="set MLFLOW_ADK_EVAL_LEDGER_KEY, or set RUNNER_TEMP to a folder outside the checkout"):
        ledger("l.sqlite", None, monkeypatch)
