"""What the gate asks of a tracking server and its model registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mlflow_adk_eval.gating.evidence.integrity import Evidence
from mlflow_adk_eval.gating.promotion.record import Record, Target, Version


class Store(Protocol):
    """Runs and model versions, to read and to write."""

    def evidence(self, run_id: str) -> Evidence:
        """Return what a run holds.

        Raises:
            UsageError: if there is no such run.
        """
        ...

    def artifact(self, run_id: str, path: str) -> bytes | None:
        """Return one artifact; ``None`` if the run does not have it.

        Raises:
            UsageError: if there is no such run.
        """
        ...

    def evaluations(self, model_id: str, digest: str, *, beside: str = "") -> Sequence[str]:
        """Return the complete runs about a LoggedModel on an eval set, newest first: in its experiment, and in that of the run `beside`."""
        ...

    def version(self, name: str, version: str) -> Version:
        """Return a model version.

        Raises:
            UsageError: if there is no such version.
        """
        ...

    def aliases(self, name: str) -> Mapping[str, str]:
        """Return which version of a registered model holds each alias.

        Raises:
            UsageError: if there is no such model.
        """
        ...

    def model_id(self, agent_version: str) -> str:
        """Return the LoggedModel that an agent version names.

        Raises:
            UsageError: if it names none.
        """
        ...

    def models(self) -> Sequence[str]:
        """Return the names of all registered models."""
        ...

    def ledger(self, name: str) -> Mapping[str, str]:
        """Return the claims to the aliases of a model, as they were written; none where nothing was ever promoted.

        Raises:
            UsageError: if the ledger was deleted.
        """
        ...

    def claim(self, name: str, key: str, text: str) -> str:
        """Write into a model's ledger what nobody can change, if nothing is there, and return what is there now.

        Raises:
            UsageError: if the ledger was deleted.
        """
        ...

    def signature(self, record: Record) -> str:
        """Return the signature of a record; empty where records are not signed."""
        ...

    def write(self, record: Record) -> None:
        """Keep a record as an artifact of the run that it is about, beside it its signature."""
        ...

    def tag(self, target: Target, tags: Mapping[str, str]) -> None:
        """Set tags on a version, one after the other.

        Raises:
            UsageError: if there is no such version.
        """
        ...

    def untag(self, target: Target, key: str) -> None:
        """Remove a tag from a version.

        Raises:
            UsageError: if there is no such version.
        """
        ...

    def set_alias(self, target: Target) -> None:
        """Give a version its alias.

        Raises:
            UsageError: if there is no such version.
        """
        ...
