from __future__ import annotations

from typing import Any

import anyio
import pytest

from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.criterion import apply
from mlflow_adk_eval.criteria.plan import planned_by
from mlflow_adk_eval.criteria.trajectory import ToolParameterSettings, ToolTrajectorySettings
from mlflow_adk_eval.evalset.conversation import InnerCall
from mlflow_adk_eval.evalset.models import FunctionCall
from mlflow_adk_eval.results.outcomes import Errored, Scored, Skipped
from tests.kit import call, case, event, recorded, run_of, scenario, turn

Calls = list[FunctionCall]
trajectory, parameters = (CRITERIA[name].make for name in ("tool_trajectory_avg_score", "tool_parameter_match"))


def judge(actual: Calls, expected: Calls, **settings: Any) -> Scored:
    criterion = trajectory(ToolTrajectorySettings(threshold=1.0, **settings))
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
            "The expected call was made.\n\n- not expected; ignored by IN_ORDER: `a({})`",
        ),
        (
            [call("a")],
            [],
            {"match_type": "ANY_ORDER"},
            "No call was expected, 1 was made.\n\n- not expected; ignored by ANY_ORDER: `a({})`",
        ),
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
            "0 of 1 expected calls match (IN_ORDER, arguments ignored).\n\n- missing: `a({})`\n- not expected; ignored by IN_ORDER: `c({})`",
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
        ([call("a")], [], {}, "No call was expected, 1 was made.\n\n- unexpected: `a({})`"),
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
    criterion = trajectory(ToolTrajectorySettings(threshold=1.0))
    actual = recorded("done", event(call("a", x=1)), event(text="thinking"), event(call("b"), call("c")))
    judged = criterion(run_of([actual], [turn("done", call("a", x=1), call("b"), call("c"))]))
    assert judged.per_invocation == (Scored(1.0, "All 3 expected calls were made."),)


def test_a_turn_that_is_missing_on_either_side_is_an_error_of_that_turn() -> None:
    criterion = trajectory(ToolTrajectorySettings(threshold=1.0))
    first, second = criterion(run_of([turn()], [turn(), turn()])).per_invocation
    assert isinstance(first, Scored)
    assert second == Errored("no actual turn: the agent has 1 of 2 turns")
    first, second = criterion(run_of([turn(), turn()], [turn()])).per_invocation
    assert isinstance(first, Scored)
    assert second == Errored("no expected turn: the reference has 1 of 2 turns")


def test_a_scenario_has_nothing_to_compare_with() -> None:
    criterion = trajectory(ToolTrajectorySettings(threshold=1.0))
    assert (
        criterion(run_of([turn(), turn()], None)).per_invocation
        == (Skipped("the case is a scenario and has no reference conversation"),) * 2
    )


ROME, PARIS = call("search", city="Rome"), call("search", city="Paris")


@pytest.mark.parametrize(
    ("actual", "expected", "score", "rationale"),
    [
        # The cases of ADK's own test of this criterion, on its main branch.
        (
            [call("search", city="Rome", rooms=2)],
            [call("search", city="Rome", rooms=1)],
            0.5,
            (
                "0 of 1 expected calls were made with the expected arguments.\n\n"
                "- `search` was called with different arguments:\n  - `$.rooms`: expected 1, got 2"
            ),
        ),
        ([ROME], [call("search", {})], 1.0, "1 of 1 expected calls were made with the expected arguments."),
        ([call("log", {}), ROME, PARIS], [ROME, PARIS], 1.0, "2 of 2 expected calls were made with the expected arguments."),
        ([], [ROME], 0.0, '0 of 1 expected calls were made with the expected arguments.\n\n- missing: `search({"city": "Rome"})`'),
        ([ROME], [call("log", {}), ROME], 0.5, "1 of 2 expected calls were made with the expected arguments.\n\n- missing: `log({})`"),
        # And what it leaves open.
        (
            [PARIS, ROME],
            [ROME, PARIS],
            0.0,
            (
                "0 of 2 expected calls were made with the expected arguments.\n\n"
                "- `search` was called with different arguments:\n  - `$.city`: expected 'Rome', got 'Paris'\n"
                "- `search` was called with different arguments:\n  - `$.city`: expected 'Paris', got 'Rome'"
            ),
        ),
        (
            [call("set", at={"room": "hall", "floor": 1}, on=True, colour="red")],
            [call("set", at={"room": "hall"}, on=1, for_s=None)],
            0.0,
            (
                "0 of 1 expected calls were made with the expected arguments.\n\n"
                "- `set` was called with different arguments:\n"
                "  - `$.at.floor`: expected nothing, got 1\n  - `$.on`: expected 1, got true\n  - `$.for_s`: expected null, got nothing"
            ),
        ),
    ],
)
def test_each_expected_argument_counts(actual: Calls, expected: Calls, score: float, rationale: str) -> None:
    criterion = parameters(ToolParameterSettings(threshold=0.5))
    assert criterion(run_of([turn("", *actual)], [turn("", *expected)])).per_invocation == (Scored(score, rationale),)


def test_turns_and_cases_that_expect_no_call_are_left_out() -> None:
    settings = ToolParameterSettings(threshold=0.5)
    criterion, silent = parameters(settings), case("c", turn(), turn())
    first, second = criterion(run_of([turn("", ROME)] * 2, [turn(), turn("", ROME)])).per_invocation
    assert (first, isinstance(second, Scored)) == (None, True)
    assert criterion(run_of([turn()], None)).per_invocation == (Skipped("the case is a scenario and has no reference conversation"),)
    assert [settings.applies_to(each) for each in (silent, case("c", turn(), turn("", ROME)), scenario("c"))] == [False, True, True]


OUTER, DEEP = call("expert", request="x"), InnerCall(turn=0, after=1, agent="expert", tool="search", args={"city": "Rome"})


@pytest.mark.parametrize("name", ["tool_trajectory_avg_score", "tool_parameter_match"])
@pytest.mark.parametrize(
    ("inner", "expected", "found"),
    [
        ((DEEP,), [OUTER, ROME, PARIS], 1.0),
        ((DEEP.model_copy(update={"after": 2}),), [OUTER, PARIS, ROME], 1.0),
        ((DEEP.model_copy(update={"turn": 1}),), [OUTER, PARIS], 1.0),
        ((), [OUTER, ROME, PARIS], 0.0),
        (None, [OUTER, PARIS], "AgentTools"),
        (
            (InnerCall(turn=0, after=1, tool="expert", unseen=True),),
            [OUTER, PARIS],
            "expert",
        ),
    ],
)
def test_calls_of_agents_that_are_tools_count_where_asked(name: str, inner: Any, expected: Calls, found: float | str) -> None:
    spec = CRITERIA[name]
    run = run_of([turn("", OUTER, PARIS), turn("hello")], [turn("", *expected), turn("")], inner_calls=inner)
    settings: Any = spec.settings(threshold=0.5, include_inner_calls=True)  # type: ignore[call-arg]
    cell, silent = anyio.run(apply, planned_by(spec, spec.make(settings), settings), run).per_invocation
    assert getattr(silent, "score", 1.0) == 1.0, "without any call, there is nothing that is not known"
    if isinstance(found, str):
        known = "they are kept where this package runs an agent of ADK, and plugins see what they call"
        assert cell == Errored(f"include_inner_calls: the calls of {found} are not known; {known}")
    else:
        assert isinstance(cell, Scored)
        assert (cell.score == 1.0) is (found == 1.0)
    without = spec.make(spec.settings(threshold=0.5))(run).per_invocation[0]
    assert (without.score == 1.0) is (ROME not in expected)
