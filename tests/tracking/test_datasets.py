"""Eval sets in MLflow's own stores: what arrives, what comes back, what an update does, and what MLflow makes of it."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlflow
import pytest
from hypothesis import HealthCheck, given
from mlflow import MlflowClient
from mlflow.genai.datasets import EvaluationDataset, create_dataset, get_dataset

from mlflow_adk_eval.errors import EvalSetError, TrackingError, UsageError
from mlflow_adk_eval.evalset.files import DatasetInput, dumps, load_eval_set, open_inputs, parse_eval_set, write_eval_set
from mlflow_adk_eval.evalset.models import EvalSet, eval_set_digest
from mlflow_adk_eval.tracking.eval_set_datasets import (
    DIGEST,
    FIELDS,
    DatasetOrigin,
    contents_of,
    keep_as_dataset,
    pull_eval_set,
    push_eval_set,
)
from mlflow_adk_eval.tracking.evaluate import evaluate
from tests.kit import turn_json
from tests.mlflow_kit import Server, copied, free_port
from tests.profiles import examples
from tests.servers.proxy import Fault, Proxy
from tests.strategies import eval_sets
from tests.tracking.small import CONFIG, answering, many, rooms

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "adk"
SMALL = examples(8, *HealthCheck)


@pytest.fixture(scope="module")
def shared(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One store for this module, for which MLflow is configured; each test has datasets of its own names."""
    folder = tmp_path_factory.mktemp("datasets")
    before = Path.cwd()
    os.chdir(folder)
    os.environ["MLFLOW_TRACKING_URI"] = uri = copied(template, folder)
    yield uri
    del os.environ["MLFLOW_TRACKING_URI"]
    os.chdir(before)


@pytest.fixture(params=["sqlite", pytest.param("http", marks=pytest.mark.slow)])
def uri(request: pytest.FixtureRequest) -> str:
    """A store of either kind."""
    return request.getfixturevalue("shared") if request.param == "sqlite" else request.getfixturevalue("server").uri


def named(name: str, eval_set: EvalSet | None = None) -> EvalSet:
    return (eval_set or rooms()).model_copy(update={"eval_set_id": name})


def opened(dataset: Any) -> DatasetInput:
    inputs = open_inputs(dataset)
    assert isinstance(inputs, DatasetInput)
    return inputs


def odd(name: str) -> EvalSet:
    """Everything that a store may stumble over."""
    calls = [{"name": "東京", "args": {"null": None, "int": 1, "float": 1.0, "big": 2**70, "zero": -0.0, "nul": "\0", "half": "\ud83d"}}]
    said = {"user_content": {"parts": [{"text": "👩‍👩‍👧 {{x}} $y"}]}, "intermediate_data": {"tool_uses": calls}, "unknown": {"a": [None]}}
    session = {"app_name": "a", "user_id": "u", "state": {"deep": [[{}]], "": None}}
    written = {
        "eval_id": "sp/ace 'q\" é",
        "conversation": [said],
        "session_input": session,
        "final_session_state": {"n": None},
        "new": None,
    }
    led = {"eval_id": "led", "conversation_scenario": {"starting_prompt": "hi", "conversation_plan": "p", "user_persona": "NOVICE"}}
    large = {"eval_id": "large", "conversation": [turn_json("x" * 3_000_000)]}
    fields = {"description": "d" * 12_345, "creation_timestamp": 1.5, "mine": {"k": [1, None, "ü"]}}
    return EvalSet.model_validate({"eval_set_id": name, "name": None, **fields, "eval_cases": [written, led, large]})


def test_an_eval_set_comes_back_as_it_was(uri: str) -> None:
    for eval_set in (odd("odd"), named("plain"), named("empty", EvalSet(eval_set_id="", eval_cases=()))):
        dataset = push_eval_set(eval_set, tracking_uri=uri)

        back = pull_eval_set(dataset, tracking_uri=uri)

        assert isinstance(dataset, EvaluationDataset)
        assert back == eval_set
        assert back.model_dump(mode="json") == eval_set.model_dump(mode="json")
        assert eval_set_digest(back) == eval_set_digest(eval_set) == dataset.tags["adk_eval.eval_set_digest"]


@SMALL
@given(value=eval_sets())
def test_whatever_was_there_before(shared: str, value: Any) -> None:
    eval_set = parse_eval_set(json.dumps(value).encode(), "s", stem="s")

    push_eval_set(eval_set, "changing", tracking_uri=shared)

    assert pull_eval_set("changing", tracking_uri=shared) == eval_set


def test_adks_own_eval_sets_come_back_as_they_are(shared: str) -> None:
    files = sorted(path for path in DATA.rglob("*.json") if path.name.endswith((".test.json", ".evalset.json")))
    if not files:
        pytest.skip("ADK's sample files are not at ../shared/data/adk beside the project")
    for file in files[::8]:
        dataset = push_eval_set(file, "adk's own", tracking_uri=shared)
        assert pull_eval_set(dataset, tracking_uri=shared) == load_eval_set(file)
        assert eval_set_digest(pull_eval_set(dataset, tracking_uri=shared)) == eval_set_digest(load_eval_set(file))


def test_an_update_adds_changes_deletes_and_reorders(uri: str) -> None:
    first = push_eval_set(named("updated"), tracking_uri=uri)
    light, heat, both = rooms().eval_cases
    other = light.model_copy(update={"session_input": None, "eval_id": "new", "conversation": (light.conversation or ())[:1]})
    silent = both.model_copy(
        update={"conversation": tuple(one.model_copy(update={"final_response": None}) for one in both.conversation or ())}
    )
    changed = EvalSet(eval_set_id="updated", description="second", eval_cases=(silent, other, heat))

    second = push_eval_set(changed, tracking_uri=uri)

    assert second.dataset_id == first.dataset_id
    assert second.digest != first.digest
    assert pull_eval_set("updated", tracking_uri=uri) == changed


def test_what_has_not_changed_is_not_written(uri: str) -> None:
    first = push_eval_set(named("same"), tracking_uri=uri)
    time.sleep(0.01)  # MLflow's digest is made of the time of the last change, in milliseconds

    second = push_eval_set(named("same"), tracking_uri=uri)

    assert (second.digest, second.last_update_time) == (first.digest, first.last_update_time)


def test_mere_deletions_and_descriptions_change_the_digest_too(uri: str) -> None:
    seen = {push_eval_set(named("fewer"), tracking_uri=uri).digest}
    fewer = named("fewer").model_copy(update={"eval_cases": rooms().eval_cases[:2]})
    for eval_set in (fewer, fewer.model_copy(update={"description": "two"}), fewer.model_copy(update={"eval_cases": ()})):
        time.sleep(0.01)
        seen.add(push_eval_set(eval_set, tracking_uri=uri).digest)
        assert pull_eval_set("fewer", tracking_uri=uri) == eval_set

    assert len(seen) == 4


def test_fields_that_shrink_leave_nothing_behind(shared: str) -> None:
    push_eval_set(odd("shrinking"), tracking_uri=shared)

    dataset = push_eval_set(named("shrinking"), tracking_uri=shared)

    assert {key: value for key, value in dataset.tags.items() if key.startswith("adk_eval.eval_set")} == {
        "adk_eval.eval_set": '{"eval_set_id": "shrinking"}',
        "adk_eval.eval_set_digest": eval_set_digest(rooms()),
    }
    assert pull_eval_set(dataset, tracking_uri=shared) == named("shrinking")


@pytest.mark.parametrize("name", ["it's", 'say "hi"', "both ' and \"", "per%cent", "back\\slash", "a`b", "ü 😀", "line\nbreak"])
def test_any_name_is_found_again(shared: str, name: str) -> None:
    first = push_eval_set(rooms(), name, tracking_uri=shared)

    assert push_eval_set(rooms(), name, tracking_uri=shared).dataset_id == first.dataset_id
    assert pull_eval_set(name, tracking_uri=shared) == rooms()


def test_a_file_and_a_selection_of_it_can_be_pushed(shared: str, tmp_path: Path) -> None:
    file = tmp_path / "rooms.evalset.json"
    write_eval_set(rooms(), file)
    (tmp_path / "test_config.json").write_text("{}")

    dataset = push_eval_set(f"{file}:heat", "selected", tracking_uri=shared)

    assert pull_eval_set(dataset, tracking_uri=shared).eval_ids == ("heat",)


@pytest.mark.usefixtures("shared")
def test_what_users_add_and_edit_in_mlflow_is_pulled() -> None:
    dataset = push_eval_set(named("edited"))
    heat = pull_eval_set("edited").eval_cases[1]
    inputs = next(one for one in dataset.to_df()["inputs"] if one["eval_id"] == "heat")

    get_dataset(name="edited").merge_records([
        {"inputs": inputs, "expectations": {"expected_response": "21 degrees it is"}},
        {"inputs": {"question": "warmer"}, "expectations": {"expected_response": "22 degrees", "guidelines": ["be brief"]}},
    ])  # fmt: skip
    back = pull_eval_set(dataset)

    assert [case.eval_id for case in back.eval_cases[:3]] == ["light", "heat", "both"]
    assert [(one.user_text, one.final_text) for one in back.eval_cases[1].conversation or ()] == [("21 degrees please", "21 degrees it is")]
    assert [(one.user_text, one.final_text) for one in back.eval_cases[3].conversation or ()] == [("warmer", "22 degrees")]
    assert back.eval_cases[3].eval_id.startswith("dr-")
    assert (heat.conversation or ())[0].final_text == "it is set to 21 degrees"
    assert pull_eval_set(push_eval_set(back)) == back


@pytest.mark.usefixtures("shared")
def test_a_record_that_is_no_case_is_refused_by_its_id() -> None:
    dataset = create_dataset("not ours", experiment_id="0")
    dataset.merge_records([{"inputs": {"question": "hi", "context": "all of it"}}])
    (record_id,) = dataset.to_df()["dataset_record_id"]

    with pytest.raises(
        EvalSetError, match=rf"dataset 'not ours': 1 problem .*\n  record {record_id}, \$\.inputs: found inputs named context"
    ):
        pull_eval_set(dataset)


@pytest.mark.usefixtures("shared")
def test_a_dataset_of_somebody_elses_is_not_overwritten_by_its_name() -> None:
    theirs = create_dataset("theirs", experiment_id="0")
    theirs.merge_records([{"inputs": {"q": "hi"}, "expectations": {"expected_response": "ho"}}])

    with pytest.raises(UsageError, match=f"records that did not come from an eval set.*{theirs.dataset_id}"):
        push_eval_set(named("theirs"))

    assert [(case.conversation or ())[0].user_text for case in pull_eval_set("theirs").eval_cases] == ["hi"]
    assert pull_eval_set("theirs").eval_set_id == "theirs"
    assert pull_eval_set(push_eval_set(named("ours"), theirs.dataset_id)) == named("ours")


@pytest.mark.usefixtures("shared")
def test_deleting_what_others_added_is_said(caplog: pytest.LogCaptureFixture) -> None:
    dataset = push_eval_set(named("visited"))
    dataset.merge_records([{"inputs": {"q": "hi"}}])

    push_eval_set(named("visited"))

    assert "dataset 'visited': deleting 1 records that were added in MLflow" in caplog.text
    assert pull_eval_set("visited") == named("visited")


@pytest.mark.usefixtures("shared")
def test_of_namesakes_the_one_in_the_experiment_counts_and_else_none() -> None:
    client = MlflowClient()
    homes = [client.create_experiment(f"home of twins {number}") for number in range(2)]
    twins = [create_dataset("twin", experiment_id=home) for home in homes]

    with pytest.raises(UsageError, match=f"2 datasets are named 'twin': {twins[0].dataset_id}, {twins[1].dataset_id}"):
        push_eval_set(named("twin"))
    pushed = push_eval_set(named("twin"), experiment="home of twins 1")

    assert pushed.dataset_id == twins[1].dataset_id
    assert pull_eval_set("twin", experiment="home of twins 1") == named("twin")
    assert pull_eval_set("twin", experiment=homes[0]).eval_cases == ()
    assert pull_eval_set(twins[1].dataset_id) == named("twin")
    with pytest.raises(UsageError, match="2 datasets are named 'twin'"):
        pull_eval_set("twin")


@pytest.mark.usefixtures("shared")
def test_a_dataset_joins_the_experiment_that_is_named() -> None:
    first = push_eval_set(named("joining"))

    second = push_eval_set(named("joining"), experiment="a second home")

    home = MlflowClient().get_experiment_by_name("a second home")
    assert home is not None
    assert second.dataset_id == first.dataset_id
    assert sorted(second.experiment_ids) == ["0", home.experiment_id]


@pytest.mark.usefixtures("shared")
def test_what_does_not_exist_is_said() -> None:
    with pytest.raises(UsageError, match=r"there is no dataset 'nowhere'$"):
        pull_eval_set("nowhere")
    with pytest.raises(UsageError, match="dataset d-00000000000000000000000000000000 does not exist"):
        pull_eval_set("d-" + 32 * "0")
    with pytest.raises(UsageError, match="not 5"):
        pull_eval_set(5)
    with pytest.raises(UsageError, match="wanted 1 to 255 characters"):
        push_eval_set(rooms(), " ")
    push_eval_set(named("somewhere"))
    with pytest.raises(UsageError, match="there is no dataset 'somewhere' in experiment 'another'"):
        pull_eval_set("somewhere", experiment="another")


def test_a_store_that_does_not_answer_is_said() -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"

    for call in (lambda: push_eval_set(rooms(), tracking_uri=nowhere), lambda: pull_eval_set("rooms", tracking_uri=nowhere)):
        with pytest.raises(TrackingError, match="cannot be reached"):
            call()


def test_a_store_that_loses_a_record_is_found_out(store: str) -> None:
    push_eval_set(EvalSet(eval_set_id="rooms", eval_cases=()), tracking_uri=store)
    with sqlite3.connect(store.removeprefix("sqlite:///")) as database:
        of_heat = "json_extract(new.inputs, '$.eval_id') = 'heat'"
        delete = "DELETE FROM evaluation_dataset_records WHERE dataset_record_id = new.dataset_record_id"
        database.execute(f"CREATE TRIGGER lose AFTER INSERT ON evaluation_dataset_records WHEN {of_heat} BEGIN {delete}; END")
    database.close()

    with pytest.raises(TrackingError, match="was not stored correctly: 1 of 3 records are missing"):
        push_eval_set(rooms(), tracking_uri=store)


def test_fields_that_somebody_has_broken_are_not_guessed(shared: str) -> None:
    dataset = push_eval_set(named("broken"), tracking_uri=shared)
    MlflowClient(shared).set_dataset_tags(dataset.dataset_id, {"adk_eval.eval_set": '{"eval_set_id": '})

    with pytest.raises(EvalSetError, match=r"dataset 'broken': .*\n  tag adk_eval\.eval_set: found something other than a pushed case"):
        pull_eval_set(dataset, tracking_uri=shared)


@pytest.mark.usefixtures("shared")
def test_a_dataset_of_another_store_brings_its_records_along(store: str) -> None:
    dataset = push_eval_set(named("elsewhere"), tracking_uri=store)

    assert sorted(inputs["eval_id"] for inputs in dataset.to_df()["inputs"]) == ["both", "heat", "light"]
    assert contents_of(opened(dataset), tracking_uri=store)[0] == named("elsewhere")


@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning")  # MLflow's own, when it is first imported
@pytest.mark.usefixtures("shared")
def test_mlflow_evaluates_on_it_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_GENAI_EVAL_MAX_WORKERS", "1")
    dataset = push_eval_set(named("for mlflow"))

    @mlflow.genai.scorer
    def echoes(outputs: str, expectations: dict[str, Any]) -> bool:
        return outputs == expectations["eval_case"]["eval_id"] and "expected_response" in expectations

    result = mlflow.genai.evaluate(data=dataset, predict_fn=lambda eval_id, messages: eval_id, scorers=[echoes])

    run = mlflow.get_run(result.run_id)
    (logged,) = run.inputs.dataset_inputs
    origin = contents_of(opened(dataset))[1]
    assert result.metrics == {"echoes/mean": 1.0}
    assert (logged.dataset.source_type, logged.dataset.name) == (origin.source_type, origin.name)
    assert json.loads(logged.dataset.source) == json.loads(origin.source) == {"dataset_id": dataset.dataset_id}


@pytest.mark.usefixtures("shared")
def test_our_own_evaluation_takes_it_and_links_to_it() -> None:
    dataset = push_eval_set(named("for us"))

    report = evaluate(dataset, answering(rooms()), CONFIG, experiment="for us")

    (logged,) = mlflow.get_run(report.run_id).inputs.dataset_inputs
    assert report.passed
    assert report.eval_set == named("for us")
    assert (logged.dataset.source_type, logged.dataset.name) == ("mlflow_evaluation_dataset", "for us")
    assert json.loads(logged.dataset.source) == {"dataset_id": dataset.dataset_id}


@pytest.mark.usefixtures("shared")
def test_datasets_are_told_from_all_else() -> None:
    dataset = push_eval_set(named("told"))
    entity = MlflowClient().get_dataset(dataset.dataset_id)
    source = json.dumps({"dataset_id": dataset.dataset_id})

    for one in (dataset, entity):
        assert contents_of(opened(one)) == (named("told"), DatasetOrigin("mlflow_evaluation_dataset", source, "told"))
    for other in ("path.evalset.json", Path("x.json"), rooms(), ["a", "b"]):
        assert not isinstance(open_inputs(other), DatasetInput)
    for other in (None, mlflow.data.from_numpy(__import__("numpy").zeros(1))):
        with pytest.raises(UsageError, match="an eval set is a path, a folder, several paths or an EvalSet"):
            open_inputs(other)


def test_a_dataset_of_an_eval_set_file_is_its_eval_set(tmp_path: Path) -> None:
    file = tmp_path / "rooms.evalset.json"
    file.write_text(dumps(rooms()))

    dataset = mlflow.data.from_adk_evalset(str(file))

    contents, origin = contents_of(opened(dataset))
    assert contents == rooms()
    assert (origin.source_type, origin.name) == ("adk_evalset", dataset.name)
    assert str(file) in origin.source


@pytest.mark.slow
def test_more_cases_than_mlflow_gives_at_once_are_pushed_and_pulled(server: Server) -> None:
    dataset = push_eval_set(many(1001), tracking_uri=server.uri)

    assert pull_eval_set(dataset, tracking_uri=server.uri) == many(1001)
    assert eval_set_digest(pull_eval_set(dataset, tracking_uri=server.uri)) == eval_set_digest(many(1001))


def link(report: Any, uri: str) -> str:
    (logged,) = MlflowClient(uri).get_run(report.run_id).inputs.dataset_inputs
    return str(json.loads(logged.dataset.source).get("dataset_id", ""))


def test_runs_link_to_a_dataset_that_is_made_once_for_each_digest(store: str) -> None:
    first, edited = named("kept"), named("kept", many(2))
    reports = [
        evaluate(cases, answering(cases), CONFIG, experiment="kept", tracking_uri=store, traces=False) for cases in (first, first, edited)
    ]
    links = [link(report, store) for report in reports]

    client = MlflowClient(store)
    listed = client.search_datasets([client.get_experiment_by_name("kept").experiment_id])
    assert links[0] == links[1] != links[2]
    assert {dataset.dataset_id for dataset in listed} == set(links)
    assert [pull_eval_set(found, tracking_uri=store) for found in links[1:]] == [first, edited]
    assert {dataset.name for dataset in listed} == {
        f"kept@{eval_set_digest(cases).removeprefix('sha256:')[:8]}" for cases in (first, edited)
    }


def test_a_dataset_that_was_left_without_its_records_is_not_linked_to(store: str) -> None:
    client, cases = MlflowClient(store), named("left")
    experiment_id = client.create_experiment("left")
    left = client.create_dataset(f"left@{eval_set_digest(cases).removeprefix('sha256:')[:8]}", experiment_id)

    report = evaluate(cases, answering(cases), CONFIG, experiment="left", tracking_uri=store, traces=False)

    assert link(report, store) not in ("", left.dataset_id)
    assert pull_eval_set(link(report, store), tracking_uri=store) == cases


def test_a_dataset_that_a_job_has_left_or_is_making_is_finished(store: str) -> None:
    client, cases = MlflowClient(store), named("half")
    experiment_id, digest = client.create_experiment("half"), eval_set_digest(cases)
    whole = MlflowClient(store).get_dataset(keep_as_dataset(client, cases, digest, client.create_experiment("whole")))
    fields = {key: value for key, value in whole.tags.items() if key.startswith(FIELDS) and key != DIGEST}
    half = client.create_dataset(whole.name, experiment_id, fields)
    client.create_dataset(whole.name, experiment_id, fields)

    assert keep_as_dataset(client, cases, digest, experiment_id) == half.dataset_id
    assert client.get_dataset(half.dataset_id).tags == whole.tags
    assert pull_eval_set(half.dataset_id, tracking_uri=store) == cases


@pytest.mark.slow
def test_jobs_that_make_the_same_dataset_at_once_make_one(server: Server) -> None:
    cases = many(20)
    client, digest = MlflowClient(server.uri), eval_set_digest(cases)
    experiment_id = client.create_experiment("at once")
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: keep_as_dataset(MlflowClient(server.uri), cases, digest, experiment_id), range(8)))

    (dataset_id,) = {keep_as_dataset(client, cases, digest, experiment_id) for _ in range(2)}
    assert "" not in made
    assert {dataset.dataset_id for dataset in client.search_datasets([experiment_id])} >= made >= {dataset_id}
    assert pull_eval_set(dataset_id, tracking_uri=server.uri) == cases


def test_of_a_large_eval_set_no_dataset_is_made(store: str) -> None:
    cases = many(101)
    report = evaluate(cases, answering(cases), CONFIG, experiment="large", tracking_uri=store, traces=False)
    assert link(report, store) == ""


@pytest.mark.slow
def test_a_server_without_datasets_gets_the_run_all_the_same_and_others_are_asked_once(server: Server) -> None:
    proxy, cases = Proxy(server.uri).start(), named("asked for")

    def run(experiment: str, fault: Fault | None = None) -> tuple[str, list[str]]:
        with proxy.spoiling(lambda request: fault if "/datasets" in request.path else None) as seen:
            report = evaluate(cases, answering(cases), CONFIG, experiment=experiment, tracking_uri=proxy.uri, traces=False)
        assert MlflowClient(server.uri).get_run(str(report.run_id)).data.tags["adk_eval.status"] == "complete"
        return link(report, server.uri), [request.path for request in seen if "/datasets" in request.path]

    without, asked = run("without", "html")
    assert (without, len(asked)) == ("", 1)
    new, first = run("with")
    again, second = run("with")
    assert again == new != ""
    assert (len(first), len(second)) == (5, 1)
    proxy.stop()
