"""Eval sets from one format to another: nothing is lost, and no file is left half written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.errors import EvalSetError, UsageError
from mlflow_adk_eval.evalset.conversation import RecordedRun, dumps_recorded
from mlflow_adk_eval.evalset.conversion import migrate, write_cases
from mlflow_adk_eval.evalset.files import dumps, load_eval_set
from mlflow_adk_eval.evalset.models import EvalSet, eval_set_digest
from mlflow_adk_eval.evalset.rows import CasesInMemory, open_cases
from tests.evalset.test_rows import TURN, Json, case, lines, run
from tests.strategies import QUICK, eval_sets, invocations, objects

ROWS = ("s.jsonl", "s.ndjson.gz", "s.jsonl.zst", "s.parquet")
EXAMPLES = Path(__file__).parents[2] / "example_projects"


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def recorded_runs() -> st.SearchStrategy[list[RecordedRun]]:
    """What an agent did in one or two runs."""
    found = st.fixed_dictionaries(
        {"invocations": st.lists(invocations(), max_size=2)},
        optional={"error": st.just("broke off"), "session_state": objects(), "unfinished": st.booleans()},
    )
    return st.lists(found.map(RecordedRun.model_validate), min_size=1, max_size=2)


@QUICK
@given(value=eval_sets(), name=st.sampled_from(ROWS))
def test_a_set_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, value: Json, name: str) -> None:
    folder = tmp_path_factory.mktemp("round")
    eval_set = EvalSet.model_validate(value)
    file = folder / "s.evalset.json"
    file.write_text(dumps(eval_set), encoding="utf-8")
    assert migrate(file, folder / name) == len(eval_set.eval_cases)
    assert migrate(folder / name, folder / "again.json") == len(eval_set.eval_cases)
    assert (folder / "again.json").read_text(encoding="utf-8") == file.read_text(encoding="utf-8")
    assert load_eval_set(folder / name) == load_eval_set(file)


@QUICK
@given(data=st.data(), value=eval_sets(), name=st.sampled_from(ROWS), other=st.sampled_from(ROWS))
def test_what_is_recorded_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, value: Json, name: str, other: str
) -> None:
    folder = tmp_path_factory.mktemp("round")
    eval_set = EvalSet.model_validate(value)
    runs = {eval_id: data.draw(recorded_runs()) for eval_id in eval_set.eval_ids if data.draw(st.booleans())}
    write_cases(CasesInMemory(eval_set, runs), folder / name)
    migrate(folder / name, folder / f"other.{other}")
    source = open_cases(folder / f"other.{other}")
    rows = [row for batch in source.batches(2) for row in batch]
    assert [dumps(row.case) for row in rows] == [dumps(one) for one in eval_set.eval_cases]
    assert [row.runs and [*map(dumps_recorded, row.runs)] for row in rows] == [
        runs.get(eval_id) and [*map(dumps_recorded, runs[eval_id])] for eval_id in eval_set.eval_ids
    ]


def test_a_case_with_keys_of_a_row_comes_back_as_it_was(tmp_path: Path) -> None:
    eval_set = EvalSet.model_validate({"eval_set_id": "s", "eval_cases": [case("a") | {"recorded": "no", "case": 3, "run_index": "x"}]})
    for name in ROWS:
        write_cases(CasesInMemory(eval_set), tmp_path / name)
        assert dumps(load_eval_set(tmp_path / name)) == dumps(eval_set)


def test_json_has_no_place_for_what_is_recorded(tmp_path: Path) -> None:
    file = lines(tmp_path / "s.jsonl", [case("a") | {"recorded": [TURN]}])
    with pytest.raises(UsageError, match=r"out.json: ADK's format cannot store the recorded conversation of case 'a'; wanted the suffix"):
        migrate(file, tmp_path / "out.json")
    assert names(tmp_path) == ["s.jsonl"]


def test_a_recording_is_written_beside_its_cases(tmp_path: Path) -> None:
    file = lines(tmp_path / "s.jsonl", [case("a"), case("case-b")])
    runs = {"case-b": [RecordedRun.model_validate(run())]}
    assert migrate(file, tmp_path / "out.parquet", recorded=runs) == 2
    rows = [row for batch in open_cases(tmp_path / "out.parquet").batches() for row in batch]
    assert [row.runs for row in rows] == [None, tuple(runs["case-b"])]
    with pytest.raises(UsageError, match=r"no case in eval set 's': 'case_b' Did you mean 'case-b'"):
        migrate(file, tmp_path / "other.jsonl", recorded={"case_b": runs["case-b"]})
    assert names(tmp_path) == ["out.parquet", "s.jsonl"]


def test_a_selection_keeps_what_is_recorded_of_it(tmp_path: Path) -> None:
    file = lines(tmp_path / "s.jsonl", [case("a") | {"recorded": [TURN]}, case("b") | {"recorded": [TURN]}])
    migrate(f"{file}:b", tmp_path / "out.jsonl")
    assert [(row.case.eval_id, len(row.runs or ())) for batch in open_cases(tmp_path / "out.jsonl").batches() for row in batch] == [
        ("b", 1)
    ]


@pytest.mark.parametrize("name", [*ROWS, "s.json"])
def test_a_file_stays_as_it_was_where_something_is_wrong(tmp_path: Path, name: str) -> None:
    new = tmp_path / "out" / name
    new.parent.mkdir()
    new.write_text("before")
    with pytest.raises(EvalSetError):
        migrate(lines(tmp_path / "s.jsonl", [case("a"), 3]), new)
    assert new.read_text() == "before"
    assert names(new.parent) == [name]


@pytest.mark.parametrize("place", ["no folder/s.jsonl", "folder.jsonl", "memory://s.jsonl"])
def test_what_cannot_be_written_is_one_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(UsageError, match=r"cannot be written|only be written on this machine"):
        migrate(lines(tmp_path / "s.jsonl", [case("a")]), place if ":" in place else tmp_path / place)


def test_rows_may_be_rewritten_in_place(tmp_path: Path) -> None:
    file = lines(tmp_path / "s.jsonl", [case(f"case-{number}") for number in range(1200)])
    assert migrate(file, file) == 1200
    head: Any = json.loads(file.read_text().partition("\n")[0])
    assert (head, open_cases(file).head.eval_set_id) == ({"eval_set_id": "s"}, "s")


@pytest.mark.parametrize("name", ["s.jsonl", "s.parquet"])
@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.evalset.json")), ids=lambda file: file.name)
def test_an_eval_set_that_people_wrote_comes_back_with_its_values_and_its_digest(tmp_path: Path, file: Path, name: str) -> None:
    migrate(file, tmp_path / name)
    migrate(tmp_path / name, tmp_path / "back.json")
    assert json.loads((tmp_path / "back.json").read_bytes()) == json.loads(file.read_bytes())
    assert eval_set_digest(load_eval_set(tmp_path / "back.json")) == eval_set_digest(load_eval_set(file))
    migrate(tmp_path / "back.json", tmp_path / f"again.{name}")
    migrate(tmp_path / f"again.{name}", tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "back.json").read_bytes(), "in our layout, byte for byte"
