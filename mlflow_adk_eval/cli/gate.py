"""The commands that look after aliases once they are set: ``gate verify``, ``gate audit``, ``gate keygen``, ``verify``, ``rollback``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_adk_eval.cli.decision import conclude
from mlflow_adk_eval.cli.options import EXIT_CODES, json_option, signing_key_option, store_option, verify_key_option
from mlflow_adk_eval.cli.promote import gate_command
from mlflow_adk_eval.errors import UsageError

if TYPE_CHECKING:
    from mlflow_adk_eval.gating.promotion.aliases import AliasAudit

_INVALID = 1
_AUDITED = """\b
Exit codes:
  0   each alias is at a version whose record verifies
  1   an alias is not, or was not before it was restored
  3   MLflow is unreachable
  64  bad usage
"""


class _RunOrCommand(click.Group):
    """A group whose first word may be the id of a run instead of a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Decide on a run, where no command is named."""
        words = {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if args and args[0] in words else ["run", *args])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Tell the options of deciding on a run, which is what most are here for, before the other commands."""
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
    """Decide from the evidence of a run whether the agent is good enough, or look after the aliases that were set."""


gate_group.add_command(gate_command, "run")


@gate_group.command("verify", epilog=EXIT_CODES)
@click.argument("model")
@click.argument("version", required=False)
@click.option("--alias", help="The alias whose promotion is checked. Default: champion, or the last decision on VERSION.")
@verify_key_option
@store_option
@json_option
def gate_verify(
    model: str, version: str | None, *, alias: str | None, verify_key: str | None, tracking_uri: str | None, as_json: bool
) -> None:
    """Decide again on a promoted VERSION of MODEL, or on its champion, from the record and the evidence as they are today."""
    _verify(model, version, alias, verify_key, tracking_uri, as_json=as_json)


@click.command("verify", epilog=EXIT_CODES)
@click.argument("model")
@click.option("--version", help="The version to verify. Default: the one that holds the alias.")
@click.option("--alias", help="The alias whose promotion is checked. Default: champion, or the last decision on the version.")
@verify_key_option
@store_option
@json_option
def verify_command(
    model: str, *, version: str | None, alias: str | None, verify_key: str | None, tracking_uri: str | None, as_json: bool
) -> None:
    """Check again that a promoted version of MODEL was promoted on evidence that still holds."""
    _verify(model, version, alias, verify_key, tracking_uri, as_json=as_json)


def _verify(model: str, version: str | None, alias: str | None, verify_key: str | None, tracking_uri: str | None, *, as_json: bool) -> None:
    from mlflow_adk_eval.gating.api import verify  # noqa: PLC0415 - `--help` stays fast

    chosen = alias or (None if version else "champion")
    decision = verify(model, version, alias=chosen, verify_key=verify_key, tracking_uri=tracking_uri)
    conclude(decision, as_json=as_json, title=f"{'version ' + version if version else chosen} of {model}, verified")


@gate_group.command("audit", epilog=_AUDITED)
@click.argument("model", required=False)
@click.option("--all", "every", is_flag=True, help="All registered models.")
@click.option("--alias", help="Only this alias, which must be set. Default: each that was ever promoted.")
@click.option("--restore", is_flag=True, help="Move what is not valid back to the last version whose record verifies.")
@verify_key_option
@signing_key_option
@store_option
@json_option
def gate_audit(
    model: str | None,
    *,
    every: bool,
    alias: str | None,
    restore: bool,
    verify_key: str | None,
    signing_key: str | None,
    tracking_uri: str | None,
    as_json: bool,
) -> None:
    """Find aliases of MODEL that were moved without a record that verifies today."""
    from mlflow_adk_eval.gating.api import audit  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.report.console import audit_view, console  # noqa: PLC0415

    if every == (model is not None):
        raise UsageError("gate audit: wanted the name of a registered model, or --all")
    keys = {"verify_key": verify_key, "signing_key": signing_key}
    found = audit(model, alias, restore=restore, **keys, tracking_uri=tracking_uri)
    if as_json:
        click.echo(json.dumps(_audit_json(found), ensure_ascii=False, indent=2))
    else:
        console().print(audit_view(found))
    sys.exit(0 if all(each.valid for each in found) else _INVALID)


def _audit_json(found: Sequence[AliasAudit]) -> dict[str, Any]:
    return {"valid": all(each.valid for each in found), "aliases": [asdict(each) for each in found]}


@gate_group.command("keygen")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The file for the key, such as gate.pem.")
def gate_keygen(output: Path) -> None:
    """Make an ed25519 key that signs records; its public part, by which they are verified, goes beside it."""
    from mlflow_adk_eval.gating.promotion.signing import SIGNING_KEY, VERIFY_KEY, make_key  # noqa: PLC0415 - `--help` stays fast

    public = make_key(output)
    click.echo(f"{SIGNING_KEY}={output}   for those who promote; keep it secret")
    click.echo(f"{VERIFY_KEY}={public}   for those who verify and audit")


@click.command("rollback", epilog=EXIT_CODES)
@click.argument("model")
@click.option("--alias", default="champion", show_default=True, help="The alias to take back.")
@click.option("--to", metavar="VERSION", help="The version to go back to. Default: the last one before whose record verifies.")
@click.option("--reason", required=True, help="Why, for the record.")
@click.option("--dry-run", "--dry_run", "dry_run", is_flag=True, help="Say which version that would be, but change nothing.")
@verify_key_option
@signing_key_option
@store_option
@json_option
def rollback_command(  # noqa: PLR0913 - its options
    model: str,
    *,
    alias: str,
    to: str | None,
    reason: str,
    dry_run: bool,
    verify_key: str | None,
    signing_key: str | None,
    tracking_uri: str | None,
    as_json: bool,
) -> None:
    """Take an alias of MODEL back to the version that held it before and whose record still verifies."""
    from mlflow_adk_eval.gating.api import rollback  # noqa: PLC0415 - `--help` stays fast

    keys = {"verify_key": verify_key, "signing_key": signing_key}
    move = rollback(model, alias, to=to, reason=reason, dry_run=dry_run, raise_on_failure=False, **keys, tracking_uri=tracking_uri)
    extra = {
        "model": model,
        "alias": alias,
        "previous": move.previous,
        "version": move.version,
        "moved": move.decision.passed and not dry_run,
        "reason": reason,
    }
    done = f"{move}{' (dry run: it was not moved)' if dry_run and move.version else ''}"
    conclude(move.decision, as_json=as_json, title=f"rollback of {alias} of {model}", done=done, extra=extra)
