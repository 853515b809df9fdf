"""What models cost in one evaluation, and whether they may be asked more."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio

from mlflow_adk_eval.judge.protocol import Accounts, Answer, reached
from mlflow_adk_eval.judge.setup import Budget
from mlflow_adk_eval.judge.voting import VoteCounts
from mlflow_adk_eval.results.usage import JudgeUsage, merged


class UsageTracker:
    """The counts of all judges of an evaluation, or of all models that play its users; and the budget that both share.

    Each request is counted before it is sent and again when it comes back, so that a `Budget` of calls is never exceeded. As soon as
    the budget is spent, everybody who waits for a judge is woken up to learn that nothing more will be sent.
    """

    def __init__(self, budget: Budget | None = None, lease: BudgetLease | None = None) -> None:
        """Begin at zero.

        Args:
            budget: how much may be spent.
            lease: the budget, where other processes spend it, too; ``None``: they do not.
        """
        self._budget = _SharedBudget(budget or Budget(), [self], lease)
        self._counts: dict[str, Any] = {}
        """By the names of the fields of `JudgeUsage`; what is missing is zero."""
        self._members: Mapping[str, tuple[int, int, int]] = {}
        """As `JudgeUsage.members`."""

    def sharing_budget(self) -> UsageTracker:
        """Return another tracker, at zero, that shares the budget of this one: that of simulated users."""
        other = UsageTracker()
        other._budget = self._budget
        self._budget.trackers.append(other)
        return other

    @property
    def spent(self) -> str:
        """Why nothing more may be asked; empty as long as it may."""
        return self._budget.spent

    @property
    def calls(self) -> int:
        """Requests that were sent."""
        return int(self._counts.get("calls", 0))

    @property
    def tokens(self) -> int:
        """Tokens of input and output together."""
        return int(self._counts.get("input_tokens", 0) + self._counts.get("output_tokens", 0))

    def when_spent(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when the budget is spent, so that nobody waits in vain."""
        self._budget.wake.append(wake)

    async def may_send(self) -> bool:
        """Take one call from a budget that other processes spend, too. Return whether there was one."""
        budget = self._budget
        if budget.lease is None or await budget.lease.take(sum(tracker.tokens for tracker in budget.trackers)):
            return True
        self._add()  # wakes those who wait
        return False

    async def aclose(self) -> None:
        """Give back what other processes may spend."""
        budget = self._budget
        if budget.lease is not None:
            await budget.lease.aclose(sum(tracker.tokens for tracker in budget.trackers))

    def sent(self) -> None:
        """Count a request before it is sent."""
        self._add(calls=1)

    def failed(self) -> None:
        """Count a request that brought no answer."""
        self._add(failed_calls=1)

    def answered(self, answer: Answer) -> None:
        """Count what an answer cost."""
        self._add(input_tokens=answer.input_tokens or 0, output_tokens=answer.output_tokens or 0, latency_s=answer.latency_s)

    def reused(self, *, asked_elsewhere: bool) -> None:
        """Count an answer that the ledger held; `asked_elsewhere`: that another evaluation asked for."""
        self._add(reused=1, asked_elsewhere=int(asked_elsewhere))

    def shared(self) -> None:
        """Count an answer that was asked for in this evaluation already."""
        self._add(shared=1)

    def count(self, votes: VoteCounts) -> None:
        """Count the votes on one question."""
        self._add(
            calls_saved=votes.saved,
            ballots=votes.items,
            split_ballots=votes.split,
            votes=votes.agreeing + votes.dissenting,
            dissenting_votes=votes.dissenting,
            lone_votes=votes.lone,
            repaired=votes.repaired,
        )
        self._members = merged(self._members, votes.members)

    def usage(self, models: tuple[str, ...], prompts: Mapping[str, str], outage: str = "") -> JudgeUsage:
        """Return the counts so far.

        Args:
            models: the judges, as reports call them.
            prompts: the hash of each prompt that was used.
            outage: why a judge was given up; empty where none was.
        """
        return JudgeUsage(**self._counts, models=models, prompts=prompts, outage=outage, members=self._members)

    def _add(self, **more: float) -> None:
        for name, number in more.items():
            self._counts[name] = self._counts.get(name, 0) + number
        if self.spent:
            for wake in self._budget.wake:
                wake()


@dataclass(slots=True)
class _SharedBudget:
    """A budget, and the counts that are held against it."""

    budget: Budget
    trackers: list[UsageTracker]
    lease: BudgetLease | None = None
    wake: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    @property
    def spent(self) -> str:
        """Why nothing more may be asked; empty as long as it may."""
        budget = self.budget
        if self.lease is not None:
            return self.lease.spent
        if budget.max_calls is not None and sum(tracker.calls for tracker in self.trackers) >= budget.max_calls:
            return f"the budget of {_counted(budget.max_calls, self._whose[0])} is spent"
        if budget.max_tokens is not None and (tokens := sum(tracker.tokens for tracker in self.trackers)) >= budget.max_tokens:
            return f"the budget of {_counted(budget.max_tokens, 'token')} for {self._whose[1]} is spent: {tokens} were used"
        return ""

    @property
    def _whose(self) -> tuple[str, str]:
        """What a call is to be called, and who made them."""
        alone = not any(tracker.calls for tracker in self.trackers[1:])
        return ("judge call", "judges") if alone else ("model call", "judges and simulated users")


_BLOCK = 16
"""Calls that a process takes from a shared budget at once, at most."""
_TOKENS_BLOCK = 4
"""The same where tokens count: what others have used is known only so often."""
_PATIENCE_S = 60.0
"""For how long nothing is sent while the ledger cannot be reached that says what others have spent."""
_LOOK_S = 1.0
_SHARE = 8
"""No more than so small a part of what is left, so that the last calls are not held by one who has nothing to ask."""


class BudgetLease:
    """A budget that several processes spend, each a few calls at a time.

    What a killed process had taken and not used is not spent by anybody. Tokens are counted when they are known, so several
    processes may exceed `Budget.max_tokens` by what is under way.
    """

    def __init__(self, budget: Budget, accounts: Accounts, name: str, *, remote: bool) -> None:
        """Begin with nothing taken.

        Args:
            budget: all that may be spent.
            accounts: where it is shared.
            name: what the processes call it.
            remote: whether that is reached over a network.
        """
        self._budget = budget
        self._accounts = accounts
        self._name = f"budget: {name}"
        self._remote = remote
        self._left = 0
        self._told = 0
        """The tokens that the account knows of."""
        self._lock = anyio.Lock()
        self.spent = ""
        """Why nothing more may be asked; empty as long as it may."""

    async def take(self, tokens: int) -> bool:
        """Take one call, and tell what was used so far. Return whether there was one."""
        async with self._lock:
            if not self._left and not self.spent:
                await self._settle(tokens, more=True)
            if not self._left or self.spent:
                return False
            self._left -= 1
            return True

    async def aclose(self, tokens: int) -> None:
        """Give back what was not used, and tell the rest."""
        async with self._lock:
            if self._left or tokens > self._told:
                await self._settle(tokens, more=False)

    async def _settle(self, tokens: int, *, more: bool) -> None:
        budget = self._budget
        patient_until = anyio.current_time() + (_PATIENCE_S if more and self._remote else 0)
        while True:
            account = await reached(lambda: self._accounts.account(self._name), remote=self._remote)
            if account is None and anyio.current_time() < patient_until:
                await anyio.sleep(_LOOK_S)
                continue
            if account is None:
                self._left = 0
                self.spent = "the budget is shared with other processes, and the ledger that says what they have spent cannot be used"
                return
            calls, used = json.loads(account.body or "[0, 0]")
            calls, used = calls - self._left, used + tokens - self._told
            if budget.max_tokens is not None and used >= budget.max_tokens:
                self.spent = f"the budget of {_counted(budget.max_tokens, 'token')} for all processes is spent: {used} were used"
            elif more and budget.max_calls is not None and calls >= budget.max_calls:
                self.spent = f"the budget of {_counted(budget.max_calls, 'model call')} for all processes is spent"
            block = self._block(calls) if more and not self.spent else 0
            body = json.dumps([calls + block, used])
            version = account.version
            if await reached(partial(self._accounts.set_account, self._name, body, version=version), remote=self._remote):
                self._left, self._told = block, tokens
                return

    def _block(self, calls: int) -> int:
        """Return how many calls to take: few, where few are left."""
        most = _BLOCK if self._budget.max_tokens is None else _TOKENS_BLOCK
        return most if self._budget.max_calls is None else max(min(most, (self._budget.max_calls - calls) // _SHARE), 1)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
