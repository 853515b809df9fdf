"""What models cost in one evaluation, and whether they may be asked more."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio

from mlflow_adk_eval.judge.protocol import Answers, reached
from mlflow_adk_eval.judge.setup import Budget
from mlflow_adk_eval.results.usage import NUMBERS, JudgeUsage, merged
from mlflow_adk_eval.text import counted


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
        self._budget = budget or Budget()
        self._lease = lease
        self._trackers: list[UsageTracker] = [self]
        """All whose counts are held against the budget."""
        self._wake: list[Callable[[], None]] = []
        self._counts: dict[str, Any] = {}
        """By the names of the fields of `JudgeUsage`; what is missing is zero."""
        self._members: Mapping[str, tuple[int, int, int]] = {}
        """As `JudgeUsage.members`."""

    def sharing_budget(self) -> UsageTracker:
        """Return another tracker, at zero, that shares the budget of this one: that of simulated users."""
        other = UsageTracker(self._budget, self._lease)
        self._trackers.append(other)
        other._trackers, other._wake = self._trackers, self._wake
        return other

    @property
    def spent(self) -> str:
        """Why nothing more may be asked; empty as long as it may."""
        budget = self._budget
        if self._lease is not None:
            return self._lease.spent
        if budget.max_calls is None and budget.max_tokens is None:
            return ""
        calls, tokens = sum(tracker.calls for tracker in self._trackers), sum(tracker.tokens for tracker in self._trackers)
        users = any(tracker.calls for tracker in self._trackers[1:])
        call, whose = ("model call", "judges and simulated users") if users else ("judge call", "judges")
        if budget.max_calls is not None and calls >= budget.max_calls:
            return f"the budget of {counted(budget.max_calls, call)} is used up"
        if budget.max_tokens is not None and tokens >= budget.max_tokens:
            return f"the budget of {counted(budget.max_tokens, 'token')} for {whose} is used up: {tokens} were used"
        return ""

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
        self._wake.append(wake)

    async def may_send(self) -> bool:
        """Take one call from a budget that other processes spend, too. Return whether there was one."""
        if self._lease is None or await self._lease.take(sum(tracker.tokens for tracker in self._trackers)):
            return True
        self.add()  # wakes those who wait
        return False

    async def aclose(self) -> None:
        """Give back what other processes may spend."""
        if self._lease is not None:
            await self._lease.aclose(sum(tracker.tokens for tracker in self._trackers))

    def add(self, **more: float) -> None:
        """Count something, by the names of the fields of `JudgeUsage`; requests before they are sent."""
        for name, number in more.items():
            self._counts[name] = self._counts.get(name, 0) + number
        if self.spent:
            for wake in self._wake:
                wake()

    def count(self, votes: JudgeUsage) -> None:
        """Count the votes on one question."""
        self.add(**{name: getattr(votes, name) for name in NUMBERS})
        self._members = merged(self._members, votes.members)

    def usage(self, models: tuple[str, ...], prompts: Mapping[str, str], outage: str = "") -> JudgeUsage:
        """Return the counts so far.

        Args:
            models: the judges, as reports call them.
            prompts: the hash of each prompt that was used.
            outage: why a judge was given up; empty where none was.
        """
        return JudgeUsage(**self._counts, models=models, prompts=prompts, outage=outage, members=self._members)


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

    def __init__(self, budget: Budget, accounts: Answers, name: str) -> None:
        """Begin with nothing taken.

        Args:
            budget: all that may be spent.
            accounts: where it is shared.
            name: what the processes call it.
        """
        self._budget = budget
        self._accounts = accounts
        self._name = f"budget: {name}"
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
        patient_until = anyio.current_time() + (_PATIENCE_S if more and self._accounts.shared else 0)
        while True:
            account = await reached(self._accounts, lambda: self._accounts.account(self._name))
            if account is None and anyio.current_time() < patient_until:
                await anyio.sleep(_LOOK_S)
                continue
            if account is None:
                self._left = 0
                self.spent = "the budget is shared through the ledger, but the ledger cannot be used"
                return
            calls, used = json.loads(account.body or "[0, 0]")
            calls, used = calls - self._left, used + tokens - self._told
            if budget.max_tokens is not None and used >= budget.max_tokens:
                self.spent = f"the budget of {counted(budget.max_tokens, 'token')} for all processes is used up: {used} were used"
            elif more and budget.max_calls is not None and calls >= budget.max_calls:
                self.spent = f"the budget of {counted(budget.max_calls, 'model call')} for all processes is used up"
            block = 0
            if more and not self.spent:
                block = _BLOCK if budget.max_tokens is None else _TOKENS_BLOCK
                if budget.max_calls is not None:  # few, where few are left
                    block = max(min(block, (budget.max_calls - calls) // _SHARE), 1)
            body = json.dumps([calls + block, used])
            version = account.version
            if await reached(self._accounts, partial(self._accounts.set_account, self._name, body, version=version)):
                self._left, self._told = block, tokens
                return
