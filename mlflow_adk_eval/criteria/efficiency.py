"""The four efficiency metrics: what a turn cost. Information, unless the config gives them a threshold; lower is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic.alias_generators import to_camel

from mlflow_adk_eval.criteria.base import CaseRun, register
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.outcome import Judged, Outcome, Scored, Skipped

_TOKEN_FIELDS = {
    "prompt_tokens": "prompt_token_count",
    "tool_use_tokens": "tool_use_prompt_token_count",
    "cached_tokens": "cached_content_token_count",
    "candidates_tokens": "candidates_token_count",
    "reasoning_tokens": "thoughts_token_count",
}


def tool_calls(invocation: Invocation) -> Outcome:
    """Return the number of tool calls of a turn."""
    return Scored(float(len(invocation.tool_calls)))


def inference_calls(invocation: Invocation) -> Outcome:
    """Return the number of model calls of a turn, which only recorded events show."""
    calls = [event for event in invocation.events if event.usage_metadata is not None or event.model_version is not None]
    return Scored(float(len(calls))) if invocation.events else Skipped("no events were recorded")


def token_usage(invocation: Invocation) -> Outcome:
    """Return the tokens of a turn, input and output together, with their kinds as details.

    The total is the sum of input (prompt and tool use) and output (candidates and reasoning), as ADK computes it; the
    service's own total is not used.
    """
    usages = [event.usage_metadata for event in invocation.events if event.usage_metadata]
    known = {name: count for name, field in _TOKEN_FIELDS.items() if (count := _summed(usages, field)) is not None} if usages else {}
    if not known:
        return Skipped("no token usage was recorded")
    total = math.fsum(known.get(name, 0) for name in ("prompt_tokens", "tool_use_tokens", "candidates_tokens", "reasoning_tokens"))
    return Scored(total, details=known)


def _summed(usages: Sequence[Json], field: str) -> float | None:
    names = (field, to_camel(field))
    counts = [usage[name] for usage in usages for name in names if isinstance(usage.get(name), int | float)]
    return math.fsum(counts) if counts else None


def duration(invocation: Invocation) -> Outcome:
    """Return the seconds that a turn took, with those of models, tools and the rest as details."""
    total, model, tool = invocation.duration, invocation.model_duration, invocation.tool_duration
    if total is None:
        return Skipped("no duration was recorded")
    details = {"total_seconds": total}
    if model is not None and tool is not None:
        details |= {"model_seconds": model, "tool_seconds": tool, "framework_seconds": round(max(total - model - tool, 0.0), 3)}
    return Scored(total, details=details)


@dataclass(frozen=True, slots=True)
class PerTurn:
    """A quantity of each turn; the case score is the mean over the turns."""

    measure: Callable[[Invocation], Outcome]

    def __call__(self, run: CaseRun, /) -> Judged:
        """Measure each turn that happened."""
        return Judged(tuple(self.measure(invocation) for invocation in run.actual))


@register("tool_call_count_v1")
def tool_call_count_v1(_settings: object) -> PerTurn:
    """Return the criterion that counts tool calls."""
    return PerTurn(tool_calls)


@register("inference_call_count_v1")
def inference_call_count_v1(_settings: object) -> PerTurn:
    """Return the criterion that counts model calls."""
    return PerTurn(inference_calls)


@register("token_usage_v1")
def token_usage_v1(_settings: object) -> PerTurn:
    """Return the criterion that counts tokens."""
    return PerTurn(token_usage)


@register("invocation_duration_v1")
def invocation_duration_v1(_settings: object) -> PerTurn:
    """Return the criterion that measures seconds."""
    return PerTurn(duration)
