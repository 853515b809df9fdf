"""What decides, and what becomes of it: ``mlflow-adk-eval gate``, ``promote``, ``verify``, ``audit``, ``rollback``, ``attestation``, ``keygen``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from cloup import Command

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli import options as shared
from mlflow_adk_eval.cli.agent_output import agent_output
from mlflow_adk_eval.cli.next_step import after_failure, after_pass
from mlflow_adk_eval.cli.output import end, print_json, show_decision, tell
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.redact import command

if TYPE_CHECKING:
    from mlflow_adk_eval.gating.rules.comparable import Reevaluate, ReevaluationRequest
    from mlflow_adk_eval.gating.rules.holdout import HoldoutEvaluator, HoldoutRequest


reevaluation_options = shared.together(
    click.option(
        "--reevaluate", is_flag=True, help="Judge the champion's conversations again if its run used different cases, judges or criteria."
    ),
    click.option("--champion-agent", metavar="AGENT", help="The champion's agent, to run its conversations again instead."),
    click.option(
        "--eval-set",
        metavar="EVAL_SET",
        multiple=True,
        help="The run's eval set, as for `run`, to evaluate by. Default with --reevaluate: the one the policy pins.",
    ),
    shared.config_option,
    shared.judges_group,
)
"""Whether and how a champion is evaluated again that cannot be compared as it is."""


def evaluators(options: dict[str, Any], tracking_uri: str | None, *, shown: bool) -> tuple[Reevaluate | None, HoldoutEvaluator | None]:
    """Return what evaluates a champion again, and what scores held-out cases.

    Args:
        options: the values of `reevaluation_options`, perhaps with an `agent`.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        shown: whether to show a progress bar.

    Returns:
        Both, for the API; ``None`` for what the options do not ask for.

    Raises:
        UsageError: for a file that cannot be read, or files that nothing is evaluated by.
    """
    judging = shared.arguments(options)
    wanted, agent, names, config = (judging.pop(name) for name in ("reevaluate", "champion_agent", "eval_set", "config"))
    candidate = judging.pop("agent", None)
    if not wanted and agent is None and candidate is None:
        if names or config:
            raise UsageError("--eval-set and --config-file-path need --reevaluate, --champion-agent or, to promote, --agent")
        return None, None
    if candidate is not None and not names:
        raise UsageError("--agent needs --eval-set, with the cases that the policy holds out")
    from mlflow_adk_eval.agents.resolve import resolve_agent  # noqa: PLC0415
    from mlflow_adk_eval.config.inputs import load_inputs  # noqa: PLC0415

    # At once, so that a mistake in a name or file is one of usage and no undecided comparison.
    for each in filter(None, (agent, candidate)):
        with agent_output():
            resolve_agent(shared.agent_path(each))
    eval_set, config = load_inputs(list(names), config) if names else (None, config and adk_eval.load_config(config))
    judging.update(config=config, tracking_uri=tracking_uri)

    def reevaluate(request: ReevaluationRequest) -> str:
        from mlflow_adk_eval.report.console import progress_bar  # noqa: PLC0415 - `--help` stays fast

        with (
            agent_output() as aside,
            progress_bar(f"evaluating {request.agent_version} again", shown=shown and not aside.shown, screen=aside.screens[1]) as progress,
        ):
            return adk_eval.make_reevaluator(agent and shared.agent_path(agent), eval_set=eval_set, progress=progress, **judging)(request)

    def score(request: HoldoutRequest) -> str:
        with agent_output():
            return adk_eval.make_holdout_evaluator(shared.agent_path(str(candidate)), eval_set=eval_set or names, **judging)(request)

    return reevaluate if wanted or agent is not None else None, None if candidate is None else score


@click.command("promote", epilog=shared.EXIT_CODES, cls=Command)
@click.argument("model")
@click.option("--version", required=True, help="The version to promote.")
@click.option("--alias", default="champion", show_default=True, help="The alias to set.")
@click.option("--run-id", required=True, help="The evaluation run of this version.")
@shared.policy_option
@click.option("--agent", help="The agent of this version, with --eval-set: scores the cases that the policy holds out, if all else passes.")
@reevaluation_options
@shared.dry_run_option
@shared.wait_option
@shared.signing_options
@shared.published_options
@shared.mlflow_options
def promote_command(model: str, *, version: str, alias: str, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Set an alias on a version of MODEL if its run passes the gate."""
    files = shared.published(options)
    how = {name: options.pop(name) for name in ("run_id", "policy", "wait_s", "signing_key", "verify_key", "checkpoint", "tracking_uri")}
    reevaluate, holdout = evaluators(options, how["tracking_uri"], shown=not as_json)
    decision = adk_eval.promote(
        model, version, alias, **how, dry_run=dry_run, reevaluate=reevaluate, holdout=holdout, raise_on_failure=False
    )
    moved = decision.passed and not dry_run
    outcome = f"{alias} is now version {version} of {model}" if moved else f"{alias} was not moved{' (dry run)' if dry_run else ''}"
    extra = {"model": model, "version": version, "alias": alias, "moved": moved}
    title = f"version {version} of {model} as {alias}"
    uri, then, policy = how["tracking_uri"], "", how["policy"]
    if moved:
        then = command("verify", model, alias=alias, tracking_uri=uri)
    elif decision.passed:
        then = command("promote", model, version=version, alias=alias, run_id=decision.run_id, policy=policy, tracking_uri=uri)
    elif not as_json:
        then = after_failure(decision.run_id, uri, decision.baseline_run_id or None)
    show_decision(decision, as_json=as_json, title=title, outcome=outcome, extra=extra, then=then, files=files, basis=(policy, uri))


@click.command("rollback", epilog=shared.EXIT_CODES)
@click.argument("model")
@click.option("--alias", default="champion", show_default=True, help="The alias to move back.")
@click.option("--to", metavar="VERSION", help="The version to return to. Default: the last one whose promotion still verifies.")
@click.option("--reason", help="The reason, kept in the promotion record. With --propose: the open alarm of `traces watch`.")
@click.option("--propose", is_flag=True, help="Only say where the alias would go back to, why, and by which command.")
@shared.dry_run_option
@shared.wait_option
@shared.signing_options
@shared.mlflow_options
def rollback_command(model: str, *, alias: str, reason: str | None, propose: bool, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Move an alias of MODEL back to the previous version.

    That version must have held the alias, and its promotion must still verify.
    """
    if reason is None and propose:
        from mlflow_adk_eval.production.telling import alarm_of  # noqa: PLC0415 - `--help` stays fast

        reason = alarm_of(model, alias, tracking_uri=options["tracking_uri"])
    if reason is None:
        raise UsageError("rollback: give a --reason")
    dry_run = dry_run or propose
    move = adk_eval.rollback(model, alias, reason=reason, dry_run=dry_run, raise_on_failure=False, **options)
    moved = move.decision.passed and not dry_run
    extra = {"model": model, "alias": alias, "previous": move.previous, "version": move.version, "moved": moved, "reason": reason}
    outcome = f"{move}{' (dry run: it was not moved)' if dry_run and move.version else ''}"
    then = command("audit", model, tracking_uri=options["tracking_uri"])
    if propose and move.version:
        outcome = f"{move}, if you run the next command, because {reason}"
        then = command("rollback", model, alias=alias, to=move.version, reason=reason, tracking_uri=options["tracking_uri"])
    show_decision(move.decision, as_json=as_json, title=f"rollback of {alias} of {model}", outcome=outcome, extra=extra, then=then)


_AUDIT_EXIT_CODES = """\b
Exit codes:
  0   every alias points to a version whose promotion verifies
  1   at least one alias does not, or did not before it was restored
  3   MLflow is unreachable
  4   the result could not be written
  64  bad usage
"""


@click.command("gate", epilog=shared.EXIT_CODES, cls=Command)
@click.argument("run_id", metavar="RUN")
@shared.policy_option
@click.option(
    "--baseline",
    metavar="runs:/ID|models:/NAME@ALIAS",
    help="The baseline: runs:/ID, models:/NAME/VERSION or models:/NAME@ALIAS. Default: the policy's.",
)
@click.option("--model", metavar="NAME", help="The registered model of the baseline, if the policy does not name one.")
@reevaluation_options
@shared.published_options
@shared.mlflow_options
def gate_command(run_id: str, *, policy: Path | None, as_json: bool, **options: Any) -> None:
    """Decide whether the agent that RUN evaluated is good enough. Changes nothing."""
    files = shared.published(options)
    compared = {name: options.pop(name) for name in ("baseline", "model", "tracking_uri")}
    reevaluate, _ = evaluators(options, compared["tracking_uri"], shown=not as_json)
    decision = adk_eval.gate(run_id, policy, **compared, reevaluate=reevaluate, raise_on_failure=False)
    run_id, uri, then = decision.run_id, compared["tracking_uri"], ""
    if not as_json:
        passed, before = decision.passed, decision.baseline_run_id or None
        then = after_pass(run_id, uri, policy=policy, model=compared["model"]) if passed else after_failure(run_id, uri, before)
    show_decision(decision, as_json=as_json, then=then, files=files, basis=(policy, uri))


@click.command("verify", epilog=shared.EXIT_CODES)
@click.argument("model")
@click.argument("version", required=False)
@click.option("--alias", help="Check the promotion to this alias. Default: champion or, with VERSION, that version's last decision.")
@click.option(
    "--policy",
    type=shared.PATH,
    help="A policy that the evidence must meet today as well. Default: only the policy in the promotion record.",
)
@shared.verify_options
@shared.mlflow_options
def verify_command(model: str, *, version: str | None, alias: str | None, as_json: bool, **options: Any) -> None:
    """Check that the promotion of VERSION of MODEL (default: its champion) still holds."""
    chosen = alias or (None if version else "champion")
    decision = adk_eval.verify(model, version, alias=chosen, **options)
    then = command("audit", model, tracking_uri=options["tracking_uri"])
    title = f"{f'version {version}' if version else chosen} of {model}, verified"
    show_decision(decision, as_json=as_json, title=title, then=then)


@click.command("audit", epilog=_AUDIT_EXIT_CODES)
@click.argument("model", required=False)
@click.option("--all", "every", is_flag=True, help="Audit all registered models.")
@click.option("--alias", help="Audit only this alias; it must exist. Default: every alias ever promoted.")
@click.option("--restore", is_flag=True, help="Move back aliases that no recorded promotion put where they are.")
@click.option("--dry-run", is_flag=True, help="With --restore: only show the moves.")
@shared.signing_options
@shared.mlflow_options
def audit_command(model: str | None, *, every: bool, alias: str | None, as_json: bool, **options: Any) -> None:
    """Find aliases of MODEL that no valid promotion put where they are."""
    from mlflow_adk_eval.report.console import audit_view, console  # noqa: PLC0415

    if every == (model is not None):
        raise UsageError("audit: name a registered model, or use --all")
    aliases = adk_eval.audit(model, alias, **options)
    valid = all(each.valid for each in aliases)
    if as_json:
        print_json({"valid": valid, "aliases": [asdict(each) for each in aliases]})
    else:
        console().print(audit_view(aliases))
        bad = sorted({each.model for each in aliases if not each.valid and each.restored is None})
        if bad:
            click.echo(f"next: {command('audit', bad[0], '--restore', '--dry-run', tracking_uri=options['tracking_uri'])}")
    end(0 if valid else 1)


@click.command("keygen", epilog=shared.NO_VERDICT)
@click.option("-o", "--output", type=shared.PATH, required=True, help="The file for the private key, such as gate.pem.")
@shared.json_option
def keygen_command(output: Path, *, as_json: bool) -> None:
    """Create an ed25519 key pair: a private key to sign with and a public key to verify with."""
    from mlflow_adk_eval.signing.keys import SIGNING_KEY, VERIFY_KEY, make_key  # noqa: PLC0415 - `--help` stays fast

    public = make_key(output)
    secret, public_use = "for processes that promote; keep it secret", "for processes that verify and audit"
    text = f"{SIGNING_KEY}={output}   {secret}\n{VERIFY_KEY}={public}   {public_use}"
    tell(text, as_json=as_json, private_key=str(output), public_key=str(public))


_ATTESTATION_EXIT_CODES = """\b
Exit codes:
  0   every file matches its signature, and the last decision (without one, the evaluation) passed
  1   every file matches its signature, but the decision or evaluation failed
  2   a file does not match its signature, or the result is undecided
  3   Sigstore's trusted root is unreachable, or the command was interrupted
  4   the result could not be written
  64  bad usage, or no attestation
"""


@click.group("attestation")
def attestation_group() -> None:
    """Export an attested run and verify it without MLflow."""


@attestation_group.command("export", epilog=shared.NO_VERDICT)
@click.argument("run_id")
@click.option("-o", "--output", type=shared.PATH, required=True, help="An empty or new folder.")
@shared.mlflow_options
def attestation_export(run_id: str, *, output: Path, tracking_uri: str | None, as_json: bool) -> None:
    """Write the evidence of RUN_ID, its attestation and its signed promotion records to a folder."""
    from mlflow_adk_eval.gating.attestation import BUNDLE_PATH  # noqa: PLC0415 - `--help` stays fast

    files = adk_eval.export_attestation(run_id, output, tracking_uri=tracking_uri)
    how = "--identity IDENTITY --issuer ISSUER" if BUNDLE_PATH in files else "--verify-key PUBLIC_KEY.pem"
    check = f"{command('attestation', 'verify', output)} {how}"
    tell(f"{output}: {len(files)} files", as_json=as_json, then=check, folder=str(output), files=[str(file) for file in files])


@attestation_group.command("verify", epilog=_ATTESTATION_EXIT_CODES)
@click.argument("folder", type=shared.PATH)
@click.option("--verify-key", metavar="PEM", help="One or several public keys. Default: MLFLOW_ADK_EVAL_VERIFY_KEY.")
@click.option("--identity", metavar="NAME", help="The OIDC identity that must have signed the evaluation, such as a workflow's URL.")
@click.option("--issuer", metavar="URL", help="The OIDC issuer of that identity.")
@click.option("--trust", type=shared.PATH, help="Sigstore's trusted root, as JSON. Default: the public Sigstore's, from the network.")
@shared.json_option
def attestation_verify(folder: Path, *, as_json: bool, **trusted: Any) -> None:
    """Check the files in FOLDER against their signatures. Needs only the files and the key, or Sigstore's trusted root."""
    from mlflow_adk_eval.report import ci  # noqa: PLC0415

    attestation = adk_eval.verify_attestation(folder, **trusted)
    valid, evaluation = attestation.valid, attestation.evaluation
    if as_json:
        print_json(asdict(attestation) | {"valid": valid, "verdict": attestation.verdict})
    else:
        lines = [f"{folder}: {'every file matches its signature' if valid else 'DOES NOT MATCH its signature'} ({attestation.files} files)"]
        lines += [f"  - {problem}" for problem in attestation.problems]
        if valid:
            agent = evaluation["agent"]
            lines += [
                f"  agent {agent['name']}, version {agent['version']}, source {agent['source_sha256'] or agent['source']}",
                f"  run {evaluation['run_id']}, ended {evaluation['finished_at']}: {evaluation['result']['verdict']}",
                *(f"  {one['kind']} of {one['decision']['decided_at']}: {one['decision']['verdict']}" for one in attestation.decisions),
            ]
        click.echo("\n".join(lines))
    end(ci.EXIT_CODES[attestation.verdict])
