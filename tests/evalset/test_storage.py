"""Eval sets and results where ADK keeps them, beside ADK's own commands and managers."""

from __future__ import annotations

import json
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mlflow_adk_eval.errors import EvalSetError, UsageError
from mlflow_adk_eval.evalset.files import load_eval_set
from mlflow_adk_eval.evalset.storage import EvalStorage, cases_of_scenarios
from mlflow_adk_eval.report.adk_result import result_of
from mlflow_adk_eval.runner.recordings import score
from tests.kit import case, cases, turn

SCENARIOS = [
    {"starting_prompt": "Hi", "conversation_plan": "Ask for the price."},
    {"startingPrompt": "Grüezi", "conversationPlan": "Say goodbye."},
]
SESSION = {"app_name": "shop", "user_id": "u", "state": {"currency": "CHF"}}
AGENT = "from google.adk.agents import LlmAgent\nroot_agent = LlmAgent(name='shop', model='m')\n"


def written(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import agent")
    (folder / "agent.py").write_text(AGENT)
    return folder


def of_adk(*arguments: object) -> str:
    from google.adk.cli.cli_tools_click import main

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = CliRunner().invoke(main, ["eval_set", *map(str, arguments)])
    if "dependencies" in found.output:
        pytest.skip("google-adk[eval] is not installed")
    assert found.exit_code == 0, found.output
    return found.output


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key != "creation_timestamp"}
    return [without_times(item) for item in value] if isinstance(value, list) else value


@pytest.mark.needs("google-adk", "1.30")  # before, ids of scenarios were made in another way
def test_eval_sets_are_created_and_filled_as_adk_does(tmp_path: Path, agent: Path) -> None:
    scenarios, session = written(tmp_path / "s.json", {"scenarios": SCENARIOS}), written(tmp_path / "i.json", SESSION)
    of_adk("create", agent, "theirs")
    of_adk("add_eval_case", agent, "theirs", "--scenarios_file", scenarios, "--session_input_file", session)
    storage = EvalStorage(str(agent))
    assert storage.create("ours") == str(agent / "ours.evalset.json")
    new = storage.add("ours", cases_of_scenarios(scenarios, session))
    ours, theirs = (json.loads((agent / f"{name}.evalset.json").read_text()) for name in ("ours", "theirs"))
    assert without_times(ours["eval_cases"]) == without_times(theirs["eval_cases"])
    assert new == tuple(one["eval_id"] for one in theirs["eval_cases"])
    assert storage.add("theirs", cases_of_scenarios(scenarios)) == ()  # no case twice, whoever added it
    assert "already exists" in of_adk("add_eval_case", agent, "ours", "--scenarios_file", scenarios, "--session_input_file", session)


def test_mistakes_are_named(tmp_path: Path, agent: Path) -> None:
    storage = EvalStorage(str(agent))
    storage.create("a")
    for eval_set_id, wrong in (
        ("a", "a.evalset.json exists already"),
        ("a-b", "'a-b': wanted ASCII letters"),
        ("ä", "'ä': wanted ASCII letters"),
    ):
        with pytest.raises(UsageError, match=wrong):
            storage.create(eval_set_id)
    with pytest.raises(UsageError, match="nobody: wanted the agent's folder"):
        EvalStorage("nobody").create("a")
    with pytest.raises(EvalSetError, match="no such file"):
        storage.add("gone", ())
    with pytest.raises(EvalSetError, match=r"\$.scenarios: found an empty list"):
        cases_of_scenarios(written(tmp_path / "s.json", {"scenarios": []}))
    with pytest.raises(EvalSetError, match=r"\$.scenarios\[0\].conversation_plan"):
        cases_of_scenarios(written(tmp_path / "s.json", {"scenarios": [{"starting_prompt": "x"}]}))
    with pytest.raises(UsageError, match=r"nothing://x/shop/evals/eval_sets/a\.evalset\.json: cannot be read"):
        EvalStorage(str(agent), "nothing://x").create("a")


def kept(storage: EvalStorage) -> str:
    storage.create("prices")
    storage.add("prices", [case("a", turn("7"))])
    report = score(load_eval_set(storage.file("prices")), cases(case("a", turn("7"))), {"criteria": {"response_match_score": 0.5}})
    return storage.keep_result(result_of(report, app_name=storage.app_name))


@pytest.mark.parametrize("root", ["memory://store", "{}"])
@pytest.mark.needs("fsspec")
def test_anywhere_that_fsspec_reaches(root: str, tmp_path: Path, agent: Path) -> None:
    storage = EvalStorage(str(agent), root.format(tmp_path.as_uri()))
    found = kept(storage)
    assert found.startswith(f"{root.format(tmp_path.as_uri())}/shop/evals/eval_history/shop_prices_")
    assert storage.holds("prices")
    with pytest.raises(UsageError, match="exists already"):
        storage.create("prices")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a Cloud Storage on this machine."""
    server_module = pytest.importorskip("gcp_storage_emulator.server", reason="gcp-storage-emulator is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = server_module.create_server("127.0.0.1", port, in_memory=True, default_bucket="evals")
    server.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "test")
    yield "gs://evals/ignored/by/adk"
    server.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_in_a_bucket_adk_finds_what_is_kept_here_and_the_other_way_round(bucket: str, agent: Path) -> None:
    sets = pytest.importorskip("google.adk.evaluation.gcs_eval_sets_manager", reason="google-adk[eval] is not installed")
    from google.adk.evaluation.gcs_eval_set_results_manager import GcsEvalSetResultsManager
    from google.auth.credentials import AnonymousCredentials

    given: dict[str, Any] = {"bucket_name": "evals", "project": "test", "credentials": AnonymousCredentials()}
    theirs, results = sets.GcsEvalSetsManager(**given), GcsEvalSetResultsManager(**given)
    storage = EvalStorage(str(agent), bucket)
    found = kept(storage)
    assert theirs.list_eval_sets("shop") == ["prices"]
    assert [one.eval_id for one in theirs.get_eval_set("shop", "prices").eval_cases] == ["a"]
    (listed,) = results.list_eval_set_results("shop")
    assert found == f"gs://evals/shop/evals/eval_history/{listed}.evalset_result.json"
    assert results.get_eval_set_result("shop", listed).eval_case_results[0].final_eval_status.name == "PASSED"
    theirs.create_eval_set("shop", "made_by_adk")
    assert load_eval_set(storage.file("made_by_adk")).eval_cases == ()
    with pytest.raises(UsageError, match="exists already"):
        storage.create("made_by_adk")
