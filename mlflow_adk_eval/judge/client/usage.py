"""What judges cost in one evaluation, and whether they may be asked more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from mlflow_adk_eval.judge.options import Budget
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.judge.voting import Tally
from mlflow_adk_eval.results.usage import JudgeUsage


class UsageTracker:
    """The counts of all judges of an evaluation, or of all models that play its users; and the budget."""

    def __init__(self, budget: Budget | None = None) -> None:
        """Begin at zero."""
        self._purse = _BudgetTracker(budget or Budget(), [self])
        self._usage = JudgeUsage()

    def beside(self) -> UsageTracker:
        """Return further accounts, at zero, that share the budget of these: those of simulated users."""
        others = UsageTracker()
        others._purse = self._purse
        self._purse.accounts.append(others)
        return others

    @property
    def spent(self) -> str:
        """Why nothing more may be asked; empty as long as it may."""
        return self._purse.spent

    @property
    def so_far(self) -> JudgeUsage:
        """The counts, without names."""
        return self._usage

    def when_spent(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when the budget is spent, so that nobody waits in vain."""
        self._purse.wake.append(wake)

    def sent(self) -> None:
        """Count a request before it is sent."""
        self._enter(replace(self._usage, calls=self._usage.calls + 1))

    def failed(self) -> None:
        """Count a request that brought no answer."""
        self._enter(replace(self._usage, failed_calls=self._usage.failed_calls + 1))

    def answered(self, answer: Answer) -> None:
        """Count what an answer cost."""
        input_tokens = self._usage.input_tokens + (answer.input_tokens or 0)
        output_tokens = self._usage.output_tokens + (answer.output_tokens or 0)
        latency_s = self._usage.latency_s + answer.latency_s
        self._enter(replace(self._usage, input_tokens=input_tokens, output_tokens=output_tokens, latency_s=latency_s))

    def reused(self) -> None:
        """Count an answer that was paid for before."""
        self._enter(replace(self._usage, reused=self._usage.reused + 1))

    def count(self, tally: Tally) -> None:
        """Count a ballot."""
        usage = self._usage
        counted = replace(
            usage,
            calls_saved=usage.calls_saved + tally.saved,
            ballots=usage.ballots + tally.items,
            split_ballots=usage.split_ballots + tally.split,
            votes=usage.votes + tally.agreeing + tally.dissenting,
            dissenting_votes=usage.dissenting_votes + tally.dissenting,
        )
        self._enter(counted)

    def usage(self, models: tuple[str, ...], prompts: Mapping[str, str]) -> JudgeUsage:
        """Return the counts so far.

        Args:
            models: the judges, as reports call them.
            prompts: the hash of each prompt that was used.
        """
        return replace(self._usage, models=models, prompts=prompts)

    def _enter(self, usage: JudgeUsage) -> None:
        self._usage = usage
        if self.spent:
            for wake in self._purse.wake:
                wake()


@dataclass(slots=True)
class _BudgetTracker:
    """A budget, and the accounts that live on it."""

    budget: Budget
    accounts: list[UsageTracker]
    wake: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    @property
    def spent(self) -> str:
        """Why nothing more may be asked; empty as long as it may."""
        budget, usages = self.budget, [accounts.so_far for accounts in self.accounts]
        if budget.max_calls is not None and sum(usage.calls for usage in usages) >= budget.max_calls:
            return f"the budget of {_counted(budget.max_calls, self._whose[0])} is spent"
        if budget.max_tokens is not None and (tokens := sum(usage.tokens for usage in usages)) >= budget.max_tokens:
            return f"the budget of {_counted(budget.max_tokens, 'token')} for {self._whose[1]} is spent: {tokens} were used"
        return ""

    @property
    def _whose(self) -> tuple[str, str]:
        """What a call is to be called, and who made them."""
        alone = not any(accounts.so_far.calls for accounts in self.accounts[1:])
        return ("judge call", "judges") if alone else ("model call", "judges and simulated users")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
