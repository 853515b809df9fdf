"""How a criterion is called in the keys of a run's params and metrics."""

from __future__ import annotations

import hashlib
import re

_LONGEST = 200
_FOREIGN = re.compile(r"[^\w.\- :]")
_FURTHER_PROMPTS = {"per_turn_user_simulator_quality_v1": ("per_turn_user_simulator_stop",)}
"""The prompts of a criterion that are not called as itself."""


def key_of_criterion(criterion: str) -> str:
    """Return `criterion` as it may stand in a key, unchanged where MLflow takes it as it is.

    >>> key_of_criterion("response_match_score")
    'response_match_score'
    >>> key_of_criterion("polite?")
    'polite__48cc92e7'
    """
    plain = _FOREIGN.sub("_", criterion)
    if plain == criterion and len(criterion) <= _LONGEST and criterion.strip(". ") == criterion:
        return criterion
    mark = hashlib.sha256(criterion.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{plain.strip('. ')[:_LONGEST]}_{mark}"


def prompt_keys(criterion: str) -> list[str]:
    """Return the parameters that hold the hashes of a criterion's prompts.

    >>> prompt_keys("per_turn_user_simulator_quality_v1")
    ['adk_eval.prompt.per_turn_user_simulator_quality_v1', 'adk_eval.prompt.per_turn_user_simulator_stop']
    """
    return [f"adk_eval.prompt.{key_of_criterion(name)}" for name in (criterion, *_FURTHER_PROMPTS.get(criterion, ()))]
