"""What somebody with write access can do to the parts of a run: each attempt is refused for its own reason, also where the manifest fits it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mlflow_adk_eval.results.outcomes import Stored
from mlflow_adk_eval.runs import files
from mlflow_adk_eval.runs.manifest import FOLDER, Evidence, read_manifest
from mlflow_adk_eval.runs.stored_run import StoredPart
from tests.gating.gate_kit import (
    CONVERSATIONS,
    RESPONSE,
    Row,
    decide_on,
    eval_set_of,
    evidence_of,
    file_of,
    parts_of,
    report_of,
    sealed,
    with_artifact,
    with_file,
    with_manifest,
)
from tests.tracking import judged

GOOD = evidence_of(report_of())
JUDGED = evidence_of(judged.report(lost=False))
OTHER = evidence_of(
    report_of(
        eval_set=eval_set_of({name: [(f"{user}?", answer, tool) for user, answer, tool in turns] for name, turns in CONVERSATIONS.items()})
    )
)
"""A run on cases with the same ids that ask for something else."""
WORSE = evidence_of(report_of(wrong=["lights"]))
CASES, ACTUAL, CELLS, VOTES = "cases", "actual", "cells", "votes"


def touched(evidence: Evidence, name: str, content: bytes | None) -> Evidence:
    """Return the evidence with another file, or without it, and the manifest that it had."""
    kept = {found: value for found, value in evidence.artifacts.items() if found != name}
    return replace(evidence, artifacts=kept if content is None else {**kept, name: content})


def relisted(evidence: Evidence, edit: Callable[[list[dict[str, Any]]], Iterable[dict[str, Any]] | None]) -> Evidence:
    """Return the evidence with another list of parts in its manifest, and the parameter for that."""
    manifest = json.loads(evidence.manifest or b"")
    edited = edit(manifest["parts"])
    manifest["parts"] = manifest["parts"] if edited is None else list(edited)
    return with_manifest(evidence, json.dumps(manifest).encode())


def counted(number: int, **values: Any) -> Evidence:
    return relisted(GOOD, lambda parts: parts[number].update(values))


def swapped(folder: str) -> Evidence:
    first, second = file_of(folder, 0), file_of(folder, 1)
    return replace(GOOD, artifacts={**GOOD.artifacts, first: GOOD.artifacts[second], second: GOOD.artifacts[first]})


def of_another(folder: str, number: int, other: Evidence) -> Evidence:
    name = file_of(folder, number)
    return with_artifact(GOOD, name, other.artifacts[name])


def repeated_part() -> Evidence:
    """Return the evidence with its second part once more, as a third one."""
    files = {file_of(folder, 2): GOOD.artifacts[file_of(folder, 1)] for folder in (CASES, ACTUAL, CELLS)}
    parts = parts_of(GOOD)
    more = {**parts[1], "first_case_no": 3, "last_case_no": 4}
    return sealed(replace(GOOD, artifacts={**GOOD.artifacts, **files}), [*parts, more])


def with_votes_of(eval_id: str) -> Evidence:
    return with_file(JUDGED, file_of(VOTES, 0), lambda rows: [row | {"eval_id": eval_id} for row in rows])


def bomb() -> bytes:
    """Return a small file that unpacks to much more."""
    text = "x" * (3 << 20)
    table = pa.table({"eval_id": [text], "run_index": [0], "recorded": ["{}"]})
    content = pa.BufferOutputStream()
    writer = pq.ParquetWriter(content, table.schema, compression="zstd", use_dictionary=False)
    for _ in range(3):
        writer.write_table(table)
    writer.close()
    return bytes(content.getvalue())


def many_rows() -> bytes:
    """Return a small file with many rows."""
    ids = pa.DictionaryArray.from_arrays(pa.array([0] * 500_000, pa.int8()), pa.array(["lights"])).cast(pa.string())
    zeros = pa.array([0] * len(ids), pa.int64())
    content = pa.BufferOutputStream()
    pq.write_table(pa.table({"eval_id": ids, "run_index": zeros, "recorded": ids}), content, compression="zstd")
    return bytes(content.getvalue())


def edited(folder: str, edit: Callable[[list[Row]], Any], number: int = 1) -> Evidence:
    return with_file(GOOD, file_of(folder, number), edit)


def columns(folder: str, edit: Callable[[pa.Table], pa.Table]) -> Evidence:
    """Return the evidence with a file whose table was edited."""
    name, content = file_of(folder, 1), pa.BufferOutputStream()
    pq.write_table(edit(pq.read_table(pa.BufferReader(GOOD.artifacts[name]))), content)
    return with_artifact(GOOD, name, bytes(content.getvalue()))


def retyped(folder: str, column: str, kind: pa.DataType) -> Evidence:
    def edit(table: pa.Table) -> pa.Table:
        place = table.column_names.index(column)
        return table.set_column(place, column, table.column(column).cast(kind))

    return columns(folder, edit)


def cells(number: int) -> str:
    return f"adk_eval/{file_of(CELLS, number)}"


ATTACKS: dict[str, tuple[Callable[[], Evidence], str]] = {
    # without another manifest
    "file missing": (lambda: touched(GOOD, file_of(CELLS, 1), None), f"the artifact {cells(1)} is missing"),
    "file edited": (lambda: touched(GOOD, file_of(ACTUAL, 0), b"x"), "the artifact adk_eval/actual/part-00000.parquet was changed after the run"),
    "file truncated": (
        lambda: touched(GOOD, file_of(CASES, 0), GOOD.artifacts[file_of(CASES, 0)][:-20]),
        "the artifact adk_eval/cases/part-00000.parquet was changed after the run",
    ),
    "files swapped": (lambda: swapped(CELLS), f"the artifact {cells(0)} was changed after the run"),
    "file beside": (lambda: touched(GOOD, "cells/part-00002.parquet", b"x"), f"the artifact {cells(2)} is not in the manifest"),
    # with a manifest that fits
    "file never written": (lambda: with_artifact(GOOD, file_of(ACTUAL, 1), None), "the manifest does not list adk_eval/actual/part-00001.parquet"),
    "file of no part": (lambda: with_artifact(GOOD, "cells/more.parquet", b"x"), "adk_eval/cells/more.parquet belongs to no part in the manifest"),
    "part not listed": (lambda: relisted(GOOD, lambda parts: parts[:1]), "adk_eval/cases/part-00001.parquet belongs to no part in the manifest"),
    "parts reordered": (lambda: relisted(GOOD, lambda parts: parts[::-1]), "adk_eval/manifest.json cannot be read: part 0 begins with case 1; wanted 0"),
    "parts with a gap": (lambda: counted(1, first_case_no=2, last_case_no=3), "adk_eval/manifest.json cannot be read: part 1 begins with case 2; wanted 1"),
    "last case wrong": (lambda: counted(1, last_case_no=3), "adk_eval/manifest.json cannot be read: part 1 ends with case 3; wanted 2"),
    "count no number": (lambda: counted(0, turns="2"), "adk_eval/manifest.json cannot be read: turns is '2'; wanted a whole number"),
    "part no object": (lambda: relisted(GOOD, lambda parts: [1]), "adk_eval/manifest.json cannot be read: part 0 is 1; wanted an object"),  # type: ignore[list-item]
    "no parts": (
        lambda: with_manifest(GOOD, json.dumps(json.loads(GOOD.manifest or b"") | {"parts": None}).encode()),
        "adk_eval/manifest.json lists no parts, or names no eval set",
    ),
    "more cases counted": (
        lambda: counted(1, cases=3, last_case_no=3),
        "adk_eval/cases/part-00001.parquet cannot be read: $: found 2 rows; wanted 3, as the manifest says",
    ),
    "fewer runs counted": (
        lambda: counted(0, case_runs=0),
        "adk_eval/actual/part-00000.parquet cannot be read: $: found 1 rows; wanted 0, as the manifest says",
    ),
    "more turns counted": (lambda: counted(1, turns=4), f"{cells(1)} cannot be read: $: found 3 rows; wanted 4, as the manifest says"),
    "votes counted": (lambda: counted(1, votes=4), "the manifest lists 4 votes in part 1, but the part has none"),
    "files swapped, sealed": (
        lambda: sealed(swapped(CELLS)),
        f"{cells(0)} cannot be read: $: found 3 rows; wanted 2, as the manifest says",
    ),
    "part repeated": (
        repeated_part,
        "the eval set contains case 'heating' 2 times: in adk_eval/cases/part-00001.parquet and adk_eval/cases/part-00002.parquet",
    ),
    "cases of another run": (
        lambda: of_another(CASES, 1, OTHER),
        "adk_eval/cases is not the evaluated one: its digest is sha256:",
    ),
    "case renamed in its column": (
        lambda: edited(CASES, lambda rows: rows[1].update(eval_id="easy")),
        "row 2 of adk_eval/cases/part-00001.parquet is case 'easy'; wanted case 'film', as in its document",
    ),
    "cases reordered": (lambda: edited(CASES, lambda rows: rows[::-1]), "adk_eval/cases is not the evaluated one: its digest is sha256:"),
    "case that is not JSON": (
        lambda: edited(CASES, lambda rows: rows[1].update(case="{")),
        "adk_eval/cases/part-00001.parquet cannot be read: $: found text that is not JSON",
    ),
    "case that is none": (
        lambda: edited(CASES, lambda rows: rows[1].update(case='{"eval_id": "film"}')),
        "adk_eval/cases/part-00001.parquet cannot be read: $[1].case: found neither of them",
    ),
    "case without document": (
        lambda: edited(CASES, lambda rows: rows[1].update(case=None)),
        "adk_eval/cases/part-00001.parquet cannot be read: $[1].case: found nothing; wanted JSON text",
    ),
    "actual of other cases": (
        lambda: edited(ACTUAL, lambda rows: rows[1].update(eval_id="easy")),
        "row 2 of adk_eval/actual/part-00001.parquet is case 'easy', run 1; wanted case 'film', run 1",
    ),
    "actual of another run of the case": (
        lambda: edited(ACTUAL, lambda rows: rows[1].update(run_index=1)),
        "row 2 of adk_eval/actual/part-00001.parquet is case 'film', run 2; wanted case 'film', run 1",
    ),
    "cells reordered": (
        lambda: edited(CELLS, lambda rows: [rows[2], rows[1], rows[0]]),
        f"row 1 of {cells(1)} is out of order: found case 'film', run 1, turn 2, wanted case 'heating', run 1, turn 1",
    ),
    "cell row of another case": (
        lambda: edited(CELLS, lambda rows: rows[0].update(eval_id="lights")),
        f"{cells(1)} has rows for case 'lights', but the part does not contain it",
    ),
    "cell row dropped": (
        lambda: edited(CELLS, lambda rows: rows[1:]),
        f"{cells(1)} cannot be read: $: found 2 rows; wanted 3, as the manifest says",
    ),
    "turn in the billions": (
        lambda: edited(CELLS, lambda rows: rows[0].update(invocation_index=10**12)),
        f"case 'heating', turn 1, is not in {cells(1)}",
    ),
    "case score beyond its range": (
        lambda: edited(CELLS, lambda rows: rows[0].update({f"{RESPONSE}/case_score": 2.0, f"{RESPONSE}/case_status": "scored"})),
        f"case 'heating': the case score of {RESPONSE} is 2.0, outside its range from 0 to 1",
    ),
    "case score without status": (
        lambda: edited(CELLS, lambda rows: rows[0].update({f"{RESPONSE}/case_score": 0.9})),
        f"case 'heating': the case outcome of {RESPONSE} has the score 0.9 but the status None",
    ),
    "details that are no object": (
        lambda: edited(CELLS, lambda rows: rows[0].update({f"{RESPONSE}/details": "["})),
        f"case 'heating', turn 1: the details of {RESPONSE} are not a JSON object",
    ),
    "run number as text": (
        lambda: retyped(ACTUAL, "run_index", pa.string()),
        "adk_eval/actual/part-00001.parquet cannot be read: $: found other types (the column run_index is of string); wanted whole numbers in run_index",
    ),
    "status as numbers": (
        lambda: columns(CELLS, lambda table: table.drop_columns([f"{RESPONSE}/status"]).append_column(f"{RESPONSE}/status", pa.array([1, 1, 1]))),
        f"{cells(1)} cannot be read: $: found other types (the column {RESPONSE}/status is of int64); wanted texts in {RESPONSE}/status",
    ),
    "column twice": (
        lambda: columns(CELLS, lambda table: table.append_column("verdict", table.column("verdict"))),
        f"{cells(1)} cannot be read: $: found 2 columns verdict; wanted one of each name",
    ),
    "column missing": (
        lambda: columns(ACTUAL, lambda table: table.drop_columns(["run_index"])),
        "adk_eval/actual/part-00001.parquet cannot be read: $: found no column run_index; wanted the columns eval_id, run_index",
    ),
    "no Parquet": (lambda: with_artifact(GOOD, file_of(CELLS, 1), b"PAR1"), f"{cells(1)} cannot be read: $: found not a Parquet file"),
    "half a Parquet file, sealed": (
        lambda: with_artifact(GOOD, file_of(CELLS, 0), GOOD.artifacts[file_of(CELLS, 0)][:-30]),
        f"{cells(0)} cannot be read: $: found not a Parquet file",
    ),
    "gigabytes in a small file": (
        lambda: with_artifact(counted(0, case_runs=3), file_of(ACTUAL, 0), bomb()),
        "adk_eval/actual/part-00000.parquet cannot be read: $: found a file that decompresses to 9 MiB; wanted at most 1 MiB",
    ),
    "many rows in a small file": (
        lambda: with_artifact(GOOD, file_of(ACTUAL, 0), many_rows()),
        "adk_eval/actual/part-00000.parquet cannot be read: $: found 500000 rows; wanted 1, as the manifest says",
    ),
    # votes
    "votes missing": (
        lambda: with_artifact(JUDGED, file_of(VOTES, 1), None),
        "the run has no adk_eval/votes/part-00001.parquet, although judges decide",
    ),
    "votes that nobody cast": (
        lambda: with_artifact(GOOD, file_of(VOTES, 0), JUDGED.artifacts[file_of(VOTES, 0)]),
        "the run has adk_eval/votes/part-00000.parquet, although no judge decides anything",
    ),
    "votes on another case": (
        lambda: with_votes_of("heat"),
        "adk_eval/votes/part-00000.parquet has votes on case 'heat', run 1, but the part does not contain it",
    ),
    "votes dropped": (
        lambda: with_file(JUDGED, file_of(VOTES, 1), lambda rows: []),
        "adk_eval/votes/part-00001.parquet cannot be read: $: found 0 rows; wanted",
    ),
    "votes swapped for those of the other part": (
        lambda: with_artifact(JUDGED, file_of(VOTES, 0), JUDGED.artifacts[file_of(VOTES, 1)]),
        "adk_eval/votes/part-00000.parquet cannot be read: $: found",
    ),
    # of the eval set
    "eval set without id": (
        lambda: with_manifest(GOOD, json.dumps(json.loads(GOOD.manifest or b"") | {"eval_set": {}}).encode()),
        "adk_eval/manifest.json cannot be read: $.eval_set.eval_set_id: found nothing",
    ),
    "cases in the eval set's head": (
        lambda: with_manifest(GOOD, json.dumps(json.loads(GOOD.manifest or b"") | {"eval_set": {"eval_set_id": "home", "eval_cases": []}}).encode()),
        "adk_eval/manifest.json lists no parts, or names no",
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_on_a_part_is_believed(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, expected = ATTACKS[attack]
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 20)  # so that a bomb need not have gigabytes
    evidence = make()
    decision = decide_on(evidence)
    assert decision.verdict == "undecided"
    assert any(reason.startswith(expected) for reason in decision.reasons), decision.reasons


def test_each_attack_has_a_reason_of_its_own() -> None:
    alike = {
        "parts reordered",
        "cases reordered",
        "file truncated",
        "cases in the eval set's head",
        "votes swapped for those of the other part",
        "cell row dropped",
    }
    expected = sorted(expected for name, (_, expected) in ATTACKS.items() if name not in alike)
    assert [(one, two) for one, two in itertools.pairwise(expected) if two.startswith(one)] == []


def test_the_runs_that_are_attacked_pass_as_they_are() -> None:
    assert decide_on(GOOD).passed
    assert decide_on(JUDGED).passed
    assert decide_on(WORSE).verdict == "failed"


def test_cells_of_another_run_on_the_same_cases_are_what_their_manifest_says() -> None:
    """Whoever can write the manifest and its parameter can write any scores; what is left to check is that metrics and verdict agree."""
    reasons = decide_on(with_artifact(WORSE, file_of(CELLS, 0), GOOD.artifacts[file_of(CELLS, 0)])).reasons
    assert reasons[0].startswith("the logged metric")
    assert reasons[1] == "the run's tag adk_eval.verdict is 'failed', but its table gives 'passed'"


def test_the_turns_of_a_case_are_read_again_when_somebody_looks_at_them() -> None:
    manifest = read_manifest(GOOD.manifest or b"")
    assert not isinstance(manifest, str)
    parts = [StoredPart(part, GOOD.artifacts, FOLDER) for part in manifest.parts]
    assert len(parts) > 1
    for part in parts:
        cases = list(part.cases())
        light = [part.light_case(index, case) for index, case in enumerate(cases)]
        assert all(isinstance(case.conversation, Stored) for case in light)
        assert light == cases
        assert light[::-1] == cases[::-1]
