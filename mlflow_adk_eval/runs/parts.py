"""A run's results as parts: Parquet files that are written while cases end, and that are read one part at a time.

A part holds some consecutive cases of the eval set with all of their runs, in four files: the cases, what the agent did (`actual`), a row for
each turn with all of its cells, and the judges' votes. So nobody who writes or reads a run needs more memory than a part takes, however many
turns there are. What the manifest says of a part is a `Part`; `PartWriter` writes parts, and `stored_run` gives back what they hold.

The columns of cells are those of the table that people read (`results.table`), without what was said and done, and with the details of scores.
The last row of a case run also has the outcome of the case, where that is not the mean of its cells. The file of votes has one row per vote, in
columns that are the same whatever the votes are (`VOTE_COLUMNS`); the gate reads it to check them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mlflow_adk_eval.evalset.conversation import RecordedRun, dumps_recorded, outcome_of
from mlflow_adk_eval.evalset.files import dumps
from mlflow_adk_eval.evalset.models import EvalCase
from mlflow_adk_eval.evalset.observation import blind_spots
from mlflow_adk_eval.evalset.row_cases import CaseTexts
from mlflow_adk_eval.results.outcomes import CaseResult, Outcome, Scored, Vote, case_outcome, reason_of, status_of
from mlflow_adk_eval.results.table import VOTE_COLUMNS, columns_of, row_verdict
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runs.files import Kind, Kinds, read_columns

SCHEMA = 2
"""The version of a run's layout that is written and read."""
PART_TURNS = 2_000
"""After how many turns a part ends, with the case that is being written."""
PART_BYTES = 16 << 20
"""After how much JSON text a part ends."""
CASES, ACTUAL, CELLS, VOTES = "cases", "actual", "cells", "votes"
"""The folders of a run's parts."""
PART_FOLDERS = (CASES, ACTUAL, CELLS, VOTES)
CASE_KINDS: Mapping[str, Kind] = {"eval_id": "text", "case": "text"}
"""The columns of cases, with what their values are."""
RUN_KINDS: Mapping[str, Kind] = {"eval_id": "text", "run_index": "whole number", "recorded": "text"}
"""The columns of what the agent did."""
WHERE = ("eval_id", "run_index", "invocation_index")
HEAD: Mapping[str, Kind] = {
    "eval_id": "text",
    "run_index": "whole number",
    "invocation_index": "whole number",
    "verdict": "text",
    "agent_error": "text",
    "unknown": "text",
}
"""The columns of cells ahead of the criteria."""
_SCORES = frozenset({"score", "case_score"})
_REASONS = frozenset({"status", "reason", "details", "case_status", "case_reason", "case_details"})
_DOCUMENTS = frozenset({"recorded", "details", "case_details"})
_TEXTS = frozenset({"agent_error", "reason", "case_reason"})
"""How the columns end that hold JSON, or texts of others."""


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


class Cleaner:
    """Makes texts fit to be kept. This one leaves them as they are, for parts that nobody else sees; what is no Unicode cannot be kept."""

    def document(self, model: BaseModel, /) -> str:
        """Return a model as JSON text."""
        return dumps_recorded(model, indent=None) if isinstance(model, RecordedRun) else model.model_dump_json()

    def documents(self, values: Sequence[str | None], /) -> Sequence[str | None]:
        """Return JSON texts; ``None`` stays."""
        return self.texts(values)

    def texts(self, values: Sequence[str | None], /) -> Sequence[str | None]:
        """Return texts; ``None`` stays."""
        return [value and self.text(value) for value in values]

    def text(self, value: str, /) -> str:
        """Return a text."""
        return value.encode("utf-8", "replace").decode()


def cell_columns(criterion: str) -> tuple[str, str, str, str]:
    """Return the columns of a criterion's cells: those of `columns_of`, and the details of scores, as JSON."""
    return *columns_of(criterion), f"{criterion}/details"


def case_columns(criterion: str) -> tuple[str, str, str, str]:
    """Return the columns, on the last row of a case run, of an outcome that is not the mean of the cells: as `cell_columns`."""
    return f"{criterion}/case_score", f"{criterion}/case_status", f"{criterion}/case_reason", f"{criterion}/case_details"


def cell_kind(column: str) -> Kind | None:
    """Return what the values of a column of cells are; ``None`` for one that is none of ours."""
    ending = column.rpartition("/")[2]
    if ending in _SCORES:
        return "number"
    return "text" if ending in _REASONS else HEAD.get(column)


KINDS: Mapping[str, Kinds] = {CASES: CASE_KINDS, ACTUAL: RUN_KINDS, CELLS: cell_kind}
"""The columns of each folder's files."""
_Cell = tuple[float | None, str | None, str | None, str | None]
"""A cell as its four columns have it."""
_EMPTY: _Cell = (None, None, None, None)
_dumped = json.JSONEncoder(ensure_ascii=False, default=str).encode


def _cell(outcome: Outcome | None) -> _Cell:
    if outcome is None:
        return _EMPTY
    if isinstance(outcome, Scored):
        return outcome.score, "scored", outcome.rationale or None, _dumped(outcome.details) if outcome.details else None
    return None, status_of(outcome), reason_of(outcome) or None, None


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
        self._cases: list[tuple[str, str]] = []
        self._runs: list[tuple[str, int, str]] = []
        self._head: list[tuple[str, int, int, str | None, str, str]] = []
        self._cells: dict[str, tuple[list[_Cell], list[_Cell]]] = {name: ([], []) for name in self._criteria}
        """The cells of each criterion, and its case outcomes, by row."""
        self._votes: list[Vote] = []
        self._bytes = 0

    def add(self, case: EvalCase, runs: Iterable[CaseResult], texts: CaseTexts | None = None) -> None:
        """Write a case with the results of all its runs; `texts`: what they were read from, which is written where it is the same."""
        document = texts.case if texts else dumps(case, indent=None).rstrip("\n")
        self._cases.append((case.eval_id, document))
        self._bytes += len(document)
        for result in runs:
            conversation, turns = result.conversation, result.rows
            read, document = texts.runs[result.run_index] if texts and result.run_index < len(texts.runs) else (None, "")
            outcome = outcome_of(conversation)
            said = read and (read.invocations, read.session_state)
            same = said and conversation.actual is said[0] and conversation.session_state is said[1]
            if read and same and outcome == outcome_of(read):
                text = self._clean.documents([document])[0] or ""
            else:  # not what was read, or something was found out about it since
                state: dict[str, Any] = {} if conversation.session_state is None else {"session_state": dict(conversation.session_state)}
                text = self._clean.document(RecordedRun.model_construct(invocations=tuple(conversation.actual), **state, **outcome))
            self._bytes += len(text)
            self._runs.append((result.eval_id, result.run_index, text))
            last = min(len(conversation.actual), turns - 1)
            for index in range(turns):
                error = conversation.error if index >= last else ""
                verdict = row_verdict(result.results, index)
                verdict = "undecided" if error and verdict == "passed" else verdict
                unknown = " ".join(blind_spots(conversation, index, case))
                self._head.append((result.eval_id, result.run_index, index, verdict, error, unknown))
            by_criterion = {one.criterion: one for one in result.results}
            for name, (cells, overall) in self._cells.items():
                one = by_criterion.get(name)
                outcomes = tuple(one.per_invocation) if one else ()
                cells += [*map(_cell, outcomes), *[_EMPTY] * (turns - len(outcomes))]
                own = None if one is None or one.overall == case_outcome(outcomes) else one.overall
                overall += [*[_EMPTY] * (turns - 1), _cell(own)]
            self._votes += (vote for one in result.results for vote in one.votes)
        if self._part_turns is not None and (len(self._head) >= self._part_turns or self._bytes >= PART_BYTES):
            self._end()

    def close(self) -> tuple[Part, ...]:
        """Write what is left and return all parts."""
        if self._cases or not self.parts:
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

        counts = {"cases": len(self._cases), "case_runs": len(self._runs), "turns": len(self._head), "votes": len(self._votes)}
        part = Part(number=len(self.parts), first_case_no=sum(part.cases for part in self.parts), **counts)
        cells = _columns(HEAD, self._head)
        for name, (rows, overall) in self._cells.items():
            cells |= _columns(cell_columns(name), rows) | _columns(case_columns(name), overall)
        files: dict[str, tuple[Mapping[str, Sequence[Any]], Callable[[str], Kind | None]]] = {
            CASES: (_columns(CASE_KINDS, self._cases), CASE_KINDS.get),
            ACTUAL: (_columns(RUN_KINDS, self._runs), RUN_KINDS.get),
            CELLS: ({name: _fit(name, values, self._clean) or values for name, values in cells.items()}, cell_kind),
        }
        types = {"text": pa.string(), "whole number": pa.int64(), "number": pa.float64()}
        for folder, (columns, kind_of) in files.items():
            table = pa.table({name: pa.array(values, types[kind_of(name) or "text"]) for name, values in columns.items()})
            pq.write_table(table, self._folder / part.name(folder), compression="zstd", write_statistics=False)
            del table
        pa.default_memory_pool().release_unused()  # Arrow would keep several times of what it needed for the next part
        if self._judged:
            (self._folder / part.name(VOTES)).write_bytes(dump_votes(self._votes, self._clean.text))
        self.parts.append(part)
        self._begin()


def _columns(names: Iterable[str], rows: Sequence[Sequence[Any]]) -> dict[str, Sequence[Any]]:
    names = tuple(names)
    return dict(zip(names, zip(*rows, strict=True) if rows else ((),) * len(names), strict=True))


def _fit(column: str, values: Sequence[str | None], clean: Cleaner) -> Sequence[str | None] | None:
    """Return the values of a column that are fit to be kept; ``None`` of a column in which nobody else wrote."""
    ending = column.rpartition("/")[2]
    if ending in _DOCUMENTS:
        return clean.documents(values)
    return clean.texts(values) if ending in _TEXTS else None


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
    fit = table
    for place, name in enumerate(table.column_names):
        if name.rpartition("/")[2] in _DOCUMENTS | _TEXTS:
            texts = table.column(place).to_pylist()
            values = _fit(name, texts, clean)
            if values is not None and list(values) != texts:
                fit = fit.set_column(place, name, pa.array(values, pa.string()))
    if fit is table:
        return content
    sink = pa.BufferOutputStream()
    pq.write_table(fit, sink, compression="zstd", write_statistics=False)
    return bytes(sink.getvalue().to_pybytes())


_THEIR_WORDS = frozenset({"explanation", "model", "error", "raw", "host", "asked_in"})
"""What others than the user wrote. The rest ties a vote to its cell and is never changed."""


def dump_votes(votes: Iterable[Vote], clean: Callable[[str], str] = str) -> bytes:
    """Return votes as a Parquet file; `clean` makes others' words fit to be kept."""
    import pandas as pd  # noqa: PLC0415 - a second that only runs with judges should pay

    listed = list(votes)
    columns = {name: [getattr(vote, name) for vote in listed] for name in VOTE_COLUMNS}
    columns |= {name: [clean(text) for text in columns[name]] for name in _THEIR_WORDS}
    frame = pd.DataFrame(columns, dtype=object).astype(dict(VOTE_COLUMNS))
    content = BytesIO()
    frame.to_parquet(content, engine="pyarrow", compression="zstd", index=False)
    return content.getvalue()


def parse_votes(content: bytes, source: str, *, rows: int | None = None) -> tuple[Vote, ...]:
    """Return the votes in a Parquet file; `rows`: how many there must be.

    Raises:
        InputError: if it holds something else.
    """
    columns = read_columns(content, source, _VOTE_KINDS, rows=rows)
    return tuple(Vote(**dict(zip(_VOTE_KINDS, row, strict=True))) for row in zip(*columns.values(), strict=True))


_VOTE_TYPES: Mapping[str, Kind] = {"string": "text", "int64": "whole number", "float64": "number", "bool": "truth"}
_VOTE_KINDS: Mapping[str, Kind] = {name: _VOTE_TYPES[dtype.lower()] for name, dtype in VOTE_COLUMNS.items()}
