"""The one way into code of others, which may fail but not end the process."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from mlflow_adk_eval.errors import ExitError


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

        interrupted = isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt)
        cancelled = isinstance(error, asyncio.CancelledError | BaseExceptionGroup) and _is_cancelled()
        if interrupted or cancelled:
            raise
        raise refused(who, error) from error


_ENDS = (("click.exceptions", "Exit"), ("_pytest.outcomes", "Exit"), ("unittest.case", "SkipTest"))
"""The exceptions by which click ends a command, and a test runner a session or a test, as if all were well."""


def refused(who: str, error: BaseException) -> ExitError:
    """Return the error that stands for one by which code tried to end more than itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, SystemExit):
        return ExitError(f"{who} called sys.exit({error.code!r})")
    return ExitError(f"{who} raised {type(error).__name__}" + (f": {error}" if str(error) else ""))


def _is_cancelled() -> bool:
    """Whether the work under way was asked to stop, by a time limit or by the user."""
    import asyncio  # noqa: PLC0415 - as above

    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return False
    return task is not None and task.cancelling() > 0
