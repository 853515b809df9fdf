"""What the gate asks of a tracking server and its model registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from mlflow_adk_eval.gate.evidence import Evidence
from mlflow_adk_eval.gate.record import Record, Target, Version


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

    def write(self, record: Record) -> None:
        """Keep a record as an artifact of the run that it is about."""
        ...

    def tag(self, target: Target, tags: Mapping[str, str]) -> None:
        """Set tags on a version, one after the other."""
        ...

    def untag(self, target: Target, key: str) -> None:
        """Remove a tag from a version."""
        ...

    def set_alias(self, target: Target) -> None:
        """Give a version its alias."""
        ...
