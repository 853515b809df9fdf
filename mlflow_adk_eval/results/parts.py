"""A run's results as parts: Parquet files that are written while cases end, and that are read one part at a time.

A part holds some consecutive cases of the eval set with all of their runs, in four files: the cases, what the agent did (`actual`), a row for
each turn with all of its cells, and the judges' votes. So nobody who writes or reads a run needs more memory than a part takes, however many
turns there are. What the manifest says of a part is a `Part`; `PartWriter` writes parts, `PartReader` gives back what they hold.

The columns of cells are those of the table that people read (`results.table`), without what was said and done, and with the details of scores.
The last row of a case run also has the outcome of the case, where that is not the mean of its cells.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from mlflow_adk_eval.errors import InputError, Problem
from mlflow_adk_eval.evalset import EvalCase, dumps
from mlflow_adk_eval.evalset.conversation import RecordedRun, dumps_recorded, outcome_of
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.evalset.row_cases import CaseTexts
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, Scored, Vote, case_outcome, reason_of, status_of
from mlflow_adk_eval.results.parquet import Kind, read_columns
from mlflow_adk_eval.results.table import columns_of, row_verdict, turns_of
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.results.votes import dump_votes, parse_votes

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = 2
"""The version of a run's layout: this one has parts."""
PART_TURNS = 2_000
"""After how many turns a part ends, with the case that is being written."""
PART_BYTES = 16 << 20
"""After how much JSON text a part ends."""
CASES, ACTUAL, CELLS, VOTES = "cases", "actual", "cells", "votes"
"""The folders of a run's parts."""
PART_FOLDERS = (CASES, ACTUAL, CELLS, VOTES)
WHERE = ("eval_id", "run_index", "invocation_index")
HEAD = (*WHERE, "verdict", "agent_error")
"""The columns of cells ahead of the criteria."""
Row = dict[str, Any]
"""A row of cells, by column."""
_CASE = TypeAdapter(EvalCase)
_RUN = TypeAdapter(RecordedRun)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What the manifest says of one part."""

    number: int
    """Counted from 0."""
    first_case_no: int
    """The place of its first case in the eval set, counted from 0."""
    cases: int
    case_runs: int
    turns: int
    """The rows of cells."""
    votes: int = 0

    @property
    def last_case_no(self) -> int:
        """The place of its last case in the eval set."""
        return self.first_case_no + self.cases - 1

    def name(self, folder: str) -> str:
        """Return the path of one of its files.

        >>> Part(number=3, first_case_no=0, cases=1, case_runs=1, turns=1).name("cells")
        'cells/part-00003.parquet'
        """
        return f"{folder}/part-{self.number:05}.parquet"


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """One part that stands alone, as another process may have written it. It is part 0, and its first case is case 0."""

    part: Part
    files: Mapping[str, bytes]
    """The content of its files, by folder."""
    judging: JudgeUsage | None = None
    """What its judges took; ``None`` where no judge decides."""
    trouble: str = ""
    """Why answers of its judges were not kept; empty where all were."""


class Cleaner(Protocol):
    """What makes texts fit to be kept: without secrets, and without what no store takes."""

    def document(self, model: BaseModel, /) -> str:
        """Return a model as JSON text."""
        ...

    def documents(self, values: Sequence[str | None], /) -> Sequence[str | None]:
        """Return JSON texts; ``None`` stays."""
        ...

    def texts(self, values: Sequence[str | None], /) -> Sequence[str | None]:
        """Return texts; ``None`` stays."""
        ...

    def text(self, value: str, /) -> str:
        """Return a text."""
        ...


class AsTheyAre:
    """Keeps texts as they are, for parts that nobody else sees. What is no Unicode cannot be kept."""

    def document(self, model: BaseModel, /) -> str:
        """Return a model as JSON text."""
        return dumps_recorded(model, indent=None) if isinstance(model, RecordedRun) else model.model_dump_json()

    def documents(self, values: Sequence[str | None], /) -> Sequence[str | None]:
        """Return JSON texts."""
        return self.texts(values)

    def texts(self, values: Sequence[str | None], /) -> Sequence[str | None]:
        """Return texts."""
        return [value and self.text(value) for value in values]

    def text(self, value: str, /) -> str:
        """Return a text."""
        return value.encode("utf-8", "replace").decode()


def details_column(criterion: str) -> str:
    """Return the column of a score's details, as JSON."""
    return f"{criterion}/details"


def case_columns(criterion: str) -> tuple[str, str, str, str]:
    """Return the columns, on the last row of a case run, of an outcome that is not the mean of the cells: as `columns_of`, and details."""
    return f"{criterion}/case_score", f"{criterion}/case_status", f"{criterion}/case_reason", f"{criterion}/case_details"


@dataclass(slots=True)
class _Cells:
    """The columns of one criterion, or of its case outcomes."""

    scores: list[float | None]
    statuses: list[str | None]
    reasons: list[str | None]
    details: list[str | None]

    def add(self, outcome: Outcome | None) -> None:
        if isinstance(outcome, Scored):
            self.scores.append(outcome.score)
            self.statuses.append("scored")
            self.reasons.append(outcome.rationale or None)
            self.details.append(_dumped(outcome.details) if outcome.details else None)
        elif outcome is None:
            self.skip(1)
        else:
            self.scores.append(None)
            self.statuses.append(status_of(outcome))
            self.reasons.append(reason_of(outcome) or None)
            self.details.append(None)

    def skip(self, rows: int) -> None:
        nothing = (None,) * rows
        for column in (self.scores, self.statuses, self.reasons, self.details):
            column.extend(nothing)


_dumped = json.JSONEncoder(ensure_ascii=False, default=str).encode


class PartWriter:
    """Writes parts into a folder, each as soon as it is full."""

    def __init__(self, folder: Path, criteria: Sequence[str], clean: Cleaner, *, judged: bool, part_turns: int | None = PART_TURNS) -> None:
        """Take the names of all criteria, in the order of their columns, and whether judges decide any, whose votes are then kept.

        A part ends after `part_turns` turns; ``None``: there is one part, however large.
        """
        self._part_turns = part_turns
        self._folder, self._criteria, self._clean = folder, tuple(criteria), clean
        self._judged = judged
        for name in (CASES, ACTUAL, CELLS, *((VOTES,) if judged else ())):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.parts: list[Part] = []
        """Those that have ended."""
        self._begin()

    def _begin(self) -> None:
        self._eval_ids: list[str] = []
        self._documents: list[str] = []
        self._runs: list[tuple[str, int, str]] = []
        self._head: list[tuple[str, int, int, str | None, str]] = []
        self._cells = {name: (_Cells([], [], [], []), _Cells([], [], [], [])) for name in self._criteria}
        self._votes: list[Vote] = []
        self._bytes = 0

    def add(self, case: EvalCase, runs: Iterable[CaseResult], texts: CaseTexts | None = None) -> None:
        """Write a case with the results of all its runs; `texts`: what they were read from, which is written where it is the same."""
        text = texts.case if texts else dumps(case, indent=None).rstrip("\n")
        self._eval_ids.append(case.eval_id)
        self._documents.append(text)
        self._bytes += len(text)
        for result in runs:
            self._add_run(result, texts.runs[result.run_index : result.run_index + 1] if texts else ())
        if self._part_turns is not None and (len(self._head) >= self._part_turns or self._bytes >= PART_BYTES):
            self._end()

    def _add_run(self, result: CaseResult, read: Sequence[tuple[RecordedRun, str]] = ()) -> None:
        if read and _is_all_of(result, read[0][0]):
            text = self._clean.documents([read[0][1]])[0] or ""
        else:
            text = self._clean.document(_recorded(result))
        self._bytes += len(text)
        self._runs.append((result.eval_id, result.run_index, text))
        turns, found = turns_of(result), {one.criterion: one for one in result.results}
        last = min(len(result.actual), turns - 1)
        for index in range(turns):
            error = result.error if index >= last else ""
            verdict = row_verdict(result.results, index)
            told = "undecided" if error and verdict == "passed" else verdict
            self._head.append((result.eval_id, result.run_index, index, told, error))
        for name, (cells, cases) in self._cells.items():
            self._add_cells(cells, cases, found.get(name), turns)
        for one in result.results:
            self._votes.extend(one.votes)

    @staticmethod
    def _add_cells(cells: _Cells, cases: _Cells, result: CriterionResult | None, turns: int) -> None:
        if result is None:
            cells.skip(turns)
            cases.skip(turns)
            return
        outcomes = tuple(result.per_invocation)
        for outcome in outcomes:
            cells.add(outcome)
        cells.skip(turns - len(outcomes))
        if result.overall == case_outcome(outcomes):
            cases.skip(turns)
        else:
            cases.skip(turns - 1)
            cases.add(result.overall)

    @property
    def next_case(self) -> int:
        """The place of the first case after the parts that have ended."""
        return self.parts[-1].last_case_no + 1 if self.parts else 0

    def close(self) -> tuple[Part, ...]:
        """Write what is left and return all parts."""
        if self._eval_ids or not self.parts:
            self._end()
        return tuple(self.parts)

    def close_one(self) -> WrittenPart:
        """Write the only part and return it."""
        (part,) = self.close()
        files = {folder: self._folder / part.name(folder) for folder in PART_FOLDERS}
        return WrittenPart(part, {folder: file.read_bytes() for folder, file in files.items() if file.exists()})

    def _end(self) -> None:
        import pyarrow as pa  # noqa: PLC0415 - only runs that are kept need it
        import pyarrow.parquet as pq  # noqa: PLC0415

        part = Part(
            number=len(self.parts),
            first_case_no=self.next_case,
            cases=len(self._eval_ids),
            case_runs=len(self._runs),
            turns=len(self._head),
            votes=len(self._votes),
        )
        made = {CASES: self._case_table, ACTUAL: self._actual_table, CELLS: self._cell_table}
        for folder, table in made.items():
            pq.write_table(table(), self._folder / part.name(folder), compression="zstd", write_statistics=False)
        pa.default_memory_pool().release_unused()  # Arrow would keep several times of what it needed for the next part
        if self._judged:
            (self._folder / part.name(VOTES)).write_bytes(dump_votes(self._votes, self._clean.text))
        self.parts.append(part)
        self._begin()

    def _case_table(self) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415 - as above

        columns = {
            "eval_id": pa.array(self._eval_ids, pa.string()),
            "case": pa.array(self._documents, pa.string()),
        }
        return pa.table(columns)

    def _actual_table(self) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415 - as above

        eval_ids, runs, texts = zip(*self._runs, strict=True) if self._runs else ((), (), ())
        columns = {
            "eval_id": pa.array(eval_ids, pa.string()),
            "run_index": pa.array(runs, pa.int64()),
            "recorded": pa.array(texts, pa.string()),
        }
        return pa.table(columns)

    def _cell_table(self) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415 - as above

        eval_ids, runs, indexes, verdicts, errors = zip(*self._head, strict=True) if self._head else ((), (), (), (), ())
        columns = {
            "eval_id": pa.array(eval_ids, pa.string()),
            "run_index": pa.array(runs, pa.int64()),
            "invocation_index": pa.array(indexes, pa.int64()),
            "verdict": pa.array(verdicts, pa.string()),
            "agent_error": pa.array(self._clean.texts(errors), pa.string()),
        }
        for name, both in self._cells.items():
            named = ((*columns_of(name), details_column(name)), case_columns(name))
            for cells, (score, status, reason, details) in zip(both, named, strict=True):
                columns[score] = pa.array(cells.scores, pa.float64())
                columns[status] = pa.array(cells.statuses, pa.string())
                columns[reason] = pa.array(self._clean.texts(cells.reasons), pa.string())
                columns[details] = pa.array(self._clean.documents(cells.details), pa.string())
        return pa.table(columns)


def _recorded(result: CaseResult) -> RecordedRun:
    state: dict[str, Any] = {} if result.session_state is None else {"session_state": dict(result.session_state)}
    return RecordedRun.model_construct(invocations=tuple(result.actual), **state, **outcome_of(result))


def _is_all_of(result: CaseResult, run: RecordedRun) -> bool:
    """Whether what the agent did is this recorded run, and nothing was found out about it since."""
    same = result.actual is run.invocations and result.session_state is run.session_state
    return same and outcome_of(result) == outcome_of(run)


def cleaned(content: bytes, clean: Cleaner, file: str) -> bytes:
    """Return a file of `actual`, `cells` or `votes`, called `file`, with texts that are fit to be kept; as it is, if all of them are.

    Raises:
        InputError: if it holds no votes and should.
    """
    if file.startswith(VOTES):
        return dump_votes(parse_votes(content, file), clean.text)
    import pyarrow as pa  # noqa: PLC0415 - as above
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = pq.read_table(pa.BufferReader(content))
    found = table
    for place, name in enumerate(table.column_names):
        ending = name.rpartition("/")[2]
        if ending not in _DOCUMENTS and ending not in _TEXTS:
            continue
        texts = table.column(place).to_pylist()
        fit = clean.documents(texts) if ending in _DOCUMENTS else clean.texts(texts)
        if list(fit) != texts:
            found = found.set_column(place, name, pa.array(fit, pa.string()))
    if found is table:
        return content
    sink = pa.BufferOutputStream()
    pq.write_table(found, sink, compression="zstd", write_statistics=False)
    return bytes(sink.getvalue().to_pybytes())


_DOCUMENTS = frozenset({"recorded", "details", "case_details"})
_TEXTS = frozenset({"agent_error", "reason", "case_reason"})
_CASE_KINDS: Mapping[str, Kind] = {"eval_id": "text", "case": "text"}
_RUN_KINDS: Mapping[str, Kind] = {"eval_id": "text", "run_index": "whole number", "recorded": "text"}
_HEAD_KINDS: Mapping[str, Kind] = {**dict.fromkeys(HEAD, "text"), "run_index": "whole number", "invocation_index": "whole number"}


def _cell_kind(column: str) -> Kind | None:
    """Return what the values of a column of cells are; ``None`` for one that is none of ours."""
    ending = column.rpartition("/")[2]
    if ending in _SCORES:
        return "number"
    return "text" if ending in _REASONS else _HEAD_KINDS.get(column)


_SCORES = frozenset({"score", "case_score"})
_REASONS = frozenset({"status", "reason", "details", "case_status", "case_reason", "case_details"})


@dataclass(frozen=True)
class StoredPart:
    """What one part holds, read when it is asked for."""

    part: Part
    files: Mapping[str, bytes]
    """The content of the run's files, by path."""
    source: str
    """The folder, for messages."""

    def columns(self, folder: str, kind_of: Mapping[str, Kind] | Callable[[str], Kind | None], rows: int) -> dict[str, list[Any]]:
        """Return the values of a file by column, as `read_columns` does.

        Raises:
            InputError: if there is no such file, or it is not such a one.
        """
        name = self.part.name(folder)
        content = self.files.get(name)
        if content is None:
            raise InputError(f"{self.source}/{name}", [Problem("$", "no such file", f"the {folder} of part {self.part.number}")])
        return read_columns(content, f"{self.source}/{name}", kind_of, rows=rows)

    @cached_property
    def case_ids(self) -> list[str | None]:
        """The id of each case, as its column has it."""
        return self._case_columns["eval_id"]

    @cached_property
    def documents(self) -> list[str]:
        """The JSON text of each case."""
        return self._texts(CASES, "case", self._case_columns)

    @cached_property
    def _case_columns(self) -> dict[str, list[Any]]:
        return self.columns(CASES, _CASE_KINDS, self.part.cases)

    @cached_property
    def run_ids(self) -> list[tuple[str | None, int | None]]:
        """The case and the run of each conversation, as the columns have them."""
        kinds: dict[str, Kind] = {name: _RUN_KINDS[name] for name in ("eval_id", "run_index")}
        columns = self.columns(ACTUAL, kinds, self.part.case_runs)
        return list(zip(columns["eval_id"], columns["run_index"], strict=True))

    @cached_property
    def recorded(self) -> list[str]:
        """The JSON text of what the agent did in each case run."""
        return self._texts(ACTUAL, "recorded", self.columns(ACTUAL, _RUN_KINDS, self.part.case_runs))

    def unlike(self, folder: str, found: str, wanted: str) -> InputError:
        """Return the error that a file holds something else than the other files say."""
        return InputError(f"{self.source}/{self.part.name(folder)}", [Problem("$", found, wanted)])

    def _texts(self, folder: str, column: str, columns: Mapping[str, list[Any]]) -> list[str]:
        found = columns[column]
        if None in found:
            place = f"{self.source}/{self.part.name(folder)}"
            raise InputError(place, [Problem(f"$[{found.index(None)}].{column}", "nothing", "JSON text")])
        return found

    @cached_property
    def cells(self) -> dict[str, list[Any]]:
        """The columns of cells."""
        found = self.columns(CELLS, _cell_kind, self.part.turns)
        missing = [name for name in HEAD if name not in found]
        if missing:
            place = f"{self.source}/{self.part.name(CELLS)}"
            raise InputError(place, [Problem("$", f"no column {missing[0]}", f"the columns {', '.join(HEAD)}")])
        return found

    @cached_property
    def rows(self) -> list[Row]:
        """A row for each turn, in the order of the case runs."""
        names = tuple(self.cells)
        return [dict(zip(names, values, strict=True)) for values in zip(*self.cells.values(), strict=True)]

    @cached_property
    def votes(self) -> dict[tuple[str, int, str], list[Vote]]:
        """The votes by eval id, run and criterion; none where no judge decides."""
        name = self.part.name(VOTES)
        content = self.files.get(name)
        found: dict[tuple[str, int, str], list[Vote]] = {}
        for vote in () if content is None else parse_votes(content, f"{self.source}/{name}", rows=self.part.votes):
            found.setdefault((vote.eval_id, vote.run_index, vote.criterion), []).append(vote)
        return found

    def case(self, index: int) -> EvalCase:
        """Return a case by its place within the part.

        Raises:
            EvalSetError: with every problem of it.
        """
        text = self.documents[index]
        try:  # what nobody knows was looked at when the eval set was read, which takes longer than all else
            return _CASE.validate_python(from_json(text), extra="allow")
        except ValueError:
            return parse(_CASE, text.encode(), f"{self.source}/{self.part.name(CASES)}", at=f"$[{index}].case")

    def case_of_run(self, index: int) -> EvalCase:
        """Return the case of a case run, by the place of that within the part."""
        return self.case(index // (self.part.case_runs // self.part.cases))

    def cases(self) -> Iterator[EvalCase]:
        """Yield the cases."""
        return (self.case(index) for index in range(len(self.documents)))

    def run(self, index: int) -> RecordedRun:
        """Return what the agent did in a case run, by its place within the part."""
        try:
            return _RUN.validate_python(from_json(self.recorded[index]))
        except (ValueError, ValidationError) as error:
            said = (str(error).splitlines() or [""])[0]
            place = f"{self.source}/{self.part.name(ACTUAL)}"
            raise InputError(place, [Problem(f"$[{index}].recorded", f"something else ({said})", "a recorded conversation")]) from None

    def outcome(self, index: int) -> RecordedRun:
        """Return what the agent did in a case run, its turns as JSON values, for who only counts them."""
        value = from_json(self.recorded[index])
        turns = value.get("invocations") if isinstance(value, dict) else None
        if not isinstance(turns, list):
            return self.run(index)
        try:
            return _RUN.validate_python({**value, "invocations": ()}).model_copy(update={"invocations": turns})
        except ValidationError:
            return self.run(index)


class PartReader:
    """Gives back what parts hold; the last one that was read stays in memory."""

    def __init__(self, files: Mapping[str, bytes], parts: Sequence[Part], source: str) -> None:
        """Take the run's files by path, its parts, and the folder for messages."""
        self._files, self.parts, self._source = files, tuple(parts), source
        self._read: StoredPart | None = None

    def part(self, number: int) -> StoredPart:
        """Return a part that nothing keeps in memory."""
        return StoredPart(self.parts[number], self._files, self._source)

    def __getitem__(self, number: int) -> StoredPart:
        """Return a part."""
        if self._read is None or self._read.part.number != number:
            self._read = self.part(number)
        return self._read

    def __iter__(self) -> Iterator[StoredPart]:
        """Yield the parts in their order."""
        return (self[part.number] for part in self.parts)
