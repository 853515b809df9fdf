"""What commands do as JSON, a line for each event, on standard error: for whoever collects the logs of CI.

Modules say what happens by Python's logging, at the level INFO, with the facts as `extra`. Nobody hears that unless JSON is asked for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from contextlib import contextmanager

LOGGER = logging.getLogger("mlflow_adk_eval")
_FORMAT = "{levelname}{name}{message}"
_NAMES = {"levelname": "level", "name": "logger"}


def log_as_json() -> None:
    """Write what this package does, and all that others warn of, as lines of JSON from now on."""
    from pythonjsonlogger.json import JsonFormatter  # noqa: PLC0415 - only who asks for it pays

    from mlflow_adk_eval.redact import redacted, secrets_of  # noqa: PLC0415

    class Formatter(JsonFormatter):
        def format(self, record: logging.LogRecord) -> str:
            return redacted(super().format(record), secrets_of())

    os.environ.setdefault("MLFLOW_CONFIGURE_LOGGING", "false")  # MLflow would write lines of its own
    handler = logging.StreamHandler()
    handler.setFormatter(Formatter(_FORMAT, style="{", timestamp=True, rename_fields=_NAMES))
    logging.getLogger().addHandler(handler)
    LOGGER.setLevel(logging.INFO)


def is_json() -> bool:
    """Whether JSON was asked for."""
    return LOGGER.level == logging.INFO


@contextmanager
def ended() -> Generator[None]:
    """End with the command what it asked for: tests run several in one process."""
    before = logging.getLogger().handlers[:]
    try:
        yield
    finally:
        logging.getLogger().handlers[:] = before
        LOGGER.setLevel(logging.NOTSET)
