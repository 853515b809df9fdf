"""The run in MLflow that an evaluation is logged as, from before the agent is called until MLflow has everything.

`RunTarget` says where it goes, `LoggedRun` is the run, and the `Bundle` of a report is what it holds in the end, as plain data: what MLflow
cannot take is kept in a folder, from which `upload` finishes the run later. Everything is written so that it can be tried again: an attempt
that follows another one changes nothing and doubles nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput, Metric, Param, RunTag

from mlflow_adk_eval.agents.source import UNKNOWN, AgentSource
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.errors import AdkEvalError, AttestationError, TrackingError, UsageError
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.evalset.parse import no_collection
from mlflow_adk_eval.gating.attestation import evaluation_statement, path_of, sealed
from mlflow_adk_eval.judge.family import self_preference
from mlflow_adk_eval.redact import message_of, secrets_of, without_credentials
from mlflow_adk_eval.results.report import COMPARED_WITH_ITSELF, Report
from mlflow_adk_eval.runner.keywords import TraceLimit
from mlflow_adk_eval.runs.collect import InParts
from mlflow_adk_eval.runs.manifest import FAILED_OF, FOLDER, key_of_criterion
from mlflow_adk_eval.runs.replays import HERE, WORLD, WORLD_RUN
from mlflow_adk_eval.runtime import user_name
from mlflow_adk_eval.signing.identities import IdentitySigner, load_attester
from mlflow_adk_eval.signing.keys import Signer
from mlflow_adk_eval.store import reaching
from mlflow_adk_eval.tracking import bundle as bundles
from mlflow_adk_eval.tracking.agent_versions import find_version, short_label
from mlflow_adk_eval.tracking.client import connect, experiment_of
from mlflow_adk_eval.tracking.eval_set_datasets import keep_as_dataset
from mlflow_adk_eval.tracking.storable import LONGEST_PARAM, LONGEST_TAG, fitted
from mlflow_adk_eval.tracking.traces import missing_traces, write_traces

_logger = logging.getLogger(__name__)

PENDING = Path("adk_eval_pending")
"""Where evaluations wait for MLflow, each in a folder named by its run."""
_RUN_TYPE = "genai_evaluate"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """Where and as what an evaluation is logged."""

    experiment: str | None = None
    """By name or id; ``None``: the current one."""
    run_name: str | None = None
    agent_version: str | None = None
    """What `find_version` takes."""
    tracking_uri: str | None = None
    pending_folder: str | Path | None = None
    """The folder for what MLflow cannot take; ``None``: `PENDING`."""
    failed_of: str | None = None
    """The earlier run of which the eval set has only the cases that did not pass; ``None``: the eval set is whole."""
    traces: TraceLimit = bundles.MOST_TRACES
    """As in `LogArgs`."""
    run_id: str | None = None
    """A run that somebody else has opened for this evaluation; ``None``: a run of its own."""
    parent: Any = None
    """The run that the caller's thread has open in the same store, if any."""
    dataset: Dataset | None = None
    """What MLflow knows the eval set as; ``None``: as an artifact of the run."""
    status: str = "complete"
    """What the run is in the end; anything else is no evidence for a promotion."""
    register_prompts: bool = False
    """Whether the judges' prompts are kept in MLflow's prompt registry."""
    signing_key: str | Path | None = field(default=None, repr=False)
    """What signs the evaluation, as `load_attester` takes it."""

    def __post_init__(self) -> None:
        """Refuse numbers of traces that are none."""
        if self.traces != "failed" and (not isinstance(self.traces, int) or self.traces < 0):
            raise UsageError(f"traces={self.traces!r}: wanted a number of traces, 'failed', True or False")


def users_run(tracking_uri: str | None) -> Any:
    """Return the run that the caller's thread has open in the same store, if any."""
    return mlflow.active_run() if tracking_uri in (None, mlflow.get_tracking_uri()) else None


class LoggedRun:
    """The run of one evaluation.

    Making it finds out what the run needs: a store that answers, the experiment, the agent version. `start` opens the run in MLflow, `finish`
    logs a report and ends it, `abandon` ends it without one::

        logged = LoggedRun(target, eval_set, config, agent_name="rooms", digest=eval_set_digest(eval_set))
        logged.start()
        report, bundle = logged.finish(report)
    """

    def __init__(
        self, target: RunTarget, eval_set: EvalSet, config: EvalConfig, *, agent_name: str, digest: str, source: AgentSource = UNKNOWN
    ) -> None:
        """Connect to MLflow and look up what is named.

        Args:
            target: where the run goes.
            eval_set: the cases.
            config: the criteria.
            agent_name: what the agent is called, and a version of it that is taken from its source.
            digest: the digest of the eval set.
            source: what the agent is made of.

        Raises:
            UsageError: if the experiment was deleted, the agent version does not exist or is made of another source, or the key is none, or
                there is no identity to sign as.
            AttestationError: if Sigstore's trusted root could not be had.
            TrackingError: within seconds, if MLflow does not answer.
        """
        self.target, self.eval_set, self.digest = target, eval_set, digest
        self._agent_name, self._signer = agent_name, load_attester(target.signing_key)
        self.client = connect(target.tracking_uri)
        with reaching.reaching_mlflow("the run could not be started", reaching.HASTY):
            if target.run_id:
                self.experiment_id = str(self.client.get_run(target.run_id).info.experiment_id)
            else:
                inherited = target.parent.info.experiment_id if target.parent else None
                self.experiment_id = experiment_of(self.client, target.experiment, inherited=inherited)
            self.agent = find_version(
                self.client, target.agent_version, agent_name=agent_name, experiment_id=self.experiment_id, source=source
            )
        self.params = bundles.start_params(config, digest, self.agent.model_id, source.sha256, source.models)
        """What is known before the agent is called, as parameters."""
        self.params |= {name: value for name, value in self.agent.tags.items() if not name.startswith("mlflow.")}
        if target.failed_of:
            self.params[FAILED_OF] = target.failed_of
        self.run: bundles.Run
        """Once it is started."""
        self.unattested = ""
        """Why the evaluation could not be signed, once it has ended, although it was to be."""

    def start(self, reopen: str | None = None) -> None:
        """Open the run and log what is known before the agent is called.

        Args:
            reopen: a run that was interrupted before it came to a result, to go on with; what it was said to be stays.

        Raises:
            UsageError: if the run that the target names has ended, or holds an evaluation already.
            TrackingError: if MLflow does not accept it.
        """
        with reaching.reaching_mlflow("the run could not be started", reaching.HASTY):
            opened = self._opened(reopen)
            try:
                if urlsplit(opened.info.artifact_uri).scheme not in {"", "file", "mlflow-artifacts"}:
                    self.client.list_artifacts(self.run.run_id)  # which fails without the bucket's client, or the right to read there
                reaching.when_there_is_room(lambda: log_in_batches(self.client, self.run.run_id, params=self.params))
                dataset = self.target.dataset
                if dataset is None:
                    dataset_id = keep_as_dataset(self.client, self.eval_set, self.digest, self.experiment_id)
                    dataset = bundles.dataset_of(self.eval_set, self.run.run_id, digest=self.digest, dataset_id=dataset_id)
                evaluated = DatasetInput(dataset, [InputTag("mlflow.data.context", "evaluation")])
                # Runs that start together all add the dataset to their experiment, where it may be once.
                reaching.retried(lambda: self.client.log_inputs(self.run.run_id, [evaluated], [LoggedModelInput(self.run.model_id)]))
            except BaseException as error:
                self._mark("FAILED", error)
                raise
        _logger.info("the run started", extra={"run_id": self.run.run_id, "agent_version": self.run.model_id})

    def _opened(self, reopen: str | None) -> Any:
        """Create the run, go on with one, or go into one that somebody else has opened and will end; return it as MLflow has it."""
        target, client, eval_set_id, started_ms = self.target, self.client, self.eval_set.eval_set_id, time.time_ns() // 1_000_000
        upload = f"mlflow-adk-eval upload {target.pending_folder or PENDING}/<the id of this run>"
        where = f"This evaluation runs on {socket.gethostname()}. If it ended without a result here, MLflow or the process failed"
        note = fitted(f"{where}: finish it there with `{upload}`", LONGEST_TAG)
        tags = {
            "mlflow.runType": _RUN_TYPE,
            "mlflow.user": user_name(),
            "mlflow.source.name": Path(sys.argv[0]).name or "python",
            "mlflow.source.type": "LOCAL",
            **{name: value for name, value in self.agent.tags.items() if name.startswith("mlflow.")},
            "adk_eval.status": "running",
            "adk_eval.agent_version": self.agent.label,
            "adk_eval.eval_set_id": eval_set_id,
            **({"mlflow.parentRunId": target.parent.info.run_id} if target.parent else {}),
        }
        tags = {name: fitted(value, LONGEST_TAG) for name, value in tags.items()}
        if reopen:
            client.update_run(reopen, status="RUNNING")
            log_in_batches(client, reopen, tags={"adk_eval.status": "running", bundles.NOTE: note})
            opened = client.get_run(reopen)
        elif target.run_id:  # whose name and whatever it says of itself stay
            opened = client.get_run(target.run_id)
            status, stage = opened.info.status, opened.info.lifecycle_stage
            if status != "RUNNING" or stage != "active":
                raise UsageError(f"run {target.run_id!r} is not open: its status is {status}, its stage {stage}")
            if "adk_eval.status" in opened.data.tags:
                raise UsageError(f"run {target.run_id!r} already contains an evaluation; start another run")
            new = {name: value for name, value in tags.items() if name not in opened.data.tags}
            log_in_batches(client, target.run_id, tags={**new, "mlflow.runType": _RUN_TYPE})
        else:
            tags |= {bundles.NOTE: note, reaching.CREATION: uuid4().hex}
            part = f" (failed of {target.failed_of[:8]})" if target.failed_of else ""
            name = f"{short_label(self.agent.label)} · {datetime.fromtimestamp(started_ms / 1000, tz=UTC):%H:%M}{part}"
            name = fitted(target.run_name or name, bundles.LONGEST_NAME)
            opened = reaching.created_once(
                lambda: client.create_run(self.experiment_id, started_ms, tags, name),
                lambda: list(client.search_runs([self.experiment_id], f"tags.`{reaching.CREATION}` = '{tags[reaching.CREATION]}'")),
                self._discard,
            )
        dataset, uri = target.dataset or bundles.dataset_of(self.eval_set, digest=self.digest), client.tracking_uri
        self.run = bundles.Run(
            run_id=opened.info.run_id,
            experiment_id=self.experiment_id,
            model_id=self.agent.model_id,
            dataset_name=dataset.name,
            dataset_digest=dataset.digest,
            agent_name=self._agent_name,
            started_ms=opened.info.start_time,
            agent_diff=self.agent.diff,
            agent_source=self.agent.source.manifest.decode(),
            tracking_uri=uri if without_credentials(uri) == uri else None,
            joined=bool(target.run_id) and not reopen,
        )
        self._pending = Path(target.pending_folder or PENDING) / self.run.run_id
        """Where the evaluation is kept until MLflow has all of it."""
        return opened

    def _discard(self, twin: Any) -> None:
        self.client.update_run(twin.info.run_id, status="FAILED")
        self.client.delete_run(twin.info.run_id)

    def abandon(self, error: BaseException) -> None:
        """Mark the run as one that came to nothing."""
        interrupted = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
        self._mark("KILLED" if interrupted else "FAILED", error)

    def _mark(self, status: str, error: BaseException) -> None:
        """Mark the run as one that did not come to its end, if MLflow can still be reached."""
        run_id, note = self.run.run_id, {} if self.run.joined else {bundles.NOTE: f"This evaluation failed: {message_of(error)}"}
        try:
            with reaching.reaching_mlflow(f"run {run_id} could not be marked as {status} and may show RUNNING forever", reaching.HASTY):
                reaching.when_there_is_room(lambda: log_in_batches(self.client, run_id, tags={"adk_eval.status": "failed", **note}))
                if not self.run.joined:
                    reaching.when_there_is_room(lambda: self.client.set_terminated(run_id, status))
        except TrackingError as unmarked:
            _logger.warning("%s", unmarked)

    def finish(self, report: Report, parts: InParts | None = None) -> tuple[Report, bundles.Bundle]:
        """Log a report and return it with the id of the run, and what was logged.

        Args:
            report: what was found.
            parts: what collected the results, and has written their parts; ``None``: the report is in memory.

        What was to be signed and could not be is logged all the same, and the run says so; `check_attested` makes an error of that.

        Raises:
            TrackingError: if MLflow does not accept it. The message names the folder that holds everything then.
        """
        alike = self_preference(report.judging.models, self.agent.source.models) if report.judging else ""
        report = replace(report, notes=(*report.notes, *self.agent.notes, *([alike] if alike else [])))
        try:
            report, prompts = self._with_prompts(report) if self.target.register_prompts and report.judging else (report, {})
            with no_collection():
                traces, secrets = self.target.traces, secrets_of()
                bundle = bundles.bundle_of(report, self.run, traces=traces, secrets=secrets, parts=parts, holder=self._holder)
        except BaseException as error:
            self.abandon(error)
            raise
        if bundle.status == bundles.SELF_COMPARISON:
            report = replace(report, notes=(*report.notes, COMPARED_WITH_ITSELF))
        if report.world:  # as it was written down
            report = replace(report, world=report.world.model_copy(update={"digest": bundle.params[WORLD]}))
        status = bundle.status if self.target.status == "complete" else self.target.status
        # What is no evidence says so as a parameter: a tag could be rewritten later.
        kind = {} if status == "complete" else {"adk_eval.evidence": status}
        bundle = replace(bundle, params={**bundle.params, **prompts, **kind}, status=status)
        if self._signer:
            bundle = self._signed(bundle, self._signer)
        with suppress(OSError):  # a folder that cannot be written to: then only a kill loses it
            bundle.save_briefly(self._pending)
        try:
            with reaching.reaching_mlflow("MLflow could not store the evaluation"):
                reaching.when_there_is_room(lambda: finish_run(self.client, bundle, ends=not self.run.joined))
        except AdkEvalError as error:
            raise TrackingError(f"{error}\n{self._keep(bundle)}") from error
        except BaseException as error:
            self.abandon(error)
            error.add_note(self._keep(bundle))
            raise
        _logger.info("the run is logged", extra={"run_id": self.run.run_id, "status": bundle.status, "traces": len(bundle.traces)})
        shutil.rmtree(self._pending, ignore_errors=True)
        if self.target.pending_folder is None:
            with suppress(OSError):  # others wait there
                PENDING.rmdir()
        return replace(report, run_id=self.run.run_id), bundle

    def _holder(self, digest: str) -> str:
        """Return the first complete run of the experiment that holds the world with a digest; empty: none does, or MLflow does not say."""
        found = f"params.`{WORLD}` = '{digest}' AND params.`{WORLD_RUN}` = '{HERE}' AND tags.`adk_eval.status` = 'complete'"
        with suppress(TrackingError), reaching.reaching_mlflow("the runs that met the same world could not be looked up", reaching.HASTY):
            for run in self.client.search_runs([self.experiment_id], found, max_results=1, order_by=["attributes.start_time ASC"]):
                return str(run.info.run_id)
        return ""

    def _signed(self, bundle: bundles.Bundle, signer: Signer | IdentitySigner) -> bundles.Bundle:
        """Return the bundle with its attestation, or with a parameter and a note that say why it could not be signed."""
        if isinstance(signer, IdentitySigner):  # which takes its time: a kill meanwhile loses nothing
            with suppress(OSError):
                bundle.save_briefly(self._pending)
        source, tags, run = self.agent.source, self.agent.tags, self.run
        dirty = tags.get("mlflow.source.git.dirty")
        agent = {
            "name": self._agent_name,
            "version": self.agent.label,
            "source": source.description,
            "source_sha256": source.sha256 or None,
            "models": source.models,
            "git_commit": tags.get("mlflow.source.git.commit") or None,
            "git_dirty": None if dirty is None else dirty == "true",
        }
        params = {name: fitted(value, LONGEST_PARAM) for name, value in {**self.params, **bundle.params}.items()}
        manifest, verdict = bundle.params["adk_eval.manifest_sha256"], bundle.tags["adk_eval.verdict"]
        statement = evaluation_statement(
            {"run_id": run.run_id, "experiment_id": self.experiment_id, "model_id": run.model_id},
            agent=agent,
            materials={"eval_set_id": self.eval_set.eval_set_id, "parameters": params},
            result={"manifest_sha256": manifest, "status": bundle.status, "verdict": verdict, "metrics": dict(bundle.metrics)},
            started_ms=run.started_ms,
        )
        try:
            return replace(bundle, attestation=sealed(statement, signer))
        except AttestationError as error:
            self.unattested = message_of(error)
        _logger.error("%s", self.unattested)
        note = fitted(f"This evaluation is not attested. {self.unattested}\n\n{bundle.tags[bundles.NOTE]}", LONGEST_TAG)
        return replace(bundle, tags={**bundle.tags, bundles.NOTE: note}, params={**bundle.params, "adk_eval.unattested": self.unattested})

    def check_attested(self) -> None:
        """Raise an error if the evaluation was to be signed, and is logged without a signature.

        Raises:
            AttestationError: in that case.
        """
        if self.unattested:
            what = f"run {self.run.run_id} is complete but has no attestation"
            raise AttestationError(f"{self.unattested}\n{what}: a policy that requires one needs another run")

    def _with_prompts(self, report: Report) -> tuple[Report, Mapping[str, str]]:
        """Register the prompts and return the parameters that name them; an evaluation is not given up for their sake."""
        from mlflow_adk_eval.tracking.prompts import register_used_prompts  # noqa: PLC0415 - few want it

        used = report.judging.prompts if report.judging else {}
        try:
            registered = register_used_prompts(self.client, self.run.run_id, used)
        except AdkEvalError as error:
            _logger.warning("%s", error)
            return replace(report, notes=(*report.notes, str(error))), {}
        return report, {f"adk_eval.prompt_uri.{key_of_criterion(name)}": uri for name, uri in registered.items()}

    def _keep(self, bundle: bundles.Bundle) -> str:
        """Save the bundle, have the run say that it waits for its upload, if MLflow can still be reached, and return a sentence on how to go on."""
        folder, run_id = self._pending, self.run.run_id
        try:
            bundle.save(folder)
        except OSError as error:
            return f"It could not be saved in {folder} either: {error}"
        with suppress(TrackingError), reaching.reaching_mlflow("the run could not be marked", reaching.HASTY):
            tags = self.client.get_run(run_id).data.tags
            status = "partial" if tags.get("adk_eval.status") == "partial" else "pending"
            where = f"everything is saved on {socket.gethostname()} in `{folder}`; finish there with `mlflow-adk-eval upload {folder}`"
            note = [_without_pending(tags.get(bundles.NOTE, "")) if self.run.joined else "", f"{_PENDING}: {where}"]
            new = {"adk_eval.status": status, bundles.NOTE: fitted("\n\n".join(filter(None, note)), LONGEST_TAG)}
            log_in_batches(self.client, run_id, tags=new)
        return f"Everything is saved in {folder}. When MLflow is back, finish with\n  mlflow-adk-eval upload {folder}"


_PENDING = "MLflow could not store all of this evaluation"
"""How the note of a run begins that waits for its upload."""


def _without_pending(note: str) -> str:
    return "\n\n".join(paragraph for paragraph in note.split("\n\n") if not paragraph.startswith(_PENDING))


def finish_run(client: MlflowClient, bundle: bundles.Bundle, *, ends: bool = True) -> None:
    """Log what the evaluation came to, and end the run. Whatever an earlier attempt has logged stays as it is.

    Args:
        client: where the run is.
        bundle: what is to be logged.
        ends: whether to end the run, which others may still be at work on.

    Raises:
        TrackingError: if MLflow has not stored every trace; the run is then marked as *partial*.
    """
    run = bundle.run
    # 1. The artifacts, and whether MLflow has them all in the size in which they were sent, which a page that answers in its place hides.
    client.log_artifacts(run.run_id, str(bundle.folder), FOLDER)
    sent = {f"{FOLDER}/{name}": (bundle.folder / name).stat().st_size for name in bundle.artifacts}
    if bundle.attestation:
        client.log_text(run.run_id, bundle.attestation, path_of(bundle.attestation))
        sent[path_of(bundle.attestation)] = len(bundle.attestation.encode())
    # What this process wrote as files itself, nothing could answer for in their place.
    if urlsplit(client.get_run(run.run_id).info.artifact_uri).scheme not in {"", "file"}:
        folders = sorted({path.rpartition("/")[0] for path in sent})
        stored = {file.path: file.file_size for folder in folders for file in client.list_artifacts(run.run_id, folder) if not file.is_dir}
        if lost := next((path for path, size in sent.items() if path not in stored or stored[path] not in (size, None)), None):
            raise TrackingError(f"MLflow accepted the artifact {lost} but did not store it. Does a login page answer in its place?")
    # 2. Parameters and metrics; these at the same time at each attempt, so that MLflow recognises what it has.
    values = [(name, value, 0) for name, value in bundle.metrics.items()]
    values += [(name, value, step) for name, series in bundle.series.items() for step, value in enumerate(series, 1)]
    about = {"model_id": run.model_id, "dataset_name": run.dataset_name, "dataset_digest": run.dataset_digest, "run_id": run.run_id}
    metrics = [Metric(name, value, run.started_ms, step, **about) for name, value, step in values]
    log_in_batches(client, run.run_id, params=bundle.params, metrics=metrics)
    # 3. The traces.
    write_traces(client, run, bundle.traces)
    missing = missing_traces(client, run, bundle.traces)
    # 4. What the run says of itself; of one of which others have said something, too, their note and their tables stay, before ours, and their criteria instead.
    tags = dict(bundle.tags)
    if run.joined:
        theirs = client.get_run(run.run_id).data.tags
        note, tables = _without_pending(theirs.get(bundles.NOTE, "")), json.loads(theirs.get(bundles.TABLES, "[]"))
        both = note if tags[bundles.NOTE] in note else "\n\n".join(filter(None, (note, tags[bundles.NOTE])))
        ours = [table for table in json.loads(tags[bundles.TABLES]) if table not in tables]
        kept = {name: value for name, value in theirs.items() if name == bundles.QUALITY_CRITERIA}
        tags |= {bundles.NOTE: fitted(both, LONGEST_TAG), bundles.TABLES: json.dumps([*tables, *ours]), **kept}
    log_in_batches(client, run.run_id, tags={**tags, "adk_eval.status": "partial" if missing else bundle.status})
    if ends:
        client.set_terminated(run.run_id, "FINISHED")
    if missing:
        told = f"{len(bundle.traces) - len(missing)} of {len(bundle.traces)} traces"
        raise TrackingError(f"MLflow has stored {told}; missing is {missing[0]}")


def log_in_batches(
    client: MlflowClient,
    run_id: str,
    *,
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    metrics: Sequence[Metric] = (),
) -> None:
    """Log within MLflow's limits for a request, which its client knows; usually that is one."""
    kept = [Param(name, fitted(value, LONGEST_PARAM)) for name, value in (params or {}).items()]
    client.log_batch(run_id, metrics, kept, [RunTag(name, value) for name, value in (tags or {}).items()])


def upload(folder: str | Path, *, tracking_uri: str | None = None) -> str:
    """Log the evaluation saved in `folder` and return the run's id. Anything already logged is neither changed nor repeated.

    Args:
        folder: the folder that an evaluation left in ``adk_eval_pending`` when MLflow was unreachable. It is not deleted.
        tracking_uri: the MLflow server or store, if it has changed; ``None``: ``MLFLOW_TRACKING_URI``, else the original one.

    Raises:
        UsageError: if the folder is not a pending evaluation, or its run does not exist.
        TrackingError: if MLflow is still unreachable or loses data; everything stays in the folder.
    """
    bundle = bundles.load(Path(folder))
    client = connect(tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or bundle.run.tracking_uri)
    run_id, begun = bundle.run.run_id, bundle.run.tracking_uri
    elsewhere = f" (started at {begun}; try that as --tracking-uri)" if begun not in (None, client.tracking_uri) else ""
    with reaching.reaching_mlflow(f"run {run_id} could not be finished; {folder} still contains it"):
        with reaching.existing(f"run {run_id}{elsewhere}"):
            client.get_run(run_id)
        reaching.when_there_is_room(lambda: finish_run(client, bundle))
    return run_id
