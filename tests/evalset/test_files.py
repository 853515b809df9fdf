from __future__ import annotations

import copy
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.agents.turns import invocation_of
from mlflow_adk_eval.errors import EvalSetError, UsageError
from mlflow_adk_eval.evalset.conversion import migrate
from mlflow_adk_eval.evalset.files import load_eval_set, merge, parse_eval_set, select, split_selection, stem_of, write_eval_set
from mlflow_adk_eval.evalset.files import test_files as files_of
from mlflow_adk_eval.evalset.models import EvalSet, SessionInput, eval_set_digest
from mlflow_adk_eval.evalset.parse import no_collection, no_rescanning
from tests.kit import turn_json

TURN = turn_json("hi")
LEGACY_TURNS = [
    {"query": "Hi", "reference": "Hello"},
    {
        "query": "Light off",
        "expected_tool_use": [{"tool_name": "switch", "tool_input": {"on": False}, "mock_tool_output": {"ok": True}}],
        "expected_intermediate_agent_responses": [{"author": "helper", "text": "Switching…"}],
        "reference": "Done.",
    },
]
LEGACY_CASES = [
    {"name": "one", "data": LEGACY_TURNS, "initial_session": {"state": {"room": None}, "app_name": "home", "user_id": "u"}},
    {"name": "two", "data": LEGACY_TURNS[:1], "initial_session": {}},
]


def a_set(*ids: str, name: str = "s") -> dict[str, Any]:
    return {"eval_set_id": name, "eval_cases": [{"eval_id": eval_id, "conversation": [copy.deepcopy(TURN)]} for eval_id in ids]}


def write(path: Path, value: Any, *, prefix: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(prefix + json.dumps(value).encode())
    return path


@pytest.fixture
def set_file(tmp_path: Path) -> Path:
    return write(tmp_path / "set.evalset.json", a_set("a", "b", "c"))


def test_a_file_is_loaded_by_path_or_string(set_file: Path) -> None:
    assert load_eval_set(set_file).eval_ids == load_eval_set(str(set_file)).eval_ids == ("a", "b", "c")


@pytest.mark.parametrize(("ids", "expected"), [("b", ["b"]), ("c,a", ["a", "c"]), (" a , b ,", ["a", "b"]), ("a,a", ["a"])])
def test_a_selection_keeps_the_order_of_the_set(set_file: Path, ids: str, expected: list[str]) -> None:
    assert list(load_eval_set(f"{set_file}:{ids}").eval_ids) == expected


@pytest.mark.parametrize("uri", ["s3://box/a.jsonl", "http://127.0.0.1:80/a.parquet", "gs://box/a.evalset.json", "memory://folder"])
def test_a_uri_stays_as_it_is_though_a_file_has_the_name_of_its_scheme(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / uri.partition(":")[0]).touch()
    assert split_selection(uri) == (uri, ())
    if not uri.endswith("folder"):
        assert split_selection(f"{uri}:x,y:z") == (uri, ("x", "y:z"))


def test_an_unknown_id_in_a_selection_is_an_error_that_names_the_likely_one(tmp_path: Path) -> None:
    """ADK selects nothing, and says nothing."""
    file = write(tmp_path / "set.json", a_set("eval_case_1", "other"))
    with pytest.raises(UsageError, match=r"'eval-case-2' Did you mean 'eval_case_1'\?") as caught:
        load_eval_set(f"{file}:eval-case-2,other,zzz")
    assert "'zzz'" in str(caught.value)
    assert "'other'" not in str(caught.value)


def test_a_long_list_of_unknown_ids_is_cut_short() -> None:
    with pytest.raises(UsageError, match="and 5 more"):
        select(EvalSet.model_validate(a_set("a")), [f"case{index}" for index in range(10)])


def test_text_behind_a_second_colon_is_part_of_the_id(tmp_path: Path) -> None:
    """ADK drops it: of ``set.json:a:b`` it runs ``a``."""
    file = write(tmp_path / "set.json", a_set("a", "a:b"))
    assert load_eval_set(f"{file}:a:b").eval_ids == ("a:b",)
    with pytest.raises(UsageError, match="'a:c'"):
        load_eval_set(f"{file}:a:c")


@pytest.mark.parametrize("name", ["a:b.evalset.json", "C:set.json", "set.json:a"])
def test_an_existing_path_with_colons_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, a_set("a", "b"))
    assert load_eval_set(str(file)).eval_ids == ("a", "b")
    assert load_eval_set(f"{file}:b").eval_ids == ("b",)


def test_the_longest_existing_path_wins(tmp_path: Path) -> None:
    write(tmp_path / "x", a_set("y"))
    longer = write(tmp_path / "x:y", a_set("z"))
    assert split_selection(f"{longer}:z") == (longer, ("z",))


@pytest.mark.parametrize(
    ("path", "file", "ids"),
    [
        ("nowhere.json", "nowhere.json", ()),
        ("nowhere.json:a,b", "nowhere.json", ("a", "b")),
        ("C:\\sets\\nowhere.json:a", "C:\\sets\\nowhere.json", ("a",)),
        ("no:where", "no:where", ()),
    ],
)
def test_of_a_path_that_does_not_exist_the_file_ends_with_json(path: str, file: str, ids: tuple[str, ...]) -> None:
    assert split_selection(path) == (Path(file), ids)


def test_a_path_object_selects_nothing() -> None:
    assert split_selection(Path("set.json:a")) == (Path("set.json:a"), ())


@pytest.mark.parametrize("tail", [":", ": ,", ":,,"])
def test_a_colon_without_an_id_is_an_error(set_file: Path, tail: str) -> None:
    with pytest.raises(UsageError, match="no eval id after the colon"):
        load_eval_set(f"{set_file}{tail}")


def test_loading_leaves_the_garbage_collector_as_it_was(set_file: Path) -> None:
    assert gc.isenabled()
    load_eval_set(set_file)
    assert gc.isenabled()
    with no_collection():
        load_eval_set(set_file)
        assert not gc.isenabled()
    assert gc.isenabled()


def test_much_that_was_read_is_not_scanned_afterwards() -> None:
    """In a process without threads of earlier tests, which make objects too."""
    code = """
import gc
from mlflow_adk_eval.evalset.parse import no_collection

scans = []
with no_collection():
    gc.callbacks.append(lambda phase, _: scans.append(phase))
    much = [[number] for number in range(5000)]
some = [[number] for number in range(50)]
print(scans, len(much), len(some))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] 5000 50\n"


def test_the_answer_of_each_turn_does_not_have_the_whole_heap_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is frozen while a run goes on is all that was imported, and counting it took longer than the turn."""
    counted: list[int] = []
    count = gc.get_freeze_count
    with no_rescanning():
        monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(count()) or counted[-1])
        turns = [invocation_of({"final_response": str(number)}, "answer") for number in range(1000)]
    assert len(turns) == 1000
    assert counted == []


def test_a_path_that_no_system_can_hold_is_one_error() -> None:
    for path in ("x" * 5000 + ".json:a", "a\0b.json"):
        with pytest.raises(EvalSetError, match="wanted a file that"):
            load_eval_set(path)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    """ADK cannot read such a file."""
    assert load_eval_set(write(tmp_path / "set.json", a_set("a"), prefix=b"\xef\xbb\xbf")).eval_ids == ("a",)
    assert load_eval_set(write(tmp_path / "old.json", LEGACY_CASES, prefix=b"\xef\xbb\xbf")).eval_ids == ("one", "two")


def test_an_id_that_occurs_twice_is_an_error_with_both_places(tmp_path: Path) -> None:
    """ADK's file manager scores both against the first reference."""
    file = write(tmp_path / "set.json", a_set("a", "b", "a", "a"))
    with pytest.raises(EvalSetError) as caught:
        load_eval_set(file)
    assert [problem.path for problem in caught.value.problems] == ["$.eval_cases[2].eval_id", "$.eval_cases[3].eval_id"]
    assert "$.eval_cases[0].eval_id" in caught.value.problems[0].found


def test_a_name_that_occurs_twice_in_a_legacy_file_is_named_where_it_stands(tmp_path: Path) -> None:
    with pytest.raises(EvalSetError) as caught:
        load_eval_set(write(tmp_path / "set.json", [LEGACY_CASES[0], LEGACY_CASES[0]]))
    assert [problem.path for problem in caught.value.problems] == ["$[1].name"]


def test_errors_of_a_new_file_are_not_hidden_behind_the_legacy_format(tmp_path: Path) -> None:
    """ADK answers ``TypeError: string indices must be integers``."""
    value = a_set("a")
    value["eval_cases"][0]["conversation"][0]["user_contnt"] = value["eval_cases"][0]["conversation"][0].pop("user_content")
    value["eval_cases"][0]["session_input"] = {"app_name": 5, "user_id": "u"}
    file = write(tmp_path / "set.json", value)
    with pytest.raises(EvalSetError) as caught:
        load_eval_set(file)
    assert {problem.path: (problem.found, problem.hint) for problem in caught.value.problems} == {
        "$.eval_cases[0].conversation[0].user_contnt": ("an unknown key", "Did you mean 'user_content'?"),
        "$.eval_cases[0].session_input.app_name": ("5", ""),
    }
    assert str(caught.value).startswith(f"{file}: 2 problems in this eval set\n")


def test_a_legacy_list_of_cases_is_read(tmp_path: Path) -> None:
    """ADK runs one given by path, then fails to save it, for it takes the path as its id."""
    eval_set = load_eval_set(write(tmp_path / "home.evalset.json", LEGACY_CASES))
    assert (eval_set.eval_set_id, eval_set.name, eval_set.eval_ids) == ("home", "home", ("one", "two"))
    one, two = eval_set.eval_cases
    assert one.session_input == SessionInput(app_name="home", user_id="u", state={"room": None})
    assert two.session_input is None
    assert one.conversation is not None
    turn = one.conversation[1]
    assert (turn.user_text, turn.final_text) == ("Light off", "Done.")
    assert [(call.name, call.args) for call in turn.tool_calls] == [("switch", {"on": False})]


def test_a_legacy_list_of_turns_is_one_case_named_by_its_file(tmp_path: Path) -> None:
    """``adk eval`` answers ``KeyError: 'data'``."""
    eval_set = load_eval_set(write(tmp_path / "lights.test.json", LEGACY_TURNS))
    assert eval_set.eval_ids == ("lights",)
    assert eval_set_digest(select(eval_set, ["lights"])) == eval_set_digest(load_eval_set(f"{tmp_path}/lights.test.json:lights"))


def test_the_same_legacy_file_is_the_same_set_at_each_load(tmp_path: Path) -> None:
    """ADK draws new ids and times."""
    file = write(tmp_path / "lights.test.json", LEGACY_TURNS)
    assert load_eval_set(file) == load_eval_set(file)


def test_a_separate_session_starts_a_list_of_turns(tmp_path: Path) -> None:
    file = write(tmp_path / "lights.test.json", LEGACY_TURNS)
    session = write(tmp_path / "a.session.json", {"id": "ours", "app_name": "home", "user_id": "u", "state": {"x": 1}})
    expected = SessionInput(app_name="home", user_id="u", state={"x": 1})
    assert load_eval_set(file, initial_session=session).eval_cases[0].session_input == expected
    empty = write(tmp_path / "empty.session.json", {})
    assert load_eval_set(file, initial_session=empty).eval_cases[0].session_input is None


def test_a_separate_session_beside_a_new_file_is_an_error(set_file: Path, tmp_path: Path) -> None:
    with pytest.raises(EvalSetError, match="the session inside the cases"):
        load_eval_set(set_file, initial_session=write(tmp_path / "a.session.json", {"state": {"x": 1}}))
    assert load_eval_set(set_file, initial_session=write(tmp_path / "b.session.json", {})).eval_ids == ("a", "b", "c")


def test_an_empty_legacy_list_is_an_empty_set() -> None:
    assert parse_eval_set(b" []", "x", stem="x").eval_cases == ()


def test_migrating_writes_todays_format_with_the_same_demands(tmp_path: Path) -> None:
    old = write(tmp_path / "home.json", LEGACY_CASES)
    assert migrate(old, tmp_path / "new.evalset.json") == 2
    written = json.loads((tmp_path / "new.evalset.json").read_text(encoding="utf-8"))
    assert written["eval_cases"][0]["conversation"][0] == {
        "user_content": {"role": "user", "parts": [{"text": "Hi"}]},
        "final_response": {"role": "model", "parts": [{"text": "Hello"}]},
    }
    again = load_eval_set(tmp_path / "new.evalset.json")
    assert again == load_eval_set(old)
    assert eval_set_digest(again) == eval_set_digest(load_eval_set(old))


def test_a_file_may_be_migrated_in_place(tmp_path: Path) -> None:
    file = write(tmp_path / "lights.test.json", LEGACY_TURNS)
    before = eval_set_digest(load_eval_set(file))
    migrate(file, file)
    assert eval_set_digest(load_eval_set(file)) == before


def test_a_place_that_cannot_be_written_is_a_usage_error(set_file: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "no such folder" / "x.json", tmp_path):
        with pytest.raises(UsageError, match="cannot be written"):
            write_eval_set(load_eval_set(set_file), place)


@pytest.mark.parametrize(
    ("name", "stem"),
    [("a.evalset.json", "a"), ("a.test.json", "a"), ("a.b.json", "a.b"), ("a", "a"), ("a.txt", "a"), (".json", "")],
)
def test_the_stem_is_the_name_without_adks_endings(name: str, stem: str) -> None:
    assert stem_of(Path("folder") / name) == stem


def test_a_folder_gives_its_test_files_sorted_and_all_below(tmp_path: Path) -> None:
    for name in ("b.test.json", "a/z.test.json", "a.test.json", "a/deep/er.test.json", "x.evalset.json", "test_config.json"):
        write(tmp_path / name, a_set("a"))
    (tmp_path / "folder.test.json").mkdir()
    found = [path.relative_to(tmp_path).as_posix() for path in files_of(tmp_path)]
    assert found == ["a/deep/er.test.json", "a/z.test.json", "a.test.json", "b.test.json"]


def test_a_folder_without_test_files_is_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match=r"no \*\.test\.json file"):
            files_of(folder)


def test_merging_keeps_the_order_and_prefixes_only_the_ids_that_collide() -> None:
    parts = [(name, EvalSet.model_validate(a_set(*ids))) for name, ids in (("x.json", "ab"), ("y.json", "bc"))]
    merged, ids = merge("both", parts)
    assert merged.eval_ids == ("a", "x.json:b", "y.json:b", "c")
    assert ids == {"x.json": ["a", "x.json:b"], "y.json": ["y.json:b", "c"]}
    assert merged.eval_set_id == "both"
    assert select(merged, ["y.json:b"]).eval_ids == ("y.json:b",)


@pytest.mark.parametrize("parts", [[("x", "a"), ("x", "b")], [("x", ("a", "y:b")), ("y", "b"), ("z", "b")]])
def test_merging_refuses_what_it_cannot_tell_apart(parts: Any) -> None:
    with pytest.raises(UsageError, match="have the same names"):
        merge("all", [(name, EvalSet.model_validate(a_set(*ids))) for name, ids in parts])


def test_a_file_whose_name_is_nearly_right_is_named(tmp_path: Path) -> None:
    (tmp_path / "lamps.evalset.json").write_text("{}")
    with pytest.raises(EvalSetError, match=r"no such file; wanted a file that exists\. Did you mean 'lamps\.evalset\.json'\?"):
        load_eval_set(tmp_path / "lamp.evalset.json")
