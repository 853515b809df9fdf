"""What is promoted: a version of a registered model, and the alias that it is to get."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.evidence.integrity import Evidence, agent_problems

_MAX_ALIAS = 255
_ALIAS = re.compile(r"[\w-]+")
_RESERVED = re.compile(r"latest|v\d+", re.IGNORECASE)
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


def named(version: str | None) -> str:
    """Return how messages call the version that holds an alias, if any does.

    >>> named("3"), named(None)
    ('version 3', 'no version')
    """
    return "no version" if version is None else f"version {version}"
