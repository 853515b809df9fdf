"""What three new users type in their first hour, and where the tool makes them hesitate: `python benchmarks/first_hour.py`.

One has an agent of google-adk with its eval set, one a plain function, and one only traces. Each types what its page suggests; where a
command is refused, they type the next best one. To measure an earlier commit, put its checkout first on PYTHONPATH.

A hesitation is a place where the tool refuses a command, prints a next command with a word to fill in, lets the agent write between its own
lines, prints JSON that cannot be read, or expects an answer from now on that it has not shown.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_VERDICTS = (0, 1, 2)
"""The exit codes of a command that did what it was asked for."""
_NOISE = "what the agent prints"
_FILL_IN = re.compile(r"\b(?:RUN_ID|AGENT|MODEL|VERSION|EVAL_SET)\b")
_AGENT = f"""
import logging
from google.adk.agents import Agent
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types

logging.basicConfig(level=logging.INFO)

class Scripted(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        print({_NOISE!r})
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="It is open until six.")]))

root_agent = Agent(name="hours", model=Scripted(model="scripted"))
"""
_SHOP = f"""
def answer(message):
    print({_NOISE!r})
    return "We are open until six." if "open" in message else "I do not know."

def other(message):
    return "Sorry, no."
"""
_JUDGE = """
def same(request):
    alike = request.blocks["response"] == request.blocks["reference"]
    return {"rationale": "compared", "verdict": "valid" if alike else "invalid"}
"""
_TRACED = """
import mlflow

@mlflow.trace
def bot(question):
    return "It is open until six."

mlflow.set_experiment("production")
bot("When are you open?")
mlflow.flush_trace_async_logging()
"""
_FOUND = """
import mlflow

found = mlflow.search_traces(locations=[mlflow.get_experiment_by_name("production").experiment_id])
"""


@dataclass
class User:
    """Types commands in a folder."""

    folder: Path
    commands: list[list[str]] = field(default_factory=list[list[str]])
    hesitations: Counter[str] = field(default_factory=Counter[str])

    def types(self, *lines: str, shows: str = "") -> str:
        """Type the first of these commands that is not refused, and return what it printed.

        Args:
            lines: the commands, the shortest first.
            shows: an answer that the command makes an expectation of.
        """
        known = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "GOOGLE_"))}
        known |= {
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.folder}/mlflow.db",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "PYTHONWARNINGS": "ignore",
        }
        for line in lines:
            words = shlex.split(line)
            self.commands.append(["mlflow-adk-eval", *words])
            command = [sys.executable, "-m", "mlflow_adk_eval", *words]
            done = subprocess.run(command, cwd=self.folder, env=known, capture_output=True, text=True, check=False)
            if done.returncode not in _VERDICTS:
                self.hesitations["a command is refused or fails"] += 1
                continue
            printed = done.stdout + done.stderr
            self.hesitations["the agent writes between the lines"] += _NOISE in printed or "INFO:" in printed
            advice = [one for one in done.stdout.splitlines() if re.match(r"(next|then|with an agent|calibrate)\b", one, re.IGNORECASE)]
            self.hesitations["a word of the next command is to be filled in"] += sum(bool(_FILL_IN.search(one)) for one in advice)
            self.hesitations["an answer is expected that was not shown"] += bool(shows) and shows not in done.stdout
            if "--json" in words:
                try:
                    json.loads(done.stdout)
                except ValueError:
                    self.hesitations["the JSON cannot be read"] += 1
            return done.stdout
        raise SystemExit(f"none of these works: {lines}")

    def evaluates(self, *lines: str) -> str:
        """Type a command that evaluates, and return the id of the run."""
        return str(re.findall(r"^run id: (\w+)$", self.types(*lines), re.MULTILINE)[0])


def samples(user: User) -> None:
    """An agent of google-adk, with the eval set of its folder."""
    (user.folder / "hours").mkdir()
    (user.folder / "hours/agent.py").write_text(_AGENT)
    turn = {
        "user_content": {"parts": [{"text": "When are you open?"}]},
        "final_response": {"parts": [{"text": "It is open until six."}]},
    }
    cases = {"eval_set_id": "open", "eval_cases": [{"eval_id": "open", "conversation": [turn]}]}
    (user.folder / "hours/open.test.json").write_text(json.dumps(cases))
    user.types("init", "init hours --recording hours/open.test.json")
    eval_set = "hours/open.test.json" if (user.folder / "hours/gate.yaml").exists() else "evals/hours.evalset.json"
    run = f"run hours {eval_set} --experiment hours"
    user.types(f"{run} --json")
    run_id = user.evaluates(f"{run} --register hours")
    user.types(f"promote hours --version 1 --run-id {run_id}")


def function(user: User) -> None:
    """A plain function with a judge of its own, and a second one beside it."""
    (user.folder / "shop.py").write_text(_SHOP)
    (user.folder / "judges.py").write_text(_JUDGE)
    user.types("init shop:answer --judge judges:same --example 'When do you open?'", shows="We are open until six.")
    run = "run shop:answer evals/answer.evalset.json --experiment answer"
    run_id = user.evaluates(run, f"{run} --judge judges:same")
    user.types(f"report {run_id} -o report.html")
    user.types(
        "init shop:other --example 'Do you sell cars?=Sorry, no.'",
        "init shop:other --example 'Do you sell cars?=Sorry, no.' --folder other",
    )
    second = "evals/other" if (user.folder / "evals/other").is_dir() else "other"
    user.evaluates(f"run shop:other {second}/other.evalset.json --experiment other")


def traces(user: User) -> None:
    """Only traces in MLflow, from which come the cases; new ones are scored by them."""
    (user.folder / "traced.py").write_text(_TRACED)
    (user.folder / "talked.py").write_text(_FOUND)
    known = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{user.folder}/mlflow.db"}
    subprocess.run([sys.executable, "traced.py"], cwd=user.folder, env=known, check=True, capture_output=True)
    user.types("init --traces production", "init talked:found --traces production --name production", shows="It is open until six.")
    run_id = user.evaluates("run talked:found evals/production.evalset.json --experiment production")
    user.types(f"report {run_id} -o report.html")


USERS: dict[str, Callable[[User], None]] = {"ADK samples": samples, "a plain function": function, "traces only": traces}


def main() -> None:
    """Print a row for each user, and what they hesitated at."""
    print("| user | commands | words | hesitations |\n|---|---|---|---|")
    for name, journey in USERS.items():
        with tempfile.TemporaryDirectory() as folder:
            user = User(Path(folder).resolve())
            (user.folder / ".git").mkdir()
            journey(user)
        words = len(" ".join(word for command in user.commands for word in command).split())
        found = "; ".join(f"{number} × {what}" for what, number in user.hesitations.items() if number)
        print(f"| {name} | {len(user.commands)} | {words} | {user.hesitations.total()}{f': {found}' if found else ''} |")


if __name__ == "__main__":
    main()
