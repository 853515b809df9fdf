"""The files of a run: artifacts that lie in a folder, and Parquet that is read with care.

Artifacts are read when somebody asks for them, as those of a large run are more than fits into memory. What a Parquet file says of itself is held
against what is wanted before anything in it is unpacked: whoever may write to a run can put any file there, such as one of a few kilobytes that
unpacks to gigabytes, or that has millions of rows without a value. So rows, cells and bytes are limited: first by what the footer says, which can be
anything, and then by what comes out of each group of rows. A text that stands in many rows is in memory once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from mlflow_adk_eval.errors import InputError, Problem

if TYPE_CHECKING:
    import pyarrow as pa


class StoredFiles(Mapping[str, bytes]):
    """The files of a folder, by their path in it. Two such mappings are equal if the files have the same hashes."""

    def __init__(self, folder: Path | None, files: Mapping[str, Path] | None, owner: StoredFiles | None = None) -> None:
        """Take the files, or the folder of those that are there when somebody asks."""
        self.folder = folder
        """Where they are, if that holds nothing else."""
        self._files = files
        self._hashes: dict[str, str] = {}
        self._owner = owner
        """What removes the folder once nobody uses it any more."""

    @property
    def paths(self) -> Mapping[str, Path]:
        """Where each file is."""
        if self._files is not None or self.folder is None:
            return self._files or {}
        return {path.relative_to(self.folder).as_posix(): path for path in sorted(self.folder.rglob("*")) if path.is_file()}

    def __getitem__(self, name: str) -> bytes:
        """Return the content of a file."""
        return self.paths[name].read_bytes()

    def __iter__(self) -> Iterator[str]:
        """Yield the paths."""
        return iter(self.paths)

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.paths)

    def __contains__(self, name: object) -> bool:
        """Whether there is such a file; it is not read."""
        return name in self.paths

    def __eq__(self, other: object) -> bool:
        """Whether another mapping holds the same."""
        if not isinstance(other, StoredFiles):
            return isinstance(other, Mapping) and dict(self) == dict(other)
        return self.paths.keys() == other.paths.keys() and all(self.sha256(name) == other.sha256(name) for name in self)

    __hash__ = None  # type: ignore[assignment]  # like every mapping

    def sha256(self, name: str) -> str:
        """Return the hash of a file, in hex, without having all of it in memory."""
        if name in self._hashes:
            return self._hashes[name]
        digest = file_sha256(self.paths[name])
        if self._files is not None:  # else it may still be written
            self._hashes[name] = digest
        return digest

    def without(self, name: str) -> StoredFiles:
        """Return the others."""
        return self._some({other: other for other in self if other != name})

    def below(self, folder: str) -> StoredFiles:
        """Return those in a folder, by their path in that."""
        return self._some({name.removeprefix(f"{folder}/"): name for name in self if name.startswith(f"{folder}/")})

    def _some(self, names: Mapping[str, str]) -> StoredFiles:
        some = StoredFiles(None, {new: self.paths[old] for new, old in names.items()}, self)
        some._hashes = {new: self._hashes[old] for new, old in names.items() if old in self._hashes}
        return some


def file_sha256(path: Path) -> str:
    """Return the hash of a file, in hex, without having all of it in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_in(folder: Path, *, growing: bool = False, temporary: Path | None = None) -> StoredFiles:
    """Return the files of a folder.

    Args:
        folder: where they are.
        growing: whether it is still written into, so that it is looked at again whenever somebody asks.
        temporary: what is removed as soon as nobody has the files any more; ``None``: the folder stays.
    """
    files = StoredFiles(folder, None)
    if not growing:
        files = StoredFiles(folder, files.paths)
    if temporary:
        weakref.finalize(files, shutil.rmtree, temporary, ignore_errors=True)
    return files


def new_folder() -> Path:
    """Return a new temporary folder, of which somebody must take care."""
    return Path(tempfile.mkdtemp(prefix="adk_eval_"))


def linked(source: str | Path, target: str | Path) -> None:
    """Make a file the same as another one, without a copy where that can be."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def replaced(target: Path, write: Callable[[Path], object]) -> None:
    """Have a file written that is either whole or not there."""
    unfinished = target.with_name(f"{target.name}.{uuid4().hex}")
    try:
        write(unfinished)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


Kind = Literal["text", "whole number", "number", "truth"]
"""What the values of a column are; any of them may be missing."""
Kinds = Mapping[str, Kind] | Callable[[str], Kind | None]
"""The columns that there must be, each with what its values are; or what says it of any column, ``None``: it is not read."""
MOST_BYTES = 512 << 20
"""How much a file may unpack to."""
MOST_CELLS = 10_000_000
"""How many values a file may have, missing ones included: a part of 2,000 turns and twenty criteria has 330,000."""
MOST_FOOTER = 1 << 20
"""How many bytes the footer may have. Arrow takes up to 250 times as much for it."""
_ENCODINGS = frozenset({"PLAIN", "RLE", "PLAIN_DICTIONARY", "RLE_DICTIONARY"})
"""The encodings that Arrow writes unless it is told otherwise. By others, a page of few bytes can stand for texts of terabytes."""


_KINDS: Mapping[Kind, tuple[str, tuple[str, ...]]] = {
    "text": ("texts", ("is_string", "is_large_string")),
    "whole number": ("whole numbers", ("is_integer",)),
    "number": ("numbers", ("is_floating",)),
    "truth": ("true or false", ("is_boolean",)),
}
"""What messages call the values of a kind, and how Arrow asks whether a type is one of it."""


def read_columns(content: bytes, source: str, kind_of: Kinds, *, rows: int | None) -> dict[str, list[Any]]:
    """Return the values of a Parquet file by column.

    Args:
        content: the file.
        source: what messages call it.
        kind_of: its columns.
        rows: how many rows there must be; ``None``: any number.

    Raises:
        InputError: if it is no Parquet file, or not such a one.
    """
    import pyarrow as pa  # noqa: PLC0415 - only runs that are kept need it
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        kinds, groups, length = _checked_head(content, source, kind_of, rows)
        values: dict[str, list[Any]] = {name: [] for name in kinds}
        unpacked = 0
        texts = [name for name, kind in kinds.items() if kind == "text"]
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts, pre_buffer=False)
        for number in range(groups):
            group = file.read_row_group(number, columns=list(kinds), use_threads=False)
            unpacked += group.nbytes
            for name in kinds if unpacked <= MOST_BYTES else ():
                for chunk in group.column(name).chunks:
                    if isinstance(chunk, pa.DictionaryArray):  # texts that are alike are one object
                        alike = [*chunk.dictionary.to_pylist(), None]
                        values[name] += [alike[-1 if index is None else index] for index in chunk.indices.to_pylist()]
                    else:
                        values[name] += chunk.to_pylist()
            del group
    except InputError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise _refused(source, f"not a Parquet file ({reason})", "a Parquet file") from None
    del file
    pa.default_memory_pool().release_unused()  # Arrow would keep three times of what it needed for the next file
    if unpacked > MOST_BYTES:
        raise _too_large(source, unpacked)
    if any(len(column) != length for column in values.values()):
        raise _refused(source, "row groups that do not add up", f"{length:,}, as in the file's footer")
    return values


def _checked_head(content: bytes, source: str, kind_of: Kinds, rows: int | None) -> tuple[dict[str, Kind], int, int]:
    """Return the columns to read, and how many groups of rows and how many rows there are, once nothing that the footer says is too much."""
    import pyarrow as pa  # noqa: PLC0415 - as above
    import pyarrow.parquet as pq  # noqa: PLC0415

    if MOST_FOOTER < (footer := int.from_bytes(content[-8:-4], "little")) < len(content):
        raise _refused(source, f"a footer of {footer:,} bytes", f"at most {MOST_FOOTER:,}")
    head = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
    about, schema = head.metadata, head.schema_arrow  # about.schema is in a cycle with it: 100 kB that only the collector frees
    if rows is not None and about.num_rows != rows:
        raise _refused(source, f"{about.num_rows} rows", f"{rows}, as the manifest says")
    kinds = _kinds(schema, kind_of, source)
    if about.num_columns != len(schema):
        raise _refused(source, "nested columns", "columns of text, numbers or booleans")
    if (cells := about.num_rows * len(kinds)) > MOST_CELLS:
        raise _refused(source, f"{about.num_rows:,} rows of {len(kinds)} columns, {cells:,} values", f"at most {MOST_CELLS:,} values")
    # Groups of rows may be more than the file says of itself.
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    chunks = [group.column(schema.get_field_index(name)) for group in groups for name in kinds]
    if others := {encoding for chunk in chunks for encoding in chunk.encodings} - _ENCODINGS:
        raise _refused(source, f"values in the encoding {min(others)}", "plain values, or a dictionary")
    if (cells := sum(group.num_rows for group in groups) * len(kinds)) > MOST_CELLS:
        raise _refused(source, f"{cells:,} values in groups of rows", f"at most {MOST_CELLS:,} values")
    if (unpacked := sum(group.total_byte_size for group in groups)) > MOST_BYTES:
        raise _too_large(source, unpacked)
    return kinds, len(groups), about.num_rows


def _kinds(schema: pa.Schema, kind_of: Kinds, source: str) -> dict[str, Kind]:
    import pyarrow as pa  # noqa: PLC0415 - as above

    counts = Counter(schema.names)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise _refused(source, f"{counts[twice]} columns {twice}", "one of each name")
    if callable(kind_of):
        kinds: dict[str, Kind] = {name: kind for name in schema.names if (kind := kind_of(name)) is not None}
    else:
        kinds = dict(kind_of)
        missing = [name for name in kinds if name not in counts]
        if missing:
            raise _refused(source, f"no column {missing[0]}", f"the columns {', '.join(kinds)}")
    for name, kind in kinds.items():
        wanted, tests = _KINDS[kind]
        given = schema.field(name).type
        if not any(getattr(pa.types, test)(given) for test in tests):
            raise _refused(source, f"other types (the column {name} is of {given})", f"{wanted} in {name}")
    return kinds


def _too_large(source: str, unpacked: int) -> InputError:
    return _refused(source, f"a file that decompresses to {unpacked >> 20} MiB", f"at most {MOST_BYTES >> 20} MiB")


def _refused(source: str, found: str, wanted: str) -> InputError:
    return InputError(source, [Problem("$", found, wanted)])
