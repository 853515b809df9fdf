"""A process that uses a ledger: `python ledger_worker.py WORK FILE NAME`. Tests kill it, starve it or take its rights."""

from __future__ import annotations

import os
import resource
import sys
from itertools import count

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.ledger import CallCache


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def forever(ledger: CallCache, name: str) -> None:
    """Keep one thing after the other, and say so as soon as each is kept."""
    for number in count():
        ledger.put(f"{name}:{number}", Answer(text=f"{name} {number} " + "x" * (number % 50) * 40))
        say(f"answer {name}:{number}")
        if number % 5 == 0:
            ledger.keep_conversation(name, str(number), f'["{name}", {number}]'.encode() + b" " * 5_000)
            say(f"conversation {number}")


def hammer(ledger: CallCache, name: str) -> None:
    """Keep and look up, together with others."""
    say("ready")
    sys.stdin.readline()
    for number in range(200):
        ledger.put(f"{name}:{number}", Answer(text=f"{name} {number}"))
        ledger.put(f"shared:{number}", Answer(text=f"shared {number}", model=name))
        assert ledger.get(f"{name}:{number}") is not None
        assert ledger.get(f"shared:{number}") is not None
    say(f"done {ledger.trouble}")


def starving(ledger: CallCache, name: str) -> None:
    """Go on although the disk takes no more."""
    ledger.put("before", Answer(text=name))
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    for number in range(500):
        ledger.put(f"{name}:{number}", Answer(text="x" * 1_000))
        assert ledger.get(f"{name}:{number}") == Answer(text="x" * 1_000)
    ledger.keep_conversation("run", "key", b"{}")
    ledger.finish("run")
    say(ledger.trouble)


def powerless(ledger: CallCache, name: str) -> None:
    """Try to use a ledger as somebody who must not write there."""
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        ledger.check()
    except UsageError as error:
        say(str(error))
    ledger.put(name, Answer(text="paid"))
    assert ledger.get(name) == Answer(text="paid")
    say(ledger.trouble)


if __name__ == "__main__":
    _, work, file, worker = sys.argv
    with CallCache(file) as opened:
        {"forever": forever, "hammer": hammer, "starving": starving, "powerless": powerless}[work](opened, worker)
