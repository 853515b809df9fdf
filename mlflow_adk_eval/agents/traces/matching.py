"""Which conversation in traces is of which case: by the tags of this package, by session, by what the user said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.agents.protocol import Played
from mlflow_adk_eval.agents.recordings.recording import Recording
from mlflow_adk_eval.agents.traces.conversations import Conversation, agent_name, all_of, conversations_of
from mlflow_adk_eval.errors import InputError, UsageError
from mlflow_adk_eval.evalset import EvalCase, EvalSet

_NAME = "traces"


@dataclass(frozen=True, slots=True)
class _Read:
    """A conversation and what it says, or why it says nothing."""

    conversation: Conversation
    played: Played
    problem: InputError | None = None
    agent: str = ""


def recording_of_traces(traces: Any, eval_set: EvalSet | None = None) -> Recording:
    """Return the conversations in traces as the runs of the cases that they are of.

    One that is of no case is kept by the name of its session or trace, so that a report names it. One that could be of
    several cases is an error of each of them.

    Args:
        traces: MLflow's traces, or the frame of ``mlflow.search_traces``.
        eval_set: the cases; ``None``: a conversation belongs to what its tags name, else to its session.

    Raises:
        InputError: if traces that belong to no case do not say what was said, so that it cannot be told whether they should.
        UsageError: if these are no traces.
    """
    read = [_read(conversation) for conversation in conversations_of(traces)]
    if not read:
        raise UsageError("there are no traces to evaluate")
    cases = eval_set.eval_cases if eval_set else ()
    runs: dict[str, list[Played]] = {}
    unreadable: list[InputError] = []
    for one in read:
        found = _cases_of(one, cases) if eval_set else [one.conversation.case or one.conversation.session or one.conversation.label]
        if not found and one.problem:
            unreadable.append(one.problem)
        for eval_id in found or [one.conversation.label]:
            runs.setdefault(eval_id, []).append(one.played if len(found) <= 1 else _ambiguous(one, found))
    if unreadable:
        raise all_of(unreadable, "traces")
    name = next((one.agent for one in read if one.agent), _NAME)
    return Recording({eval_id: tuple(played) for eval_id, played in runs.items()}, name=name)


def _read(conversation: Conversation) -> _Read:
    try:
        turns = conversation.turns()
    except InputError as error:
        return _Read(conversation, Played(actual=(), error=str(error)), error)
    return _Read(conversation, conversation.played_from(turns), agent=agent_name(turns))


def _cases_of(read: _Read, cases: Sequence[EvalCase]) -> list[str]:
    """Return the cases that a conversation may be of."""
    conversation = read.conversation
    if conversation.case:
        return [case.eval_id for case in cases if case.eval_id == conversation.case]
    of_session = [case for case in cases if conversation.session and conversation.session in _sessions(case)]
    if len(of_session) == 1:
        return [of_session[0].eval_id]
    said = tuple(turn.user_text for turn in read.played.actual)
    if read.problem:
        return [case.eval_id for case in of_session]
    return [case.eval_id for case in of_session or cases if case.conversation and _texts(case) == said]


def _sessions(case: EvalCase) -> Iterable[str]:
    return (case.eval_id, case.session_input.session_id or case.eval_id) if case.session_input else (case.eval_id,)


def _texts(case: EvalCase) -> tuple[str, ...]:
    return tuple(turn.user_text for turn in case.conversation or ())


def _ambiguous(read: _Read, eval_ids: Sequence[str]) -> Played:
    named = ", ".join(repr(eval_id) for eval_id in eval_ids)
    way_out = "give the cases the ids of the sessions, or the traces the tag adk.eval_case_id"
    return Played(actual=(), error=f"{read.conversation.label} could be of any of the cases {named}; {way_out}")
