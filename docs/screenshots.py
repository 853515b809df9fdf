"""Take the pictures of MLflow's pages that the documentation shows, from the store that `make demo` left.

make demo && make screenshots

What the demo does not leave there is added to the same store first, in experiments of its own: a dataset with an evaluation on it,
MLflow's two ways of evaluating, and conversations of an agent in production.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from mlflow.tracking import MlflowClient
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
SETTLE_MS = 2_500
WAIT_MS = 60_000
SEEN = {
    "mlflow.telemetry.enabled": "false",
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
    "mlflow.assistant.panelOpen_v1": "false",
    "mlflow.detectIssues.guidanceShown_v1": "true",
}
"""What a browser remembers of a user who has closed MLflow's assistant and its hints."""
SWITCHES = {
    "MLFLOW_USE_DEFAULT_TRACER_PROVIDER": "false",
    "MLFLOW_GENAI_EVAL_MAX_WORKERS": "4",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
}
DEMO, NIGHTLY, PRODUCTION = "home_automation", "home_automation_nightly", "home_automation_production"
AGENT = "home_automation_agent_regressed"
CHATS = {
    "ann-1": ("Is device_3 on?", "Turn it on.", "Which devices are in the Bedroom?"),
    "ben-1": ("How warm is the Kitchen?", "Make it 20 degrees.", "How warm is it now?"),
    "ann-2": ("Turn everything off in the Bedroom.",),
}


def add_to(store: str) -> None:
    """Add what the demo does not leave, each experiment in a process of its own, since OpenTelemetry can be set up once in one."""
    for experiment, add in ((NIGHTLY, add_doors), (PRODUCTION, add_production)):
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            process.submit(add_experiment, store, experiment, add).result()


def add_experiment(store: str, experiment: str, add: Callable[[Path, dict[str, Any]], None]) -> None:
    """Add an experiment, if it has no runs yet."""
    import mlflow  # noqa: PLC0415 - slow

    from mlflow_adk_eval.cli.demo import example_folder  # noqa: PLC0415
    from mlflow_adk_eval.tracking.client import open_store  # noqa: PLC0415

    mlflow.set_tracking_uri(open_store(Path(store.removeprefix("sqlite:///")).parent, experiment=experiment))
    mlflow.set_experiment(experiment)
    if mlflow.search_runs(experiment_names=[experiment]).empty:
        project = example_folder()
        sys.path.insert(0, str(project))
        judge = importlib.import_module("home_automation_judge").names_and_numbers
        add(project / "home_automation.evalset.json", {"config": project / "judged_config.json", "judge": judge, "ledger": False})


def add_doors(eval_set: Path, judged: dict[str, Any]) -> None:
    """Evaluate one agent in three ways: by `evaluate` on a dataset, and by both of MLflow's functions."""
    import mlflow  # noqa: PLC0415
    import pandas as pd  # noqa: PLC0415

    import mlflow_adk_eval as adk_eval  # noqa: PLC0415

    dataset = adk_eval.push_eval_set(eval_set, experiment=NIGHTLY)
    adk_eval.evaluate(dataset, agent=AGENT, experiment=NIGHTLY, run_name="dataset", register_prompts=True, **judged)
    scorers = [*adk_eval.scorers.from_config(**judged), *adk_eval.scorers.expectations()]
    with mlflow.start_run(run_name="genai"):
        mlflow.genai.evaluate(data=dataset, predict_fn=adk_eval.predict_fn(AGENT), scorers=scorers)
    cases = [case.model_dump(mode="json", exclude_none=True) for case in adk_eval.load_eval_set(eval_set).eval_cases]
    with mlflow.start_run(run_name="models"):
        mlflow.models.evaluate(
            model=adk_eval.model_fn(AGENT),
            data=pd.DataFrame({"eval_case": cases}),
            extra_metrics=adk_eval.metrics.from_config(**judged),
            evaluator_config={"col_mapping": {"targets": "eval_case"}},
        )


def add_production(_: Path, judged: dict[str, Any]) -> None:
    """Have conversations that ADK traces by itself, and score their sessions."""
    import mlflow  # noqa: PLC0415

    import mlflow_adk_eval as adk_eval  # noqa: PLC0415

    mlflow.tracing.enable()
    agent = importlib.import_module("home_automation_agent.agent").root_agent
    for session, texts in CHATS.items():
        asyncio.run(chat(agent, session, texts))
    mlflow.flush_trace_async_logging()
    grounded = {"criteria": {"hallucinations_v1": 0.8}}
    scorers = adk_eval.scorers.from_config(**judged | {"config": grounded}, session_level=True)
    with mlflow.start_run(run_name="sessions"):
        mlflow.genai.evaluate(data=mlflow.search_traces(return_type="list"), scorers=scorers)


async def chat(agent: Any, session: str, texts: tuple[str, ...]) -> None:
    """Talk to an ADK agent in one session; a span of our own around each turn has the words of both sides."""
    import mlflow  # noqa: PLC0415
    from google.adk.runners import InMemoryRunner  # noqa: PLC0415
    from google.genai import types  # noqa: PLC0415

    user = session.partition("-")[0]
    runner = InMemoryRunner(agent, app_name=DEMO)
    await runner.session_service.create_session(app_name=DEMO, user_id=user, session_id=session)
    for text in texts:
        message = types.Content(role="user", parts=[types.Part(text=text)])
        with mlflow.start_span(DEMO, span_type="AGENT") as span:
            span.set_inputs({"question": text})
            events = [event async for event in runner.run_async(user_id=user, session_id=session, new_message=message)]
            said = "".join(part.text or "" for part in (events[-1].content or message).parts or ())
            span.set_outputs({"answer": said})
            about = {"mlflow.trace.session": session, "mlflow.trace.user": user}
            mlflow.update_current_trace(metadata=about, request_preview=text, response_preview=said)


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: a page, what it shows when it is there, and what is clicked on then."""

    name: str
    path: str
    until: str
    clicks: tuple[str, ...] = ()
    """Selectors; ``key:Escape`` presses a key."""
    height: int = 900


def shots(store: str) -> list[Shot]:
    """Return the pictures of the demo's two runs and of what was added."""
    return [*demo_shots(Pages(store, DEMO)), *door_shots(Pages(store, NIGHTLY)), *production_shots(Pages(store, PRODUCTION))]


class Pages:
    """The addresses of an experiment's pages."""

    def __init__(self, store: str, experiment: str) -> None:
        client = MlflowClient(store)
        self.id = client.get_experiment_by_name(experiment).experiment_id
        runs = client.search_runs([self.id])
        self.runs = {run.data.tags.get("adk_eval.agent_version", "").partition("@")[0]: run.info.run_id for run in runs}
        self.runs |= {run.info.run_name: run.info.run_id for run in runs}
        self.models = {run.info.run_id: run.data.params.get("adk_eval.model_id") for run in runs}
        self.datasets = [dataset.dataset_id for dataset in client.search_datasets(experiment_ids=[self.id])]
        self.page = f"/experiments/{self.id}"

    def run(self, name: str, tab: str = "") -> str:
        """Return the address of a run's page."""
        return f"{self.page}/runs/{self.runs[name]}{tab}"


def columns(*names: str) -> tuple[str, ...]:
    """Return the clicks that turn columns of MLflow's table of traces on or off."""
    return ("button:has-text('Columns') >> nth=-1", *(f"[role=option]:has(:text-is('{name}'))" for name in names), "key:Escape")


SCORES = columns("Trace ID", "expected_tool_calls", "All Assessments", "final_session_state", "State", "Execution time")
WIDER = "[aria-label='Toggle sidebar']"
INSIDE = "iframe >> internal:control=enter-frame >> "
UNFOLD = "[data-component-id$=toggle-assessment-expanded]"


def demo_shots(pages: Pages) -> list[Shot]:
    """Return the pictures of what `make demo` leaves."""
    page, rows, artifacts = pages.page, pages.run(AGENT, "/traces"), pages.run(AGENT, "/artifacts/adk_eval")
    compared = f"{page}/evaluation-runs?selectedRunUuid={pages.runs[AGENT]}&compareToRunUuid={pages.runs['home_automation_agent']}"
    assessed = ("text=[turn_off_light #1]", "[role=dialog] button:has-text('Assess')", f"{UNFOLD} >> nth=1")
    called = ("text=[turn_off_light #1]", "[role=dialog] >> text=set_device_info")
    changed = f"adk_eval_compare/{pages.runs['home_automation_agent']}.html"
    unfolded = (f"{INSIDE}.case:has-text('set_temperature') > summary", f"{INSIDE}.case[open] .calls .side >> nth=0")
    return [
        Shot("evaluation_runs", f"{page}/evaluation-runs", "Run Name"),
        Shot("run_rows", rows, "[warm_up #1]", SCORES),
        Shot("rationale", rows, "[warm_up #1]", assessed),
        Shot("trace", pages.run("home_automation_agent", "/traces"), "[warm_up #1]", called),
        Shot("compare", compared, "Comparing", ("[aria-label='Refresh traces']", WIDER, *SCORES, *columns("Expected output"))),
        Shot("run_overview", pages.run(AGENT), "tool_trajectory_avg_score/pass_rate"),
        Shot("artifact_table", f"{artifacts}/invocations.json", "warm_up #3"),
        Shot("report", f"{artifacts}/report.html", "adk_eval/report.html"),
        Shot("comparison", pages.run(AGENT, f"/artifacts/{changed}"), changed, unfolded),
        Shot("agent_versions", f"{page}/models", "Registered models"),
        Shot("logged_model", f"{page}/models/{pages.models[pages.runs[AGENT]]}", "tool_trajectory_avg_score/mean"),
        Shot("registered_model", f"/models/{DEMO}", "champion"),
        Shot("champion", f"/models/{DEMO}/versions/1", "champion"),
    ]


def door_shots(pages: Pages) -> list[Shot]:
    """Return the pictures of the other ways to evaluate."""
    chosen = columns("Trace ID", "eval_case", "All Assessments", "final_session_state", "State")
    table = pages.run("models", "/artifacts/eval_results_table.json")
    return [
        Shot("integrations", f"{pages.page}/evaluation-runs", "genai"),
        Shot("dataset", f"{pages.page}/datasets/{pages.datasets[0]}", "warm_up", ("text=turn_off_light",)),
        Shot("dataset_run", pages.run("dataset"), "tool_trajectory_avg_score/pass_rate"),
        Shot("genai_rows", pages.run("genai", "/traces"), "[warm_up]", chosen),
        Shot("metrics_table", table, "turn_off_light", ("text=1 of 2 expected calls",)),
        Shot("prompts", f"{pages.page}/prompts/adk_eval.hallucinations_v1", "Viewing version"),
    ]


def viewer_shots(store: str) -> list[Shot]:
    """Return the pictures of the viewer."""
    runs = Pages(store, DEMO).runs
    good, bad = runs["home_automation_agent"], runs[AGENT]
    unfolded = (".case:has-text('set_temperature') > summary",)
    return [
        Shot("home", f"/runs/{bad}", "Criteria", height=480),
        Shot("viewer_run", f"/runs/{bad}", "Criteria"),
        Shot("viewer_compare", f"/compare?run={good}&run={bad}", "Scores", unfolded),
    ]


def production_shots(pages: Pages) -> list[Shot]:
    """Return the pictures of the agent's conversations."""
    session, turn = next(iter(CHATS)), CHATS["ann-1"][-1]
    grouped = ("[aria-label='Group traces by session']", "tr:has-text('ann-1') button, [role=row]:has-text('ann-1') button")
    return [
        Shot("sessions", f"{pages.page}/traces", turn, grouped),
        Shot("session", f"{pages.page}/chat-sessions/{session}", "Turn 3", (UNFOLD,)),
        Shot("adk_trace", f"{pages.page}/traces", turn, ("text=Turn it on.", "[role=dialog] >> text=execute_tool set_device_info")),
    ]


@contextlib.contextmanager
def server(store: str) -> Generator[str, None, None]:
    """Run an MLflow server on `store`; yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--port", str(port), "--workers", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{address}/health")
        yield address
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def viewer(store: str) -> Generator[str, None, None]:
    """Run our viewer on `store`; yield its address."""
    command = [sys.executable, "-m", "mlflow_adk_eval", "view", "--tracking-uri", store, "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1].rstrip("/")
        process.terminate()


def wait_for(address: str, seconds: float = 180) -> None:
    """Wait until an address answers."""
    end = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(address, timeout=2).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.3)
        else:
            return


@contextlib.contextmanager
def browser_page(address: str, width: int = 1440, height: int = 900) -> Generator[Page, None, None]:
    """Open a page of Debian's chromium on MLflow, as large as many people's, with its assistant closed and no telemetry."""
    chromium = shutil.which("chromium") or os.environ.get("CHROMIUM", "")
    if not chromium:
        sys.exit("chromium is not installed; on Debian: apt-get install chromium")
    flags = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-sync",
        "--no-first-run",
    ]
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium, args=flags) as browser:
        context = browser.new_context(viewport={"width": width, "height": height}, base_url=address)
        seen = f"for (const [key, value] of Object.entries({json.dumps(SEEN)})) localStorage.setItem(key, value)"
        context.add_init_script(f"try {{ {seen} }} catch (e) {{}}")  # a frame without an origin has no storage
        yield context.new_page()


def open_page(page: Page, path: str, until: str, root: str = "/#") -> None:
    """Open a page of MLflow, or of what has its pages at another `root`, and wait until it shows a text."""
    page.goto("about:blank")
    page.goto(f"{root}{path}", wait_until="load")
    page.get_by_text(until).first.wait_for(timeout=WAIT_MS)
    page.wait_for_timeout(SETTLE_MS)


def take(page: Page, shot: Shot, root: str = "/#") -> Path:
    """Open a page, click, and save the picture."""
    open_page(page, shot.path, shot.until, root)
    for selector in shot.clicks:
        if selector.startswith("key:"):
            page.keyboard.press(selector.removeprefix("key:"))
        else:
            page.locator(selector).first.click(timeout=WAIT_MS)
        page.wait_for_timeout(500)
    page.mouse.move(0, 0)
    page.wait_for_timeout(SETTLE_MS)
    file = IMAGES / f"{shot.name}.png"
    page.screenshot(path=file)
    return file


def main() -> None:
    """Take every picture, or those named after the store."""
    store = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{Path('demo').resolve()}/mlflow.db"
    os.environ |= SWITCHES
    add_to(store)
    IMAGES.mkdir(exist_ok=True)
    wanted, ours = ([shot for shot in some(store) if not sys.argv[2:] or shot.name in sys.argv[2:]] for some in (shots, viewer_shots))
    with viewer(store) as address:
        for shot in ours:
            with browser_page(address, 1440, shot.height) as page:
                print(take(page, shot, root=""))
    with server(store) as address:
        for shot in wanted:
            with browser_page(address) as page:  # a new browser, since MLflow remembers what was clicked
                print(take(page, shot))


if __name__ == "__main__":
    main()
