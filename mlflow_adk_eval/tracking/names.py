"""Names and texts within MLflow's limits. What is too long is marked, since MLflow would cut it without a word."""

from __future__ import annotations

import hashlib
import re

from mlflow_adk_eval.gating.keys import key_of_criterion

LONGEST_PARAM = 6000
LONGEST_TAG = 8000
LONGEST_DIGEST = 36
_LONGEST_KEY = 200


def assessment_name(criterion: str) -> str:
    """Return `criterion` as the name of an assessment, of which MLflow hides whatever stands before a slash."""
    return key_of_criterion(criterion.removeprefix("mlflow."))


def fitted(text: str, limit: int) -> str:
    """Return `text`, or, where it is longer than `limit`, its beginning and its hash.

    >>> fitted("a" * 50, 20)
    'aaaaaaaa… (160b4e43)'
    """
    if len(text) <= limit:
        return text
    mark = f"… ({_hash(text)})"
    return text[: limit - len(mark)] + mark


def model_name(agent: str) -> str:
    """Return an agent's name as a LoggedModel may be called.

    >>> model_name("pkg.agents:root")
    'pkg_agents_root'
    """
    return re.sub(r"[/:.%\"']", "_", agent)[:_LONGEST_KEY] or "agent"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
