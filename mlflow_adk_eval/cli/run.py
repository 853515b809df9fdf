"""``mlflow-adk-eval run``, ``score`` and ``upload``: from an eval set to a report, with or without an agent, and its run in MLflow."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_adk_eval.cli.options import (
    EXIT_CODES,
    PATH,
    agent_path,
    arguments,
    baseline_option,
    check_output,
    config_option,
    conversation_options,
    detailed_option,
    eval_set_paths,
    json_option,
    judge_options,
    store_option,
)
from mlflow_adk_eval.cli.output import show_report

if TYPE_CHECKING:
    from mlflow_adk_eval.agents import Recording

_LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


@click.command(epilog=EXIT_CODES)
@click.argument("agent")
@click.argument("eval_sets", metavar="EVAL_SET[:CASE,CASE]...", nargs=-1, required=True)
@config_option
@detailed_option
@conversation_options
@click.option("--agent-version", help="models:/NAME/VERSION or a LoggedModel id. Default: derived from the agent's source.")
@click.option("--experiment", help="The MLflow experiment, by name or id.")
@click.option("--run-name", help="The name of the MLflow run.")
@click.option("--register", "register_as", metavar="NAME", help="Register the evaluated agent as a new version of this model.")
@click.option(
    "--traces", type=click.IntRange(min=0), default=2000, show_default=True, help="Log only failed turns as traces above this many."
)
@baseline_option
@judge_options
@click.option("--resume", metavar="RUN_ID|latest", help="Continue an interrupted evaluation without paying for anything twice.")
@click.option("--register-prompts", is_flag=True, help="Save the judges' prompts in MLflow's prompt registry.")
@click.option(
    "--signing-key", metavar="PEM", help="Sign the evaluation with this key. Default: MLFLOW_ADK_EVAL_SIGNING_KEY, else unsigned."
)
@click.option("--save-recording", type=PATH, help="Save what the agent did to a new file that can be scored again.")
@click.option("--log_level", type=click.Choice(_LOG_LEVELS, case_sensitive=False), default="warning", help="The Python log level.")
@store_option
@json_option
def run(
    agent: str,
    eval_sets: tuple[str, ...],
    *,
    register_as: str | None,
    save_recording: Path | None,
    detailed: bool,
    log_level: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Run AGENT on eval sets, score it, and log an MLflow run.

    AGENT is a module or folder with a root_agent, as for `adk eval`; a JSON recording of an agent; or runs:/ID to score an earlier
    run again. EVAL_SET is a file, a folder of *.test.json files, or the id of an eval set in the agent's folder.
    """
    from mlflow_adk_eval.report.console import progress_bar  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.tracking import evaluate, register  # noqa: PLC0415

    logging.getLogger().setLevel(log_level.upper())
    check_output(save_recording, remedy="name another file for the recording")
    paths = eval_set_paths(agent, eval_sets)
    with progress_bar("evaluating", shown=not as_json) as progress:
        report = evaluate(paths, agent=agent_path(agent), progress=progress, **arguments(options))
    extra = {"run_id": report.run_id}
    if save_recording:
        from mlflow_adk_eval.agents.recordings import save_recording as save  # noqa: PLC0415

        save(report, save_recording)
        extra["recording"] = str(save_recording)
    if register_as:
        extra["model_version"] = register(report, register_as, tracking_uri=options["tracking_uri"])
    resumable = report.verdict == "undecided" and report.judging and options["ledger"] != "off"
    hint = f"To evaluate only what is missing, run the same command with --resume {report.run_id}" if resumable else ""
    show_report(report, detailed=detailed, as_json=as_json, extra=extra, hint=hint)


@click.command(epilog=EXIT_CODES)
@click.argument("eval_set", metavar="EVAL_SET[:CASE,CASE]")
@click.option("--actual", required=True, help="What the agent did: a recording, an eval set, ADK's result file, or runs:/ID.")
@config_option
@baseline_option
@judge_options
@detailed_option
@store_option
@json_option
def score(
    eval_set: str,
    *,
    actual: str,
    config: Path | None,
    baseline: str | None,
    detailed: bool,
    tracking_uri: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Score recorded conversations without running an agent.

    Logs nothing to MLflow.
    """
    from mlflow_adk_eval.report.console import progress_bar  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.runner import score as score_recorded  # noqa: PLC0415

    compared = None if baseline is None else _recording(baseline, tracking_uri)
    with progress_bar("scoring", shown=not as_json) as progress:
        recorded = _recording(actual, tracking_uri)
        report = score_recorded(eval_set, recorded, config, progress=progress, baseline=compared, **arguments(options))
    show_report(report, detailed=detailed, as_json=as_json)


def _recording(source: str, tracking_uri: str | None) -> Recording | str:
    """Return what the agent did in the run that ``runs:/ID`` names; the path of a file as it is."""
    if not source.startswith("runs:/"):
        return source
    from mlflow_adk_eval.tracking import recording_of_run  # noqa: PLC0415 - files can be scored without MLflow

    return recording_of_run(source.removeprefix("runs:/"), tracking_uri)


@click.command()
@click.argument("folder", type=PATH)
@store_option
def upload(folder: Path, *, tracking_uri: str | None) -> None:
    """Finish logging a run that MLflow could not accept before."""
    from mlflow_adk_eval.tracking.logged_run import upload as finish  # noqa: PLC0415 - `--help` stays fast

    click.echo(f"run {finish(folder, tracking_uri=tracking_uri)} is complete")
