"""Whether agents of google/adk-samples replay as they ran: `python benchmarks/adk_samples.py FOLDER`, a checkout of that repository.

The agents' own code is imported unchanged, and a scripted model is in the place of each model. In every turn it calls each tool that the request
declares, hands over to other agents where it can, and answers with the hash of what it was asked, so that any difference shows. What tools reach
outside is stubbed for the recording. Then tools and stubs raise, and the recording answers: the tools, and in the end the models as well. The
command fails where a turn, a state or a call within an agent differs, or anything real is called.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import io
import itertools
import json
import logging
import os
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from machine import description

from mlflow_adk_eval.agents.adk.agent import load_adk_agent
from mlflow_adk_eval.agents.adk.requests import request_sha256
from mlflow_adk_eval.agents.recordings import load_recording, save_recording
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.evalset.conversation import STEERING
from mlflow_adk_eval.evalset.models import Content, EvalCase, EvalSet, Invocation, Part, SessionInput
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.evaluation import Options, run
from mlflow_adk_eval.runs.replays import replays_of

_TRANSFERS = 2
"""How often the agents hand over in a turn."""
_NUMBER = itertools.count(1)
"""What is new in each answer from outside."""
_CLOCK = {"timer_start": 0, "request_count": -10_000}
"""What the rate limits in some callbacks would take from the clock; the count keeps them from waiting."""
_DATES = [dt.date(2025, 1, 29), dt.date(2025, 1, 28)]
_HEAD = (
    "agent | turns | tools | calls | within agents | requests to models | calls of stubs | live s | tools replayed s | models replayed s"
)
_LEGEND = """\
tools: different ones that were called; calls: by the agent and its sub-agents; within agents: calls of agents that are tools or run in one.
Models and stubs answer at once, so the seconds are those of google-adk and this package alone.
Not replayed: tools built into a model (google_search), which are part of its answer; code that a model writes; what callbacks call."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """An agent of the samples, and what it needs to run here."""

    folder: str
    package: str
    turns: int = 3
    at_once: int = 2
    """How many tools the models call at once."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The state that the session begins with."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of tools by name, where it matters which."""
    environment: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()
    """Modules that are stubbed while it is imported: they are not installed, or connect at once."""
    placed: Sequence[str] = ()
    """Names in its modules that are stubbed."""
    answers: Mapping[str, Any] = field(default_factory=dict)
    """What stubs answer, by their path; a function is called each time."""


@dataclass
class World:
    """How often anything real was called."""

    tools: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    """Requests to models."""
    closed: list[Counter[str]] = field(default_factory=list)
    """What refuses to be called."""

    def real(self, kind: Counter[str], what: str) -> None:
        """Count a real call, or refuse it."""
        kind[what] += 1
        if any(kind is one for one in self.closed):
            raise ConnectionRefusedError(f"{what} was called while it is to be replayed")


@dataclass
class Outside:
    """What tools reach: attributes and calls lead to more of it, except where there is an answer."""

    _world: World
    _answers: Mapping[str, Any]
    _path: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self._path}.{name}"
        return self._answers.get(path, Outside(self._world, self._answers, path))

    def __call__(self, *args: Any, **_: Any) -> Any:
        path = f"{self._path}()"
        self._world.real(self._world.outside, path)
        if path not in self._answers:
            return Outside(self._world, self._answers, path)
        return self._answers[path](*args) if callable(self._answers[path]) else self._answers[path]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing."""


class _Rows(list[Any]):
    """What BigQuery answers."""

    schema = True
    total_rows = 1


def _place() -> Any:
    found = {"place_id": f"place {next(_NUMBER)}", "name": "A place", "formatted_address": "1 Street"}
    return {"candidates": [found | {"geometry": {"location": {"lat": 1.5, "lng": 2}}}]}


def _page() -> bytes:
    return f"page {next(_NUMBER)}".encode()


def _screenshot(file: str) -> None:
    from PIL import Image

    Image.new("RGB", (4, 4), (next(_NUMBER) % 256, 0, 0)).save(file)


def _executor() -> Any:
    from google.adk.code_executors.unsafe_local_code_executor import UnsafeLocalCodeExecutor

    return UnsafeLocalCodeExecutor()


SAMPLES = (
    Sample(folder="customer-service", package="customer_service", state=_CLOCK, args={"customer_id": "123", "value": 20.0}),
    Sample(
        folder="travel-concierge",
        package="travel_concierge",
        turns=8,
        at_once=1,
        state={"_time": "2025-06-01 10:00:00"},
        args={"key": "poi"},
        environment={"TRAVEL_CONCIERGE_SCENARIO": "{folder}/travel_concierge/profiles/itinerary_seattle_example.json"},
        placed=("travel_concierge.tools.places.requests",),
        answers={"requests.get().json()": _place},
    ),
    Sample(
        folder="marketing-agency",
        package="marketing_agency",
        environment={"GOOGLE_CLOUD_PROJECT": "none", "GOOGLE_CLOUD_LOCATION": "us-central1"},
        placed=("marketing_agency.sub_agents.logo_create.agent.client",),
        answers={
            "client.models.generate_images().generated_images": [SimpleNamespace(image=SimpleNamespace(image_bytes=b"\x89PNG\x00\xff"))]
        },
    ),
    Sample(
        folder="fomc-research",
        package="fomc_research",
        turns=5,
        state=_CLOCK,
        args={
            "url": "https://example.com",
            "state": {
                "user_requested_meeting_date": "2025-01",
                "requested_meeting_date": str(_DATES[0]),
                "requested_meeting_statement_pdf_url": "/requested.pdf",
                "previous_meeting_statement_pdf_url": "/previous.pdf",
                "transcript_url": "/transcript.pdf",
            },
        },
        missing=("pdfplumber", "diff_match_patch", "google.cloud.bigquery"),
        placed=("fomc_research.tools.fetch_page.urllib", "fomc_research.shared_libraries.file_utils.requests"),
        answers={
            "urllib.request.urlopen().read()": _page,
            "requests.get().content": b"%PDF \x00\xff",
            "requests.get().headers": {"Content-Type": "application/pdf"},
            "pdfplumber.open().pages": [SimpleNamespace(extract_text=lambda: f"text {next(_NUMBER)}")],
            "diff_match_patch.diff_match_patch().diff_main()": [(0, "as it was"), (1, "new")],
            "google.cloud.bigquery.Client().query().result()": [
                SimpleNamespace(timeseries_code=code, date=date, value=95.5 + place / 10)
                for place, (code, date) in enumerate(itertools.product(("SFRH5", "SFRZ5"), _DATES))
            ],
        },
    ),
    Sample(
        folder="brand-search-optimization",
        package="brand_search_optimization",
        turns=5,
        args={"artifact_names": []},
        environment={"DISABLE_WEB_DRIVER": "1"},
        missing=("selenium", "selenium.webdriver.chrome.options", "selenium.webdriver.common.by", "google.cloud.bigquery"),
        placed=("brand_search_optimization.sub_agents.search_results.agent.driver",),
        answers={
            "driver.save_screenshot()": _screenshot,
            "driver.page_source": "<html>A page</html>",
            "google.cloud.bigquery.Client().query().result()": [
                SimpleNamespace(Title="Shoe", Description=None, Attributes="blue", Brand="A brand")
            ],
        },
    ),
    Sample(
        folder="data-science",
        package="data_science",
        turns=4,
        at_once=1,
        args={"question": "How many?", "artifact_names": []},
        environment={
            **{f"{name}_MODEL": "gemini-2.0-flash-001" for name in ("ROOT_AGENT", "ANALYTICS_AGENT", "BIGQUERY_AGENT", "BQML_AGENT")},
            **dict.fromkeys(("BQ_PROJECT_ID", "BQ_DATASET_ID", "GOOGLE_CLOUD_PROJECT"), "none"),
            "GOOGLE_CLOUD_LOCATION": "us-central1",
        },
        missing=(
            *("sqlglot", "sqlglot.optimizer", "immutabledict", "vertexai.preview.extensions"),
            *("google.cloud.bigquery", "google.adk.code_executors"),
        ),
        placed=("data_science.sub_agents.bigquery.tools.llm_client", "data_science.sub_agents.bqml.tools.rag"),
        answers={
            "immutabledict.immutabledict": dict,
            "google.adk.code_executors.VertexAiCodeExecutor()": _executor,
            "google.cloud.bigquery.Client().list_tables()": [],
            "google.cloud.bigquery.Client().list_models()": [SimpleNamespace(model_id="a model", model_type="linear")],
            "google.cloud.bigquery.Client().query().error_result": None,
            "google.cloud.bigquery.Client().query().exception()": None,
            "google.cloud.bigquery.Client().query().result()": lambda: _Rows([{"count": next(_NUMBER)}]),
            "llm_client.models.generate_content().text": "SELECT 1",
        },
    ),
    Sample(folder="financial-advisor", package="financial_advisor"),
    Sample(folder="academic-research", package="academic_research", at_once=1, state={"seminal_paper": "a paper"}),
)


@contextlib.contextmanager
def _set(known: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Set entries of a dict, or of ``vars`` of a module, for a while."""
    before = {name: known[name] for name in values if name in known}
    known.update(values)
    try:
        yield
    finally:
        for name in values:
            del known[name]
        known.update(before)


@contextlib.contextmanager
def _imported(root: Path, sample: Sample, world: World) -> Iterator[Any]:
    """Import an agent, with stubs and scripted models in their places."""
    from google.adk.agents.base_agent import BaseAgent

    stubs = {name: Outside(world, sample.answers, name) for name in sample.missing}
    folder = root / "python" / "agents" / sample.folder
    with contextlib.ExitStack() as until:
        until.enter_context(_set(os.environ, {name: value.format(folder=folder) for name, value in sample.environment.items()}))
        with contextlib.ExitStack() as importing:
            importing.enter_context(_set(sys.modules, stubs))
            for name, stub in stubs.items():
                if "." in name and name.partition(".")[0] not in stubs:
                    parent, _, last = name.rpartition(".")
                    importing.enter_context(_set(vars(importlib.import_module(parent)), {last: stub}))
            agent = load_adk_agent(folder / sample.package)
        for name in sample.placed:
            module, _, last = name.rpartition(".")
            setattr(importlib.import_module(module), last, Outside(world, sample.answers, last))
        # Functions may run agents that are in no tree, so that it takes the modules to find all.
        modules = [module for name, module in sys.modules.items() if f"{name}.".startswith(f"{sample.package}.")]
        todo = [agent.root.root_agent, *(value for module in modules for value in vars(module).values() if isinstance(value, BaseAgent))]
        for one in todo:
            inner = [tool.agent for tool in getattr(one, "tools", ()) if isinstance(getattr(tool, "agent", None), BaseAgent)]
            todo += [found for found in (*one.sub_agents, *inner) if not any(found is known for known in todo)]
            if hasattr(one, "model"):
                one.model = _scripted(str(getattr(one.model, "model", one.model)), sample, world)
        yield agent


def _scripted(name: str, sample: Sample, world: World) -> Any:
    """Return a model that says what `_said` says."""
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_response import LlmResponse
    from google.genai import types

    class Scripted(BaseLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:  # noqa: ARG002
            world.real(world.asked, self.model)
            said = [one if isinstance(one, str) else types.FunctionCall(name=one[0], args=one[1]) for one in _said(llm_request, sample)]
            parts = [types.Part(text=one) if isinstance(one, str) else types.Part(function_call=one) for one in said]
            usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=10, candidates_token_count=2)
            yield LlmResponse(content=types.Content(role="model", parts=parts), usage_metadata=usage, model_version="scripted")

    return Scripted(model=name)


def _said(request: Any, sample: Sample) -> list[Any]:
    """Return what a model says to a request: texts, or names of tools with their arguments."""
    parts = [part for content in request.contents for part in content.parts or ()]
    began = max((at for at, part in enumerate(parts) if part.text and not part.text.startswith(("For context:", "["))), default=0)
    called = {part.function_call.name for part in parts[began:] if part.function_call} | {"transfer_to_agent"}
    todo = []
    for one in (one for tool in request.config.tools or () for one in getattr(tool, "function_declarations", None) or ()):
        if one.name not in called:
            schema = one.parameters_json_schema or (one.parameters.model_dump(exclude_none=True) if one.parameters else {})
            todo.append((one.name, _example("args", {"type": "object"} | schema, sample.args)))
    if todo:
        return todo[: sample.at_once]
    texts = [f"{part.text or ''} {part.function_call or ''}" for part in parts]
    if sum("agent_name" in text for text in texts[began:]) < _TRANSFERS:
        for agent in re.findall(r"Agent name: (\w+)", str(request.config.system_instruction or "")):
            if not any("agent_name" in text and f"'{agent}'" in text for text in texts):
                return [("transfer_to_agent", {"agent_name": agent})]
    schema = request.config.response_schema or getattr(request.config, "response_json_schema", None)
    if schema:
        return [json.dumps(_example("answer", schema if isinstance(schema, Mapping) else schema.model_json_schema(), {}))]
    return [f"I was asked {request_sha256(request)[:16]}"]


def _example(name: str, schema: Mapping[str, Any], known: Mapping[str, Any], whole: Mapping[str, Any] | None = None) -> Any:
    """Return a value that a schema allows, of JSON or of Gemini."""
    whole = whole or schema
    if name in known:
        return known[name]
    if "$ref" in schema:
        return _example(name, whole["$defs"][schema["$ref"].rpartition("/")[2]], known, whole)
    if several := schema.get("anyOf") or schema.get("any_of"):
        return _example(name, several[0], known, whole)
    kind = str(getattr(schema.get("type"), "value", schema.get("type"))).lower()
    if kind == "object":
        return {key: _example(key, inner, known, whole) for key, inner in (schema.get("properties") or {}).items()}
    if kind == "array":
        return [_example(name, schema.get("items") or {"type": "string"}, known, whole)]
    return {"integer": 2, "number": 1.5, "boolean": True}.get(kind, f"the {name}")


@contextlib.contextmanager
def _counted(world: World) -> Iterator[None]:
    """Have functions that are tools count how often they run."""
    from google.adk.tools.function_tool import FunctionTool

    real = FunctionTool.run_async

    async def run_async(self: Any, *, args: dict[str, Any], tool_context: Any) -> Any:
        if self.name not in STEERING:
            world.real(world.tools, self.name)
        return await real(self, args=args, tool_context=tool_context)

    FunctionTool.run_async = run_async
    try:
        yield
    finally:
        FunctionTool.run_async = real


def did(report: Report) -> dict[str, Any]:
    """Return all that an agent did, without ids and times."""
    found: dict[str, Any] = {}
    for case in report.cases:
        for number, turn in enumerate(case.actual):
            parts = [part for event in turn.events for part in (event.content and event.content.parts) or ()]
            without_ids: Any = {"function_call": {"id"}, "function_response": {"id"}}
            found[f"turn {number + 1}"] = [turn.final_text, *(part.model_dump(exclude=without_ids, exclude_none=True) for part in parts)]
        found |= {"error": case.error, "state": case.conversation.session_state, "within agents": case.conversation.inner_calls}
    return found | {"digest": report.world and report.world.digest, "live call": replays_of(report).live if report.world else ""}


def replayed(root: Path, sample: Sample) -> tuple[str, list[str]]:
    """Record an agent and replay it twice; return a row of figures, and what differs."""
    world = World()
    turns = tuple(Invocation(user_content=Content(role="user", parts=(Part(text=f"Turn {turn}"),))) for turn in range(sample.turns))
    given = SessionInput(app_name=sample.package, user_id="user", state=dict(sample.state))
    eval_set = EvalSet(eval_set_id=sample.folder, eval_cases=(EvalCase(eval_id="case", conversation=turns, session_input=given),))
    config, seconds, problems = parse_config({"criteria": {"tool_trajectory_avg_score": 0.0}}, "config"), list[float](), list[str]()
    with contextlib.redirect_stdout(io.StringIO()), _imported(root, sample, world) as agent, _counted(world):

        def timed(**options: Any) -> Report:
            started = time.perf_counter()
            report = run(eval_set, agent, config, Options(**options))
            seconds.append(time.perf_counter() - started)
            return report

        live = timed(record=True)
        case = live.cases[0]
        calls, inner = (Counter(call.name for turn in case.actual for call in turn.tool_calls), case.conversation.inner_calls or ())
        counts = (len(case.actual), len({*calls, *(call.tool for call in inner)}), calls.total(), len(inner), world.asked.total())
        cells = [sample.folder, *counts, world.outside.total()]
        problems += [f"recording: {case.error}"] * bool(case.error)
        with tempfile.TemporaryDirectory() as place:
            save_recording(live, Path(place, "recording.json"))
            recording = load_recording(Path(place, "recording.json"))
        for what, options in (("tools", {}), ("tools and models", {"replay_models": True})):
            world.closed = [world.tools, world.outside, *([world.asked] if options else [])]
            for kind in world.closed:
                kind.clear()
            again = did(timed(replay=recording, **options))
            problems += [f"{what} replayed: {name} was called" for kind in world.closed for name in kind]
            expected = did(live) | {"live call": ""}
            problems += [
                f"{what} replayed: {name} differs: {expected.get(name)} became {again.get(name)}"
                for name in expected | again
                if expected.get(name) != again.get(name)
            ]
    return f"| {' | '.join(map(str, cells))} | {' | '.join(f'{one:.2f}' for one in seconds)} |", problems


def main(argv: Sequence[str], samples: Sequence[Sample] = SAMPLES) -> int:
    """Print a row an agent; return 1 where something differs."""
    if len(argv) != 1 or not Path(argv[0], "python", "agents").is_dir():
        sys.exit("python benchmarks/adk_samples.py FOLDER: wanted a checkout of github.com/google/adk-samples")
    root, problems = Path(argv[0]).resolve(), list[str]()
    logging.disable(logging.CRITICAL)  # one of the agents has everything logged
    warnings.simplefilter("ignore")
    print(f"| {_HEAD} |\n|:--{'|--:' * _HEAD.count('|')}|")
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):  # a tool writes files where it is
        for sample in samples:
            row, found = replayed(root, sample)
            print(row)
            problems += [f"{sample.folder}: {one}" for one in found]
    print(f"\n{_LEGEND}\n{description()}")
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
