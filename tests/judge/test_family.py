"""Whether a judge and an agent are models of one family."""

from __future__ import annotations

import pytest

from mlflow_adk_eval.judge.family import family_of, self_preference


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("gemini-2.5-flash", "gemini"),
        ("vertex_ai/gemini-2.0-flash-001", "gemini"),
        ("projects/p/locations/l/publishers/google/models/gemini-2.5-pro", "gemini"),
        ("openai/gpt-4o", "gpt"),
        ("azure/o3-mini", "gpt"),
        ("bedrock/eu.anthropic.claude-3-5-sonnet-20240620-v1:0", "claude"),
        ("ollama/llama3.1:8b", "llama"),
        ("together_ai/mistralai/Mixtral-8x7B-Instruct", "mistral"),
        ("Qwen2.5-72B", "qwen"),
        ("ollama/my-model", ""),
        ("o365-helper", ""),
        ("command", "command"),
        ("phineas", ""),
    ],
)
def test_the_family_of_a_model_is_its_line_whoever_serves_it(model: str, family: str) -> None:
    assert family_of(model) == family


def test_only_models_of_one_family_are_told() -> None:
    assert self_preference(["gpt-4o", "my-judge"], ["gemini-2.5-pro", "my-agent"]) == ""
    assert self_preference([], ["gpt-4o"]) == self_preference(["gpt-4o"], []) == ""
    told = self_preference(["openai/gpt-4o-mini at api.openai.com", "claude-3"], ["gpt-5", "gemini-2.5-pro"])
    assert told.startswith("the judge openai/gpt-4o-mini and the agent's model gpt-5 are of one family")
