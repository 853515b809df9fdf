"""Which rows the per-invocation table must have, and which it has: one for each turn of each run of each case, and no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.gating.evidence.artifacts import Documents, planned
from mlflow_adk_eval.gating.evidence.integrity import few
from mlflow_adk_eval.results.table import columns_of

Row = dict[str, Any]
Rows = Mapping[tuple[str, int], Sequence[Row]]
"""The rows of each case run, by eval id and run index, in the order of the turns."""


def place(documents: Documents, eval_id: str, run_index: int, index: int | None = None) -> str:
    """Return how reasons call a case, its run where there are several, or one of its turns."""
    run = f", run {run_index + 1}" if documents.num_runs > 1 else ""
    return f"case {eval_id!r}{run}" + ("" if index is None else f", turn {index + 1}")


def read_rows(documents: Documents) -> tuple[Rows, list[str]]:
    """Return the rows of the table by case run, none if they cannot be told apart, and what is wrong with them."""
    records = documents.table.records()
    problems = [*_column_problems(documents), *few(_malformed(records)), *few(_duplicates(records))]
    if problems:
        return {}, problems
    rows = _grouped(records)
    return rows, [*few(_foreign(documents, rows)), *few(_missing(documents, rows))]


def _column_problems(documents: Documents) -> Iterator[str]:
    columns = Counter(documents.table.columns)
    for name in dict.fromkeys(name for case in documents.eval_set.eval_cases for name in planned(documents.config, case)):
        if missing := [column for column in columns_of(name) if column not in columns]:
            yield f"the criterion {name} is missing: the table has no column {missing[0]}"
    yield from (f"the table has {count} columns {column}" for column, count in columns.items() if count > 1)


def _malformed(records: Sequence[Row]) -> Iterator[str]:
    for number, row in enumerate(records, start=1):
        if not isinstance(row["eval_id"], str):
            yield f"row {number} of the table has the eval_id {row['eval_id']!r}"
        for name in ("run_index", "invocation_index"):
            if type(row[name]) is not int or row[name] < 0:
                yield f"row {number} of the table has the {name} {row[name]!r}"


def _duplicates(records: Iterable[Row]) -> Iterator[str]:
    counts = Counter((repr(row["eval_id"]), repr(row["run_index"]), repr(row["invocation_index"])) for row in records)
    for (eval_id, run_index, index), count in counts.items():
        if count > 1:
            yield f"the table has {count} rows for case {eval_id}, run_index {run_index}, invocation_index {index}"


def _grouped(records: Iterable[Row]) -> Rows:
    rows: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(records, key=lambda row: row["invocation_index"]):
        rows.setdefault((row["eval_id"], row["run_index"]), []).append(row)
    return rows


def _foreign(documents: Documents, rows: Rows) -> Iterator[str]:
    known = set(documents.eval_set.eval_ids)
    for eval_id, run_index in rows:
        if eval_id not in known:
            yield f"the table has rows for case {eval_id!r}, which is not in the eval set"
        elif run_index >= documents.num_runs:
            yield f"the table has rows for run {run_index + 1} of case {eval_id!r}, but num_runs is {documents.num_runs}"


def _missing(documents: Documents, rows: Rows) -> Iterator[str]:
    for case in documents.eval_set.eval_cases:
        present = [rows.get((case.eval_id, run_index), ()) for run_index in range(documents.num_runs)]
        if not any(present):
            yield f"case {case.eval_id!r} is not in the table"
            continue
        for run_index, found in enumerate(present):
            if not found:
                yield f"run {run_index + 1} of case {case.eval_id!r} is not in the table"
            else:
                yield from (f"{place(documents, case.eval_id, run_index, index)}, is not in the table" for index in _absent(case, found))


def _absent(case: EvalCase, rows: Sequence[Row]) -> list[int]:
    """Return the turns without a row: those the case asks for, and those before the last that the table has."""
    present = {row["invocation_index"] for row in rows}
    return sorted(set(range(max(len(case.conversation or ()), max(present) + 1))) - present)
