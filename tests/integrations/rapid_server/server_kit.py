"""The server as a process of its own, judges for it, and a request for each metric with what must come of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx

from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS, RapidMetric
from mlflow_adk_eval.judge.protocol import Request, Unavailable
from tests.waiting import until

ROOT = Path(__file__).parents[3]
PATH = "/v1beta1/projects/acme/locations/us-central1:evaluateInstances"
METRICS = list(RAPID_METRICS.values())
_PATIENCE_S = 300

FLUENCY = {"fluency_input": {"instance": {"prediction": "well put"}}}
EXACT = {"exact_match_input": {"instance": {"prediction": "x", "reference": "x"}}}
CALL = '{"content": "", "tool_calls": [{"name": "book", "arguments": {"city": "Köln", "nights": 2}}]}'
TEXTS = {
    "prediction": "Frankreich liegt in Westeuropa. 프랑스는 서유럽에 있다.",
    "baseline_prediction": "Frankreich.",
    "reference": "Frankreich liegt in Westeuropa. 프랑스는 서유럽에 있다.",
    "instruction": "Summarize the context.",
    "context": "France is a country located in Western Europe.",
}


async def judge(request: Request) -> dict[str, str]:
    """Prefer the longer of two answers, and give anything else the last grade of its scale, which is the best or the most verbose."""
    labels = request.schema["properties"]["verdict"]["enum"]
    if "first_response" in request.blocks:
        first = len(request.blocks["first_response"]) > len(request.blocks["second_response"])
        return {"rationale": "länger", "verdict": "first" if first else "second"}
    return {"rationale": "weil es gut ist", "verdict": labels[-1]}


async def held_judge(request: Request) -> dict[str, str]:
    """Tell `Held` of the question, and answer it once that says so."""
    folder = Path(os.environ["HELD_JUDGE"])
    (folder / f"{uuid.uuid4()}.asked").touch()
    while not (folder / "answer").exists():  # noqa: ASYNC110 - the event is another process's
        await anyio.sleep(0.02)
    return await judge(request)


@dataclass(frozen=True)
class Held:
    """What a test does with `held_judge`: wait until it was asked, and let it answer."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the server whose judge is held."""
        return {"HELD_JUDGE": str(self.folder)}

    def wait_for(self, questions: int = 1) -> None:
        """Wait until so many questions were asked."""
        until(lambda: len(list(self.folder.glob("*.asked"))) >= questions, f"the judge is asked {questions} times")

    def answer(self) -> None:
        """Let it answer, from now on at once."""
        (self.folder / "answer").touch()


async def moody_judge(request: Request) -> dict[str, str]:
    """Be overloaded while the file exists that the environment names."""
    if os.path.exists(os.environ["MOODY_JUDGE"]):  # noqa: PTH110, ASYNC240 - a moment
        raise Unavailable("the judge is asleep", overloaded=True)
    return await judge(request)


def request_of(metric: RapidMetric) -> dict[str, Any]:
    """Return a request in the documented shape."""
    texts = TEXTS | (dict.fromkeys(("prediction", "reference"), CALL) if metric.name.startswith("tool") else {})
    instance = {name: texts[name] for name in metric.fields}
    return {metric.input_key: {"metric_spec": {}, **({"instances": [instance]} if metric.kind == "computed" else {"instance": instance})}}


def answer_of(metric: RapidMetric) -> dict[str, Any]:
    """Return what `judge` makes of `request_of`."""
    if metric.kind == "computed":
        return {metric.result_key: {metric.values_key: [{"score": 1.0}]}}
    if metric.kind == "pairwise":
        return {metric.result_key: {"pairwise_choice": "CANDIDATE", "explanation": "länger", "confidence": 1.0}}
    return {metric.result_key: {"score": float(max(metric.scale)), "explanation": "weil es gut ist", "confidence": 1.0}}


@dataclass(frozen=True)
class Running:
    """A server that runs."""

    url: str
    process: subprocess.Popen[str]

    @property
    def endpoint(self) -> str:
        """Where requests go."""
        return self.url + PATH

    def interrupt(self, number: int) -> None:
        """Send a signal and wait until it arrived, from when the server accepts no connection."""
        self.process.send_signal(number)
        until(self.refuses, "the server accepts no connection")

    def refuses(self) -> bool:
        """Whether a new connection is refused."""
        try:
            httpx.get(f"{self.url}/health", timeout=_PATIENCE_S)
        except httpx.TransportError:  # refused, or reset if the server stopped just then
            return True
        return False

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal and return how the process ended, and what it had to complain about."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Wait until the process ends, and return how, and what it had to complain about."""
        _, errors = self.process.communicate(timeout=_PATIENCE_S)
        return self.process.returncode, errors


def command(*options: str) -> list[str]:
    """Return the command line that serves."""
    return [sys.executable, "-m", "mlflow_adk_eval", "rapid-eval", "serve", "--port", "0", *options]


def judged_by(name: str) -> tuple[str, str]:
    """Return the option that names a judge of this module."""
    return "--judge", f"tests.integrations.rapid_server.server_kit:{name}"


@contextmanager
def served(*options: str, environment: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Run a server while the block runs."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    variables = {name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_ADK_EVAL")} | {
        "MLFLOW_ADK_EVAL_LEDGER": "off"
    }
    with subprocess.Popen(command(*options), cwd=ROOT, env=variables | dict(environment or {}), **pipes) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            assert line.startswith("listening on http://"), process.communicate()
            yield Running(line.removeprefix("listening on ").strip(), process)
        finally:
            process.kill()


def post(server: Running, body: Any, **settings: Any) -> httpx.Response:
    """Send a request."""
    return httpx.post(server.endpoint, timeout=300, **({"json": body} if body is not None else {}), **settings)


def error_of(response: httpx.Response) -> dict[str, Any]:
    """Return the error of a refusal, which is in Google's shape."""
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == response.status_code
    assert error["message"]
    assert error["status"].isupper()
    return error
