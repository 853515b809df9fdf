"""The judges' prompts in MLflow's prompt registry."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_adk_eval.errors import TrackingError
from mlflow_adk_eval.judge.prompt import load_prompt
from mlflow_adk_eval.testing import ScriptedJudge
from mlflow_adk_eval.tracking.evaluate import evaluate
from mlflow_adk_eval.tracking.prompts import register_used_prompts
from tests.mlflow_kit import copied, free_port
from tests.tracking.small import expected_of, rooms

NAMES = ("safety_v1", "hallucinations_v1", "final_response_match_v2")


@pytest.fixture(scope="module")
def shared(template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One store for this module."""
    return copied(template, tmp_path_factory.mktemp("prompts"))


@pytest.fixture(params=["sqlite", pytest.param("http", marks=pytest.mark.slow)])
def client(request: pytest.FixtureRequest) -> MlflowClient:
    """A client of a store of either kind."""
    uri = request.getfixturevalue("shared") if request.param == "sqlite" else request.getfixturevalue("server").uri
    return MlflowClient(tracking_uri=uri)


def used(*names: str) -> dict[str, str]:
    prompts = [load_prompt(name) for name in names]
    return {f"{prompt.name}@{prompt.version}": prompt.sha256 for prompt in prompts}


def new_run(client: MlflowClient, experiment_id: str = "0") -> str:
    return client.create_run(experiment_id).info.run_id


def test_each_text_is_registered_once_and_linked_to_every_run(client: MlflowClient) -> None:
    runs = [new_run(client), new_run(client)]

    found = [register_used_prompts(client, run_id, used(*NAMES)) for run_id in (*runs, runs[1])]

    assert found[0] == found[1] == found[2] == {name: f"prompts:/adk_eval.{name}/1" for name in NAMES}
    for name in NAMES:
        (only,) = client.search_prompt_versions(f"adk_eval.{name}")
        prompt = load_prompt(name)
        assert only.template == prompt.text
        assert only.tags == {"adk_eval.sha256": prompt.sha256, "adk_eval.version": prompt.version, "adk_eval.package_version": "0.1.0"}
    for run_id in runs:
        (linked,) = [text for key, text in client.get_run(run_id).data.tags.items() if key == "mlflow.linkedPrompts"]
        assert linked == "[" + ", ".join(f'{{"name": "adk_eval.{name}", "version": "1"}}' for name in NAMES) + "]"


def test_the_page_of_each_experiment_lists_them(client: MlflowClient) -> None:
    other = client.create_experiment("another home of prompts")

    for experiment_id in ("0", other, other):
        register_used_prompts(client, new_run(client, experiment_id), used("per_turn_user_simulator_stop"))

    (listed,) = [prompt for prompt in client.search_prompts() if prompt.name == "adk_eval.per_turn_user_simulator_stop"]
    assert listed.tags["_mlflow_experiment_ids"] == f",0,{other},"


def test_another_text_is_another_version_and_old_ones_are_found_by_their_hash(client: MlflowClient) -> None:
    name = "response_evaluation_score"
    client.create_prompt(f"adk_eval.{name}")
    client.create_prompt_version(f"adk_eval.{name}", "an older text with {{braces}}", tags={"adk_eval.sha256": "0ld"})

    now = register_used_prompts(client, new_run(client), used(name))
    before = register_used_prompts(client, new_run(client), {f"{name}@0": "0ld"})

    assert now == {name: f"prompts:/adk_eval.{name}/2"}
    assert before == {name: f"prompts:/adk_eval.{name}/1"}


def test_a_version_with_the_right_hash_and_another_text_does_not_count(client: MlflowClient) -> None:
    name = "multi_turn_task_success_v1"
    client.create_prompt(f"adk_eval.{name}")
    client.create_prompt_version(f"adk_eval.{name}", "forged", tags={"adk_eval.sha256": load_prompt(name).sha256})

    assert register_used_prompts(client, new_run(client), used(name)) == {name: f"prompts:/adk_eval.{name}/2"}


@pytest.mark.parametrize("named", ["unheard_of@1", "rubric_based_tool_use_quality_v1@0"])
def test_a_prompt_that_nobody_has_is_refused_and_nothing_is_left_behind(shared: str, named: str) -> None:
    client = MlflowClient(tracking_uri=shared)
    run_id = new_run(client)

    with pytest.raises(TrackingError, match=rf"prompt {named} \(5ha\) is neither in MLflow's registry"):
        register_used_prompts(client, run_id, {named: "5ha"})

    assert client.get_prompt(f"adk_eval.{named.partition('@')[0]}") is None
    assert "mlflow.linkedPrompts" not in client.get_run(run_id).data.tags


def test_a_model_of_that_name_is_in_the_way(shared: str) -> None:
    client = MlflowClient(tracking_uri=shared)
    client.create_registered_model("adk_eval.multi_turn_trajectory_quality_v1")

    with pytest.raises(TrackingError, match=r"could not be registered: .*already taken"):
        register_used_prompts(client, new_run(client), used("multi_turn_trajectory_quality_v1"))


@pytest.mark.slow
def test_a_registry_that_does_not_answer_is_said() -> None:
    client = MlflowClient(tracking_uri=f"http://127.0.0.1:{free_port()}")

    with pytest.raises(TrackingError, match="the judges' prompts could not be registered"):
        register_used_prompts(client, "run", used("safety_v1"))


def test_where_no_judge_was_asked_nothing_is_asked_for() -> None:
    assert register_used_prompts(MlflowClient(tracking_uri=f"http://127.0.0.1:{free_port()}"), "run", {}) == {}


def test_an_evaluation_names_the_versions_that_it_used(shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = {"criteria": {"safety_v1": {"threshold": 1.0, "backend": "judge"}}}

    report = evaluate(
        rooms(), expected_of(rooms()), config, judge=ScriptedJudge({"safety_v1": "safe"}), register_prompts=True, tracking_uri=shared
    )

    client = MlflowClient(tracking_uri=shared)
    run = client.get_run(report.run_id or "")
    version = client.get_prompt_version("adk_eval.safety_v1", "1")
    assert report.passed
    assert run.data.params["adk_eval.prompt_uri.safety_v1"] == "prompts:/adk_eval.safety_v1/1"
    assert run.data.tags["mlflow.linkedPrompts"] == '[{"name": "adk_eval.safety_v1", "version": "1"}]'
    assert version is not None
    assert version.template == load_prompt("safety_v1").text
    assert version.tags["adk_eval.sha256"] in run.data.params["adk_eval.prompt.safety_v1"]
