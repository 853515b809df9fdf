"""Which answers of earlier runs a run has its judges judge again: the judged runs of an experiment, and their cells, read from the store.

One request lists the runs. Of each, its anchors are read, which its parameter vouches for. Of a run whose cells are chosen, only the files of one part
are read, each held against the manifest. Whatever cannot be believed is left out, or is a reason why there are no anchors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic_core import from_json

from mlflow_adk_eval.analysis.calibration.calibration import load_calibration
from mlflow_adk_eval.analysis.drift import changes_of
from mlflow_adk_eval.config.eval_config import EvalConfig, parse_config
from mlflow_adk_eval.errors import ConfigError, InputError, TrackingError
from mlflow_adk_eval.evalset.parse import decode
from mlflow_adk_eval.runs.anchors import (
    ANCHORS,
    ANCHORS_PARAM,
    Anchors,
    CellId,
    EarlierCell,
    JudgeAnchors,
    KnownJudge,
    Previous,
    cells_of,
    chosen,
    judges_of,
    order_of,
    read_anchors,
)
from mlflow_adk_eval.runs.manifest import CONFIG, FOLDER, MANIFEST, read_manifest, sha256
from mlflow_adk_eval.runs.parts import ACTUAL, CASES, VOTES
from mlflow_adk_eval.runs.stored_run import StoredPart

if TYPE_CHECKING:
    from mlflow_adk_eval.gating.registry import MlflowStore

MOST_RUNS = 50
"""So many judged runs of an experiment are looked at, the latest."""
CALIBRATION = "adk_eval_calibration/calibration.json"
"""The artifact of a run with the labels of its cells."""


@dataclass(frozen=True)
class PastRun:
    """An earlier run of the experiment in which judges decided."""

    store: MlflowStore = field(repr=False)
    run_id: str
    params: Mapping[str, str]
    judges: Mapping[str, KnownJudge]
    """By criterion, those that were asked the same as now."""
    config: EvalConfig
    anchors: Anchors | None
    """``None``: it has none, or they are not those of its parameter."""
    _parts: dict[str, StoredPart] = field(default_factory=dict[str, StoredPart], repr=False)

    def file(self, name: str, digest: str | None) -> bytes:
        """Return an artifact.

        Raises:
            TrackingError: if it is not the one with this hash.
        """
        content = self.store.artifact(self.run_id, f"{FOLDER}/{name}")
        if content is None or sha256(content) != digest:
            what = "is missing" if content is None else "was changed after the run"
            raise TrackingError(f"run {self.run_id}: the artifact {FOLDER}/{name} {what}")
        return content

    def part(self, run_id: str) -> StoredPart:
        """Return the part whose cells the run `run_id` may judge again: the files with its votes, its cases and what the agent did.

        Raises:
            TrackingError: if they are not those of the run.
        """
        if run_id in self._parts:
            return self._parts[run_id]
        manifest = read_manifest(self.file(MANIFEST, self.params.get("adk_eval.manifest_sha256")))
        if isinstance(manifest, str):
            raise TrackingError(f"run {self.run_id}: {manifest}")
        voted = [part for part in manifest.parts if part.votes] or list(manifest.parts)
        part = min(voted, key=lambda part: order_of(run_id, self.run_id, part.number))
        names = [part.name(folder) for folder in (VOTES, CASES, ACTUAL)]
        files = {name: self.file(name, manifest.artifacts.get(name)) for name in names}
        self._parts[run_id] = StoredPart(part, files, f"run {self.run_id}, {FOLDER}")
        return self._parts[run_id]

    @cached_property
    def labelled(self) -> frozenset[tuple[str, int, int | None, str]]:
        """The cells with a label in the calibration that was kept with the run; a turn that is ``None`` is every turn.

        Labels of a sample do not count. `CellSample` prefers cells whose votes were split, and those vote otherwise the next time with the same judge.
        """
        with suppress(InputError, ValueError):
            if text := self.store.artifact(self.run_id, CALIBRATION):
                found = load_calibration(from_json(text))
                mine = (one for one in found.labelled if one.run_id in (None, self.run_id) and found.sampled is None)
                return frozenset((one.eval_id, one.run_index, one.invocation_index, one.criterion) for one in mine)
        return frozenset()


def past_runs(store: MlflowStore, experiment_id: str, config: EvalConfig, judges: Mapping[str, KnownJudge], *, until: int) -> list[PastRun]:
    """Return the judged runs of an experiment, the earliest first.

    Args:
        store: where they are.
        experiment_id: the experiment.
        config: the config that asks now.
        judges: who decides now, by criterion.
        until: when the run that asks began, in milliseconds since 1970; later ones do not count.
    """
    wanted = "params.`adk_eval.judge_model` LIKE '%' and tags.`adk_eval.status` = 'complete' and attributes.status = 'FINISHED'"
    wanted += f" and attributes.start_time < {until}"
    found = store.client.search_runs([experiment_id], wanted, order_by=["attributes.start_time DESC"], max_results=MOST_RUNS)
    configs: dict[str | None, EvalConfig] = {config.digest(): config}
    runs: list[PastRun] = []
    for one in reversed(found):
        run_id, params = one.info.run_id, one.data.params
        digest = params.get("adk_eval.config_digest")
        anchors = None
        with suppress(InputError):
            if digest not in configs:
                content = store.artifact(run_id, f"{FOLDER}/{CONFIG}") or b""
                read = parse_config(decode(content, f"run {run_id}, {CONFIG}", error=ConfigError), f"run {run_id}, {CONFIG}")
                configs[read.digest()] = read
            if params.get(ANCHORS_PARAM) and (text := store.artifact(run_id, f"{FOLDER}/{ANCHORS}")):
                anchors = read_anchors(text, f"run {run_id}, {ANCHORS}") if sha256(text) == params[ANCHORS_PARAM] else None
        if digest in configs:
            there = judges_of(configs[digest], params)
            same = {name: known for name, known in there.items() if judges.get(name) == known}
            runs.append(PastRun(store, run_id, params, same, configs[digest], anchors))
    return runs


def planned(
    runs: Sequence[PastRun], judge: str, criteria: Sequence[str], run_id: str, calls: int
) -> tuple[JudgeAnchors, list[EarlierCell]]:
    """Return the anchors of a judge before it is asked, and the cells to ask about.

    Args:
        runs: the judged runs before, the earliest first.
        judge: the judge.
        criteria: what it decides.
        run_id: the run that asks.
        calls: how often it may ask.
    """
    had = {run.run_id: own for run in runs if run.anchors and (own := run.anchors.of(judge))}
    changes, _ = changes_of([(run, [(one.run_id, one.difference) for one in own.anchors]) for run, own in had.items()])
    used: set[CellId] = {one.cell for own in had.values() for one in own.anchors}
    places = {run.run_id: place for place, run in enumerate(runs)}
    # Answers from before a change say nothing of another one; and what came before the last run's anchors was used up by then.
    last = list(had)[-1] if had else ""
    begun = min((places[one.run_id] for one in had[last].anchors if one.run_id in places), default=0) if last else 0
    first = max(begun, places[changes[-1].since_run] if changes else 0)
    missing: list[str] = []

    def sources() -> Iterator[Sequence[EarlierCell]]:
        for run in runs[first:]:
            asked = {name: known for name, known in run.judges.items() if name in criteria}
            if not asked:
                continue
            try:
                votes = [vote for listed in run.part(run_id).votes.values() for vote in listed]
            except (TrackingError, InputError) as error:
                missing.append(str(error))
                continue
            cells = cells_of(run.run_id, votes, run.config, asked)
            marks = [(cell.id[1:], (*cell.id[1:3], None, cell.id[-1])) for cell in cells]
            yield [replace(cell, labelled=bool(run.labelled.intersection(mark))) for cell, mark in zip(cells, marks, strict=True)]

    cells = chosen(sources(), run_id, calls, used)
    sha = runs[places[last]].params.get("adk_eval.manifest_sha256", "") if last else ""
    previous = Previous(run_id=last, evidence_sha256=sha) if last else None
    about = JudgeAnchors(judge=judge, criteria=tuple(criteria), previous=previous, planned=len(cells), missing=tuple(missing))
    return about, cells
