"""The commands that decide on a run: ``gate`` and ``promote``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_adk_eval.cli.decision import conclude, policy_option, published_options
from mlflow_adk_eval.cli.options import (
    EXIT_CODES,
    agent_path,
    json_option,
    judge_options,
    judging,
    signing_key_option,
    store_option,
)

if TYPE_CHECKING:
    from mlflow_adk_eval.gating.baseline.comparable import Reevaluate, ReevaluationRequest

Command = Callable[..., Any]


def reevaluation_options(command: Command) -> Command:
    """Add whether and how a champion is evaluated anew that cannot be compared as it is."""
    again = click.option(
        "--reevaluate", is_flag=True, help="Judge again what the champion did, if its run used other cases, judges or criteria."
    )
    live = click.option(
        "--champion-agent",
        "--champion_agent",
        "champion_agent",
        metavar="AGENT",
        help="The champion as it can be run, to have its conversations anew in that case.",
    )
    return again(live(judge_options(command)))


def reevaluator(options: dict[str, Any], tracking_uri: str | None, *, shown: bool) -> Reevaluate | None:
    """Return what evaluates a champion anew as the options of `reevaluation_options` say; ``None`` if they ask for nothing."""
    judged, wanted, agent = judging(options), options.pop("reevaluate"), options.pop("champion_agent")
    if not wanted and agent is None:
        return None
    judged = {name: judged[name] for name in ("judge", "judge_options", "budget", "rejudge_failed", "ledger")}

    def reevaluate(rematch: ReevaluationRequest) -> str:
        from mlflow_adk_eval.report.console import progress_bar  # noqa: PLC0415 - `--help` stays fast
        from mlflow_adk_eval.tracking.reevaluate import reevaluation  # noqa: PLC0415

        with progress_bar(f"evaluating {rematch.agent_version} anew", shown=shown) as progress:
            return reevaluation(agent and agent_path(agent), **judged, tracking_uri=tracking_uri, progress=progress)(rematch)

    return reevaluate


@click.command("gate", epilog=EXIT_CODES)
@click.argument("run_id")
@policy_option
@click.option(
    "--baseline", metavar="runs:/ID|models:/NAME@ALIAS", help="What the run is compared with. Default: what the policy's baseline says."
)
@click.option("--model", metavar="NAME", help="The registered model whose champion it is compared with, if the policy does not say.")
@reevaluation_options
@published_options
@store_option
@json_option
def gate_command(
    run_id: str,
    *,
    policy: Path | None,
    baseline: str | None,
    model: str | None,
    summary: Path | None,
    junit: Path | None,
    tracking_uri: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Decide from the evidence of RUN_ID whether the agent is good enough. Nothing is changed."""
    from mlflow_adk_eval.gating.api import gate as decide  # noqa: PLC0415 - `--help` stays fast

    compared: dict[str, Any] = {"baseline": baseline, "model": model, "tracking_uri": tracking_uri}
    reevaluate = reevaluator(options, tracking_uri, shown=not as_json)
    decision = decide(run_id, policy, **compared, reevaluate=reevaluate, raise_on_failure=False)
    conclude(decision, as_json=as_json, summary=summary, junit=junit)


@click.command("promote", epilog=EXIT_CODES)
@click.argument("model")
@click.option("--version", required=True, help="The version to promote.")
@click.option("--alias", default="champion", show_default=True, help="The alias to set.")
@click.option("--run-id", "--run_id", "run_id", required=True, help="The evaluation run of this version.")
@policy_option
@reevaluation_options
@click.option("--dry-run", "--dry_run", "dry_run", is_flag=True, help="Decide, but change nothing in the registry.")
@signing_key_option
@published_options
@store_option
@json_option
def promote_command(  # noqa: PLR0913 - its options
    model: str,
    *,
    version: str,
    alias: str,
    run_id: str,
    policy: Path | None,
    dry_run: bool,
    signing_key: str | None,
    summary: Path | None,
    junit: Path | None,
    tracking_uri: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Set an alias on a version of MODEL, if its evaluation run allows it."""
    from mlflow_adk_eval.gating.api import promote as decide  # noqa: PLC0415 - `--help` stays fast

    how: dict[str, Any] = {"run_id": run_id, "policy": policy, "dry_run": dry_run, "signing_key": signing_key, "tracking_uri": tracking_uri}
    reevaluate = reevaluator(options, tracking_uri, shown=not as_json)
    decision = decide(model, version, alias, **how, reevaluate=reevaluate, raise_on_failure=False)
    moved = decision.passed and not dry_run
    done = f"{alias} is now version {version} of {model}" if moved else f"{alias} was not moved{' (dry run)' if dry_run else ''}"
    title = f"version {version} of {model} as {alias}"
    extra = {"model": model, "version": version, "alias": alias, "moved": moved}
    conclude(decision, as_json=as_json, title=title, done=done, extra=extra, summary=summary, junit=junit)
