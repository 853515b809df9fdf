"""``mlflow-adk-eval record``: conversations with an agent, to be scored later."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mlflow_adk_eval.cli.options import (
    agent_path,
    budget_options,
    budgeted,
    config_option,
    conversation_options,
    eval_set_path,
    json_option,
    one_or_several,
    refuse_overwriting,
    simulated,
)

if TYPE_CHECKING:
    from mlflow_adk_eval.agents import Recording

_FAILED = 3
_MOST_ERRORS = 10


@click.command(epilog="Exit codes: 0 every conversation came to its end; 3 some did not; 64 bad usage or a bad input file.")
@click.argument("agent")
@click.argument("eval_sets", metavar="EVAL_SET[:CASE,CASE]...", nargs=-1, required=True)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The file to write.")
@click.option("--force", is_flag=True, help="Overwrite it.")
@config_option
@conversation_options
@budget_options
@click.option(
    "--agent_version", default="", help="What the recording says of the agent's version. Default: the commit of the working tree."
)
@json_option
def record(agent: str, eval_sets: tuple[str, ...], *, output: Path, force: bool, agent_version: str, as_json: bool, **options: Any) -> None:
    """Have the conversations of eval sets with AGENT and write them into a file. Nothing is judged, and MLflow is not needed.

    The file can be scored as often as you like: `mlflow-adk-eval score EVAL_SET --actual FILE`. The config says how users are
    simulated and tools are answered for; its criteria do not matter. What was said up to an interruption is written, too.
    """
    from mlflow_adk_eval.report.console import progress_bar  # noqa: PLC0415
    from mlflow_adk_eval.runner import record as have  # noqa: PLC0415 - `--help` stays fast

    refuse_overwriting(output, force=force)
    paths = one_or_several([eval_set_path(agent, name) for name in eval_sets])
    version = agent_version or _commit()
    given: dict[str, Any] = {**simulated(budgeted(options)), "agent_version": version, "save_to": output}
    with progress_bar("recording", shown=not as_json) as progress:
        recording = have(paths, agent_path(agent), progress=progress, **given)
    _show(output, recording, as_json=as_json)


def _commit() -> str:
    """Return what git calls the working tree; empty where there is none."""
    from mlflow_adk_eval.tracking.git import git_state  # noqa: PLC0415 - as above

    state = git_state(Path.cwd())
    return "" if state is None else state.commit + (f"+{state.diff_sha256[:8]}" if state.diff else "")


def _show(output: Path, recording: Recording, *, as_json: bool) -> NoReturn:
    from mlflow_adk_eval.report.sentences import circumstances, counted, format_user_usage  # noqa: PLC0415 - as above

    played = [(eval_id, index, one) for eval_id, runs in recording.runs.items() for index, one in enumerate(runs)]
    several = len(played) > len(recording.runs)
    errors = [
        {"label": f"{eval_id} (run {index + 1})" if several else eval_id, "eval_id": eval_id, "run_index": index, "error": one.error}
        for eval_id, index, one in played
        if one.error
    ]
    turns = sum(len(one.actual) for *_, one in played)
    course = circumstances(one for *_, one in played)
    if as_json:
        click.echo(json.dumps({"file": str(output), "conversations": len(played), "turns": turns, "errors": errors, **course}))
    else:
        click.echo(f"{output}: {counted(len(played), 'conversation')}, {counted(turns, 'turn')}")
        for line in (*course.values(), *((format_user_usage(recording.simulating),) if recording.simulating else ())):
            click.echo(line)
        for error in errors[:_MOST_ERRORS]:
            click.echo(f"  - {error['label']}: {error['error']}")
        if len(errors) > _MOST_ERRORS:
            click.echo(f"  - and {len(errors) - _MOST_ERRORS} more")
    sys.exit(_FAILED if errors else 0)
