"""What the viewer reads: the list of runs, from what MLflow indexes of them, and single runs, from their evidence."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from pydantic_core import from_json

from mlflow_adk_eval.analysis.comparison.compare import Comparison, compared
from mlflow_adk_eval.analysis.comparison.runs import ComparedRun
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import AdkEvalError, UsageError
from mlflow_adk_eval.gating import drift as judging
from mlflow_adk_eval.gating.calibration import JudgedRun, judged_run
from mlflow_adk_eval.gating.registry import MlflowStore, store_at
from mlflow_adk_eval.production.score import SAMPLE
from mlflow_adk_eval.redact import without_credentials
from mlflow_adk_eval.report.findings import Causes, causes_of
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.examined import ReadableRun
from mlflow_adk_eval.runs.listed import RunRow, listed_runs, row_of
from mlflow_adk_eval.runs.manifest import Evidence, key_of_criterion
from mlflow_adk_eval.runs.stored_run import StoredCases
from mlflow_adk_eval.store.reaching import DECIDING, reaching_mlflow
from mlflow_adk_eval.tracking.calibrate import Labelling
from mlflow_adk_eval.tracking.compare import marked, readable_run, run_of_examined
from mlflow_adk_eval.viewer.first_look import FirstLook, first_look
from mlflow_adk_eval.viewer.registry import Registry, registry_of

K = TypeVar("K")
V = TypeVar("V")
_FRESH_S = 5.0
"""For so long the list of runs is not read again, so that a filter need not wait for MLflow."""
_MOST_OPEN = 6
"""As many runs stay in memory, and as many pairs of them."""
_READ_ANCHORS_S = 2.0
"""For so long a page reads anchors that no page has read before."""


def greater_is_better(criterion: str) -> bool:
    """Whether more of a criterion is better; so it is of those that this package does not know."""
    return CRITERIA[criterion].greater_is_better if criterion in CRITERIA else True


@dataclass
class OpenRun:
    """A run whose evidence was examined."""

    row: RunRow
    run: ReadableRun
    read_at: float = field(default_factory=time.time)
    labelling: tuple[JudgedRun, Labelling] | None = None
    """What judges decided, and what the person at the viewer has labelled of it, once that was asked for."""
    sample: bytes | None = None
    """What it says of the conversations that it drew from production; ``None``: nothing."""

    @property
    def report(self) -> Report:
        """What it came to."""
        return self.run.report

    @cached_property
    def causes(self) -> Causes:
        """Why case runs of it did not pass."""
        return causes_of(self.report)

    @cached_property
    def missed(self) -> list[frozenset[str]]:
        """The criteria that each case run did not pass."""
        return [
            frozenset(tally.planned.criterion for tally in tallies if tally.planned.decides and not tally.passed)
            for _, _, tallies in self.report.cases.tallies()
        ]

    @cached_property
    def texts(self) -> list[str]:
        """All that was said, done and reasoned in each case run, folded for a search that does not mind the case of letters."""
        cases = self.report.cases
        if not isinstance(cases, StoredCases):
            return ["\n".join(_strings([str(case.actual), str(case.expected), str(case.results)])).casefold() for case in cases]
        texts: list[str] = []
        for place in range(len(cases)):
            part, index, rows = cases.part_of(place)
            reasons = (column[rows] for name, column in part.cells.items() if name.endswith("/reason"))
            case = part.documents[index * part.part.cases // part.part.case_runs]
            texts.append("\n".join(_strings([from_json(case), from_json(part.recorded[index]), *reasons])).casefold())
        return texts

    def case(self, place: int) -> CaseResult:
        """Return a case run with all that was said and done."""
        return self.report.cases.loaded(place)

    def place(self, eval_id: str, run_index: int) -> int:
        """Return the place of a case run.

        Raises:
            UsageError: if there is none.
        """
        if (place := self.report.cases.places.get((eval_id, run_index))) is None:
            raise UsageError(f"run {self.row.run_id} has no case {eval_id!r} with a run {run_index + 1}")
        return place

    @cached_property
    def compared(self) -> ComparedRun:
        """The run as one side of a comparison."""
        return run_of_examined(self.run)


_UNSEARCHED = frozenset({"app_details", "session_input", "session_state", "final_session_state", "invocation_id"})
"""What the state and the surroundings of a conversation say is the same in most cases."""


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            if name not in _UNSEARCHED:
                yield from _strings(one)
    elif isinstance(value, Sequence):
        for one in value:
            yield from _strings(one)


@dataclass(frozen=True, slots=True)
class JudgeChange:
    """A change of a judge, with which runs are marked. It decides nothing."""

    mark: str
    """A few words for a chart or a list."""
    said: str
    """Sentences."""
    criteria: frozenset[str]
    """What the judge decides, by the keys in MLflow."""
    since_run: str
    later: Mapping[str, bool]
    """By run in which the judge decided: whether it began after the change."""


def _changes_in(listed: Sequence[judging.JudgedRun], names: Mapping[str, str]) -> Iterator[JudgeChange]:
    """Yield how judges changed between the runs of an experiment; `names`: what runs are called."""
    for judge in dict.fromkeys(own.judge for one in listed if one.anchors for own in one.anchors.judges):
        decided = [(one, own) for one in listed if (own := one.of(judge))]
        criteria = frozenset(key_of_criterion(name) for _, own in decided for name in own.criteria)
        for change in judging.history_of(listed, judge).changes:
            what, since = f"{change.drift.direction} by about {abs(change.drift.size):.2g}", change.drift.since_run
            became = f"The judge {judge} became {what} since {names.get(since, since)}. Scores before and after do not compare."
            said = f"{became} {sum(len(own.anchors) for _, own in decided):,} answers were judged again."
            yield JudgeChange(f"judge {what}", said, criteria, since, {one.run_id: one.started >= change.since for one, _ in decided})


class _AnchorStore(MlflowStore):
    """A store of whose runs the anchors are read once, and of which a page reads only what it has time for."""

    def __init__(self, uri: str | None, known: dict[tuple[str, str], bytes | None]) -> None:
        super().__init__(uri)
        self._known, self._until = known, time.monotonic() + _READ_ANCHORS_S

    def artifact(self, run_id: str, path: str, *others: str) -> bytes | None:
        if (run_id, path) not in self._known:
            if time.monotonic() > self._until:
                raise UsageError("the anchors take longer to read")  # not as if this run's were missing
            self._known[run_id, path] = super().artifact(run_id, path, *others)
        return self._known[run_id, path]


class RunStore:
    """The evaluations in an MLflow store, or in one of its experiments."""

    def __init__(self, tracking_uri: str | None = None, experiment: str | None = None) -> None:
        """Take where MLflow is (``None``: as it is configured), and the name or id of the experiment (``None``: all)."""
        self.tracking_uri, self.experiment = tracking_uri, experiment
        self._rows: tuple[float, list[RunRow]] = 0.0, []
        self._registry: tuple[float, Registry | None] = 0.0, None
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._begun: OrderedDict[str, tuple[RunRow, Evidence]] = OrderedDict()
        """What was read, and is still to be examined."""
        self._pairs: OrderedDict[tuple[str, float, str, float], Comparison] = OrderedDict()
        self._anchors: dict[tuple[str, str], bytes | None] = {}
        self._changes: tuple[dict[str, str], list[JudgeChange]] = {}, []
        """And the names of the runs with anchors, by their ids."""

    @property
    def server(self) -> str:
        """The address of the tracking server; empty where the store is none, or its address has a password in it."""
        with store_at(self.tracking_uri) as store:
            uri = str(store.client.tracking_uri)
        return uri if uri.startswith(("http://", "https://")) and without_credentials(uri) == uri else ""

    def rows(self, *, fresh: bool = True) -> list[RunRow]:
        """Return the runs, latest first; `fresh`: as they are now, give or take some seconds.

        Raises:
            UsageError: if there is no such experiment.
            TrackingError: if MLflow is unreachable.
        """
        read_at, rows = self._rows
        if not rows or (fresh and time.monotonic() - read_at > _FRESH_S):
            with store_at(self.tracking_uri) as store:
                rows = list(listed_runs(store.client, self.experiment))
            self._rows = time.monotonic(), rows
        return rows

    def registry(self) -> Registry | None:
        """Return what the model registry says, read once for each reading of the runs; ``None``: it does not answer."""
        read_at, registry = self._registry
        if read_at != self._rows[0]:
            registry = None
            with suppress(AdkEvalError), store_at(self.tracking_uri) as store:
                registry = registry_of(store.client)
            self._registry = self._rows[0], registry
        return registry

    def changes(self) -> list[JudgeChange] | None:
        """Return how judges changed, as far as runs have anchors; ``None``: these could not all be read yet."""
        rows = [row for row in self.rows(fresh=False) if row.anchored]
        names = {row.run_id: row.name for row in rows}
        if self._changes[0] != names:
            try:
                with reaching_mlflow("Anchors could not be read", DECIDING):
                    store = _AnchorStore(self.tracking_uri, self._anchors)
                    listed = [judging.listed_runs(store, one, store.clock()) for one in {row.experiment_id for row in rows}]
            except AdkEvalError:
                return None
            self._changes = names, [change for some in listed for change in _changes_in(some, names)]
        return self._changes[1]

    def open(self, run_id: str, *, again: bool = False) -> OpenRun:
        """Return a run whose evidence is examined; `again`: also if it was examined before.

        Raises:
            UsageError: if there is no such run, or it contains no finished evaluation.
            TrackingError: if MLflow cannot be reached, or its evidence cannot be read.
        """
        if again or run_id not in self._open:
            self._open.pop(run_id, None)
            if again or run_id not in self._begun:
                self._begun[run_id] = self._read_of(run_id)
            row, evidence = self._begun.pop(run_id)
            self._open[run_id] = opened = OpenRun(row, readable_run(evidence, "shown"))
            if row.production:
                with suppress(AdkEvalError), store_at(self.tracking_uri) as store:
                    opened.sample = store.artifact(run_id, SAMPLE)
        return _latest(self._open, run_id)

    def is_open(self, run_id: str) -> bool:
        """Whether a run was examined, and is in memory."""
        return run_id in self._open and bool(_latest(self._open, run_id))

    def first_look(self, run_id: str, most: int) -> tuple[RunRow, FirstLook] | None:
        """Return the first case runs, up to `most`, of a run that takes long to examine and was not yet; else ``None``.

        Raises:
            UsageError: if there is no such run, or it contains no finished evaluation.
            TrackingError: if MLflow is unreachable.
        """
        if run_id in self._open:
            return None
        row, evidence = self._begun[run_id] = self._read_of(run_id)
        _latest(self._begun, run_id)
        look = first_look(evidence, most)
        return (row, look) if look else None

    def _read_of(self, run_id: str) -> tuple[RunRow, Evidence]:
        """Return a run as the list has it, and what it holds."""
        with store_at(self.tracking_uri) as store:
            evidence = store.evidence(run_id)
            row = row_of(store.client.get_run(run_id))
        if evidence.manifest is None:
            raise UsageError(f"run {run_id} contains no finished evaluation")
        return row, evidence

    def labelling(self, run_id: str, labeller: str) -> tuple[JudgedRun, Labelling]:
        """Return what judges decided in a run, and what a person has labelled of it.

        Raises:
            UsageError: if there is no such run, or it contains no finished evaluation.
            TrackingError: if MLflow cannot be reached, or the run's evidence does not hold.
        """
        opened = self.open(run_id)
        if opened.labelling is None:
            judged = judged_run(opened.run.evidence, opened.run)
            with store_at(self.tracking_uri) as store:
                opened.labelling = judged, Labelling(store.client, judged, labeller)
        return opened.labelling

    def compared(self, run_id: str, other: str) -> Comparison:
        """Return what changed from one run to another.

        Raises:
            UsageError: if there is no such run, or it contains no finished evaluation.
            TrackingError: if MLflow cannot be reached, or their evidence cannot be read.
        """
        before, after = self.open(run_id), self.open(other)
        key = run_id, before.read_at, other, after.read_at
        if key not in self._pairs:
            with store_at(self.tracking_uri) as store:
                drift = store.drift(after.run, store.clock())
            self._pairs[key] = compared(*marked([before.compared, after.compared], [before.run, after.run], drift))
        return _latest(self._pairs, key)


def _latest(entries: OrderedDict[K, V], key: K) -> V:
    """Return the entry of a key, as the latest, and drop the oldest of too many."""
    entries.move_to_end(key)
    while len(entries) > _MOST_OPEN:
        entries.popitem(last=False)
    return entries[key]
