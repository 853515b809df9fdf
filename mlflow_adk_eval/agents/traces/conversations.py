"""From traces to conversations: which traces belong together, in which order, what happened in them, and which case each is of.

    MLflow's traces ── traces_of ──> Trace ── conversations_of ──> TracedConversation ── turns ──> TracedTurn ── recording_of_traces ──> Recording

Traces of one conversation share a case and run (tags that this package writes), else a session, else each is a conversation of its own.
A conversation is of the case that its tags name, else of the case whose id or session input names its session, else of the case whose
user says the same; one that could be of several cases is an error of each of them.

`cases_of` makes eval cases of conversations, in which what the agent did is the reference. A captured case keeps what the user said, what the
agent answered, and its tool calls; costs, instructions and metadata are left out. Every text passes through a `Redactor`, which masks the
secrets of the environment and then calls the caller's function, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from mlflow_adk_eval.agents.recordings import Recording
from mlflow_adk_eval.agents.traces.adk import adk_turn, calls_tools, is_turn
from mlflow_adk_eval.agents.traces.manual import STEPS, UNTRACED, manual_turn, manual_turns, record_error, records, tells
from mlflow_adk_eval.agents.traces.spans import RUN, Trace, TracedTurn, traces_of, unreadable
from mlflow_adk_eval.errors import InputError, Problem, UsageError, foreign_code, shown
from mlflow_adk_eval.evalset import models as evals
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.media import described, media_in
from mlflow_adk_eval.redact import redacted, secrets_of, without_credentials
from mlflow_adk_eval.results.outcomes import grouped
from mlflow_adk_eval.text import listed, numbered

CASE, RUN_INDEX, TURN_INDEX = "adk.eval_case_id", "adk.run_index", "adk.invocation_index"
"""The tags by which traces of this package say where they belong."""
_MAX_NAMED = 3


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
        indexes = {int(index) for trace in self.traces if (index := trace.tags.get(TURN_INDEX, "")).isdigit()}
        if missing := sorted(set(range(max(indexes, default=-1) + 1)) - indexes):
            lost = f"no trace of turn {', '.join(str(index + 1) for index in missing)}"
            raise unreadable(self.traces[0].id, f"case {self.case!r}", lost, "the traces of all turns before the last")
        problems: list[InputError] = []
        turns: list[TracedTurn] = []
        for trace in self.traces:
            try:
                turns += [replace(turn, trace_id=trace.id) for turn in _turns(trace)]
            except InputError as error:
                problems.append(error)
        if problems:
            raise all_of(problems, self.label)
        return tuple(turns)

    @property
    def _traces_steps(self) -> bool:
        """Whether a tool or a retriever has a span anywhere, so that a turn without one had no call."""
        roots = [root for trace in self.traces for root in trace.roots]
        return any(span.kind in STEPS for root in roots for span in root.walk())

    def conversation(self, turns: Sequence[TracedTurn]) -> Conversation:
        """Return what the agent did, up to the turn in which it failed.

        Args:
            turns: what `turns` returns.
        """
        failed = next((index for index, turn in enumerate(turns) if turn.error), None)
        unknown = tuple(
            entry.model_copy(update={"turn": index})
            for index, turn in enumerate(turns)
            for entry in turn.unknown
            if entry.why != UNTRACED or not self._traces_steps
        )
        actual = tuple(turn.invocation for turn in (turns if failed is None else turns[: failed + 1]))
        if failed is None:
            error = next(filter(None, (record_error(span) for trace in self.traces for span in records(trace))), "")
            states = (span.outputs.get("session_state") for span in records(self.traces[-1]))
            session_state = next((state for state in states if isinstance(state, dict)), None)
            return Conversation(actual=actual, session_state=session_state, error=error, unknown=unknown)
        error = turns[failed].error
        placed = error if error.startswith("turn ") else f"turn {failed + 1}: {error}"
        return Conversation(actual=actual, error=placed, unfinished=True, unknown=unknown)


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
    groups = grouped((conversation_key(trace), trace) for trace in traces_of(traces))
    conversations = [TracedConversation(traces=tuple(sorted(group, key=_place))) for group in groups.values()]
    return tuple(sorted(conversations, key=lambda conversation: _place(conversation.traces[0])[1:]))


def conversation_from_traces(traces: Any) -> Conversation:
    """Return what an agent did in one conversation, in order of time, and why it failed if it did.

    Args:
        traces: one trace of MLflow or several of one session, as objects, as dicts or as the frame of ``mlflow.search_traces``.

    Raises:
        InputError: if a trace does not say what was said.
        UsageError: if these are no traces, or traces of several sessions.
    """
    if not (those := traces_of(traces)):
        raise UsageError("traces: wanted at least one")
    sessions = list(dict.fromkeys(trace.session for trace in those if trace.session))
    if len(sessions) > 1:
        raise UsageError(f"traces of {len(sessions)} sessions, {listed(sessions, _MAX_NAMED)}; wanted those of one")
    runs = {conversation_key(trace) for trace in those if CASE in trace.tags}
    if len(runs) > 1:
        cases = listed(sorted({key[1] for key in runs}), _MAX_NAMED)
        raise UsageError(f"traces of {len(runs)} runs of cases, {cases}; wanted those of one")
    conversation = TracedConversation(traces=tuple(sorted(those, key=_place)))
    return conversation.conversation(conversation.turns())


def conversation_key(trace: Trace) -> tuple[str, ...]:
    """Return what all traces of one conversation have in common."""
    if CASE in trace.tags:
        return "case", trace.tags[CASE], trace.metadata.get(RUN, ""), trace.tags.get(RUN_INDEX, "0")
    return ("session", trace.session) if trace.session else ("trace", trace.id)


def _place(trace: Trace) -> tuple[int, int, str]:
    """Return where in its conversation a trace belongs."""
    index = trace.tags.get(TURN_INDEX, "") if CASE in trace.tags else ""
    start = min((root.start_ns for root in trace.roots), default=trace.time_ms * 1_000_000)
    return int(index) if index.isdigit() else 0, start, trace.id


def _turns(trace: Trace) -> list[TracedTurn]:
    if not trace.roots:
        raise unreadable(trace.id, "$.data.spans", "no span", "the spans; a search without them leaves them out")
    spans = [span for root in trace.roots for span in root.outermost(is_turn)]
    if not spans or records(trace):
        return list(manual_turns(trace))
    try:
        turns = [adk_turn(trace, span) for span in spans]
        for place, (turn, span) in enumerate(zip(turns, spans, strict=True)):
            # A failed turn may lack what the user said; where its inputs tell, as those of Strands, they are read.
            if not turn.invocation.user_content.parts and tells(span):
                turns[place] = manual_turn(trace, span)
    except InputError:
        if all(map(tells, spans)):  # what Strands says is in events, which MLflow shows as inputs and outputs
            return [manual_turn(trace, span) for span in spans]
        # What a callback or code of an agent said, no span of ADK has; but one around it may.
        if len(spans) == 1 and spans[0] not in trace.roots and not calls_tools(spans[0]):
            return list(manual_turns(trace))
        raise
    return turns


def agent_name(turns: Iterable[TracedTurn]) -> str:
    """Return the name of the agent that had the first turn of which it is known; empty where it is of none."""
    return next((turn.agent for turn in turns if turn.agent), "")


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

    def __init__(self, cases: Iterable[evals.EvalCase]) -> None:
        """Take all cases that there are."""
        self._ids: set[str] = set()
        self._of_sessions: dict[str, list[str]] = {}
        self._of_texts: dict[tuple[str, ...], list[str]] = {}
        for case in cases:
            self._ids.add(case.eval_id)
            session_id = case.session_input.session_id if case.session_input else None
            for session in dict.fromkeys((case.eval_id, session_id or case.eval_id)):
                self._of_sessions.setdefault(session, []).append(case.eval_id)
            if case.conversation:
                self._of_texts.setdefault(_texts(case.conversation), []).append(case.eval_id)

    def runs(self, read: ReadConversation) -> Iterator[tuple[str, Conversation]]:
        """Yield each case that a conversation may be of, with the conversation; if there are several, with an error in its place."""
        eval_ids = self._cases(read)
        conversation = read.conversation
        if len(eval_ids) > 1:
            named = ", ".join(map(repr, eval_ids))
            way_out = "name the cases after the session ids, or set the tag adk.eval_case_id on the traces"
            conversation = Conversation(actual=(), error=f"{read.traced.label} matches several cases, {named}; {way_out}")
        yield from ((eval_id, conversation) for eval_id in eval_ids)

    def _cases(self, read: ReadConversation) -> Sequence[str]:
        traced = read.traced
        if traced.case:
            return [traced.case] if traced.case in self._ids else []
        of_session = self._of_sessions.get(traced.session, []) if traced.session else []
        if len(of_session) == 1 or read.problem:
            return of_session
        same = self._of_texts.get(_texts(read.conversation.actual), [])
        return [eval_id for eval_id in same if eval_id in of_session] if of_session else same


def recording_of_traces(traces: Any, eval_set: evals.EvalSet | None = None) -> Recording:
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
    if not (read := [ReadConversation.of(traced) for traced in conversations_of(traces)]):
        raise UsageError("there are no traces to evaluate")
    cases = TracedCases(eval_set.eval_cases) if eval_set else None
    runs: dict[str, list[Conversation]] = {}
    unreadable: list[InputError] = []
    for one in read:
        traced = one.traced
        those = list(cases.runs(one)) if cases else [(traced.case or traced.session or traced.label, one.conversation)]
        if not those and one.problem:
            unreadable.append(one.problem)
        for eval_id, conversation in those or [(traced.label, one.conversation)]:
            runs.setdefault(eval_id, []).append(conversation)
    if unreadable:
        raise all_of(unreadable, "traces")
    name = next((one.agent for one in read if one.agent), "traces")
    return Recording({eval_id: tuple(conversations) for eval_id, conversations in runs.items()}, name=name)


def _texts(turns: Iterable[evals.Invocation]) -> tuple[str, ...]:
    return tuple(turn.user_text for turn in turns)


Redact = Callable[[str], str]


def cases_of(conversations: Iterable[TracedConversation], redact: Redact | None = None) -> tuple[evals.EvalCase, ...]:
    """Return each conversation as a case, in order of time.

    A conversation is not kept once its case is made: its traces may hold 50 MB each, and whoever yields them may load them one by one.

    Args:
        conversations: what was said and done.
        redact: what is done to every text that came from users, tools and the agent; media are left out then.

    Raises:
        InputError: with every trace that does not say what was said.
        UsageError: if `redact` raises, or returns no text.
    """
    redactor = Redactor(redact)
    cases: list[tuple[int, evals.EvalCase]] = []
    problems: list[tuple[int, InputError]] = []
    for conversation in conversations:
        # An evaluation dates its first case last, so that MLflow, which lists the newest first, keeps its order.
        order = -conversation.began if conversation.case else conversation.began
        try:
            cases.append((order, _case(conversation, redactor)))
        except InputError as error:
            problems.append((order, error.with_traceback(None)))  # the traceback holds the conversation
    if problems:
        raise all_of([error for _, error in sorted(problems, key=itemgetter(0))], "traces")
    captured: dict[str, evals.EvalCase] = {}
    for _, case in sorted(cases, key=itemgetter(0)):
        eval_id = numbered(case.eval_id, captured)  # since several may be runs of one case
        captured[eval_id] = case if eval_id == case.eval_id else case.model_copy(update={"eval_id": eval_id})
    return tuple(captured.values())


def _case(conversation: TracedConversation, redactor: Redactor) -> evals.EvalCase:
    turns = conversation.turns()
    played = conversation.conversation(turns)
    session_state = played.session_state
    if not turns:
        raise UsageError(f"{conversation.label} has no turn")
    app, user = agent_name(turns), conversation.traces[0].user
    user_id = redactor.text(user) if user else "test_user_id"  # what ADK calls the user of a case without a session
    session = evals.SessionInput(app_name=app, user_id=user_id) if app or user else None
    tags: evals.Json = {"tags": [evals.OPEN_CALLS]} if any(entry.what == "calls" for entry in played.unknown) else {}
    return evals.EvalCase(
        **tags,
        eval_id=conversation.case or conversation.session or conversation.traces[0].id,
        conversation=tuple(redactor.reference(turn.invocation) for turn in turns),
        session_input=session,
        creation_timestamp=conversation.traces[0].time_ms / 1000,
        final_session_state=redactor.json(dict(session_state)) if session_state else None,
    )


@dataclass(frozen=True, slots=True)
class Redactor:
    """Makes a reference of what an agent did, and redacts every text in it."""

    redact: Redact | None
    """The caller's function. With one, media are left out, since it could not look into them."""
    secrets: Mapping[str, str] = field(default_factory=secrets_of)

    def text(self, text: str) -> str:
        """Return a text without secrets, as the caller's function leaves it."""
        clean = redacted(without_credentials(text), self.secrets)
        if self.redact is None:
            return clean
        try:
            with foreign_code("it"):
                safe: Any = self.redact(clean)
        except Exception as error:  # the function is the user's own code: anything can go wrong
            raise UsageError(f"redact raised {type(error).__name__}; nothing was captured") from error
        if not isinstance(safe, str):
            raise UsageError(f"redact returned {shown(safe)}; wanted a text")
        return safe

    def json(self, value: Any) -> Any:
        """Return JSON with every text in it redacted; its keys stay."""
        return evals.mapped(value, lambda leaf: self.text(leaf) if isinstance(leaf, str) else leaf)

    def reference(self, turn: evals.Invocation) -> evals.Invocation:
        """Return what the agent did as a reference: without what it cost and without its instructions."""
        done: evals.InvocationEvents | evals.IntermediateData
        match turn.intermediate_data:
            case evals.InvocationEvents(invocation_events=events):
                said = [evals.InvocationEvent(author=one.author, content=self.content(one.content)) for one in events if one.content]
                done = evals.InvocationEvents(invocation_events=tuple(said))
            case evals.IntermediateData(tool_uses=calls, tool_responses=responses, intermediate_responses=texts):
                done = evals.IntermediateData(
                    tool_uses=tuple(map(self.call, calls)),
                    tool_responses=tuple(map(self.response, responses)),
                    intermediate_responses=tuple((author, tuple(map(self.part, parts))) for author, parts in texts),
                )
            case None:
                done = evals.IntermediateData()
        kept: evals.Json = {"invocation_id": turn.invocation_id, "creation_timestamp": turn.creation_timestamp}
        final = self.content(turn.final_response) if turn.final_response else None
        return evals.Invocation(user_content=self.content(turn.user_content), final_response=final, intermediate_data=done, **kept)

    def content(self, content: evals.Content) -> evals.Content:
        """Return a message with its texts redacted."""
        return evals.Content(role=content.role, parts=tuple(map(self.part, content.parts or ())))

    def part(self, part: evals.Part) -> evals.Part:
        """Return a part with its texts redacted; of a file nothing but its type, if there is a function."""
        match part:
            case evals.Part(function_call=evals.FunctionCall() as call):
                return evals.Part(function_call=self.call(call))
            case evals.Part(function_response=evals.FunctionResponse() as response):
                return evals.Part(function_response=self.response(response))
            case evals.Part(text=str(text)):
                return evals.Part(text=self.text(text), thought=part.thought)
            case _:
                return part if self.redact is None else self._without_file(part)

    def _without_file(self, part: evals.Part) -> evals.Part:
        """Return a part of which nothing but the type is left of a file, so that nobody takes it for a text, or for nothing."""
        kept: evals.Json = {}
        for name in part.model_fields_set - {"thought_signature"}:
            value = getattr(part, name)
            is_file = name in ("inline_data", "file_data") and value
            kept[name] = {"mime_type": described(value).mime_type} if is_file else self.json(value)
        return evals.Part(**kept)

    def call(self, call: evals.FunctionCall) -> evals.FunctionCall:
        """Return a call with its arguments redacted."""
        return evals.FunctionCall(**call.model_dump(include={"id", "name"}, exclude_none=True), args=self.json(call.args or {}))

    def response(self, response: evals.FunctionResponse) -> evals.FunctionResponse:
        """Return the answer of a tool with its texts redacted."""
        kept = response.model_dump(include={"id", "name"}, exclude_none=True)
        if response.parts and self.redact is None:
            kept["parts"] = response.parts
        elif response.parts:
            kept["parts"] = [{"inline_data": {"mime_type": media.mime_type}} for media in media_in(response.parts)]
        return evals.FunctionResponse(**kept, response=self.json(response.response or {}))
