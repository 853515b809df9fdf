"""What a provider's refusal means for the request: try again, when, or never."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from mlflow_adk_eval.judge.protocol import NoAnswer, Refused, Unavailable
from mlflow_adk_eval.redact import redacted, secrets_of, without_credentials

_OVERLOADED = frozenset({408, 429, 503, 504})
_NO_ACCESS = frozenset({401, 403, 404})
_SERVER_ERROR = 500
_LONGEST = 400


def failure(status: int, message: str, *, retry_after_s: float | None = None, every_request: bool = False) -> NoAnswer:
    """Return what an HTTP status other than 200 means.

    Args:
        status: the HTTP status.
        message: what the provider said.
        retry_after_s: how long it asked to wait, in seconds.
        every_request: whether it said that no other request would fare better. Of 401, 403 and 404 that is known.
    """
    text = one_line(message)
    if status in _OVERLOADED:
        return Unavailable(text, retry_after_s=retry_after_s, overloaded=True)
    if status >= _SERVER_ERROR:
        return Unavailable(text, retry_after_s=retry_after_s)
    return Refused(text, every_request=every_request or status in _NO_ACCESS)


def one_line(text: str) -> str:
    r"""Return a provider's words on one line, without secrets, and not without end.

    >>> one_line("  Quota exceeded.\n* Limit: 5  ")
    'Quota exceeded. * Limit: 5'
    """
    line = redacted(without_credentials(" ".join(text.split())), secrets_of())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def retry_after_s(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Return how many seconds the header ``Retry-After`` asks to wait; it gives seconds or a date.

    >>> retry_after_s({"Retry-After": "7"}), retry_after_s({}), retry_after_s({"Retry-After": "soon"})
    (7.0, None, None)
    >>> retry_after_s({"Retry-After": "Fri, 31 Jul 2026 12:00:30 GMT"}, now=datetime(2026, 7, 31, 12, tzinfo=UTC))
    30.0
    """
    given = headers.get("Retry-After") or headers.get("retry-after") or ""
    seconds = _seconds(given)
    return _seconds_until(given, now or datetime.now(UTC)) if seconds is None else seconds


def retry_delay_s(details: Iterable[Mapping[str, Any]]) -> float | None:
    """Return how many seconds Google's ``RetryInfo`` asks to wait, if it is among the details of an error.

    >>> retry_delay_s([{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.500s"}])
    1.5
    """
    delays = (_seconds(str(detail["retryDelay"]).removesuffix("s")) for detail in details if "retryDelay" in detail)
    return next((delay for delay in delays if delay is not None), None)


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _seconds_until(date: str, now: datetime) -> float | None:
    try:
        then = parsedate_to_datetime(date)
    except ValueError:
        return None
    if then.tzinfo is None:  # "-0000": in UTC, from nobody knows where
        then = then.replace(tzinfo=UTC)
    return max((then - now).total_seconds(), 0.0)
