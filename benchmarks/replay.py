"""What replaying an agent's world saves, and that nothing real is called: `python benchmarks/replay.py [TIMES]`.

A travel agent of google-adk asks an HTTP service for flights and books them in an SQLite database; its scripted model takes as long as a small
real one. It is evaluated once with everything recorded, and then TIMES times (default: 100) with the service and the database gone. At the
end `run`, `gate` and `compare` are repeated in a network namespace without any interface, where the machine allows that. The command fails
where a turn differs, anything real is called, replaying takes more than a fifth of the time, or a decision differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

from machine import description

import mlflow_adk_eval as adk_eval

CASES, TURNS = 8, 2
MODEL_S, SERVICE_S = 0.3, 0.2
"""How long the model and the service take to answer."""
LARGEST_SHARE = 0.2
_AGENT = '''
import json, os, sqlite3, time, urllib.request
import anyio
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext
from google.genai import types

def search_flights(to: str, request_id: str) -> dict:
    """Search flights.

    Args:
        to: the city.
        request_id: another one each time.
    """
    with urllib.request.urlopen(f"{os.environ['TRAVEL_SERVICE']}/flights?to={to}", timeout=5) as answer:
        return json.load(answer)

def book_flight(to: str, price: int, tool_context: ToolContext) -> dict:
    """Book a flight.

    Args:
        to: the city.
        price: what it costs.
    """
    with sqlite3.connect(os.environ["TRAVEL_DATABASE"]) as database:
        number = database.execute("INSERT INTO bookings (city, price) VALUES (?, ?)", (to, price)).lastrowid
    tool_context.state["bookings"] = [*tool_context.state.get("bookings", []), number]
    return {"booking": number}

class Model(BaseLlm):
    model: str = "scripted"

    async def generate_content_async(self, llm_request, stream=False):
        await anyio.sleep(float(os.environ["TRAVEL_MODEL_S"]))
        last = llm_request.contents[-1].parts
        found = [part.function_response for part in last if part.function_response]
        if not found:
            to = last[0].text.split()[-1]
            parts = [call("search_flights", to=to, request_id=str(time.time_ns()))]
        elif found[0].name == "search_flights":
            parts = [call("book_flight", to=found[0].response["to"], price=found[0].response["price"])]
        else:
            parts = [types.Part(text=f"You have booking {found[0].response['booking']}.")]
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=100, candidates_token_count=10)
        yield LlmResponse(content=types.Content(role="model", parts=parts), usage_metadata=usage)

def call(name, **args):
    return types.Part(function_call=types.FunctionCall(name=name, args=args))

root_agent = LlmAgent(name="travel", model=Model(), instruction="Book what the user wants.", tools=[search_flights, book_flight])
'''
_POLICY = "baseline: {{run: {}}}\nrules:\n  tool_trajectory_avg_score: {{min: 0.5, max_drop: 0.6}}\n"
_PASSING = re.compile("duration|seconds|_at$|^time|latency|page|sha256|new_here|experiment")
_CONFIG = {
    "criteria": {"tool_trajectory_avg_score": {"threshold": 0.5, "match_type": "IN_ORDER", "ignore_args": True}},
    "replay": {"ignore": ["$.request_id"]},
}


class Service(ThreadingHTTPServer):
    """Flights, each a little dearer than the one before."""

    def __init__(self) -> None:
        """Listen on a free port."""
        self.requests = 0
        super().__init__(("127.0.0.1", 0), _Flights)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Flights(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        self.server.requests += 1
        time.sleep(SERVICE_S)
        body = json.dumps({"to": self.path.partition("to=")[2], "price": 100 + self.server.requests}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def eval_set() -> dict[str, Any]:
    """Return the cases: each books two flights."""

    def turn(to: str) -> dict[str, Any]:
        calls = [{"name": "search_flights", "args": {}}, {"name": "book_flight", "args": {}}]
        return {"user_content": {"role": "user", "parts": [{"text": f"A flight to {to}"}]}, "intermediate_data": {"tool_uses": calls}}

    cases = [{"eval_id": f"trip_{number}", "conversation": [turn(f"City{number}{leg}") for leg in range(TURNS)]} for number in range(CASES)]
    return {"eval_set_id": "trips", "eval_cases": cases}


def turns_of(report: adk_eval.Report) -> list[Any]:
    """Return all that the agent did, without ids, times and what it made up anew."""

    def plain(part: Any) -> Any:
        return part.model_dump(exclude={"function_call": {"id": True, "args": {"request_id": True}}, "function_response": {"id": True}})

    return [
        (
            case.eval_id,
            case.conversation.session_state,
            [
                (turn.final_text, [plain(part) for event in turn.events for part in (event.content and event.content.parts) or ()])
                for turn in case.actual
            ],
        )
        for case in report.cases
    ]


def decided(folder: Path, source: str, *, offline: bool) -> str:
    """Return the hash of what `run`, `gate` and `compare` say of a replayed run, without ids and times."""
    alone = ["unshare", "--map-root-user", "--net"] if offline else []
    command = [sys.executable, "-m", "mlflow_adk_eval"]

    def said(*words: str) -> str:
        ran = subprocess.run([*alone, *command, *words], cwd=folder, capture_output=True, text=True, check=False)
        if ran.returncode not in (0, 1):
            sys.exit(f"{' '.join(words)}: exit code {ran.returncode}\n{ran.stderr}")
        return ran.stdout

    evaluated = said("run", "travel_agent", "trips.evalset.json", "--replay", source, "--replay-models", "--json")
    run_id = json.loads(evaluated)["run_id"]
    texts = [
        evaluated,
        said("gate", run_id, "--policy", "gate.yaml", "--json"),
        said("compare", source.removeprefix("runs:/"), run_id, "--json"),
    ]
    plain = json.dumps([_lasting(json.loads(text.replace(run_id, "RUN"))) for text in texts], indent=1)
    return hashlib.sha256(plain.encode()).hexdigest()


def _lasting(value: Any) -> Any:
    """Return JSON without what no two runs have in common: times, hashes of files with times in them, and addresses."""
    if isinstance(value, dict):
        return {key: _lasting(inner) for key, inner in value.items() if not _PASSING.search(key)}
    if isinstance(value, list):
        return [_lasting(inner) for inner in value if not (isinstance(inner, dict) and "duration" in str(inner.get("name")))]
    return value


def main(argv: Sequence[str]) -> int:
    """Print the figures; return 1 where something is not as it has to be."""
    times = int(argv[0]) if argv else 100
    with tempfile.TemporaryDirectory() as name:
        return _measured(Path(name), times)


def _measured(folder: Path, times: int) -> int:
    service, database = Service(), folder / "bookings.sqlite"
    sqlite3.connect(database).execute("CREATE TABLE bookings (number INTEGER PRIMARY KEY, city TEXT, price INTEGER)").connection.close()
    os.environ |= {
        "TRAVEL_SERVICE": f"http://127.0.0.1:{service.server_port}",
        "TRAVEL_DATABASE": str(database),
        "TRAVEL_MODEL_S": str(MODEL_S),
    }
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
    (folder / "travel_agent").mkdir()
    (folder / "travel_agent" / "__init__.py").write_text("from . import agent\n")
    (folder / "travel_agent" / "agent.py").write_text(_AGENT)
    (folder / "trips.evalset.json").write_text(json.dumps(eval_set()))
    (folder / "test_config.json").write_text(json.dumps(_CONFIG))
    os.chdir(folder)
    took: dict[str, list[float]] = {"live": [], "tools": [], "both": []}

    def evaluated(kind: str, **options: Any) -> adk_eval.Report:
        started = time.perf_counter()
        report = adk_eval.evaluate("trips.evalset.json", "travel_agent", concurrency=4, ledger=False, **options)
        took[kind].append(time.perf_counter() - started)
        return report

    evaluated("live")  # loads everything, and makes the store
    took["live"].clear()
    recorded = evaluated("live", record=True)
    source = f"runs:/{recorded.run_id}"
    (folder / "gate.yaml").write_text(_POLICY.format(recorded.run_id))
    service.shutdown()
    service.server_close()
    database.unlink()
    before, problems = service.requests, []
    if turns_of(evaluated("tools", replay=source)) != turns_of(recorded):
        problems.append("turns differ where the model answered anew")
    for _ in range(times):
        replayed = evaluated("both", replay=source, replay_models=True)
        if turns_of(replayed) != turns_of(recorded):
            problems.append(f"run {replayed.run_id}: turns differ")
    real = service.requests - before + database.exists()
    live, tools, both = (median(took[kind]) for kind in ("live", "tools", "both"))
    print(f"{CASES} conversations of {TURNS} turns, two tool calls each, 4 at a time, with logging to SQLite")
    print(
        f"live: {live:.2f} s; tools replayed: {tools:.2f} s; tools and model replayed: {both:.2f} s (median of {times}), {both / live:.0%} of live"
    )
    print(f"turns that differ: {len(problems)}; real calls while replaying: {real}")
    problems += ["something real was called"] * bool(real) + ["replaying takes too long"] * (both / live > LARGEST_SHARE)
    if subprocess.run(["unshare", "--map-root-user", "--net", "true"], capture_output=True, check=False).returncode:
        print("without a network: not tried, since this machine allows no network namespace")
    else:
        online, offline = decided(folder, source, offline=False), decided(folder, source, offline=True)
        print(f"run, gate and compare with a network: {online[:16]}; without one: {offline[:16]}")
        problems += ["decisions differ"] * (online != offline)
    print(f"Python {sys.version.split()[0]}, {description()}")
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
