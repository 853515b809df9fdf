"""Anybody's table as an eval set and a recording: a row for each conversation, in the words of `tables.rows.CELLS`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.agents import Recording
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, did_you_mean, shown
from mlflow_adk_eval.evalset import EvalCase, EvalSet
from mlflow_adk_eval.evalset.digest import canonical
from mlflow_adk_eval.integrations.scoring import needed_cells
from mlflow_adk_eval.tables.rows import CELLS, Row, row_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The cells of each row that we have a word for."""

    name: str
    rows: tuple[Mapping[str, Any], ...]

    def sides(self, config: EvalConfig) -> tuple[EvalSet, Recording]:
        """Return what was expected, and what the agent did. Several rows of one case are its runs, in the order of ``run_index``.

        Raises:
            EvalSetError: with the problem of a cell, or naming the cells that a criterion needs and a row does not have.
        """
        rows = [row_of(cells, f"row {number}") for number, cells in enumerate(self.rows, 1)]
        if problems := [problem for row in rows for problem in _lacking(row, config)]:
            raise EvalSetError(self.name, problems)
        runs: dict[str, list[Row]] = {}
        for row in rows:
            runs.setdefault(row.case.eval_id, []).append(row)
        ordered = {eval_id: sorted(found, key=lambda row: row.run_index) for eval_id, found in runs.items()}
        recording = Recording({eval_id: tuple(row.played for row in found) for eval_id, found in ordered.items()})
        return self._eval_set(row.case for row in rows), recording

    def _eval_set(self, found: Iterable[EvalCase]) -> EvalSet:
        cases: dict[str, EvalCase] = {}
        for case in found:
            first = cases.setdefault(case.eval_id, case)
            if canonical(first) != canonical(case):
                wanted = "the same in all rows of a case"
                raise EvalSetError(self.name, [Problem(f"case {case.eval_id!r}", "rows that expect different things", wanted)])
        return EvalSet(eval_set_id=self.name, eval_cases=tuple(cases.values()))


def table_of(dataset: Any, col_mapping: Mapping[str, str]) -> Table:
    """Return the table that MLflow hands to evaluators.

    Args:
        dataset: MLflow's.
        col_mapping: which column holds a cell, where that is not the one of its name.

    Raises:
        UsageError: if it is no table, or a column does not exist.
    """
    frame = dataset.features_data
    if not hasattr(frame, "columns"):
        wanted = "data of mlflow.data.from_adk_evalset, or a DataFrame with a row for each conversation"
        raise UsageError(f"the adk evaluator wants {wanted}, not {shown(frame)}")
    given = {cell: frame[column].tolist() for cell, column in _columns(frame.columns, col_mapping).items()}
    if dataset.has_targets:
        given["targets"] = list(dataset.labels_data)
    if dataset.has_predictions:
        given["predictions"] = list(dataset.predictions_data)
    rows = tuple({cell: values[index] for cell, values in given.items()} for index in range(len(frame)))
    return Table(name=f"{dataset.name}_cases", rows=rows)


def _columns(found: Iterable[Any], col_mapping: Mapping[str, str]) -> dict[str, Any]:
    """Return which column holds each cell; columns that hold none are somebody else's."""
    columns = list(found)
    for cell, column in col_mapping.items():
        if cell not in CELLS:
            raise UsageError(f"col_mapping: unknown cell {cell!r}; known are {', '.join(CELLS)}. {did_you_mean(cell, CELLS)}".rstrip())
        if column not in columns and cell not in _APART:
            raise UsageError(f"col_mapping: {cell} is column {column!r}, which is not there; there are {', '.join(map(str, columns))}")
    return {cell: column for cell in CELLS if (column := col_mapping.get(cell, cell)) in columns}


_APART = {"targets", "predictions"}
"""Cells whose columns MLflow takes out of the table where its arguments of that name say so."""


def _lacking(row: Row, config: EvalConfig) -> Iterator[Problem]:
    """Yield the cells that criteria need and the row does not have: what nobody said is no evidence."""
    for criterion in config.criteria_of(row.case.eval_id):
        for cell in needed_cells(criterion, config):
            if cell in row.lacks:
                yield Problem(f"case {row.case.eval_id!r}", f"no {cell}", f"what {criterion} needs: {CELLS[cell]}")
