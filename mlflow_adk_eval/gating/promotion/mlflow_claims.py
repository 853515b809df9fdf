"""The run that holds the ledger of a registered model, which all who promote its versions have to agree on.

Run ids are the server's choice, so there is nothing to look a run up by that exists only once; but the names of experiments
do. So the ledger is made like a file that is written aside and renamed: an experiment of a random name, with the run in it
and a tag that names the run, gets its final name last. Of several who do that at the same time, one succeeds, and the others
use what that one made.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from typing import TYPE_CHECKING

from mlflow_adk_eval.errors import UsageError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

FOLDER = "adk_eval.gate"
"""Where the names of all ledgers begin."""
_RUN = "adk_eval.gate.ledger_run"
_LONGEST = 400
_NOTE = "Who set which alias of the registered model {name!r}, when and on which record: the parameters of the run in here. Written by mlflow-adk-eval."


def ledger_name(model: str) -> str:
    """Return the name of the experiment of a model's ledger.

    >>> ledger_name("home_automation")
    'adk_eval.gate/home_automation'
    """
    if len(model) <= _LONGEST:
        return f"{FOLDER}/{model}"
    return f"{FOLDER}/{model[: _LONGEST - 70]}_{hashlib.sha256(model.encode('utf-8', 'replace')).hexdigest()}"


class MlflowClaimLog:
    """The ledgers of an MLflow tracking server."""

    def __init__(self, client: MlflowClient) -> None:
        """Use `client`."""
        self._client = client
        self._run_ids: dict[str, str] = {}

    def read(self, model: str) -> dict[str, str]:
        """Return the claims of a model as they were written; none where nothing was ever promoted.

        Raises:
            UsageError: if the ledger was deleted.
        """
        run = self._find(model)
        return dict(run.data.params) if run else {}

    def claim(self, model: str, key: str, text: str) -> str:
        """Write `text` under `key`, if nothing is there, and return what is there now.

        Raises:
            UsageError: if the ledger was deleted.
        """
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        run_id = self._run_ids.get(model) or (self._find(model) or self._create(model)).info.run_id
        failure: Exception | None = None
        try:
            self._client.log_param(run_id, key, text, synchronous=True)
        except MlflowException as error:
            failure = error  # somebody was faster; or an answer was lost, and only the ledger can tell
        found = self._client.get_run(run_id).data.params.get(key)
        if found is None:
            raise failure or OSError(f"the claim {key} was taken, but is not in the ledger")
        return str(found)

    def _find(self, model: str) -> Run | None:
        experiment = self._client.get_experiment_by_name(ledger_name(model))
        return None if experiment is None else self._run_of(model, experiment)

    def _run_of(self, model: str, experiment: Experiment) -> Run:
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        what = f"the ledger of {model!r}, who set which of its aliases (experiment {experiment.name!r})"
        if experiment.lifecycle_stage != "active":
            raise UsageError(f"{what}, was deleted; restore it: mlflow experiments restore --experiment-id {experiment.experiment_id}")
        run_id = experiment.tags.get(_RUN, "")
        try:
            run = self._client.get_run(run_id)
        except MlflowException:
            raise UsageError(f"{what}, has no run {run_id!r}; rename that experiment to begin a new ledger") from None
        if run.info.lifecycle_stage != "active":
            raise UsageError(f"{what}, was deleted; restore it: mlflow runs restore --run-id {run_id}")
        self._run_ids[model] = run_id
        return run

    def _create(self, model: str) -> Run:
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        name = ledger_name(model)
        aside = self._client.create_experiment(f"{name}/{uuid.uuid4().hex}", tags={"mlflow.note.content": _NOTE.format(name=model)})
        run_id = self._client.create_run(aside, start_time=int(time.time() * 1000), run_name="ledger").info.run_id
        self._client.update_run(run_id, "FINISHED")  # `set_terminated` would print where it can be looked at
        self._client.set_experiment_tag(aside, _RUN, run_id)
        failure: Exception | None = None
        try:
            self._client.rename_experiment(aside, name)
        except MlflowException as error:  # that of somebody else has the name, or the answer was lost
            failure = error
        found = self._client.get_experiment_by_name(name)
        if found is None:
            raise failure or OSError(f"the experiment {name!r} was created, but is not there")
        if found.experiment_id != aside:
            self._client.delete_experiment(aside)
        return self._run_of(model, found)
