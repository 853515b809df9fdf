"""The process that waits for a command's own process, and does not take its end for success.

``os._exit``, a crash of compiled code and a kill end a process where it stands, and no code of ours runs after them. ``os._exit(0)`` in an
agent would so end `run` with the exit code of a passed evaluation. Therefore a command that runs code of others does so in a fork. Its last
act is to tell its parent the exit code; where the parent hears nothing, it reports an error.

Both processes are of one group, so that the terminal stops, continues and interrupts both. A signal that was sent to the parent alone is
handed on. Python writes the number of each signal that the command handles into the same pipe, by which the parent knows of the others: a
second Ctrl-C would break off what the first one ends in good order.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WAITED_FOR = (*_HANDED_ON, signal.SIGTSTP, signal.SIGCHLD)
_GRACE_S = 0.1
"""How long the command may take to say that a signal reached it, too."""
_ECHO_S = 5.0
"""How long the command may take to say that a signal reached it which was handed on."""
_MARK_BYTES = 16
_PR_SET_PDEATHSIG = 1
"""Of Linux's `prctl`: the signal that a process gets when its parent ends."""


@dataclass(frozen=True, slots=True)
class Itself:
    """The command's own process, as seen from within."""

    pid: int
    end: int
    """The pipe through which it tells its end. It is closed in programs that the command starts."""
    inode: int
    mark: bytes

    def tell(self, code: int) -> None:
        """Tell the parent that the command came to its end, and with which exit code.

        A fork of this process that an agent has made, and that returned from there, is not the command.
        """
        if os.getpid() != self.pid:
            return
        with suppress(OSError):
            # Code of others may have closed what it did not open, and opened a file of its own under that number.
            if os.fstat(self.end).st_ino == self.inode:
                os.write(self.end, self.mark + bytes([code]))


_Moments = defaultdict[int, list[float]]
"""By the number of a signal, the moments at which something happened to it, oldest first."""


def _no_moments() -> _Moments:
    return defaultdict(list)


@dataclass(slots=True)
class Child:
    """The command's process, as seen from its parent."""

    pid: int
    end: int
    signals: int
    """The pipe into which Python writes the numbers of the signals that the command gets."""
    mark: bytes
    _listens: bool = True
    """Whether the pipe of signals is open: code of others may have closed it."""
    _heard: _Moments = field(default_factory=_no_moments)
    """The signals that the command got by itself: when it said so."""
    _due: _Moments = field(default_factory=_no_moments)
    """The signals that this process got and the command may not have got: when each is handed on."""
    _handed_on: _Moments = field(default_factory=_no_moments)
    """The signals that were handed on, of which the command will say that it got them: when they were."""

    def wait(self) -> tuple[int | None, int]:
        """Wait until the command's process has ended.

        Returns:
            The exit code that it told, ``None`` if it told none; and the code with which it ended, negative for the signal that ended it.
        """
        with _arriving() as arrived:
            while (status := self._status()) is None:
                pipes = [arrived, self.signals] if self._listens else [arrived]
                readable, _, _ = select.select(pipes, [], [], self._patience())
                if self.signals in readable:
                    self._hear()
                if arrived in readable:
                    self._take(_read(arrived))
                self._hand_on()
        told = _read(self.end)
        code = told[_MARK_BYTES] if told.startswith(self.mark) and len(told) > _MARK_BYTES else None
        return code, status

    def _status(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _patience(self) -> float | None:
        due = [moment for moments in self._due.values() for moment in moments]
        if not due:
            return None
        return max(min(due) - time.monotonic(), 0.0)

    def _hear(self) -> None:
        numbers = _read(self.signals)
        self._listens = bool(numbers)
        now = time.monotonic()
        for number in numbers:
            if number not in _HANDED_ON:
                continue
            if _took(self._handed_on, number, now - _ECHO_S):
                continue  # it came from here
            if not _took(self._due, number):
                self._heard[number].append(now)

    def _take(self, numbers: bytes) -> None:
        now = time.monotonic()
        for number in numbers:
            if number == signal.SIGTSTP:
                self._stop()
            elif number in _HANDED_ON and not _took(self._heard, number, now - _GRACE_S):
                self._due[number].append(now + _GRACE_S)

    def _stop(self) -> None:
        """Stop with the command, until the shell continues this process.

        Where no shell could do that, as in a container, the system leaves SIGTSTP without effect, but not SIGSTOP.
        """
        os.kill(self.pid, signal.SIGTSTP)
        waiting = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, waiting)
        os.kill(self.pid, signal.SIGCONT)

    def _hand_on(self) -> None:
        now = time.monotonic()
        for number, moments in self._due.items():
            while moments and moments[0] <= now:
                moments.pop(0)
                self._handed_on[number].append(now)
                os.kill(self.pid, number)


def _took(moments: _Moments, number: int, since: float = 0.0) -> bool:
    """Take the oldest moment of a signal that is not before `since`, if there is one; forget those that are before."""
    kept = [moment for moment in moments[number] if moment >= since]
    moments[number] = kept[1:]
    return bool(kept)


def split() -> Itself | Child | None:
    """Fork this process; return how to speak to the parent in the command's own process, and how to wait for that in its parent.

    ``None`` where it must stay one process: where the system has no fork, a debugger looks at this one, or it has threads, which a fork loses.
    """
    alone = threading.active_count() == 1 and threading.current_thread() is threading.main_thread()
    if not hasattr(os, "fork") or sys.gettrace() is not None or not alone:
        return None
    mark = os.urandom(_MARK_BYTES)
    end, signals = _pipe(), _pipe()
    parent = os.getpid()
    # Blocked until each of the two has its own handlers.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    pid = os.fork()
    if pid:
        for _, writer in (end, signals):
            os.close(writer)
        return Child(pid, end[0], signals[0], mark)
    for reader, _ in (end, signals):
        os.close(reader)
    signal.set_wakeup_fd(signals[1], warn_on_full_buffer=False)
    _end_with(parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Itself(os.getpid(), end[1], os.fstat(end[1]).st_ino, mark)


def _pipe() -> tuple[int, int]:
    """Return the two ends of a pipe that nobody waits for; programs that are started do not get them."""
    reader, writer = os.pipe()
    for number in (reader, writer):
        os.set_blocking(number, False)
    return reader, writer


def _read(pipe: int) -> bytes:
    read = bytearray()
    with suppress(BlockingIOError):
        while part := os.read(pipe, select.PIPE_BUF):
            read += part
    return bytes(read)


@contextmanager
def _arriving() -> Generator[int]:
    """Yield a pipe from which the numbers of the signals can be read that this process gets from now on."""
    reader, writer = _pipe()
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in _WAITED_FOR:
        # What is ignored, as by `nohup` and in the background of a script, stays ignored.
        if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)
    os.kill(os.getpid(), signal.SIGCHLD)  # the command may have ended before anybody listened
    yield reader


def _end_with(parent: int) -> None:
    """Let this process be killed when its parent is, so that killing a command ends all of it. Only Linux can do so."""
    if sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415 - other systems need none

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
