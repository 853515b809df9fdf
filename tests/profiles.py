"""How many examples Hypothesis tries: few and always the same ones in `make test`, all and new ones each time in `make test-all`."""

from __future__ import annotations

import os

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
