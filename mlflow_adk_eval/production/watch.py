"""Watching production: a look scores what is new, and says whether the agent still is as good as it was when it was promoted.

    levels_of ──> levels ──┐
    last_look ──> state ───┴─> look: score_traces ── added ──> state ── judged again ──> alarms, kept with the run

What is known between looks (`State`) is an artifact of the latest look's run: there is no file of this machine to lose. It is written before the scores
are, so that a look that is killed before counts for nothing and is made again, and one that is killed after is not counted twice.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from statistics import fmean
from typing import Any, Literal

from mlflow_adk_eval.config.eval_config import EvalConfig, judged_criteria
from mlflow_adk_eval.errors import InputError, OutputError, RunError, UsageError
from mlflow_adk_eval.evalset.files import select
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.gating.named_runs import run_id_of
from mlflow_adk_eval.gating.registry import MlflowStore, store_at
from mlflow_adk_eval.judge.setup import JudgeArgs
from mlflow_adk_eval.production.alarms import HIGHEST, LOWEST, Drawn, Watched
from mlflow_adk_eval.production.score import ScoredTraces, Since, moment_of, score_traces, verdicts_of
from mlflow_adk_eval.production.telling import ALARM, check_webhook, give_metrics, send, show_in_mlflow
from mlflow_adk_eval.results.outcomes import grouped
from mlflow_adk_eval.runner.keywords import selected
from mlflow_adk_eval.runs.examined import readable
from mlflow_adk_eval.store.reaching import reaching_mlflow
from mlflow_adk_eval.text import counted
from mlflow_adk_eval.tracking.capture import experiment_there
from mlflow_adk_eval.tracking.client import connect
from mlflow_adk_eval.tracking.evaluate import evaluate

_logger = logging.getLogger(__name__)

STATE = "adk_eval_production/watch.json"
"""The artifact of a look with what is known since."""
TOLD = "adk_eval.alarm_told"
"""The tag of a look whose alarms the webhook took."""
_KIND, _EARLIER, _MOST_LOOKS = "watch", 250, 200
MOST_UNDECIDED = 0.1
"""A look with a larger share of conversations without a verdict is incomplete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The shares of conversations that are to pass."""

    name: str
    """What they are taken from, and for which version: by others, a watch starts again."""
    by_criterion: Mapping[str, float]
    run_id: str = ""
    """The run; empty: it is a number."""
    cases: int = 0
    """How many conversations it has."""
    since_ms: int = 0
    """When the version that is watched got its alias."""
    notes: tuple[str, ...] = ()
    """Which criteria it says nothing of, as sentences."""
    version: tuple[str, str] | None = None
    """The registered model and its version that is watched, if that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is known after a look."""

    schema: Literal[1] = 1
    about: str
    """What is watched: the config, and the filter."""
    level: str
    """What the levels are taken from."""
    until_ms: int = 0
    """The end of what was looked at, by the clock of the machine that looked; 0: nothing was."""
    earlier: Mapping[str, int] = field(default_factory=dict[str, int])
    """Runs whose conversations are judged again if a judge may have changed, each with how many it has."""
    watched: tuple[Watched, ...]

    @property
    def alarms(self) -> list[Watched]:
        """What has an open alarm."""
        return [one for one in self.watched if one.cause]

    @property
    def alarm(self) -> str:
        """The open alarms as sentences; empty: there is none."""
        return "; ".join(f"{one.alarm} (run {one.run_id})" for one in self.alarms)

    @property
    def told(self) -> list[dict[str, str | None]]:
        """The open alarms as JSON values."""
        names = ("criterion", "part", "cause", "alarm", "run_id")
        return [{name: getattr(one, name) for name in names} for one in self.alarms]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look found."""

    scored: ScoredTraces
    state: State
    notes: tuple[str, ...] = ()
    untold: str = ""
    """Why the webhook does not know of an alarm; empty: it does, or there is none."""

    @property
    def open_questions(self) -> list[str]:
        """Why this look alone does not show that all is well, as sentences."""
        unclear = [one.criterion or "all criteria" for one in self.state.watched if one.suspected(len(self.state.watched))]
        named = [f"{name}: fewer conversations pass, and it is not known yet whether the agent or the judge changed" for name in unclear]
        for name, rate in self.scored.rates.items():
            if rate.missing > MOST_UNDECIDED * (drawn := rate.evaluated + rate.missing):
                named.append(f"{rate.missing:,} of {drawn:,} conversations have no verdict of {name or 'all criteria'}")
        if self.scored.report is None:
            named += [f"no conversation could be read: {reason}" for reason in self.scored.unreadable[:1]]
        return named + ([self.untold] if self.untold else [])

    @property
    def exit_code(self) -> int:
        """4: an alarm was not told; 1: there is one about the agent; 2: one about a judge, or an open question; else 0."""
        accused = any(one.cause == "agent" for one in self.state.alarms)
        return OutputError.exit_code if self.untold else 1 if accused else 2 if self.state.alarms or self.open_questions else 0


def levels_of(
    level: str | None, config: EvalConfig, *, model: str | None = None, alias: str = "champion", tracking_uri: str | None = None
) -> Levels:
    """Return the levels that a number or a run sets.

    Args:
        level: a share, for all criteria, or a run, whose shares count; ``None``: the run on which the version was promoted that holds `alias`.
        config: what is scored by. A run says something of the criteria that it has with the same settings.
        model: the registered model that is watched; ``None``: none.
        alias: the alias.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        UsageError: if there is no such run, it cannot be believed, or it says nothing of any criterion.
        TrackingError: if MLflow is unreachable.
    """
    if level is None and model is None:
        raise UsageError("watch: name the level, such as --level 0.9, or the registered model that is in production: --model NAME")
    if not (names := list(config.deciding_thresholds())):
        raise UsageError("watch: no criterion of the config decides: every possible score reaches their thresholds, so nothing can fall")
    names = names if len(names) == 1 else ["", *names]
    levels = Levels(name=level or "", by_criterion={})
    with store_at(tracking_uri) as store:
        if model is not None:
            if (holder := store.holder(model, alias)) is None:
                raise UsageError(f"the registered model {model!r} has no alias {alias}")
            moves = store.claim_log(model, alias).moves(holder)
            since_ms = int(moves[-1].claim.at.timestamp() * 1000) if moves else 0
            name = f"{level or alias} for version {holder.number} of {model}"
            levels = replace(levels, name=name, version=(model, holder.number), since_ms=since_ms)
        if level and re.fullmatch(r"\d{0,3}\.?\d{1,6}", level):  # no run has so short an id
            if not LOWEST <= (share := float(level)) <= 1:
                raise UsageError(f"--level {level}: wanted a share from {LOWEST} to 1, or a run")
            return replace(levels, by_criterion=dict.fromkeys(names, share))
        run_id = run_id_of(level or f"models:/{model}@{alias}", store, model=model)
        rates, cases = _rates_of(store, run_id, config)
    known = {name: rates[name] for name in names if rates.get(name, 0.0) >= LOWEST}
    why = f"run {run_id} sets no level of it by the same settings; use the config of that run, or --level with a number"
    notes = tuple(f"{name} is not watched: {why}" for name in names if name and name not in known)
    if not known:
        raise UsageError(notes[0])
    return replace(levels, name=f"{levels.name} by run {run_id}", by_criterion=known, run_id=run_id, cases=cases, notes=notes)


def _rates_of(store: MlflowStore, run_id: str, config: EvalConfig) -> tuple[dict[str, float], int]:
    """Return which share of a run passed each criterion that it has with the same settings, and all if these are all; and how many cases it has."""
    run = readable(store.evidence(run_id), lambda why: UsageError(f"run {run_id} sets no level: {why}"))
    mine, theirs = config.to_json(), run.report.config.to_json()
    kinds = ("criteria", "custom_metrics")
    same = {name for name in mine["criteria"] if all(mine.get(kind, {}).get(name) == theirs.get(kind, {}).get(name) for kind in kinds)}
    cases, passed = run.report.case_counts
    rates = {"": passed / cases, **{name: summary.pass_rate for name, summary in run.report.summaries().items()}}
    # Of a sample of production some conversations were drawn more often than others.
    metrics = run.evidence.metrics
    rates = {name: metrics.get(f"production/{name}/pass_rate" if name else "production/pass_rate", rate) for name, rate in rates.items()}
    whole = same == mine["criteria"].keys() == theirs["criteria"].keys()
    return {name: rate for name, rate in rates.items() if rate is not None and (name in same or (whole and not name))}, cases


def last_look(store: MlflowStore, experiment_id: str, about: str) -> tuple[str, State | None]:
    """Return the run of the latest look whose state can be read, and that state; ``None`` where there was no look at what is watched.

    Args:
        store: where the looks are.
        experiment_id: the experiment with the traces.
        about: what is watched.
    """
    wanted = f"params.`adk_eval.production` = '{_KIND}'"
    for run in store.client.search_runs([experiment_id], wanted, max_results=_MOST_LOOKS, order_by=["attributes.start_time DESC"]):
        run_id = str(run.info.run_id)
        try:
            kept = store.artifact(run_id, STATE)  # none of a look that was killed, which is made again
            state = parse(State, kept, f"run {run_id}, {STATE}") if kept is not None else None
        except InputError as error:
            _logger.warning("%s cannot be read, so the look before it counts: %s", error.source, error.problems[0])
            continue
        if state and state.about == about and state.until_ms > time.time() * 1000:
            _logger.warning("run %s, %s claims to have looked into the future, so the look before it counts", run_id, STATE)
        elif state and state.about == about:
            return run_id, state
    return "", None


def added(state: State, scored: ScoredTraces) -> State:
    """Return what is known once the conversations of a look are counted. One without a verdict counts as passed: it must not cause an alarm."""
    if scored.report is None or scored.began_ms < state.until_ms:
        return state  # it was counted before, and ended while scores were written
    strata = {case.eval_id: case.tags[0] for case in scored.report.eval_set.eval_cases}
    failures = [(case.eval_id, name) for case in scored.report.cases for name, passed in verdicts_of(case).items() if passed is False]
    watched: list[Watched] = []
    for one in state.watched:
        failed = [eval_id for eval_id, name in failures if name == one.criterion]
        if one.part:  # of how many conversations of a stratum have it, nothing is known
            name, _, value = one.part.partition("=")
            have = {eval_id for eval_id in scored.at_random if scored.facts.get(eval_id, {}).get(name) == value}
            seen = [Drawn(len(have), len(have), len(have.intersection(failed)))]
        else:
            by_stratum = Counter(strata[eval_id] for eval_id in failed)
            seen = [Drawn(each.conversations, each.drawn, by_stratum[each.name]) for each in scored.strata]
        watched.append(one.after(seen))
    earlier = dict(state.earlier)
    if sum(earlier.values()) < _EARLIER and not any(one.suspected(len(watched)) for one in watched):
        earlier[str(scored.report.run_id)] = len(scored.report.cases)
    return replace(state, watched=tuple(watched), earlier=earlier, until_ms=scored.ended_ms)


def accused(state: State, scored: ScoredTraces, again: Callable[[], Mapping[str, Sequence[float]]]) -> State:
    """Return what is known once it is clear who changed, where that can be.

    Args:
        state: after the look was counted.
        scored: the look.
        again: judges earlier conversations again, and returns the new verdicts on each criterion less the old ones.
    """
    keys, earlier = len(state.watched), min(sum(state.earlier.values()), _EARLIER)
    asking = any(one.judged and one.worth_asking(keys, earlier) for one in state.watched)
    differences, watched = again() if asking else {}, list[Watched]()
    for one in state.watched:
        changed, gaps = one, differences.get(one.criterion, ())
        if one.judged and gaps and one.worth_asking(keys, earlier):
            changed = one.judged_again(keys, gaps)
        elif not one.judged and one.suspected(keys):
            changed = replace(one, cause="agent")
        if changed.cause and not one.cause and scored.report:
            rate, name = scored.rates.get(one.criterion), (one.criterion or "all criteria") + (f" of {one.part}" if one.part else "")
            now = f"; it was {rate.value:.1%} in the last look" if rate and rate.value is not None and not one.part else ""
            alarm = f"{name}: fewer than {one.level:.1%} of conversations pass{now}"
            if changed.cause == "judge":
                size = f"{-fmean(gaps):.1%} fewer of {counted(len(gaps), 'earlier conversation')} pass than before"
                alarm = f"{name}: the judge became stricter, and the agent is not accused: {size}"
            changed = replace(changed, alarm=alarm, run_id=str(scored.report.run_id))
        watched.append(changed)
    return replace(state, watched=tuple(watched))


def _cannot_judge(run_id: str, why: str) -> UsageError:
    return UsageError(f"run {run_id} cannot be judged again: {why}")


def judged_again(
    runs: Iterable[str], config: EvalConfig, experiment_id: str, judges: Mapping[str, Any], uri: str | None = None
) -> dict[str, list[float]]:
    """Judge conversations of earlier runs again, and return the new verdicts on each criterion less the old ones: −1, 0 or 1.

    Args:
        runs: the runs.
        config: the criteria.
        experiment_id: where the new runs are.
        judges: the judges, as for `evaluate`.
        uri: the MLflow server or store; ``None``: MLflow's own setting.
    """
    gaps, left = list[tuple[str, float]](), _EARLIER
    how: dict[str, Any] = {"experiment": experiment_id, "run_name": "judged again, as too many failed", "traces": False, **judges}
    for run_id in runs:
        with store_at(uri) as store:
            evidence = store.evidence(run_id)
        run = readable(evidence, partial(_cannot_judge, run_id))
        old = {case.eval_id: verdicts_of(case) for case in run.report.cases if not case.run_index}
        old = dict(islice(old.items(), left))
        left -= len(old)
        new = evaluate(select(run.report.eval_set, old), f"runs:/{run_id}", config, tracking_uri=uri, **how)
        for case in new.cases:
            pairs = ((name, old[case.eval_id].get(name), passed) for name, passed in verdicts_of(case).items())
            gaps += [(name, float(after) - before) for name, before, after in pairs if before is not None and after is not None]
        if left <= 0:
            break
    return grouped(gaps)


def look(
    experiment: str | None,
    config: EvalConfig,
    levels: Levels,
    *,
    since: Since = "24h",
    settle: Since = "30m",
    parts: Iterable[str] = (),
    acknowledge: bool = False,
    webhook: str | None = None,
    **options: Any,
) -> Look:
    """Score what is new since the last look, and tell whether the levels are still met.

    Args:
        experiment: the experiment with the traces, by name or id; ``None``: the active one.
        config: what is scored by.
        levels: the shares that are to pass.
        since: where the first look begins.
        settle: how old a trace must be, so that its conversation has come to its end.
        parts: tags or metadata with a value, such as ``language=de``; the traces that have it are watched apart as well.
        acknowledge: whether to close open alarms, so that what they are about is watched again.
        webhook: the address that is told of new alarms; ``None``: none.
        options: how much is scored, and how, as for `score_traces`.

    Raises:
        UsageError: for invalid arguments.
        TrackingError: if MLflow is unreachable.
    """
    uri, notes, now_ms = options.get("tracking_uri"), list[str](), int(time.time() * 1000)
    if bad := next((part for part in parts if not all(part.partition("=")[::2])), None):
        raise UsageError(f"--slice {bad}: wanted NAME=VALUE, such as language=de")
    if webhook:
        check_webhook(webhook)
    client, parts = connect(uri), ("", *sorted(set(parts)))
    about, judged = f"{config.digest()} {options.get('filter_string') or ''} {' '.join(parts)}", judged_criteria(config)
    with store_at(uri) as store:
        experiment_id = experiment_there(client, experiment)
        last_run, last = last_look(store, experiment_id, about)
    watched = tuple(
        Watched(criterion=name, level=min(level, HIGHEST), judged=name in judged or (not name and bool(judged)), part=part)
        for part in parts
        for name, level in levels.by_criterion.items()
    )
    if last and last.level == levels.name and tuple(one.reset() for one in last.watched) == watched:
        state = last
    else:
        earlier = {levels.run_id: levels.cases} if levels.run_id else {}
        state = State(about=about, level=levels.name, until_ms=last.until_ms if last else 0, earlier=earlier, watched=watched)
    if acknowledge and state.alarms:
        # A judge that changed is the one that counts now: what it said before says nothing of its next change.
        kept = {} if any(one.cause == "judge" for one in state.alarms) else state.earlier
        state = replace(state, earlier=kept, watched=tuple(one.reset() if one.cause else one for one in state.watched))
        with reaching_mlflow("the alarms could not be closed"):
            client.log_dict(last_run, asdict(state), STATE)

    def again() -> Mapping[str, Sequence[float]]:
        try:
            return judged_again(state.earlier, config, experiment_id, selected(options, JudgeArgs), uri)
        except (UsageError, RunError) as error:
            notes.append(f"earlier conversations could not be judged again: {error}")
            return {}

    def keep(scored: ScoredTraces) -> None:
        nonlocal state
        if scored.report and (after := added(state, scored)) is not state:
            state = accused(after, scored, again)
            with reaching_mlflow(f"run {scored.report.run_id} is complete, but not what the look found; run the same command again"):
                client.log_dict(run_id := str(scored.report.run_id), asdict(state), STATE)
                if new := "; ".join(one.alarm for one in state.alarms if one.run_id == run_id):
                    client.set_tag(run_id, ALARM, new)

    began_ms = max(state.until_ms or moment_of(since, "since", now_ms) or 0, levels.since_ms)
    ended_ms = max(began_ms, moment_of(settle, "settle", now_ms) or now_ms)
    scored = score_traces(
        experiment_id,
        config,
        since=datetime.fromtimestamp((began_ms + 0.5) / 1000, UTC),
        until=datetime.fromtimestamp((ended_ms + 0.5) / 1000, UTC),
        again=True,  # or else whoever scores some traces chooses which ones are not watched
        facts=sorted({part.partition("=")[0] for part in parts if part}),
        kind=_KIND,
        before_writing=keep,
        **options,
    )
    with reaching_mlflow("the alarms could not be shown in MLflow"):
        show_in_mlflow(client, experiment_id, levels.version, state.alarm, before=last.alarm if last else "")
        new, untold = [one for one in state.alarms if TOLD not in client.get_run(one.run_id).data.tags], ""
        give_metrics(experiment_id, scored.rates, [(one.criterion, str(one.cause)) for one in new])
        for run_id in {one.run_id for one in new}:
            where = {"experiment_id": experiment_id, "run_id": run_id, "model_version": levels.version}
            untold = send(webhook, {**where, "alarms": [one for one in state.told if one["run_id"] == run_id]}, run_id) if webhook else ""
            if not untold:
                client.set_tag(run_id, TOLD, "true")
    return Look(scored=scored, state=state, notes=tuple(notes), untold=untold)
