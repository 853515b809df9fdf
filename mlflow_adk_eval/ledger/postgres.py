"""The ledger in a PostgreSQL database, which several hosts share.

The driver is psycopg 3, whatever driver a URL names: SQLAlchemy's own default since 2.1, and one that frees the interpreter while it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from mlflow_adk_eval.errors import AdkEvalError, UsageError
from mlflow_adk_eval.ledger.database import APPLICATION, CHOOSING, SCHEMA, Statements, Values
from mlflow_adk_eval.redact import message_of
from mlflow_adk_eval.runtime import require_extra

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, TextClause

_PREFIX = "adk_eval_"
_CONNECT_S = 10
"""How long to wait for the server."""
_STATEMENT_S = 30
"""How long a statement may take, locks included."""
AWAY_S = 15.0
"""For how long a server that was there is waited for."""
T = TypeVar("T")


class PostgresDatabase:
    """Tables in the schema that the URL's user writes to by default. Each statement is a transaction of its own."""

    remote = True
    sql = Statements(_PREFIX, "CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)", "BYTEA")

    def __init__(self, url: str) -> None:
        """Name the database, without reaching it.

        Raises:
            UsageError: if SQLAlchemy or the driver is missing, or this is no URL.
        """
        with require_extra("postgres", "a ledger on PostgreSQL"):
            import psycopg  # noqa: PLC0415 - an extra
            import sqlalchemy  # noqa: PLC0415 - only for a URL
            from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415
        self.errors: tuple[type[Exception], ...] = (SQLAlchemyError, psycopg.Error, OSError)
        try:
            parsed = sqlalchemy.make_url(url).set(drivername="postgresql+psycopg")
        except (SQLAlchemyError, ValueError):
            raise UsageError("ledger: this postgresql URL cannot be read; wanted postgresql://USER:PASSWORD@HOST:PORT/DATABASE") from None
        options = [value for name, value in parsed.query.items() if "pass" in name.lower()]
        secrets = [str(parsed.password or ""), *(part for value in options for part in ([value] if isinstance(value, str) else value))]
        self._secrets = [secret for secret in secrets if secret]
        """The passwords of the URL: its own, and those among its options."""
        self._url = parsed
        port = f":{parsed.port}" if parsed.port else ""
        self.name = f"postgresql://{parsed.host or ''}{port}/{parsed.database or ''}"
        self._engine: Engine | None = None
        self._answers = False
        """Whether it did what it was asked last."""
        self._opening = Lock()

    @property
    def is_open(self) -> bool:
        """Whether it was reached, and did not fail since."""
        return self._engine is not None

    def check(self) -> None:
        """Reach the server, and make the tables where they are missing."""
        self._opened()

    def rows(self, statement: str, values: Values) -> Sequence[Sequence[Any]]:
        """Return what a query finds."""
        return self._executed(lambda connection: connection.execute(_text(statement), dict(values)).fetchall())

    def change(self, statement: str, values: Values) -> int:
        """Execute a statement in a transaction of its own, and return how many rows it has changed."""
        return self._executed(lambda connection: connection.execute(_text(statement), dict(values)).rowcount)

    def change_all(self, statements: Iterable[str], values: Values) -> None:
        """Execute statements in one transaction."""
        with _transaction(self._opened()) as connection:
            for statement in statements:
                connection.execute(_text(statement), dict(values))

    def shrink(self) -> None:
        """Leave it to the server's autovacuum."""

    def close(self) -> None:
        """Give connections back."""
        with self._opening:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

    def wrong(self, error: Exception) -> str:
        """Return what is wrong with it, and what to do: what the server says, not what was sent to it."""
        if isinstance(error, AdkEvalError):
            return str(error)
        message = message_of(getattr(error, "orig", None) or error)
        for secret in self._secrets:
            message = message.replace(secret, "***")
        return f"{self.name}: the ledger cannot be used ({message}); name another one {CHOOSING}"

    def _executed(self, work: Callable[[Connection], T]) -> T:
        """Do something with a connection. While a server that was there restarts, it is tried again, for as long as claims hold without it.

        Every statement of the ledger may be repeated: what one has done, the same one does not do again.
        """
        from sqlalchemy.exc import DBAPIError  # noqa: PLC0415

        def is_away(error: BaseException) -> bool:  # the connection failed, or was lost, rather than what was asked
            return isinstance(error, DBAPIError) and (error.connection_invalidated or error.statement is None)

        def once() -> T:
            with self._opened().connect() as connection:
                return work(connection)

        patience_s = AWAY_S if self._answers else 0.0
        wait = wait_random_exponential(multiplier=0.05, max=1.0)
        try:
            result = Retrying(retry=retry_if_exception(is_away), stop=stop_after_delay(patience_s), wait=wait, reraise=True)(once)
        except Exception:
            self._answers = False
            self.close()
            raise
        self._answers = True
        return result

    def _opened(self) -> Engine:
        from sqlalchemy import create_engine, event  # noqa: PLC0415

        with self._opening:
            if self._engine is not None:
                return self._engine
            pool = {"pool_size": 8, "max_overflow": 0}
            named = {"connect_timeout": _CONNECT_S, "application_name": "mlflow-adk-eval"}
            engine = create_engine(self._url, isolation_level="AUTOCOMMIT", hide_parameters=True, connect_args=named, **pool)

            def limit(connection: Any, _: object) -> None:  # no startup option: connection poolers refuse those
                connection.execute(f"SET statement_timeout = {_STATEMENT_S * 1_000}")
                connection.commit()

            event.listen(engine, "connect", limit)
            try:
                self._prepare(engine)
            except BaseException:
                engine.dispose()
                raise
            self._engine = engine
            return engine

    def _prepare(self, engine: Engine) -> None:
        """Make the tables where they are missing, and make sure that they are of this version."""
        with engine.connect() as connection:
            exists = connection.execute(_text(f"SELECT to_regclass('{_PREFIX}schema')")).scalar() is not None
        with _transaction(engine) as connection:
            if not exists:
                connection.execute(_text(f"SELECT pg_advisory_xact_lock({APPLICATION})"))  # CREATE … IF NOT EXISTS alone may collide
                connection.execute(_text(f"CREATE TABLE IF NOT EXISTS {_PREFIX}schema (one INTEGER PRIMARY KEY, version INTEGER NOT NULL)"))
                for statement in self.sql.tables:
                    connection.execute(_text(statement))
                connection.execute(_text(f"INSERT INTO {_PREFIX}schema VALUES (1, {SCHEMA}) ON CONFLICT DO NOTHING"))
            schema = connection.execute(_text(f"SELECT version FROM {_PREFIX}schema")).scalar()
        if schema != SCHEMA:
            msg = f"{self.name}: this ledger has schema {schema}, but this version of mlflow-adk-eval reads {SCHEMA}; name another one {CHOOSING}"
            raise UsageError(msg)


def _transaction(engine: Engine) -> AbstractContextManager[Connection]:
    return engine.execution_options(isolation_level="READ COMMITTED").begin()


@lru_cache(maxsize=64)
def _text(statement: str) -> TextClause:
    from sqlalchemy import text  # noqa: PLC0415

    return text(statement)
