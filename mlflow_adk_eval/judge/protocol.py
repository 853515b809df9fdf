"""What a judge is: something that answers one question in JSON, or says why it cannot: try again, when, or never."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio
import anyio.to_thread

from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.redact import redacted, secrets_of, without_credentials
from mlflow_adk_eval.text import beginning

THIS_PROCESS = "this process"
"""Where functions and objects of the caller's judge. Whom they ask, nobody knows but they."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question, ready to be sent to a model."""

    instructions: str
    """The task, a model's system instruction; it contains only our own words."""
    text: str
    """The material to judge, each piece between delimiters that its author could not know."""
    schema: Json
    """The JSON schema of the answer."""
    name: str = ""
    """The prompt's name: the criterion's, or one that starts with it."""
    blocks: Mapping[str, str] = field(default_factory=dict[str, str])
    """The pieces of `text` by name, for judges that are programs."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """``judge_model_config``: how the model generates, in the spelling of google-genai's ``GenerateContentConfig``."""
    answer_tokens: int | None = None
    """The tokens needed for the answer without thinking; ``None``: unknown."""


_CUT_OFF = {"length", "max_tokens"}
"""How providers call an answer that reached the limit of its output."""


NO_TEXT = "no text"
"""The problem of an answer that is empty for no reason that the provider gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A model's answer to one request."""

    text: str
    """The JSON text, without the model's thoughts; empty if there is none."""
    model: str = ""
    """The model version that answered, as the provider names it."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    """Includes thinking tokens."""
    latency_s: float = 0.0
    """The duration of the request, in seconds."""
    problem: str = ""
    """The provider's reason why the text is missing or cut off, such as ``SAFETY`` or ``MAX_TOKENS``; empty if it is complete."""
    host: str = ""
    """The host that answered, with its port, or only the provider's name; empty: unknown."""
    asked_in: str = ""
    """The id of the evaluation that asked for it; a `JudgeClient` sets it only for another evaluation than its own."""
    asked_at: str = ""
    """When, in UTC, such as ``2027-01-31T12:00:00Z``; empty: unknown."""

    def why(self, error: str) -> str:
        """Return the problem with the text, with the provider's reason.

        >>> Answer(text='{"rationale": "As', output_tokens=100, problem="length").why("the answer is no JSON")
        'the answer was cut off after 100 tokens: raise max_output_tokens'
        >>> Answer(text="", problem="SAFETY").why("the answer is empty")
        'the answer is empty (SAFETY)'
        """
        if self.problem.casefold() in _CUT_OFF:
            after = "" if self.output_tokens is None else f" after {self.output_tokens:,} tokens"
            return f"the answer was cut off{after}: raise max_output_tokens"
        return f"{error} ({self.problem})" if self.problem else error


class Judge(Protocol):
    """A model that can be asked. One object serves one evaluation, inside one event loop."""

    @property
    def model(self) -> str:
        """What reports call it."""
        ...

    @property
    def address(self) -> str | None:
        """What tells its answers from those of any other judge, so that they may be used again; ``None``: nothing does."""
        ...

    async def ask(self, request: Request, /) -> Answer:
        """Send one request, once.

        Raises:
            Unavailable: if the same request may succeed later.
            Refused: if it never will.
        """
        ...

    async def aclose(self) -> None:
        """Give back connections."""
        ...


class ResolvedJudge(Judge):
    """A judge as an evaluation uses it, which `resolve_judge` makes of what a caller names or passes.

    Besides answering it says what it knows of itself. What is said here goes for a program in this process.
    """

    _model: str

    @property
    def model(self) -> str:
        """What reports call it."""
        return self._model

    @property
    def own_server(self) -> bool:
        """Whether it is reached at a server of the user's own, of which nobody knows how much it takes."""
        return False

    @property
    def notes(self) -> Iterable[str]:
        """What whoever reads the results should know of how it was asked."""
        return ()

    def check(self, settings: Mapping[str, Any], /) -> None:
        """Refuse a ``judge_model_config`` that it could not follow; a program gets it as it is. Nothing is sent.

        Raises:
            ConfigError: with everything that is wrong with it.
        """

    def host(self, settings: Mapping[str, Any], /) -> str:  # noqa: ARG002 - of others, a setting may move it
        """Return the host that is asked with these settings."""
        return THIS_PROCESS

    async def fingerprint(self) -> str:
        """Return what tells the model that answers from others of its name; empty where nothing does.

        Raises:
            Unavailable: if the server cannot be reached that would tell.
        """
        return ""

    async def aclose(self) -> None:
        """Do nothing: an object or a function is its owner's."""


@dataclass(frozen=True, slots=True)
class Account:
    """What several processes share under one name."""

    now: float
    """The time by the clock of whoever keeps it, in seconds: one for all processes, in which no other clock has a part."""
    version: int
    """Counts the changes; 0: there was none."""
    body: str
    """JSON; empty before the first change."""


class Answers(Protocol):
    """Answers that were paid for, by the address of what was asked. Several processes may pay for them.

    Who is about to ask says so, and the others wait for what comes of it. Whatever else they share is an account. Who changes one says
    which version that builds on, so no change is lost.
    """

    @property
    def shared(self) -> bool:
        """Whether they are reached over a network."""
        ...

    def get(self, address: str, /) -> Answer | None:
        """Return the answer, if it is known."""
        ...

    def put(self, address: str, answer: Answer, /) -> None:
        """Keep an answer, before anything else is done with it."""
        ...

    def claim(self, address: str, /, *, again: bool = False) -> bool:
        """Claim what is about to be asked; ``again``: although it is answered. Return whether it may be asked."""
        ...

    def give_up(self, address: str, /) -> None:
        """End a claim without an answer."""
        ...

    def account(self, name: str, /) -> Account | None:
        """Return what is shared under a name; ``None``: it cannot be had any more."""
        ...

    def set_account(self, name: str, body: str, /, *, version: int) -> bool:
        """Change it, if it is still of that version. Return whether it was."""
        ...


T = TypeVar("T")


async def reached(answers: Answers, work: Callable[[], T]) -> T:
    """Do `work` with a ledger: in a thread where that is reached over a network, so that nobody else waits.

    It is not cancelled half-way, since it may keep what was paid for.
    """
    if not answers.shared:
        return work()
    with anyio.CancelScope(shield=True):
        return await anyio.to_thread.run_sync(work)
    raise AssertionError  # pragma: no cover - a shield is never cancelled


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling `function` gives something to await; an object may have an async ``__call__``."""
    inner = function.func if isinstance(function, partial) else function
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004 - that is what is asked


async def called(function: Callable[..., Any], *args: Any, limiter: anyio.CapacityLimiter | None = None) -> Any:
    """Return what somebody's function returns: an ordinary one runs in a thread, so that a slow one does not hold up the others."""
    if is_async(function):
        return await function(*args)
    answer = await anyio.to_thread.run_sync(function, *args, limiter=limiter, abandon_on_cancel=True)
    return await answer if inspect.isawaitable(answer) else answer


class NoAnswer(Exception):  # noqa: N818 - what happened, not whose fault it is
    """A request that brought no answer."""


class Unavailable(NoAnswer):
    """The judge does not answer now, but may answer the same request later."""

    def __init__(self, message: str, *, retry_after_s: float | None = None, overloaded: bool = False) -> None:
        """Say what happened.

        Args:
            message: what the provider said.
            retry_after_s: how long it asked to wait, in seconds.
            overloaded: whether it is asked too much (429, 503, no answer in time), so that asking less would help.
        """
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.overloaded = overloaded


class Refused(NoAnswer):
    """The judge will never answer this request."""

    def __init__(self, message: str, *, every_request: bool = False) -> None:
        """Say what happened.

        Args:
            message: what the provider said.
            every_request: whether no other request would fare better, as without permission or without such a model.
        """
        super().__init__(message)
        self.every_request = every_request


_OVERLOADED = frozenset({408, 429, 503, 504})
_SERVER_ERROR = 500


def failure(status: int, message: str, *, retry_after_s: float | None = None, every_request: bool = False) -> NoAnswer:
    """Return what an HTTP status other than 200 means.

    Args:
        status: the HTTP status.
        message: what the provider said.
        retry_after_s: how long it asked to wait, in seconds.
        every_request: whether it said that no other request would fare better. Of 401, 403 and 404 that is known.
    """
    text = one_line(message)
    if status in _OVERLOADED or status >= _SERVER_ERROR:
        return Unavailable(text, retry_after_s=retry_after_s, overloaded=status in _OVERLOADED)
    return Refused(text, every_request=every_request or status in (401, 403, 404))


def one_line(text: str) -> str:
    r"""Return a provider's words on one line, without secrets, and not without end.

    >>> one_line("  Quota exceeded.\n* Limit: 5  ")
    'Quota exceeded. * Limit: 5'
    """
    return beginning(redacted(without_credentials(" ".join(text.split())), secrets_of()), 400)


def retry_after_s(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Return how many seconds the header ``Retry-After`` asks to wait; it gives seconds or a date.

    >>> retry_after_s({"Retry-After": "7"}), retry_after_s({}), retry_after_s({"Retry-After": "soon"})
    (7.0, None, None)
    >>> retry_after_s({"Retry-After": "Fri, 31 Jul 2026 12:00:30 GMT"}, now=datetime(2026, 7, 31, 12, tzinfo=UTC))
    30.0
    """
    given = headers.get("Retry-After") or headers.get("retry-after") or ""
    if (seconds := _seconds(given)) is not None:
        return seconds
    try:
        date = parsedate_to_datetime(given)
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)  # "-0000": in UTC, from nobody knows where
    return max((date - (now or datetime.now(UTC))).total_seconds(), 0.0)


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
