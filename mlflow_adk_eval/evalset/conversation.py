"""Recorded conversations: where they come from, how each of them ended, and the file that holds them.

A recording is this package's own format: all that an agent did on an eval set, case by case and run by run, with what ADK's eval sets
have no place for (`ConversationOutcome`: why a conversation ended, and which tool calls the tool environment answered). `RecordedSet` is
the file; `parse_recorded` and `dumps_recorded` read and write it; `agents.recordings` makes an agent of it. Results in ADK's format carry
the same `ConversationOutcome` beside each case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

from mlflow_adk_eval.errors import EvalSetError, Problem, shown
from mlflow_adk_eval.evalset.models import Invocation, Json, Model
from mlflow_adk_eval.evalset.parse import parse

SCHEMA: Literal[1] = 1
"""The version of the format that this module writes and reads."""
_MARK = re.compile(rb'"adk_eval_recording"\s*:\s*([^\s,}]*)')
"""The key that marks a file as a recording. Within a text, its quotes would be escaped."""


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
InjectionKind = Literal["error", "response", "latency"]


class Ending(Model, extra="forbid"):
    """Why a conversation with a simulated user ended."""

    reason: EndReason
    detail: str = ""
    """What the user gave as its reason, the limit that was reached, or what went wrong."""

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
        return f"injected {self.kind}" + (f" after {self.latency_s:g} s" if self.latency_s else "")


class ConversationOutcome(Model):
    """How a conversation went, besides what was said in it."""

    error: str = ""
    """Why it broke off; empty where it did not."""
    unfinished: bool = False
    """Whether its last invocation is the one in which the agent failed."""
    ending: Ending | None = None
    """Absent where no user was simulated."""
    injections: tuple[Injection, ...] = ()
    from_ledger: bool = False
    """Whether it was had before the evaluation was resumed, and the ledger held it."""


def outcome_of(conversation: Any) -> dict[str, Any]:
    """Return the fields of a `ConversationOutcome` that say something, from anything that has them, such as a `Conversation`."""
    found = {name: getattr(conversation, name) for name in ConversationOutcome.model_fields}
    return {name: value for name, value in found.items() if value}


class RecordedRun(ConversationOutcome):
    """One conversation."""

    invocations: tuple[Invocation, ...]
    session_state: Json | None = None
    """The state of the session after the last turn; absent where it is not known."""


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


_RECORDED = TypeAdapter(RecordedSet)


def is_recording(text: bytes) -> bool:
    """Whether a JSON text says that it is a recording."""
    return _MARK.search(text) is not None


def parse_recorded(text: bytes, source: str) -> RecordedSet:
    """Return the recording in `text`.

    Raises:
        EvalSetError: with every problem of the text, or if it is in another version of the format.
    """
    mark = _MARK.search(text)
    if mark and mark[1].isdigit() and int(mark[1]) != SCHEMA:
        wanted = f"{SCHEMA}, the version of the format that this version of mlflow-adk-eval reads"
        raise EvalSetError(source, [Problem("$.adk_eval_recording", mark[1].decode(), wanted)])
    found = parse(_RECORDED, text, source)
    problems = list(_repeated(found.cases))
    if problems:
        raise EvalSetError(source, problems)
    return found


def _repeated(cases: tuple[RecordedCase, ...]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, case in enumerate(cases):
        earlier = first.setdefault(case.eval_id, index)
        if earlier != index:
            found = f"{shown(case.eval_id)}, which is $.cases[{earlier}].eval_id too"
            yield Problem(f"$.cases[{index}].eval_id", found, "each case once, with all of its runs")


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
