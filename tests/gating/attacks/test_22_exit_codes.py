"""Attack 22: end the process with 0, or a test as skipped, from code that is evaluated or that evaluates."""

from __future__ import annotations

import ast
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlflow_adk_eval
from tests.cli.test_cli import invoke, written
from tests.gating.gate_kit import Lab
from tests.kit import turn_json
from tests.testing.test_pytest_plugin import command, surroundings

WAYS = {
    "sys.exit": "sys.exit(0)",
    "SystemExit": "raise SystemExit",
    "a cancellation": "raise asyncio.CancelledError",
    "GeneratorExit": "raise GeneratorExit",
    "pytest.skip": "pytest.skip('not today')",
    "pytest.xfail": "pytest.xfail('as ever')",
    "pytest.exit": "pytest.exit('enough', returncode=0)",
    "unittest": "raise unittest.SkipTest",
    "click": "raise click.exceptions.Exit(0)",
    "a group": "raise BaseExceptionGroup('', [SystemExit(0)])",
}
"""How code tries to end more than itself."""

HEAD = """
import asyncio, sys, unittest
import click, pytest
from google.adk.agents import Agent, BaseAgent
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types

def leave(*args, **more):
    WAY

def says(*parts):
    class Scripted(BaseLlm):
        async def generate_content_async(self, llm_request, stream=False):
            last = llm_request.contents[-1].parts[-1]
            part = types.Part(text="hello") if last.function_response else parts[0]
            yield LlmResponse(content=types.Content(role="model", parts=[part]))
    return Scripted(model="scripted")

def tool():
    "Leave."
    leave()

async def async_tool():
    "Leave."
    leave()

def calls(name):
    return says(types.Part(function_call=types.FunctionCall(name=name, args={})))

HELLO = says(types.Part(text="hello"))
"""
AGENTS = {
    "import": "leave()",
    "attribute of the module": "def __getattr__(name): leave()",
    "function": "def agent(text): leave()",
    "async function": "async def agent(text): leave()",
    "generator": "def agent(text):\n    yield 'hel'\n    leave()",
    "async generator": "async def agent(text):\n    yield 'hel'\n    leave()",
    "task": "async def agent(text):\n    async def work(): leave()\n    await asyncio.create_task(work())",
    "callback of the loop": "async def agent(text):\n    asyncio.get_running_loop().call_soon(leave)\n    await asyncio.sleep(0.05)\n    leave()",
    "thread": "async def agent(text): await asyncio.to_thread(leave)",
    "converse": "class Own:\n    name = 'own'\n    async def converse(self, case, run_index): leave()\nagent = Own()",
    "name": "class Own:\n    @property\n    def name(self): leave()\n    async def converse(self, case, run_index): leave()\nagent = Own()",
    "factory": "async def get_agent_async(): leave()\nagent = get_agent_async",
    "model": "class Model(BaseLlm):\n    async def generate_content_async(self, r, stream=False):\n        leave()\n        yield\nagent = Agent(name='a', model=Model(model='m'))",
    "tool": "agent = Agent(name='a', model=calls('tool'), tools=[tool])",
    "async tool": "agent = Agent(name='a', model=calls('async_tool'), tools=[async_tool])",
    "callback before the agent": "agent = Agent(name='a', model=HELLO, before_agent_callback=leave)",
    "callback after the model": "agent = Agent(name='a', model=HELLO, after_model_callback=leave)",
    "instruction": "agent = Agent(name='a', model=HELLO, instruction=leave)",
    "its own run": "class Own(BaseAgent):\n    async def _run_async_impl(self, ctx):\n        leave()\n        yield\nagent = Own(name='a')",
}
"""Where an agent's code runs; each ends as soon as it is called, or is an ADK agent that otherwise answers *hello*."""
QUICK = {"sys.exit", "pytest.skip", "function"}
SILENT = {"model", "callback before the agent", "callback after the model", "instruction"}
"""Where ADK 2 takes a cancellation for the end of the run: the agent has said nothing, and that is scored."""
METRICS = {
    "import": "leave()",
    "call": "def metric(*a): leave()",
    "async call": "async def metric(*a): leave()",
    "answer": "class Answer:\n    @property\n    def overall_score(self): leave()\ndef metric(*a): return Answer()",
}
JUDGES = {
    "import": "leave()",
    "call": "def judge(request): leave()",
    "async call": "async def judge(request): leave()",
    "object": "class Own:\n    model = 'own'\n    address = None\n    async def ask(self, request): leave()\n    async def aclose(self): ...\njudge = Own()",
    "end": "class Own:\n    model = 'own'\n    address = None\n    async def ask(self, request): raise ValueError\n    async def aclose(self): leave()\njudge = Own()",
    "model": "class Own:\n    address = None\n    @property\n    def model(self): leave()\n    async def ask(self, request): ...\n    async def aclose(self): ...\njudge = Own()",
}
USERS = {"import": "leave()", "call": "def user(scenario, turns): leave()", "async call": "async def user(scenario, turns): leave()"}
CASE = {"eval_id": "hi", "conversation": [turn_json("hi", "hello")]}
SCENARIO = {"eval_id": "talk", "conversation_scenario": {"starting_prompt": "hi", "conversation_plan": "Say hello twice."}}
_numbers = itertools.count()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    cases(tmp_path, CASE)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("leaving_")]:
        del sys.modules[name]


def cases(here: Path, *listed: object) -> Path:
    return written(here / "hello.evalset.json", {"eval_set_id": "hello", "eval_cases": listed})


def module(here: Path, code: str, way: str) -> str:
    name = f"leaving_{next(_numbers)}"
    (here / f"{name}.py").write_text(HEAD.replace("WAY", way) + code)
    return name


def refused(*arguments: object) -> str:
    """Run a command that must not succeed, and return what it says."""
    result = invoke(*arguments)
    said = result.stdout + result.stderr
    assert result.exit_code in {2, 3, 64}, said
    assert "PASSED" not in said
    assert said.strip()
    return said


@pytest.mark.parametrize(
    ("code", "way"),
    [
        pytest.param(code, way, id=f"{place}-{kind}", marks=[] if kind in QUICK or place in QUICK else pytest.mark.slow)
        for place, code in AGENTS.items()
        for kind, way in WAYS.items()
        if kind != "a cancellation" or place not in SILENT
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what ADK leaves behind a GeneratorExit
def test_an_agent_ends_nothing_but_its_own_turn(code: str, way: str, here: Path) -> None:
    agent = f"{module(here, code, way)}:agent"
    refused("record", agent, "hello.evalset.json", "-o", "out.json")


@pytest.mark.parametrize("way", [WAYS["sys.exit"], WAYS["a cancellation"], WAYS["pytest.skip"]])
@pytest.mark.parametrize("code", METRICS.values(), ids=METRICS)
def test_a_metric_ends_nothing_but_its_own_cell(code: str, way: str, here: Path) -> None:
    metric = f"{module(here, code, way)}.metric"
    config = {"criteria": {"own": 0.5}, "custom_metrics": {"own": {"code_config": {"name": metric}}}}
    refused("score", "hello.evalset.json", "--actual", "hello.evalset.json", "--config", written(here / "config.json", config))


@pytest.mark.parametrize("way", [WAYS["sys.exit"], WAYS["a cancellation"], WAYS["pytest.skip"]])
@pytest.mark.parametrize("code", JUDGES.values(), ids=JUDGES)
def test_a_judge_ends_nothing_but_its_own_vote(code: str, way: str, here: Path) -> None:
    config = written(
        here / "config.json", {"criteria": {"final_response_match_v2": {"threshold": 0.5, "judge_model_options": {"num_samples": 1}}}}
    )
    judge = f"{module(here, code, way)}:judge"
    refused("score", "hello.evalset.json", "--actual", "hello.evalset.json", "--config", config, "--judge", judge)


@pytest.mark.parametrize("way", [WAYS["sys.exit"], WAYS["a cancellation"], WAYS["pytest.skip"]])
@pytest.mark.parametrize("code", USERS.values(), ids=USERS)
@pytest.mark.needs("google-adk")
def test_a_simulated_user_ends_nothing_but_its_own_conversation(code: str, way: str, here: Path) -> None:
    cases(here, SCENARIO)
    user = f"{module(here, code, way)}:user"
    agent = f"{module(here, 'agent = lambda text: text', 'pass')}:agent"
    said = refused("record", agent, "hello.evalset.json", "-o", "out.json", "--user-simulator", user)
    assert "sys.exit(0)" in said or way != WAYS["sys.exit"]


@pytest.mark.needs("google-adk")
def test_a_turn_that_leaves_is_an_error_and_the_other_cases_are_evaluated(here: Path, lab: Lab) -> None:
    cases(here, CASE, CASE | {"eval_id": "other", "conversation": [turn_json("other")]})
    code = "def agent(text):\n    if text == 'other': leave()\n    return 'hello'"
    agent = f"{module(here, code, 'sys.exit(0)')}:agent"
    config = written(here / "config.json", {"criteria": {"response_match_score": 0.5}})
    result = invoke("run", agent, "hello.evalset.json", "--config", config, "--tracking-uri", lab.uri, "--experiment", "gate", "--json")
    said = json.loads(result.stdout)
    assert (result.exit_code, said["verdict"], said["cases"]) == (2, "undecided", 2)
    assert any("turn 1: ExitError: the agent called sys.exit(0)" in reason for reason in said["reasons"])
    assert said["criteria"]["response_match_score"]["evaluated"] == 1
    assert invoke("gate", said["run_id"], "--tracking-uri", lab.uri).exit_code == 2


@pytest.mark.needs("google-adk")
def test_an_agent_that_cancels_its_own_task_does_not_lose_its_case(here: Path) -> None:
    code = "async def agent(text):\n    asyncio.current_task().cancel()\n    await asyncio.sleep(0)\n    return 'hello'"
    agent = f"{module(here, code, 'pass')}:agent"
    assert "cancelled its task" in refused("record", agent, "hello.evalset.json", "-o", "out.json")


SCRIPT = """
import atexit, sys, threading
atexit.register(sys.exit, 0)
threading.Thread(target=sys.exit, args=(0,)).start()
sys.exit(0)
"""


@pytest.mark.needs("google-adk")
def test_a_real_process_ends_with_our_code_and_json(here: Path) -> None:
    (here / "leaving_for_good.py").write_text(SCRIPT)
    command_line = [sys.executable, "-m", "mlflow_adk_eval", "record", "leaving_for_good", "hello.evalset.json", "-o", "out.json", "--json"]
    done = subprocess.run(command_line, capture_output=True, text=True, check=False, cwd=here)
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"] == "module 'leaving_for_good' could not be imported: ExitError: it called sys.exit(0)"


def session(here: Path, agent: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*more, "--adk-agent", agent), check=False, cwd=here, capture_output=True, text=True, env=surroundings())


IN_PYTEST = ("pytest.skip", "pytest.xfail", "pytest.exit", "unittest", "sys.exit")


@pytest.mark.parametrize("way", [WAYS["pytest.skip"], pytest.param(WAYS["pytest.exit"], marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "place", ["import", "function", pytest.param("tool", marks=pytest.mark.slow), pytest.param("name", marks=pytest.mark.slow)]
)
def test_a_session_of_pytest_does_not_pass_without_its_cases(place: str, way: str, here: Path) -> None:
    done = session(here, f"{module(here, AGENTS[place], way)}:agent")
    assert done.returncode == 1, done.stdout
    assert "skipped" not in done.stdout
    assert "1 failed" in done.stdout or "1 error" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("way", [WAYS[name] for name in IN_PYTEST], ids=IN_PYTEST)
def test_a_test_that_evaluates_an_agent_is_not_skipped_by_it(way: str, here: Path) -> None:
    agent = module(here, "def agent(text): leave()\nroot_agent = Agent(name='a', model=calls('tool'), tools=[tool])", way)
    (here / "test_agent.py").write_text(f"""
import asyncio
from mlflow_adk_eval.testing import assert_gate, evaluate_agent
import mlflow_adk_eval as adk_eval
import {agent}

def test_evaluate_agent():
    asyncio.run(evaluate_agent({agent}.agent, "hello.evalset.json", 1))

def test_evaluate_agent_of_adk():
    asyncio.run(evaluate_agent("{agent}", "hello.evalset.json", 1))

def test_assert_gate():
    assert_gate(adk_eval.run("hello.evalset.json", {agent}.agent, {{"criteria": {{"response_match_score": 0.5}}}}))
""")
    done = subprocess.run(command("test_agent.py"), check=False, cwd=here, capture_output=True, text=True, env=surroundings())
    assert done.returncode == 1, done.stdout
    assert "3 failed" in done.stdout, done.stdout


PACKAGE = Path(mlflow_adk_eval.__file__).parent
IMPORTS = {"import_module", "__import__", "run_path", "run_module", "exec", "exec_module", "eval"}
ENTRIES = {"converse", "turn", "state", "say", "ask", "predict", "function", "fn", "_fn", "redact", "root", "reevaluate", "from_config"}
"""What the methods and attributes are called by which code of others is entered: the protocols of agents, users and judges, and functions."""
WITHIN = {
    "agents/adk/agent.py AdkAgent._app": "open, within converse",
    "agents/adk/agent.py AdkAgent.converse": "converse of agents/conversation.py",
    "agents/adk/replay.py _prepare_model.generate_content_async": "AdkSession.turn",
    "agents/functions.py ToolRecorder._kept": "ToolRecorder._call",
    "agents/functions.py ToolRecorder._replayed": "ToolRecorder._call",
    "agents/functions.py CallableAgent.converse": "converse of agents/conversation.py",
    "agents/http/http_agent.py HttpAgent.converse": "converse of agents/conversation.py",
    "agents/functions.py _drained": "CallableSession.turn",
    "agents/functions.py ToolRecorder._async.call": "ToolRecorder._call",
    "agents/functions.py ToolRecorder._sync.call": "ToolRecorder._call",
    "agents/scenarios.py _asked": "wait",
    "agents/users.py SimulatedUser._ask": "_exchange of agents/conversation.py",
    "criteria/rapid/evaluate.py _blocking.blocking": "no code of others: the asynchronous function of this package",
    "criteria/custom.py CustomMetric.__call__": "apply of criteria/criterion.py",
    "integrations/evaluator/evaluate.py ModelAgent._output": "ModelAgent.converse",
    "judge/protocol.py called": "_exchange of agents/conversation.py for users, CallableJudge.ask for judges",
    "judge/providers/resolve.py GivenJudge.ask": "send of judge/client.py, which it is handed to",
    "judge/session.py Voter.vote": "send of judge/client.py, which it is handed to",
    "judge/user_model.py UserModel.ask": "send of judge/client.py, which it is handed to",
    "gating/promotion/baseline_search.py BaselineSearch._reevaluated": "assert_gate, or the end of a command: it is the caller's own function",
    "runner/keywords.py keywords.decorate.checked": "no code of others: the decorated function of this package",
}
"""The places that enter code of others without `foreign_code`, and within which function that has one."""
OURS = {"__init__.py", "testing/__init__.py", "config/spec.py", "judge/providers/vertex.py", "agents/adk/agent.py", "criteria/custom.py"}
"""Where modules are imported by names that this package makes up."""
CLIENTS = {
    "agents/adk/replay.py": "records what a tool or a model raised, and raises again",
    "agents/functions.py": "records what a tool raised, and raises again",
    "errors.py": "foreign_code itself",
    "cli/main.py": "the end of a command",
    "signing/identities.py": "Sigstore",
    "store/reaching.py": "MLflow",
    "gating/registry.py": "MLflow",
    "gating/promotion/promote.py": "MLflow",
    "judge/providers/litellm.py": "LiteLLM",
    "ledger/postgres.py": "the ledger's database",
    "ledger/database.py": "the ledger's database",
    "tracking/evaluate.py": "marks the run, and raises again",
    "tracking/logged_run.py": "marks the run, and raises again",
    "tracking/trace_requests.py": "MLflow",
}
"""Where everything is caught and no code of others runs."""


def guarded(nodes: list[ast.AST]) -> bool:
    """Whether one of the nodes enters `foreign_code`, as a block or as a decorator."""
    calls = [item.context_expr for node in nodes if isinstance(node, ast.With | ast.AsyncWith) for item in node.items]
    calls += [call for node in nodes if isinstance(node, ast.FunctionDef) for call in node.decorator_list]
    return any(isinstance(call, ast.Call) and ast.unparse(call.func) == "foreign_code" for call in calls)


def places(node: ast.AST, above: list[ast.AST], file: str) -> Iterator[tuple[str, str, str]]:
    """Yield where a file imports by a computed name, calls what others wrote, or catches everything, each without `foreign_code`."""
    named = ".".join(outer.name for outer in above if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef))
    inside = guarded(above)
    if isinstance(node, ast.Call) and not inside:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in IMPORTS and not isinstance(node.args[0], ast.Constant):
            yield "import", file, named
        if name in ENTRIES:
            yield "entry", file, named
    if isinstance(node, ast.ExceptHandler) and not inside:
        caught = ast.unparse(node.type) if node.type else "everything"
        tried = above[-1]
        assert isinstance(tried, ast.Try | ast.TryStar)
        if caught in {"everything", "Exception", "BaseException"} and not guarded([each for part in tried.body for each in ast.walk(part)]):
            yield "except", file, named
    for child in ast.iter_child_nodes(node):
        yield from places(child, [*above, node], file)


def test_every_place_where_code_of_others_runs_is_one_of_these() -> None:
    files = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    found = {place for name, path in files.items() for place in places(ast.parse(path.read_text("utf-8")), [], name)}
    guard = "guard a new place with `foreign_code`, or name it here with the reason why it needs none; take out one that is gone"
    assert {file for kind, file, _ in found if kind == "import"} == OURS, f"OURS: {guard}"
    assert {f"{file} {named}" for kind, file, named in found if kind == "entry"} == set(WITHIN), f"WITHIN: {guard}"
    assert {file for kind, file, _ in found if kind == "except"} == set(CLIENTS), f"CLIENTS: {guard}"
