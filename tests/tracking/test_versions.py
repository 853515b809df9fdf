"""Which version of the agent a run is about."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Never

import pytest

from mlflow_adk_eval import score
from mlflow_adk_eval.agents.source import git_state
from mlflow_adk_eval.evalset.models import EvalSet
from tests.kit import turn_json
from tests.mlflow_kit import copied
from tests.tracking.small import CONFIG, answering, expected_of, rooms


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


AGENT = """
from tests.tracking.small import answering, rooms

answer = answering(rooms())


def agent(text, session):
    return answer(text, session)
"""


def write_agent(folder: Path, line: str) -> None:
    """Write the module of an agent, with a line that makes it another one."""
    (folder / "agent.py").write_text(f"{line}\n{AGENT}")


def imported(folder: Path) -> Any:
    """Import the agent in a folder anew, as a new process would."""
    sys.modules.pop("agent", None)
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        return importlib.import_module("agent").agent
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(autouse=True)
def _no_bytecode(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have Python read a module again that changes twice in a second."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.modules.pop("agent", None)


@pytest.fixture
def repo(store: str, tmp_path: Path) -> Path:
    """A repository with one commit and an agent; neither the store nor the working directory lies in it."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init")
    write_agent(folder, "greeting = 'hello'")
    git(folder, "add", "agent.py")
    git(folder, "commit", "-m", "first")
    git(folder, "remote", "add", "origin", "https://me:ghp_secret1@github.com/acme/agent.git")
    return folder


def run_of(store: str, folder: Path | None = None, **options: Any) -> Any:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate

    agent = imported(folder) if folder else answering(rooms())
    report = evaluate(rooms(), agent, CONFIG, experiment="versions", tracking_uri=store, traces=False, **options)
    return MlflowClient(store).get_run(report.run_id)


def model_of(run: Any) -> str:
    return run.data.params["adk_eval.model_id"]


def test_the_git_state_is_the_version(repo: Path, store: str) -> None:
    from mlflow import MlflowClient

    run = run_of(store, repo)
    commit = git(repo, "rev-parse", "HEAD")
    assert run.data.tags["mlflow.source.git.commit"] == commit
    assert run.data.tags["mlflow.source.git.branch"] == "main"
    assert run.data.tags["mlflow.source.git.dirty"] == "false"
    assert run.data.tags["mlflow.source.git.repoURL"] == "https://github.com/acme/agent.git"
    assert run.data.tags["adk_eval.agent_version"] == f"agent@{commit[:8]}"
    model = MlflowClient(store).get_logged_model(model_of(run))
    assert (model.status.name, model.name, model.model_type) == ("READY", f"agent@{commit[:8]}", "agent")
    assert model.tags["mlflow.model.isExternal"] == "true"
    assert model.tags["mlflow.source.git.commit"] == commit


def test_the_same_state_is_the_same_version_and_another_state_another(repo: Path, store: str) -> None:
    from mlflow import MlflowClient

    clean = run_of(store, repo)
    assert model_of(run_of(store, repo)) == model_of(clean)
    write_agent(repo, "greeting = 'bye'")
    dirty = run_of(store, repo)
    assert model_of(dirty) != model_of(clean)
    assert dirty.data.tags["mlflow.source.git.dirty"] == "true"
    assert model_of(run_of(store, repo)) == model_of(dirty)
    write_agent(repo, "greeting = 'ciao'")
    assert model_of(run_of(store, repo)) not in {model_of(clean), model_of(dirty)}
    git(repo, "checkout", "agent.py")
    assert model_of(run_of(store, repo)) == model_of(clean)
    diff = Path(MlflowClient(store).download_artifacts(dirty.info.run_id, "adk_eval/agent.diff", str(repo.parent))).read_text()
    assert "-greeting = 'hello'" in diff
    assert "+greeting = 'bye'" in diff


def test_new_code_is_a_new_version_and_what_runs_leave_behind_is_not(repo: Path) -> None:
    clean = git_state(repo)
    (repo / "mlflow.db").write_bytes(b"\0")
    (repo / "results.json").write_text("{}")
    assert git_state(repo) == clean
    (repo / "sub").mkdir()
    (repo / "sub" / "tools.py").write_text("def new(): ...\n")
    state = git_state(repo / "sub")
    assert state != clean
    assert "+def new(): ..." in state.diff


def test_env_files_and_credentials_stay_out(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repo / ".env").write_text("API=1\n")
    (repo / "agent.py").write_text("greeting = 'hello'\nx = 1\n")
    git(repo, "add", ".env")
    state = git_state(repo)
    assert "x = 1" in state.diff
    assert "API" not in state.diff
    assert "ghp_secret1" not in state.repo_url


def test_a_secret_in_the_diff_is_not_written_down(repo: Path, store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("ROOM_API_KEY", "sk-0123456789abc")
    write_agent(repo, "key = 'sk-0123456789abc'")
    run = run_of(store, repo)
    diff = Path(MlflowClient(store).download_artifacts(run.info.run_id, "adk_eval/agent.diff", str(tmp_path))).read_text()
    assert "key = '[ROOM_API_KEY]'" in diff
    assert "sk-0123456789abc" not in str(MlflowClient(store).get_logged_model(model_of(run)).tags)


def test_a_large_diff_is_kept_whole_as_an_artifact(repo: Path, store: str, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    write_agent(repo, "".join(f"line_{number} = {number}\n" for number in range(5000)))
    run = run_of(store, repo)
    diff = Path(MlflowClient(store).download_artifacts(run.info.run_id, "adk_eval/agent.diff", str(tmp_path))).read_text()
    assert "+line_4999 = 4999" in diff
    assert "mlflow.source.git.diff" not in MlflowClient(store).get_logged_model(model_of(run)).tags


def test_a_huge_diff_is_cut_and_says_so_and_still_tells_states_apart(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow_adk_eval.agents import source as module

    monkeypatch.setattr(module, "_MAX_DIFF", 200)
    states = []
    for last in ("a", "b"):
        (repo / "agent.py").write_text("x" * 1000 + last)
        states.append(git_state(repo))
    assert all(len(state.diff) < 400 and "more characters; sha256 of everything" in state.diff for state in states)
    assert states[0].diff_sha256 != states[1].diff_sha256


def test_a_git_that_hangs_is_no_git(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow_adk_eval.agents import source as module

    monkeypatch.setattr(module, "_TIMEOUT_S", 0)
    assert git_state(repo) is None


@pytest.mark.parametrize("prepare", ["nothing", "no commit"])
def test_outside_of_git_the_agents_source_is_the_version(store: str, tmp_path: Path, prepare: str) -> None:
    from mlflow import MlflowClient

    if prepare == "no commit":
        git(tmp_path, "init")
    write_agent(tmp_path, "greeting = 'hello'")
    first = run_of(store, tmp_path)
    digest = first.data.params["adk_eval.agent.source_sha256"]
    assert first.data.params["adk_eval.git"] == "absent"
    assert first.data.tags["adk_eval.agent_version"] == f"agent#{digest[:8]}"
    model = MlflowClient(store).get_logged_model(model_of(first))
    assert model.params["adk_eval.agent.source_sha256"] == digest
    assert model_of(run_of(store, tmp_path)) == model_of(first)
    write_agent(tmp_path, "greeting = 'bye'")
    changed = run_of(store, tmp_path)
    assert model_of(changed) != model_of(first)
    assert changed.data.params["adk_eval.agent.source_sha256"] != digest
    write_agent(tmp_path, "greeting = 'hello'")
    assert model_of(run_of(store, tmp_path)) == model_of(first)


def test_the_git_of_the_working_directory_is_not_that_of_the_agent(
    repo: Path, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_agent(elsewhere, "greeting = 'hello'")
    monkeypatch.chdir(repo)
    run = run_of(store, elsewhere)
    assert run.data.params["adk_eval.git"] == "absent"
    assert "mlflow.source.git.commit" not in run.data.tags


def test_what_has_no_source_says_so(repo: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate

    monkeypatch.chdir(repo)
    report = evaluate(rooms(), expected_of(rooms()), CONFIG, experiment="versions", tracking_uri=store, traces=False)
    run = MlflowClient(store).get_run(report.run_id)
    described = r"a recording that names no agent, sha256 [0-9a-f]{12}…, so its source is unknown"
    assert re.fullmatch(described, run.data.params["adk_eval.agent.source"])
    assert "adk_eval.agent.source_sha256" not in run.data.params
    assert run.data.params["adk_eval.git"] == "absent"
    assert run.data.tags["adk_eval.agent_version"] == "recording"


def test_recordings_of_different_agents_are_different_versions(
    repo: Path, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import Recording, evaluate, load_recording, register, save_recording
    from mlflow_adk_eval.evalset.conversation import Origin

    monkeypatch.chdir(repo)
    client = MlflowClient(store)

    def evaluated(recording: Any) -> tuple[str, str, str]:
        report = evaluate(rooms(), recording, CONFIG, experiment="identity", tracking_uri=store, traces=False)
        tags = client.get_run(report.run_id).data
        return tags.params["adk_eval.model_id"], tags.tags["adk_eval.agent_version"], register(report, "house", tracking_uri=store)

    said = load_recording(expected_of(rooms())).runs
    other = dict.fromkeys(said, ())

    def of(agent: str, version: str = "") -> Path:
        path = tmp_path / f"{agent}{version}.json"
        save_recording(Recording(said, origin=Origin(agent=agent, agent_version=version)), path)
        return path

    found = [evaluated(each) for each in (of("maid"), of("butler", "1"), of("butler", "2"), Recording(said), Recording(other), of("maid"))]
    assert found[0] == found[-1], "the same agent twice"
    assert [label for _, label, _ in found[:-1]] == ["maid", "butler", "butler", "recording", "recording"]
    assert len({model for model, _, _ in found}) == len({version for _, _, version in found}) == 5


def test_the_name_of_an_app_is_that_of_its_recorded_agent() -> None:
    from mlflow_adk_eval import load_recording

    case = {"conversation": [turn_json("q")]}
    cases = [{**case, "eval_id": name, "session_input": {"app_name": "shop", "user_id": "u"}} for name in "ab"]
    assert load_recording(EvalSet.model_validate({"eval_set_id": "s", "eval_cases": cases})).name == "shop"
    cases[0]["session_input"] = {"app_name": "other", "user_id": "u"}
    assert load_recording(EvalSet.model_validate({"eval_set_id": "s", "eval_cases": cases})).name == "recording"


def test_a_detached_head_has_no_branch(repo: Path) -> None:
    git(repo, "checkout", "--detach")
    state = git_state(repo)
    assert (state.branch, state.diff, state.diff_sha256) == ("", "", "")


@pytest.fixture(scope="module")
def registered(template: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A store with a registered model: one version made from a LoggedModel, one from something else."""
    from mlflow import MlflowClient

    from mlflow_adk_eval.tracking.agent_versions import register

    folder = tmp_path_factory.mktemp("registered")
    store = copied(template, folder)
    with contextlib.chdir(folder):
        client = MlflowClient(store)
        run = run_of(store)
    report = dataclasses.replace(score(rooms(), expected_of(rooms()), CONFIG), run_id=run.info.run_id)
    assert register(report, "home", tracking_uri=store) == "1"
    assert register(report, "home", tracking_uri=store) == "1"
    assert json.loads(client.get_logged_model(model_of(run)).tags["mlflow.modelVersions"]) == [{"name": "home", "version": "1"}]
    client.create_model_version("home", source="runs:/0123/model")
    client.set_registered_model_alias("home", "champion", "1")
    return store, model_of(run)


@pytest.mark.parametrize("spelling", ["models:/home/1", "models:/home@champion", "models:/{model_id}", "{model_id}"])
def test_a_registered_version_is_its_logged_model(registered: tuple[str, str], spelling: str) -> None:
    store, model_id = registered
    run = run_of(store, agent_version=spelling.format(model_id=model_id))
    assert model_of(run) == model_id
    assert [found.model_id for found in run.inputs.model_inputs] == [model_id]
    assert "adk_eval.git" not in run.data.params


@pytest.mark.parametrize(
    ("agent_version", "message"),
    [
        ("models:/home/2", "was registered from 'runs:/0123/model', not from a LoggedModel"),
        ("models:/home/9", "agent_version 'models:/home/9' does not exist"),
        ("models:/nobody/1", "agent_version 'models:/nobody/1' does not exist"),
        ("models:/home@nobody", "agent_version 'models:/home@nobody' does not exist"),
        ("m-00000000000000000000000000000000", "does not exist"),
        ("home/1", "Did you mean 'models:/home/1'?"),
        ("models://home/1", "Did you mean 'models:/home/1'?"),
        ("home@champion", "Did you mean 'models:/home@champion'?"),
        ("models:/home/Production", "wanted models:/<name>/<version>"),
        ("1", "wanted models:/<name>/<version>"),
        ("", "wanted models:/<name>/<version>"),
    ],
)
def test_what_names_no_version_is_refused_before_the_agent_is_called(registered: tuple[str, str], agent_version: str, message: str) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import UsageError, evaluate

    store, _ = registered
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("versions").experiment_id
    before = len(client.search_runs([experiment]))

    def never(text: str, session: Any) -> Never:
        raise AssertionError("the agent was called")

    with pytest.raises(UsageError) as refused:
        evaluate(rooms(), never, CONFIG, agent_version=agent_version, experiment="versions", tracking_uri=store)
    assert message in str(refused.value)
    assert len(client.search_runs([experiment])) == before
