"""A report as tidy pandas frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, Scored, reason_of, status_of
from mlflow_adk_eval.results.repeats import Repeats, table_of_repeats

if TYPE_CHECKING:
    import pandas as pd

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
}
"""What is told of each vote, with pandas' type for it in a file; those with a capital letter, and texts, may be missing."""
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
    frame = pd.DataFrame(list(rows_of(results)), columns=list(columns))
    return frame.astype({"score": "float64"}) if "score" in columns else frame


def frame_of_repeats(repeats: Repeats) -> pd.DataFrame:
    """Return a frame with one row per case, with all of its runs."""
    import pandas as pd  # noqa: PLC0415 - as above

    columns, found = table_of_repeats(repeats)
    return pd.DataFrame(found, columns=list(columns))


def _cases(results: Sequence[CaseResult]) -> Iterator[Row]:
    for case in results:
        for result in case.results:
            yield case.eval_id, case.run_index, result.criterion, *_cell(result, result.overall)


def _invocations(results: Sequence[CaseResult]) -> Iterator[Row]:
    for case in results:
        for result in case.results:
            for index, outcome in enumerate(result.per_invocation):
                if outcome is not None:
                    yield case.eval_id, case.run_index, index, result.criterion, *_cell(result, outcome)


def _votes(results: Sequence[CaseResult]) -> Iterator[Row]:
    for case in results:
        for result in case.results:
            yield from (tuple(getattr(vote, column) for column in VOTE_COLUMNS) for vote in result.votes)


def _cell(result: CriterionResult, outcome: Outcome) -> Row:
    score, rationale = (outcome.score, outcome.rationale) if isinstance(outcome, Scored) else (None, "")
    return score, status_of(outcome), result.threshold, result.reached(outcome), rationale, reason_of(outcome)


_SHAPES: dict[str, tuple[tuple[str, ...], Callable[[Sequence[CaseResult]], Iterator[Row]]]] = {
    "cases": (("eval_id", "run_index", "criterion", *_CELL), _cases),
    "invocations": (("eval_id", "run_index", "invocation_index", "criterion", *_CELL), _invocations),
    "votes": (tuple(VOTE_COLUMNS), _votes),
}
