"""``mlflow-adk-eval gate``: decide on a run; and ``gate verify``, ``audit`` and ``keygen``, which look after what was decided.

``gate RUN_ID`` is what nearly everybody wants, so the first word after ``gate`` is a run unless it names a command of the group.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from mlflow_adk_eval.cli.options import (
    EXIT_CODES,
    PATH,
    check_published,
    json_option,
    policy_option,
    published_options,
    signing_options,
    store_option,
    verify_options,
)
from mlflow_adk_eval.cli.output import end, print_json, show_decision, tell
from mlflow_adk_eval.cli.promote import reevaluation_options, reevaluator
from mlflow_adk_eval.errors import UsageError

_INVALID = 1
_AUDITED = """\b
Exit codes:
  0   every alias points to a version whose record verifies
  1   some alias does not, or did not until it was restored
  3   MLflow is unreachable
  4   the result could not be written
  64  bad usage
"""


@click.command("gate", epilog=EXIT_CODES)
@click.argument("run_id")
@policy_option
@click.option("--baseline", metavar="runs:/ID|models:/NAME@ALIAS", help="What to compare the run with. Default: the policy's baseline.")
@click.option("--model", metavar="NAME", help="The registered model whose champion is the baseline, if the policy names none.")
@reevaluation_options
@published_options
@store_option
@json_option
def gate_command(run_id: str, *, policy: Path | None, summary: Path | None, junit: Path | None, as_json: bool, **options: Any) -> None:
    """Decide from the evidence of RUN_ID whether the agent is good enough. Changes nothing."""
    from mlflow_adk_eval.gating.api import gate as decide  # noqa: PLC0415 - `--help` stays fast

    check_published(summary, junit)
    compared = {name: options.pop(name) for name in ("baseline", "model", "tracking_uri")}
    reevaluate = reevaluator(options, compared["tracking_uri"], shown=not as_json)
    decision = decide(run_id, policy, **compared, reevaluate=reevaluate, raise_on_failure=False)
    then = f"mlflow-adk-eval promote MODEL --version VERSION --run-id {run_id}" if decision.passed else f"mlflow-adk-eval report {run_id}"
    then += f" --policy {policy}" if decision.passed and policy else ""
    show_decision(decision, as_json=as_json, summary=summary, junit=junit, then=then)


class _RunOrCommand(click.Group):
    """A group whose first word may be the id of a run instead of a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Decide on a run, where no command is named."""
        words = {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if args and args[0] in words else ["run", *args])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options of deciding on a run, which most people are here for, before the other commands."""
        rows = [row for option in gate_command.params if isinstance(option, click.Option) and (row := option.get_help_record(ctx))]
        with formatter.section("Options after RUN_ID"):
            formatter.write_dl(rows)
        self.format_commands(ctx, formatter)


@click.group(
    "gate",
    cls=_RunOrCommand,
    options_metavar="",
    subcommand_metavar="RUN_ID [OPTIONS] | COMMAND [ARGS]...",
    epilog=EXIT_CODES,
)
def gate_group() -> None:
    """Decide whether a run is good enough, or check promotions."""


gate_group.add_command(gate_command, "run")


@gate_group.command("verify", epilog=EXIT_CODES)
@click.argument("model")
@click.argument("version", required=False)
@click.option("--alias", help="Check the promotion to this alias. Default: champion, or the last decision on the version.")
@policy_option
@verify_options
@store_option
@json_option
def gate_verify(model: str, *, version: str | None, alias: str | None, as_json: bool, **options: Any) -> None:
    """Check again that VERSION of MODEL, by default its champion, was promoted on evidence that still holds."""
    from mlflow_adk_eval.gating.api import verify  # noqa: PLC0415 - `--help` stays fast

    chosen = alias or (None if version else "champion")
    decision = verify(model, version, alias=chosen, **options)
    show_decision(decision, as_json=as_json, title=f"{f'version {version}' if version else chosen} of {model}, verified")


@gate_group.command("audit", epilog=_AUDITED)
@click.argument("model", required=False)
@click.option("--all", "every", is_flag=True, help="Audit all registered models.")
@click.option("--alias", help="Audit only this alias, which must be set. Default: every alias that was ever promoted.")
@click.option("--restore", is_flag=True, help="Show where aliases would be moved back that no claim set where they are.")
@click.option("--dry-run/--no-dry-run", default=True, show_default=True, help="With --restore: whether to leave them where they are.")
@signing_options
@store_option
@json_option
def gate_audit(model: str | None, *, every: bool, alias: str | None, as_json: bool, **options: Any) -> None:
    """Find aliases of MODEL that were moved without a record that verifies today."""
    from mlflow_adk_eval.gating.api import audit  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.report.console import audit_view, console  # noqa: PLC0415

    if every == (model is not None):
        raise UsageError("gate audit: wanted the name of a registered model, or --all")
    found = audit(model, alias, **options)
    valid = all(each.valid for each in found)
    if as_json:
        print_json({"valid": valid, "aliases": [asdict(each) for each in found]})
    else:
        console().print(audit_view(found))
    end(0 if valid else _INVALID)


@gate_group.command("keygen")
@click.option("-o", "--output", type=PATH, required=True, help="The file for the private key, such as gate.pem.")
@json_option
def gate_keygen(output: Path, *, as_json: bool) -> None:
    """Create an ed25519 key for signing records, and its public key, for verifying them, beside it."""
    from mlflow_adk_eval.gating.attestation.keys import SIGNING_KEY, VERIFY_KEY, make_key  # noqa: PLC0415 - `--help` stays fast

    public = make_key(output)
    told = f"{SIGNING_KEY}={output}   for those who promote; keep it secret\n{VERIFY_KEY}={public}   for those who verify and audit"
    tell(told, as_json=as_json, private_key=str(output), public_key=str(public))
