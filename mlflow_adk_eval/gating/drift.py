"""Whether the judges of a run changed, by the anchors of all runs of its experiment, and whether those can be believed.

Parameters vouch for the anchors of each run, and each names the run before it, so that none can be left out unseen (`_chain_problems`). Of the run that is
decided on, the choice of its anchors is made again (`_choice_problems`). What the differences say is the business of `analysis.drift`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Any

from mlflow_adk_eval.analysis.drift import PLANNED, Drift, anchors_to_find, changes_of
from mlflow_adk_eval.errors import InputError, TrackingError, UsageError
from mlflow_adk_eval.gating.anchors import past_runs, planned
from mlflow_adk_eval.runs.anchors import ANCHORS, ANCHORS_PARAM, Anchors, JudgeAnchors, calls_allowed, judges_of, read_anchors
from mlflow_adk_eval.runs.examined import ReadableRun
from mlflow_adk_eval.runs.manifest import FOLDER, sha256
from mlflow_adk_eval.text import counted

if TYPE_CHECKING:
    from mlflow_adk_eval.gating.registry import MlflowStore

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
        asked = {asked_in for name, _, asked_in in run.documents.vote_sources if name == criterion}
        return [run.evidence.start_time or 0 if not each else self.evaluations.get(each, 0) for each in asked or {""}]

    def between(self, criterion: str, least: float, moments: Iterable[int]) -> list[str]:
        """Return the changes between some moments that may be as large as `least`, as sentences."""
        history, known = self.histories.get(criterion), list(moments)
        changes = history.changes if history else ()
        found = [one.drift for one in changes if one.may_be_between(known) and max(abs(one.drift.low), abs(one.drift.high)) >= least]
        return [described(history.judge, drift) for drift in found] if history else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """A run in which judges decided, with its anchors."""

    run_id: str
    params: Mapping[str, str]
    started: int
    ended: int | None
    anchors: Anchors | None
    trouble: str = ""
    """Why its anchors cannot be believed."""

    def of(self, judge: str) -> JudgeAnchors | None:
        """Return the anchors of a judge."""
        return self.anchors.of(judge) if self.anchors else None


def drift_in(store: MlflowStore, run: ReadableRun, now: datetime) -> JudgeDrift:
    """Return what is known of the judges of a run by a moment.

    Args:
        store: where its experiment is.
        run: the run.
        now: runs that began later do not count.
    """
    if not run.evidence.run_id:
        return JudgeDrift(histories={})
    return drift_of_listed(store, run, listed_runs(store, store.experiment_of(run.evidence.run_id), now))


def listed_runs(store: MlflowStore, experiment_id: str, now: datetime) -> list[ListedRun]:
    """Return the runs of an experiment in which judges decided, with their anchors, the earliest first."""
    listed = list[ListedRun]()
    token: str | None = None
    wanted = f"params.`adk_eval.judge_model` LIKE '%' and attributes.start_time <= {int(now.timestamp() * 1000)}"
    while True:
        page = store.client.search_runs([experiment_id], wanted, order_by=["attributes.start_time ASC"], max_results=1000, page_token=token)
        listed += [_listed(store, one) for one in page]
        token = page.token or None
        if token is None:
            return listed


def drift_of_listed(store: MlflowStore, run: ReadableRun, listed: Sequence[ListedRun]) -> JudgeDrift:
    """Return what the runs of an experiment say of the judges of one of them."""
    judges, histories = judges_of(run.documents.config, run.evidence.params), dict[str, JudgeHistory]()
    for judge in dict.fromkeys(known.judge for known in judges.values()):
        problems = (
            *_chain_problems(store, listed, judge),
            *_own_problems(run, judge, listed),
            *_choice_problems(store, run, judge, listed),
        )
        histories[judge] = history_of(listed, judge, problems)
    began = {one.params["adk_eval.evaluation"]: one.started for one in listed if "adk_eval.evaluation" in one.params}
    return JudgeDrift(histories={name: histories[known.judge] for name, known in judges.items()}, evaluations=began)


def _listed(store: MlflowStore, found: Any) -> ListedRun:
    run_id, params, anchors, trouble = found.info.run_id, found.data.params, None, ""
    if ANCHORS_PARAM in params:
        text = store.artifact(run_id, f"{FOLDER}/{ANCHORS}")
        if text is None or sha256(text) != params[ANCHORS_PARAM]:
            trouble = f"run {run_id}: its {ANCHORS} {'is missing' if text is None else 'was changed after the run'}"
        else:
            try:
                anchors = read_anchors(text, f"run {run_id}, {ANCHORS}")
            except InputError as error:
                trouble = f"{error.source} cannot be read: {error.problems[0]}"
    info = found.info
    return ListedRun(run_id=run_id, params=params, started=info.start_time or 0, ended=info.end_time, anchors=anchors, trouble=trouble)


def history_of(listed: Sequence[ListedRun], judge: str, problems: Iterable[str] = ()) -> JudgeHistory:
    """Return what anchors say of a judge. Each cell counts once, and only votes that the run's own evaluation asked for."""
    used, runs = set[tuple[Any, ...]](), list[tuple[str, list[tuple[str, float]]]]()
    for one in listed:
        own = one.of(judge)
        free = [
            each
            for each in (own.anchors if own else ())
            if each.cell not in used and each.asked_in == one.params.get("adk_eval.evaluation")
        ]
        used |= {each.cell for each in free}
        runs.append((one.run_id, [(each.run_id, each.difference) for each in free]))
    changes, rest = changes_of(runs)
    started = {one.run_id: one.started for one in listed}
    since = started[changes[-1].since_run] if changes else -1
    with_anchors = sum(bool(some) for run_id, some in runs if started[run_id] > since)
    needed = anchors_to_find(rest, with_anchors) if rest else None
    return JudgeHistory(
        judge=judge,
        changes=tuple(
            Change(drift=one, since=started[one.since_run], unsure=tuple(map(started.__getitem__, one.unsure))) for one in changes
        ),
        runs=with_anchors,
        anchors=len(rest),
        needed=ceil(needed * with_anchors / len(rest)) if needed else None,
        problems=tuple(problems),
    )


def _chain_problems(store: MlflowStore, listed: Sequence[ListedRun], judge: str) -> Iterator[str]:
    """Yield where runs with anchors of a judge are missing, and where anchors are not what they should be."""
    yield from (one.trouble for one in listed if one.trouble)
    with_anchors = [one for one in listed if one.of(judge)]
    known = {one.run_id: one for one in listed}
    for one in with_anchors:
        own = one.of(judge)
        previous = own.previous if own else None
        done = [other for other in with_anchors if other.ended is not None and other.ended <= one.started]
        if previous is None:
            if done:
                yield f"run {one.run_id} leaves out the anchors of the runs before it, such as {done[-1].run_id}"
        elif previous.run_id not in known:
            yield f"run {one.run_id} follows run {previous.run_id}, {_fate(store, previous.run_id)}"
        elif known[previous.run_id].params.get(_MANIFEST) != previous.evidence_sha256:
            yield f"run {one.run_id} follows run {previous.run_id}, whose evidence is another one now"
        elif done and known[previous.run_id].started < done[-1].started:
            yield f"run {one.run_id} leaves out the anchors of run {done[-1].run_id}"
        elsewhere = [each for each in (own.anchors if own else ()) if each.asked_in != one.params.get("adk_eval.evaluation")]
        if elsewhere:
            yield f"run {one.run_id} has {counted(len(elsewhere), 'anchor')} for which another evaluation asked ({elsewhere[0].asked_in})"


def _fate(store: MlflowStore, run_id: str) -> str:
    try:
        evidence = store.stage(run_id)
    except UsageError:
        return "which does not exist"
    return "which was deleted" if evidence == "deleted" else "which is not among the judged runs of the experiment"


def _own_problems(run: ReadableRun, judge: str, listed: Sequence[ListedRun]) -> Iterator[str]:
    """Yield why a run's own anchors say too little."""
    mine = next((one for one in listed if one.run_id == run.evidence.run_id), None)
    if not run.documents.config.anchor_share:
        yield f"run {run.evidence.run_id} has no anchors, because its config turns them off"
    elif mine is None or (mine.of(judge) is None and not mine.trouble):
        yield f"run {run.evidence.run_id} leaves out the anchors of the judge {judge}, which its config asks for"
    elif (own := mine.of(judge)) and own.planned > 2 * len(own.anchors):
        yield f"run {run.evidence.run_id} has only {len(own.anchors)} of {counted(own.planned, 'anchor')}: {'; '.join(dict.fromkeys(own.missing))}"


def _choice_problems(store: MlflowStore, run: ReadableRun, judge: str, listed: Sequence[ListedRun]) -> Iterator[str]:
    """Yield that a run's anchors are not those that the hash of its id chooses, where that can be told.

    It cannot while another run overlaps with this one, or once answers of the runs before it were labelled, as both change the choice.
    """
    mine = next((one for one in listed if one.run_id == run.evidence.run_id), None)
    own = mine.of(judge) if mine else None
    if (
        mine is None
        or own is None
        or any(
            one is not mine and mine.started <= (one.ended or one.started) and one.started <= (mine.ended or one.started) for one in listed
        )
    ):
        return
    config, run_id = run.documents.config, mine.run_id
    judges = judges_of(config, run.evidence.params)
    criteria = [name for name, known in judges.items() if known.judge == judge]
    before = {one.run_id for one in listed if one.started < mine.started}
    runs = [one for one in past_runs(store, store.experiment_of(run_id), config, judges, until=mine.started) if one.run_id in before]
    votes = chain.from_iterable(result.votes for case in run.report.cases for result in case.results)
    try:
        _, cells = planned(runs, judge, criteria, run_id, calls_allowed(votes, criteria, config.anchor_share))
    except (TrackingError, InputError) as error:
        yield str(error)
        return
    wanted, found = {cell.id for cell in cells}, {anchor.cell for anchor in own.anchors}
    if (found - wanted or len(wanted) > own.planned) and not any(one.labelled for one in runs):
        yield f"run {run_id} has other anchors of the judge {judge} than the hash of its id chooses: {len(found - wanted)} of {len(found)}, {len(wanted)} wanted"
