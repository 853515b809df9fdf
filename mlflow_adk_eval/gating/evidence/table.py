"""From the rows of a run back to the result of every case, one part at a time.

There must be one row for each turn of each run of each case, and no other; each row has one cell for every criterion that was planned there,
with a status and a score in the criterion's range; and each score that only a judge can give has a vote. Whatever is missing or makes no
sense is named with its place; nothing is filled in. A run in one file is a single part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic_core import from_json

from mlflow_adk_eval.config.criteria import CriterionSettings, CustomSettings, JudgedSettings, RubricSettings
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.rubrics import has_rubrics
from mlflow_adk_eval.errors import shown
from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.gating.evidence.integrity import Few
from mlflow_adk_eval.results.outcomes import TOLERANCE, CaseResult, CriterionResult, Errored, Outcome, Scored, Skipped, Vote, case_outcome
from mlflow_adk_eval.results.parts import WHERE, case_columns, details_column
from mlflow_adk_eval.results.table import case_column, columns_of

LARGEST_SCORE = 1e150
"""Beyond it the sums and squares of scores would be no numbers any more."""

Bounds = tuple[float, float]
Values = Sequence[Any]
"""Those of a column."""
CaseVotes = Mapping[tuple[str, int, str], Sequence[Vote]]
"""By eval id, run and criterion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """The rows of a part, and how reasons call it."""

    name: str
    columns: Mapping[str, Values]
    votes: CaseVotes
    votes_name: str
    ordered: bool
    """Whether the rows must stand in the order of the cases, their runs and turns."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why a cell or a case score cannot be what a criterion gave."""

    reason: str


@dataclass(frozen=True)
class _Criterion:
    """What is needed to read a criterion's columns."""

    name: str
    config: EvalConfig

    @cached_property
    def columns(self) -> tuple[str, str, str]:
        return columns_of(self.name)

    @cached_property
    def details(self) -> str:
        return details_column(self.name)

    @cached_property
    def own(self) -> tuple[str, str, str, str]:
        """The columns of an outcome of the case that is its own, in parts."""
        return case_columns(self.name)

    @cached_property
    def bounds(self) -> Bounds:
        return self.config.bounds(self.name)

    @cached_property
    def greater_is_better(self) -> bool:
        return self.config.greater_is_better(self.name)


class TableReader:
    """Reads the rows of parts, and collects what makes them no evidence."""

    def __init__(self, config: EvalConfig, num_runs: int) -> None:
        """Take how the cases were to be evaluated, and how often."""
        self._config, self._num_runs = config, num_runs
        self._kinds = {kind: Few() for kind in ("columns", "malformed", "duplicates", "foreign", "missing", "order", "faults")}
        self._unvoted = Few()
        self.vote_sources = Counter[tuple[str, str, str]]()
        """How many votes with a verdict there are of each criterion, host and evaluation that asked for them."""
        self._criteria: dict[str, _Criterion] = {}
        self._plans: dict[tuple[str, ...], tuple[_Criterion, ...]] = {}

    @property
    def problems(self) -> list[str]:
        """Why the rows cannot be used."""
        return [problem for kind in self._kinds.values() for problem in kind.named]

    @property
    def unvoted(self) -> list[str]:
        """The scores of judged criteria that have no vote.

        The worst score needs none, since no judge is asked about an empty answer; nor does what a criterion scores by itself, for the reason that
        stands beside it.
        """
        return self._unvoted.named

    def read(self, cases: Sequence[EvalCase], source: RowSource) -> Iterator[CaseResult]:
        """Yield the results of a part: case by case, and run by run."""
        part = _Part(self._num_runs, cases, source)
        if self._note({"columns": self._missing_columns(cases, source), "malformed": part.malformed(), "duplicates": part.duplicates()}):
            return
        if not self._note({"foreign": part.foreign(), "missing": part.missing()}) and source.ordered:
            self._note({"order": part.unordered()})
        self._plans.clear()  # of which informative criteria there are columns may differ between parts
        for case in cases:
            plan = self._plan(case, source.columns)
            for run_index in range(self._num_runs):
                rows = part.rows.get((case.eval_id, run_index))
                if rows:
                    yield self._case_result(part, case, run_index, rows, plan)

    def _note(self, found: Mapping[str, Iterable[str]]) -> bool:
        """Keep findings by kind; return whether there were any."""
        before = sum(self._kinds[kind].count for kind in found)
        for kind, findings in found.items():
            self._kinds[kind].add(findings)
        return sum(self._kinds[kind].count for kind in found) > before

    def _missing_columns(self, cases: Iterable[EvalCase], source: RowSource) -> Iterator[str]:
        planned = dict.fromkeys(name for case in cases for name in self._config.planned(case))
        for name in planned:
            if missing := [column for column in columns_of(name) if column not in source.columns]:
                yield f"the criterion {name} is missing: {source.name} has no column {missing[0]}"

    def _plan(self, case: EvalCase, columns: Mapping[str, Values]) -> tuple[_Criterion, ...]:
        """Return the criteria that decide a case, in the order of the config, and those that are information."""
        planned = tuple(self._config.planned(case))
        known = self._config.criteria_of(case.eval_id)
        key = (*planned, "", *known)
        if key not in self._plans:
            informative = (name for name in CRITERIA.informative if name not in known and set(columns).issuperset(columns_of(name)))
            self._plans[key] = tuple(self._criteria.setdefault(name, _Criterion(name, self._config)) for name in (*planned, *informative))
        return self._plans[key]

    def _case_result(self, part: _Part, case: EvalCase, run_index: int, rows: Sequence[int], plan: Iterable[_Criterion]) -> CaseResult:
        errors = part.source.columns.get("agent_error")
        settings = self._config.criteria_of(case.eval_id)
        return CaseResult(
            eval_id=case.eval_id,
            run_index=run_index,
            actual=(),
            expected=None,
            results=tuple(self._result(_Cells(part, case, run_index, rows, criterion), settings.get(criterion.name)) for criterion in plan),
            error=next((str(errors[row]) for row in rows if errors[row]), "") if errors else "",
        )

    def _result(self, cells: _Cells, settings: CriterionSettings | None) -> CriterionResult:
        """Return one criterion's result on one case run, and note what is wrong with it."""
        read, criterion = cells.outcomes(), cells.criterion
        outcomes = tuple(Errored(cell.reason) if isinstance(cell, _Fault) else cell for cell in read)
        overall = cells.overall(outcomes)
        if isinstance(overall, _Fault) or any(isinstance(cell, _Fault) for cell in read):
            places = [*map(cells.place, range(len(read))), cells.place()]
            found = zip(places, [*read, overall], strict=True)
            self._kinds["faults"].add(f"{where}: {fault.reason}" for where, fault in found if isinstance(fault, _Fault))
        if settings and None in outcomes:
            gaps = _gaps(cells.case, criterion.name, settings, outcomes)
            self._kinds["faults"].add(f"{cells.place(index)}: {criterion.name} has no status" for index in gaps)
        if isinstance(settings, JudgedSettings):
            self._unvoted.add(cells.unvoted(outcomes))
            name = criterion.name
            self.vote_sources.update((name, vote.host, vote.asked_in) for vote in cells.votes if vote.verdict is not None)
        return CriterionResult(
            criterion=criterion.name,
            threshold=settings.threshold if settings else None,
            greater_is_better=criterion.greater_is_better,
            overall=Errored(overall.reason) if isinstance(overall, _Fault) else overall,
            per_invocation=outcomes,
            votes=tuple(cells.votes),
        )


@dataclass(frozen=True)
class _Part:
    """The rows of a part, by the case runs that they are about."""

    num_runs: int
    cases: Sequence[EvalCase]
    source: RowSource

    @cached_property
    def keys(self) -> list[tuple[Any, Any, Any]]:
        """What each row is about: a case, a run and a turn."""
        return list(zip(*(self.source.columns[name] for name in WHERE), strict=True))

    @cached_property
    def rows(self) -> dict[tuple[str, int], list[int]]:
        """The places of the rows of each case run, in the order of the turns."""
        found: dict[tuple[str, int], list[int]] = {}
        for place, (eval_id, run_index, _) in enumerate(self.keys):
            found.setdefault((eval_id, run_index), []).append(place)
        if not self.source.ordered:
            for places in found.values():
                places.sort(key=lambda place: self.keys[place][2])
        return found

    def malformed(self) -> Iterator[str]:
        for number, (eval_id, *numbers) in enumerate(self.keys, start=1):
            if not isinstance(eval_id, str):
                yield f"row {number} of {self.source.name} has the eval_id {eval_id!r}"
            for name, value in zip(WHERE[1:], numbers, strict=True):
                if type(value) is not int or value < 0:
                    yield f"row {number} of {self.source.name} has the {name} {value!r}"

    def duplicates(self) -> Iterator[str]:
        counts = Counter(tuple(map(repr, key)) for key in self.keys) if self._repeats else Counter[tuple[str, ...]]()
        for (eval_id, run_index, index), count in counts.items():
            if count > 1:
                yield f"{self.source.name} has {count} rows for case {eval_id}, run_index {run_index}, invocation_index {index}"

    @property
    def _repeats(self) -> bool:
        try:
            return len(set(self.keys)) < len(self.keys)
        except TypeError:  # of an id that is a list
            return True

    def foreign(self) -> Iterator[str]:
        known = {case.eval_id for case in self.cases}
        for eval_id, run_index in self.rows:
            if eval_id not in known:
                beside = "part" if self.source.ordered else "eval set"
                yield f"{self.source.name} has rows for case {eval_id!r}, which is not in the {beside}"
            elif run_index >= self.num_runs:
                yield f"{self.source.name} has rows for run {run_index + 1} of case {eval_id!r}, but num_runs is {self.num_runs}"

    def missing(self) -> Iterator[str]:
        for case in self.cases:
            present = [self.rows.get((case.eval_id, run_index), ()) for run_index in range(self.num_runs)]
            if not any(present):
                yield f"case {case.eval_id!r} is not in {self.source.name}"
                continue
            for run_index, rows in enumerate(present):
                if rows:
                    absent = self._absent(case, rows)
                    yield from (f"{self.place(case, run_index, index)}, is not in {self.source.name}" for index in absent)
                else:
                    yield f"run {run_index + 1} of case {case.eval_id!r} is not in {self.source.name}"

    def _absent(self, case: EvalCase, rows: Sequence[int]) -> list[int]:
        """Return the turns without a row: those the case asks for, and those before the last that the table has."""
        present = {self.keys[row][2] for row in rows}
        last = max(present)
        if last == len(present) - 1 >= len(case.conversation or ()) - 1:
            return []
        # A turn that is counted in billions must not take as much memory.
        wanted = max(len(case.conversation or ()), min(last, len(self.keys)) + 1)
        return sorted(set(range(wanted)) - present)

    def unordered(self) -> Iterator[str]:
        runs = [(case.eval_id, run_index) for case in self.cases for run_index in range(self.num_runs)]
        wanted = ((*run, index) for run in runs for index in range(len(self.rows.get(run, ()))))
        for number, (found, want) in enumerate(zip(self.keys, wanted, strict=False), start=1):
            if found != want:
                yield f"row {number} of {self.source.name} is out of order: {self._named(*found)} is where {self._named(*want)} must be"
                return

    def _named(self, eval_id: str, run_index: int, index: int) -> str:
        return f"case {eval_id!r}, run {run_index + 1}, turn {index + 1}"

    def place(self, case: EvalCase, run_index: int, index: int | None = None) -> str:
        """Return how reasons call a case, its run where there are several, or one of its turns."""
        run = f", run {run_index + 1}" if self.num_runs > 1 else ""
        return f"case {case.eval_id!r}{run}" + ("" if index is None else f", turn {index + 1}")


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of one criterion on one case run."""

    part: _Part
    case: EvalCase
    run_index: int
    rows: Sequence[int]
    criterion: _Criterion

    def place(self, turn: int | None = None) -> str:
        """Return how reasons call a turn, or the case."""
        index = None if turn is None else self.part.keys[self.rows[turn]][2]
        return self.part.place(self.case, self.run_index, index)

    @property
    def votes(self) -> Sequence[Vote]:
        return self.part.source.votes.get((self.case.eval_id, self.run_index, self.criterion.name), ())

    def outcomes(self) -> list[Outcome | _Fault | None]:
        columns, name = self.part.source.columns, self.criterion.name
        scores, statuses, reasons = (columns[column] for column in self.criterion.columns)
        details = columns.get(self.criterion.details)
        bounds, rows = self.criterion.bounds, self.rows
        read = [_cell(scores[row], statuses[row], reasons[row], name, bounds) for row in rows]
        for turn, row in enumerate(rows if details else ()):
            if details and details[row] is not None and not _is_object(details[row]):
                read[turn] = _Fault(f"the details of {name} are no JSON object")
        return read

    def overall(self, cells: Sequence[Outcome | None]) -> Outcome | _Fault:
        """Return the outcome of the case: its own where it has one, else the mean of the cells."""
        averaged, columns, name, last = case_outcome(cells), self.part.source.columns, self.criterion.name, self.rows[-1]
        if self.part.source.ordered:
            score, status, reason, details = (columns[column][last] if column in columns else None for column in self.criterion.own)
            if details is not None and not _is_object(details):
                return _Fault(f"the details of the case outcome of {name} are no JSON object")
            own = _cell(score, status, reason, f"the case outcome of {name}", self.criterion.bounds, f"the case score of {name}")
            return averaged if own is None else own
        if case_column(name) not in columns:
            return averaged
        own_score = columns[case_column(name)][last]
        if own_score is not None:
            return _scored(own_score, f"the case score of {name}", "", self.criterion.bounds)
        return _Fault(f"{name} has a score for each turn but no case score") if isinstance(averaged, Scored) else averaged

    def unvoted(self, cells: Sequence[Outcome | None]) -> Iterator[str]:
        cast = {vote.invocation_index for vote in self.votes if vote.verdict is not None}
        name, votes_name = self.criterion.name, self.part.source.votes_name
        for index, cell in enumerate(cells):
            if isinstance(cell, Scored) and index not in cast and _needs_judge(name, index, cell):
                yield f"{self.place(index)}: {name} has a score, but {votes_name} has no vote for it"


def _is_object(text: str) -> bool:
    try:
        return isinstance(from_json(text), dict)
    except ValueError:
        return False


def _cell(score: Any, status: Any, reason: Any, name: str, bounds: Bounds, what: str = "") -> Outcome | _Fault | None:
    if status == "scored":
        return _scored(score, what or f"the score of {name}", reason, bounds)
    if score is not None:
        return _Fault(f"{name} has the score {score!r} but the status {status!r}")
    if status in (None, "skipped", "errored"):
        return None if status is None else (Skipped if status == "skipped" else Errored)(str(reason or "no reason was given"))
    return _Fault(f"{name} has the unknown status {status!r}")


def _scored(score: Any, what: str, reason: Any, bounds: Bounds) -> Scored | _Fault:
    low, high = bounds
    if isinstance(score, bool) or not isinstance(score, int | float):
        return _Fault(f"{what} is {score!r}, which is not a number")
    if isinstance(score, float) and math.isnan(score):
        return _Fault(f"{what} is NaN, which is not a number")
    # Infinity is outside every range, the open one of a user's metric included, and a huge integer is no float.
    if not low - TOLERANCE <= score <= high + TOLERANCE or not -LARGEST_SCORE <= score <= LARGEST_SCORE:
        least, most = max(low, -LARGEST_SCORE), min(high, LARGEST_SCORE)
        return _Fault(f"{what} is {shown(score)}, outside its range from {least:g} to {most:g}")
    return Scored(float(score), str(reason or ""))


def _gaps(case: EvalCase, name: str, settings: CriterionSettings, cells: Sequence[Outcome | None]) -> list[int]:
    """Return the turns that must have a cell and have none."""
    empty = [index for index, cell in enumerate(cells) if cell is None]
    last = [len(cells) - 1] if len(empty) == len(cells) else []
    if isinstance(settings, CustomSettings) or CRITERIA[name].scope == "case":  # a metric of the user's own has one cell or one per turn
        return last
    if isinstance(settings, RubricSettings):  # a turn without a rubric of its own or its case's has no cell
        return [index for index in empty if has_rubrics(name, settings, case, index)] or last
    return empty


def _needs_judge(criterion: str, index: int, cell: Scored) -> bool:
    """Whether the score of a judged criterion can only come from a judge."""
    spec = CRITERIA[criterion]
    free = (spec.worst, spec.unasked.get(cell.rationale, spec.worst))
    return index >= spec.judged_from_turn and all(abs(cell.score - score) > TOLERANCE for score in free)
