"""Loopback agents behind HTTP, on the servers of `tests.judge.servers`: chat completions and both dialects of A2A."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import anyio

from mlflow_adk_eval.agents.http.http_agent import HttpAgent
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import EvalCase, Invocation
from tests.judge.servers import Call, Reply

CARD = "/.well-known/agent-card.json"
OLDER_CARD = "/.well-known/agent.json"


def had(agent: HttpAgent, *cases: EvalCase) -> list[Conversation]:
    """Return what came of conversations that were had at the same time, in one event loop."""

    async def all_of_them() -> list[Conversation]:
        found: dict[int, Conversation] = {}

        async def have(index: int) -> None:
            found[index] = await agent.converse(cases[index], index)

        async with anyio.create_task_group() as group:
            for index in range(len(cases)):
                group.start_soon(have, index)
        return [found[index] for index in range(len(cases))]

    return anyio.run(all_of_them)


def calls(turn: Invocation) -> list[tuple[str | None, Any]]:
    return [(call.name, call.args) for call in turn.tool_calls]


def completion(
    text: str | None, *tool_calls: Mapping[str, Any], finish: str = "stop", usage: Mapping[str, Any] | None = None, **message: Any
) -> Reply:
    said = {"role": "assistant", "content": text, "tool_calls": list(tool_calls) or None, **message}
    choices = [{"index": 0, "message": said, "finish_reason": finish}]
    return Reply(body={"object": "chat.completion", "model": "home-1", "choices": choices, "usage": usage})


def tool_call(name: str, arguments: Any, call_id: str = "t1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def echoing(call: Call) -> Reply:
    """Answer with all that was said to the agent, so that a mix-up of conversations shows."""
    return completion("|".join(f"{one['role'][0]}:{one['content']}" for one in call.body["messages"]))


def text_part(text: str, *, older: bool) -> dict[str, Any]:
    return {"kind": "text", "text": text} if older else {"text": text}


def said_in(call: Call) -> str:
    """What the user says in a call of A2A."""
    return "".join(part.get("text", "") for part in call.body["params"]["message"]["parts"])


@dataclass
class A2AServer:
    """An agent that speaks A2A in one dialect, and answers by a function of the call: with a result, or a whole reply."""

    answer: Callable[[A2AServer, Call], Any]
    older: bool = False
    card: Mapping[str, Any] = field(default_factory=dict)
    """What its card says besides."""
    paths: tuple[str, ...] = (CARD,)
    numbers: count[int] = field(default_factory=lambda: count(1))
    contexts: dict[str, list[str]] = field(default_factory=dict)
    """What was said in each conversation."""

    def __call__(self, call: Call) -> Reply:
        if call.method == "GET":
            return Reply(body=self._card(call)) if call.path in self.paths else Reply(status=404, body=b"nothing here")
        answer = self.answer(self, call)
        return answer if isinstance(answer, Reply) else Reply(body={"jsonrpc": "2.0", "id": call.body["id"], "result": answer})

    def _card(self, call: Call) -> dict[str, Any]:
        url = f"http://{call.headers['host']}/rpc"
        spoken = (
            {"url": url, "protocolVersion": "0.3.0", "preferredTransport": "JSONRPC"}
            if self.older
            else {"supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]}
        )
        return {"name": "home", "version": "1", **spoken, **self.card}

    def context(self, call: Call) -> str:
        """Return the conversation that a message belongs to, a new one if it names none, and note what is said."""
        given = call.body["params"]["message"].get("contextId") or f"ctx-{next(self.numbers)}"
        self.contexts.setdefault(given, []).append(said_in(call))
        return given

    def message(self, call: Call, text: str) -> dict[str, Any]:
        """Return an answer that is a message."""
        said = {"messageId": f"m-{next(self.numbers)}", "contextId": self.context(call), "parts": [text_part(text, older=self.older)]}
        return {"kind": "message", "role": "agent", **said} if self.older else {"message": {"role": "ROLE_AGENT", **said}}

    def task(self, call: Call, state: str, *, said: str = "", **more: Any) -> dict[str, Any]:
        """Return an answer that is a task in a state, about which the agent may say something."""
        return self.wrapped(
            {"id": f"task-{next(self.numbers)}", "contextId": self.context(call), "status": self.status(state, said), **more}
        )

    def status(self, state: str, said: str = "") -> dict[str, Any]:
        spelt = state if self.older else f"TASK_STATE_{state.upper().replace('-', '_')}"
        return {"state": spelt} | ({"message": self.words(said)} if said else {})

    def words(self, text: str) -> dict[str, Any]:
        """Return a message of the agent's."""
        role = {"kind": "message", "role": "agent"} if self.older else {"role": "ROLE_AGENT"}
        return {**role, "messageId": f"m-{next(self.numbers)}", "parts": [text_part(text, older=self.older)]}

    def artifact(self, *parts: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
        return {"artifactId": f"a-{next(self.numbers)}", "parts": list(parts), "metadata": metadata or None}

    def wrapped(self, task: Mapping[str, Any]) -> dict[str, Any]:
        return {"kind": "task", **task} if self.older else {"task": dict(task)}


def echo_a2a(server: A2AServer, call: Call) -> Any:
    """Answer with all that was said in the conversation."""
    answer = server.message(call, "")
    said = answer if server.older else answer["message"]
    said["parts"][0]["text"] = "|".join(server.contexts[said["contextId"]])
    return answer
