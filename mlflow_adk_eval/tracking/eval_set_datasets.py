"""Eval sets as datasets of MLflow, and back without loss."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any, TypeVar

import mlflow
from mlflow import MlflowClient
from mlflow.entities import EvaluationDataset as StoredDataset
from mlflow.tracing.client import TracingClient

from mlflow_adk_eval.config.eval_config import default_config
from mlflow_adk_eval.config.inputs import EvalSetSource, load_inputs
from mlflow_adk_eval.errors import AdkEvalError, EvalSetError, Problem, TrackingError, UsageError, shown
from mlflow_adk_eval.evalset.files import DatasetInput
from mlflow_adk_eval.evalset.models import EvalSet, Json, eval_set_digest
from mlflow_adk_eval.store.reaching import HASTY, existing, reaching_mlflow, retried
from mlflow_adk_eval.tracking.client import connect, experiment_of
from mlflow_adk_eval.tracking.dataset_records import Changes, Stored, cases_of, changes, records_of

if TYPE_CHECKING:
    from mlflow.genai.datasets import EvaluationDataset

_logger = logging.getLogger(__name__)

FIELDS = "adk_eval.eval_set"
"""The tag with all of an eval set but its cases; what does not fit goes on in ``adk_eval.eval_set.2`` and so on."""
DIGEST = "adk_eval.eval_set_digest"
"""The tag with the digest of the eval set that was pushed."""

_TAG_SIZE = 4000


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
    """Store an eval set as a dataset and return it, ready for ``mlflow.genai.evaluate``.

    An existing dataset is updated to match: missing cases are deleted and changed ones replaced. If nothing changed, nothing
    is written and the digest stays the same.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files, or several paths.
        name: the dataset's name, or the id of one; ``None``: the id of the eval set.
        experiment: the MLflow experiment that it belongs to, by name or id; ``None``: the active one.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        EvalSetError: if the eval set cannot be read, or a dataset cannot store all of it.
        UsageError: if several datasets have that name, or the dataset has records that did not come from an eval set.
        TrackingError: if MLflow cannot be reached, or stored something different.
    """
    loaded, _ = load_inputs(eval_set, default_config())  # none beside the file is read
    wanted = records_of(loaded)
    tags = {**_fields_tags(loaded), DIGEST: eval_set_digest(loaded)}
    client = connect(tracking_uri)
    with reaching_mlflow(f"eval set {loaded.eval_set_id!r} could not be stored as a dataset"):
        store = DatasetStore(client)
        experiment_id = experiment_of(client, experiment)
        # 1. The dataset to write to, a new one if there is none.
        name = loaded.eval_set_id if name is None else name
        dataset = store.named(name, experiment_id)
        if dataset is None:
            dataset = client.create_dataset(name, experiment_id)
        dataset_id = dataset.dataset_id
        stored = store.records(dataset_id)
        if not is_dataset_id(name) and FIELDS not in (dataset.tags or {}) and stored:
            msg = f"dataset {name!r} has records that did not come from an eval set and would be deleted; to replace them, name the dataset by its id"
            raise UsageError(f"{msg}, {dataset_id}")
        if experiment is not None:
            store.join(dataset_id, experiment_id)
        # 2. What has changed, and whether all of it has arrived.
        todo = changes(stored, wanted)
        if others := sum(not record.pushed for record in stored if record.record_id in todo.delete):
            _logger.warning("dataset %r: deleting %d records that were added in MLflow but are not in the eval set", dataset.name, others)
        present: Mapping[str, Any] = dataset.tags or {}
        stale = [key for key in present if key.startswith(FIELDS) and key not in tags]
        if changed := {key: value for key, value in tags.items() if present.get(key) != value}:
            client.set_dataset_tags(dataset_id, changed)
        for key in stale:
            client.delete_dataset_tag(dataset_id, key)
        if todo or changed or stale:
            store.apply(dataset_id, todo, wanted[0] if wanted and not todo.upsert else None)
            if left := changes(store.records(dataset_id), wanted):
                lost = f"{len(left.upsert)} of {len(wanted)} records are missing or different, {len(left.delete)} are extra"
                raise TrackingError(f"dataset {dataset.name!r} ({dataset_id}) was not stored correctly: {lost}")
        # 3. The dataset as MLflow's users know it, with its records if MLflow would look for them in another store.
        from mlflow.genai.datasets import EvaluationDataset  # noqa: PLC0415 - slow

        dataset = client.get_dataset(dataset_id)
        if client.tracking_uri != mlflow.get_tracking_uri():
            dataset._records = store.loaded(dataset_id)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - no public way
    return EvaluationDataset(dataset)


_MOST_KEPT = 100
"""Of larger eval sets nobody reads the records, and MLflow looks each one up before it writes it."""


def keep_as_dataset(client: MlflowClient, eval_set: EvalSet, digest: str, experiment_id: str) -> str:
    """Return the id of the dataset that shows an eval set's cases on MLflow's Datasets page, created once for each digest; empty where there is none.

    That is one request, and five where the dataset is new. An evaluation is not given up for it: what MLflow lacks or refuses is left out.
    """
    if len(eval_set.eval_cases) > _MOST_KEPT or not isinstance(eval_set.eval_cases, tuple):
        return ""
    name = f"{eval_set.eval_set_id}@{digest.removeprefix('sha256:')[:8]}"
    try:
        with reaching_mlflow("the eval set is not on the Datasets page", HASTY):
            store = DatasetStore(client)
            if not (known := store.kept(name, digest, experiment_id)):
                created = client.create_dataset(name, experiment_id, _fields_tags(eval_set))
                # Jobs that make one at the same time find the same one to be the oldest.
                known = store.kept(name, digest, experiment_id) or [created]
                if known[0].dataset_id != created.dataset_id:
                    client.delete_dataset(created.dataset_id)
            dataset_id = str(known[0].dataset_id)
            # The digest is tagged last: a dataset without it may lack records, as a job has left it or is making it.
            if DIGEST not in known[0].tags:
                retried(lambda: store.apply(dataset_id, changes([], records_of(eval_set)), None))
                retried(lambda: client.set_dataset_tags(dataset_id, {DIGEST: digest}))
            return dataset_id
    except AdkEvalError as error:
        _logger.info("%s", error)
        return ""


def pull_eval_set(dataset: Any, *, experiment: str | None = None, tracking_uri: str | None = None) -> EvalSet:
    """Return a dataset's eval set: the pushed cases with later edits, and records that others added.

    Args:
        dataset: a dataset's name, its id, or the dataset itself; its records are read again.
        experiment: the MLflow experiment in which to look for the name, by name or id; ``None``: the current one, then all.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        EvalSetError: naming each record that is not an eval case.
        UsageError: if there is no such dataset, or several have that name.
        TrackingError: if MLflow is unreachable.
    """
    named = dataset if isinstance(dataset, str) else getattr(dataset, "dataset_id", None)
    if not isinstance(named, str):
        raise UsageError(f"dataset: wanted a name, an id or MLflow's object, not {shown(dataset)}")
    client = connect(tracking_uri)
    with reaching_mlflow(f"dataset {named!r} could not be read"):
        store = DatasetStore(client)
        there = "" if is_dataset_id(named) else experiment_of(client, experiment)  # which may be created
        if (stored := store.named(named, there, only_there=experiment is not None)) is None:
            where = f" in experiment {experiment!r}" if experiment is not None else ""
            raise UsageError(f"there is no dataset {named!r}{where}")
        records, tags = store.records(stored.dataset_id), stored.tags or {}
    source = f"dataset {stored.name!r}"
    text = "".join(str(tags[name]) for name in takewhile(tags.__contains__, map(_chunk, count(1))))
    try:  # one that was never pushed is called what the dataset is
        empty = EvalSet.model_validate({**(json.loads(text) if text else {"eval_set_id": stored.name}), "eval_cases": ()})
    except (ValueError, TypeError) as error:
        raise EvalSetError(source, [Problem(f"tag {FIELDS}", f"something other than a pushed case ({error})", "it untouched")]) from None
    return empty.model_copy(update={"eval_cases": cases_of(records, source)})


def _fields_tags(eval_set: EvalSet) -> dict[str, str]:
    """Return tags that hold an eval set but for its cases."""
    fields = eval_set.model_copy(update={"eval_cases": ()}).model_dump(mode="json", exclude_unset=True)
    fields.pop("eval_cases", None)
    try:
        text = json.dumps(fields, allow_nan=False)
    except ValueError:
        problem = Problem("$", "a number that JSON does not support", "finite numbers")
        raise EvalSetError(f"eval set {eval_set.eval_set_id!r}", [problem]) from None
    return {_chunk(index): text[start : start + _TAG_SIZE] for index, start in enumerate(range(0, len(text), _TAG_SIZE), 1)}


def _chunk(index: int) -> str:
    return FIELDS if index == 1 else f"{FIELDS}.{index}"


def contents_of(inputs: DatasetInput, *, tracking_uri: str | None = None) -> tuple[EvalSet, DatasetOrigin]:
    """Return the eval set of a dataset of MLflow, and where that says that it comes from, so that a run links to it.

    Raises:
        AdkEvalError: as `pull_eval_set`.
    """
    dataset = inputs.dataset
    if inputs.stored:
        origin = DatasetOrigin("mlflow_evaluation_dataset", json.dumps({"dataset_id": dataset.dataset_id}), str(dataset.name))
        return pull_eval_set(dataset, tracking_uri=tracking_uri), origin
    source = dataset.source
    return dataset.eval_set, DatasetOrigin(source._get_source_type(), source.to_json(), str(dataset.name))  # noqa: SLF001 - MLflow's protocol


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
        return TracingClient(self.client.tracking_uri).store  # which MLflow keeps, and which alone has the records

    def named(self, name: str, experiment_id: str, *, only_there: bool = False) -> StoredDataset | None:
        """Return the dataset of an id, or of a name: the one in an experiment, else, unless it must be there, the only one anywhere.

        Raises:
            UsageError: if there is none of the id, or the name says too little, since several datasets may have one.
        """
        if is_dataset_id(name):
            with existing(f"dataset {name}"):
                return self.client.get_dataset(name)
        if not name.strip() or len(name) > _LONGEST_NAME:
            raise UsageError(f"dataset name {name[:60]!r}: wanted 1 to {_LONGEST_NAME} characters")
        named = self._named(name, [experiment_id])
        if not named and not only_there:
            named = self._named(name, None)
        if len(named) > 1:
            ids = ", ".join(dataset.dataset_id for dataset in named)
            raise UsageError(f"{len(named)} datasets are named {name!r}: {ids}. Name one by its id, or delete the others")
        return named[0] if named else None

    def kept(self, name: str, digest: str, experiment_id: str) -> list[StoredDataset]:
        """Return the datasets of a name that were made for the eval set of a digest, the finished ones first and then the oldest."""
        made = [dataset for dataset in self._named(name, [experiment_id]) if FIELDS in (dataset.tags or {})]
        return sorted(
            (dataset for dataset in made if dataset.tags.get(DIGEST, digest) == digest), key=lambda dataset: DIGEST not in dataset.tags
        )

    def _named(self, name: str, experiment_ids: list[str] | None) -> list[StoredDataset]:
        # At least those of the name are found. MLflow has no way to write a text with both kinds of quotes.
        condition = f"name = '{name}'" if "'" not in name else "name LIKE '{}'".format(name.replace("'", "_"))
        condition = condition if '"' in name else f'name = "{name}"'
        listed = self.client.search_datasets(
            experiment_ids, filter_string=condition, max_results=_MOST_NAMESAKES, order_by=["created_time ASC"]
        )
        return [dataset for dataset in listed if dataset.name == name]

    def records(self, dataset_id: str) -> list[Stored]:
        """Return all records, in no particular order."""
        found: list[Stored] = []
        for one in self.loaded(dataset_id):
            held: Json = {"inputs": one.inputs, "expectations": dict(one.expectations or {}), "tags": dict(one.tags or {})}
            found.append(Stored(record_id=str(one.dataset_record_id), created=one.created_time or 0, **held))
        return found

    def loaded(self, dataset_id: str) -> list[Any]:
        """Return all records as MLflow's own objects."""
        records, _ = self._store._load_dataset_records(dataset_id, max_results=None)  # noqa: SLF001 - as MLflow's own dataset does
        return list(records)

    def apply(self, dataset_id: str, changes: Changes, unchanged: Mapping[str, Any] | None) -> None:
        """Change what a dataset holds.

        Args:
            dataset_id: which one.
            changes: what to delete, and then what to merge.
            unchanged: a record that stays as it is, if any. Merging it gives the dataset its new digest after nothing but deletions,
                which MLflow does not count as changes.
        """
        for ids in _batches(changes.delete):
            self._store.delete_dataset_records(dataset_id, list(ids))
        for records in list(_batches(changes.upsert or ([unchanged] if unchanged else []))) or [[]]:
            self._store.upsert_dataset_records(dataset_id, list(records))

    def join(self, dataset_id: str, experiment_id: str) -> None:
        """Let a dataset belong to an experiment, too."""
        if experiment_id not in self._store.get_dataset_experiment_ids(dataset_id):
            self.client.add_dataset_to_experiments(dataset_id, [experiment_id])


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield parts that are small enough for a request."""
    return (items[start : start + _RECORDS_PER_REQUEST] for start in range(0, len(items), _RECORDS_PER_REQUEST))
