"""Recorded conversations as an agent: what somebody's agent did before, judged as if it happened now.

`load_recording` reads a recording of this package, an eval set whose invocations are what the agent did, ADK's result file, or a dict of
invocations by eval id, and returns a `Recording`: an `Agent` that returns the conversation it holds for a case and run. A report becomes a
recording by `recording_of_report`, and `save_recording` writes it as a file. `ConversationCache` keeps the conversations of a run that
is under way in the ledger, so that a resumed run does not have them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json, to_jsonable_python

from mlflow_adk_eval.agents.adk.requests import request_sha256
from mlflow_adk_eval.agents.turns import invocation_of
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, shown
from mlflow_adk_eval.evalset.conformance import recorded_tests
from mlflow_adk_eval.evalset.conversation import (
    SCHEMA,
    Conversation,
    EvalSetResult,
    Origin,
    RecordedCase,
    RecordedRun,
    RecordedSet,
    conversation_of,
    dumps_recorded,
    is_recording,
    is_result,
    outcome_of,
    parse_recorded,
    parse_result,
    world_of,
)
from mlflow_adk_eval.evalset.files import ConformanceFolder, Inputs, JsonFile, RowFiles, open_file, parse_eval_set, stem_of
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, Invocation, Json, Model, canonical, eval_set_digest, json_sha256, mapped
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.evalset.rows import CaseFiles, StreamedCases
from mlflow_adk_eval.evalset.world import WORLD_MARK, World, parse_world
from mlflow_adk_eval.ledger import CallCache
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.results.report import ByCase, Report
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.writing import write_file


class _ListedCase(Model):
    """One case of a plain list of recorded cases."""

    eval_id: str
    invocations: tuple[Invocation, ...]


UNNAMED = "recording"
"""What an agent is called whose recording does not name it."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded conversations, by eval id and run."""

    runs: Mapping[str, tuple[Conversation, ...]]
    name: str = ""
    """The agent's name; empty: from `origin`, else ``recording``."""
    origin: Origin | None = None
    """Where it comes from; ``None``: unknown."""
    simulating: JudgeUsage | None = field(default=None, compare=False)
    """The user simulator's calls and tokens; ``None`` without a simulator, or if unknown."""
    world: World | None = field(default=None, compare=False)
    """What answered the agent's calls, where that was replayed or recorded."""

    def __post_init__(self) -> None:
        """Take the name from the origin."""
        object.__setattr__(self, "name", self.name or (self.origin.agent if self.origin else "") or UNNAMED)

    @property
    def sha256(self) -> str:
        """The hash, in hex, of the conversations in all runs."""
        digest = hashlib.sha256()
        for eval_id in sorted(self.runs):
            for conversation in self.runs[eval_id]:
                turns = [(turn.user_text, turn.shown_answer, [call.name for call in turn.tool_calls]) for turn in conversation.actual]
                digest.update(to_json((eval_id, turns, conversation.error)))
        return digest.hexdigest()

    def num_runs(self, eval_ids: Iterable[str]) -> int:
        """Return how many runs of the named cases there are, or were to be; at least one."""
        runs = self.runs
        counts = (runs.count(eval_id) if isinstance(runs, ByCase) else len(runs.get(eval_id, ())) for eval_id in eval_ids)
        recorded = max(counts, default=1) or 1
        return max(recorded, self.origin.num_runs) if self.origin else recorded

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:
        """Return the recorded conversation, or the error that there is none."""
        runs = self.runs.get(case.eval_id, ())
        return runs[run_index] if run_index < len(runs) else not_held(case.eval_id, run_index)


def not_held(eval_id: str, run_index: int) -> Conversation:
    """Return what comes of a conversation that a recording does not hold."""
    wanted = f"run {run_index + 1} of case" if run_index else "case"
    return Conversation(actual=(), error=f"the recording does not contain {wanted} {eval_id!r}")


@dataclass(frozen=True, slots=True)
class StreamedRecording(Recording):
    """The conversations that are recorded beside the cases of a source."""

    cases: StreamedCases = field(kw_only=True)

    def num_runs(self, eval_ids: Any) -> int:  # noqa: ARG002 - it is the recording of all of them
        """Return how many runs of the cases there are; at least one."""
        return max(self.cases.num_runs, 1)

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:
        """Return the recorded conversation, or the error that there is none."""
        run = self.cases.taken(case.eval_id, run_index)
        return not_held(case.eval_id, run_index) if run is None else conversation_of(run)


_Turns = Sequence[Invocation | Json | str]
_OneRecorded = str | Path | EvalSet | EvalSetResult | Recording | Mapping[str, _Turns | Sequence[_Turns]]
Recorded = _OneRecorded | Sequence[_OneRecorded]
"""Whatever `load_recording` takes."""


def load_recording(recorded: Recorded) -> Recording:
    """Return recorded conversations from a recording, an eval set, an ADK result file or a dict of invocations by eval id.

    Several entries for one id are its runs, and so are a list of recordings, or of lists of invocations in a dict. Rows of JSON Lines or Parquet
    hold what was ``recorded``; where none does, the cases' own invocations are what the agent did, as in any eval set. A folder of tests of
    ``adk conformance`` holds what ADK recorded, calls included.

    Raises:
        EvalSetError: with every problem of the recording.
        UsageError: if it is none of these.
    """
    given: Any = recorded
    match given:
        case Recording():
            return given
        case str() | Path():
            file = open_file(given)
            if isinstance(file, ConformanceFolder):
                return recording_of_set(recorded_tests(Path(file.path), file.selected, request_sha256))
            if isinstance(file, RowFiles) and not file.selected:
                return _of_rows(file.cases())
            return _of_text(JsonFile(given).read(), str(given), stem_of(Path(given)))
        case EvalSet():
            return _of_eval_set(given)
        case EvalSetResult():
            return _of_result(given)
        case Mapping():
            return Recording({eval_id: tuple(_runs(eval_id, turns)) for eval_id, turns in given.items()})
        case [*several] if several:
            recordings = [load_recording(one) for one in several]
            pairs = ((eval_id, run) for one in recordings for eval_id, runs in one.runs.items() for run in runs)
            return _by_id(pairs, _only(one.name for one in recordings))
        case _:
            kinds = "an eval set, a result of ADK, a Recording, a path of any of these, a dict of invocations by eval id, or a list of such"
            raise UsageError(f"a recording is {kinds}, not {shown(given)}")


def _of_text(text: bytes, source: str, stem: str) -> Recording:
    if is_recording(text):
        return recording_of_set(parse_recorded(text, source))
    if WORLD_MARK in text[:1_000]:
        world = parse_world(text, source)
        if world.recorded is None:
            raise EvalSetError(source, [Problem("$.recorded", "nothing", f"the calls; run {world.run_id} holds them")])
        return recording_of_set(world.recorded)
    if is_result(text):
        return _of_result(parse_result(text, source))
    if text.lstrip()[:1] == b"[" and b'"invocations"' in text[:10_000]:
        return _by_id((case.eval_id, Conversation(actual=case.invocations)) for case in parse(tuple[_ListedCase, ...], text, source))
    return _of_eval_set(parse_eval_set(text, source, stem=stem))


def recording_of_set(recorded: RecordedSet) -> Recording:
    """Return the recording that a file holds."""
    names = ("agent", "agent_version", "recorded_at", "eval_set_id", "eval_set_digest", "num_runs")
    digests = {case.eval_id: case.digest for case in recorded.cases if case.digest}
    origin = Origin(**{name: getattr(recorded, name) for name in names}, case_digests=digests)
    return Recording({case.eval_id: tuple(map(conversation_of, case.runs)) for case in recorded.cases}, origin=origin)


def _of_rows(cases: CaseFiles) -> Recording:
    runs: dict[str, tuple[Conversation, ...]] = {}
    plain: list[EvalCase] = []
    for row in chain.from_iterable(cases.batches()):
        if row.runs is None:
            plain.append(row.case)
        else:
            runs[row.case.eval_id] = tuple(map(conversation_of, row.runs))
    return Recording(runs) if runs else _of_eval_set(cases.head.model_copy(update={"eval_cases": tuple(plain)}))


def recording_beside(eval_set: EvalSet, inputs: Inputs) -> Recording | None:
    """Return what is recorded beside the cases of an eval set; ``None`` where nothing is.

    Args:
        eval_set: the eval set.
        inputs: what it was read from.

    Raises:
        EvalSetError: with every problem of its source.
    """
    cases: Any = eval_set.eval_cases
    if isinstance(cases, StreamedCases):
        return StreamedRecording(runs={}, cases=cases) if cases.recorded else None
    recorded = inputs.cases().recorded() if isinstance(inputs, RowFiles) else None
    named = set(eval_set.eval_ids)
    runs = {eval_id: tuple(map(conversation_of, runs)) for eval_id, runs in (recorded or {}).items() if eval_id in named}
    return Recording(runs) if runs else None


def _of_eval_set(eval_set: EvalSet) -> Recording:
    cases = eval_set.eval_cases
    runs = ((case.eval_id, Conversation(actual=case.conversation or (), session_state=case.final_session_state or None)) for case in cases)
    return _by_id(runs, _only(case.session_input.app_name for case in cases if case.session_input))


def _of_result(result: EvalSetResult) -> Recording:
    """Return the conversations of a result; their states without what is ADK's own or lives only through a turn."""
    apps: list[str] = []
    conversations: list[tuple[str, Conversation]] = []
    for case in result.eval_case_results:
        details = case.session_details or {}
        app, state = details.get("app_name") or details.get("appName"), details.get("state")
        apps += [app] if isinstance(app, str) else []
        if case.adk_eval is not None:  # this package wrote it
            conversation = Conversation(actual=case.actual, session_state=state, **outcome_of(case.adk_eval))
        else:
            if isinstance(state, dict):
                state = {key: value for key, value in state.items() if not key.startswith(("__", "temp:"))}
            error = "" if case.actual else "ADK recorded no turn of this case, so its inference failed; ADK does not store the reason"
            conversation = Conversation(actual=case.actual, session_state=state, error=error)
        conversations.append((case.eval_id, conversation))
    return _by_id(conversations, _only(apps))


def _only(names: Iterable[str]) -> str:
    """Return the name that all have; empty if they differ."""
    different = set(names)
    return different.pop() if len(different) == 1 else ""


def _by_id(conversations: Iterable[tuple[str, Conversation]], name: str = "") -> Recording:
    runs: dict[str, tuple[Conversation, ...]] = {}
    for eval_id, conversation in conversations:
        runs[eval_id] = (*runs.get(eval_id, ()), conversation)
    return Recording(runs, name)


def _runs(eval_id: str, turns: Any) -> Iterator[Conversation]:
    """Yield the runs of a case: as many as there are lists of turns, or the one whose turns these are."""
    source = f"recording of case {eval_id!r}"
    several = isinstance(turns, list | tuple) and turns and all(isinstance(run, list | tuple) for run in turns)
    for run in turns if several else [turns]:
        if isinstance(run, str | Mapping) or not isinstance(run, Sequence):
            raise EvalSetError(source, [Problem("$", shown(run), "a list of invocations")])
        yield Conversation(actual=tuple(invocation_of(turn, f"{source}, turn {number}") for number, turn in enumerate(run, start=1)))


def recording_of_report(report: Report) -> Recording:
    """Return the recording of an evaluation's conversations."""
    origin = report.origin or Origin()
    origin = replace(origin if origin.eval_set_digest else on(report.eval_set, origin), num_runs=report.num_runs)
    runs = _by_id((case.eval_id, report.cases.loaded(place).conversation) for place, case in enumerate(report.cases)).runs
    worlds = {case.eval_id: case.runs for case in report.world.recorded.cases} if report.world and report.world.recorded else {}
    pairs = {eval_id: zip_longest(known, worlds.get(eval_id, ())[: len(known)]) for eval_id, known in runs.items()}
    merged = {eval_id: tuple(replace(run, **world_of(world)) for run, world in both) for eval_id, both in pairs.items()}
    return Recording(merged, origin=origin)


def on(eval_set: EvalSet, origin: Origin) -> Origin:
    """Return `origin` with what there is to know of the eval set."""
    digests = {case.eval_id: case_digest(case) for case in eval_set.eval_cases}
    return replace(origin, eval_set_id=eval_set.eval_set_id, eval_set_digest=eval_set_digest(eval_set), case_digests=digests)


def case_digest(case: EvalCase) -> str:
    """Return ``sha256:<hex>`` of what a case demands, however it is spelt."""
    return f"sha256:{json_sha256(canonical(case))}"


def changed_cases(origin: Origin, cases: Iterable[EvalCase]) -> list[str]:
    """Return the ids of the cases that are not as they were when they were recorded."""
    digests = origin.case_digests
    return [case.eval_id for case in cases if case.eval_id in digests and digests[case.eval_id] != case_digest(case)]


def save_recording(source: Report | Recording, path: str | Path) -> None:
    """Save an agent's conversations to a file that `score`, `evaluate` and the command line read as a recording.

    Values of environment variables that look like secrets are masked, as in everything that this package writes.

    Args:
        source: the report of an evaluation, or a recording.
        path: the file; an existing one is overwritten.

    Raises:
        UsageError: if it cannot be written.
        OutputError: if the disk is full.
    """
    text = dumps_recording(recording_of_report(source) if isinstance(source, Report) else source)
    write_file(path, text)


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
    secrets = secrets_of()
    if any(secret in text for secret in secrets):  # one that is all digits may also be found in a number, which stays

        def clean(part: Any) -> Any:
            return redacted(part, secrets) if isinstance(part, str) else part

        text = to_json(mapped(from_json(text), clean, clean), indent=2, inf_nan_mode="constants").decode()
    return f"{text}\n"


def recorded_run(conversation: Conversation) -> RecordedRun:
    """Return a conversation as files and the ledger keep it."""
    state = {} if conversation.session_state is None else {"session_state": plain_state(conversation.session_state)}
    return RecordedRun(invocations=tuple(conversation.actual), **state, **world_of(conversation), **outcome_of(conversation))


def plain_state(state: Mapping[str, Any]) -> Json:
    r"""Return a session's state as JSON values. It may hold anything; what JSON has no word for is kept as its text.

    >>> plain_state({"pair": (2, None), "rooms": {"hall"}, "raw": b"\xff"})
    {'pair': [2, None], 'rooms': ['hall'], 'raw': "b'\\xff'"}
    """
    plain: Json = {}
    for key, value in state.items():
        try:
            known = to_jsonable_python(value, serialize_unknown=True)
        except ValueError:  # of bytes that are no text, of half a surrogate pair, or of something that holds itself
            known = repr(value)
        plain[str(key).encode("utf-8", "replace").decode()] = known
    return plain


@dataclass(frozen=True, slots=True)
class ConversationCache:
    """The conversations of one evaluation, in the ledger."""

    ledger: CallCache
    run_id: str
    agent: str
    """The agent's name."""
    config: EvalConfig
    """What its tools are to be, and what simulates its users."""
    world: str = ""
    """What replays its calls, and how; empty where nothing does."""

    def get(self, case: EvalCase, run_index: int, /) -> Conversation | None:
        """Return what came of a conversation, if it is known. What another version of this package kept may have to be had again."""
        stored = self.ledger.conversation(self.run_id, self._key(case, run_index))
        try:
            return None if stored is None else conversation_of(RecordedRun.model_validate_json(stored))
        except ValidationError:
            return None

    def keep(self, case: EvalCase, run_index: int, conversation: Conversation, /) -> None:
        """Keep a conversation."""
        text = dumps_recorded(recorded_run(conversation), indent=None)
        self.ledger.keep_conversation(self.run_id, self._key(case, run_index), text.encode())

    def _key(self, case: EvalCase, run_index: int) -> str:
        """Return the hash, in hex, of all that a conversation depends on but the agent's version and chance."""
        environment = self.config.environment_of(case.eval_id)
        user = self.config.user_simulator_config if case.conversation is None else None
        surroundings: list[Any] = [canonical(settings) for settings in (environment, user, self.config.replay) if settings is not None]
        surroundings += [self.world] if self.world else []
        return json_sha256([canonical(case), run_index, self.agent, *surroundings])
