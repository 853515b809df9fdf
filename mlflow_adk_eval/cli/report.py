"""``mlflow-adk-eval report``: the HTML report that a run holds, as a file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mlflow_adk_eval.cli.options import PATH, check_output, force_option, json_option, store_option
from mlflow_adk_eval.cli.output import tell, write_file
from mlflow_adk_eval.errors import TrackingError, UsageError

_NAME = "report.html"


@click.command("report")
@click.argument("run_id")
@click.option("-o", "--output", type=PATH, default=_NAME, show_default=True, help="The file to write, or its folder.")
@force_option
@store_option
@json_option
def report_command(run_id: str, *, output: Path, force: bool, tracking_uri: str | None, as_json: bool) -> None:
    """Save the HTML report of a run.

    Refuses a report that was changed after the evaluation.
    """
    path = output / _NAME if output.is_dir() else output
    check_output(path, force=force)
    write_file(path, report_of(run_id, tracking_uri))
    tell(f"{path}: the report of run {run_id}", as_json=as_json, file=str(path), run_id=run_id)


def report_of(run_id: str, tracking_uri: str | None = None) -> bytes:
    """Return the HTML report that a run holds.

    Args:
        run_id: the run.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.

    Raises:
        UsageError: if there is no such run, or it has no report, as one of an earlier version of this package.
        TrackingError: if MLflow cannot be reached, or the report is not the one that the run's parameter vouches for.
    """
    from mlflow_adk_eval.gating.evidence.integrity import FOLDER, MANIFEST  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.gating.mlflow_store import store_at  # noqa: PLC0415 - as above

    with store_at(tracking_uri) as store:
        content = store.artifact(run_id, f"{FOLDER}/{_NAME}")
        manifest = store.artifact(run_id, f"{FOLDER}/{MANIFEST}")
        expected = store.client.get_run(run_id).data.params.get("adk_eval.manifest_sha256")
    if content is None:
        raise UsageError(_missing(run_id, manifest))
    problem = _doubt(content, manifest, expected)
    if problem:
        raise TrackingError(f"run {run_id}: {problem}, so its report cannot be trusted")
    return content


def _missing(run_id: str, manifest: bytes | None) -> str:
    if manifest is None:
        return f"run {run_id} has no report: it holds no finished evaluation"
    if _NAME in _named(manifest):
        return f"run {run_id} has lost its report: the manifest names {_NAME}, but the artifact is gone"
    return f"run {run_id} has no report: the version of mlflow-adk-eval that logged it wrote none. The run's table is adk_eval/invocations.json"


def _doubt(content: bytes, manifest: bytes | None, expected: str | None) -> str:
    """Return why the report is not the one that the run's parameter vouches for; empty if it is."""
    from mlflow_adk_eval.gating.evidence.integrity import MANIFEST, sha256  # noqa: PLC0415 - as above

    if manifest is None or expected is None:
        return f"{MANIFEST if manifest is None else 'the parameter adk_eval.manifest_sha256'} is missing"
    if sha256(manifest) != expected:
        return f"{MANIFEST} was changed after the run"
    if _NAME not in _named(manifest):
        return f"{MANIFEST} does not name {_NAME}, which was added after the run"
    return "" if _named(manifest)[_NAME] == sha256(content) else f"{_NAME} was changed after the run"


def _named(manifest: bytes) -> dict[str, str]:
    """Return the hashes that a manifest lists by artifact; none if it is no manifest."""
    try:
        artifacts = json.loads(manifest)["artifacts"]
    except (ValueError, LookupError, TypeError):
        return {}
    return artifacts if isinstance(artifacts, dict) else {}
