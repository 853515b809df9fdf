"""Scorers as MLflow stores and registers them, and as Python copies them."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.genai.scorers import Scorer, get_scorer, list_scorers

from mlflow_adk_eval import scorers
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.testing import ScriptedJudge
from tests.integrations.genai import QUIET, genai_store, tracking
from tests.mlflow_kit import Server

pytestmark = QUIET

store = genai_store
ALLOWED = "MLFLOW_SERVER_ENABLE_CUSTOM_SCORERS"
ROW: dict[str, Any] = {
    "inputs": {"query": 'it\'s "on"?\n'},
    "outputs": {"response": "the light is on", "tool_calls": [{"name": "switch", "args": {"room": "hall"}}]},
    "expectations": {"expected_response": "the light", "expected_tool_calls": [{"name": "switch", "args": {"room": "attic"}}]},
}


@pytest.fixture
def allowed(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "true")
    as_a_client(monkeypatch)


def as_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow executes no stored scorer in a server, and takes every process for one that had loaded uvicorn, as other tests do.

    It may look only when a test is under way, so it looks now.
    """
    monkeypatch.setattr(importlib.import_module("mlflow.server"), "is_running_as_server", False)


def trajectory(**settings: Any) -> Any:
    return scorers.tool_trajectory_avg_score(**({"threshold": 1.0, "ignore_args": True} | settings))


def test_what_is_stored_makes_the_same_scorer_anew(allowed: None) -> None:
    made = trajectory()
    dumped = json.loads(json.dumps(made.model_dump()))
    assert (dumped["name"], dumped["is_session_level_scorer"], dumped["timeout"]) == ("tool_trajectory_avg_score", False, 0)
    again = Scorer.model_validate(dumped)
    first, second = made.run(**ROW), again.run(**ROW)
    assert (second.value, second.rationale, second.metadata) == (first.value, first.rationale, first.metadata)
    assert second.value == 1.0
    assert Scorer.model_validate(trajectory(ignore_args=False).model_dump()).run(**ROW).value == 0.0


def test_what_is_stored_needs_nothing_but_the_package(allowed: None) -> None:
    source = trajectory().model_dump()["call_source"]
    assert source.startswith("from mlflow_adk_eval.scorers import stored\n\nreturn stored('tool_trajectory_avg_score', ")


def test_judges_are_stored_by_name_with_their_options_and_limits(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "none-of-yours")
    (made,) = scorers.from_config(
        {"criteria": {"final_response_match_v2": 0.5}},
        judge="gemini-9",
        judge_options=JudgeOptions(attempts=2),
        budget={"max_calls": 3},
        ledger=False,
    )
    source = made.model_dump()["call_source"]
    assert '"judge": "gemini-9"' in source
    assert '"attempts": 2' in source
    assert '"budget": {"max_calls": 3}' in source
    assert '"ledger": false' in source
    again = scorers.stored("final_response_match_v2", json.dumps(made.shared.to_json()))
    assert again.shared.to_json() == made.shared.to_json()
    assert again is scorers.stored("final_response_match_v2", json.dumps(made.shared.to_json()))


def test_the_ledger_is_stored_by_its_path(store: str, tmp_path: Path) -> None:
    made = scorers.response_match_score(threshold=0.5, ledger=tmp_path / "kept.sqlite")
    assert made.shared.to_json()["ledger"] == str(tmp_path / "kept.sqlite")


def test_a_judge_that_is_an_object_cannot_be_stored(store: str) -> None:
    (made,) = scorers.from_config({"criteria": {"final_response_match_v2": 0.5}}, judge=ScriptedJudge("valid"))
    with pytest.raises(UsageError, match="whose judge is a ScriptedJudge cannot be stored: use a model's name"):
        made.model_dump()


def test_a_session_scorer_is_stored_as_one(allowed: None) -> None:
    (made,) = scorers.from_config({"criteria": {"response_match_score": 0.5}}, session_level=True)
    assert Scorer.model_validate(made.model_dump()).is_session_level_scorer


@pytest.mark.needs("mlflow", "3.17.2")
def test_the_digest_tells_settings_apart(store: str) -> None:
    from mlflow.genai.scorers.scorer_utils import get_scorer_definition_digest

    digests = [get_scorer_definition_digest(trajectory(threshold=threshold)) for threshold in (1.0, 1.0, 0.5)]
    assert digests[0] == digests[1] != digests[2]
    judged = [scorers.final_response_match_v2(threshold=threshold, judge=ScriptedJudge("valid")) for threshold in (0.5, 0.6)]
    assert len({get_scorer_definition_digest(one) for one in judged} - {None}) == 2


def test_it_is_registered_where_custom_scorers_are_allowed(allowed: None) -> None:
    registered = trajectory().register(name="our_trajectory")
    assert registered.name == "our_trajectory"
    assert "our_trajectory" in {one.name for one in list_scorers()}
    assert get_scorer(name="our_trajectory").run(**ROW).value == 1.0


def test_elsewhere_mlflow_refuses_to_register_it(store: str) -> None:
    with pytest.raises(MlflowException, match="Custom scorer registration"):
        trajectory().register(name="refused")


@pytest.mark.slow
def test_a_server_that_allows_it_registers_it(new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "true")
    as_a_client(monkeypatch)
    with tracking(new_server().uri):
        trajectory().register(name="on_the_server")
        assert get_scorer(name="on_the_server").run(**ROW).value == 1.0


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda made: pickle.loads(pickle.dumps(made))])  # noqa: S301
def test_a_copy_scores_the_same(store: str, copied: Callable[[Any], Any]) -> None:
    made = trajectory()
    again = copied(made)
    assert again.run(**ROW).value == made.run(**ROW).value == 1.0
    assert [again.pass_if(value) for value in (1.0, 0.9)] == [True, False]


def test_copies_made_together_share_their_judges(store: str) -> None:
    made = scorers.from_config({"criteria": {"response_match_score": 0.5, "final_response_match_v2": 0.5}}, judge=ScriptedJudge("valid"))
    first, second = pickle.loads(pickle.dumps(made))  # noqa: S301
    assert first.shared is second.shared is not made[0].shared
    assert copy.deepcopy(made[0]).shared is made[0].shared
    assert second.run(inputs={"query": "q"}, outputs="a", expectations={"expected_response": "a"}).value == 1.0


def test_one_made_by_hand_says_how_to_make_it(store: str) -> None:
    from mlflow_adk_eval.integrations.genai_scorers import RowScorer

    with pytest.raises(UsageError, match=r"use scorers\.from_config or scorers\.response_match_score"):
        RowScorer(name="x", criterion="response_match_score").run(**ROW)
