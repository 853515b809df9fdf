"""The ledger in an SQLite file, which the processes of one machine share.

The file has a write-ahead log and ``synchronous=NORMAL``: when something is kept, the operating system has it, so a process may be killed
at any moment and loses nothing. Only a crash of the machine itself can cost the last moments; it never costs the file.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, RLock
from typing import Any

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.ledger.database import APPLICATION, SCHEMA, Values
from mlflow_adk_eval.ledger.source import CHOOSING, DEFAULT
from mlflow_adk_eval.ledger.statements import table_statements
from mlflow_adk_eval.ledger.trust import refuse_foreign

_PATIENCE_S = 30.0
"""How long to wait for another process that is writing."""
_IDENTITY = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
_OPENING = Lock()
"""Closing a file gives up the locks that this process has on it elsewhere, so no file is made while another thread opens one."""


class SqliteDatabase:
    """One file, over one connection. It is made when there is something to keep."""

    remote = False
    prefix = ""
    clock = "now_s()"
    bytes_type = "BLOB"
    errors: tuple[type[Exception], ...] = (OSError, sqlite3.Error)

    def __init__(self, path: Path) -> None:
        """Name the file."""
        self.path = path.absolute()  # an agent may change the working directory
        self.name = str(self.path)
        self._connection: sqlite3.Connection | None = None
        self._lock = RLock()

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self._connection is not None

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return self._connection is not None or self.path.exists()

    def check(self) -> None:
        """Find out whether the file can be used, without making it."""
        if self._connection is None:
            refuse_foreign(self.path)
        if self.exists:
            with self._lock:
                self._opened()
        elif not os.access(folder := next(folder for folder in self.path.parents if folder.exists()), os.W_OK):
            raise PermissionError(f"nothing can be written to {folder}")

    def rows(self, statement: str, values: Values) -> Sequence[Sequence[Any]]:
        """Return what a query finds."""
        with self._lock:
            return self._opened().execute(statement, values).fetchall()

    def change(self, *changes: tuple[str, Values]) -> list[int]:
        """Execute statements in one transaction, and return how many rows each has changed."""
        with self._lock:
            connection = self._opened()
            if len(changes) == 1:
                return [connection.execute(*changes[0]).rowcount]
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                return [connection.execute(statement, values).rowcount for statement, values in changes]

    def shrink(self) -> None:
        """Give the space of deleted rows back."""
        with self._lock:
            self._opened().executescript("PRAGMA incremental_vacuum")  # `execute` would free one page

    def close(self) -> None:
        """Give the file back."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def wrong(self, error: Exception) -> str:
        """Return what is wrong with the file, and what to do."""
        if isinstance(error, UsageError):
            return str(error)
        damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
        what = "this is no ledger, or a damaged one" if damaged else "the ledger cannot be used"
        return f"{self.path}: {what} ({error}); {_WAY_OUT}"

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            refuse_foreign(self.path)
            self._connection = _connect(self.path)
        return self._connection


_WAY_OUT = f"move it away, or name another file {CHOOSING}"


def _connect(path: Path) -> sqlite3.Connection:
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
    connection.create_function("now_s", 0, time.time)  # SQLite's own has milliseconds only
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
        statements = "; ".join(table_statements(SqliteDatabase.prefix, SqliteDatabase.bytes_type))
        identity = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA}"
        connection.executescript(f"BEGIN IMMEDIATE; {statements}; {identity}; COMMIT;")
    elif application != APPLICATION:
        raise UsageError(f"{path}: this SQLite database is no ledger; {_WAY_OUT}")
    elif version != SCHEMA:
        raise UsageError(f"{path}: this ledger has schema {version}, and this version of mlflow-adk-eval reads {SCHEMA}; {_WAY_OUT}")
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
