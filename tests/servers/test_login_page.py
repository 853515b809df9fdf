"""A proxy that answers with its login page, from some request of a command on: one message, exit code 3, and nothing is believed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.testing import Request
from tests.cli.test_cli import EXPECTED, invoke, written
from tests.servers.conftest import SPOILT, Site
from tests.viewer.conftest import serving

pytestmark = pytest.mark.slow

COMMANDS = {
    "run": "{recording} {cases} --experiment {model}",
    "score": "{cases} --actual runs:/{run}",
    "upload": "{pending}",
    "register": "{run} {model}",
    "report": "{run} -o {out}.html",
    "export": "{run} eval-set -o {out}.json",
    "explain": "{run}",
    "plan": "{cases}",
    "compare": "{run} {other} --log",
    "calibrate": "{run}",
    "judge-bench": "tests.servers.test_login_page:lenient --items {items} --votes 1",
    "power": "{run} --detect 0.1",
    "runs": "--experiment {model}",
    "init": "tests.servers.test_login_page:lenient --traces {model} --force",
    "capture": "--run-id {run} --experiment {model} -o {out}.json",
    "traces score": "{model} --criteria tool_call_count_v1=1",
    "traces watch": "{model} --criteria tool_call_count_v1=1 --level 0.9",
    "traces to-cases": "{model} --failed -o {out}.json",
    "gate": "{run}",
    "verify": "{model} 1",
    "audit": "{model}",
    "promote": "{model} --version 1 --run-id {run} --wait 0",
    "rollback": "{model} --reason test --dry-run",
    "attestation export": "{run} -o {out}",
}


def lenient(_: Request) -> str:
    return json.dumps({"rationale": "so it is", "verdict": "valid"})


def commands(group: click.Group, before: str = "") -> Iterator[str]:
    """Yield the commands that ask MLflow."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        elif any(parameter.name == "tracking_uri" for parameter in command.params):
            yield before + name


@dataclass
class Prepared:
    site: Site
    folder: Path
    values: dict[str, object]

    def invoke(self, command: str, number: int) -> tuple[int, str]:
        """Do a command, whose output goes to a new file, and return its exit code and what it said."""
        names = {**self.values, "out": self.folder / f"out_{command.replace(' ', '_')}_{number}"}
        done = invoke(*command.split(), *COMMANDS[command].format(**names).split(), "--tracking-uri", self.site.uri)
        return done.exit_code, done.stderr


@pytest.fixture(scope="module")
def prepared(on_sqlite: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    """Two runs, of which one was promoted, and one that waits for its upload."""
    folder = tmp_path_factory.mktemp("login")
    actual = json.loads(json.dumps(EXPECTED))
    actual["eval_cases"][0]["conversation"][0]["duration"] = 0.25
    values: dict[str, object] = {
        "cases": written(folder / "lights.evalset.json", EXPECTED),
        "recording": written(folder / "recording.json", actual),
        "model": "login_page",
        "items": folder / "items.jsonl",
    }
    item = {
        "id": "on",
        "criterion": "final_response_match_v2",
        "label": "pass",
        "question": "Is it on?",
        "reference": "Yes.",
        "response": "Yes.",
    }
    (folder / "items.jsonl").write_text(json.dumps(item))
    site, run = Prepared(on_sqlite, folder, values), ["--json", "--register", "login_page"]
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for name in ("run", "other"):
            names = COMMANDS["run"].format(**values).split()
            values[name] = json.loads(invoke("run", *names, *run, "--tracking-uri", on_sqlite.uri).stdout)["run_id"]
        with on_sqlite.proxy.spoiling(lambda request: "html" if "/artifacts/adk_eval" in request.path else None):
            assert site.invoke("run", 0)[0] == 3
        (values["pending"],) = folder.glob("adk_eval_pending/*")
        assert site.invoke("promote", 0)[0] == 0
        yield site


def test_every_command_that_asks_mlflow_is_tried() -> None:
    named = set(commands(cli)) - {"view", "mcp"}  # which serve until they are stopped, and have tests of their own
    assert named == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_login_page_is_one_message_and_exit_code_3(prepared: Prepared, command: str) -> None:
    with prepared.site.proxy.spoiling(lambda _: None) as seen:
        prepared.invoke(command, 0)
    for moment in range(1, len(seen) + 1) if SPOILT else (1 + len(seen) // 2,):
        with prepared.site.proxy.spoiling(lambda request, moment=moment: "html" if request.number >= moment else None) as requests:
            code, said = prepared.invoke(command, moment)
        if len(requests) < moment > 1:  # it has less to do than before
            continue
        found = (moment, requests[moment - 1].path, said)
        assert code == 3, found
        assert re.search(r"^error: (.|\n)*(login page|did not answer like MLflow)", said, re.MULTILINE), found
        assert "Traceback" not in said


SAID = r"(login page|did not answer like MLflow)"


def test_the_viewer_does_not_start_on_a_login_page(prepared: Prepared) -> None:
    with prepared.site.proxy.spoiling(lambda _: "html"):
        done = invoke("view", "--no-browser", "--port", "0", "--tracking-uri", prepared.site.uri)
    assert done.exit_code == 3
    assert len(re.findall(rf"^error: (?:.|\n)*{SAID}", done.stderr, re.MULTILINE)) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "viewer:" not in done.stdout


def test_each_page_of_the_viewer_says_that_it_met_a_login_page(prepared: Prepared) -> None:
    run_id = str(prepared.values["run"])
    with serving(prepared.site.uri, {}) as view:
        for path in (
            "/",
            "/trend",
            f"/runs/{run_id}",
            f"/runs/{run_id}/case?eval_id=on",
            f"/compare?run={run_id}&run={prepared.values['other']}",
        ):
            with prepared.site.proxy.spoiling(lambda _: "html"):
                spoilt = view.get(path)
            assert (spoilt.status_code, "Page unavailable</h1>" in spoilt.text) == (502, True), path
            assert re.search(SAID, spoilt.text), spoilt.text
        for moment in range(1, 9):
            with prepared.site.proxy.spoiling(lambda request, moment=moment: "html" if request.number >= moment else None) as requests:
                found = view.get(f"/runs/{run_id}?verify=again")
            assert found.status_code == (502 if len(requests) >= moment else 200), (moment, found.text)
        assert view.get(f"/runs/{run_id}").status_code == 200


def test_html_in_the_store_itself_is_edited_evidence(prepared: Prepared) -> None:
    run_id, server = str(prepared.values["other"]), prepared.site.server
    (file,) = (server.folder / "artifacts").glob(f"*/{run_id}/artifacts/adk_eval/invocations.json")
    before = file.read_bytes()
    page = b"<!doctype html><html><body>Sign in to continue</body></html>"
    try:
        for content in (page, page.ljust(len(before))[: len(before)], before[: len(before) // 2]):
            file.write_bytes(content)
            code, said = _gated(prepared, run_id)
            assert code == 2
            assert "login page" not in said
    finally:
        file.write_bytes(before)
    assert _gated(prepared, run_id)[0] == 0


def _gated(prepared: Prepared, run_id: str) -> tuple[int, str]:
    done = invoke("gate", run_id, "--tracking-uri", prepared.site.uri)
    return done.exit_code, done.stdout + done.stderr
