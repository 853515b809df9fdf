"""Cases as a stream: what each form may hold, and what is said where it does not."""

from __future__ import annotations

import gzip
import json
import threading
import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.errors import EvalSetError
from mlflow_adk_eval.evalset import row_files
from mlflow_adk_eval.evalset.conversation import RecordedRun
from mlflow_adk_eval.evalset.files import dumps
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.evalset.rows import CasesInMemory, CaseSource, open_cases, streamed
from tests.kit import Json, case_json, turn_json
from tests.profiles import examples

TURN: Json = turn_json("hi")


def case(eval_id: str, text: str = "hi") -> Json:
    return case_json(eval_id, turn_json(text))


def run(text: str = "done", **more: Any) -> Json:
    return {"invocations": [TURN | {"final_response": {"parts": [{"text": text}]}}], **more}


def lines(path: Path, records: Iterable[Any], *, end: str = "\n") -> Path:
    path.write_bytes("".join(json.dumps(record) + end for record in records).encode())
    return path


def parquet(path: Path, records: Iterable[Json]) -> Path:
    """Write records with what is nested as JSON text."""
    listed = list(records)
    names = {name: None for record in listed for name in record}
    texts = [{name: json.dumps(item) if isinstance(item := record.get(name), dict | list) else item for name in names} for record in listed]
    pq.write_table(pa.Table.from_pylist(texts), path)
    return path


def ids(source: CaseSource, size: int = 500) -> list[tuple[str, int | None]]:
    """Return each case's id and how many runs of it are recorded."""
    return [(row.case.eval_id, None if row.runs is None else len(row.runs)) for batch in source.batches(size) for row in batch]


def problems(path: Path) -> list[str]:
    with pytest.raises(EvalSetError) as caught:
        list(open_cases(path).batches())
    return [str(problem) for problem in caught.value.problems]


RECORDS: list[Json] = [
    case("plain"),
    {"eval_id": "two", "case": case("two"), "recorded": run("first")},
    {"eval_id": "two", "run_index": 1, "recorded": run("second", error="broke off")},
    {**case("flat"), "recorded": run()["invocations"]},
    {"evalId": "camel", "case": case("camel"), "runIndex": 0, "recorded": run(session_state={"a": None})},
    {"eval_id": "bare", "case": case("bare")},
]
READ = [("plain", None), ("two", 2), ("flat", 1), ("camel", 1), ("bare", None)]


@pytest.mark.parametrize("size", [1, 2, 3, 500])
@pytest.mark.parametrize("name", ["s.jsonl", "s.ndjson", "s.jsonl.gz", "s.jsonl.zst", "s.parquet"])
def test_every_form_is_read_in_batches_of_any_size_as_often_as_asked(tmp_path: Path, name: str, size: int) -> None:
    path = tmp_path / name
    if name.endswith(".parquet"):
        parquet(path, RECORDS)
    else:
        text = lines(tmp_path / "plain", RECORDS).read_bytes()
        path.write_bytes(
            gzip.compress(text) if name.endswith(".gz") else pa.compress(text, "zstd", asbytes=True) if name.endswith(".zst") else text
        )
    source = open_cases(path)
    assert source.head.eval_set_id == "s"
    assert ids(source, size) == ids(source, size) == READ
    assert all(0 < len(batch) <= size for batch in source.batches(size))
    rows = {row.case.eval_id: row for batch in source.batches() for row in batch}
    first, second = rows["two"].runs or ()
    assert (first.invocations[0].final_text, second.invocations[0].final_text, second.error) == ("first", "second", "broke off")
    (camel,) = rows["camel"].runs or ()
    assert camel.session_state == {"a": None}


def test_an_eval_set_in_memory_is_a_source_too() -> None:
    eval_set = EvalSet.model_validate({"eval_set_id": "s", "eval_cases": [case("a"), case("b"), case("c")]})
    assert ids(CasesInMemory(eval_set), 2) == [("a", None), ("b", None), ("c", None)]
    recorded = CasesInMemory(eval_set, {"b": [RecordedRun.model_validate(run())]})
    assert ids(recorded) == [("a", None), ("b", 1), ("c", None)]
    assert recorded.head == eval_set.model_copy(update={"eval_cases": ()})


def test_the_first_line_may_name_the_set(tmp_path: Path) -> None:
    source = open_cases(lines(tmp_path / "x.jsonl", [{"eval_set_id": "named", "name": "A name"}, case("a")]))
    assert (source.head.eval_set_id, source.head.name, ids(source)) == ("named", "A name", [("a", None)])


def test_several_cases_are_found_in_one_pass(tmp_path: Path) -> None:
    passes = list[int]()

    class Counted(CasesInMemory):
        def batches(self, size: int = 2) -> Any:
            passes.append(size)
            return super().batches(size)

    eval_set = EvalSet.model_validate({"eval_set_id": "s", "eval_cases": [case(f"c{number}") for number in range(30)]})
    found = streamed(Counted(eval_set))
    assert len(found.eval_ids) == 30
    passes.clear()
    assert list(found.named({"c3", "c17", "c29", "other"})) == ["c3", "c17", "c29"]
    assert [one.eval_id for one in found.eval_cases[20:10:-5]] == ["c20", "c15"]
    assert len(passes) == 2


@pytest.mark.parametrize(("write", "ending"), [(lines, "jsonl"), (parquet, "parquet")])
def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path, write: Callable[[Path, Any], Path], ending: str) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    write(folder / f"part-2.{ending}", [{"eval_id": "b", "run_index": 1, "recorded": run()}, case("c") | {"recorded": run()}])
    write(folder / f"part-1.{ending}", [case("a") | {"recorded": run()}, {"eval_id": "b", "case": case("b"), "recorded": run()}])
    (folder / "_SUCCESS").touch()
    source = open_cases(folder)
    assert source.head.eval_set_id == "parts"
    assert ids(source) == [("a", 1), ("b", 2), ("c", 1)]


def test_structs_are_read_as_objects_whose_nulls_are_absent(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    turn = TURN | {"intermediate_data": {"tool_uses": [{"name": "f", "args": {"x": 1}}]}}
    records = [{"eval_id": "a", "conversation": [turn]}, {"eval_id": "b", "conversation": [TURN]}]
    pq.write_table(
        pa.Table.from_pylist([{"eval_id": found["eval_id"], "case": found, "recorded": {"invocations": [TURN]}} for found in records]), path
    )
    rows = [row for batch in open_cases(path).batches() for row in batch]
    assert json.loads(dumps(rows[0].case))["conversation"] == [turn]
    assert json.loads(dumps(rows[1].case)) == records[1]
    pq.write_table(pa.Table.from_pylist(records), path)
    assert ids(open_cases(path)) == [("a", None), ("b", None)]


def parts(tmp_path: Path) -> Path:
    """Write a run of three cases in two parts, with no, one and two recorded runs."""
    for name in ("cases", "actual"):
        (tmp_path / name).mkdir()
    number = 0
    for part, eval_ids in enumerate((["a", "b"], ["c"])):
        cases, runs = [], []
        for eval_id in eval_ids:
            cases.append({"eval_id": eval_id, "case": json.dumps(case(eval_id))})
            runs += [{"eval_id": eval_id, "run_index": index, "recorded": json.dumps(run())} for index in range(number)]
            number += 1
        parquet(tmp_path / "cases" / f"part-{part:05}.parquet", cases)
        parquet(tmp_path / "actual" / f"part-{part:05}.parquet", runs)
    return tmp_path


def test_the_parts_of_a_run_are_a_source(tmp_path: Path) -> None:
    source = open_cases(parts(tmp_path))
    assert ids(source) == [("a", None), ("b", 1), ("c", 2)]


def test_what_is_wrong_with_parts_is_said(tmp_path: Path) -> None:
    actual = parts(tmp_path) / "actual"
    good = pq.read_table(actual / "part-00001.parquet")
    parquet(actual / "part-00001.parquet", [{"eval_id": "z", "run_index": 0, "recorded": json.dumps(run())}])
    assert problems(tmp_path) == [
        "actual/part-00001.parquet: $: found case 'z', but the eval set does not contain it; wanted runs of this part's cases, in the same order"
    ]
    pq.write_table(good.set_column(1, "eval_id", pa.array(["x", "c"])), actual / "part-00001.parquet")
    assert problems(tmp_path)[0].startswith("actual/part-00001.parquet: $: found case 'x', but the eval set does not contain it")
    (actual / "part-00001.parquet").unlink()
    assert problems(tmp_path) == ["part-00001.parquet, $: found no such file; wanted a file that exists"]


@pytest.mark.needs("fsspec")
def test_rows_are_read_from_a_server(tmp_path: Path) -> None:
    lines(tmp_path / "s.jsonl", RECORDS)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            assert ids(open_cases(f"{address}/s.jsonl")) == READ
            with pytest.raises(EvalSetError, match=r"none\.jsonl: 1 problem"):
                open_cases(f"{address}/none.jsonl")
        finally:
            server.shutdown()


def test_every_problem_is_found_in_one_pass(tmp_path: Path) -> None:
    path = lines(tmp_path / "bad.jsonl", [
        case("a"),
        {"eval_id": "b", "conversaton": [TURN]},
        {"eval_id": "c", "cas": case("c")},
        case("a"),
        [],
        {"eval_id": "q", "recorded": [TURN]},
        {**case("z"), "run_index": 1, "recorded": [{"user_contnt": 3}]},
    ])  # fmt: skip
    with path.open("a") as file:
        file.write('{"eval_id":')
    assert [problem.partition(": found")[0] for problem in problems(path)] == [
        "line 2: $.conversaton",
        "line 3: $.cas",
        "line 4: $.eval_id",
        "line 5: $",
        "line 6: $.case",
        "line 7: $.run_index",
        "line 7: $.recorded[0].user_contnt",
        "line 8: $",
    ]
    assert problems(path)[-1].endswith("The file ends in the middle of this line, so it is probably truncated.")


def test_a_long_list_of_problems_is_counted_not_kept(tmp_path: Path) -> None:
    path = lines(tmp_path / "bad.jsonl", ([] for _ in range(1234)))
    with pytest.raises(EvalSetError, match=r"1,234 problems in this eval set(?s:.)*… and 1,184 more$") as caught:
        list(open_cases(path).batches())
    assert len(caught.value.problems) == 50


def test_batches_before_the_first_problem_are_yielded(tmp_path: Path) -> None:
    path = lines(tmp_path / "bad.jsonl", [case("a"), case("b"), case("c"), 3])
    batches = open_cases(path).batches(1)
    assert [next(batches)[0].case.eval_id for _ in range(2)] == ["a", "b"]
    with pytest.raises(EvalSetError):
        next(batches)


@given(runs=st.lists(st.integers(0, 3), min_size=1, max_size=8), size=st.integers(1, 9))
@examples(40)
def test_rows_do_not_depend_on_the_size_of_batches(tmp_path_factory: pytest.TempPathFactory, runs: list[int], size: int) -> None:
    records: list[Json] = []
    for number, count in enumerate(runs):
        eval_id = f"case-{number}"
        records += [{"eval_id": eval_id, "case": case(eval_id), "run_index": index, "recorded": run()} for index in range(count)] or [
            case(eval_id)
        ]
    source = open_cases(lines(tmp_path_factory.mktemp("rows") / "s.jsonl", records))
    assert ids(source, size) == [(f"case-{number}", count or None) for number, count in enumerate(runs)]


# What is said of what cannot be read

TEXT = (json.dumps(case("a")) + "\n").encode()
UNREADABLE: dict[str, tuple[str, bytes, str]] = {
    "no bytes": ("s.jsonl", b"", "$: found an empty file; wanted a case on each line"),
    "blank lines": ("s.jsonl", b"\n \r\n", "$: found an empty file; wanted a case on each line"),
    "UTF-16": ("s.jsonl", TEXT.decode().encode("utf-16"), "$: found text in UTF-16 or UTF-32; wanted text in UTF-8"),
    "UTF-16 without a mark": ("s.jsonl", TEXT.decode().encode("utf-16-le"), "$: found text in UTF-16 or UTF-32; wanted text in UTF-8"),
    "a list": ("s.jsonl", b"[" + TEXT.strip() + b"]", "line 1: $: found a list of 1; wanted an object"),
    "a whole eval set": ("s.jsonl", b'{"eval_set_id": "s", "eval_cases": []}', "line 1: $: found a whole eval set"),
    "a bad name of the set": ("s.jsonl", b'{"eval_set_id": 3}', "line 1: $.eval_set_id: found 3; wanted a string"),
    "the set named twice": ("s.jsonl", TEXT + b'{"eval_set_id": "s"}', "line 2: $: found fields of an eval set; wanted a case"),
    "bytes that are no text": ("s.jsonl", b'{"eval_id": "\xff"}', "line 1: $: found text that is not JSON (invalid unicode"),
    "brackets without end": ("s.jsonl", b'{"x":' + b"[" * 9999, "line 1: $: found text that is not JSON (recursion limit"),
    "gzip cut off": ("s.jsonl.gz", gzip.compress(TEXT)[:-9], "$: found Compressed file ended before"),
    "no gzip": ("s.jsonl.gz", TEXT, "$: found Not a gzipped file"),
    "gzip damaged": ("s.jsonl.gz", gzip.compress(TEXT)[:10] + b"\xff" * 20, "$: found Error -3 while decompressing"),
    "zstd cut off": ("s.jsonl.zst", pa.compress(TEXT * 99, "zstd", asbytes=True)[:-9], "$: found Truncated compressed stream"),
    "no zstd": ("s.jsonl.zst", TEXT, "$: found ZSTD decompress failed"),
    "no Parquet": ("s.parquet", TEXT, "$: found Parquet magic bytes not found"),
    "empty Parquet": ("s.parquet", b"", "$: found Parquet file size is 0 bytes"),
    "another kind": ("s.csv", TEXT, "$: found a file in another format; wanted JSON Lines (.jsonl, .ndjson, also .gz and .zst), Parquet"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_one_problem(tmp_path: Path, name: str) -> None:
    file, content, expected = UNREADABLE[name]
    path = tmp_path / file
    path.write_bytes(content)
    (found,) = problems(path)
    assert found.startswith(expected)


@pytest.mark.parametrize("name", ["s.jsonl", "s.parquet", "s.jsonl.zst", "folder"])
def test_what_is_not_there_is_said_to_be_missing(tmp_path: Path, name: str) -> None:
    assert problems(tmp_path / name) == ["$: found no such file; wanted a file that exists"]


def test_a_folder_must_hold_rows_of_one_kind(tmp_path: Path) -> None:
    assert problems(tmp_path)[0].startswith("$: found a folder without such files; wanted JSON Lines")
    lines(tmp_path / "a.jsonl", [case("a")])
    parquet(tmp_path / "b.parquet", [case("b")])
    assert problems(tmp_path) == ["$: found a folder with JSON Lines and Parquet; wanted files of one format"]


def test_what_is_wrong_in_a_folder_names_the_file(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", [case("a")])
    lines(tmp_path / "b.jsonl", [case("b"), case("a")])
    (tmp_path / "c.jsonl").write_bytes(TEXT.decode().encode("utf-16"))
    assert problems(tmp_path) == [
        "b.jsonl, line 2: $.eval_id: found 'a', the same as a.jsonl, line 1; wanted a unique id",
        "c.jsonl, $: found text in UTF-16 or UTF-32; wanted text in UTF-8",
    ]


def test_a_mark_blank_lines_and_line_ends_of_windows_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.strip() + b"\r\n\r\n" + json.dumps(case("b")).encode())
    assert ids(open_cases(path)) == [("a", None), ("b", None)]


def test_what_is_no_json_from_the_start_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps({"eval_set_id": "s", "eval_cases": [case("a")]}, indent=2))
    assert [problem.partition(": $")[0] for problem in problems(path)] == ["line 1", "line 2"]
    assert problems(path)[1].endswith("put each case on one line, without line breaks.")


RUN_PROBLEMS: dict[str, tuple[list[Json], list[str]]] = {
    "apart": (
        [case("a") | {"recorded": [TURN]}, case("b"), {"eval_id": "a", "run_index": 1, "recorded": [TURN]}],
        ["line 3: $.eval_id: found 'a', the same as line 1; wanted a unique id. The runs of one case must follow each other."],
    ),
    "a run is missing": (
        [case("a") | {"recorded": [TURN]}, {"eval_id": "a", "run_index": 2, "recorded": [TURN]}],
        ["line 2: $.run_index: found 2; wanted 1, the next run of case 'a' (runs are counted from 0)"],
    ),
    "a run is not numbered": (
        [case("a") | {"recorded": [TURN]}, {"eval_id": "a", "recorded": [TURN]}],
        ["line 2: $.run_index: found nothing; wanted 1, the next run of case 'a' (runs are counted from 0)"],
    ),
    "nothing recorded": (
        [case("a") | {"recorded": [TURN]}, {"eval_id": "a", "run_index": 1}],
        ["line 2: $.recorded: found nothing; wanted a recorded conversation, as in the other runs of this case"],
    ),
    "nothing recorded first": (
        [{"eval_id": "a", "case": case("a")}, {"eval_id": "a", "run_index": 1, "recorded": [TURN]}],
        ["line 1: $.recorded: found nothing; wanted a recorded conversation, as in the other runs of this case"],
    ),
    "another id": (
        [{"eval_id": "a", "case": case("b"), "recorded": [TURN]}],
        ["line 1: $.case.eval_id: found 'b'; wanted 'a', as in the row's own eval_id"],
    ),
    "another case": (
        [case("a") | {"recorded": [TURN]}, {"eval_id": "a", "run_index": 1, "case": case("a", "bye"), "recorded": [TURN]}],
        ["line 2: $.case: found another case; wanted the same case as line 1, or no case"],
    ),
    "no case": ([{"eval_id": "a", "recorded": [TURN]}], ["line 1: $.case: found nothing; wanted the case, in the first row of 'a'"]),
    "wrong types": (
        [{"eval_id": "a", "case": "text", "recorded": 3}],
        [
            "line 1: $.case: found 'text'; wanted an object",
            "line 1: $.recorded: found 3; wanted a recorded run (an object with invocations), or a list of invocations",
        ],
    ),
}


@pytest.mark.parametrize("name", RUN_PROBLEMS)
def test_each_thing_that_is_wrong_with_runs_is_one_problem(tmp_path: Path, name: str) -> None:
    records, expected = RUN_PROBLEMS[name]
    assert problems(lines(tmp_path / "s.jsonl", records)) == expected


def test_a_case_may_be_repeated_in_another_spelling(tmp_path: Path) -> None:
    again = {"evalId": "a", "conversation": [{"userContent": {"role": "user", "parts": [{"text": "hi"}]}}]}
    records = [case("a") | {"recorded": [TURN]}, {"eval_id": "a", "run_index": 1, "case": again, "recorded": [TURN]}]
    assert ids(open_cases(lines(tmp_path / "s.jsonl", records))) == [("a", 2)]


COLUMNS: dict[str, tuple[Any, str]] = {
    "ids are numbers": ({"eval_id": [1], "case": ["{}"]}, "columns.eval_id: found a column of int64; wanted texts"),
    "cases are numbers": ({"eval_id": ["a"], "case": [1]}, "columns.case: found a column of int64; wanted JSON texts, or structs"),
    "numbers are texts": ({"eval_id": ["a"], "run_index": ["0"]}, "columns.run_index: found a column of string; wanted whole numbers"),
    "no ids": ({"x": [1], "y": [2]}, "columns: found x, y; wanted a column eval_id with the id of each row's case"),
    "a slip of the pen": ({"eval_id": ["a"], "case": ["{}"], "recored": ["[]"]}, "columns.recored: found an unknown column"),
    "no JSON": ({"eval_id": ["a"], "case": ["{x"]}, "row 1: $.case: found text that is not JSON"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_wrong_columns_are_said_once_however_many_rows_there_are(tmp_path: Path, name: str) -> None:
    columns, expected = COLUMNS[name]
    rows = 1 if name == "no JSON" else 1000
    path = tmp_path / "s.parquet"
    pq.write_table(pa.table({key: values * rows for key, values in columns.items()}), path)
    (found,) = problems(path)
    assert found.startswith(expected)


def test_columns_of_other_types_are_carried_along_as_texts(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    day = pa.array([0], pa.date32())
    pq.write_table(pa.table({"eval_id": ["a"], "conversation": [json.dumps([TURN])], "day": day, "run_index": [0.0]}), path)
    ((row,),) = open_cases(path).batches()
    assert json.loads(dumps(row.case))["day"] == "1970-01-01"


def test_memory_is_bounded_by_a_batch_and_a_line(tmp_path: Path) -> None:
    """The batches together are fifty times as large as what is held of them."""
    path = tmp_path / "s.jsonl"
    with path.open("w") as file:
        for number in range(100):
            file.write(json.dumps(case(f"case-{number}", "x" * 2**20)) + "\n")
    source = open_cases(path)
    tracemalloc.start()
    try:
        assert sum(len(batch) for batch in source.batches(2)) == 100
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
        tracemalloc.reset_peak()
        assert max(len(batch) for batch in source.batches()) <= 33
        assert tracemalloc.get_traced_memory()[1] < 160 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_no_line_of_gigabytes_is_unpacked(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = b'{"eval_id": "a"' + b" " * 4_000 + b"}\n"
    file = tmp_path / f"s.jsonl{ending}"
    file.write_bytes(gzip.compress(line) if ending == ".gz" else pa.compress(line, "zstd", asbytes=True))
    monkeypatch.setattr(row_files, "MOST_LINE", len(line))
    with pytest.raises(EvalSetError, match="line 1"):
        open_cases(file).eval_set()
    monkeypatch.setattr(row_files, "MOST_LINE", 2**10)
    with pytest.raises(EvalSetError, match="found a line that decompresses to more than 0 MiB; wanted a file that can be read"):
        open_cases(file).eval_set()


def test_a_file_with_millions_of_rows_without_a_value_is_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "s.parquet"
    pq.write_table(pa.table({"eval_id": pa.nulls(2_000_000, pa.string()), "case": pa.nulls(2_000_000, pa.string())}), file)
    with pytest.raises(EvalSetError, match=r"^.*: 20,000 problems in this eval set"):
        open_cases(file).eval_set()
