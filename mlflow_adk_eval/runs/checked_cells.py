"""From the rows of a run back to the result of every case, one part at a time.

There must be one row for each turn of each run of each case, and no other; each row has one cell for every criterion that was planned there,
with a status and a score in the criterion's range; and each score that only a judge can give has a vote. Whatever is missing or makes no
sense is named with its place; nothing is filled in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json

from mlflow_adk_eval.config.eval_config import EvalConfig, judged_criteria
from mlflow_adk_eval.config.spec import CRITERIA, CriterionSettings, CustomSettings, JudgedSettings, RubricSettings
from mlflow_adk_eval.criteria.rubrics import has_rubrics
from mlflow_adk_eval.errors import shown
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import EvalCase
from mlflow_adk_eval.results.outcomes import TOLERANCE, CaseResult, CriterionResult, Errored, Outcome, Scored, Skipped, case_outcome
from mlflow_adk_eval.results.table import columns_of
from mlflow_adk_eval.runs.parts import CELLS, VOTES, WHERE, case_columns, cell_columns
from mlflow_adk_eval.runs.stored_run import StoredPart
from mlflow_adk_eval.text import Few

LARGEST_SCORE = 1e150
"""Beyond it the sums and squares of scores would be no numbers any more."""

Columns = Mapping[str, Sequence[Any]]
"""The values of cells, by column."""


class _Fault(NamedTuple):
    """Why a cell or a case score cannot be what a criterion gave."""

    reason: str


class _Criterion(NamedTuple):
    """What is needed to read a criterion's columns."""

    name: str
    columns: tuple[str, str, str, str]
    own: tuple[str, str, str, str]
    """The columns of an outcome of the case that is its own, in parts."""
    bounds: tuple[float, float]
    greater_is_better: bool


class TableReader:
    """Reads the rows of parts, and collects what makes them no evidence."""

    def __init__(self, config: EvalConfig, num_runs: int) -> None:
        """Take how the cases were to be evaluated, and how often."""
        self._config, self._num_runs = config, num_runs
        self._judged = bool(judged_criteria(config))
        self._kinds = {kind: Few() for kind in ("columns", "malformed", "duplicates", "foreign", "missing", "order", "faults")}
        self.unvoted = Few()
        """The scores of judged criteria that have no vote.

        The worst score needs none, since no judge is asked about an empty answer; nor does what a criterion scores by itself, for the reason that
        stands beside it.
        """
        self.vote_sources = Counter[tuple[str, str, str]]()
        """How many votes with a verdict there are of each criterion, host and evaluation that asked for them."""

    @property
    def problems(self) -> list[str]:
        """Why the rows cannot be used."""
        return [problem for kind in self._kinds.values() for problem in kind.named]

    def read(self, cases: Sequence[EvalCase], stored: StoredPart, columns: Columns | None = None) -> Iterator[CaseResult]:
        """Yield the results of a part, case by case and run by run; `columns`: the rows of some cases only."""
        part = _Rows(self._num_runs, cases, stored, stored.cells if columns is None else columns)
        planned = dict.fromkeys(name for case in cases for name in self._config.planned(case))
        lacking = {name: next((column for column in columns_of(name) if column not in part.columns), "") for name in planned}
        unplanned = [f"the criterion {name} is missing: {part.name} has no column {column}" for name, column in lacking.items() if column]
        if self._note({"columns": unplanned, "malformed": part.malformed(), "duplicates": part.duplicates()}):
            return
        if not self._note({"foreign": part.foreign(), "missing": part.missing()}):
            self._note({"order": part.unordered()})
        plans: dict[tuple[str, ...], list[_Criterion]] = {}  # of which informative criteria there are columns may differ between parts
        for case in cases:
            settings = self._config.criteria_of(case.eval_id)
            deciding = tuple(self._config.planned(case))
            key = (*deciding, "", *settings)
            if key not in plans:
                informative = (
                    name for name in CRITERIA.informative if name not in settings and part.columns.keys() >= set(columns_of(name))
                )
                plans[key] = [
                    _Criterion(
                        name, cell_columns(name), case_columns(name), self._config.bounds(name), self._config.greater_is_better(name)
                    )
                    for name in (*deciding, *informative)
                ]
            for run_index in range(self._num_runs):
                if rows := part.rows.get((case.eval_id, run_index)):
                    errors = part.columns["agent_error"]
                    yield CaseResult(
                        eval_id=case.eval_id,
                        run_index=run_index,
                        conversation=Conversation(actual=(), error=next((str(errors[row]) for row in rows if errors[row]), "")),
                        expected=case.conversation,
                        results=tuple(self._result(part, case, run_index, one, settings.get(one.name)) for one in plans[key]),
                    )

    def _note(self, findings: Mapping[str, Iterable[str]]) -> bool:
        """Keep findings by kind; return whether there were any."""
        before = sum(self._kinds[kind].count for kind in findings)
        for kind, some in findings.items():
            self._kinds[kind].add(some)
        return sum(self._kinds[kind].count for kind in findings) > before

    def _result(
        self, part: _Rows, case: EvalCase, run_index: int, criterion: _Criterion, settings: CriterionSettings | None
    ) -> CriterionResult:
        """Return one criterion's result on one case run, and note what is wrong with it."""
        name, rows = criterion.name, part.rows[case.eval_id, run_index]
        scores, statuses, reasons = (part.columns[column] for column in criterion.columns[:3])
        read = [_cell(scores[row], statuses[row], reasons[row], name, criterion.bounds) for row in rows]
        if details := part.columns.get(criterion.columns[3]):
            for turn, row in enumerate(rows):
                if details[row] is not None and not _is_object(details[row]):
                    read[turn] = _Fault(f"the details of {name} are not a JSON object")
        outcomes = tuple(Errored(cell.reason) if isinstance(cell, _Fault) else cell for cell in read)
        score, status, reason, own_details = (
            part.columns[column][rows[-1]] if column in part.columns else None for column in criterion.own
        )
        overall: Outcome | _Fault | None
        if own_details is not None and not _is_object(own_details):
            overall = _Fault(f"the details of the case outcome of {name} are not a JSON object")
        else:
            overall = _cell(score, status, reason, f"the case outcome of {name}", criterion.bounds, f"the case score of {name}")
            overall = case_outcome(outcomes) if overall is None else overall

        def place(turn: int | None = None) -> str:
            return part.place(case, run_index, None if turn is None else part.keys[rows[turn]][2])

        faults = self._kinds["faults"]
        faults.add(f"{place(turn)}: {cell.reason}" for turn, cell in enumerate(read) if isinstance(cell, _Fault))
        if isinstance(overall, _Fault):
            faults.add([f"{place()}: {overall.reason}"])
            overall = Errored(overall.reason)
        if settings and None in outcomes:
            faults.add(f"{place(turn)}: {name} has no status" for turn in _gaps(case, name, settings, outcomes))
        votes = part.stored.votes.get((case.eval_id, run_index, name), ()) if self._judged else ()
        if isinstance(settings, JudgedSettings):
            cast = {vote.invocation_index for vote in votes if vote.verdict is not None}
            self.unvoted.add(
                f"{place(turn)}: {name} has a score, but {part.stored.name(VOTES)} has no vote for it"
                for turn, cell in enumerate(outcomes)
                if isinstance(cell, Scored) and turn not in cast and _needs_judge(name, turn, cell)
            )
            self.vote_sources.update((name, vote.host, vote.asked_in) for vote in votes if vote.verdict is not None)
        return CriterionResult(
            criterion=name,
            threshold=settings.threshold if settings else None,
            greater_is_better=criterion.greater_is_better,
            overall=overall,
            per_invocation=outcomes,
            votes=tuple(votes),
        )


class _Rows:
    """The rows of a part, by the case runs that they are about."""

    def __init__(self, num_runs: int, cases: Sequence[EvalCase], stored: StoredPart, columns: Columns) -> None:
        self.num_runs, self.cases, self.stored, self.columns = num_runs, cases, stored, columns
        self.name = stored.name(CELLS)
        """How reasons call the file."""
        self.keys: list[tuple[Any, Any, Any]] = list(zip(*(columns[name] for name in WHERE), strict=True))
        """What each row is about: a case, a run and a turn."""
        self.rows: dict[tuple[str, int], list[int]] = {}
        """The places of the rows of each case run, in the order of the turns."""
        for place, (eval_id, run_index, _) in enumerate(self.keys):
            self.rows.setdefault((eval_id, run_index), []).append(place)

    def malformed(self) -> Iterator[str]:
        for number, (eval_id, *numbers) in enumerate(self.keys, start=1):
            if not isinstance(eval_id, str):
                yield f"row {number} of {self.name} has the eval_id {eval_id!r}"
            for name, value in zip(WHERE[1:], numbers, strict=True):
                if type(value) is not int or value < 0:
                    yield f"row {number} of {self.name} has the {name} {value!r}"

    def duplicates(self) -> Iterator[str]:
        if len(set(self.keys)) < len(self.keys):
            for (eval_id, run_index, index), count in Counter(self.keys).items():
                if count > 1:
                    yield f"{self.name} has {count} rows for case {eval_id!r}, run_index {run_index!r}, invocation_index {index!r}"

    def foreign(self) -> Iterator[str]:
        known = {case.eval_id for case in self.cases}
        for eval_id, run_index in self.rows:
            if eval_id not in known:
                yield f"{self.name} has rows for case {eval_id!r}, but the part does not contain it"
            elif run_index >= self.num_runs:
                yield f"{self.name} has rows for run {run_index + 1} of case {eval_id!r}, but num_runs is {self.num_runs}"

    def missing(self) -> Iterator[str]:
        """Yield the case runs without rows, and the turns without one: those the case asks for, and those before the last that the table has."""
        for case in self.cases:
            if not any((case.eval_id, run_index) in self.rows for run_index in range(self.num_runs)):
                yield f"case {case.eval_id!r} is not in {self.name}"
                continue
            asked_for = len(case.conversation or ())
            for run_index in range(self.num_runs):
                present = {self.keys[row][2] for row in self.rows.get((case.eval_id, run_index), ())}
                if not present:
                    yield f"run {run_index + 1} of case {case.eval_id!r} is not in {self.name}"
                elif not max(present) == len(present) - 1 >= asked_for - 1:
                    # A turn that is counted in billions must not take as much memory.
                    wanted = max(asked_for, min(max(present), len(self.keys)) + 1)
                    absent = sorted(set(range(wanted)) - present)
                    yield from (f"{self.place(case, run_index, index)}, is not in {self.name}" for index in absent)

    def unordered(self) -> Iterator[str]:
        runs = [(case.eval_id, run_index) for case in self.cases for run_index in range(self.num_runs)]
        wanted = ((*run, index) for run in runs for index in range(len(self.rows.get(run, ()))))
        for number, pair in enumerate(zip(self.keys, wanted, strict=False), start=1):
            if pair[0] != pair[1]:
                given, want = (f"case {eval_id!r}, run {run_index + 1}, turn {index + 1}" for eval_id, run_index, index in pair)
                yield f"row {number} of {self.name} is out of order: found {given}, wanted {want}"
                return

    def place(self, case: EvalCase, run_index: int, index: int | None = None) -> str:
        """Return how reasons call a case, its run where there are several, or one of its turns."""
        run = f", run {run_index + 1}" if self.num_runs > 1 else ""
        return f"case {case.eval_id!r}{run}" + ("" if index is None else f", turn {index + 1}")


def _is_object(text: str) -> bool:
    try:
        return isinstance(from_json(text), dict)
    except ValueError:
        return False


def _cell(score: Any, status: Any, reason: Any, name: str, bounds: tuple[float, float], what: str = "") -> Outcome | _Fault | None:
    if status != "scored":
        if score is not None:
            return _Fault(f"{name} has the score {score!r} but the status {status!r}")
        if status in (None, "skipped", "errored"):
            return None if status is None else (Skipped if status == "skipped" else Errored)(str(reason or "no reason given"))
        return _Fault(f"{name} has the unknown status {status!r}")
    what = what or f"the score of {name}"
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
    return [index for index in empty if settings.scores_turn(case, index)]


def _needs_judge(criterion: str, index: int, cell: Scored) -> bool:
    """Whether the score of a judged criterion can only come from a judge."""
    spec = CRITERIA[criterion]
    free = (spec.worst, spec.unasked.get(cell.rationale, spec.worst))
    return index >= spec.judged_from_turn and all(abs(cell.score - score) > TOLERANCE for score in free)
