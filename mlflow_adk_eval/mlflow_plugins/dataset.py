"""Eval sets as datasets of MLflow: ``mlflow.data.from_adk_evalset``. Loaded by every ``import mlflow``, so it imports next to nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlflow.data.dataset import Dataset
from mlflow.data.dataset_source import DatasetSource


class EvalSetSource(DatasetSource):
    """A file with an eval set."""

    def __init__(self, uri: str) -> None:
        """Name the file."""
        self.uri = uri

    @staticmethod
    def _get_source_type() -> str:
        return "adk_evalset"

    def load(self, **_: Any) -> Any:
        """Return the JSON."""
        return json.loads(Path(self.uri).read_text(encoding="utf-8"))

    @staticmethod
    def _can_resolve(raw_source: Any) -> bool:
        return isinstance(raw_source, str) and raw_source.endswith(".evalset.json")

    @classmethod
    def _resolve(cls, raw_source: Any) -> EvalSetSource:
        return cls(raw_source)

    def to_dict(self) -> dict[str, Any]:
        """Return what is stored."""
        return {"uri": self.uri}

    @classmethod
    def from_dict(cls, source_dict: dict[str, Any]) -> EvalSetSource:
        """Return the source that was stored."""
        return cls(source_dict["uri"])


class EvalSetDataset(Dataset):
    """An eval set."""

    def _compute_digest(self) -> str:
        return ""

    @property
    def profile(self) -> Any:
        """How large it is."""
        return None

    @property
    def schema(self) -> Any:
        """It has none."""
        return None


def from_adk_evalset(path: str, name: str | None = None, digest: str | None = None) -> EvalSetDataset:
    """Return the eval set in a file as a dataset."""
    return EvalSetDataset(EvalSetSource(path), name, digest)
