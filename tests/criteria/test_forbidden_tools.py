"""Calls that an agent must never make."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.criterion import CaseRun
from mlflow_adk_eval.criteria.forbidden_tools import ForbiddenToolsSettings
from mlflow_adk_eval.errors import ConfigError
from mlflow_adk_eval.evalset.conversation import InnerCall
from mlflow_adk_eval.evalset.models import Invocation
from mlflow_adk_eval.results.outcomes import Errored, Outcome, Scored
from tests.kit import call, run_of, scenario, turn

NAME = "forbidden_tools_v1"
REFUND = {"name": "issue_refund", "args": {"approved": False}}
TOOLS: list[Any] = ["delete_account", REFUND]


def judge(
    *actual: Invocation, tools: list[Any] = TOOLS, expected: tuple[Invocation, ...] | None = None, **more: Any
) -> tuple[Outcome | None, ...]:
    settings = ForbiddenToolsSettings.model_validate({"threshold": 1.0, "tools": tools} | more.pop("settings", {}))
    run = run_of(actual, expected, **more) if expected else CaseRun(case=scenario("c"), actual=actual, **more)
    return CRITERIA[NAME].make(settings)(run).per_invocation


def test_each_turn_is_judged_without_a_reference() -> None:
    right, wrong = judge(turn("ok", call("lookup")), turn("gone", call("lookup"), call("delete_account", {"id": 7})))
    assert right == Scored(1.0, "No forbidden tool was called in 1 call.")
    assert wrong == Scored(0.0, '1 forbidden call was made:\n\n- `delete_account({"id": 7})` is forbidden by `delete_account`')


@pytest.mark.parametrize(
    ("args", "score"),
    [
        ({"approved": False}, 0.0),
        ({"approved": False, "amount": 3}, 0.0),
        ({"approved": True}, 1.0),
        ({"approved": 0}, 1.0),
        ({"approved": None}, 1.0),
        ({}, 1.0),
        (None, 1.0),
    ],
)
def test_arguments_must_be_among_those_of_the_call(args: Any, score: float) -> None:
    (cell,) = judge(turn("", call("issue_refund", args)))
    assert isinstance(cell, Scored)
    assert cell.score == score


def test_objects_within_arguments_are_parts_too_and_lists_are_whole() -> None:
    tools = [{"name": "pay", "args": {"to": {"country": "XX"}, "tags": ["a"]}}]
    bad = call("pay", {"to": {"country": "XX", "city": "Y"}, "tags": ["a"], "amount": 1})
    good = call("pay", {"to": {"country": "XX"}, "tags": ["a", "b"]})
    assert [cell.score for cell in judge(turn("", bad), turn("", good), tools=tools) if isinstance(cell, Scored)] == [0.0, 1.0]


@pytest.mark.parametrize("name", ["Delete_Account", "delete_account ", "DELETE_ACCOUNT", "delete_\u0430ccount"])
def test_names_are_compared_by_what_people_see(name: str) -> None:
    assert isinstance((cell := judge(turn("", call(name)))[0]), Scored)
    assert cell.score == 0.0
    assert isinstance((cell := judge(turn("", call("delete_account")), tools=[name])[0]), Scored)
    assert cell.score == 0.0


def test_another_tool_is_not_forbidden_by_a_part_of_its_name() -> None:
    (cell,) = judge(turn("", call("undelete_account"), call("delete_account_draft")))
    assert cell == Scored(1.0, "No forbidden tool was called in 2 calls.")


def test_known_calls_of_agents_that_are_tools_count() -> None:
    inner = (InnerCall(turn=0, after=1, tool="delete_account", args={}),)
    assert judge(turn("", call("helper")), inner_calls=inner)[0] == Scored(
        0.0, "1 forbidden call was made:\n\n- `delete_account({})` is forbidden by `delete_account`"
    )


def test_calls_that_nobody_could_see_leave_the_turn_undecided() -> None:
    unseen = (InnerCall(turn=0, after=1, tool="helper", args={}, unseen=True),)
    (cell,) = judge(turn("", call("helper")), inner_calls=unseen)
    assert isinstance(cell, Errored)
    assert cell.error.startswith("no forbidden call is known, but the calls of helper are not known")
    (cell,) = judge(turn("", call("helper"), call("delete_account")), inner_calls=unseen)
    assert isinstance(cell, Scored)  # what is known is enough to fail
    assert cell.score == 0.0


def test_unknown_inner_calls_matter_only_if_the_settings_say_so() -> None:
    assert isinstance(judge(turn("", call("helper")))[0], Scored)
    assert isinstance(judge(turn("", call("helper")), settings={"include_inner_calls": True})[0], Errored)
    assert isinstance(judge(turn(""), settings={"include_inner_calls": True})[0], Scored)  # no agent was called as a tool


def test_a_turn_that_the_agent_did_not_reach_has_no_score() -> None:
    cells = judge(turn("ok"), expected=(turn("ok"), turn("ok")))
    assert [type(cell) for cell in cells] == [Scored, Errored]


def test_settings_survive_a_config() -> None:
    given = {"criteria": {NAME: {"threshold": 1.0, "tools": ["a", {"name": "b", "args": {"x": None, "y": {"z": [1]}}}]}}}
    config = parse_config(given, "config")
    again = parse_config(config.to_json(), "config")
    assert again == config
    settings = again.criteria[NAME]
    assert isinstance(settings, ForbiddenToolsSettings)
    assert [(tool.name, tool.args) for tool in settings.forbidden] == [("a", None), ("b", {"x": None, "y": {"z": [1]}})]


@pytest.mark.parametrize(
    ("settings", "path", "said"),
    [
        ({}, "tools", "nothing"),
        ({"tools": []}, "tools", "at least one tool"),
        ({"tools": "delete_account"}, "tools", "list"),
        ({"tools": [7]}, "tools[0]", ""),
        ({"tools": [" "]}, "tools", "the name of a tool"),
        ({"tools": [{"name": ""}]}, "tools[0].name", "the name of a tool"),
        ({"tools": [{"args": {}}]}, "tools[0].name", ""),
        ({"tools": [{"name": "a", "arg": {}}]}, "tools[0].arg", "'args'"),
        ({"tools": [{"name": "a", "args": ["x"]}]}, "tools[0].args", ""),
        ({"tool": ["a"]}, "tool", "'tools'"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], path: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config({"criteria": {NAME: {"threshold": 1.0} | settings}}, "config")
    assert f"$.criteria.{NAME}.{path}:" in str(error.value)
    assert said in str(error.value)
