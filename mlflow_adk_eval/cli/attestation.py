"""``mlflow-adk-eval attestation export`` and ``verify``: an attested run as a folder of files, checked with a public key, or a name, alone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from mlflow_adk_eval.cli.options import PATH, json_option, store_option
from mlflow_adk_eval.cli.output import end, print_json, tell

_EXIT_CODES = """\b
Exit codes:
  0   every file is what was signed, and the last decision, or else the evaluation, passed
  1   every file is what was signed, and it failed
  2   something is not what was signed, or it is undecided
  4   the result could not be written
  64  bad usage, or no attestation there
"""


@click.group("attestation")
def attestation_group() -> None:
    """Export an attested run, and verify it without MLflow."""


@attestation_group.command("export")
@click.argument("run_id")
@click.option("-o", "--output", type=PATH, required=True, help="An empty or new folder.")
@store_option
@json_option
def attestation_export(run_id: str, *, output: Path, tracking_uri: str | None, as_json: bool) -> None:
    """Write the evidence of RUN_ID, its attestation and the signed records of decisions on it into a folder."""
    from mlflow_adk_eval.gating.attestation.evaluation import BUNDLE_PATH  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.gating.attestation.files import export_attestation  # noqa: PLC0415

    files = export_attestation(run_id, output, tracking_uri=tracking_uri)
    how = "--identity IDENTITY --issuer ISSUER" if BUNDLE_PATH in files else "--verify-key PUBLIC_KEY.pem"
    check = f"mlflow-adk-eval attestation verify {output} {how}"
    tell(f"{output}: {len(files)} files", as_json=as_json, then=check, folder=str(output), files=[str(file) for file in files])


@attestation_group.command("verify", epilog=_EXIT_CODES)
@click.argument("folder", type=PATH)
@click.option("--verify-key", metavar="PEM", help="The public key, or several. Default: MLFLOW_ADK_EVAL_VERIFY_KEY.")
@click.option("--identity", metavar="NAME", help="The OIDC identity that must have signed the evaluation, such as a workflow's URL.")
@click.option("--issuer", metavar="URL", help="The OIDC issuer of that identity.")
@click.option("--trust", type=PATH, help="Sigstore's trusted root, as JSON. Default: that of the public Sigstore, from the network.")
@json_option
def attestation_verify(folder: Path, *, as_json: bool, **trusted: Any) -> None:
    """Check that the files in FOLDER are what was signed. Asks nothing but the files and the key, or the trusted root."""
    from mlflow_adk_eval.gating.attestation.files import verify_attestation  # noqa: PLC0415 - as above
    from mlflow_adk_eval.report.ci import EXIT_CODES  # noqa: PLC0415

    found = verify_attestation(folder, **trusted)
    if as_json:
        print_json(asdict(found) | {"valid": found.valid, "verdict": found.verdict})
    else:
        said = found.evaluation
        lines = [f"{folder}: {'every file is what was signed' if found.valid else 'NOT what was signed'} ({found.files} files)"]
        lines += [f"  - {problem}" for problem in found.problems]
        if found.valid:
            agent = said["agent"]
            lines += [
                f"  agent {agent['name']}, version {agent['version']}, source {agent['source_sha256'] or agent['source']}",
                f"  run {said['run_id']}, ended {said['finished_at']}: {said['result']['verdict']}",
                *(f"  {one['kind']} of {one['decision']['decided_at']}: {one['decision']['verdict']}" for one in found.decisions),
            ]
        click.echo("\n".join(lines))
    end(EXIT_CODES[found.verdict])
