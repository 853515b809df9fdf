"""Reaching MLflow: for how long its client may try, its failures in our own words, and writing to it beside others.

MLflow's client reads its retries and timeouts from the environment at each request, and its defaults keep a caller waiting for minutes
where no server answers. `reaching_mlflow` sets them for a block of code, unless the user has set them, and turns whatever goes wrong
between the client and its store into a `TrackingError` without credentials. `existing` turns "not found" into a `UsageError`.
Both the gate and the log of evaluations go through here.

Jobs that start together write the same things at the same time. `opened` lets one of them make the tables of an empty database.
`created_once` creates what must not be there twice, also where an answer is lost on its way, and `retried` repeats what may be repeated.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import mktime_tz, parsedate_tz
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mlflow_adk_eval.errors import AdkEvalError, TrackingError, UsageError
from mlflow_adk_eval.redact import message_of
from mlflow_adk_eval.runtime import defaults

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

T = TypeVar("T")

_ABSENT = {"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "INVALID_PARAMETER_VALUE"}
_FINAL = {
    *_ABSENT,
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "CUSTOMER_UNAUTHORIZED",
    "ENDPOINT_NOT_FOUND",
    "NOT_IMPLEMENTED",
    "FEATURE_DISABLED",
}
"""What MLflow would say again, however often it is asked."""
_PAGE = re.compile("<!doctype|<html", re.IGNORECASE)
_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"


def _limits(retries: int, timeout_s: int) -> Mapping[str, str]:
    return {
        _RETRIES: str(retries),
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(timeout_s),
    }


HASTY = _limits(retries=1, timeout_s=15)
"""Before the agent is called nothing is lost by giving up. MLflow's own seven retries take four minutes."""
PATIENT = _limits(retries=3, timeout_s=60)
"""Afterwards a short restart of the server is waited for: 6 seconds."""
DECIDING = {**_limits(retries=2, timeout_s=20), "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}
"""For the gate: far less than the time for which a claim to an alias is respected (`promotion.alias_lock`)."""


@contextmanager
def reaching_mlflow(what: str, limits: Mapping[str, str] = PATIENT) -> Generator[None, None, None]:
    """Bound how long MLflow's client tries within, and turn its errors into ours.

    Args:
        what: what could not be done, to begin the message with.
        limits: for how long to try. Those that the user has set stay as they are.

    Raises:
        TrackingError: for whatever goes wrong between the client and its store.
        UsageError: if a package is missing that MLflow needs to reach it.
    """
    with defaults(limits):
        try:
            yield
        except AdkEvalError:
            raise
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{what}: MLflow needs the package {error.name} for where this store or its artifacts are; install it"
            ) from None
        except Exception as error:
            if not _is_of_mlflow(error):
                raise
            if _REFUSED.search(str(error)):
                what = what.removesuffix(" cannot be reached")
                raise TrackingError(f"{what}: the credentials are missing or wrong (401). {_CREDENTIALS}") from None
            raise TrackingError(f"{what}: {_reason(error)}") from None


def _is_of_mlflow(error: Exception) -> bool:
    """Whether MLflow, or what it reached its store through, failed.

    Beside its own exceptions MLflow lets through whatever an answer makes of its code that no MLflow server gave, and what its libraries raise.
    """
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - seconds, which only users of MLflow should pay

    if isinstance(
        error, MlflowException | OSError | UnicodeError
    ):  # those of requests are OSErrors; a text may be one that no request can hold
        return True
    modules = (str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(module.partition(".")[0] in {"mlflow", "sqlalchemy"} for module in modules)


_REFUSED = re.compile(r"error code 401\b|not authenticated|401 Client Error")
_CREDENTIALS = "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"


def _reason(error: Exception) -> str:
    if isinstance(error, NotImplementedError):
        _ask_the_version_again()
    unread: BaseException | None = error
    while unread and (isinstance(unread, UnicodeError) or not isinstance(unread, ValueError)):  # MLflow's own errors may hide it
        unread = unread.__cause__ or unread.__context__
    if unread or _PAGE.search(str(error)):
        return f"the answer is not one of MLflow's ({message_of(unread or error)}). Is this the address of an MLflow server, without a login page before it?"
    return message_of(error)


def _ask_the_version_again() -> None:
    """Have MLflow forget that it could not learn the version of a server, which it would otherwise say for as long as the process lives."""
    from mlflow.store.tracking.rest_store import RestStore  # noqa: PLC0415 - as above

    if forget := getattr(getattr(RestStore, "_get_server_version", None), "cache_clear", None):
        forget()


@contextmanager
def existing(what: str) -> Generator[None, None, None]:
    """Say that `what`, which the user named, does not exist where MLflow says so.

    Raises:
        UsageError: if it does not exist.
    """
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - as above

    try:
        yield
    except MlflowException as error:
        if is_absent(error):
            raise UsageError(f"{what} does not exist in this MLflow store") from None
        raise


@contextmanager
def unless_absent() -> Generator[None, None, None]:
    """Delete what may be gone already, such as by a request whose answer was lost."""
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - as above

    try:
        yield
    except MlflowException as error:
        if not is_absent(error):
            raise


def is_denied(error: BaseException) -> bool:
    """Whether MLflow, or its server for artifacts, says that this user may not do what was asked for."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return getattr(error, "error_code", "") == "PERMISSION_DENIED" or status == HTTPStatus.FORBIDDEN


def is_absent(error: MlflowException) -> bool:
    """Whether MLflow says that what was asked for does not exist."""
    return error.error_code in _ABSENT


def retried(call: Callable[[], T]) -> T:
    """Return what a call returns that may be repeated, and is where others that write the same get in its way."""
    return _repeated(call, _may_pass, shortest_s=0.05)


def when_there_is_room(call: Callable[[], T]) -> T:
    """Return what a call returns that may be repeated, and is within a minute where the server has too much to do for its database.

    MLflow answers 400 then, which no HTTP client repeats.
    """
    return _repeated(call, lambda error: _is_of_mlflow(error) and bool(_NO_ROOM.search(str(error))), shortest_s=1.0)


def beside_others(call: Callable[[], T]) -> T:
    """Return what a call returns that writes what others may write at this very moment, of which a database lets one and refuses the rest."""
    return _repeated(call, lambda error: _is_of_mlflow(error) and bool(_AT_ONCE.search(str(error))), shortest_s=0.05)


_AT_ONCE = re.compile("UniqueViolation|IntegrityError|Duplicate entry|UNIQUE constraint|duplicate key", re.IGNORECASE)
_NO_ROOM = re.compile("QueuePool limit|database is locked|too many clients|remaining connection slots|deadlock", re.IGNORECASE)


def _repeated(call: Callable[[], T], is_worth_it: Callable[[Exception], bool], *, shortest_s: float) -> T:
    for number in range(_RACES):
        try:
            return call()
        except Exception as error:
            if not is_worth_it(error):
                raise
            _pause(number, shortest_s=shortest_s)
    return call()


_RACES = 5
"""How often what others got in the way of is repeated: within about 3 seconds, or a minute where a second is waited for first."""


def _may_pass(error: Exception) -> bool:
    """Whether it may go well the next time."""
    return _is_of_mlflow(error) and getattr(error, "error_code", "") not in _FINAL


def _pause(number: int, *, shortest_s: float) -> None:
    """Wait after the attempt of a number (from 0), longer each time, and not for as long as others do."""
    time.sleep(shortest_s * 2**number * (1 + random.random()))  # noqa: S311 - no secret


Clock = Callable[[], datetime]
"""Returns the present time, with a time zone."""


def clock_of(uri: str) -> Clock:
    """Return the clock that ages are reckoned by: that of an MLflow server, or this machine's where MLflow's own code runs here on a database.

    A server is asked once, when the time is first needed, by a request that changes nothing. From then on `time.monotonic` counts.
    """
    if uri.partition("://")[0] not in {"http", "https"}:
        return lambda: datetime.now(UTC)
    measured: list[tuple[datetime, float]] = []

    def now() -> datetime:
        if not measured:
            measured.append((_server_time(uri), time.monotonic()))
        at, began = measured[0]
        return at + timedelta(seconds=time.monotonic() - began)

    return now


def _server_time(uri: str) -> datetime:
    from mlflow.utils.credentials import get_default_host_creds  # noqa: PLC0415 - as above
    from mlflow.utils.rest_utils import http_request  # noqa: PLC0415

    response: Any = http_request(get_default_host_creds(uri), "/version", "GET", extra_headers={"Cache-Control": "no-cache"})
    found = parsedate_tz(response.headers.get("Date"))
    if found is None:
        raise OSError("the server's answer has no time (its header Date), by which waivers and ages are reckoned")
    return datetime.fromtimestamp(mktime_tz(found), UTC)


CREATION = "adk_eval.creation"
"""The tag by which what was created is found whose answer was lost: a value of its own for each."""


def created_once(create: Callable[[], T], find: Callable[[], Sequence[T]], discard: Callable[[T], None]) -> T:
    """Create something that carries a mark of its own, and return it.

    MLflow's HTTP client sends a request again whose answer was lost, and the server creates a second one. Here it may not: what became of
    such a request is looked up by the mark, and what was created twice all the same is discarded.

    Args:
        create: asks MLflow to create it, with the mark.
        find: returns what carries the mark, in the same order for everybody.
        discard: does away with one that is there twice.
    """
    failure: Exception | None = None
    for number in range(int(os.environ.get(_RETRIES, "1")) + 1):
        try:
            with _sent_once():
                made = create()
        except Exception as error:
            if not _may_pass(error):
                raise
            failure = error
            _pause(number, shortest_s=0.5)
            if found := find():
                return _only(found, discard)
        else:
            return made if failure is None else _only(find() or [made], discard)
    raise failure or OSError("MLflow was not asked")


def _only(found: Sequence[T], discard: Callable[[T], None]) -> T:
    for twin in found[1:]:
        discard(twin)
    return found[0]


def created_experiment(client: MlflowClient, name: str, **how: Any) -> str:
    """Return the id of an experiment that is created, or that somebody else created at the same time, since names are there once.

    Args:
        client: where.
        name: of the experiment.
        **how: what else `MlflowClient.create_experiment` takes.
    """
    try:
        return str(client.create_experiment(name, **how))
    except Exception as error:
        if not _is_of_mlflow(error) or (found := client.get_experiment_by_name(name)) is None or found.lifecycle_stage != "active":
            raise
        return str(found.experiment_id)


_sending = threading.Lock()


@contextmanager
def _sent_once() -> Generator[None, None, None]:
    """Keep MLflow's HTTP client from sending a request again."""
    with _sending:
        before = os.environ.get(_RETRIES)
        os.environ[_RETRIES] = "0"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_RETRIES]
            else:
                os.environ[_RETRIES] = before


_DATABASE_S = 15
_INITIALISING_S = 180.0
"""For how long to wait for another process that makes the tables, which takes seconds."""
_LOCK = 0x61646B_6576616C
"""The number of the lock: "adk", "eval"."""
_MADE_LAST = "alembic_version"
"""The table that says which version of MLflow's tables a database has."""


def opened(uri: str, make: Callable[[], T]) -> T:
    """Return what `make` makes of a store: alone if its database is empty, since MLflow creates its tables then.

    Several that do so at the same time leave a half-made database behind. MLflow would also try one that is down ten times within two minutes.

    Args:
        uri: of the store; a server is left to itself.
        make: opens the store.

    Raises:
        OSError: if the database cannot be reached, or another process takes too long over its tables.
    """
    dialect = uri.partition("://")[0].partition("+")[0]
    if dialect not in {"sqlite", "postgresql", "mysql", "mssql"}:
        return make()
    from sqlalchemy import NullPool, create_engine, inspect  # noqa: PLC0415 - servers need none of it
    from sqlalchemy.engine import make_url  # noqa: PLC0415
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    try:
        url = make_url(uri)
        if folder := _folder_of(url.database) if dialect == "sqlite" else None:
            folder.mkdir(parents=True, exist_ok=True)
        patience = {"connect_timeout": _DATABASE_S} if dialect in {"postgresql", "mysql"} else {}
        engine = create_engine(url, connect_args=patience, poolclass=NullPool)
        with engine.connect() as connection, _alone(dialect, folder, connection):
            if not inspect(connection).has_table(_MADE_LAST):
                return make()
    except (SQLAlchemyError, ImportError) as error:
        raise OSError(str(error)) from error
    return make()


def _folder_of(database: str | None) -> Path | None:
    return Path(database).absolute().parent if database and database != ":memory:" else None


@contextmanager
def _alone(dialect: str, folder: Path | None, connection: Any) -> Generator[None, None, None]:
    """Hold a lock of the database that all jobs ask for; it goes when the process does. Others than these dialects have none."""
    from sqlalchemy import text  # noqa: PLC0415 - as above

    match dialect:
        case "sqlite" if folder is not None:
            with _locked(folder):
                yield
        case "postgresql":  # until the end of the transaction, which poolers keep on one connection
            _wait_for(lambda: bool(connection.execute(text(f"SELECT pg_try_advisory_xact_lock({_LOCK})")).scalar()))
            yield
        case "mysql":
            name = f"CONCAT(LEFT(DATABASE(), 40), '.{_LOCK}')"
            _wait_for(lambda: bool(connection.execute(text(f"SELECT GET_LOCK({name}, 0)")).scalar()))
            yield
        case _:
            yield


@contextmanager
def _locked(folder: Path) -> Generator[None, None, None]:
    """Lock a folder, which leaves no file behind. The file of the database itself has locks of SQLite."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        _wait_for(lambda: _taken(fcntl, handle))
        yield
    finally:
        os.close(handle)


def _taken(fcntl: Any, handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some file systems lock no folders: as without us
        return True
    return True


def _wait_for(taken: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _INITIALISING_S
    while not taken():
        if time.monotonic() > deadline:
            raise OSError(f"another process has been making the tables of this database for more than {_INITIALISING_S:.0f} s")
        _pause(0, shortest_s=0.1)
