"""Everything that can go wrong, as one tree.

::

    AdkEvalError
    ├── UsageError            the call is wrong, or needs a missing extra     exit 64
    │   └── InputError        a file or value does not say what it must       exit 64
    │       ├── EvalSetError  an eval set, a recording or a result file
    │       ├── ConfigError   an eval config
    │       └── PolicyError   a policy of the gate
    ├── RunError              the run could not be carried out                exit 3
    │   ├── AgentError        the agent cannot be loaded or run
    │   ├── ExitError         code that is evaluated, or evaluates, tried to end the process
    │   ├── JudgeError        a judge cannot be had: no credentials, no such model
    │   ├── TrackingError     MLflow cannot be reached or lost something
    │   ├── AttestationError  Sigstore could not be reached, to sign or to verify
    │   └── AliasBusyError    others are setting the alias
    ├── OutputError           all was done, but its result cannot be written    exit 4
    └── GateFailed            the evidence does not allow a promotion         exit 1 or 2 (in results.decision)

`foreign_code` is the one way into code of others, which may fail but not end the process.
"""

from __future__ import annotations

import difflib
import errno
import json
import re
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from mlflow_adk_eval.redact import cut
from mlflow_adk_eval.text import appearance, counted, unlike

_MAX_LISTED = 50
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)
"""What the system says of a disk that takes no more."""


class AdkEvalError(Exception):
    """The base class of all errors that this package raises on purpose."""

    exit_code: int = 3
    """The exit code of the command line for this error."""


class UsageError(AdkEvalError, ValueError):
    """An invalid argument, found before any work starts."""

    exit_code = 64


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in an input."""

    path: str
    """The JSON path, such as ``$.eval_cases[0].eval_id``."""
    found: str
    """The value found there."""
    wanted: str
    """The value wanted there."""
    hint: str = ""
    """A suggestion, such as ``Did you mean …?``; may be empty."""

    def __str__(self) -> str:
        """Return the problem as one line."""
        found, wanted = unlike(self.found, self.wanted)
        line = f"{self.path}: found {self.found}{found}; wanted {self.wanted}{wanted}"
        return f"{line}. {self.hint}" if self.hint else line


class InputError(UsageError):
    """All problems in one input."""

    noun = "input"

    def __init__(self, source: str, problems: Sequence[Problem], *, more: int = 0) -> None:
        """Describe every problem of `source`, a file path or the name of an argument; `more` is how many others were not kept."""
        self.source = source
        self.problems = tuple(problems)
        self._more = more
        total = len(self.problems) + more
        lines = [f"  {problem}" for problem in self.problems[:_MAX_LISTED]]
        if total > len(lines):
            lines.append(f"  … and {total - len(lines):,} more")
        super().__init__("\n".join([f"{source}: {counted(total, 'problem')} in this {self.noun}", *lines]))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes it again in another process."""
        return partial(type(self), more=self._more), (self.source, self.problems)


class EvalSetError(InputError):
    """An eval set, a recording or a result file that cannot be read."""

    noun = "eval set"


class ConfigError(InputError):
    """An eval config that cannot be used."""

    noun = "eval config"


class PolicyError(InputError):
    """A policy that cannot be used."""

    noun = "policy"


class RunError(AdkEvalError):
    """The run could not be carried out. Nothing was decided."""


class AgentError(RunError):
    """The agent could not be imported, built or called."""


class ExitError(RunError):
    """An agent, judge or metric called `sys.exit` or raised something that is not an `Exception`, such as ``pytest.skip``."""


class JudgeError(RunError):
    """A judge could not be set up, so its criteria cannot be evaluated."""


class TrackingError(RunError):
    """MLflow is unreachable, lost data, or holds evidence that cannot be trusted."""


class AttestationError(RunError):
    """An evaluation was logged but could not be signed, or Sigstore's trusted root could not be loaded."""


class AliasBusyError(RunError):
    """Another process is setting the alias, or was faster. Nothing was decided; try again later."""


class OutputError(AdkEvalError):
    """Everything was done, but the result could not be written to standard output or to a file."""

    exit_code = 4


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.75) -> str:
    """Return the entry of `known` that `name` was likely meant to be, or ``""``. Case, dashes and underscores do not matter.

    >>> nearest("Safety-V1", ["safety_v1", "hallucinations_v1"])
    'safety_v1'
    """
    folded = {_folded(entry): entry for entry in known}
    near = difflib.get_close_matches(_folded(name), folded, n=1, cutoff=cutoff)
    return folded[near[0]] if near else ""


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]+", "", appearance(name)).casefold()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence naming the entry of `known` that `name` was likely meant to be, or ``""``.

    >>> did_you_mean("tool_trajectory_score", ["tool_trajectory_avg_score", "safety_v1"])
    "Did you mean 'tool_trajectory_avg_score'?"
    >>> did_you_mean("banana", ["safety_v1"])
    ''
    """
    near = nearest(name, known)
    if not near:
        return ""
    given, meant = unlike(name, near)
    if not given:
        return f"Did you mean {near!r}?"
    return f"Did you mean {near!r}{meant}? It looks like {name!r}{given}"


def json_path(root: str, steps: Iterable[int | str]) -> str:
    """Return the JSON path of a place below `root`.

    >>> json_path("$", ["eval_cases", 0, "a b"])
    "$.eval_cases[0]['a b']"
    """
    return root + "".join(f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step!r}]" for step in steps)


def check_counts(**given: object) -> None:
    """Refuse what is no whole number of at least 1, by its name.

    Raises:
        UsageError: if one is not.
    """
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"{name}={value!r}: wanted a whole number of at least 1")


def shown(value: Any, *, limit: int = 80) -> str:
    """Return `value` as it may stand in a message: its type where it is large, itself where it is short.

    >>> shown("x"), shown([1, 2, 3]), shown(None), shown({"a": 1})
    ("'x'", 'a list of 3', 'null', 'an object with a')
    >>> shown(float("nan")), shown("long" * 30)[-3:]
    ('NaN', 'lo…')
    """
    match value:
        case None:
            return "null"
        case bool() | float():
            return json.dumps(value)
        case dict():
            keys = ", ".join(map(str, list(value)[:4])) or "no keys"
            return cut(f"an object with {keys}", limit)
        case list() | tuple():
            return f"a list of {len(value)}"
        case _:
            return cut(repr(value), limit)


_ENDS = (("click.exceptions", "Exit"), ("_pytest.outcomes", "Exit"), ("unittest.case", "SkipTest"))
"""The exceptions by which click ends a command, and a test runner a session or a test, as if all were well."""


@contextmanager
def foreign_code(who: str) -> Generator[None]:
    """Enter code of others: an agent, a metric, a judge. It may fail; it may not end the process, a test or a task in our place.

    Args:
        who: whose code it is, as the subject of a sentence.

    Raises:
        ExitError: for what it raises that is no `Exception`, or that ends a command or a test, except Ctrl-C and the cancellation of the present task.

    >>> with foreign_code("the agent"):
    ...     sys.exit(0)
    Traceback (most recent call last):
    mlflow_adk_eval.errors.ExitError: the agent called sys.exit(0)
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except Exception as error:
        if isinstance(error, tuple(getattr(sys.modules.get(module), name, ()) for module, name in _ENDS)):
            raise refused(who, error) from error
        raise
    except BaseException as error:
        import asyncio  # noqa: PLC0415 - who only validates a file has no tasks

        try:
            task = asyncio.current_task()
        except RuntimeError:  # a thread without a loop
            task = None
        interrupted = isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt)
        # By a time limit or by the user: then the work under way was asked to stop.
        cancelled = isinstance(error, asyncio.CancelledError | BaseExceptionGroup) and task is not None and task.cancelling() > 0
        if interrupted or cancelled:
            raise
        raise refused(who, error) from error


def refused(who: str, error: BaseException) -> ExitError:
    """Return the error that stands for one by which code tried to end more than itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, SystemExit):
        return ExitError(f"{who} called sys.exit({error.code!r})")
    return ExitError(f"{who} raised {type(error).__name__}" + (f": {error}" if str(error) else ""))
