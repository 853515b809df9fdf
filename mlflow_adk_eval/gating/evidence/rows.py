"""The turns of a run as rows, with what was said and done: read for the case runs that somebody asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from mlflow_adk_eval.results.parts import PartReader
from mlflow_adk_eval.results.stored import CaseColumns, StoredCases
from mlflow_adk_eval.results.table import Table, table_of

Row = Mapping[str, Any]
Key = tuple[str, int]
"""An eval id and a run index."""


class RowsOfTable(Mapping[Key, Sequence[Row]]):
    """The rows of a run whose table is one file, by case run."""

    def __init__(self, table: Table) -> None:
        """Take the table."""
        self._table = table

    @cached_property
    def _rows(self) -> dict[Key, list[Row]]:
        found: dict[Key, list[Row]] = {}
        for row in sorted(self._table.records(), key=lambda row: row["invocation_index"]):
            found.setdefault((row["eval_id"], row["run_index"]), []).append(row)
        return found

    def __getitem__(self, key: Key) -> Sequence[Row]:
        """Return the rows of a case run."""
        return self._rows[key]

    def __iter__(self) -> Iterator[Key]:
        """Yield the case runs."""
        return iter(self._rows)

    def __len__(self) -> int:
        """Return the number of case runs."""
        return len(self._rows)


class RowsOfParts(Mapping[Key, Sequence[Row]]):
    """The rows of a run in parts, by case run, each made when it is asked for."""

    def __init__(self, cases: StoredCases, reader: PartReader, columns: CaseColumns) -> None:
        """Take the results, what reads their parts, and the columns of the results."""
        self._cases, self._reader, self._columns = cases, reader, columns

    @cached_property
    def _places(self) -> dict[Key, int]:
        return {key: place for place, key in enumerate(self)}

    def __getitem__(self, key: Key) -> Sequence[Row]:
        """Return the rows of a case run."""
        place = self._places[key]
        case, (part, index) = self._cases[place], self._cases.part_of(place)
        said, expected = part.run(index), part.case_of_run(index)
        full = replace(
            case, actual=said.invocations, expected=expected.conversation, ending=said.ending, injections=said.injections
        )  # what decides is not read from these
        return table_of([full], [result.criterion for result in full.results]).records()

    def __iter__(self) -> Iterator[Key]:
        """Yield the case runs."""
        return zip(self._columns.eval_ids, self._columns.run_indexes, strict=True)

    def __len__(self) -> int:
        """Return the number of case runs."""
        return len(self._columns)
