"""Cases as a stream: JSON Lines, Parquet, a folder of either, the parts of a run, or an eval set in memory.

A `CaseSource` is read from its start as often as is asked, and holds one batch at a time. `open_cases` finds out what a path or URI holds;
`row_files` decodes its rows and `row_cases` makes cases of them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal, Protocol

from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError
from mlflow_adk_eval.evalset.conversation import RecordedRun
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet
from mlflow_adk_eval.evalset.parse import no_collection
from mlflow_adk_eval.evalset.row_cases import CaseReader, CaseRow, WrittenCase, written_cases
from mlflow_adk_eval.evalset.row_files import (
    BATCH_BYTES,
    BATCH_CASES,
    ENDINGS,
    PARQUET,
    UNREADABLE,
    Row,
    RowFile,
    footers_of,
    head_of,
    is_uri,
    lines_of,
    located,
    part_of,
    read_remote,
    table_of,
    text_lines,
    unreadable,
)

__all__ = ["BATCH_CASES", "CaseFiles", "CaseRow", "CaseSource", "CasesInMemory", "is_rows", "is_uri", "open_cases", "read_remote"]

_ENOUGH_PROBLEMS = 20_000
"""After so many, a source is not read further: a small file can have millions of rows without a value."""
_FORMS = "JSON Lines (.jsonl, .ndjson, also .gz and .zst), Parquet (.parquet), or a folder of either"


class CaseSource(Protocol):
    """Where cases are read from, as often as is asked."""

    @property
    def source(self) -> str:
        """What messages call it: a path, a URI or the id of an eval set."""
        ...

    @property
    def head(self) -> EvalSet:
        """The eval set that its cases make up, without them."""
        ...

    @property
    def eval_set_id(self) -> str:
        """The id of that set."""
        ...

    @property
    def num_cases(self) -> int | None:
        """How many cases there are; ``None`` where only reading all of them tells."""
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
    def source(self) -> str:
        """The id of the eval set."""
        return self.eval_set.eval_set_id

    @property
    def head(self) -> EvalSet:
        """The eval set without its cases."""
        return self.eval_set.model_copy(update={"eval_cases": ()})

    @property
    def eval_set_id(self) -> str:
        """The id of the eval set."""
        return self.eval_set.eval_set_id

    @property
    def num_cases(self) -> int:
        """How many cases there are."""
        return len(self.eval_set.eval_cases)

    def batches(self, size: int = BATCH_CASES) -> Iterator[Sequence[CaseRow]]:
        """Yield all cases from the start, in order, at most `size` at a time."""
        rows = map(self._row, self.eval_set.eval_cases)
        while batch := list(islice(rows, size)):
            yield batch

    def _row(self, case: EvalCase) -> CaseRow:
        runs = None if self.runs is None else self.runs.get(case.eval_id)
        return CaseRow(case, None if runs is None else tuple(runs))


@dataclass(frozen=True, slots=True)
class CaseFiles:
    """Cases in files: JSON Lines or Parquet, one or several, or the parts of a run."""

    source: str
    head: EvalSet
    """What the files say of the set itself; it has no cases."""
    num_cases: int | None
    files: tuple[RowFile, ...]
    form: Literal["lines", "parquet", "parts"]
    is_named: bool = False
    """Whether the files say something of the set itself."""
    again: bool = False
    """Whether somebody went through them before, to the end, so that ids need not be compared: those of a million cases take much memory."""

    @property
    def eval_set_id(self) -> str:
        """What the first file says, else its name without endings."""
        return self.head.eval_set_id

    def batches(self, size: int = BATCH_CASES) -> Iterator[Sequence[CaseRow]]:
        """Yield all cases from the start, in order, at most `size` at a time, fewer where they are large.

        Raises:
            EvalSetError: with every problem of the files, after the batches before the first one.
        """
        reader = CaseReader(self.source, again=self.again)
        batch: list[CaseRow] = []
        with closing(self._rows()) as rows:
            for chunk in _chunks(rows, size):
                with no_collection():
                    batch += reader.cases(chunk)
                while batch and not reader.problems.count:
                    ready, batch = batch[:size], batch[size:]
                    yield ready
                if reader.problems.count:
                    batch.clear()
                if reader.problems.count >= _ENOUGH_PROBLEMS:
                    break
        last = reader.last()
        if reader.count == 0 and self.form == "lines" and not self.is_named:
            reader.problems.add(Problem("$", "an empty file", "a case on each line"))
        if reader.problems.count:
            raise reader.problems.error()
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
        runs = {row.case.eval_id: row.runs for batch in self.batches() for row in batch if row.runs is not None}
        return runs or None

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
                    yield from lines_of(file, prefix, first=index == 0)
                elif self.form == "parquet":
                    yield from table_of(file, prefix)
                else:
                    yield from part_of(file, prefix)
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


def is_rows(path: str | Path) -> bool:
    """Whether a path or URI names JSON Lines or Parquet, or a folder of either or of a run's parts."""
    if str(path).endswith(ENDINGS):
        return True
    if is_uri(path):
        return not str(path).endswith(".json")
    folder = RowFile(str(path))
    return folder.is_dir() and (_is_run(folder) or bool(folder.children()))


def open_cases(path: str | Path) -> CaseFiles:
    """Return the cases in a file or folder of JSON Lines or Parquet, which are read when they are asked for.

    Args:
        path: a file, a folder of such files, which are read in the order of their names, a folder of a run's parts (``cases`` and
            ``actual``), or an fsspec URI of any of these.

    Raises:
        EvalSetError: if there is no such file or it is of another kind.
        UsageError: if reading the URI needs a package that is not installed.
    """
    source = str(path)
    try:
        place = located(source)
        return _opened(place, source)
    except UNREADABLE as error:
        if isinstance(error, UsageError):
            raise
        raise EvalSetError(source, [unreadable(error, "$")]) from None


def _opened(place: RowFile, source: str) -> CaseFiles:
    if not place.is_dir():
        files = [place]
    elif _is_run(place):
        files = place.below("cases").children()
    else:
        files = place.children()
    if not files:
        raise EvalSetError(source, [Problem("$", "a folder without such files", _FORMS)])
    parquet = [file for file in files if file.name.endswith(PARQUET)]
    if parquet and len(parquet) < len(files):
        raise EvalSetError(source, [Problem("$", "a folder with JSON Lines and Parquet", "files of one kind")])
    if not parquet and not files[0].name.endswith(ENDINGS):
        with place.open():  # raises if there is no such file
            pass
        raise EvalSetError(source, [Problem("$", "a file of another kind", _FORMS)])
    stem = _stem(place.name)
    if parquet:
        num_cases, head = footers_of(files, stem, source)
        return CaseFiles(source, head, num_cases, tuple(files), "parts" if _is_run(place) else "parquet")
    with closing(text_lines(files[0])) as text:
        first = next(text, (1, b""))[1]
    named = head_of(first, source)
    head = named or EvalSet(eval_set_id=stem, eval_cases=())
    return CaseFiles(source, head, None, tuple(files), "lines", is_named=named is not None)


def _is_run(place: RowFile) -> bool:
    return place.below("cases").is_dir() and place.below("actual").is_dir()


def _stem(name: str) -> str:
    """Return a file's name without its endings."""
    ending = next((ending for ending in sorted(ENDINGS, key=len, reverse=True) if name.endswith(ending)), "")
    return name.removesuffix(ending).removesuffix(".evalset") or name
