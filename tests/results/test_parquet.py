"""Parquet files that somebody else may have put there."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.errors import InputError
from mlflow_adk_eval.runs import files
from mlflow_adk_eval.runs.files import Kind, read_columns

KINDS: dict[str, Kind] = {"id": "text", "number": "whole number", "score": "number", "seen": "truth"}
COLUMNS: dict[str, list[Any]] = {"id": ["a", None, "a"], "number": [1, 2, None], "score": [0.5, None, 1.0], "seen": [True, False, None]}


def written(columns: Any, **options: Any) -> bytes:
    content = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), content, **options)
    return bytes(content.getvalue())


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("row_group_size", [1, 2, 3])
def test_columns_come_back_as_they_were(dictionary: bool, row_group_size: int) -> None:
    content = written(COLUMNS, use_dictionary=dictionary, row_group_size=row_group_size)
    assert read_columns(content, "f", KINDS, rows=3) == COLUMNS
    assert read_columns(content, "f", lambda name: KINDS[name] if name != "score" else None, rows=None).keys() == KINDS.keys() - {"score"}


def test_a_text_that_stands_in_many_rows_is_in_memory_once() -> None:
    texts = read_columns(written({"id": ["a long text"] * 100}), "f", {"id": "text"}, rows=100)["id"]
    assert len({id(text) for text in texts}) == 1


def test_no_more_is_unpacked_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    content = written({"id": ["x" * 5_000]}, compression="zstd")
    assert len(content) < 2_000
    monkeypatch.setattr(files, "MOST_BYTES", 6_000)
    assert read_columns(content, "f", {"id": "text"}, rows=1)
    monkeypatch.setattr(files, "MOST_BYTES", 4_000)
    with pytest.raises(InputError, match="found a file that decompresses to 0 MiB"):
        read_columns(content, "f", {"id": "text"}, rows=1)


def test_nothing_of_a_file_waits_for_the_collector() -> None:
    """The gate reads all parts of a run while it is off."""
    file = written({"text": ["a", "b"]})
    read_columns(file, "file", {"text": "text"}, rows=2)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        read_columns(file, "file", {"text": "text"}, rows=2)
        gc.collect()
        assert [one for one in gc.garbage if type(one).__module__.startswith("pyarrow")] == []  # other threads leave garbage of their own
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_values_that_are_missing_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    content = written({"id": pa.nulls(50, pa.string()), "number": pa.nulls(50, pa.int64())})
    monkeypatch.setattr(files, "MOST_CELLS", 100)
    assert read_columns(content, "f", {"id": "text", "number": "whole number"}, rows=50)
    monkeypatch.setattr(files, "MOST_CELLS", 99)
    with pytest.raises(InputError, match="found 50 rows of 2 columns, 100 values; wanted at most 99 values"):
        read_columns(content, "f", {"id": "text", "number": "whole number"}, rows=50)


def test_a_long_footer_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    content = written({"id": ["a"]})
    length = int.from_bytes(content[-8:-4], "little")
    monkeypatch.setattr(files, "MOST_FOOTER", length)
    assert read_columns(content, "f", {"id": "text"}, rows=1)
    monkeypatch.setattr(files, "MOST_FOOTER", length - 1)
    with pytest.raises(InputError, match=f"found a footer of {length:,} bytes"):
        read_columns(content, "f", {"id": "text"}, rows=1)


def test_both_versions_of_pages_are_read_and_no_encoding_by_which_few_bytes_stand_for_long_texts() -> None:
    texts = {"id": ["a long text"] * 100}
    assert read_columns(written(texts, data_page_version="2.0"), "f", {"id": "text"}, rows=100) == texts
    for encoding in ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"):
        with pytest.raises(InputError, match="found values in the encoding DELTA_"):
            read_columns(written(texts, use_dictionary=False, column_encoding={"id": encoding}), "f", {"id": "text"}, rows=100)


@given(st.binary(max_size=60), st.integers(0, 2000))
def test_an_edited_file_is_read_or_refused(noise: bytes, place: int) -> None:
    content = written({"id": ["a", "b"], "number": [1, 2]}, row_group_size=1)
    place = min(place, len(content))
    edited = content[:place] + noise + content[place + len(noise) :]
    with contextlib.suppress(InputError):
        assert len(read_columns(edited, "f", {"id": "text", "number": "whole number"}, rows=2)["id"]) == 2
