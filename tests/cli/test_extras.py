"""The package without its extras: each feature that needs one names it, in one sentence, before anything is done."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLEU = {"bleu_input": {"metric_spec": {}, "instances": [{"prediction": "a b c d", "reference": "a b c d"}]}}
COHERENCE = {"coherence_input": {"metric_spec": {}, "instance": {"prediction": "The lamp is on."}}}
EVAL_SET = {
    "eval_set_id": "set",
    "eval_cases": [
        {
            "eval_id": "case",
            "conversation": [
                {
                    "invocation_id": "i",
                    "user_content": {"role": "user", "parts": [{"text": "Hello"}]},
                    "final_response": {"role": "model", "parts": [{"text": "Hello"}]},
                }
            ],
        }
    ],
}
BLOCKED = """
import sys
sys.modules.update(dict.fromkeys({packages!r}))  # what is not installed
sys.argv = ["mlflow-adk-eval", *{arguments!r}]
from mlflow_adk_eval.cli.main import main
main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "set.evalset.json").write_text(json.dumps(EVAL_SET))
    (tmp_path / "bleu.json").write_text(json.dumps(BLEU))
    (tmp_path / "coherence.json").write_text(json.dumps(COHERENCE))
    (tmp_path / "test_config.json").write_text(json.dumps({"criteria": {"rapid_eval_bleu": 0.5}}))
    (tmp_path / "calls.py").write_text("def agent(text): raise SystemExit('the agent was called')\n")
    (tmp_path / "signed/adk_eval_gate").mkdir(parents=True)
    (tmp_path / "signed/adk_eval_gate/evaluation.sigstore.json").write_text('{"verificationMaterial":{}}')
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "__init__.py").write_text("root_agent = None\n")
    return tmp_path


def command(folder: Path, arguments: list[str], packages: list[str]) -> subprocess.CompletedProcess[str]:
    code = BLOCKED.format(packages=packages, arguments=arguments)
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize(
    ("extra", "packages", "arguments"),
    [
        ("adk", ["google.adk"], ["record", "agent", "set.evalset.json", "-o", "out.json"]),
        ("litellm", ["litellm"], ["rapid-eval", "evaluate", "coherence.json", "--judge", "openai/gpt-4o"]),
        ("rapid", ["sacrebleu"], ["rapid-eval", "evaluate", "bleu.json"]),
        ("rapid", ["sacrebleu"], ["score", "set.evalset.json", "--actual", "set.evalset.json"]),
        ("mcp", ["mcp"], ["mcp"]),
        ("watch", ["watchfiles"], ["run", "agent", "set.evalset.json", "--watch"]),
        ("rapid-server", ["starlette"], ["rapid-eval", "serve", "--port", "0"]),
        ("rapid-server", ["uvicorn"], ["rapid-eval", "serve", "--port", "0"]),
        ("view", ["starlette"], ["view", "--no-browser", "--port", "0"]),
        ("sigstore", ["sigstore"], ["run", "calls:agent", "set.evalset.json", "--signing-key", "sigstore"]),
        ("sigstore", ["sigstore"], ["attestation", "verify", "signed", "--identity", "me", "--issuer", "https://accounts.google.com"]),
    ],
)
@pytest.mark.needs("sacrebleu")
def test_what_needs_an_extra_names_it(folder: Path, extra: str, packages: list[str], arguments: list[str]) -> None:
    ended = command(folder, arguments, packages)
    sentence = (
        rf"error: [^\n]+ needs the extra `{extra}`: pip install 'mlflow-adk-eval\[{extra}\]' \([^\n]*{re.escape(packages[0])}[^\n]*\)\n"
    )
    assert re.fullmatch(sentence, ended.stderr), ended.stderr
    assert ended.returncode == 64
    assert not ended.stdout


@pytest.mark.parametrize(
    ("extra", "lacking", "arguments"),
    [
        ("litellm", "tiktoken", ["rapid-eval", "evaluate", "coherence.json", "--judge", "openai/gpt-4o"]),
        ("rapid", "portalocker", ["rapid-eval", "evaluate", "bleu.json"]),
    ],
)
@pytest.mark.needs("sacrebleu")
def test_a_package_that_is_installed_and_broken_is_no_missing_extra(folder: Path, extra: str, lacking: str, arguments: list[str]) -> None:
    ended = command(folder, arguments, [lacking])
    assert re.fullmatch(
        rf"error: [^\n]+ could not import what the extra `{extra}` installs, because \S+ failed \([^\n]*{re.escape(lacking)}[^\n]*\): "
        rf"pip install --upgrade --force-reinstall 'mlflow-adk-eval\[{extra}\]'\n",
        ended.stderr,
    ), ended.stderr
    assert ended.returncode == 64


def test_vertex_names_its_extra_beside_all_else_that_is_missing(folder: Path) -> None:
    ended = command(folder, ["rapid-eval", "evaluate", "coherence.json", "--backend", "vertex"], ["google.cloud.aiplatform_v1beta1"])
    assert "Vertex AI's evaluation service needs the extra `vertex`: pip install 'mlflow-adk-eval[vertex]'" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 3


def test_everything_else_works_without_any_extra(folder: Path) -> None:
    (folder / "test_config.json").write_text(json.dumps({"criteria": {"response_match_score": 0.5, "rapid_eval_rouge": 0.5}}))
    packages = ["google.adk", "litellm", "sacrebleu", "starlette", "uvicorn", "google.cloud.aiplatform_v1beta1", "sigstore"]
    for arguments in (
        ["--help"],
        ["validate", "set.evalset.json", "test_config.json"],
        ["score", "set.evalset.json", "--actual", "set.evalset.json"],
    ):
        ended = command(folder, arguments, packages)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_extra_is_named_where_it_is_needed_and_is_one_of_all() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"all"}
    sources = "".join(file.read_text() for file in (ROOT / "mlflow_adk_eval").rglob("*.py") if file.name != "runtime.py")
    required = set(re.findall(r'require_extra\("([\w-]+)"', sources))
    assert required == extras, "give each extra of pyproject.toml a `require_extra` where its packages are imported, and none besides"
    (everything,) = project["optional-dependencies"]["all"]
    named = set(re.findall(r"[\w-]+", everything.partition("[")[2]))
    # rapid-server brings rapid; Spark is half a gigabyte that only clusters need; google-adk 1 refuses MCP's SDK 2.
    assert named | {"rapid", "spark", "mcp"} == extras, "name a new extra in the extra `all` of pyproject.toml as well"
