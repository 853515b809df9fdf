"""The options that name keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]


def verify_key_option(command: Command) -> Command:
    """Add ``--verify-key``."""
    return click.option(
        "--verify-key",
        "--verify_key",
        "verify_key",
        metavar="PEM|hmac:FILE",
        help="The key by which records must be signed. Default: MLFLOW_ADK_EVAL_VERIFY_KEY; without it, they need no signature.",
    )(command)


def signing_key_option(command: Command) -> Command:
    """Add ``--signing-key``."""
    return click.option(
        "--signing-key",
        "--signing_key",
        "signing_key",
        metavar="PEM|hmac:FILE",
        help="Sign the record with this key. Default: MLFLOW_ADK_EVAL_SIGNING_KEY; without it, it is not signed.",
    )(command)
