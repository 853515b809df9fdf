from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from mlflow_adk_eval.agents.adk.agent import load_adk_agent
from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.evalset.files import load_eval_set
from mlflow_adk_eval.evalset.models import EvalCase, FunctionCall, Invocation
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.runner.evaluation import run
from tests.kit import turn_json

PROJECT = Path(__file__).parents[2] / "example_projects" / "home_automation"
EVAL_SET = load_eval_set(PROJECT / "home_automation.evalset.json")
CASES = {case.eval_id: case for case in EVAL_SET.eval_cases}
GOOD, REGRESSED = "home_automation_agent", "home_automation_agent_regressed"
LOST = {"turn_off_light", "already_off", "unknown_device", "set_temperature", "too_hot", "look_then_act", "warm_up"}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import the agents anew, without a key that would have them ask a real model."""
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [str(PROJECT), *sys.path])
    forget_agents()
    yield
    forget_agents()


def forget_agents() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in {GOOD, REGRESSED, "agent"}:
            del sys.modules[name]


def calls(turn: Invocation) -> list[tuple[str | None, object]]:
    def plain(call: FunctionCall) -> tuple[str | None, object]:
        return call.name, call.args

    return [plain(call) for call in turn.tool_calls]


def evaluated(agent: str) -> dict[str, CaseResult]:
    report = run(EVAL_SET, load_adk_agent(agent), load_config(PROJECT / "test_config.json"))
    return {case.eval_id: case for case in report.cases}


def missed(case: CaseResult) -> set[str]:
    return {result.criterion for result in case.results if result.passed is False}


@pytest.mark.parametrize("eval_id", CASES)
@pytest.mark.needs("google-adk")
def test_the_good_version_does_and_says_what_is_expected(eval_id: str) -> None:
    case: EvalCase = CASES[eval_id]
    played = anyio.run(load_adk_agent(GOOD).converse, case, 0)
    expected = case.conversation or ()
    assert played.error == ""
    assert [calls(turn) for turn in played.actual] == [calls(turn) for turn in expected]
    assert [turn.final_text for turn in played.actual] == [turn.final_text for turn in expected]


@pytest.mark.needs("google-adk")
def test_the_good_version_reaches_every_threshold() -> None:
    found = evaluated(GOOD)
    assert {eval_id: case.verdict for eval_id, case in found.items()} == dict.fromkeys(CASES, "passed")


@pytest.mark.needs("google-adk")
def test_the_regressed_version_loses_some_cases_and_keeps_the_others() -> None:
    found = evaluated(REGRESSED)
    assert {eval_id for eval_id, case in found.items() if case.verdict == "failed"} == LOST
    assert {eval_id for eval_id, case in found.items() if case.verdict == "passed"} == set(CASES) - LOST
    assert all("tool_trajectory_avg_score" in missed(found[eval_id]) for eval_id in LOST)


@pytest.mark.needs("google-adk")
def test_the_regressed_version_fails_in_the_three_ways_that_the_readme_tells() -> None:
    found = evaluated(REGRESSED)
    both = {"tool_trajectory_avg_score", "response_match_score"}
    assert missed(found["turn_off_light"]) == missed(found["already_off"]) == missed(found["look_then_act"]) == both
    assert missed(found["unknown_device"]) == {"tool_trajectory_avg_score"}
    assert calls(found["set_temperature"].actual[0]) == [("set_temperature", {"room": "bedroom", "temperature": 21})]
    assert missed(found["set_temperature"]) == {"tool_trajectory_avg_score"}


@pytest.mark.needs("google-adk")
def test_the_house_of_one_case_is_not_the_house_of_the_next() -> None:
    agent = load_adk_agent(GOOD)
    first = anyio.run(agent.converse, CASES["turn_off_light"], 0)
    second = anyio.run(agent.converse, CASES["turn_off_light"], 1)
    assert first.session_state is not None
    assert first.session_state["devices"]["device_2"]["status"] == "off"
    assert [calls(turn) for turn in first.actual] == [calls(turn) for turn in second.actual]


@pytest.mark.needs("google-adk")
def test_a_request_that_the_script_does_not_know_is_answered_with_what_it_does() -> None:
    turn = CASES["greeting"].conversation
    assert turn is not None
    odd = Invocation.model_validate(turn_json("Sing me a song."))
    played = anyio.run(load_adk_agent(GOOD).converse, CASES["greeting"].model_copy(update={"conversation": (odd,)}), 0)
    assert played.actual[0].final_text == turn[0].final_text


@pytest.mark.parametrize("key", ["GOOGLE_API_KEY", "GEMINI_API_KEY"])
@pytest.mark.parametrize("agent", [GOOD, REGRESSED])
@pytest.mark.needs("google-adk")
def test_with_a_key_gemini_takes_the_place_of_the_script(agent: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(key, "not-a-real-key")
    assert load_adk_agent(agent).root.root_agent.model == "gemini-2.5-flash"


def test_the_eval_set_is_written_as_adk_writes_it_and_holds_what_the_example_promises() -> None:
    raw = json.loads((PROJECT / "home_automation.evalset.json").read_text(encoding="utf-8"))
    assert not {key for key in keys(raw) if re.match(r"[a-z]+[A-Z]", key)}
    assert len(CASES) >= 8
    assert any(len(case.conversation or ()) > 1 for case in CASES.values())
    assert any(case.session_input and case.session_input.state for case in CASES.values())
    assert any(case.final_session_state for case in CASES.values())


def keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from keys(item)
    if isinstance(value, list):
        for item in value:
            yield from keys(item)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of ADK's evaluation package, which is experimental
def test_adk_loads_the_eval_set_and_the_config() -> None:
    from google.adk.evaluation.eval_config import EvalConfig
    from google.adk.evaluation.local_eval_sets_manager import load_eval_set_from_file

    path = str(PROJECT / "home_automation.evalset.json")
    assert [case.eval_id for case in load_eval_set_from_file(path, path).eval_cases] == list(CASES)
    config = EvalConfig.model_validate_json((PROJECT / "test_config.json").read_text(encoding="utf-8"))
    assert list(config.criteria) == ["tool_trajectory_avg_score", "response_match_score", "final_session_state"]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # of Google's libraries for its cloud
@pytest.mark.parametrize("agent", [GOOD, REGRESSED])
def test_adk_eval_loads_the_agents(agent: str) -> None:
    from google.adk.cli.cli_eval import get_root_agent

    found = get_root_agent(str(PROJECT / agent))

    async def root() -> object:
        return await found if inspect.isawaitable(found) else found

    assert anyio.run(root).name == "home_automation_agent"
