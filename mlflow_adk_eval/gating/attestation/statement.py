"""In-toto statements: a claim about things that are named by their hashes, in a form that other tools read and check.

A statement has subjects, each a name and a hash, and a predicate, which says something of them. `statement_of` writes one and `read_statement`
reads one back; who signed it is the business of `keys`. The format is that of https://github.com/in-toto/attestation (Statement v1), whose
verifiers hold the hash of a file against the subjects and leave the predicate to those who know its type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PAYLOAD_TYPE = "application/vnd.in-toto+json"
"""What the payload of an envelope with a statement is."""
EVALUATION = "urn:mlflow-adk-eval:evaluation:v1"
"""The type of a predicate about an evaluation."""
DECISION = "urn:mlflow-adk-eval:decision:v1"
"""The type of a predicate about a decision of the gate: its record."""
_TYPE = "https://in-toto.io/Statement/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What was said of what."""

    subjects: Mapping[str, str]
    """The sha256 of each, in hex, by name."""
    predicate_type: str
    predicate: Mapping[str, Any]

    def to_json(self) -> bytes:
        """Return the payload of its envelope."""
        subjects = [{"name": name, "digest": {"sha256": digest}} for name, digest in self.subjects.items()]
        value = {"_type": _TYPE, "subject": subjects, "predicateType": self.predicate_type, "predicate": self.predicate}
        return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()


def read_statement(payload: bytes, predicate_type: str) -> Statement | None:
    """Return the statement in a payload; ``None`` if it is none, or one with another predicate."""
    try:
        value = json.loads(payload)
        subjects = {str(one["name"]): str(one["digest"]["sha256"]) for one in value["subject"]}
        predicate = value["predicate"]
        known = value["_type"] == _TYPE and value["predicateType"] == predicate_type and isinstance(predicate, dict)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return Statement(subjects=subjects, predicate_type=predicate_type, predicate=predicate) if known else None
