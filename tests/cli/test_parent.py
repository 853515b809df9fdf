"""A command whose process ends without a verdict: it is an error, whatever code the process ended with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import EXPECTED, written
from tests.cli.test_stopped import FOREGROUND
from tests.waiting import until

NO_VERDICT = 3
AGENT = """
import atexit, ctypes, os, signal, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor

HOW = os.environ["HOW"]

def end():
    match HOW:
        case "exit 0":
            os._exit(0)
        case "exit 5":
            os._exit(5)
        case "C":
            ctypes.CDLL(None)._exit(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "thread":
            threading.Thread(target=os._exit, args=(0,)).start()
            time.sleep(30)
        case "handler":
            atexit.register(os._exit, 0)
        case "handler 5":
            atexit.register(os._exit, 5)
        case "killed at exit":
            atexit.register(os.kill, os.getpid(), signal.SIGKILL)
        case "closes":
            os.closerange(3, 200)
            os._exit(0)
        case "fork":
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
        case "fork that returns":
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                os._exit(0)
        case "pool":
            import multiprocessing
            with multiprocessing.get_context("fork").Pool(1) as pool:
                pool.map(abs, [1])
        case "programs":
            subprocess.run([sys.executable, "-c", "import os; [os.write(n, b'x' * 17) for n in range(3, 30) if os.path.exists(f'/proc/self/fd/{n}')]"])

def agent(text):
    if os.environ.get("WHERE") == "agent":
        end()
    return {"hi": "hello"}.get(text, "it is on")

async def metric(*arguments):
    end()
    return 1.0

if os.environ.get("WHERE") == "import":
    end()
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "ending.py").write_text(AGENT)
    for name in ("lights.evalset.json", "recording.json"):
        written(tmp_path / name, EXPECTED)
    config = {"criteria": {"own": 0.5}, "custom_metrics": {"own": {"code_config": {"name": "ending.metric"}}}}
    written(tmp_path / "own.json", config)
    written(tmp_path / "test_config.json", {"criteria": {"response_match_score": 0.1}})
    return tmp_path


def started(here: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    env = {**os.environ, "MLFLOW_ADK_EVAL_LEDGER": "off", "MLFLOW_TRACKING_URI": f"sqlite:///{here}/m.db", **environment}
    command = [sys.executable, "-m", "mlflow_adk_eval", *arguments]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=here, env=env, **pipes)


@contextmanager
def killed_at_end(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a process that a test leaves behind, which may be stopped and then never ends."""
    with process:
        try:
            yield
        finally:
            process.kill()


def ended(here: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    process = started(here, *arguments, **environment)
    with killed_at_end(process):
        out, err = process.communicate(timeout=300)
    return process.returncode, out, err


SCORE = ("score", "lights.evalset.json", "--actual", "recording.json", "--config", "own.json")
RUN = ("run", "ending:agent", "lights.evalset.json")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("exit 0", "the process ended with code 0 before"),
        pytest.param("exit 5", "the process ended with code 5 before", marks=pytest.mark.slow),
        pytest.param("C", "the process ended with code 0 before", marks=pytest.mark.slow),
        ("kill", "the process was ended by signal 9 (Killed) before"),
        pytest.param("crash", "the process was ended by signal 11 (Segmentation fault) before", marks=pytest.mark.slow),
        pytest.param("thread", "the process ended with code 0 before", marks=pytest.mark.slow),
        pytest.param("closes", "the process ended with code 0 before", marks=pytest.mark.slow),
        pytest.param("handler 5", "the process ended with code 5 after", marks=pytest.mark.slow),
        ("killed at exit", "the process was ended by signal 9 (Killed) after"),
    ],
)
def test_a_metric_that_ends_the_process_is_an_error(how: str, said: str, here: Path) -> None:
    code, _, err = ended(here, *SCORE, HOW=how)
    assert code == NO_VERDICT, err
    assert said in err
    assert "Traceback" not in err
    assert err.count("error:") == 1


@pytest.mark.slow
def test_a_fork_that_comes_to_the_end_is_not_the_command(here: Path) -> None:
    code, _, err = ended(here, *SCORE, HOW="fork that returns")
    assert code == NO_VERDICT
    assert "the process ended with code 0 before" in err


@pytest.mark.slow
@pytest.mark.parametrize("where", ["agent", "import"])
def test_an_agent_that_ends_the_process_is_an_error(where: str, here: Path) -> None:
    code, out, err = ended(here, *RUN, HOW="exit 0", WHERE=where)
    assert (code, out) == (NO_VERDICT, "")
    assert "the process ended with code 0 before the command came to its end, so there is no verdict" in err


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[] if how == "handler" else pytest.mark.slow) for how in ("handler", "fork", "pool", "programs")]
)
def test_what_ends_only_itself_does_not_hide_the_verdict(how: str, here: Path) -> None:
    code, out, err = ended(here, *SCORE, HOW=how)
    assert code == 0, err
    assert "verdict: passed" in out


@pytest.mark.slow
def test_a_failed_verdict_stays_one_however_the_process_ends(here: Path) -> None:
    config = json.loads((here / "own.json").read_text())
    written(here / "own.json", config | {"criteria": {"own": 0.5, "response_match_score": 1.0}})
    recording = json.loads((here / "recording.json").read_text())
    recording["eval_cases"][0]["conversation"][0]["final_response"]["parts"][0]["text"] = "no"
    written(here / "recording.json", recording)
    for how in ("handler", "handler 5", "killed at exit"):
        code, out, _ = ended(here, *SCORE, HOW=how)
        assert code == 1, how
        assert "verdict: failed" in out


def test_the_message_is_json_where_json_was_asked_for(here: Path) -> None:
    code, out, err = ended(here, "--log-format", "json", *SCORE, "--json", HOW="exit 0")
    assert code == NO_VERDICT
    assert json.loads(out)["exit_code"] == NO_VERDICT
    assert "called os._exit" in json.loads(err.splitlines()[-1])["message"]


WAITING = """
import asyncio, os, pathlib, signal, time

def counted(number):
    handler = signal.getsignal(number)

    def count(*arguments):
        with open("interrupts", "a") as file:
            file.write("x")
        handler(*arguments)

    signal.signal(number, count)

async def metric(*arguments):
    if not pathlib.Path("pid").exists():  # once for all cases
        counted(signal.Signals[os.environ["NUMBER"]])
    pathlib.Path("pid").write_text(str(os.getpid()))
    try:
        await asyncio.sleep(60)
    finally:
        time.sleep(float(os.environ["LINGER"]))  # within which a second signal would come
"""


def waiting(here: Path, number: int = signal.SIGTERM, *, linger: str = "0.5", **group: Any) -> tuple[subprocess.Popen[str], int]:
    """Start a command whose metric waits, in a group of its own if `group` says so; return it, and the number of the process that waits."""
    (here / "ending.py").write_text(WAITING)
    command = [sys.executable, "-c", FOREGROUND, "-m", "mlflow_adk_eval", *SCORE]
    env = {**os.environ, "MLFLOW_ADK_EVAL_LEDGER": "off", "NUMBER": signal.Signals(number).name, "LINGER": linger}
    process = subprocess.Popen(command, cwd=here, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **group)
    pid = here / "pid"
    while process.poll() is None and not (pid.exists() and pid.read_text()):
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()[1]
    return process, int(pid.read_text())


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
@pytest.mark.parametrize("group", [False, True], ids=["the parent", "the group"])
def test_a_signal_reaches_the_command_once(number: int, group: bool, here: Path) -> None:
    process, pid = waiting(here, number, start_new_session=group)
    if group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    with killed_at_end(process):
        err = process.communicate(timeout=300)[1]
    assert process.returncode == NO_VERDICT
    assert "error: interrupted" in err
    assert (here / "interrupts").read_text() == "x"
    assert not is_alive(pid)


def test_a_second_signal_reaches_the_command_however_soon(here: Path) -> None:
    process, _ = waiting(here, signal.SIGINT, linger="600")
    came = here / "interrupts"
    with killed_at_end(process):
        process.send_signal(signal.SIGINT)
        until(came.exists, "the first signal reaches the command")
        process.send_signal(signal.SIGINT)
        until(lambda: came.read_text() == "xx", "the second one does, too", seconds=60)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_kill_of_the_parent_ends_the_command(here: Path) -> None:
    process, pid = waiting(here)
    with killed_at_end(process):
        process.kill()
        process.communicate(timeout=300)
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)


def test_a_kill_of_the_command_is_an_error(here: Path) -> None:
    process, pid = waiting(here)
    os.kill(pid, signal.SIGKILL)
    with killed_at_end(process):
        err = process.communicate(timeout=300)[1]
    assert process.returncode == NO_VERDICT
    assert "signal 9 (Killed)" in err


def states(*pids: int) -> set[str]:
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the states of processes in /proc")
def test_ctrl_z_stops_both_and_a_shell_continues_both(here: Path) -> None:
    def wait_for(wanted: set[str], *, resend: signal.Signals | None = None) -> None:
        """Wait until both are in a state. They are looked at once at a time: one that waits also runs for moments."""
        deadline = time.monotonic() + 30
        found = states(process.pid, pid)
        while found != wanted:
            assert time.monotonic() < deadline, found
            if resend is not None:
                process.send_signal(resend)
            time.sleep(0.05)
            found = states(process.pid, pid)

    process, pid = waiting(here, process_group=0)  # a shell gives each command a group
    with killed_at_end(process):
        process.send_signal(signal.SIGTSTP)
        wait_for({"T"})
        wait_for({"S"}, resend=signal.SIGCONT)  # again, since the second one may stop after the first signal came
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    assert process.returncode == NO_VERDICT


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the states of processes in /proc")
def test_ctrl_z_stops_nothing_that_no_shell_could_continue(here: Path) -> None:
    process, pid = waiting(here, start_new_session=True)
    with killed_at_end(process):
        os.killpg(process.pid, signal.SIGTSTP)
        for _ in range(10):
            time.sleep(0.05)
            assert "T" not in states(process.pid, pid)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    assert process.returncode == NO_VERDICT


@pytest.mark.parametrize("arguments", [("--version",), ("score", "--help")])
def test_help_stays_in_one_process(arguments: tuple[str, ...], here: Path) -> None:
    code = "import os, sys; os.fork = None; sys.argv[0] = 'mlflow-adk-eval'; from mlflow_adk_eval.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
