"""``mlflow-adk-eval run``, ``score``, ``upload`` and ``register``: from an eval set to a report, with or without an agent, and its run in MLflow."""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click
from click import option
from click.core import ParameterSource
from cloup import Command, option_group

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli import options as shared
from mlflow_adk_eval.cli.agent_output import agent_output, agent_output_option
from mlflow_adk_eval.cli.next_step import after_failure, after_undecided
from mlflow_adk_eval.cli.output import show_report, tell
from mlflow_adk_eval.errors import AdkEvalError, UsageError
from mlflow_adk_eval.redact import command

if TYPE_CHECKING:
    from mlflow_adk_eval.results.report import Report

_MADE_HERE = ("mlflow.db", "mlruns", ".adk_eval")
"""MLflow's store where none is configured, its artifacts, and what judges answered."""


def _set_features(context: click.Context, parameter: click.Parameter, named: tuple[str, ...]) -> None:  # noqa: ARG001 - click's
    """Switch the features on or off that are named, separated by commas."""
    if names := [name.strip() for each in named for name in each.split(",") if name.strip()]:
        from mlflow_adk_eval.agents.adk.agent import set_features  # noqa: PLC0415 - `--help` stays fast

        set_features(dict.fromkeys(names, parameter.name == "enable_features"))


class _LikeAdkEval(Command):
    """A command that passes over options that only a newer `adk eval` has, and says so."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, again if one of ADK's own options is unknown here."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from mlflow_adk_eval.agents.adk.agent import option_of_adk_eval  # noqa: PLC0415 - as above

            theirs = option_of_adk_eval(error.option_name)
            if theirs is None:
                raise
            click.echo(f"note: {error.option_name} of `adk eval` has no effect here", err=True)
            ignored = click.Option([error.option_name], is_flag=theirs.is_flag, multiple=theirs.multiple, expose_value=False, hidden=True)
            self.params.append(ignored)
            try:
                return self.parse_args(ctx, words)
            finally:
                self.params.remove(ignored)


@click.command(epilog=shared.EXIT_CODES, cls=_LikeAdkEval)
@click.argument("agent")
@click.argument("eval_sets", metavar="EVAL_SET[:CASE,CASE]...", nargs=-1)
@option_group(
    "Conversations with the agent",
    shared.conversation_options,
    option("--agent-version", help="models:/NAME/VERSION or a LoggedModel id. Default: derived from the agent's source."),
    option("--resume", metavar="RUN_ID|latest", help="Resume an interrupted evaluation without paying twice."),
    option(
        "--failed",
        metavar="RUN_ID",
        help="Run only the cases that did not pass in this run. The new run is not evidence for the whole eval set.",
    ),
    option("--watch", is_flag=True, help="Run again whenever a file of the agent, eval set or config changes. Needs the extra `watch`."),
    option(
        "--replay",
        metavar="RUN_ID|FILE",
        help="Answer the agent's tool calls from this run or recording. A call that was never recorded is an error.",
    ),
    option("--replay-models", is_flag=True, help="With --replay: also answer the agent's model where it gets the same request."),
    option("--record", is_flag=True, help="Record what tools and models answer. With --replay: tools answer what was never recorded."),
    option("--save-recording", type=shared.PATH, help="Save the conversations to a new file that you can score again."),
    help="Repeats, parallelism and time limits",
)
@option_group(
    "Scoring",
    shared.config_option,
    shared.baseline_option,
    shared.workers_option,
    option("--policy", type=shared.PATH, help="The policy that will decide on the run. Cases that it holds out are not run."),
    option("--until-decided", is_flag=True, help="Run only as many cases as decide --policy, round by round."),
    option("--max-runs", type=shared.COUNT, default=1, help="With --until-decided: the most runs of each case."),
    option("--max-conversations", type=shared.COUNT, help="With --until-decided: the most conversations. Default: no limit."),
    option("--model", metavar="NAME", help="With --until-decided: the registered model of the policy's baseline. Default: --register."),
    option("--backend", type=click.Choice(["local", "spark"]), default="local", help="Where to score recordings."),
    option("--staging", metavar="FOLDER|URI", help="With --backend spark: a folder that driver and executors share."),
    help="Criteria and backend",
)
@shared.judges_group
@option_group(
    "The run in MLflow",
    shared.store_option,
    option("--experiment", help="The MLflow experiment, by name or id."),
    option("--run-name", help="The name of the MLflow run."),
    option("--register", "register_as", metavar="NAME", help="Register the evaluated agent as a new version of this model."),
    option(
        "--traces",
        metavar="N|failed",
        callback=shared.trace_limit,
        default="2000",
        help="Log at most this many traces. If there are more turns, or with 'failed', log only turns that did not pass.",
    ),
    option("--register-prompts", is_flag=True, help="Save the judges' prompts in MLflow's prompt registry."),
    option(
        "--signing-key",
        metavar="PEM|sigstore",
        help="Sign the evaluation with this key, or as this CI job's OIDC identity. Default: MLFLOW_ADK_EVAL_SIGNING_KEY, else unsigned.",
    ),
)
@option_group(
    "Accepted for compatibility with adk eval",
    shared.storage_option,
    option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error", "critical"], case_sensitive=False),
        default="warning",
        help="The Python log level.",
    ),
    *(
        option(
            f"--{verb}-features",
            multiple=True,
            expose_value=False,
            callback=_set_features,
            metavar="NAMES",
            help=f"Features of google-adk to switch {way}.",
        )
        for verb, way in (("enable", "on"), ("disable", "off"))
    ),
)
@option_group("Output", shared.detailed_option, shared.json_option, agent_output_option)
def run(
    agent: str, eval_sets: tuple[str, ...], *, register_as: str | None, save_recording: Path | None, as_json: bool, **options: Any
) -> None:
    """Run AGENT on eval sets, score it, and log an MLflow run.

    AGENT is a module or folder with a root_agent, as for `adk eval`; a recording of an agent; or runs:/ID to score an earlier
    run again. EVAL_SET is a file of JSON, JSON Lines or Parquet, a folder of such rows, of *.test.json files or of ADK's conformance tests, or
    the id of an eval set in the agent's folder or in --eval-storage-uri. If JSON Lines or Parquet rows contain the agent's conversations,
    leave out AGENT.
    """
    if options.pop("watch"):
        watch([agent, *eval_sets, *filter(None, [options["config"]])], options["tracking_uri"])
        return
    detailed, log_level, eval_storage_uri = (options.pop(name) for name in ("detailed", "log_level", "eval_storage_uri"))
    logging.getLogger().setLevel(log_level.upper())
    obeyed = click.get_current_context().get_parameter_source("log_level") is ParameterSource.COMMANDLINE
    if obeyed:
        os.environ["MLFLOW_LOGGING_LEVEL"] = log_level.upper()  # MLflow has a level of its own, which it reads when it is imported
    from mlflow_adk_eval.evalset.files import RowFiles, open_file  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.report.console import progress_bar  # noqa: PLC0415

    shared.check_output(save_recording, remedy="name another file for the recording")
    present = {name for name in _MADE_HERE if Path(name).exists()}
    if not eval_sets and not isinstance(open_file(agent), RowFiles):  # rows may hold what an agent did
        raise click.MissingParameter(param_hint="'EVAL_SET[:CASE,CASE]...'", param_type="argument")
    backend, staging = options.pop("backend"), options.pop("staging")
    with agent_output(options.pop("agent_output"), log_level=log_level if obeyed else None) as aside:
        paths = shared.eval_set_paths(agent, eval_sets, eval_storage_uri) if eval_sets else agent
        chosen = shared.agent_path(agent) if eval_sets else None
        if backend == "spark":
            report = _on_spark(paths, staging, options)
        else:
            with progress_bar("evaluating", shown=not (as_json or aside.shown), screen=aside.screens[1]) as progress:
                options["model"] = options["model"] or register_as
                tell_round = partial(click.echo, err=True)
                report = adk_eval.evaluate(paths, agent=chosen, progress=progress, on_round=tell_round, **shared.arguments(options))
    trouble, extra = "", {"run_id": report.run_id, "page": _page(report.run_id or "", options["tracking_uri"])}
    if aside.path and (as_json or obeyed or report.verdict != "passed"):
        extra["agent_output"] = str(aside.path)
    extra["new_here"] = ", ".join(name for name in _MADE_HERE if name not in present and Path(name).exists()) or None
    try:
        if save_recording:
            adk_eval.save_recording(report, save_recording)
            extra["recording"] = str(save_recording)
        if eval_storage_uri:
            from mlflow_adk_eval.evalset.storage import EvalStorage  # noqa: PLC0415
            from mlflow_adk_eval.report.adk_result import result_of  # noqa: PLC0415

            storage = EvalStorage(agent, eval_storage_uri)
            in_memory = replace(report, cases=report.cases.in_memory())
            extra["eval_set_result"] = storage.keep_result(result_of(in_memory, app_name=storage.app_name))
    except AdkEvalError as error:  # the run is complete and was paid for
        trouble = f"run {report.run_id} is complete, but: {error}"
    if register_as:
        try:
            extra["model_version"] = adk_eval.register(str(report.run_id), register_as, tracking_uri=options["tracking_uri"])
        except AdkEvalError as error:
            again = command("register", report.run_id, register_as, tracking_uri=options["tracking_uri"])
            trouble += f"{trouble and chr(10)}run {report.run_id} is complete, but not registered: {error}\nregister it with: {again}"
    then = "" if as_json else _next_command(report, paths, register_as, options)
    show_report(report, detailed=detailed, as_json=as_json, extra=extra, then=then, trouble=trouble)


def _next_command(report: Report, paths: str | list[str], register_as: str | None, options: dict[str, Any]) -> str:
    """Return what to run after an evaluation: after a pass the gate, with the policy if that is there and can decide on this run."""
    from mlflow_adk_eval.evalset.files import split_selection  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.results.report import COMPARED_WITH_ITSELF  # noqa: PLC0415

    at, run_id = {"tracking_uri": options["tracking_uri"]}, report.run_id or ""
    if report.verdict == "failed":
        return f"{after_failure(run_id, **at)}, or {command('view', **at)}"
    if report.verdict == "undecided":
        return _how_to_decide(report, options)
    if COMPARED_WITH_ITSELF in report.notes:
        return ""  # no gate takes it for evidence
    if report.eval_set.picked_from and options["policy"] is None:  # which may pin just these cases
        return "run the whole eval set; the gate does not decide on a part of it"
    gate, first = command("gate", run_id, **at), Path(split_selection(paths if isinstance(paths, str) else paths[0])[0])
    policy_file = options["policy"] or (first if first.is_dir() else first.parent) / "gate.yaml"  # where `init` writes it
    if not policy_file.is_file():
        return gate
    from mlflow_adk_eval.gating.policy.load import load_policy  # noqa: PLC0415 - only where there is one

    try:
        policy = load_policy(policy_file)
    except AdkEvalError:
        return command("validate", policy_file)
    source = policy.baseline if policy.compares else None
    model = (source.model or register_as) if source and not source.run else register_as
    if policy.criteria - set(report.criteria) or (source and not source.run and model is None):
        return gate  # the policy is for another config, or for the versions of a model that nobody has named
    words = ["--policy", str(policy_file), *(["--model", model] if model and source and not source.model else [])]
    return f"{gate} {shlex.join(words)}" if model == register_as else command("register", run_id, model, **at)  # which may not exist yet


def _how_to_decide(report: Report, options: dict[str, Any]) -> str:
    """Return what to run after an undecided evaluation: what gets the missing scores, else what says why they are missing."""
    from mlflow_adk_eval.report.findings import causes_of  # noqa: PLC0415 - only where something is missing

    run_id, ledger = report.run_id or "", options["ledger"]
    if report.judging and ledger != "off":
        rejudged = options["rejudge_failed"]
        again = after_undecided(report, ledger=ledger, rejudged=rejudged, resume=f"--resume {run_id}")
        if again:
            return again
    if any("api key" in cause.text.lower() for cause in causes_of(report).found):
        key = "set the key of the agent's model, such as GOOGLE_API_KEY, or put it into the agent's .env file"
        return f"{key}; then run the same command"
    return f"{command('report', run_id, tracking_uri=options['tracking_uri'])}, for what is missing and why"


def _page(run_id: str, tracking_uri: str | None) -> str | None:
    """Return where a browser shows a run; ``None`` where MLflow went away after it was logged."""
    from mlflow_adk_eval.errors import TrackingError  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.tracking.client import page_of  # noqa: PLC0415

    with suppress(TrackingError):
        return page_of(run_id, tracking_uri=tracking_uri)
    return None


_ON_SPARK = ("agent_version", "experiment", "run_name", "traces", "register_prompts", "signing_key", "tracking_uri")
_MADE_OF_IT = ("detailed", "as_json", "agent_output", "log_level", "register_as", "save_recording", "eval_storage_uri")
"""What becomes of a report, wherever it was made."""


def _on_spark(path: str | list[str], staging: str | None, options: dict[str, Any]) -> adk_eval.Report:
    """Score recorded rows on Spark."""
    from mlflow_adk_eval import spark  # noqa: PLC0415
    from mlflow_adk_eval.evalset.files import file_at  # noqa: PLC0415

    context = click.get_current_context()
    taken = {*_ON_SPARK, *_MADE_OF_IT, *shared.JUDGE_OPTIONS, "agent", "config", "backend", "staging"}
    for parameter in context.command.params:
        if parameter.name not in taken and parameter.name and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"{parameter.get_error_hint(context)}: --backend spark scores recordings, and takes none")
    if staging is None:
        raise UsageError("--backend spark needs --staging, a folder that driver and executors share")
    config = adk_eval.load_config(options["config"], beside=file_at(str(path)).folder)
    judging = shared.arguments({name: options[name] for name in shared.JUDGE_OPTIONS})
    logging_options = {name: options[name] for name in _ON_SPARK}
    eval_set_id = PurePath(str(path)).name.removesuffix(".parquet")
    return spark.evaluate(spark.frame_of(str(path)), config, staging, eval_set_id=eval_set_id, **logging_options, **judging)


@click.command(epilog=shared.EXIT_CODES, cls=Command)
@click.argument("eval_set", metavar="EVAL_SET[:CASE,CASE]")
@option(
    "--actual",
    help="The agent's conversations: a recording, an eval set, ADK's result file, or runs:/ID. Default: those in EVAL_SET, if it is "
    "JSON Lines or Parquet.",
)
@shared.config_option
@shared.baseline_option
@shared.workers_option
@shared.detailed_option
@shared.mlflow_options
@agent_output_option
@shared.judges_group
def score(
    eval_set: str, *, actual: str | None, config: Path | None, detailed: bool, tracking_uri: str | None, as_json: bool, **options: Any
) -> None:
    """Score recorded conversations without running an agent.

    Logs nothing to MLflow.
    """
    from mlflow_adk_eval.report.console import progress_bar  # noqa: PLC0415 - `--help` stays fast

    baseline = options.pop("baseline")
    compared = None if baseline is None else _recording(baseline, tracking_uri)
    with (
        agent_output(options.pop("agent_output")) as aside,
        progress_bar("scoring", shown=not (as_json or aside.shown), screen=aside.screens[1]) as progress,
    ):
        recorded = None if actual is None else _recording(actual, tracking_uri)
        report = adk_eval.score(eval_set, recorded, config, progress=progress, baseline=compared, **shared.arguments(options))
    written = {"agent_output": str(aside.path)} if aside.path and (as_json or report.verdict != "passed") else None
    words = [eval_set] if actual is None else [actual, eval_set]
    then = ""
    if report.verdict == "undecided" and report.judging:
        then = after_undecided(report, ledger=options["ledger"], rejudged=options["rejudge_failed"])
    if not then:  # which logs what was scored, for the gate
        then = command("run", *words, config=config, baseline=baseline, tracking_uri=tracking_uri)
    show_report(report, detailed=detailed, as_json=as_json, extra=written, then=then)


def _recording(source: str, tracking_uri: str | None) -> adk_eval.Recording | str:
    """Return what the agent did in the run that ``runs:/ID`` names; the path of a file as it is."""
    if not source.startswith("runs:/"):
        return source
    from mlflow_adk_eval.tracking.earlier_runs import recording_of_run  # noqa: PLC0415 - files can be scored without MLflow

    return recording_of_run(source.removeprefix("runs:/"), tracking_uri)


@click.command(epilog=shared.NO_VERDICT)
@click.argument("folder", type=shared.PATH)
@shared.mlflow_options
def upload(folder: Path, *, tracking_uri: str | None, as_json: bool) -> None:
    """Finish logging a run after MLflow was unreachable."""
    run_id = adk_eval.upload(folder, tracking_uri=tracking_uri)
    page = _page(run_id, tracking_uri)
    text = f"run {run_id} is complete; you can delete {folder}" + (f"\npage: {page}" if page else "")
    tell(text, as_json=as_json, then=command("gate", run_id, tracking_uri=tracking_uri), run_id=run_id, page=page)


@click.command("register", epilog=shared.NO_VERDICT)
@click.argument("run_id")
@click.argument("name")
@shared.mlflow_options
def register_command(run_id: str, name: str, *, tracking_uri: str | None, as_json: bool) -> None:
    """Register the agent that RUN_ID evaluated as a version of the model NAME.

    Like `run --register`, but for a complete run.
    """
    version = adk_eval.register(run_id, name, tracking_uri=tracking_uri)
    text = f"version {version} of {name} is the agent of run {run_id}"
    then = command("promote", name, version=version, run_id=run_id, tracking_uri=tracking_uri)
    tell(text, as_json=as_json, then=then, model=name, version=version, run_id=run_id)


_ENDINGS = (".json", ".jsonl", ".yaml", ".yml", ".parquet", ".md", ".txt", ".toml")
_WRITTEN = ("mlruns", "mlartifacts", "adk_eval_pending")
"""The folders that an evaluation itself writes to."""


def watch(named: Iterable[str | Path], tracking_uri: str | None) -> None:
    """Evaluate by this process's own command line until it is interrupted, and tell what flipped each time.

    Args:
        named: what to watch besides the working directory: the agent, eval sets and the config, where they are paths.
        tracking_uri: where the runs are.

    Raises:
        UsageError: if the extra is not installed, or JSON is asked for.
    """
    from mlflow_adk_eval.runtime import require_extra  # noqa: PLC0415 - `--help` stays fast

    if "--json" in sys.argv:
        raise UsageError("--watch cannot be combined with --json")
    with require_extra("watch", "--watch"):
        from watchfiles import DefaultFilter, PythonFilter  # noqa: PLC0415 - an extra
        from watchfiles import watch as changed  # noqa: PLC0415

    relevant = PythonFilter(extra_extensions=_ENDINGS)
    relevant.ignore_dirs = [*DefaultFilter.ignore_dirs, *_WRITTEN, ".adk_eval"]
    paths = {Path.cwd(), *(Path(name).resolve() for name in named if Path(name).exists())}
    command = [sys.executable, "-m", "mlflow_adk_eval", *(word for word in sys.argv[1:] if word != "--watch"), "--json"]
    last, started = "", False
    try:
        # Watching begins before the first evaluation, so that no change is missed during one.
        for changes in changed(*paths, watch_filter=relevant, yield_on_timeout=True, rust_timeout=500):
            if not changes and started:
                continue
            started = True
            ended = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603 - our own command line
            report: dict[str, Any] = {}
            with suppress(ValueError):
                report = json.loads(ended.stdout)
            if run_id := report.get("run_id"):
                click.echo(f"{report['verdict']}: {'; '.join(report['reasons']) or 'every case'} (run {run_id})")
                if last:
                    _tell_flips(last, run_id, tracking_uri)
                last = run_id
            click.echo("watching for changes; Ctrl-C stops")
    except KeyboardInterrupt:
        click.echo("stopped watching")


def _tell_flips(before: str, after: str, tracking_uri: str | None) -> None:
    """Print which cases flipped from one run to the next."""
    from mlflow_adk_eval.report.comparison import HEADINGS, headline  # noqa: PLC0415 - most runs are not watched

    comparison = adk_eval.compare(before, after, tracking_uri=tracking_uri)
    click.echo(headline(comparison))
    for flip in ("worse", "better", "undecided"):
        if named := [case.eval_id for case in comparison.cases if case.flip == flip]:
            click.echo(f"  {HEADINGS[flip]}: {', '.join(named)}")
