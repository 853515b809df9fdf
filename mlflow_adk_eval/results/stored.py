"""The results of many cases, most of them on disk: what decides in memory as columns of numbers, everything else in parts.

`StoredCases` is a sequence of `CaseResult` like any tuple of them. Case scores, verdicts and the numbers of scored, skipped and failed cells
are in memory, a few bytes each. Turns, explanations and votes are read from the run's parts when somebody looks at them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby, islice
from typing import Any, Generic, TypeVar, overload

from pydantic_core import from_json

from mlflow_adk_eval.evalset import EvalCase, EvalSet, Invocation
from mlflow_adk_eval.evalset.conversation import Ending, Injection
from mlflow_adk_eval.results.outcomes import (
    VERDICTS,
    CaseResult,
    CellCounts,
    CriterionResult,
    Errored,
    Outcome,
    PlannedCriterion,
    Scored,
    Skipped,
    Tally,
    Verdict,
    Vote,
    case_outcome,
)
from mlflow_adk_eval.results.parts import CASES, CELLS, Part, PartReader, Row, StoredPart, case_columns, details_column
from mlflow_adk_eval.results.table import columns_of, turns_of

T = TypeVar("T")

_ABSENT, _PLAIN, _IN_PART, _LISTED = 0, 1, 2, 3
"""How a case outcome is kept: not at all, as a score, in its part (its score here as well), or, from there on, as the outcome of a number."""
_WITH_SCORE = (_PLAIN, _IN_PART)


class Stored(Sequence[T], Generic[T]):
    """A sequence of known length that is read when somebody looks into it."""

    __slots__ = ("_length", "_read", "counts")

    def __init__(self, length: int, read: Callable[[], Sequence[T]], counts: CellCounts | None = None) -> None:
        """Take the length, what reads the items, and how many cells have which outcome if the items are outcomes."""
        self._length, self._read, self.counts = length, read, counts

    def __len__(self) -> int:
        """Return the length, without reading."""
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        """Return an item, or some of them."""
        return self._read()[index]

    def __iter__(self) -> Iterator[T]:
        """Yield the items."""
        return iter(self._read())

    def __eq__(self, other: object) -> bool:
        """Whether another sequence holds the same items."""
        return isinstance(other, Sequence) and len(other) == self._length and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        """Return a hash of the length, as the items may have none."""
        return hash(self._length)

    def __repr__(self) -> str:
        """Return the length; the items may be on disk."""
        return f"<{self._length} stored>"


class _Counts:
    """A number for each case run. Zeros at the end take no memory, as nothing fails or is skipped in most runs."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known = array("i")

    def put(self, place: int, count: int) -> None:
        """Say the number of a case run; places come in their order."""
        if count:
            self._known.frombytes(bytes((place - len(self._known)) * self._known.itemsize))
            self._known.append(count)

    def __getitem__(self, place: int) -> int:
        return self._known[place] if place < len(self._known) else 0


@dataclass(slots=True)
class _Column:
    """One criterion over all case runs."""

    kinds: array[int] = field(default_factory=lambda: array("i"))
    scores: array[float] = field(default_factory=lambda: array("d"))
    scored: _Counts = field(default_factory=_Counts)
    errored: _Counts = field(default_factory=_Counts)
    skipped: _Counts = field(default_factory=_Counts)
    votes: _Counts = field(default_factory=_Counts)
    numbers: dict[Outcome, int] = field(default_factory=dict[Outcome, int])
    """The case outcomes without a score, each once, with its number."""
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    """The same by number."""

    def fill(self, length: int) -> None:
        """Say of the case runs up to a length that they lack the criterion."""
        missing = length - len(self.kinds)
        if missing:
            self.kinds.frombytes(bytes(missing * self.kinds.itemsize))
            self.scores.frombytes(bytes(missing * self.scores.itemsize))

    def score(self, place: int) -> float | None:
        """Return the score of a case run; ``None`` where it has none."""
        return self.scores[place] if self.kinds[place] in _WITH_SCORE else None


class CaseColumns:
    """Collects the results of case runs as columns, in the order of the eval set and of the runs within a case."""

    def __init__(self) -> None:
        """Start without any."""
        self.eval_ids: list[str] = []
        """The id of each case run."""
        self.run_indexes, self.rows, self.actual, self.expected = array("i"), array("i"), array("i"), array("i")
        self.unfinished, self.verdicts = array("b"), array("b")
        self.stateful = array("b")
        self.plans: list[tuple[PlannedCriterion, ...]] = []
        self.plan_of = array("i")
        self._plan_numbers: dict[tuple[PlannedCriterion, ...], int] = {}
        self.columns: dict[str, _Column] = {}
        self.errors: dict[int, str] = {}
        self.endings: dict[int, Ending] = {}
        self.injections: dict[int, tuple[Injection, ...]] = {}
        self._pool: dict[Any, Any] = {}

    def __len__(self) -> int:
        """Return the number of case runs."""
        return len(self.eval_ids)

    def add(self, case: CaseResult, eval_id: str) -> None:
        """Add the result of a case run; `eval_id`: the text of its id that stays in memory."""
        place = len(self.eval_ids)
        self.eval_ids.append(eval_id)
        self.run_indexes.append(case.run_index)
        self.rows.append(turns_of(case))
        self.actual.append(len(case.actual))
        self.expected.append(-1 if case.expected is None else len(case.expected))
        self.unfinished.append(case.unfinished)
        self.verdicts.append(VERDICTS.index(case.verdict))
        self.stateful.append(case.session_state is not None)
        if case.error:
            self.errors[place] = self._pool.setdefault(case.error, case.error)
        if case.ending:
            self.endings[place] = case.ending
        if case.injections:
            self.injections[place] = case.injections
        plan = tuple(PlannedCriterion(one.criterion, one.threshold, one.greater_is_better) for one in case.results)
        number = self._plan_numbers.setdefault(plan, len(self.plans))
        if number == len(self.plans):
            self.plans.append(plan)
        self.plan_of.append(number)
        for result in case.results:
            self._add(place, result)

    def _add(self, place: int, result: CriterionResult) -> None:
        column = self.columns.setdefault(result.criterion, _Column())
        column.fill(place)
        overall, counts = result.overall, result.counts
        if isinstance(overall, Scored):
            column.kinds.append(_IN_PART if overall.rationale or overall.details else _PLAIN)
            column.scores.append(overall.score)
        else:
            number = column.numbers.setdefault(overall, len(column.outcomes))
            if number == len(column.outcomes):
                column.outcomes.append(overall)
            column.kinds.append(_LISTED + number)
            column.scores.append(0.0)
        column.scored.put(place, counts.scored)
        column.errored.put(place, counts.errored)
        column.skipped.put(place, counts.skipped)
        column.votes.put(place, len(result.votes))


class StoredCases(Sequence[CaseResult]):
    """The results of all case runs of a run that is kept in parts."""

    def __init__(self, columns: CaseColumns, reader: PartReader) -> None:
        """Take the columns, and what reads the parts that they are about."""
        self._columns, self._reader = columns, reader
        self.memo: dict[Any, Any] = {}
        """What was computed of all cases, as that takes a while."""
        for column in columns.columns.values():
            column.fill(len(columns))
        self._first_rows = array("q", [0])
        for rows in columns.rows:
            self._first_rows.append(self._first_rows[-1] + rows)

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict of each case run."""
        return tuple([VERDICTS[code] for code in self._columns.verdicts])

    @property
    def run_turns(self) -> Sequence[int]:
        """How many turns each case run has, as `turns_of` counts them."""
        return self._columns.rows

    @property
    def with_course(self) -> Iterator[CaseResult]:
        """The results of which it is known how a conversation ended or what the tool environment did."""
        return map(self._case, sorted(self._columns.endings.keys() | self._columns.injections.keys()))

    def tallies(self) -> Iterator[tuple[str, bool, Sequence[Tally]]]:
        """Yield of each case run its id, whether the agent failed in it, and what each criterion came to."""
        found = self._columns
        columns = [[(planned, found.columns[planned.criterion]) for planned in plan] for plan in found.plans]
        for place, eval_id in enumerate(found.eval_ids):
            yield (
                eval_id,
                place in found.errors,
                [
                    Tally(planned, column.score(place), column.scored[place], column.errored[place], column.skipped[place])
                    for planned, column in columns[found.plan_of[place]]
                ],
            )

    @cached_property
    def _firsts(self) -> list[int]:
        """The place of each part's first case run."""
        firsts = [0]
        for part in self._reader.parts:
            firsts.append(firsts[-1] + part.case_runs)
        return firsts

    def __len__(self) -> int:
        """Return the number of case runs."""
        return len(self._columns)

    @overload
    def __getitem__(self, index: int) -> CaseResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CaseResult]: ...
    def __getitem__(self, index: int | slice) -> CaseResult | Sequence[CaseResult]:
        """Return a result, or some of them."""
        if isinstance(index, slice):
            return tuple(self._case(place) for place in range(*index.indices(len(self))))
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        return self._case(place)

    def __iter__(self) -> Iterator[CaseResult]:
        """Yield the results."""
        return (self._case(place) for place in range(len(self)))

    def __eq__(self, other: object) -> bool:
        """Whether another sequence holds the same results."""
        return isinstance(other, Sequence) and len(other) == len(self) and all(one == two for one, two in zip(self, other, strict=True))

    def __hash__(self) -> int:
        """Return a hash of the ids."""
        return hash(tuple(self._columns.eval_ids[:100]))

    def _case(self, place: int) -> CaseResult:
        found = self._columns
        expected = found.expected[place]
        return CaseResult(
            eval_id=found.eval_ids[place],
            run_index=found.run_indexes[place],
            actual=Stored(found.actual[place], partial(self._actual, place)) if found.actual[place] else (),
            expected=None if expected < 0 else Stored(expected, partial(self._expected, place)),
            results=_StoredResults(self, place, found.plans[found.plan_of[place]], VERDICTS[found.verdicts[place]]),
            error=found.errors.get(place, ""),
            unfinished=bool(found.unfinished[place]),
            session_state=_StoredState(partial(self._state, place)) if found.stateful[place] else None,
            ending=found.endings.get(place),
            injections=found.injections.get(place, ()),
        )

    def whole(self) -> Iterator[CaseResult]:
        """Yield the results with all that the parts say of them, also where only the cells were read into the columns, as the gate does."""
        for place in range(len(self)):
            part, index = self.part_of(place)
            run = part.run(index)
            yield replace(
                loaded(self._case(place)),
                actual=run.invocations,
                expected=part.case_of_run(index).conversation,
                error=run.error,
                unfinished=run.unfinished,
                session_state=run.session_state,
                ending=run.ending,
                injections=run.injections,
                from_ledger=run.from_ledger,
            )

    def result_at(self, place: int, planned: PlannedCriterion) -> CriterionResult:
        """Return the result of a criterion on a case run, by the place of that."""
        column = self._columns.columns[planned.criterion]
        counts = CellCounts(column.scored[place], column.errored[place], column.skipped[place])
        votes = column.votes[place]
        return CriterionResult(
            criterion=planned.criterion,
            threshold=planned.threshold,
            greater_is_better=planned.greater_is_better,
            overall=self._overall(place, planned.criterion, column),
            per_invocation=Stored(self._columns.rows[place], partial(self._cells, place, planned.criterion), counts),
            votes=Stored(votes, partial(self._votes, place, planned.criterion)) if votes else (),
        )

    @property
    def criteria(self) -> tuple[str, ...]:
        """The names of all criteria that some case has."""
        return tuple(dict.fromkeys(planned.criterion for plan in self._columns.plans for planned in plan))

    def _overall(self, place: int, criterion: str, column: _Column) -> Outcome:
        if column.kinds[place] == _PLAIN:
            return Scored(column.scores[place])
        if column.kinds[place] >= _LISTED:
            return column.outcomes[column.kinds[place] - _LISTED]
        return overall_of(self._rows(place), criterion, self._cells(place, criterion))

    def part_of(self, place: int) -> tuple[StoredPart, int]:
        """Return the part of a case run, and its place there."""
        number = bisect_right(self._firsts, place) - 1
        while not self._reader.parts[number].case_runs:
            number -= 1
        return self._reader[number], place - self._firsts[number]

    def _rows(self, place: int) -> Sequence[Row]:
        part, index = self.part_of(place)
        start = self._first_rows[place] - self._first_rows[place - index]
        return part.rows[start : start + self._columns.rows[place]]

    def _cells(self, place: int, criterion: str) -> tuple[Outcome | None, ...]:
        return cells_of(self._rows(place), criterion)

    def _votes(self, place: int, criterion: str) -> Sequence[Vote]:
        part, _ = self.part_of(place)
        return part.votes.get((self._columns.eval_ids[place], self._columns.run_indexes[place], criterion), [])

    def _actual(self, place: int) -> Sequence[Invocation]:
        part, index = self.part_of(place)
        return part.run(index).invocations

    def _expected(self, place: int) -> Sequence[Invocation]:
        part, index = self.part_of(place)
        return part.case_of_run(index).conversation or ()

    def _state(self, place: int) -> Mapping[str, Any]:
        part, index = self.part_of(place)
        return part.run(index).session_state or {}


class _StoredResults(Sequence[CriterionResult]):
    """The results of a case run, each made when somebody looks at it."""

    __slots__ = ("_cases", "_place", "planned", "verdict")

    def __init__(self, cases: StoredCases, place: int, planned: tuple[PlannedCriterion, ...], verdict: Verdict) -> None:
        self._cases, self._place, self.planned, self.verdict = cases, place, planned, verdict

    def __len__(self) -> int:
        return len(self.planned)

    @overload
    def __getitem__(self, index: int) -> CriterionResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CriterionResult]: ...
    def __getitem__(self, index: int | slice) -> CriterionResult | Sequence[CriterionResult]:
        if isinstance(index, slice):
            return tuple(self._cases.result_at(self._place, planned) for planned in self.planned[index])
        return self._cases.result_at(self._place, self.planned[index])

    def __iter__(self) -> Iterator[CriterionResult]:
        return (self._cases.result_at(self._place, planned) for planned in self.planned)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def chosen(cases: Sequence[CaseResult], change: Callable[[CaseResult], CaseResult | None]) -> Sequence[CaseResult]:
    """Return cases as they are changed, without those of which nothing is left; of a stored run, changed when somebody looks at them."""
    if isinstance(cases, StoredCases | _ChosenCases):
        return _ChosenCases(cases, change)
    return tuple(found for case in cases if (found := change(case)) is not None)


class _ChosenCases(Sequence[CaseResult]):
    """Some of the cases of a stored run."""

    def __init__(self, cases: Sequence[CaseResult], change: Callable[[CaseResult], CaseResult | None]) -> None:
        self._cases, self._change = cases, change
        self._places = array("q", (place for place, case in enumerate(cases) if change(case) is not None))
        self.memo: dict[Any, Any] = {}

    @cached_property
    def criteria(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(planned.criterion for case in self for planned in case.planned))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> CaseResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CaseResult]: ...
    def __getitem__(self, index: int | slice) -> CaseResult | Sequence[CaseResult]:
        if isinstance(index, slice):
            return tuple(self._case(place) for place in self._places[index])
        return self._case(self._places[index])

    def __iter__(self) -> Iterator[CaseResult]:
        return map(self._case, self._places)

    def _case(self, place: int) -> CaseResult:
        found = self._change(self._cases[place])
        if found is None:
            raise LookupError(place)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and all(one == two for one, two in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(len(self))


class _StoredState(Mapping[str, Any]):
    """The state of a session, read when somebody looks into it."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read

    def __getitem__(self, key: str) -> Any:
        return self._read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(dict(self))


def cells_of(rows: Sequence[Row], criterion: str, *, whole: bool = True) -> tuple[Outcome | None, ...]:
    """Return the outcome of each row that `PartWriter` wrote; `whole`: with the details of scores."""
    score, status, reason = columns_of(criterion)
    details = details_column(criterion)
    return tuple(_outcome(row[score], row[status], row[reason], row[details] if whole else None) for row in rows)


def overall_of(rows: Sequence[Row], criterion: str, cells: Sequence[Outcome | None]) -> Outcome:
    """Return the outcome of a case run that `PartWriter` wrote: its own if it has one, else the mean of its cells."""
    own = _outcome(*(rows[-1][column] for column in case_columns(criterion)))
    return case_outcome(cells) if own is None else own


def _outcome(score: float | None, status: str | None, reason: str | None, details: str | None) -> Outcome | None:
    if status is None:
        return None
    if status == "scored" and score is not None:
        return Scored(score, reason or "", from_json(details)) if details else Scored(score, reason or "")
    return (Skipped if status == "skipped" else Errored)(reason or "")


def results_of(
    stored: StoredPart, planned: Callable[[str], Sequence[PlannedCriterion]], *, whole: bool = True
) -> Iterator[tuple[str, list[CaseResult]]]:
    """Yield the ids of a part's cases, each with the results of its runs: what the part holds, whoever has written it. Votes are left out.

    Args:
        stored: the part.
        planned: returns the criteria of a case by its id.
        whole: whether turns and details are to be read; if not, the turns are only counted, which is all that columns need.

    Raises:
        InputError: if the files of the part are not about the same cases and runs, or lack what is planned.
    """
    cases = [(case.eval_id, case.conversation) for case in stored.cases()] if whole else list(map(_counted_case, stored.documents))
    if [eval_id for eval_id, _ in cases] != stored.case_ids:
        raise stored.unlike(CASES, "other ids than in the documents", "the same ids")
    rows = groupby(stored.rows, key=lambda row: (row["eval_id"], row["run_index"]))
    runs = iter(enumerate(stored.run_ids))
    per_case, extra = divmod(len(stored.run_ids), max(len(cases), 1))
    expected: Any
    for eval_id, expected in cases:
        found: list[CaseResult] = []
        for place, run_id in islice(runs, per_case):
            key, cells = next(rows, (None, iter(())))
            if not run_id == key == (eval_id, len(found)):
                raise stored.unlike(CELLS, f"the turns of {key}", f"those of {(eval_id, len(found))}")
            results = tuple(_results_of(stored, list(cells), planned(eval_id), whole=whole))
            run = stored.run(place) if whole else stored.outcome(place)
            found.append(
                CaseResult(
                    eval_id=eval_id,
                    run_index=run_id[1] or 0,
                    actual=run.invocations,
                    expected=expected,
                    results=results,
                    error=run.error,
                    unfinished=run.unfinished,
                    session_state=run.session_state,
                    ending=run.ending,
                    injections=run.injections,
                    from_ledger=run.from_ledger,
                )
            )
        yield eval_id, found
    if extra or next(rows, None) is not None:
        raise stored.unlike(CELLS, "more case runs", f"{per_case} of each case")


def _results_of(stored: StoredPart, rows: list[Row], planned: Sequence[PlannedCriterion], *, whole: bool) -> Iterator[CriterionResult]:
    """Yield the results on a case run, by its rows."""
    for one in planned:
        if lacking := [name for name in (*columns_of(one.criterion), *case_columns(one.criterion)) if name not in rows[0]]:
            raise stored.unlike(CELLS, f"no column {lacking[0]}", "the columns of all criteria")
        cells = cells_of(rows, one.criterion, whole=whole)
        yield CriterionResult(one.criterion, one.threshold, one.greater_is_better, overall_of(rows, one.criterion, cells), cells)


def _counted_case(document: str) -> tuple[str, Any]:
    """Return the id of a case, and its turns as JSON values, to be counted."""
    value = from_json(document)
    return value.get("eval_id", value.get("evalId")), value.get("conversation")


def loaded(case: CaseResult) -> CaseResult:
    """Return a result with everything of it in memory, for who looks at all of it."""
    if not any(isinstance(found, Stored) for found in (case.actual, case.expected, *(one.per_invocation for one in case.results))):
        return case
    results = (replace(one, per_invocation=tuple(one.per_invocation), votes=tuple(one.votes)) for one in case.results)
    expected = None if case.expected is None else tuple(case.expected)
    state = None if case.session_state is None else dict(case.session_state)
    return replace(case, actual=tuple(case.actual), expected=expected, results=tuple(results), session_state=state)


class StoredEvalCases(Sequence[EvalCase]):
    """The cases of an eval set that is kept in parts."""

    def __init__(self, reader: PartReader, eval_ids: Sequence[str]) -> None:
        """Take what reads the parts, and the ids of all cases."""
        self._reader, self.eval_ids = reader, tuple(eval_ids)

    def __len__(self) -> int:
        """Return the number of cases."""
        return len(self.eval_ids)

    @overload
    def __getitem__(self, index: int) -> EvalCase: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[EvalCase]: ...
    def __getitem__(self, index: int | slice) -> EvalCase | Sequence[EvalCase]:
        """Return a case, or some of them."""
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        part = self._reader.parts[bisect_right(self._reader.parts, place, key=lambda part: part.first_case_no) - 1]
        return self._reader[part.number].case(place - part.first_case_no)

    def __iter__(self) -> Iterator[EvalCase]:
        """Yield the cases."""
        return (case for part in self._reader for case in part.cases())

    def __eq__(self, other: object) -> bool:
        """Whether another sequence holds the same cases."""
        return isinstance(other, Sequence) and len(other) == len(self) and all(one == two for one, two in zip(self, other, strict=True))

    def __hash__(self) -> int:
        """Return a hash of the ids."""
        return hash(self.eval_ids)


def stored_eval_set(reader: PartReader, eval_ids: Iterable[str], head: Mapping[str, Any]) -> EvalSet:
    """Return the eval set whose cases are in parts; `head`: its other fields."""
    cases: Any = StoredEvalCases(reader, tuple(eval_ids))  # reads like a tuple
    return EvalSet.model_construct(**head, eval_cases=cases)


def parts_from(listed: Sequence[Mapping[str, Any]]) -> tuple[Part, ...]:
    """Return the parts that a manifest lists.

    Raises:
        ValueError: if a number is none, or cases are missing or come twice between parts.
    """
    found: list[Part] = []
    for number, item in enumerate(listed):
        if not isinstance(item, Mapping):
            raise ValueError(f"part {number} is {item!r}; wanted an object")  # noqa: TRY004 - of the manifest, not of this call
        part = Part(number=number, **{name: _whole(item, name) for name in ("first_case_no", "cases", "case_runs", "turns", "votes")})
        wanted = found[-1].last_case_no + 1 if found else 0
        if part.first_case_no != wanted:
            raise ValueError(f"part {number} begins with case {part.first_case_no}; wanted {wanted}")
        if item.get("last_case_no") != part.last_case_no:
            raise ValueError(f"part {number} ends with case {item.get('last_case_no')!r}; wanted {part.last_case_no}")
        found.append(part)
    return tuple(found)


def _whole(item: Mapping[str, Any], name: str) -> int:
    value = item.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}; wanted a whole number")
    return value
