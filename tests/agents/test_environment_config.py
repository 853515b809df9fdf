"""What a config may say of tools that are not the real ones."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.config.eval_config import EvalConfig, default_config, dumps_config, load_config, parse_config
from mlflow_adk_eval.config.surroundings import InjectionConfig
from mlflow_adk_eval.errors import ConfigError
from tests.agents.environments import ERROR, config_of, injecting
from tests.strategies import QUICK, objects, respelt

AT = "$.environment_simulation_config.tool_simulation_configs"
FULL = injecting(
    book=[
        ERROR | {"match_args": {"city": "Bern", "guests": [1, {"x": None}]}, "first_calls": 2, "injected_latency_seconds": 0.5},
        {"injected_response": {}, "injection_probability": 0.25, "random_seed": 7, "on_calls": [0, 2]},
    ],
    find={"injected_latency_seconds": 3},
)


def problems_of(environment: Any, **more: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        config_of(environment, **more)
    return {problem.path: f"{problem.found}; {problem.wanted}" + problem.hint for problem in caught.value.problems}


def only(environment: Any) -> InjectionConfig:
    found = config_of(environment).environment_simulation_config
    assert found is not None
    return found.tool_simulation_configs[0].injection_configs[0]


@QUICK
@given(st.integers(0, 2**32))
def test_both_spellings_read_the_same(seed: int) -> None:
    value = {"environment_simulation_config": FULL, "case_environments": {"c 1": FULL, "c_2": None}}
    spelt = respelt(value, seed, keep=("match_args", "matchArgs", "injected_response", "injectedResponse", "case_environments"))
    assert config_of(**spelt) == config_of(**value)


def test_a_config_reads_back_from_its_own_json() -> None:
    config = config_of(FULL, case_environments={"c1": None, "c2": injecting(book=ERROR)})
    again = parse_config(json.loads(dumps_config(config)), "config")
    assert again == config
    assert again.digest() == config.digest()
    assert dumps_config(again) == dumps_config(config)
    assert again.environment_of("c1") is None
    assert again.environment_of("c3") == config.environment_simulation_config


@QUICK
@given(objects(), objects())
def test_arguments_and_answers_stay_what_they_are(args: dict[str, Any], answer: dict[str, Any]) -> None:
    config = config_of(injecting(book={"match_args": args, "injected_response": answer}))
    again = parse_config(json.loads(dumps_config(config)), "config")
    assert again == config
    injection = only(injecting(book={"match_args": args, "injected_response": answer}))
    assert (injection.match_args, injection.injected_response) == (args, answer)


def test_a_config_without_tools_has_the_json_and_the_digest_that_it_had_before() -> None:
    assert set(default_config().to_json()) == {"criteria"}
    assert default_config().digest() == "sha256:2839b7cb07366be67ea196ec2238a5bb6b8009ced3b4e9f70db7a933fdb8df71"
    assert config_of(case_environments={}).digest() == config_of().digest()


def test_the_digest_is_that_of_the_meaning() -> None:
    digest = config_of(injecting(book=ERROR)).digest()
    assert config_of(injecting(book=ERROR | {"injection_probability": 1, "random_seed": None})).digest() == digest
    others: list[EvalConfig] = [
        config_of(),
        config_of(injecting(book=ERROR | {"first_calls": 1})),
        config_of(injecting(book=ERROR | {"random_seed": 1})),
        config_of(injecting(book={"injected_response": {}})),
        config_of(injecting(book={"injected_response": {"x": None}})),
        config_of(injecting(book=ERROR), case_environments={"c": None}),
        config_of(case_environments={"c": injecting(book=ERROR)}),
    ]
    assert len({digest, *(other.digest() for other in others)}) == len(others) + 1


def test_what_was_given_can_be_changed_afterwards() -> None:
    answer = {"rooms": [1]}
    injection = only(injecting(book={"injected_response": answer}))
    answer["rooms"].append(2)
    assert injection.injected_response == {"rooms": [1]}


def test_a_config_made_by_hand_is_held_to_the_same_rules() -> None:
    made = config_of().model_copy(update={"environment_simulation_config": config_of(FULL).environment_simulation_config})
    assert load_config(made) is made


@pytest.mark.parametrize(
    ("injection", "said"),
    [
        ({}, "nothing to inject; injected_error, injected_response or injected_latency_seconds"),
        ({"injected_latency_seconds": 0}, "nothing to inject; injected_error, injected_response or injected_latency_seconds"),
        (ERROR | {"injected_response": {}}, "both injected_error and injected_response; one of them"),
        (ERROR | {"first_calls": 1, "on_calls": [1]}, "both first_calls and on_calls; one of them"),
        ("fail", "'fail'; an object"),
    ],
)
def test_an_injection_has_one_effect(injection: Any, said: str) -> None:
    assert problems_of(injecting(book=[ERROR, injection])) == {f"{AT}[0].injection_configs[1]": said}


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"injection_probability": 1.01}, "1.01; a number of at most 1"),
        ({"injection_probability": -0.1}, "-0.1; a number of at least 0"),
        ({"injection_probability": math.nan}, "NaN; a number of at most 1"),
        ({"injected_latency_seconds": -1}, "-1; a number of at least 0"),
        ({"injected_latency_seconds": 121}, "121; a number of at most 120"),
        ({"first_calls": 0}, "0; a number of at least 1"),
        ({"on_calls": []}, "an empty list; at least one call, counted from 0"),
        ({"on_calls": 1}, "1; a list"),
        ({"random_seed": "x"}, "'x'; a whole number"),
        ({"match_args": ["Bern"]}, "a list of 1; an object"),
        ({"match_args": {"day": dt.date(2026, 1, 1)}}, "an object that is not JSON (Object of type date is not JSON serializable); an object of JSON values"),
    ],
)  # fmt: skip
def test_numbers_are_in_range_and_values_are_json(field: dict[str, Any], said: str) -> None:
    found = problems_of(injecting(book=ERROR | field))
    assert list(found) == [f"{AT}[0].injection_configs[0].{next(iter(field))}"]
    assert next(iter(found.values())).startswith(said)


@pytest.mark.parametrize("answer", ["no rooms", [], 3, {"rate": math.nan}, {"rate": {1, 2}}])
def test_a_response_is_a_json_object(answer: Any) -> None:
    found = problems_of(injecting(book={"injected_response": answer}))
    assert list(found) == [f"{AT}[0].injection_configs[0].injected_response"]
    assert "an object" in next(iter(found.values()))


def test_the_place_in_a_list_is_told() -> None:
    found = problems_of(injecting(book=ERROR | {"on_calls": [0, -1]}, find={"injected_error": {"error_message": 3}}))
    assert found == {
        f"{AT}[0].injection_configs[0].on_calls[1]": "-1; a number of at least 0",
        f"{AT}[1].injection_configs[0].injected_error.injected_http_error_code": "nothing; this required field",
        f"{AT}[1].injection_configs[0].injected_error.error_message": "3; a string",
    }


def test_each_tool_has_a_name_and_something_that_happens_and_stands_there_once() -> None:
    assert problems_of({"tool_simulation_configs": []}) == {AT: "an empty list; at least one tool"}
    assert problems_of(injecting(book=[])) == {f"{AT}[0].injection_configs": "an empty list; at least one injection"}
    assert problems_of({"tool_simulation_configs": [{"tool_name": "book"}]}) == {
        f"{AT}[0].injection_configs": "nothing; this required field"
    }
    assert problems_of(injecting(**{" ": ERROR})) == {f"{AT}[0].tool_name": "' '; the name of a tool"}
    twice = {"tool_simulation_configs": injecting(book=ERROR, find=ERROR)["tool_simulation_configs"] * 2}
    assert problems_of(twice) == {AT: "'book' at [0] and again at [2]; one entry for each tool"}


@pytest.mark.parametrize(
    ("slip", "path", "meant"),
    [
        ({"environment_simulation": injecting(book=ERROR)}, "$.environment_simulation", "environment_simulation_config"),
        ({"case_environment": {}}, "$.case_environment", "case_environments"),
        ({"environment_simulation_config": {"tool_simulation_config": []}}, f"{AT[:-1]}", "tool_simulation_configs"),
        ({"environment_simulation_config": injecting(book={"injected_respons": {"a": 1}})}, f"{AT}[0].injection_configs[0].injected_respons", "injected_response"),
        ({"environment_simulation_config": injecting(book=ERROR | {"matchArg": {"a": 1}})}, f"{AT}[0].injection_configs[0].matchArg", "match_args"),
    ],
)  # fmt: skip
def test_a_slip_of_the_pen_is_one_problem_with_its_likely_meaning(slip: dict[str, Any], path: str, meant: str) -> None:
    found = problems_of(None, **slip)
    assert list(found) == [path]
    assert found[path].endswith(f"Did you mean {meant!r}?")


def test_problems_of_single_cases_are_told_by_their_ids() -> None:
    found = problems_of(None, case_environments={"c 1": injecting(book={}), "c2": 3})
    assert list(found) == [
        "$.case_environments['c 1'].tool_simulation_configs[0].injection_configs[0]",
        "$.case_environments.c2",
    ]


# Beside ADK's own classes


@pytest.mark.parametrize("strategy", [1, 2, "MOCK_STRATEGY_TOOL_SPEC", ["MOCK_STRATEGY_TRACING"]])
def test_answers_that_a_model_makes_up_are_refused(strategy: Any) -> None:
    tool = injecting(book=ERROR)["tool_simulation_configs"][0] | {"mock_strategy_type": strategy}
    found = problems_of({"tool_simulation_configs": [tool], "simulation_model": "gemini-2.5-pro", "environment_data": "{}"})
    assert list(found) == ["$.environment_simulation_config.tool_simulation_configs[0].mock_strategy_type"] + [
        f"$.environment_simulation_config.{name}" for name in ("simulation_model", "environment_data")
    ]
    assert all(said.endswith("set a fixed answer as injected_response") for said in found.values())


@pytest.mark.parametrize("nothing", [None, 0, "MOCK_STRATEGY_UNSPECIFIED"])
def test_adks_way_to_say_that_no_model_answers_is_read(nothing: Any) -> None:
    tool = injecting(book=ERROR)["tool_simulation_configs"][0] | {"mockStrategyType": nothing}
    assert config_of({"tool_simulation_configs": [tool], "tracing": None}) == config_of(injecting(book=ERROR))


def test_adk_reads_the_json_of_a_config_and_of_its_tools() -> None:
    eval_config = pytest.importorskip("google.adk.evaluation.eval_config", reason="the extra [adk] is not installed")
    config = config_of(FULL, case_environments={"c1": None})
    assert list(eval_config.EvalConfig.model_validate_json(dumps_config(config)).criteria) == ["tool_call_count_v1"]


@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL.*:UserWarning")
def test_adk_reads_our_tools_where_it_has_them_and_takes_what_we_refuse() -> None:
    reason = "this google-adk has no environment simulation"
    adk = pytest.importorskip("google.adk.tools.environment_simulation.environment_simulation_config", reason=reason)
    ours = config_of(injecting(book=[ERROR | {"match_args": {"a": [1]}}, {"injected_response": {"b": 2}, "random_seed": 3}])).to_json()
    theirs = adk.EnvironmentSimulationConfig.model_validate(ours["environment_simulation_config"])
    first, second = theirs.tool_simulation_configs[0].injection_configs
    assert (first.match_args, first.injected_error.injected_http_error_code, second.random_seed) == ({"a": [1]}, 503, 3)
    assert second.injected_response == {"b": 2}
    taken = adk.InjectionConfig.model_validate(ERROR | {"injection_probability": 5, "injected_latency_seconds": -1, "match_arg": {}})
    assert taken.match_args is None
    for refused in ({"injected_response": {}}, {"injected_latency_seconds": 1}):
        with pytest.raises(ValueError, match="Either injected_error or injected_response must be set"):
            adk.InjectionConfig.model_validate(refused)
        only(injecting(book=refused))
