"""What a model version is, by which claims, records and baselines name it: its number alone is that of any version that gets it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

_LOGGED_MODEL = re.compile(r"models:/(m-[^/@]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionId:
    """What a model version is: a registered model that is deleted and created again has version 1 once more."""

    number: str
    source: str
    """What it was made from, such as ``models:/<LoggedModel id>``."""
    created_ms: int
    """When it was created, by the registry, in milliseconds since 1970, as is the next."""
    model_created_ms: int
    """When its registered model was created."""

    @property
    def model_id(self) -> str | None:
        """The LoggedModel that the version was made from; ``None`` if it was made from something else."""
        found = _LOGGED_MODEL.fullmatch(self.source)
        return found[1] if found else None

    def difference(self, now: VersionId) -> str:
        """Return how the version that has this one's place `now` is another one; empty if it is this one."""
        if now.model_created_ms != self.model_created_ms:
            times = (datetime.fromtimestamp(each.model_created_ms / 1000, UTC).isoformat(timespec="seconds") for each in (now, self))
            found, wanted = times
            return (
                f"the registered model was deleted and created again, or another one was given its name: created {found}, wanted {wanted}"
            )
        if (now.number, now.created_ms) != (self.number, self.created_ms):
            return f"version {now.number} is not the version {self.number} that it was: one of the two was created later"
        return "" if now.source == self.source else f"version {now.number} is made from {now.source!r} now, not from {self.source!r}"
