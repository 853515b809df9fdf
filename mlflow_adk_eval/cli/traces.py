"""``mlflow-adk-eval traces``: the traces of production, scored where they are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli import options as shared
from mlflow_adk_eval.cli.next_step import after_undecided
from mlflow_adk_eval.cli.output import end, tell, write_table
from mlflow_adk_eval.errors import RunError, UsageError
from mlflow_adk_eval.redact import command
from mlflow_adk_eval.text import counted, listed, plain

if TYPE_CHECKING:
    from mlflow_adk_eval.production.draw import Rate
    from mlflow_adk_eval.production.score import ScoredTraces

_CODES = {"passed": 0, "failed": 1, "undecided": 2}
_MOST_NAMED = 5

config_options = shared.together(
    click.option(
        "--criteria",
        metavar="NAME=THRESHOLD,...",
        help="Criteria with their thresholds, such as hallucinations_v1=0.8,token_usage_v1=2000. Instead of a config.",
    ),
    click.option("--config-file-path", "--config", "config", type=shared.PATH, help="The eval config."),
)
"""What to score by, of commands that score traces."""


@click.group("traces")
def traces_group() -> None:
    """Score production traces in MLflow, and act on the scores."""


@traces_group.command(
    epilog=shared.exit_codes(
        "done, or the pass rate reached --fail-below; 1 it is lower; 2 undecided, because conversations could not be evaluated",
        "MLflow or a judge was unreachable, or the command was interrupted",
    )
)
@click.argument("experiment", required=False)
@config_options
@click.option("--since", metavar="24h|TIME", help="Conversations that began at most so long ago, or since an ISO time. Default: all.")
@click.option("--until", metavar="1h|TIME", help="Conversations that began before. Default: now.")
@click.option("--filter", "filter_string", metavar="FILTER", help="Conversations with a trace that matches an MLflow filter.")
@click.option(
    "--sample", type=click.IntRange(min=0), default=200, show_default=True, help="The most conversations to score; 0: all of them."
)
@click.option("--again", is_flag=True, help="Also score conversations that have scores by this config.")
@click.option("--fail-below", type=click.FloatRange(0, 1), metavar="RATE", help="Exit with 1 if the pass rate is lower.")
@click.option("--agent-version", metavar="VERSION", help="The version of the agent, as for `run`. Default: the agent's name in the traces.")
@click.option("--run-name", help="The name of the MLflow run.")
@shared.mlflow_options
@shared.judges_group
def score(experiment: str | None, *, sample: int, fail_below: float | None, as_json: bool, **options: Any) -> None:
    """Score the conversations in EXPERIMENT, and write the scores on their traces.

    Draws a sample in which conversations with errors, thumbs-down, or high latency or cost are more frequent. Pass rates are weighted, so they are
    estimates for all conversations. Conversations that this config scored before are left out. EXPERIMENT is a name or id; default: the active one.
    """
    from mlflow_adk_eval.report.console import progress_bar  # noqa: PLC0415 - `--help` stays fast

    by = config_of(options)
    with progress_bar("scoring", shown=not as_json) as progress:
        scored = adk_eval.score_traces(experiment, by, sample=sample or None, progress=progress, **shared.arguments(options))
    rate = scored.rates.get("")
    then = ""
    if scored.report and any(rate.value is not None and rate.value < 1 for rate in scored.rates.values()):
        then = command("traces", "to-cases", scored.report.run_id, "--failed", output="failures.evalset.json")
    elif scored.report and scored.report.verdict == "undecided":
        then = after_undecided(
            scored.report,
            ledger=options["ledger"],
            rejudged=options["rejudge_failed"],
            resume="--again",
        )
    tell("\n".join(lines_of(scored)), as_json=as_json, then=then, **facts_of(scored))
    if fail_below is not None:
        end(_CODES[rate.against(fail_below) if rate else "undecided"])


@traces_group.command("to-cases", epilog=shared.NO_VERDICT)
@click.argument("source", metavar="RUN_ID|EXPERIMENT")
@click.option("--failed", is_flag=True, help="Only failed conversations, and of those only some for each cause. Default: all.")
@click.option("--per-cause", type=shared.COUNT, default=1, show_default=True, help="With --failed, the cases for each cause.")
@click.option("--beside", type=shared.PATH, metavar="FILE", help="Leave out conversations that this eval set has.")
@click.option("-o", "--output", required=True, type=shared.PATH, help="The eval set to write.")
@click.option("--labels", type=shared.PATH, metavar="FILE", help="Also write people's labels on judged criteria, for `calibrate --labels`.")
@shared.redact_option
@shared.force_option
@shared.mlflow_options
def to_cases(source: str, *, output: Path, labels: Path | None, redact: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """Turn conversations of a production run into eval cases.

    RUN_ID is a run of `traces score`; of an EXPERIMENT, the latest counts. Each case has the user's messages and the tag "open", until you write what is
    expected and remove the tag. An expectation "expected_response" that a person wrote on the trace in MLflow becomes the expected response.
    """
    from mlflow_adk_eval.evalset.files import stem_of, write_eval_set  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.evalset.models import OPEN  # noqa: PLC0415

    shared.check_output(output, force=force)
    shared.check_output(labels, force=force)
    made = adk_eval.cases_from_traces(source, redact=shared.redact_function(redact), eval_set_id=stem_of(output), **options)
    cases = made.eval_set.eval_cases
    opened = sum(OPEN in case.tags for case in cases)
    of = counted(made.conversations, "failed conversation" if options["failed"] else "conversation")
    lines = [f"run: {made.run_id}", f"{output}: {counted(len(cases), 'case')} from {of}" if cases else f"{of}, no new case"]
    if cases:
        write_eval_set(made.eval_set, output)
    notes = [cause + (f": {listed(eval_ids, _MOST_NAMED)}" if eval_ids else "") for cause, eval_ids in made.causes.items()]
    notes += [f"left out: {name}, in which the user says the same as in case {same}" for name, same in made.duplicates.items()]
    notes += [f"not used: {reason}" for reason in made.unread]
    lines += [f"  {plain(note, escapes={})}" for note in notes]
    if labels and made.labels:
        write_table(labels, made.labels)
    lines += [f"{labels}: {counted(len(made.labels), 'label')}"] if labels and made.labels else []
    then = f'write what {counted(opened, "open case")} should expect, and remove the tag "{OPEN}"' if opened else ""
    facts = {"run_id": made.run_id, "conversations": made.conversations, "causes": made.causes, "duplicates": made.duplicates}
    counts = {"cases": len(cases), "open": opened, "labels": len(made.labels), "unread": made.unread}
    tell("\n".join(lines), as_json=as_json, then=then, file=str(output) if cases else None, **facts, **counts)


@traces_group.command(
    epilog="Exit codes: 0 no alarm; 1 an alarm about the agent; 2 an alarm about a judge, or nobody knows yet; 3 MLflow or a judge was unreachable;"
    " 4 the webhook did not take an alarm; 64 bad usage or a bad input file."
)
@click.argument("experiment", required=False)
@config_options
@click.option("--model", metavar="NAME", help="The registered model in production: its promotion sets levels, its version shows alarms.")
@click.option("--alias", default="champion", show_default=True, help="The alias of the version in production.")
@click.option("--level", metavar="RATE|RUN", help="The share of conversations to pass, such as 0.9, or a run with these shares.")
@click.option("--slice", "parts", metavar="NAME=VALUE", multiple=True, help="Also watch traces with this tag or metadata. Repeatable.")
@click.option("--since", metavar="24h|TIME", default="24h", show_default=True, help="Where the first look begins.")
@click.option("--settle", metavar="30m", default="30m", show_default=True, help="Leave traces that are younger to the next look.")
@click.option("--filter", "filter_string", metavar="FILTER", help="Conversations with a trace that matches an MLflow filter.")
@click.option("--sample", type=click.IntRange(min=1), default=200, show_default=True, help="The most conversations to score in one look.")
@click.option("--every", metavar="1h", help="Look again and again, until you press Ctrl-C. Default: look once.")
@click.option("--webhook", metavar="URL", help="Send new alarms there. MLFLOW_ADK_EVAL_WEBHOOK_SECRET signs them as MLflow does.")
@click.option("--acknowledge", is_flag=True, help="Close the open alarms first.")
@click.option("--agent-version", metavar="VERSION", help="The version of the agent, as for `run`. Default: the agent's name in the traces.")
@shared.mlflow_options
@shared.judges_group
def watch(experiment: str | None, *, every: str | None, acknowledge: bool, as_json: bool, **options: Any) -> None:
    """Score what is new in EXPERIMENT since the last look, and tell if too few conversations pass.

    However often you look, a false alarm has a chance of at most 5 %. A stricter judge is not reported as a worse agent. What is known between
    looks is in MLflow. EXPERIMENT is a name or id; default: the active one.
    """
    from mlflow_adk_eval.production.score import config_for_traces, moment_of  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.production.watch import levels_of, look  # noqa: PLC0415

    by = config_for_traces(config_of(options))
    level, model, alias, uri = options.pop("level"), options.pop("model"), options.pop("alias"), options["tracking_uri"]
    how, pause_s = shared.arguments(options), -(moment_of(every, "every", 0) or 0) / 1000
    if every is not None and pause_s <= 0:
        raise UsageError(f"--every {every}: wanted a time between looks, such as 1h")
    while True:
        began = time.monotonic()
        try:
            levels = levels_of(level, by, model=model, alias=alias, tracking_uri=uri)
            found = look(experiment, by, levels, acknowledge=acknowledge, **how)
            code, acknowledge, questions = found.exit_code, False, found.open_questions
            told = [f"alarm: {found.state.alarm}" if found.state.alarm else "no alarm", *(f"open: {one}" for one in questions)]
            told += [f"note: {one}" for one in (*levels.notes, *found.notes)]
            then = command("rollback", model, "--propose", alias=alias, tracking_uri=uri) if model and code == 1 else ""
            facts = {**facts_of(found.scored), "alarms": found.state.told, "open": questions, "exit_code": code}
            tell("\n".join([*lines_of(found.scored), *told]), as_json=as_json, then=then, **facts)
        except RunError as error:
            if every is None:
                raise
            click.echo(f"error: {error}", err=True)
            code = error.exit_code
        if every is None:
            end(code)
        try:
            time.sleep(max(0.0, began + pause_s - time.monotonic()))
        except KeyboardInterrupt:
            end(code)


def config_of(options: dict[str, Any]) -> Any:
    """Take the two options that name a config out of all options, and return that config.

    Raises:
        UsageError: if it is not one of them, or is no list of criteria.
    """
    criteria: str | None = options.pop("criteria")
    config: Path | None = options.pop("config")
    if (criteria is None) == (config is None):
        raise UsageError("name what to score by: --criteria NAME=THRESHOLD,... or --config FILE, and not both")
    if criteria is None:
        return config
    thresholds: dict[str, float] = {}
    for entry in criteria.split(","):
        name, _, threshold = entry.strip().partition("=")
        try:
            thresholds[name] = float(threshold)
        except ValueError:
            raise UsageError(f"--criteria {entry.strip()}: wanted NAME=THRESHOLD, such as hallucinations_v1=0.8") from None
    return {"criteria": thresholds}


def facts_of(scored: ScoredTraces) -> dict[str, Any]:
    """Return what came of scoring traces as JSON values."""
    return {**scored.to_json(), "run_id": scored.report.run_id if scored.report else None, "assessments": scored.written}


def lines_of(scored: ScoredTraces) -> list[str]:
    """Return what came of scoring traces, line by line."""
    fresh = scored.found - scored.already
    lines = [f"{counted(scored.found, 'conversation')}: {scored.already:,} scored before, {scored.unfinished:,} not ended"]
    if not fresh:
        return [*lines, "nothing to score"]
    lines.append(f"scored {sum(one.drawn for one in scored.strata):,} of {fresh:,}")
    lines[-1] += ": " + ", ".join(f"{one.name} {one.drawn:,} of {one.conversations:,}" for one in scored.strata)
    if scored.rates:
        width = max(len(name) for name in scored.rates)
        lines += [f"  {name or 'passed':<{width}}  {_rate_text(rate)}" for name, rate in scored.rates.items()]
    lines += [f"  not read: {reason}" for reason in scored.unreadable[:_MOST_NAMED]]
    left = len(scored.unreadable) - _MOST_NAMED
    lines += [f"  and {left:,} more that could not be read"] if left > 0 else []
    return [*lines, f"{counted(scored.written, 'assessment')} written on the traces"] + (
        [f"run: {scored.report.run_id}"] if scored.report else []
    )


def _rate_text(rate: Rate) -> str:
    if rate.value is None or rate.low is None or rate.high is None:
        return f"not evaluated in {counted(rate.missing, 'conversation')}"
    missing = f", not evaluated: {rate.missing:,}" if rate.missing else ""
    return f"{rate.value:.1%} ({rate.low:.1%} to {rate.high:.1%}{missing})"
