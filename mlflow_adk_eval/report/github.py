"""A decision as annotations of GitHub Actions, and the output of a step in which nothing is taken for a command of GitHub's.

GitHub takes a line that begins with ``::error::``, and ``##[error]`` anywhere in a line, for a command, whoever wrote it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from mlflow_adk_eval.results.decision import Check, Decision

Level = Literal["error", "warning", "notice"]

_MAX_ANNOTATIONS = 9
"""GitHub shows ten of a kind for each step."""
_MAX_TEXT = 2000
_TITLE = "agent gate"


def on_github() -> bool:
    """Whether this process is part of a job of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotations_of(decision: Decision) -> list[str]:
    """Return what GitHub is to show beside the code: what speaks against a promotion, or that nothing does, and what was waived."""
    return [*_verdict(decision), *(_command("warning", f"{_TITLE}: waived", waiver) for waiver in decision.waived[:_MAX_ANNOTATIONS])]


def _verdict(decision: Decision) -> Iterator[str]:
    if decision.passed:
        yield _command("notice", f"{_TITLE} passed", decision.reasons[0])
        return
    open_checks = [check for check in decision.checks if check.verdict != "passed"]
    told = {check.reason for check in open_checks}
    for reason in [reason for reason in decision.reasons if reason not in told][:_MAX_ANNOTATIONS]:
        yield _command("error", f"{_TITLE} {decision.verdict}", reason)
    for check in open_checks[:_MAX_ANNOTATIONS]:
        yield _command("error" if check.verdict == "failed" else "warning", f"{_TITLE}: {_rule(check)} {check.verdict}", check.reason)


def _rule(check: Check) -> str:
    return " ".join(filter(None, (check.slice, check.measure, check.demand)))


def _command(level: Level, title: str, text: str) -> str:
    r"""Return one workflow command.

    >>> _command("error", "a: b, c", "100 %\n::set-output::")
    '::error title=a%3A b%2C c::100 %25%0A::set-output::'
    """
    return f"::{level} title={_property(title)}::{_data(text)}"


def _data(text: str) -> str:
    cut = text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
    kept = "".join(char if char.isprintable() or char in "\r\n" else " " for char in cut)
    return kept.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


@contextmanager
def quoted(echo: Callable[[str], Any]) -> Generator[None, None, None]:
    """Have GitHub take for text whatever is printed within; do nothing elsewhere."""
    if not on_github():
        yield
        return
    token = secrets.token_hex(16)
    echo(f"::stop-commands::{token}")
    try:
        yield
    finally:
        echo(f"::{token}::")


def quoted_json(value: Any) -> str:
    r"""Return JSON in which GitHub finds no command.

    >>> quoted_json(["##[error]"])
    '[\n  "#\\u0023[error]"\n]'
    """
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False).replace("##[", r"#\u0023[")
