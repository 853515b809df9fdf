"""Recorded conversations: where they come from, how each of them ended, and the files that hold them, ours and ADK's.

A recording is this package's own format: all that an agent did on an eval set, case by case and run by run, with what ADK's eval sets
have no place for (`ConversationOutcome`: why a conversation ended, and which tool calls the tool environment answered). `RecordedSet` is
the file; `parse_recorded` and `dumps_recorded` read and write it; `agents.recordings` makes an agent of it.

ADK's result files say what an agent did in an evaluation, and what ADK's metrics made of it. `parse_result` reads files of ADK and of this
package; `dumps_result` writes what ``adk web`` lists. What ADK's format has no place for, the same `ConversationOutcome`, is beside each case
as ``adk_eval``, a field that ADK ignores.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from mlflow_adk_eval.errors import EvalSetError, Problem
from mlflow_adk_eval.evalset.adk_form import move_strangers
from mlflow_adk_eval.evalset.model_errors import failed_turn, told_errors
from mlflow_adk_eval.evalset.models import FunctionCall, Invocation, Json, Model, mapped, unwanted
from mlflow_adk_eval.evalset.observation import Observation, Unknown
from mlflow_adk_eval.evalset.parse import Steps, decode, parse, repeated
from mlflow_adk_eval.redact import redacted, secrets_of

SCHEMA: Literal[1] = 1
"""The version of the format that this module writes and reads."""

_MARK = re.compile(rb'"adk_eval_recording"\s*:\s*([^\s,}]*)')
"""The key that marks a file as a recording. Within a text, its quotes would be escaped."""
_RESULT_KEYS = (b'"eval_case_results"', b'"evalCaseResults"')
_EVAL_SET_KEYS = (b'"eval_cases"', b'"evalCases"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which agent had these conversations, when, and on which eval set. What is not known is empty."""

    agent: str = ""
    """The name of the agent."""
    agent_version: str = ""
    """Which version of it: a LoggedModel of MLflow, or a commit."""
    recorded_at: str = ""
    """When it began, as ISO 8601 in UTC."""
    eval_set_id: str = ""
    eval_set_digest: str = ""
    case_digests: Mapping[str, str] = field(default_factory=dict[str, str])
    """The hash of each case as it was then, by eval id."""
    num_runs: int = 1
    """How many runs of each case there were to be."""


EndReason = Literal["goal", "limit", "error"]
"""*goal*: the simulated user had nothing left to say; *limit*: it had sent as many messages as it may; *error*: agent or user failed."""
InjectionKind = Literal["error", "response", "latency", "replayed", "replayed_model", "callback"]
"""*replayed*: the answer of a recorded call; *replayed_model*: that of a recorded request to a model, where `Injection.tool` is the agent;
*callback*: in a replay, the agent's own callback answered in the place of its tool."""
IN_THE_TOOLS_PLACE: tuple[InjectionKind, ...] = ("error", "response")
"""What the tool environment answered itself, so that no tool did anything."""
REPLAYED: tuple[InjectionKind, ...] = ("replayed", "replayed_model", "callback")
"""What the tool environment had no part in."""
STEERING = frozenset({"transfer_to_agent", "exit_loop", "set_model_response", "load_artifacts"})
"""Tools of ADK that only steer the conversation, or read what the session itself holds. They are never replayed."""


class Ending(Model, extra="forbid"):
    """Why a conversation with a simulated user ended."""

    reason: EndReason
    detail: str = ""
    """The simulated user's reason, the limit that was hit, or the error."""

    def __str__(self) -> str:
        """Return it as a clause: ``limit: 20 turns``."""
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class Injection(Model, extra="forbid"):
    """A tool call that the tool environment answered or delayed."""

    invocation_index: int
    """The turn, counted from 0."""
    tool: str
    kind: InjectionKind
    """*latency*: the call was delayed only, and the tool itself answered."""
    latency_s: float = 0.0
    """How long it was delayed, in seconds."""
    call_index: int | None = None
    """Which call of this tool in the turn it was, counted from 0; ``None``: not known."""

    def __str__(self) -> str:
        """Return it in a few words: ``injected error after 2 s``."""
        if self.kind == "latency":
            return f"delayed by {self.latency_s:g} s"
        if self.kind in REPLAYED:
            return "answered by a callback" if self.kind == "callback" else "replayed"
        return f"injected {self.kind}" + (f" after {self.latency_s:g} s" if self.latency_s else "")


class InnerCall(Model, extra="forbid"):
    """A tool call of an agent that is itself a tool. The events of a turn report only calls from outside of such agents."""

    turn: int
    """Counted from 0."""
    after: int
    """How many calls of the turn's events it came after."""
    agent: str = ""
    """Which agent called."""
    tool: str
    args: Json = Field(default_factory=dict)
    unseen: bool = False
    """Whether it is the call of an agent whose own calls could not be seen."""


class RecordedError(Model, extra="forbid"):
    """What a tool or a model raised."""

    type: str
    """The class, with its module unless that is ``builtins``: ``sqlite3.OperationalError``."""
    message: str = ""


class _Recorded(Model, extra="forbid"):
    """A call, and what came of it."""

    turn: int = Field(ge=0)
    """Counted from 0."""
    agent: str = ""
    """Which agent called; empty where it is not known."""
    error: RecordedError | None = None
    """What was raised instead of an answer, or after some."""
    duration_s: float = Field(default=0.0, ge=0)

    @property
    def untimed(self) -> tuple[Observation, ...]:
        """The observation that is missing if nobody knows how long the call took."""
        if "duration_s" in self.model_fields_set:
            return ()
        return ("timing",)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.error is None and self.model_fields_set.isdisjoint(("answer", "answers")):
            raise unwanted("neither an answer nor an error", "one of them", of=("answer", "answers", "error"))
        return self


_READ_FROM_TURNS: tuple[Observation, ...] = ("state", "inner_calls")


class SessionChange(Model, extra="forbid"):
    """What a tool call did to the session, besides what it answered."""

    actions: Json = Field(default_factory=dict)
    """What it changed in ADK's ``EventActions``, such as ``state_delta``; only what it changed."""
    state_in_place: Json = Field(default_factory=dict)
    """Entries of the state whose value it changed without setting it, so that no ``state_delta`` says so."""
    artifacts: dict[str, Json] = Field(default_factory=dict)
    """The artifacts that it saved, by file name, each as a part of ADK."""


class CallChange(SessionChange):
    """What one tool call of a turn did to the session, as it was seen while the tool ran.

    A call without a `CallChange` was not seen: nobody knows what it changed. One that changed nothing has an empty one.
    """

    turn: int = Field(ge=0)
    """Counted from 0."""
    tool: str
    call_id: str = ""
    """The id of the call in the events of the turn. If several have the same, these are in the order in which they ended."""
    error: RecordedError | None = None
    """What the tool raised."""
    duration_s: float = Field(default=0.0, ge=0)
    lost: bool = False
    """Whether it changed something that was not kept."""


class RecordedCall(SessionChange, _Recorded):
    """A tool call: how it was answered, and what it did to the session."""

    tool: str
    args: Json = Field(default_factory=dict)
    answer: Any = None
    """What the tool returned, before ADK makes an object of it."""
    inner: tuple[InnerCall, ...] = ()
    """What agents called that ran within it, as a function may run one. These calls were answered with it."""
    unknown: tuple[Literal["state", "inner_calls"], ...] = ()
    """What is not known of it: what it changed in the session, what agents called within it."""

    @property
    def unseen(self) -> tuple[Observation, ...]:
        """What is not known of the call, also of one that was kept before anybody asked."""
        unknown: tuple[Observation, ...] = self.unknown
        if not ("unknown" in self.model_fields_set or self.agent or self.actions):
            unknown = _READ_FROM_TURNS  # it was read from what a conversation said, which had nothing else
        return (*unknown, *self.untimed)


class RecordedModelCall(_Recorded):
    """A request of an agent to its model, and the answers."""

    request: str
    """The hash, in hex, of all of the request that the answer depends on."""
    answers: tuple[Json, ...] = ()
    """ADK's ``LlmResponse`` objects; several where the model streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One conversation with an agent: what it did, turn by turn, and how it ended."""

    actual: Sequence[Invocation]
    """One per turn that the agent finished, silent ones included; then perhaps the one in which it failed."""
    session_state: Mapping[str, Any] | None = None
    """The state after the last turn; ``None`` where it is not known."""
    error: str = ""
    """Why the conversation broke off; empty where it did not."""
    unfinished: bool = False
    """Whether the last turn is the one in which the agent failed, kept for what happened in it."""
    ending: Ending | None = None
    """Why a conversation with a simulated user ended; ``None`` where the case has the user's messages."""
    changes: tuple[CallChange, ...] = ()
    """What tool calls did to the session, as far as that was seen."""
    injections: tuple[Injection, ...] = ()
    """The tool calls that the tool environment answered or delayed, in order."""
    inner_calls: tuple[InnerCall, ...] | None = None
    """The tool calls of agents that are tools, in the order in which they began; ``None``: not known."""
    unknown: tuple[Unknown, ...] = ()
    """What its source does not know of it, which is not the same as none."""
    from_ledger: bool = False
    """Whether it was had before the evaluation was resumed, and the ledger held it."""
    calls: tuple[RecordedCall, ...] = ()
    """All tool calls in the order in which they ended, those within agents that are tools included; empty unless they were recorded."""
    model_calls: tuple[RecordedModelCall, ...] = ()
    """All requests to models in the order in which they ended; empty unless they were recorded."""
    listings: Mapping[str, tuple[Json, ...]] = field(default_factory=dict[str, tuple[Json, ...]])
    """The declarations of the tools that a server listed, by toolset."""


class ConversationOutcome(Model):
    """How a conversation went, besides what was said in it."""

    error: str = ""
    """Why it broke off; empty where it did not."""
    unfinished: bool = False
    """Whether its last invocation is the one in which the agent failed."""
    ending: Ending | None = None
    """Absent where no user was simulated."""
    changes: tuple[CallChange, ...] = ()
    """What tool calls did to the session, as far as that was seen."""
    injections: tuple[Injection, ...] = ()
    inner_calls: tuple[InnerCall, ...] | None = None
    """Absent where they are not known."""
    unknown: tuple[Unknown, ...] = ()
    """What the source of the conversation does not know of it."""
    from_ledger: bool = False
    """Whether it was had before the evaluation was resumed, and the ledger held it."""


def outcome_of(conversation: Any) -> dict[str, Any]:
    """Return the fields of a `ConversationOutcome` that say something, from anything that has them, such as a `Conversation`."""
    found = {name: (getattr(conversation, name), field.default) for name, field in ConversationOutcome.model_fields.items()}
    return {name: value for name, (value, silent) in found.items() if value != silent}


def ended_by_model(conversation: Conversation) -> Conversation:
    """Return a conversation that ends in the first turn in which a model's error had the last word, as one ends in which a model raises.

    What was said afterwards belongs to another conversation than the one that was to be judged.
    """
    failed = failed_turn(conversation.actual)
    if failed is None:
        return conversation
    index, error = failed
    is_last = index == len(conversation.actual) - 1
    if conversation.error and conversation.unfinished and is_last:  # which says so already, or what came of it
        return conversation
    reason = f"turn {index + 1}: {redacted(error, secrets_of())}"
    return replace(
        conversation,
        actual=tuple(conversation.actual[: index + 1]),
        error=reason,
        unfinished=True,
        session_state=None,
        ending=Ending(reason="error", detail=reason) if conversation.ending else None,
    )


class Turns(Protocol):
    """Whatever has what an agent did in a case, and what was expected of it."""

    @property
    def actual(self) -> Sequence[Invocation]:
        """The agent's turns."""
        ...

    @property
    def expected(self) -> Sequence[Invocation] | None:
        """What was written down beforehand; ``None`` where nothing was."""
        ...


class TurnPair:
    """One turn: what was said and called in it, and what was expected.

    >>> from types import SimpleNamespace
    >>> case = SimpleNamespace(actual=[Invocation.model_validate({"user_content": {"parts": [{"text": "hello"}]}})], expected=None)
    >>> TurnPair(case, 0).user_text, TurnPair(case, 0).answer, TurnPair(case, 1).actual
    ('hello', '', None)
    """

    __slots__ = ("actual", "answer", "expected", "expected_answer", "user_text")

    def __init__(self, case: Turns, index: int) -> None:
        """Take the case and the turn, counted from 0."""
        actual, expected = case.actual, case.expected or ()
        self.actual = actual[index] if index < len(actual) else None
        """What took place; ``None`` where the agent did not get here."""
        self.expected = expected[index] if index < len(expected) else None
        """What was to take place; ``None`` where nothing was written down."""
        self.answer = self.actual.shown_answer if self.actual else ""
        """The agent's answer, with media as their types; empty where it did not answer."""
        self.expected_answer = self.expected.shown_answer if self.expected else ""
        """What it was to answer; empty where that is not said."""
        said = self.actual.user_text if self.actual else ""
        self.user_text = said or (self.expected.user_text if self.expected else "")
        """What the user said; where a recording does not say, what was written down."""

    @property
    def errors(self) -> list[str]:
        """The errors of models in the turn, with what came of each."""
        return told_errors(self.actual) if self.actual else []

    @property
    def calls(self) -> list[FunctionCall]:
        """What it called."""
        return self.actual.tool_calls if self.actual else []

    @property
    def expected_calls(self) -> list[FunctionCall]:
        """What it was to call."""
        return self.expected.tool_calls if self.expected else []


class RecordedRun(ConversationOutcome):
    """One conversation."""

    invocations: tuple[Invocation, ...]
    session_state: Json | None = None
    """The state of the session after the last turn; absent where it is not known."""
    calls: tuple[RecordedCall, ...] = ()
    model_calls: tuple[RecordedModelCall, ...] = ()
    listings: dict[str, tuple[Json, ...]] = Field(default_factory=dict)


WORLD = ("calls", "model_calls", "listings")
"""What of a conversation is its world: what tools and models answered."""


def world_of(run: Any) -> dict[str, Any]:
    """Return the world of a conversation, as far as there is any, from anything that has it."""
    return {name: value for name in WORLD if (value := getattr(run, name, None))}


def conversation_of(run: RecordedRun) -> Conversation:
    """Return the conversation that was kept."""
    return Conversation(actual=run.invocations, session_state=run.session_state, **world_of(run), **outcome_of(run))


class RecordedCase(Model):
    """All conversations on one case."""

    eval_id: str
    digest: str = ""
    """The hash of the case as it was then; empty where it is not known."""
    runs: tuple[RecordedRun, ...]


class RecordedSet(Model):
    """A recording, as its file has it."""

    adk_eval_recording: Literal[1] = SCHEMA
    eval_set_id: str = ""
    eval_set_digest: str = ""
    agent: str = ""
    agent_version: str = ""
    """A LoggedModel of MLflow, or a commit; empty where it is not known."""
    recorded_at: str = ""
    """When it began, as ISO 8601."""
    num_runs: int = 1
    cases: tuple[RecordedCase, ...]


def is_recording(text: bytes) -> bool:
    """Whether a JSON text says that it is a recording."""
    return _MARK.search(text) is not None


def is_result(text: bytes) -> bool:
    """Whether a JSON text is a result of ADK, which old versions of it wrote as JSON within a JSON string."""
    start = text.lstrip()[:1]
    return start == b'"' or (start == b"{" and any(key in text for key in _RESULT_KEYS) and not any(key in text for key in _EVAL_SET_KEYS))


def parse_recorded(text: bytes, source: str) -> RecordedSet:
    """Return the recording in `text`.

    Raises:
        EvalSetError: with every problem of the text, or if it is in another version of the format.
    """
    mark = _MARK.search(text)
    if mark and mark[1].isdigit() and int(mark[1]) != SCHEMA:
        wanted = f"{SCHEMA}, the only format version that this version of mlflow-adk-eval reads"
        raise EvalSetError(source, [Problem("$.adk_eval_recording", mark[1].decode(), wanted)])
    recording = parse(RecordedSet, text, source)
    if problems := repeated([case.eval_id for case in recording.cases], "$.cases[{}].eval_id", "each case once, with all its runs"):
        raise EvalSetError(source, problems)
    return recording


def dumps_recorded(recorded: RecordedSet | RecordedRun, *, indent: int | None = 2) -> str:
    """Return a recording as JSON text. Numbers that JSON lacks are written as Python does: ``NaN``, ``Infinity``."""
    try:
        return recorded.model_dump_json(indent=indent, exclude_unset=True, fallback=json_of, warnings=False)
    except ValueError:  # half of a surrogate pair, which some tools return, is no text in UTF-8
        dumped = recorded.model_dump(exclude_unset=True, warnings=False)
        return json.dumps(dumped, ensure_ascii=False, indent=indent, default=json_of).encode("utf-8", "replace").decode()


def json_of(value: Any) -> Any:
    """Return what stands in JSON for an object that it does not know: the values of one of numpy's, else its text."""
    plain = getattr(value, "tolist", None)
    return plain() if callable(plain) else str(value)


def by_call(injections: Iterable[Injection], turn: int, tools: Sequence[str]) -> list[Injection | None]:
    """Return for each call of a turn what was done to it, as far as that can be told.

    Args:
        injections: all of the conversation.
        turn: the turn, counted from 0.
        tools: the names of the tools that were called, in order.

    >>> first = Injection(invocation_index=0, tool="book", kind="error", call_index=0)
    >>> [found is first for found in by_call([first], 0, ["find", "book", "book"])]
    [False, True, False]
    """
    here = [injection for injection in injections if injection.invocation_index == turn]
    known = {(found.tool, found.call_index): found for found in here if found.call_index is not None}
    for tool in dict.fromkeys(found.tool for found in here if found.call_index is None):
        silent = [found for found in here if found.tool == tool and found.call_index is None]
        if len(silent) == tools.count(tool):  # only then each call is one of them
            known |= {(tool, index): found for index, found in enumerate(silent)}
    numbered = ((tool, tools[:place].count(tool)) for place, tool in enumerate(tools))
    return [known.get(call) for call in numbered]


PASSED, FAILED, NOT_EVALUATED, INFORMATIONAL = 1, 2, 3, 4
"""ADK's statuses, which are bare integers in its files."""
Status = Annotated[int, Field(ge=PASSED, le=INFORMATIONAL)]


class MetricResult(Model):
    """One metric's score, over a case or over one of its invocations."""

    metric_name: str
    threshold: float | None = None
    criterion: Json | None = None
    custom_function_path: str | None = None
    score: float | None = None
    eval_status: Status
    details: Json | None = None


class InvocationResult(Model):
    """One turn with its metrics."""

    actual_invocation: Invocation
    expected_invocation: Invocation | None = None
    eval_metric_results: tuple[MetricResult, ...] = ()


class EvalCaseResult(Model):
    """One case of a result file."""

    eval_set_file: str | None = None
    eval_set_id: str = ""
    eval_id: str = ""
    final_eval_status: Status
    eval_metric_results: Any = None
    overall_eval_metric_results: tuple[MetricResult, ...] = ()
    eval_metric_result_per_invocation: tuple[InvocationResult, ...] = ()
    session_id: str = ""
    session_details: Json | None = None
    user_id: str | None = None
    adk_eval: ConversationOutcome | None = None
    """What ADK's format has no place for, in results of this package; ADK ignores it."""

    @property
    def actual(self) -> tuple[Invocation, ...]:
        """What the agent did."""
        return tuple(result.actual_invocation for result in self.eval_metric_result_per_invocation)


class EvalSetResult(Model):
    """A result file of ADK: one entry per case and run."""

    eval_set_result_id: str
    eval_set_result_name: str | None = None
    eval_set_id: str
    eval_case_results: tuple[EvalCaseResult, ...] = ()
    creation_timestamp: float = 0.0


def parse_result(text: bytes, source: str) -> EvalSetResult:
    """Return the result in `text`, which may be JSON within a JSON string as old versions of ADK wrote it.

    Raises:
        EvalSetError: with every problem of the text.
    """
    inner = decode(text, source) if text.lstrip()[:1] == b'"' else text
    return parse(EvalSetResult, inner.encode() if isinstance(inner, str) else inner, source)


def dumps_result(result: EvalSetResult) -> str:
    """Return a result as ADK reads and writes it: nulls included, no number that is not finite, what ADK refuses in a note."""
    dumped = result.model_dump(mode="json", exclude_unset=True)
    for model, case in zip(result.eval_case_results, dumped.get("eval_case_results", ()), strict=False):
        move_strangers(_turns_of(model), case)
        for required, empty in _REQUIRED_BY_ADK.items():
            case.setdefault(required, empty)
    finite = mapped(dumped, lambda leaf: None if isinstance(leaf, float) and not math.isfinite(leaf) else leaf)
    text = json.dumps(finite, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    return text.encode("utf-8", "replace").decode()


def _turns_of(case: EvalCaseResult) -> Iterator[tuple[Invocation, Steps]]:
    for index, result in enumerate(case.eval_metric_result_per_invocation):
        at: Steps = ("eval_metric_result_per_invocation", index)
        yield result.actual_invocation, (*at, "actual_invocation")
        if result.expected_invocation is not None:
            yield result.expected_invocation, (*at, "expected_invocation")


_REQUIRED_BY_ADK: Json = {"overall_eval_metric_results": [], "eval_metric_result_per_invocation": [], "session_id": ""}
