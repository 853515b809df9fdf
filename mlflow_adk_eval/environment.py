"""What the process has around it: settings that libraries read from the environment, and who runs it."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager


@contextmanager
def defaults(values: Mapping[str, str]) -> Generator[None, None, None]:
    """Set environment variables within, except those that the user has set."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def user_name() -> str:
    """Return who runs the process, or ``unknown``: a container may run as a user without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def user_at_host() -> str:
    """Return who runs the process, and where."""
    return f"{user_name()}@{socket.gethostname()}"
