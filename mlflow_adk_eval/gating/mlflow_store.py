"""MLflow as the gate's store: the only place in the gate that knows MLflow's client."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.gating.evidence.integrity import FOLDER, MANIFEST, Evidence
from mlflow_adk_eval.gating.promotion.mlflow_claims import MlflowClaimLog
from mlflow_adk_eval.gating.promotion.record import Record, Target, Version
from mlflow_adk_eval.gating.promotion.signing import SIGNATURE, Signer
from mlflow_adk_eval.redact import message_of
from mlflow_adk_eval.runtime import defaults

_ABSENT = {"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "INVALID_PARAMETER_VALUE"}
_AGENT_VERSION = re.compile(r"(?:models:/)?(m-[^/@]+)|models:/([^/@]+)(?:/(\d+)|@([\w-]+))")
_IMPATIENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
"""MLflow's own defaults keep a caller waiting for minutes where no server answers."""
_MAX_RUNS = 10
_MODELS_AT_ONCE = 100


class MlflowStore:
    """An MLflow tracking server with its model registry, in the terms of the gate."""

    def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None, *, signer: Signer | None = None) -> None:
        """Connect; ``None``: as MLflow is configured. With a `signer`, records are signed."""
        from mlflow import MlflowClient  # noqa: PLC0415 - seconds, which only users of MLflow should pay

        self.client = MlflowClient(tracking_uri, registry_uri)
        self._ledger, self._signer = MlflowClaimLog(self.client), signer

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

    def evaluations(self, model_id: str, digest: str, *, beside: str = "") -> list[str]:
        """Return the complete runs about a LoggedModel on an eval set, newest first."""
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
        found = (
            self.client.search_runs(list(homes), wanted, order_by=["attributes.start_time DESC"], max_results=_MAX_RUNS) if homes else []
        )
        return [run.info.run_id for run in found]

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

    def models(self) -> list[str]:
        """Return the names of all registered models."""
        found: list[str] = []
        token: str | None = None
        while True:
            page = self.client.search_registered_models(max_results=_MODELS_AT_ONCE, page_token=token)
            found += [str(model.name) for model in page]
            token = page.token or None
            if token is None:
                return found

    def ledger(self, name: str) -> dict[str, str]:
        """Return the claims to the aliases of a model, as they were written."""
        return self._ledger.read(name)

    def claim(self, name: str, key: str, text: str) -> str:
        """Write into a model's ledger what nobody can change, and return what is there now."""
        return self._ledger.claim(name, key, text)

    def signature(self, record: Record) -> str:
        """Return the signature of a record; empty without a key."""
        return self._signer.sign(record.text().encode()) if self._signer else ""

    def write(self, record: Record) -> None:
        """Keep a record as an artifact of the run that it is about, beside it its signature."""
        place = record.place
        if signature := self.signature(record):
            self.client.log_text(place.run_id, signature, place.path + SIGNATURE)
        self.client.log_text(place.run_id, record.text(), place.path)

    def tag(self, target: Target, tags: Mapping[str, str]) -> None:
        """Set tags on a version, in their order."""
        with _existing(str(target)):
            for key, value in tags.items():
                self.client.set_model_version_tag(target.name, target.version, key, value)

    def untag(self, target: Target, key: str) -> None:
        """Remove a tag from a version."""
        with _existing(str(target)):
            self.client.delete_model_version_tag(target.name, target.version, key)

    def set_alias(self, target: Target) -> None:
        """Give a version its alias."""
        with _existing(str(target)):
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
