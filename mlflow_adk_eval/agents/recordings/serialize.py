"""Conversations as a file or a ledger keeps them, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from mlflow_adk_eval.agents.protocol import Conversation
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.evalset import EvalCase, Invocation
from mlflow_adk_eval.evalset.conversation import Ending, Injection
from mlflow_adk_eval.evalset.digest import canonical, canonical_json
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.evalset.recording import RecordedCourse, RecordedEnding, RecordedInjection, RecordedRun, dumps_recorded, json_of
from mlflow_adk_eval.ledger import CallCache


def recorded_run(played: Conversation) -> RecordedRun:
    """Return a conversation as it is kept."""
    course = course_given(played.error, played.ending, played.injections, unfinished=played.unfinished)
    state = {} if played.session_state is None else {"session_state": plain_state(played.session_state)}
    return RecordedRun(invocations=played.actual, **state, **course)


def course_given(error: str, ending: Ending | None, injections: tuple[Injection, ...], *, unfinished: bool) -> dict[str, Any]:
    """Return what is worth keeping of a conversation's course, as arguments of a `RecordedCourse`."""
    given = {
        "error": error,
        "unfinished": unfinished,
        "ending": RecordedEnding(**asdict(ending)) if ending else None,
        "injections": tuple(RecordedInjection(**asdict(injection)) for injection in injections),
    }
    return {name: value for name, value in given.items() if value}


def conversation_of(run: RecordedRun) -> Conversation:
    """Return the conversation that was kept."""
    return Conversation(actual=run.invocations, session_state=run.session_state, **course_of(run))


def course_of(course: RecordedCourse) -> dict[str, Any]:
    """Return what was kept of a conversation's course, as arguments of a `Conversation`."""
    return {
        "error": course.error,
        "unfinished": course.unfinished,
        "ending": Ending(**_fields(course.ending)) if course.ending else None,
        "injections": tuple(Injection(**_fields(injection)) for injection in course.injections),
    }


def _fields(model: RecordedEnding | RecordedInjection) -> dict[str, Any]:
    return {name: getattr(model, name) for name in type(model).model_fields}


def plain_state(state: Mapping[str, Any]) -> Json:
    r"""Return a session's state as JSON values. It may hold anything; what JSON has no word for is kept as its text.

    >>> plain_state({"pair": (2, None), "rooms": {"hall"}, "raw": b"\xff"})
    {'pair': [2, None], 'rooms': ['hall'], 'raw': "b'\\xff'"}
    """
    return {str(key).encode("utf-8", "replace").decode(): _plain(value) for key, value in state.items()}


def _plain(value: Any) -> Any:
    try:
        return to_jsonable_python(value, serialize_unknown=True)
    except ValueError:  # of bytes that are no text, of half a surrogate pair, or of something that holds itself
        return repr(value)


def plain_invocation(invocation: Invocation) -> Invocation:
    """Return a turn as it would be read from a file: a tuple among the arguments of a tool is a list in JSON, and so on."""
    try:
        dumped = invocation.model_dump(mode="json", exclude_unset=True, fallback=json_of, warnings=False)
    except ValueError:  # as above; nobody can compare that with what an eval set expects
        return invocation
    return Invocation.model_validate(dumped)


@dataclass(frozen=True, slots=True)
class ConversationCache:
    """The conversations of one evaluation."""

    ledger: CallCache
    run_id: str
    agent: str
    """The name of the agent that has them."""
    config: EvalConfig
    """What its tools are to be, and who plays its users."""

    def get(self, case: EvalCase, run_index: int, /) -> Conversation | None:
        """Return what came of a conversation, if it is known. What another version of this package kept may have to be had again."""
        kept = self.ledger.conversation(self.run_id, self._key(case, run_index))
        try:
            return None if kept is None else conversation_of(RecordedRun.model_validate_json(kept))
        except ValidationError:
            return None

    def keep(self, case: EvalCase, run_index: int, played: Conversation, /) -> None:
        """Keep a conversation."""
        self.ledger.keep_conversation(self.run_id, self._key(case, run_index), dumps_recorded(recorded_run(played), indent=None).encode())

    def _key(self, case: EvalCase, run_index: int) -> str:
        """Return the hash, in hex, of all that a conversation depends on but the agent's version and chance."""
        environment = self.config.environment_of(case.eval_id)
        user = self.config.user_simulator_config if case.conversation is None else None
        surroundings = [canonical(settings) for settings in (environment, user) if settings is not None]
        return hashlib.sha256(canonical_json([canonical(case), run_index, self.agent, *surroundings])).hexdigest()
