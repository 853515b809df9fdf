"""From traces to conversations: which traces belong together, in which order, what happened in them, and which case each is of.

    MLflow's traces ── traces_of ──> Trace ── conversations_of ──> TracedConversation ── turns ──> TracedTurn ── recording_of_traces ──> Recording

Traces of one conversation share a case and run (tags that this package writes), else a session, else each is a conversation of its own.
A conversation is of the case that its tags name, else of the case whose id or session input names its session, else of the case whose
user says the same; one that could be of several cases is an error of each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlflow_adk_eval.agents.protocol import Conversation
from mlflow_adk_eval.agents.recordings import Recording
from mlflow_adk_eval.agents.traces.adk import adk_turn, adk_turns, calls_tools
from mlflow_adk_eval.agents.traces.manual import manual_turn, manual_turns, record_error, records, tells
from mlflow_adk_eval.agents.traces.spans import Span, Trace, TracedTurn, traces_of, unreadable
from mlflow_adk_eval.errors import InputError, Problem, UsageError
from mlflow_adk_eval.evalset import EvalCase, EvalSet, Invocation

CASE, RUN_INDEX, TURN_INDEX = "adk.eval_case_id", "adk.run_index", "adk.invocation_index"
"""The tags by which traces of this package say where they belong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedConversation:
    """The traces of one conversation, in order."""

    traces: tuple[Trace, ...]

    @property
    def case(self) -> str:
        """The case that its tags name; empty where they name none."""
        return self.traces[0].tags.get(CASE, "")

    @property
    def session(self) -> str:
        """Its session; empty where its traces name none."""
        return self.traces[0].session

    @property
    def began(self) -> int:
        """When its first trace began, in nanoseconds."""
        return _place(self.traces[0])[1]

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"session {self.session}" if self.session else f"trace {self.traces[0].id}"

    def turns(self) -> tuple[TracedTurn, ...]:
        """Return what happened, turn by turn.

        Raises:
            InputError: if a trace does not say what was said.
        """
        self._require_all()
        problems: list[InputError] = []
        turns: list[TracedTurn] = []
        for trace in self.traces:
            try:
                turns += _turns(trace)
            except InputError as error:
                problems.append(error)
        if problems:
            raise all_of(problems, self.label)
        return tuple(turns)

    def conversation(self, turns: Sequence[TracedTurn] | None = None) -> Conversation:
        """Return what the agent did, up to the turn in which it failed.

        Args:
            turns: what `turns` returns, if it is known.

        Raises:
            InputError: if a trace does not say what was said.
        """
        known = self.turns() if turns is None else turns
        failed = next((index for index, turn in enumerate(known) if turn.error), None)
        actual = tuple(turn.invocation for turn in (known if failed is None else known[: failed + 1]))
        if failed is None:
            error = next((error for trace in self.traces for span in records(trace) if (error := record_error(span))), "")
            return Conversation(actual=actual, session_state=_final_state(self.traces[-1]), error=error)
        error = known[failed].error
        return Conversation(actual=actual, error=error if error.startswith("turn ") else f"turn {failed + 1}: {error}", unfinished=True)

    def _require_all(self) -> None:
        """Refuse a conversation of which turns have no trace."""
        indexes = [int(index) for trace in self.traces if (index := trace.tags.get(TURN_INDEX, "")).isdigit()]
        missing = sorted(set(range(max(indexes, default=-1) + 1)) - set(indexes))
        if missing:
            named = ", ".join(str(index + 1) for index in missing)
            raise unreadable(
                self.traces[0].id, f"case {self.case!r}", f"no trace of turn {named}", "the traces of all turns before the last"
            )


def all_of(errors: Sequence[InputError], label: str) -> InputError:
    """Return several errors as one about `label`, which gives the same advice once."""
    if len(errors) == 1:
        return errors[0]
    hints: set[str] = set()
    problems: list[Problem] = []
    for error in errors:
        for problem in error.problems:
            problems.append(replace(problem, path=f"{error.source}, {problem.path}", hint="" if problem.hint in hints else problem.hint))
            hints.add(problem.hint)
    return InputError(label, problems)


def conversations_of(traces: Any) -> tuple[TracedConversation, ...]:
    """Return the conversations that traces are of, in order of time: those of one case and run, else of one session, else alone.

    Raises:
        UsageError: if these are no traces of MLflow.
    """
    groups: dict[tuple[str, ...], list[Trace]] = {}
    for trace in traces_of(traces):
        groups.setdefault(conversation_key(trace), []).append(trace)
    found = [TracedConversation(traces=tuple(sorted(group, key=_place))) for group in groups.values()]
    return tuple(sorted(found, key=lambda conversation: _place(conversation.traces[0])[1:]))


def invocations_of(traces: Any) -> tuple[Invocation, ...]:
    """Return the turns that traces of one conversation hold, in order of time.

    Args:
        traces: one trace of MLflow or several of one session, as objects, as dicts or as the frame of ``mlflow.search_traces``.

    Raises:
        InputError: if a trace does not say what was said, as where ADK did not capture the content of messages.
        UsageError: if these are no traces, or traces of several sessions.
    """
    conversation = _one(traces)
    turns = conversation.turns()
    if not turns:
        error = conversation.conversation(turns).error or "no turn"
        raise unreadable(conversation.traces[0].id, "outputs", error, "a conversation of at least one turn")
    return tuple(turn.invocation for turn in turns)


def conversation_of(traces: Any) -> Conversation:
    """Return what an agent did in one conversation: as `invocations_of`, and why it failed if it did.

    Raises:
        InputError: if a trace does not say what was said.
        UsageError: if these are no traces, or traces of several sessions.
    """
    return _one(traces).conversation()


def _one(traces: Any) -> TracedConversation:
    listed = traces_of(traces)
    if not listed:
        raise UsageError("traces: wanted at least one")
    sessions = list(dict.fromkeys(trace.session for trace in listed if trace.session))
    if len(sessions) > 1:
        raise UsageError(f"traces of {len(sessions)} sessions, {_listed(sessions)}; wanted those of one")
    runs = {conversation_key(trace) for trace in listed if CASE in trace.tags}
    if len(runs) > 1:
        raise UsageError(f"traces of {len(runs)} runs of cases, {_listed(sorted({key[1] for key in runs}))}; wanted those of one")
    return TracedConversation(traces=tuple(sorted(listed, key=_place)))


def _listed(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def conversation_key(trace: Trace) -> tuple[str, ...]:
    """Return what all traces of one conversation have in common."""
    if CASE in trace.tags:
        return "case", trace.tags[CASE], trace.run, trace.tags.get(RUN_INDEX, "0")
    return ("session", trace.session) if trace.session else ("trace", trace.id)


def _place(trace: Trace) -> tuple[int, int, str]:
    """Return where in its conversation a trace belongs."""
    index = trace.tags.get(TURN_INDEX, "") if CASE in trace.tags else ""
    start = min((root.start_ns for root in trace.roots), default=trace.time_ms * 1_000_000)
    return int(index) if index.isdigit() else 0, start, trace.id


def _turns(trace: Trace) -> list[TracedTurn]:
    if not trace.roots:
        raise unreadable(trace.id, "$.data.spans", "no span", "the spans, which are missing where a search leaves them out")
    spans = [span for root in trace.roots for span in adk_turns(root)]
    if not spans or records(trace):
        return list(manual_turns(trace))
    try:
        return [_turn(trace, span) for span in spans]
    except InputError:
        if all(map(tells, spans)):  # what Strands says is in events, which MLflow shows as inputs and outputs
            return [manual_turn(trace, span) for span in spans]
        # What a callback or code of an agent said, no span of ADK has; but one around it may.
        if len(spans) == 1 and spans[0] not in trace.roots and not calls_tools(spans[0]):
            return list(manual_turns(trace))
        raise


def _turn(trace: Trace, span: Span) -> TracedTurn:
    turn = adk_turn(trace, span)
    # A failed turn may lack what the user said; where its inputs tell, as those of Strands, they are read.
    return turn if turn.invocation.user_content.parts or not tells(span) else manual_turn(trace, span)


def _final_state(trace: Trace) -> dict[str, Any] | None:
    """Return the session's state, where the outputs hold it."""
    states = (span.outputs.get("session_state") for span in records(trace))
    return next((state for state in states if isinstance(state, dict)), None)


def agent_name(turns: Iterable[TracedTurn]) -> str:
    """Return the name of the agent that had the first turn of which it is known; empty where it is of none."""
    return next((turn.agent for turn in turns if turn.agent), "")


_NAME = "traces"


@dataclass(frozen=True, slots=True)
class ReadConversation:
    """A conversation and what it says, or why it says nothing."""

    traced: TracedConversation
    conversation: Conversation
    problem: InputError | None = None
    agent: str = ""

    @staticmethod
    def of(traced: TracedConversation) -> ReadConversation:
        """Read a conversation."""
        try:
            turns = traced.turns()
        except InputError as error:
            return ReadConversation(traced, Conversation(actual=(), error=str(error)), error)
        return ReadConversation(traced, traced.conversation(turns), agent=agent_name(turns))


class TracedCases:
    """Finds the cases that conversations are of."""

    def __init__(self, cases: Iterable[EvalCase]) -> None:
        """Take all cases that there are."""
        self._ids: set[str] = set()
        self._of_sessions: dict[str, list[str]] = {}
        self._of_texts: dict[tuple[str, ...], list[str]] = {}
        for case in cases:
            self._ids.add(case.eval_id)
            for session in dict.fromkeys(_sessions(case)):
                self._of_sessions.setdefault(session, []).append(case.eval_id)
            if case.conversation:
                self._of_texts.setdefault(_texts(case.conversation), []).append(case.eval_id)

    def runs(self, read: ReadConversation) -> Iterator[tuple[str, Conversation]]:
        """Yield each case that a conversation may be of, with the conversation; if there are several, with an error in its place."""
        found = self._found(read)
        for eval_id in found:
            yield eval_id, read.conversation if len(found) == 1 else _ambiguous(read.traced, found)

    def _found(self, read: ReadConversation) -> Sequence[str]:
        traced = read.traced
        if traced.case:
            return [traced.case] if traced.case in self._ids else []
        of_session = self._of_sessions.get(traced.session, []) if traced.session else []
        if len(of_session) == 1 or read.problem:
            return of_session
        same = self._of_texts.get(_texts(read.conversation.actual), [])
        return [eval_id for eval_id in same if eval_id in of_session] if of_session else same


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
    read = [ReadConversation.of(traced) for traced in conversations_of(traces)]
    if not read:
        raise UsageError("there are no traces to evaluate")
    cases = TracedCases(eval_set.eval_cases) if eval_set else None
    runs: dict[str, list[Conversation]] = {}
    unreadable: list[InputError] = []
    for one in read:
        traced = one.traced
        found = list(cases.runs(one)) if cases else [(traced.case or traced.session or traced.label, one.conversation)]
        if not found and one.problem:
            unreadable.append(one.problem)
        for eval_id, conversation in found or [(traced.label, one.conversation)]:
            runs.setdefault(eval_id, []).append(conversation)
    if unreadable:
        raise all_of(unreadable, "traces")
    name = next((one.agent for one in read if one.agent), _NAME)
    return Recording({eval_id: tuple(found) for eval_id, found in runs.items()}, name=name)


def _sessions(case: EvalCase) -> Iterable[str]:
    return (case.eval_id, case.session_input.session_id or case.eval_id) if case.session_input else (case.eval_id,)


def _texts(turns: Iterable[Invocation]) -> tuple[str, ...]:
    return tuple(turn.user_text for turn in turns)


def _ambiguous(traced: TracedConversation, eval_ids: Sequence[str]) -> Conversation:
    named = ", ".join(repr(eval_id) for eval_id in eval_ids)
    way_out = "give the cases the ids of the sessions, or the traces the tag adk.eval_case_id"
    return Conversation(actual=(), error=f"{traced.label} could be of any of the cases {named}; {way_out}")
