"""Datasets in MLflow's store: finding one by its name, reading and changing what it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import EvaluationDataset

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.tracking.client import existing
from mlflow_adk_eval.tracking.datasets.records import Changes, Stored

T = TypeVar("T")

_ID = re.compile(r"d-[0-9a-f]{32}")
_LONGEST_NAME = 255
_MOST_NAMESAKES = 1000
_RECORDS_PER_REQUEST = 500


def is_dataset_id(name: str) -> bool:
    """Whether a text is the id of a dataset rather than a name.

    >>> is_dataset_id("d-0123456789abcdef0123456789abcdef"), is_dataset_id("d-day")
    (True, False)
    """
    return _ID.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class DatasetStore:
    """The datasets of a store. MLflow's own functions know only the store that the process is configured for."""

    client: MlflowClient

    @property
    def _store(self) -> Any:
        return self.client._tracking_client.store  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - no public way to records

    def by_id(self, dataset_id: str) -> EvaluationDataset:
        """Return a dataset.

        Raises:
            UsageError: if there is none.
        """
        with existing(f"dataset {dataset_id}"):
            return self.client.get_dataset(dataset_id)

    def by_name(self, name: str, experiment_id: str, *, only_there: bool = False) -> EvaluationDataset | None:
        """Return the dataset of a name: the one in an experiment, else, unless it must be there, the only one anywhere.

        Raises:
            UsageError: if the name says too little, since several datasets may have one.
        """
        if not name.strip() or len(name) > _LONGEST_NAME:
            raise UsageError(f"dataset name {name[:60]!r}: wanted 1 to {_LONGEST_NAME} characters")
        found = self._named(name, [experiment_id])
        if not found and not only_there:
            found = self._named(name, None)
        if len(found) > 1:
            ids = ", ".join(dataset.dataset_id for dataset in found)
            raise UsageError(f"{len(found)} datasets are named {name!r}: {ids}. Name one by its id, or delete the others")
        return found[0] if found else None

    def _named(self, name: str, experiment_ids: list[str] | None) -> list[EvaluationDataset]:
        listed = self.client.search_datasets(
            experiment_ids, filter_string=_filter(name), max_results=_MOST_NAMESAKES, order_by=["created_time ASC"]
        )
        return [dataset for dataset in listed if dataset.name == name]

    def records(self, dataset_id: str) -> list[Stored]:
        """Return all records, in no particular order."""
        return [
            Stored(
                record_id=str(record.dataset_record_id),
                inputs=record.inputs,
                expectations=dict(record.expectations or {}),
                tags=dict(record.tags or {}),
                created=record.created_time or 0,
            )
            for record in self.loaded(dataset_id)
        ]

    def loaded(self, dataset_id: str) -> list[Any]:
        """Return all records as MLflow's own objects."""
        records, _ = self._store._load_dataset_records(dataset_id, max_results=None)  # noqa: SLF001 - as MLflow's own dataset does
        return list(records)

    def apply(self, dataset_id: str, changes: Changes, kept: Mapping[str, Any] | None) -> None:
        """Change what a dataset holds.

        Args:
            dataset_id: which one.
            changes: what to delete, and then what to merge.
            kept: a record that stays as it is, if any. Merging it gives the dataset its new digest after nothing but deletions,
                which MLflow does not count as changes.
        """
        for ids in _batches(changes.delete):
            self._store.delete_dataset_records(dataset_id, list(ids))
        for records in list(_batches(changes.upsert or ([kept] if kept else []))) or [[]]:
            self._store.upsert_dataset_records(dataset_id, list(records))

    def set_tags(self, dataset: EvaluationDataset, tags: Mapping[str, str], *, family: str) -> bool:
        """Give a dataset its tags, and take away others whose key begins with `family`; return whether anything changed."""
        present: Mapping[str, Any] = dataset.tags or {}
        stale = [key for key in present if key.startswith(family) and key not in tags]
        changed = {key: value for key, value in tags.items() if present.get(key) != value}
        if changed:
            self.client.set_dataset_tags(dataset.dataset_id, changed)
        for key in stale:
            self.client.delete_dataset_tag(dataset.dataset_id, key)
        return bool(changed or stale)

    def join(self, dataset_id: str, experiment_id: str) -> None:
        """Let a dataset belong to an experiment, too."""
        if experiment_id not in self._store.get_dataset_experiment_ids(dataset_id):
            self.client.add_dataset_to_experiments(dataset_id, [experiment_id])


def _filter(name: str) -> str:
    """Return a filter that finds at least the datasets of a name. MLflow has no way to write a text with both kinds of quotes."""
    if '"' not in name:
        return f'name = "{name}"'
    return f"name = '{name}'" if "'" not in name else "name LIKE '{}'".format(name.replace("'", "_"))


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield parts that are small enough for a request."""
    return (items[start : start + _RECORDS_PER_REQUEST] for start in range(0, len(items), _RECORDS_PER_REQUEST))
