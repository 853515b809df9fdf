"""Scoring the traces of production where they are: no eval set, no agent, and the scores on the traces themselves.

    traces of an experiment ── traffic ──> conversations ── draw ──> a sample ── spool ──> rows ── evaluate ──> run ── annotate ──> assessments

What was drawn is loaded one conversation at a time and kept as rows in a folder (`_Spool`), which an evaluation reads as it reads any recording: so
the run is evidence like any other, memory does not grow with the traces, and an interrupted call goes on where it was. The folder is gone once the
assessments are written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Unpack

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from pydantic import InstanceOf, TypeAdapter, ValidationError

from mlflow_adk_eval.agents.recordings import StreamedRecording, recorded_run
from mlflow_adk_eval.agents.traces.conversations import agent_name
from mlflow_adk_eval.config.eval_config import EvalConfig, load_config
from mlflow_adk_eval.config.inputs import ConfigSource
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import InputError, TrackingError, UsageError, check_counts, shown
from mlflow_adk_eval.evalset.conversation import dumps_recorded
from mlflow_adk_eval.evalset.files import dumps
from mlflow_adk_eval.evalset.models import Content, EvalCase, Invocation, SessionInput
from mlflow_adk_eval.evalset.rows import open_cases, streamed
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.judge.setup import JudgeArgs
from mlflow_adk_eval.ledger.trust import refuse_foreign
from mlflow_adk_eval.production.annotate import write_assessments
from mlflow_adk_eval.production.draw import Draw, Rate, Stratum, draw, rate_of
from mlflow_adk_eval.production.loading import Loaded, loaded
from mlflow_adk_eval.production.traffic import conversations_in
from mlflow_adk_eval.results.outcomes import CaseResult, grouped
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.keywords import Progress, keywords
from mlflow_adk_eval.runs.examined import readable
from mlflow_adk_eval.store.reaching import reaching_mlflow
from mlflow_adk_eval.text import counted, listed
from mlflow_adk_eval.tracking.capture import TraceSearch, experiment_there
from mlflow_adk_eval.tracking.client import connect
from mlflow_adk_eval.tracking.evaluate import evaluate
from mlflow_adk_eval.writing import write_file

_logger = logging.getLogger(__name__)

Since = timedelta | datetime | str | None
"""A time, also as ISO 8601, or how long ago that was: ``24h``, ``7d``; ``None``: no limit."""
SAMPLE = "adk_eval_production/sample.json"
"""The artifact that says what was drawn, and what that says of all."""
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LACKING = frozenset({"expected_response", "expected_calls", "scenario", "expected_state", "baseline"})
"""What no trace has."""
_PAUSE_MS = 24 * 3600 * 1000
"""No user pauses longer in a conversation that the search looks for before the window."""
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTraces:
    """What came of scoring traces."""

    report: InstanceOf[Report] | None = None
    """``None``: there was nothing to score."""
    experiment_id: str
    began_ms: int
    ended_ms: int
    """The window that was looked at, in milliseconds since 1970."""
    found: int
    """The conversations in it that have ended."""
    already: int = 0
    """How many of them had scores by this config already."""
    unfinished: int = 0
    """The conversations with a trace that has not ended, which are left for later."""
    unreadable: tuple[str, ...] = ()
    """Why conversations that were drawn could not be read; they count as missing."""
    strata: tuple[Stratum, ...] = ()
    rates: Mapping[str, Rate] = field(default_factory=dict[str, Rate])
    """By criterion; the one of all criteria is under the empty text."""
    at_random: frozenset[str] = frozenset()
    """The eval ids of those that were drawn at random, which tests may count that look again and again."""
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """The tags and metadata that were asked for, by eval id."""
    written: int = 0
    """The assessments that were new."""

    def to_json(self) -> dict[str, Any]:
        """Return what `SAMPLE` holds."""
        window = {"schema": 1, "experiment_id": self.experiment_id, "from": _iso(self.began_ms), "to": _iso(self.ended_ms)}
        counts = {"found": self.found, "already_scored": self.already, "unfinished": self.unfinished, "unreadable": list(self.unreadable)}
        lists = {"strata": list(map(asdict, self.strata)), "rates": list(map(asdict, self.rates.values()))}
        return {**window, **counts, **lists, "at_random": sorted(self.at_random)}


class ScoreTracesArgs(JudgeArgs, total=False):
    """The other keywords of `score_traces`."""

    progress: Progress | None
    """Called with the numbers of finished and of all conversations."""
    run_name: str | None
    """The name of the MLflow run; ``None``: what was drawn of what."""
    tracking_uri: str | None
    """The MLflow server or store; ``None``: MLflow's own setting."""
    signing_key: str | Path | None
    """Signs the evaluation, as for `evaluate`; ``None``: ``MLFLOW_ADK_EVAL_SIGNING_KEY``."""


@keywords(ScoreTracesArgs)
def score_traces(  # noqa: PLR0913 - one function is the whole of it
    experiment: str | None = None,
    config: ConfigSource = None,
    *,
    since: Since = None,
    until: Since = None,
    filter_string: str | None = None,
    sample: int | None = 200,
    seed: int | None = None,
    again: bool = False,
    agent_version: str | None = None,
    facts: Iterable[str] = (),
    kind: str = "score",
    before_writing: Callable[[ScoredTraces], None] | None = None,
    **options: Unpack[ScoreTracesArgs],
) -> ScoredTraces:
    """Score conversations of production, write the scores on their traces, and log a run.

    Conversations that have scores by this config are left out. The run is evidence for the conversations that were drawn; `ScoredTraces.rates`
    are estimates for all. If you interrupt it, the same call goes on with the same conversations.

    Args:
        experiment: the MLflow experiment with the traces, by name or id; ``None``: the active one.
        config: the criteria, which must need no expectations.
        since: when the first trace of a conversation may have begun; ``None``: at any time.
        until: when the last one must have begun; ``None``: now.
        filter_string: MLflow's filter for traces; a conversation counts if one of its traces matches.
        sample: the most conversations to score; ``None``: all.
        seed: makes the draw repeatable; ``None``: nobody can tell which conversations will be drawn.
        again: whether to score conversations again that have scores by this config. Their traces keep the first ones.
        agent_version: as for `evaluate`.
        facts: the names of tags and metadata of traces that `ScoredTraces.facts` is to have.
        kind: what the run is marked as.
        before_writing: called once the run is complete, before assessments are written.
        judge: the judge, instead of the config's models: a model's name, a judge object or a callable; a list is a panel that
            votes together.
        judge_hosts: hosts, with or without a port, that the config may use as the endpoint of a judge or simulated user,
            in addition to ``MLFLOW_ADK_EVAL_JUDGE_HOSTS``.
        judge_options: parallelism, time limits and retries of requests to judges.
        budget: the limit for judges and simulated users: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and
            ``name``.
        ledger: stores judges' answers: a file or a ``postgresql://`` URL; ``None``: ``MLFLOW_ADK_EVAL_LEDGER``, else
            ``.adk_eval/ledger.sqlite``; ``False``: none.
        rejudge_failed: whether to ask again if a stored answer of a judge cannot be parsed.
        progress: called with the numbers of finished and of all conversations.
        run_name: the name of the MLflow run; ``None``: what was drawn of what.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        signing_key: signs the evaluation, as for `evaluate`; ``None``: ``MLFLOW_ADK_EVAL_SIGNING_KEY``.

    Raises:
        UsageError: for invalid arguments, an experiment that does not exist, and criteria that need what no trace has.
        JudgeError: if a judge cannot be set up.
        TrackingError: if MLflow is unreachable, or refuses to take assessments.
    """
    criteria, uri = config_for_traces(config), options.get("tracking_uri")
    check_counts(sample=1 if sample is None else sample)
    now_ms = int(time.time() * 1000)
    began_ms, ended_ms = moment_of(since, "since", now_ms), moment_of(until, "until", now_ms) or now_ms + 1
    if began_ms is not None and began_ms > ended_ms:
        raise UsageError(f"since={shown(since)}: wanted a time before the end of the window, {_iso(ended_ms)}")
    client = connect(uri)
    with reaching_mlflow("the traces could not be read"):
        experiment_id = experiment_there(client, experiment)
    asked = [str(client.tracking_uri), experiment_id, criteria.digest(), filter_string, sample, seed, again, kind]
    spool = _Spool(Path(".adk_eval") / "traces" / hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16])
    with spool.alone():
        with reaching_mlflow("the traces could not be read"):
            if spool.is_filled():
                _logger.warning("going on with the conversations that an interrupted call drew: %s", spool.folder)
            else:
                seen = conversations_in(
                    client,
                    experiment_id,
                    since_ms=began_ms,
                    until_ms=ended_ms,
                    filter_string=filter_string,
                    config_digest=criteria.digest(),
                    facts=tuple(facts),
                )
                ended = [one for one in seen if one.ended]
                fresh = [one for one in ended if again or not one.scored]
                sample_of = ScoredTraces(
                    experiment_id=experiment_id,
                    began_ms=began_ms if began_ms is not None else min((one.ended_ms for one in ended), default=now_ms),
                    ended_ms=ended_ms,
                    found=len(ended),
                    already=len(ended) - len(fresh),
                    unfinished=len(seen) - len(ended),
                )
                if not fresh:
                    return sample_of
                drawn = draw(fresh, sample, secrets.token_hex(8) if seed is None else str(seed))
                # Before that, a conversation may have begun that goes on in the window; one that begins later did not begin before.
                edge_ms = ended_ms if filter_string or until else began_ms + _PAUSE_MS if began_ms else 0
                spool.fill(sample_of, drawn, TraceSearch(client, experiment_id, {"run_id": None}), edge_ms=edge_ms)
                del seen, ended, fresh, drawn  # 2 kB a conversation, which an evaluation need not wait with
        if not spool.kept.agent:
            spool.forget()
            return spool.kept.sample
        report = _evaluated(spool, criteria, agent_version, options)
        run_id, again_to = str(report.run_id), "run the same command again to finish it"
        with reaching_mlflow(f"run {run_id} is complete, but not marked as of production; {again_to}"):
            result = replace(spool.kept.sample, report=report, rates=_rates(spool.kept, report))
            _mark(client, run_id, result, kind)
        if before_writing:
            before_writing(result)
        with reaching_mlflow(f"run {run_id} is complete, but not all of its assessments are written; {again_to}"):
            result = replace(result, written=write_assessments(client, experiment_id, report, criteria.digest(), spool.kept.last))
        spool.forget()
    return result


def config_for_traces(source: ConfigSource) -> EvalConfig:
    """Return a config whose criteria need nothing but what was said and done.

    Raises:
        UsageError: if there is none, or it has others.
    """
    if source is None:
        raise UsageError("config: wanted the criteria to score by, such as {'criteria': {'hallucinations_v1': 0.8}}")
    config = load_config(source)
    known = {name: CRITERIA[name].needs for name in config.by_criterion if name in CRITERIA}
    if lacking := [name for name, needs in known.items() if _LACKING.intersection(needs)]:
        wants = "needs expectations" if len(lacking) == 1 else "need expectations"
        raise UsageError(
            f"{listed(lacking, _MOST_NAMED)} {wants}, which traces do not have; leave {'it' if len(lacking) == 1 else 'them'} out"
        )
    return config


def moment_of(when: Since, name: str, now_ms: int) -> int | None:
    """Return a time in milliseconds since 1970.

    Raises:
        UsageError: if it is none.
    """
    if isinstance(when, str):
        if ago := re.fullmatch(r"(\d{1,6})([mhdw])", when.strip()):
            when = timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            try:
                when = datetime.fromisoformat(when)
            except ValueError:
                raise UsageError(f"{name}={shown(when)}: wanted how long ago, such as 24h or 7d, or a time in ISO 8601") from None
    if isinstance(when, timedelta):
        return now_ms - int(when.total_seconds() * 1000)
    return None if when is None else int(when.timestamp() * 1000)


def _iso(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, tz=UTC).isoformat(timespec="seconds")


@dataclass(slots=True, kw_only=True)
class _Kept:
    """What is known of the rows of a call that is under way."""

    agent: str
    """Empty: there are no rows, since nothing that was drawn can be read."""
    stratum_of: Mapping[str, str]
    """By eval id."""
    last: Mapping[str, str]
    """By eval id, the last trace of conversations whose last turn is in another, such as where the agent had failed."""
    sample: ScoredTraces
    run_id: str = ""
    """Once it is complete."""


_KEPT = TypeAdapter(_Kept)


class _Spool:
    """The folder of a call that is under way: what was drawn, and the rows of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows, self._file = folder, folder / "production.jsonl", folder / "drawn.json"
        self.kept: _Kept
        """Once it is filled, or what an interrupted call kept was read."""

    @contextmanager
    def alone(self) -> Generator[None]:
        """Keep other processes out of the folder.

        Raises:
            UsageError: if one is in it.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.folder.with_suffix(".lock").open("w") as handle:
            with suppress(ImportError):  # on Windows
                import fcntl  # noqa: PLC0415

                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise UsageError("another process is scoring these traces by this config; wait until it has ended") from None
            yield

    def is_filled(self) -> bool:
        """Whether an interrupted call left what it had drawn.

        Raises:
            UsageError: if it came with the code.
        """
        refuse_foreign(self.folder, "folder of drawn conversations", "scores")
        with suppress(FileNotFoundError, ValidationError):
            self.kept = _KEPT.validate_json(self._file.read_bytes())
            return True
        return False

    def keep(self) -> None:
        """Keep what was drawn, and the run once that is complete."""
        write_file(self._file, _KEPT.dump_json(self.kept, exclude={"sample": {"report", "rates", "written"}}))

    def fill(self, sample: ScoredTraces, drawn: Draw, search: TraceSearch, *, edge_ms: int) -> None:
        """Load what was drawn, one conversation at a time, and keep it as rows; all traces are known of conversations that began after `edge_ms`."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o700)
        unreadable, names, facts = list[str](), set[str](), dict[str, Mapping[str, str]]()
        stratum_of, last = dict[str, str](), dict[str, str]()
        with self.rows.open("w", encoding="utf-8") as rows:
            for seen, stratum, found in loaded(search, drawn.drawn, edge_ms):
                name = seen.name
                try:
                    agent, trace_id, row = _row_of(name, stratum, found)
                except UsageError as error:
                    why = error.problems[0] if isinstance(error, InputError) else error
                    unreadable.append(f"{name}: {' '.join(str(why).split())}")
                    continue
                rows.write(row)
                names.add(agent)
                stratum_of[name] = stratum
                last |= {name: seen.traces[-1][0]} if seen.traces[-1][0] != trace_id else {}
                facts |= {name: seen.facts} if seen.facts else {}
        sample = replace(sample, strata=drawn.strata, at_random=drawn.at_random, unreadable=tuple(unreadable), facts=facts)
        agent = names.pop() if len(names) == 1 else "production" if names else ""
        self.kept = _Kept(agent=agent, stratum_of=stratum_of, last=last, sample=sample)
        if agent:
            self.keep()

    def forget(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _row_of(name: str, stratum: str, traced: Loaded) -> tuple[str, str, str]:
    """Return the agent's name, the trace of the last turn and the row of a conversation: a case that expects nothing, and what the agent did.

    Raises:
        UsageError: if it cannot be had, or says nothing.
    """
    if isinstance(traced, UsageError):
        raise traced
    turns = traced.turns()
    numbers, named = dict[str, int](), list[Any]()
    for turn in turns:
        numbers[turn.trace_id] = number = numbers.get(turn.trace_id, 0) + 1
        invocation_id = turn.trace_id if number == 1 else f"{turn.trace_id}#{number}"
        named.append(replace(turn, invocation=turn.invocation.model_copy(update={"invocation_id": invocation_id})))
    done, agent = traced.conversation(named), agent_name(turns) or "production"
    said = tuple(
        Invocation(invocation_id=turn.invocation_id, user_content=turn.user_content, creation_timestamp=turn.creation_timestamp)
        for turn in done.actual
    )
    nothing = (Invocation(invocation_id=traced.traces[0].id, user_content=Content(role="user", parts=())),)
    session = SessionInput(app_name=agent, user_id=traced.traces[0].user or "unknown")
    case = EvalCase.model_validate({"eval_id": name, "conversation": said or nothing, "session_input": session, "tags": [stratum]})
    recorded = dumps_recorded(recorded_run(done), indent=None)
    last = (said or nothing)[-1].invocation_id.partition("#")[0]
    return agent, last, f'{{"eval_id":{json.dumps(name)},"case":{dumps(case, indent=None).strip()},"recorded":{recorded}}}\n'


def _evaluated(spool: _Spool, config: EvalConfig, agent_version: str | None, options: ScoreTracesArgs) -> Report:
    """Return the report of what was drawn: that of the run, where it is complete, else of one that goes on or begins."""
    kept, sample = spool.kept, spool.kept.sample
    if kept.run_id:
        with store_at(options.get("tracking_uri")) as store:
            instead = f"so its scores are not written on the traces; delete {spool.folder}"
            run = readable(store.evidence(kept.run_id), lambda why: TrackingError(f"run {kept.run_id}: {why}, {instead}"), whole=False)
        return replace(run.report, run_id=kept.run_id)
    drawn, there = sum(one.drawn for one in sample.strata), sample.found - sample.already
    how: dict[str, Any] = {
        "run_name": f"{kept.agent}: {drawn:,} of {counted(there, 'conversation')}",
        **{name: value for name, value in options.items() if value is not None},
        "experiment": sample.experiment_id,
        "agent_version": agent_version,
        "traces": False,
    }
    # An evaluation of these rows that was interrupted is in the ledger; where there is none, or no ledger, it begins.
    eval_set = streamed(open_cases(spool.rows))
    cases: Any = eval_set.eval_cases
    recording = StreamedRecording(runs={}, cases=cases, name=kept.agent)
    try:
        report = evaluate(eval_set, recording, config, resume="latest", **how)
    except UsageError as error:
        if not str(error).startswith("resume"):
            raise
        report = evaluate(eval_set, recording, config, **how)
    kept.run_id = str(report.run_id)
    spool.keep()
    return report


def _rates(kept: _Kept, report: Report) -> dict[str, Rate]:
    """Return the rate of all criteria, and of each that decides. A conversation in which the agent failed has not passed."""
    names = ("", *report.config.by_criterion)
    passed: dict[str, list[tuple[str, bool]]] = {name: [] for name in names}
    for case in report.cases:
        stratum = kept.stratum_of.get(case.eval_id, "rest")
        for name, reached in verdicts_of(case).items():
            if reached is not None and name in passed:
                passed[name].append((stratum, reached))
    drawn = len(report.cases) + len(kept.sample.unreadable)
    return {name: rate_of(name, kept.sample.strata, grouped(passed[name]), drawn - len(passed[name])) for name in names}


def verdicts_of(case: CaseResult) -> dict[str, bool | None]:
    """Return whether a conversation reached the threshold of each criterion, and under the empty text that of all; ``None``: nobody knows."""
    verdict = "failed" if case.conversation.unfinished else case.verdict
    every: dict[str, bool | None] = {"": None if verdict == "undecided" else verdict == "passed"}
    return every | {result.criterion: result.passed for result in case.results if result.decides}


def _mark(client: MlflowClient, run_id: str, result: ScoredTraces, kind: str) -> None:
    """Say in the run that it is of production, what was drawn, and what that says of all."""
    window = {
        "adk_eval.production": kind,
        "adk_eval.production_from": _iso(result.began_ms),
        "adk_eval.production_to": _iso(result.ended_ms),
    }
    values: dict[str, float | None] = {}
    for name, rate in result.rates.items():
        key = f"production/{name}/pass_rate" if name else "production/pass_rate"
        values |= {key: rate.value, f"{key}_low": rate.low, f"{key}_high": rate.high}
    moment = int(time.time() * 1000)
    metrics = [Metric(name, value, moment, 0) for name, value in values.items() if value is not None]
    client.log_batch(run_id, metrics, [Param(name, value) for name, value in window.items()])
    client.log_dict(run_id, result.to_json(), SAMPLE)
