"""Where the ledger is: a file, or a PostgreSQL database that a URL names. What both are asked in SQL, and the file.

The file is SQLite's, which takes microseconds and belongs to one machine; the server is in `postgres`, which has the same methods.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, RLock
from typing import Any
from urllib.parse import unquote

from mlflow_adk_eval.errors import UsageError, shown
from mlflow_adk_eval.judge.setup import LedgerSource
from mlflow_adk_eval.ledger.trust import refuse_foreign

DEFAULT = Path(".adk_eval") / "ledger.sqlite"
"""Where the ledger is, from the working directory."""
VARIABLE = "MLFLOW_ADK_EVAL_LEDGER"
"""The environment variable that names the ledger, or says ``off``."""
CHOOSING = f"with --ledger or {VARIABLE} (`off`: store nothing)"
"""How to name another ledger, as the end of a sentence."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_POSTGRES = re.compile(r"(postgresql|postgres)(\+\w+)?$")


def ledger_source(source: LedgerSource) -> Path | str | None:
    """Return the file that is meant, or the URL of a PostgreSQL database; ``None`` where nothing is to be kept.

    Raises:
        UsageError: if it is none of these. What a URL says beside its scheme is not repeated.

    >>> ledger_source("off"), ledger_source(False), ledger_source("somewhere.sqlite"), ledger_source("sqlite:///there.sqlite")
    (None, None, PosixPath('somewhere.sqlite'), PosixPath('there.sqlite'))
    """
    named = os.environ.get(VARIABLE) or DEFAULT if source is None else source
    if named is False or (isinstance(named, str) and named.strip().lower() == "off"):
        return None
    if not isinstance(named, str | Path) or not str(named).strip():
        raise UsageError(f"ledger: wanted a path, a postgresql:// URL or 'off', not {shown(named)}")
    url = _URL.match(named) if isinstance(named, str) else None
    if not url or not isinstance(named, str):
        return Path(named)
    scheme = url[1].lower()
    if scheme == "sqlite" and (path := unquote(named[url.end() :].partition("?")[0]).removeprefix("/")):
        return Path(path)
    if not _POSTGRES.match(scheme):
        raise UsageError(f"ledger: wanted a path, postgresql://…, sqlite:///FILE or 'off', not {scheme}://…")
    return named


def is_shared(source: LedgerSource) -> bool:
    """Whether several hosts can use this ledger at the same time; a file serves the processes of one.

    Raises:
        UsageError: if it is no ledger.

    >>> is_shared("postgresql://db.example/mlflow"), is_shared("ledger.sqlite"), is_shared("off")
    (True, False, False)
    """
    return isinstance(ledger_source(source), str)


SCHEMA = 4
"""The version of the tables."""
APPLICATION = 0x41444B45
"""Tells a ledger from other SQLite files, and its lock from other locks of a server."""
Values = Mapping[str, Any]
"""The parameters of a statement, by name."""
RUN_TEXTS = ("run_id", "lineage", "eval_set_digest", "config_digest", "agent_name", "agent_version", "status")
"""The columns of a run that are texts."""
PLACES = {"answer": ("address",), "conversation": ("lineage", "key")}
"""What tells where an entry of a kind stands."""
HELD = "run "
"""What the address begins with under which a run is held."""


def _upsert(table: str, key: Iterable[str], values: Mapping[str, str]) -> str:
    """Return what writes a row, in the place of one with the same key; `values`: the SQL of each other column."""
    row = {name: f":{name}" for name in key} | dict(values)
    into = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(row.values())})"
    return f"{into} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in values)}"


class Statements:
    """Each statement, as one database takes it. All times are the database's own, so that no two clocks are compared."""

    def __init__(self, p: str, now: str, bytes_type: str) -> None:
        """Fill in what differs between databases.

        Args:
            p: what the names of its tables begin with.
            now: the SQL of its own time, in seconds since 1970.
            bytes_type: what it calls bytes.
        """
        self.tables = (
            f"""CREATE TABLE IF NOT EXISTS {p}answer (
                address TEXT PRIMARY KEY, body {bytes_type}, code {bytes_type}, kept_at DOUBLE PRECISION NOT NULL, owner TEXT, until DOUBLE PRECISION)""",
            f"""CREATE TABLE IF NOT EXISTS {p}conversation (
                lineage TEXT NOT NULL, key TEXT NOT NULL, body {bytes_type} NOT NULL, code {bytes_type}, kept_at DOUBLE PRECISION NOT NULL,
                PRIMARY KEY (lineage, key))""",
            f"""CREATE TABLE IF NOT EXISTS {p}run (
                run_id TEXT PRIMARY KEY, lineage TEXT NOT NULL, eval_set_digest TEXT NOT NULL, config_digest TEXT NOT NULL,
                agent_name TEXT NOT NULL, agent_version TEXT NOT NULL, status TEXT NOT NULL, started_at DOUBLE PRECISION NOT NULL, code {bytes_type})""",
            f"""CREATE TABLE IF NOT EXISTS {p}account (
                name TEXT PRIMARY KEY, version INTEGER NOT NULL, body TEXT NOT NULL, code {bytes_type}, kept_at DOUBLE PRECISION NOT NULL)""",
        )
        where = {kind: " AND ".join(f"{name} = :{name}" for name in names) for kind, names in PLACES.items()}
        self.get = {kind: f"SELECT body, code FROM {p}{kind} WHERE {place}" for kind, place in where.items()}
        kept = {"body": ":body", "code": ":code", "kept_at": now}
        put = {kind: _upsert(f"{p}{kind}", names, kept) for kind, names in PLACES.items()}
        self.put = put | {"answer": f"{put['answer']}, owner = NULL, until = NULL"}  # which ends the claim
        # Nobody can claim what is answered, or what another one holds whose lease runs; no lease is longer. `again`: although it is answered.
        self.claim = f"""
            INSERT INTO {p}answer (address, kept_at, owner, until) VALUES (:address, {now}, :owner, {now} + :lease_s)
            ON CONFLICT (address) DO UPDATE SET owner = excluded.owner, until = excluded.until,
                kept_at = CASE WHEN {p}answer.body IS NULL THEN excluded.kept_at ELSE {p}answer.kept_at END
            WHERE ({p}answer.body IS NULL OR :again) AND ({p}answer.until IS NULL OR {p}answer.owner = :owner
                OR {p}answer.until NOT BETWEEN {now} AND {now} + :lease_s)"""
        self.holder = f"SELECT owner, kept_at FROM {p}answer WHERE address = :address"
        self.renew = f"UPDATE {p}answer SET until = {now} + :lease_s WHERE address = :address AND owner = :owner"
        self.give_up = f"UPDATE {p}answer SET owner = NULL, until = NULL WHERE address = :address AND owner = :owner"
        self.begin = _upsert(f"{p}run", RUN_TEXTS[:1], {name: f":{name}" for name in (*RUN_TEXTS[1:], "started_at", "code")})
        self.finish = f"UPDATE {p}run SET status = 'finished' WHERE run_id = :run_id"
        known = f"SELECT {', '.join(RUN_TEXTS)}, started_at, code FROM {p}run"
        self.run = f"{known} WHERE run_id = :run_id"
        self.runs = f"{known} ORDER BY started_at DESC, run_id DESC"
        # What somebody is asking again is not forgotten meanwhile.
        old_answer = f"FROM {p}answer WHERE kept_at <= {now} - :age_s AND body IS NOT NULL AND (until IS NULL OR until <= {now})"
        old_conversation = f"FROM {p}conversation WHERE kept_at <= {now} - :age_s"
        old_run = f"FROM {p}run WHERE started_at <= {now} - :age_s"
        self.count_old = tuple(f"SELECT count(*) {old}" for old in (old_answer, old_conversation, old_run))
        self.prune = (
            f"DELETE {old_answer}",
            f"DELETE {old_conversation}",
            f"DELETE FROM {p}answer WHERE body IS NULL AND (until IS NULL OR until <= {now})",
            f"DELETE {old_run}",
            f"DELETE FROM {p}account WHERE kept_at <= {now} - :age_s",
        )
        of_lineage = tuple(f"{old} AND lineage = :lineage" for old in (old_conversation, old_run))
        self.count_old_of_run = (None, *(f"SELECT count(*) {old}" for old in of_lineage))
        self.prune_run = tuple(f"DELETE {old}" for old in of_lineage)
        self.count_old_answer = f"SELECT count(*) {old_answer} AND address = :address"
        self.prune_answer = f"DELETE {old_answer} AND address = :address"
        self.answers_held = f"SELECT count(*), sum(length(body)), min(kept_at), max(kept_at) FROM {p}answer WHERE body IS NOT NULL"
        self.conversations_held = f"SELECT count(*), sum(length(body)), min(kept_at), max(kept_at) FROM {p}conversation"
        self.count_runs = f"SELECT count(*) FROM {p}run"
        self.count_claims = f"SELECT count(*) FROM {p}answer WHERE owner IS NOT NULL AND until > {now} AND address NOT LIKE '{HELD}%'"
        self.answers_after = f"SELECT address, body FROM {p}answer WHERE address > :after AND body IS NOT NULL ORDER BY address LIMIT :page"
        self.accounts = f"SELECT name, body FROM {p}account ORDER BY name"
        self.read_account = f"""
            SELECT {now}, version, body, code FROM (SELECT 1 AS one) AS always LEFT JOIN {p}account ON name = :name"""
        self.write_account = f"""
            INSERT INTO {p}account (name, version, body, code, kept_at) VALUES (:name, 1, :body, :code, {now})
            ON CONFLICT (name) DO UPDATE SET version = {p}account.version + 1, body = excluded.body, code = excluded.code, kept_at = excluded.kept_at
            WHERE {p}account.version = :version"""


_PATIENCE_S = 30.0
"""How long to wait for another process that is writing."""
_WAY_OUT = f"move it away, or name another file {CHOOSING}"
_OPENING = Lock()
"""Closing a file gives up the locks that this process has on it elsewhere, so no file is made while another thread opens one."""


class SqliteDatabase:
    """One file, which the processes of one machine share, over one connection. It is made when there is something to keep.

    The file has a write-ahead log and ``synchronous=NORMAL``: when something is kept, the operating system has it, so a process may be killed
    at any moment and loses nothing. Only a crash of the machine itself can cost the last moments; it never costs the file.
    """

    remote = False
    """Whether it is reached over a network: several hosts share it, and a statement takes long enough to be worth a thread."""
    sql = Statements("", "now_s()", "BLOB")
    errors: tuple[type[Exception], ...] = (OSError, sqlite3.Error)
    """What its methods raise where it cannot be used."""

    def __init__(self, path: Path) -> None:
        """Name the file."""
        self.path = path.absolute()  # an agent may change the working directory
        self.name = str(self.path)
        """What messages call it."""
        self._connection: sqlite3.Connection | None = None
        self._lock = RLock()

    @property
    def is_open(self) -> bool:
        """Whether it is connected and works, as far as is known."""
        return self._connection is not None

    def check(self) -> None:
        """Find out whether the file can be used, without making it."""
        if self._connection is None:
            refuse_foreign(self.path)
        if self._connection or self.path.exists():
            with self._lock:
                self._opened()
        elif not os.access(folder := next(folder for folder in self.path.parents if folder.exists()), os.W_OK):
            raise PermissionError(f"nothing can be written to {folder}")

    def rows(self, statement: str, values: Values) -> Sequence[Sequence[Any]]:
        """Return what a query finds; nothing where there is no file."""
        if self._connection is None and not self.path.exists():
            return []
        with self._lock:
            return self._opened().execute(statement, values).fetchall()

    def change(self, statement: str, values: Values) -> int:
        """Execute a statement in a transaction of its own, and return how many rows it has changed."""
        with self._lock:
            return self._opened().execute(statement, values).rowcount

    def change_all(self, statements: Iterable[str], values: Values) -> None:
        """Execute statements in one transaction."""
        with self._lock, (connection := self._opened()):
            connection.execute("BEGIN IMMEDIATE")
            for statement in statements:
                connection.execute(statement, values)

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
        what = "this is not a ledger, or it is damaged" if damaged else "the ledger cannot be used"
        return f"{self.path}: {what} ({error}); {_WAY_OUT}"

    def _opened(self) -> sqlite3.Connection:
        """Return the connection to the file, which is opened, and made, when it is first needed.

        Raises:
            UsageError: if it is none of ours.
            sqlite3.Error: if it is damaged or cannot be written to.
            OSError: if it cannot be made.
        """
        if self._connection is not None:
            return self._connection
        refuse_foreign(self.path)
        folder = self.path.parent
        with _OPENING:
            if not self.path.exists():  # it is empty at first; only its owner can read it, and git leaves its folder out
                if not folder.exists():
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    if folder.name == DEFAULT.parent.name:
                        (folder / ".gitignore").write_text("*\n")
                with suppress(FileExistsError):
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            connection = sqlite3.connect(self.path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False)
        connection.create_function("now_s", 0, time.time)  # SQLite's own has milliseconds only
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make sure that the file is a ledger and can be written to."""
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN")  # so that all answers are about the same moment
        identity = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        application, version, tables = (connection.execute(query).fetchone()[0] for query in identity)
        connection.execute("ROLLBACK")
        if not (application or version or tables):
            from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed  # noqa: PLC0415 - only for a new file

            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            # Where two processes switch to a write-ahead log at the same time, SQLite refuses one without waiting.
            refused = retry_if_exception_type(sqlite3.OperationalError)
            attempts = Retrying(retry=refused, stop=stop_after_delay(_PATIENCE_S), wait=wait_fixed(0.01), reraise=True)
            attempts(connection.execute, "PRAGMA journal_mode = WAL")
            ours = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA}"
            connection.executescript(f"BEGIN IMMEDIATE; {'; '.join(self.sql.tables)}; {ours}; COMMIT;")
        elif application != APPLICATION:
            raise UsageError(f"{self.path}: this SQLite database is not a ledger; {_WAY_OUT}")
        elif version != SCHEMA:
            msg = f"{self.path}: this ledger has schema {version}, but this version of mlflow-adk-eval reads {SCHEMA}; {_WAY_OUT}"
            raise UsageError(msg)
        else:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
