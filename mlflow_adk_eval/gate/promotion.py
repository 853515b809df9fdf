"""Deciding on a run in MLflow, setting an alias in the model registry, and checking later that it was rightly set."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlflow_adk_eval.environment import defaults
from mlflow_adk_eval.errors import GateFailed, TrackingError, UsageError
from mlflow_adk_eval.gate.alias import promote_in
from mlflow_adk_eval.gate.decide import decide
from mlflow_adk_eval.gate.evidence import FOLDER, MANIFEST, Evidence, agent_problems
from mlflow_adk_eval.gate.policy import load_policy
from mlflow_adk_eval.gate.record import Record, Target, Version, check_alias, check_version, doubted, signed
from mlflow_adk_eval.gate.verification import verify_in
from mlflow_adk_eval.outcome import Decision, Report
from mlflow_adk_eval.redact import message_of

_ABSENT = {"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "INVALID_PARAMETER_VALUE"}
_AGENT_VERSION = re.compile(r"(?:models:/)?(m-[^/@]+)|models:/([^/@]+)(?:/(\d+)|@([\w-]+))")
_IMPATIENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
"""MLflow's own defaults keep a caller waiting for minutes where no server answers."""


def gate(
    run: str | Report,
    policy: Any = None,
    *,
    raise_on_failure: bool = True,
    agent_version: str | None = None,
    tracking_uri: str | None = None,
) -> Decision:
    """Return whether a run's evidence allows a promotion. Nothing is written.

    Args:
        run: the id of the run, or the report that was logged as one.
        policy: what is demanded; ``None``: the thresholds of the run's own config, on every case.
        raise_on_failure: whether anything but *passed* is an error.
        agent_version: the agent that the run must have evaluated: a LoggedModel id, ``models:/<name>/<version>``
            or ``models:/<name>@<alias>``.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.

    Raises:
        GateFailed: if the decision is not *passed*.
        UsageError: if there is no such run.
        TrackingError: if MLflow cannot be reached.
    """
    run_id, demanded = run_id_of(run), load_policy(policy)
    with reaching_mlflow():
        store = MlflowStore(tracking_uri)
        evidence = store.evidence(run_id)
        problems = agent_problems(evidence, store.model_id(agent_version)) if agent_version else []
    return _answer(signed(doubted(decide(evidence, demanded), problems)), raise_on_failure=raise_on_failure)


def promote(  # noqa: PLR0913 - which version, on which evidence, in which store
    name: str,
    version: int | str,
    alias: str = "champion",
    *,
    run_id: str | Report,
    policy: Any = None,
    dry_run: bool = False,
    raise_on_failure: bool = True,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> Decision:
    """Set `alias` on a version of a registered model if the evidence of a run allows it, and record the decision either way.

    Args:
        name: the registered model.
        version: the version, which must be READY and made from the LoggedModel that the run evaluated.
        alias: the alias.
        run_id: the run, or the report that was logged as one.
        policy: what is demanded; ``None``: the thresholds of the run's own config, on every case.
        dry_run: whether to decide only, and write nothing.
        raise_on_failure: whether anything but *passed* is an error.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.
        registry_uri: where the registry is; ``None``: as MLflow is configured.

    Raises:
        GateFailed: if the alias was not set, or in a dry run would not be.
        UsageError: if the run, the model or the version does not exist, or the alias is no valid one.
        TrackingError: if MLflow cannot be reached.
    """
    target, demanded = Target(name=name, version=str(version), alias=alias), load_policy(policy)
    with reaching_mlflow():
        decision = promote_in(MlflowStore(tracking_uri, registry_uri), target, run_id_of(run_id), demanded, dry_run=dry_run)
    return _answer(decision, raise_on_failure=raise_on_failure)


def verify(
    name: str,
    version: int | str | None = None,
    *,
    alias: str | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> Decision:
    """Return whether a promotion still stands: its record is unchanged, and the evidence says today what it said then.

    Args:
        name: the registered model.
        version: the version; ``None``: the one that holds `alias`.
        alias: the alias whose promotion is checked; ``None``: the last decision on `version`.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.
        registry_uri: where the registry is; ``None``: as MLflow is configured.

    Raises:
        UsageError: if the model, the version or the alias does not exist.
        TrackingError: if MLflow cannot be reached.
    """
    if version is None and alias is None:
        raise UsageError("verify: neither a version nor an alias is named")
    if version is not None:
        check_version(str(version))
    if alias is not None:
        check_alias(alias)
    with reaching_mlflow():
        return signed(verify_in(MlflowStore(tracking_uri, registry_uri), name, None if version is None else str(version), alias))


def _answer(decision: Decision, *, raise_on_failure: bool) -> Decision:
    if raise_on_failure and not decision.passed:
        raise GateFailed(decision)
    return decision


def run_id_of(run: str | Report) -> str:
    """Return the id of a run.

    Raises:
        UsageError: for a report that was not logged.
    """
    run_id = run.run_id if isinstance(run, Report) else run
    if not run_id:
        raise UsageError(
            "the report was not logged in MLflow, so there is no run to decide on" if isinstance(run, Report) else "the run id is empty"
        )
    return run_id


class MlflowStore:
    """An MLflow tracking server with its model registry, in the terms of the gate."""

    def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        """Connect; ``None``: as MLflow is configured."""
        from mlflow import MlflowClient  # noqa: PLC0415 - seconds, which only users of MLflow should pay

        self.client = MlflowClient(tracking_uri, registry_uri)

    def evidence(self, run_id: str) -> Evidence:
        """Return what a run holds."""
        with _existing(f"run {run_id!r}"):
            run = self.client.get_run(run_id)
        files = self._files(run_id, FOLDER)
        return Evidence(
            run_id=run_id,
            status=run.info.status,
            lifecycle_stage=run.info.lifecycle_stage,
            end_time=run.info.end_time,
            tags=run.data.tags,
            params=run.data.params,
            metrics=run.data.metrics,
            model_ids=tuple(found.model_id for found in (run.inputs.model_inputs if run.inputs else None) or ()),
            artifacts={name: content for name, content in files.items() if name != MANIFEST},
            manifest=files.get(MANIFEST),
        )

    def _files(self, run_id: str, folder: str) -> dict[str, bytes]:
        if not self.client.list_artifacts(run_id, folder):
            return {}
        with tempfile.TemporaryDirectory() as local:
            root = Path(self.client.download_artifacts(run_id, folder, local))
            return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    def artifact(self, run_id: str, path: str) -> bytes | None:
        """Return one artifact; ``None`` if the run does not have it."""
        with _existing(f"run {run_id!r}"):
            listed = self.client.list_artifacts(run_id, path.rpartition("/")[0])
        if path not in {found.path for found in listed}:
            return None
        with tempfile.TemporaryDirectory() as local:
            return Path(self.client.download_artifacts(run_id, path, local)).read_bytes()

    def version(self, name: str, version: str) -> Version:
        """Return a model version."""
        with _existing(f"version {version} of the registered model {name!r}"):
            found = self.client.get_model_version(name, version)
        return Version(status=found.status, source=found.source or "", tags=found.tags)

    def aliases(self, name: str) -> dict[str, str]:
        """Return which version holds each alias."""
        with _existing(f"the registered model {name!r}"):
            found = self.client.get_registered_model(name).aliases
        return {alias: str(version) for alias, version in found.items()}

    def model_id(self, agent_version: str) -> str:
        """Return the LoggedModel that an agent version names.

        Raises:
            UsageError: if it names none.
        """
        found = _AGENT_VERSION.fullmatch(agent_version)
        logged, name, number, alias = found.groups() if found else (None, None, None, None)
        number = number or (self.aliases(name).get(alias) if name and alias else None)
        model_id = logged or (self.version(name, number).model_id if name and number else None)
        if model_id is None:
            raise UsageError(f"agent_version {agent_version!r}: wanted a LoggedModel id, or a registered version made from a LoggedModel")
        return model_id

    def write(self, record: Record) -> None:
        """Keep a record as an artifact of the run that it is about."""
        self.client.log_text(record.place.run_id, record.text(), record.place.path)

    def tag(self, target: Target, tags: Mapping[str, str]) -> None:
        """Set tags on a version, in their order."""
        for key, value in tags.items():
            self.client.set_model_version_tag(target.name, target.version, key, value)

    def untag(self, target: Target, key: str) -> None:
        """Remove a tag from a version."""
        self.client.delete_model_version_tag(target.name, target.version, key)

    def set_alias(self, target: Target) -> None:
        """Give a version its alias."""
        self.client.set_registered_model_alias(target.name, target.alias, target.version)


@contextmanager
def _existing(what: str) -> Generator[None, None, None]:
    """Say that `what` does not exist where MLflow says so."""
    from mlflow.exceptions import MlflowException  # noqa: PLC0415

    try:
        yield
    except MlflowException as error:
        if error.error_code in _ABSENT:
            raise UsageError(f"{what} does not exist in this MLflow store") from None
        raise


@contextmanager
def reaching_mlflow() -> Generator[None, None, None]:
    """Give up on a server that does not answer within seconds, and say so without its credentials."""
    from mlflow.exceptions import MlflowException  # noqa: PLC0415

    with defaults(_IMPATIENT):
        try:
            yield
        except (MlflowException, OSError) as error:
            raise TrackingError(f"MLflow could not be asked: {message_of(error)}") from None
