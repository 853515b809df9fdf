"""What to run next, as a command to copy: every id, path and option is filled in, and quoted for a shell.

What MLflow lists of runs and versions is only offered here. The command that is offered checks it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_adk_eval.errors import AdkEvalError
from mlflow_adk_eval.redact import command

if TYPE_CHECKING:
    from mlflow_adk_eval.results.report import Report

_MOST_EARLIER = 200
"""As many runs of the experiment are looked through for one that passed."""


def after_failure(run_id: str, tracking_uri: str | None, before: str | None = None) -> str:
    """Return what explains a run that did not pass: a comparison with `before`, by default the last run of its eval set that passed."""
    if before is None:
        from mlflow_adk_eval.gating.registry import store_at  # noqa: PLC0415 - `--help` stays fast
        from mlflow_adk_eval.runs.listed import listed_runs, row_of, runs_before  # noqa: PLC0415

        with suppress(AdkEvalError), store_at(tracking_uri) as store:  # MLflow may have gone away since the result was there
            row = row_of(store.client.get_run(run_id))
            earlier = runs_before(row, listed_runs(store.client, row.experiment_id, _MOST_EARLIER), passed=True)
            before = next((one.run_id for one in earlier), "")
    return command(*(["compare", before] if before else ["report"]), run_id, tracking_uri=tracking_uri)


def after_undecided(report: Report, *, ledger: str | None, rejudged: bool, resume: str = "") -> str:
    """Return how the scores can be had that a report lacks; empty where asking again helps nothing.

    Args:
        report: the undecided report.
        ledger: where answers are kept: a file, a URL or ``off``; ``None``: where they are by default.
        rejudged: whether unreadable answers were asked for again already, in vain.
        resume: how the command goes on with its run; empty: it does so by itself, as far as the ledger holds what was answered.
    """
    from mlflow_adk_eval.report.findings import missing_in  # noqa: PLC0415 - `--help` stays fast

    missing = missing_in(report)
    kept = ledger != "off"
    options = [resume] if resume and kept else []
    if missing.unreadable and rejudged and not missing.asking:
        return "run the same command with another judge (--judge), since this one's answers could not be read again"
    if missing.unreadable and kept:
        again = " ".join([*options, "--rejudge-failed"])
        return f"run the same command with {again}; it asks judges again whose answers could not be read"
    if not (missing.asking or missing.unreadable):
        return ""
    if options:
        return f"run the same command with {resume}; it evaluates only what is missing"
    return "run the same command again; it asks only for what is missing" if kept else "run the same command again"


def after_pass(run_id: str, tracking_uri: str | None, *, policy: Path | None = None, model: str | None = None) -> str:
    """Return how a run that passed the gate is promoted: its version, or first the registration of one under the name of its agent."""
    from mlflow_adk_eval.gating.registry import store_at  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.runs.listed import row_of  # noqa: PLC0415

    agent, versions = "", list[tuple[str, str]]()
    with suppress(AdkEvalError), store_at(tracking_uri) as store:
        row = row_of(store.client.get_run(run_id))
        agent = row.agent
        if re.fullmatch(r"m-[\w-]+", row.model_id):  # a query is made of it
            found = store.client.search_model_versions(f"source_path = 'models:/{row.model_id}'", order_by=["creation_timestamp DESC"])
            versions = [(str(one.name), str(one.version)) for one in found]
    name, version = next((one for one in versions if one[0] == model), versions[0] if versions else ("", ""))
    if not name:
        return command("register", run_id, model or agent or "my_agent", tracking_uri=tracking_uri)
    return command("promote", name, version=version, run_id=run_id, policy=policy, tracking_uri=tracking_uri)
