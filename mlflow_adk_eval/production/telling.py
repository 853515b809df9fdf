"""Where an alarm is told: on pages of MLflow, to a webhook, and as metrics of OpenTelemetry.

On a page the alarm has a tag and, at the end of the description, a paragraph between two marks; the rest of the description is the user's. A webhook gets
what MLflow's own ones do, with the same headers and the same signature, so that whoever checks those can check it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
from mlflow import MlflowClient

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.promotion.record import Target, format_version
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.redact import without_credentials
from mlflow_adk_eval.text import for_mlflow
from mlflow_adk_eval.tracking.bundle import NOTE
from mlflow_adk_eval.tracking.storable import LONGEST_TAG, fitted

if TYPE_CHECKING:
    from mlflow_adk_eval.production.draw import Rate

ALARM = "adk_eval.alarm"
"""The tag of a run, a model version and an experiment with an open alarm."""
SECRET = "MLFLOW_ADK_EVAL_WEBHOOK_SECRET"  # noqa: S105 - the name of the variable
_BLOCK = re.compile(r"\n*\[//\]: # \(adk_eval alarm\)\n.*?\n\[//\]: # \(end of adk_eval alarm\)", re.DOTALL)
_LONGEST_DESCRIPTION = 5000
_RETRIES, _TIMEOUT_S = 3, 30.0


def with_alarm(text: str, alarm: str) -> str:
    """Return a description with an alarm at its end instead of the one before; an empty alarm: without.

    >>> with_alarm(with_alarm("My agent.", "worse"), "")
    'My agent.'
    """
    text = _BLOCK.sub("", text)
    block = f"[//]: # (adk_eval alarm)\n\n**Alarm**: {for_mlflow(alarm)}\n\n[//]: # (end of adk_eval alarm)" if alarm else ""
    return "\n\n".join(filter(None, (text, block)))


def show_in_mlflow(client: MlflowClient, experiment_id: str, version: tuple[str, str] | None, alarm: str, *, before: str = "") -> None:
    """Show the open alarms on the page of an experiment, and on that of a model version.

    Args:
        client: where they are.
        experiment_id: the experiment.
        version: the registered model and the number of its version; ``None``: none is known.
        alarm: as sentences; empty: there is none any more.
        before: what the look before has shown, which may be taken away: another alarm is that of another watch.
    """
    alarm, before = fitted(alarm, LONGEST_TAG), fitted(before, LONGEST_TAG)
    tags: Mapping[str, str] = client.get_experiment(experiment_id).tags
    if (shown := tags.get(ALARM, "")) != alarm and (alarm or shown == before):
        client.set_experiment_tag(experiment_id, ALARM, alarm)
        client.set_experiment_tag(experiment_id, NOTE, with_alarm(tags.get(NOTE, ""), alarm))
    found: Any = client.get_model_version(*version) if version else None
    if version and (shown := found.tags.get(ALARM, "")) != alarm and (alarm or shown == before):
        client.set_model_version_tag(*version, ALARM, alarm)
        if len(text := with_alarm(found.description or "", alarm)) <= _LONGEST_DESCRIPTION:
            client.update_model_version(*version, text)


def alarm_of(model: str, alias: str, *, tracking_uri: str | None = None) -> str:
    """Return the open alarm of the version that holds an alias.

    Raises:
        UsageError: if there is no such model or alias, or no open alarm.
    """
    with store_at(tracking_uri) as store:
        holder = store.holder(model, alias)
        alarm = store.tags(Target(name=model, version=holder.number, alias=alias)).get(ALARM) if holder else None
    if not alarm:
        what = f"{format_version(holder)} of {model!r} has no open alarm" if holder else f"{model!r} has no alias {alias}"
        raise UsageError(f"there is nothing to propose: {what}")
    return alarm


def check_webhook(url: str) -> None:
    """Refuse an address to which what is sent could be read on the way.

    Raises:
        UsageError: if it is neither ``https`` nor on this machine.
    """
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in {"localhost", "127.0.0.1", "::1"}
    if not parts.hostname or (parts.scheme != "https" and not local):
        raise UsageError(f"--webhook {without_credentials(url)}: wanted an https:// address, or one of this machine")


def send(url: str, data: Mapping[str, Any], about: str) -> str:
    """Send an alarm to a webhook, and return why it did not take it; empty: it did.

    Args:
        url: the webhook.
        data: what is sent.
        about: what the alarm is of, such as the id of a run: an alarm that is sent twice has the same delivery id.
    """
    moment = datetime.now(UTC).isoformat()
    body = json.dumps({"entity": "adk_eval_alarm", "action": "created", "timestamp": moment, "data": data})
    delivery, at = str(uuid.uuid5(uuid.NAMESPACE_URL, about)), str(int(time.time()))
    headers = {"Content-Type": "application/json", "X-MLflow-Delivery-Id": delivery, "X-MLflow-Timestamp": at}
    if secret := os.environ.get(SECRET):
        digest = hmac.new(secret.encode(), f"{delivery}.{at}.{body}".encode(), hashlib.sha256).digest()
        headers["X-MLflow-Signature"] = f"v1,{base64.b64encode(digest).decode()}"

    try:
        with httpx.Client(transport=httpx.HTTPTransport(retries=_RETRIES), timeout=_TIMEOUT_S) as client:
            answer = client.post(url, content=body, headers=headers)
        trouble = "" if answer.is_success else f"it answered {answer.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        trouble = str(error) or type(error).__name__
    return trouble and f"the webhook at {urlsplit(url).hostname} did not take the alarm: {without_credentials(trouble)}"


@cache
def _instruments() -> tuple[Any, Any]:
    from opentelemetry import metrics  # noqa: PLC0415 - as in `runtime`

    meter = metrics.get_meter("mlflow_adk_eval")
    return (
        meter.create_gauge("mlflow_adk_eval.production.pass_rate", "1", "The share of conversations that pass."),
        meter.create_counter("mlflow_adk_eval.production.alarms", "{alarm}", "Alarms about agents or judges."),
    )


def give_metrics(experiment: str, rates: Mapping[str, Rate], alarms: Iterable[tuple[str, str]]) -> None:
    """Give OpenTelemetry what a look found; it goes nowhere unless the process has configured an exporter.

    Args:
        experiment: the id of the experiment.
        rates: by criterion.
        alarms: of each new one the criterion, and whether it is about the ``agent`` or the ``judge``.
    """
    pass_rate, alarm = _instruments()
    for criterion, rate in rates.items():
        if rate.value is not None:
            pass_rate.set(rate.value, {"experiment": experiment, "criterion": criterion or "all"})
    for criterion, cause in alarms:
        alarm.add(1, {"experiment": experiment, "criterion": criterion or "all", "cause": cause})
