"""Attack 10: an edited agent that stays "version 1", the git of another folder, and a good evaluation in the name of a bad agent."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from mlflow.entities import DatasetInput, InputTag, LoggedModelInput, LoggedModelParameter

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli.run import run as run_command
from mlflow_adk_eval.signing.keys import make_key
from mlflow_adk_eval.tracking.agent_versions import register
from tests.kit import turn_json
from tests.mlflow_kit import Server

pytestmark = pytest.mark.slow
NAME = "shop"
SOURCE = "adk_eval.agent.source_sha256"
MODEL = """
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types


class Scripted(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        text = llm_request.config.system_instruction.splitlines()[0]
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]))
"""
AGENT = """
from pathlib import Path
from google.adk.agents import Agent
from .model import Scripted

root_agent = Agent(name="shop", model=Scripted(model="scripted"), instruction=(Path(__file__).parent / "prompt.md").read_text())
"""
EVAL_SET = {
    "eval_set_id": "orders",
    "eval_cases": [
        {
            "eval_id": f"order_{number}",
            "conversation": [turn_json(f"Where is order {number}?", "Your order is on its way")],
        }
        for number in range(3)
    ],
}
CONFIG = {"criteria": {"response_match_score": 0.8}}
_numbers = itertools.count()
GOOD, BAD = "Your order is on its way", "Buy something else instead"


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(autouse=True)
def _fresh_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    forget()


def forget() -> None:
    """Forget the agent, as a new process would not know it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]
    importlib.invalidate_caches()
    sys.path[:] = [place for place in sys.path if not (Path(place) / NAME / "agent.py").is_file()]


def write_agent(folder: Path, prompt: str = GOOD) -> Path:
    home = folder / NAME
    home.mkdir(parents=True, exist_ok=True)
    for file, text in {"__init__.py": "", "agent.py": AGENT, "model.py": MODEL, "prompt.md": prompt}.items():
        (home / file).write_text(text)
    return home


class Shop:
    """A store, the folder of an agent, and what one does with them through the public API."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri, self.client, self.home = uri, MlflowClient(uri, uri), write_agent(folder)
        self.name = f"shop_{next(_numbers)}"

    def evaluate(self, home: Path | None = None, **options: Any) -> Any:
        forget()
        given = {"experiment": self.name, "tracking_uri": self.uri, "traces": False, **options}
        return adk_eval.evaluate(adk_eval.EvalSet.model_validate(EVAL_SET), home or self.home, CONFIG, **given)

    def run(self, report: Any) -> Any:
        return self.client.get_run(report.run_id)

    def register(self, report: Any) -> str:
        return register(report, self.name, tracking_uri=self.uri)

    def promote(self, version: str, report: Any, **options: Any) -> Any:
        run_id = report if isinstance(report, str) else report.run_id
        return adk_eval.promote(
            self.name, version, run_id=run_id, raise_on_failure=False, tracking_uri=self.uri, registry_uri=self.uri, **options
        )


@pytest.fixture(params=["sqlite", pytest.param("server", marks=pytest.mark.slow)])
def shop(request: pytest.FixtureRequest, store: str, tmp_path: Path) -> Shop:
    if request.param == "sqlite":
        return Shop(store, tmp_path / "project")
    server: Server = request.getfixturevalue("server")
    return Shop(server.uri, tmp_path / "project")


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "key.pem", make_key(tmp_path / "key.pem")


def demanding(public: Path, **more: Any) -> dict[str, Any]:
    return {"thresholds": True, "attestation": {"keys": [public.read_text()], **more}}


def edit_prompt(home: Path) -> None:
    (home / "prompt.md").write_text(BAD)


def edit_code(home: Path) -> None:
    (home / "agent.py").write_text(AGENT.replace(".read_text()", f".read_text() and {BAD!r}"))


def add_tool(home: Path) -> None:
    (home / "tools.py").write_text("def pay(): ...\n")


@pytest.mark.parametrize("in_git", [False, True], ids=["no git", "git, committed"])
@pytest.mark.parametrize("edit", [edit_prompt, edit_code, add_tool])
def test_an_edited_agent_is_a_new_version_in_git_and_outside(shop: Shop, in_git: bool, edit: Callable[[Path], None]) -> None:
    if in_git:
        git(shop.home.parent, "init")
        git(shop.home.parent, "add", "--all")
        git(shop.home.parent, "commit", "-m", "first")
    good = shop.evaluate()
    assert shop.register(good) == "1"
    assert shop.promote("1", good).passed
    assert shop.run(shop.evaluate()).data.params["adk_eval.model_id"] == shop.run(good).data.params["adk_eval.model_id"]
    edit(shop.home)
    edited = shop.evaluate()
    assert shop.run(edited).data.params["adk_eval.model_id"] != shop.run(good).data.params["adk_eval.model_id"]
    assert not shop.promote("1", edited).passed, "what the edited agent did is no evidence about version 1"
    assert shop.register(edited) == "2"


def test_the_command_registers_a_new_version_of_changed_source_only(store: str, tmp_path: Path) -> None:
    home = write_agent(tmp_path / "project")
    (tmp_path / "orders.evalset.json").write_text(json.dumps(EVAL_SET))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    command = [str(home), str(tmp_path / "orders.evalset.json"), "--config", str(tmp_path / "config.json"), "--register", NAME, "--json"]
    versions = []
    for prompt in (GOOD, GOOD, BAD, GOOD):
        forget()
        write_agent(home.parent, prompt)
        done = CliRunner().invoke(run_command, [*command, "--experiment", "shop", "--tracking-uri", store])
        versions.append(json.loads(done.stdout)["model_version"])
    assert versions == ["1", "1", "2", "1"]


def test_the_git_of_the_working_directory_says_nothing(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    respectable = tmp_path / "respectable"
    write_agent(respectable)
    git(respectable, "init")
    git(respectable, "add", "--all")
    git(respectable, "commit", "-m", "reviewed")
    monkeypatch.chdir(respectable)
    data = shop.run(shop.evaluate()).data
    assert data.params["adk_eval.git"] == "absent"
    assert "mlflow.source.git.commit" not in data.tags
    monkeypatch.chdir(tmp_path)
    tags = shop.run(shop.evaluate(respectable / NAME)).data.tags
    assert tags["mlflow.source.git.commit"] == git(respectable, "rev-parse", "HEAD")
    assert tags["mlflow.source.git.dirty"] == "false"


def test_a_good_agent_is_not_evaluated_in_the_name_of_a_bad_one(shop: Shop, tmp_path: Path) -> None:
    bad = shop.evaluate(write_agent(tmp_path / "bad", BAD))
    assert (bad.verdict, shop.register(bad)) == ("failed", "1")
    before = len(shop.client.search_runs([shop.run(bad).info.experiment_id]))
    with pytest.raises(adk_eval.UsageError) as refused:
        shop.evaluate(agent_version=f"models:/{shop.name}/1")
    message = str(refused.value)
    theirs, ours = shop.run(bad).data.params[SOURCE], shop.run(shop.evaluate()).data.params[SOURCE]
    assert f"agent_version 'models:/{shop.name}/1' has a different source: sha256 {theirs[:12]}…" in message
    assert f"this agent's is {ours[:12]}…" in message
    assert "shop/prompt.md differ" in message
    assert "changed source makes a new version; register it with --register" in message
    assert len(shop.client.search_runs([shop.run(bad).info.experiment_id])) == before + 1, "the refused one left no run"


def test_what_a_good_agent_did_is_not_judged_in_the_name_of_a_bad_one(shop: Shop, tmp_path: Path) -> None:
    good, bad = shop.evaluate(), shop.evaluate(write_agent(tmp_path / "bad", BAD))
    version = shop.register(bad)
    for recording in (f"runs:/{good.run_id}", adk_eval.recording_of_report(good)):
        with pytest.raises(adk_eval.UsageError, match=r"the recording is of another version, .* is not evidence about this one"):
            adk_eval.evaluate(
                good.eval_set,
                recording,
                CONFIG,
                agent_version=f"models:/{shop.name}/{version}",
                experiment=shop.name,
                tracking_uri=shop.uri,
            )


def test_the_same_source_may_be_evaluated_as_the_version_that_it_is(shop: Shop, tmp_path: Path) -> None:
    first = shop.evaluate()
    version = shop.register(first)
    again = shop.evaluate(write_agent(tmp_path / "checkout"), agent_version=f"models:/{shop.name}/{version}")
    assert shop.run(again).data.params["adk_eval.model_id"] == shop.run(first).data.params["adk_eval.model_id"]
    assert shop.run(again).data.params["adk_eval.agent.source"] == "4 files in and around shop"
    assert again.notes == ()


def test_a_version_that_does_not_say_its_source_is_told(shop: Shop) -> None:
    experiment = shop.client.create_experiment(f"{shop.name}, by others")
    theirs = shop.client.create_logged_model(experiment, name="theirs").model_id
    report = shop.evaluate(agent_version=theirs)
    (note,) = report.notes
    assert note.startswith(f"agent_version: {theirs} has no source digest, so nothing shows that it is the evaluated")
    assert shop.run(report).data.params[SOURCE] in hashlib.sha256(_source_of(shop, report)).hexdigest()


def _source_of(shop: Shop, report: Any) -> bytes:
    path = shop.client.download_artifacts(report.run_id, "adk_eval/agent_source.json")
    return Path(path).read_bytes()


def test_the_list_of_files_is_among_the_artifacts_that_the_manifest_vouches_for(shop: Shop) -> None:
    report = shop.evaluate()
    kept = _source_of(shop, report)
    assert hashlib.sha256(kept).hexdigest() == shop.run(report).data.params[SOURCE]
    assert sorted(json.loads(kept)["files"]) == ["shop/__init__.py", "shop/agent.py", "shop/model.py", "shop/prompt.md"]
    manifest = json.loads(Path(shop.client.download_artifacts(report.run_id, "adk_eval/manifest.json")).read_text())
    assert manifest["artifacts"]["agent_source.json"] == shop.run(report).data.params[SOURCE]


def test_what_a_version_is_made_of_cannot_be_rewritten(shop: Shop) -> None:
    """MLflow has no request that changes a parameter of a LoggedModel; writing it again is refused, as for runs."""
    report = shop.evaluate()
    params = shop.run(report).data.params
    store = shop.client._tracking_client.store
    for key in (SOURCE, "adk_eval.fingerprint"):
        with pytest.raises(Exception, match=r"(?i)unique|constraint|error"):
            store.log_logged_model_params(params["adk_eval.model_id"], [LoggedModelParameter(key, "0" * 64)])
    assert shop.client.get_logged_model(params["adk_eval.model_id"]).params[SOURCE] == params[SOURCE]
    store.log_logged_model_params(params["adk_eval.model_id"], [LoggedModelParameter("adk_eval.more", "x")])
    shop.client.set_logged_model_tags(params["adk_eval.model_id"], {SOURCE: "0" * 64, "adk_eval.fingerprint": "x"})
    assert shop.run(shop.evaluate()).data.params["adk_eval.model_id"] == params["adk_eval.model_id"]


def forged(shop: Shop, genuine: Any, model_id: str) -> str:
    """Make up a run about another LoggedModel by plain calls of the client, after a genuine one: every artifact and parameter in place."""
    client, run = shop.client, shop.run(genuine)
    made = client.create_run(run.info.experiment_id, tags=run.data.tags)
    for folder in {found.path for found in client.list_artifacts(genuine.run_id)}:
        client.log_artifacts(made.info.run_id, client.download_artifacts(genuine.run_id, folder), folder)
    for name, value in {**run.data.params, "adk_eval.model_id": model_id}.items():
        client.log_param(made.info.run_id, name, value)
    for name, value in run.data.metrics.items():
        client.log_metric(made.info.run_id, name, value)
    dataset = DatasetInput(run.inputs.dataset_inputs[0].dataset, [InputTag("mlflow.data.context", "evaluation")])
    client.log_inputs(made.info.run_id, [dataset], [LoggedModelInput(model_id)])
    client.set_terminated(made.info.run_id, "FINISHED")
    return str(made.info.run_id)


def test_a_run_that_was_made_up_is_refused_where_the_policy_demands_an_attestation(
    shop: Shop, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    good = shop.evaluate(signing_key=keys[0])
    bad = shop.evaluate(write_agent(tmp_path / "bad", BAD), signing_key=keys[0])
    model_id = shop.run(bad).data.params["adk_eval.model_id"]
    version, run_id = shop.register(bad), forged(shop, good, model_id)
    assert shop.promote(version, run_id, dry_run=True).passed, "without a policy the forgery is complete"
    refused = shop.promote(version, run_id, policy=demanding(keys[1]))
    assert refused.verdict == "undecided"
    assert refused.reasons[0] == f"the run's attestation is for run {good.run_id}"
    assert any(f"is for agent version {shop.run(good).data.params['adk_eval.model_id']}" in reason for reason in refused.reasons)
    assert shop.promote(shop.register(good), good, policy=demanding(keys[1])).passed


@pytest.mark.parametrize("how", ["nothing", "unsigned", "another key", "another statement"])
def test_what_the_wrong_key_or_no_key_signed_is_no_attestation(shop: Shop, tmp_path: Path, keys: tuple[Path, Path], how: str) -> None:
    make_key(tmp_path / "other.pem")
    report = shop.evaluate(signing_key={"nothing": None, "unsigned": keys[0], "another key": tmp_path / "other.pem"}.get(how, keys[0]))
    path = "adk_eval_gate/evaluation.dsse.json"
    if how in ("unsigned", "another statement"):
        envelope = json.loads(Path(shop.client.download_artifacts(report.run_id, path)).read_text())
        if how == "unsigned":
            envelope["signatures"] = []
        else:
            envelope["payloadType"] = "text/plain"
        shop.client.log_text(report.run_id, json.dumps(envelope), path)
    decision = shop.promote(shop.register(report), report, policy=demanding(keys[1]))
    assert decision.verdict == "undecided"
    expected = {
        "nothing": f"the run has no attestation ({path}), but the policy requires one; evaluate with --signing-key",
    }.get(how, f"the run's attestation {path} is not signed with one of the policy's keys, or does not describe an evaluation")
    assert decision.reasons == (expected,)


def test_a_version_that_does_not_say_its_source_is_refused_unless_the_policy_lets_it(shop: Shop, keys: tuple[Path, Path]) -> None:
    experiment = shop.client.create_experiment(f"{shop.name}, by others")
    theirs = shop.client.create_logged_model(experiment, name="theirs").model_id
    shop.client.finalize_logged_model(theirs, "READY")
    report = shop.evaluate(agent_version=theirs, signing_key=keys[0])
    version = shop.register(report)
    refused = shop.promote(version, report, policy=demanding(keys[1]))
    assert refused.verdict == "undecided"
    assert refused.reasons[0].startswith(f"the parameter {SOURCE} of its LoggedModel is missing, but the attestation says ")
    assert shop.promote(version, report, policy=demanding(keys[1], source="optional")).passed


def test_a_recording_is_refused_where_the_source_must_be_known(shop: Shop, keys: tuple[Path, Path]) -> None:
    turns = {case["eval_id"]: case["conversation"][0] for case in EVAL_SET["eval_cases"]}  # type: ignore[index]
    thanks = {"role": "model", "parts": [{"text": f"{GOOD}!"}]}
    recorded = {eval_id: [turn | {"final_response": thanks}] for eval_id, turn in turns.items()}
    report = adk_eval.evaluate(
        adk_eval.EvalSet.model_validate(EVAL_SET), recorded, CONFIG, experiment=shop.name, tracking_uri=shop.uri, signing_key=keys[0]
    )
    version = shop.register(report)
    refused = shop.promote(version, report, policy=demanding(keys[1]))
    (reason,) = refused.reasons
    assert reason.startswith("the run's attestation has no digest of the agent's source (a recording that names no agent, sha256 ")
    assert reason.endswith(", so its source is unknown), but the policy requires one")
    assert shop.promote(version, report, policy=demanding(keys[1], source="optional")).passed


def test_a_champion_without_an_attestation_is_nothing_to_compare_with(shop: Shop, tmp_path: Path, keys: tuple[Path, Path]) -> None:
    champion = shop.evaluate()
    assert shop.promote(shop.register(champion), champion).passed
    candidate = shop.evaluate(write_agent(tmp_path / "new", f"{GOOD}."), signing_key=keys[0])
    policy = demanding(keys[1]) | {"rules": {"response_match_score": {"max_drop": 0.1}}, "baseline": {"alias": "champion"}}
    decision = shop.promote(shop.register(candidate), candidate, policy=policy)
    assert decision.verdict == "undecided"
    assert any("the run has no attestation" in reason and champion.run_id in reason for reason in decision.reasons)
