from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlflow_adk_eval import EvalCase, Report
from mlflow_adk_eval.agents.adk.agent import load_adk_agent
from mlflow_adk_eval.agents.users import UserFunction
from mlflow_adk_eval.config.inputs import load_inputs
from mlflow_adk_eval.errors import ConfigError
from mlflow_adk_eval.evalset.conversation import Ending
from mlflow_adk_eval.judge.setup import judge_setup
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.runner.evaluation import Options, run
from tests.kit import turn_json

PROJECT = Path(__file__).parents[2] / "example_projects" / "travel_planner"
WRITTEN, SIMULATED = PROJECT / "written" / "trips.evalset.json", PROJECT / "simulated" / "travellers.evalset.json"
EVAL_SET, CONFIG = load_inputs([WRITTEN, SIMULATED])
SCENARIOS = {case.eval_id: case.conversation_scenario for case in EVAL_SET.eval_cases if case.conversation_scenario}
GOOD, REGRESSED = "travel_planner", "travel_planner_regressed"
UNRELIABLE, DOWN = "hotel_search_unreliable", "hotel_search_down"
TRAJECTORY = "rubric_based_multi_turn_trajectory_quality_v1"
OURS = {GOOD, REGRESSED, "travellers", "travel_judge"}

pytestmark = [
    pytest.mark.needs("google-adk"),
    pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning"),  # of google-adk's AgentTool
]


@pytest.fixture(scope="module", autouse=True)
def _offline() -> Iterator[None]:
    """Import the example anew, without a key that would have it ask a real model."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
            patch.delenv(name, raising=False)
        patch.setattr(sys, "path", [str(PROJECT), *sys.path])
        forget()
        yield
        forget()


def forget() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in OURS:
            del sys.modules[name]


@pytest.fixture(scope="module")
def traveller() -> UserFunction:
    found: UserFunction = importlib.import_module("travellers").traveller
    return found


@pytest.fixture(scope="module")
def judge() -> Callable[..., Any]:
    found: Callable[..., Any] = importlib.import_module("travel_judge").travel_judge
    return found


@pytest.fixture(scope="module")
def evaluated(traveller: UserFunction, judge: Callable[..., Any]) -> Callable[[str], Report]:
    """Return what makes the report on an agent, as `run.py` does but without MLflow; once for each."""
    reports: dict[str, Report] = {}

    def report(agent: str) -> Report:
        options = Options(num_runs=3, judges=judge_setup(judge=judge), user_simulator=traveller)
        if agent not in reports:
            reports[agent] = run(EVAL_SET, load_adk_agent(PROJECT / agent), CONFIG, options)
        return reports[agent]

    return report


@pytest.fixture(scope="module")
def good(evaluated: Callable[[str], Report]) -> Report:
    return evaluated(GOOD)


@pytest.fixture(scope="module")
def regressed(evaluated: Callable[[str], Report]) -> Report:
    return evaluated(REGRESSED)


def case_of(report: Report, eval_id: str, run_index: int = 0) -> CaseResult:
    return next(case for case in report.cases if (case.eval_id, case.run_index) == (eval_id, run_index))


def said(case: CaseResult) -> list[str]:
    return [turn.user_text for turn in case.actual]


def called(case: CaseResult) -> list[str | None]:
    return [call.name for turn in case.actual for call in turn.tool_calls]


def test_the_good_version_passes_every_case_in_each_run(good: Report) -> None:
    assert good.passed
    assert len(good.cases) == 3 * 12
    assert good.repeats.pass_hat(3) == 1.0


def test_written_conversations_have_no_ending_and_simulated_ones_end_at_the_goal(good: Report) -> None:
    assert {case.eval_id for case in good.cases if case.ending} == set(SCENARIOS)
    assert {case.ending for case in good.cases} == {None, Ending(reason="goal")}


def test_an_expert_tells_everything_at_once(good: Report) -> None:
    assert said(case_of(good, "expert")) == [
        "Book a flight from Berlin to Lisbon on 3 May.",
        "Yes, please.",
        "Book a hotel in Lisbon for 3 nights.",
        "Yes, please.",
        "See the itinerary.",
    ]


def test_a_novice_waits_to_be_asked(good: Report) -> None:
    assert said(case_of(good, "novice")) == [
        "Hi! I want to fly somewhere.",
        "From Hamburg.",
        "To Vienna.",
        "On 7 June.",
        "Yes, please.",
        "Book a hotel.",
        "For 2 nights.",
        "Yes, please.",
    ]


def test_a_bargain_hunter_haggles_once(good: Report) -> None:
    wanted = ["Find me a hotel in Vienna for 4 nights.", "Is there anything cheaper?", "Yes, please."]
    assert said(case_of(good, "bargain_hunter")) == wanted


def test_the_personas_are_those_of_adk_and_one_of_our_own() -> None:
    personas = [scenario.user_persona for scenario in SCENARIOS.values()]
    own = [persona for persona in personas if persona and not isinstance(persona, str)]
    assert {persona for persona in personas if isinstance(persona, str)} == {"EXPERT", "NOVICE", "EVALUATOR"}
    assert [persona.id for persona in own] == ["BARGAIN_HUNTER"]
    assert all(behavior.behavior_instructions and behavior.violation_rubrics for behavior in own[0].behaviors)


def test_the_activities_agent_asks_another_agent_about_the_weather(good: Report) -> None:
    case = case_of(good, "evaluator")
    assert called(case)[:4] == ["transfer_to_agent", "forecaster", "search_activities", "book_activity"]
    assert case.session_state == {"bookings": {"activity": {"name": "Tram Tour", "price": 15}}}


def test_the_hotel_search_fails_as_the_config_says(good: Report) -> None:
    injected = {(case.eval_id, case.run_index): len(case.injections) for case in good.cases if case.injections}
    unreliable, down = [1, 2], [0, 1, 2]
    assert injected == {(UNRELIABLE, index): 1 for index in unreliable} | {(DOWN, index): 4 for index in down}
    assert called(case_of(good, UNRELIABLE, 1))[:3] == ["transfer_to_agent", "search_hotels", "search_hotels"]
    assert said(case_of(good, DOWN))[-1] == "Please try again."


def test_the_regressed_version_passes_what_is_written_down(regressed: Report) -> None:
    assert {case.verdict for case in regressed.cases if case.eval_id not in SCENARIOS} == {"passed"}


def test_the_regressed_version_fails_in_the_ways_that_the_readme_tells(regressed: Report) -> None:
    missed = {
        (case.eval_id, result.criterion) for case in regressed.cases for result in case.results if result.passed is False and result.decides
    }
    booked_unasked = {(eval_id, TRAJECTORY) for eval_id in ("expert", "novice", "bargain_hunter")}
    assert missed == booked_unasked | {(DOWN, TRAJECTORY), (UNRELIABLE, "final_session_state")}
    votes = regressed.to_frame("votes")
    against = votes[(votes["criterion"] == TRAJECTORY) & (votes["verdict"] == "no")]
    assert set(zip(against["eval_id"], against["rubric_id"], strict=True)) == {
        ("expert", "asks_first"),
        ("novice", "asks_first"),
        ("bargain_hunter", "asks_first"),
        (DOWN, "tries_again"),
    }


def test_giving_up_at_the_first_failure_makes_a_case_flaky(regressed: Report) -> None:
    (flaky,) = regressed.repeats.flaky
    assert (flaky.eval_id, flaky.verdicts) == (UNRELIABLE, ("passed", "failed", "failed"))


def test_a_limit_on_the_user_is_another_ending_than_the_goal(traveller: UserFunction, judge: Callable[..., Any]) -> None:
    eval_set, config = load_inputs(SIMULATED)
    expert = eval_set.model_copy(update={"eval_cases": eval_set.eval_cases[:1]})
    short = config.to_json() | {"user_simulator_config": {"max_allowed_invocations": 2}, "case_criteria": {}, "case_environments": {}}
    options = Options(judges=judge_setup(judge=judge), user_simulator=traveller)
    report = run(expert, load_adk_agent(PROJECT / GOOD), load_inputs(expert, short)[1], options)
    assert str(report.cases[0].ending) == "limit: max_allowed_invocations of 2"
    assert len(report.cases[0].actual) == 2


def test_the_config_of_one_kind_of_conversation_is_refused_for_the_other(traveller: UserFunction) -> None:
    eval_set, _ = load_inputs(SIMULATED)
    _, config = load_inputs(WRITTEN)
    with pytest.raises(ConfigError, match="a criterion that needs a reference conversation"):
        run(eval_set, load_adk_agent(PROJECT / GOOD), config, Options(user_simulator=traveller))


def test_a_user_leaves_when_there_is_nothing_to_say(traveller: UserFunction, good: Report) -> None:
    case = case_of(good, "expert")
    assert traveller(SCENARIOS["expert"], case.actual) is None
    assert traveller(SCENARIOS["expert"], case.actual[:1]) == "Yes, please."


@pytest.mark.parametrize("key", ["GOOGLE_API_KEY", "GEMINI_API_KEY"])
@pytest.mark.parametrize("agent", [GOOD, REGRESSED])
def test_with_a_key_gemini_takes_the_place_of_every_script(agent: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(key, "not-a-real-key")
    held = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in OURS}
    try:
        root = load_adk_agent(PROJECT / agent).root.root_agent
    finally:
        forget()
        sys.modules.update(held)
    assert [one.model for one in (root, *root.sub_agents)] == ["gemini-2.5-flash"] * 5


def test_an_unknown_request_is_answered_with_what_can_be_done() -> None:
    case = EvalCase.model_validate({"eval_id": "odd", "conversation": [turn_json("Sing me a song.")]})
    played = anyio.run(load_adk_agent(PROJECT / GOOD).converse, case, 0)
    greeting = next(case for case in EVAL_SET.eval_cases if case.eval_id == "greeting").conversation or ()
    assert played.actual[0].final_text == greeting[0].final_text


@pytest.mark.filterwarnings("ignore::UserWarning")  # of ADK's evaluation package, which is experimental
@pytest.mark.parametrize(
    "path", [WRITTEN, pytest.param(SIMULATED, marks=pytest.mark.needs("google-adk", "2"))], ids=["written", "simulated"]
)
def test_adk_loads_the_eval_sets_and_the_configs(path: Path) -> None:
    from google.adk.evaluation.eval_config import EvalConfig
    from google.adk.evaluation.local_eval_sets_manager import load_eval_set_from_file

    loaded = load_eval_set_from_file(str(path), str(path))
    assert [case.eval_id for case in loaded.eval_cases] == [case["eval_id"] for case in json.loads(path.read_text())["eval_cases"]]
    assert EvalConfig.model_validate_json((path.parent / "test_config.json").read_text()).criteria
