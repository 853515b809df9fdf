"""Eval sets rewritten in another format, case by case: ADK's JSON, JSON Lines or Parquet, as the name of the new file ends.

What is written is what `rows` and `files` read: the same cases, the same fields of the set and what is recorded beside each case. A file
takes its place only when it is complete.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from mlflow_adk_eval.errors import UsageError, did_you_mean
from mlflow_adk_eval.evalset.conversation import RecordedRun, dumps_recorded
from mlflow_adk_eval.evalset.files import dump, dumps, load_eval_set, split_selection
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet
from mlflow_adk_eval.evalset.row_cases import ONLY_IN_ROWS
from mlflow_adk_eval.evalset.row_files import ENDINGS, NUM_CASES, PARQUET, SET_FIELDS
from mlflow_adk_eval.evalset.rows import CaseRow, CasesInMemory, CaseSource, is_rows, is_uri, open_cases
from mlflow_adk_eval.writing import whole_file

_MAX_NAMED = 5
_NO_CASES = '"eval_cases": []'


def migrate(
    old: str | Path,
    new: str | Path,
    *,
    initial_session: str | Path | None = None,
    recorded: Mapping[str, Sequence[RecordedRun]] | None = None,
) -> int:
    """Rewrite an eval set of any generation and format in today's JSON of ADK, or in JSON Lines or Parquet, and return how many cases it has.

    JSON Lines and Parquet are read and written as a stream, whatever their size.

    Args:
        old: the file, folder or URI, or a selection ``path:eval_1,eval_2`` of it.
        new: the file to write. What it ends with decides the format: ``.jsonl``, ``.ndjson`` (also with ``.gz`` or ``.zst``), ``.parquet``,
            else JSON.
        initial_session: the separate session file of a legacy list of turns.
        recorded: what an agent did on the cases, by eval id, to be written beside them; only JSON Lines and Parquet have a place for it.

    Raises:
        EvalSetError: with every problem of the old file.
        UsageError: if the new file cannot be written, or has no place for what is recorded, or that is of other cases.
    """
    if is_uri(new):
        raise UsageError(f"{new}: a new file is written on this machine only")
    source = _source(old, initial_session)
    return write_cases(source if recorded is None else _WithRuns(source, recorded), new)


def _source(old: str | Path, initial_session: str | Path | None) -> CaseSource:
    file, selected = split_selection(old)
    if not is_rows(file):
        return CasesInMemory(load_eval_set(old, initial_session=initial_session))
    cases = open_cases(file)
    return CasesInMemory(load_eval_set(old, initial_session=initial_session), cases.recorded()) if selected or initial_session else cases


@dataclass(frozen=True, slots=True)
class _WithRuns:
    """Cases with other recorded runs beside them."""

    cases: CaseSource
    runs: Mapping[str, Sequence[RecordedRun]]

    @property
    def source(self) -> str:
        return self.cases.source

    @property
    def head(self) -> EvalSet:
        return self.cases.head

    @property
    def eval_set_id(self) -> str:
        return self.cases.eval_set_id

    @property
    def num_cases(self) -> int | None:
        return self.cases.num_cases

    def batches(self, size: int = 500) -> Iterator[Sequence[CaseRow]]:
        known: set[str] = set()
        for batch in self.cases.batches(size):
            known.update(row.case.eval_id for row in batch)
            yield [replace(row, runs=tuple(self.runs[row.case.eval_id]) if row.case.eval_id in self.runs else None) for row in batch]
        others = [eval_id for eval_id in self.runs if eval_id not in known]
        if others:
            named = "; ".join(f"{eval_id!r} {did_you_mean(eval_id, known)}".strip() for eval_id in others[:_MAX_NAMED])
            raise UsageError(f"eval set {self.eval_set_id!r} has no case {named}, of which something is recorded")


def write_cases(source: CaseSource, path: str | Path) -> int:
    """Write all cases of a source, with what is recorded of them, and return how many there are.

    Raises:
        EvalSetError: with every problem of the source.
        UsageError: if the file cannot be written, or has no place for what is recorded.
        OutputError: if the disk is full.
    """
    target = Path(path)
    write = _write_parquet if target.name.endswith(PARQUET) else _write_lines if target.name.endswith(ENDINGS) else _write_json
    with whole_file(path) as stream:
        return write(source, stream, target.name)


def _write_json(source: CaseSource, stream: BinaryIO, name: str) -> int:
    before, _, after = dumps(source.head).partition(_NO_CASES)
    stream.write(f"{before}{_NO_CASES[:-1]}".encode())
    count = 0
    for batch in source.batches():
        for row in batch:
            if row.runs:
                wanted = f"one that ends with {', '.join(ENDINGS)}"
                raise UsageError(
                    f"{name}: ADK's eval sets have no place for what is recorded of case {row.case.eval_id!r}; wanted {wanted}"
                )
            text = dumps(row.case).rstrip("\n").replace("\n", "\n    ")
            stream.write(f"{',' if count else ''}\n    {text}".encode())
            count += 1
    end = "\n  " if count else ""
    stream.write(f"{end}]{after}".encode())
    return count


def _write_lines(source: CaseSource, stream: BinaryIO, name: str) -> int:
    count = 0
    with _compressed(stream, name) as packed:
        packed.write(f"{set_fields(source.head)}\n".encode())
        for batch in source.batches():
            packed.write("".join(line for row in batch for line in _lines(row)).encode())
            count += len(batch)
    return count


@contextmanager
def _compressed(stream: BinaryIO, name: str) -> Generator[BinaryIO, None, None]:
    if name.endswith(".gz"):
        with gzip.GzipFile("", "wb", fileobj=stream, mtime=0) as packed:
            yield cast("BinaryIO", packed)
    elif name.endswith(".zst"):
        import pyarrow as pa  # noqa: PLC0415 - slow to import, and seldom needed

        with pa.CompressedOutputStream(stream, "zstd") as packed:
            yield cast("BinaryIO", packed)
    else:
        yield stream


def set_fields(head: EvalSet) -> str:
    """Return a set's own fields, without its cases, as JSON on one line."""
    return _text({key: value for key, value in dump(head).items() if key != "eval_cases"})


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()


def _lines(row: CaseRow) -> Iterator[str]:
    case = row.case
    if not row.runs and ONLY_IN_ROWS.isdisjoint(case.model_extra or ()):
        yield dumps(case, indent=None)
        return
    eval_id = _text(case.eval_id)
    if not row.runs:
        yield f'{{"eval_id":{eval_id},"case":{_case(case)}}}\n'
    for index, run in enumerate(row.runs or ()):
        written = f',"case":{_case(case)}' if index == 0 else ""
        yield f'{{"eval_id":{eval_id}{written},"run_index":{index},"recorded":{dumps_recorded(run, indent=None)}}}\n'


def _case(case: EvalCase) -> str:
    return dumps(case, indent=None).rstrip("\n")


def _write_parquet(source: CaseSource, stream: BinaryIO, _name: str) -> int:
    import pyarrow as pa  # noqa: PLC0415 - slow to import
    from pyarrow.parquet import ParquetWriter  # noqa: PLC0415

    schema = pa.schema({"eval_id": pa.string(), "case": pa.string(), "run_index": pa.int32(), "recorded": pa.string()})
    count = 0
    with ParquetWriter(stream, schema.with_metadata({SET_FIELDS: set_fields(source.head)}), compression="zstd") as writer:
        for batch in source.batches():
            rows = [run for row in batch for run in _table_rows(row)]
            writer.write_batch(pa.record_batch([pa.array(column) for column in zip(*rows, strict=True)], schema=schema))
            count += len(batch)
        writer.add_key_value_metadata({NUM_CASES.decode(): str(count)})
    return count


def _table_rows(row: CaseRow) -> Iterator[tuple[str, str | None, int, str | None]]:
    eval_id = row.case.eval_id.encode("utf-8", "replace").decode()
    if not row.runs:
        yield eval_id, _case(row.case), 0, None
    for index, run in enumerate(row.runs or ()):
        yield eval_id, None if index else _case(row.case), index, dumps_recorded(run, indent=None)
