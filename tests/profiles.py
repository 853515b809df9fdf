"""How much is tried: Hypothesis has few and always the same examples in `make test`, all and new ones each time in `make test-all`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
SHARE = 10
"""One example of so many is tried in `make test`."""
LEAST = 5

# How long an example takes says nothing on a machine that others use too.
settings.register_profile("full", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("full"), max_examples=10, derandomize=True)
settings.load_profile("full" if FULL else "quick")


def examples(count: int, *others: HealthCheck) -> settings:
    """Try `count` examples in `make test-all` and a share of them in `make test`; `others` are health checks to leave out as well."""
    tried = count if FULL else max(min(count, LEAST), count // SHARE)
    return settings(max_examples=tried, suppress_health_check=[HealthCheck.too_slow, *others])


def sampled(values: Iterable[Any], each: int) -> list[Any]:
    """Return values for ``parametrize`` of which `make test` takes each such one, the first one included, and `make test-all` all."""
    return [value if index % each == 0 else pytest.param(value, marks=pytest.mark.slow) for index, value in enumerate(values)]
