"""Which files an agent's source is, and that it is the same wherever they lie and whatever else a process has imported."""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval import A2AAgent
from mlflow_adk_eval.agents import source as module
from mlflow_adk_eval.agents.functions import CallableAgent
from mlflow_adk_eval.agents.recordings import Recording
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.agents.source import AgentSource, source_of
from mlflow_adk_eval.evalset.conversation import Origin

EXAMPLES = Path(__file__).parents[2] / "example_projects"
FILES = {
    "pyproject.toml": "[project]\nname = 'shop'\n",
    "shop/__init__.py": "",
    "shop/agent.py": "from google.adk.agents import Agent\nfrom . import prompts\nfrom common.tools import (\n    pay,\n    refund,\n)\n"
    "root_agent = Agent(name='shop', model='gemini-2.5-flash', instruction=prompts.TEXT)\n",
    "shop/prompts.py": "from pathlib import Path\nTEXT = (Path(__file__).parent / 'texts' / 'system.md').read_text()\n",
    "shop/texts/system.md": "You sell books.",
    "shop/settings.yaml": "currency: EUR\n",
    "shop/never_imported.py": "x = 1\n",
    "shop/shop.evalset.json": "{}",
    "shop/test_config.json": "{}",
    "shop/answers.log": "a log",
    "shop/shop.sqlite": "a database",
    "shop/.adk/eval_history/run.json": "{}",
    "shop/__pycache__/agent.cpython-311.pyc": "bytes",
    "shop/venv/pyvenv.cfg": "",
    "shop/venv/lib/tool.py": "x = 1\n",
    "shop/.env": "API_KEY=sk-0123456789\nexport REGION=eu\n# COMMENT=1\n",
    "common/__init__.py": "",
    "common/tools.py": "import common.money\ndef pay(): ...\ndef refund(): ...\n",
    "common/money.py": "import json, os\n",
    "common/unused.py": "x = 1\n",
    "elsewhere.py": "x = 1\n",
    "README.md": "Read me.",
}
EXPECTED = [
    "common/__init__.py",
    "common/money.py",
    "common/tools.py",
    "shop/__init__.py",
    "shop/agent.py",
    "shop/never_imported.py",
    "shop/prompts.py",
    "shop/settings.yaml",
    "shop/texts/system.md",
]


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(autouse=True)
def _fresh_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what a test imports, as a new process would not know it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    forget(set(sys.modules) - before)


def forget(names: set[str]) -> None:
    for name in names:
        if name.partition(".")[0] in {"shop", "common", "bot", "helpers", "mcp_tool", "script"}:
            del sys.modules[name]


def of_folder(folder: Path) -> AgentSource:
    forget(set(sys.modules))
    sys.path_importer_cache.clear()
    return source_of(resolve_agent(folder))


def of_function(folder: Path, name: str = "bot") -> AgentSource:
    forget(set(sys.modules))
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        return source_of(resolve_agent(importlib.import_module(name).answer))
    finally:
        sys.path.remove(str(folder))


@pytest.mark.needs("google-adk")
def test_a_package_counts_with_its_prompts_and_what_it_imports_of_the_project(tmp_path: Path) -> None:
    found = of_folder(written(tmp_path, FILES) / "shop")
    assert list(found.files) == EXPECTED
    assert found.files["shop/texts/system.md"] == hashlib.sha256(b"You sell books.").hexdigest()
    assert found.env_keys == ("API_KEY", "REGION")
    assert found.models == ("gemini-2.5-flash",)
    assert found.folder == tmp_path / "shop"
    assert found.sha256 == hashlib.sha256(found.manifest).hexdigest()
    assert json.loads(found.manifest)["files"] == found.files
    assert b"sk-0123456789" not in found.manifest


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.needs("google-adk")
def test_a_changed_file_is_another_source(tmp_path: Path, name: str) -> None:
    before = of_folder(written(tmp_path, FILES) / "shop").sha256
    with (tmp_path / name).open("a") as file:
        file.write("\n# x\n")
    assert of_folder(tmp_path / "shop").sha256 != before


@pytest.mark.parametrize("name", sorted(set(FILES) - set(EXPECTED) - {"shop/.env"}))
@pytest.mark.needs("google-adk")
def test_what_is_no_part_of_the_agent_changes_nothing(tmp_path: Path, name: str) -> None:
    before = of_folder(written(tmp_path, FILES) / "shop").sha256
    with (tmp_path / name).open("a") as file:
        file.write("\n# x\n")
    assert of_folder(tmp_path / "shop").sha256 == before


@pytest.mark.needs("google-adk")
def test_the_variables_of_the_env_file_count_and_their_values_do_not(tmp_path: Path) -> None:
    before = of_folder(written(tmp_path, FILES) / "shop").sha256
    (tmp_path / "shop/.env").write_text("API_KEY=sk-9876543210\nREGION=us\n")
    assert of_folder(tmp_path / "shop").sha256 == before
    (tmp_path / "shop/.env").write_text("API_KEY=sk-9876543210\nMODEL=large\nREGION=us\n")
    assert of_folder(tmp_path / "shop").sha256 != before


@pytest.mark.needs("google-adk")
def test_new_removed_and_renamed_files_are_another_source(tmp_path: Path) -> None:
    folder = written(tmp_path, FILES)
    seen = {of_folder(folder / "shop").sha256}
    edits: list[Callable[[], object]] = [
        lambda: (folder / "shop/extra.txt").write_text("x"),
        lambda: (folder / "shop/extra.txt").rename(folder / "shop/other.txt"),
        (folder / "shop/never_imported.py").unlink,
    ]
    for edit in edits:
        edit()
        digest = of_folder(folder / "shop").sha256
        assert digest not in seen
        seen.add(digest)
    (folder / "shop/other.txt").unlink()
    (folder / "shop/never_imported.py").write_text(FILES["shop/never_imported.py"])
    assert of_folder(folder / "shop").sha256 in seen


@pytest.mark.needs("google-adk")
def test_it_does_not_matter_where_the_files_lie_or_whether_in_git(tmp_path: Path) -> None:
    first = of_folder(written(tmp_path / "a", FILES) / "shop")
    shutil.copytree(tmp_path / "a", tmp_path / "deep/er/b")
    subprocess.run(["git", "init"], cwd=tmp_path / "deep/er/b", check=True, capture_output=True)
    second = of_folder(tmp_path / "deep/er/b/shop")
    assert second.manifest == first.manifest
    assert second.folder != first.folder


@pytest.mark.needs("google-adk")
def test_it_does_not_matter_what_else_the_process_has_imported(tmp_path: Path) -> None:
    folder = written(tmp_path, FILES)
    before = of_folder(folder / "shop")
    for name in ("common.unused", "elsewhere", "shop.never_imported"):
        importlib.import_module(name)
    assert source_of(resolve_agent(folder / "shop")).sha256 == before.sha256
    sys.modules.pop("elsewhere")


MODULE = {
    "bot.py": "import helpers\nfrom pathlib import Path\nPROMPT = Path(__file__).with_name('prompt.txt')\n"
    "PARTS = Path(__file__).parent / 'parts'\ndef answer(text):\n    import lazy_one\n    return (PARTS / 'intro.j2').read_text()\n",
    "helpers.py": "x = 1\n",
    "lazy_one.py": "x = 1\n",
    "prompt.txt": "Be kind.",
    "parts/intro.j2": "Hello",
    "parts/other.j2": "not named",
    "notes.txt": "not named either",
    "unrelated.py": "x = 1\n",
}


def test_a_module_outside_of_packages_counts_with_what_it_imports_and_names(tmp_path: Path) -> None:
    found = of_function(written(tmp_path, MODULE))
    assert list(found.files) == ["bot.py", "helpers.py", "lazy_one.py", "parts/intro.j2", "prompt.txt"]
    assert found.description == f"5 files in and around {tmp_path.name}"


@pytest.mark.needs("google-adk")
def test_an_eval_set_that_the_code_names_counts(tmp_path: Path) -> None:
    folder = written(
        tmp_path,
        {**FILES, "shop/prompts.py": "from pathlib import Path\nTEXT = Path(__file__).with_name('shop.evalset.json').read_text()\n"},
    )
    assert "shop/shop.evalset.json" in of_folder(folder / "shop").files


def test_a_file_outside_of_the_project_that_is_named_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("x")
    folder = written(tmp_path / "a", {"pyproject.toml": "", "bot.py": "NAME = '../secret.txt'\ndef answer(text): ...\n"})
    assert list(of_function(folder).files) == ["bot.py"]


def test_an_object_is_looked_for_in_the_module_that_holds_it(tmp_path: Path) -> None:
    folder = written(tmp_path, {**FILES, "script.py": "from shop.agent import root_agent\n"})
    sys.path.insert(0, str(folder))
    root_agent = importlib.import_module("script").root_agent
    found = source_of(resolve_agent(root_agent))
    assert list(found.files) == EXPECTED
    assert found.models == ("gemini-2.5-flash",)


def test_an_object_that_no_module_holds_has_no_known_source() -> None:
    from google.adk.agents import Agent

    found = source_of(resolve_agent(Agent(name="nobodys", model="gemini-2.5-flash")))
    assert (found.kind, found.sha256, found.manifest, found.folder) == ("unknown", "", b"", None)
    assert found.description == "unknown: no imported file defines it"


def test_a_function_that_was_typed_in_has_no_known_source() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def answer(text): return text", names)  # noqa: S102 - as a console does
    main, sys.modules["__main__"] = sys.modules["__main__"], type(sys)("__main__")
    try:
        assert source_of(CallableAgent(function=names["answer"], name="answer")).kind == "unknown"
    finally:
        sys.modules["__main__"] = main


def test_an_address_and_a_recording_have_no_source() -> None:
    remote = source_of(A2AAgent("https://me:secret@agents.acme.com/shop"))
    assert (remote.kind, remote.sha256) == ("address", "")
    assert remote.description == "behind the address https://agents.acme.com/shop, so its source is unknown"
    assert source_of(resolve_agent({"a": ["hi"]})).kind == "recording"
    recorded = Recording({}, origin=Origin(agent="shop", agent_version="v7"))
    assert source_of(recorded).description == "a recording of shop v7, so its source is unknown"


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILES", 3), ("MAX_BYTES", 100), ("_MAX_ENTRIES", 5)])
@pytest.mark.needs("google-adk")
def test_more_than_is_worth_a_wait_is_not_half_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(module, limit, value)
    found = of_folder(written(tmp_path, FILES) / "shop")
    assert (found.kind, found.sha256) == ("unknown", "")
    assert "contain more than" in found.description


@pytest.mark.needs("google-adk")
def test_a_package_that_is_a_link_is_called_what_the_link_is_called(tmp_path: Path) -> None:
    before = of_folder(written(tmp_path / "a", FILES) / "shop")
    (tmp_path / "b").mkdir()
    (tmp_path / "a/shop").rename(tmp_path / "a/release_7")
    for name, target in (("shop", "release_7"), ("common", "common"), ("pyproject.toml", "pyproject.toml")):
        (tmp_path / "b" / name).symlink_to(tmp_path / "a" / target)
    forget(set(sys.modules))
    sys.path.insert(0, str(tmp_path / "b"))
    importlib.invalidate_caches()
    found = source_of(resolve_agent("shop.agent"))
    assert set(before.files) >= set(found.files) >= {"shop/agent.py", "shop/texts/system.md", "shop/never_imported.py"}


def test_a_script_in_a_package_is_called_what_it_is_imported_as(tmp_path: Path) -> None:
    files = {"shop/__init__.py": "", "shop/bot.py": "def answer(text): ...\n", "shop/run.py": "from shop.bot import answer\n" + PRINTED}
    written(tmp_path, {"pyproject.toml": "", **files})
    found = [
        subprocess.run([sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for how in (["-m", "shop.run"], ["-c", f"from shop.bot import answer\n{PRINTED}"])
    ]
    assert found == ["['shop/__init__.py', 'shop/bot.py', 'shop/run.py']\n"] * 2


PRINTED = (
    "from mlflow_adk_eval.agents.resolve import resolve_agent\nfrom mlflow_adk_eval.agents.source import source_of\n"
    "print(list(source_of(resolve_agent(answer)).files))\n"
)


def test_a_function_of_the_main_module_counts_with_its_script(tmp_path: Path) -> None:
    script = written(tmp_path, {"helpers.py": "", "script.py": "import helpers\ndef answer(text): ...\n" + PRINTED}) / "script.py"
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "['helpers.py', 'script.py']\n"


@pytest.mark.needs("google-adk")
def test_links_that_lead_in_circles_end(tmp_path: Path) -> None:
    folder = written(tmp_path, FILES)
    (folder / "shop/loop").symlink_to(folder / "shop")
    assert list(of_folder(folder / "shop").files) == EXPECTED


@given(text=st.binary(max_size=300))
def test_whatever_a_module_says_is_read_without_an_error(text: bytes) -> None:
    for name in module._imported("a/b.py", text):
        assert all(part.isidentifier() or part for part in name)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import a.b as c, d", {("a", "b"), ("d",)}),
        ("from . import x", {("p",), ("p", "x")}),
        ("from .. import x as y", {("x",), ()}),
        ("from .m import (\n    x,  # (why)\n    y as z,\n)", {("p", "m"), ("p", "m", "x"), ("p", "m", "y")}),
        ("if a: import b", {("b",)}),
        ("x = 1; import b", {("b",)}),
        ("try:\n    from a import *\nexcept ImportError: pass", {("a",)}),
        ("important = 1\nfrom_a = 2", set()),
    ],
)
def test_every_way_of_importing_is_followed(text: str, names: set[tuple[str, ...]]) -> None:
    assert set(module._imported("p/m0.py", text.encode())) == names


def test_the_models_of_the_whole_tree_are_named() -> None:
    from google.adk.agents import Agent
    from google.adk.apps import App

    def tree() -> Agent:
        below = Agent(name="below", model="gemini-2.5-pro", sub_agents=[Agent(name="last")])
        return Agent(name="top", model="gemini-2.5-flash", sub_agents=[below, Agent(name="other", model="gemini-2.5-flash")])

    for root in (tree(), App(name="app", root_agent=tree())):
        assert list(module._models(root)) == ["gemini-2.5-flash", "gemini-2.5-pro", "gemini-2.5-flash"]
    assert list(module._models(tree().sub_agents[0])) == ["gemini-2.5-pro"]
    assert list(module._models(tree)) == []


@pytest.mark.parametrize("name", ["travel_planner", "travel_planner_regressed"])
@pytest.mark.needs("google-adk")
def test_the_agents_of_the_travel_planner_are_known(name: str) -> None:
    found = source_of(resolve_agent(EXAMPLES / "travel_planner" / name))
    assert f"{name}/agent.py" in found.files
    assert "travel_planner/tools.py" in found.files


@pytest.mark.parametrize("name", ["home_automation_agent", "home_automation_agent_regressed"])
@pytest.mark.needs("google-adk")
def test_the_examples_are_known(name: str) -> None:
    found = source_of(resolve_agent(EXAMPLES / "home_automation" / name))
    assert f"{name}/agent.py" in found.files
    assert "home_automation_agent/tools.py" in found.files, "the regressed agent is made of the good one"
