"""Where the conversations of a report come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose conversations these are, since when, and on which eval set they were had. What is not known is empty."""

    agent: str = ""
    """The name of the agent."""
    agent_version: str = ""
    """Which version of it: a LoggedModel of MLflow, or a commit."""
    recorded_at: str = ""
    """When it began, as ISO 8601 in UTC."""
    eval_set_id: str = ""
    eval_set_digest: str = ""
    case_digests: Mapping[str, str] = field(default_factory=dict[str, str])
    """The hash of each case as it was then, by eval id."""
    num_runs: int = 1
    """How often each conversation was to be had."""
