"""ADK agents whose models answer by a function, and how to play them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import anyio
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from mlflow_adk_eval.agents.adk.agent import AdkAgent, load_adk_agent
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import Content, EvalCase, Invocation, Part, SessionInput

Script = Callable[[LlmRequest], Sequence[types.Part] | LlmResponse | None]


class Scripted(BaseLlm):
    """A model that answers by a function of the request."""

    model: str = "scripted"
    script: Script

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        answer = self.script(llm_request)
        if isinstance(answer, LlmResponse):
            yield answer
        elif answer is not None:
            usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=10, candidates_token_count=2)
            content = types.Content(role="model", parts=list(answer))
            yield LlmResponse(content=content, usage_metadata=usage, model_version="scripted-1")


def text(words: str) -> list[types.Part]:
    return [types.Part(text=words)]


def call(tool: str, /, **args: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=tool, args=args))


def user_text(request: LlmRequest) -> str:
    """What the user said last."""
    said = [content for content in request.contents if content.role == "user" and content.parts and content.parts[0].text]
    return str(said[-1].parts[0].text)


def results(request: LlmRequest) -> list[Any]:
    """What tools answered since the model was last asked by the user."""
    return [part.function_response.response for part in request.contents[-1].parts if part.function_response]


def llm(script: Script, **settings: Any) -> LlmAgent:
    return LlmAgent(**({"name": "agent", "model": Scripted(script=script)} | settings))


def echo(request: LlmRequest) -> list[types.Part]:
    return text(f"echo {user_text(request)}")


def case_of(*texts: str, **session: Any) -> EvalCase:
    given = SessionInput(**({"app_name": "app", "user_id": "u"} | session)) if session else None
    turns = tuple(Invocation(user_content=Content(role="user", parts=(Part(text=said),))) for said in texts)
    return EvalCase(eval_id="c1", conversation=turns, session_input=given)


def play(source: Any, case: EvalCase, *, run_index: int = 0, **options: Any) -> Conversation:
    agent = source if isinstance(source, AdkAgent) else load_adk_agent(source, **options)
    return anyio.run(agent.converse, case, run_index)


def finals(played: Conversation) -> list[str]:
    return [turn.final_text for turn in played.actual]


def calls(turn: Invocation) -> list[tuple[str | None, Any]]:
    return [(tool_call.name, tool_call.args) for tool_call in turn.tool_calls]


def ping() -> dict[str, Any]:
    """Answer."""
    return {"pong": True}


def team() -> LlmAgent:
    expert = llm(lambda request: text("The bill is 3 francs."), name="billing", description="Knows bills.")
    return llm(lambda request: [call("transfer_to_agent", agent_name="billing")], name="front", sub_agents=[expert])
