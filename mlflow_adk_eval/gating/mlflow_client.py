"""Reaching MLflow: for how long its client may try, and its failures in our own words.

MLflow's client reads its retries and timeouts from the environment at each request, and its defaults keep a caller waiting for minutes
where no server answers. `reaching_mlflow` sets them for a block of code, unless the user has set them, and turns whatever goes wrong
between the client and its store into a `TrackingError` without credentials. `existing` turns "not found" into a `UsageError`.
Both the gate and the log of evaluations go through here.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.redact import message_of
from mlflow_adk_eval.runtime import defaults

if TYPE_CHECKING:
    from mlflow.exceptions import MlflowException

_ABSENT = {"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "INVALID_PARAMETER_VALUE"}


def _limits(retries: int, timeout_s: int) -> Mapping[str, str]:
    return {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(retries),
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(timeout_s),
    }


HASTY = _limits(retries=1, timeout_s=15)
"""Before the agent is called nothing is lost by giving up. MLflow's own seven retries take four minutes."""
PATIENT = _limits(retries=3, timeout_s=60)
"""Afterwards a short restart of the server is waited for: 6 seconds."""
DECIDING = {**_limits(retries=2, timeout_s=20), "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}
"""For the gate: far less than the time for which a claim to an alias is respected (`promotion.alias_lock`)."""


@contextmanager
def reaching_mlflow(what: str, limits: Mapping[str, str] = PATIENT) -> Generator[None, None, None]:
    """Bound how long MLflow's client tries within, and turn its errors into ours.

    Args:
        what: what could not be done, to begin the message with.
        limits: for how long to try. Those that the user has set stay as they are.

    Raises:
        TrackingError: for whatever goes wrong between the client and its store.
    """
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - seconds, which only users of MLflow should pay

    with defaults(limits):
        try:
            yield
        except (
            MlflowException,
            OSError,
            UnicodeError,
        ) as error:  # those of requests are OSErrors; a text may be one that no request can hold
            raise TrackingError(f"{what}: {message_of(error)}") from None


@contextmanager
def existing(what: str) -> Generator[None, None, None]:
    """Say that `what`, which the user named, does not exist where MLflow says so.

    Raises:
        UsageError: if it does not exist.
    """
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - as above

    try:
        yield
    except MlflowException as error:
        if is_absent(error):
            raise UsageError(f"{what} does not exist in this MLflow store") from None
        raise


def is_absent(error: MlflowException) -> bool:
    """Whether MLflow says that what was asked for does not exist."""
    return error.error_code in _ABSENT
