"""The hash of a request: the same for ADK's object and for what ADK writes of it, and another one for each change that could change the answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.models.llm_request import LlmRequest
from google.adk.utils.yaml_utils import dump_pydantic_to_yaml, load_yaml_file
from google.genai import types
from pydantic import BaseModel, create_model

from mlflow_adk_eval.agents.adk.requests import request_sha256


def find(near: str, stars: int = 3) -> dict[str, Any]:
    """Find a hotel.

    It's "near" something.
    """
    return {near: stars}


def asked(**config: Any) -> LlmRequest:
    called = types.FunctionCall(id="call-1", name="find", args={"near": "12e03", "stars": 3.0, "view": None})
    answered = types.FunctionResponse(id="call-1", name="find", response={"hotels": [None, "Krone"]})
    contents = [
        types.Content(
            role="user", parts=[types.Part(text="hi\n"), types.Part(inline_data=types.Blob(data=b"\xff", mime_type="image/png"))]
        ),
        types.Content(role="model", parts=[types.Part(function_call=called, thought_signature=b"\xff\x00")]),
        types.Content(role="user", parts=[types.Part(function_response=answered)]),
    ]
    place = types.Schema(type=types.Type.OBJECT, properties={"near": types.Schema(type=types.Type.STRING)})
    declared = types.FunctionDeclaration(name="find", description=find.__doc__, parameters=place)
    settings: dict[str, Any] = {
        "system_instruction": 'Say "yes".',
        "temperature": 0.0,
        "safety_settings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "tools": [types.Tool(function_declarations=[declared])],
    }
    return LlmRequest(model="gemini", contents=contents, config=types.GenerateContentConfig(**(settings | config)))


def test_a_request_and_what_adk_writes_of_it_have_the_same_hash(tmp_path: Path) -> None:
    request = asked(http_options={"headers": {"Authorization": "Bearer 1"}}, labels={"team": "a"})
    dump_pydantic_to_yaml(request, tmp_path / "request.yaml", sort_keys=False)
    written = load_yaml_file(tmp_path / "request.yaml")
    assert request_sha256(written) == request_sha256(request) == request_sha256(asked())


@pytest.mark.parametrize(
    "change",
    [
        lambda request: setattr(request.contents[1].parts[0].function_call, "id", "call-2"),
        lambda request: setattr(request.contents[2].parts[0].function_response, "id", None),
        lambda request: setattr(request.contents[1].parts[0], "thought_signature", b"another"),
        lambda request: setattr(request.config, "temperature", 0),
    ],
)
def test_what_is_new_each_time_does_not_count(change: Callable[[LlmRequest], None]) -> None:
    request = asked()
    change(request)
    assert request_sha256(request) == request_sha256(asked())


@pytest.mark.parametrize(
    "change",
    [
        lambda request: setattr(request, "model", "gemini-2"),
        lambda request: setattr(request.config, "system_instruction", 'Say "no".'),
        lambda request: setattr(request.config, "temperature", 0.5),
        lambda request: setattr(request.config.tools[0].function_declarations[0], "description", "Find."),
        lambda request: setattr(request.contents[0].parts[1].inline_data, "data", b"\xfe"),
        lambda request: request.contents[1].parts[0].function_call.args.update(view="sea"),
        lambda request: request.contents[2].parts[0].function_response.response.update(hotels=[]),
        lambda request: request.contents.pop(),
    ],
)
def test_whatever_the_answer_may_depend_on_counts(change: Callable[[LlmRequest], None]) -> None:
    request = asked()
    change(request)
    assert request_sha256(request) != request_sha256(asked())


class Hotel(BaseModel):
    name: str


def test_a_class_counts_by_its_schema_and_a_function_by_its_name() -> None:
    same, other = create_model("Hotel", name=(str, ...)), create_model("Hotel", name=(str, ...), stars=(int, ...))
    hashes = [request_sha256(asked(response_schema=schema)) for schema in (Hotel, same, other, list[Hotel], list[same], list[other])]  # type: ignore[valid-type]
    assert hashes[0] == hashes[1] != hashes[2]
    assert hashes[3] == hashes[4] != hashes[5]
    assert (
        request_sha256(asked(tools=[find]))
        == request_sha256(asked(tools=[find]))
        != request_sha256(asked(tools=[test_a_class_counts_by_its_schema_and_a_function_by_its_name]))
    )
