"""From a question and the number of a vote to what the judge says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlflow_adk_eval.judge.client.client import Calls, Made
from mlflow_adk_eval.judge.protocol import Answer, Judge
from mlflow_adk_eval.judge.question import Question, Reading, errors_of
from mlflow_adk_eval.judge.voting import Paper

_ATTEMPTS = 2
"""An answer that cannot be read is asked for once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Asks one judge, by its settings, for votes."""

    judge: Judge
    calls: Calls
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """``judge_model_config``."""
    scope: str | None = None
    """What the answers of a judge without an address are kept under; ``None``: they are not kept."""
    rejudge_failed: bool = False
    """Whether to ask anew where the ledger's answer cannot be read."""

    async def __call__(self, question: Question, vote: int) -> Paper:
        """Return the judge's vote, or what went wrong."""
        address = self._address(question)
        readings: tuple[Reading, ...] = ()
        paid: list[Made] = []
        for attempt in range(_ATTEMPTS):
            made = await self._made(question, f"{address}:{vote}:{attempt}" if address else None)
            if made.answer is None:
                # What an earlier attempt left out stays left out; what it said still counts.
                readings = readings or (Reading(error=made.error),) * len(question.items)
                return replace(self._paper(readings, paid), hopeless=made.hopeless)
            paid.append(made)
            readings = _read(question, made.answer)
            if not errors_of(readings):
                break
        return self._paper(readings, paid)

    def _address(self, question: Question) -> str | None:
        judge = self.judge.address or self.scope
        return question.address(judge, self.settings) if judge else None

    async def _made(self, question: Question, address: str | None) -> Made:
        made = await self.calls.make(self._send(question), address)
        unread = self.rejudge_failed and made.reused and made.answer is not None and errors_of(_read(question, made.answer))
        return await self.calls.make(self._send(question), address, anew=True) if unread else made

    def _send(self, question: Question) -> Callable[[], Awaitable[Answer]]:
        """Return what sends the question, each time between new delimiters."""
        return lambda: self.judge.ask(question.request(self.settings))

    def _paper(self, readings: tuple[Reading, ...], paid: list[Made]) -> Paper:
        answers = [made.answer for made in paid if made.answer]
        last = answers[-1] if answers else Answer(text="")
        return Paper(
            readings=readings,
            model=last.model or self.judge.model,
            latency_s=sum(answer.latency_s for answer in answers),
            input_tokens=_sum(answer.input_tokens for answer in answers),
            output_tokens=_sum(answer.output_tokens for answer in answers),
            raw=last.text,
            reused=bool(paid) and all(made.reused for made in paid),
        )


def _read(question: Question, answer: Answer) -> tuple[Reading, ...]:
    """Return what an answer says, and where it says nothing, also what the provider says of that."""
    readings = question.read(answer.text)
    if not answer.problem:
        return readings
    return tuple(replace(reading, error=f"{reading.error} ({answer.problem})") if reading.error else reading for reading in readings)


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the counts that are known; ``None`` if none is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
