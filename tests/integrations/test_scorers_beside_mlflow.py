"""MLflow's own scorers for ADK beside ours: what docs/how_to/genai.md says of the difference."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mlflow_adk_eval import scorers
from mlflow_adk_eval.errors import ConfigError
from tests.integrations.genai import QUIET, genai_store

pytestmark = QUIET

store = genai_store
ROW: dict[str, Any] = {"inputs": {"query": "q"}, "expectations": {"expected_response": "the cat sat"}}


@pytest.fixture(autouse=True)
def _tracked(store: str) -> None:
    """Run on the module's store."""


def theirs(**settings: Any) -> Any:
    from mlflow.genai.scorers.google_adk import ResponseMatch

    return ResponseMatch(**settings)


@pytest.mark.needs("google-adk")
def test_theirs_of_tool_calls_cannot_be_made_with_this_adk() -> None:
    from mlflow.genai.scorers.google_adk import ToolTrajectory

    with pytest.raises(ValidationError, match="threshold"):
        ToolTrajectory()
    row = {**ROW, "expectations": {"expected_tool_calls": [{"name": "look", "args": {}}]}}
    done = {"response": "a cat", "tool_calls": [{"name": "look", "args": {}}]}
    assert scorers.tool_trajectory_avg_score()(**row, outputs=done).value == 1.0


@pytest.mark.needs("google-adk")
def test_theirs_gives_yes_or_no_where_ours_gives_the_score() -> None:
    assert str(theirs(threshold=0.5)(**ROW, outputs="the cat stood").value) == "yes"
    assert scorers.response_match_score(threshold=0.5)(**ROW, outputs="the cat stood").value == pytest.approx(2 / 3)


@pytest.mark.needs("google-adk")
def test_theirs_takes_a_misspelt_setting_and_ours_refuses_it() -> None:
    theirs(treshold=0.9)
    with pytest.raises(ConfigError, match="Did you mean 'threshold'"):
        scorers.response_match_score(treshold=0.9)


@pytest.mark.needs("google-adk")
def test_theirs_compares_the_json_of_an_object_and_ours_its_answer() -> None:
    done = {"response": "the cat sat"}
    assert float(theirs()(**ROW, outputs=done).metadata["score"]) < 1
    assert scorers.response_match_score(threshold=0.5)(**ROW, outputs=done).value == 1.0
