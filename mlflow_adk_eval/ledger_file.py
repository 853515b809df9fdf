"""The file behind the ledger: how it is made, opened by several processes, and kept free of secrets."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.redact import secret_values

DEFAULT = Path(".adk_eval") / "ledger.sqlite"
"""Where the ledger is, from the working directory."""
VARIABLE = "ADK_EVAL_LEDGER"
"""The environment variable that names the file, or says ``off``."""

_APPLICATION = 0x41444B45
"""Tells a ledger from other SQLite files."""
_SCHEMA = 1
_PATIENCE_S = 30.0
"""How long to wait for another process that is writing."""
# Runs that went on with one another are of one lineage, so what one of them paid for counts for all.
_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS answer (address TEXT PRIMARY KEY, body BLOB NOT NULL, kept_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS play (
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


class Veil:
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
        _log_ahead(connection)
        connection.executescript(_TABLES)
    elif application != _APPLICATION:
        raise UsageError(f"{path}: this SQLite database is no ledger; {_WAY_OUT}")
    elif version != _SCHEMA:
        raise UsageError(f"{path}: this ledger has schema {version}, and this version of mlflow-adk-eval reads {_SCHEMA}; {_WAY_OUT}")
    else:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def _log_ahead(connection: sqlite3.Connection) -> None:
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


def nearest_folder(path: Path) -> Path:
    """Return the folder in which something has to be made first so that `path` can be."""
    return next(folder for folder in path.absolute().parents if folder.exists())


_WAY_OUT = f"move it away, or name another file with --ledger or {VARIABLE} (`off`: keep nothing)"


def wrong(path: Path, error: Exception) -> str:
    """Return what is wrong with the file, and what to do."""
    if isinstance(error, UsageError):
        return str(error)
    damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
    return f"{path}: {'this is no ledger, or a damaged one' if damaged else 'the ledger cannot be used'} ({error}); {_WAY_OUT}"
