"""Requests to one judge: nothing is paid for twice, no more is asked than the judge can take, and no failure is lost.

`JudgeClient.request` looks for the answer among the requests under way and in the ledger, and else sends the request until it is
answered or there is no point in going on. For each attempt the `Limiter` gives a permit, when the judge can take one more request;
the attempt has a time limit, is counted in the `UsageTracker`, and tells the limiter what came of it. An answer is in the ledger
before anything else happens to it. `Retries` say how long to wait after a failure, and `OutageDetector` when a judge is given up,
which ends all waiting at once, as a spent budget does.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import anyio

from mlflow_adk_eval.judge.errors import one_line
from mlflow_adk_eval.judge.limiter import START, CallOutcome, Limiter, Pace, Permit
from mlflow_adk_eval.judge.protocol import Answer, Answers, NoAnswer, Refused, Unavailable
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.judge.usage import UsageTracker

Send = Callable[[], Awaitable[Answer]]
"""Sends one request, once; raises `Unavailable` or `Refused`."""
MayReuse = Callable[[Answer], bool]
"""Whether an answer that was kept is good enough to be used again."""

HANDFUL = 3
"""Fewer failures are no outage, however long they took."""
FIRST_S = 0.5
"""The longest wait before the second request."""
LONGEST_S = 16.0
"""The longest wait that doubling leads to."""
_DOUBLINGS = 10
PACED = 0.25
"""How much of an attempt it costs to be refused by an overloaded judge that takes other requests. If it takes none, it costs less:
that is how a provider sets a pace, and nobody's failure.
"""
BRIEF = 3
"""After so many attempts, those that are left are spread over the time that a judge is given to recover, if it fails for everybody."""
EVERYBODY = 16
"""Failures in a row that cannot be the bad luck of a few requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What came of asking for one answer."""

    answer: Answer | None
    """``None``: there is none."""
    error: str = ""
    """Why not, in one sentence without secrets."""
    reused: bool = False
    """Whether it was paid for before: in an earlier run, or by the same request of this one."""
    final: bool = False
    """Whether there is no point in asking again: the budget is spent, the judge is out of order or refuses."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A request under way, and those who wait for the same answer."""

    done: anyio.Event = field(default_factory=anyio.Event)
    result: CallResult | None = None
    """``None`` at the end: whoever asked gave up."""


class _TimedOut(Unavailable):
    """No answer in time. It may be the judge's fault or the request's."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no answer within {timeout_s:g} s", overloaded=True)


class JudgeClient:
    """The client of one judge, inside one event loop.

    All who ask a judge share its client, and with it one queue, one concurrency limit, one pace and one verdict on whether the judge
    works. Requests may be cancelled at any point: a permit is always given back, and whoever waits for the same answer asks instead.
    """

    def __init__(self, options: JudgeOptions, usage: UsageTracker, answers: Answers | None = None, *, who: str = "the judge") -> None:
        """Begin with a judge of which nothing is known.

        Args:
            options: how requests are made.
            usage: where they are counted, with those to other judges.
            answers: the ledger; ``None``: answers are not kept.
            who: what messages call the judge.
        """
        self._who = who
        self._options = options
        self._usage = usage
        self._answers = answers
        self._limiter = Limiter(options.max_concurrency, longest_pause_s=options.outage_s)
        self._failures = OutageDetector(options.outage_s)
        self._pending: dict[str, _Pending] = {}
        self._waiting: set[anyio.CancelScope] = set()
        self._outage = ""
        usage.when_spent(self._wake)

    @property
    def outage(self) -> str:
        """Why the judge was given up; empty where it was not."""
        return self._outage

    def recover(self) -> None:
        """Give a judge that was given up another chance. What was learnt of its pace stays."""
        self._failures = OutageDetector(self._options.outage_s)
        self._outage = ""

    async def request(self, send: Send, address: str | None, *, may_reuse: MayReuse | None = None) -> CallResult:
        """Return the answer to a request, paid for at most once; or why there is none. It raises nothing.

        Args:
            send: sends the request once; called again where that fails for now.
            address: what tells this answer from any other; ``None``: it is neither looked up nor kept.
            may_reuse: whether an answer that the ledger holds may be used; else it is asked for anew and replaced. ``None``: any may.
        """
        if address is None:
            return await self._send_until_answered(send, None, may_reuse)
        while pending := self._pending.get(address):
            await pending.done.wait()
            if pending.result is not None:
                return self._reused(pending.result)
        if kept := self._kept(address, may_reuse):
            return kept
        pending = self._pending[address] = _Pending()
        try:
            pending.result = await self._send_until_answered(send, address, may_reuse)
            return pending.result
        finally:
            del self._pending[address]
            pending.done.set()

    def _kept(self, address: str | None, may_reuse: MayReuse | None) -> CallResult | None:
        """Return the answer that the ledger holds, if it may be used."""
        answer = self._answers.get(address) if self._answers and address is not None else None
        return self._reused(CallResult(answer=answer)) if answer and (may_reuse is None or may_reuse(answer)) else None

    def _reused(self, result: CallResult) -> CallResult:
        """Return what was paid for before, and count it. A failure that is shared is no answer to count."""
        if result.answer is None:
            return result
        self._usage.reused()
        return replace(result, reused=True)

    async def _send_until_answered(self, send: Send, address: str | None, may_reuse: MayReuse | None) -> CallResult:
        """Send a request, and again while the judge is unavailable, with a permit of the limiter for each attempt."""
        retries = Retries(self._options, self._failures, self._limiter.pace)
        while permit := await self._permit():
            # Another process may have paid for the answer while this one waited.
            if kept := self._kept(address, may_reuse):
                self._limiter.release(permit, CallOutcome.NOTHING)
                return kept
            try:
                answer = await self._send(send, address, permit)
            except NoAnswer as error:
                self._note_failure(error, permit)
                wait_s = retries.wait_after(error) if isinstance(error, Unavailable) else None
                if self._outage:
                    break
                if wait_s is None:
                    after = f" (after {retries.failures} requests)" if retries.failures > 1 and isinstance(error, Unavailable) else ""
                    return CallResult(answer=None, error=one_line(str(error)) + after, final=isinstance(error, Refused))
                with self._wakeable():
                    await anyio.sleep(wait_s)
            else:
                self._failures.answered(anyio.current_time())
                self._usage.answered(answer)
                return CallResult(answer=answer)
        return CallResult(answer=None, error=self._stopped, final=True)

    async def _permit(self) -> Permit | None:
        """Wait until the judge can take one more request; ``None`` as soon as there is no point in sending anything."""
        permit = None
        if not self._stopped and (permit := self._limiter.acquire_nowait()) is None:
            with self._wakeable():
                permit = await self._limiter.acquire()
        if permit is not None and self._stopped:
            self._limiter.release(permit, CallOutcome.NOTHING)
            return None
        return permit

    async def _send(self, send: Send, address: str | None, permit: Permit) -> Answer:
        """Send a request once, in limited time, keep the answer and tell the limiter what came of it.

        Raises:
            NoAnswer: saying why there is no answer.
        """
        outcome, retry_after_s = CallOutcome.NOTHING, None
        self._usage.sent()
        given: Answer | None = None
        try:
            with anyio.move_on_after(self._options.timeout_s):
                try:
                    given = await send()
                except NoAnswer:
                    raise
                except Exception as error:  # a judge may be anybody's code: its bug costs one vote, not the cell
                    raise NoAnswer(f"{self._who} failed with {type(error).__name__}: {error}") from error
            if given is None:
                raise _TimedOut(self._options.timeout_s)
            answer = replace(given, latency_s=anyio.current_time() - permit.sent_at)
            if address is not None and self._answers is not None:
                self._answers.put(address, answer)  # before anything else can happen to it
            outcome = CallOutcome.ANSWER
        except NoAnswer as error:
            outcome, retry_after_s = self._outcome_of(error)
            raise
        finally:
            self._limiter.release(permit, outcome, retry_after_s=retry_after_s)
        return answer

    def _outcome_of(self, error: NoAnswer) -> tuple[CallOutcome, float | None]:
        """Return what a failure tells the limiter. A judge at which everything fails is asked less, whatever it says."""
        if isinstance(error, Unavailable) and (error.overloaded or self._failures.in_a_row >= START):
            return CallOutcome.OVERLOAD, error.retry_after_s
        return CallOutcome.FAILURE, None

    def _note_failure(self, error: NoAnswer, permit: Permit) -> None:
        """Count a failure, and give the judge up if nothing else can be expected of it."""
        now = anyio.current_time()
        self._usage.failed()
        if isinstance(error, Unavailable):
            self._failures.failed(permit.sent_at)
            if self._failures.is_outage(now, oldest=self._limiter.oldest):
                seconds, requests = self._options.outage_s, self._failures.in_a_row
                self._give_up(
                    f"{self._who} was given up: nothing but failures came back for {seconds:g} s ({requests} requests), the last one: {error}"
                )
        elif isinstance(error, Refused):
            self._failures.answered(now)
            if error.every_request:
                self._give_up(str(error))

    def _give_up(self, reason: str) -> None:
        self._outage = self._outage or one_line(reason)
        self._wake()

    @property
    def _stopped(self) -> str:
        """Why nothing more is sent; empty as long as it makes sense."""
        return self._outage or self._usage.spent

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


class OutageDetector:
    """Tells a judge that fails altogether from one that fails sometimes.

    The clock starts when the first request is sent that fails. While a request is out that was sent before the time is up,
    nothing is decided: it may be the one that comes back.
    """

    def __init__(self, after_s: float) -> None:
        """Allow for `after_s` seconds of failures."""
        self._after = after_s
        self._answered_at = -math.inf
        self._since: float | None = None
        self.in_a_row = 0
        """Failures without any request that was answered in between."""

    def answered(self, now: float) -> None:
        """Take note that the judge said something, if only that it refuses this one request."""
        self._answered_at, self._since, self.in_a_row = now, None, 0

    def failed(self, sent_at: float) -> None:
        """Take note that a request brought nothing."""
        if self._since is None:
            self._since = max(sent_at, self._answered_at)
        self.in_a_row += 1

    def remaining(self, now: float) -> float | None:
        """Return how many seconds are left for the judge to recover; ``None``: it works."""
        return None if self._since is None else max(self._since + self._after - now, 0.0)

    def is_outage(self, now: float, *, oldest: float | None) -> bool:
        """Whether the judge is to be given up.

        Args:
            now: the time.
            oldest: when the request was sent that is out for the longest time.
        """
        if self._since is None or self.in_a_row < HANDFUL:
            return False
        end = self._since + self._after
        return now >= end and (oldest is None or oldest >= end)


class Retries:
    """How often one request is sent, and how long to wait in between: a random time up to a limit that doubles.

    To be told by a busy judge to come back costs only a part of an attempt, since that is a pace and no failure. If the judge fails
    for everybody, the attempts that are left are spread over the time that it is given to recover.
    """

    def __init__(self, options: JudgeOptions, failures: OutageDetector, pace: Pace) -> None:
        """Begin with all attempts."""
        self._options = options
        self._judge = failures
        self._pace = pace
        self._spent = 0.0
        self.failures = 0
        """Requests that failed."""

    def wait_after(self, error: Unavailable) -> float | None:
        """Count a failure and return how many seconds to wait, at least what the judge asked for; ``None``: no attempt is left."""
        self.failures += 1
        paced = error.overloaded and not isinstance(error, _TimedOut)
        self._spent += PACED * (1 - self._pace.refusing) if paced else 1
        if self._spent >= self._options.attempts:
            return None
        asked_for = min(error.retry_after_s or 0.0, self._options.outage_s)
        return max(random.uniform(0, self._limit(anyio.current_time())), asked_for)  # noqa: S311 - no secret

    def _limit(self, now: float) -> float:
        limit = min(FIRST_S * 2 ** min(self._spent - 1, _DOUBLINGS), LONGEST_S)
        remaining = self._judge.remaining(now)
        if remaining is None:
            return limit
        if self._spent > BRIEF and self._judge.in_a_row >= EVERYBODY:
            limit = max(limit, 2 * remaining / max(self._options.attempts - self._spent, 1))
        return min(limit, max(remaining, FIRST_S))
