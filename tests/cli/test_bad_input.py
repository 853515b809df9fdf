from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.errors import ConfigError, EvalSetError, InputError, Problem, UsageError
from mlflow_adk_eval.evalset.conversation import parse_result
from mlflow_adk_eval.evalset.files import dumps, load_eval_set, parse_eval_set
from mlflow_adk_eval.evalset.models import EvalSet, eval_set_digest
from tests.cli.bad_inputs import CASES, BadInput
from tests.strategies import QUICK, damaged, eval_sets, legacy_cases, legacy_turns

LOADERS: dict[str, Any] = {"evalset": (load_eval_set, EvalSetError), "config": (load_config, ConfigError)}


def load(kind: str, file: Path) -> InputError:
    loader, error = LOADERS[kind]
    with pytest.raises(UsageError) as caught:
        loader(file)
    assert type(caught.value) is error
    assert isinstance(caught.value, InputError)
    return caught.value


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.name)
def test_a_broken_file_is_one_error_that_names_file_place_and_wish(bad: BadInput, tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_bytes(bad.content)
    error = load(bad.kind, file)
    assert error.exit_code == 64
    assert error.source == str(file)
    (line,) = [line for line in str(error).splitlines() if line.startswith(f"  {bad.path}: ")]
    assert bad.says in line
    assert "; wanted " in line
    assert str(error).startswith(f"{file}: {len(error.problems)} problem")
    for leak in ("Traceback", "pydantic", "ValidationError", "errors.pydantic.dev", "type=", "Input should"):
        assert leak not in str(error)
    assert len(str(error)) < 5000


@pytest.mark.parametrize("bad", [bad for bad in CASES if bad.path != "$"], ids=lambda bad: bad.name)
def test_a_single_mistake_is_a_single_problem(bad: BadInput, tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_bytes(bad.content)
    several = {
        "eval set: half a persona": 2, "eval set: legacy list of numbers": 2, "eval set: legacy turn after cases": 2,
        "config: an eval set": 3,
    }  # fmt: skip
    assert len(load(bad.kind, file).problems) == several.get(bad.name, 1)


def test_there_are_enough_of_them_and_each_has_its_own_name() -> None:
    assert len({bad.name for bad in CASES}) == len(CASES) >= 120


@pytest.mark.parametrize("kind", LOADERS)
def test_a_folder_is_no_file(kind: str, tmp_path: Path) -> None:
    assert load(kind, tmp_path).problems == (Problem("$", "a folder", "a file"),)


@pytest.mark.parametrize("kind", LOADERS)
def test_a_file_that_is_not_there(kind: str, tmp_path: Path) -> None:
    problems = load(kind, tmp_path / "nowhere.json").problems
    assert [(one.path, one.found, one.wanted) for one in problems] == [("$", "no such file", "a file that exists")]


@pytest.mark.parametrize("text", [b"", b"[]", b'"{"', b'"x"', b'{"eval_set_id": "s"}', b'{"eval_cases": []}', '"é"'.encode("latin-1")])
def test_a_broken_result_file(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(text)
    with pytest.raises(EvalSetError, match=r"r\.json: . problem"):
        parse_result((tmp_path / "r.json").read_bytes(), "r.json")


@pytest.mark.parametrize("session", ["[]", '{"state": 5}', '{"user_id": 5}', "nonsense", "5", '{"stat": {}}'])
def test_a_broken_session_file_is_named_itself(session: str, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('[{"query": "x"}]', encoding="utf-8")
    (tmp_path / "session.json").write_text(session, encoding="utf-8")
    with pytest.raises(EvalSetError, match=r"session\.json: 1 problem"):
        load_eval_set(tmp_path / "old.json", initial_session=tmp_path / "session.json")


@QUICK
@given(damaged(eval_sets(min_cases=1) | legacy_turns() | legacy_cases()))
def test_whatever_is_damaged_loads_or_is_one_error_with_its_place(value: Any) -> None:
    read = read_or_error(json.dumps(value).encode())
    if isinstance(read, EvalSetError):
        assert read.problems
        assert all(problem.path.startswith("$") and problem.wanted for problem in read.problems)
    else:
        assert parse_eval_set(dumps(read).encode(), "set.json", stem="set").eval_ids == read.eval_ids


def read_or_error(text: bytes) -> EvalSet | EvalSetError:
    try:
        return parse_eval_set(text, "set.json", stem="set")
    except EvalSetError as error:
        return error


def test_many_problems_are_counted_and_the_first_ones_listed() -> None:
    value = {"eval_set_id": "s", "eval_cases": [{"eval_id": index, "conversation": []} for index in range(1000)]}
    with pytest.raises(EvalSetError) as caught:
        parse_eval_set(json.dumps(value).encode(), "set.json", stem="set")
    assert len(caught.value.problems) == 1000
    assert str(caught.value).splitlines()[0] == "set.json: 1,000 problems in this eval set"
    assert str(caught.value).splitlines()[-1] == "  … and 950 more"


def state(text: str) -> Any:
    before, after = '{"eval_set_id": "s", "eval_cases": [{"eval_id": "c", "conversation": [], "final_session_state": {"x": ', "}}]}"
    eval_set = parse_eval_set(f"{before}{text}{after}".encode(), "set.json", stem="set")
    again = parse_eval_set(dumps(eval_set).encode(), "again.json", stem="set")
    assert eval_set_digest(again) == eval_set_digest(eval_set)
    found = again.eval_cases[0].final_session_state
    assert found is not None
    return found["x"]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("9" * 4000, int("9" * 4000)),
        ("1e400", float("inf")),
        ("1e-400", 0.0),
        ("-0", 0),
        ('"\\ud83d\\ude00 \\u0000"', "😀 \0"),
        ('"' + "x" * 1_000_000 + '"', "x" * 1_000_000),
        ("null", None),
    ],
    ids=["4000 digits", "huge float", "tiny float", "minus zero", "surrogate pair", "a million characters", "null"],
)
def test_strange_but_valid_json_is_read_as_adk_reads_it(text: str, read: Any) -> None:
    assert state(text) == read


@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a": ', "}")])
def test_deep_data_is_read_written_and_hashed(left: str, right: str) -> None:
    found = state(left * 180 + "1" + right * 180)
    for _ in range(180):
        (found,) = found.values() if isinstance(found, dict) else found
    assert found == 1
