"""How people name a run: by its id, the beginning of that, ``latest``, or the alias whose promotion rests on it.

Commands and functions of the API turn such a name into an id here, before they read anything, and go by the id from then on. Records,
claims and policies name runs by their ids alone: a name that means another run tomorrow is no evidence.

No name is looked up in tags, which anybody with write access to MLflow may change. ``latest`` goes by the parameter with which an evaluation
ends: nobody can remove it. So a run that became *failed*, or was marked as such, stays the latest.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from mlflow_adk_eval.errors import UsageError, did_you_mean, shown
from mlflow_adk_eval.gating.registry import MlflowStore, store_at
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.store.reaching import existing
from mlflow_adk_eval.text import listed

LATEST, CHAMPION = "latest", "champion"
_WANTED = f"wanted an id, at least 4 characters of its beginning, {LATEST}, {CHAMPION} or MODEL@ALIAS"
_SHORTEST = 4
_AHEAD = timedelta(minutes=5)
"""By so much the clocks of machines may differ."""
_MOST_NAMED = 10
_logger = logging.getLogger(__name__)


def run_id_at(run: str | Report, tracking_uri: str | None = None) -> str:
    """Return the id of a run as `run_id_of` does, where nothing else is read by the gate's store."""
    with store_at(tracking_uri) as store:
        return run_id_of(run, store)


def run_id_of(run: str | Report, store: MlflowStore, *, model: str | None = None, version: str | None = None) -> str:
    """Return the id of a run.

    Args:
        run: a logged report, or how somebody names the run, also after ``runs:/``. A name that may only be an id is returned as it is.
        store: where it is.
        model: the registered model that ``champion`` is of; ``None``: the only one that has this alias.
        version: the version of `model` that is to be promoted, of which the latest run is meant; ``None``: any.

    Raises:
        UsageError: for a report that was not logged, and a name that stands for no run or for several.
    """
    if isinstance(run, Report):
        if not run.run_id:
            raise UsageError("this report was not logged to MLflow, so there is no run")
        return run.run_id
    named = run.removeprefix("runs:/").strip("/") if run.startswith("runs:/") else run
    if not named:
        raise UsageError("the run id is empty")
    if named == LATEST:
        found = _latest(store, store.version(model, version).id.model_id if model and version else None)
    elif named == CHAMPION or "@" in named:
        found = _promoted(store, named, model)
    elif re.fullmatch(r"[0-9a-f]{4,31}", named):
        found = _begun_with(store, named)
    elif re.fullmatch(r"[0-9a-f]{1,3}", named):
        raise UsageError(f"run {shown(named)} is too short; {_WANTED}")
    elif hint := did_you_mean(named, (LATEST, CHAMPION)):
        raise UsageError(f"run {shown(named)} does not exist in this MLflow store. {hint}")
    else:
        return named
    run_id = str(found.info.run_id)
    _logger.info("%s is run %s (%s)", run, run_id, _about(found), extra={"run_id": run_id})
    return run_id


def _latest(store: MlflowStore, model_id: str | None) -> Any:
    """Return the evaluation that started last, in the experiment that MLflow is configured for, or else in the whole store."""
    chosen = os.environ.get("MLFLOW_EXPERIMENT_ID"), os.environ.get("MLFLOW_EXPERIMENT_NAME")
    there = [(one.experiment_id, one.name) for one in store.client.search_experiments()]
    ids = [number for number, name in there if not any(chosen) or number == chosen[0] or name == chosen[1]]
    wanted = "params.`adk_eval.manifest_sha256` LIKE '%'" + (f" and params.`adk_eval.model_id` = '{model_id}'" if model_id else "")
    found = store.client.search_runs(ids, wanted, order_by=["attributes.start_time DESC"], max_results=1) if ids else []
    if not found:
        where = f" in the experiment {chosen[1] or chosen[0]}" if any(chosen) else " in this MLflow store"
        raise UsageError(f"run {LATEST!r} does not exist: there is no finished evaluation{' of this version' if model_id else ''}{where}")
    if _started(found[0]) > store.clock() + _AHEAD:
        future = f"run {found[0].info.run_id} claims to start in the future, {_about(found[0])}"
        raise UsageError(f"run {LATEST!r} is unknown: {future}; name an id")
    return found[0]


def _promoted(store: MlflowStore, named: str, model: str | None) -> Any:
    """Return the run by which an alias was set, as its claim log and its promotion record have it."""
    from mlflow_adk_eval.gating.promotion.verify import moved_by_hand, recorded_pass  # noqa: PLC0415 - with which all of the gate would be imported

    name, _, alias = named.removeprefix("models:/").rpartition("@")
    if not name:
        holders = [model] if model else [each for each in store.models() if alias in store.model(each).aliases]
        if len(holders) != 1:
            several = f"{listed([f'{each}@{alias}' for each in holders], _MOST_NAMED)} exist"
            raise UsageError(f"run {named!r}: {several if holders else 'no registered model has this alias'}; {_WANTED}")
        name = holders[0]
    holder = store.holder(name, alias)
    if holder is None:
        raise UsageError(f"the registered model {name!r} has no alias {alias}")
    version = store.version(name, holder.number)
    found = moved_by_hand(store, name, alias, holder) or recorded_pass(store, name, holder.number, alias, version)
    if isinstance(found, str) or found.problems:
        raise UsageError(f"run {named!r} is unknown: {found if isinstance(found, str) else found.problems[0]}")
    with existing(f"run {found.record.decision.run_id}"):
        return store.client.get_run(found.record.decision.run_id)


def _begun_with(store: MlflowStore, beginning: str) -> Any:
    """Return the only run whose id begins so."""
    ids, wanted = [one.experiment_id for one in store.client.search_experiments()], f"attributes.run_id LIKE '{beginning}%'"
    found = store.client.search_runs(ids, wanted, order_by=["attributes.start_time DESC"], max_results=100)
    if not found:
        raise UsageError(f"run {beginning!r} does not exist in this MLflow store")
    if len(found) > 1:
        candidates = listed([f"{run.info.run_id} ({_about(run)})" for run in found], _MOST_NAMED)
        raise UsageError(f"run {beginning!r} is ambiguous: {candidates}")
    return found[0]


def only_begun_with(beginning: str, ids: Iterable[str]) -> str:
    """Return the id that is `beginning`, or the only one that begins so; empty if there is none, or several do."""
    found = [run_id for run_id in ids if run_id == beginning or (len(beginning) >= _SHORTEST and run_id.startswith(beginning))]
    return found[0] if len(set(found)) == 1 else ""


def _started(run: Any) -> datetime:
    return datetime.fromtimestamp((run.info.start_time or 0) / 1000, UTC)


def _about(run: Any) -> str:
    """Return a run's name and start, as one line."""
    name = "".join(char if char.isprintable() else "�" for char in run.info.run_name or "")
    return f"{name}, started {_started(run):%Y-%m-%d %H:%M} UTC"
