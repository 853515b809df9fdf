from __future__ import annotations

import datetime as dt
from typing import Any

import anyio
import pytest

from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.criterion import CaseRun, apply
from mlflow_adk_eval.criteria.final_state import FinalSessionState, FinalStateSettings
from mlflow_adk_eval.criteria.plan import planned_by
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.results.outcomes import Errored, Outcome, Scored, Skipped
from tests.kit import case, turn


def judge(actual: Json | None, expected: Json | None, match_type: Any = "SUBSET") -> Outcome | None:
    run = CaseRun(case=case("c", turn(), turn(), final_session_state=expected), actual=(turn(), turn()), session_state=actual)
    settings = FinalStateSettings(threshold=1.0, match_type=match_type)
    planned = planned_by(CRITERIA["final_session_state"], FinalSessionState(settings), settings)
    first, last = anyio.run(apply, planned, run).per_invocation
    assert first is None, "a state is that of the whole conversation"
    return last


@pytest.mark.parametrize(
    ("actual", "expected", "exact", "subset"),
    [
        ({"a": 1}, {"a": 1}, 1, 1),
        ({"a": 1, "b": 2}, {"a": 1}, 0, 1),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1}}, 0, 1),
        ({"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]}, 0, 0),
        ({"a": True}, {"a": 1}, 0, 0),
        ({"a": 1.0}, {"a": 1}, 1, 1),
        ({}, {"a": None}, 0, 0),
        ({"a": ("x", "y"), "on": dt.date(2026, 1, 2)}, {"a": ["x", "y"], "on": "2026-01-02"}, 1, 1),
    ],
)
def test_states_are_compared_as_json(actual: Json, expected: Json, exact: int, subset: int) -> None:
    for match_type, wanted in (("EXACT", exact), ("SUBSET", subset)):
        found = judge(actual, expected, match_type)
        assert isinstance(found, Scored)
        assert found.score == wanted, match_type


def test_the_rationale_names_the_places() -> None:
    assert judge({"room": {"light": "off"}, "x": 1}, {"room": {"light": "on"}, "y": 2}) == Scored(
        0.0, "The state differs (SUBSET):\n\n- `$.room.light`: expected 'on', got 'off'\n- `$.y`: expected 2, got nothing"
    )
    assert judge({"a": 1}, {"a": 1}) == Scored(1.0, "All 1 expected keys are as expected.")


def test_a_long_list_of_places_is_cut_short() -> None:
    found = judge({}, {f"k{index}": index for index in range(25)})
    assert isinstance(found, Scored)
    assert found.rationale.endswith("- and 5 more")


@pytest.mark.parametrize("expected", [None, {}])
def test_a_case_that_expects_no_state_is_no_pass(expected: Json | None) -> None:
    assert isinstance(judge({"a": 1}, expected), Skipped)


def test_an_unknown_state_is_an_error() -> None:
    assert judge(None, {"a": 1}) == Errored("the session's final state is unknown")
