"""Keeping keys and passwords out of what is written down."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import lru_cache

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 8
"""A shorter value, such as ``1`` or ``true``, would be found in every other word."""
_USERINFO = re.compile(r"://[^/?#@\s\"'\\]+@")


def secret_values(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the values of variables whose names look secret, each with the name.

    Args:
        environ: the variables; ``None``: those of this process.

    >>> secret_values({"GEMINI_API_KEY": "AIza-0123456789", "HOME": "/home/me", "USE_TOKENS": "true"})
    {'AIza-0123456789': 'GEMINI_API_KEY'}
    """
    found = os.environ if environ is None else environ
    secret = {name: found[name] for name in found if _is_secret(name)}  # decodes no other value
    return {value: name for name, value in secret.items() if len(value) >= _SHORTEST}


@lru_cache(maxsize=1024)
def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def secrets_of(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what must not be written down, longest first, each with what may stand in its place.

    That are the `secret_values`, also as they are written inside of JSON or of a quoted text.

    Args:
        environ: the variables; ``None``: those of this process.

    >>> secrets_of({"GEMINI_API_KEY": "AIza-0123456789"})
    {'AIza-0123456789': '[GEMINI_API_KEY]'}
    """
    secret = {form: f"[{name}]" for value, name in secret_values(environ).items() for form in _forms(value)}
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


def message_of(error: BaseException) -> str:
    """Return the first line of an error without secrets and credentials; its type where it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return redacted(without_credentials(lines[0]), secrets_of())
