"""Loopback servers that speak Gemini's and OpenAI's REST, so that tests drive the real clients.

A server runs in a thread of its own, so it serves sync and async tests alike. A handler says what to reply to each call::

    with serving(replies(gemini_error(503), gemini_answer('{"verdict": "valid"}'))) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        ...
        assert [call.model for call in server.calls] == ["gemini-2.5-flash"] * 2

- `serving(handler)` starts a server; ``server.url`` is the base URL (OpenAI's clients take ``server.url + "/v1"``), ``server.calls`` the
  log of all requests in order of arrival, ``server.most_in_flight`` the peak of requests at the same time, ``server.connections`` how
  many connections were opened.
- A handler is any ``(Call) -> Reply``. `replies(...)` gives one after the other, the last one for ever; `judging(decide)` answers in the JSON
  that the request's schema asks for, with the label ``decide(call)``, or with one for each item where it returns a mapping; `every(n, reply, otherwise)` replies differently to each n-th call.
- ``together(count, handler)`` holds answers back until so many requests were in flight at the same time, which needs no clock to be tested.
- `Reply` has status, JSON body (or bytes), headers, ``after_s`` (latency) and ``fault``: ``"hang"`` (never an answer), ``"reset"`` (the connection
  is reset), ``"cut"`` (the connection ends within the body).
- `gemini_answer` (thought parts, finish reasons, token counts), `gemini_blocked`, `gemini_error` (RetryInfo, Retry-After), `openai_answer` and
  `openai_error` build replies. ``.after(0.05)`` on a reply delays it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat
from typing import Any, Literal
from urllib.parse import urlsplit

_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 408: "DEADLINE_EXCEEDED"}
_STATUS |= {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 502: "BAD_GATEWAY", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, as it arrived."""

    number: int
    """How many requests came before it."""
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: Any
    """Its JSON; of another kind of body, the text."""
    at: float
    """When it arrived, on the monotonic clock."""

    @property
    def model(self) -> str:
        """The model that is asked."""
        if "/models/" in self.path:
            return self.path.rpartition("/models/")[2].partition(":")[0]
        return str(self.body["model"])

    @property
    def instructions(self) -> str:
        """The system instruction."""
        if "messages" in self.body:
            return "".join(message["content"] for message in self.body["messages"] if message["role"] == "system")
        return "".join(part["text"] for part in self.body["systemInstruction"]["parts"])

    @property
    def text(self) -> str:
        """What the user says."""
        if "messages" in self.body:
            return "".join(message["content"] for message in self.body["messages"] if message["role"] == "user")
        return "".join(part["text"] for content in self.body["contents"] for part in content["parts"])

    @property
    def generation(self) -> dict[str, Any]:
        """Gemini's ``generationConfig``."""
        return dict(self.body.get("generationConfig") or {})

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the answer."""
        if "messages" in self.body:
            form = self.body.get("response_format", {})
            in_words = self.instructions.partition("The JSON schema of the answer:\n")[2]
            return dict(form["json_schema"]["schema"] if "json_schema" in form else json.loads(in_words))
        return dict(self.generation["responseJsonSchema"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the server does with a call."""

    status: int = 200
    body: Any = field(default_factory=dict)
    """JSON, or the very bytes."""
    headers: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    company: int = 0
    """How many requests must have been in flight at the same time before this one is answered; waited for at most a minute."""
    fault: Literal["", "hang", "reset", "cut"] = ""

    def after(self, seconds: float) -> Reply:
        """Return the same reply, later."""
        return replace(self, after_s=seconds)


Handler = Callable[[Call], Reply]

HANG = Reply(fault="hang")
RESET = Reply(fault="reset")
CUT = Reply(fault="cut")


def gemini_answer(
    text: str | None,
    *,
    thoughts: tuple[str, ...] = (),
    finish: str = "STOP",
    input_tokens: int | None = 11,
    output_tokens: int | None = 7,
    thought_tokens: int | None = None,
    version: str = "gemini-test-001",
) -> Reply:
    """Return an answer of Gemini; `text` of ``None``: no parts at all."""
    parts = [{"text": thought, "thought": True} for thought in thoughts] + ([{"text": text}] if text is not None else [])
    counts = {"promptTokenCount": input_tokens, "candidatesTokenCount": output_tokens, "thoughtsTokenCount": thought_tokens}
    candidate: dict[str, Any] = {"finishReason": finish, "index": 0}
    if parts:
        candidate["content"] = {"parts": parts, "role": "model"}
    usage = {name: count for name, count in counts.items() if count is not None}
    return Reply(body={"candidates": [candidate], "usageMetadata": usage, "modelVersion": version})


def gemini_blocked(reason: str = "PROHIBITED_CONTENT") -> Reply:
    """Return the reply to a prompt that Gemini does not take."""
    return Reply(
        body={"promptFeedback": {"blockReason": reason}, "usageMetadata": {"promptTokenCount": 11}, "modelVersion": "gemini-test-001"}
    )


def gemini_error(code: int, message: str = "scripted", *, retry_delay: str | None = None, retry_after: str | None = None) -> Reply:
    """Return an error of Google's; `retry_delay` such as ``"1.5s"`` goes into its RetryInfo, `retry_after` into the header."""
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": retry_delay}
    error = {"code": code, "message": message, "status": _STATUS.get(code, "UNKNOWN"), "details": [info] if retry_delay else []}
    return Reply(status=code, body={"error": error}, headers={"Retry-After": retry_after} if retry_after else {})


def openai_answer(text: str | None, *, finish: str = "stop", refusal: str | None = None, version: str = "gpt-test-001") -> Reply:
    """Return a chat completion."""
    message = {"role": "assistant", "content": text, "refusal": refusal}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    choices = [{"index": 0, "message": message, "finish_reason": finish}]
    return Reply(body={"id": "x", "object": "chat.completion", "created": 1, "model": version, "choices": choices, "usage": usage})


def openai_error(code: int, message: str = "scripted", *, retry_after: str | None = None) -> Reply:
    """Return an error of OpenAI's."""
    body = {"error": {"message": message, "type": "scripted", "param": None, "code": None}}
    return Reply(status=code, body=body, headers={"Retry-After": retry_after} if retry_after else {})


def replies(*given: Reply) -> Handler:
    """Return a handler that gives one reply after the other, the last one for ever."""
    queue = chain(given, repeat(given[-1]))
    return lambda _call: next(queue)


def every(count: int, reply: Reply, otherwise: Handler) -> Handler:
    """Return a handler that gives `reply` to the first of each `count` calls, and leaves the rest to `otherwise`."""
    return lambda call: reply if call.number % count == 0 else otherwise(call)


def together(count: int, handler: Handler) -> Handler:
    """Return a handler that answers as `handler` does, once so many requests are in flight at the same time: the proof that they can be."""
    return lambda call: replace(handler(call), company=count)


def judging(decide: Callable[[Call], str | Mapping[str, str]], *, after_s: float = 0.0) -> Handler:
    """Return a handler that answers by the schema of each call, with the label or the labels by item that `decide` returns.

    It speaks the language of the call: OpenAI's where the body has messages, else Gemini's.
    """

    def handler(call: Call) -> Reply:
        text = json.dumps(_filled(call.schema, decide(call)))
        return (openai_answer(text) if "messages" in call.body else gemini_answer(text)).after(after_s)

    return handler


def _filled(schema: Mapping[str, Any], labels: str | Mapping[str, str]) -> dict[str, Any]:
    names = schema["properties"]
    if "verdict" in names:
        return {name: labels if name == "verdict" else f"scripted {name}" for name in names}
    return {name: _filled(names[name], labels if isinstance(labels, str) else labels[name]) for name in names}


class Server:
    """A running server."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.calls: list[Call] = []
        self.in_flight = self.most_in_flight = self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._arrived = asyncio.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Drop all connections and stop."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        tasks: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            task = asyncio.ensure_future(self._talk(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(connected, sock=self._socket)
        await self._end.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                while await self._one(reader, writer):
                    pass
            finally:
                writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; whether the connection stays open."""
        call = await self._read(reader)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            reply = self.handler(call)
            await asyncio.sleep(reply.after_s)
            async with self._arrived:
                self._arrived.notify_all()
                with suppress(TimeoutError):
                    async with asyncio.timeout(60):
                        await self._arrived.wait_for(partial(self._has_had, reply.company))
            if reply.fault == "hang":
                await reader.read()
        finally:
            self.in_flight -= 1
        return await _send(reply, writer)

    def _has_had(self, company: int) -> bool:
        return self.most_in_flight >= company

    async def _read(self, reader: asyncio.StreamReader) -> Call:
        at_most = 2**24
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1")
        first, *lines = head.strip().split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        assert length < at_most
        body = await reader.readexactly(length)
        method, target, _ = first.split(" ")
        parts = urlsplit(target)
        call = Call(
            number=len(self.calls),
            method=method,
            path=parts.path,
            query=parts.query,
            headers=headers,
            body=json.loads(body) if "json" in headers.get("content-type", "") else body.decode(),
            at=time.monotonic(),
        )
        self.calls.append(call)
        return call


async def _send(reply: Reply, writer: asyncio.StreamWriter) -> bool:
    if reply.fault == "reset":
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if reply.fault in {"reset", "hang"}:
        return False
    body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
    headers = {"Content-Type": "application/json", **reply.headers, "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    sent = body[: len(body) // 2] if reply.fault == "cut" else body
    writer.write(f"HTTP/1.1 {reply.status} Scripted\r\n{lines}\r\n".encode() + sent)
    await writer.drain()
    if reply.fault == "cut":
        writer.close()
        return False
    return True


@contextmanager
def serving(handler: Handler) -> Iterator[Server]:
    """Run a server while the block runs."""
    server = Server(handler)
    try:
        yield server
    finally:
        server.close()
