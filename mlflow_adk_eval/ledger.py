"""What was paid for: judges' answers and conversations with the agent, in one file that outlives a killed run.

An answer is kept under an address: the hash of everything that it depends on but chance (the judge and where it is reached, its settings,
the prompt, the material, the schema) with the number of the vote. Nothing that is looked at later is part of it, so another threshold, one
more criterion or a resumed run finds the same answers, and any other prompt or model does not. A conversation belongs to a run; runs that went
on with one another are of one lineage, and share theirs.

The file is an SQLite database with a write-ahead log and ``synchronous=NORMAL``: when a method that keeps something returns, the
operating system has it, so a process may be killed at any moment and loses nothing. Only a crash of the machine itself can cost
the last moments; it never costs the file. Several processes and threads may use one file at the same time.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Literal, Self

from mlflow_adk_eval.errors import UsageError, shown
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.judge.setup import LedgerSource
from mlflow_adk_eval.redact import secret_values

DEFAULT = Path(".adk_eval") / "ledger.sqlite"
"""Where the ledger is, from the working directory."""
VARIABLE = "ADK_EVAL_LEDGER"
"""The environment variable that names the file, or says ``off``."""

_APPLICATION = 0x41444B45
"""Tells a ledger from other SQLite files."""
_SCHEMA = 2
_PATIENCE_S = 30.0
"""How long to wait for another process that is writing."""
_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS answer (address TEXT PRIMARY KEY, body BLOB NOT NULL, kept_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS conversation (
    lineage TEXT NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL, kept_at REAL NOT NULL, PRIMARY KEY (lineage, key)
);
CREATE TABLE IF NOT EXISTS run (
    run_id TEXT PRIMARY KEY, lineage TEXT NOT NULL, eval_set_digest TEXT NOT NULL, config_digest TEXT NOT NULL,
    agent_name TEXT NOT NULL, agent_version TEXT NOT NULL, status TEXT NOT NULL, started_at REAL NOT NULL
);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_SCHEMA};
COMMIT;
"""
_IDENTITY = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")


class SecretMask:
    """Keeps the values of secret environment variables out of the file.

    In JSON, control characters are escaped, so a mark made of one is never part of what it stands in. Reading undoes the marks, since
    a conversation that reads differently would be judged differently. Without the variable, what was kept cannot be used.
    """

    def __init__(self) -> None:
        """Take the environment as it is."""
        forms = {
            form: f"\x1a[{name}]{number}\x1a".encode()
            for value, name in secret_values().items()
            for number, form in enumerate(_forms(value))
        }
        self._marks = sorted(forms.items(), key=lambda item: -len(item[0]))

    def hide(self, text: bytes) -> bytes:
        """Return JSON with marks."""
        for form, mark in self._marks:
            text = text.replace(form, mark)
        return text

    def show(self, text: bytes | None) -> bytes | None:
        """Return the JSON that was hidden; ``None`` if it cannot be had back."""
        if text is None or b"\x1a" not in text:
            return text
        for form, mark in reversed(self._marks):
            text = text.replace(mark, form)
        return None if b"\x1a" in text else text


def _forms(value: str) -> list[bytes]:
    """Return how JSON spells a value: in a text, and in JSON that is itself a text."""
    forms = [value]
    for _ in range(2):
        forms += [json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in forms for ascii_only in (False, True)]
    return [form.encode("utf-8", "surrogatepass") for form in dict.fromkeys(forms)]


_OPENING = Lock()
"""Closing a file gives up the locks that this process has on it elsewhere, so no file is made while another thread opens one."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the file, or make it.

    Raises:
        UsageError: if it is none of ours.
        sqlite3.Error: if it is damaged or cannot be written to.
        OSError: if it cannot be made.
    """
    with _OPENING:
        if not path.exists():
            _make(path)
        connection = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _make(path: Path) -> None:
    """Make an empty file that only its owner can read, in a folder that git leaves out."""
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.parent.name == DEFAULT.parent.name:
            (path.parent / ".gitignore").write_text("*\n")
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make sure that the file is a ledger and can be written to."""
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("BEGIN")  # so that all answers are about the same moment
    application, version, tables = (connection.execute(query).fetchone()[0] for query in _IDENTITY)
    connection.execute("ROLLBACK")
    if not (application or version or tables):
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _use_write_ahead_log(connection)
        connection.executescript(_TABLES)
    elif application != _APPLICATION:
        raise UsageError(f"{path}: this SQLite database is no ledger; {_WAY_OUT}")
    elif version != _SCHEMA:
        raise UsageError(f"{path}: this ledger has schema {version}, and this version of mlflow-adk-eval reads {_SCHEMA}; {_WAY_OUT}")
    else:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch to a write-ahead log. Where two processes do so at the same time, SQLite refuses one without waiting."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


_WAY_OUT = f"move it away, or name another file with --ledger or {VARIABLE} (`off`: keep nothing)"


def wrong(path: Path, error: Exception) -> str:
    """Return what is wrong with the file, and what to do."""
    if isinstance(error, UsageError):
        return str(error)
    damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
    return f"{path}: {'this is no ledger, or a damaged one' if damaged else 'the ledger cannot be used'} ({error}); {_WAY_OUT}"


_DAY_S = 86_400.0

_GET_ANSWER = "SELECT body FROM answer WHERE address = :address"
_PUT_ANSWER = "INSERT OR REPLACE INTO answer VALUES (:address, :body, :now)"
_GET_CONVERSATION = "SELECT body FROM conversation WHERE lineage = :lineage AND key = :key"
_PUT_CONVERSATION = "INSERT OR REPLACE INTO conversation VALUES (:lineage, :key, :body, :now)"
_BEGIN = """
INSERT INTO run (run_id, lineage, eval_set_digest, config_digest, agent_name, agent_version, status, started_at)
VALUES (:run_id, :lineage, :eval_set_digest, :config_digest, :agent_name, :agent_version, :status, :now)
ON CONFLICT (run_id) DO UPDATE SET
    eval_set_digest = excluded.eval_set_digest, config_digest = excluded.config_digest, agent_name = excluded.agent_name,
    agent_version = excluded.agent_version, status = excluded.status, started_at = excluded.started_at
"""
_RUN_TEXTS = ("run_id", "eval_set_digest", "config_digest", "agent_name", "agent_version", "status")
_RUNS = f"SELECT {', '.join(_RUN_TEXTS)}, started_at FROM run ORDER BY started_at DESC, rowid DESC"  # noqa: S608 - all of it stands here
_PRUNE = ("DELETE FROM answer WHERE kept_at < :oldest", "DELETE FROM conversation WHERE kept_at < :oldest")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """An evaluation that was started."""

    run_id: str
    eval_set_digest: str
    config_digest: str
    agent_name: str
    agent_version: str
    started_at: datetime
    """With its time zone; for a run that was gone on with, when that was."""
    status: Literal["running", "finished"] = "running"
    """A run that was killed stays ``running``."""
    lineage: str = ""
    """The name that it shares with all runs that go on with it; empty: its id. It counts only where the run is new."""


class CallCache:
    """The record in one file, which is opened when it is first needed and made when there is something to keep."""

    def __init__(self, path: str | Path) -> None:
        """Name the file."""
        self.path = Path(path).absolute()  # an agent may change the working directory
        self._connection: sqlite3.Connection | None = None
        self._lock = RLock()
        self._mask = SecretMask()
        self._trouble = ""
        self._unwritten: dict[str, Answer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back. Using the ledger again opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def check(self) -> None:
        """Find out whether the file can be used, without making it.

        Raises:
            UsageError: if it is none of ours, is damaged or could not be written to.
        """
        with self._raising(), self._lock:
            if self.path.exists():
                self._open()
            elif not os.access(folder := next(folder for folder in self.path.parents if folder.exists()), os.W_OK):
                raise UsageError(wrong(self.path, PermissionError(f"nothing can be written to {folder}")))

    @property
    def trouble(self) -> str:
        """Why nothing more could be kept, as a sentence; empty where everything was.

        An evaluation goes on without its ledger: what it finds is complete, but what it paid for since cannot be used again.
        """
        return self._trouble

    def get(self, address: str, /) -> Answer | None:
        """Return the answer that is kept under `address`, if there is one that can be read."""
        if address in self._unwritten:
            return self._unwritten[address]
        body = None
        with self._noting_trouble():
            body = self._body(_GET_ANSWER, {"address": address})
        return self._answer(body)

    def put(self, address: str, answer: Answer, /) -> None:
        """Keep an answer. It takes the place of an earlier one at the same address."""
        if not self._trouble:
            with self._noting_trouble():
                body = self._mask.hide(canonical_json(asdict(answer)))
                self._write(_PUT_ANSWER, {"address": address, "body": body, "now": time.time()})
        if self._trouble:
            self._unwritten[address] = answer

    def conversation(self, run_id: str, key: str) -> bytes | None:
        """Return the conversation that this run, or one that it goes on with, keeps under `key`.

        Raises:
            UsageError: if the file cannot be read.
        """
        with self._raising():
            return self._mask.show(self._body(_GET_CONVERSATION, {"lineage": self.scope(run_id), "key": key}))

    def keep_conversation(self, run_id: str, key: str, conversation: bytes) -> None:
        """Keep a conversation, which is JSON. It takes the place of an earlier one under the same `key`."""
        if self._trouble:
            return
        with self._noting_trouble():
            self._mask = SecretMask()  # loading the agent may have set further variables
            body = self._mask.hide(conversation)
            self._write(_PUT_CONVERSATION, {"lineage": self.scope(run_id), "key": key, "body": body, "now": time.time()})

    def begin(self, run: StartedRun) -> None:
        """Record that a run has started, or that it goes on.

        Raises:
            UsageError: if the file is none of ours or cannot be written to. It is found here, before anything is paid for.
        """
        with self._raising():
            self._write(_BEGIN, {**asdict(run), "lineage": run.lineage or run.run_id, "now": run.started_at.timestamp()})

    def finish(self, run_id: str) -> None:
        """Record that a run has ended with a result."""
        if not self._trouble:
            with self._noting_trouble():
                self._write("UPDATE run SET status = 'finished' WHERE run_id = :run_id", {"run_id": run_id})

    def adopt(self, old_run_id: str, new_run_id: str) -> None:
        """Let the conversations of an earlier run, and of those that it goes on with, count for a new one, and the other way round.

        Raises:
            UsageError: if the file cannot be written to.
        """
        old, new = self.scope(old_run_id), self.scope(new_run_id)
        with self._raising(), self._lock, self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE run SET lineage = ? WHERE lineage = ?", (old, new))
            connection.execute("UPDATE OR IGNORE conversation SET lineage = ? WHERE lineage = ?", (old, new))

    def scope(self, run_id: str) -> str:
        """Return the name that a run shares with all that went on with it: the lineage of the first of them.

        Raises:
            UsageError: if the file cannot be read.
        """
        with self._raising():
            rows = self._rows("SELECT lineage FROM run WHERE run_id = :run_id", {"run_id": run_id})
        return str(rows[0][0]) if rows else run_id

    def runs(self) -> tuple[StartedRun, ...]:
        """Return all runs, the one that started or was gone on with last first.

        Raises:
            UsageError: if the file cannot be read.
        """
        with self._raising():
            return tuple(_run(row) for row in self._rows(_RUNS, {}))

    def prune(self, older_than_days: float) -> int:
        """Forget what is older than so many days, give the space back and return how many answers and conversations that were.

        Raises:
            UsageError: if the file cannot be written to.
        """
        with self._raising(), self._lock:
            if not self.path.exists():
                return 0
            connection, oldest = self._open(), {"oldest": time.time() - older_than_days * _DAY_S}
            gone = sum(connection.execute(statement, oldest).rowcount for statement in _PRUNE)
            connection.execute("DELETE FROM run WHERE started_at < :oldest", oldest)
            connection.executescript("PRAGMA incremental_vacuum")  # `execute` would free one page
            return gone

    def _answer(self, body: bytes | None) -> Answer | None:
        text = self._mask.show(body)
        try:
            return None if text is None else Answer(**json.loads(text.decode("utf-8", "surrogatepass")))
        except (ValueError, TypeError):
            return None

    def _body(self, query: str, values: Mapping[str, Any]) -> bytes | None:
        rows = self._rows(query, values)
        return rows[0][0] if rows else None

    def _rows(self, query: str, values: Mapping[str, Any]) -> list[Any]:
        """Return what a query finds; nothing where there is no file yet."""
        with self._lock:
            if self._connection is None and (self._trouble or not self.path.exists()):
                return []
            return self._open().execute(query, values).fetchall()

    def _write(self, statement: str, values: Mapping[str, Any]) -> None:
        """Change something, in a transaction of its own."""
        with self._lock:
            self._open().execute(statement, values)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self.path)
        return self._connection

    @contextmanager
    def _noting_trouble(self) -> Generator[None]:
        """Take note of what is wrong with the file, and go on."""
        try:
            yield
        except (OSError, sqlite3.Error, UsageError) as error:
            self._trouble = self._trouble or f"What was paid for could not be kept for a later run: {wrong(self.path, error)}"

    @contextmanager
    def _raising(self) -> Generator[None]:
        """Raise what is wrong with the file as an error of the caller, who named it."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise UsageError(wrong(self.path, error)) from error


def _run(row: tuple[Any, ...]) -> StartedRun:
    *texts, started_at = row
    return StartedRun(**dict(zip(_RUN_TEXTS, texts, strict=True)), started_at=datetime.fromtimestamp(started_at, UTC))


@contextmanager
def opened(source: LedgerSource) -> Generator[CallCache | None]:
    """Provide the ledger, or ``None`` where nothing is to be kept.

    Raises:
        UsageError: if the file cannot be used.
    """
    path = ledger_path(source)
    if path is None:
        yield None
        return
    with CallCache(path) as ledger:
        ledger.check()
        yield ledger


def ledger_path(source: LedgerSource) -> Path | None:
    """Return the file that is meant; ``None`` where nothing is to be kept.

    Raises:
        UsageError: if it is nothing of the kind.

    >>> ledger_path("off"), ledger_path(False), ledger_path("somewhere.sqlite")
    (None, None, PosixPath('somewhere.sqlite'))
    """
    named = os.environ.get(VARIABLE) or DEFAULT if source is None else source
    if named is False or (isinstance(named, str) and named.strip().lower() == "off"):
        return None
    if not isinstance(named, str | Path) or not str(named).strip():
        raise UsageError(f"ledger: wanted a path or 'off', not {shown(named)}")
    return Path(named)
