"""The MCP server as clients meet it: a process of its own, driven over stdio by the client of the official SDK."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mlflow
import pytest
import yaml
from mcp import Client, StdioServerParameters

from tests.cli.test_cli import invoke, written
from tests.mlflow_kit import opened

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MOST = 20_000
SECRET = "sk-0123456789abcdef"  # noqa: S105 - which must not be seen
RUN = {"agent": "shop:agent", "eval_sets": ["shop.evalset.json"]}
AGENT = """
import os, subprocess, sys, time

def agent(text, session):
    print("printed by the agent")
    os.write(1, b"{not json}\\n")
    subprocess.run(["echo", "by a process of the agent"])
    time.sleep(0.3)
    return {"Hello": "hello there", "Slow": time.sleep(4.5 if text == "Slow" else 0) or "slow"}.get(text, "key " + os.environ["SHOP_API_KEY"])
"""
WAITING = """
import os, pathlib, time

def agent(text, session):
    with open("turns.txt", "a") as file:
        print(os.getpid(), file=file)
    time.sleep(0.3)
    return "hello"
"""


def cases(**answers: str) -> dict[str, Any]:
    return {
        "eval_set_id": "shop",
        "eval_cases": [
            {
                "eval_id": text.lower(),
                "conversation": [
                    {
                        "user_content": {"role": "user", "parts": [{"text": text}]},
                        "final_response": {"role": "model", "parts": [{"text": answer}]},
                    }
                ],
            }
            for text, answer in answers.items()
        ],
    }


@dataclass
class Called:
    """What a call came to."""

    error: bool
    text: str
    page: dict[str, Any]
    progress: list[tuple[float, float | None]]
    seconds: float

    @property
    def value(self) -> Any:
        assert not self.error, self.text
        assert self.page["next_offset"] is None
        return yaml.safe_load(self.page["text"])


@dataclass
class Server:
    """A folder to work in, and how the server is started there."""

    folder: Path
    words: list[str] = field(default_factory=list)

    def driven(self, body: Callable[[Client], Awaitable[Any]]) -> Any:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SHOP_API_KEY": SECRET,
            "MLFLOW_ADK_EVAL_LEDGER": "off",
            "PYTHONWARNINGS": "ignore",
        }
        words = ["-m", "mlflow_adk_eval", "mcp", *self.words]
        started = StdioServerParameters(command=sys.executable, args=words, env=environment, cwd=self.folder)

        async def main() -> Any:
            async with Client(started) as client:
                return await body(client)

        return anyio.run(main)

    def calls(self, *calls: tuple[str, dict[str, Any]]) -> list[Called]:
        async def body(client: Client) -> list[Called]:
            return [await called(client, name, **arguments) for name, arguments in calls]

        found: list[Called] = self.driven(body)
        return found

    def call(self, name: str, **arguments: Any) -> Called:
        return self.calls((name, arguments))[0]


async def called(client: Client, name: str, **arguments: Any) -> Called:
    progress: list[tuple[float, float | None]] = []

    async def note(done: float, total: float | None, _: str | None) -> None:
        progress.append((done, total))

    started = time.monotonic()
    result = await client.call_tool(name, arguments, progress_callback=note)
    [content] = result.content
    assert content.type == "text"
    assert len(content.text) <= MOST + 100
    assert "Traceback" not in content.text
    assert SECRET not in content.text
    return Called(bool(result.is_error), content.text, result.structured_content or {}, progress, time.monotonic() - started)


@pytest.fixture
def server(template: Path, tmp_path: Path) -> Server:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "shop.py").write_text(AGENT)
    written(folder / "shop.evalset.json", cases(Hello="hello there", Key="the key is secret", Bye="goodbye"))
    written(folder / "test_config.json", {"criteria": {"response_match_score": 0.8}})
    return Server(folder, ["--tracking-uri", opened(template, tmp_path / "store", "shop")])


def test_a_failed_run_is_run_explained_compared_and_refused(server: Server) -> None:
    ran = server.call("run", **RUN)
    report = ran.value
    assert (ran.page["exit_code"], report["verdict"], report["cases"]) == (1, "failed", 3)
    assert report["criteria"]["response_match_score"]["evaluated"] == 3
    [cause] = report["causes"]
    assert (cause["cause"], cause["cases"]) == ("response_match_score below its threshold 0.8", ["bye", "key"])
    assert report["next"] == "call explain with this run"
    assert "by a process of the agent" not in ran.text
    assert "printed by the agent" in (server.folder / report["agent_output"]).read_text()
    assert "hello there" not in ran.text  # conversations are not in it
    assert [progress for progress in ran.progress if progress[1]] == [(1, 3), (2, 3), (3, 3)]

    run = report["run_id"]
    written(server.folder / "gate.yaml", {"rules": {"response_match_score": {"min": 0.9}}})
    arguments: list[tuple[str, dict[str, Any]]] = [
        ("explain", {"run": run}),
        ("explain", {"run": run[:6], "case": "key"}),
        ("explain", {"run": "latest", "case": "keys"}),
        ("compare", {"run_a": run, "run_b": "latest"}),
        ("gate", {"run": run, "policy": "gate.yaml"}),
        ("plan", {"eval_sets": ["shop.evalset.json:key,bye"], "num_runs": 3}),
    ]
    causes, case, unknown, compared, gated, plan = server.calls(*arguments)
    assert causes.value["case_runs"] == {"passed": 1, "failed": 2}
    assert causes.value["causes"][0]["cases"] == ["bye", "key"]
    [turn] = case.value["case_runs"][0]["turns"]
    assert (turn["user"], turn["answer"], turn["expected_answer"]) == ("Key", "key [SHOP_API_KEY]", "the key is secret")
    assert "ROUGE" in turn["missed"]["response_match_score"]
    assert unknown.error
    assert "the run has no case 'keys'. Did you mean 'key'?" in unknown.text
    assert compared.value["cases"]["compared"] == 3
    assert (gated.page["exit_code"], gated.value["verdict"]) == (1, "failed")
    assert (plan.value["conversations"], plan.value["written_turns"], plan.value["obstacles"]) == (6, 6, [])
    assert plan.value["last_run"]["run_id"] == run


def test_an_agent_that_was_edited_is_imported_as_it_is_now(server: Server) -> None:
    async def body(client: Client) -> list[str]:
        written(server.folder / "shop.evalset.json", cases(Hello="hello there"))
        before = await called(client, "run", **RUN)
        (server.folder / "shop.py").write_text(RUDE)
        return [before.value["verdict"], (await called(client, "run", **RUN)).value["verdict"]]

    assert server.driven(body) == ["passed", "failed"]


def test_a_long_case_reports_that_it_goes_on_and_numbers_grow(server: Server) -> None:
    written(server.folder / "shop.evalset.json", cases(Slow="slow", Hello="hello there"))
    ran = server.call("run", **RUN, num_runs=2)
    assert ran.value["verdict"] == "passed"
    numbers = [done for done, _ in ran.progress]
    assert numbers == sorted(set(numbers))
    assert any(done % 1 for done, _ in ran.progress)  # the process starts in less time than one of the cases takes
    assert ran.progress[-1] == (4, 4)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("validate", {"files": []}, "Missing argument 'FILES...'"),
    ("validate", {"files": "shop.py"}, "Input should be a valid list"),
    ("run", {"agent": "shop:agent"}, "eval_sets"),
    ("run", RUN | {"num_runs": 0}, "0 is not in the range x>=1"),
    ("run", RUN | {"agent": "--help"}, "there is no module '--help'"),
    ("run", RUN | {"agent": "shop:agnt"}, "agnt"),
    ("run", RUN | {"eval_sets": ["none.json"]}, "none.json"),
    ("run", RUN | {"resume": "latest"}, "needs a ledger"),
    ("run", RUN | {"config": "broken.json"}, "response_match_scor"),
    ("explain", {"run": "0123456789abcdef0123456789abcdef"}, "does not exist"),
    ("compare", {"run_a": "latest", "run_b": "latest"}, "there is no finished evaluation"),
    ("gate", {"run": "latest", "policy": "broken.json"}, "broken.json"),
    ("fly", {}, "Unknown tool"),
]


def test_bad_arguments_are_errors_of_one_sentence(server: Server) -> None:
    written(server.folder / "broken.json", {"criteria": {"response_match_scor": 0.8}})
    for (name, arguments, said), found in zip(BAD, server.calls(*((name, arguments) for name, arguments, _ in BAD)), strict=True):
        assert found.error, (name, arguments)
        assert said in found.text, (name, arguments, found.text)
    valid = server.call("validate", files=["shop.evalset.json", "broken.json"])
    assert (valid.page["exit_code"], [row["valid"] for row in valid.value]) == (64, [True, False])


def test_nothing_outside_of_the_folder_is_read(server: Server, tmp_path: Path) -> None:
    outside = written(tmp_path / "secret.json", {"password": "opensesame"})
    (server.folder / "link").symlink_to(outside)
    (server.folder / "a:b").symlink_to(outside)
    names = [
        str(outside),
        "../secret.json",
        "link",
        "link:case",
        "a:b:case",
        "work/../../secret.json",
        "https://example.org/a",
        "file:///etc/passwd",
    ]
    asked: list[tuple[str, dict[str, Any]]] = [
        *(("validate", {"files": ["shop.py", name]}) for name in names),
        *(("run", RUN | {"agent": name}) for name in names),
        *(("run", RUN | {"eval_sets": [name]}) for name in names),
        *(("plan", {"eval_sets": ["shop.evalset.json"], "config": name}) for name in names),
        *(("gate", {"run": "latest", "policy": name}) for name in names),
    ]
    for (name, arguments), found in zip(asked, server.calls(*asked), strict=True):
        assert found.error, (name, arguments)
        assert "is outside of" in found.text, (name, arguments, found.text)


def test_a_long_result_comes_in_pages(server: Server) -> None:
    (server.folder / "shop.py").write_text("def agent(text, session):\n    return 'word ' * 9_000\n")

    async def body(client: Client) -> list[Called]:
        run = (await called(client, "run", **RUN)).value["run_id"]
        pages = [await called(client, "explain", run=run, case="bye")]
        while (offset := pages[-1].page["next_offset"]) is not None:
            pages.append(await called(client, "explain", run=run, case="bye", offset=offset))
        return pages

    pages: list[Called] = server.driven(body)
    assert [len(page.page["text"]) for page in pages[:-1]] == [MOST] * (len(pages) - 1)
    assert f"[{pages[0].page['left']:,} more characters; offset={MOST} has the next page]" in pages[0].text
    whole = yaml.safe_load("".join(page.page["text"] for page in pages))
    assert whole["case_runs"][0]["turns"][0]["answer"] == "word " * 9_000


def turns(folder: Path) -> list[str]:
    file = folder / "turns.txt"
    return file.read_text().split() if file.exists() else []


def alive(number: str) -> bool:
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("how", ["cancelled", "disconnected"])
def test_a_run_that_nobody_waits_for_ends(server: Server, how: str) -> None:
    (server.folder / "shop.py").write_text(WAITING)
    written(server.folder / "shop.evalset.json", cases(**{f"Case{number}": "hello" for number in range(400)}))

    async def body(client: Client) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(called, client, "run", **RUN))
            while len(turns(server.folder)) < 3:  # noqa: ASYNC110 - of another process
                await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()
        if how == "cancelled":  # the server goes on
            assert (await called(client, "validate", files=["shop.evalset.json"])).page["exit_code"] == 0
            await ended()

    async def ended() -> None:
        with anyio.fail_after(30):
            while any(map(alive, turns(server.folder))):  # noqa: ASYNC110 - as above
                await anyio.sleep(0.1)

    server.driven(body)
    anyio.run(ended)
    assert len(turns(server.folder)) < 400
    client = mlflow.MlflowClient(server.words[1])
    [run] = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert run.info.status in {"FAILED", "KILLED"}


def test_promotion_is_not_offered_unless_the_server_is_started_for_it(server: Server) -> None:
    async def names(client: Client) -> set[str]:
        return {tool.name for tool in (await client.list_tools()).tools}

    assert server.driven(names) == {"validate", "plan", "run", "explain", "compare", "gate"}
    refused = server.call("promote", model="shop", version="1", run="latest")
    assert refused.error
    assert "Unknown tool" in refused.text
    without_policy = invoke("mcp", "--allow-promotion")
    assert (without_policy.exit_code, "--allow-promotion needs --policy" in without_policy.stderr) == (64, True)
    server.words += ["--allow-promotion", "--policy", str(written(server.folder.parent / "gate.yaml", {"thresholds": True}))]
    assert "promote" in server.driven(names)


RUDE = """
def agent(text, session):
    return {"final_response": "go away", "intermediate_data": {"tool_uses": []}}
"""


def test_promotion_is_by_the_policy_of_whoever_started_the_server(server: Server) -> None:
    written(server.folder / "shop.evalset.json", cases(Hello="hello there"))
    policy = written(server.folder.parent / "gate.yaml", {"rules": {"response_match_score": {"min": 0.9}}})
    server.words += ["--allow-promotion", "--policy", str(policy)]
    client = mlflow.MlflowClient(server.words[1])

    async def body(session: Client) -> None:
        good = (await called(session, "run", **RUN, register="shop")).value
        (server.folder / "shop.py").write_text(RUDE)
        written(server.folder / "test_config.json", {"criteria": {"response_match_score": 0.0, "tool_call_count_v1": 9}})  # which it passes
        bad = (await called(session, "run", **RUN, register="shop")).value
        assert (good["verdict"], bad["verdict"]) == ("passed", "passed")
        refused = await called(session, "promote", model="shop", version=bad["model_version"], run=bad["run_id"])
        assert (refused.page["exit_code"], refused.value["moved"]) == (1, False)
        done = await called(session, "promote", model="shop", version=good["model_version"], run=good["run_id"])
        assert (done.page["exit_code"], done.value["moved"]) == (0, True)
        for content in ({"rules": {"response_match_score": {"min": 0.001}}}, {"no": "policy"}):
            written(policy, content)
            changed = await called(session, "promote", model="shop", version=bad["model_version"], run=bad["run_id"])
            assert changed.error
            assert "was changed after the server started" in changed.text

    server.driven(body)
    assert int(client.get_model_version_by_alias("shop", "champion").version) == 1


def test_hints_and_skills_say_what_is_true(server: Server) -> None:
    async def body(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        acting = {name for name, tool in tools.items() if tool.annotations and not tool.annotations.read_only_hint}
        assert acting == {"run"}
        run = tools["run"]
        assert run.annotations
        assert run.annotations.destructive_hint
        assert "Executes the code of the agent" in (run.description or "")
        assert set(run.input_schema["required"]) == {"agent", "eval_sets"}
        assert all(
            set(tool.output_schema["properties"]) == {"exit_code", "text", "left", "next_offset"}
            for tool in tools.values()
            if tool.output_schema
        )
        resources = (await client.list_resources()).resources
        assert {resource.name for resource in resources} == {folder.name for folder in (ROOT / "skills").iterdir()}
        for resource in resources:
            [content] = (await client.read_resource(resource.uri)).contents
            assert getattr(content, "text", "") == (ROOT / "skills" / resource.name / "SKILL.md").read_text("utf-8")
            assert resource.description

    before = sorted(path.name for path in server.folder.iterdir())
    server.driven(body)
    server.calls(
        ("validate", {"files": ["shop.evalset.json"]}), ("plan", {"eval_sets": ["shop.evalset.json"]}), ("explain", {"run": "latest"})
    )
    assert sorted(path.name for path in server.folder.iterdir()) == before  # what says that it only reads writes nothing


def test_the_budget_of_the_server_holds_for_each_run(server: Server) -> None:
    (server.folder / "judge.py").write_text('def lenient(request):\n    return \'{"verdict": "valid"}\'\n')
    judged = {"threshold": 0.5, "judge_model_options": {"judge_model": "judge:lenient", "num_samples": 1}}
    written(server.folder / "test_config.json", {"criteria": {"final_response_match_v2": judged}})
    server.words += ["--max-calls", "1"]
    ran = server.call("run", **RUN)
    assert (ran.page["exit_code"], ran.value["verdict"], ran.value["judging"]["calls"]) == (2, "undecided", 1)
