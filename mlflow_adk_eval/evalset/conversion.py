"""Eval sets rewritten in another format, case by case: ADK's JSON, JSON Lines or Parquet, as the name of the new file ends.

What is written is what `rows` and `files` read: the same cases, the same fields of the set and what is recorded beside each case. A file
takes its place only when it is complete.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from mlflow_adk_eval.errors import UsageError, did_you_mean
from mlflow_adk_eval.evalset.adk_form import AdkForm
from mlflow_adk_eval.evalset.conversation import RecordedRun, dumps_recorded
from mlflow_adk_eval.evalset.files import RowFiles, dump, dumps, load_eval_set, open_file, with_todays_keys
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet
from mlflow_adk_eval.evalset.row_cases import ONLY_IN_ROWS, CaseRow
from mlflow_adk_eval.evalset.row_files import ENDINGS, PARQUET, SET_FIELDS, is_uri
from mlflow_adk_eval.evalset.rows import CasesInMemory, CaseSource
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
    """Rewrite an eval set of any ADK generation and format as current ADK JSON, JSON Lines or Parquet; return the number of cases.

    JSON Lines and Parquet are read and written as a stream, whatever their size. ADK loads what is written as JSON. A legacy
    key in a turn of today's format becomes today's; any other key that ADK refuses, or that nothing reads where it is, is
    moved to a note of its case, and a warning is logged.

    Args:
        old: the file, folder or URI, or a selection ``path:eval_1,eval_2`` of it.
        new: the file to write. Its suffix sets the format: ``.jsonl``, ``.ndjson`` (also with ``.gz`` or ``.zst``), ``.parquet``,
            else JSON.
        initial_session: the separate session file of a legacy list of turns.
        recorded: the agent's conversations by eval id, to store with the cases; only JSON Lines and Parquet can.

    Raises:
        EvalSetError: with every problem of the old file.
        UsageError: if the new file cannot be written or cannot store conversations, or these belong to other cases.
    """
    if is_uri(new):
        raise UsageError(f"{new}: new files can only be written on this machine")
    file = open_file(old)
    source: CaseSource
    if isinstance(file, RowFiles) and not file.selected and not initial_session:
        source = replace(file.cases(), mending=True)
    else:
        beside = replace(file.cases(), mending=True).recorded() if isinstance(file, RowFiles) else None
        source = CasesInMemory(load_eval_set(file, initial_session=initial_session, mending=True), beside)
    return write_cases(source, new, recorded)


def write_cases(source: CaseSource, path: str | Path, recorded: Mapping[str, Sequence[RecordedRun]] | None = None) -> int:
    """Write all cases of a source, with what is recorded of them, and return how many there are.

    Args:
        source: the cases.
        path: the file.
        recorded: what is recorded instead of what the source has, by eval id.

    Raises:
        EvalSetError: with every problem of the source.
        UsageError: if the file cannot be written, or has no place for what is recorded, or that is of other cases.
        OutputError: if the disk is full.
    """
    name = Path(path).name
    write = _write_parquet if name.endswith(PARQUET) else _write_lines if name.endswith(ENDINGS) else _write_json
    batches = source.batches() if recorded is None else _with_runs(source, recorded)
    form = AdkForm(str(path))
    with whole_file(path) as stream:
        count = write(form.head(source.head), _as_adk_reads(batches, form), stream, name)
    form.tell()
    return count


def _as_adk_reads(batches: Iterator[Sequence[CaseRow]], form: AdkForm) -> Iterator[Sequence[CaseRow]]:
    for batch in batches:
        yield [replace(row, case=_as_adk_reads_it(row.case, form)) for row in batch]


def _as_adk_reads_it(case: EvalCase, form: AdkForm) -> EvalCase:
    today, renamed = with_todays_keys(case)
    for steps, place in renamed:
        form.renamed(case, steps, place)
    return form.case(today)


def _with_runs(source: CaseSource, recorded: Mapping[str, Sequence[RecordedRun]]) -> Iterator[Sequence[CaseRow]]:
    """Yield cases with other recorded runs beside them."""
    known: set[str] = set()
    for batch in source.batches():
        known.update(row.case.eval_id for row in batch)
        yield [replace(row, runs=tuple(recorded[row.case.eval_id]) if row.case.eval_id in recorded else None) for row in batch]
    others = [eval_id for eval_id in recorded if eval_id not in known]
    if others:
        named = "; ".join(f"{eval_id!r} {did_you_mean(eval_id, known)}".strip() for eval_id in others[:_MAX_NAMED])
        raise UsageError(f"recorded conversations have no case in eval set {source.head.eval_set_id!r}: {named}")


def _write_json(head: EvalSet, batches: Iterator[Sequence[CaseRow]], stream: BinaryIO, name: str) -> int:
    before, _, after = dumps(head).partition(_NO_CASES)
    stream.write(f"{before}{_NO_CASES[:-1]}".encode())
    count = 0
    for row in chain.from_iterable(batches):
        if row.runs:
            place = f"ADK's format cannot store the recorded conversation of case {row.case.eval_id!r}"
            raise UsageError(f"{name}: {place}; wanted the suffix {', '.join(ENDINGS)}")
        text = dumps(row.case).rstrip("\n").replace("\n", "\n    ")
        stream.write(f"{',' if count else ''}\n    {text}".encode())
        count += 1
    end = "\n  " if count else ""
    stream.write(f"{end}]{after}".encode())
    return count


def _write_lines(head: EvalSet, batches: Iterator[Sequence[CaseRow]], stream: BinaryIO, name: str) -> int:
    count = 0
    with _compressed(stream, name) as packed:
        packed.write(f"{_set_fields(head)}\n".encode())
        for batch in batches:
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


def _set_fields(head: EvalSet) -> str:
    """Return a set's own fields, without its cases, as JSON on one line."""
    return _text({key: value for key, value in dump(head).items() if key != "eval_cases"})


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()


def _lines(row: CaseRow) -> Iterator[str]:
    if not row.runs and ONLY_IN_ROWS.isdisjoint(row.case.model_extra or ()):
        yield dumps(row.case, indent=None)
        return
    eval_id = _text(row.case.eval_id)
    for index, (case, recorded) in enumerate(_texts(row)):
        written = "" if case is None else f',"case":{case}'
        run = "" if recorded is None else f',"run_index":{index},"recorded":{recorded}'
        yield f'{{"eval_id":{eval_id}{written}{run}}}\n'


def _texts(row: CaseRow) -> Iterator[tuple[str | None, str | None]]:
    """Yield the case and its first run as JSON on one line, where there is one, and then its other runs."""
    runs = [dumps_recorded(run, indent=None) for run in row.runs or ()]
    yield dumps(row.case, indent=None).rstrip("\n"), runs[0] if runs else None
    yield from ((None, run) for run in runs[1:])


def _write_parquet(head: EvalSet, batches: Iterator[Sequence[CaseRow]], stream: BinaryIO, _name: str) -> int:
    import pyarrow as pa  # noqa: PLC0415 - slow to import
    from pyarrow.parquet import ParquetWriter  # noqa: PLC0415

    schema = pa.schema({"eval_id": pa.string(), "case": pa.string(), "run_index": pa.int32(), "recorded": pa.string()})
    count = 0
    with ParquetWriter(stream, schema.with_metadata({SET_FIELDS: _set_fields(head)}), compression="zstd") as writer:
        for batch in batches:
            ids = [row.case.eval_id.encode("utf-8", "replace").decode() for row in batch]
            rows = [(one, case, index, run) for one, row in zip(ids, batch, strict=True) for index, (case, run) in enumerate(_texts(row))]
            writer.write_batch(pa.record_batch([pa.array(column) for column in zip(*rows, strict=True)], schema=schema))
            count += len(batch)
    return count
