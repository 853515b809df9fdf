"""``mlflow-adk-eval record``: conversations with an agent, to be scored later."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import click

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli import options as shared
from mlflow_adk_eval.cli.agent_output import agent_output, agent_output_option
from mlflow_adk_eval.cli.output import end, print_json
from mlflow_adk_eval.errors import RunError
from mlflow_adk_eval.redact import command
from mlflow_adk_eval.text import counted

_MOST_ERRORS = 10


@click.command(epilog=shared.exit_codes("every conversation is complete", "some are not"))
@click.argument("agent")
@click.argument("eval_sets", metavar="EVAL_SET[:CASE,CASE]...", nargs=-1, required=True)
@click.option("-o", "--output", required=True, type=shared.PATH, help="The recording to write.")
@shared.force_option
@shared.config_option
@shared.conversation_options
@shared.judge_host_option
@shared.budget_options
@click.option(
    "--agent-version", default="", help="The agent version to store in the recording. Default: the commit or digest of its source."
)
@shared.json_option
@agent_output_option
def record(agent: str, eval_sets: tuple[str, ...], *, output: Path, force: bool, agent_version: str, as_json: bool, **options: Any) -> None:
    """Run AGENT on eval sets and save the conversations to a file.

    It judges nothing and does not need MLflow. Score the file as often as you like with `mlflow-adk-eval score EVAL_SET --actual FILE`. From the config, it uses only the user simulator
    and the tool environment. If you interrupt it, it saves the conversations so far.
    """
    from mlflow_adk_eval.report.console import progress_bar  # noqa: PLC0415 - `--help` stays fast

    shared.check_output(output, force=force)
    with agent_output(options.pop("agent_output")) as aside:
        paths = shared.eval_set_paths(agent, eval_sets)
        given, version = shared.arguments(options), agent_version or _version(agent, options["agent_name"])
        with progress_bar("recording", shown=not (as_json or aside.shown), screen=aside.screens[1]) as progress:
            recording = adk_eval.record(paths, shared.agent_path(agent), progress=progress, agent_version=version, save_to=output, **given)
    scoring = {"config": options["config"]}
    several = not isinstance(paths, str)  # which `score` takes one of
    then = command("run", output, *paths, **scoring) if several else command("score", paths, actual=output, **scoring)
    _show(output, recording, aside.path, then, as_json=as_json)


def _version(agent: str, agent_name: str | None) -> str:
    """Return what git calls the tree that the agent's source lies in, or else the digest of its source; empty where neither is known."""
    from mlflow_adk_eval.agents.resolve import resolve_agent  # noqa: PLC0415 - as above
    from mlflow_adk_eval.agents.source import git_state, source_of  # noqa: PLC0415

    source = source_of(resolve_agent(shared.agent_path(agent), agent_name=agent_name))
    if source.folder and (state := git_state(source.folder)):
        return state.commit + (f"+{state.diff_sha256[:8]}" if state.diff else "")
    return f"sha256:{source.sha256}" if source.sha256 else ""


def _show(output: Path, recording: adk_eval.Recording, written: Path | None, then: str, *, as_json: bool) -> NoReturn:
    from mlflow_adk_eval.report.sentences import circumstances, format_user_usage  # noqa: PLC0415 - as above

    conversations = [(eval_id, index, one) for eval_id, runs in recording.runs.items() for index, one in enumerate(runs)]
    repeated = len(conversations) > len(recording.runs)
    errors = [
        {"label": f"{eval_id} (run {index + 1})" if repeated else eval_id, "eval_id": eval_id, "run_index": index, "error": one.error}
        for eval_id, index, one in conversations
        if one.error
    ]
    turns = sum(len(one.actual) for *_, one in conversations)
    course = circumstances(one for *_, one in conversations)
    if as_json:
        kept = {"agent_output": str(written)} if written else {}
        print_json({"file": str(output), "conversations": len(conversations), "turns": turns, "errors": errors, **course, **kept})
    else:
        lines = [f"{output}: {counted(len(conversations), 'conversation')}, {counted(turns, 'turn')}", *course.values()]
        lines += [format_user_usage(recording.simulating)] if recording.simulating else []
        lines += [f"  - {error['label']}: {error['error']}" for error in errors[:_MOST_ERRORS]]
        lines += [f"  - and {len(errors) - _MOST_ERRORS} more"] if len(errors) > _MOST_ERRORS else []
        lines += [f"agent output: {written}"] if written and errors else []
        click.echo("\n".join([*lines, f"next: {then}"]))
    end(RunError.exit_code if errors else 0)
