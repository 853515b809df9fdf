"""From the rows of the table back to the result of every case, with every cell that is missing or makes no sense."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlflow_adk_eval.config.criteria import CriterionSettings, CustomSettings, JudgedSettings, RubricSettings
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.rubrics import has_rubrics
from mlflow_adk_eval.errors import InputError, shown
from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.gating.evidence.artifacts import Documents, planned
from mlflow_adk_eval.gating.evidence.integrity import FOLDER, VOTES, Evidence, few
from mlflow_adk_eval.gating.evidence.table_rows import Row, Rows, place, read_rows
from mlflow_adk_eval.results.outcomes import TOLERANCE, CaseResult, CriterionResult, Errored, Outcome, Scored, Skipped, Vote, case_outcome
from mlflow_adk_eval.results.table import case_column, columns_of
from mlflow_adk_eval.results.votes import judged_criteria, parse_votes

Cells = frozenset[tuple[str, int, int, str]]
"""Cells by case, run, turn and criterion."""


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
    found: dict[tuple[str, int, str], list[Vote]] = {}
    for vote in votes:
        found.setdefault((vote.eval_id, vote.run_index, vote.criterion), []).append(vote)
    return tuple(replace(case, results=tuple(_voted(case, result, found) for result in case.results)) for case in cases)


def _voted(case: CaseResult, result: CriterionResult, votes: Mapping[tuple[str, int, str], Sequence[Vote]]) -> CriterionResult:
    cast = votes.get((case.eval_id, case.run_index, result.criterion))
    return replace(result, votes=tuple(cast)) if cast else result


def voteless(documents: Documents, cases: Iterable[CaseResult], votes: Iterable[Vote]) -> list[str]:
    """Return the scores of judged criteria that no vote speaks for. The worst score needs none: no judge is asked about an empty answer."""
    cast = frozenset((vote.eval_id, vote.run_index, vote.invocation_index, vote.criterion) for vote in votes if vote.verdict is not None)
    return few(_voteless(documents, cases, cast))


def _voteless(documents: Documents, cases: Iterable[CaseResult], cast: Cells) -> Iterator[str]:
    for case in cases:
        criteria = documents.config.criteria_of(case.eval_id)
        for result in case.results:
            for index, cell in enumerate(result.per_invocation):
                asked = isinstance(cell, Scored) and _asked(result.criterion, criteria.get(result.criterion), index, cell.score)
                if asked and (case.eval_id, case.run_index, index, result.criterion) not in cast:
                    where = place(documents, case.eval_id, case.run_index, index)
                    yield f"{where}: {result.criterion} has a score, but {FOLDER}/{VOTES} has no vote for it"


def _asked(criterion: str, settings: CriterionSettings | None, index: int, score: float) -> bool:
    """Whether a score can only come from a judge."""
    if not isinstance(settings, JudgedSettings):
        return False
    spec = CRITERIA[criterion]
    return index >= spec.judged_from_turn and abs(score - spec.worst) > TOLERANCE


Bounds = tuple[float, float]

_LARGEST = 1e150
"""Beyond it the sums and squares of scores would be no numbers any more."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a table says, and what makes it no evidence."""

    cases: tuple[CaseResult, ...]
    """In the order of the eval set; without those that have no rows."""
    rows: Rows
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why a cell or a case score cannot be what a criterion gave."""

    reason: str


def read_cases(documents: Documents) -> Reading:
    """Return the results that the table holds."""
    rows, problems = read_rows(documents)
    cases: list[CaseResult] = []
    faults: list[str] = []
    for case in documents.eval_set.eval_cases:
        for run_index in range(documents.num_runs):
            if found := rows.get((case.eval_id, run_index)):
                result, wrong = _case_result(documents, case, found)
                cases.append(result)
                faults += wrong
    return Reading(tuple(cases), rows, (*problems, *few(faults)))


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
    at = [place(documents, case.eval_id, run_index, row["invocation_index"]) for row in rows]
    found = zip([*at, place(documents, case.eval_id, run_index)], [*read, overall], strict=True)
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
        return _Fault(f"{what} is {score!r}, which is no number")
    if isinstance(score, float) and math.isnan(score):
        return _Fault(f"{what} is NaN, which is no number")
    # Infinity is outside every range, the open one of a user's metric included, and a huge integer is no float.
    if not low - TOLERANCE <= score <= high + TOLERANCE or not -_LARGEST <= score <= _LARGEST:
        least, most = max(low, -_LARGEST), min(high, _LARGEST)
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
