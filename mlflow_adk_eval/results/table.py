"""Results in rows: the per-invocation table that a run keeps, and tidy pandas frames.

The table has one row per invocation of each run of each case, with everything that was done, said and scored there. People read it in
MLflow, and the gate recomputes every number from it, so it must hold all that decides. Its text is JSON in MLflow's table format
(``columns`` and ``data``), which MLflow shows as a table and compares between runs by its first column.

The frames are for notebooks: one row per case, invocation or vote, and criterion. Nothing is read back from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from mlflow_adk_eval.errors import InputError, Problem, UsageError, shown
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, Scored, Verdict, case_outcome, reason_of, status_of
from mlflow_adk_eval.results.repeats import Repeats, table_of_repeats

if TYPE_CHECKING:
    import pandas as pd

LEAD = ("key", "verdict")
"""Which invocation a row is about, in one text, and what its deciding cells come to. MLflow pairs rows by the first column."""
CONTENT = ("actual_response", "expected_response", "actual_tool_calls", "expected_tool_calls", "user")
"""What was done and said, ahead of the criteria."""
TAIL = ("agent_error", "eval_id", "run_index", "invocation_index")
"""The error stands in the row of the turn that the agent did not finish, or else in the last."""
COURSE = ("injected", "ending")
"""After everything else, where there is such a thing: the tool calls of the turn that were answered or delayed by the tool environment,
and, in the last row of a conversation with a simulated user, why that ended it."""
KEY = (*LEAD, *TAIL[1:])
"""The columns that say what a row is about, without which a table is none of ours."""


def columns_of(criterion: str) -> tuple[str, str, str]:
    """Return the columns of a criterion: its score, its status (null: not planned in this row) and its reason."""
    return f"{criterion}/score", f"{criterion}/status", f"{criterion}/reason"


def case_column(criterion: str) -> str:
    """Return the column, on a case's last row, of a case score that is not the mean of its cells."""
    return f"{criterion}/case_score"


@dataclass(frozen=True, slots=True)
class Table:
    """A table as MLflow stores it."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def records(self) -> list[dict[str, Any]]:
        """Return each row by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def dumps(self, *, strict: bool = False) -> str:
        """Return the table as JSON text.

        Args:
            strict: whether half a surrogate pair, as in the text of an error, is a `UnicodeEncodeError` and not a question mark.
        """
        text = json.dumps({"columns": self.columns, "data": self.rows}, ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8", "strict" if strict else "replace").decode()


def parse_table(text: bytes, source: str) -> Table:
    """Return the table in `text`.

    Raises:
        InputError: if it is none.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InputError(source, [Problem("$", f"text that is no JSON ({error})", "a table")]) from None
    columns, rows = (value.get("columns"), value.get("data")) if isinstance(value, dict) else (None, None)
    if not isinstance(columns, list) or not isinstance(rows, list):
        raise InputError(source, [Problem("$", shown(value), "an object with columns and data")])
    uneven = [index for index, row in enumerate(rows) if not isinstance(row, list) or len(row) != len(columns)]
    missing = [name for name in KEY if name not in columns]
    if uneven or missing:
        found = f"row {uneven[0]} of another length" if uneven else f"no column {missing[0]}"
        raise InputError(source, [Problem("$", found, f"{len(columns)} cells in each row, and the columns {', '.join(KEY)}")])
    return Table(tuple(map(str, columns)), tuple(map(tuple, rows)))


def table_of(cases: Sequence[CaseResult], criteria: Sequence[str]) -> Table:
    """Return every cell of these cases, one row per invocation; a case without turns has one row.

    Args:
        cases: the case runs, in the order of the rows.
        criteria: the names of all criteria, in the order of their columns.
    """
    special = {result.criterion for case in cases for result in case.results if _has_own_score(result)}
    columns = [*LEAD, *CONTENT]
    for name in criteria:
        columns += columns_of(name)
        columns += [case_column(name)] if name in special else []
    columns += TAIL
    present = any(case.injections for case in cases), any(case.ending for case in cases)
    course = [name for name, there in zip(COURSE, present, strict=True) if there]
    rows = [(*row, *_course(case, row[-1], course)) for case in cases for row in _rows(case, criteria, special)]
    return Table((*columns, *course), tuple(rows))


def _course(case: CaseResult, index: int, columns: Iterable[str]) -> Iterable[str | None]:
    here = "; ".join(f"{injection.tool}: {injection}" for injection in case.injections if injection.invocation_index == index)
    found = {"injected": here or None, "ending": str(case.ending) if case.ending and index == turns_of(case) - 1 else None}
    return (found[name] for name in columns)


def turns_of(case: CaseResult) -> int:
    """Return how many rows a case run has: at least one."""
    return max(1, case.turns, *(len(result.per_invocation) for result in case.results))


def run_turns(cases: Iterable[CaseResult]) -> Sequence[int]:
    """Return how many rows each case run has."""
    known: Sequence[int] | None = getattr(cases, "run_turns", None)  # of results that are on disk
    return [turns_of(case) for case in cases] if known is None else known


def key_of(eval_id: str, invocation_index: int, run_index: int) -> str:
    """Return a row's key: the same in every run of the same evaluation, and unique within one.

    >>> key_of("book", 0, 0), key_of("book", 1, 2)
    ('book #1', 'book #2 run 3')
    """
    return f"{eval_id} #{invocation_index + 1}" + (f" run {run_index + 1}" if run_index else "")


def _has_own_score(result: CriterionResult) -> bool:
    return result.overall != case_outcome(result.per_invocation) and isinstance(result.overall, Scored)


def _rows(case: CaseResult, criteria: Sequence[str], special: set[str]) -> Iterable[tuple[Any, ...]]:
    results = {result.criterion: result for result in case.results}
    turns = turns_of(case)
    for index in range(turns):
        error = case.error if index >= min(len(case.actual), turns - 1) else ""
        verdict = row_verdict(case.results, index)
        row: list[Any] = [
            key_of(case.eval_id, index, case.run_index),
            "undecided" if error and verdict == "passed" else verdict,
            *_content(case, index),
        ]
        for name in criteria:
            row += _cell(results.get(name), index)
            if name in special:
                row.append(results[name].score if name in results and index == turns - 1 else None)
        yield (*row, error, case.eval_id, case.run_index, index)


def row_verdict(results: Iterable[CriterionResult], index: int) -> Verdict | None:
    """Return what the deciding cells of one invocation come to; ``None`` where none was planned."""
    reached = [result.reached(cell) for result in results if result.decides and (cell := cell_at(result, index)) is not None]
    if not reached:
        return None
    if False in reached:
        return "failed"
    return "undecided" if None in reached else "passed"


def cell_at(result: CriterionResult, index: int) -> Outcome | None:
    """Return the outcome of one invocation; ``None`` where none was planned."""
    return result.per_invocation[index] if index < len(result.per_invocation) else None


def _cell(result: CriterionResult | None, index: int) -> tuple[float | None, str | None, str | None]:
    cell = cell_at(result, index) if result else None
    if cell is None:
        return None, None, None
    return (cell.score, "scored", cell.rationale) if isinstance(cell, Scored) else (None, status_of(cell), reason_of(cell))


def _content(case: CaseResult, index: int) -> tuple[Any, ...]:
    actual = case.actual[index] if index < len(case.actual) else None
    expected = case.expected[index] if case.expected and index < len(case.expected) else None
    spoken = actual if actual and actual.user_text else expected
    return (
        actual.final_text if actual else None,
        expected.final_text if expected else None,
        _calls(actual),
        _calls(expected),
        spoken.user_text if spoken else "",
    )


def _calls(invocation: Invocation | None) -> list[Mapping[str, Any]] | None:
    return [{"name": call.name, "args": _json(call.args or {})} for call in invocation.tool_calls] if invocation else None


def _json(value: Any) -> Any:
    """Return `value` with null for what is no finite number, and its text for what is no JSON."""
    try:
        return to_jsonable_python(value, inf_nan_mode="null", serialize_unknown=True)
    except UnicodeEncodeError:  # of half a surrogate pair in a key
        return json.loads(json.dumps(value, default=str).encode("ascii"), parse_constant=lambda _: None)


VOTE_COLUMNS: Mapping[str, str] = {
    "eval_id": "string",
    "run_index": "int64",
    "invocation_index": "int64",
    "criterion": "string",
    "rubric_id": "string",
    "vote_index": "int64",
    "verdict": "string",
    "explanation": "string",
    "model": "string",
    "latency_s": "float64",
    "input_tokens": "Int64",
    "output_tokens": "Int64",
    "error": "string",
    "raw": "string",
    "reused": "bool",
    "host": "string",
    "asked_in": "string",
    "asked_at": "string",
}
"""The columns of votes, with pandas' type for it in a file; those with a capital letter, and texts, may be missing."""
_CELL = ("score", "status", "threshold", "passed", "rationale", "error")

Row = tuple[Any, ...]


def frame_of(results: Sequence[CaseResult], rows: str) -> pd.DataFrame:
    """Return a frame with one row per case, invocation or vote, and criterion.

    Args:
        results: the results of the case runs.
        rows: ``cases``, ``invocations`` or ``votes``.

    Raises:
        UsageError: for any other word.
    """
    import pandas as pd  # noqa: PLC0415 - a second that only users of frames should pay

    if rows not in _SHAPES:
        wanted = ", ".join((*_SHAPES, "repeats"))
        raise UsageError(f"to_frame({rows!r}): wanted one of {wanted}")
    columns, rows_of = _SHAPES[rows]
    # pandas takes no half of a surrogate pair, which a reason may quote from an agent's answer.
    found = [tuple(map(_whole, row)) for case in results for result in case.results for row in rows_of(case, result)]
    frame = pd.DataFrame(found, columns=list(columns))
    return frame.astype({"score": "float64"}) if "score" in columns else frame


def _whole(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def frame_of_repeats(repeats: Repeats) -> pd.DataFrame:
    """Return a frame with one row per case, with all of its runs."""
    import pandas as pd  # noqa: PLC0415 - as above

    columns, found = table_of_repeats(repeats)
    return pd.DataFrame(found, columns=list(columns))


def _cases(case: CaseResult, result: CriterionResult) -> Iterator[Row]:
    yield case.eval_id, case.run_index, result.criterion, *_cell_values(result, result.overall)


def _invocations(case: CaseResult, result: CriterionResult) -> Iterator[Row]:
    for index, outcome in enumerate(result.per_invocation):
        if outcome is not None:
            yield case.eval_id, case.run_index, index, result.criterion, *_cell_values(result, outcome)


def _votes(_: CaseResult, result: CriterionResult) -> Iterator[Row]:
    yield from (tuple(getattr(vote, column) for column in VOTE_COLUMNS) for vote in result.votes)


def _cell_values(result: CriterionResult, outcome: Outcome) -> Row:
    score, rationale = (outcome.score, outcome.rationale) if isinstance(outcome, Scored) else (None, "")
    return score, status_of(outcome), result.threshold, result.reached(outcome), rationale, reason_of(outcome)


_SHAPES: dict[str, tuple[tuple[str, ...], Callable[[CaseResult, CriterionResult], Iterator[Row]]]] = {
    "cases": (("eval_id", "run_index", "criterion", *_CELL), _cases),
    "invocations": (("eval_id", "run_index", "invocation_index", "criterion", *_CELL), _invocations),
    "votes": (tuple(VOTE_COLUMNS), _votes),
}
"""The frames by name: their columns, and what makes their rows of one criterion's result on one case run."""
