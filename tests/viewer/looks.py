"""A store in which production was looked at: by `score_traces`, by looks of which only MLflow's list is there, and by attackers who write such."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.tracking.client import open_store
from tests.integrations.genai import tracking
from tests.production import lights
from tests.report.pages import ATTACKS
from tests.tracking.small import CONFIG, answering
from tests.tracking.small import rooms as small_rooms
from tests.viewer.evaluations import HOME_SET, v_good, v_regressed

LIVE, FOREIGN, SCORED = "home in production", "foreign looks", lights.EXPERIMENT
SAID = "Cases passed fell from 91.0% to 73.5% within 80 conversations."
BEGAN = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
"""Looks come after the evaluations, as the charts have them."""
SAMPLE: dict[str, Any] = {
    "schema": 1,
    "experiment_id": "1",
    "from": "2026-11-20T04:00:00+00:00",
    "to": "2026-11-20T05:00:00+00:00",
    "found": 1240,
    "already_scored": 16,
    "unreadable": ["s-9: it says nothing"],
    "strata": [{"name": "errors", "conversations": 4, "drawn": 2}, {"name": "rest", "conversations": 1200, "drawn": 3}],
    "rates": [
        {"criterion": "", "value": 0.912, "low": 0.861, "high": 0.951, "evaluated": 5, "missing": 1},
        {"criterion": "response_match_score", "value": None, "low": None, "high": None, "evaluated": 0, "missing": 6},
    ],
    "at_random": ["s-1", "s-2", "s-3"],
}


def marked(store: str, run_id: str, until: str, *, alarm: str = "", sample: Any = None, **rates: float) -> None:
    """Make a run one that scored production, in MLflow's own terms."""
    from mlflow import MlflowClient

    client = MlflowClient(store)
    for name, value in {"production": "watch", "production_from": until, "production_to": until}.items():
        client.log_param(run_id, f"adk_eval.{name}", value)
    for name, rate in rates.items():
        client.log_metric(run_id, f"production/{name}", rate)
    if alarm:
        client.set_tag(run_id, "adk_eval.alarm", alarm)
    if sample is not None:
        client.log_text(run_id, sample if isinstance(sample, str) else json.dumps(sample), "adk_eval_production/sample.json")


def listed(store: str, experiment: str, name: str, until: str, **more: Any) -> str:
    """Log a look of which there is nothing but what MLflow lists, and return the run's id."""
    from mlflow import MlflowClient

    client = MlflowClient(store)
    tags = {"adk_eval.status": "complete", "adk_eval.verdict": "failed", "adk_eval.eval_set_id": "production"}
    run = client.create_run(client.get_experiment_by_name(experiment).experiment_id, run_name=name, tags=tags).info.run_id
    marked(store, run, until, **more)
    client.set_terminated(run)
    return str(run)


def storable(text: str) -> str:
    return text[:4000].encode("utf-8", "replace").decode().replace("\0", "0")


def looks(folder: Path) -> dict[str, str]:
    """Log all into the store in a folder, and return the runs' ids by name."""
    from mlflow import MlflowClient

    store, *_ = [open_store(folder, experiment=name) for name in (LIVE, FOREIGN, SCORED)]
    options: dict[str, Any] = {"tracking_uri": store, "ledger": False}
    config = {"criteria": {"response_match_score": 0.8}}
    runs = {one.__name__: adk_eval.evaluate(HOME_SET, one, config, experiment=LIVE, **options) for one in (v_good, v_regressed)}
    version = adk_eval.register(runs["v_good"], LIVE, tracking_uri=store)
    adk_eval.promote(LIVE, version, run_id=runs["v_good"], raise_on_failure=False, tracking_uri=store)
    found = {name: report.run_id or "" for name, report in runs.items()}
    for hour in range(1, 13):
        rate = 0.91 + 0.01 * (hour % 3) if hour < 8 else 0.735 - 0.005 * (hour % 2)
        rates = {
            "pass_rate": rate,
            "pass_rate_low": rate - 0.04,
            "pass_rate_high": rate + 0.03,
            "response_match_score/pass_rate": rate + 0.02,
        }
        until, name = (BEGAN + timedelta(hours=hour + 1)).isoformat(), f"watch {hour:02}"
        found[name] = listed(store, LIVE, name, until, alarm=SAID if hour in (9, 12) else "", **(rates if hour != 5 else {}))
    with tracking(store):
        lights.talk()
        scored = lights.scored(store, run_name="scored")
        assert scored.report is not None
        found["scored"] = scored.report.run_id or ""
    MlflowClient(store).set_tag(found["scored"], "adk_eval.alarm", SAID)
    found |= foreign(store)
    return found


def foreign(store: str) -> dict[str, str]:
    """Log looks that say what no look says: one with a sample of attacks, one with a broken one, one without, and many that are only listed."""
    cases, found = small_rooms(), dict[str, str]()
    attacks = [storable(text) for text in ATTACKS]
    sample = SAMPLE | {
        "unreadable": attacks,
        "strata": [{"name": text, "conversations": 10**9, "drawn": number} for number, text in enumerate(attacks)],
        "rates": [{"criterion": text, "value": 1, "low": 0, "high": 1, "evaluated": 10**9, "missing": 0} for text in attacks],
        "at_random": attacks,
    }
    for name, text in (("attacked", sample), ("broken", '{"schema": 1, "found": ' + "9" * 5_000), ("bare", None)):
        options: dict[str, Any] = {"experiment": FOREIGN, "tracking_uri": store, "run_name": name, "traces": False, "ledger": False}
        found[name] = adk_eval.evaluate(cases, answering(cases), CONFIG, **options).run_id or ""
        marked(store, found[name], "tomorrow", alarm=attacks[1], sample=text)
    untrue = [float("nan"), float("inf"), -1.0, 1e300, 0.5]
    times = ["", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-11-20T04:00:00", "<b>now</b>"]
    for number, text in enumerate(attacks):
        rates = {"pass_rate": untrue[number % 5], "pass_rate_low": 0.9, "pass_rate_high": 0.1, f"{'x' * 200}/pass_rate": 0.5}
        listed(store, FOREIGN, text[:240] or "-", times[number % 5] or attacks[0], alarm=text, **rates)
    return found
