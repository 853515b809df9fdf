"""Results that cannot be written: the exit code says so, whatever was decided, and standard error says what was done."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from mlflow import MlflowClient

from mlflow_adk_eval.cli.main import cli
from tests.cli.forked import Forking, forking
from tests.cli.test_cli import EXPECTED, invoke, written
from tests.cli.test_cli_mlflow import good, run_of
from tests.mlflow_kit import opened

MODES = ("closed", "full", "left")
"""Standard output is closed, its disk is full, or nobody reads it."""
UNWRITTEN = 4


@dataclass(frozen=True, slots=True)
class Shop:
    """A store with a promoted version, and what commands are given."""

    store: str
    folder: Path
    run_id: str

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(self.store)


@pytest.fixture(scope="module")
def shop(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    store = opened(template, folder / "store", "home")
    lights = written(folder / "lights.evalset.json", EXPECTED)
    said = run_of(good(folder), lights, store, exit_code=0)
    for alias in ("champion", "champion"):
        promoted = invoke("promote", "lights", "--version", "1", "--run-id", said["run_id"], "--alias", alias, "--tracking-uri", store)
        assert promoted.exit_code == 0
    traced = invoke("run", folder / "good.json", lights, "--experiment", "home", "--tracking-uri", store)
    assert traced.exit_code == 0
    return Shop(store, folder, said["run_id"])


@pytest.fixture
def here(tmp_path: Path, shop: Shop) -> Path:
    for name in ("lights.evalset.json", "good.json"):
        shutil.copy(shop.folder / name, tmp_path)
    written(tmp_path / "request.json", {"instances": []})
    (tmp_path / "answering.py").write_text("def agent(text): return 'hello'\n")
    return tmp_path


@pytest.fixture(scope="module")
def forks() -> Iterator[Forking]:
    with forking(MLFLOW_ADK_EVAL_LEDGER="off") as process:
        yield process


def ended(arguments: list[str], here: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line from its first import to its end with a standard output that is closed."""
    command = ["bash", "-c", 'exec "$@" >&-', "bash", sys.executable, "-m", "mlflow_adk_eval", *arguments]
    env = {**os.environ, "MLFLOW_ADK_EVAL_LEDGER": "off"}
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, cwd=here, timeout=120, env=env)


COMMANDS: dict[str, tuple[str, int]] = {
    "init": ("init answering:agent --example hi=hello --folder made --name lights", UNWRITTEN),
    "demo": ("demo --folder demo", UNWRITTEN),
    "mcp": ("mcp --policy nowhere.yaml STORE", 64),
    "plan": ("plan lights.evalset.json STORE", UNWRITTEN),
    "run": ("run good.json lights.evalset.json STORE --experiment home", UNWRITTEN),
    "score": ("score lights.evalset.json --actual good.json", UNWRITTEN),
    "record": ("record good.json lights.evalset.json -o out.json", UNWRITTEN),
    "upload": ("upload nowhere STORE", 64),
    "register": ("register RUN lights STORE", UNWRITTEN),
    "view": ("view --port 0 --no-browser STORE", UNWRITTEN),
    "runs": ("runs STORE", UNWRITTEN),
    "explain": ("explain RUN STORE", UNWRITTEN),
    "report": ("report RUN -o report.html STORE", UNWRITTEN),
    "compare": ("compare RUN RUN STORE", UNWRITTEN),
    "power": ("power RUN --detect 0.2 STORE", UNWRITTEN),
    "gate": ("gate RUN STORE", UNWRITTEN),
    "verify": ("verify lights STORE", UNWRITTEN),
    "audit": ("audit lights STORE", UNWRITTEN),
    "keygen": ("keygen -o gate.pem", UNWRITTEN),
    "promote": ("promote lights --version 1 --run-id RUN STORE --alias MODE", UNWRITTEN),
    "rollback": ("rollback lights --reason test STORE", UNWRITTEN),
    "attestation export": ("attestation export RUN -o exported STORE", 64),
    "attestation verify": ("attestation verify nowhere", 64),
    "calibrate": ("calibrate RUN STORE", 64),
    "judge-bench": ("judge-bench nobody", 64),
    "ledger show": ("ledger show --ledger ledger.sqlite", UNWRITTEN),
    "ledger prune": ("ledger prune --ledger ledger.sqlite --older-than 1d", 64),
    "rapid-eval evaluate": ("rapid-eval evaluate request.json", 64),
    "rapid-eval serve": ("rapid-eval serve --port 0", UNWRITTEN),
    "validate": ("validate lights.evalset.json", UNWRITTEN),
    "generate": ("generate --out made.json", 64),
    "capture": ("capture -o made.json STORE --experiment home", UNWRITTEN),
    "traces score": ("traces score home --criteria tool_call_count_v1=1 STORE", UNWRITTEN),
    "traces watch": ("traces watch home --criteria tool_call_count_v1=1 --level 0.9 STORE", UNWRITTEN),
    "traces to-cases": ("traces to-cases nowhere --failed -o made.json STORE", 64),
    "migrate": ("migrate lights.evalset.json made.evalset.json", UNWRITTEN),
    "export": ("export RUN eval-set -o made.evalset.json STORE", UNWRITTEN),
    "eval-set create": ("eval-set create . made", UNWRITTEN),
    "eval-set add-eval-case": ("eval-set add-eval-case . made --scenarios-file none.json", 64),
}
"""The arguments of each command, and how it ends: with what cannot be done, an error keeps its code."""
UNDECIDED = {"rollback": 2}
"""The exit codes of those that come to their end and decide nothing: no other version has passed the gate."""
WITHOUT_JSON = {"init", "demo", "mcp", "view", "rapid-eval evaluate", "rapid-eval serve"}


def every_command(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from every_command(inner, (*path, name))
    else:
        yield " ".join(path)


def test_the_table_has_every_command() -> None:
    assert set(COMMANDS) == set(every_command(cli)), "say in COMMANDS how a new command is called, so that its output is tried, too"


QUICK = {("validate", "full"), ("score", "left"), ("promote", "closed")}
SERVERS = {"view", "rapid-eval serve"}
"""They serve on where nobody reads what they print."""


def modes_of(name: str) -> tuple[str, ...]:
    if name in SERVERS:
        return ("full",)
    return MODES if name in {"promote", "gate", "run", "score"} else ("left", "full")


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, id=f"{name}-{mode}", marks=[] if (name, mode) in QUICK else pytest.mark.slow)
        for name in COMMANDS
        for mode in modes_of(name)
    ],
)
def test_an_unwritten_result_has_its_own_exit_code(name: str, mode: str, shop: Shop, here: Path, forks: Forking) -> None:
    line, code = COMMANDS[name]
    for placeholder, value in (("STORE", f"--tracking-uri {shop.store}"), ("RUN", shop.run_id), ("MODE", f"alias_{mode}")):
        line = line.replace(placeholder, value)
    as_json = ["--json"] if mode == "full" and name not in WITHOUT_JSON else []
    arguments = [*line.split(), *as_json]
    done = ended(arguments, here) if mode == "closed" else forks.ended(arguments, here, "/dev/full" if mode == "full" else "")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if mode == "left":  # as after `| head`: the command comes to its end, and its exit code is the one that it always has
        assert done.returncode == (UNDECIDED.get(name, 0) if code == UNWRITTEN else code), done.stderr
        assert "standard output" not in done.stderr
        return
    assert done.returncode == code, done.stderr
    assert done.stderr.count("error:") <= 1 or code != UNWRITTEN
    if code == UNWRITTEN:
        assert "standard output cannot be written" in done.stderr
    if name == "promote":
        assert f"alias_{mode} is now version 1 of lights; but" in done.stderr
        assert str(shop.client.get_model_version_by_alias("lights", f"alias_{mode}").version) == "1"
    if name == "gate":
        assert f"run {shop.run_id}: passed; but" in done.stderr


@pytest.mark.parametrize("option", ["--summary", "--junit"])
def test_a_promotion_whose_summary_cannot_be_written_is_told(option: str, shop: Shop) -> None:
    alias = option.strip("-")
    where = ("--run-id", shop.run_id, "--tracking-uri", shop.store)
    result = invoke("promote", "lights", "--version", "1", "--alias", alias, *where, option, "/dev/full")
    assert result.exit_code == UNWRITTEN
    assert "verdict: passed" in result.stdout
    assert f"{alias} is now version 1 of lights; but /dev/full: cannot be written: No space left on device" in result.stderr
    assert str(shop.client.get_model_version_by_alias("lights", alias).version) == "1"
    assert Path("/dev/full").is_char_device()


def test_one_place_that_takes_nothing_does_not_cost_the_others_their_copy(shop: Shop, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(here / "nowhere" / "summary"))
    result = invoke("gate", shop.run_id, "--tracking-uri", shop.store, "--summary", here, "--junit", here / "junit.xml")
    assert result.exit_code == UNWRITTEN
    assert "junit" in {path.stem for path in here.iterdir()}
    assert "testsuite" in (here / "junit.xml").read_text()
    assert result.stderr.count("cannot be written") == 2


def test_a_full_disk_leaves_the_file_that_was_there(shop: Shop, here: Path) -> None:
    there = written(here / "made.jsonl", {"old": True})
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)); "
        "sys.argv = ['mlflow-adk-eval', *sys.argv[1:]]; from mlflow_adk_eval.cli.main import main; main()"
    )
    command = [sys.executable, "-c", script, "migrate", "lights.evalset.json", "made.jsonl", "--force"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=here)
    assert done.returncode == UNWRITTEN, done.stderr
    assert "made.jsonl: cannot be written: File too large" in done.stderr
    assert json.loads(there.read_text()) == {"old": True}
    assert sorted(path.name for path in here.glob("made*")) == ["made.jsonl"]
