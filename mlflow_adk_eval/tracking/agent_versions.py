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
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelStatus
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking._tracking_service.utils import _use_tracking_uri  # pyright: ignore[reportPrivateUsage] - resets the URI afterwards

from mlflow_adk_eval.agents.git import GitState, git_state
from mlflow_adk_eval.agents.source import UNKNOWN, AgentSource
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.gating.attestation.evaluation import AGENT_SOURCE, SOURCE_PARAM
from mlflow_adk_eval.gating.evidence.integrity import few
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.tracking.client import connect, existing, is_absent, reaching_mlflow
from mlflow_adk_eval.tracking.storable import model_name

_LOGGED = re.compile(r"(?:models:/)?(m-\w+)")
_NUMBERED = re.compile(r"models:/([^/@]+)/(\d+)")
_ALIASED = re.compile(r"models:/([^/@]+)@(.+)")
_NEAR = re.compile(r"(?:models:/*)?([^/@:]+[/@][^/@]+)")
_FINGERPRINT = "adk_eval.fingerprint"
_SOURCE_TAG = "adk_eval.agent.source"
_LONGEST_DIFF_TAG = 5000
_WANTED = "models:/<name>/<version>, models:/<name>@<alias> or the id of a LoggedModel, or nothing to take it from the agent's source"
_MAX_NAMED = 3


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
    found = _named(client, agent_version)
    notes, state = _source_notes(client, found, source), _git_of(source)
    tags = {**(_tags(state) if state else {}), _SOURCE_TAG: source.description}
    return replace(found, source=source, notes=notes, tags=tags, diff=_diff(state))


def _named(client: MlflowClient, agent_version: str) -> AgentVersion:
    if found := _LOGGED.fullmatch(agent_version):
        return AgentVersion(model_id=_logged(client, found[1], f"agent_version {agent_version!r}"), label=agent_version)
    if found := _NUMBERED.fullmatch(agent_version):
        with existing(f"agent_version {agent_version!r}"):
            return _registered(client, agent_version, client.get_model_version(found[1], found[2]))
    if found := _ALIASED.fullmatch(agent_version):
        with existing(f"agent_version {agent_version!r}"):
            version = client.get_model_version_by_alias(found[1], found[2])
        return _registered(client, f"models:/{found[1]}/{version.version}", version)
    near = _NEAR.fullmatch(agent_version)
    hint = f". Did you mean 'models:/{near[1]}'?" if near else ""
    raise UsageError(f"agent_version {agent_version!r}: wanted {_WANTED}{hint}")


def _logged(client: MlflowClient, model_id: str, what: str) -> str:
    with existing(what):
        return str(client.get_logged_model(model_id).model_id)


def _registered(client: MlflowClient, label: str, version: ModelVersion) -> AgentVersion:
    source = _LOGGED.fullmatch(version.source or "")
    if source is None:
        raise UsageError(
            f"agent_version {label!r}: this version was registered from {version.source!r}, not from a LoggedModel, "
            "so no run can be tied to it; register one as mlflow.register_model('models:/<id of a LoggedModel>', name)"
        )
    return AgentVersion(model_id=_logged(client, source[1], f"the LoggedModel of agent_version {label!r}"), label=label)


def _source_notes(client: MlflowClient, version: AgentVersion, source: AgentSource) -> tuple[str, ...]:
    """Return what there is to say about a version that was named for an agent of this source.

    Raises:
        UsageError: if the version is made of another source.
    """
    if recorded := _LOGGED.fullmatch(source.recorded_version):
        return _recording_notes(client, version, recorded[1])
    if not source.sha256:
        return ()
    model = client.get_logged_model(version.model_id)
    said = model.params.get(SOURCE_PARAM, "")
    if said == source.sha256:
        return ()
    if not said:
        text = f"{version.label} does not say which source it is made of, so nothing shows that it is the agent that was evaluated"
        return (f"agent_version: {text} ({source.description}, sha256 {source.sha256[:12]}…)",)
    differing = _differing(_files_of(client, model, said), source)
    raise UsageError(
        f"agent_version {version.label!r} is made of another source than this agent: sha256 {said[:12]}…, this agent's is"
        f" {source.sha256[:12]}… ({source.description}){differing}. Evaluate the agent that it is, or leave out agent_version:"
        " changed source is a new version, which --register registers"
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
            f"agent_version: the recording is of {recorded}, which is not in this MLflow store, so nothing shows that it is of {version.label}",
        )
    if named and source == named:
        return ()
    raise UsageError(
        f"agent_version {version.label!r}: the recording is of another version, {recorded}, and what that did is no evidence about this one;"
        " leave out agent_version, or run the agent"
    )


def _files_of(client: MlflowClient, model: LoggedModel, sha256: str) -> Mapping[str, str]:
    """Return the hashes of the files that a LoggedModel is made of; none where its list is gone or was changed."""
    with tempfile.TemporaryDirectory() as folder, suppress(MlflowException, OSError, ValueError):
        uri = f"{model.artifact_location}/{AGENT_SOURCE}"
        kept = Path(mlflow.artifacts.download_artifacts(uri, dst_path=folder, tracking_uri=client.tracking_uri)).read_bytes()
        if hashlib.sha256(kept).hexdigest() == sha256:
            files: dict[str, str] = json.loads(kept)["files"]
            return files
    return {}


def _differing(files: Mapping[str, str], source: AgentSource) -> str:
    if not files:
        return ""
    changed = [name for name in sorted({*files, *source.files}) if files.get(name) != source.files.get(name)]
    return f"; {', '.join(few(changed, limit=_MAX_NAMED))} differ" if changed else "; its models or .env variables differ"


def _of_source(client: MlflowClient, agent_name: str, experiment_id: str, source: AgentSource) -> AgentVersion:
    """Return the version that a source is, at its commit where it lies in git, and make it if it is a new one."""
    state = _git_of(source)
    label, diff = _label(agent_name, state, source), _diff(state)
    tags = {**_tags(state), _SOURCE_TAG: source.description}
    git = (state.commit, state.diff_sha256) if state else ()
    identity = (agent_name, source.sha256 or source.description, *git)
    fingerprint = hashlib.sha256("\0".join(identity).encode("utf-8", "replace")).hexdigest()
    params = {_FINGERPRINT: fingerprint, **({SOURCE_PARAM: source.sha256} if source.sha256 else {})}
    known = client.search_logged_models([experiment_id], filter_string=f"params.`{_FINGERPRINT}` = '{fingerprint}'")
    model_id = next((model.model_id for model in known if model.params.get(SOURCE_PARAM, "") == source.sha256), None)
    if model_id is None:
        kept = {"mlflow.source.git.diff": diff} if diff and len(diff) <= _LONGEST_DIFF_TAG else {}
        model_id = _create(client, experiment_id, model_name(label), {**tags, **kept}, params, source).model_id
    return AgentVersion(model_id=model_id, label=label, tags=tags, diff=diff, source=source)


def _git_of(source: AgentSource) -> GitState | None:
    return git_state(source.folder) if source.folder else None


def _diff(state: GitState | None) -> str:
    return redacted(state.diff, secrets_of()) if state else ""


def _label(agent_name: str, state: GitState | None, source: AgentSource) -> str:
    if state is None:
        return f"{agent_name}#{source.sha256[:8]}" if source.sha256 else agent_name
    return f"{agent_name}@{state.commit[:8]}" + (f"+{state.diff_sha256[:8]}" if state.diff else "")


def _tags(state: GitState | None) -> dict[str, str]:
    if state is None:
        return {"adk_eval.git": "absent"}
    tags = {
        "mlflow.source.git.commit": state.commit,
        "mlflow.source.git.branch": state.branch,
        "mlflow.source.git.repoURL": state.repo_url,
        "mlflow.source.git.dirty": str(bool(state.diff)).lower(),
        "adk_eval.git.diff_sha256": state.diff_sha256,
    }
    return {name: value for name, value in tags.items() if value}


def _create(
    client: MlflowClient, experiment_id: str, name: str, tags: Mapping[str, str], params: Mapping[str, str], source: AgentSource
) -> LoggedModel:
    """Create a LoggedModel whose code is elsewhere, as `mlflow.create_external_model` does in its global state."""
    from mlflow.models.utils import get_external_mlflow_model_spec  # noqa: PLC0415 - only the first evaluation of a version

    external = {**tags, "mlflow.model.isExternal": "true"}
    model = client.create_logged_model(experiment_id, name=name, tags=external, params=dict(params), model_type="agent")
    with tempfile.TemporaryDirectory() as folder:
        if source.manifest:
            (Path(folder) / AGENT_SOURCE).write_bytes(source.manifest)
        get_external_mlflow_model_spec(model).save(str(Path(folder) / "MLmodel"))
        client.log_model_artifacts(model.model_id, folder)
    return client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


_VERSIONS = "mlflow.modelVersions"
"""MLflow's tag of a LoggedModel with the versions that it is registered as."""


def register(report: Report, name: str, *, tracking_uri: str | None = None) -> str:
    """Return the version of the registered model `name` that is the evaluated agent, registering it if it is none yet.

    Raises:
        UsageError: if the report was not logged, or its run is not in this store.
        TrackingError: if MLflow does not take it.
    """
    if report.run_id is None:
        raise UsageError("the report was not logged in MLflow, so there is no agent version to register")
    client = connect(tracking_uri)
    with reaching_mlflow(f"the agent could not be registered as {name!r}"):
        with existing(f"run {report.run_id}"):
            model_id = client.get_run(report.run_id).data.params.get("adk_eval.model_id")
        if model_id is None:
            raise TrackingError(f"run {report.run_id} does not say which agent version it evaluated")
        version = _version(client, name, f"models:/{model_id}", model_id)
        _link(client, model_id, name, version)
        return version


def _version(client: MlflowClient, name: str, source: str, model_id: str) -> str:
    try:
        client.get_registered_model(name)
    except MlflowException as error:
        if not is_absent(error):
            raise
        client.create_registered_model(name)
    known = [version for version in client.search_model_versions(f"name = '{name}'") if version.source == source]
    if known:
        return str(known[0].version)
    with _default_store(client.tracking_uri):
        return str(client.create_model_version(name, source, model_id=model_id).version)


def _link(client: MlflowClient, model_id: str, name: str, version: str) -> None:
    """Have the LoggedModel's pages name the version, which only MLflow's server sees to by itself."""
    linked = json.loads(client.get_logged_model(model_id).tags.get(_VERSIONS, "[]"))
    ours = {"name": name, "version": version}
    if not any({**one, "version": str(one.get("version"))} == ours for one in linked):
        client.set_logged_model_tags(model_id, {_VERSIONS: json.dumps([*linked, ours])})


@contextmanager
def _default_store(tracking_uri: str) -> Generator[None, None, None]:
    """Make a store the default one within: MLflow looks up the LoggedModel of a new version there, whatever the client's store is."""
    before, environment = mlflow.get_tracking_uri(), os.environ.get("MLFLOW_TRACKING_URI")
    if before == tracking_uri:
        yield
        return
    try:
        with _use_tracking_uri(tracking_uri):
            yield
    finally:
        if environment is None:
            os.environ.pop("MLFLOW_TRACKING_URI", None)
        else:
            os.environ["MLFLOW_TRACKING_URI"] = environment
