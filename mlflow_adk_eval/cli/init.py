"""``mlflow-adk-eval init``: the files that an evaluation of an agent needs, from its eval set to the workflow that gates it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli.options import NO_VERDICT, PATH, agent_path, store_option
from mlflow_adk_eval.cli.output import write_file
from mlflow_adk_eval.errors import UsageError

if TYPE_CHECKING:
    from mlflow_adk_eval.agents import Agent

_AGENT = "agent.py"
_MARKS = ("root_agent", "get_agent_async", "App(")
_REQUIREMENTS = {"requirements.txt": " -r requirements.txt", "pyproject.toml": " ."}
_CALIBRATION = "calibration.json"
_SAMPLE = 20
"""How many conversations of an experiment become cases: as many as somebody reads."""

Example = tuple[str, str]
"""A question, and the answer that is expected; empty: what the agent answers."""


@click.command(epilog=NO_VERDICT)
@click.argument("agent", required=False)
@click.option(
    "--example",
    "examples",
    multiple=True,
    metavar="QUESTION[=ANSWER]",
    help="A case. Without =ANSWER, the agent is called now for its answer.",
)
@click.option("--recording", metavar="FILE", help="Take the cases from a recording, an eval set or ADK's result file.")
@click.option("--traces", metavar="EXPERIMENT", help=f"Take at most {_SAMPLE} cases from an MLflow experiment's traces, drawn at random.")
@click.option(
    "--judge",
    metavar="MODEL|MODULE:NAME",
    help="Let a model or function compare answers by meaning (final_response_match_v2), not by words.",
)
@click.option("--name", help="The name of the eval set. Default: the agent's name.")
@click.option("--folder", type=PATH, default=Path("evals"), show_default=True, help="The folder for eval set, config, policy and test.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@store_option
def init(
    agent: str | None,
    *,
    examples: tuple[str, ...],
    judge: str | None,
    name: str | None,
    folder: Path,
    force: bool,
    tracking_uri: str | None,
    **sources: Any,
) -> None:
    """Write an eval set, config, policy, test and workflow for an agent.

    AGENT is a module or folder with a root_agent, MODULE:ATTRIBUTE for a function or any other agent, or an address. Default: the only
    agent below the working directory. On a terminal, it asks for anything missing.
    """
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    given: dict[str, Any] = {
        option: value for option, value in {"examples": [_example(text) for text in examples], **sources}.items() if value
    }
    if len(given) > 1 or not (given or asks):
        raise UsageError("give cases with one of --example QUESTION=ANSWER, --recording FILE or --traces EXPERIMENT")
    from mlflow_adk_eval.agents.resolve import resolve_agent  # noqa: PLC0415
    from mlflow_adk_eval.runtime import model_or_object  # noqa: PLC0415

    address = agent or _only_agent(asks=asks)
    resolved = resolve_agent(agent_path(address))
    if isinstance(resolved, adk_eval.Recording) and (
        ":" not in address or "/" in address
    ):  # module:attribute may be the traces of an agent
        raise UsageError(f"{address} is a recording; name the agent, and pass this file with --recording")
    project = _Project(
        agent=address,
        judge=judge,
        judge_is_function=judge is not None and model_or_object(judge, "--judge") is not judge,
        name=re.sub(r"\W+", "_", name or resolved.name, flags=re.ASCII).strip("_") or "agent",
        folder=folder,
    )
    if (present := [str(path) for path in project.paths if path.exists()]) and not force:
        raise UsageError(f"{', '.join(present)} already {'exists' if len(present) == 1 else 'exist'}; --force overwrites")
    eval_set = _eval_set(project.name, resolved, tracking_uri, **(given or {"examples": _ask_for_examples()}))
    for path, text in zip(project.paths, project.texts(eval_set), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text)
        click.echo(f"wrote {path}")
    label = f"Calibrate the judge: label its verdicts with mlflow-adk-eval view --label, then {project.calibrate}\n" if judge else ""
    click.echo(
        f"\nNext: {project.run}\n{label}"
        f"Then: mlflow-adk-eval gate RUN_ID --policy {project.policy}\nAs a test: pytest {shlex.quote(str(folder))}"
    )


@dataclass(frozen=True, kw_only=True)
class _Project:
    """Where what is written, and the words in it."""

    agent: str
    judge: str | None
    """Who compares answers; ``None``: no model judges."""
    judge_is_function: bool
    """Named on the command line, since a config names only models."""
    name: str
    folder: Path

    @cached_property
    def repository(self) -> Path:
        """The folder that git knows; the working directory, from where the agent is imported, where there is none."""
        return next((folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / ".git").exists()), Path.cwd())

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """The eval set, the config, the policy, the test and the workflow."""
        workflow = Path(os.path.relpath(self.repository, Path.cwd()), ".github", "workflows", f"{self.name}-eval.yml")
        names = (f"{self.name}.evalset.json", "test_config.json", "gate.yaml", f"test_{self.name}.py")
        return (*(self.folder / name for name in names), workflow)

    @property
    def policy(self) -> str:
        """The policy, as a shell takes it."""
        return shlex.quote(str(self.paths[2]))

    @property
    def run(self) -> str:
        """The command that evaluates."""
        judge = f" --judge {self.judge}" if self.judge_is_function else ""
        return f"mlflow-adk-eval run {shlex.quote(self.agent)} {shlex.quote(str(self.paths[0]))} --experiment {self.name}{judge}"

    @property
    def calibrate(self) -> str:
        """The command that measures the judge by people's labels, for the policy."""
        return f"mlflow-adk-eval calibrate RUN_ID -o {shlex.quote(str(self.folder / _CALIBRATION))}"

    def texts(self, eval_set: adk_eval.EvalSet) -> Iterator[str]:
        """Yield what is written to `paths`."""
        from mlflow_adk_eval.config.surroundings import filled  # noqa: PLC0415 - `--help` stays fast
        from mlflow_adk_eval.evalset import dumps  # noqa: PLC0415

        turns = [case.conversation or () for case in eval_set.eval_cases]
        distinct = {tuple((turn.user_text, turn.final_text) for turn in each) for each in turns}  # the gate counts equal cases once
        values: dict[str, Any] = {
            "name": self.name,
            "agent": self.agent,
            "judge": self.judge,
            "judge_is_function": self.judge_is_function,
            "calls": any(turn.tool_calls for each in turns for turn in each),
            "cases": len(distinct),
            "calibration": self.judge and _CALIBRATION,
            "calibrate": self.calibrate,
            "root": Path(os.path.relpath(Path.cwd(), self.folder)).as_posix(),
            "folder": Path(os.path.relpath(Path.cwd(), self.repository)).as_posix(),
            "requirements": next((words for file, words in _REQUIREMENTS.items() if Path(file).is_file()), ""),
            "extras": "adk,litellm" if self.judge and "/" in self.judge else "adk",
            "run": self.run,
            "policy": self.policy,
        }
        yield dumps(eval_set)
        for template in ("test_config.json", "gate.yaml", "test_agent.py", "workflow.yml"):
            text = (files("mlflow_adk_eval.cli") / "templates" / f"{template}.j2").read_text(encoding="utf-8")
            yield filled(text, values) + "\n"


def _only_agent(*, asks: bool) -> str:
    """Return the agent below the working directory, or the one that is chosen on the terminal.

    Raises:
        UsageError: if there is not one agent, and nobody to ask.
    """
    from mlflow_adk_eval.agents.adk.modules import YAML  # noqa: PLC0415 - as above

    agents: set[str] = set()
    for name, depth in product((_AGENT, YAML), ("*", "*/*")):
        for folder in (path.parent for path in Path().glob(f"{depth}/{name}")):
            code = folder / _AGENT
            holds_agent = not code.is_file() or any(mark in code.read_text(encoding="utf-8", errors="replace") for mark in _MARKS)
            if holds_agent and not any(part.startswith(".") for part in folder.parts):
                agents.add(str(folder))
    names = ", ".join(sorted(agents))
    if len(agents) == 1:
        return names
    if asks:
        return str(click.prompt(f"Agent{f' ({names})' if names else ''}, or MODULE:ATTRIBUTE"))
    problem = f"found several agents: {names}; name one" if names else f"found no folder with {_AGENT} or {YAML}; give AGENT"
    raise UsageError(f"init: {problem}")


def _example(text: str) -> Example:
    question, _, answer = text.partition("=")
    if not question.strip():
        raise UsageError(f"--example {text!r}: wanted QUESTION=ANSWER")
    return question.strip(), answer.strip()


def _ask_for_examples() -> list[Example]:
    """Return the examples that are typed on the terminal, at least one."""
    examples: list[Example] = []
    while True:
        question = str(click.prompt("Question (empty to finish)", default="", show_default=False)).strip()
        if question:
            answer = str(click.prompt("Expected answer (empty: ask the agent now)", default="", show_default=False))
            examples.append((question, answer.strip()))
        elif examples:
            return examples


def _eval_set(
    name: str,
    agent: Agent,
    tracking_uri: str | None,
    *,
    examples: Sequence[Example] = (),
    recording: str | None = None,
    traces: str | None = None,
) -> adk_eval.EvalSet:
    """Return the cases from wherever they come.

    Raises:
        UsageError: if there are none.
    """
    if traces:
        return adk_eval.capture(experiment=traces, sample=_SAMPLE, eval_set_id=name, tracking_uri=tracking_uri)
    cases = _recorded(adk_eval.load_recording(recording)) if recording else _typed(name, agent, examples)
    if not cases:
        raise UsageError(f"{recording}: no conversation in it is complete")
    return adk_eval.EvalSet(eval_set_id=name, name=name, eval_cases=tuple(cases))


def _typed(name: str, agent: Agent, examples: Sequence[Example]) -> list[adk_eval.EvalCase]:
    """Return a case for each example; what no answer is given for, the agent is asked."""
    from mlflow_adk_eval.agents.scenarios import case_ids  # noqa: PLC0415 - as above
    from mlflow_adk_eval.evalset import Content, Part  # noqa: PLC0415

    cases: list[adk_eval.EvalCase] = []
    for eval_id, (question, answer) in zip(case_ids(question for question, _ in examples), examples, strict=True):
        said: dict[str, Any] = {"final_response": Content(role="model", parts=(Part(text=answer),))} if answer else {}
        turn = adk_eval.Invocation(invocation_id=f"{eval_id}-1", user_content=Content(role="user", parts=(Part(text=question),)), **said)
        cases.append(adk_eval.EvalCase(eval_id=eval_id, conversation=(turn,)))
    open_cases = tuple(case for case, (_, answer) in zip(cases, examples, strict=True) if not answer)
    if not open_cases:
        return cases
    recording = adk_eval.record(
        adk_eval.EvalSet(eval_set_id=name, eval_cases=open_cases), agent, {"criteria": {"response_match_score": 0.8}}, ledger=False
    )
    for eval_id, (conversation,) in recording.runs.items():
        if conversation.error:
            raise UsageError(f"--example: the agent failed on case {eval_id!r}: {conversation.error}")
    answered = {case.eval_id: case for case in _recorded(recording)}
    return [answered.get(case.eval_id, case) for case in cases]


def _recorded(recording: adk_eval.Recording) -> list[adk_eval.EvalCase]:
    """Return what an agent did, in the first run of each case that came to its end, as what is expected."""
    from mlflow_adk_eval.agents.traces.conversations import reference_of  # noqa: PLC0415 - as above

    ended = {eval_id: next((run.actual for run in runs if run.actual and not run.error), ()) for eval_id, runs in recording.runs.items()}
    return [adk_eval.EvalCase(eval_id=eval_id, conversation=tuple(map(reference_of, turns))) for eval_id, turns in ended.items() if turns]
