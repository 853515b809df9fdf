"""Scoring batches of Arrow, as Spark, Ray Data and others hand them out, into part files in a shared folder.

Whoever is handed rows runs `write_parts`, on whatever machine. Each file has a name that no other attempt has, and a row names what was written.
Whoever asked for it takes the rows of one attempt for each case, and reads the files with `read_part`; all others are left over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import TypeAdapter

from mlflow_adk_eval.agents.recordings import recorded_run
from mlflow_adk_eval.agents.traces.conversations import ReadConversation, TracedCases, conversation_key, conversations_of
from mlflow_adk_eval.agents.traces.spans import traces_of
from mlflow_adk_eval.evalset.conversation import dumps_recorded
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runner.batches import BatchRow, Scoring, score_batch
from mlflow_adk_eval.runs.parts import PART_BYTES, Part, WrittenPart
from mlflow_adk_eval.runtime import require_extra

if TYPE_CHECKING:
    import pyarrow as pa

_USAGE = TypeAdapter(JudgeUsage)
BATCH_ROWS = 400
"""After how many rows a part ends, with the case that is being read."""
COUNTS = ("cases", "case_runs", "turns", "votes")
TEXTS = ("first_id", "name", "judging", "trouble")
SCHEMA = f"first_no long, {', '.join(f'{name} string' for name in TEXTS)}, {', '.join(f'{name} long' for name in COUNTS)}"
"""The columns of the rows that `write_parts` yields, as Spark writes types."""
KEYED = "key string, trace string"
_RUN_COLUMNS = ("eval_id", "began", "first_trace", "recorded", "label", "problem")
RUNS = ", ".join(f"{name} {'long' if name == 'began' else 'string'}" for name in _RUN_COLUMNS)


class Folder:
    """A folder that several machines see, by path or by URI."""

    def __init__(self, uri: str) -> None:
        """Take the path, or an fsspec URI.

        Raises:
            UsageError: if fsspec, or what it needs for the URI, is not installed.
        """
        with require_extra("spark", "a folder that several machines share"):
            from fsspec.core import url_to_fs  # noqa: PLC0415 - only engines need it

            self._system, self._root = url_to_fs(uri)

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        self._system.makedirs(self._root, exist_ok=True)
        self._system.pipe_file(f"{self._root}/{name}", content)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return bytes(self._system.cat_file(f"{self._root}/{name}"))

    def remove(self) -> None:
        """Delete the folder with all that is in it, if it is there."""
        if self._system.exists(self._root):
            self._system.rm(self._root, recursive=True)


def keyed_traces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield traces with what all traces of one conversation have in common, with the columns of `KEYED`.

    Args:
        batches: the column ``trace`` with traces of MLflow, each as the JSON text of its ``to_dict()``.

    Raises:
        InputError: if a trace has not ended.
        UsageError: if something is no trace.
    """
    import pyarrow as pa  # noqa: PLC0415 - only engines need it

    for batch in batches:
        texts = batch.column("trace")
        keys = [json.dumps(conversation_key(traces_of(text)[0])) for text in texts.to_pylist()]
        yield pa.RecordBatch.from_arrays([pa.array(keys, pa.string()), texts.cast(pa.string())], names=["key", "trace"])


def traced_runs(batches: Iterable[pa.RecordBatch], cases: TracedCases) -> Iterator[pa.RecordBatch]:
    """Yield the conversations in traces as runs of the cases that they are of, with the columns of `RUNS`.

    One that is of no case has no ``eval_id``; if that cannot be told, since its traces do not say what was said, it has a ``problem``.

    Args:
        batches: what `keyed_traces` yields; traces of one key follow each other.
        cases: what finds the cases.
    """
    import pyarrow as pa  # noqa: PLC0415 - as above

    schema = pa.schema([(name, pa.int64() if name == "began" else pa.string()) for name in _RUN_COLUMNS])
    rows = (row for batch in batches for row in batch.to_pylist())
    for _, group in groupby(rows, key=lambda row: row["key"]):
        for traced in conversations_of([row["trace"] for row in group]):
            read = ReadConversation.of(traced)
            place = {"began": traced.began, "first_trace": traced.traces[0].id, "label": traced.label}
            runs: list[dict[str, Any]] = [
                {**place, "eval_id": eval_id, "recorded": dumps_recorded(recorded_run(conversation), indent=None)}
                for eval_id, conversation in cases.runs(read)
            ]
            yield pa.RecordBatch.from_pylist(runs or [{**place, "problem": str(read.problem) if read.problem else None}], schema=schema)


def write_parts(batches: Iterable[pa.RecordBatch], scoring: Scoring, out: str) -> Iterator[pa.RecordBatch]:
    """Score rows into parts and yield a row for each of them, with the columns of `SCHEMA`.

    Args:
        batches: the rows, with the columns ``eval_id``, ``run_index``, ``case`` and ``recorded``, and ``case_no`` if there is an order; the
            runs of a case follow each other.
        scoring: how they are scored.
        out: the folder for the files, which is a path or an fsspec URI.

    Raises:
        InputError: with every problem of the rows or the config.
        UsageError: if judges decide anything without a ledger that all hosts share.
    """
    import pyarrow as pa  # noqa: PLC0415 - only engines need it

    texts, numbers = [(name, pa.string()) for name in TEXTS], [(name, pa.int64()) for name in COUNTS]
    folder, schema = Folder(out), pa.schema([("first_no", pa.int64()), *texts, *numbers])
    for first_no, rows in _cut(row for batch in batches for row in batch.to_pylist()):
        written, name = score_batch(rows, scoring), uuid4().hex
        for kind, content in written.files.items():
            folder.write(f"{name}.{kind}.parquet", content)
        counts = {key: value for key, value in asdict(written.part).items() if key in COUNTS}
        judging = {"judging": _USAGE.dump_json(written.judging).decode() if written.judging else None, "trouble": written.trouble}
        row = {"first_no": first_no, "first_id": rows[0].eval_id, "name": name, **judging, **counts}
        yield pa.RecordBatch.from_pylist([row], schema=schema)


def _cut(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int | None, list[BatchRow]]]:
    """Yield the rows of whole cases, enough for a part, with the number of the first case."""
    batch: list[BatchRow] = []
    first: int | None = None
    weight = 0
    for _, runs in groupby(rows, key=lambda row: row["eval_id"]):
        for row in runs:
            first = first if batch else row.get("case_no")
            recorded = row["recorded"]
            batch.append(BatchRow(row["eval_id"], row["run_index"] if recorded is not None else None, row["case"], recorded))
            weight += len(row["case"] or "") + len(recorded or "")
        if len(batch) >= BATCH_ROWS or weight >= PART_BYTES:
            yield first, batch
            batch, weight = [], 0
    if batch:
        yield first, batch


def read_part(folder: Folder, row: Mapping[str, Any], kinds: Iterable[str]) -> WrittenPart:
    """Return the part that a row names, with its files of some kinds. The counts are what the row says; who reads the files compares them."""
    part = Part(number=0, first_case_no=0, **{name: row[name] for name in COUNTS})
    files = {kind: folder.read(f"{row['name']}.{kind}.parquet") for kind in kinds}
    judging = _USAGE.validate_json(row["judging"]) if row["judging"] else None
    return WrittenPart(part, files, judging, row["trouble"] or "")
