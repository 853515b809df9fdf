"""What is promoted, and the record that a decision on it leaves behind: an artifact of the run, and tags of the model version.

A `Target` is a version of a registered model and the alias that it is to get; a `VersionId` says what that version is, since its number alone
is that of any version that gets it. The `Record` of a decision holds the whole policy, the
decision with its numbers, and the hashes of the evidence on both sides, so that `verify` can decide again years later. It is an
artifact of the run that was decided on (`RecordLocation`), beside the evidence, and the version's tags and the claim lead to it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import PlainSerializer, TypeAdapter, ValidationError

from mlflow_adk_eval.errors import InputError, UsageError
from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY, Policy
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.runs.manifest import FOLDER, GATE_FOLDER, MANIFEST, Evidence, agent_problems, sha256
from mlflow_adk_eval.runtime import user_at_host
from mlflow_adk_eval.signing.keys import DECISION, Statement
from mlflow_adk_eval.text import for_mlflow


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionId:
    """What a model version is: a registered model that is deleted and created again has version 1 once more."""

    number: str
    source: str
    """What it was made from, such as ``models:/<LoggedModel id>``."""
    created_ms: int
    """When it was created, by the registry, in milliseconds since 1970, as is the next."""
    model_created_ms: int
    """When its registered model was created."""

    @property
    def model_id(self) -> str | None:
        """The LoggedModel that the version was made from; ``None`` if it was made from something else."""
        found = re.fullmatch(r"models:/(m-[^/@]+)", self.source)
        return found[1] if found else None

    def difference(self, now: VersionId) -> str:
        """Return how the version that has this one's place `now` is another one; empty if it is this one."""
        if now.model_created_ms != self.model_created_ms:
            moments = (datetime.fromtimestamp(each.model_created_ms / 1000, UTC) for each in (now, self))
            found, wanted = (moment.isoformat(timespec="seconds") for moment in moments)
            what = "the registered model was deleted and recreated, or another model was renamed to its name"
            return f"{what}: created {found}, wanted {wanted}"
        if (now.number, now.created_ms) != (self.number, self.created_ms):
            return f"version {now.number} is not the original version {self.number}: their creation times differ"
        return "" if now.source == self.source else f"version {now.number} is now made from {now.source!r}, not from {self.source!r}"


TAG = "adk_eval.gate"
HIDDEN = f"mlflow.{TAG}"
"""The beginning of tags that MLflow's page of a version does not show; its list of versions does."""
REFUSAL = f"{HIDDEN}.last_refusal"
"""Where a refusal is noted on a version that holds the alias by an earlier pass."""
_MAX_NAME = 80
_MAX_REASON = 500
_MAX_DESCRIBED, _LONGEST_DESCRIPTION = 150, 5000
"""How long the reason in a version's description may be to stay on one line, and the longest description that MLflow stores."""
_MAX_ALIAS = 255
_DESCRIBED = "[//]: # (the gate replaces the lines above and keeps the lines below)"
"""The end of what the gate wrote into a description: a definition without a name, which Markdown does not show."""
_FIRST_YEAR, _LAST_YEAR = 2000, 9000
"""When a decision can have been made; other times are none that can be reckoned with."""

Kind = Literal["promotion", "rollback", "restore"]


def check_version(version: str) -> None:
    """Refuse what is no number of a version.

    Raises:
        UsageError: if it is not an agent.
    """
    # MLflow takes 02 for 2, so the alias would be set on what is not compared equal afterwards.
    if not re.fullmatch(r"[1-9][0-9]{0,17}", version):
        raise UsageError(f"version {version!r}: wanted a version number without leading zeros")


def check_alias(alias: str) -> None:
    """Refuse an alias that the registry does not take or gives a meaning of its own.

    Raises:
        UsageError: if it is one.
    """
    if not re.fullmatch(r"[\w-]+", alias) or len(alias) > _MAX_ALIAS:
        raise UsageError(f"alias {alias!r}: wanted letters, digits, underscores and dashes")
    if re.fullmatch(r"latest|v\d+", alias, re.IGNORECASE):
        raise UsageError(f"alias {alias!r} is reserved by MLflow, like 'latest' and 'v1'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which version is to get which alias."""

    name: str
    version: str
    alias: str

    def __post_init__(self) -> None:
        """Refuse what no registry takes, before anything is asked."""
        if not self.name.strip():
            raise UsageError("the name of the registered model is empty")
        check_version(self.version)
        check_alias(self.alias)

    def __str__(self) -> str:
        """Return how messages call the version."""
        return f"version {self.version} of {self.name!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A model version as the registry has it."""

    id: VersionId
    status: str
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """A registered model as the registry has it."""

    created_ms: int
    aliases: Mapping[str, str]
    """The number of the version that holds each."""


def version_problems(target: Target, version: Version, evidence: Evidence) -> list[str]:
    """Return why a version cannot be promoted on this evidence, whatever its scores are."""
    problems = [] if version.status == "READY" else [f"{target} is {version.status}; only a READY version can be promoted"]
    if version.id.model_id is None:
        return [*problems, f"{target} was made from {version.id.source!r}, not from a LoggedModel, so the gate cannot tell its agent"]
    return [*problems, *agent_problems(evidence, version.id.model_id)]


def format_version(version: VersionId | str | None) -> str:
    """Return how messages call the version that holds an alias, if any does.

    >>> format_version("3"), format_version(None)
    ('version 3', 'no version')
    """
    return "no version" if version is None else f"version {version.number if isinstance(version, VersionId) else version}"


def undecided(*reasons: str, run_id: str = "") -> Decision:
    """Return a decision where there is nothing to decide on."""
    return Decision(verdict="undecided", reasons=reasons, run_id=run_id, evidence_sha256="", policy_sha256=DEFAULT_POLICY.digest())


def with_problems(decision: Decision, problems: Sequence[str]) -> Decision:
    """Return the decision, *undecided* if there are problems."""
    if not problems:
        return decision
    reasons = () if decision.passed else decision.reasons
    return replace(decision, verdict="undecided", reasons=(*problems, *reasons))


def stamped(decision: Decision, at: datetime) -> Decision:
    """Return the decision with the time, by the clock of the store that it rests on, and who asked for it."""
    return replace(decision, decided_at=at.isoformat(timespec="microseconds"), decided_by=os.environ.get("GITHUB_ACTOR") or user_at_host())


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """Where a record lies, and its hash."""

    run_id: str
    path: str
    sha256: str

    def __str__(self) -> str:
        """Return the location as a tag holds it."""
        return f"{self.run_id} {self.path} {self.sha256}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBaseline:
    """What a candidate was compared with; without a run where there was nothing to compare with."""

    name: str
    version: VersionId | None
    run_id: str = ""
    sha256: str = ""
    """The hash of the run's manifest."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedHoldout:
    """The run of the held-out cases that a decision rests on."""

    eval_set: str
    """The digest of these cases."""
    use: int
    """The place of this use among all of these cases, from 1."""
    run_id: str
    sha256: str
    """The hash of the run's manifest."""
    compared: RecordedBaseline | None = None
    """The champion's run of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A decision about an alias, as it is kept."""

    schema: Literal[2] = 2
    kind: Kind = "promotion"
    target: Target
    version: VersionId
    """The version of the target, by what it is."""
    previous: VersionId | None
    """The version that held the alias when the decision was made."""
    claim: int
    """The number that the decision was to have in the claim log of the alias."""
    policy: Annotated[Policy, PlainSerializer(Policy.to_json)]
    compared: RecordedBaseline | None = None
    eval_set: str = ""
    """The digest of the eval set; empty where the evidence could not be read."""
    holdout: RecordedHoldout | None = None
    decision: Decision
    reason: str = ""
    """Why somebody went back to a former version."""

    @property
    def champion(self) -> VersionId | None:
        """The version that the target was to do as well as."""
        return self.compared.version if self.compared and self.compared.version else self.previous

    def text(self) -> str:
        """Return the record as JSON."""
        return _RECORD.dump_json(self, indent=2).decode() + "\n"

    @property
    def location(self) -> RecordLocation:
        """Where it is kept; a name from outside becomes no path."""
        stamp = datetime.fromisoformat(self.decision.decided_at).strftime("%Y%m%dT%H%M%S%fZ")
        name = f"{self.target.name[:_MAX_NAME]}-v{self.target.version}-{self.target.alias[:_MAX_NAME]}-{stamp}"
        path = f"{GATE_FOLDER}/{re.sub(r'[^A-Za-z0-9_-]+', '_', name)}.json"
        return RecordLocation(self.decision.run_id, path, sha256(self.text().encode()))

    def tags(self, prefix: str = TAG) -> dict[str, str]:
        """Return the tags of the model version, the verdict last: what leads to the record, and what is said without it."""
        reason = "; ".join([*_place(self.decision), *self.decision.reasons])[:_MAX_REASON]
        details = {"alias": self.target.alias, "record": str(self.location), "reason": reason}
        return {f"{prefix}.{name}": value for name, value in details.items()} | {prefix: self.decision.verdict}

    def description(self, experiment_id: str, before: str) -> str:
        """Return the description of a version for the registry's page, in three lines of Markdown: the decision, the first reason, and links.

        Args:
            experiment_id: of the run that was decided on.
            before: the description so far. What the gate did not write is kept.
        """
        kept = (before.partition(_DESCRIBED)[2] if _DESCRIBED in before else before).strip()
        decision, location = self.decision, self.location
        at = datetime.fromisoformat(decision.decided_at).astimezone(UTC)
        more = f" · and {len(decision.reasons) - 1} more in the record" if len(decision.reasons) > 1 else ""
        run = f"#/experiments/{experiment_id}/runs/{location.run_id}"
        against = f" · [compared with](#/experiments/{experiment_id}/runs/{decision.baseline_run_id})" if decision.baseline_run_id else ""
        lines = [
            # Without marks, since the list of versions shows its beginning as it is.
            f"{decision.verdict} for the alias {for_mlflow(self.target.alias)}, {at:%Y-%m-%d %H:%M} UTC, {', '.join([for_mlflow(decision.decided_by), *_place(decision)])}",
            *(for_mlflow(reason, _MAX_DESCRIBED) + more for reason in decision.reasons[:1]),
            f"[evaluation run]({run}) · [promotion record]({run}/artifacts/{location.path}) · [report]({run}/artifacts/{FOLDER}/report.html){against}",
            _DESCRIBED,
            *([kept] if kept else []),
        ]
        text = "\n\n".join(lines)
        return text if len(text) <= _LONGEST_DESCRIPTION else before


def _place(decision: Decision) -> list[str]:
    return [f"attempt {decision.attempt}"] if (decision.attempt or 1) > 1 else []


_RECORD = TypeAdapter(Record)


def read_record(content: bytes) -> Record | None:
    """Return the record in an artifact; ``None`` if it is none, or one on which nothing could be decided again."""
    try:
        found = _RECORD.validate_json(content)
        decided_at = datetime.fromisoformat(found.decision.decided_at).astimezone(UTC)
        if found.policy.calibration is not None:
            from mlflow_adk_eval.analysis.calibration.calibration import load_calibration  # noqa: PLC0415 - few policies have one

            load_calibration(found.policy.calibration)
    except (ValidationError, ValueError, OverflowError, InputError):
        return None
    return found if _FIRST_YEAR <= decided_at.year <= _LAST_YEAR else None


def decision_statement(location: RecordLocation, content: bytes) -> Statement:
    """Return what is signed beside a record: its content, about its own file and the manifest of the evidence."""
    record = json.loads(content)
    evidence = {f"{FOLDER}/{MANIFEST}": found} if (found := record["decision"]["evidence_sha256"]) else {}
    return Statement(subjects={location.path: location.sha256, **evidence}, predicate_type=DECISION, predicate=record)


def pass_tag(alias: str) -> str:
    """Return the key of the tag that leads to the record of an alias, also after the version got another alias."""
    return f"{HIDDEN}.passed.{alias}"


def read_location(text: str) -> RecordLocation | None:
    """Return the location that a tag or a claim names; ``None`` if it is none."""
    found = re.fullmatch(rf"(\S+) ({GATE_FOLDER}/[A-Za-z0-9_-]+\.json) ([0-9a-f]{{64}})", text)
    return RecordLocation(*found.groups()) if found else None
