from __future__ import annotations

import json
import os
import random
import sqlite3
import stat
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.ledger import DEFAULT, CallCache, StartedRun, ledger_source, opened
from mlflow_adk_eval.ledger import database as ledger_file
from tests.profiles import examples

WORKER = Path(__file__).with_name("ledger_worker.py")
ANSWER = Answer(text='{"verdict": "valid"}', model="gemini-2.5-flash", input_tokens=12, output_tokens=3, latency_s=0.25)
TEXTS = st.text(st.characters(exclude_categories=()))  # halves of surrogate pairs and control characters included
ANSWERS = st.builds(
    Answer,
    text=TEXTS,
    model=TEXTS,
    input_tokens=st.none() | st.integers(0, 2**40),
    output_tokens=st.none() | st.integers(0, 2**40),
    latency_s=st.floats(0, 1e6),
    problem=TEXTS,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[CallCache]:
    with CallCache(path) as made:
        yield made


def worker(work: str, path: Path, name: str = "worker", **how: int) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **how}
    return subprocess.Popen([sys.executable, str(WORKER), work, str(path), name], text=True, cwd=Path(__file__).parents[2], **pipes)


def said(work: str, path: Path) -> str:
    with worker(work, path) as process:
        out, _ = process.communicate()
    assert process.returncode == 0
    return out.strip()


def started(run_id: str, **changes: object) -> StartedRun:
    values = {"lineage": run_id, "eval_set_digest": "sha256:1", "config_digest": "sha256:2", "agent_name": "home", "agent_version": "m-1"}
    return StartedRun(run_id=run_id, **{"started_at": datetime(2026, 3, 1, 12, tzinfo=UTC), **values, **changes})


# What is kept


def test_any_answer_comes_back_as_it_was_to_whoever_has_the_file_open(ledger: CallCache) -> None:
    with CallCache(ledger.name) as other:

        @examples(200)
        @given(st.text("0123456789abcdef:", min_size=1), ANSWERS)
        def check(address: str, answer: Answer) -> None:
            ledger.put(address, answer)
            assert ledger.get(address) == answer
            assert other.get(address) == answer

        check()


@given(st.lists(st.tuples(st.sampled_from("abc"), ANSWERS)))
@examples(30)
def test_the_last_answer_at_an_address_counts(puts: list[tuple[str, Answer]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with CallCache(Path(folder) / "l.sqlite") as ledger:
            for address, answer in puts:
                ledger.put(address, answer)
        with CallCache(Path(folder) / "l.sqlite") as ledger:
            assert {address: ledger.get(address) for address in "abc"} == {**dict.fromkeys("abc"), **dict(puts)}


def test_a_closed_ledger_opens_again(ledger: CallCache) -> None:
    ledger.put("a", ANSWER)
    ledger.close()
    ledger.close()
    assert ledger.get("a") == ANSWER
    assert ledger.trouble == ""


def test_an_answer_that_cannot_be_read_is_none(ledger: CallCache) -> None:
    for address in ("no json", "another shape", "fine"):
        ledger.put(address, ANSWER)
    with closing(sqlite3.connect(ledger.name)) as connection, connection:
        connection.execute("UPDATE answer SET body = ? WHERE address = 'no json'", (b'{"text',))
        connection.execute("UPDATE answer SET body = ? WHERE address = 'another shape'", (b'{"words": "x"}',))
    assert [ledger.get(address) for address in ("no json", "another shape", "fine")] == [None, None, ANSWER]


# Where it is


def test_nothing_is_made_until_there_is_something_to_keep(tmp_path: Path) -> None:
    path = tmp_path / "deep" / DEFAULT
    with CallCache(path) as ledger:
        ledger.check()
        assert (ledger.get("a"), ledger.conversation("run", "key"), ledger.runs(), ledger.prune(0)) == (None, None, (), (0, 0, 0))
        assert not path.parent.exists()
        ledger.put("a", ANSWER)
        assert path.exists()


def test_only_the_owner_can_read_it_and_git_leaves_it_out(tmp_path: Path) -> None:
    path = tmp_path / DEFAULT
    with CallCache(path) as ledger:
        ledger.put("a", ANSWER)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir() if file.name.startswith("ledger")}
    assert modes == {"ledger.sqlite": 0o600, "ledger.sqlite-wal": 0o600, "ledger.sqlite-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert (path.parent / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize("folder", [".", "made/for it"])
def test_a_folder_of_the_users_own_holds_nothing_else(folder: str, tmp_path: Path) -> None:
    with CallCache(tmp_path / folder / "my.sqlite") as ledger:
        ledger.put("a", ANSWER)
    assert [file.name for file in (tmp_path / folder).iterdir()] == ["my.sqlite"]


def test_it_stays_where_it_was_when_the_working_directory_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with CallCache("here.sqlite") as ledger:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        ledger.put("a", ANSWER)
    assert (tmp_path / "here.sqlite").exists()


def test_the_argument_goes_before_the_variable_and_the_variable_before_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_ADK_EVAL_LEDGER", raising=False)
    assert ledger_source(None) == Path(".adk_eval/ledger.sqlite")
    monkeypatch.setenv("MLFLOW_ADK_EVAL_LEDGER", "named.sqlite")
    assert ledger_source(None) == Path("named.sqlite")
    assert ledger_source("given.sqlite") == ledger_source(Path("given.sqlite")) == Path("given.sqlite")


@pytest.mark.parametrize("off", ["off", "OFF", False])
def test_it_can_be_turned_off(off: str | bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(off) as ledger:
        assert ledger is None
    if isinstance(off, str):
        monkeypatch.setenv("MLFLOW_ADK_EVAL_LEDGER", off)
        with opened(None) as ledger:
            assert ledger is None


@pytest.mark.parametrize("nonsense", [True, "", "  ", 3])
def test_anything_else_is_refused(nonsense: object) -> None:
    with pytest.raises(UsageError, match="ledger: wanted a path, a postgresql:// URL or 'off'"):
        ledger_source(nonsense)


# Files that cannot be used


def _text(path: Path) -> None:
    path.write_text("my notes\n" * 1_000)


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE mine (x)")


def _newer(path: Path) -> None:
    with CallCache(path) as ledger:
        ledger.put("a", ANSWER)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 5")


def _damaged(path: Path) -> None:
    with CallCache(path) as ledger:
        ledger.put("a", ANSWER)
    content = bytearray(path.read_bytes())
    content[100:2_000] = os.urandom(1_900)
    path.write_bytes(content)


def _folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_text, "this is not a ledger, or it is damaged (file is not a database)"),
        (_foreign, "this SQLite database is not a ledger"),
        (_newer, "this ledger has schema 5, but this version of mlflow-adk-eval reads 4"),
        (_damaged, "this is not a ledger, or it is damaged (database disk image is malformed)"),
        (_folder, "the ledger cannot be used (unable to open database file)"),
    ],
)
def test_a_file_that_is_no_ledger_is_named_and_left_alone(spoil: Callable[[Path], None], reason: str, path: Path) -> None:
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    found = []
    for use in (
        CallCache(path).check,
        lambda: CallCache(path).begin(started("r")),
        CallCache(path).runs,
        lambda: CallCache(path).conversation("r", "k"),
    ):
        with pytest.raises(UsageError) as caught:
            use()
        found.append(str(caught.value))
    with pytest.raises(UsageError), opened(path):
        pytest.fail("the file was taken for a ledger")
    with CallCache(path) as ledger:
        ledger.put("paid", ANSWER)
        assert (ledger.get("paid"), ledger.trouble.partition(": ")[2]) == (ANSWER, found[0])
    way_out = "move it away, or name another file with --ledger or MLFLOW_ADK_EVAL_LEDGER (`off`: store nothing)"
    assert all(message.startswith(f"{path}: {reason}") and message.endswith(way_out) for message in found), found
    assert before == (path.read_bytes() if path.is_file() else None)


def test_an_empty_file_becomes_a_ledger(path: Path) -> None:
    path.touch()
    with opened(path) as ledger:
        assert ledger is not None
        ledger.put("a", ANSWER)
        assert ledger.get("a") == ANSWER


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with CallCache(tmp_path / "file" / "ledger.sqlite") as ledger, pytest.raises(UsageError, match="Not a directory"):
        ledger.begin(started("r"))


@pytest.mark.parametrize("exists", [True, False])
def test_where_nothing_can_be_written_it_says_so_before_and_goes_on_after(exists: bool) -> None:
    with tempfile.TemporaryDirectory() as made:  # not below the folder of the tests, which others cannot even enter
        folder, path = Path(made), Path(made) / "ledger.sqlite"
        if exists:
            with CallCache(path) as ledger:
                ledger.put("a", ANSWER)
            path.chmod(0o644)
        folder.chmod(0o555)
        before, after = said("powerless", path).splitlines()
        folder.chmod(0o700)
    assert before.startswith(f"{path}: the ledger cannot be used (")
    assert after == f"Paid answers could not be saved for a later run: {before}" or not exists
    assert after.startswith(f"Paid answers could not be saved for a later run: {path}: the ledger cannot be used (")


# Losing the ledger does not lose the run


def test_a_disk_that_takes_no_more_does_not_end_the_run(path: Path) -> None:
    trouble = said("starving", path)
    assert trouble.startswith(f"Paid answers could not be saved for a later run: {path}: the ledger cannot be used (")
    with CallCache(path) as ledger:
        assert ledger.get("before") == Answer(text="worker")
        kept = [ledger.get(f"worker:{number}") for number in range(500)]
        assert None not in kept[:5]
        assert kept[-1] is None
        assert (ledger.conversation("run", "key"), ledger.trouble) == (None, "")


def test_a_file_that_is_damaged_meanwhile_does_not_end_the_run(path: Path) -> None:
    with CallCache(path) as ledger:
        for number in range(300):
            ledger.put(f"{number:064}", Answer(text="x" * 500))
    content = path.read_bytes()
    with CallCache(path) as ledger:
        ledger.check()
        path.write_bytes(content[:8_192] + os.urandom(len(content) - 8_192))
        assert {ledger.get(f"{number:064}") for number in range(300)} <= {None, Answer(text="x" * 500)}
        assert "database disk image is malformed" in ledger.trouble
        ledger.put("new", ANSWER)
        ledger.keep_conversation("run", "key", b"[]")
        ledger.finish("run")
        assert ledger.get("new") == ANSWER


# Several at once


def test_what_one_keeps_another_sees_at_once(path: Path) -> None:
    with CallCache(path) as one, CallCache(path) as other:
        for number in range(50):
            writer, reader = (one, other) if number % 2 else (other, one)
            assert reader.get(str(number)) is None
            writer.put(str(number), ANSWER)
            assert reader.get(str(number)) == ANSWER


def test_many_threads_use_one_ledger(ledger: CallCache) -> None:
    def work(name: int) -> None:
        for number in range(100):
            ledger.put(f"{name}:{number}", Answer(text=f"{name} {number}"))
            ledger.put("shared", Answer(text=str(name)))
            assert ledger.get(f"{name}:{number}") == Answer(text=f"{name} {number}")
            ledger.keep_conversation("run", f"{name}:{number}", b"[]")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert all(ledger.get(f"{name}:{number}") == Answer(text=f"{name} {number}") for name in range(8) for number in range(100))
    assert all(ledger.conversation("run", f"{name}:{number}") == b"[]" for name in range(8) for number in range(100))
    assert ledger.trouble == ""


def test_many_ledgers_of_one_process_make_one_file(path: Path) -> None:
    def work(name: int) -> str:
        with CallCache(path) as ledger:
            ledger.put(str(name), ANSWER)
            return ledger.trouble

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(work, range(16))) == {""}
    with CallCache(path) as ledger:
        assert [ledger.get(str(name)) for name in range(16)] == [ANSWER] * 16


@pytest.mark.slow
def test_several_processes_make_and_use_one_file(path: Path) -> None:
    processes = [worker("hammer", path, f"w{number}") for number in range(4)]
    assert {process.stdout.readline() for process in processes} == {"ready\n"}
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        with process:
            assert process.stdout.read() == "done \n"
    with CallCache(path) as ledger:
        assert all(ledger.get(f"w{name}:{number}") == Answer(text=f"w{name} {number}") for name in range(4) for number in range(200))
        assert {ledger.get(f"shared:{number}").text for number in range(200)} == {f"shared {number}" for number in range(200)}
    assert _integrity(path) == "ok"


@pytest.mark.parametrize("new", [True, False])
def test_a_writer_waits_for_another_one(new: bool, path: Path) -> None:
    with CallCache(path) as ledger:
        if not new:
            ledger.put("a", ANSWER)
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other, ThreadPoolExecutor(1) as pool:
            other.execute("BEGIN IMMEDIATE")
            put = pool.submit(ledger.put, "b", ANSWER)
            time.sleep(0.2)
            assert not put.done()
            other.execute("COMMIT")
            put.result()
        assert (ledger.get("b"), ledger.trouble) == (ANSWER, "")


@pytest.mark.parametrize("new", [True, False])
def test_a_writer_does_not_wait_for_ever(new: bool, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "_PATIENCE_S", 0.05)
    with CallCache(path) as ledger:
        if not new:
            ledger.put("a", ANSWER)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(UsageError, match=r"the ledger cannot be used \(database is locked\)"):
                ledger.begin(started("r"))


def _integrity(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchone()[0]


@pytest.mark.slow
def test_a_killed_process_loses_nothing_that_it_kept(path: Path) -> None:
    kept: list[tuple[str, str, str]] = []
    moments = random.Random(7)
    for round_ in range(5):
        processes = {f"p{round_}.{number}": worker("forever", path, f"p{round_}.{number}") for number in range(4)}
        for process in processes.values():
            assert process.stdout.readline()
        for name, process in processes.items():
            time.sleep(moments.uniform(0, 0.05))
            process.kill()
            with process:
                lines = process.stdout.read().split("\n")[:-1]  # a line cut short says nothing
            kept += [(name, *line.split(" ", 1)) for line in lines]
    with CallCache(path) as ledger:
        for name, what, key in kept:
            if what == "answer":
                number = int(key.rpartition(":")[2])
                assert ledger.get(key) == Answer(text=f"{name} {number} " + "x" * (number % 50) * 40)
            else:
                assert json.loads(ledger.conversation(name, key)) == [name, int(key)]
        assert ledger.trouble == ""
    assert {what for _, what, _ in kept} == {"answer", "conversation"}
    assert _integrity(path) == "ok"


# Runs and their conversations


def test_runs_are_listed_with_the_one_that_went_on_last_first(ledger: CallCache) -> None:
    later = datetime(2026, 3, 2, tzinfo=UTC)
    first, second = started("first"), started("second", agent_version="m-2", started_at=later)
    ledger.begin(first)
    ledger.begin(second)
    assert ledger.runs() == (second, first)
    again = started("first", config_digest="sha256:3", started_at=later + timedelta(seconds=1))
    ledger.begin(again)
    assert ledger.runs() == (again, second)


def test_a_run_is_running_until_it_has_finished_and_again_when_it_goes_on(ledger: CallCache) -> None:
    ledger.begin(started("r"))
    assert [run.status for run in ledger.runs()] == ["running"]
    ledger.finish("r")
    assert [run.status for run in ledger.runs()] == ["finished"]
    ledger.begin(started("r"))
    assert [run.status for run in ledger.runs()] == ["running"]


def test_a_conversation_belongs_to_its_run(ledger: CallCache) -> None:
    for run_id in ("a", "b"):
        ledger.begin(started(run_id))
    ledger.keep_conversation("a", "case 1", b'{"n": 1}')
    ledger.keep_conversation("a", "case 1", b'{"n": 2}')
    assert (ledger.conversation("a", "case 1"), ledger.conversation("a", "case 2"), ledger.conversation("b", "case 1")) == (
        b'{"n": 2}',
        None,
        None,
    )


def test_what_one_run_paid_for_counts_for_all_that_go_on_with_it(ledger: CallCache) -> None:
    ledger.begin(started("a", lineage="first"))
    ledger.keep_conversation("a", "of a", b"[]")
    for run_id, lineage in (("b", ledger.scope("a")), ("c", "first"), ("alone", "")):
        ledger.begin(started(run_id, lineage=lineage))
        ledger.keep_conversation(run_id, f"of {run_id}", b"[]")
    for run_id in ("a", "b", "c"):
        assert ledger.scope(run_id) == "first"
        assert [ledger.conversation(run_id, f"of {name}") for name in ("a", "b", "c", "alone")] == [b"[]", b"[]", b"[]", None]
    assert (ledger.scope("alone"), ledger.scope("unknown")) == ("alone", "unknown")


def test_going_on_with_a_run_keeps_its_lineage(path: Path) -> None:
    with CallCache(path) as ledger:
        ledger.begin(started("b", lineage="first"))
    with CallCache(path) as ledger:
        ledger.begin(started("b", lineage=""))
        assert [run.lineage for run in ledger.runs()] == ["first"]


# What must not be kept


@pytest.mark.parametrize("secret", ["s3cr3t-0123456789", 'qu"ote\\back/slash', "schlüssel-ключ", "123456789012"])
def test_secrets_are_not_in_the_file_and_still_come_back(secret: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_API_KEY", secret)
    text = json.dumps({"rationale": f"it says {secret}!", "verdict": "valid"})
    answers = [
        Answer(text=text, problem=secret),
        Answer(text=json.dumps(text, ensure_ascii=False), model=secret, input_tokens=123456789012),
    ]
    play = json.dumps({"said": secret, "count": 123456789012}).encode()
    with CallCache(path) as ledger:
        for number, answer in enumerate(answers):
            ledger.put(str(number), answer)
        ledger.keep_conversation("run", "key", play)
        content = path.read_bytes() + path.with_name("ledger.sqlite-wal").read_bytes()
        for spelling in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
            assert spelling.encode() not in content
        assert b"HOUSE_API_KEY" in content
        assert [ledger.get(str(number)) for number in range(2)] == answers
    with CallCache(path) as ledger:
        assert [ledger.get(str(number)) for number in range(2)] == answers
        assert ledger.conversation("run", "key") == play
    monkeypatch.delenv("HOUSE_API_KEY")
    with CallCache(path) as ledger:
        assert (ledger.get("0"), ledger.conversation("run", "key"), ledger.trouble) == (None, None, "")


def test_a_secret_that_came_with_the_agent_is_kept_out_of_conversations(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CallCache(path) as ledger:
        ledger.put("a", ANSWER)
        monkeypatch.setenv("AGENTS_OWN_TOKEN", "tok-abcdefgh")
        ledger.keep_conversation("run", "key", b'["tok-abcdefgh"]')
        assert ledger.conversation("run", "key") == b'["tok-abcdefgh"]'
        assert b"tok-abcdefgh" not in path.with_name("ledger.sqlite-wal").read_bytes()


def test_a_text_that_looks_like_a_mark_is_no_mark(ledger: CallCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_API_KEY", "s3cr3t-0123456789")
    answer = Answer(text="\x1a[HOUSE_API_KEY]0\x1a [HOUSE_API_KEY]")
    ledger.put("a", answer)
    assert ledger.get("a") == answer


# How much, how fast


def test_prune_forgets_what_is_old_and_gives_the_space_back(ledger: CallCache) -> None:
    for number in range(500):
        ledger.put(f"old {number}", Answer(text="x" * 2_000))
    ledger.keep_conversation("run", "old", b"[]")
    ledger.begin(started("old"))
    ledger.begin(started("new", started_at=datetime.now(UTC)))
    assert ledger.prune(older_than_days=1) == (0, 0, 1)
    assert [run.run_id for run in ledger.runs()] == ["new"]
    moment = time.time()
    time.sleep(0.1)
    ledger.put("new", ANSWER)
    ledger.keep_conversation("run", "new", b"[]")
    days = (time.time() - moment) / 86_400
    assert ledger.prune(older_than_days=days, dry_run=True) == (500, 1, 1)
    assert ledger.prune(older_than_days=days) == (500, 1, 1)
    assert (ledger.get("old 0"), ledger.get("new"), ledger.conversation("run", "old"), ledger.conversation("run", "new")) == (
        None,
        ANSWER,
        None,
        b"[]",
    )
    ledger.close()
    assert Path(ledger.name).stat().st_size < 100_000


def test_looking_up_and_keeping_take_microseconds(ledger: CallCache) -> None:
    answer = Answer(text="x" * 600, model="gemini-2.5-flash")
    puts, gets = [], []
    for number in range(2_000):
        before = time.thread_time()  # what others do meanwhile does not count
        ledger.put(f"{number:064}", answer)
        between = time.thread_time()
        ledger.get(f"{number:064}")
        puts.append(between - before)
        gets.append(time.thread_time() - between)
    assert statistics.median(puts) < 200e-6
    assert statistics.median(gets) < 50e-6
