"""An agent that repeats every value of its ``.env``, however it is spelt: none of them reaches anything that we write."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from tests.kit import case_json, turn_json
from tests.mlflow_kit import copied

SECRETS = {
    "STRIPE_LIVE": "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "GH_PAT": 'gh"p/16C7+e42&F?',
    "SLACK_HOOK": "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
    "WAREHOUSE": "postgresql://reader:Tr0ub4dor-%263@warehouse.example/sales",
    "SIGN_WITH": "-----BEGIN EC PRIVATE-----\nMHcCAQEEIBiJ6m2FQ0vG1rWzXy\n-----END EC PRIVATE-----",
}
PLAIN = {
    "WORKERS": "12",
    "API_ROOT": "https://api.example.com/v1",
    "CLOUD_REGION": "europe-west-4",
    "VERBOSE": "true",
    "OFFICE": "Pforzheim",
}


def spelt(value: str) -> list[str]:
    """Return each spelling that must be found nowhere, without what an encoder shares with the text around it."""
    content = value.encode()
    base64s = []
    for before, unsure in enumerate((0, 2, 3)):
        core = base64.b64encode(bytes(before) + content).decode()[unsure:].rstrip("=")[:-1]
        base64s += [core, core.translate(str.maketrans("+/", "-_"))]
    return [
        value,
        json.dumps(value)[1:-1],
        quote(value),
        quote(value, safe=""),
        quote_plus(value),
        content.hex(),
        content.hex().upper(),
        *base64s,
    ]


AGENT = """
    import base64, json, os, urllib.parse
    from google.adk.agents import BaseAgent
    from google.adk.events import Event
    from google.genai import types

    VALUES = [os.environ[name] for name in (%s)]


    def echoes(value):
        content = value.encode()
        yield value
        yield json.dumps({"value": value})
        yield json.dumps(json.dumps({"value": value}))
        yield from (urllib.parse.quote(value), urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value))
        yield from (content.hex(), content.hex().upper())
        for before in range(3):
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                yield encode(b"=" * before + content + b"!").decode()
                yield encode(content).decode().rstrip("=")


    class Leaky(BaseAgent):
        async def _run_async_impl(self, ctx):
            said = " ".join(text for value in VALUES for text in echoes(value))
            call = types.FunctionCall(name="look_up", args={"said": said, VALUES[0]: [VALUES[1]]}, id="1")
            yield Event(author="leaky", content=types.Content(role="model", parts=[types.Part(function_call=call)]))
            answer = types.FunctionResponse(name="look_up", response={"found": said}, id="1")
            yield Event(author="leaky", content=types.Content(role="user", parts=[types.Part(function_response=answer)]))
            if "fail" in ctx.user_content.parts[0].text:
                raise ValueError(said)
            yield Event(author="leaky", content=types.Content(role="model", parts=[types.Part(text="Pforzheim: " + said)]))


    root_agent = Leaky(name="leaky")
"""
JUDGE = """
    import json, re


    def repeating(request):
        return json.dumps({"rationale": request.text, "verdict": "valid"})
"""


def case(eval_id: str, user: str) -> dict[str, object]:
    return case_json(eval_id, turn_json(user, "Pforzheim", invocation_id="1"))


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Path:
    agent = tmp_path / "leaky"
    agent.mkdir()
    names = ", ".join(map(repr, SECRETS))
    (agent / "__init__.py").write_text("from . import agent\n")
    (agent / "agent.py").write_text(textwrap.dedent(AGENT % names))
    lines = [f"{name}={json.dumps(value)}" if "\n" in value else f"{name}='{value}'" for name, value in (SECRETS | PLAIN).items()]
    (agent / ".env").write_text("\n".join(lines))
    (tmp_path / "repeating_judge.py").write_text(textwrap.dedent(JUDGE))
    cases = [case("ok", "Where is the office?"), case("bad", "Please fail.")]
    (tmp_path / "office.evalset.json").write_text(json.dumps({"eval_set_id": "office", "eval_cases": cases}))
    criteria = {"response_match_score": 0.1, "final_response_match_v2": {"threshold": 0.5, "judge_model_options": {"num_samples": 1}}}
    (tmp_path / "test_config.json").write_text(json.dumps({"criteria": criteria}))
    (tmp_path / "gate.yaml").write_text("rules:\n  response_match_score: {min: 0.9}\n")
    copied(template, tmp_path)
    return tmp_path


@pytest.mark.slow
def test_no_value_of_an_env_file_is_in_anything_that_a_run_writes(project: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in SECRETS}
    environ |= {
        "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db",
        "MLFLOW_ADK_EVAL_LEDGER": "ledger.sqlite",
        "MLFLOW_ADK_EVAL_NOT_SECRET": "OFFICE",
    }

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "mlflow_adk_eval", *arguments], check=False, capture_output=True, text=True, cwd=project, env=environ
        )
        assert done.returncode in (0, 1, 2), done.stderr
        (project / f"{len(list(project.glob('*.out')))}.out").write_text(done.stdout + done.stderr)
        return done.stdout

    judge = ("--judge", "repeating_judge:repeating")
    options = ("--detailed", "--save-recording", "recording.json", "--log-level", "DEBUG")
    command("--log-format", "json", "run", "leaky", "office.evalset.json", *judge, *options)
    run_id = json.loads(command("run", "leaky", "office.evalset.json", *judge, "--json"))["run_id"]
    command("gate", run_id, "--policy", "gate.yaml", "--junit", "gate.xml", "--summary", "summary.md", "--json")
    command("score", "office.evalset.json", "--actual", f"runs:/{run_id}", *judge)
    for what in ("eval-set", "result", "rows"):
        command("export", run_id, what, "-o", f"{what}.jsonl" if what == "rows" else f"{what}.json")
    with closing(sqlite3.connect(project / "ledger.sqlite")) as ledger:
        assert ledger.execute("SELECT count(*) FROM answer").fetchone()[0]
        assert ledger.execute("SELECT count(*) FROM conversation").fetchone()[0]
    written = [path for path in project.rglob("*") if path.is_file() and path.parent.name not in ("leaky", "__pycache__")]
    assert {"mlflow.db", "ledger.sqlite", "gate.xml", "summary.md", "recording.json", "0.out"} <= {path.name for path in written}
    password = "Tr0ub4dor-&3"  # noqa: S105 - nobody's
    forbidden = {name: spelt(value) for name, value in SECRETS.items()} | {
        "password": [password, quote(password)],
        "line": ["MHcCAQEEIBiJ6m2FQ0vG1rWzXy"],
    }
    leaks = []
    for path in written:
        content = path.read_bytes()
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            content += str(pq.read_table(path).to_pylist()).encode()
        leaks += [(path.name, name, form) for name, forms in forbidden.items() for form in forms if form.encode() in content]
    assert leaks == [], sorted({(name, variable) for name, variable, _ in leaks})
    texts = (project / "recording.json").read_text()
    assert "[STRIPE_LIVE]" in texts
    assert "Pforzheim" in texts
