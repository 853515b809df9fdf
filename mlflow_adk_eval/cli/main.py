"""The command line: ``mlflow-adk-eval``."""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mlflow_adk_eval.cli.calibrate import calibrate
from mlflow_adk_eval.cli.capture import capture
from mlflow_adk_eval.cli.compare import compare_command
from mlflow_adk_eval.cli.gate import gate_group, rollback_command, verify_command
from mlflow_adk_eval.cli.options import (
    EXIT_CODES,
    agent_path,
    baseline_option,
    config_option,
    conversation_options,
    detailed_option,
    eval_set_path,
    json_option,
    judge_options,
    judging,
    one_or_several,
    refuse_overwriting,
    simulated,
    store_option,
)
from mlflow_adk_eval.cli.plan import plan_command
from mlflow_adk_eval.cli.promote import promote_command
from mlflow_adk_eval.cli.rapid_eval import rapid_eval
from mlflow_adk_eval.cli.record import record
from mlflow_adk_eval.cli.report import report_command
from mlflow_adk_eval.errors import AdkEvalError, InputError, UsageError
from mlflow_adk_eval.results.decision import GateFailed

if TYPE_CHECKING:
    from mlflow_adk_eval.agents import Recording
    from mlflow_adk_eval.results.report import Report

_FAILED_RUN = 3
_USAGE = 64


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="mlflow-adk-eval")
def cli() -> None:
    """Evaluate ADK agents in MLflow, and gate their promotion on the evidence."""


for command in (
    report_command, gate_group, promote_command, verify_command, rollback_command, plan_command, compare_command, calibrate, capture, rapid_eval, record,
):  # fmt: skip
    cli.add_command(command)


@cli.command(epilog=EXIT_CODES)
@click.argument("agent")
@click.argument("eval_sets", metavar="EVAL_SET[:CASE,CASE]...", nargs=-1, required=True)
@config_option
@detailed_option
@conversation_options
@click.option("--agent_version", help="models:/NAME/VERSION or a LoggedModel's id. Default: taken from git.")
@click.option("--experiment", help="The MLflow experiment, by name or id.")
@click.option("--run_name", help="The name of the MLflow run.")
@click.option("--register", "register_as", metavar="NAME", help="Register the evaluated agent as a new version of this model.")
@click.option(
    "--traces", type=click.IntRange(min=0), default=2000, show_default=True, help="Above so many turns, only failed ones get traces."
)
@baseline_option
@judge_options
@click.option("--resume", metavar="RUN_ID|latest", help="Go on with an evaluation that was interrupted; nothing is paid for twice.")
@click.option(
    "--register-prompts",
    "--register_prompts",
    "register_prompts",
    is_flag=True,
    help="Keep the judges' prompts in MLflow's prompt registry.",
)
@click.option("--save_recording", type=click.Path(path_type=Path), help="A new file for what the agent did, to be scored again.")
@click.option("--log_level", type=click.Choice(["debug", "info", "warning", "error", "critical"], case_sensitive=False), default="warning")
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
    """Run AGENT on eval sets, score it and log the run in MLflow.

    AGENT is a module or folder with a root_agent, as for `adk eval`, a JSON file that records what an agent did, or runs:/ID for
    what it did in an earlier run. An EVAL_SET is a file, a folder of *.test.json files, or the id of a set in the agent's folder.
    """
    from mlflow_adk_eval.report.console import progress_bar  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.tracking import evaluate  # noqa: PLC0415

    logging.getLogger().setLevel(log_level.upper())
    refuse_overwriting(save_recording, way_out="name another file for the recording")
    paths = one_or_several([eval_set_path(agent, name) for name in eval_sets])
    with progress_bar("evaluating", shown=not as_json) as progress:
        report = evaluate(paths, agent=agent_path(agent), progress=progress, **simulated(judging(options)))
    extra = {"run_id": report.run_id}
    if save_recording:
        from mlflow_adk_eval.agents.recordings.save import save_recording as save  # noqa: PLC0415

        save(report, save_recording)
        extra["recording"] = str(save_recording)
    if register_as:
        from mlflow_adk_eval.tracking import register  # noqa: PLC0415

        extra["model_version"] = register(report, register_as, tracking_uri=options["tracking_uri"])
    kept = report.verdict == "undecided" and report.judging and options["ledger"] != "off"
    hint = f"What is missing can be asked for, and nothing else, with --resume {report.run_id}" if kept else ""
    _show_report(report, detailed=detailed, as_json=as_json, extra=extra, hint=hint)


@cli.command(epilog=EXIT_CODES)
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
    """Score recorded conversations, without an agent, and without logging a run in MLflow."""
    from mlflow_adk_eval.report.console import progress_bar  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.runner import score as score_recorded  # noqa: PLC0415

    beside = None if baseline is None else _recorded(baseline, tracking_uri)
    with progress_bar("scoring", shown=not as_json) as progress:
        recorded = _recorded(actual, tracking_uri)
        report = score_recorded(eval_set, recorded, config, progress=progress, baseline=beside, **judging(options))
    _show_report(report, detailed=detailed, as_json=as_json)


def _recorded(source: str, tracking_uri: str | None) -> Recording | str:
    """Return what the agent did in the run that ``runs:/ID`` names; the path of a file as it is."""
    if not source.startswith("runs:/"):
        return source
    from mlflow_adk_eval.tracking import recording_of_run  # noqa: PLC0415 - files can be scored without MLflow

    return recording_of_run(source.removeprefix("runs:/"), tracking_uri)


@cli.command(epilog=EXIT_CODES)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_option
def validate(files: tuple[Path, ...], *, as_json: bool) -> None:
    """Check eval sets, configs, policies, recordings and result files, and name everything that is wrong with them."""
    from mlflow_adk_eval.cli.validation import validate_file  # noqa: PLC0415

    rows: list[dict[str, Any]] = []
    for file in files:
        try:
            rows.append({"file": str(file), "valid": True, **validate_file(file)})
        except InputError as error:
            rows.append(
                {
                    "file": str(file),
                    "valid": False,
                    "problems": [{"path": p.path, "message": str(p)} for p in error.problems],
                    "error": str(error),
                }
            )
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False, indent=2))
    for row in rows if not as_json else []:
        click.echo(f"{row['file']}: {row['kind']}, {row['summary']}" if row["valid"] else row["error"], err=not row["valid"])
    sys.exit(0 if all(row["valid"] for row in rows) else _USAGE)


@cli.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--initial_session_file", type=click.Path(path_type=Path), help="The separate session of a legacy list of turns.")
@click.option("--force", is_flag=True, help="Overwrite NEW.")
def migrate(old: Path, new: Path, *, initial_session_file: Path | None, force: bool) -> None:
    """Rewrite an eval set of any generation in the format of today's ADK."""
    from mlflow_adk_eval.evalset import migrate as rewrite  # noqa: PLC0415

    if new.exists() and not force:
        msg = f"{new} exists already; --force overwrites it"
        raise UsageError(msg)
    eval_set = rewrite(old, new, initial_session=initial_session_file)
    click.echo(f"{new}: {len(eval_set.eval_cases)} cases")


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path))
@store_option
def upload(folder: Path, *, tracking_uri: str | None) -> None:
    """Finish logging a run that MLflow could not take when it ended."""
    from mlflow_adk_eval.tracking.log import upload as finish  # noqa: PLC0415

    click.echo(f"run {finish(folder, tracking_uri=tracking_uri)} is complete")


@cli.command()
@click.option("--folder", type=click.Path(path_type=Path), default=Path("demo"), show_default=True, help="Where its MLflow store goes.")
def demo(*, folder: Path) -> None:
    """Evaluate a good and a regressed agent, promote the good one, and be refused the other. Needs no API key."""
    from mlflow_adk_eval.cli.demo import run_demo  # noqa: PLC0415

    run_demo(folder)


def _show_report(report: Report, *, detailed: bool, as_json: bool, extra: dict[str, Any] | None = None, hint: str = "") -> NoReturn:
    from mlflow_adk_eval.report.ci import exit_code  # noqa: PLC0415
    from mlflow_adk_eval.report.console import console, report_view  # noqa: PLC0415

    if as_json:
        click.echo(json.dumps(_report_json(report) | (extra or {}), ensure_ascii=False, indent=2, allow_nan=False))
    else:
        console().print(report_view(report, detailed=detailed))
        for name, value in (extra or {}).items():
            if value is not None:
                click.echo(f"{name.replace('_', ' ')}: {value}")
        click.echo(hint) if hint else None
    sys.exit(exit_code(report))


def _report_json(report: Report) -> dict[str, Any]:
    from dataclasses import asdict  # noqa: PLC0415

    return {
        "verdict": report.verdict,
        "reasons": list(report.reasons),
        "eval_set_id": report.eval_set.eval_set_id,
        "cases": len({case.eval_id for case in report.cases}),
        "num_runs": report.num_runs,
        "criteria": {
            name: {
                "threshold": summary.threshold,
                "mean": summary.mean,
                "pass_rate": summary.pass_rate,
                "evaluated": summary.evaluated,
                "errored": summary.errored,
                "skipped": summary.skipped,
            }
            for name, summary in report.summaries().items()
        },
        "judging": asdict(report.judging) | {"flip_rate": report.judging.flip_rate} if report.judging else None,
        "simulating": asdict(report.simulating) if report.simulating else None,
        "endings": dict(Counter(case.ending.reason for case in report.cases if case.ending)),
        "injections": dict(Counter(injection.kind for case in report.cases for injection in case.injections)),
        "notes": list(report.notes),
    }


def _catch(entry: Callable[[], Any]) -> Callable[[], None]:
    @wraps(entry)
    def caught() -> None:
        try:
            entry()
        except click.exceptions.Abort:
            click.echo("aborted", err=True)
            sys.exit(_FAILED_RUN)
        except click.ClickException as error:
            error.show()
            sys.exit(_USAGE)
        except GateFailed as error:
            click.echo(str(error), err=True)
            sys.exit(error.exit_code)
        except AdkEvalError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(error.exit_code)

    return caught


@_catch
def main() -> None:
    """Run the command line; every foreseen failure is one message and an exit code, never a traceback."""
    cli(standalone_mode=False)
