"""Whether a promotion still stands: the record is unchanged, and the evidence says today what it said then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gate.decide import decide
from mlflow_adk_eval.gate.evidence import Evidence, sha256
from mlflow_adk_eval.gate.policy import DEFAULT_POLICY
from mlflow_adk_eval.gate.record import TAG, Place, Record, Target, Version, doubted, find_record, read_record, version_problems
from mlflow_adk_eval.gate.store import Store
from mlflow_adk_eval.outcome import Decision


def verify_in(store: Store, name: str, version: str | None, alias: str | None) -> Decision:
    """Check the promotion of a version, or of the one that holds an alias.

    Raises:
        UsageError: if the model, the version or the alias does not exist.
    """
    aliases = store.aliases(name)
    chosen = aliases.get(alias or "") if version is None else version
    if chosen is None:
        raise UsageError(f"the registered model {name!r} has no alias {alias}")
    what, found = f"version {chosen} of {name!r}", store.version(name, chosen)
    if alias is not None and aliases.get(alias) != chosen:
        return _refusal("", f"{what} does not hold the alias {alias}")
    place = find_record(found.tags, alias)
    if place is None:
        return _refusal("", f"{what} has no record of " + (f"a passed gate for the alias {alias}" if alias else "a gate decision"))
    try:
        record, evidence = _read(store, place), store.evidence(place.run_id)
    except UsageError as error:
        return _refusal(place.run_id, f"the evidence for {what} is gone: {error}")
    if isinstance(record, str):
        return _refusal(place.run_id, f"{what}: {record}")
    if record.target != Target(name=name, version=chosen, alias=alias or record.target.alias):
        return _refusal(place.run_id, f"{what}: its record is about {record.target} and the alias {record.target.alias}")
    return _decide_again(record, found, evidence, list(_tag_problems(record, place, found)))


def _refusal(run_id: str, reason: str) -> Decision:
    return Decision(verdict="undecided", reasons=(reason,), run_id=run_id, evidence_sha256="", policy_sha256=DEFAULT_POLICY.digest())


def _read(store: Store, place: Place) -> Record | str:
    content = store.artifact(place.run_id, place.path)
    if content is None:
        return f"its record {place.path} is missing from run {place.run_id}"
    if sha256(content) != place.sha256:
        return f"its record {place.path} in run {place.run_id} was changed after the decision"
    return read_record(content) or f"its record {place.path} in run {place.run_id} cannot be read"


def _tag_problems(record: Record, place: Place, version: Version) -> Iterator[str]:
    """Yield the tags that repeat the record and say something else; those of another, later record are not compared."""
    if version.tags.get(f"{TAG}.record") == place.path:
        for key, value in record.tags().items():
            if version.tags.get(key) != value:
                yield f"the tag {key} is not what the record says"


def _decide_again(record: Record, version: Version, evidence: Evidence, problems: list[str]) -> Decision:
    then = record.decision
    if not then.passed:
        problems.append(f"the record of {record.target} says {then.verdict}: {then.reasons[0]}")
    if record.policy != DEFAULT_POLICY or then.policy_sha256 != DEFAULT_POLICY.digest():
        problems.append(f"the decision was made by the policy {record.policy.name!r}, which this version does not know")
    if then.evidence_sha256 != evidence.sha256:
        problems.append(f"the evidence of run {evidence.run_id} was changed after the decision")
    problems += version_problems(record.target, version, evidence)
    today = decide(evidence)
    if problems or not today.passed:
        return doubted(today, problems)
    return replace(
        today, reasons=(f"{record.target} became {record.target.alias} by {then.decided_by} at {then.decided_at}", *today.reasons)
    )
