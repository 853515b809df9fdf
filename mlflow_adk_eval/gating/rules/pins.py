"""What a policy says of the run itself: which eval set, which judges, how old."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from mlflow_adk_eval.gating.evidence.artifacts import Documents
from mlflow_adk_eval.gating.evidence.integrity import Evidence
from mlflow_adk_eval.gating.policy.model import JudgePin, Policy, age_told
from mlflow_adk_eval.results.votes import judged_criteria

_SKEW = timedelta(minutes=5)
"""How far the clock of a tracking server may be ahead."""


def pin_problems(policy: Policy, evidence: Evidence, documents: Documents, now: datetime) -> list[str]:
    """Return how a run is not the kind of run that the policy decides on."""
    return [
        *_eval_set(policy, evidence, documents),
        *(_judge(policy.judge, evidence, documents) if policy.judge else ()),
        *(_age(policy.max_age, evidence, now) if policy.max_age else ()),
    ]


def pins_told(policy: Policy) -> list[str]:
    """Return what a policy has pinned, for the reasons of a pass."""
    pin = policy.eval_set
    return [
        *([f"the eval set is {pin.id!r}, as pinned"] if pin and pin.id else []),
        *([f"the digest of the eval set is {pin.digest[:19]}…, as pinned"] if pin and pin.digest else []),
        *([f"nobody judged but {', '.join(policy.judge.models)}"] if policy.judge else []),
        *([f"the run ended within the last {age_told(policy.max_age)}"] if policy.max_age else []),
    ]


def _eval_set(policy: Policy, evidence: Evidence, documents: Documents) -> Iterator[str]:
    pin = policy.eval_set
    if pin is None:
        return
    if pin.id is not None and documents.eval_set.eval_set_id != pin.id:
        yield f"the run was on the eval set {documents.eval_set.eval_set_id!r}, and the policy pins {pin.id!r}"
    digest = evidence.params.get("adk_eval.eval_set_digest", "")
    if pin.digest is not None and digest != pin.digest:
        yield f"the eval set is not the one that the policy pins: its digest is {digest[:19]}…, the policy says {pin.digest[:19]}…"


def _judge(pin: JudgePin, evidence: Evidence, documents: Documents) -> Iterator[str]:
    judged = judged_criteria(documents.config)
    if not judged:
        return
    told = evidence.params.get("adk_eval.judge_model")
    if told is None:
        yield f"the run has no parameter adk_eval.judge_model, so who judged {', '.join(judged)} is not known"
        return
    foreign = [model for model in told.split(" | ") if model not in pin.models]
    if foreign:
        yield f"{', '.join(foreign)} judged, and the policy allows only {', '.join(pin.models)}"


def _age(max_age: timedelta, evidence: Evidence, now: datetime) -> Iterator[str]:
    if evidence.end_time is None:
        return  # which is a doubt of its own
    try:
        ended = datetime.fromtimestamp(evidence.end_time / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        yield f"the run has the end time {evidence.end_time}, which is none"
        return
    if ended > now + _SKEW:
        yield f"the run ended at {_told(ended)}, which is in the future: it is {_told(now)} now"
    elif now - ended > max_age:
        yield f"the run ended at {_told(ended)}, more than {age_told(max_age)} before {_told(now)}"


def _told(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
