"""What to run next, as a command to copy: every id, path and option is filled in, and quoted for a shell.

What MLflow lists of runs and versions is only offered here. The command that is offered checks it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from mlflow_adk_eval.errors import AdkEvalError
from mlflow_adk_eval.redact import command

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
