"""Names and texts within MLflow's limits. What is too long is marked, since MLflow would cut it without a word."""

from __future__ import annotations

import hashlib
import re

LONGEST_PARAM = 6000
LONGEST_TAG = 8000
LONGEST_DIGEST = 36
_LONGEST_KEY = 200
_FOREIGN = re.compile(r"[^\w.\- :]")


def key_of_criterion(criterion: str) -> str:
    """Return `criterion` as it may stand in the keys of params and metrics.

    >>> key_of_criterion("response_match_score")
    'response_match_score'
    >>> key_of_criterion("polite?")
    'polite__48cc92e7'
    """
    plain = _FOREIGN.sub("_", criterion)
    if plain == criterion and len(criterion) <= _LONGEST_KEY and criterion.strip(". ") == criterion:
        return criterion
    return f"{plain.strip('. ')[:_LONGEST_KEY]}_{_hash(criterion)}"


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
