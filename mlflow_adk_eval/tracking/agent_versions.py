"""Which version of the agent is evaluated, as a LoggedModel of MLflow, and that version in the model registry.

A LoggedModel that is made here says among its parameters, which nobody can change, which source it stands for; the list of the files is
among its artifacts. An agent of another source is not evaluated as that version.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import mlflow
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelStatus
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from mlflow_adk_eval.agents.source import UNKNOWN, AgentSource, GitState, git_state
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.gating.attestation import AGENT_SOURCE, SOURCE_PARAM
from mlflow_adk_eval.gating.named_runs import run_id_at
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.store.reaching import CREATION, created_once, existing, is_absent, reaching_mlflow, unless_absent
from mlflow_adk_eval.text import few
from mlflow_adk_eval.tracking.client import connect
from mlflow_adk_eval.tracking.storable import model_name

_LOGGED = re.compile(r"(?:models:/)?(m-\w+)")
_NUMBERED = re.compile(r"models:/([^/@]+)/(\d+)")
_ALIASED = re.compile(r"models:/([^/@]+)@(.+)")
_DERIVED = re.compile(r"[@#][0-9a-f]{8}(?:\+[0-9a-f]{8})?$")
"""The end of a label that was made from the agent's source: a commit or a hash, and a hash of what was not committed."""
_NEAR = re.compile(r"(?:models:/*)?([^/@:]+[/@][^/@]+)")
_FINGERPRINT = "adk_eval.fingerprint"
_SAID_PARAM = "adk_eval.agent.said_version"
_SOURCE_TAG = "adk_eval.agent.source"
_LONGEST_DIFF_TAG = 5000
_WANTED = "models:/<name>/<version>, models:/<name>@<alias>, the id of a LoggedModel, or nothing to derive it from the agent's source"
_MAX_NAMED = 3
_MAKING_S, _LOOK_AGAIN_S = 30.0, 0.3
"""For how long another job may take over a LoggedModel before it is taken for dead, and how often that is looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentVersion:
    """A version of an agent that runs can be tied to."""

    model_id: str
    """The LoggedModel."""
    label: str
    """What people call it."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """What runs say about it."""
    diff: str = ""
    """What the working tree differs by from its commit."""
    source: AgentSource = UNKNOWN
    """What the agent that is evaluated is made of."""
    notes: tuple[str, ...] = ()
    """What readers of the report should know about it."""


def short_label(label: str) -> str:
    """Return what lists call a version, which cut long names off: the name, and the version that people gave it.

    >>> [short_label(label) for label in ("lights@02281c6a", "lights@1.2", "models:/lights/3", "lights")]
    ['lights', 'lights 1.2', 'lights v3', 'lights']
    """
    registered = _NUMBERED.fullmatch(label)
    return f"{registered[1]} v{registered[2]}" if registered else _DERIVED.sub("", label).replace("@", " ")


def find_version(
    client: MlflowClient, agent_version: str | None, *, agent_name: str, experiment_id: str, source: AgentSource = UNKNOWN
) -> AgentVersion:
    """Return the version that `agent_version` names, or that an agent's source is.

    Args:
        client: where it is.
        agent_version: a registered version, a LoggedModel's id, or ``None`` for what the source is.
        agent_name: what a version taken from the source is a version of.
        experiment_id: where a version taken from the source is kept.
        source: what the agent is made of.

    Raises:
        UsageError: if it names nothing, a version that no run can be tied to, or one that is made of another source.
    """
    if agent_version is None:
        return _of_source(client, agent_name, experiment_id, source)
    named = _named(client, agent_version)
    notes = _source_notes(client, named, source)
    state, tags, diff = _git_facts(source)
    tags = {**(tags if state else {}), _SOURCE_TAG: source.description}
    return replace(named, source=source, notes=notes, tags=tags, diff=diff)


def _named(client: MlflowClient, agent_version: str) -> AgentVersion:
    """Return the LoggedModel that a name says, or that a registered version was made from."""
    what, label = f"agent_version {agent_version!r}", agent_version
    model = _LOGGED.fullmatch(agent_version)
    if model is None:
        with existing(what):
            if name := _NUMBERED.fullmatch(agent_version):
                version = client.get_model_version(name[1], name[2])
            elif name := _ALIASED.fullmatch(agent_version):
                version = client.get_model_version_by_alias(name[1], name[2])
                label = f"models:/{name[1]}/{version.version}"
            else:
                near = _NEAR.fullmatch(agent_version)
                hint = f". Did you mean 'models:/{near[1]}'?" if near else ""
                raise UsageError(f"{what}: wanted {_WANTED}{hint}")
        model = _LOGGED.fullmatch(version.source or "")
        if model is None:
            raise UsageError(
                f"agent_version {label!r}: this version was registered from {version.source!r}, not from a LoggedModel, "
                "so no run can be linked to it; register one with mlflow.register_model('models:/<id of a LoggedModel>', name)"
            )
        what = f"the LoggedModel of agent_version {label!r}"
    with existing(what):
        return AgentVersion(model_id=str(client.get_logged_model(model[1]).model_id), label=label)


def _source_notes(client: MlflowClient, version: AgentVersion, source: AgentSource) -> tuple[str, ...]:
    """Return what there is to say about a version that was named for an agent of this source.

    Raises:
        UsageError: if the version is made of another source.
    """
    if recorded := _LOGGED.fullmatch(source.recorded_version):
        return _recording_notes(client, version, recorded[1])
    if not (source.sha256 or source.said_version):
        return ()
    model = client.get_logged_model(version.model_id)
    if source.said_version:
        if (then := model.params.get(_SAID_PARAM, source.said_version)) != source.said_version:
            raise UsageError(f"agent_version {version.label!r}: that agent reported version {then}, but this one is {source.description}")
        return ()
    sha256 = model.params.get(SOURCE_PARAM, "")
    if sha256 == source.sha256:
        return ()
    if not sha256:
        text = f"{version.label} has no source digest, so nothing shows that it is the evaluated agent"
        return (f"agent_version: {text} ({source.description}, sha256 {source.sha256[:12]}…)",)
    differing = ""
    if files := _files_of(client, model, sha256):
        changed = [name for name in sorted({*files, *source.files}) if files.get(name) != source.files.get(name)]
        differing = f"; {', '.join(few(changed, limit=_MAX_NAMED))} differ" if changed else "; its models or .env variables differ"
    raise UsageError(
        f"agent_version {version.label!r} has a different source: sha256 {sha256[:12]}…, but this agent's is"
        f" {source.sha256[:12]}… ({source.description}){differing}. Evaluate that version's agent, or omit agent_version:"
        " changed source makes a new version; register it with --register"
    )


def _recording_notes(client: MlflowClient, version: AgentVersion, recorded: str) -> tuple[str, ...]:
    """Return what there is to say about a version that was named for a recording of a LoggedModel.

    Raises:
        UsageError: if that is made of another source, or of one that it does not say.
    """
    if recorded == version.model_id:
        return ()
    named = client.get_logged_model(version.model_id).params.get(SOURCE_PARAM, "")
    try:
        source = client.get_logged_model(recorded).params.get(SOURCE_PARAM, "")
    except MlflowException as error:
        if not is_absent(error):
            raise
        return (
            f"agent_version: the recording is of {recorded}, but this MLflow store has no such version, so nothing links it to {version.label}",
        )
    if named and source == named:
        return ()
    raise UsageError(
        f"agent_version {version.label!r}: the recording is of another version, {recorded}, so it is not evidence about this one;"
        " omit agent_version, or run the agent"
    )


def _files_of(client: MlflowClient, model: LoggedModel, sha256: str) -> Mapping[str, str]:
    """Return the hashes of the files that a LoggedModel is made of; none where its list is gone or was changed."""
    with tempfile.TemporaryDirectory() as folder, suppress(MlflowException, OSError, ValueError):
        uri = f"{model.artifact_location}/{AGENT_SOURCE}"
        manifest = Path(mlflow.artifacts.download_artifacts(uri, dst_path=folder, tracking_uri=client.tracking_uri)).read_bytes()
        if hashlib.sha256(manifest).hexdigest() == sha256:
            files: dict[str, str] = json.loads(manifest)["files"]
            return files
    return {}


def _of_source(client: MlflowClient, agent_name: str, experiment_id: str, source: AgentSource) -> AgentVersion:
    """Return the version that a source is, at its commit where it lies in git, and make it if it is a new one."""
    state, tags, diff = _git_facts(source)
    if state:
        label = f"{agent_name}@{state.commit[:8]}" + (f"+{state.diff_sha256[:8]}" if state.diff else "")
    else:
        label = agent_name + (f"#{source.sha256[:8]}" if source.sha256 else f"@{source.said_version}" if source.said_version else "")
    tags |= {_SOURCE_TAG: source.description}
    identity = (agent_name, source.sha256 or source.description, *((state.commit, state.diff_sha256) if state else ()))
    fingerprint = hashlib.sha256("\0".join(identity).encode("utf-8", "replace")).hexdigest()
    params = {_FINGERPRINT: fingerprint, SOURCE_PARAM: source.sha256, _SAID_PARAM: source.said_version}
    diff_tag = {"mlflow.source.git.diff": diff} if diff and len(diff) <= _LONGEST_DIFF_TAG else {}
    known = {name: value for name, value in params.items() if value}
    version = _NewVersion(client, experiment_id, model_name(label), {**tags, **diff_tag}, known, source)
    return AgentVersion(model_id=version.agreed(), label=label, tags=tags, diff=diff, source=source)


def _git_facts(source: AgentSource) -> tuple[GitState | None, dict[str, str], str]:
    """Return the state of the repository that a source lies in, what runs say of it as tags, and the changes since its commit."""
    state = git_state(source.folder) if source.folder else None
    if state is None:
        return None, {"adk_eval.git": "absent"}, ""
    tags = {
        "mlflow.source.git.commit": state.commit,
        "mlflow.source.git.branch": state.branch,
        "mlflow.source.git.repoURL": state.repo_url,
        "mlflow.source.git.dirty": str(bool(state.diff)).lower(),
        "adk_eval.git.diff_sha256": state.diff_sha256,
    }
    return state, {name: value for name, value in tags.items() if value}, redacted(state.diff, secrets_of())


@dataclass(frozen=True, slots=True)
class _NewVersion:
    """A version that a source is, as a LoggedModel whose code is elsewhere. Jobs that start together agree on one."""

    client: MlflowClient
    experiment_id: str
    name: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    source: AgentSource

    def agreed(self) -> str:
        """Return the LoggedModel of this source: one that is there, once whoever makes it is done, or a new one, which all agree on."""
        deadline = time.monotonic() + _MAKING_S
        while known := self._known():
            if ready := next((model for model in known if model.status == LoggedModelStatus.READY), None):
                return str(ready.model_id)
            if time.monotonic() > deadline or time.time() - known[0].creation_timestamp / 1000 > _MAKING_S:  # who began it has died
                self._save(known[0])
                return self._finalize(known[0])
            time.sleep(_LOOK_AGAIN_S)
        mark = uuid4().hex
        # As `mlflow.create_external_model` does in its global state.
        how: dict[str, Any] = {"name": self.name, "params": dict(self.params), "model_type": "agent"}
        tags = {**self.tags, CREATION: mark, "mlflow.model.isExternal": "true"}
        create = partial(self.client.create_logged_model, self.experiment_id, tags=tags, **how)
        mine = created_once(create, lambda: self._known(mark), self._delete)
        self._save(mine)
        first = min(self._known() or [mine], key=lambda model: (model.status != LoggedModelStatus.READY, _age(model)))
        if first.model_id == mine.model_id:
            return self._finalize(mine)
        self._delete(mine)  # somebody else makes one at the same time
        return self.agreed()

    def _known(self, mark: str = "") -> list[LoggedModel]:
        """Return the LoggedModels of this source, the oldest first, or those that carry a mark."""
        condition = f"tags.`{CREATION}` = '{mark}'" if mark else f"params.`{_FINGERPRINT}` = '{self.params[_FINGERPRINT]}'"
        models = self.client.search_logged_models([self.experiment_id], filter_string=condition)
        same = [model for model in models if model.params.get(SOURCE_PARAM, "") == self.source.sha256]
        return sorted(same, key=_age)

    def _save(self, model: LoggedModel) -> None:
        from mlflow.models.utils import get_external_mlflow_model_spec  # noqa: PLC0415 - only the first evaluation of a version

        with tempfile.TemporaryDirectory() as folder:
            if self.source.manifest:
                (Path(folder) / AGENT_SOURCE).write_bytes(self.source.manifest)
            get_external_mlflow_model_spec(model).save(str(Path(folder) / "MLmodel"))
            self.client.log_model_artifacts(model.model_id, folder)

    def _delete(self, model: LoggedModel) -> None:
        with unless_absent():
            self.client.delete_logged_model(model.model_id)

    def _finalize(self, model: LoggedModel) -> str:
        return str(self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY).model_id)


def _age(model: LoggedModel) -> tuple[int, str]:
    return model.creation_timestamp, model.model_id


_VERSIONS = "mlflow.modelVersions"
"""MLflow's tag of a LoggedModel with the versions that it is registered as."""


def register(report: Report | str, name: str, *, tracking_uri: str | None = None) -> str:
    """Register the evaluated agent as a version of the registered model `name`, unless it already is one; return the version.

    Args:
        report: the report, or the id of its run.
        name: of the registered model, which is created if there is none.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        UsageError: if the report was not logged, or its run is not in this store.
        TrackingError: if MLflow does not accept it.
    """
    run_id, client = run_id_at(report, tracking_uri), connect(tracking_uri)
    with reaching_mlflow(f"the agent could not be registered as {name!r}"):
        with existing(f"run {run_id}"):
            model_id = client.get_run(run_id).data.params.get("adk_eval.model_id")
        if model_id is None:
            raise TrackingError(f"run {run_id} does not name the agent version that it evaluated")
        try:
            client.get_registered_model(name)
        except MlflowException as error:
            if not is_absent(error):
                raise
            try:
                client.create_registered_model(name)
            except MlflowException as refused:
                if refused.error_code != "RESOURCE_ALREADY_EXISTS":  # by somebody else, or by a request whose answer was lost
                    raise
        source = f"models:/{model_id}"
        version = _registered_from(client, name, source) or _create_version(client, name, source, model_id)
        # The LoggedModel's pages name the version, which only MLflow's server sees to by itself.
        linked = json.loads(client.get_logged_model(model_id).tags.get(_VERSIONS, "[]"))
        ours = {"name": name, "version": version}
        if not any({**entry, "version": str(entry.get("version"))} == ours for entry in linked):
            client.set_logged_model_tags(model_id, {_VERSIONS: json.dumps([*linked, ours])})
        return version


def _registered_from(client: MlflowClient, name: str, source: str) -> str | None:
    """Return the first version that was registered from a source, since numbers are given in the order in which all see them."""
    known = (version for version in client.search_model_versions(f"name = '{name}'") if version.source == source)
    first = min(known, key=lambda version: int(version.version), default=None)
    return None if first is None else str(first.version)


def _create_version(client: MlflowClient, name: str, source: str, model_id: str) -> str:
    mark = uuid4().hex

    def create() -> ModelVersion:
        with _default_store(client.tracking_uri):
            return client.create_model_version(name, source, model_id=model_id, tags={CREATION: mark})

    def marked() -> list[ModelVersion]:
        ours = (version for version in client.search_model_versions(f"name = '{name}'") if version.tags.get(CREATION) == mark)
        return sorted(ours, key=lambda version: int(version.version))

    created = created_once(create, marked, lambda version: client.delete_model_version(name, version.version))
    first = _registered_from(client, name, source) or str(created.version)
    if first != str(created.version):  # somebody else registered the same at the same time
        with unless_absent():
            client.delete_model_version(name, created.version)
    return first


@contextmanager
def _default_store(tracking_uri: str) -> Generator[None, None, None]:
    """Make a store the default one within: MLflow looks up the LoggedModel of a new version there, whatever the client's store is."""
    before, environment = mlflow.get_tracking_uri(), os.environ.get("MLFLOW_TRACKING_URI")
    if before == tracking_uri:
        yield
        return
    mlflow.set_tracking_uri(tracking_uri)
    try:
        yield
    finally:
        for uri in (None, before):  # at first as where nobody has set any, so that the environment counts
            if mlflow.get_tracking_uri() != before:
                mlflow.set_tracking_uri(uri)  # pyright: ignore[reportArgumentType] - ``None`` is what takes it back
                if environment is None:
                    os.environ.pop("MLFLOW_TRACKING_URI", None)
                else:
                    os.environ["MLFLOW_TRACKING_URI"] = environment
