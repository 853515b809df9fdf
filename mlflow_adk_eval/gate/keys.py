"""How a criterion is called in the keys of a run's params and metrics."""

from __future__ import annotations

import hashlib
import re

_LONGEST = 200
_FOREIGN = re.compile(r"[^\w.\- :]")


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
