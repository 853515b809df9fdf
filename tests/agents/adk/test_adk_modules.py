from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from google.adk.agents import BaseAgent
from google.adk.cli.utils.agent_loader import AgentLoader
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from mlflow_adk_eval.agents.adk.agent import AdkAgent, load_adk_agent
from mlflow_adk_eval.agents.protocol import Limits
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.agents.source import source_of
from mlflow_adk_eval.errors import AgentError, UsageError
from mlflow_adk_eval.evalset.conversation import Conversation
from tests.agents.scripted import call, case_of, echo, finals, llm, play, text

AGENT = """
    from google.adk.agents import BaseAgent
    from google.adk.events.event import Event
    from google.genai import types

    class Says(BaseAgent):
        words: str = "hello"

        async def _run_async_impl(self, ctx):
            yield Event(author=self.name, content=types.Content(role="model", parts=[types.Part(text=self.words)]))

    root_agent = Says(name="says")
"""


def write(root: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(dedent(source), encoding="utf-8")


LAYOUTS: dict[str, tuple[dict[str, str], str]] = {
    "folder that imports agent": ({"lay_a/__init__.py": "from . import agent", "lay_a/agent.py": AGENT}, "lay_a"),
    "folder with an empty __init__": ({"lay_b/__init__.py": "", "lay_b/agent.py": AGENT}, "lay_b"),
    "folder without __init__": ({"lay_c/agent.py": AGENT}, "lay_c"),
    "root_agent in __init__": ({"lay_d/__init__.py": AGENT}, "lay_d"),
    "module that ends in .agent": ({"lay_e/__init__.py": "", "lay_e/agent.py": AGENT}, "lay_e.agent"),
    "module file": ({"lay_f.py": AGENT}, "lay_f"),
    "dotted package": ({"lay_g/__init__.py": "", "lay_g/inner/__init__.py": "", "lay_g/inner/agent.py": AGENT}, "lay_g.inner"),
    "an attribute agent that is no module": ({"lay_h.py": AGENT + "\n    agent = root_agent"}, "lay_h"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_agents_are_found_in_every_layout(layout: str, project: Path) -> None:
    files, name = LAYOUTS[layout]
    write(project, files)
    agent = load_adk_agent(name)
    assert agent.name == name.removesuffix(".agent")
    assert finals(play(agent, case_of("hi"))) == ["hello"]


def test_a_folder_is_found_by_its_path(project: Path) -> None:
    write(project, {"agents/by_path/__init__.py": "from . import agent", "agents/by_path/agent.py": AGENT})
    assert finals(play(project / "agents" / "by_path", case_of("hi"))) == ["hello"]
    assert load_adk_agent("agents/by_path/").name == "by_path"


def test_an_agent_may_import_its_neighbours(project: Path) -> None:
    write(project, {"agents/near/__init__.py": "from near_tools import root_agent", "agents/near_tools.py": AGENT})
    assert finals(play("agents/near", case_of("hi"))) == ["hello"]


def test_an_app_in_a_module_comes_with_its_plugins(project: Path) -> None:
    app = """
    from google.adk.apps.app import App
    from google.adk.plugins.base_plugin import BasePlugin

    class Louder(BasePlugin):
        async def on_event_callback(self, *, invocation_context, event):
            event.content.parts[0].text += "!"
            return event

    app = App(name="loud_app", root_agent=root_agent, plugins=[Louder(name="louder")])
    """
    write(project, {"loud/__init__.py": "from . import agent", "loud/agent.py": AGENT + app})
    assert finals(play("loud", case_of("hi"))) == ["hello!"]


def test_an_attribute_app_of_another_kind_is_passed_over(project: Path) -> None:
    write(project, {"web/__init__.py": AGENT + "\n    app = object()"})
    assert finals(play("web", case_of("hi"))) == ["hello"]


def test_get_agent_async_makes_an_agent_for_each_conversation(project: Path) -> None:
    factory = """
    from contextlib import AsyncExitStack

    made, closed = [], []

    async def get_agent_async():
        stack = AsyncExitStack()
        agent = Says(name="says", words=f"number {len(made)}")
        made.append(agent)
        stack.callback(closed.append, agent)
        return agent, stack
    """
    write(project, {"maker.py": AGENT.replace("root_agent =", "example =") + factory})
    agent = load_adk_agent("maker")
    assert finals(play(agent, case_of("hi", "hi"))) == ["number 0", "number 0"]
    assert finals(play(agent, case_of("hi"))) == ["number 1"]
    module = sys.modules["maker"]
    assert module.made == module.closed


def test_get_agent_async_may_return_the_agent_alone(project: Path) -> None:
    write(project, {"alone.py": AGENT + "\n    agent = root_agent\n    del root_agent\n    async def get_agent_async(): return agent"})
    assert finals(play("alone", case_of("hi"), agent_name="says")) == ["hello"]


def test_get_agent_async_that_fails_is_an_error_of_each_case(project: Path) -> None:
    write(project, {"failing.py": "async def get_agent_async(): raise OSError('no server')"})
    assert play("failing", case_of("hi")) == Conversation(actual=(), error="the agent could not be started: OSError: no server")


def test_the_exit_stack_is_closed_when_a_case_takes_too_long() -> None:
    closed: list[bool] = []

    class Slow(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
            await asyncio.sleep(30)
            yield Event(author=self.name)

    async def make() -> tuple[BaseAgent, AsyncExitStack]:
        stack = AsyncExitStack()

        async def close() -> None:
            await asyncio.sleep(0.01)
            closed.append(True)

        stack.push_async_callback(close)
        return Slow(name="slow"), stack

    agent = AdkAgent(name="slow", root=make, app_name="slow", limits=Limits(case_s=0.2))
    assert play(agent, case_of("hi")).error == "the case took longer than its limit of 0.2 s"
    assert closed == [True]


def test_env_files_are_loaded_before_the_module(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch, "ENVTEST_NEW")
    monkeypatch.setenv("ENVTEST_SET", "from outside")
    write(project, {"agents/.env": "ENVTEST_NEW=from-the-file\nENVTEST_SET=from-the-file", "agents/envy/agent.py": AGENT})
    with (project / "agents/envy/agent.py").open("a") as file:
        file.write("import os\nroot_agent.words = os.environ['ENVTEST_NEW'] + ' ' + os.environ['ENVTEST_SET']")
    assert finals(play("agents/envy", case_of("hi"))) == ["from-the-file from outside"]


def test_env_files_of_modules_are_loaded_before_their_parents(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch, "ENVTEST_NEW")
    files = {"deep/__init__.py": "import os\nfound = os.environ['ENVTEST_NEW']", "deep/inner/__init__.py": "", "deep/inner/agent.py": AGENT}
    write(project, files | {"deep/inner/.env": "ENVTEST_NEW=x"})
    load_adk_agent("deep.inner.agent")
    assert sys.modules["deep"].found == "x"


def test_env_files_can_be_turned_off_as_in_adk(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch, "ENVTEST_NEW")
    monkeypatch.setenv("ADK_DISABLE_LOAD_DOTENV", "1")
    write(project, {"noenv/__init__.py": AGENT, "noenv/.env": "ENVTEST_NEW=x"})
    load_adk_agent("noenv")
    assert "ENVTEST_NEW" not in os.environ


def test_values_of_env_files_never_reach_an_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch, "ENVTEST_NEW")
    failing = "\n        async def _run_async_impl(self, ctx):\n            raise ValueError('cannot reach ' + os.environ['ENVTEST_NEW'])\n            yield"
    agent = (
        "\n    import os\n    from google.adk.agents import BaseAgent\n    class Fails(BaseAgent):"
        + failing
        + "\n    root_agent = Fails(name='f')"
    )
    write(project, {"leaky/__init__.py": agent, "leaky/.env": "ENVTEST_NEW=https://internal.example"})
    assert play("leaky", case_of("hi")).error == "turn 1: ValueError: cannot reach [ENVTEST_NEW]"
    write(
        project,
        {
            "broken_env/__init__.py": "import os\nraise ValueError(os.environ['ENVTEST_NEW'])",
            "broken_env/.env": "ENVTEST_NEW=ignored-as-it-is-set",
        },
    )
    with pytest.raises(AgentError, match=r"module 'broken_env' could not be imported: ValueError: \[ENVTEST_NEW\]"):
        load_adk_agent("broken_env")


def forget(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have a variable removed after the test that a loaded file sets."""
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)


MISTAKES: dict[str, tuple[dict[str, str], str, str]] = {
    "no such module": (
        {"home_agent/__init__.py": AGENT},
        "home_agnet",
        r"there is no module 'home_agnet'; looked in .*Did you mean 'home_agent'\?",
    ),
    "no such submodule": (
        {"m_a/__init__.py": "", "m_a/agent.py": AGENT},
        "m_a.agnet",
        r"there is no module 'm_a.agnet'; .*Did you mean 'agent'\?",
    ),
    "no such folder": (
        {"agents/home/__init__.py": AGENT},
        "agents/hom",
        r"agents/hom: wanted an agent's folder, but this does not exist. Did you mean 'home'\?",
    ),
    "a file": ({"m_b/agent.py": AGENT}, "m_b/agent.py", "this is a file; name its folder"),
    "empty folder": (
        {"agents/m_c/readme.txt": ""},
        "agents/m_c",
        r"agents/m_c: no agent in this folder; looked for __init__.py, agent.py, root_agent.yaml\.$",
    ),
    "YAML under another name": (
        {"agents/m_y/root_agent.yml": ""},
        "agents/m_y",
        r"no agent in this folder; looked for .*root_agent.yaml. Did you mean 'root_agent.yml'\?",
    ),
    "YAML of an unknown class": (
        {"m_j/root_agent.yaml": "agent_class: LLMAgent\nname: a"},
        "m_j",
        r"m_j/root_agent.yaml: google-adk [\d.]+ cannot load this agent: .*LLMAgent",
    ),
    "YAML that is none": (
        {"m_k/root_agent.yaml": "name: [a"},
        "m_k",
        r"m_k/root_agent.yaml: google-adk [\d.]+ cannot load this agent: ParserError",
    ),
    "YAML with a tool that is not there": (
        {"m_l/root_agent.yaml": "name: a\nmodel: m\ninstruction: i\ntools: [{name: m_l.tools.roll}]"},
        "m_l",
        r"m_l/root_agent.yaml: google-adk [\d.]+ cannot load this agent: .*No module named 'm_l.tools'",
    ),
    "missing dependency": (
        {"m_d.py": "import there_is_no_such_thing"},
        "m_d",
        "module 'm_d' could not be imported: ModuleNotFoundError: No module named 'there_is_no",
    ),
    "syntax error": ({"m_e.py": "def f(:"}, "m_e", "module 'm_e' could not be imported: SyntaxError: .*m_e.py, line 1"),
    "error in the submodule": (
        {"m_f/__init__.py": "", "m_f/agent.py": "1/0"},
        "m_f",
        "module 'm_f.agent' could not be imported: ZeroDivisionError",
    ),
    "misspelt root_agent": (
        {"m_g/__init__.py": "from . import agent", "m_g/agent.py": "rootagent = None"},
        "m_g",
        r"module 'm_g' contains no agent; looked in m_g.agent and m_g for root_agent, get_agent_async and app, and for root_agent.yaml. Did you mean 'rootagent'\?",
    ),
    "agent of another name": (
        {"m_h.py": AGENT.replace("root_agent", "my_agent")},
        "m_h",
        "It has my_agent: name it root_agent, or pass the object itself",
    ),
    "a function": (
        {"m_m.py": "from os.path import join\ndef answer(message): return 'Yes.'"},
        "m_m",
        r"and for root_agent.yaml. If a function is the agent, name it: m_m:answer\.$",
    ),
    "root_agent of another type": (
        {"m_i.py": "root_agent = 'says'"},
        "m_i",
        "the agent of m_i is of type str; wanted an agent of google-adk",
    ),
}


YAML_AGENT = {
    "declared/root_agent.yaml": """
        name: seller
        model: scripted-1
        instruction: Sell books.
        tools:
          - name: declared.tools.price
        sub_agents:
          - config_path: parts/refunds.yaml
    """,
    "declared/parts/refunds.yaml": """
        name: refunds
        model: scripted-2
        instruction: Give money back.
        tools:
          - name: money.back
    """,
    "declared/tools.py": "def price(title: str) -> dict[str, int]: return {'price': 7}",
    "money.py": "def back() -> str: return 'done'",
}
"""An agent without code of its own, its tools in a folder without ``__init__.py`` and beside it."""


class YamlModel(BaseLlm):
    """Calls the tool, then says its result."""

    @classmethod
    def supported_models(cls) -> list[str]:
        return ["scripted-.*"]

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts[0]
        part = call("price", title="Emma") if last.text else text(f"{last.function_response.response}")[0]
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


@pytest.mark.parametrize("init", [None, "", "# for ADK"])
def test_an_agent_in_yaml_is_the_one_that_adks_loader_makes(init: str | None, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("google.adk.models.registry._llm_registry_dict", {"scripted-.*": YamlModel}, raising=True)
    write(project, {**YAML_AGENT, **({} if init is None else {"declared/__init__.py": init})})
    agent = load_adk_agent("declared")
    theirs = AgentLoader(str(project)).load_agent("declared")
    assert agent.root.root_agent.model_dump(exclude={"tools", "sub_agents", "parent_agent"}) == theirs.model_dump(
        exclude={"tools", "sub_agents", "parent_agent"}
    )
    assert [each.name for each in agent.root.root_agent.sub_agents] == [each.name for each in theirs.sub_agents] == ["refunds"]
    assert agent.name == "declared"
    assert finals(play(agent, case_of("What is Emma?"))) == ["{'price': 7}"]


def test_code_counts_before_yaml_as_in_adk(project: Path) -> None:
    write(project, {"both/root_agent.yaml": "name: declared\nmodel: m\ninstruction: i", "both/agent.py": AGENT})
    assert finals(play("both", case_of("hi"))) == ["hello"]
    assert AgentLoader(str(project)).load_agent("both").name == "says"


def test_the_files_of_a_yaml_agent_are_its_source(project: Path) -> None:
    write(project, {**YAML_AGENT, "pyproject.toml": "", "unrelated.py": ""})
    source = source_of(load_adk_agent("declared"))
    assert list(source.files) == ["declared/parts/refunds.yaml", "declared/root_agent.yaml", "declared/tools.py", "money.py"]
    assert source.models == ("scripted-1", "scripted-2")
    (project / "declared/parts/refunds.yaml").write_text((project / "declared/parts/refunds.yaml").read_text() + "# x")
    assert source_of(load_adk_agent("declared")).sha256 != source.sha256


def test_rows_in_the_folder_of_a_yaml_agent_are_no_recording(project: Path) -> None:
    write(project, {**YAML_AGENT, "declared/cases.jsonl": "{}"})
    assert isinstance(resolve_agent(project / "declared"), AdkAgent)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_with_what_was_looked_for(mistake: str, project: Path) -> None:
    files, source, message = MISTAKES[mistake]
    write(project, files)
    with pytest.raises((AgentError, UsageError), match=message) as found:
        load_adk_agent(source)
    assert found.value.exit_code == (3 if "could not be imported" in message or "cannot load" in message else 64)


@pytest.mark.parametrize("source", ["home/__init__.py", Path("home/__init__.py")])
def test_the_init_file_of_a_package_names_its_agent_as_adk_documents_it(project: Path, source: str | Path) -> None:
    write(project, {"home/__init__.py": "from . import agent", "home/agent.py": AGENT})
    assert finals(play(source, case_of("hi"))) == ["hello"]


def test_a_folder_whose_name_another_module_has_is_refused(project: Path) -> None:
    write(project, {"one/twin/__init__.py": AGENT, "two/twin/__init__.py": AGENT})
    load_adk_agent("one/twin")
    load_adk_agent("one/twin")
    with pytest.raises(AgentError, match=r"two/twin: Python has already imported another module 'twin' from .*one/twin; rename the folder"):
        load_adk_agent("two/twin")


def test_a_name_is_the_module_that_python_knows_by_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, {"one/known/__init__.py": AGENT, "two/known/__init__.py": AGENT.replace("hello", "bye")})
    load_adk_agent("one/known")
    monkeypatch.chdir(project / "two")
    assert finals(play("known", case_of("hi"))) == ["hello"]


@pytest.mark.parametrize("code", ["from google.adk.agents import Agent\n", "answer = 'nothing of google-adk'\n"])
def test_without_google_adk_the_extra_is_named(project: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    write(project, {"lamp_without_adk.py": code})
    monkeypatch.setitem(sys.modules, "google.adk", None)
    monkeypatch.delitem(sys.modules, "lamp_without_adk", raising=False)
    with pytest.raises(
        UsageError, match=r"running ADK agents needs the extra `adk`: pip install 'mlflow-adk-eval\[adk\]' \(.*google.adk.*\)"
    ):
        load_adk_agent("lamp_without_adk")
    with pytest.raises(UsageError, match="there is no module 'lamp_with_adk'"):
        load_adk_agent("lamp_with_adk")


@pytest.mark.slow
def test_importing_our_module_does_not_import_google_adk() -> None:
    code = "import sys, mlflow_adk_eval.agents.adk.agent; sys.exit(any(name.startswith(('google.adk', 'google.genai')) for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_nothing_of_adk_reaches_the_terminal(project: Path) -> None:
    write(
        project,
        {
            "noisy/__init__.py": AGENT.replace("yield Event", "raise KeyError('k'); yield Event"),
            "main.py": """
                import anyio, warnings
                from mlflow_adk_eval.agents.adk.agent import load_adk_agent
                from mlflow_adk_eval.evalset.models import Content, EvalCase, Invocation, Part
                agent = load_adk_agent("noisy")
                warnings.warn("[EXPERIMENTAL] feature X is enabled.", UserWarning)
                case = EvalCase(eval_id="c", conversation=(Invocation(user_content=Content(parts=(Part(text="hi"),))),))
                print(anyio.run(agent.converse, case, 0).error)
            """,
        },
    )
    done = subprocess.run([sys.executable, "main.py"], capture_output=True, text=True, check=True, cwd=project)
    assert (done.stdout, done.stderr) == ("turn 1: KeyError: 'k'\n", "")


def test_only_adks_own_words_are_kept_quiet(caplog: pytest.LogCaptureFixture) -> None:
    load_adk_agent(llm(echo))
    logging.getLogger("google_adk.x").error("seen by whoever listens")
    assert "seen by whoever listens" in caplog.text
    with pytest.warns(UserWarning, match="mine"):
        warnings.warn("mine", UserWarning, stacklevel=1)
