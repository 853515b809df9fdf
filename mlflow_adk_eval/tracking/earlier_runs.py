"""Earlier runs that an evaluation starts from: to go on with what was paid for, or to judge again what the agent did.

`earlier_run` finds the run to resume, in the ledger and in MLflow; `failed_cases` names what is to be run again; `recording_of_run` makes a recording of a finished run, once its artifacts
are those that its parameter vouches for.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import TypeAdapter

from mlflow_adk_eval.agents import Recording, load_recording
from mlflow_adk_eval.agents.protocol import Conversation
from mlflow_adk_eval.agents.recordings import case_digest, conversation_of, on
from mlflow_adk_eval.errors import InputError, TrackingError, UsageError
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.evalset.conversation import Origin
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.evalset.result import parse_result
from mlflow_adk_eval.gating.evidence.examine import ReadableRun, examine
from mlflow_adk_eval.gating.evidence.integrity import EVAL_SET, FOLDER, IN_PARTS, Evidence, Manifest, integrity_problems, read_manifest
from mlflow_adk_eval.gating.mlflow_store import store_at
from mlflow_adk_eval.ledger import CallCache
from mlflow_adk_eval.results.parts import PartReader, StoredPart
from mlflow_adk_eval.tracking.client import existing, reaching_mlflow
from mlflow_adk_eval.tracking.logged_run import LoggedRun


def failed_cases(run_id: str, tracking_uri: str | None = None) -> tuple[str, ...]:
    """Return the ids of the cases that did not pass in a run, in its order.

    Args:
        run_id: the run.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.

    Raises:
        UsageError: if there is no such run, it holds no evaluation, or every case passed.
        TrackingError: if MLflow cannot be reached, or the run's evidence cannot be believed.
    """
    with store_at(tracking_uri) as store:
        evidence = store.evidence(run_id)
    if evidence.manifest is None:
        raise UsageError(f"run {run_id} holds no finished evaluation, so it is unknown which of its cases passed")
    run = examine(evidence)
    if not isinstance(run, ReadableRun):
        raise TrackingError(f"run {run_id}: {run.problems[0]}, so it cannot be believed which of its cases passed")
    found = tuple(dict.fromkeys(case.eval_id for case in run.report.cases if case.verdict != "passed"))
    if not found:
        raise UsageError(f"every case passed in run {run_id}, so there is none to run again")
    return found


_EVIDENCE = "adk_eval.manifest_sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """The run of an earlier evaluation of the same agent version on the same eval set."""

    run_id: str
    open: bool
    """Whether it can be gone on with: it holds no result yet, and was to be judged in the same way."""


def earlier_run(resume: str, logged: LoggedRun, ledger: CallCache | None) -> EarlierRun:
    """Return the run to resume.

    Args:
        resume: its id, or ``latest``.
        logged: the run of the evaluation that goes on with it, not yet started.
        ledger: what it has paid for.

    Raises:
        UsageError: if it does not exist or the ledger does not know it, or if it is about another eval set or another version
            of the agent: what was said and done there is no evidence here.
        TrackingError: if MLflow cannot be reached.
    """
    run_id = _known(resume, logged, ledger)
    with reaching_mlflow("the run could not be started"), existing(f"resume {run_id!r}"):
        run = logged.client.get_run(run_id)
    params = run.data.params
    for name, what in {"adk_eval.eval_set_digest": "another eval set", "adk_eval.model_id": "another version of the agent"}.items():
        wanted = logged.params[name]
        if params.get(name) != wanted:
            found = f"it was about {what}: {name} is {params[name]}, now {wanted}" if name in params else f"it has no parameter {name}"
            raise UsageError(f"resume {run_id!r}: {found}")
    is_open = (
        _EVIDENCE not in params  # nothing has been said in the run that could not be taken back
        and all(params.get(name, value) == value for name, value in logged.params.items())
        and run.info.lifecycle_stage == "active"
        and run.info.experiment_id == logged.experiment_id
    )
    return EarlierRun(run_id=run_id, open=is_open)


def _known(resume: str, logged: LoggedRun, ledger: CallCache | None) -> str:
    """Return the id of the run, if the ledger knows it."""
    if ledger is None:
        raise UsageError(f"resume {resume!r}: without a ledger nothing is known of earlier runs")
    runs = ledger.runs()
    if resume != "latest":
        if resume not in {run.run_id for run in runs}:
            raise UsageError(
                f"resume {resume!r}: the ledger {ledger.name} does not know this run; it keeps what was paid for, so resume where it is"
            )
        return resume
    like = (logged.digest, logged.agent.model_id)
    found = [run.run_id for run in runs if (run.eval_set_digest, run.agent_version) == like]
    if not found:
        raise UsageError(f"resume 'latest': the ledger {ledger.name} knows no run of this eval set with this version of the agent")
    return found[0]


RESULT = "result.evalset_result.json"
_SCHEME = "runs:/"
_EVAL_SET = TypeAdapter(EvalSet)


def run_named(source: Any) -> str | None:
    """Return the id of the run that ``runs:/<id>`` names; ``None`` for anything else.

    >>> run_named("runs:/0123abcd"), run_named("my_agent")
    ('0123abcd', None)
    """
    return source.removeprefix(_SCHEME).strip("/") if isinstance(source, str) and source.startswith(_SCHEME) else None


def recording_of_run(run_id: str, tracking_uri: str | None = None) -> Recording:
    """Return what the agent did in a run, if that is as it was when the evaluation ended.

    Args:
        run_id: the run.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.

    Raises:
        UsageError: if there is no such run, or it holds no evaluation.
        TrackingError: if MLflow cannot be reached, or the run's artifacts are not those that its parameter vouches for.
    """
    with store_at(tracking_uri) as store:
        evidence = store.evidence(run_id)
    if evidence.manifest is None:
        raise UsageError(f"run {run_id} holds no finished evaluation, so that there is nothing to judge again")
    problems = integrity_problems(evidence)
    manifest = read_manifest(evidence.manifest)
    if problems or isinstance(manifest, str):
        raise TrackingError(f"run {run_id}: {problems[0]}, so what the agent did in it cannot be believed")
    if manifest.schema == IN_PARTS:
        return _recording_of_parts(evidence, manifest)
    if RESULT not in evidence.artifacts:
        raise UsageError(f"run {run_id} does not hold what the agent did, so that there is nothing to judge again")
    return _recording(evidence)


def _recording(evidence: Evidence) -> Recording:
    eval_set = parse(_EVAL_SET, evidence.artifacts[EVAL_SET], f"run {evidence.run_id}, {FOLDER}/{EVAL_SET}")
    result = parse_result(evidence.artifacts[RESULT], f"run {evidence.run_id}, {FOLDER}/{RESULT}")
    recording = load_recording(result)
    origin = _origin(evidence, result.creation_timestamp, recording.num_runs(eval_set.eval_ids))
    return replace(recording, origin=on(eval_set, origin))


def _origin(evidence: Evidence, began: float, num_runs: int) -> Origin:
    return Origin(
        agent=evidence.tags.get("adk_eval.agent_version", ""),
        agent_version=evidence.params.get("adk_eval.model_id", ""),
        recorded_at=datetime.fromtimestamp(began, tz=UTC).isoformat(timespec="seconds"),
        num_runs=num_runs,
    )


def _recording_of_parts(evidence: Evidence, manifest: Manifest) -> Recording:
    reader = PartReader(evidence.artifacts, manifest.parts, f"run {evidence.run_id}, {FOLDER}")
    try:
        runs, digests = PartConversations(reader), PartDigests(reader)
    except InputError as error:
        raise TrackingError(f"{error.source} cannot be read: {error.problems[0]}, so what the agent did cannot be judged again") from None
    origin = _origin(evidence, (evidence.start_time or 0) / 1000, max(map(runs.count, runs), default=1))
    return Recording(
        runs,
        origin=replace(
            origin,
            eval_set_id=str(manifest.eval_set.get("eval_set_id", "")),
            eval_set_digest=evidence.params.get("adk_eval.eval_set_digest", ""),
            case_digests=digests,
        ),
    )


V = TypeVar("V")


class _ByCase(Mapping[str, V]):
    """Something of each case of a run in parts, by eval id, read when it is asked for."""

    def __init__(self, reader: PartReader, ids: Callable[[StoredPart], Iterable[str | None]]) -> None:
        self._reader = reader
        self._places: dict[str, int] = {}
        self._parts, self._firsts, self._counts = array("i"), array("i"), array("i")
        for part in reader.parts:
            # Not through the reader, which would keep what it has read.
            for first, eval_id in enumerate(ids(reader.part(part.number))):
                self._add(part.number, first, eval_id or "")
        self._last: tuple[str, V] | None = None

    def _add(self, part: int, first: int, eval_id: str) -> None:
        place = self._places.setdefault(eval_id, len(self._places))
        if place < len(self._parts):
            self._counts[place] += 1
        else:
            for column, value in ((self._parts, part), (self._firsts, first), (self._counts, 1)):
                column.append(value)

    def count(self, eval_id: str) -> int:
        """Return how many there are of a case."""
        place = self._places.get(eval_id)
        return 0 if place is None else self._counts[place]

    def __getitem__(self, eval_id: str) -> V:
        """Return what there is of a case."""
        if self._last is None or self._last[0] != eval_id:
            place = self._places[eval_id]
            first = self._firsts[place]
            self._last = eval_id, self._read(self._reader[self._parts[place]], range(first, first + self._counts[place]))
        return self._last[1]

    def _read(self, part: StoredPart, places: Iterable[int]) -> V:
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        """Yield the ids."""
        return iter(self._places)

    def __len__(self) -> int:
        """Return the number of cases."""
        return len(self._places)


class PartConversations(_ByCase[tuple[Conversation, ...]]):
    """What the agent did in each case of a run in parts, run by run."""

    def __init__(self, reader: PartReader) -> None:
        """Take what reads the parts."""
        super().__init__(reader, lambda part: (eval_id for eval_id, _ in part.run_ids))

    def _read(self, part: StoredPart, places: Iterable[int]) -> tuple[Conversation, ...]:
        return tuple(conversation_of(part.run(place)) for place in places)


class PartDigests(_ByCase[str]):
    """The digest of each case of a run in parts."""

    def __init__(self, reader: PartReader) -> None:
        """Take what reads the parts."""
        super().__init__(reader, lambda part: iter(part.case_ids))

    def _read(self, part: StoredPart, places: Iterable[int]) -> str:
        return case_digest(part.case(next(iter(places))))
