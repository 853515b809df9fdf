"""What is kept in the ledger, and for whom.

An answer is kept under an address: the hash of everything that it depends on but chance (the judge and where it is reached, its settings,
the prompt, the material, the schema) with the number of the vote. Nothing that is looked at later is part of it, so another threshold, one
more criterion or a resumed run finds the same answers, and any other prompt or model does not. A conversation belongs to a run; runs that went
on with one another are of one lineage, and share theirs.

Several processes and threads may use one ledger at the same time. Whoever is about to ask for an answer claims its address; the claim is a
lease, renewed while the question is out, so that what a killed process had claimed is free again after `LEASE_S` seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Any, Literal, Self
from uuid import uuid4

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.judge.protocol import Account, Answer
from mlflow_adk_eval.judge.setup import LedgerSource
from mlflow_adk_eval.ledger.database import Database
from mlflow_adk_eval.ledger.mask import SecretMask
from mlflow_adk_eval.ledger.source import ledger_source
from mlflow_adk_eval.ledger.sqlite import SqliteDatabase
from mlflow_adk_eval.ledger.statements import RUN_TEXTS, Statements
from mlflow_adk_eval.ledger.upkeep import LedgerContents, Pruned, contents, prune

LEASE_S = 15.0
"""How long a claim holds that is not renewed."""
_RENEWED_EVERY_S = LEASE_S / 3
_ANSWER = tuple(field.name for field in fields(Answer))


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
    """The record in one database, which is opened when it is first needed and made when there is something to keep."""

    def __init__(self, source: str | Path) -> None:
        """Name the file, or the database by its URL.

        Raises:
            UsageError: if it is none, or the driver of its database is missing.
        """
        self._database = _database(source)
        self._errors: tuple[type[Exception], ...] = (UsageError, *self._database.errors)
        self._sql = Statements(self._database)
        self._mask = SecretMask()
        self._trouble = ""
        self._unwritten: dict[str, Answer] = {}
        self._claims = _Claims(self._database, self._sql, self._noting_trouble)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the database back. Using the ledger again opens it again."""
        self._claims.close()
        self._database.close()

    @property
    def name(self) -> str:
        """What messages call it: the path of the file, or the database's URL without user and password."""
        return self._database.name

    @property
    def path(self) -> Path:
        """The file.

        Raises:
            UsageError: if it is none.
        """
        if isinstance(self._database, SqliteDatabase):
            return self._database.path
        raise UsageError(f"{self.name}: this ledger is no file")

    @property
    def shared(self) -> bool:
        """Whether several hosts can use it at the same time; a file serves the processes of one."""
        return self._database.remote

    def check(self) -> None:
        """Find out whether the ledger can be used, without making a file.

        Raises:
            UsageError: if it is none of ours, is damaged, cannot be reached or could not be written to.
        """
        with self._raising():
            self._database.check()

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
            body = self._body(self._sql.get_answer, {"address": address})
        return self._answer(body)

    def put(self, address: str, answer: Answer, /) -> None:
        """Keep an answer. It takes the place of an earlier one at the same address, and ends the claim to it."""
        if not self._trouble:
            with self._noting_trouble():
                body = self._mask.hide(canonical_json({name: getattr(answer, name) for name in _ANSWER}))
                self._write(self._sql.put_answer, {"address": address, "body": body})
        if self._trouble:
            self._unwritten[address] = answer
        self._claims.forget(address)

    def claim(self, address: str, /, *, again: bool = False) -> bool:
        """Claim an address before asking for its answer. Whoever may not asks nothing, but looks for the answer a little later.

        The claim ends with `put` or `give_up`, and `LEASE_S` seconds after this process is dead.

        Args:
            address: what is about to be asked.
            again: whether to ask although there is an answer.
        """
        return True if self._trouble else self._claims.take(address, again=again)

    def give_up(self, address: str, /) -> None:
        """End a claim without an answer."""
        self._claims.give_up(address)

    def account(self, name: str, /) -> Account | None:
        """Return what processes share under a name; ``None`` where the ledger cannot be used."""
        rows: Any = None
        if not self._trouble:
            with self._noting_trouble():
                rows = self._database.rows(self._sql.read_account, {"name": name})
        return Account(now=rows[0][0], version=rows[0][1] or 0, body=rows[0][2] or "") if rows else None

    def set_account(self, name: str, body: str, /, *, version: int) -> bool:
        """Change what processes share, if it is still of that version. Return whether it was."""
        changed = 0
        if not self._trouble:
            with self._noting_trouble():
                changed = self._write(self._sql.write_account, {"name": name, "body": body, "version": version})
        return changed == 1

    def conversation(self, run_id: str, key: str) -> bytes | None:
        """Return the conversation that this run, or one that it goes on with, keeps under `key`.

        Raises:
            UsageError: if the ledger cannot be read.
        """
        with self._raising():
            return self._mask.show(self._body(self._sql.get_conversation, {"lineage": self.scope(run_id), "key": key}))

    def keep_conversation(self, run_id: str, key: str, conversation: bytes) -> None:
        """Keep a conversation, which is JSON. It takes the place of an earlier one under the same `key`."""
        if self._trouble:
            return
        with self._noting_trouble():
            self._mask = SecretMask()  # loading the agent may have set further variables
            body = self._mask.hide(conversation)
            self._write(self._sql.put_conversation, {"lineage": self.scope(run_id), "key": key, "body": body})

    def begin(self, run: StartedRun) -> None:
        """Record that a run has started, or that it goes on.

        Raises:
            UsageError: if the ledger is none of ours or cannot be written to. It is found here, before anything is paid for.
        """
        values = {**asdict(run), "lineage": run.lineage or run.run_id, "started": run.started_at.timestamp()}
        del values["started_at"]
        with self._raising():
            self._write(self._sql.begin, values)

    def finish(self, run_id: str) -> None:
        """Record that a run has ended with a result."""
        if not self._trouble:
            with self._noting_trouble():
                self._write(self._sql.finish, {"run_id": run_id})

    def adopt(self, old_run_id: str, new_run_id: str) -> None:
        """Let the conversations of an earlier run, and of those that it goes on with, count for a new one, and the other way round.

        Raises:
            UsageError: if the ledger cannot be written to.
        """
        lineages = {"old": self.scope(old_run_id), "new": self.scope(new_run_id)}
        with self._raising():
            self._database.change(*((statement, lineages) for statement in self._sql.adopt))

    def scope(self, run_id: str) -> str:
        """Return the name that a run shares with all that went on with it: the lineage of the first of them.

        Raises:
            UsageError: if the ledger cannot be read.
        """
        with self._raising():
            rows = self._rows(self._sql.lineage, {"run_id": run_id})
        return str(rows[0][0]) if rows else run_id

    def runs(self) -> tuple[StartedRun, ...]:
        """Return all runs, the one that started or was gone on with last first.

        Raises:
            UsageError: if the ledger cannot be read.
        """
        with self._raising():
            return tuple(_run(row) for row in self._rows(self._sql.runs, {}))

    def contents(self) -> LedgerContents:
        """Return what it holds.

        Raises:
            UsageError: if it cannot be read.
        """
        with self._raising():
            return contents(self._database, self._sql)

    def prune(
        self,
        older_than_days: float | None = None,
        *,
        model: str | None = None,
        run_id: str | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Forget what was paid for, and give the space back.

        Args:
            older_than_days: only what was kept before so many days; with neither a model nor a run: everything that old.
            model: only this model's answers.
            run_id: only the conversations of this run and of those that went on with it.
            dry_run: whether to count only.

        Raises:
            UsageError: if nothing of this is given, a model and a run are, it does not know the run, or it cannot be written to.
        """
        with self._raising():
            return prune(self._database, self._sql, older_than_days=older_than_days, model=model, run_id=run_id, dry_run=dry_run)

    def _answer(self, body: bytes | None) -> Answer | None:
        text = self._mask.show(body)
        try:
            return None if text is None else Answer(**json.loads(text.decode("utf-8", "surrogatepass")))
        except (ValueError, TypeError):
            return None

    def _body(self, query: str, values: dict[str, Any]) -> bytes | None:
        rows = self._rows(query, values)
        return bytes(rows[0][0]) if rows and rows[0][0] is not None else None

    def _rows(self, query: str, values: dict[str, Any]) -> Any:
        """Return what a query finds; nothing where there is no file yet, or no server any more."""
        if not self._database.is_open and (self._trouble or not self._database.exists):
            return []
        return self._database.rows(query, values)

    def _write(self, statement: str, values: dict[str, Any]) -> int:
        """Change something, in a transaction of its own; return how many rows."""
        return self._database.change((statement, values))[0]

    @contextmanager
    def _noting_trouble(self) -> Generator[None]:
        """Take note of what is wrong with the ledger, and go on."""
        try:
            yield
        except self._errors as error:
            self._trouble = self._trouble or f"What was paid for could not be kept for a later run: {self._database.wrong(error)}"

    @contextmanager
    def _raising(self) -> Generator[None]:
        """Raise what is wrong with the ledger as an error of the caller, who named it."""
        try:
            yield
        except self._database.errors as error:
            raise UsageError(self._database.wrong(error)) from error


class _Claims:
    """The addresses that this ledger has claimed. A thread renews those that are held for long, so that a busy event loop loses none."""

    def __init__(self, database: Database, sql: Statements, noting_trouble: Callable[[], AbstractContextManager[None]]) -> None:
        self._database = database
        self._sql = sql
        self._noting_trouble = noting_trouble
        self._owner = uuid4().hex
        self._held: dict[str, float] = {}
        """Each with the time when it was claimed or renewed last."""
        self._changed = Condition(Lock())
        self._renewing: Thread | None = None

    def take(self, address: str, *, again: bool) -> bool:
        with self._changed:
            if address in self._held:
                return False
            self._held[address] = time.monotonic()
            if self._renewing is None:
                self._renewing = Thread(target=self._renew, name="adk-eval-ledger", daemon=True)
                self._renewing.start()
        claimed = True  # where the ledger cannot be used, the question is asked all the same
        values = {"address": address, "owner": self._owner, "lease_s": LEASE_S, "again": again}
        with self._noting_trouble():
            claimed = self._database.change((self._sql.claim, values)) == [1]
        if not claimed:
            self.forget(address)
        return claimed

    def forget(self, address: str) -> None:
        self._held.pop(address, None)

    def give_up(self, address: str) -> None:
        if address in self._held:
            self.forget(address)
            with self._noting_trouble():
                self._database.change((self._sql.give_up, {"address": address, "owner": self._owner}))

    def close(self) -> None:
        with self._changed:
            renewing, self._renewing = self._renewing, None
            self._changed.notify_all()
        if renewing is not None:
            renewing.join()
        for address in list(self._held):
            self.give_up(address)

    def _renew(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._renewing is None, timeout=_RENEWED_EVERY_S)
                if self._renewing is None:
                    return
                due = time.monotonic() - _RENEWED_EVERY_S
                late = [address for address, since in self._held.items() if since <= due]
            for address in late:
                with self._noting_trouble():
                    self._database.change((self._sql.renew, {"address": address, "owner": self._owner, "lease_s": LEASE_S}))
                if address in self._held:
                    self._held[address] = time.monotonic()


def _database(source: str | Path) -> Database:
    where = ledger_source(source)
    if isinstance(where, str):
        from mlflow_adk_eval.ledger.postgres import PostgresDatabase  # noqa: PLC0415 - SQLAlchemy, only for a URL

        return PostgresDatabase(where)
    if where is None:
        raise UsageError("ledger: wanted a path or a postgresql:// URL, not 'off'")
    return SqliteDatabase(where)


def _run(row: tuple[Any, ...]) -> StartedRun:
    *texts, started_at = row
    return StartedRun(**dict(zip(RUN_TEXTS, texts, strict=True)), started_at=datetime.fromtimestamp(started_at, UTC))


@contextmanager
def opened(source: LedgerSource) -> Generator[CallCache | None]:
    """Provide the ledger, or ``None`` where nothing is to be kept.

    Raises:
        UsageError: if the ledger cannot be used.
    """
    where = ledger_source(source)
    if where is None:
        yield None
        return
    with CallCache(where) as ledger:
        ledger.check()
        yield ledger
