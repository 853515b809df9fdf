"""Recorded conversations as an agent: what somebody's agent did before, judged as if it happened now.

`load_recording` reads a recording of this package, an eval set whose invocations are what the agent did, ADK's result file, or a dict of
invocations by eval id, and returns a `Recording`: an `Agent` that returns the conversation it holds for a case and run. A report becomes a
recording by `recording_of_report`, and `save_recording` writes it as a file. `ConversationCache` keeps the conversations of a run that
is under way in the ledger, so that a resumed run does not have them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json, to_jsonable_python

from mlflow_adk_eval.agents.protocol import Conversation
from mlflow_adk_eval.agents.turn_log import invocation_of
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, shown
from mlflow_adk_eval.evalset import EvalCase, EvalSet, EvalSetResult, Invocation, eval_set_digest, parse_eval_set, stem_of
from mlflow_adk_eval.evalset.conversation import (
    SCHEMA,
    Origin,
    RecordedCase,
    RecordedRun,
    RecordedSet,
    dumps_recorded,
    is_recording,
    outcome_of,
    parse_recorded,
)
from mlflow_adk_eval.evalset.digest import canonical, canonical_json
from mlflow_adk_eval.evalset.models import Json, Model
from mlflow_adk_eval.evalset.parse import parse, read_text
from mlflow_adk_eval.evalset.result import EvalCaseResult, parse_result
from mlflow_adk_eval.ledger import CallCache
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.usage import JudgeUsage


class _ListedCase(Model):
    """One case of a plain list of recorded cases."""

    eval_id: str
    invocations: tuple[Invocation, ...]


_LISTED_CASES = TypeAdapter(tuple[_ListedCase, ...])
_EVAL_SET_KEYS = (b'"eval_cases"', b'"evalCases"')
_RESULT_KEYS = (b'"eval_case_results"', b'"evalCaseResults"')
_BEGINNING = 10_000
_NO_INFERENCE = "ADK recorded no invocation of this case, so its inference failed; ADK does not keep why"
NOT_HAD = "the recording was broken off before this conversation ended"


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded conversations, by eval id and run."""

    runs: Mapping[str, tuple[Conversation, ...]]
    name: str = "recording"
    origin: Origin | None = None
    """Where it comes from; ``None``: it does not say."""
    simulating: JudgeUsage | None = field(default=None, compare=False)
    """What a model that simulated users took; ``None`` where none did, or it is not known."""

    def num_runs(self, eval_ids: Iterable[str]) -> int:
        """Return how many runs of the named cases there are, or were to be; at least one."""
        recorded = max((len(self.runs.get(eval_id, ())) for eval_id in eval_ids), default=1) or 1
        return max(recorded, self.origin.num_runs) if self.origin else recorded

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:
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
        return _by_id((case.eval_id, Conversation(actual=case.invocations)) for case in parse(_LISTED_CASES, text, source))
    return _from_eval_set(parse_eval_set(text, source, stem=stem))


def _from_recorded(recorded: RecordedSet) -> Recording:
    names = ("agent", "agent_version", "recorded_at", "eval_set_id", "eval_set_digest", "num_runs")
    digests = {case.eval_id: case.digest for case in recorded.cases if case.digest}
    origin = Origin(**{name: getattr(recorded, name) for name in names}, case_digests=digests)
    return Recording({case.eval_id: tuple(map(conversation_of, case.runs)) for case in recorded.cases}, origin=origin)


def _from_eval_set(eval_set: EvalSet) -> Recording:
    return _by_id(
        (case.eval_id, Conversation(actual=case.conversation or (), session_state=case.final_session_state or None))
        for case in eval_set.eval_cases
    )


def _from_result(result: EvalSetResult) -> Recording:
    return _by_id((case.eval_id, _of_result(case)) for case in result.eval_case_results)


def _of_result(case: EvalCaseResult) -> Conversation:
    """Return the conversation of a case of a result; its state without what is ADK's own or lives only through a turn."""
    state = (case.session_details or {}).get("state")
    if case.adk_eval is not None:  # this package wrote it
        return Conversation(actual=case.actual, session_state=state, **outcome_of(case.adk_eval))
    if isinstance(state, dict):
        state = {key: value for key, value in state.items() if not key.startswith(("__", "temp:"))}
    return Conversation(actual=case.actual, session_state=state, error="" if case.actual else _NO_INFERENCE)


def _by_id(conversations: Iterable[tuple[str, Conversation]]) -> Recording:
    runs: dict[str, tuple[Conversation, ...]] = {}
    for eval_id, conversation in conversations:
        runs[eval_id] = (*runs.get(eval_id, ()), conversation)
    return Recording(runs)


def _invocations(eval_id: str, turns: Any) -> tuple[Invocation, ...]:
    source = f"recording of case {eval_id!r}"
    if isinstance(turns, str | Mapping) or not isinstance(turns, Sequence):
        raise EvalSetError(source, [Problem("$", shown(turns), "a list of invocations")])
    return tuple(invocation_of(turn, f"{source}, turn {number}") for number, turn in enumerate(turns, start=1))


def recording_of_report(report: Report) -> Recording:
    """Return what the agent did in an evaluation."""
    origin = report.origin or Origin()
    origin = replace(origin if origin.eval_set_digest else on(report.eval_set, origin), num_runs=report.num_runs)
    return replace(_by_id((case.eval_id, _of_case(case)) for case in report.cases), origin=origin)


def _of_case(case: CaseResult) -> Conversation:
    return Conversation(actual=case.actual, session_state=case.session_state, **outcome_of(case))


def on(eval_set: EvalSet, origin: Origin) -> Origin:
    """Return `origin` with what there is to know of the eval set."""
    return replace(
        origin,
        eval_set_id=eval_set.eval_set_id,
        eval_set_digest=eval_set_digest(eval_set),
        case_digests={case.eval_id: case_digest(case) for case in eval_set.eval_cases},
    )


def case_digest(case: EvalCase) -> str:
    """Return ``sha256:<hex>`` of what a case demands, however it is spelt."""
    return f"sha256:{hashlib.sha256(canonical_json(canonical(case))).hexdigest()}"


def changed_cases(origin: Origin, cases: Iterable[EvalCase]) -> list[str]:
    """Return the ids of the cases that are not as they were when they were recorded."""
    digests = origin.case_digests
    return [case.eval_id for case in cases if case.eval_id in digests and digests[case.eval_id] != case_digest(case)]


def save_recording(source: Report | Recording, path: str | Path) -> None:
    """Write what an agent did into a file that `score`, `evaluate` and the command line read as a recording.

    Values of environment variables that look like keys are masked in it, as in everything that this package writes.

    Args:
        source: the report of an evaluation, or a recording.
        path: the file, which is overwritten if it exists.

    Raises:
        UsageError: if it cannot be written.
    """
    text = dumps_recording(recording_of_report(source) if isinstance(source, Report) else source)
    target = Path(path)
    partial = target.with_name(f"{target.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def dumps_recording(recording: Recording) -> str:
    """Return a recording as the text of a file."""
    origin = recording.origin or Origin()
    names = ("eval_set_id", "eval_set_digest", "agent", "agent_version", "recorded_at")
    head: Json = {name: value for name in names if (value := getattr(origin, name))}
    cases: list[RecordedCase] = []
    for eval_id, runs in recording.runs.items():
        digest = {"digest": origin.case_digests[eval_id]} if origin.case_digests.get(eval_id) else {}
        cases.append(RecordedCase(eval_id=eval_id, **digest, runs=tuple(map(recorded_run, runs))))
    num_runs = max([origin.num_runs, *map(len, recording.runs.values())])
    text = dumps_recorded(RecordedSet(adk_eval_recording=SCHEMA, **head, num_runs=num_runs, cases=tuple(cases)))
    return f"{_without_secrets(text, secrets_of())}\n"


def recorded_run(conversation: Conversation) -> RecordedRun:
    """Return a conversation as files and the ledger keep it."""
    state = {} if conversation.session_state is None else {"session_state": plain_state(conversation.session_state)}
    return RecordedRun(invocations=conversation.actual, **state, **outcome_of(conversation))


def conversation_of(run: RecordedRun) -> Conversation:
    """Return the conversation that was kept."""
    return Conversation(actual=run.invocations, session_state=run.session_state, **outcome_of(run))


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


def _without_secrets(text: str, secrets: Mapping[str, str]) -> str:
    """Return a JSON text whose strings hold no secret; one that is all digits may also be found in a number, which stays."""
    if not any(secret in text for secret in secrets):
        return text
    return to_json(_clean(from_json(text), secrets), indent=2, inf_nan_mode="constants").decode()


def _clean(value: Any, secrets: Mapping[str, str]) -> Any:
    match value:
        case str():
            return redacted(value, secrets)
        case dict():
            return {redacted(key, secrets): _clean(item, secrets) for key, item in value.items()}
        case list():
            return [_clean(item, secrets) for item in value]
        case _:
            return value


@dataclass(frozen=True, slots=True)
class ConversationCache:
    """The conversations of one evaluation, in the ledger."""

    ledger: CallCache
    run_id: str
    agent: str
    """The agent's name."""
    config: EvalConfig
    """What its tools are to be, and what simulates its users."""

    def get(self, case: EvalCase, run_index: int, /) -> Conversation | None:
        """Return what came of a conversation, if it is known. What another version of this package kept may have to be had again."""
        kept = self.ledger.play(self.run_id, self._key(case, run_index))
        try:
            return None if kept is None else conversation_of(RecordedRun.model_validate_json(kept))
        except ValidationError:
            return None

    def keep(self, case: EvalCase, run_index: int, conversation: Conversation, /) -> None:
        """Keep a conversation."""
        self.ledger.keep_play(self.run_id, self._key(case, run_index), dumps_recorded(recorded_run(conversation), indent=None).encode())

    def _key(self, case: EvalCase, run_index: int) -> str:
        """Return the hash, in hex, of all that a conversation depends on but the agent's version and chance."""
        environment = self.config.environment_of(case.eval_id)
        user = self.config.user_simulator_config if case.conversation is None else None
        surroundings = [canonical(settings) for settings in (environment, user) if settings is not None]
        return hashlib.sha256(canonical_json([canonical(case), run_index, self.agent, *surroundings])).hexdigest()
