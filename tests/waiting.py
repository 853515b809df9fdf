"""How a test waits for what another process does: for the event itself, never for a moment that should be enough."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(claim: Callable[[], bool], what: str, seconds: float = 300) -> None:
    """Wait until a claim is true.

    Raises:
        AssertionError: if it is not true within so many seconds; `what` says what was awaited.
    """
    end = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)
