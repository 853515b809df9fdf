"""How the scripts of library tools end: what a pipeline would read, as an exit code."""

from __future__ import annotations

import math


def conclude(success: bool, reading: object) -> None:
    """Print what the tool gave for a gate to read, and end with 0 if that means success."""
    if isinstance(reading, float):
        reading = "n" if math.isnan(reading) else f"{reading:.2f}"
    print(f"reads: {reading}")
    raise SystemExit(0 if success else 1)


def mean_is_one(mean: float | None) -> None:
    """Conclude from a mean or share: success if all of it is right. Without a number there is none."""
    if mean is None or math.isnan(mean):
        conclude(success=False, reading="n")
        return
    conclude(success=mean >= 1.0, reading=float(mean))
