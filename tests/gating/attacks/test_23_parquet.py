"""Attack 23: small files of a run that take gigabytes or minutes to refuse. Each is refused by what stands before its values."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mlflow_adk_eval.runs.files import MOST_BYTES
from tests.gating.entrant import Entrant, promoted
from tests.gating.gate_kit import Lab, evidence_of, file_of, report_of, with_artifact, with_manifest

NULLS, TEXT = 40_000_000, 64 << 20
MOST_MEMORY = 300 << 20
"""What a refusal may take, in bytes, besides what was imported."""
MOST_FOR_A_LIE = MOST_BYTES + 4 * TEXT
"""The same where the footer says less than there is."""


def written(path: Path, tables: list[Any], **options: Any) -> bytes:
    with pq.ParquetWriter(path, tables[0].schema, compression="zstd", **options) as writer:
        for table in tables:
            writer.write_table(table)
    return path.read_bytes()


def nulls(rows: int) -> Any:
    return pa.table({name: pa.nulls(rows, pa.string()) for name in ("eval_id", "case")})


def texts(size: int, rows: int = 1) -> Any:
    return pa.table({"eval_id": ["a"] * rows, "case": ["x" * size] * rows})


def numbered(value: int, width: int = 0) -> bytes:
    """Return a number as the footer has it, in so many bytes."""
    zigzag, found = value << 1, bytearray()
    while zigzag or len(found) < max(width, 1):
        found.append(zigzag & 127 | 128)
        zigzag >>= 7
    found[-1] &= 127
    return bytes(found)


def with_numbers(content: bytes, numbers: dict[int, int]) -> bytes:
    """Return a file whose footer has other numbers."""
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[start:-8]
    for old, new in numbers.items():
        assert numbered(old) in footer
        footer = footer.replace(numbered(old), numbered(new, len(numbered(old))))
    return content[:start] + footer + content[-8:]


def many_rows(path: Path) -> tuple[bytes, int, str]:
    return written(path, [nulls(NULLS)]), NULLS, f"{NULLS:,} rows of 2 columns"


def rows_hidden(path: Path) -> tuple[bytes, int, str]:
    """Its footer says that each group has one row, and so has what is read: no more is looked at."""
    groups = NULLS // (1 << 20) + 1
    content = written(path, [nulls(NULLS)], write_statistics=False)
    return with_numbers(content, {NULLS: groups, 1 << 20: 1, NULLS % (1 << 20): 1}), groups, ""


def rows_of_groups(path: Path) -> tuple[bytes, int, str]:
    """Its footer says that it has three rows, and of each group what it has."""
    return with_numbers(written(path, [nulls(NULLS)], write_statistics=False), {NULLS: 3}), 3, f"{2 * NULLS:,} values in groups of rows"


def bytes_hidden(path: Path) -> tuple[bytes, int, str]:
    """Its footer says that it unpacks to a few bytes."""
    content = written(path, [texts(TEXT)] * 9, write_statistics=False, use_dictionary=False)
    chunk = pq.read_metadata(path).row_group(0)
    sizes = {chunk.total_byte_size, *(chunk.column(place).total_uncompressed_size for place in range(2))}
    return with_numbers(content, {size: 9 for size in sizes if size > TEXT}), 9, "a file that decompresses to 5"


def prefixes(path: Path) -> tuple[bytes, int, str]:
    """Each of its texts says only that it is the one before."""
    return (
        written(path, [texts(1 << 20, 500)], use_dictionary=False, column_encoding={"case": "DELTA_BYTE_ARRAY"}),
        500,
        "values in the encoding DELTA_BYTE_ARRAY",
    )


def long_footer(path: Path) -> tuple[bytes, int, str]:
    return written(path, [nulls(3).replace_schema_metadata({"x": "x" * (64 << 20)})]), 3, "a footer of "


def nested(path: Path) -> tuple[bytes, int, str]:
    """One of its rows has a list of millions of values, in a column that nobody reads."""
    table = nulls(1).append_column("more", pa.array([[None] * 2_000_000], pa.list_(pa.int64())))
    return written(path, [table.append_column("pair", pa.array([{"a": 1, "b": 2}]))]), 1, "nested columns"


FILES: dict[str, Callable[[Path], tuple[bytes, int, str]]] = {
    found.__name__: found for found in (many_rows, rows_hidden, rows_of_groups, bytes_hidden, prefixes, long_footer, nested)
}
CHILD = """
import json, resource, sys
import pyarrow.parquet
from mlflow_adk_eval.errors import InputError
from mlflow_adk_eval.runs.files import read_columns

content = open(sys.argv[1], "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_columns(content, "f", {"eval_id": "text", "case": "text"}, rows=int(sys.argv[2]))
    refusal = ""
except InputError as error:
    refusal = str(error)
print(json.dumps([refusal, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_refusal_takes_little_memory(name: str, tmp_path: Path) -> None:
    content, rows, expected = FILES[name](tmp_path / "made.parquet")
    assert len(content) < MOST_MEMORY
    (tmp_path / "f.parquet").write_bytes(content)
    done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path / "f.parquet"), str(rows)], capture_output=True, text=True, check=True)
    refusal, memory = json.loads(done.stdout)
    assert expected in refusal
    assert memory < (MOST_FOR_A_LIE if name == "bytes_hidden" else MOST_MEMORY)


@pytest.mark.slow
def test_a_version_whose_run_has_millions_of_rows_without_a_value_is_refused(lab: Lab, model: str, tmp_path: Path) -> None:
    (champion,), entrant = promoted(lab, model, 1), Entrant(lab, model)
    evidence = evidence_of(report_of(), model_id=entrant.model_id)
    file = file_of("cells", 0)
    manifest = json.loads(evidence.manifest or b"")
    names = pq.read_schema(pa.BufferReader(evidence.artifacts[file])).names
    table = pa.table({name: pa.nulls(NULLS // 10, pa.int64() if name.endswith("_index") else pa.string()) for name in names[:5]})
    evidence = with_artifact(evidence, file, written(tmp_path / "cells.parquet", [table]))
    manifest = json.loads(evidence.manifest or b"")
    manifest["parts"][0]["turns"] = NULLS // 10
    entrant.run_id = lab.log(with_manifest(evidence, json.dumps(manifest).encode()))
    decision = entrant.promote(raise_on_failure=False)
    assert decision.verdict == "undecided"
    assert any(f"{NULLS // 10:,} rows of 5 columns" in reason for reason in decision.reasons), decision.reasons
    assert lab.alias(model) == champion.version
