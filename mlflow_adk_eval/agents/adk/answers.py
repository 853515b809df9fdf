"""Which of today's calls a user answers, where the answer was written before there was such a call.

ADK gives each call a new id. A case that was saved from a session answers the id that the call had there, and a case that was written by hand
has none. So an answer goes to the open call that is the same as the recorded one, or else to the first open call of its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlflow_adk_eval.criteria.alignment import same_call
from mlflow_adk_eval.errors import AgentError
from mlflow_adk_eval.evalset.models import EvalCase, FunctionCall


@dataclass(slots=True)
class OpenCalls:
    """The calls of a conversation, and those that the user has not answered yet."""

    recorded: Sequence[FunctionCall] = ()
    """The calls of the case, with the ids that they had when it was saved."""
    made: list[Any] = field(default_factory=list[Any])
    """All calls so far, as ADK has them."""
    answered: list[str] = field(default_factory=list[str])
    """The ids that the user has answered, each as often as that."""
    bound: dict[str, str] = field(default_factory=dict[str, str])
    """The ids of today, by the recorded ones."""

    @classmethod
    def of(cls, case: EvalCase) -> OpenCalls:
        """Return those of a conversation that begins."""
        return cls([call for turn in case.conversation or () for call in turn.tool_calls if call.id])

    def add(self, calls: Iterable[Any]) -> None:
        """Note that calls are made."""
        self.made += calls

    def bind(self, answers: Sequence[Any]) -> None:
        """Give answers of the user, in the order of a message, the ids of the calls that they answer.

        Raises:
            AgentError: if there is no open call that one of them could answer.
        """
        ids = {call.id for call in self.made}
        unbound: list[Any] = []
        for answer in answers:
            call_id = self.bound.get(answer.id or "", answer.id or "")
            if call_id in ids:
                self._take(answer, call_id)
            else:
                unbound.append(answer)
        others = [answer for answer in unbound if not self._bind_as_recorded(answer)]
        for answer in others:
            found = next((call for call in self._open() if call.name == answer.name), None)
            if found is None:
                raise AgentError(f"the user answers the tool {answer.name!r}, but the agent has no open call of it")
            self._take(answer, found.id)

    def _bind_as_recorded(self, answer: Any) -> bool:
        """Give an answer the id of the open call that is the same as the one it answered when the case was saved; whether there is one."""
        call = next((call for call in self.recorded if call.id == answer.id and answer.name in (None, call.name)), None)
        if call is None:
            return False
        earlier = [other for other in self.recorded[: self.recorded.index(call)] if same_call(other, call)]
        alike = [other for other in self.made if same_call(other, call)]
        still_open = {id(other) for other in self._open()}
        in_order = [*alike[len(earlier) :], *alike]  # the one that was called as often before, if it is there
        found = next((other for other in in_order if id(other) in still_open), None)
        if found is not None:
            self._take(answer, found.id)
        return found is not None

    def _take(self, answer: Any, call_id: str) -> None:
        if answer.id:
            self.bound[answer.id] = call_id
        answer.id = call_id
        self.answered.append(call_id)

    def _open(self) -> list[Any]:
        """Return the calls that have not been answered. A framework may give several the same id, which are answered in their order."""
        answered = list(self.answered)
        still_open: list[Any] = []
        for call in self.made:
            if call.id in answered:
                answered.remove(call.id)
            else:
                still_open.append(call)
        return still_open
