"""A server that keeps the comments of a pull request as the APIs of GitHub, GitLab and Azure Repos do, for what comments on one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

ME, TOKEN = "github-actions[bot]", "t0ken"


@dataclass
class GitHub:
    """What the server knows, and what it was asked."""

    comments: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    pulls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    faults: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """What goes wrong next with a request of a method: its status, or 0: it is done, and the answer is lost."""
    seen: list[str] = field(default_factory=list[str])
    url: str = ""

    def says(self, body: str, login: str = ME) -> dict[str, Any]:
        author = {"username": login, "id": login}
        comment = {"id": 1000 + len(self.comments), "user": {"login": login}, "author": author, "body": body}
        self.comments.append(comment)
        return comment

    @property
    def ours(self) -> list[str]:
        return [comment["body"] for comment in self.comments if comment["user"]["login"] == ME]

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which a job finds it."""
        return {
            "GITHUB_API_URL": self.url,
            "GITHUB_GRAPHQL_URL": f"{self.url}/graphql",
            "GITHUB_SERVER_URL": "https://github.example",
            "GITHUB_REPOSITORY": "team/agents",
            "GITHUB_RUN_ID": "42",
        }

    def answer(self, method: str, path: str, sent: dict[str, Any]) -> tuple[int, Any]:
        where, _, query = path.partition("?")
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        match method, where.split("/"):
            case "POST", ["", "graphql"]:
                return 200, {"data": {"viewer": {"login": ME}}}
            case "GET", ["", "repos", "team", "agents", "pulls"]:
                return 200, [pull for pull in self.pulls if pull["state"] == asked["state"] and pull["label"] == asked["head"]]
            case "GET", ["", "repos", "team", "agents", "issues", "7", "comments"]:
                return 200, self._page(asked)
            case "POST", ["", "repos", "team", "agents", "issues", "7", "comments"]:
                return 201, self.says(sent["body"])
            case "PATCH", ["", "repos", "team", "agents", "issues", "comments", number]:
                (comment,) = (one for one in self.comments if str(one["id"]) == number)
                comment["body"] = sent["body"]
                return 200, comment
            case _, ["", "api", "v4", *rest]:
                return self._gitlab(method, rest, asked, sent)
            case _, ["", "_apis", "connectionData"]:
                return 200, {"authenticatedUser": {"id": ME}}
            case _, ["", "p", "_apis", "git", "repositories", "r", "pullRequests", "7", "threads", *rest]:
                return self._azure(method, rest, sent)
        return 404, {"message": "Not Found"}

    def _page(self, asked: dict[str, str]) -> list[dict[str, Any]]:
        first = (int(asked["page"]) - 1) * int(asked["per_page"])
        return self.comments[first : first + int(asked["per_page"])]

    def _gitlab(self, method: str, rest: list[str], asked: dict[str, str], sent: dict[str, Any]) -> tuple[int, Any]:
        match method, rest:
            case "GET", ["user"]:
                return 200, {"username": ME}
            case "GET", ["projects", "5", "merge_requests", "7", "notes"]:
                return 200, self._page(asked)
            case "POST", ["projects", "5", "merge_requests", "7", "notes"]:
                return 201, self.says(sent["body"])
            case "PUT", ["projects", "5", "merge_requests", "7", "notes", number]:
                return self.answer("PATCH", f"/repos/team/agents/issues/comments/{number}", sent)
        return 404, {"message": "Not Found"}

    def _azure(self, method: str, rest: list[str], sent: dict[str, Any]) -> tuple[int, Any]:
        match method, rest:
            case "GET", []:
                threads = [
                    {"id": one["id"], "comments": [{"id": 1, "author": one["author"], "content": one["body"]}]} for one in self.comments
                ]
                return 200, {"value": threads}
            case "POST", []:
                return 200, self.says(sent["comments"][0]["content"])
            case "PATCH", [number, "comments", "1"]:
                return self.answer("PATCH", f"/repos/team/agents/issues/comments/{number}", {"body": sent["content"]})
        return 404, {"message": "Not Found"}


@contextmanager
def github() -> Iterator[GitHub]:
    """Run the server."""
    state = GitHub()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            method, length = self.command, int(self.headers.get("Content-Length") or 0)
            sent = json.loads(self.rfile.read(length) or b"{}")
            assert TOKEN in (self.headers["PRIVATE-TOKEN"], (self.headers["Authorization"] or "").removeprefix("Bearer "))
            path = urlsplit(self.path).path
            state.seen.append(f"{method} {path}")
            fault = next((one for one in state.faults if one[0] == method and path != "/graphql"), None)
            if fault:
                state.faults.remove(fault)
                if fault[1]:
                    self._send(fault[1], {"message": "Resource not accessible by integration"})
                    return
            status, value = state.answer(method, self.path, sent)
            if fault:
                self.connection.close()
            else:
                self._send(status, value)

        def _send(self, status: int, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = do_PUT = _handle  # noqa: N815 - the names that http.server asks for

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
