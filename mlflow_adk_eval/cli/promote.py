"""``mlflow-adk-eval promote`` and ``rollback``: the two commands that move an alias, and how a champion is evaluated again for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from cloup import Command

from mlflow_adk_eval.cli.options import (
    EXIT_CODES,
    agent_path,
    arguments,
    check_published,
    config_option,
    dry_run_option,
    json_option,
    judges_group,
    policy_option,
    published_options,
    signing_options,
    store_option,
    together,
    wait_option,
)
from mlflow_adk_eval.cli.output import show_decision
from mlflow_adk_eval.errors import UsageError

if TYPE_CHECKING:
    from mlflow_adk_eval.gating.baseline.comparable import Reevaluate, ReevaluationRequest

reevaluation_options = together(
    click.option(
        "--reevaluate", is_flag=True, help="Judge the champion's conversations again if its run used other cases, judges or criteria."
    ),
    click.option("--champion-agent", metavar="AGENT", help="The champion in runnable form, to repeat its conversations in that case."),
    click.option(
        "--eval-set",
        metavar="EVAL_SET",
        multiple=True,
        help="With --reevaluate: the eval set of the run, as for `run`. Default: what the policy pins.",
    ),
    config_option,
    judges_group,
)
"""Whether and how a champion is evaluated again that cannot be compared as it is."""


def reevaluator(options: dict[str, Any], tracking_uri: str | None, *, shown: bool) -> Reevaluate | None:
    """Return what evaluates a champion again.

    Args:
        options: the values of `reevaluation_options`.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.
        shown: whether to show a progress bar.

    Returns:
        The function, for the API; ``None`` if the options ask for nothing.

    Raises:
        UsageError: for a file that cannot be read, or files that nothing is evaluated by.
    """
    given = arguments(options)
    wanted, agent = given.pop("reevaluate"), given.pop("champion_agent")
    names, config = given.pop("eval_set"), given.pop("config")
    if not wanted and agent is None:
        if names or config:
            raise UsageError("--eval-set and --config_file_path are for --reevaluate or --champion-agent; add one of these")
        return None
    from mlflow_adk_eval.config.eval_config import load_config  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.config.inputs import load_inputs  # noqa: PLC0415

    # At once, so that a mistake in a file is one of usage and no undecided comparison.
    eval_set, config = load_inputs(list(names), config) if names else (None, config and load_config(config))

    def reevaluate(request: ReevaluationRequest) -> str:
        from mlflow_adk_eval.report.console import progress_bar  # noqa: PLC0415 - `--help` stays fast
        from mlflow_adk_eval.tracking.reevaluate import reevaluation  # noqa: PLC0415

        with progress_bar(f"evaluating {request.agent_version} again", shown=shown) as progress:
            again = reevaluation(
                agent and agent_path(agent), eval_set=eval_set, config=config, **given, tracking_uri=tracking_uri, progress=progress
            )
            return again(request)

    return reevaluate


@click.command("promote", epilog=EXIT_CODES, cls=Command)
@click.argument("model")
@click.option("--version", required=True, help="The version to promote.")
@click.option("--alias", default="champion", show_default=True, help="The alias to set.")
@click.option("--run-id", required=True, help="The evaluation run of this version.")
@policy_option
@reevaluation_options
@dry_run_option
@wait_option
@signing_options
@published_options
@store_option
@json_option
def promote_command(
    model: str, *, version: str, alias: str, dry_run: bool, summary: Path | None, junit: Path | None, as_json: bool, **options: Any
) -> None:
    """Set an alias on a version of MODEL if its run passes the gate."""
    from mlflow_adk_eval.gating.api import promote as decide  # noqa: PLC0415 - `--help` stays fast

    check_published(summary, junit)
    how = {name: options.pop(name) for name in ("run_id", "policy", "wait_s", "signing_key", "verify_key", "checkpoint", "tracking_uri")}
    reevaluate = reevaluator(options, how["tracking_uri"], shown=not as_json)
    decision = decide(model, version, alias, **how, dry_run=dry_run, reevaluate=reevaluate, raise_on_failure=False)
    moved = decision.passed and not dry_run
    outcome = f"{alias} is now version {version} of {model}" if moved else f"{alias} was not moved{' (dry run)' if dry_run else ''}"
    extra = {"model": model, "version": version, "alias": alias, "moved": moved}
    title = f"version {version} of {model} as {alias}"
    then = f"mlflow-adk-eval gate verify {model} --alias {alias}" if moved else ""
    if not decision.passed:
        against = f"compare {decision.baseline_run_id} {how['run_id']}" if decision.baseline_run_id else f"report {how['run_id']}"
        then = f"mlflow-adk-eval {against}"
    show_decision(decision, as_json=as_json, title=title, outcome=outcome, extra=extra, summary=summary, junit=junit, then=then)


@click.command("rollback", epilog=EXIT_CODES)
@click.argument("model")
@click.option("--alias", default="champion", show_default=True, help="The alias to move back.")
@click.option("--to", metavar="VERSION", help="The version to return to. Default: the previous one whose record verifies.")
@click.option("--reason", required=True, help="The reason, for the record.")
@dry_run_option
@wait_option
@signing_options
@store_option
@json_option
def rollback_command(model: str, *, alias: str, reason: str, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Move an alias of MODEL back to the version before.

    That version must have held the alias, and its record must still verify.
    """
    from mlflow_adk_eval.gating.api import rollback  # noqa: PLC0415 - `--help` stays fast

    move = rollback(model, alias, reason=reason, dry_run=dry_run, raise_on_failure=False, **options)
    extra = {
        "model": model,
        "alias": alias,
        "previous": move.previous,
        "version": move.version,
        "moved": move.decision.passed and not dry_run,
        "reason": reason,
    }
    outcome = f"{move}{' (dry run: it was not moved)' if dry_run and move.version else ''}"
    show_decision(move.decision, as_json=as_json, title=f"rollback of {alias} of {model}", outcome=outcome, extra=extra)
