"""A judge that speaks Gemini's REST protocol and knows the truth: `gemini_server.py [PORT]` prints the port and serves until killed.

Where a request offers tools, it is the model of an agent instead.

A client is pointed at it by GOOGLE_GEMINI_BASE_URL, with any GOOGLE_API_KEY. `GET /stats` says what has come, `POST /config`
takes `Conditions` as JSON and `POST /reset` keeps them; both begin to count anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from conditions import Conditions, Quota
from questions import Json, Question, read
from truth import Noise, chance

_REASONS = {
    200: ("OK", ""),
    400: ("Bad Request", "INVALID_ARGUMENT"),
    404: ("Not Found", "NOT_FOUND"),
    429: ("Too Many Requests", "RESOURCE_EXHAUSTED"),
    500: ("Internal Server Error", "INTERNAL"),
    503: ("Service Unavailable", "UNAVAILABLE"),
}
_STATUSES = {"internal": 500, "unavailable": 503}
_REFUSAL_S = 0.002
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_MODEL = re.compile(r"/models/([^:/?]+):generateContent\b")
_DAMAGES: tuple[Callable[[str], str], ...] = (
    lambda text: text[: len(text) // 2],
    lambda _: "",
    lambda _: "I am sorry, but I cannot decide this.",
    lambda text: re.sub(r"\b(in)?valid\b|\b(un)?supported\b|\byes\b|\bno\b", "perhaps", text),
)
"""What may be wrong with an answer: cut off, empty, beside the point, an unknown label."""


@dataclass
class Tally:
    """What has come since the last reset."""

    requests: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    """By status, or what happened instead."""
    in_flight: int = 0
    peak_in_flight: int = 0
    bytes_in: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    connections: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    """By subject, how often it was asked about."""
    votes: Counter[str] = field(default_factory=Counter)
    """By subject, how many votes were given."""

    def shown(self) -> Json:
        """Return what statistics tell."""
        return {**{name: value for name, value in vars(self).items() if name not in {"seen", "votes"}}, "subjects": len(self.seen)}


class Judge:
    """Answers requests under changing conditions."""

    def __init__(self) -> None:
        self._configure(Conditions())

    def _configure(self, conditions: Conditions) -> None:
        self.tally = Tally()
        self._conditions = conditions
        self._quota = Quota(conditions, asyncio.get_running_loop().time())

    def handle(self, connection: Connection, path: str, body: bytes) -> None:
        """Answer a request now or later."""
        if path == "/stats":
            connection.send(200, self.tally.shown())
        elif path in {"/config", "/reset"}:
            self._configure(Conditions(**json.loads(body)) if path == "/config" else self._conditions)
            connection.send(200, asdict(self._conditions))
        elif found := _MODEL.search(path):
            self._generate(connection, found[1], body)
        else:
            connection.send(*_error(404, f"no such path: {path}"))

    def _generate(self, connection: Connection, model: str, body: bytes) -> None:
        exchange = Exchange(connection, self.tally, model, len(body))
        try:
            question = read(json.loads(body))
        except (ValueError, LookupError, TypeError, StopIteration) as error:
            exchange.respond(0.0, *_error(400, f"{type(error).__name__}: {error}"))
        else:
            if wait_s := self._refused():
                exchange.respond(_REFUSAL_S, *_error(429, "Resource has been exhausted.", wait_s))
            else:
                self._serve(exchange, question)

    def _refused(self) -> float:
        """Return for how many seconds a request is refused."""
        most = self._conditions.most_in_flight
        if most and self.tally.in_flight > most:
            return self._conditions.latency_s("", 0)
        return self._quota.wait(asyncio.get_running_loop().time())

    def _serve(self, exchange: Exchange, question: Question) -> None:
        """Let happen to a request what its conditions have for it."""
        conditions, subject = self._conditions, question.subject
        number = self.tally.seen[subject]
        self.tally.seen[subject] += 1
        fault, latency_s = conditions.fault(subject, number), conditions.latency_s(subject, number)
        if fault in _STATUSES:
            exchange.respond(latency_s / 2, *_error(_STATUSES[fault], "The service is not well."))
        elif fault in {"reset", "hang"}:
            exchange.at(conditions.hang_s if fault == "hang" else latency_s, fault, exchange.connection.abort)
        elif fault == "malformed":
            damage = _DAMAGES[int(chance("damage", conditions.seed, subject, number) * len(_DAMAGES))]
            text = damage(question.vote(0, Noise()))
            exchange.at(latency_s, fault, lambda: exchange.answer({"text": text}))
        else:
            exchange.at(latency_s, fault or "200", lambda: self._answer(exchange, question, cut=fault == "cut"))

    def _answer(self, exchange: Exchange, question: Question, *, cut: bool) -> None:
        """Give the next vote on what is asked about."""
        text = question.vote(self.tally.votes[question.subject], self._conditions.dissent)
        if not cut:
            self.tally.votes[question.subject] += 1
        exchange.answer({"functionCall": question.call} if question.call else {"text": text}, cut=cut)


class Exchange:
    """A request that is under way."""

    def __init__(self, connection: Connection, tally: Tally, model: str, size: int) -> None:
        self.connection = connection
        self._tally, self._model, self._size = tally, model, size
        self._timer: asyncio.TimerHandle | None = None
        connection.exchange = self
        tally.requests += 1
        tally.bytes_in += size
        tally.in_flight += 1
        tally.peak_in_flight = max(tally.peak_in_flight, tally.in_flight)

    def at(self, delay_s: float, end: str, act: Callable[[], None]) -> None:
        """End the request after a while."""

        def finish() -> None:
            self._end(end)
            act()

        self._timer = asyncio.get_running_loop().call_later(delay_s, finish)

    def respond(self, delay_s: float, status: int, content: Json, headers: str = "") -> None:
        """End the request with an error after a while."""
        self.at(delay_s, str(status), lambda: self.connection.send(status, content, headers))

    def answer(self, part: Json, *, cut: bool = False) -> None:
        """Send an answer and count what it costs."""
        tokens = {"promptTokenCount": self._size // 4, "candidatesTokenCount": len(part.get("text") or json.dumps(part)) // 4}
        self._tally.input_tokens += tokens["promptTokenCount"]
        self._tally.output_tokens += tokens["candidatesTokenCount"]
        self.connection.send(200, _content(self._model, part, tokens), cut=cut)

    def leave(self) -> None:
        """Forget the request of a client that is gone."""
        if self._timer:
            self._timer.cancel()
        self._end("left")

    def _end(self, end: str) -> None:
        self.connection.exchange = None
        self._tally.in_flight -= 1
        self._tally.ends[end] += 1


class Connection(asyncio.Protocol):
    """A client's connection: requests one after the other, each with its length."""

    _transport: asyncio.Transport

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._received = b""
        self.exchange: Exchange | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._judge.tally.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """Give up what the client no longer waits for."""
        if self.exchange:
            self.exchange.leave()

    def data_received(self, data: bytes) -> None:
        """Handle the requests that are complete."""
        self._received += data
        while (end := self._received.find(b"\r\n\r\n") + 4) > 4:
            head = self._received[:end].decode("latin-1")
            length = re.search(r"^content-length:\s*(\d+)", head, re.IGNORECASE | re.MULTILINE)
            stop = end + int(length[1] if length else 0)
            if len(self._received) < stop:
                return
            body, self._received = self._received[end:stop], self._received[stop:]
            self._judge.handle(self, head.split(" ", 2)[1], body)

    def send(self, status: int, content: Json, headers: str = "", *, cut: bool = False) -> None:
        """Send a response, or its first half and then nothing."""
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 {status} {_REASONS[status][0]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        self._transport.write(head.encode() + (body[: len(body) // 2] if cut else body))
        if cut:
            self._transport.close()

    def abort(self) -> None:
        """Break the connection."""
        self._transport.abort()


def _error(status: int, message: str, wait_s: float = 0.0) -> tuple[int, Json, str]:
    """Return Google's form of an error; where the client should wait, in both of the ways that it is told."""
    error: Json = {"code": status, "message": message, "status": _REASONS[status][1]}
    if not wait_s:
        return status, {"error": error}, ""
    error["details"] = [{"@type": _RETRY_INFO, "retryDelay": f"{wait_s:.3f}s"}]
    return status, {"error": error}, f"Retry-After: {math.ceil(wait_s)}\r\n"


def _content(model: str, part: Json, tokens: dict[str, int]) -> Json:
    return {
        "candidates": [{"content": {"parts": [part], "role": "model"}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {**tokens, "totalTokenCount": sum(tokens.values())},
        "modelVersion": model,
        "responseId": hashlib.blake2b(json.dumps(part).encode(), digest_size=8).hexdigest(),
    }


async def serve(port: int = 0) -> None:
    """Serve on a port, or a free one, and say which."""
    judge = Judge()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(judge), "127.0.0.1", port, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
