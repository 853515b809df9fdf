"""What an agent did, as somebody recorded it: a recording of this package, an eval set, ADK's result file or a dict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mlflow_adk_eval.agents.protocol import Conversation
from mlflow_adk_eval.agents.recordings.serialize import conversation_of, course_of, plain_invocation
from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, shown
from mlflow_adk_eval.evalset import Content, EvalCase, EvalSet, EvalSetResult, Invocation, Part, parse_eval_set, stem_of
from mlflow_adk_eval.evalset.conversation import Origin
from mlflow_adk_eval.evalset.models import Json, Model
from mlflow_adk_eval.evalset.parse import parse, read_text
from mlflow_adk_eval.evalset.recording import RecordedSet, is_recording, parse_recorded
from mlflow_adk_eval.evalset.result import EvalCaseResult, parse_result
from mlflow_adk_eval.results.usage import JudgeUsage


class _RecordedCase(Model):
    """One case of a plain list of recordings."""

    eval_id: str
    invocations: tuple[Invocation, ...]


_INVOCATION = TypeAdapter(Invocation)
_RECORDED_CASES = TypeAdapter(tuple[_RecordedCase, ...])

_EVAL_SET_KEYS = (b'"eval_cases"', b'"evalCases"')
_RESULT_KEYS = (b'"eval_case_results"', b'"evalCaseResults"')
_BEGINNING = 10_000
_TEXT_FIELDS = {"user_content": "user", "userContent": "user", "final_response": "model", "finalResponse": "model"}
"""What may be a text in a recorded dict, and whose text it is."""
_NO_INFERENCE = "ADK recorded no invocation of this case, so its inference failed; ADK does not keep why"


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded conversations, by eval id and run."""

    runs: Mapping[str, tuple[Conversation, ...]]
    name: str = "recording"
    origin: Origin | None = None
    """Where it comes from; ``None``: it does not say."""
    simulating: JudgeUsage | None = field(default=None, compare=False)
    """What a model that played users took; ``None`` where none did, or nobody knows."""

    def num_runs(self, eval_ids: Iterable[str]) -> int:
        """Return how often the named cases were recorded, or were to be; at least once."""
        recorded = max((len(self.runs.get(eval_id, ())) for eval_id in eval_ids), default=1) or 1
        return max(recorded, self.origin.num_runs) if self.origin else recorded

    async def play(self, case: EvalCase, run_index: int) -> Conversation:
        """Return the recorded conversation, or the error that there is none."""
        runs = self.runs.get(case.eval_id, ())
        if run_index < len(runs):
            return runs[run_index]
        wanted = f"run {run_index + 1} of case" if runs else "case"
        return Conversation(actual=(), error=f"the recording does not hold {wanted} {case.eval_id!r}")


Recorded = str | Path | EvalSet | EvalSetResult | Recording | Mapping[str, Sequence[Invocation | Json | str]]
"""Whatever `load_recording` takes."""


def load_recording(recorded: Recorded) -> Recording:
    """Return what was recorded by this package, in an eval set, in a result file of ADK or in a dict of invocations by eval id.

    Several entries for one id are its runs.

    Raises:
        EvalSetError: with every problem of the recording.
        UsageError: if it is nothing of the kind.
    """
    given: Any = recorded
    if isinstance(given, Recording):
        return given
    if isinstance(given, str | Path):
        return _from_text(read_text(Path(given)), str(given), stem_of(Path(given)))
    if isinstance(given, EvalSet):
        return _from_eval_set(given)
    if isinstance(given, EvalSetResult):
        return _from_result(given)
    if isinstance(given, Mapping):
        return Recording({eval_id: (Conversation(actual=_invocations(eval_id, turns)),) for eval_id, turns in given.items()})
    kinds = "an eval set, a result of ADK, a Recording, a path of any of these or a dict of invocations by eval id"
    raise UsageError(f"a recording is {kinds}, not {shown(given)}")


def _from_text(text: bytes, source: str, stem: str) -> Recording:
    if is_recording(text):
        return _from_recorded(parse_recorded(text, source))
    start = text.lstrip()[:1]
    if start == b'"' or (start == b"{" and any(key in text for key in _RESULT_KEYS) and not any(key in text for key in _EVAL_SET_KEYS)):
        return _from_result(parse_result(text, source))
    if start == b"[" and b'"invocations"' in text[:_BEGINNING]:
        return _by_id((case.eval_id, Conversation(actual=case.invocations)) for case in parse(_RECORDED_CASES, text, source))
    return _from_eval_set(parse_eval_set(text, source, stem=stem))


def _from_recorded(recorded: RecordedSet) -> Recording:
    origin = Origin(
        agent=recorded.agent,
        agent_version=recorded.agent_version,
        recorded_at=recorded.recorded_at,
        eval_set_id=recorded.eval_set_id,
        eval_set_digest=recorded.eval_set_digest,
        case_digests={case.eval_id: case.digest for case in recorded.cases if case.digest},
        num_runs=recorded.num_runs,
    )
    return Recording({case.eval_id: tuple(map(conversation_of, case.runs)) for case in recorded.cases}, origin=origin)


def _from_eval_set(eval_set: EvalSet) -> Recording:
    return _by_id(
        (case.eval_id, Conversation(actual=case.conversation or (), session_state=case.final_session_state or None))
        for case in eval_set.eval_cases
    )


def _from_result(result: EvalSetResult) -> Recording:
    return _by_id((case.eval_id, _played(case)) for case in result.eval_case_results)


def _played(case: EvalCaseResult) -> Conversation:
    """Return what a case of a result did; its state without what is ADK's own or lives only through a turn."""
    state = (case.session_details or {}).get("state")
    if case.adk_eval is not None:  # this package wrote it
        return Conversation(actual=case.actual, session_state=state, **course_of(case.adk_eval))
    if isinstance(state, dict):
        state = {key: value for key, value in state.items() if not key.startswith(("__", "temp:"))}
    return Conversation(actual=case.actual, session_state=state, error="" if case.actual else _NO_INFERENCE)


def _by_id(recorded: Iterable[tuple[str, Conversation]]) -> Recording:
    runs: dict[str, list[Conversation]] = {}
    for eval_id, played in recorded:
        runs.setdefault(eval_id, []).append(played)
    return Recording({eval_id: tuple(played) for eval_id, played in runs.items()})


def _invocations(eval_id: str, turns: Any) -> tuple[Invocation, ...]:
    source = f"recording of case {eval_id!r}"
    if isinstance(turns, str | Mapping) or not isinstance(turns, Sequence):
        raise EvalSetError(source, [Problem("$", shown(turns), "a list of invocations")])
    return tuple(invocation_of(turn, f"{source}, turn {number}") for number, turn in enumerate(turns, start=1))


def invocation_of(answer: Any, source: str, *, user: Content | None = None) -> Invocation:
    """Return what an agent answered to a turn as an invocation: a text, an invocation, or one as a dict.

    Args:
        answer: the answer; in a dict the user's message may be left out, and messages may be texts.
        source: what errors call it.
        user: the user's message.

    Raises:
        EvalSetError: with every problem of the answer.
    """
    said = user or Content(role="user", parts=())
    match answer:
        case Invocation():
            return plain_invocation(answer)
        case str():
            return Invocation(user_content=said, final_response=_message("model", answer))
        case None:
            return Invocation(user_content=said)
        case Mapping():
            given = {key: _message(role, value) if (role := _TEXT_FIELDS.get(key)) else value for key, value in answer.items()}
            spoken = {"user_content", "userContent"} & set(given)
            return plain_invocation(parse(_INVOCATION, given if spoken else {"user_content": said} | given, source))
        case _:
            raise EvalSetError(source, [Problem("$", shown(answer), "a text, an Invocation or a dict of one")])


def _message(role: str, value: Any) -> Any:
    return Content(role=role, parts=(Part(text=value),)) if isinstance(value, str) else value
