"""What is kept in the ledger, and for whom.

An answer is kept under an address: the hash of everything that it depends on but chance (the judge and where it is reached, its settings,
the prompt, the material, the schema) with the number of the vote. Nothing that is looked at later is part of it, so another threshold, one
more criterion or a resumed run finds the same answers, and any other prompt or model does not. A conversation belongs to a run; runs that went
on with one another are of one lineage, and share theirs.

Several processes and threads may use one ledger at the same time. Whoever is about to ask for an answer claims its address; the claim is a
lease, renewed while the question is out, so that what a killed process had claimed is free again after `LEASE_S` seconds, and
on its host at once.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from uuid import uuid4

from mlflow_adk_eval.errors import AdkEvalError, RunError, UsageError
from mlflow_adk_eval.evalset.models import canonical_json
from mlflow_adk_eval.judge.protocol import Account, Answer
from mlflow_adk_eval.judge.setup import LedgerSource
from mlflow_adk_eval.ledger.database import HELD, PLACES, RUN_TEXTS, VARIABLE, SqliteDatabase, ledger_source
from mlflow_adk_eval.ledger.trust import PARTS, code_of, ledger_key
from mlflow_adk_eval.ledger.upkeep import LedgerContents, Pruned, contents, prune
from mlflow_adk_eval.redact import secret_values, spellings
from mlflow_adk_eval.runtime import user_at_host

if TYPE_CHECKING:
    from mlflow_adk_eval.ledger.postgres import PostgresDatabase

LEASE_S = 15.0
"""How long a claim holds that is not renewed."""
_RENEWED_EVERY_S = LEASE_S / 3
_ANSWER = tuple(field.name for field in fields(Answer))
_SIGNED = tuple(name for name in RUN_TEXTS if name != "status")
_NO_ROWS: Sequence[Sequence[Any]] = ()
T = TypeVar("T")


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
    """The name that it shares with all runs that go on with it; empty: the one that it had, or its id where it is new."""


class _Holder(NamedTuple):
    """Who claims an address."""

    owner: str
    process: str
    who: str
    since: float
    is_dead: bool
    """Whether it was a process of this host that has ended, as far as that can be said."""


def _has_ended(process: str) -> bool:
    """Whether no such process of this host runs any more, as far as that can be said."""
    try:
        os.kill(int(process), 0)
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, ValueError):  # it is somebody else's, no number of a process, or a system without /proc
        return False
    return state.split()[:1] == ["Z"]  # it was killed, and nobody has asked how it ended, as in many containers


class CallCache(AbstractContextManager["CallCache"]):
    """The record in one database, which is opened when it is first needed and made when there is something to keep."""

    def __init__(self, source: str | Path) -> None:
        """Name the file, or the database by its URL.

        Raises:
            UsageError: if it is none, the driver of its database is missing, or its key is none.
        """
        where = ledger_source(source)
        if where is None:
            raise UsageError("ledger: wanted a path or a postgresql:// URL, not 'off'")
        self._database: SqliteDatabase | PostgresDatabase
        if isinstance(where, Path):
            self._database = file = SqliteDatabase(where)
            self._key, self._whose = ledger_key(file.path)
            parts = file.path.parent / PARTS / (code_of(self._key, PARTS, (), b"") or b"").hex()
        else:
            from mlflow_adk_eval.ledger.postgres import PostgresDatabase  # noqa: PLC0415 - SQLAlchemy, only for a URL

            self._database, parts = PostgresDatabase(where), None
            self._key, self._whose = ledger_key(None)
        self.parts = parts
        """The folder for scored parts of evaluations under way; with a key, one whose name nobody knows without it. ``None``: the ledger is no file."""
        self.name = self._database.name
        """What messages call it: the path of the file, or the database's URL without user and password."""
        self.shared = self._database.remote
        """Whether several hosts can use it at the same time; a file serves the processes of one."""
        self._sql = self._database.sql
        self._errors: tuple[type[Exception], ...] = (AdkEvalError, *self._database.errors)
        self._marks = _secret_marks()
        self._foreign: set[tuple[str, ...]] = set()
        """What was found that was written without the key."""
        self._trouble = ""
        self._try_again_at = math.inf
        self._trying_again = Lock()
        self._lineages: dict[str, str] = {}
        self._unwritten: dict[tuple[str, ...], bytes] = {}
        """What could not be written yet, by its kind and place."""
        self._owner = f"{uuid4().hex} {os.getpid()} {user_at_host()}"
        self._claims: dict[str, float] = {}
        """The addresses that are claimed here, each with the time when it was claimed or renewed last."""
        self._changed = Condition(Lock())
        self._renewing: Thread | None = None
        """Renews the claims that are held for long, so that a busy event loop loses none."""

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the database back. Using the ledger again opens it again."""
        with self._changed:
            renewing, self._renewing = self._renewing, None
            self._changed.notify_all()
        if renewing is not None:
            renewing.join()
        for address in list(self._claims):
            self.give_up(address)
        self._database.close()

    def check(self) -> None:
        """Find out whether the ledger can be used, without making a file.

        Raises:
            UsageError: if it is none of ours, is damaged, cannot be reached or could not be written to.
        """
        with self._raising():
            self._database.check()

    @property
    def trouble(self) -> str:
        """What whoever reads the results should know of the ledger, in sentences; empty where everything was kept and used.

        An evaluation goes on without its ledger: what it finds is complete, but what it paid for since cannot be used again.
        """
        entries = "ledger entry was" if len(self._foreign) == 1 else "ledger entries were"
        foreign = f"{len(self._foreign)} {entries} {self._whose} and not used" if self._foreign else ""
        return ". ".join(filter(None, (foreign, self._trouble)))

    def settle(self) -> str:
        """Write what could not be written when it was paid for, if that is possible now, and return the `trouble` that is left."""
        if self._database.remote and (self._trouble or self._unwritten):
            self._try_again(at_once=True)
        return self.trouble

    def get(self, address: str, /) -> Answer | None:
        """Return the answer that is kept under `address`, if there is one that can be read."""
        held = self._unwritten.get(("answer", address))
        text = self._attempt(partial(self._kept, "answer", address), held, reading=True)
        try:
            return None if text is None else Answer(**json.loads(text.decode("utf-8", "surrogatepass")))
        except (ValueError, TypeError):
            return None

    def put(self, address: str, answer: Answer, /) -> None:
        """Keep an answer. It takes the place of an earlier one at the same address, and ends the claim to it."""
        self._keep(canonical_json({name: getattr(answer, name) for name in _ANSWER}), "answer", address)
        self._claims.pop(address, None)

    def claim(self, address: str, /, *, again: bool = False) -> bool:
        """Claim an address before asking for its answer. Whoever may not asks nothing, but looks for the answer a little later.

        The claim ends with `put` or `give_up`, and `LEASE_S` seconds after this process is dead; on the same host, at once.

        Args:
            address: what is about to be asked.
            again: whether to ask although there is an answer.
        """
        with self._changed:
            if address in self._claims:
                return False
            self._claims[address] = time.monotonic()
            if self._renewing is None:
                self._renewing = Thread(target=self._renew, name="adk-eval-ledger", daemon=True)
                self._renewing.start()
        again = again or ("answer", address) in self._foreign
        values = {"address": address, "owner": self._owner, "lease_s": LEASE_S, "again": again}
        # Where the ledger cannot be used, the question is asked all the same.
        claimed = self._attempt(partial(self._database.change, self._sql.claim, values), 1) == 1
        if not claimed and (holder := self._holder(address)).is_dead:
            self._attempt(partial(self._database.change, self._sql.give_up, {"address": address, "owner": holder.owner}), 0)
            claimed = self._attempt(partial(self._database.change, self._sql.claim, values), 1) == 1
        if not claimed:
            self._claims.pop(address, None)
        return claimed

    def _holder(self, address: str) -> _Holder:
        rows = self._attempt(lambda: self._database.rows(self._sql.holder, {"address": address}), _NO_ROWS)
        owner, since = rows[0] if rows else ("", 0.0)
        _, process, who = [*str(owner or "").split(" ", 2), "", "", ""][:3]
        is_here = who == user_at_host() and os.name == "posix" and process.isdecimal()
        is_dead = is_here and _has_ended(process)
        return _Holder(str(owner or ""), process or "unknown", who or "another process", since, is_dead)

    def hold(self, lineage: str) -> None:
        """Hold the runs of a lineage, so that no other process has their conversations meanwhile. They are held until `release`.

        Raises:
            RunError: naming who holds them. They are free `LEASE_S` seconds after that process is dead; on the same host, at once.
        """
        if self.claim(HELD + lineage):
            return
        holder = self._holder(HELD + lineage)
        raise RunError(
            f"{holder.who} has been running this evaluation in process {holder.process} since "
            f"{datetime.fromtimestamp(holder.since, UTC):%Y-%m-%d %H:%M:%S} UTC; wait until it ends, or {LEASE_S:.0f} s if it was killed"
        )

    def release(self, lineage: str) -> None:
        """Stop holding the runs of a lineage."""
        self.give_up(HELD + lineage)

    def give_up(self, address: str, /) -> None:
        """End a claim without an answer."""
        if address in self._claims:
            del self._claims[address]
            self._attempt(lambda: self._database.change(self._sql.give_up, {"address": address, "owner": self._owner}), 0)

    def account(self, name: str, /) -> Account | None:
        """Return what processes share under a name; ``None`` where the ledger cannot be used."""
        # Where there is no file yet, the first change makes it, unless another process has made it meanwhile.
        rows = self._attempt(lambda: self._database.rows(self._sql.read_account, {"name": name}) or [(time.time(), 0, "", None)], _NO_ROWS)
        for now, version, body, code in rows:
            is_ours = self._is_ours("account", (name,), (body or "").encode(), code)
            return Account(now=now, version=version or 0, body=body if is_ours else "")
        return None

    def set_account(self, name: str, body: str, /, *, version: int) -> bool:
        """Change what processes share, if it is still of that version. Return whether it was."""
        values = {"name": name, "body": body, "version": version, "code": code_of(self._key, "account", (name,), body.encode())}
        return self._attempt(lambda: self._database.change(self._sql.write_account, values), 0) == 1

    def conversation(self, run_id: str, key: str) -> bytes | None:
        """Return the conversation that this run, or one that it goes on with, keeps under `key`.

        Raises:
            UsageError: if the ledger cannot be read; `RunError`, if its server cannot be reached.
        """
        place = "conversation", self.scope(run_id), key
        with self._raising():
            if self.shared:
                return self._attempt(partial(self._kept, *place), self._unwritten.get(place), reading=True)
            return self._kept(*place)

    def keep_conversation(self, run_id: str, key: str, conversation: bytes) -> None:
        """Keep a conversation, which is JSON. It takes the place of an earlier one under the same `key`."""
        self._marks = _secret_marks()  # loading the agent may have set further variables
        lineage = self._attempt(lambda: self.scope(run_id), self._lineages.get(run_id, run_id))
        self._keep(conversation, "conversation", lineage, key)

    def begin(self, run: StartedRun) -> None:
        """Record that a run has started, or that it goes on.

        Raises:
            UsageError: if the ledger is none of ours or cannot be written to. It is found here, before anything is paid for.
        """
        values: dict[str, Any] = {**asdict(run), "lineage": run.lineage or self.scope(run.run_id), "started_at": run.started_at.timestamp()}
        values["code"] = code_of(self._key, "run", tuple(values[name] for name in _SIGNED), b"")
        with self._raising():
            self._database.change(self._sql.begin, values)
        self._lineages[run.run_id] = values["lineage"]

    def finish(self, run_id: str) -> None:
        """Record that a run has ended with a result."""
        self._attempt(lambda: self._database.change(self._sql.finish, {"run_id": run_id}), 0)

    def scope(self, run_id: str) -> str:
        """Return the name that a run shares with all that went on with it: the lineage of the first of them.

        Raises:
            UsageError: if the ledger cannot be read; `RunError`, if its server cannot be reached.
        """
        if run_id not in self._lineages:
            with self._raising():
                runs = self._known(self._rows(self._sql.run, {"run_id": run_id}))
            if not runs:
                return run_id
            self._lineages[run_id] = runs[0].lineage
        return self._lineages[run_id]

    def runs(self) -> tuple[StartedRun, ...]:
        """Return all runs, the one that started or was gone on with last first.

        Raises:
            UsageError: if the ledger cannot be read; `RunError`, if its server cannot be reached.
        """
        with self._raising():
            return self._known(self._rows(self._sql.runs, {}))

    def contents(self) -> LedgerContents:
        """Return what it holds.

        Raises:
            UsageError: if it cannot be read.
        """
        with self._raising():
            return contents(self._database)

    def prune(
        self, older_than_days: float | None = None, *, model: str | None = None, run_id: str | None = None, dry_run: bool = False
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
            return prune(self._database, older_than_days=older_than_days, model=model, run_id=run_id, dry_run=dry_run)

    def _kept(self, kind: str, *names: str) -> bytes | None:
        """Return what is kept of a kind in a place, unless it was written without the key."""
        if (kind, *names) in self._unwritten:
            return self._unwritten[kind, *names]
        rows = self._rows(self._sql.get[kind], dict(zip(PLACES[kind], names, strict=True)))
        text = next((bytes(body) for body, code in rows if body is not None and self._is_ours(kind, names, bytes(body), code)), None)
        if text is not None and b"\x1a" in text:
            for form, mark in reversed(self._marks):
                text = text.replace(mark, form)
            return None if b"\x1a" in text else text  # one that cannot be had back
        return text

    def _keep(self, text: bytes, kind: str, *names: str) -> None:
        """Write JSON of a kind to its place, or hold it until that is possible."""
        if not self._attempt(partial(self._put, text, kind, *names), 0):
            self._unwritten[kind, *names] = text

    def _put(self, text: bytes, kind: str, *names: str) -> int:
        body = text
        for form, mark in self._marks:
            body = body.replace(form, mark)
        values = {**dict(zip(PLACES[kind], names, strict=True)), "body": body, "code": code_of(self._key, kind, names, body)}
        return self._database.change(self._sql.put[kind], values)

    def _is_ours(self, kind: str, names: tuple[str, ...], body: bytes, code: bytes | None) -> bool:
        """Whether an entry counts: it was written with the key, where there is one."""
        wanted = code_of(self._key, kind, names, body)
        if wanted is None or (code is not None and hmac.compare_digest(wanted, bytes(code))):
            return True
        if body or code is not None:
            self._foreign.add((kind, *names))
        return False

    def _known(self, rows: Any) -> tuple[StartedRun, ...]:
        """Return the runs of rows, without those that were written without the key: they say whose conversations are whose."""
        runs: list[StartedRun] = []
        for *texts, started_at, code in rows:
            named: dict[str, Any] = dict(zip(RUN_TEXTS, texts, strict=True))
            if self._is_ours("run", tuple(named[name] for name in _SIGNED), b"", code or b""):
                runs.append(StartedRun(**named, started_at=datetime.fromtimestamp(started_at, UTC)))
        return tuple(runs)

    def _rows(self, query: str, values: dict[str, Any]) -> Any:
        """Return what a query finds; nothing where there is no file yet, or no server any more."""
        return [] if self._trouble and not self._database.is_open else self._database.rows(query, values)

    def _attempt(self, work: Callable[[], T], otherwise: T, *, reading: bool = False) -> T:
        """Do something with the ledger. Where it cannot be used, take note of what is wrong with it and go on with `otherwise`.

        What a full disk has can still be read.
        """
        if self._trouble and time.monotonic() >= self._try_again_at:
            self._try_again()
        if self._trouble and not (reading and self._database.is_open):
            return otherwise
        try:
            return work()
        except self._errors as error:
            self._trouble = self._trouble or f"Paid answers could not be saved for a later run: {self._database.wrong(error)}"
            self._try_again_at = time.monotonic() + LEASE_S if self._database.remote else math.inf
            return otherwise

    def _try_again(self, *, at_once: bool = False) -> None:
        """Write what is held, and go on with the ledger if that goes well. One thread does it, and the others go on without."""
        if not self._trying_again.acquire(blocking=at_once):
            return
        try:
            self._try_again_at = time.monotonic() + LEASE_S
            self._database.check()
            for place, text in list(self._unwritten.items()):
                self._put(text, *place)
                self._unwritten.pop(place, None)
            self._trouble = ""
        except self._errors:
            return
        finally:
            self._trying_again.release()

    @contextmanager
    def _raising(self) -> Generator[None]:
        """Raise what is wrong with the ledger as an error of the caller, who named it."""
        try:
            yield
        except self._database.errors as error:
            raise (RunError if self._database.remote else UsageError)(self._database.wrong(error)) from error

    def _renew(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._renewing is None, timeout=_RENEWED_EVERY_S)
                if self._renewing is None:
                    return
                due = time.monotonic() - _RENEWED_EVERY_S
                late = [address for address, since in self._claims.items() if since <= due]
            for address in late:
                values = {"address": address, "owner": self._owner, "lease_s": LEASE_S}
                self._attempt(partial(self._database.change, self._sql.renew, values), 0)
                if address in self._claims:
                    self._claims[address] = time.monotonic()


def _secret_marks() -> list[tuple[bytes, bytes]]:
    """Return what keeps the values of secret variables out of the ledger: a mark for each way to spell one, the longest first.

    In JSON, control characters are escaped, so a mark made of one is never part of what it stands in. Reading undoes the marks, since
    a conversation that reads differently would be judged differently. Without the variable, what was kept cannot be used.
    """
    secret = secret_values()
    values_of = Counter(secret.values())
    forms: dict[bytes, bytes] = {}
    for value, name in secret.items():
        label = name if values_of[name] == 1 else f"{name} {uuid4().hex}"  # which of several it was is not known later
        spelt = [form.encode("utf-8", "surrogatepass") for form in spellings(value)]
        forms |= {form: f"\x1a[{label}]{number}\x1a".encode() for number, form in enumerate(spelt)}
    return sorted(forms.items(), key=lambda item: -len(item[0]))


@contextmanager
def opened(source: LedgerSource, *, needed: bool = True) -> Generator[CallCache | None]:
    """Provide the ledger, or ``None`` where nothing is to be kept.

    Args:
        source: as of `evaluate`.
        needed: whether anybody is asked. Where nobody is, a folder that takes no ledger is no reason to stop, unless one was named.

    Raises:
        UsageError: if the ledger cannot be used.
    """
    where = ledger_source(source)
    with ExitStack() as stack:
        ledger: CallCache | None = None
        try:
            if where is not None:
                ledger = stack.enter_context(CallCache(where))
                ledger.check()
        except UsageError:
            if needed or source is not None or os.environ.get(VARIABLE):
                raise
            stack.close()
            ledger = None
        yield ledger
