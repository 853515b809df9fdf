"""The floor without Python's garbage collector, which finds nothing here but looks through all that nltk has imported."""

from __future__ import annotations

import gc

from contenders import floor
from contenders.floor import load, score

__all__ = ["imports", "load", "score"]


def imports(*, logging: bool) -> None:
    """Import all that the work needs."""
    floor.imports(logging=logging)
    gc.disable()
