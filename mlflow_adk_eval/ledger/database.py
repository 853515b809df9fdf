"""What the ledger asks of a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

SCHEMA = 4
"""The version of the tables."""
APPLICATION = 0x41444B45
"""Tells a ledger from other SQLite files, and its lock from other locks of a server."""
Values = Mapping[str, Any]
"""The parameters of a statement, by name."""


class Database(Protocol):
    """Runs statements, from any thread. It is opened when it is first needed, and again after it was closed."""

    name: str
    """What messages call it; without a password."""
    remote: bool
    """Whether it is reached over a network: several hosts share it, and a statement takes long enough to be worth a thread."""
    prefix: str
    """What the names of its tables begin with."""
    clock: str
    """The SQL of its own time, in seconds since 1970."""
    bytes_type: str
    errors: tuple[type[Exception], ...]
    """What its methods raise where it cannot be used."""

    @property
    def is_open(self) -> bool:
        """Whether it is connected and works, as far as is known."""
        ...

    @property
    def exists(self) -> bool:
        """Whether there is anything to read."""
        ...

    def check(self) -> None:
        """Find out whether it can be used, without making a file."""
        ...

    def rows(self, statement: str, values: Values) -> Sequence[Sequence[Any]]:
        """Return what a query finds."""
        ...

    def change(self, *changes: tuple[str, Values]) -> list[int]:
        """Execute statements in one transaction, and return how many rows each has changed."""
        ...

    def shrink(self) -> None:
        """Give the space of deleted rows back."""
        ...

    def close(self) -> None:
        """Give connections back."""
        ...

    def wrong(self, error: Exception) -> str:
        """Return what is wrong with it, and what to do."""
        ...
