"""Results as rows of a CSV file, with the columns that ADK's ``AgentEvaluator`` writes."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.results.report import (
    CaseResult,
    CriterionResult,
    Outcome,
    Report,
    Scored,
    reason_of,
)
from mlflow_adk_eval.results.table import cell_at

COLUMNS = (
    "eval_set_id",
    "eval_id",
    "metric_name",
    "threshold",
    "score",
    "eval_status",
    "prompt",
    "expected_response",
    "actual_response",
    "expected_tool_calls",
    "actual_tool_calls",
    "run_index",
    "invocation_index",
    "reason",
)
"""ADK's eleven, then ours."""

_STATUS = {True: "PASSED", False: "FAILED"}


def append_rows(path: Path, reports: Iterable[Report]) -> None:
    """Add a row for each turn and criterion; the header is written once.

    Raises:
        UsageError: if the file cannot be written.
    """
    rows = [row for report in reports for case in report.cases for row in _rows(report.eval_set.eval_set_id, case)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        with path.open("a", encoding="utf-8", errors="backslashreplace", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows] if new else rows)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def _rows(eval_set_id: str, case: CaseResult) -> Iterator[tuple[object, ...]]:
    for result in case.results:
        for index in range(len(result.per_invocation)):
            cell = cell_at(result, index)
            if cell is None:
                continue
            score = cell.score if isinstance(cell, Scored) else None
            said = (result.criterion, result.threshold, score, _status(result, cell))
            yield (eval_set_id, case.eval_id, *said, *_content(case, index), case.run_index, index, reason_of(cell))


def _status(result: CriterionResult, cell: Outcome) -> str:
    if not result.decides:
        return "INFORMATIONAL"
    reached = result.reached(cell)
    return "NOT_EVALUATED" if reached is None else _STATUS[reached]


def _content(case: CaseResult, index: int) -> tuple[str, ...]:
    actual = case.actual[index] if index < len(case.actual) else None
    expected = case.expected[index] if case.expected and index < len(case.expected) else None
    spoken = expected or actual
    return (
        spoken.user_text if spoken else "",
        expected.final_text if expected else "",
        actual.final_text if actual else "",
        _calls(expected),
        _calls(actual),
    )


def _calls(invocation: Invocation | None) -> str:
    calls = invocation.tool_calls if invocation else []
    return "\n".join(f"{call.name}({json.dumps(call.args or {}, ensure_ascii=False, default=str)})" for call in calls)
