"""Eval sets as datasets of MLflow, and back without loss."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import mlflow
from mlflow import MlflowClient
from mlflow.entities import EvaluationDataset as StoredDataset

from mlflow_adk_eval.config.eval_config import default_config
from mlflow_adk_eval.config.inputs import EvalSetSource, load_inputs
from mlflow_adk_eval.errors import AdkEvalError, EvalSetError, Problem, TrackingError, UsageError, shown
from mlflow_adk_eval.evalset import EvalSet, eval_set_digest
from mlflow_adk_eval.gating.mlflow_client import retried
from mlflow_adk_eval.tracking.client import HASTY, connect, existing, experiment_of, reaching_mlflow
from mlflow_adk_eval.tracking.dataset_records import Changes, Stored, cases_of, changes, records_of

if TYPE_CHECKING:
    from mlflow.genai.datasets import EvaluationDataset

_logger = logging.getLogger(__name__)

FIELDS = "adk_eval.eval_set"
"""The tag with all of an eval set but its cases; what does not fit goes on in ``adk_eval.eval_set.2`` and so on."""
DIGEST = "adk_eval.eval_set_digest"
"""The tag with the digest of the eval set that was pushed."""

_TAG_SIZE = 4000
_MANAGED = "mlflow_evaluation_dataset"


@dataclass(frozen=True, slots=True)
class DatasetOrigin:
    """Where an eval set came from, in the words of a run's dataset input."""

    source_type: str
    source: str
    """JSON text."""
    name: str


def push_eval_set(
    eval_set: EvalSetSource, name: str | None = None, *, experiment: str | None = None, tracking_uri: str | None = None
) -> EvaluationDataset:
    """Make a dataset hold an eval set and nothing else, and return it; ``mlflow.genai.evaluate`` takes it as it is.

    A dataset of that name is updated: cases that are gone are deleted, and what has changed is replaced. If nothing has
    changed, nothing is written and the dataset keeps its digest.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files, or several paths.
        name: the dataset's name, or the id of one; ``None``: the id of the eval set.
        experiment: the MLflow experiment that it belongs to, by name or id; ``None``: the current one.
        tracking_uri: the MLflow server or store; ``None``: as MLflow is configured.

    Raises:
        EvalSetError: if the eval set cannot be read, or a dataset could not give back all of it.
        UsageError: if several datasets have that name, or it is one with records that were not pushed from here.
        TrackingError: if MLflow cannot be reached, or stored something else than it was given.
    """
    loaded, _ = load_inputs(eval_set, default_config())  # none beside the file is read
    wanted = records_of(loaded)
    tags = {**_fields_tags(loaded), DIGEST: eval_set_digest(loaded)}
    client = connect(tracking_uri)
    with reaching_mlflow(f"eval set {loaded.eval_set_id!r} could not be stored as a dataset"):
        store = DatasetStore(client)
        experiment_id = experiment_of(client, experiment)
        dataset = _target(store, loaded.eval_set_id if name is None else name, experiment_id)
        if experiment is not None:
            store.join(dataset.dataset_id, experiment_id)
        _write(store, dataset, wanted, tags)
        return _given_out(client, store, dataset.dataset_id)


def _target(store: DatasetStore, name: str, experiment_id: str) -> StoredDataset:
    """Return the dataset to write to, a new one if there is none."""
    if is_dataset_id(name):
        return store.by_id(name)
    found = store.by_name(name, experiment_id)
    if found is None:
        return store.client.create_dataset(name, experiment_id)
    if FIELDS not in (found.tags or {}) and store.records(found.dataset_id):
        msg = f"dataset {name!r} has records that no eval set was pushed for, which would be deleted; to replace them, name it by its id"
        raise UsageError(f"{msg}, {found.dataset_id}")
    return found


def _write(store: DatasetStore, dataset: StoredDataset, wanted: list[dict[str, Any]], tags: dict[str, str]) -> None:
    """Write what has changed, and look whether all of it has arrived."""
    stored = store.records(dataset.dataset_id)
    todo = changes(stored, wanted)
    if others := sum(not record.pushed for record in stored if record.record_id in todo.delete):
        _logger.warning("dataset %r: %d records are deleted that were added in MLflow and are not in the eval set", dataset.name, others)
    retagged = store.set_tags(dataset, tags, family=FIELDS)
    if not todo and not retagged:
        return
    store.apply(dataset.dataset_id, todo, wanted[0] if wanted and not todo.upsert else None)
    if left := changes(store.records(dataset.dataset_id), wanted):
        lost = f"{len(left.upsert)} of {len(wanted)} records are missing or other ones, {len(left.delete)} are too many"
        raise TrackingError(f"dataset {dataset.name!r} ({dataset.dataset_id}) does not hold what it was given: {lost}")


def _given_out(client: MlflowClient, store: DatasetStore, dataset_id: str) -> EvaluationDataset:
    """Return the dataset as MLflow's users know it, with its records if MLflow would look for them in another store."""
    from mlflow.genai.datasets import EvaluationDataset  # noqa: PLC0415 - slow

    dataset = client.get_dataset(dataset_id)
    if client.tracking_uri != mlflow.get_tracking_uri():
        dataset._records = store.loaded(dataset_id)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - no public way
    return EvaluationDataset(dataset)


_MOST_KEPT = 100
"""Of larger eval sets nobody reads the records, and MLflow looks each one up before it writes it."""


def keep_as_dataset(client: MlflowClient, eval_set: EvalSet, digest: str, experiment_id: str) -> str:
    """Return the id of the dataset that shows an eval set's cases on MLflow's Datasets page, made once for each digest; empty where there is none.

    That is one request, and five where the dataset is new. An evaluation is not given up for it: what MLflow lacks or refuses is left out.
    """
    if len(eval_set.eval_cases) > _MOST_KEPT or not isinstance(eval_set.eval_cases, tuple):
        return ""
    name = f"{eval_set.eval_set_id}@{digest.removeprefix('sha256:')[:8]}"
    try:
        with reaching_mlflow("the eval set is not on the Datasets page", HASTY):
            return _kept(DatasetStore(client), eval_set, name, digest, experiment_id)
    except AdkEvalError as error:
        _logger.info("%s", error)
        return ""


def _kept(store: DatasetStore, eval_set: EvalSet, name: str, digest: str, experiment_id: str) -> str:
    """Return the id of the oldest dataset made for a digest; make one where there is none, and finish one that a job has left or is making.

    The digest is tagged last: a dataset without it may lack records. Jobs that make one at the same time find the same one to be the oldest.
    """
    found = store.kept(name, digest, experiment_id)
    if not found:
        made = store.client.create_dataset(name, experiment_id, _fields_tags(eval_set))
        found = store.kept(name, digest, experiment_id) or [made]
        if found[0].dataset_id != made.dataset_id:
            store.client.delete_dataset(made.dataset_id)
    dataset_id = str(found[0].dataset_id)
    if DIGEST not in found[0].tags:
        retried(lambda: store.apply(dataset_id, changes([], records_of(eval_set)), None))
        retried(lambda: store.client.set_dataset_tags(dataset_id, {DIGEST: digest}))
    return dataset_id


def pull_eval_set(dataset: Any, *, experiment: str | None = None, tracking_uri: str | None = None) -> EvalSet:
    """Return the eval set that a dataset holds: what was pushed, as it was edited since, and what others have added.

    Args:
        dataset: a dataset's name, its id, or the dataset itself, whose records are read anew.
        experiment: the MLflow experiment in which to look for the name, by name or id; ``None``: the current one, then all.
        tracking_uri: the MLflow server or store; ``None``: as MLflow is configured.

    Raises:
        EvalSetError: naming each record that is no eval case.
        UsageError: if there is no such dataset, or several have that name.
        TrackingError: if MLflow cannot be reached.
    """
    named = dataset if isinstance(dataset, str) else getattr(dataset, "dataset_id", None)
    if not isinstance(named, str):
        raise UsageError(f"a dataset is its name, its id or MLflow's object, not {shown(dataset)}")
    client = connect(tracking_uri)
    with reaching_mlflow(f"dataset {named!r} could not be read"):
        store = DatasetStore(client)
        found = _source(store, named, experiment)
        records = store.records(found.dataset_id)
    source = f"dataset {found.name!r}"
    return _with_fields(found, source).model_copy(update={"eval_cases": cases_of(records, source)})


def _source(store: DatasetStore, named: str, experiment: str | None) -> StoredDataset:

    if is_dataset_id(named):
        return store.by_id(named)
    found = store.by_name(named, experiment_of(store.client, experiment), only_there=experiment is not None)
    if found is None:
        where = f" in experiment {experiment!r}" if experiment is not None else ""
        raise UsageError(f"there is no dataset {named!r}{where}")
    return found


def _with_fields(dataset: StoredDataset, source: str) -> EvalSet:
    """Return the eval set without its cases; one that was never pushed is called what the dataset is."""
    text = "".join(_chunks_of(dict(dataset.tags or {})))
    if not text:
        return EvalSet(eval_set_id=dataset.name, eval_cases=())
    try:
        fields = json.loads(text)
        return EvalSet.model_validate({**fields, "eval_cases": ()})
    except (ValueError, TypeError) as error:
        raise EvalSetError(source, [Problem(f"tag {FIELDS}", f"something else than was pushed ({error})", "it untouched")]) from None


def _fields_tags(eval_set: EvalSet) -> dict[str, str]:
    """Return tags that hold an eval set but for its cases."""
    fields = eval_set.model_copy(update={"eval_cases": ()}).model_dump(mode="json", exclude_unset=True)
    fields.pop("eval_cases", None)
    try:
        text = json.dumps(fields, allow_nan=False)
    except ValueError:
        problem = Problem("$", "a number that JSON does not have", "finite numbers")
        raise EvalSetError(f"eval set {eval_set.eval_set_id!r}", [problem]) from None
    return {_chunk(index): text[start : start + _TAG_SIZE] for index, start in enumerate(range(0, len(text), _TAG_SIZE), 1)}


def _chunks_of(tags: dict[str, Any]) -> Iterator[str]:
    index = 1
    while (key := _chunk(index)) in tags:
        yield str(tags[key])
        index += 1


def _chunk(index: int) -> str:
    return FIELDS if index == 1 else f"{FIELDS}.{index}"


def eval_set_of(source: Any, *, tracking_uri: str | None = None) -> Any:
    """Return the eval set of an MLflow dataset: of one in its store, or of ``mlflow.data.from_adk_evalset``; all else as it is.

    Raises:
        AdkEvalError: as `pull_eval_set`.
    """
    if _is_managed(source):
        return pull_eval_set(source, tracking_uri=tracking_uri)
    return source.eval_set if _is_eval_set_dataset(source) else source


def origin_of(source: Any) -> DatasetOrigin | None:
    """Return where an MLflow dataset says that it comes from, so that a run links to it; ``None`` for all else."""
    if _is_managed(source):
        return DatasetOrigin(_MANAGED, json.dumps({"dataset_id": source.dataset_id}), str(source.name))
    if _is_eval_set_dataset(source):
        return DatasetOrigin(source.source._get_source_type(), source.source.to_json(), str(source.name))  # noqa: SLF001 - MLflow's protocol
    return None


def _is_managed(source: Any) -> bool:
    return type(source).__module__.startswith("mlflow.") and str(getattr(source, "dataset_id", "")).startswith("d-")


def _is_eval_set_dataset(source: Any) -> bool:
    return type(getattr(source, "source", None)).__name__ == "EvalSetSource" and hasattr(source, "eval_set")


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

    def by_id(self, dataset_id: str) -> StoredDataset:
        """Return a dataset.

        Raises:
            UsageError: if there is none.
        """
        with existing(f"dataset {dataset_id}"):
            return self.client.get_dataset(dataset_id)

    def by_name(self, name: str, experiment_id: str, *, only_there: bool = False) -> StoredDataset | None:
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

    def kept(self, name: str, digest: str, experiment_id: str) -> list[StoredDataset]:
        """Return the datasets of a name that were made for the eval set of a digest, the finished ones first and then the oldest."""
        made = [dataset for dataset in self._named(name, [experiment_id]) if FIELDS in (dataset.tags or {})]
        return sorted(
            (dataset for dataset in made if dataset.tags.get(DIGEST, digest) == digest), key=lambda dataset: DIGEST not in dataset.tags
        )

    def _named(self, name: str, experiment_ids: list[str] | None) -> list[StoredDataset]:
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

    def set_tags(self, dataset: StoredDataset, tags: Mapping[str, str], *, family: str) -> bool:
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
