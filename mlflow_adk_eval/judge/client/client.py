"""The calls to one judge: nothing is paid for twice, no more is asked than the judge can take, and no failure is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import anyio

from mlflow_adk_eval.judge.client.concurrency_limit import START, CallOutcome
from mlflow_adk_eval.judge.client.errors import one_line
from mlflow_adk_eval.judge.client.limiter import Limiter, Permit
from mlflow_adk_eval.judge.client.retries import Outage, Patience, TimedOut
from mlflow_adk_eval.judge.client.usage import UsageTracker
from mlflow_adk_eval.judge.options import JudgeOptions
from mlflow_adk_eval.judge.protocol import (
    Answer,
    Answers,
    NoAnswer,
    Refused,
    Unavailable,
)

__all__ = ["CallResult", "JudgeClient", "UsageTracker"]

Send = Callable[[], Awaitable[Answer]]
"""Sends one request, once; raises `Unavailable` or `Refused`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What came of asking for one answer."""

    answer: Answer | None
    """``None``: there is none."""
    error: str = ""
    """Why not, in one sentence without secrets."""
    reused: bool = False
    """Whether it was paid for before: in an earlier run, or by the same request of this one."""
    hopeless: bool = False
    """Whether there is no point in asking again: the budget is spent, the judge is out of order or refuses."""


class _Final(NoAnswer):
    """There is nothing to wait for any more."""


class _Broken(NoAnswer):
    """The judge's own code failed."""


@dataclass(slots=True, eq=False)
class _Flight:
    """A request under way, and those who wait for the same answer."""

    landed: anyio.Event = field(default_factory=anyio.Event)
    made: CallResult | None = None
    """``None`` at the end: whoever asked gave up."""


class JudgeClient:
    """The calls to one judge, inside one event loop."""

    def __init__(self, options: JudgeOptions, accounts: UsageTracker, answers: Answers | None = None, *, who: str = "the judge") -> None:
        """Begin with a judge of which nothing is known.

        Args:
            options: how requests are made.
            accounts: where they are counted, with those to other judges.
            answers: the ledger; ``None``: answers are not kept.
            who: what messages call it.
        """
        self._who = who
        self._options = options
        self._accounts = accounts
        self._answers = answers
        self._limiter = Limiter(options.max_concurrency, patience_s=options.outage_s)
        self._failing = Outage(options.outage_s)
        self._flights: dict[str, _Flight] = {}
        self._waiting: set[anyio.CancelScope] = set()
        self._outage = ""
        accounts.when_spent(self._wake)

    @property
    def outage(self) -> str:
        """Why the judge was given up; empty where it was not."""
        return self._outage

    def recover(self) -> None:
        """Give a judge that was given up another chance. What was learnt of its pace stays."""
        self._failing = Outage(self._options.outage_s)
        self._outage = ""

    async def make(self, send: Send, address: str | None, *, anew: bool = False) -> CallResult:
        """Return the answer to a request, paid for at most once; or why there is none. It raises nothing.

        Args:
            send: sends the request once; called again where that fails for now.
            address: what tells this answer from any other; ``None``: it is neither looked up nor kept.
            anew: whether to ask even if the ledger holds an answer, and to replace that.
        """
        if address is None:
            return await self._made(send, None, anew=True)
        while flight := self._flights.get(address):
            await flight.landed.wait()
            if flight.made is not None:
                return self._shared(flight.made)
        if not anew and (known := self._known(address)):
            return known
        flight = self._flights[address] = _Flight()
        try:
            flight.made = await self._made(send, address, anew=anew)
            return flight.made
        finally:
            del self._flights[address]
            flight.landed.set()

    def _shared(self, made: CallResult) -> CallResult:
        """Return what somebody else got for the same request."""
        if made.answer is None:
            return made
        self._accounts.reused()
        return replace(made, reused=True)

    def _known(self, address: str) -> CallResult | None:
        """Return the answer that the ledger holds."""
        answer = self._answers.get(address) if self._answers else None
        if answer is None:
            return None
        self._accounts.reused()
        return CallResult(answer=answer, reused=True)

    async def _made(self, send: Send, address: str | None, *, anew: bool) -> CallResult:
        """Ask, and ask again while the judge is unavailable."""
        patience = Patience(self._options, self._failing, self._limiter.pace)
        try:
            return await patience.retrying(self._doze)(self._attempt, send, address, anew=anew)
        except _Final as over:
            return CallResult(answer=None, error=str(over), hopeless=True)
        except NoAnswer as error:
            after = f" (after {patience.failures} requests)" if patience.failures > 1 and isinstance(error, Unavailable) else ""
            return CallResult(answer=None, error=one_line(str(error)) + after, hopeless=isinstance(error, Refused))

    async def _attempt(self, send: Send, address: str | None, *, anew: bool) -> CallResult:
        """Send the request once, unless another process has paid for the answer meanwhile."""
        passage = await self._leave_to_send()
        if address is not None and not anew and (known := self._known(address)):
            self._limiter.leave(passage, CallOutcome.NOTHING)
            return known
        try:
            answer = await self._through(passage, send, address)
        except NoAnswer as error:
            raise self._failure(error, passage) from error
        self._failing.answered(anyio.current_time())
        self._accounts.answered(answer)
        return CallResult(answer=answer)

    async def _through(self, passage: Permit, send: Send, address: str | None) -> Answer:
        """Send the request, and tell the limiter what comes of it."""
        came, retry_after_s = CallOutcome.NOTHING, None
        try:
            answer = await self._paid(send, address)
            came = CallOutcome.ANSWER
        except NoAnswer as error:
            came, retry_after_s = self._signal(error)
            raise
        finally:
            self._limiter.leave(passage, came, retry_after_s=retry_after_s)
        return answer

    async def _paid(self, send: Send, address: str | None) -> Answer:
        """Send the request and keep the answer, before anything else can happen to it."""
        self._accounts.sent()
        answer = await self._timed(send)
        if address is not None and self._answers is not None:
            self._answers.put(address, answer)
        return answer

    async def _timed(self, send: Send) -> Answer:
        """Send the request and wait for the answer, but not for ever."""
        began = anyio.current_time()
        try:
            with anyio.move_on_after(self._options.timeout_s):
                answer = await send()
                return replace(answer, latency_s=anyio.current_time() - began)
        except NoAnswer:
            raise
        except Exception as error:  # a judge may be anybody's code: its bug costs one vote, not the cell
            raise _Broken(f"{self._who} failed with {type(error).__name__}: {error}") from error
        raise TimedOut(self._options.timeout_s)

    def _signal(self, error: NoAnswer) -> tuple[CallOutcome, float | None]:
        """Return what a failure tells the limiter. A judge at which everything fails is asked less, whatever it says."""
        if isinstance(error, Unavailable) and (error.overloaded or self._failing.failures >= START):
            return CallOutcome.OVERLOAD, error.retry_after_s
        return CallOutcome.FAILURE, None

    def _failure(self, error: NoAnswer, passage: Permit) -> NoAnswer:
        """Return what a failure means for the request: itself, unless it is the last one before the judge is given up."""
        now = anyio.current_time()
        self._accounts.failed()
        match error:
            case Unavailable():
                self._failing.failed(passage.sent_at)
                if self._failing.total(now, oldest=self._limiter.oldest):
                    self._give_up(_out_of_order(self._who, error, self._failing.failures, self._options.outage_s))
            case Refused():
                self._failing.answered(now)
                if error.every_request:
                    self._give_up(str(error))
            case _:
                pass
        return _Final(self._outage) if self._outage else error

    def _give_up(self, reason: str) -> None:
        self._outage = self._outage or one_line(reason)
        self._wake()

    @property
    def _over(self) -> str:
        """Why nothing more is sent; empty as long as it makes sense."""
        return self._outage or self._accounts.spent

    async def _leave_to_send(self) -> Permit:
        """Wait for the limiter.

        Raises:
            _Final: as soon as there is no point in sending anything.
        """
        passage: Permit | None = None
        if not self._over:
            with self._wakeable():
                passage = await self._limiter.enter()
        if passage is not None and not self._over:
            return passage
        if passage is not None:
            self._limiter.leave(passage, CallOutcome.NOTHING)
        raise _Final(self._over)

    async def _doze(self, seconds: float) -> None:
        """Wait before the next attempt, unless there will be none."""
        with self._wakeable():
            await anyio.sleep(seconds)

    @contextmanager
    def _wakeable(self) -> Generator[None]:
        """Let `_wake` end what is waited for."""
        with anyio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)

    def _wake(self) -> None:
        """End all waiting."""
        for scope in self._waiting:
            scope.cancel()


def _out_of_order(who: str, error: Unavailable, failures: int, seconds: float) -> str:
    return f"{who} was given up: nothing but failures came back for {seconds:g} s ({failures} requests), the last one: {error}"
