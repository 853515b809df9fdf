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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import mktime_tz, parsedate_tz
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt

from mlflow_adk_eval.errors import AdkEvalError, TrackingError, UsageError
from mlflow_adk_eval.redact import message_of
from mlflow_adk_eval.runtime import environment

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

T = TypeVar("T")

_ABSENT = {"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "INVALID_PARAMETER_VALUE"}
_REFUSALS = {"PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"}
_FINAL = _ABSENT | _REFUSALS | {"ENDPOINT_NOT_FOUND", "NOT_IMPLEMENTED", "FEATURE_DISABLED"}
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
"""For the gate: far less than the time for which a claim to an alias is respected (`promotion.promote`)."""


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
    with environment(limits, unless_set=True):
        try:
            yield
        except AdkEvalError:
            raise
        except ModuleNotFoundError as error:
            package = f"the package {error.name} for this store or its artifacts"
            raise UsageError(f"{what}: MLflow needs {package}; install it") from None
        except Exception as error:
            if not _is_of_mlflow(error):
                raise
            if _REFUSED.search(str(error)):
                what = what.removesuffix(" cannot be reached")
                remedy = "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
                raise TrackingError(f"{what}: the credentials are missing or wrong (401). {remedy}") from None
            if _DENIED.search(str(error)):
                raise TrackingError(
                    f"{what}: MLflow denies you the permission (403); you need READ on the experiment to read, and EDIT to write"
                ) from None
            raise TrackingError(f"{what}: {_reason(error)}") from None


def _is_of_mlflow(error: Exception) -> bool:
    """Whether MLflow, or what it reached its store through, failed.

    Beside its own exceptions MLflow lets through whatever an answer makes of its code that no MLflow server gave, and what its libraries raise.
    """
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - seconds, which only users of MLflow should pay

    # Those of requests are OSErrors; a text may be one that no request can hold.
    if isinstance(error, MlflowException | OSError | UnicodeError):
        return True
    modules = (str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(module.partition(".")[0] in {"mlflow", "sqlalchemy"} for module in modules)


_DENIED = re.compile(r"error code 403\b|403 Client Error|^PERMISSION_DENIED")
_REFUSED = re.compile(r"error code 401\b|not authenticated|401 Client Error")


def _reason(error: Exception) -> str:
    if isinstance(error, NotImplementedError):
        from mlflow.store.tracking.rest_store import RestStore  # noqa: PLC0415 - as above

        # MLflow would otherwise say for as long as the process lives that it could not learn the version of a server.
        if forget := getattr(getattr(RestStore, "_get_server_version", None), "cache_clear", None):
            forget()
    unread: BaseException | None = error
    while unread and (isinstance(unread, UnicodeError) or not isinstance(unread, ValueError)):  # MLflow's own errors may hide it
        unread = unread.__cause__ or unread.__context__
    if unread or _PAGE.search(str(error)):
        return f"the answer is not from MLflow ({message_of(unread or error)}). Is this an MLflow server's address, or does a login page answer?"
    return message_of(error)


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
    """Ask for, or delete, what may be gone already, such as by a request whose answer was lost."""
    with suppress(UsageError), existing("it"):
        yield


def is_denied(error: BaseException) -> bool:
    """Whether MLflow, or its server for artifacts, says that this user may not do what was asked for."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return getattr(error, "error_code", "") == "PERMISSION_DENIED" or status == HTTPStatus.FORBIDDEN


def is_absent(error: MlflowException) -> bool:
    """Whether MLflow says that what was asked for does not exist."""
    return error.error_code in _ABSENT


def _may_pass(error: BaseException) -> bool:
    """Whether it may go well the next time."""
    return isinstance(error, Exception) and _is_of_mlflow(error) and getattr(error, "error_code", "") not in _FINAL


def _pause_s(number: int, shortest_s: float) -> float:
    """Return for how long to wait after the attempt of a number (from 0): longer each time, and not for as long as others do."""
    return shortest_s * float(2**number) * (1 + random.random())  # noqa: S311 - no secret


def _repeated(is_worth_it: Callable[[BaseException], bool], *, shortest_s: float) -> Retrying:
    """Return what repeats a call within about 3 seconds, or a minute where a second is waited for first."""
    return Retrying(
        retry=retry_if_exception(is_worth_it),
        stop=stop_after_attempt(6),
        wait=lambda state: _pause_s(state.attempt_number - 1, shortest_s),
        reraise=True,
    )


def _says(pattern: str) -> Callable[[BaseException], bool]:
    """Return whether an error is of MLflow and says something."""
    search = re.compile(pattern, re.IGNORECASE).search
    return lambda error: isinstance(error, Exception) and _is_of_mlflow(error) and search(str(error)) is not None


retried = _repeated(_may_pass, shortest_s=0.05)
"""Returns what a call returns that may be repeated, and is where others that write the same get in its way."""
_crowded = _says("QueuePool limit|database is locked|too many clients|remaining connection slots|deadlock")
when_there_is_room = _repeated(_crowded, shortest_s=1.0)
"""Returns what a call returns that may be repeated, and is within a minute where the server has too much to do for its database.

MLflow answers 400 then, which no HTTP client repeats.
"""
beside_others = _repeated(_says("UniqueViolation|IntegrityError|Duplicate entry|UNIQUE constraint|duplicate key"), shortest_s=0.05)
"""Returns what a call returns that writes what others may write at this very moment, of which a database lets one and refuses the rest."""


Clock = Callable[[], datetime]
"""Returns the present time, with a time zone."""


def clock_of(uri: str) -> Clock:
    """Return the clock that ages are reckoned by: that of an MLflow server, or this machine's where MLflow's own code runs here on a database.

    A server is asked once, when the time is first needed, by a request that changes nothing. From then on `time.monotonic` counts.
    """
    if uri.partition("://")[0] not in {"http", "https"}:
        return lambda: datetime.now(UTC)
    measured = cache(lambda: (_server_time(uri), time.monotonic()))

    def now() -> datetime:
        at, began = measured()
        return at + timedelta(seconds=time.monotonic() - began)

    return now


def _server_time(uri: str) -> datetime:
    from mlflow.utils.credentials import get_default_host_creds  # noqa: PLC0415 - as above
    from mlflow.utils.rest_utils import http_request  # noqa: PLC0415

    response: Any = http_request(get_default_host_creds(uri), "/version", "GET", extra_headers={"Cache-Control": "no-cache"})
    date = parsedate_tz(response.headers.get("Date"))
    if date is None:
        raise OSError("the server's answer has no Date header, but waivers and ages need the time")
    return datetime.fromtimestamp(mktime_tz(date), UTC)


CREATION = "mlflow.adk_eval.creation"
"""The tag, hidden on MLflow's pages by its prefix, by which what was created is found whose answer was lost: a value of its own for each."""


def every_page(search: Callable[[str | None], Any]) -> Iterator[Any]:
    """Yield what a search of MLflow finds, page by page.

    Args:
        search: what returns the page of a token; ``None``: the first.
    """
    token: str | None = None
    while token != "":
        page = search(token)
        yield from page
        token = page.token or ""


def created_once(create: Callable[[], T], find: Callable[[], Sequence[T]], discard: Callable[[T], None]) -> T:
    """Create something that carries a mark of its own, and return it.

    MLflow's HTTP client sends a request again whose answer was lost, and the server creates a second one. Here it may not: what became of
    such a request is looked up by the mark, and what was created twice all the same is discarded.

    Args:
        create: asks MLflow to create it, with the mark.
        find: returns what carries the mark, in the same order for everybody.
        discard: does away with one that is there twice, unless it is gone already.
    """
    failure: Exception | None = None
    created: Sequence[T]
    for number in range(int(os.environ.get(_RETRIES, "1")) + 1):
        try:
            with _sending, environment({_RETRIES: "0"}):  # so that MLflow's HTTP client does not send a request again
                created = [create()]
        except Exception as error:
            if not _may_pass(error):
                raise
            failure = error
            time.sleep(_pause_s(number, 0.5))
            created = []
        twins = created if failure is None else find() or created
        if twins:
            for twin in twins[1:]:
                with unless_absent():
                    discard(twin)
            return twins[0]
    raise failure or OSError("MLflow was not asked")


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
        experiment = client.get_experiment_by_name(name) if _is_of_mlflow(error) else None
        if experiment is None or experiment.lifecycle_stage != "active":
            raise
        return str(experiment.experiment_id)


_sending = threading.Lock()


_INITIALISING_S = 180.0
"""For how long to wait for another process that makes the tables, which takes seconds."""
_LOCK = 0x61646B_6576616C
"""The number of the lock: "adk", "eval"."""


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
        on_disk = dialect == "sqlite" and url.database and url.database != ":memory:"
        folder = Path(url.database).absolute().parent if on_disk and url.database else None
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        patience = {"connect_timeout": 15} if dialect in {"postgresql", "mysql"} else {}
        engine = create_engine(url, connect_args=patience, poolclass=NullPool)
        with engine.connect() as connection, _alone(dialect, folder, connection):
            if not inspect(connection).has_table("alembic_version"):  # the last that MLflow makes
                return make()
    except (SQLAlchemyError, ImportError) as error:
        raise OSError(str(error)) from error
    return make()


def check_there(uri: str) -> None:
    """Refuse to look into a store on disk that is not there: MLflow would make an empty one.

    Raises:
        UsageError: if it is not there.
    """
    dialect, _, rest = uri.partition("://")
    place = Path(rest[1:].partition("?")[0]) if dialect.partition("+")[0] == "sqlite" else Path(rest) if dialect == "file" else None
    if place is not None and place.name not in ("", ":memory:") and not place.exists():
        remedy = (
            "Name another one with --tracking-uri or MLFLOW_TRACKING_URI, or begin with `mlflow-adk-eval init` or `mlflow-adk-eval demo`"
        )
        raise UsageError(f"there is no MLflow store at {place}. {remedy}")


@contextmanager
def _alone(dialect: str, folder: Path | None, connection: Any) -> Generator[None, None, None]:
    """Hold a lock of the database that all jobs ask for; it goes when the process does. Others than these dialects have none."""
    from sqlalchemy import text  # noqa: PLC0415 - as above

    name = f"CONCAT(LEFT(DATABASE(), 40), '.{_LOCK}')"
    questions = {
        "postgresql": f"SELECT pg_try_advisory_xact_lock({_LOCK})",  # until the end of the transaction, which poolers keep on one connection
        "mysql": f"SELECT GET_LOCK({name}, 0)",
    }
    fcntl: Any = None
    if folder:  # locking a folder leaves no file behind, and the file of the database itself has locks of SQLite
        with suppress(ImportError):  # on Windows
            import fcntl  # noqa: PLC0415
    handle = os.open(folder, os.O_RDONLY) if folder and fcntl else None

    deadline = time.monotonic() + _INITIALISING_S
    try:
        while True:
            taken = True
            try:
                if dialect in questions:
                    taken = bool(connection.execute(text(questions[dialect])).scalar())
                elif handle is not None:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                taken = False
            except OSError:
                pass  # some file systems lock no folders: as without us
            if taken:
                break
            if time.monotonic() > deadline:
                raise OSError(f"another process has been creating this database's tables for more than {_INITIALISING_S:.0f} s")
            time.sleep(_pause_s(0, 0.1))
        yield
    finally:
        if handle is not None:
            os.close(handle)
