"""Results in rows: the per-invocation table that a run keeps, and tidy pandas frames.

The table has one row per invocation of each run of each case, with everything that was done, said and scored there. People read it in
MLflow, and the gate recomputes every number from it, so it must hold all that decides. Its text is JSON in MLflow's table format
(``columns`` and ``data``), which MLflow shows as a table and compares between runs by its first column.

The frames are for notebooks: one row per case, invocation or vote, and criterion. Nothing is read back from them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.conversation import TurnPair
from mlflow_adk_eval.evalset.models import Invocation
from mlflow_adk_eval.results import outcomes
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


def columns_of(criterion: str) -> tuple[str, str, str]:
    """Return the columns of a criterion: its score, its status (null: not planned in this row) and its reason."""
    return f"{criterion}/score", f"{criterion}/status", f"{criterion}/reason"


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


def table_of(cases: Sequence[outcomes.CaseResult], criteria: Sequence[str]) -> Table:
    """Return every cell of these cases, one row per invocation; a case without turns has one row.

    Args:
        cases: the case runs, in the order of the rows.
        criteria: the names of all criteria, in the order of their columns.
    """
    # Those with a case score that is not the mean of its cells: it has a column, filled on the last row of the case.
    own_scores = {
        result.criterion
        for case in cases
        for result in case.results
        if isinstance(result.overall, outcomes.Scored) and result.overall != outcomes.case_outcome(result.per_invocation)
    }
    columns = [*LEAD, *CONTENT]
    for name in criteria:
        columns += (*columns_of(name), *([f"{name}/case_score"] if name in own_scores else []))
    present = any(case.injections for case in cases), any(case.conversation.ending for case in cases)
    course = [name for name, there in zip(COURSE, present, strict=True) if there]
    rows = tuple(row for case in cases for row in _rows(case, criteria, own_scores, course))
    return Table((*columns, *TAIL, *course), rows)


def key_of(eval_id: str, invocation_index: int, run_index: int) -> str:
    """Return a row's key: the same in every run of the same evaluation, and unique within one.

    >>> key_of("book", 0, 0), key_of("book", 1, 2)
    ('book #1', 'book #2 run 3')
    """
    return f"{eval_id} #{invocation_index + 1}" + (f" run {run_index + 1}" if run_index else "")


def _rows(
    case: outcomes.CaseResult, criteria: Sequence[str], own_scores: Container[str], course: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    results, conversation, turns = {result.criterion: result for result in case.results}, case.conversation, case.rows
    for index in range(turns):
        error = conversation.error if index >= min(len(conversation.actual), turns - 1) else ""
        verdict, turn = row_verdict(case.results, index), TurnPair(case, index)
        row: list[Any] = [
            key_of(case.eval_id, index, case.run_index),
            "undecided" if error and verdict == "passed" else verdict,
            turn.answer if turn.actual else None,
            turn.expected_answer if turn.expected else None,
            calls_json(turn.actual),
            calls_json(turn.expected),
            turn.user_text,
        ]
        for name in criteria:
            result = results.get(name)
            cell = cell_at(result, index) if result else None
            row += (
                cell.score if isinstance(cell, outcomes.Scored) else None,
                cell and outcomes.status_of(cell),
                cell and outcomes.explanation_of(cell),
            )
            if name in own_scores:
                row.append(result.score if result and index == turns - 1 else None)
        here = "; ".join(f"{injection.tool}: {injection}" for injection in case.injections if injection.invocation_index == index)
        ending = str(conversation.ending) if conversation.ending and index == turns - 1 else None
        happened = {"injected": here or None, "ending": ending}
        yield (*row, error, case.eval_id, case.run_index, index, *(happened[name] for name in course))


def row_verdict(results: Iterable[outcomes.CriterionResult], index: int) -> outcomes.Verdict | None:
    """Return what the deciding cells of one invocation come to; ``None`` where none was planned."""
    reached = [result.reached(cell) for result in results if result.decides and (cell := cell_at(result, index)) is not None]
    if not reached:
        return None
    if False in reached:
        return "failed"
    return "undecided" if None in reached else "passed"


def cell_at(result: outcomes.CriterionResult, index: int) -> outcomes.Outcome | None:
    """Return the outcome of one invocation; ``None`` where none was planned."""
    return result.per_invocation[index] if index < len(result.per_invocation) else None


def calls_json(invocation: Invocation | None) -> list[Mapping[str, Any]] | None:
    """Return the tool calls of a turn as JSON values; ``None`` where there was no turn."""
    return [{"name": call.name, "args": as_json(call.args or {})} for call in invocation.tool_calls] if invocation else None


def as_json(value: Any) -> Any:
    """Return `value` with null for what is no finite number, and its text for what is no JSON."""
    try:
        return to_jsonable_python(value, inf_nan_mode="null", serialize_unknown=True)
    except UnicodeEncodeError:  # of half a surrogate pair in a key
        return json.loads(json.dumps(value, default=str).encode("ascii"), parse_constant=lambda _: None)


_DTYPES = {"str": "string", "int": "int64", "int | None": "Int64", "float": "float64", "float | None": "Float64", "bool": "bool"}
VOTE_COLUMNS: Mapping[str, str] = {each.name: _DTYPES.get(str(each.type), "string") for each in fields(outcomes.Vote)}
"""The columns of votes, with pandas' type for it in a file; those with a capital letter, and texts, may be missing."""
_CELL = ("score", "status", "threshold", "passed", "rationale", "error")

Row = tuple[Any, ...]


def frame_of(results: Sequence[outcomes.CaseResult], rows: str, repeats: Repeats | None) -> pd.DataFrame:
    """Return a frame with one row per case run, invocation, vote or case, and criterion.

    Args:
        results: the results of the case runs.
        rows: ``cases``, ``invocations`` or ``votes``; ``pooled`` and ``repeats``: all runs of a case are one row.
        repeats: all runs of each case, for ``repeats``.

    Raises:
        UsageError: for any other word.
    """
    import pandas as pd  # noqa: PLC0415 - a second that only users of frames should pay

    pairs = [(case, result) for case in results for result in case.results]
    if rows == "votes":
        columns: tuple[str, ...] = tuple(VOTE_COLUMNS)
        values: list[Row] = [tuple(getattr(vote, column) for column in columns) for _, result in pairs for vote in result.votes]
    elif repeats:
        columns, values = table_of_repeats(repeats)
    elif rows == "cases":
        columns = ("eval_id", "run_index", "criterion", *_CELL)
        values = [(case.eval_id, case.run_index, one.criterion, *_cell_values(one, one.overall)) for case, one in pairs]
    elif rows == "invocations":
        columns = ("eval_id", "run_index", "invocation_index", "criterion", *_CELL)
        values = [
            (case.eval_id, case.run_index, index, one.criterion, *_cell_values(one, outcome))
            for case, one in pairs
            for index, outcome in enumerate(one.per_invocation)
            if outcome is not None
        ]
    elif rows == "pooled":
        columns = ("eval_id", "criterion", "threshold", "score", "runs", "scored", "missing")
        by_key = outcomes.grouped(((case.eval_id, one.criterion), one) for case, one in pairs)
        values = [(*key, *_pooled(runs)) for key, runs in by_key.items()]
    else:
        raise UsageError(f"to_frame({rows!r}): wanted one of cases, invocations, votes, repeats, pooled")
    # pandas takes no half of a surrogate pair, which a reason may quote from an agent's answer.
    fit = [[value.encode("utf-8", "replace").decode() if isinstance(value, str) else value for value in row] for row in values]
    frame = pd.DataFrame(fit, columns=list(columns))
    return frame.astype({"score": "float64"}) if "score" in columns else frame


def _pooled(runs: Sequence[outcomes.CriterionResult]) -> Row:
    """Return what the runs of a case come to as ADK counts them: the mean over all turns of all runs, as far as they have a score."""
    scores = [cell.score for one in runs for cell in one.per_invocation if isinstance(cell, outcomes.Scored)]
    score = runs[0].score if len(runs) == 1 else None  # which need not be the mean of its turns
    pooled = outcomes.mean(scores) if score is None and scores else score
    return runs[0].threshold, pooled, len(runs), len(scores), sum(one.counts.errored + one.counts.skipped for one in runs)


def _cell_values(result: outcomes.CriterionResult, outcome: outcomes.Outcome) -> Row:
    score, rationale = (outcome.score, outcome.rationale) if isinstance(outcome, outcomes.Scored) else (None, "")
    return score, outcomes.status_of(outcome), result.threshold, result.reached(outcome), rationale, outcomes.reason_of(outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResult:
    """What the votes on one item came to."""

    id: str | None
    """A rubric's or sentence's id; ``None``: the question was about one thing."""
    score: float | None = None
    """``None`` without a verdict, and where the cell's score is all there is."""
    rationale: str = ""
    tally: Mapping[str, int]
    """Usable votes by label, the most frequent first; empty where nobody had to be asked."""
    dissent: tuple[str, ...] = ()
    """What was said by those who did not win."""
    errors: tuple[str, ...] = ()
    """Why the other votes cannot be used."""
    settled: bool = True
    """Whether there is a verdict."""

    @property
    def split(self) -> bool:
        """Whether the votes contradict each other; without a verdict, whether they differ."""
        return bool(self.dissent) if self.settled else len(self.tally) > 1

    @property
    def counts(self) -> str:
        """The tally as text, such as ``valid 4, invalid 1``."""
        return ", ".join(f"{label} {count}" for label, count in self.tally.items())


def votes_by_turn(votes: Iterable[outcomes.Vote]) -> dict[int, list[outcomes.Vote]]:
    """Return the votes on each turn, by its index."""
    return outcomes.grouped((vote.invocation_index, vote) for vote in votes)


def item_results(cell: outcomes.Outcome, votes: Sequence[outcomes.Vote]) -> tuple[ItemResult, ...]:
    """Return what the votes came to on each item of a cell, in the order of its details; without a verdict, what the votes say.

    Args:
        cell: the outcome, in whose details each item stands as an object that has its ``votes``, or an ``id`` and a ``verdict``.
        votes: those on this cell.
    """
    recorded = dict(_recorded(None, cell.details)) if isinstance(cell, outcomes.Scored) else {}
    by_item = outcomes.grouped((vote.rubric_id, vote) for vote in votes)
    results: list[ItemResult] = []
    for item in dict.fromkeys((*recorded, *by_item)):
        record, cast = recorded.get(item, {}), by_item.get(item, ())
        errors = tuple(dict.fromkeys(vote.error for vote in cast if vote.error))
        results.append(
            ItemResult(
                id=item,
                score=record.get("score"),
                rationale=str(record.get("rationale", "")),
                tally=dict(Counter(vote.verdict for vote in cast if vote.verdict is not None).most_common()),
                dissent=tuple(map(str, record.get("dissent", ()))),
                errors=errors,
                settled=item in recorded or (isinstance(cell, outcomes.Scored) and not errors),
            )
        )
    return tuple(results)


def _recorded(name: str | None, value: Any) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """Yield the records of items within details, each by its item's id, or else by what it is called."""
    if isinstance(value, Mapping):
        if isinstance(value.get("votes"), Mapping) or {"id", "verdict"} <= value.keys():
            yield value.get("id", name), value
        for key, inner in value.items():
            yield from _recorded(str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _recorded(name, inner)
