"""Writing a file for the user."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mlflow_adk_eval.errors import FULL, OutputError, UsageError


@contextmanager
def whole_file(path: str | Path) -> Generator[BinaryIO]:
    """Write a file for the user that is either whole or as it was before: beside its place, and then into it.

    What is no ordinary file, such as /dev/stdout, is written where it is.

    Raises:
        OutputError: if the disk takes no more.
        UsageError: if no file can be written there.
    """
    target = Path(path).resolve()
    ordinary = target.is_file() or not target.exists()
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial") if ordinary else target
    try:
        with partial.open("wb") as stream:
            yield stream
        if target.is_file():
            shutil.copymode(target, partial)
        if ordinary:
            partial.replace(target)
    except OSError as error:
        kind = OutputError if error.errno in FULL else UsageError
        raise kind(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        if ordinary:
            partial.unlink(missing_ok=True)


def write_file(path: str | Path, content: str | bytes) -> None:
    """Write a whole file for the user, as `whole_file` does."""
    with whole_file(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)
