"""Cases as a stream: JSON Lines, Parquet, a folder of either, the parts of a run, or an eval set in memory.

A `CaseSource` is read from its start as often as is asked, and holds one batch at a time. `open_cases` finds out what a path or URI holds;
`row_files` decodes its rows and `row_cases` makes cases of them. `StreamedCases` stands in an eval set where a tuple of cases would, so that
memory does not grow with their number: whoever evaluates goes through the source twice, once to find whatever is wrong with it, to plan and
to take its digest, before anything is paid for; and once to execute.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

from mlflow_adk_eval.errors import EvalSetError, Problem
from mlflow_adk_eval.evalset.conversation import RecordedRun
from mlflow_adk_eval.evalset.models import CasesElsewhere, EvalCase, EvalSet, canonical, canonical_json
from mlflow_adk_eval.evalset.parse import no_collection
from mlflow_adk_eval.evalset.row_cases import CaseReader, CaseRow, CaseTexts, WrittenCase, written_cases
from mlflow_adk_eval.evalset.row_files import (
    BATCH_BYTES,
    BATCH_CASES,
    ENDINGS,
    PARQUET,
    UNREADABLE,
    Row,
    RowFile,
    footer_of,
    head_of,
    lines_of,
    located,
    part_of,
    reading,
    table_of,
    text_lines,
    unreadable,
)

_ENOUGH_PROBLEMS = 20_000
"""After so many, a source is not read further: a small file can have millions of rows without a value."""
_FORMS = "JSON Lines (.jsonl, .ndjson, also .gz and .zst), Parquet (.parquet), or a folder of either"


class CaseSource(Protocol):
    """Where cases are read from, as often as is asked."""

    @property
    def head(self) -> EvalSet:
        """The eval set that its cases make up, without them."""
        ...

    def batches(self, size: int = BATCH_CASES) -> Iterator[Sequence[CaseRow]]:
        """Yield all cases from the start, in order, at most `size` at a time, fewer where they are large. No batch is empty.

        Raises:
            EvalSetError: with every problem of the source, after the batches before the first one.
        """
        ...


@dataclass(frozen=True, slots=True)
class CasesInMemory:
    """The cases of an eval set, and recorded runs by eval id."""

    eval_set: EvalSet
    runs: Mapping[str, Sequence[RecordedRun]] | None = None

    @property
    def head(self) -> EvalSet:
        """The eval set without its cases."""
        return self.eval_set.model_copy(update={"eval_cases": ()})

    def batches(self, size: int = BATCH_CASES) -> Iterator[Sequence[CaseRow]]:
        """Yield all cases from the start, in order, at most `size` at a time."""
        runs = self.runs or {}
        rows = (CaseRow(case, tuple(runs[case.eval_id]) if case.eval_id in runs else None) for case in self.eval_set.eval_cases)
        while batch := list(islice(rows, size)):
            yield batch


@dataclass(frozen=True, slots=True)
class CaseFiles:
    """Cases in files: JSON Lines or Parquet, one or several, or the parts of a run."""

    source: str
    head: EvalSet
    """What the files say of the set itself, else its name without endings as its id; it has no cases."""
    files: tuple[RowFile, ...]
    form: Literal["lines", "parquet", "parts"]
    is_named: bool = False
    """Whether the files say something of the set itself."""
    again: bool = False
    """Whether somebody went through them before, to the end, so that ids need not be compared: those of a million cases take much memory."""
    mending: bool = False
    """Whether keys that nothing reads where they are come along, for `AdkForm` to move them."""

    def batches(self, size: int = BATCH_CASES) -> Iterator[Sequence[CaseRow]]:
        """Yield all cases from the start, in order, at most `size` at a time, fewer where they are large.

        Raises:
            EvalSetError: with every problem of the files, after the batches before the first one.
        """
        reader = CaseReader(self.source, again=self.again, mending=self.mending)
        batch: list[CaseRow] = []
        with closing(self._rows()) as rows:
            for chunk in _chunks(rows, size):
                with no_collection():
                    batch += reader.cases(chunk)
                while batch and not reader.problems:
                    ready, batch = batch[:size], batch[size:]
                    yield ready
                if reader.problems:
                    batch.clear()
                if len(reader.problems) >= _ENOUGH_PROBLEMS:
                    break
        last = reader.last()
        if reader.count == 0 and self.form == "lines" and not self.is_named:
            reader.problems.append(Problem("$", "an empty file", "a case on each line"))
        reader.check()
        if last is not None:
            yield [last]

    def written(self) -> Iterator[WrittenCase]:
        """Yield all cases as JSON values, of files that `batches` went through to the end, which said whatever is wrong with them.

        Raises:
            EvalSetError: if a row cannot be read any more.
        """
        with closing(self._rows()) as rows:
            yield from written_cases(rows, self.source)

    def recorded(self) -> dict[str, tuple[RecordedRun, ...]] | None:
        """Return what is recorded of each case, in memory; ``None`` where nothing is.

        Raises:
            EvalSetError: with every problem of the files.
        """
        return {row.case.eval_id: row.runs for batch in self.batches() for row in batch if row.runs is not None} or None

    def eval_set(self) -> EvalSet:
        """Return all cases in memory, without what is recorded.

        Raises:
            EvalSetError: with every problem of the files.
        """
        return self.head.model_copy(update={"eval_cases": tuple(row.case for batch in self.batches() for row in batch)})

    def _rows(self) -> Generator[Row, None, None]:
        named = len(self.files) > 1 or self.form == "parts"
        for index, file in enumerate(self.files):
            prefix = f"{file.name}, " if named else ""
            try:
                if self.form == "lines":
                    yield from lines_of(file, prefix, headed=self.is_named and index == 0)
                else:
                    yield from (table_of if self.form == "parquet" else part_of)(file, prefix)
            except EvalSetError as error:
                yield from (Row(problem.path, replace(problem, path=f"{prefix}{problem.path}"), 0) for problem in error.problems)
            except UNREADABLE as error:
                yield Row(f"{prefix}$", unreadable(error, f"{prefix}$"), 0)


def _chunks(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    """Yield at most `size` rows at a time, fewer where they are large."""
    chunk: list[Row] = []
    weight = 0
    for row in rows:
        chunk.append(row)
        weight += row.weight
        if len(chunk) >= size or weight >= BATCH_BYTES:
            yield chunk
            chunk, weight = [], 0
    if chunk:
        yield chunk


def open_cases(path: str | Path) -> CaseFiles:
    """Return the cases in a file or folder of JSON Lines or Parquet; they are read lazily.

    Args:
        path: a file, a folder of such files, which are read in the order of their names, a folder of a run's parts (``cases`` and
            ``actual``), or an fsspec URI of any of these.

    Raises:
        EvalSetError: if there is no such file or it is of another kind.
        UsageError: if reading the URI needs a package that is not installed.
    """
    source = str(path)
    with reading(source):
        place = located(source)
        if place.is_dir():
            form = "parts" if is_run(place) else "lines"
            files = (place.below("cases") if form == "parts" else place).children()
        else:
            form, files = "lines", [place]
        if not files:
            raise EvalSetError(source, [Problem("$", "a folder without such files", _FORMS)])
        parquet = [file for file in files if file.name.endswith(PARQUET)]
        if parquet and len(parquet) < len(files):
            raise EvalSetError(source, [Problem("$", "a folder with JSON Lines and Parquet", "files of one format")])
        ending = next((ending for ending in sorted(ENDINGS, key=len, reverse=True) if place.name.endswith(ending)), "")
        stem = place.name.removesuffix(ending).removesuffix(".evalset") or place.name
        if parquet:
            return CaseFiles(source, footer_of(files[0], stem, source), tuple(files), "parts" if form == "parts" else "parquet")
        if not files[0].name.endswith(ENDINGS):
            with place.open():  # raises if there is no such file
                pass
            raise EvalSetError(source, [Problem("$", "a file in another format", _FORMS)])
        with closing(text_lines(files[0])) as text:
            first = next(text, (1, b""))[1]
        head = head_of(first, source)
        return CaseFiles(source, head or EvalSet(eval_set_id=stem, eval_cases=()), tuple(files), "lines", is_named=head is not None)


def is_run(place: RowFile) -> bool:
    """Whether a folder holds the parts of a run."""
    return place.below("cases").is_dir() and place.below("actual").is_dir()


_AT_ONCE = 100
"""How many cases are in memory at once, besides those that are being executed."""


@dataclass(slots=True)
class _Survey:
    """What is known of a source once somebody went through it."""

    eval_ids: list[str] = field(default_factory=list[str])
    num_runs: int = 0
    """How many runs are recorded of each case at most."""
    turns: int = 0
    """How many turns the cases have at least, in one run of each."""
    sha256: Any = field(default_factory=hashlib.sha256)


class StreamedCases(CasesElsewhere):
    """The cases of a source, read from its start whenever somebody goes through them."""

    def __init__(self, source: CaseSource) -> None:
        """Take the source; nothing is read yet."""
        self.source = source
        self._known: _Survey | None = None
        self._waiting: dict[str, list[RecordedRun]] = {}
        self._texts: dict[str, CaseTexts] = {}

    @property
    def _survey(self) -> _Survey:
        if self._known is None:
            for _ in self:
                pass
        assert self._known is not None  # noqa: S101 - whoever went to the end has set it
        return self._known

    def __iter__(self) -> Iterator[EvalCase]:
        """Yield the cases. Whoever goes to the end first also learns the ids, the runs and the digest.

        Raises:
            EvalSetError: with every problem of the source.
        """
        found = _Survey() if self._known is None else None
        for batch in self.source.batches(_AT_ONCE):
            for row in batch:
                if found:
                    found.eval_ids.append(row.case.eval_id)
                    found.num_runs = max(found.num_runs, len(row.runs or ()))
                    found.turns += max(1, len(row.case.conversation or ()))
                    found.sha256.update(canonical_json(canonical(row.case)) + b"\n")
                yield row.case
        self._known = self._known or found

    def handing_over(self) -> Iterator[EvalCase]:
        """Yield the cases, each once its recorded runs can be had from `taken` and its texts from `texts_of`."""
        source = replace(self.source, again=True) if self._known and isinstance(self.source, CaseFiles) else self.source
        for batch in source.batches(_AT_ONCE):
            for row in batch:
                if row.runs:
                    self._waiting[row.case.eval_id] = list(row.runs)
                if texts := row.texts():
                    self._texts[row.case.eval_id] = texts
                yield row.case

    def texts_of(self, eval_id: str) -> CaseTexts | None:
        """Return a case that was handed over as its source has it, and forget it; ``None`` where that is no text."""
        return self._texts.pop(eval_id, None)

    def known_texts(self, eval_id: str) -> CaseTexts | None:
        """Return what `texts_of` will, and keep it."""
        return self._texts.get(eval_id)

    def pass_over(self, eval_id: str) -> None:
        """Forget a case that was handed over and need not be executed."""
        self._texts.pop(eval_id, None)
        self._waiting.pop(eval_id, None)

    def taken(self, eval_id: str, run_index: int) -> RecordedRun | None:
        """Return a run of a case that was handed over; the last one is then forgotten, with the others."""
        runs = self._waiting.get(eval_id, [])
        if run_index >= len(runs):
            return None
        if run_index == len(runs) - 1:
            del self._waiting[eval_id]
        return runs[run_index]

    def all_taken(self, eval_id: str) -> list[RecordedRun]:
        """Return all runs of a case that was handed over, and forget them."""
        return self._waiting.pop(eval_id, [])

    @property
    def eval_ids(self) -> tuple[str, ...]:
        """The ids of all cases."""
        return tuple(self._survey.eval_ids)

    @property
    def digest(self) -> str:
        """The digest of the eval set."""
        return f"sha256:{self._survey.sha256.hexdigest()}"

    @property
    def turns(self) -> int:
        """How many turns the cases have at least, in one run of each."""
        return self._survey.turns

    @property
    def recorded(self) -> bool:
        """Whether anything is recorded beside the first cases."""
        return any(row.runs for row in next(iter(self.source.batches(_AT_ONCE)), ()))

    @property
    def num_runs(self) -> int:
        """How many runs are recorded of each case; 0 where none is."""
        return self._survey.num_runs

    def __len__(self) -> int:
        """Return the number of cases."""
        return len(self._survey.eval_ids)

    def at(self, place: int) -> EvalCase:
        """Return a case by going through those before it."""
        return next(islice(self, place, None))

    def several(self, places: Sequence[int]) -> Iterator[EvalCase]:
        """Yield the cases at some places, for which the source is gone through once."""
        wanted = set(places)
        found = {place: case for place, case in enumerate(islice(self, max(wanted, default=-1) + 1)) if place in wanted}
        return (found[place] for place in places)


def streamed(source: CaseSource) -> EvalSet:
    """Return the eval set that a source holds, read as it is needed."""
    cases: Any = StreamedCases(source)  # reads like a tuple
    return EvalSet.model_construct(eval_set_id=source.head.eval_set_id, eval_cases=cases)
