"""Standard output and error as streams that outlive their readers: ``| head`` must not change what a command does, nor its exit code."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

_STANDARD = (1, 2)
"""The numbers of standard output and error, which stay open."""


class _Pipe(io.FileIO):
    """A file that goes on as if nothing were amiss where it is a pipe that nobody reads any more, as after ``| head``.

    The command comes to its end, and its exit code tells the verdict.
    """

    def write(self, content: Any, /) -> int:
        """Write, or drop what nobody will read."""
        try:
            return super().write(content)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(content).nbytes


def screen(number: int, like: TextIO) -> TextIO:
    """Return a stream that writes to the open file of a number as `like` does, and that outlives its reader."""
    at_once = like.isatty() or like is sys.stderr
    writer = io.BufferedWriter(_Pipe(number, "w", closefd=number not in _STANDARD))
    return io.TextIOWrapper(writer, like.encoding, like.errors, line_buffering=at_once)
