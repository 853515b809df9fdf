"""Settings that libraries read from the environment."""

from __future__ import annotations

import os
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
