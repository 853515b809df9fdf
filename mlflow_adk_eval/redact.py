"""Keeping keys and passwords out of what is written down."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 8
"""A shorter value, such as ``1`` or ``true``, would be found in every other word."""
_USERINFO = re.compile(r"://[^/?#@\s\"'\\]+@")


def secrets_of(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the values of variables whose names look secret, longest first, each with what may stand in its place.

    A value that is written otherwise inside of JSON or of a quoted text is there in those forms as well.

    Args:
        environ: the variables; ``None``: those of this process.

    >>> secrets_of({"GEMINI_API_KEY": "AIza-0123456789", "HOME": "/home/me", "USE_TOKENS": "true"})
    {'AIza-0123456789': '[GEMINI_API_KEY]'}
    """
    found = os.environ if environ is None else environ
    named = ((name, value) for name, value in found.items() if len(value) >= _SHORTEST and _SECRET_NAME.search(name))
    secret = {form: f"[{name}]" for name, value in named for form in _forms(value)}
    return dict(sorted(secret.items(), key=lambda item: -len(item[0])))


def _forms(value: str) -> tuple[str, ...]:
    return value, json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1], repr(value)[1:-1]


def cut(text: str, limit: int) -> str:
    """Return the beginning of a text, without half a secret where it ends.

    >>> cut("abcdefgh", 5)
    'abcd…'
    """
    return text if len(text) <= limit else f"{redacted(text, secrets_of())[: limit - 1]}…"


def redacted(text: str, secrets: Mapping[str, str]) -> str:
    """Return `text` without the secrets.

    >>> redacted("401 for key AIza-0123456789", {"AIza-0123456789": "[GEMINI_API_KEY]"})
    '401 for key [GEMINI_API_KEY]'
    """
    for value, placeholder in secrets.items():
        text = text.replace(value, placeholder)
    return text


def without_credentials(text: str) -> str:
    """Return `text` without the user names and passwords in its URLs.

    >>> without_credentials("https://me:ghp_123@github.com/acme/agent.git")
    'https://github.com/acme/agent.git'
    """
    return _USERINFO.sub("://", text)


def has_credentials(text: str) -> bool:
    """Whether a URL in `text` has a user name or password in it."""
    return _USERINFO.search(text) is not None


def message_of(error: Exception) -> str:
    """Return the first line of an error without secrets and credentials; its type where it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return redacted(without_credentials(lines[0]), secrets_of())
