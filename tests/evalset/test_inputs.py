"""What users name, told once: each kind of input has one tag, and nothing is read to find it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.files import File, JsonFile, RowFiles, Several, file_at, open_file, open_inputs
from mlflow_adk_eval.evalset.models import EvalSet

EMPTY = EvalSet(eval_set_id="s", eval_cases=())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "a.evalset.json",
        "b:c.json",
        "rows.jsonl",
        "parts/1.parquet",
        "tests/a.test.json",
        "tests/in/b.test.json",
        "one/a.test.json",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("this is neither JSON nor Parquet")
    (tmp_path / "run" / "cases").mkdir(parents=True)
    (tmp_path / "run" / "actual").mkdir()
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "rows.jsonl").touch()
    (tmp_path / "both" / "a.test.json").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("source", "inputs"),
    [
        (EMPTY, EMPTY),
        ("a.evalset.json", JsonFile(Path("a.evalset.json"))),
        (Path("a.evalset.json"), JsonFile(Path("a.evalset.json"))),
        (["a.evalset.json"], JsonFile(Path("a.evalset.json"))),
        ("a.evalset.json:x, y", JsonFile(Path("a.evalset.json"), ("x", "y"))),
        ("b:c.json", JsonFile(Path("b:c.json"))),
        ("b:c.json:x", JsonFile(Path("b:c.json"), ("x",))),
        ("nowhere.json", JsonFile(Path("nowhere.json"))),
        ("rows.jsonl", RowFiles(Path("rows.jsonl"))),
        ("rows.jsonl:x", RowFiles(Path("rows.jsonl"), ("x",))),
        ("nowhere.ndjson.zst", RowFiles(Path("nowhere.ndjson.zst"))),
        ("parts", RowFiles(Path("parts"))),
        ("run", RowFiles(Path("run"))),
        ("gs://bucket/s.json", JsonFile("gs://bucket/s.json")),
        ("gs://bucket/s.parquet:x", RowFiles("gs://bucket/s.parquet", ("x",))),
        ("gs://bucket/folder", RowFiles("gs://bucket/folder")),
        ("one", JsonFile(Path("one/a.test.json"))),
        ("both", JsonFile(Path("both/a.test.json"))),
        ("tests", Several((JsonFile(Path("tests/a.test.json")), JsonFile(Path("tests/in/b.test.json"))), Path("tests"))),
        (["a.evalset.json", "rows.jsonl:x"], Several((JsonFile(Path("a.evalset.json")), RowFiles(Path("rows.jsonl"), ("x",))))),
        (["rows.jsonl:x", "rows.jsonl:y,x"], RowFiles(Path("rows.jsonl"), ("x", "y"))),
        (["rows.jsonl:x", Path("rows.jsonl")], RowFiles(Path("rows.jsonl"))),
    ],
    ids=str,
)
def test_each_input_has_a_tag_and_is_not_read(source: Any, inputs: Any) -> None:
    assert open_inputs(source) == inputs
    assert open_inputs(inputs) is inputs


@pytest.mark.usefixtures("here")
def test_a_folder_that_is_selected_from_selects_in_each_of_its_files() -> None:
    inputs = open_inputs("tests:x")
    assert inputs == Several((JsonFile(Path("tests/a.test.json"), ("x",)), JsonFile(Path("tests/in/b.test.json"), ("x",))), Path("tests"))


@pytest.mark.usefixtures("here")
def test_one_file_in_two_spellings_is_one(here: Path) -> None:
    assert open_inputs(["rows.jsonl:x", str(here / "rows.jsonl:y")]) == RowFiles(Path("rows.jsonl"), ("x", "y"))


@pytest.mark.parametrize("source", [3, None, [], [3], {"a": 1}, [EMPTY], json])
def test_anything_else_is_refused(source: Any) -> None:
    with pytest.raises(UsageError, match="an eval set is a path, a folder, several paths or an EvalSet"):
        open_inputs(source)


@pytest.mark.usefixtures("here")
def test_a_folder_without_tests_and_a_selection_without_ids_are_refused() -> None:
    with pytest.raises(UsageError, match=r"run.cases: found no \*\.test\.json file and no spec\.yaml in this folder or its subfolders"):
        open_inputs("run/cases")
    with pytest.raises(UsageError, match="no eval id after the colon"):
        open_inputs("a.evalset.json:")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("file", "folder"),
    [
        (open_file("a.evalset.json"), Path()),
        (file_at("parts/1.parquet"), Path("parts")),
        (RowFiles(Path("parts")), Path("parts")),
        (open_file("gs://bucket/s.json"), None),
    ],
    ids=str,
)
def test_the_config_is_looked_for_beside_what_lies_here(file: File, folder: Path | None) -> None:
    assert file.folder == folder
