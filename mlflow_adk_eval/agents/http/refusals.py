"""What it means that an agent behind HTTP did not answer: whether to ask again, and how to say it without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic_core import from_json

from mlflow_adk_eval.errors import AgentError
from mlflow_adk_eval.judge.client.errors import one_line
from mlflow_adk_eval.redact import redacted

Again = Literal["always", "if harmless", "never"]
"""Whether to ask again. *always*: the agent has surely not heard the request; *if harmless*: perhaps it has."""

_UNHEARD = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_SHORTEST = 8
"""A shorter value would be found in every other word."""


class HttpError(AgentError):
    """An agent behind HTTP did not answer, or with something else than what it was asked for."""

    def __init__(self, message: str, *, again: Again = "never", status: int | None = None, retry_after_s: float = 0.0) -> None:
        """Say what came instead.

        Args:
            message: a sentence.
            again: whether to ask again.
            status: the HTTP status, if there is one.
            retry_after_s: how long the agent asked to wait, in seconds.
        """
        super().__init__(message)
        self.again = again
        self.status = status
        self.retry_after_s = retry_after_s


def again_after(status: int) -> Again:
    """Return whether to ask again after an HTTP status.

    >>> again_after(429), again_after(502), again_after(404)
    ('always', 'if harmless', 'never')
    """
    if status in _UNHEARD:
        return "always"
    return "if harmless" if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.REQUEST_TIMEOUT else "never"


def hidden_of(url: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return what no error may show of a request, each with what stands in its place.

    >>> hidden_of("https://agents.acme.com/weather?key=0123456789", {"Authorization": "Bearer abcdefgh"})
    {'Bearer abcdefgh': '[Authorization]', 'abcdefgh': '[Authorization]', '0123456789': '[key]'}
    """
    values = [(part, name) for name, value in headers.items() for part in dict.fromkeys((value, value.rpartition(" ")[2]))]
    values += [(value, name) for name, value in parse_qsl(urlsplit(url).query)]
    return {value: f"[{name}]" for value, name in values if len(value) >= _SHORTEST}


def excerpt(body: bytes, hidden: Mapping[str, str]) -> str:
    """Return what an agent said instead of an answer, on one line.

    >>> excerpt(b'{"error": {"message": "model overloaded", "code": 1}}', {})
    'model overloaded'
    """
    try:
        said = _message(from_json(body))
    except ValueError:
        said = body.decode("utf-8", "replace")
    return one_line(redacted(said, hidden)) or "an empty body"


def _message(said: Any) -> str:
    """Return the words in a JSON value that is an error, whoever worded it."""
    if isinstance(said, dict):
        found = next((said[key] for key in ("error", "message", "detail", "title") if said.get(key)), None)
        if found is not None:
            return _message(found)
    return said if isinstance(said, str) else str(said)
