"""Parquet files of a run, read with care: what a file says of itself is held against what is wanted before anything in it is unpacked.

Whoever may write to a run can put any file there, such as one of a few kilobytes that unpacks to gigabytes. So the number of rows is known
before, the size that a file says it unpacks to is limited, and a text that stands in many rows is in memory once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from mlflow_adk_eval.errors import InputError, Problem

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["text", "whole number", "number", "truth"]
"""What the values of a column are; any of them may be missing."""
MOST_BYTES = 512 << 20
"""How much a file may unpack to."""


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

    try:
        head = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
        about, schema = head.metadata, head.schema_arrow  # about.schema is in a cycle with it: 100 kB that only the collector frees
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _refused(source, f"no Parquet file ({_first_line(error)})", "a Parquet file") from None
    if rows is not None and about.num_rows != rows:
        raise _refused(source, f"{about.num_rows} rows", f"{rows}, as the manifest says")
    unpacked = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    if unpacked > MOST_BYTES:
        raise _refused(source, f"a file that unpacks to {unpacked >> 20} MiB", f"at most {MOST_BYTES >> 20} MiB")
    kinds = _kinds(schema, kind_of, source)
    texts = [name for name, kind in kinds.items() if kind == "text"]
    try:
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts, pre_buffer=False)
        found = file.read(columns=list(kinds), use_threads=False)
        values = {name: _values(found.column(name)) for name in kinds}
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _refused(source, f"no Parquet file ({_first_line(error)})", "a Parquet file") from None
    del file, found, head
    pa.default_memory_pool().release_unused()  # Arrow would keep three times of what it needed for the next file
    return values


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
