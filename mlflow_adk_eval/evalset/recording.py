"""Recorded conversations as a file: all that an agent did on an eval set, and how each conversation ended."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import TypeAdapter

from mlflow_adk_eval.errors import EvalSetError, Problem, shown
from mlflow_adk_eval.evalset.conversation import EndReason, InjectionKind
from mlflow_adk_eval.evalset.models import Invocation, Json, Model
from mlflow_adk_eval.evalset.parse import parse

SCHEMA: Literal[1] = 1
"""The version of the format that this module writes and reads."""
_MARK = re.compile(rb'"adk_eval_recording"\s*:\s*([^\s,}]*)')
"""The key by which a file says that it is a recording. Within a text, its quotes would be escaped."""


class RecordedEnding(Model):
    """Why a conversation with a simulated user ended; see `Ending`."""

    reason: EndReason
    detail: str = ""


class RecordedInjection(Model):
    """A tool call that the tool environment answered or delayed; see `Injection`."""

    invocation_index: int
    tool: str
    kind: InjectionKind
    latency_s: float = 0.0
    call_index: int | None = None


class RecordedCourse(Model):
    """The course of a conversation, besides what was said in it."""

    error: str = ""
    """Why it broke off; empty where it did not."""
    unfinished: bool = False
    """Whether its last invocation is the one in which the agent failed."""
    ending: RecordedEnding | None = None
    """Absent where the user's turns were written."""
    injections: tuple[RecordedInjection, ...] = ()


class RecordedRun(RecordedCourse):
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
