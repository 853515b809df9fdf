"""How a planted lie is run through a tool: a clean folder a run, processes, and what their ends mean."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue

from lies_catalogue import BASE, HERE, Lie, Tool
from lies_judge import JudgeServer

_OF_CODE = {0: "passed", 1: "failed", 2: "undecided", 3: "undecided", 64: "refused"}
_OF_PYTEST = {0: "passed", 1: "failed", 5: "undecided"}
_WARM = {
    "ours": (
        "mlflow_adk_eval.cli.main",
        "google.adk.agents",
        "google.adk.runners",
        "mlflow.genai",
    ),
    "adk": ("google.adk.cli",),
    "mlflow": ("mlflow.genai", "google.adk.runners"),
}
"""By tool, what a process imports once; each command is a fork of it. Other tools start anew."""
_BROKEN = re.compile(
    r"ModuleNotFoundError|ImportError: cannot import|command not found|SyntaxError"
    r"|Name or service not known|ENOTFOUND|EAI_AGAIN"
)
"""What a run prints that shows nothing about the tool: a script of ours is wrong, or it wants the internet."""
_READS = re.compile(r"^reads: (\S+)$", re.MULTILINE)
_NOTHING = Lie("", "", "", (), {}, {})


@dataclass(frozen=True)
class Outcome:
    """What a tool made of a lie."""

    lie: Lie
    tool: str
    codes: tuple[int | str, ...]
    """Exit codes of the commands so far; the first that is not 0 ends the pipeline."""
    output: str

    @property
    def verdict(self) -> str:
        """Return what a pipeline reads: passed, failed, undecided, refused; broken if the run says nothing about the tool."""
        code = self.codes[-1]
        if code == "late":
            return "late"
        if self.tool == "ours":
            return self._verdict_of_ours(int(code))
        if _BROKEN.search(self.output):
            return "broken"
        return "passed" if code == 0 else "failed"

    def _verdict_of_ours(self, code: int) -> str:
        """Return the verdict by ours' exit codes, or by those of pytest where it was the door."""
        command = self.lie.commands[self.tool][len(self.codes) - 1]
        if command.startswith("pytest"):
            return _OF_PYTEST.get(code, "broken")
        if "Traceback (most recent call last)" in self.output:
            return "broken"
        return _OF_CODE.get(code, "broken")

    @property
    def mark(self) -> str:
        """Return honest, told, lied, wrong, late or broken."""
        if self.verdict in {"late", "broken"}:
            return self.verdict
        if self.tool != "ours":
            return self._mark_of_others()
        if self.verdict in self.lie.honest:
            return "honest"
        return self._mark_of_passed() if self.verdict == "passed" else "wrong"

    def _mark_of_others(self) -> str:
        """Return the mark of a tool whose exit code has two meanings."""
        if self.verdict == "passed":
            return "honest" if "passed" in self.lie.honest else self._mark_of_passed()
        return "wrong" if self.lie.honest == ("passed",) else "honest"

    def _mark_of_passed(self) -> str:
        told = self.lie.told.get(self.tool)
        if told and re.search(told, self.output, re.IGNORECASE):
            return "told"
        return "lied"

    @cached_property
    def reading(self) -> str:
        """Return the number or exit code that a gate would read."""
        found = _READS.findall(self.output)
        if found:
            return found[-1]
        return str(self.codes[-1])


class Runner:
    """Runs lies through tools, several at a time."""

    def __init__(self, judge: JudgeServer, folder: Path, *, cold: bool = False, keep: Path | None = None) -> None:
        self._judge, self._folder, self._cold, self._keep = judge, folder, cold, keep
        self._warm: dict[str, SimpleQueue[subprocess.Popen[str]]] = {tool: SimpleQueue() for tool in _WARM}
        self._processes: list[subprocess.Popen[str]] = []

    def close(self) -> None:
        """End the warm processes."""
        for process in self._processes:
            process.terminate()
            process.communicate()  # closes its pipes, and waits

    def run(self, lie: Lie, tool: Tool) -> Outcome:
        """Run the commands of a lie until one does not return 0."""
        folder = Path(tempfile.mkdtemp(prefix=f"{lie.name}-{tool.name}-", dir=self._folder))
        shutil.copytree(BASE, folder, dirs_exist_ok=True)
        shutil.copytree(lie.folder, folder, dirs_exist_ok=True)
        self._put_store(folder)
        environment = self._environment(lie, tool, folder)
        output = folder / "output.txt"
        codes: list[int | str] = []
        for command in lie.commands[tool.name]:
            with output.open("a") as file:
                print(f"$ {command}", file=file)
            codes.append(self._follow(shlex.split(command), folder, environment, output, lie, tool))
            if codes[-1] != 0:
                break
        text = output.read_text("utf-8", "replace")
        if self._keep:
            (self._keep / f"{lie.name}.{tool.name}.txt").write_text(text, "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        return Outcome(lie, tool.name, tuple(codes), text)

    def _put_store(self, folder: Path) -> None:
        """Give the run an empty MLflow store, whose tables are made once for all."""
        template = self._folder / "empty.db"
        if template.exists():
            shutil.copyfile(template, folder / "mlflow.db")

    def make_store(self, tool: Tool) -> None:
        """Make the empty store that each run gets a copy of."""
        script = "import mlflow; mlflow.search_experiments()"
        environment = self._environment(_NOTHING, tool, self._folder)
        subprocess.run(
            [tool.bin / "python", "-c", script],
            env=environment,
            cwd=self._folder,
            check=True,
            capture_output=True,
        )
        (self._folder / "mlflow.db").rename(self._folder / "empty.db")

    def _environment(self, lie: Lie, tool: Tool, folder: Path) -> dict[str, str]:
        address = self._judge.url(lie.judge)
        home = folder / "home"
        home.mkdir(exist_ok=True)
        return {
            "PATH": f"{tool.bin}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "HOME": str(home),
            "TMPDIR": str(home),
            "PYTHONPATH": f"{folder}:{HERE}",
            "PYTHONWARNINGS": "ignore",
            "COLUMNS": "240",
            "NO_COLOR": "1",
            "GIT_CEILING_DIRECTORIES": str(folder.parent),
            "LIE_TOOL": tool.name,
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
            "MLFLOW_GENAI_EVAL_MAX_WORKERS": "4",
            "MLFLOW_ADK_EVAL_LEDGER": "off",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "GOOGLE_GEMINI_BASE_URL": address,
            "GOOGLE_API_KEY": "x",
            "OPENAI_BASE_URL": f"{address}/v1",
            "OPENAI_API_BASE": f"{address}/v1",
            "OPENAI_API_KEY": "x",
            "DO_NOT_TRACK": "1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DEEPEVAL_TELEMETRY_OPT_OUT": "YES",
            "PROMPTFOO_DISABLE_TELEMETRY": "1",
            "PROMPTFOO_DISABLE_UPDATE": "1",
            "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
            "PROMPTFOO_CONFIG_DIR": str(home),
            **lie.environment,
        }

    def _follow(
        self,
        words: list[str],
        folder: Path,
        environment: dict[str, str],
        output: Path,
        lie: Lie,
        tool: Tool,
    ) -> int | str:
        if self._cold or tool.name in lie.cold or tool.name not in _WARM:
            return _process(words, folder, environment, output, lie.seconds)
        command = {
            "words": words,
            "folder": str(folder),
            "environment": environment,
            "output": str(output),
            "seconds": lie.seconds,
        }
        with self._warm_process(tool) as process:
            assert process.stdin
            assert process.stdout
            print(json.dumps(command), file=process.stdin, flush=True)
            said = process.stdout.readline().strip()
        return said if said == "late" else int(said)

    @contextmanager
    def _warm_process(self, tool: Tool) -> Generator[subprocess.Popen[str]]:
        """Provide a process that has imported the tool, and that nobody else uses now."""
        idle = self._warm[tool.name]
        process = self._started(tool) if idle.empty() else idle.get()
        yield process
        idle.put(process)

    def _started(self, tool: Tool) -> subprocess.Popen[str]:
        environment = self._environment(_NOTHING, tool, self._folder)
        process = subprocess.Popen(
            [tool.bin / "python", "-W", "ignore", HERE / "lies_warm.py", *_WARM[tool.name]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=self._folder,
            text=True,
        )
        self._processes.append(process)
        assert process.stdout
        process.stdout.readline()
        return process


def _process(words: list[str], folder: Path, environment: dict[str, str], output: Path, seconds: int) -> int | str:
    """Run a command as a process of its own, and end all that it started."""
    program = shutil.which(words[0], path=environment["PATH"]) or words[0]
    with output.open("ab") as file:
        process = subprocess.Popen(
            [program, *words[1:]],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "late"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
