"""The record that a decision leaves behind: an artifact of the run, and tags of the model version."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, TypeAdapter, ValidationError

from mlflow_adk_eval.gating.baseline.baseline import Baseline
from mlflow_adk_eval.gating.evidence.integrity import sha256
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.promotion.target import (
    Target,
    Version,
    check_alias,
    check_version,
    version_problems,
)
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.runtime import user_at_host

__all__ = [
    "RECORDS",
    "REFUSAL",
    "TAG",
    "Compared",
    "Kind",
    "Place",
    "Record",
    "Target",
    "Version",
    "check_alias",
    "check_version",
    "doubted",
    "find_record",
    "holds_pass",
    "pass_tag",
    "place_of",
    "read_record",
    "signed",
    "version_problems",
]

RECORDS = "adk_eval_gate"
"""Where a run keeps the records, beside its evidence, which they must not change."""
TAG = "adk_eval.gate"
REFUSAL = "adk_eval.gate.last_refusal"
"""Where a refusal is noted on a version that holds the alias by an earlier pass."""
_MAX_NAME = 80
_MAX_REASON = 500
_PLACE = re.compile(rf"(\S+) ({RECORDS}/[A-Za-z0-9_-]+\.json) ([0-9a-f]{{64}})")

Kind = Literal["promotion", "rollback", "restore"]


def _policy_json(policy: Policy) -> dict[str, Any]:
    return policy.to_json()


def doubted(decision: Decision, problems: Sequence[str]) -> Decision:
    """Return the decision, *undecided* if there are problems."""
    if not problems:
        return decision
    reasons = () if decision.passed else decision.reasons
    return replace(decision, verdict="undecided", reasons=(*problems, *reasons))


def signed(decision: Decision, at: datetime | None = None) -> Decision:
    """Return the decision with a time, ``None``: the present one, and who asked for it."""
    return replace(
        decision,
        decided_at=(at or datetime.now(UTC)).isoformat(timespec="microseconds"),
        decided_by=os.environ.get("GITHUB_ACTOR") or user_at_host(),
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies, and its hash."""

    run_id: str
    path: str
    sha256: str

    def __str__(self) -> str:
        """Return the place as a tag holds it."""
        return f"{self.run_id} {self.path} {self.sha256}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a candidate was compared with; without a run where there was nothing to compare with."""

    name: str
    version: str | None
    run_id: str
    sha256: str
    """The hash of the run's manifest."""
    problems: tuple[str, ...]

    @staticmethod
    def of(baseline: Baseline | None) -> Compared | None:
        """Return what a record keeps of a baseline."""
        if baseline is None:
            return None
        run_id, digest = (baseline.evidence.run_id, baseline.evidence.sha256) if baseline.evidence else ("", "")
        return Compared(name=baseline.name, version=baseline.version, run_id=run_id, sha256=digest, problems=baseline.problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A decision about an alias, as it is kept."""

    schema: Literal[2] = 2
    kind: Kind = "promotion"
    target: Target
    source: str
    """What the version was made from."""
    previous: str | None
    """The version that held the alias when the decision was made."""
    claim: int
    """The number that the decision was to have in the ledger of the alias."""
    policy: Annotated[Policy, PlainSerializer(_policy_json)]
    compared: Compared | None = None
    decision: Decision
    reason: str = ""
    """Why somebody went back to a former version."""

    def but(self, problem: str) -> Record:
        """Return the record of a refusal for a reason that came up after the decision."""
        return replace(self, decision=signed(doubted(self.decision, [problem])))

    def text(self) -> str:
        """Return the record as JSON."""
        return _RECORD.dump_json(self, indent=2).decode() + "\n"

    @property
    def place(self) -> Place:
        """Where it is kept; a name from outside becomes no path."""
        stamp = datetime.fromisoformat(self.decision.decided_at).strftime("%Y%m%dT%H%M%S%fZ")
        name = f"{self.target.name[:_MAX_NAME]}-v{self.target.version}-{self.target.alias[:_MAX_NAME]}-{stamp}"
        path = f"{RECORDS}/{re.sub(r'[^A-Za-z0-9_-]+', '_', name)}.json"
        return Place(self.decision.run_id, path, sha256(self.text().encode()))

    def tags(self, prefix: str = TAG) -> dict[str, str]:
        """Return the tags of the model version, the verdict last."""
        decision, place = self.decision, self.place
        details = {
            "run_id": decision.run_id,
            "alias": self.target.alias,
            "policy_sha256": decision.policy_sha256,
            "evidence_sha256": decision.evidence_sha256,
            "record": place.path,
            "record_sha256": place.sha256,
            "decided_at": decision.decided_at,
            "decided_by": decision.decided_by,
            "reason": "; ".join(decision.reasons)[:_MAX_REASON],
        }
        return {f"{prefix}.{name}": value for name, value in details.items()} | {prefix: decision.verdict}


_RECORD = TypeAdapter(Record)


def read_record(content: bytes) -> Record | None:
    """Return the record in an artifact; ``None`` if it is none."""
    try:
        return _RECORD.validate_json(content)
    except ValidationError:
        return None


def pass_tag(alias: str) -> str:
    """Return the key of the tag that leads to the record of an alias, also after the version got another alias."""
    return f"{TAG}.passed.{alias}"


def place_of(text: str) -> Place | None:
    """Return the place that a tag or a claim names; ``None`` if it is none."""
    found = _PLACE.fullmatch(text)
    return Place(*found.groups()) if found else None


def find_record(tags: Mapping[str, str], alias: str | None = None) -> Place | None:
    """Return where the tags of a version say that its record lies: that of an alias, or that of the last decision."""
    last = " ".join(tags.get(f"{TAG}.{name}", "") for name in ("run_id", "record", "record_sha256"))
    return place_of(last if alias is None else tags.get(pass_tag(alias), ""))


def holds_pass(tags: Mapping[str, str], aliases: Mapping[str, str], version: str) -> bool:
    """Whether a version holds an alias by the decision that its tags record."""
    return tags.get(TAG) == "passed" and aliases.get(tags.get(f"{TAG}.alias", "")) == version
