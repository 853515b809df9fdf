"""``mlflow-adk-eval init``: the files that an evaluation of an agent needs, from its eval set to the workflow that gates it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli.agent_output import agent_output as aside
from mlflow_adk_eval.cli.agent_output import agent_output_option
from mlflow_adk_eval.cli.options import NO_VERDICT, PATH, agent_path, store_option
from mlflow_adk_eval.cli.output import write_file
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.redact import command

if TYPE_CHECKING:
    from mlflow_adk_eval.agents.protocol import Agent
    from mlflow_adk_eval.production.thresholds import SeenThreshold

_AGENT = "agent.py"
_MARKS = ("root_agent", "get_agent_async", "App(")
_REQUIREMENTS = {"requirements.txt": " -r requirements.txt", "pyproject.toml": " ."}
_CALIBRATION = "calibration.json"
_SHARED = ("test_config.json", "gate.yaml")
"""What is called the same for each agent."""
_SOURCES = "--example QUESTION=ANSWER, --eval-set FILE, --recording FILE or --traces EXPERIMENT"
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
@click.option(
    "--traces",
    metavar="EXPERIMENT",
    help=f"Take at most {_SAMPLE} cases from an MLflow experiment's traces, drawn at random. Without an agent, also write a config and a schedule for `traces score`.",
)
@click.option("--eval-set", "existing", type=PATH, metavar="FILE", help="Take the cases of this eval set, and write the rest beside it.")
@click.option("--yes", "keeps_all", is_flag=True, help="Keep every recorded answer without a review.")
@click.option(
    "--judge",
    metavar="MODEL|MODULE:NAME",
    help="Let a model or function compare answers by meaning (final_response_match_v2), not by words.",
)
@click.option("--name", help="The name of the eval set. Default: the agent's name.")
@click.option(
    "--folder", type=PATH, help="The folder for eval set, config, policy and test. Default: evals, or evals/NAME for a second agent."
)
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@agent_output_option
@store_option
def init(  # noqa: PLR0913 - as many options
    agent: str | None,
    *,
    examples: tuple[str, ...],
    existing: Path | None,
    keeps_all: bool,
    judge: str | None,
    name: str | None,
    folder: Path | None,
    force: bool,
    agent_output: str,
    tracking_uri: str | None,
    **sources: Any,
) -> None:
    """Write an eval set, config, policy, test and workflow for an agent.

    AGENT is a module or folder with a root_agent, MODULE:ATTRIBUTE for a function or any other agent, or an address. Default: the only
    agent below the working directory. On a terminal, it asks for anything missing, and shows you each recorded answer before it becomes
    the expected one. Elsewhere, recorded answers have the tag "generated", and the gate refuses them until you accept them, unless you
    give --yes.
    """
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    sources |= {"examples": [_example(text) for text in examples], "existing": existing}
    given = {option: value for option, value in sources.items() if value}
    if len(given) > 1:
        raise UsageError(f"give cases with one of {_SOURCES}")
    from mlflow_adk_eval.agents.resolve import resolve_agent  # noqa: PLC0415
    from mlflow_adk_eval.agents.scenarios import GENERATED  # noqa: PLC0415
    from mlflow_adk_eval.runtime import model_or_object  # noqa: PLC0415

    address = agent or only_agent(asks=asks and "traces" not in given, needed="traces" not in given)
    with aside(agent_output) as output:
        resolved = resolve_agent(agent_path(address)) if address else None
        named_file = address and (":" not in address or "/" in address)  # module:attribute may be traces
        if isinstance(resolved, adk_eval.Recording) and named_file:
            raise UsageError(f"{address} is a recording; name the agent, and pass this file with --recording")
        if not given:
            with output.paused():
                given = _chosen(address or "", asks=asks)
        existing = given.get("existing")
        if judge is not None:
            model_or_object(judge, "--judge")
        title = re.sub(r"\W+", "_", name or (resolved.name if resolved else sources["traces"]), flags=re.ASCII).strip("_") or "agent"
        home, experiment = folder or _folder_of(existing, title), "" if address else sources["traces"]
        project = _Project(agent=address, experiment=experiment, judge=judge, name=title, folder=home, eval_set_file=existing)
        if existing and folder and folder.resolve() != existing.parent.resolve():
            raise UsageError(f"--folder: the files belong beside {existing}, where `run` looks for the config")
        if existing and judge and project.paths[1].exists() and not force:
            raise UsageError(f"--judge: {project.paths[1]} is there already; name the judge in it, or --force overwrites it")
        if not existing and (present := [str(path) for path in project.paths if path.exists()]) and not force:
            exist = "exists" if len(present) == 1 else "exist"
            raise UsageError(f"{', '.join(present)} already {exist}; --force overwrites, --name writes others")
        eval_set, recorded = _eval_set(project.name, resolved, tracking_uri, **given)
        seen: Sequence[SeenThreshold] = ()
        if experiment:
            from mlflow_adk_eval.production.thresholds import thresholds_of  # noqa: PLC0415 - needs MLflow

            seen = thresholds_of(experiment, tracking_uri)
    if recorded:
        eval_set = _reviewed(eval_set, recorded, asks=asks and not keeps_all, keeps_all=keeps_all)
    for path, text in zip(project.paths, project.texts(eval_set, seen), strict=True):
        if existing and path.exists() and (path == existing or not force):
            click.echo(f"kept {path}")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text)
        click.echo(f"wrote {path}")
    lines = [f"\nNext: {project.run if address else project.score}"]
    if GENERATED in {tag for case in eval_set.eval_cases for tag in case.tags}:
        lines.append(f"Review the recorded answers, then: {command('generate', accept=project.paths[0])}")
    lines += [f"Calibrate the judge: label its verdicts with mlflow-adk-eval view --label, then {project.calibrate}"] if judge else []
    if address:
        lines += [f"Then: mlflow-adk-eval gate latest --policy {project.policy}", f"As a test: pytest {shlex.quote(str(project.folder))}"]
    else:
        lines.append(f"With an agent: {command('init', 'AGENT', eval_set=project.paths[0])}")
    click.echo("\n".join(lines))


@dataclass(frozen=True, kw_only=True)
class _Project:
    """Where what is written, and the words in it."""

    agent: str | None
    """``None``: there are only traces of it, so nothing can call it."""
    experiment: str
    """Where these are; empty where there is an agent."""
    judge: str | None
    """Who compares answers; ``None``: no model judges."""
    name: str
    folder: Path
    eval_set_file: Path | None
    """The eval set that exists; ``None``: it is written."""

    @cached_property
    def repository(self) -> Path:
        """The folder that git knows; the working directory, from where the agent is imported, where there is none."""
        return next((folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / ".git").exists()), Path.cwd())

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """The eval set, the config, the policy; where there is an agent, the test and the workflow, else what scores its traces."""
        workflows = Path(os.path.relpath(self.repository, Path.cwd()), ".github", "workflows")
        whole = (self.eval_set_file or self.folder / f"{self.name}.evalset.json", *(self.folder / name for name in _SHARED))
        if self.agent:
            return *whole, self.folder / f"test_{self.name}.py", workflows / f"{self.name}-eval.yml"
        aside = self.folder.parent / "production"
        return *whole, aside / f"{self.name}_config.json", aside / f"{self.name}.md", workflows / f"{self.name}-traces.yml"

    @property
    def policy(self) -> str:
        """The policy, as a shell takes it."""
        return shlex.quote(str(self.paths[2]))

    @property
    def run(self) -> str:
        """The command that evaluates."""
        return command("run", self.agent or "AGENT", self.paths[0], experiment=self.name)

    @property
    def score(self) -> str:
        """The command that scores traces; what it did not get to in a day, nobody would look at any more."""
        if not self.experiment.isprintable():  # a crontab has a command in each line
            raise UsageError(f"--traces {self.experiment!r}: this name fits into no schedule; give the experiment's id")
        return command("traces", "score", self.experiment, config=self.paths[3], since="1d")

    @property
    def calibrate(self) -> str:
        """The command that measures the judge by people's labels, for the policy."""
        return command("calibrate", "latest", "-o", self.folder / _CALIBRATION)

    def texts(self, eval_set: adk_eval.EvalSet, seen: Sequence[SeenThreshold]) -> Iterator[str]:
        """Yield what is written to `paths`; `seen`: thresholds for traces."""
        from mlflow_adk_eval.config.surroundings import filled  # noqa: PLC0415 - `--help` stays fast
        from mlflow_adk_eval.evalset.adk_form import for_adk  # noqa: PLC0415
        from mlflow_adk_eval.evalset.files import dumps  # noqa: PLC0415

        turns = [case.conversation or () for case in eval_set.eval_cases]
        said = (tuple((turn.user_text, turn.final_text) for turn in each) for each in turns)
        distinct = {each or case.eval_id for each, case in zip(said, eval_set.eval_cases, strict=True)}  # the gate counts equal cases once
        values: dict[str, Any] = {
            "name": self.name,
            "eval_set_id": eval_set.eval_set_id,
            "file": self.paths[0].name,
            "agent": self.agent,
            "judge": self.judge,
            "calls": any(turn.tool_calls for each in turns for turn in each),
            # A typed answer says nothing of calls: its case is left out, rather than taken to expect none.
            "silent": any(turn.intermediate_data is None for each in turns for turn in each),
            "cases": len(distinct),
            "calibration": self.judge and _CALIBRATION,
            "calibrate": self.calibrate,
            "root": Path(os.path.relpath(Path.cwd(), self.folder)).as_posix(),
            "folder": Path(os.path.relpath(Path.cwd(), self.repository)).as_posix(),
            "requirements": next((words for file, words in _REQUIREMENTS.items() if Path(file).is_file()), ""),
            "extras": "adk,litellm" if self.judge and "/" in self.judge else "adk",
            "run": self.run,
            "policy": self.policy,
            "score": self.score,
            "watch": command("traces", "watch", self.experiment, config=self.paths[3], level="RUN_ID"),
            "seen": seen,
            "here": shlex.quote(str(Path.cwd())),
        }
        yield dumps(for_adk(eval_set, str(self.paths[0])))
        others = ("test_agent.py", "workflow.yml") if self.agent else ("production_config.json", "production.md", "production.yml")
        for template in ("test_config.json", "gate.yaml", *others):
            text = (files("mlflow_adk_eval.cli") / "templates" / f"{template}.j2").read_text(encoding="utf-8")
            yield filled(text, values) + "\n"


def _folder_of(existing: Path | None, name: str) -> Path:
    """Return where the files go: beside an eval set, or to a folder of their own where another agent's config and policy are."""
    if existing:
        return existing.parent
    home = Path("evals")
    others = any((home / file).exists() for file in _SHARED) and not (home / f"{name}.evalset.json").exists()
    return home / name if others else home


def only_agent(*, asks: bool, needed: bool) -> str | None:
    """Return the agent below the working directory, or the one that is chosen on the terminal; ``None``: there is none, and none is needed.

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
    if len(agents) == 1 or not needed:
        return names if len(agents) == 1 else None
    if asks:
        return str(click.prompt(f"Agent{f' ({names})' if names else ''}, or MODULE:ATTRIBUTE"))
    problem = f"found several agents: {names}; name one" if names else f"found no folder with {_AGENT} or {YAML}; give AGENT"
    raise UsageError(f"init: {problem}")


def _example(text: str) -> Example:
    question, _, answer = text.partition("=")
    if not question.strip():
        raise UsageError(f"--example {text!r}: wanted QUESTION=ANSWER")
    return question.strip(), answer.strip()


def _chosen(agent: str, *, asks: bool) -> dict[str, Any]:
    """Return where cases come from that no option names: an eval set in the agent's folder or here, or questions that are typed.

    Raises:
        UsageError: if there are several eval sets or none, and nobody to ask.
    """
    folder = next((path for path in (Path(agent), Path(agent.replace(".", "/"))) if agent and path.is_dir()), Path())
    found = sorted(path for ending in ("evalset", "test") for depth in ("", "*/") for path in folder.glob(f"{depth}*.{ending}.json"))
    names = [str(path) for path in found]
    if asks and found:
        click.echo("\n".join(["Eval sets:", *(f"  {number}  {name}" for number, name in enumerate(names, 1)), "  0  none: type questions"]))
        if number := click.prompt("Which one has the cases?", type=click.IntRange(0, len(found)), default=1):
            return {"existing": found[number - 1]}
    elif len(found) == 1:
        return {"existing": found[0]}
    elif not asks:
        several = f"found several eval sets: {', '.join(names)}; name one with --eval-set"
        raise UsageError(several if found else f"give cases with one of {_SOURCES}")
    return {"examples": _ask_for_examples()}


def _ask_for_examples() -> list[Example]:
    """Return the examples that are typed on the terminal, at least one."""
    examples: list[Example] = []
    while True:
        question = str(click.prompt("Question, or QUESTION=ANSWER (empty to finish)", default="", show_default=False)).strip()
        if "=" in question.strip("=") and not question.endswith("?"):  # "Is 2+2=4?" is a question
            examples.append(_example(question))
        elif question:
            answer = str(click.prompt("Expected answer (empty: ask the agent now)", default="", show_default=False))
            examples.append((question, answer.strip()))
        elif examples:
            return examples


def _eval_set(
    name: str,
    agent: Agent | None,
    tracking_uri: str | None,
    *,
    existing: Path | None = None,
    examples: Sequence[Example] = (),
    recording: str | None = None,
    traces: str | None = None,
) -> tuple[adk_eval.EvalSet, frozenset[str]]:
    """Return the cases from wherever they come, and which of them are what an agent did.

    Raises:
        UsageError: if there are none.
    """
    if existing:
        return adk_eval.load_eval_set(existing), frozenset()
    if traces:
        captured = adk_eval.capture(experiment=traces, sample=_SAMPLE, eval_set_id=name, tracking_uri=tracking_uri)
        return captured, frozenset(captured.eval_ids)
    typed = frozenset[str]()
    if recording or agent is None:
        cases = _recorded(adk_eval.load_recording(recording or ""))
    else:
        cases = _typed(name, agent, examples)
        typed = frozenset(case.eval_id for case, (_, answer) in zip(cases, examples, strict=True) if answer)
    if not cases:
        raise UsageError(f"{recording}: no conversation in it is complete")
    eval_set = adk_eval.EvalSet(eval_set_id=name, name=name, eval_cases=tuple(cases))
    return eval_set, frozenset(eval_set.eval_ids) - typed


def _reviewed(eval_set: adk_eval.EvalSet, recorded: Collection[str], *, asks: bool, keeps_all: bool) -> adk_eval.EvalSet:
    """Show what the agent did in each recorded case, and return those that become expectations; unasked, they are tagged for a review.

    Raises:
        UsageError: if none is left.
    """
    from rich.text import Text  # noqa: PLC0415 - as above

    from mlflow_adk_eval.agents.scenarios import GENERATED  # noqa: PLC0415
    from mlflow_adk_eval.analysis.comparison.compare import call_text  # noqa: PLC0415
    from mlflow_adk_eval.evalset.files import dump  # noqa: PLC0415
    from mlflow_adk_eval.report.console import console  # noqa: PLC0415

    screen, kept = console(), list[adk_eval.EvalCase]()
    for case in eval_set.eval_cases:
        if keeps_all or case.eval_id not in recorded:
            kept.append(case)
            continue
        for turn in case.conversation or ():
            lines = [f"user      {turn.user_text}", *(f"called    {call_text(call)}" for call in turn.tool_calls)]
            screen.print(Text("\n".join([*lines, f"answered  {turn.shown_answer or '(nothing)'}"])), soft_wrap=True)
        if not asks:
            kept.append(type(case).model_validate(dump(case) | {"tags": [*case.tags, GENERATED]}))
            continue
        choices = click.Choice(("y", "e", "s", "a"), case_sensitive=False)
        how = click.prompt(
            "Keep this answer? [Y]es, [e]dit, [s]kip, yes to [a]ll", type=choices, default="y", show_choices=False, show_default=False
        )
        keeps_all = how == "a"
        if how != "s":
            kept.append(_edited(case) if how == "e" else case)
    if not kept:
        raise UsageError("no case is left, so nothing is written")
    return eval_set.model_copy(update={"eval_cases": tuple(kept)})


def _edited(case: adk_eval.EvalCase) -> adk_eval.EvalCase:
    """Return a case with the answers that are typed, and without the calls that should not be expected."""
    from mlflow_adk_eval.evalset.models import Content, Part  # noqa: PLC0415 - as above

    turns: list[adk_eval.Invocation] = []
    for turn in case.conversation or ():
        answer = click.prompt(f"Expected answer to {turn.user_text!r}", default=turn.final_text)
        changes: dict[str, Any] = {"final_response": Content(role="model", parts=(Part(text=answer),))} if answer != turn.final_text else {}
        if turn.tool_calls and not click.confirm("Expect the same calls?", default=True):
            changes["intermediate_data"] = None
        turns.append(turn.model_copy(update=changes))
    return case.model_copy(update={"conversation": tuple(turns)})


def _typed(name: str, agent: Agent, examples: Sequence[Example]) -> list[adk_eval.EvalCase]:
    """Return a case for each example; what no answer is given for, the agent is asked."""
    from mlflow_adk_eval.agents.scenarios import case_ids  # noqa: PLC0415 - as above
    from mlflow_adk_eval.evalset.models import Content, Part  # noqa: PLC0415

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
    from mlflow_adk_eval.agents.traces.conversations import Redactor  # noqa: PLC0415 - as above

    ended = {eval_id: next((run.actual for run in runs if run.actual and not run.error), ()) for eval_id, runs in recording.runs.items()}
    return [
        adk_eval.EvalCase(eval_id=eval_id, conversation=tuple(map(Redactor(None).reference, turns)))
        for eval_id, turns in ended.items()
        if turns
    ]
