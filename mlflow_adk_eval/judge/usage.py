"""What models cost in one evaluation, and whether they may be asked more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.judge.setup import Budget
from mlflow_adk_eval.judge.voting import VoteCounts
from mlflow_adk_eval.results.usage import JudgeUsage


class UsageTracker:
    """The counts of all judges of an evaluation, or of all models that play its users; and the budget that both share.

    Each request is counted before it is sent and again when it comes back, so that a `Budget` of calls is never exceeded. As soon as
    the budget is spent, everybody who waits for a judge is woken up to learn that nothing more will be sent.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        """Begin at zero."""
        self._budget = _SharedBudget(budget or Budget(), [self])
        self._counts: dict[str, Any] = {}
        """By the names of the fields of `JudgeUsage`; what is missing is zero."""

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

    def sent(self) -> None:
        """Count a request before it is sent."""
        self._add(calls=1)

    def failed(self) -> None:
        """Count a request that brought no answer."""
        self._add(failed_calls=1)

    def answered(self, answer: Answer) -> None:
        """Count what an answer cost."""
        self._add(input_tokens=answer.input_tokens or 0, output_tokens=answer.output_tokens or 0, latency_s=answer.latency_s)

    def reused(self) -> None:
        """Count an answer that was paid for before."""
        self._add(reused=1)

    def count(self, votes: VoteCounts) -> None:
        """Count the votes on one question."""
        self._add(
            calls_saved=votes.saved,
            ballots=votes.items,
            split_ballots=votes.split,
            votes=votes.agreeing + votes.dissenting,
            dissenting_votes=votes.dissenting,
        )

    def usage(self, models: tuple[str, ...], prompts: Mapping[str, str], outage: str = "") -> JudgeUsage:
        """Return the counts so far.

        Args:
            models: the judges, as reports call them.
            prompts: the hash of each prompt that was used.
            outage: why a judge was given up; empty where none was.
        """
        return JudgeUsage(**self._counts, models=models, prompts=prompts, outage=outage)

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
    wake: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    @property
    def spent(self) -> str:
        """Why nothing more may be asked; empty as long as it may."""
        budget = self.budget
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


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
