"""Whether the judges of a run changed, and which earlier answers a run has them judge again, by the judged runs of its experiment in the store.

A run that ends looks at the latest complete ones (`planned`). Of a run whose cells are chosen, only the files of one part are read, each held against
the manifest. The gate looks at all of them. Parameters vouch for the anchors of each run, and each names the run before it, so that none can be left
out unseen (`_chain_problems`). Of the run that is decided on, the choice of its anchors is made again (`_own_problems`). Where a policy demands
attestations, a run without one is named, and neither its anchors count nor those on its answers. What differences say is the business of
`analysis.drift`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import chain, islice
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import from_json

from mlflow_adk_eval.analysis.drift import PLANNED, Drift, anchors_to_find, changes_of
from mlflow_adk_eval.config.eval_config import EvalConfig, parse_config
from mlflow_adk_eval.errors import ConfigError, InputError, TrackingError, UsageError
from mlflow_adk_eval.evalset.parse import decode
from mlflow_adk_eval.gating.attestation import BUNDLE_PATH, EVALUATION_PATH, attestation_problems
from mlflow_adk_eval.results.report import Cases
from mlflow_adk_eval.runs import anchors as kept
from mlflow_adk_eval.runs.anchors import ANCHORS, Anchors, EarlierCell, JudgeAnchors, KnownJudge
from mlflow_adk_eval.runs.examined import ReadableRun
from mlflow_adk_eval.runs.manifest import CONFIG, FOLDER, MANIFEST, Evidence, read_manifest, sha256
from mlflow_adk_eval.runs.parts import ACTUAL, CASES, VOTES
from mlflow_adk_eval.runs.stored_run import StoredPart
from mlflow_adk_eval.store.reaching import every_page
from mlflow_adk_eval.text import counted

if TYPE_CHECKING:
    from mlflow_adk_eval.gating.policy.model import AttestationPin

MOST_RUNS = 50
"""A run that ends looks at so many complete ones, the latest."""
CALIBRATION = "adk_eval_calibration/calibration.json"
"""The artifact of a run with the labels of its cells."""
_MANIFEST = "adk_eval.manifest_sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a judge, and when the first run after it began."""

    drift: Drift
    since: int
    """Milliseconds since 1970."""
    unsure: tuple[int, ...] = ()
    """The same of each run with which it may have come."""

    def between(self, moments: Iterable[int]) -> bool:
        """Whether some of these moments lie before the change and some after it."""
        return len({moment < self.since for moment in moments}) > 1

    def may_be_between(self, moments: Iterable[int]) -> bool:
        """Whether the change may have come between some of these moments; within `unsure` only the same moment is surely on the same side."""
        first, last = min(self.unsure, default=self.since), max(self.unsure, default=self.since)
        return len({min(max(moment, first - 1), last) for moment in moments}) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeHistory:
    """What the anchors of an experiment say of a judge."""

    judge: str
    changes: tuple[Change, ...] = ()
    runs: int = 0
    """Those with anchors since the last change."""
    anchors: int = 0
    needed: int | None = None
    """After about so many more runs a change by `PLANNED` is found; ``None``: that cannot be said."""
    problems: tuple[str, ...] = ()
    """Why that cannot be relied on, as sentences."""

    def lines(self) -> Iterator[str]:
        """Yield what is known of the judge, as sentences."""
        for change in self.changes:
            yield described(self.judge, change.drift)
        if self.anchors:
            since = " since then" if self.changes else ""
            soon = f"; a change of {PLANNED} that begins now is found after about {counted(self.needed, 'more run')}" if self.needed else ""
            yield f"no change of the judge {self.judge} was found{since}, with {counted(self.anchors, 'answer')} judged again in {counted(self.runs, 'run')}{soon}"


def described(judge: str, drift: Drift) -> str:
    """Return a change as a sentence."""
    low, high = sorted((abs(drift.low), abs(drift.high)))
    low = 0.0 if drift.low * drift.high < 0 else low
    return f"the judge {judge} became {drift.direction} by {abs(drift.size):.2f} ({low:.2f} to {high:.2f}) with run {drift.since_run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeDrift:
    """What is known of changes of the judges of a run."""

    histories: Mapping[str, JudgeHistory]
    """By criterion."""
    evaluations: Mapping[str, int] = field(default_factory=dict[str, int])
    """When each evaluation of the experiment began."""

    def moments(self, run: ReadableRun, criterion: str) -> list[int]:
        """Return when the evaluations began that asked for the votes of a criterion; one that is not known was before all others."""
        asked = {asked_in for name, _, asked_in in run.vote_sources if name == criterion}
        return [run.evidence.start_time or 0 if not each else self.evaluations.get(each, 0) for each in asked or {""}]

    def between(self, criterion: str, least: float, moments: Iterable[int]) -> list[str]:
        """Return the changes between some moments that may be as large as `least`, as sentences."""
        history, known = self.histories.get(criterion), list(moments)
        changes = history.changes if history else ()
        found = [one.drift for one in changes if one.may_be_between(known) and max(abs(one.drift.low), abs(one.drift.high)) >= least]
        return [described(history.judge, drift) for drift in found] if history else []


class RunStore(Protocol):
    """What is asked of `MlflowStore`."""

    client: Any

    def artifact(self, run_id: str, path: str, *others: str) -> bytes | None:
        """Return the first of these artifacts that a run has."""
        ...

    def stage(self, run_id: str) -> str:
        """Return whether a run is ``active`` or ``deleted``."""
        ...


@dataclass(frozen=True, kw_only=True)
class JudgedRun:
    """A run in which judges decided."""

    store: RunStore = field(repr=False)
    run_id: str
    params: Mapping[str, str]
    started: int
    ended: int | None
    complete: bool
    anchors: Anchors | None = None
    """``None``: it has none, or they are not those of its parameter."""
    trouble: str = ""
    """Why neither its anchors count nor those on its answers."""
    _parts: dict[str, StoredPart] = field(default_factory=dict[str, StoredPart], repr=False)

    def of(self, judge: str) -> JudgeAnchors | None:
        """Return the anchors of a judge."""
        return self.anchors.of(judge) if self.anchors else None

    def file(self, name: str, digest: str | None) -> bytes:
        """Return an artifact.

        Raises:
            TrackingError: if it is not the one with this hash.
        """
        content = self.store.artifact(self.run_id, f"{FOLDER}/{name}")
        if content is None or sha256(content) != digest:
            what = f"its {name}" if name == ANCHORS else f"the artifact {FOLDER}/{name}"
            raise TrackingError(f"run {self.run_id}: {what} {'is missing' if content is None else 'was changed after the run'}")
        return content

    def part(self, run_id: str) -> StoredPart:
        """Return the part whose cells the run `run_id` may judge again: the files with its votes, its cases and what the agent did.

        Raises:
            TrackingError: if they are not those of the run.
        """
        if run_id not in self._parts:
            manifest = read_manifest(self.file(MANIFEST, self.params.get(_MANIFEST)))
            if isinstance(manifest, str):
                raise TrackingError(f"run {self.run_id}: {manifest}")
            voted = [part for part in manifest.parts if part.votes] or manifest.parts
            part = min(voted, key=lambda part: kept.order_of(run_id, self.run_id, part.number))
            files = {name: self.file(name, manifest.artifacts.get(name)) for name in map(part.name, (VOTES, CASES, ACTUAL))}
            self._parts[run_id] = StoredPart(part, files, f"run {self.run_id}, {FOLDER}")
        return self._parts[run_id]

    @cached_property
    def labelled(self) -> frozenset[tuple[str, int, int | None, str]]:
        """The cells with a label in the calibration that was kept with the run; a turn that is ``None`` is every turn.

        Labels of a sample do not count. `CellSample` prefers cells whose votes were split, and those vote otherwise the next time with the same judge.
        """
        with suppress(InputError, ValueError):
            if text := self.store.artifact(self.run_id, CALIBRATION):
                from mlflow_adk_eval.analysis.calibration.calibration import load_calibration  # noqa: PLC0415 - few runs have one

                found = load_calibration(from_json(text))
                mine = (one for one in found.labelled if one.run_id in (None, self.run_id) and found.sampled is None)
                return frozenset((one.eval_id, one.run_index, one.invocation_index, one.criterion) for one in mine)
        return frozenset()


def listed_runs(
    store: RunStore, experiment_id: str, until: datetime, pin: AttestationPin | None = None, *, latest: bool = False
) -> list[JudgedRun]:
    """Return the runs of an experiment in which judges decided, with their anchors, the earliest first.

    Args:
        store: where they are.
        experiment_id: the experiment.
        until: runs that began later do not count.
        pin: who must have attested them; ``None``: nobody.
        latest: only `MOST_RUNS` complete ones, by one request.
    """
    wanted = f"params.`adk_eval.judge_model` LIKE '%' and attributes.start_time <= {int(until.timestamp() * 1000)}"
    wanted += " and tags.`adk_eval.status` = 'complete' and attributes.status = 'FINISHED'" if latest else ""
    order, most = ["attributes.start_time DESC"], MOST_RUNS if latest else 1000
    found = every_page(lambda token: store.client.search_runs([experiment_id], wanted, max_results=most, order_by=order, page_token=token))
    return [_judged_run(store, run, pin) for run in islice(found, MOST_RUNS if latest else None)][::-1]


def _judged_run(store: RunStore, found: Any, pin: AttestationPin | None) -> JudgedRun:
    info, params, tags = found.info, found.data.params, found.data.tags
    complete = tags.get("adk_eval.status") == "complete" and info.status == "FINISHED"
    started, ended, run_id = info.start_time or 0, info.end_time, info.run_id
    run = JudgedRun(store=store, run_id=run_id, params=params, started=started, ended=ended, complete=complete)
    try:
        if kept.ANCHORS_PARAM in params:
            run = replace(run, anchors=kept.read_anchors(run.file(ANCHORS, params[kept.ANCHORS_PARAM]), f"run {run_id}, {ANCHORS}"))
    except TrackingError as error:
        return replace(run, trouble=str(error))
    except InputError as error:
        return replace(run, trouble=f"{error.source} cannot be read: {error.problems[0]}")
    if pin:
        manifest, attestation = store.artifact(run_id, f"{FOLDER}/{MANIFEST}"), store.artifact(run_id, EVALUATION_PATH, BUNDLE_PATH)
        evidence = Evidence(run_id=run_id, status=info.status, params=params, manifest=manifest, attestation=attestation)
        if problems := attestation_problems(pin.model_copy(update={"source": "optional"}), evidence):
            return replace(run, trouble=f"run {run_id} does not count: {problems[0]}")
    return run


def planned(
    runs: Sequence[JudgedRun], config: EvalConfig, judges: Mapping[str, KnownJudge], judge: str, run_id: str, cases: Cases
) -> tuple[JudgeAnchors, list[EarlierCell]]:
    """Return the anchors of a judge before it is asked, and the cells to ask about.

    Args:
        runs: the judged runs before, the earliest first.
        config: of the run that asks.
        judges: who decides in it, by criterion.
        judge: the judge.
        run_id: the run that asks.
        cases: its results.
    """
    criteria = [name for name, known in judges.items() if known.judge == judge]
    had = {run.run_id: own for run in runs if (own := run.of(judge))}
    changes, _ = changes_of([(run, [(one.run_id, one.difference) for one in own.anchors]) for run, own in had.items()])
    places = {run.run_id: place for place, run in enumerate(runs)}
    # Answers from before a change say nothing of another one; and what came before the last run's anchors was used up by then.
    last = next(reversed(had), None)
    begun = min((places[one.run_id] for one in had[last].anchors if one.run_id in places), default=0) if last else 0
    configs, missing = {config.digest(): config}, list[str]()

    def sources() -> Iterator[Sequence[EarlierCell]]:
        for run in runs[max(begun, places[changes[-1].since_run] if changes else 0) :]:
            digest, source = run.params.get("adk_eval.config_digest", ""), f"run {run.run_id}, {CONFIG}"
            try:
                if digest not in configs:
                    content = run.store.artifact(run.run_id, f"{FOLDER}/{CONFIG}") or b""
                    read = parse_config(decode(content, source, error=ConfigError), source, stored=True)
                    configs[read.digest()] = read
                asked = kept.judges_of(configs[digest], run.params) if digest in configs else {}
                same = {name: known for name, known in asked.items() if name in criteria and judges[name] == known}
                votes = chain.from_iterable(run.part(run_id).votes.values()) if same else ()
            except (TrackingError, InputError) as error:
                missing.append(str(error))
                continue
            if same:
                cells = kept.cells_of(run.run_id, votes, configs[digest], same)
                marks = [(cell.id[1:], (*cell.id[1:3], None, cell.id[-1])) for cell in cells]
                yield [replace(cell, labelled=bool(run.labelled.intersection(mark))) for cell, mark in zip(cells, marks, strict=True)]

    votes = (vote for case in cases for result in case.results for vote in result.votes)
    calls = kept.calls_allowed(votes, criteria, config.anchor_share)
    cells = kept.chosen(sources(), run_id, calls, {one.cell for own in had.values() for one in own.anchors})
    previous = kept.Previous(run_id=last, evidence_sha256=runs[places[last]].params.get(_MANIFEST, "")) if last else None
    return JudgeAnchors(judge=judge, criteria=tuple(criteria), previous=previous, planned=len(cells), missing=tuple(missing)), cells


def drift_of_listed(store: RunStore, run: ReadableRun, listed: Sequence[JudgedRun], pin: AttestationPin | None = None) -> JudgeDrift:
    """Return what the runs of an experiment say of the judges of one of them; `pin`: who must have attested those."""
    judges, histories = kept.judges_of(run.report.config, run.evidence.params), dict[str, JudgeHistory]()
    for judge in dict.fromkeys(known.judge for known in judges.values()):
        problems = (*_chain_problems(store, listed, judge), *_own_problems(run, judges, judge, listed))
        histories[judge] = replace(history_of(listed, judge, pin), problems=problems)
    began = {one.params["adk_eval.evaluation"]: one.started for one in listed if "adk_eval.evaluation" in one.params}
    return JudgeDrift(histories={name: histories[known.judge] for name, known in judges.items()}, evaluations=began)


def history_of(listed: Sequence[JudgedRun], judge: str, pin: AttestationPin | None = None) -> JudgeHistory:
    """Return what anchors say of a judge. Each cell counts once, and only votes that the run's own evaluation asked for."""
    known, counting = {one.run_id: one for one in listed}, dict[tuple[Any, ...], tuple[str, kept.Anchor]]()
    for one in listed:
        own = None if one.trouble else one.of(judge)
        for each in own.anchors if own else ():
            credible = not known[each.run_id].trouble if each.run_id in known else pin is None
            if credible and each.asked_in == one.params.get("adk_eval.evaluation"):
                counting.setdefault(each.cell, (one.run_id, each))
    runs = {run_id: list[tuple[str, float]]() for run_id in known}
    for run_id, each in counting.values():
        runs[run_id].append((each.run_id, each.difference))
    changes, rest = changes_of(list(runs.items()))
    since = known[changes[-1].since_run].started if changes else -1
    with_anchors = sum(bool(some) and known[run_id].started > since for run_id, some in runs.items())
    needed = anchors_to_find(rest, with_anchors) if rest else None
    began = {run_id: one.started for run_id, one in known.items()}
    needed = ceil(needed * with_anchors / len(rest)) if needed else None
    dated = tuple(Change(drift=one, since=began[one.since_run], unsure=tuple(began[run] for run in one.unsure)) for one in changes)
    return JudgeHistory(judge=judge, changes=dated, runs=with_anchors, anchors=len(rest), needed=needed)


def _chain_problems(store: RunStore, listed: Sequence[JudgedRun], judge: str) -> Iterator[str]:
    """Yield where runs with anchors of a judge are missing, and where anchors are not what they should be."""
    yield from (one.trouble for one in listed if one.trouble and (one.anchors is None or one.of(judge)))
    known, linked = {one.run_id: one for one in listed}, [(one, own) for one in listed if (own := one.of(judge))]
    for one, own in linked:
        done = [other for other, _ in linked if other.ended is not None and other.ended <= one.started]
        previous = own.previous
        if previous is None:
            if done:
                yield f"run {one.run_id} leaves out the anchors of the runs before it, such as {done[-1].run_id}"
        elif previous.run_id not in known:
            fate = "which does not exist"
            with suppress(UsageError):
                deleted = store.stage(previous.run_id) == "deleted"
                fate = "which was deleted" if deleted else "which is not among the judged runs of the experiment"
            yield f"run {one.run_id} follows run {previous.run_id}, {fate}"
        elif known[previous.run_id].params.get(_MANIFEST) != previous.evidence_sha256:
            yield f"run {one.run_id} follows run {previous.run_id}, whose evidence is another one now"
        elif done and known[previous.run_id].started < done[-1].started:
            yield f"run {one.run_id} leaves out the anchors of run {done[-1].run_id}"
        if elsewhere := [each.asked_in for each in own.anchors if each.asked_in != one.params.get("adk_eval.evaluation")]:
            yield f"run {one.run_id} has {counted(len(elsewhere), 'anchor')} for which another evaluation asked ({elsewhere[0]})"


def _own_problems(run: ReadableRun, judges: Mapping[str, KnownJudge], judge: str, listed: Sequence[JudgedRun]) -> Iterator[str]:
    """Yield why a run's own anchors say too little, and that they are not those that the hash of its id chooses, where that can be told.

    It cannot while another run overlaps with this one, or once answers of the runs before it were labelled, as both change the choice.
    """
    config, run_id = run.report.config, run.evidence.run_id
    mine = next((one for one in listed if one.run_id == run_id), None)
    own = mine.of(judge) if mine else None
    if not config.anchor_share:
        yield f"run {run_id} has no anchors, because its config turns them off"
    elif own is None and not (mine and mine.trouble):
        yield f"run {run_id} leaves out the anchors of the judge {judge}, which its config asks for"
    elif own and own.planned > 2 * len(own.anchors):
        yield f"run {run_id} has only {len(own.anchors)} of {counted(own.planned, 'anchor')}: {'; '.join(dict.fromkeys(own.missing))}"
    if mine is None or own is None:
        return
    others = [one for one in listed if one is not mine]
    if any(mine.started <= (one.ended or one.started) and one.started <= (mine.ended or one.started) for one in others):
        return
    runs = [one for one in others if one.complete and one.started < mine.started][-MOST_RUNS:]
    try:
        _, cells = planned(runs, config, judges, judge, run_id, run.report.cases)
    except (TrackingError, InputError) as error:
        yield str(error)
        return
    wanted, found = {cell.id for cell in cells}, {anchor.cell for anchor in own.anchors}
    if (found - wanted or len(wanted) > own.planned) and not any(one.labelled for one in runs):
        yield f"run {run_id} has other anchors of the judge {judge} than the hash of its id chooses: {len(found - wanted)} of {len(found)}, {len(wanted)} wanted"
