"""Parquet files of a run, read with care: what a file says of itself is held against what is wanted before anything in it is unpacked.

Whoever may write to a run can put any file there, such as one of a few kilobytes that unpacks to gigabytes, or that has millions of rows
without a value. So rows, cells and bytes are limited: first by what the footer says, which can be anything, and then by what comes out of
each group of rows. A text that stands in many rows is in memory once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from mlflow_adk_eval.errors import InputError, Problem

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["text", "whole number", "number", "truth"]
"""What the values of a column are; any of them may be missing."""
MOST_BYTES = 512 << 20
"""How much a file may unpack to."""
MOST_CELLS = 10_000_000
"""How many values a file may have, missing ones included: a part of 2,000 turns and twenty criteria has 330,000."""
MOST_FOOTER = 1 << 20
"""How many bytes the footer may have. Arrow takes up to 250 times as much for it."""
_ENCODINGS = frozenset({"PLAIN", "RLE", "PLAIN_DICTIONARY", "RLE_DICTIONARY"})
"""The encodings that Arrow writes unless it is told otherwise. By others, a page of few bytes can stand for texts of terabytes."""


def read_columns(
    content: bytes, source: str, kind_of: Mapping[str, Kind] | Callable[[str], Kind | None], *, rows: int | None
) -> dict[str, list[Any]]:
    """Return the values of a Parquet file by column.

    Args:
        content: the file.
        source: what messages call it.
        kind_of: the columns that there must be, each with what its values are; or what says it of any column, ``None``: it is not read.
        rows: how many rows there must be; ``None``: any number.

    Raises:
        InputError: if it is no Parquet file, or not such a one.
    """
    import pyarrow as pa  # noqa: PLC0415 - only runs that are kept need it
    import pyarrow.parquet as pq  # noqa: PLC0415

    if MOST_FOOTER < (footer := int.from_bytes(content[-8:-4], "little")) < len(content):
        raise _refused(source, f"a footer of {footer:,} bytes", f"at most {MOST_FOOTER:,}")
    try:
        head = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
        about, schema = head.metadata, head.schema_arrow  # about.schema is in a cycle with it: 100 kB that only the collector frees
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _refused(source, f"no Parquet file ({_first_line(error)})", "a Parquet file") from None
    if rows is not None and about.num_rows != rows:
        raise _refused(source, f"{about.num_rows} rows", f"{rows}, as the manifest says")
    kinds = _kinds(schema, kind_of, source)
    if about.num_columns != len(schema):
        raise _refused(source, "columns within columns", "columns of texts, numbers, and true or false")
    if (cells := about.num_rows * len(kinds)) > MOST_CELLS:
        raise _refused(source, f"{about.num_rows:,} rows of {len(kinds)} columns, {cells:,} values", f"at most {MOST_CELLS:,} values")
    _check_groups(
        [about.row_group(number) for number in range(about.num_row_groups)], [schema.get_field_index(name) for name in kinds], source
    )
    texts = [name for name, kind in kinds.items() if kind == "text"]
    values: dict[str, list[Any]] = {name: [] for name in kinds}
    unpacked = 0
    try:
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts, pre_buffer=False)
        for number in range(about.num_row_groups):
            found = file.read_row_group(number, columns=list(kinds), use_threads=False)
            unpacked += found.nbytes
            for name in kinds if unpacked <= MOST_BYTES else ():
                values[name] += _values(found.column(name))
            del found
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _refused(source, f"no Parquet file ({_first_line(error)})", "a Parquet file") from None
    del file, head
    pa.default_memory_pool().release_unused()  # Arrow would keep three times of what it needed for the next file
    _check_size(unpacked, source)
    if any(len(column) != about.num_rows for column in values.values()):
        raise _refused(source, "other rows in its groups", f"{about.num_rows:,}, as the file says of itself")
    return values


def _check_groups(groups: Sequence[Any], places: Sequence[int], source: str) -> None:
    """Refuse groups of rows that are too much, or may be more than they say, going by what the footer says of the columns at `places`."""
    chunks = [group.column(place) for group in groups for place in places]
    if others := {encoding for chunk in chunks for encoding in chunk.encodings} - _ENCODINGS:
        raise _refused(source, f"values in the encoding {min(others)}", "plain values, or a dictionary")
    if (cells := sum(group.num_rows for group in groups) * len(places)) > MOST_CELLS:
        raise _refused(source, f"{cells:,} values in groups of rows", f"at most {MOST_CELLS:,} values")
    _check_size(sum(group.total_byte_size for group in groups), source)


def _check_size(unpacked: int, source: str) -> None:
    if unpacked > MOST_BYTES:
        raise _refused(source, f"a file that unpacks to {unpacked >> 20} MiB", f"at most {MOST_BYTES >> 20} MiB")


def _kinds(schema: pa.Schema, kind_of: Mapping[str, Kind] | Callable[[str], Kind | None], source: str) -> dict[str, Kind]:
    counts = Counter(schema.names)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise _refused(source, f"{counts[twice]} columns {twice}", "one of each name")
    kinds: dict[str, Kind] = {}
    if callable(kind_of):
        kinds |= {name: kind for name in schema.names if (kind := kind_of(name)) is not None}
    else:
        kinds |= kind_of
        missing = [name for name in kinds if name not in counts]
        if missing:
            raise _refused(source, f"no column {missing[0]}", f"the columns {', '.join(kinds)}")
    for name, kind in kinds.items():
        if not _is(kind, schema.field(name).type):
            raise _refused(source, f"other types (the column {name} is of {schema.field(name).type})", f"{_WANTED[kind]} in {name}")
    return kinds


_WANTED: Mapping[Kind, str] = {"text": "texts", "whole number": "whole numbers", "number": "numbers", "truth": "true or false"}


def _is(kind: Kind, found: pa.DataType) -> bool:
    import pyarrow as pa  # noqa: PLC0415 - as above

    match kind:
        case "text":
            return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
        case "whole number":
            return bool(pa.types.is_integer(found))
        case "number":
            return bool(pa.types.is_floating(found))
        case "truth":
            return bool(pa.types.is_boolean(found))


def _values(column: Any) -> list[Any]:
    """Return the values of a column; of texts, those that are alike are one object."""
    found: list[Any] = []
    for chunk in column.chunks:
        dictionary = getattr(chunk, "dictionary", None)
        if dictionary is None:
            found += chunk.to_pylist()
        else:
            texts = [*dictionary.to_pylist(), None]
            found += [texts[-1 if index is None else index] for index in chunk.indices.to_pylist()]
    return found


def _refused(source: str, found: str, wanted: str) -> InputError:
    return InputError(source, [Problem("$", found, wanted)])


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
