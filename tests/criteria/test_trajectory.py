from __future__ import annotations

from typing import Any

import pytest

from mlflow_adk_eval.criteria.trajectory import ToolTrajectory, ToolTrajectorySettings
from mlflow_adk_eval.evalset.models import FunctionCall
from mlflow_adk_eval.results.outcomes import Errored, Scored, Skipped
from tests.kit import call, event, recorded, run_of, turn

Calls = list[FunctionCall]


def judge(actual: Calls, expected: Calls, **settings: Any) -> Scored:
    criterion = ToolTrajectory(ToolTrajectorySettings(threshold=1.0, **settings))
    (cell,) = criterion(run_of([turn("", *actual)], [turn("", *expected)])).per_invocation
    assert isinstance(cell, Scored)
    return cell


@pytest.mark.parametrize(
    ("actual", "expected", "settings", "rationale"),
    [
        ([], [], {}, "No call was expected or made."),
        ([call("a")], [call("a")], {}, "The expected call was made."),
        ([call("a"), call("b")], [call("a"), call("b")], {}, "All 2 expected calls were made."),
        (
            [call("a"), call("b")],
            [call("b")],
            {"match_type": "IN_ORDER"},
            "The expected call was made, and 1 more, as this match type allows.",
        ),
        ([call("a")], [], {"match_type": "ANY_ORDER"}, "No call was expected; 1 made, as this match type allows."),
    ],
)
def test_a_match_says_what_matched(actual: Calls, expected: Calls, settings: Any, rationale: str) -> None:
    assert judge(actual, expected, **settings) == Scored(1.0, rationale)


@pytest.mark.parametrize(
    ("actual", "expected", "settings", "rationale"),
    [
        (
            [call("set_light", room="kitchen", on=True)],
            [call("set_light", room="Kitchen", on=True)],
            {},
            (
                "0 of 1 expected calls match (EXACT).\n\n"
                "- `set_light` was called with different arguments:\n"
                "  - `$.room`: expected 'Kitchen', got 'kitchen'"
            ),
        ),
        (
            [call("b"), call("c", x=1)],
            [call("a"), call("b")],
            {},
            '1 of 2 expected calls match (EXACT).\n\n- missing: `a({})`\n- unexpected: `c({"x": 1})`',
        ),
        (
            [call("c")],
            [call("a")],
            {"match_type": "IN_ORDER", "ignore_args": True},
            "0 of 1 expected calls match (IN_ORDER, arguments ignored).\n\n- missing: `a({})`\n- in addition, as allowed: `c({})`",
        ),
        (
            [call("b"), call("a")],
            [call("a"), call("b")],
            {},
            (
                "1 of 2 expected calls match (EXACT). All of them were made, but not in the expected order.\n\n"
                "- missing: `a({})`\n- unexpected: `a({})`"
            ),
        ),
        ([call("a")], [], {}, "0 of 0 expected calls match (EXACT).\n\n- unexpected: `a({})`"),
    ],
)
def test_a_mismatch_says_which_call_is_to_blame(actual: Calls, expected: Calls, settings: Any, rationale: str) -> None:
    assert judge(actual, expected, **settings) == Scored(0.0, rationale)


def test_a_long_list_of_blame_and_long_arguments_are_cut_short() -> None:
    rationale = judge([call("a", text="x" * 1000)] * 30, []).rationale
    assert rationale.endswith("- and 10 more")
    assert rationale.count("\n- unexpected") == 20
    assert max(map(len, rationale.splitlines())) < 250


def test_arguments_that_are_no_json_are_shown_as_text() -> None:
    assert "object object" in judge([call("a", what=object())], []).rationale


def test_both_shapes_of_intermediate_data_are_compared() -> None:
    criterion = ToolTrajectory(ToolTrajectorySettings(threshold=1.0))
    actual = recorded("done", event(call("a", x=1)), event(text="thinking"), event(call("b"), call("c")))
    judged = criterion(run_of([actual], [turn("done", call("a", x=1), call("b"), call("c"))]))
    assert judged.per_invocation == (Scored(1.0, "All 3 expected calls were made."),)


def test_a_turn_that_is_missing_on_either_side_is_an_error_of_that_turn() -> None:
    criterion = ToolTrajectory(ToolTrajectorySettings(threshold=1.0))
    first, second = criterion(run_of([turn()], [turn(), turn()])).per_invocation
    assert isinstance(first, Scored)
    assert second == Errored("no actual turn: the agent has 1 of 2 turns")
    first, second = criterion(run_of([turn(), turn()], [turn()])).per_invocation
    assert isinstance(first, Scored)
    assert second == Errored("no expected turn: the reference has 1 of 2 turns")


def test_a_scenario_has_nothing_to_compare_with() -> None:
    criterion = ToolTrajectory(ToolTrajectorySettings(threshold=1.0))
    assert (
        criterion(run_of([turn(), turn()], None)).per_invocation
        == (Skipped("the case is a scenario and has no reference conversation"),) * 2
    )
