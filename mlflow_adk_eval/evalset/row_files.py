"""Files of rows, here or elsewhere: lines of JSON and tables of Parquet, decoded and each with its place.

A `Row` is a JSON value or what is wrong with it; what it means is said in `row_cases`. One row is held at a time, and of Parquet a few.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from pydantic.alias_generators import to_snake

from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, nearest
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, Json
from mlflow_adk_eval.evalset.parse import ALMOST_CERTAIN, NO_FILE, RepeatedKeyError, decode, from_json, members, parse, without_mark
from mlflow_adk_eval.evalset.unread import place_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

BATCH_CASES = 500
"""How many cases a batch holds, unless they are large."""
_ROWS_AT_ONCE = 100
"""How many rows of Parquet are decoded at once, unless they are large."""
BATCH_BYTES = 32 * 2**20
"""How much text a batch may hold before it ends early, in bytes."""
MOST_LINE = 64 * 2**20
"""How long a line of a compressed file may be, in bytes."""
_MAX_COLUMNS_NAMED = 8
UNREADABLE = (OSError, EOFError, ValueError, KeyError, NotImplementedError, zlib.error)
"""What reading raises where a file is damaged, gzip's and Arrow's errors among it."""
CONVERSATIONS = ("conversation", "conversation_scenario", "conversationScenario")
IDS = ("eval_id", "evalId")
SET_IDS = ("eval_set_id", "evalSetId")
SET_FIELDS = b"adk_eval_set"
"""The key of Parquet's metadata below which the set's own fields stand, as JSON text."""
_LINES = (".jsonl", ".ndjson")
_COMPRESSIONS = ("", ".gz", ".zst")
PARQUET = ".parquet"
ENDINGS = (*(f"{lines}{compression}" for lines in _LINES for compression in _COMPRESSIONS), PARQUET)
"""How the names of files of rows end."""
_HOPELESS = 2
"""A file whose first so many lines are no JSON is of another format, and is not read further."""
_NO_LINES = "Nothing after this line was read: put each case on one line, without line breaks."
_CUT_OFF = "The file ends in the middle of this line, so it is probably truncated."
_OF_OBJECTS = frozenset({
    *CONVERSATIONS, "case", "recorded", "session_input", "sessionInput", "rubrics", "final_session_state", "finalSessionState", "tags",
})  # fmt: skip
"""The columns whose texts are JSON."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line or row, decoded."""

    at: str
    """Where it stands, as the root of JSON paths: ``line 3: $``."""
    value: Any
    """A JSON value, or what is wrong with the line."""
    weight: int
    """Its size in bytes, about."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file or a folder of them, on this machine or wherever fsspec reaches."""

    path: str
    system: Any = None
    """The file system of fsspec; ``None``: this machine's."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2] if self.system else Path(self.path).name

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return bool((self.system or os.path).isdir(self.path))

    def below(self, name: str) -> RowFile:
        """Return what a folder holds by this name."""
        return RowFile(f"{self.path.rstrip('/')}/{name}", self.system) if self.system else RowFile(str(Path(self.path, name)))

    def children(self) -> list[RowFile]:
        """Return the files of a folder that hold rows, sorted by name."""
        paths: list[str] = (
            self.system.ls(self.path, detail=False)
            if self.system
            else [str(child) for child in Path(self.path).iterdir() if child.is_file()]
        )
        found = (RowFile(path, self.system) for path in sorted(paths))
        return [file for file in found if file.name.endswith(ENDINGS) and not file.name.startswith((".", "_"))]

    def open(self) -> BinaryIO:
        """Open it to read bytes."""
        return cast("BinaryIO", self.system.open(self.path, "rb") if self.system else Path(self.path).open("rb"))


def is_uri(path: str | Path) -> bool:
    """Whether this names a file elsewhere, as fsspec does: ``s3://bucket/set.parquet``."""
    return isinstance(path, str) and "://" in path


def read_remote(uri: str) -> bytes:
    """Return what a file elsewhere holds.

    Raises:
        EvalSetError: if there is no such file.
        UsageError: if reading the URI needs a package that is not installed.
    """
    with reading(uri), located(uri).open() as stream:
        return without_mark(stream.read(), uri)


def located(source: str) -> RowFile:
    """Return what a path or URI names, without looking whether it is there.

    Raises:
        EvalSetError: if nothing is known by the URI's protocol.
        UsageError: if its file system needs a package that is not installed.
    """
    if not is_uri(source):
        return RowFile(source)
    from mlflow_adk_eval.runtime import require_extra  # noqa: PLC0415 - most cases lie on this machine

    with require_extra("remote", f"reading {source}"):
        from fsspec.core import url_to_fs  # noqa: PLC0415 - an extra

        try:
            system, path = url_to_fs(source)
        except ValueError as error:
            raise EvalSetError(source, [Problem("$", str(error), "a path or a URI that fsspec supports")]) from None
    return RowFile(path, system)


def unreadable(error: Exception, at: str) -> Problem:
    """Return one of the `UNREADABLE` errors as a problem."""
    found = (error.strerror if isinstance(error, OSError) else "") or str(error)
    missing = isinstance(error, FileNotFoundError)  # some of fsspec's file systems name only the path
    return Problem(at, NO_FILE, "a file that exists") if missing else Problem(at, found.splitlines()[0], "a file that can be read")


@contextmanager
def reading(source: str) -> Generator[None, None, None]:
    """Turn the `UNREADABLE` errors of what is done inside into an `EvalSetError`."""
    try:
        yield
    except UsageError:
        raise
    except UNREADABLE as error:
        raise EvalSetError(source, [unreadable(error, "$")]) from None


def text_lines(file: RowFile) -> Generator[tuple[int, bytes], None, None]:
    """Yield the lines of JSON Lines that are not blank, decompressed, each with its number."""
    with ExitStack() as stack:
        stored = stack.enter_context(file.open())
        lines: Iterable[bytes] = stored
        if file.name.endswith(".gz"):
            lines = _unpacked_lines(stack.enter_context(gzip.open(stored, "rb")))
        elif file.name.endswith(".zst"):
            import pyarrow as pa  # noqa: PLC0415 - slow to import, and seldom needed

            unpacked = stack.enter_context(pa.CompressedInputStream(stored, "zstd"))
            lines = _unpacked_lines(stack.enter_context(io.BufferedReader(unpacked, 2**20)))
        for number, line in enumerate(lines, start=1):
            text = without_mark(line, file.path) if number == 1 else line
            if not text.isspace() and text:
                yield number, text


def _unpacked_lines(unpacked: io.BufferedIOBase) -> Iterator[bytes]:
    """Yield lines of what is unpacked while it is read: a few kilobytes can stand for a line of gigabytes."""
    while line := unpacked.readline(MOST_LINE):
        if len(line) == MOST_LINE and not line.endswith(b"\n"):
            raise ValueError(f"a line that decompresses to more than {MOST_LINE >> 20} MiB")
        yield line


def lines_of(file: RowFile, prefix: str, *, headed: bool) -> Iterator[Row]:
    """Yield the rows of JSON Lines.

    Args:
        file: the file.
        prefix: what its places begin with: ``part-1.jsonl, ``, or nothing.
        headed: whether its first line names the set, and is no row.
    """
    broken = 0
    for index, (number, line) in enumerate(text_lines(file)):
        if headed and index == 0:
            continue
        at = f"{prefix}line {number}: $"
        value: Any
        try:
            value = from_json(line)
        except RepeatedKeyError as repeats:
            value = repeats.problems(at)[0]
        except ValueError as error:
            broken += 1
            hopeless = broken == index + 1 == _HOPELESS
            cut = not line.endswith(b"\n") and str(error).startswith("EOF")
            hint = _NO_LINES if hopeless else _CUT_OFF if cut else ""
            value = Problem(at, f"text that is not JSON ({error})", "a JSON object on one line", hint)
        yield Row(at, value, len(line))
        if broken == index + 1 == _HOPELESS:
            return


def head_of(line: bytes, source: str) -> EvalSet | None:
    """Return the set that a first line names, without cases; ``None`` where that line is a case.

    Raises:
        EvalSetError: if it is a whole eval set, or not right.
    """
    fields: Any = None
    if b"et_id" in line or b"etId" in line:
        with suppress(ValueError):
            fields = from_json(line)
    if not isinstance(fields, dict) or any(key in fields for key in IDS) or not any(key in fields for key in SET_IDS):
        return None
    if "eval_cases" in fields or "evalCases" in fields:
        wanted = "an eval case on each line; the first one may name the set (eval_set_id, name)"
        raise EvalSetError(source, [Problem("line 1: $", "a whole eval set", wanted, "An ADK eval set needs the suffix .json.")])
    return parse(EvalSet, {**fields, "eval_cases": []}, source, at="line 1: $")


@contextmanager
def _parquet(file: RowFile) -> Generator[ParquetFile, None, None]:
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415 - slow to import

    with file.open() as stored, ParquetFile(stored) as table:
        yield table


def footer_of(file: RowFile, stem: str, source: str) -> EvalSet:
    """Return what a file of Parquet says of its set, without cases; its id is `stem` where it does not say."""
    with _parquet(file) as table:
        metadata = table.metadata.metadata or {}
    if SET_FIELDS not in metadata:
        return EvalSet(eval_set_id=stem, eval_cases=())
    fields = decode(metadata[SET_FIELDS], source)
    return parse(EvalSet, {**fields, "eval_cases": []} if isinstance(fields, dict) else fields, source)


def table_of(file: RowFile, prefix: str) -> Iterator[Row]:
    """Yield the rows of Parquet; its places begin with `prefix`."""
    with _parquet(file) as table:
        amiss = list(_amiss(table.schema_arrow, f"{prefix}columns"))
        yield from (Row(problem.path, problem, 0) for problem in amiss)
        if amiss:
            return
        number = 0
        for values, weight in _table_rows(table):
            for value in values:
                number += 1
                at = f"{prefix}row {number}: $"
                yield Row(at, _decoded(value, at), weight)


def _amiss(schema: pa.Schema, at: str) -> Iterator[Problem]:
    """Yield what is wrong with the columns of a table."""
    from pyarrow import types  # noqa: PLC0415 - slow to import

    case = tuple(dict.fromkeys(member.name for member in members(EvalCase).values()))
    known = ("eval_id", "case", "run_index", "recorded", *case[1:])
    present = {key: name for key, name in ((to_snake(name), name) for name in schema.names) if key in known}
    twice = [name for name, times in Counter(schema.names).items() if times > 1]
    if twice:
        yield from (Problem(f"{at}.{name}", "several columns of this name", "one") for name in twice)
        return
    for name in [name for name in schema.names if to_snake(name) not in known]:
        near = nearest(name, [field for field in known if field not in present], cutoff=ALMOST_CERTAIN)
        belongs = "" if near else place_of(name, "case")
        if near or belongs:
            found = "an unknown column" if near else "a column that nothing reads"
            yield Problem(f"{at}.{name}", found, f"one of {', '.join(known)}", f"Did you mean {belongs or repr(near)}?")
    if "eval_id" not in present:
        yield Problem(at, ", ".join(schema.names[:_MAX_COLUMNS_NAMED]) or "none", "a column eval_id with the id of each row's case")
    for key, name in present.items():
        kind = schema.field(name).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        if types.is_null(kind):
            continue
        if key == "eval_id" and not text:
            yield Problem(f"{at}.{name}", f"a column of {kind}", "texts")
        elif key == "run_index" and not (types.is_integer(kind) or types.is_floating(kind)):
            yield Problem(f"{at}.{name}", f"a column of {kind}", "whole numbers")
        elif key in _OF_OBJECTS and not (text or types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind)):
            yield Problem(f"{at}.{name}", f"a column of {kind}", "JSON texts, or structs")


def _table_rows(table: ParquetFile) -> Iterator[tuple[list[Json], int]]:
    """Yield rows, a few at a time, and about how many bytes each of them has."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import

    for group in range(table.num_row_groups):
        facts = table.metadata.row_group(group)
        weight = max(facts.total_byte_size // max(facts.num_rows, 1), 1)
        size = max(min(_ROWS_AT_ONCE, BATCH_BYTES // weight), 1)
        for batch in table.iter_batches(batch_size=size, row_groups=[group], use_threads=False):
            yield batch.to_pylist(maps_as_pydicts="strict"), weight
        pa.default_memory_pool().release_unused()  # Arrow would keep several times of what it needed for the next group


def _decoded(row: Json, at: str) -> Json | Problem:
    """Return a row as a JSON object: what is null is absent, and texts of JSON are decoded."""
    value: Json = {}
    for name, item in row.items():
        if name in _OF_OBJECTS and isinstance(item, str | bytes):
            try:
                value[name] = from_json(item)
            except RepeatedKeyError as repeats:
                return repeats.problems(f"{at}.{name}")[0]
            except ValueError as error:
                return Problem(f"{at}.{name}", f"text that is not JSON ({error})", "JSON text, or a struct")
        elif item is not None:
            value[name] = item if isinstance(item, bytes) and name not in IDS else _plain(item)
    return value


def _plain(value: Any) -> Any:
    """Return an Arrow value without the nulls of structs, which stand for absent fields."""
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items() if item is not None}
        case list():
            return [_plain(item) for item in value]
        case str() | int() | float() | None:
            return value
        case _:  # of dates, decimals and the like, which JSON has no word for
            return str(value)


def part_of(file: RowFile, prefix: str) -> Iterator[Row]:
    """Yield the cases of one part of a run, each with its recorded runs, which stand in the part of the same name."""
    actual = RowFile(f"{file.path[: -len(f'cases/{file.name}')]}actual/{file.name}", file.system)
    with _parquet(file) as cases, _parquet(actual) as recorded:
        runs = ((value.get("eval_id"), value, weight) for values, weight in _table_rows(recorded) for value in values)
        following = next(runs, None)
        rows = ((value, weight) for values, weight in _table_rows(cases) for value in values)
        for number, (value, weight) in enumerate(rows, start=1):
            at = f"{prefix}row {number}: $"
            eval_id = value.get("eval_id")
            case = _decoded({name: found for name, found in value.items() if name != "case_no"}, at)
            found: list[tuple[Json | Problem, int]] = []
            while following is not None and following[0] == eval_id:
                found.append((_decoded({name: told for name, told in following[1].items() if name != "case_no"}, at), following[2]))
                following = next(runs, None)
            if isinstance(case, Problem) or not found:
                yield Row(at, case, weight)
                continue
            for index, (run, run_weight) in enumerate(found):
                yield Row(at, {**case, **run} if index == 0 and isinstance(run, dict) else run, weight + run_weight)
        if following is not None:
            at = f"actual/{file.name}: $"
            stranger = f"case {following[0]!r}, but the eval set does not contain it"
            yield Row(at, Problem(at, stranger, "runs of this part's cases, in the same order"), following[2])
