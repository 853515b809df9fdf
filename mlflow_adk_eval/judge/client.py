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
import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from datetime import UTC, datetime

import anyio

from mlflow_adk_eval.errors import foreign_code, shown
from mlflow_adk_eval.judge.limiter import START, START_UNKNOWN, CallOutcome, Limiter, Pace, Permit, Quota
from mlflow_adk_eval.judge.protocol import NO_TEXT, THIS_PROCESS, Answer, Answers, NoAnswer, Refused, Unavailable, one_line, reached
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.judge.usage import UsageTracker
from mlflow_adk_eval.runtime import histogram, note, span

Send = Callable[[], Awaitable[Answer]]
"""Sends one request, once; raises `Unavailable` or `Refused`."""
MayReuse = Callable[[Answer], bool]
"""Whether an answer that was kept is good enough to be used again."""

HANDFUL = 3
"""Fewer failures are no outage, however long they took; and so many requests that take all of their time are one, at a judge that never
answered. One that did has as many as a request has attempts.
"""
QUESTIONS = 3
"""On fewer questions, answers that cannot be read may be the questions' fault."""
FIRST_S = 0.5
"""The longest wait before the second request."""
LONGEST_S = 16.0
"""The longest wait that doubling leads to."""
PACED = 0.25
"""How much of an attempt it costs to be refused by an overloaded judge that takes other requests. If it takes none, it costs less:
that is how a provider sets a pace, and nobody's failure.
"""
BRIEF = 3
"""After so many attempts, those that are left are spread over the time that a judge is given to recover, if it fails for everybody."""
FIRST_LOOK_S = 0.02
"""How soon to look again for what another process asks; each further look takes twice as long."""
LAST_LOOK_S = 1.0
"""The longest time between two looks."""
UNKNOWN = "unknown"
"""The evaluation that asked for an answer of which the ledger does not say it."""
_ID = re.compile(r"[\w.-]{1,64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
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


@dataclass(slots=True, eq=False)
class JudgeClient:
    """The client of one judge, inside one event loop.

    All who ask a judge share its client, and with it one queue, one concurrency limit, one pace and one verdict on whether the judge
    works. Requests may be cancelled at any point: a permit is always given back, and whoever waits for the same answer asks instead.
    """

    options: JudgeOptions
    """How requests are made."""
    usage: UsageTracker
    """Where they are counted, with those to other judges."""
    answers: Answers | None = None
    """The ledger; ``None``: answers are not kept."""
    _: KW_ONLY
    name: InitVar[str] = ""
    """What tells the judge from others, for those who share its quota."""
    model: str = ""
    """The judge's name, for telemetry and where there are several."""
    who: str = "the judge"
    """What messages call the judge."""
    unknown: InitVar[bool] = False
    """Whether it is somebody's own server, of which nobody knows how many requests it takes at a time."""
    evaluation: str = ""
    """The id of the evaluation that asks, under which the ledger has what it paid for."""
    _limiter: Limiter = field(init=False)
    _failures: OutageDetector = field(init=False)
    _pending: dict[str, _Pending] = field(init=False, default_factory=dict[str, _Pending])
    _waiting: set[anyio.CancelScope] = field(init=False, default_factory=set[anyio.CancelScope])
    _outage: str = field(init=False, default="")
    _unread: list[str] = field(init=False, default_factory=list[str])
    """What each answer was about that could not be read, since the last one that could."""
    _saved: int | None = field(init=False, default=None)
    """How often nothing was sent because no answer could be read; ``None``: they can."""

    def __post_init__(self, name: str, unknown: bool) -> None:
        """Begin with a judge of which nothing is known."""
        options, start = self.options, START_UNKNOWN if unknown else START
        quota = Quota(options.quota, options.quota_s, name, self.answers) if options.quota else None
        times = {"longest_pause_s": options.outage_s, "timeout_s": options.timeout_s}
        self._limiter = Limiter(options.max_concurrency, quota=quota, start=start, **times)
        self._failures = OutageDetector(options)
        self.usage.when_spent(self._wake)

    @property
    def outage(self) -> str:
        """Why the judge was given up; empty where it was not."""
        return self._outage + (f"; requests saved: {self._saved:,}" if self._saved else "")

    def recover(self) -> None:
        """Give a judge that was given up another chance. What was learnt of its pace stays."""
        self._failures = OutageDetector(self.options)
        self._outage, self._unread, self._saved = "", [], None

    def could_read(self) -> None:
        """Take note that an answer could be read."""
        self._unread.clear()

    def could_not_read(self, answer: Answer, about: str, error: str, wanted: str) -> None:
        """Take note of an answer that could not be read, and give the judge up after `JudgeOptions.unreadable` of them in a row.

        Args:
            answer: what came. One that the provider withheld says nothing of the judge.
            about: what tells the question from others.
            error: what is wrong with it.
            wanted: what was asked for.
        """
        if answer.problem and not answer.text and answer.problem != NO_TEXT:
            return
        self._unread.append(about)
        if len(self._unread) < self.options.unreadable or len(set(self._unread)) < QUESTIONS or self._stopped:
            return
        self._saved = 0
        self._give_up(
            f"{len(self._unread)} answers of {self.who} in a row could not be parsed: the last is {shown(answer.text)} ({error}), wanted "
            f"{wanted}; use a larger model or a server that enforces a JSON schema, or check max_output_tokens"
        )

    async def request(self, send: Send, address: str | None, *, may_reuse: MayReuse | None = None) -> CallResult:
        """Return the answer to a request, paid for at most once; or why there is none. It raises nothing.

        Args:
            send: sends the request once; called again where that fails for now.
            address: what tells this answer from any other; ``None``: it is neither looked up nor kept.
            may_reuse: whether an answer that the ledger holds may be used; else it is asked for again and replaced. ``None``: any may.
        """
        if address is None:
            return await self._send_until_answered(send, None, may_reuse)
        while pending := self._pending.get(address):
            await pending.done.wait()
            if (result := pending.result) is not None:
                if result.answer is None:
                    return result
                self.usage.add(shared=1)
                return replace(result, reused=True)
        remote = self.answers is not None and self.answers.shared
        if not remote and (reused := await self._kept(address, may_reuse)):  # which takes no turn of the event loop
            return reused
        pending = self._pending[address] = _Pending()
        try:
            reused = await self._kept(address, may_reuse) if remote else None
            pending.result = reused or await self._send_until_answered(send, address, may_reuse)
            return pending.result
        finally:
            if (answers := self.answers) is not None and (pending.result is None or pending.result.answer is None):
                await reached(answers, lambda: answers.give_up(address))
            del self._pending[address]
            pending.done.set()

    async def _kept(self, address: str, may_reuse: MayReuse | None) -> CallResult | None:
        """Return the answer that the ledger holds, if it may be used, and count it, with no more than the ledger can say of where it is from."""
        answers = self.answers
        answer = await reached(answers, lambda: answers.get(address)) if answers is not None else None
        if answer is None or not (may_reuse is None or may_reuse(answer)):
            return None
        asked_in, asked_at = str(answer.asked_in), str(answer.asked_at)
        asked_in = "" if self.evaluation and asked_in == self.evaluation else asked_in if _ID.fullmatch(asked_in) else UNKNOWN
        self.usage.add(reused=1, asked_elsewhere=int(bool(asked_in)))
        asked_at = asked_at if _TIME.fullmatch(asked_at) else ""
        return CallResult(answer=replace(answer, asked_in=asked_in, asked_at=asked_at), reused=True)

    async def _claim(self, address: str, may_reuse: MayReuse | None) -> bool:
        """Claim the address, so that no other process asks the same."""
        answers = self.answers
        return answers is None or await reached(answers, lambda: answers.claim(address, again=may_reuse is not None))

    async def _claimed_or_kept(self, address: str, may_reuse: MayReuse | None) -> CallResult | None:
        """Wait for what another process asks; ``None`` when it is asked here after all, since that one gave up or was killed."""
        wait_s = FIRST_LOOK_S
        while not self._stopped:
            if reused := await self._kept(address, may_reuse):
                return reused
            if await self._claim(address, may_reuse):
                return None
            with self._wakeable():
                await anyio.sleep(wait_s)
            wait_s = min(2 * wait_s, LAST_LOOK_S)
        return None

    async def _send_until_answered(self, send: Send, address: str | None, may_reuse: MayReuse | None) -> CallResult:
        """Send a request, and again while the judge is unavailable, with a permit of the limiter for each attempt."""
        retries = Retries(self.options, self._failures, self._limiter.pace)
        claimed = address is None
        while permit := await self._permit():
            # Another process may have paid for the answer while this one waited, or be about to.
            if not claimed and address is not None:
                reused = None if may_reuse is None else await self._kept(address, may_reuse)
                claimed = not reused and await self._claim(address, may_reuse)
                if not claimed:
                    self._limiter.forgo(permit)
                    if reused := reused or await self._claimed_or_kept(address, may_reuse):
                        return reused
                    claimed = True
                    continue
            if not await self.usage.may_send():
                self._limiter.forgo(permit)
                break
            try:
                answer = await self._observed(send, address, permit)
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
                tokens = {"input_tokens": answer.input_tokens or 0, "output_tokens": answer.output_tokens or 0}
                self.usage.add(**tokens, latency_s=answer.latency_s)
                return CallResult(answer=answer)
        if self._saved is not None:
            self._saved += 1
        return CallResult(answer=None, error=self._stopped, final=True)

    async def _permit(self) -> Permit | None:
        """Wait until the judge can take one more request; ``None`` as soon as there is no point in sending anything."""
        permit = None
        if not self._stopped and (permit := self._limiter.acquire_nowait()) is None:
            with self._wakeable():
                permit = await self._limiter.acquire()
        if permit is not None and self._stopped:
            self._limiter.forgo(permit)
            return None
        return permit

    async def _observed(self, send: Send, address: str | None, permit: Permit) -> Answer:
        """Do what `_send` does, and report it by OpenTelemetry's conventions for generative AI, to whoever has configured an exporter."""
        facts = {"gen_ai.operation.name": "chat", "gen_ai.request.model": self.model}
        try:
            with span(f"chat {self.model}", facts):
                answer = await self._send(send, address, permit)
                counts = {"input": answer.input_tokens, "output": answer.output_tokens}
                tokens = {kind: count for kind, count in counts.items() if count is not None}  # as far as the provider says
                note({f"gen_ai.usage.{kind}_tokens": count for kind, count in tokens.items()})
        except NoAnswer as error:
            facts["error.type"] = type(error).__name__
            raise
        else:
            used = histogram("gen_ai.client.token.usage", "{token}", "Tokens of a model request, by kind.")
            for kind, count in tokens.items():
                used.record(count, facts | {"gen_ai.token.type": kind})
        finally:
            duration = histogram("gen_ai.client.operation.duration", "s", "Duration of a model request.")
            duration.record(anyio.current_time() - permit.sent_at, facts)
        return answer

    async def _send(self, send: Send, address: str | None, permit: Permit) -> Answer:
        """Send a request once, in limited time, keep the answer and tell the limiter what came of it.

        Raises:
            NoAnswer: saying why there is no answer.
        """
        outcome, retry_after_s = CallOutcome.NOTHING, None
        self.usage.add(calls=1)
        given: Answer | None = None
        try:
            with anyio.move_on_after(self.options.timeout_s):
                try:
                    with foreign_code("it"):
                        given = await send()
                except NoAnswer:
                    raise
                except Exception as error:  # a judge may be anybody's code: its bug costs one vote, not the cell
                    raise NoAnswer(f"{self.who} failed with {type(error).__name__}: {error}") from error
            if given is None:
                raise _TimedOut(self.options.timeout_s)
            now, taken_s = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), anyio.current_time() - permit.sent_at
            answer = replace(given, latency_s=taken_s, host=given.host or THIS_PROCESS, asked_in="", asked_at=now)
            if address is not None and (answers := self.answers) is not None:
                entry = replace(answer, asked_in=self.evaluation)
                await reached(answers, lambda: answers.put(address, entry))  # before anything else happens to it
            outcome = CallOutcome.ANSWER
        except NoAnswer as error:
            outcome = CallOutcome.FAILURE
            if isinstance(error, _TimedOut):
                outcome = CallOutcome.TIMEOUT
            elif isinstance(error, Unavailable) and (error.overloaded or self._failures.in_a_row >= START):
                outcome, retry_after_s = CallOutcome.OVERLOAD, error.retry_after_s  # where everything fails less is asked, whatever is said
            raise
        finally:
            self._limiter.release(permit, outcome, retry_after_s=retry_after_s)
        return answer

    def _note_failure(self, error: NoAnswer, permit: Permit) -> None:
        """Count a failure, and give the judge up if nothing else can be expected of it."""
        now = anyio.current_time()
        self.usage.add(failed_calls=1)
        if isinstance(error, Unavailable):
            self._failures.failed(permit.sent_at, now, timed_out=isinstance(error, _TimedOut))
            if self._failures.is_outage(now, oldest=self._limiter.oldest):
                seconds, requests = self._failures.longest_s, self._failures.in_a_row
                self._give_up(f"{self.who} returned only failures for {seconds:g} s ({requests} requests), the last: {error}")
            elif self._failures.stalled:
                self._limiter.concurrency.alone(now)
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
        return self._outage or self.usage.spent

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


@dataclass(slots=True)
class OutageDetector:
    """Tells a judge that fails altogether from one that fails sometimes, or that is slow.

    The clock starts when the first request is sent that fails. While a request is out that was sent before the time is up,
    nothing is decided: it may be the one that comes back. A judge that says at once that it cannot answer has `JudgeOptions.outage_s`.
    One that lets requests time out has time for `HANDFUL` of them, one after the other; for as many as one request has attempts, if it
    answered before, so that they can all be made.
    """

    _options: JudgeOptions
    in_a_row: int = 0
    """Failures without any request that was answered in between."""
    _answered_at: float = -math.inf
    _since: float | None = None
    _said_since: float | None = None
    """Since when it has been saying that it cannot answer."""

    @property
    def longest_s(self) -> float:
        """How long nothing but failures may come back, in seconds."""
        if self._said_since is not None:
            return self._options.outage_s
        timeouts = HANDFUL if math.isinf(self._answered_at) else max(self._options.attempts, HANDFUL)
        return max(self._options.outage_s, timeouts * self._options.timeout_s)

    @property
    def stalled(self) -> bool:
        """Whether requests time out, one after the other."""
        return self._said_since is None and self.in_a_row >= HANDFUL

    def answered(self, now: float) -> None:
        """Take note that the judge said something, if only that it refuses this one request."""
        self._answered_at, self._since, self._said_since, self.in_a_row = now, None, None, 0

    def failed(self, sent_at: float, now: float, *, timed_out: bool) -> None:
        """Take note that a request brought nothing."""
        if self._since is None:
            self._since = max(sent_at, self._answered_at)
        if timed_out:
            self._said_since = None
        elif self._said_since is None:
            self._said_since = max(sent_at, self._answered_at) if not self.in_a_row else now
        self.in_a_row += 1

    def remaining(self, now: float) -> float | None:
        """Return how many seconds are left for the judge to recover; ``None``: it works."""
        return None if self._end is None else max(self._end - now, 0.0)

    @property
    def _end(self) -> float | None:
        """When the judge is given up unless it answers; ``None``: it works."""
        began = self._since if self._said_since is None else self._said_since
        return None if began is None else began + self.longest_s

    def is_outage(self, now: float, *, oldest: float | None) -> bool:
        """Whether the judge is to be given up.

        Args:
            now: the time.
            oldest: when the request was sent that is out for the longest time.
        """
        end = self._end
        return end is not None and self.in_a_row >= HANDFUL and now >= end and (oldest is None or oldest >= end)


@dataclass(slots=True)
class Retries:
    """How often one request is sent, and how long to wait in between: a random time up to a limit that doubles.

    To be told by a busy judge to come back costs only a part of an attempt, since that is a pace and no failure. If the judge fails
    for everybody, the attempts that are left are spread over the time that it is given to recover.
    """

    _options: JudgeOptions
    _judge: OutageDetector
    _pace: Pace
    failures: int = 0
    """Requests that failed."""
    _spent: float = 0.0

    def wait_after(self, error: Unavailable) -> float | None:
        """Count a failure and return how many seconds to wait, at least what the judge asked for; ``None``: no attempt is left."""
        self.failures += 1
        paced = error.overloaded and not isinstance(error, _TimedOut)
        self._spent += PACED * (1 - self._pace.refusing) if paced else 1
        if self._spent >= self._options.attempts:
            return None
        now, longest = anyio.current_time(), min(FIRST_S * 2 ** min(self._spent - 1, 10), LONGEST_S)
        if (remaining := self._judge.remaining(now)) is not None:
            spread = not isinstance(error, _TimedOut)  # what took all of its time has waited
            if spread and self._spent > BRIEF and self._judge.in_a_row >= EVERYBODY:
                longest = max(longest, 2 * remaining / max(self._options.attempts - self._spent, 1))
            longest = min(longest, max(remaining, FIRST_S))
        asked_for = min(error.retry_after_s or 0.0, self._options.outage_s)
        return max(random.uniform(0, longest), asked_for)  # noqa: S311 - no secret
