"""A run as it is stored, and the one door to what it holds: its cases, what the agent did, cells and votes, and the results that these come to.

`open_run` verifies that a run's artifacts are those that its parameter vouches for, and gives back a `StoredRun`. That reads one part at a time, a
`StoredPart`. Who must not believe what stands there, as the gate, reads the results by a `examined.TableReader`; `StoredPart.results` is for
parts that this package has written itself.

`StoredCases` is a sequence of `CaseResult` like any tuple of them. Case scores, verdicts and the numbers of scored, skipped and failed cells are in
memory, a few bytes each. Turns, explanations and votes are read from the run's parts when somebody looks at them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, groupby, islice, repeat
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from mlflow_adk_eval.errors import InputError, Problem
from mlflow_adk_eval.evalset.conversation import Conversation, RecordedRun, conversation_of
from mlflow_adk_eval.evalset.models import CasesElsewhere, EvalCase, EvalSet, Invocation
from mlflow_adk_eval.evalset.parse import from_json, parse
from mlflow_adk_eval.results import outcomes
from mlflow_adk_eval.results.report import Cases
from mlflow_adk_eval.runs.files import Kinds, read_columns
from mlflow_adk_eval.runs.manifest import FOLDER, Evidence, Manifest, integrity_problems, read_manifest
from mlflow_adk_eval.runs.parts import ACTUAL, CASES, CELLS, HEAD, KINDS, RUN_KINDS, VOTES, Part, case_columns, cell_columns, parse_votes

_CASE = TypeAdapter(EvalCase)
_RUN = TypeAdapter(RecordedRun)


@dataclass(frozen=True)
class StoredPart:
    """What one part holds, read when it is asked for."""

    part: Part
    files: Mapping[str, bytes]
    """The content of the run's files, by path."""
    source: str
    """The folder, for messages."""
    _last_turns: list[tuple[int, Sequence[Invocation]]] = field(default_factory=list[Any], repr=False, compare=False)
    _last_conversation: list[tuple[int, Conversation]] = field(default_factory=list[Any], repr=False, compare=False)

    def name(self, folder: str) -> str:
        """Return how messages call one of its files."""
        return f"{self.source}/{self.part.name(folder)}"

    def unlike(self, folder: str, found: str, wanted: str, at: str = "$") -> InputError:
        """Return the error that a file holds something else than the other files say."""
        return InputError(self.name(folder), [Problem(at, found, wanted)])

    def columns(self, folder: str, rows: int, kinds: Kinds | None = None) -> dict[str, list[Any]]:
        """Return the values of a file by column, as `read_columns` does; `kinds`: of the columns that are wanted, ``None``: all of them.

        Raises:
            InputError: if there is no such file, or it is not such a one, or lacks one of the documents that it is about.
        """
        content = self.files.get(self.part.name(folder))
        if content is None:
            raise self.unlike(folder, "no such file", f"the {folder} of part {self.part.number}")
        columns = read_columns(content, self.name(folder), kinds or KINDS[folder], rows=rows)
        for name in {"case", "recorded"} & columns.keys():
            if None in columns[name]:
                raise self.unlike(folder, "nothing", "JSON text", f"$[{columns[name].index(None)}].{name}")
        return columns

    @cached_property
    def _case_columns(self) -> dict[str, list[Any]]:
        return self.columns(CASES, self.part.cases)

    @property
    def case_ids(self) -> list[str | None]:
        """The id of each case, as its column has it."""
        return self._case_columns["eval_id"]

    @property
    def documents(self) -> list[str]:
        """The JSON text of each case."""
        return self._case_columns["case"]

    @cached_property
    def run_ids(self) -> list[tuple[str | None, int | None]]:
        """The case and the run of each conversation, as the columns have them."""
        columns = self.columns(ACTUAL, self.part.case_runs, {name: RUN_KINDS[name] for name in ("eval_id", "run_index")})
        return list(zip(columns["eval_id"], columns["run_index"], strict=True))

    @cached_property
    def recorded(self) -> list[str]:
        """The JSON text of what the agent did in each case run."""
        return self.columns(ACTUAL, self.part.case_runs)["recorded"]

    @cached_property
    def cells(self) -> dict[str, list[Any]]:
        """The columns of cells."""
        columns = self.columns(CELLS, self.part.turns)
        if missing := [name for name in HEAD if name not in columns]:
            raise self.unlike(CELLS, f"no column {missing[0]}", f"the columns {', '.join(HEAD)}")
        return columns

    @cached_property
    def votes(self) -> dict[tuple[str, int, str], list[outcomes.Vote]]:
        """The votes by eval id, run and criterion; none where no judge decides."""
        content = self.files.get(self.part.name(VOTES))
        votes = () if content is None else parse_votes(content, self.name(VOTES), rows=self.part.votes)
        return outcomes.grouped(((vote.eval_id, vote.run_index, vote.criterion), vote) for vote in votes)

    def case(self, index: int) -> EvalCase:
        """Return a case by its place within the part.

        Raises:
            EvalSetError: with every problem of it.
        """
        text = self.documents[index]
        try:  # what nobody knows was looked at when the eval set was read, which takes longer than all else
            return _CASE.validate_python(from_json(text), extra="allow")
        except ValueError:
            return parse(EvalCase, text.encode(), self.name(CASES), at=f"$[{index}].case")

    def cases(self) -> Iterator[EvalCase]:
        """Yield the cases."""
        return map(self.case, range(len(self.documents)))

    def light_case(self, index: int, case: EvalCase) -> EvalCase:
        """Return a case whose turns are read when somebody looks at them: those of a part take 40 MB."""
        if case.conversation is None:
            return case

        def read() -> Sequence[Invocation]:
            if not self._last_turns or self._last_turns[0][0] != index:
                self._last_turns[:] = [(index, self.case(index).conversation or ())]
            return self._last_turns[0][1]

        return case.model_copy(update={"conversation": outcomes.Stored(len(case.conversation), read)})

    def run(self, index: int, *, whole: bool = True) -> RecordedRun:
        """Return what the agent did in a case run, by its place within the part; not `whole`: its turns as JSON values, for who only counts them."""
        try:
            value = from_json(self.recorded[index])
            turns = value.get("invocations") if not whole and isinstance(value, dict) else None
            if isinstance(turns, list):
                with suppress(ValidationError):
                    return _RUN.validate_python({**value, "invocations": ()}).model_copy(update={"invocations": turns})
            return _RUN.validate_python(value)
        except (ValueError, ValidationError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise self.unlike(ACTUAL, f"something else ({reason})", "a recorded conversation", f"$[{index}].recorded") from None

    def conversation(self, index: int) -> Conversation:
        """Return what the agent did in a case run, by its place within the part; the last one that somebody looked at stays in memory."""
        if not self._last_conversation or self._last_conversation[0][0] != index:
            self._last_conversation[:] = [(index, conversation_of(self.run(index)))]
        return self._last_conversation[0][1]

    def of_rows(self, criterion: str, rows: slice, *, whole: bool = True) -> tuple[outcomes.Outcome | None, ...]:
        """Return the outcome of a criterion in some rows; `whole`: with the details of scores."""
        score, status, reason, details = cell_columns(criterion)
        detailed = self.cells[details][rows] if whole and details in self.cells else repeat(None)
        return tuple(map(_outcome, *(self.cells[name][rows] for name in (score, status, reason)), detailed))

    def overall(self, criterion: str, rows: slice, cells: Sequence[outcomes.Outcome | None]) -> outcomes.Outcome:
        """Return the outcome of a case run: its own if its last row has one, else the mean of its cells."""
        own = _outcome(*(self.cells[name][rows][-1] if name in self.cells else None for name in case_columns(criterion)))
        return outcomes.case_outcome(cells) if own is None else own

    def results(
        self, planned: Callable[[str], Sequence[outcomes.PlannedCriterion]], *, whole: bool = True
    ) -> Iterator[tuple[str, list[outcomes.CaseResult]]]:
        """Yield the ids of the cases, each with the results of its runs: what the part holds, whoever has written it. Votes are left out.

        Args:
            planned: returns the criteria of a case by its id.
            whole: whether turns and details are to be read; if not, the turns are only counted, which is all that columns need.

        Raises:
            InputError: if the files of the part are not about the same cases and runs, or lack what is planned.
        """
        cases: list[tuple[str, Any]]
        if whole:
            cases = [(case.eval_id, case.conversation) for case in self.cases()]
        else:
            cases = [(value.get("eval_id", value.get("evalId")), value.get("conversation")) for value in map(from_json, self.documents)]
        if [eval_id for eval_id, _ in cases] != self.case_ids:
            raise self.unlike(CASES, "ids that differ from the documents", "the same ids")
        rows = groupby(zip(self.cells["eval_id"], self.cells["run_index"], strict=True))
        runs = iter(enumerate(self.run_ids))
        per_case, extra = divmod(len(self.run_ids), max(len(cases), 1))
        first = 0
        for eval_id, expected in cases:
            results: list[outcomes.CaseResult] = []
            for place, run_id in islice(runs, per_case):
                key, same = next(rows, (None, iter(())))
                if not run_id == key == (eval_id, len(results)):
                    raise self.unlike(CELLS, f"the turns of {key}", f"those of {(eval_id, len(results))}")
                here = slice(first, first := first + sum(1 for _ in same))
                by_criterion: list[outcomes.CriterionResult] = []
                for one in planned(eval_id):
                    names = (*cell_columns(one.criterion), *case_columns(one.criterion))
                    if lacking := [name for name in names if name not in self.cells]:
                        raise self.unlike(CELLS, f"no column {lacking[0]}", "the columns of all criteria")
                    cells = self.of_rows(one.criterion, here, whole=whole)
                    by_criterion.append(outcomes.CriterionResult(*one, self.overall(one.criterion, here, cells), cells))
                conversation, found = conversation_of(self.run(place, whole=whole)), tuple(by_criterion)
                where: dict[str, Any] = {"eval_id": eval_id, "run_index": len(results)}
                results.append(outcomes.CaseResult(**where, conversation=conversation, expected=expected, results=found))
            yield eval_id, results
        if extra or next(rows, None) is not None:
            raise self.unlike(CELLS, "more case runs", f"{per_case} of each case")


def _outcome(score: float | None, status: str | None, reason: str | None, details: str | None) -> outcomes.Outcome | None:
    if status is None:
        return None
    if status == "scored" and score is not None:
        return outcomes.Scored(score, reason or "", from_json(details)) if details else outcomes.Scored(score, reason or "")
    return (outcomes.Skipped if status == "skipped" else outcomes.Errored)(reason or "")


class StoredRun:
    """The parts of a run; the last one that was read stays in memory."""

    def __init__(self, files: Mapping[str, bytes], parts: Sequence[Part], source: str) -> None:
        """Take the run's files by path, its parts, and the folder for messages."""
        self._files, self.parts, self._source = files, tuple(parts), source
        self._read: StoredPart | None = None

    def __getitem__(self, number: int) -> StoredPart:
        """Return a part."""
        if self._read is None or self._read.part.number != number:
            self._read = StoredPart(self.parts[number], self._files, self._source)
        return self._read

    def __iter__(self) -> Iterator[StoredPart]:
        """Yield the parts in their order."""
        return (self[part.number] for part in self.parts)

    def once(self) -> Iterator[StoredPart]:
        """Yield the parts in their order, none of which stays in memory."""
        return (StoredPart(part, self._files, self._source) for part in self.parts)

    @cached_property
    def _ends(self) -> tuple[list[int], list[int]]:
        """How many cases, and how many case runs, there are up to the end of each part."""
        return list(accumulate(part.cases for part in self.parts)), list(accumulate(part.case_runs for part in self.parts))

    def of_case(self, place: int) -> tuple[StoredPart, int]:
        """Return the part of a case, by the place of that in the eval set, and its place there."""
        number = bisect_right(self._ends[0], place)
        return self[number], place - self.parts[number].first_case_no

    def of_run(self, place: int) -> tuple[StoredPart, int]:
        """Return the part of a case run, by its place among all, and its place there."""
        number = bisect_right(self._ends[1], place)
        return self[number], place - self._ends[1][number] + self.parts[number].case_runs

    def case(self, place: int) -> EvalCase:
        """Return a case, by its place in the eval set."""
        part, index = self.of_case(place)
        return part.case(index)

    def conversation(self, place: int) -> Conversation:
        """Return what the agent did in a case run, by its place among all."""
        part, index = self.of_run(place)
        return part.conversation(index)

    def eval_set(self, eval_ids: Iterable[str], head: Mapping[str, Any]) -> EvalSet:
        """Return the eval set, whose cases are read when they are asked for; `head`: its other fields."""
        cases: Any = StoredEvalCases(self, eval_ids)  # reads like a tuple
        return EvalSet.model_construct(**head, eval_cases=cases)


def open_run(evidence: Evidence, source: str = FOLDER) -> tuple[StoredRun, Manifest] | list[str]:
    """Return a run with its manifest, or why its artifacts are not those that its parameter vouches for; `source`: its folder, for messages."""
    if problems := integrity_problems(evidence):
        return problems
    manifest = read_manifest(evidence.manifest or b"")
    return [manifest] if isinstance(manifest, str) else (StoredRun(evidence.artifacts, manifest.parts, source), manifest)


class StoredEvalCases(CasesElsewhere):
    """The cases of an eval set that is kept in parts."""

    def __init__(self, run: StoredRun, eval_ids: Iterable[str]) -> None:
        """Take the run, and the ids of all cases."""
        self._run, self._eval_ids = run, tuple(eval_ids)

    @property
    def eval_ids(self) -> tuple[str, ...]:
        """The ids of all cases, in order."""
        return self._eval_ids

    def __len__(self) -> int:
        """Return the number of cases."""
        return len(self._eval_ids)

    def at(self, place: int) -> EvalCase:
        """Return a case."""
        return self._run.case(place)

    def __iter__(self) -> Iterator[EvalCase]:
        """Yield the cases."""
        return (case for part in self._run for case in part.cases())


class _ResultShape(NamedTuple):
    """What a criterion came to on a case run, besides its score."""

    planned: outcomes.PlannedCriterion
    overall: outcomes.Outcome | None
    """The outcome; ``None``: it is a score."""
    offset: int
    """The place of that among the scores of the case run."""
    in_part: bool
    """Whether more is to be said of the score, which is in the part."""
    counts: outcomes.CellCounts
    votes: int


class _Shape(NamedTuple):
    """All of a case run but its scores, in memory once for all case runs that have the same."""

    rows: int
    actual: int
    """How many turns there were."""
    expected: int | None
    """How many turns the case asks for."""
    verdict: outcomes.Verdict
    error: str
    has_course: bool
    """Whether its ending is known, or the tool environment did something in it."""
    results: tuple[_ResultShape, ...]


class CaseColumns:
    """Collects the results of case runs, in the order of the eval set and of the runs within a case: what decides, as columns."""

    def __init__(self) -> None:
        """Start without any."""
        self.eval_ids: list[str] = []
        """The id of each case run."""
        self.run_indexes, self.shape_numbers, self.scores = array("i"), array("i"), array("d")
        self.first_rows, self.first_scores = array("q", [0]), array("q", [0])
        """Where those of each case run begin, and where the next would."""
        self.shapes: list[_Shape] = []
        self._numbers: dict[_Shape, int] = {}
        self._pool: dict[_ResultShape, _ResultShape] = {}

    def add(self, case: outcomes.CaseResult, eval_id: str) -> None:
        """Add the result of a case run; `eval_id`: the text of its id that stays in memory."""
        conversation, before = case.conversation, len(self.scores)
        results: list[_ResultShape] = []
        for one in case.results:
            scored = one.overall if isinstance(one.overall, outcomes.Scored) else None
            result = _ResultShape(
                planned=outcomes.PlannedCriterion(one.criterion, one.threshold, one.greater_is_better),
                overall=None if scored else one.overall,
                offset=len(self.scores) - before,
                in_part=bool(scored and (scored.rationale or scored.details)),
                counts=one.counts,
                votes=len(one.votes),
            )
            if scored:
                self.scores.append(scored.score)
            results.append(self._pool.setdefault(result, result))
        shape = _Shape(
            rows=case.rows,
            actual=len(conversation.actual),
            expected=None if case.expected is None else len(case.expected),
            verdict=case.verdict,
            error=conversation.error,
            has_course=bool(conversation.ending or conversation.injections),
            results=tuple(results),
        )
        number = self._numbers.setdefault(shape, len(self.shapes))
        if number == len(self.shapes):
            self.shapes.append(shape)
        self.eval_ids.append(eval_id)
        self.run_indexes.append(case.run_index)
        self.shape_numbers.append(number)
        self.first_rows.append(self.first_rows[-1] + shape.rows)
        self.first_scores.append(len(self.scores))


class _LazyConversation(Conversation):
    """What the agent did in a case run, read when somebody looks at more of it than its error and its number of turns."""

    __slots__ = ("read",)
    read: Callable[[], Conversation]

    def __init__(self, error: str, turns: int, read: Callable[[], Conversation]) -> None:
        object.__setattr__(self, "error", error)
        object.__setattr__(self, "actual", outcomes.Stored(turns, lambda: read().actual))
        object.__setattr__(self, "read", read)

    def __getattr__(self, name: str) -> Any:
        """Return what is not in memory."""
        return getattr(self.read(), name)

    def __eq__(self, other: object) -> bool:
        return self.read() == (other.read() if isinstance(other, _LazyConversation) else other)

    def __hash__(self) -> int:
        return hash(self.error)


class StoredCases(Cases):
    """The results of all case runs of a run that is kept in parts."""

    def __init__(self, columns: CaseColumns, run: StoredRun) -> None:
        """Take the columns, and the run that they are about."""
        self.memo, self._columns, self._run = {}, columns, run
        self._plans = [tuple(one.planned for one in shape.results) for shape in columns.shapes]

    @cached_property
    def verdicts(self) -> Sequence[outcomes.Verdict]:
        """The verdict of each case run."""
        verdicts: list[outcomes.Verdict] = [shape.verdict for shape in self._columns.shapes]
        return tuple([verdicts[number] for number in self._columns.shape_numbers])

    @property
    def run_turns(self) -> Sequence[int]:
        """How many rows of the table each case run has."""
        rows = [shape.rows for shape in self._columns.shapes]
        return array("i", map(rows.__getitem__, self._columns.shape_numbers))

    @property
    def criteria(self) -> tuple[str, ...]:
        """The names of all criteria that some case has."""
        return tuple(dict.fromkeys(result.planned.criterion for shape in self._columns.shapes for result in shape.results))

    def keys(self) -> Iterator[tuple[str, int]]:
        """Yield the eval id and the run index of each case run."""
        return zip(self._columns.eval_ids, self._columns.run_indexes, strict=True)

    def courses(self) -> Iterator[Conversation]:
        """Yield the conversations that a simulated user ended, or in which the tool environment did something."""
        known = {number for number, shape in enumerate(self._columns.shapes) if shape.has_course}
        return (self.at(place).conversation for place, number in enumerate(self._columns.shape_numbers if known else ()) if number in known)

    def tallies(self) -> Iterator[tuple[str, bool, Sequence[outcomes.Tally]]]:
        """Yield of each case run its id, whether the agent failed in it, and what each criterion came to."""
        columns, scores = self._columns, self._columns.scores
        for eval_id, number, first in zip(columns.eval_ids, columns.shape_numbers, columns.first_scores, strict=False):
            shape = columns.shapes[number]
            known = ((one, scores[first + one.offset] if one.overall is None else None) for one in shape.results)
            yield eval_id, bool(shape.error), [outcomes.Tally(one.planned, score, *one.counts) for one, score in known]

    def __len__(self) -> int:
        """Return the number of case runs."""
        return len(self._columns.eval_ids)

    def at(self, place: int) -> outcomes.CaseResult:
        """Return the result at a place; what the agent did and what judges said is read when somebody looks at it."""
        number = self._columns.shape_numbers[place]
        shape = self._columns.shapes[number]
        return outcomes.CaseResult(
            eval_id=self._columns.eval_ids[place],
            run_index=self._columns.run_indexes[place],
            conversation=_LazyConversation(shape.error, shape.actual, partial(self._run.conversation, place)),
            expected=None if shape.expected is None else outcomes.Stored(shape.expected, partial(self._expected, place)),
            results=outcomes.StoredResults(self._plans[number], shape.verdict, partial(self._result_at, place, shape)),
        )

    def of(self, criterion: str) -> Iterator[tuple[outcomes.CaseResult, outcomes.CriterionResult]]:
        """Yield the case runs that have a criterion, each with its result."""
        numbers = [next((n for n, one in enumerate(plan) if one.criterion == criterion), None) for plan in self._plans]
        for place, shape_number in enumerate(self._columns.shape_numbers):
            if (number := numbers[shape_number]) is not None:
                yield self.at(place), self._result_at(place, self._columns.shapes[shape_number], number)

    def _expected(self, place: int) -> Sequence[Invocation]:
        part, index = self._run.of_run(place)
        return part.case(index // (part.part.case_runs // part.part.cases)).conversation or ()

    def _cells(self, place: int, criterion: str) -> Sequence[outcomes.Outcome | None]:
        part, _, rows = self.part_of(place)
        return part.of_rows(criterion, rows)

    def _votes(self, place: int, criterion: str) -> Sequence[outcomes.Vote]:
        key = self._columns.eval_ids[place], self._columns.run_indexes[place], criterion
        return self.part_of(place)[0].votes.get(key, [])

    def _result_at(self, place: int, shape: _Shape, number: int) -> outcomes.CriterionResult:
        """Return the result of a criterion on a case run, by its place among those of the case run."""
        one, columns = shape.results[number], self._columns
        criterion, overall = one.planned.criterion, one.overall
        if overall is None and one.in_part:
            part, _, rows = self.part_of(place)
            overall = part.overall(criterion, rows, part.of_rows(criterion, rows))
        elif overall is None:
            overall = outcomes.Scored(columns.scores[columns.first_scores[place] + one.offset])
        cells = outcomes.StoredCells(shape.rows, partial(self._cells, place, criterion), one.counts)
        votes = outcomes.Stored(one.votes, partial(self._votes, place, criterion)) if one.votes else ()
        return outcomes.CriterionResult(*one.planned, overall=overall, per_invocation=cells, votes=votes)

    def part_of(self, place: int) -> tuple[StoredPart, int, slice]:
        """Return the part of a case run, its place there, and its rows there."""
        part, index = self._run.of_run(place)
        first_rows = self._columns.first_rows
        first, start = first_rows[place - index], first_rows[place]
        return part, index, slice(start - first, first_rows[place + 1] - first)

    def loaded(self, place: int) -> outcomes.CaseResult:
        """Return the result at a place with everything of it in memory."""
        return loaded(self.at(place))


def loaded(case: outcomes.CaseResult) -> outcomes.CaseResult:
    """Return a result with everything of it in memory, for who looks at all of it."""
    conversation = case.conversation
    if isinstance(conversation, _LazyConversation):
        conversation = conversation.read()
    elif not isinstance(case.results, outcomes.StoredResults):
        return case
    results = (replace(one, per_invocation=tuple(one.per_invocation), votes=tuple(one.votes)) for one in case.results)
    expected = None if case.expected is None else tuple(case.expected)
    return replace(case, conversation=conversation, expected=expected, results=tuple(results))
