"""How much is tried: a tenth of Hypothesis's examples in `make test`, a sixth in CI, a quarter in `make test-all`, the same each time.

`make fuzz` tries all, others each time. CI also leaves out variants of slow tests (`conftest.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
SHARE = {"quick": 10, "ci": 6, "full": 4, "fuzz": 1}[PROFILE]
"""One example of so many is tried."""
WITH_SLOW = PROFILE in {"full", "ci"}
"""Whether this is `make test-all` or CI."""
LEAST = 5

# How long an example takes says nothing on a machine that others use too.
settings.register_profile("fuzz", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", settings.get_profile("fuzz"), derandomize=True, max_examples=25)
settings.register_profile("ci", settings.get_profile("full"), max_examples=16)
settings.register_profile("quick", settings.get_profile("full"), max_examples=10)
settings.load_profile(PROFILE)


def examples(count: int, *others: HealthCheck) -> settings:
    """Try `count` examples in `make fuzz` and a share of them elsewhere; `others` are health checks to leave out as well."""
    tried = max(min(count, LEAST), count // SHARE)
    return settings(max_examples=tried, suppress_health_check=[HealthCheck.too_slow, *others])


def sampled(values: Iterable[Any], each: int) -> list[Any]:
    """Return values for ``parametrize`` of which `make test` takes each such one, `make test-all` and CI three times as many, and `make fuzz` all."""
    step = max(1, each // 3) if WITH_SLOW else 1
    kept = [(index, value) for index, value in enumerate(values) if index % step == 0]
    return [value if index % each == 0 else pytest.param(value, marks=pytest.mark.slow) for index, value in kept]
