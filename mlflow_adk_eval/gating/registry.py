"""MLflow as the gate's store: runs and model versions to read, and records, claims, tags and aliases to write.

The only module of the gate, beside `mlflow_client`, that knows MLflow's client. Everything else works on the plain data that it
returns: `Evidence`, `Version`, and the text of claims. `store_at` is how every door reaches it.

The claims to the aliases of a registered model are parameters of one run that all who promote its versions have to agree on. Run ids are
the server's choice, so there is nothing to look a run up by that exists only once; but the names of experiments do. So that run is made
like a file that is written aside and renamed: an experiment of a random name, with the run in it and a tag that names the run,
gets its final name last. Of several who do that at the same time, one succeeds, and the others use what that one made.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import tempfile
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from mlflow_adk_eval.config.eval_config import judged_criteria
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.gating.attestation import BUNDLE_PATH, EVALUATION_PATH
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.promotion.claim_log import Checkpoint, ClaimLog, ClaimLogError, ClaimParams, read_claim_log
from mlflow_adk_eval.gating.promotion.record import TAG, Record, RegisteredModel, Target, Version, VersionId, decision_statement, pass_tag
from mlflow_adk_eval.redact import without_credentials
from mlflow_adk_eval.runs.examined import ExaminedRun, ReadableRun
from mlflow_adk_eval.runs.files import StoredFiles, files_in, new_folder
from mlflow_adk_eval.runs.manifest import FOLDER, GATE_FOLDER, MANIFEST, Evidence
from mlflow_adk_eval.signing.keys import ENVELOPE, PAYLOAD_TYPE, Signer, Verifier
from mlflow_adk_eval.store import reaching
from mlflow_adk_eval.text import for_mlflow

if TYPE_CHECKING:
    from mlflow.entities import Experiment, FileInfo, Run
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

    from mlflow_adk_eval.gating.calibration import CheckedCalibration
    from mlflow_adk_eval.gating.drift import JudgeDrift

_CLAIMS_RUN, _CLAIMS_MODEL = f"{TAG}.claim_log", f"{TAG}.model"
"""The tags of an experiment that name the run with the claims, which is also a tag of the registered model, and the hash of that model's name."""
_CLAIMING = "set an alias: it holds the claim log"
_LONGEST = 400
_LARGEST_ARTIFACT = 64 << 20
"""Of a record, an envelope or a manifest, in bytes."""
_NOTE = "The claim log of {name}: [who set each alias](#/experiments/{experiment_id}/runs/{run_id}), when, and with which promotion record. mlflow-adk-eval reads it: do not delete anything here."


class _OtherSizeError(OSError):
    """An artifact came in another size than MLflow says it has."""


_read_again = retry(retry=retry_if_exception_type(_OtherSizeError), stop=stop_after_attempt(2), reraise=True)
"""Somebody may have overwritten the artifact while it was read."""


class Trust(TypedDict, total=False):
    """What makes claims and records credible."""

    signer: Signer | None
    """Signs them; ``None``: they are not signed."""
    verifier: Verifier | None
    """Checks the signatures that they must have; ``None``: they need none, or that of the `signer`."""
    checkpoint: Checkpoint | None
    """What the claim logs must still hold; ``None``: anything."""


@contextmanager
def store_at(
    tracking_uri: str | None = None, registry_uri: str | None = None, **trust: Unpack[Trust]
) -> Generator[MlflowStore, None, None]:
    """Yield an MLflow store that gives up within a minute, and says so without its credentials, where it does not answer.

    Args:
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        registry_uri: the model registry; ``None``: MLflow's own setting.
        trust: what makes claims and records credible.

    Raises:
        TrackingError: if MLflow cannot be reached, or refuses.
    """
    with reaching.reaching_mlflow("MLflow could not be queried", reaching.DECIDING):
        yield MlflowStore(tracking_uri, registry_uri, **trust)


class MlflowStore:
    """An MLflow tracking server with its model registry, in the terms of the gate."""

    grace_s = 300.0
    """For how long others wait for a claim that has not ended, before they take its owner for dead."""
    lease_s = 30.0
    """For how long its owner may begin to set the alias after it has confirmed the claim; far less, since that request takes time, too."""

    def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None, **trust: Unpack[Trust]) -> None:
        """Connect; the arguments are those of `store_at`."""
        from mlflow import MlflowClient, get_tracking_uri  # noqa: PLC0415 - seconds, which only users of MLflow should pay

        uri = tracking_uri or get_tracking_uri()
        reaching.check_there(uri)
        self.client = reaching.opened(uri, lambda: MlflowClient(tracking_uri, registry_uri))
        self.clock = reaching.clock_of(uri)
        """By which waivers and ages are reckoned and records are dated; claims have that of `now`."""
        self.signer = trust.get("signer")
        self.verifier = trust.get("verifier") or (self.signer.verifier if self.signer else None)
        self.checkpoint = trust.get("checkpoint")
        self._claim_logs: dict[str, tuple[str, str]] = {}
        """The run and the experiment of each model's claim log."""
        self._undisputed = set[str]()
        """The models of which no tag names another claim log: looked up once, as it takes two requests."""
        self._ids: dict[tuple[str, str, int], VersionId] = {}
        """What a version is, by model, number and when the model was created: within one, MLflow gives no number twice."""
        self._repositories: dict[str, ArtifactRepository] = {}
        self._experiments: dict[str, str] = {}
        """The experiment of each run that was read."""

    def evidence(self, run_id: str) -> Evidence:
        """Return what a run holds.

        Raises:
            UsageError: if there is no such run.
        """
        with reaching.existing(f"run {run_id!r}"):
            run = self.client.get_run(run_id)
        self._experiments[run_id] = run.info.experiment_id
        folders = {entry.path for entry in self._artifacts(run_id).list_artifacts()}
        files: StoredFiles | None = None
        if FOLDER in folders:
            temporary = new_folder()  # its files stay on this machine for as long as they are used
            try:
                files = files_in(self._downloaded(run_id, FOLDER, str(temporary)), temporary=temporary)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
        attestation = self.artifact(run_id, EVALUATION_PATH, BUNDLE_PATH) if GATE_FOLDER in folders else None
        model_params: dict[str, str] = {}
        if attestation is not None and (model_id := run.data.params.get("adk_eval.model_id")):
            with reaching.unless_absent():  # which the check of the attestation finds
                model_params = dict(self.client.get_logged_model(model_id).params)
        return Evidence(
            run_id=run_id,
            status=run.info.status,
            lifecycle_stage=run.info.lifecycle_stage,
            start_time=run.info.start_time,
            end_time=run.info.end_time,
            tags=run.data.tags,
            params=run.data.params,
            metrics=run.data.metrics,
            model_ids=tuple(found.model_id for found in (run.inputs.model_inputs if run.inputs else None) or ()),
            artifacts={} if files is None else files.without(MANIFEST),
            manifest=None if files is None else files.get(MANIFEST),
            attestation=attestation,
            model_params=model_params,
        )

    @_read_again
    def _downloaded(self, run_id: str, folder: str, target: str) -> Path:
        """Return where the files of a run's folder are now.

        Raises:
            OSError: if one did not come in the size that MLflow says it has.
        """
        root = self._download(run_id, folder, target)
        folders = [folder]
        for place in folders:
            for found in self._artifacts(run_id).list_artifacts(place):
                if found.is_dir:
                    folders.append(found.path)
                else:
                    _check_size(found, root / Path(found.path).relative_to(folder))
        return root

    def _download(self, run_id: str, path: str, target: str) -> Path:
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - seconds, which only users of MLflow should pay

        try:
            return Path(self._artifacts(run_id).download_artifacts(path, target))
        except MlflowException:
            self._artifacts(run_id).list_artifacts(path)  # fails with the reason, which MLflow keeps to itself
            raise

    def _artifacts(self, run_id: str) -> ArtifactRepository:
        """Return where the artifacts of a run are, which never changes. MLflow's client asks for it with each listing and download."""
        from mlflow.store.artifact.runs_artifact_repo import RunsArtifactRepository  # noqa: PLC0415 - as above

        if run_id not in self._repositories:
            self._repositories[run_id] = RunsArtifactRepository(f"runs:/{run_id}", self.client.tracking_uri).repo
        return self._repositories[run_id]

    def attested(self, run_id: str) -> dict[str, bytes]:
        """Return what was signed about a run: envelopes, each with the record that it is about, and a Sigstore bundle, by path."""
        folders = {found.path for found in self._artifacts(run_id).list_artifacts()}
        files: dict[str, bytes] = {}
        if GATE_FOLDER in folders:
            with tempfile.TemporaryDirectory() as local:
                root = self._downloaded(run_id, GATE_FOLDER, local)
                files = {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
        kept = {name for name in files if name.endswith(ENVELOPE) or f"{GATE_FOLDER}/{name}" == BUNDLE_PATH}
        return {f"{GATE_FOLDER}/{name}": files[name] for name in files if name in kept or name + ENVELOPE in kept}

    @_read_again
    def artifact(self, run_id: str, path: str, *others: str) -> bytes | None:
        """Return one artifact, the first that the run has of several in a folder; ``None`` if it has none, nothing of one that is too large.

        Raises:
            UsageError: if there is no such run.
            OSError: if it did not come in the size that MLflow says it has.
        """
        with reaching.existing(f"run {run_id!r}"):
            listed = self._artifacts(run_id).list_artifacts(path.rpartition("/")[0])
        there = next((found for wanted in (path, *others) for found in listed if found.path == wanted), None)
        if there is None:
            return None
        if (there.file_size or 0) > _LARGEST_ARTIFACT:  # no hash and no signature is that of nothing
            return b""
        with tempfile.TemporaryDirectory() as local:
            file = self._download(run_id, there.path, local)
            _check_size(there, file)
            return file.read_bytes()

    def calibration(self, policy: Policy, run: ExaminedRun) -> CheckedCalibration | None:
        """Return a policy's calibration, held against the runs that it was measured on; ``None`` where it has none, or no judge decided.

        Args:
            policy: the policy.
            run: the run that is decided on, which may be one of those.
        """
        if policy.calibration is None or not isinstance(run, ReadableRun) or not judged_criteria(run.report.config):
            return None
        from mlflow_adk_eval.analysis.calibration.calibration import load_calibration  # noqa: PLC0415 - few policies have one
        from mlflow_adk_eval.gating.calibration import check_calibration  # noqa: PLC0415

        return check_calibration(load_calibration(policy.calibration), self.evidence, policy.attestation, run)

    def drift(self, run: ExaminedRun, now: datetime, policy: Policy | None = None) -> JudgeDrift | None:
        """Return how the judges of a run changed; ``None`` if no judge decided.

        Args:
            run: the run.
            now: runs that began later do not count.
            policy: which may demand that the runs that count are attested.
        """
        if not isinstance(run, ReadableRun) or not judged_criteria(run.report.config):
            return None
        from mlflow_adk_eval.gating.drift import JudgeDrift, drift_of_listed, listed_runs  # noqa: PLC0415 - as above

        run_id, pin = run.evidence.run_id, policy.attestation if policy else None
        listed = listed_runs(self, self.experiment_of(run_id), now, pin) if run_id else []
        return drift_of_listed(self, run, listed, pin) if run_id else JudgeDrift(histories={})

    def stage(self, run_id: str) -> str:
        """Return whether a run is ``active`` or ``deleted``.

        Raises:
            UsageError: if there is no such run.
        """
        with reaching.existing(f"run {run_id!r}"):
            return str(self.client.get_run(run_id).info.lifecycle_stage)

    def evaluations(self, model_id: str, digest: str, *, beside: str = "") -> list[str]:
        """Return the complete runs about a LoggedModel on an eval set, newest first: in its experiment, and in that of the run `beside`."""
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        homes: dict[str, None] = {}
        with suppress(MlflowException):
            homes[self.client.get_logged_model(model_id).experiment_id] = None
        with suppress(MlflowException):
            homes[self.client.get_run(beside).info.experiment_id] = None
        wanted = (
            f"params.`adk_eval.model_id` = '{model_id}' and params.`adk_eval.eval_set_digest` = '{digest}'"
            " and tags.`adk_eval.status` = 'complete' and attributes.status = 'FINISHED'"
        )
        if not homes:
            return []
        newest = self.client.search_runs(list(homes), wanted, order_by=["attributes.start_time DESC"], max_results=10)
        return [run.info.run_id for run in newest]

    def model(self, name: str) -> RegisteredModel:
        """Return a registered model.

        Raises:
            UsageError: if there is no such model.
        """
        with reaching.existing(f"the registered model {name!r}"):
            found = self.client.get_registered_model(name)
        return RegisteredModel(int(found.creation_timestamp or 0), {alias: str(version) for alias, version in found.aliases.items()})

    def version(self, name: str, version: str, model: RegisteredModel | None = None) -> Version:
        """Return a model version; `model`: its registered model, where that is read already.

        Raises:
            UsageError: if there is no such version.
        """
        model = model or self.model(name)
        with reaching.existing(f"version {version} of the registered model {name!r}"):
            found = self.client.get_model_version(name, version)
        created_ms = int(found.creation_timestamp or 0)
        known = VersionId(number=version, source=found.source or "", created_ms=created_ms, model_created_ms=model.created_ms)
        self._ids[name, version, model.created_ms] = known
        return Version(id=known, status=found.status, tags=found.tags)

    def tags(self, target: Target) -> dict[str, str]:
        """Return the tags of a version.

        Raises:
            UsageError: if there is no such version.
        """
        with reaching.existing(str(target)):
            return dict(self.client.get_model_version(target.name, target.version).tags)

    def holder(self, name: str, alias: str, model: RegisteredModel | None = None) -> VersionId | None:
        """Return the version that holds an alias, if any does; `model`: as for `version`. One that was deleted is made from nothing.

        Raises:
            UsageError: if there is no such model.
        """
        model = model or self.model(name)
        if (number := model.aliases.get(alias)) is None:
            return None
        with suppress(UsageError):  # deleted in the moment that the alias was set, which MLflow does not prevent
            return self._ids.get((name, number, model.created_ms)) or self.version(name, number, model).id
        return VersionId(number=number, source="", created_ms=0, model_created_ms=model.created_ms)

    def model_id(self, agent_version: str) -> str:
        """Return the LoggedModel that an agent version names.

        Raises:
            UsageError: if it names none.
        """
        found = re.fullmatch(r"(?:models:/)?(m-[^/@]+)|models:/([^/@]+)(?:/(\d+)|@([\w-]+))", agent_version)
        logged, name, number, alias = found.groups() if found else (None, None, None, None)
        number = number or (self.model(name).aliases.get(alias) if name and alias else None)
        model_id = logged or (self.version(name, number).id.model_id if name and number else None)
        if model_id is None:
            raise UsageError(f"agent_version {agent_version!r}: wanted a LoggedModel id or a registered version made from a LoggedModel")
        return model_id

    def models(self) -> list[str]:
        """Return the names of all registered models."""
        models = reaching.every_page(lambda token: self.client.search_registered_models(max_results=100, page_token=token))
        return [str(model.name) for model in models]

    def claims(self, name: str) -> ClaimParams:
        """Return the claims to the aliases of a model as they were written, by key; none where nothing was ever promoted.

        Raises:
            ClaimLogError: if the run that holds them was deleted, renamed or replaced, as far as MLflow's tags tell.
            UsageError: if there is no such model.
        """
        run = self._claims_run(name)
        return ClaimParams(log=run.info.run_id, model=name, params=run.data.params) if run else ClaimParams(params={})

    def claim_log(self, name: str, alias: str, found: ClaimParams | None = None) -> ClaimLog:
        """Return the claim log of an alias; `found`: the claims of the model, where they are read already.

        Raises:
            ClaimLogError: as `claims` does, and if it does not hold what the checkpoint pins.
        """
        claims = read_claim_log(found or self.claims(name), alias, self.verifier)
        if self.checkpoint:
            self.checkpoint.check(name, claims)
        return claims

    def open_claim_log(self, name: str) -> tuple[str, str]:
        """Return the run and the experiment of a model's claim log, which is made for a model that has none yet.

        Raises:
            ClaimLogError: as `claims` does.
        """
        if name not in self._claim_logs and self._claims_run(name) is None:
            self._new_claims_run(name)
        return self._claim_logs[name]

    def now(self, name: str) -> datetime:
        """Return the time by the clock of MLflow's server, which all who promote share, from the experiment with the claims of a model.

        Giving an experiment the name that it has is the one request whose time the server notes by its own clock and that changes nothing.
        """
        _, experiment_id = self.open_claim_log(name)
        with self._permitted("experiment", experiment_id, _CLAIMING):
            self.client.rename_experiment(experiment_id, claims_experiment(name))
        found = self.client.get_experiment(experiment_id).last_update_time
        if found is None:
            raise OSError(f"MLflow does not say when experiment {experiment_id} was last changed, so claims cannot be timed")
        return datetime.fromtimestamp(found / 1000, UTC)

    def claim(self, name: str, key: str, text: str) -> str:
        """Write `text` under `key` if nothing is there, which nobody can change then, and return what is there now.

        Raises:
            UsageError: if the run that holds the claims was deleted.
        """
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - as above

        run_id, experiment_id = self.open_claim_log(name)
        failure: Exception | None = None
        with self._permitted("experiment", experiment_id, _CLAIMING):
            try:
                self.client.log_param(run_id, key, text, synchronous=True)
            except MlflowException as error:
                failure = error  # somebody was faster; or an answer was lost, and only what is there now can tell
            found = self.client.get_run(run_id).data.params.get(key)
            if found is None:
                raise failure or OSError(f"the claim {key} was written, but is not in the claim log")
        return str(found)

    @contextmanager
    def _permitted(self, kind: Literal["experiment", "registered_model"], key: str, purpose: str) -> Generator[None, None, None]:
        """Say which permission on what is missing, and how it is granted, where MLflow refuses to write.

        Args:
            kind: of the resource, as MLflow calls it.
            key: the id of an experiment, or the name of a registered model.
            purpose: what you need the permission to do.

        Raises:
            TrackingError: if it refuses.
        """
        try:
            yield
        except Exception as error:
            if not reaching.is_denied(error):
                raise
            what = f"the registered model {key!r}"
            if kind == "experiment":
                what = f"the experiment with the id {key}"
                with suppress(Exception):  # not even its name may be read
                    what = f"the experiment {self.client.get_experiment(key).name!r} (id {key})"
            body = json.dumps({"username": "USER", "resource_type": kind, "resource_id": key, "permission": "EDIT"})
            where = f"{without_credentials(self.client.tracking_uri)}/api/3.0/mlflow/users/permissions/grant"
            grant = f"curl -u OWNER -H 'Content-Type: application/json' -d {shlex.quote(body)} {where}"
            raise TrackingError(
                f"MLflow denies you the permission EDIT on {what}, which you need to {purpose}."
                f" Ask its manager to grant it; with MLflow's basic-auth: {grant}"
            ) from None

    def _claims_run(self, model: str) -> Run | None:
        """Return the run with the claims of a model, where it has one, and nothing says that it had another."""
        from mlflow.entities import ViewType  # noqa: PLC0415 - as above
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        name = claims_experiment(model)
        if model in self._undisputed:
            return self._claims_run_in(model, self.client.get_experiment_by_name(name))
        # The runs that are known to hold claims, whatever the experiments that they are in are called by now. They are looked up first,
        # since others may be making one: the name comes before the tags. A tag that was emptied tells, too.
        known: set[str] = set()
        with reaching.unless_absent():
            if tagged := self.client.get_registered_model(model).tags.get(_CLAIMS_RUN):
                known.add(str(tagged))
        experiments = self.client.search_experiments(ViewType.ALL, filter_string=f"tags.`{_CLAIMS_MODEL}` = '{_digest(model)}'")
        known |= {each.tags.get(_CLAIMS_RUN) or f"(experiment {each.experiment_id})" for each in experiments}
        what = f"the claim log of {model!r}"
        run = self._claims_run_in(model, self.client.get_experiment_by_name(name))
        if others := sorted(known - {run.info.run_id if run else ""}):
            state = f"replaced by run {run.info.run_id}" if run else "renamed or deleted"
            again = f"give the experiment of run {others[0]} the name {name!r} again"
            raise ClaimLogError(f"{what} was in run {others[0]}, but was {state}; {again}")
        if run is None:
            # A version whose tags say that it was promoted cannot be without a claim log.
            quote, promoted = '"' if "'" in model else "'", ""
            with suppress(MlflowException):  # a name with both kinds of quotes cannot be asked for
                versions = self.client.search_model_versions(f"name = {quote}{model}{quote}")
                tags = ((version.version, key) for version in versions for key in version.tags if key.startswith(pass_tag("")))
                promoted = next((f"version {number} (its tag {key})" for number, key in tags), "")
            if promoted and (run := self._claims_run_in(model, self.client.get_experiment_by_name(name))) is None:
                again = f"give its experiment the name {name!r} again"
                raise ClaimLogError(f"{what} is missing, although {promoted} was promoted: {again}")
        self._undisputed.add(model)
        return run

    def _claims_run_in(self, model: str, experiment: Experiment | None) -> Run | None:
        if experiment is None:
            return None
        what = f"the claim log of {model!r} (experiment {experiment.name!r})"
        if experiment.lifecycle_stage != "active":
            raise ClaimLogError(f"{what} was deleted; restore it: mlflow experiments restore --experiment-id {experiment.experiment_id}")
        run_id = experiment.tags.get(_CLAIMS_RUN, "")
        try:
            with reaching.existing(f"run {run_id!r}"):
                run = self.client.get_run(run_id)
        except UsageError:
            raise ClaimLogError(f"{what} has no run {run_id!r}, although its tag {_CLAIMS_RUN} names that run") from None
        if run.info.lifecycle_stage != "active":
            raise ClaimLogError(f"{what} was deleted; restore it: mlflow runs restore --run-id {run_id}")
        self._claim_logs[model] = run_id, experiment.experiment_id
        return run

    def _new_claims_run(self, model: str) -> None:
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - as above

        name = claims_experiment(model)
        aside = reaching.created_experiment(self.client, f"{name}/{uuid.uuid4().hex}")
        started_ms = int(self.clock().timestamp() * 1000)

        try:
            run = reaching.created_once(
                lambda: self.client.create_run(aside, start_time=started_ms, run_name="promotions (claim log)"),
                lambda: list(self.client.search_runs([aside])),
                lambda twin: self.client.delete_run(twin.info.run_id),
            )
            run_id = str(run.info.run_id)
            self.client.update_run(run_id, "FINISHED")  # `set_terminated` would print where it can be looked at
            self.client.set_experiment_tag(aside, _CLAIMS_RUN, run_id)
            note = _NOTE.format(name=for_mlflow(model), experiment_id=aside, run_id=run_id)
            self.client.set_experiment_tag(aside, "mlflow.note.content", note)
        except BaseException:
            with suppress(Exception):  # nobody knows of it yet; what went wrong is more than that it is left over
                self.client.delete_experiment(aside)
            raise
        failure: Exception | None = None
        try:
            self.client.rename_experiment(aside, name)
        except MlflowException as error:  # that of somebody else has the name, or the answer was lost
            failure = error
        found = self.client.get_experiment_by_name(name)
        if found is None:
            raise failure or OSError(f"the experiment {name!r} was created but is missing")
        if found.experiment_id != aside:
            with reaching.unless_absent():
                self.client.delete_experiment(aside)
        else:  # only now, since those that were deleted must not look like a claim log that somebody hid
            self.client.set_experiment_tag(aside, _CLAIMS_MODEL, _digest(model))
            with suppress(MlflowException):  # a model that was deleted at once
                self.client.set_registered_model_tag(model, _CLAIMS_RUN, run_id)
        self._claims_run_in(model, found)

    def write(self, record: Record) -> None:
        """Keep a record as an artifact of the run that it is about, beside it the signed statement about it.

        Raises:
            OSError: if MLflow accepts it and does not have it: a page before the server may answer in its place.
        """
        location, text = record.location, record.text()
        with self._permitted("experiment", self.experiment_of(location.run_id), f"store the promotion record in run {location.run_id}"):
            if self.signer:
                statement = decision_statement(location, text.encode())
                self._keep(location.run_id, location.path + ENVELOPE, self.signer.seal(statement.to_json(), PAYLOAD_TYPE))
            self._keep(location.run_id, location.path, text)

    def experiment_of(self, run_id: str) -> str:
        """Return the id of the experiment of a run."""
        return self._experiments.get(run_id) or str(self.client.get_run(run_id).info.experiment_id)

    def _keep(self, run_id: str, path: str, text: str) -> None:
        self.client.log_text(run_id, text, path)
        if self.artifact(run_id, path) != text.encode():
            raise OSError(f"MLflow accepted the artifact {path} of run {run_id} but did not store it")

    def tag(self, target: Target, tags: Mapping[str, str]) -> None:
        """Set tags on a version, in their order.

        Raises:
            UsageError: if there is no such version.
        """
        with self._permitted("registered_model", target.name, "promote its versions"), reaching.existing(str(target)):
            for key, value in tags.items():
                reaching.beside_others(partial(self.client.set_model_version_tag, target.name, target.version, key, value))

    def describe(self, record: Record) -> None:
        """Write a decision into the description of its version, for people; nothing reads it.

        Raises:
            UsageError: if there is no such version or run.
        """
        target = record.target
        with reaching.existing(str(target)):
            experiment_id = self.experiment_of(record.decision.run_id)
            before = self.client.get_model_version(target.name, target.version).description or ""
            self.client.update_model_version(target.name, target.version, record.description(experiment_id, before))

    def untag(self, target: Target, key: str) -> None:
        """Remove a tag from a version.

        Raises:
            UsageError: if there is no such version.
        """
        with reaching.existing(str(target)):
            self.client.delete_model_version_tag(target.name, target.version, key)

    def set_alias(self, target: Target) -> None:
        """Give a version its alias.

        Raises:
            UsageError: if there is no such version.
        """
        with self._permitted("registered_model", target.name, "promote its versions"), reaching.existing(str(target)):
            self.client.set_registered_model_alias(target.name, target.alias, target.version)


def _check_size(said: FileInfo, file: Path) -> None:
    """Tell an artifact that something between us and MLflow has replaced or cut off from one that somebody has edited, whose size MLflow knows.

    Raises:
        _OtherSizeError: if the size is not what MLflow says.
    """
    found = file.stat().st_size if file.is_file() else 0
    if said.file_size not in (found, None):
        raise _OtherSizeError(
            f"the artifact {said.path} has {said.file_size:,} bytes, but {found:,} arrived. Does a login page answer, or was the connection cut?"
        )


def claims_experiment(model: str) -> str:
    """Return the name of the experiment with the claims of a model. MLflow's pages show what follows the slash.

    >>> claims_experiment("home_automation")
    'adk_eval.gate/home_automation promotions'
    """
    if len(model) <= _LONGEST:
        return f"{TAG}/{model} promotions"
    return f"{TAG}/{model[: _LONGEST - 70]}_{_digest(model)} promotions"


def _digest(model: str) -> str:
    return hashlib.sha256(model.encode("utf-8", "replace")).hexdigest()
