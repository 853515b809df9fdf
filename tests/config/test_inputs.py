from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
import pytest

from mlflow_adk_eval.config.eval_config import default_config, load_config
from mlflow_adk_eval.config.inputs import load_inputs
from mlflow_adk_eval.errors import ConfigError, EvalSetError, UsageError
from mlflow_adk_eval.evalset.files import dump, write_eval_set
from mlflow_adk_eval.results.report import COMPARED_WITH_ITSELF
from mlflow_adk_eval.runner.recordings import score
from tests.agents.environments import ERROR, injecting
from tests.kit import RESPONSE, TRAJECTORY, case, cases, scenario, turn

LENGTH = {"my_metric": {"code_config": {"name": "tests.criteria.user_metrics.answer_length"}}}


def write_set(path: Path, *eval_ids: str, eval_set_id: str = "set") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_eval_set(cases(*(case(eval_id, turn(f"answer {eval_id}")) for eval_id in eval_ids), eval_set_id=eval_set_id), path)
    return path


def write_config(folder: Path, criteria: Mapping[str, Any] | None = None, **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "test_config.json"
    path.write_text(json.dumps({"criteria": criteria or {RESPONSE: 0.5}} | more))
    return path


def ids(*sources: str | Path) -> list[str]:
    return list(load_inputs([*sources])[0].eval_ids)


# One file


def test_a_file_is_judged_by_the_config_beside_it(tmp_path: Path) -> None:
    file = write_set(tmp_path / "a.evalset.json", "a")
    assert load_inputs(file)[1] == default_config()
    write_config(tmp_path)
    for source in (file, str(file), f"{file}:a"):
        assert load_inputs(source)[1].criteria_of("a")[RESPONSE].threshold == 0.5


@pytest.mark.parametrize("kind", ["path", "text", "dict", "object"])
def test_a_config_that_is_named_is_used_instead(tmp_path: Path, kind: str) -> None:
    file = write_set(tmp_path / "a.evalset.json", "a")
    write_config(tmp_path)
    other = write_config(tmp_path / "other", {TRAJECTORY: 0.25})
    given = {"path": other, "text": str(other), "dict": {"criteria": {TRAJECTORY: 0.25}}, "object": load_config(other)}[kind]
    assert list(load_inputs(file, given)[1].criteria) == [TRAJECTORY]


def test_a_named_config_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_inputs(write_set(tmp_path / "a.evalset.json", "a"), tmp_path / "nowhere.json")


def test_a_set_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvalSetError, match="no such file"):
        load_inputs(tmp_path / "nowhere.evalset.json")


def test_a_selection_keeps_its_cases(tmp_path: Path) -> None:
    file = write_set(tmp_path / "a.evalset.json", "a", "b", "c")
    assert ids(f"{file}:c,a") == ["a", "c"]
    with pytest.raises(UsageError, match="has no case 'd'"):
        ids(f"{file}:d")


def test_an_eval_set_object_is_judged_by_adks_defaults() -> None:
    eval_set = cases(case("a", turn()))
    assert load_inputs(eval_set) == (eval_set, default_config())


@pytest.mark.parametrize("source", [3, None, [], [3], {"a": 1}])
def test_anything_else_is_refused(source: Any) -> None:
    with pytest.raises(UsageError, match="an eval set is a path, a folder, several paths or an EvalSet"):
        load_inputs(source)


# Several selections


def test_all_plus_some_of_one_file_is_all(tmp_path: Path) -> None:
    file = write_set(tmp_path / "a.evalset.json", "a", "b", "c")
    assert ids(file, f"{file}:a") == ["a", "b", "c"]
    assert ids(f"{file}:a", file) == ["a", "b", "c"]
    assert ids(f"{file}:c", f"{file}:a") == ["a", "c"]


def test_one_file_named_in_two_ways_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(tmp_path / "a.evalset.json", "a", "b")
    monkeypatch.chdir(tmp_path)
    assert ids("a.evalset.json:a", str(tmp_path / "a.evalset.json:b")) == ["a", "b"]


def test_several_files_are_one_set_and_ids_that_collide_are_prefixed(tmp_path: Path) -> None:
    first, second = write_set(tmp_path / "one.evalset.json", "a", "b"), write_set(tmp_path / "two.evalset.json", "b", "c")
    assert ids(first, second) == ["a", "one.evalset.json:b", "two.evalset.json:b", "c"]
    assert ids(f"{first}:b", f"{second}:c") == ["b", "c"]


def test_files_of_one_name_in_two_folders_are_two_files(tmp_path: Path) -> None:
    first, second = write_set(tmp_path / "x" / "s.evalset.json", "a"), write_set(tmp_path / "y" / "s.evalset.json", "a")
    assert ids(first, second) == [f"{first.as_posix()}:a", f"{second.as_posix()}:a"]


def test_several_files_are_named_by_all_their_ids(tmp_path: Path) -> None:
    first = write_set(tmp_path / "one.evalset.json", "a", eval_set_id="kitchen")
    second = write_set(tmp_path / "two.evalset.json", "b", eval_set_id="garden")
    assert load_inputs([first, second])[0].eval_set_id == "kitchen+garden"


# Folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tests in three folders, of which two have a config."""
    root = tmp_path / "tests"
    write_set(root / "a.test.json", "case")
    write_set(root / "z" / "b.test.json", "case", "other")
    write_set(root / "m" / "c.test.json", "third")
    write_config(root / "z", {TRAJECTORY: 0.25, RESPONSE: 0.75})
    write_config(root / "m", {"my_metric": {"threshold": 0.5, "longest": 10}}, custom_metrics=LENGTH)
    return root


def test_a_folder_is_a_set_in_which_each_file_keeps_its_own_config(folder: Path) -> None:
    eval_set, config = load_inputs(folder)
    assert eval_set.eval_set_id == "tests"
    assert eval_set.eval_ids == ("a.test.json:case", "third", "z/b.test.json:case", "other")
    assert {eval_id: list(config.criteria_of(eval_id)) for eval_id in eval_set.eval_ids} == {
        "a.test.json:case": [TRAJECTORY, RESPONSE],
        "third": ["my_metric"],
        "z/b.test.json:case": [TRAJECTORY, RESPONSE],
        "other": [TRAJECTORY, RESPONSE],
    }
    assert config.criteria_of("a.test.json:case")[RESPONSE].threshold == 0.8
    assert config.criteria_of("other")[RESPONSE].threshold == 0.75


def test_the_config_of_a_folder_can_be_written_and_read(folder: Path) -> None:
    config = load_inputs(folder)[1]
    assert load_config(config.to_json()) == config


def test_a_folder_is_judged_case_by_case(folder: Path) -> None:
    eval_set, _ = load_inputs(folder)
    report = score(folder, eval_set)
    third = report.cases[1]
    assert (third.eval_id, third.results[0].criterion, third.results[0].score) == (
        "third",
        "my_metric",
        pytest.approx(len("answer third") / 10),
    )
    assert report.passed
    assert report.criteria[:3] == (TRAJECTORY, RESPONSE, "my_metric")


def test_a_folder_of_one_file_is_that_file(tmp_path: Path) -> None:
    write_set(tmp_path / "only.test.json", "a", eval_set_id="only_one")
    assert load_inputs(tmp_path)[0].eval_set_id == "only_one"


def test_a_named_config_judges_all_of_a_folder(folder: Path) -> None:
    config = load_inputs(folder, {"criteria": {RESPONSE: 0.1}})[1]
    assert not config.case_criteria
    assert list(config.criteria) == [RESPONSE]


def test_criteria_of_single_cases_follow_the_cases_new_names(tmp_path: Path) -> None:
    write_set(tmp_path / "a" / "x.test.json", "same")
    write_set(tmp_path / "b" / "x.test.json", "same")
    write_config(tmp_path / "b", {RESPONSE: 0.5}, case_criteria={"same": {TRAJECTORY: 0.25}})
    config = load_inputs(tmp_path)[1]
    assert config.criteria_of("a/x.test.json:same") == default_config().criteria
    assert list(config.criteria_of("b/x.test.json:same")) == [TRAJECTORY]


def test_what_the_config_says_of_cases_that_are_not_selected_is_no_mistake(tmp_path: Path) -> None:
    write_set(tmp_path / "x.test.json", "one", "two")
    write_config(tmp_path, case_criteria={"two": {RESPONSE: 0.1}}, case_environments={"two": injecting(book=ERROR)})
    config = load_inputs(f"{tmp_path / 'x.test.json'}:one")[1]
    assert (config.case_criteria, config.case_environments) == ({}, {})
    assert list(load_inputs(f"{tmp_path / 'x.test.json'}:two")[1].case_criteria) == ["two"]


def test_tools_of_each_file_and_of_single_cases_follow_the_cases_new_names(tmp_path: Path) -> None:
    tools = {name: injecting(**{name: ERROR}) for name in ("book", "find")}
    for folder in "abc":
        write_set(tmp_path / folder / "x.test.json", "same", "other")
    write_config(tmp_path / "a", environment_simulation_config=tools["book"])
    write_config(tmp_path / "b", case_environments={"same": tools["find"]})
    config = load_inputs(tmp_path)[1]
    found = {eval_id: config.environment_of(eval_id) for eval_id in load_inputs(tmp_path)[0].eval_ids}
    named = {eval_id: environment and environment.tool_simulation_configs[0].tool_name for eval_id, environment in found.items()}
    assert named == {
        "a/x.test.json:same": "book", "a/x.test.json:other": "book", "b/x.test.json:same": "find",
        "b/x.test.json:other": None, "c/x.test.json:same": None, "c/x.test.json:other": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        (
            {"criteria": {"my_metric": 0.5}, "custom_metrics": LENGTH},
            {
                "criteria": {"my_metric": 0.5},
                "custom_metrics": {"my_metric": {"code_config": {"name": "tests.criteria.user_metrics.slow"}}},
            },
            "$.custom_metrics.my_metric",
        ),
        ({"criteria": {RESPONSE: 1}}, {"criteria": {RESPONSE: 1}, "live_model_config": {"timeout_seconds": 3}}, "$.live_model_config"),
        (
            {"criteria": {RESPONSE: 1}, "user_simulator_config": {"model": "a"}},
            {"criteria": {RESPONSE: 1}, "user_simulator_config": {"model": "b"}},
            "$.user_simulator_config",
        ),
    ],
)
def test_configs_that_contradict_each_other_are_an_error(tmp_path: Path, first: Any, second: Any, field: str) -> None:
    for name, value in (("a", first), ("b", second)):
        write_set(tmp_path / name / f"{name}.test.json", name)
        if "user_simulator_config" in value:
            write_eval_set(cases(scenario(name), eval_set_id="set"), tmp_path / name / f"{name}.test.json")
        (tmp_path / name / "test_config.json").write_text(json.dumps(value))
    with pytest.raises(ConfigError) as caught:
        load_inputs(tmp_path)
    assert caught.value.source == str(tmp_path / "b")
    assert [problem.path for problem in caught.value.problems] == [field]


def test_who_plays_users_is_said_by_the_files_that_have_scenarios(tmp_path: Path) -> None:
    write_set(tmp_path / "a" / "written.test.json", "one")
    write_config(tmp_path / "a", user_simulator_config={"model": "never asked"})
    write_eval_set(cases(scenario("two")), write_config(tmp_path / "b", user_simulator_config={"model": "asked"}).with_name("s.test.json"))
    simulator = load_inputs(tmp_path)[1].user_simulator_config
    assert simulator is not None
    assert simulator.model == "asked"


# Rows of JSON Lines and Parquet


def write_rows(path: Path, *eval_ids: str, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(dump(case(eval_id, turn(f"answer {eval_id}"))) | more) + "\n" for eval_id in eval_ids))
    return path


def test_rows_are_judged_by_the_config_beside_them(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "a.jsonl", "a", "b")
    write_config(tmp_path)
    for source in (file, str(file), f"{file}:b"):
        assert load_inputs(source)[1].criteria_of("b")[RESPONSE].threshold == 0.5
    assert ids(f"{file}:b") == ["b"]
    assert load_inputs(file)[0].eval_set_id == "a"


def test_a_folder_of_rows_is_one_set_with_the_config_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_rows(folder / "part-1.jsonl", "a")
    write_rows(folder / "part-2.jsonl", "b")
    write_config(folder)
    loaded, config = load_inputs(folder)
    assert (loaded.eval_set_id, loaded.eval_ids, config.criteria_of("b")[RESPONSE].threshold) == ("set", ("a", "b"), 0.5)
    assert ids(f"{folder}:b") == ["b"]


def test_tests_go_before_rows_that_lie_beside_them(tmp_path: Path) -> None:
    write_rows(tmp_path / "data.jsonl", "row")
    write_set(tmp_path / "one.test.json", "test")
    assert ids(tmp_path) == ["test"]


def test_files_of_all_formats_make_one_set(tmp_path: Path) -> None:
    file = write_set(tmp_path / "a.evalset.json", "a", "same")
    rows = write_rows(tmp_path / "b.jsonl", "b", "same")
    assert ids(file, rows, f"{rows}:b") == ["a", "a.evalset.json:same", "b", "b.jsonl:same"]


def test_a_set_elsewhere_is_named_by_its_uri(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/sets/a.jsonl", write_rows(tmp_path / "a.jsonl", "a", "b").read_bytes())
    memory.pipe("/sets/c.evalset.json", write_set(tmp_path / "c.evalset.json", "c").read_bytes())
    assert ids("memory://sets/a.jsonl", "memory://sets/c.evalset.json") == ["a", "b", "c"]
    assert ids("memory://sets/a.jsonl:b") == ["b"]
    assert ids("memory://sets") == ["a", "b"]
    with pytest.raises(EvalSetError, match=r"memory://sets/none\.evalset\.json: 1 problem(?s:.)*no such file"):
        ids("memory://sets/none.evalset.json")


def test_a_file_system_that_is_not_installed_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"reading abfs://box/a.jsonl needs the extra `remote`: pip install 'mlflow-adk-eval\[remote\]'"):
        ids("abfs://box/a.jsonl")
    with pytest.raises(EvalSetError, match="Protocol not known: nowhere"):
        ids("nowhere://box/a.jsonl")


def test_rows_with_what_is_recorded_are_their_own_recording(tmp_path: Path) -> None:
    runs = [dump(turn("answer a"))]
    file = write_rows(tmp_path / "a.jsonl", "a", "b", recorded=runs)
    write_config(tmp_path)
    picked = "1 of 2 cases of the eval set, picked by name: a"
    for source, mean, cases_of_it, notes in ((file, 0.75, 2, ()), (f"{file}:a", 1.0, 1, (picked, COMPARED_WITH_ITSELF))):
        report = score(source)
        assert report.summaries()[RESPONSE].mean == pytest.approx(mean)
        assert (len(report.cases), report.notes) == (cases_of_it, notes)


@pytest.mark.parametrize("name", ["a.jsonl", "a.evalset.json"])
def test_without_anything_recorded_it_must_be_said_what_the_agent_did(tmp_path: Path, name: str) -> None:
    file = write_rows(tmp_path / name, "a") if name.endswith("l") else write_set(tmp_path / name, "a")
    with pytest.raises(UsageError, match="actual: the rows contain no conversations"):
        score(file)
