"""The settings of a config that decide where requests go."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_adk_eval.config.eval_config import default_config, endpoints_in, parse_config

AT = "$.criteria.final_response_match_v2.judge_model_options"


def judged(**options: Any) -> dict[str, Any]:
    return {"threshold": 0.5, "judge_model_options": options}


def found(**options: Any) -> list[tuple[str, str | None]]:
    config = parse_config({"criteria": {"final_response_match_v2": judged(**options)}}, "config")
    return [(path.removeprefix(f"{AT}."), host) for path, host in endpoints_in(config)]


def test_a_config_that_only_shapes_generation_has_none() -> None:
    generation = {"temperature": 0, "topP": 0.5, "maxOutputTokens": 9, "thinking_config": {"thinking_budget": 1}, "revision": "a"}
    sending = {"httpOptions": {"timeout": 1000, "retry_options": {"attempts": 2}}}
    assert found(judge_model_config=generation | sending) == []
    assert found(judge_model_config={"http_options": {"headers": None}, "labels": None}) == []
    assert found(judge_model_config={"http_options": {}}) == found(judge_model_config={}) == []
    assert endpoints_in(default_config()) == []


@pytest.mark.parametrize(
    ("settings", "path", "host"),
    [
        ({"http_options": {"base_url": "http://Evil.example:8080/v1"}}, "http_options.base_url", "evil.example:8080"),
        ({"httpOptions": {"baseUrl": "https://evil.example"}}, "httpOptions.baseUrl", "evil.example"),
        ({"http_options": {"base_url": "https://[::1]:80/"}}, "http_options.base_url", "[::1]:80"),
        ({"http_options": {"base_url": "https://good.example@evil.example"}}, "http_options.base_url", None),
        ({"http_options": {"base_url": "https://evil.example\\@good.example"}}, "http_options.base_url", None),
        ({"http_options": {"base_url": "https://good.example\t.evil.example"}}, "http_options.base_url", None),
        ({"http_options": {"base_url": 7}}, "http_options.base_url", None),
        ({"http_options": "https://evil.example"}, "http_options", "evil.example"),
        ({"http_options": {"headers": {"X-Proxy": "evil"}}}, "http_options.headers['X-Proxy']", None),
        ({"http_options": {"async_client_args": {"proxy": "http://evil.example"}}}, "http_options.async_client_args.proxy", "evil.example"),
        ({"http_options": {"extra_body": {"a": [{"b": 1}]}}}, "http_options.extra_body.a[0].b", None),
        ({"tools": [{"mcp_servers": [{"url": "https://evil.example"}]}]}, "tools[0].mcp_servers[0].url", "evil.example"),
        ({"tools": [{"google_search": {}}]}, "tools[0].google_search", None),
        ({"api_base": "https://evil.example"}, "api_base", "evil.example"),
        ({"api_key": "sk"}, "api_key", None),
        ({"timeout": 3}, "timeout", None),
        ({"a_setting_of_next_year": "x"}, "a_setting_of_next_year", None),
    ],
)
def test_whatever_else_is_named(settings: dict[str, Any], path: str, host: str | None) -> None:
    assert found(judge_model_config=settings) == [(f"judge_model_config.{path}", host)]


@pytest.mark.parametrize(
    ("model", "host"),
    [
        ("huggingface/https://evil.example/v1", "evil.example"),
        ("oobabooga/http://evil.example", "evil.example"),
        ("huggingface/HTTPS://evil.example", None),
        ("some_module:judge", None),
    ],
)
def test_a_model_whose_name_is_an_address_or_an_object(model: str, host: str | None) -> None:
    assert found(judge_model=model) == [("judge_model", host)]


@pytest.mark.parametrize(
    "model",
    [
        "gemini-2.5-flash",
        "models/gemini-pro-latest",
        "projects/p/locations/l/endpoints/1",
        "openai/gpt-4o",
        "ollama/llama3:8b",
        "openai/ft:gpt-4o:o::1",
    ],
)
def test_a_model_by_name(model: str) -> None:
    assert found(judge_model=model) == []


def test_every_place_of_a_config_is_looked_at() -> None:
    options = {"base_url": "https://evil.example"}
    spoilt = judged(judge_model_config={"http_options": options})
    config = parse_config(
        {
            "criteria": {
                "safety_v1": spoilt | {"backend": "judge", "judge_panel": ["gemini-2.5-flash", "huggingface/https://evil.example"]}
            },
            "case_criteria": {"one": {"hallucinations_v1": spoilt}},
            "user_simulator_config": {"model": "huggingface/https://evil.example", "model_configuration": {"http_options": options}},
        },
        "config",
    )
    assert [path for path, _ in endpoints_in(config)] == [
        "$.criteria.safety_v1.judge_model_options.judge_model_config.http_options.base_url",
        "$.criteria.safety_v1.judge_panel[1]",
        "$.case_criteria.one.hallucinations_v1.judge_model_options.judge_model_config.http_options.base_url",
        "$.user_simulator_config.model",
        "$.user_simulator_config.model_configuration.http_options.base_url",
    ]
