"""Which version of the agent is evaluated, as a LoggedModel of MLflow."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelStatus
from mlflow.entities.model_registry import ModelVersion

from mlflow_adk_eval.agents.git import GitState, git_state
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.tracking.client import existing
from mlflow_adk_eval.tracking.storable import model_name

_LOGGED = re.compile(r"(?:models:/)?(m-\w+)")
_NUMBERED = re.compile(r"models:/([^/@]+)/(\d+)")
_ALIASED = re.compile(r"models:/([^/@]+)@(.+)")
_NEAR = re.compile(r"(?:models:/*)?([^/@:]+[/@][^/@]+)")
_FINGERPRINT = "adk_eval.fingerprint"
_LONGEST_DIFF_TAG = 5000
_WANTED = "models:/<name>/<version>, models:/<name>@<alias> or the id of a LoggedModel, or nothing to take it from git"


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


def find_version(client: MlflowClient, agent_version: str | None, *, agent_name: str, experiment_id: str) -> AgentVersion:
    """Return the version that `agent_version` names, or that the git state of the working directory is.

    Args:
        client: where it is.
        agent_version: a registered version, a LoggedModel's id, or ``None`` for git.
        agent_name: what a version taken from git is a version of.
        experiment_id: where a version taken from git is kept.

    Raises:
        UsageError: if it names nothing, or a version that no run can be tied to.
    """
    if agent_version is None:
        return _from_git(client, agent_name, experiment_id, git_state(Path.cwd()))
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


def _from_git(client: MlflowClient, agent_name: str, experiment_id: str, state: GitState | None) -> AgentVersion:
    label = _label(agent_name, state)
    diff = redacted(state.diff, secrets_of()) if state else ""
    tags = _tags(state)
    identity = (agent_name, state.commit, state.diff_sha256) if state else (agent_name,)
    fingerprint = hashlib.sha256("\0".join(identity).encode("utf-8", "replace")).hexdigest()
    known = client.search_logged_models([experiment_id], filter_string=f"tags.`{_FINGERPRINT}` = '{fingerprint}'", max_results=1)
    if known:
        return AgentVersion(model_id=known[0].model_id, label=label, tags=tags, diff=diff)
    kept = {"mlflow.source.git.diff": diff} if diff and len(diff) <= _LONGEST_DIFF_TAG else {}
    model = _create(client, experiment_id, model_name(label), {**tags, **kept, _FINGERPRINT: fingerprint})
    return AgentVersion(model_id=model.model_id, label=label, tags=tags, diff=diff)


def _label(agent_name: str, state: GitState | None) -> str:
    if state is None:
        return agent_name
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


def _create(client: MlflowClient, experiment_id: str, name: str, tags: Mapping[str, str]) -> LoggedModel:
    """Create a LoggedModel whose code is elsewhere, as `mlflow.create_external_model` does in its global state."""
    from mlflow.models.utils import get_external_mlflow_model_spec  # noqa: PLC0415 - only the first evaluation of a version

    model = client.create_logged_model(experiment_id, name=name, tags={**tags, "mlflow.model.isExternal": "true"}, model_type="agent")
    with tempfile.TemporaryDirectory() as folder:
        get_external_mlflow_model_spec(model).save(str(Path(folder) / "MLmodel"))
        client.log_model_artifacts(model.model_id, folder)
    return client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
