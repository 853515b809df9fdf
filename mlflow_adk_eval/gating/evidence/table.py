"""From the rows of the per-invocation table back to the result of every case.

The table must have one row for each turn of each run of each case, and no other (`_read_rows`); each row one cell for every
criterion that was planned there, with a status and a score in the criterion's range (`read_cases`); and each score that only a
judge can give a vote (`missing_votes`). Whatever is missing or makes no sense is named with its place; nothing is filled in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlflow_adk_eval.config.criteria import CriterionSettings, CustomSettings, JudgedSettings, RubricSettings
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.rubrics import has_rubrics
from mlflow_adk_eval.errors import InputError, shown
from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.gating.evidence.integrity import FOLDER, VOTES, Documents, Evidence, few, planned
from mlflow_adk_eval.results.outcomes import TOLERANCE, CaseResult, CriterionResult, Errored, Outcome, Scored, Skipped, Vote, case_outcome
from mlflow_adk_eval.results.table import case_column, columns_of
from mlflow_adk_eval.results.votes import judged_criteria, parse_votes

LARGEST_SCORE = 1e150
"""Beyond it the sums and squares of scores would be no numbers any more."""

Bounds = tuple[float, float]
Row = dict[str, Any]
Rows = Mapping[tuple[str, int], Sequence[Row]]
"""The rows of each case run, by eval id and run index, in the order of the turns."""


@dataclass(frozen=True, slots=True)
class TableResults:
    """What a table says, and what makes it no evidence."""

    cases: tuple[CaseResult, ...]
    """In the order of the eval set; without those that have no rows."""
    rows: Rows
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why a cell or a case score cannot be what a criterion gave."""

    reason: str


def read_cases(documents: Documents) -> TableResults:
    """Return the results that the table holds."""
    rows, problems = _read_rows(documents)
    found = [
        _case_result(documents, case, rows[case.eval_id, run_index])
        for case in documents.eval_set.eval_cases
        for run_index in range(documents.num_runs)
        if (case.eval_id, run_index) in rows
    ]
    faults = few(fault for _, wrong in found for fault in wrong)
    return TableResults(tuple(result for result, _ in found), rows, (*problems, *faults))


def _place(documents: Documents, eval_id: str, run_index: int, index: int | None = None) -> str:
    """Return how reasons call a case, its run where there are several, or one of its turns."""
    run = f", run {run_index + 1}" if documents.num_runs > 1 else ""
    return f"case {eval_id!r}{run}" + ("" if index is None else f", turn {index + 1}")


def _read_rows(documents: Documents) -> tuple[Rows, list[str]]:
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
                yield from (f"{_place(documents, case.eval_id, run_index, index)}, is not in the table" for index in _absent(case, found))


def _absent(case: EvalCase, rows: Sequence[Row]) -> list[int]:
    """Return the turns without a row: those the case asks for, and those before the last that the table has."""
    present = {row["invocation_index"] for row in rows}
    return sorted(set(range(max(len(case.conversation or ()), max(present) + 1))) - present)


def _case_result(documents: Documents, case: EvalCase, rows: Sequence[Row]) -> tuple[CaseResult, list[str]]:
    """Return one case run, and what is wrong with it."""
    known = set(documents.table.columns)
    informative = (
        name
        for name in CRITERIA.informative
        if name not in documents.config.criteria_of(case.eval_id) and known.issuperset(columns_of(name))
    )
    read = [_read(documents, case, name, rows) for name in (*planned(documents.config, case), *informative)]
    result = CaseResult(
        eval_id=case.eval_id,
        run_index=rows[0]["run_index"],
        actual=(),
        expected=None,
        results=tuple(found for found, _ in read),
        error=next((str(row["agent_error"]) for row in rows if row.get("agent_error")), ""),
    )
    return result, [fault for _, faults in read for fault in faults]


def _read(documents: Documents, case: EvalCase, name: str, rows: Sequence[Row]) -> tuple[CriterionResult, list[str]]:
    """Return one criterion's result on one case run, and what is wrong with it."""
    config, run_index = documents.config, rows[0]["run_index"]
    settings = config.criteria_of(case.eval_id).get(name)
    read = [_cell(row, name, config.bounds(name)) for row in rows]
    cells = tuple(Errored(cell.reason) if isinstance(cell, _Fault) else cell for cell in read)
    overall = _overall(rows[-1], name, cells, config.bounds(name))
    at = [_place(documents, case.eval_id, run_index, row["invocation_index"]) for row in rows]
    found = zip([*at, _place(documents, case.eval_id, run_index)], [*read, overall], strict=True)
    faults = [f"{where}: {fault.reason}" for where, fault in found if isinstance(fault, _Fault)]
    gaps = _gaps(case, name, settings, cells, at) if settings else ()
    result = CriterionResult(
        criterion=name,
        threshold=settings.threshold if settings else None,
        greater_is_better=config.greater_is_better(name),
        overall=Errored(overall.reason) if isinstance(overall, _Fault) else overall,
        per_invocation=cells,
    )
    return result, [*faults, *(f"{where}: {name} has no status" for where in gaps)]


def _cell(row: Row, name: str, bounds: Bounds) -> Outcome | _Fault | None:
    score, status, reason = (row[column] for column in columns_of(name))
    if status == "scored":
        return _scored(score, f"the score of {name}", str(reason or ""), bounds)
    if score is not None:
        return _Fault(f"{name} has the score {score!r} but the status {status!r}")
    if status in (None, "skipped", "errored"):
        return None if status is None else (Skipped if status == "skipped" else Errored)(str(reason or "no reason was given"))
    return _Fault(f"{name} has the unknown status {status!r}")


def _scored(score: Any, what: str, reason: str, bounds: Bounds) -> Scored | _Fault:
    low, high = bounds
    if isinstance(score, bool) or not isinstance(score, int | float):
        return _Fault(f"{what} is {score!r}, which is not a number")
    if isinstance(score, float) and math.isnan(score):
        return _Fault(f"{what} is NaN, which is not a number")
    # Infinity is outside every range, the open one of a user's metric included, and a huge integer is no float.
    if not low - TOLERANCE <= score <= high + TOLERANCE or not -LARGEST_SCORE <= score <= LARGEST_SCORE:
        least, most = max(low, -LARGEST_SCORE), min(high, LARGEST_SCORE)
        return _Fault(f"{what} is {shown(score)}, outside its range from {least:g} to {most:g}")
    return Scored(float(score), reason)


def _overall(last: Row, name: str, cells: Sequence[Outcome | None], bounds: Bounds) -> Outcome | _Fault:
    """Return the case score: that of the criterion's own where the table has one, else the mean of the cells."""
    averaged = case_outcome(cells)
    if case_column(name) not in last:
        return averaged
    own = last[case_column(name)]
    if own is not None:
        return _scored(own, f"the case score of {name}", "", bounds)
    return _Fault(f"{name} has a score for each turn but no case score") if isinstance(averaged, Scored) else averaged


def _gaps(case: EvalCase, name: str, settings: CriterionSettings, cells: Sequence[Outcome | None], at: Sequence[str]) -> list[str]:
    """Return the places of the turns that must have a cell and have none."""
    empty = {index: where for index, (where, cell) in enumerate(zip(at, cells, strict=True)) if cell is None}
    last = list(at[-1:]) if len(empty) == len(cells) else []
    if isinstance(settings, CustomSettings) or CRITERIA[name].scope == "case":  # a metric of the user's own has one cell or one per turn
        return last
    if isinstance(settings, RubricSettings):  # a turn without a rubric of its own or its case's has no cell
        return [where for index, where in empty.items() if has_rubrics(name, settings, case, index)] or last
    return list(empty.values())


def read_votes(evidence: Evidence, documents: Documents) -> tuple[tuple[Vote, ...], list[str]]:
    """Return the votes of a run, none where no judge decides, and why they cannot be read."""
    judged = judged_criteria(documents.config)
    if not judged:
        return (), []
    content = evidence.artifacts.get(VOTES)
    if content is None:
        return (), [f"the run has no {FOLDER}/{VOTES}, though judges decide {', '.join(judged)}"]
    try:
        return parse_votes(content, f"{FOLDER}/{VOTES}"), []
    except InputError as error:
        return (), [f"{error.source} cannot be read: {error.problems[0]}"]


def with_votes(cases: Iterable[CaseResult], votes: Iterable[Vote]) -> tuple[CaseResult, ...]:
    """Return the cases with the votes on each result."""
    cast: dict[tuple[str, int, str], list[Vote]] = {}
    for vote in votes:
        cast.setdefault((vote.eval_id, vote.run_index, vote.criterion), []).append(vote)

    def voted(case: CaseResult, result: CriterionResult) -> CriterionResult:
        found = cast.get((case.eval_id, case.run_index, result.criterion))
        return replace(result, votes=tuple(found)) if found else result

    return tuple(replace(case, results=tuple(voted(case, result) for result in case.results)) for case in cases)


def missing_votes(documents: Documents, cases: Iterable[CaseResult], votes: Iterable[Vote]) -> list[str]:
    """Return the scores of judged criteria that have no vote.

    The worst score needs none, since no judge is asked about an empty answer; nor does what a criterion scores by itself, for the reason that
    stands beside it.
    """
    cast = {(vote.eval_id, vote.run_index, vote.invocation_index, vote.criterion) for vote in votes if vote.verdict is not None}
    return few(
        f"{_place(documents, case.eval_id, case.run_index, index)}: {result.criterion} has a score, but {FOLDER}/{VOTES} has no vote for it"
        for case in cases
        for criteria in (documents.config.criteria_of(case.eval_id),)
        for result in case.results
        for index, cell in enumerate(result.per_invocation)
        if isinstance(cell, Scored)
        and _needs_judge(criteria.get(result.criterion), result.criterion, index, cell)
        and (case.eval_id, case.run_index, index, result.criterion) not in cast
    )


def _needs_judge(settings: CriterionSettings | None, criterion: str, index: int, cell: Scored) -> bool:
    """Whether a score can only come from a judge."""
    if not isinstance(settings, JudgedSettings):
        return False
    spec = CRITERIA[criterion]
    free = (spec.worst, spec.unasked.get(cell.rationale, spec.worst))
    return index >= spec.judged_from_turn and all(abs(cell.score - score) > TOLERANCE for score in free)
