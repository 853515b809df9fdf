"""What is promoted, and the record that a decision leaves behind: an artifact of the run, and tags of the model version."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gate.evidence import Evidence, agent_problems, sha256
from mlflow_adk_eval.gate.policy import Policy
from mlflow_adk_eval.outcome import Decision

RECORDS = "adk_eval_gate"
"""Where a run keeps the records, beside its evidence, which they must not change."""
TAG = "adk_eval.gate"
REFUSAL = "adk_eval.gate.last_refusal"
"""Where a refusal is noted on a version that holds the alias by an earlier pass."""
_MAX_ALIAS = 255
_MAX_NAME = 80
_MAX_REASON = 500
_ALIAS = re.compile(r"[\w-]+")
_RESERVED = re.compile(r"latest|v\d+", re.IGNORECASE)
_PLACE = re.compile(rf"(\S+) ({RECORDS}/[A-Za-z0-9_-]+\.json) ([0-9a-f]{{64}})")
_LOGGED_MODEL = re.compile(r"models:/(m-[^/@]+)")


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


def check_version(version: str) -> None:
    """Refuse what is no number of a version.

    Raises:
        UsageError: if it is none.
    """
    if not (version.isascii() and version.isdigit()):
        raise UsageError(f"version {version!r}: wanted the number of a version")


def check_alias(alias: str) -> None:
    """Refuse an alias that the registry does not take or gives a meaning of its own.

    Raises:
        UsageError: if it is one.
    """
    if not _ALIAS.fullmatch(alias) or len(alias) > _MAX_ALIAS:
        raise UsageError(f"alias {alias!r}: wanted letters, digits, underscores and dashes")
    if _RESERVED.fullmatch(alias):
        raise UsageError(f"alias {alias!r} is reserved by MLflow, like 'latest' and 'v1'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A model version as the registry has it."""

    status: str
    source: str
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def model_id(self) -> str | None:
        """The LoggedModel that the version was made from; ``None`` if it was made from something else."""
        found = _LOGGED_MODEL.fullmatch(self.source)
        return found[1] if found else None


def version_problems(target: Target, version: Version, evidence: Evidence) -> list[str]:
    """Return why a version cannot be promoted on this evidence, whatever its scores are."""
    problems = [] if version.status == "READY" else [f"{target} is {version.status}; only a READY version can be promoted"]
    if version.model_id is None:
        return [*problems, f"{target} was made from {version.source!r}, not from a LoggedModel, so it cannot be told which agent it is"]
    return [*problems, *agent_problems(evidence, version.model_id)]


def doubted(decision: Decision, problems: Sequence[str]) -> Decision:
    """Return the decision, *undecided* if there are problems."""
    if not problems:
        return decision
    reasons = () if decision.passed else decision.reasons
    return replace(decision, verdict="undecided", reasons=(*problems, *reasons))


def signed(decision: Decision) -> Decision:
    """Return the decision with the present time and who asked for it."""
    return replace(decision, decided_at=datetime.now(UTC).isoformat(timespec="microseconds"), decided_by=_who())


def _who() -> str:
    actor = os.environ.get("GITHUB_ACTOR")
    if actor:
        return actor
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


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
class Record:
    """A decision about a promotion, as it is kept."""

    schema: Literal[1] = 1
    target: Target
    source: str
    """What the version was made from."""
    previous: str | None
    """The version that held the alias when the decision was made."""
    policy: Policy
    decision: Decision

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


def find_record(tags: Mapping[str, str], alias: str | None = None) -> Place | None:
    """Return where the tags of a version say that its record lies: that of an alias, or that of the last decision."""
    last = " ".join(tags.get(f"{TAG}.{name}", "") for name in ("run_id", "record", "record_sha256"))
    found = _PLACE.fullmatch(last if alias is None else tags.get(pass_tag(alias), ""))
    return Place(*found.groups()) if found else None


def holds_pass(tags: Mapping[str, str], aliases: Mapping[str, str], version: str) -> bool:
    """Whether a version holds an alias by the decision that its tags record."""
    return tags.get(TAG) == "passed" and aliases.get(tags.get(f"{TAG}.alias", "")) == version
