"""The four efficiency metrics: what a turn cost, in tool calls, model calls, tokens and seconds.

They are measured on every run, as information; given a threshold in the config, they decide, and lower is better. The case score is the mean
over the turns. They read only what was recorded: model calls and tokens stand in the events of a turn, which data written by hand do not have,
so such a turn has no score rather than being counted as free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from pydantic.alias_generators import to_camel

from mlflow_adk_eval.config.spec import CriterionSettings, CriterionSpec
from mlflow_adk_eval.criteria.criterion import CaseRun, missing_turns
from mlflow_adk_eval.evalset.models import Invocation, Json
from mlflow_adk_eval.evalset.observation import Need
from mlflow_adk_eval.results.outcomes import Judged, Outcome, Scored, Skipped

Measure = Callable[[Invocation], Outcome]

_INPUT = {"prompt_tokens": "prompt_token_count", "tool_use_tokens": "tool_use_prompt_token_count"}
_OUTPUT = {"candidates_tokens": "candidates_token_count", "reasoning_tokens": "thoughts_token_count"}
_CACHED = {"cached_tokens": "cached_content_token_count"}

_NO_COUNT = Skipped("no model call was recorded")
_NO_USAGE = Skipped("no token usage was recorded")
_NO_DURATION = Skipped("no duration was recorded")


@cache
def _count(number: int) -> Scored:
    return Scored(float(number))


def tool_calls(invocation: Invocation) -> Outcome:
    """Return the number of tool calls of a turn."""
    return _count(len(invocation.tool_calls))


def inference_calls(invocation: Invocation) -> Outcome:
    """Return the number of model calls of a turn, as it was counted, else as recorded events show."""
    number = invocation.model_calls
    return _NO_COUNT if number is None else _count(number)


def token_usage(invocation: Invocation) -> Outcome:
    """Return the tokens of a turn, input and output together, with their kinds as details.

    The total is the sum of input (prompt and tool use) and output (candidates and reasoning), as ADK computes it; the
    service's own total is not used.
    """
    usages = [event.usage_metadata for event in invocation.events if event.usage_metadata]
    counted = tokens_of(usages) if usages else {}
    return Scored(counted["total_tokens"], details=counted) if counted else _NO_USAGE


def tokens_of(usages: Sequence[Json]) -> dict[str, float]:
    """Return what model calls reported together: ``total_tokens``, those of input and output, and each kind; empty if nothing."""
    into, out = _sums(usages, _INPUT), _sums(usages, _OUTPUT)
    if not into and not out:
        return {}
    totals = {name: math.fsum(kinds.values()) for name, kinds in (("input_tokens", into), ("output_tokens", out)) if kinds}
    return {"total_tokens": math.fsum(totals.values())} | totals | into | out | _sums(usages, _CACHED)


def _sums(usages: Sequence[Json], fields: Mapping[str, str]) -> dict[str, float]:
    """Return the sum of each field that a model call reported, in either spelling."""
    counts = {name: [usage.get(field, usage.get(to_camel(field))) for usage in usages] for name, field in fields.items()}
    return {name: math.fsum(known) for name, counted in counts.items() if (known := [count for count in counted if count is not None])}


def duration(invocation: Invocation) -> Outcome:
    """Return the seconds that a turn took, with those of models, tools and the rest as details."""
    total, model, tool = invocation.duration, invocation.model_duration, invocation.tool_duration
    if total is None:
        return _NO_DURATION
    rest = None if model is None or tool is None else round(max(total - model - tool, 0.0), 3)
    details = {"total_seconds": total, "model_seconds": model, "tool_seconds": tool, "framework_seconds": rest}
    return Scored(total, details={name: seconds for name, seconds in details.items() if seconds is not None})


@dataclass(frozen=True, slots=True)
class PerTurn:
    """A quantity of each turn; the case score is the mean over the turns."""

    measure: Measure
    settings: CriterionSettings | None = None
    """Nothing but a threshold, and none where the measure is information."""

    def __call__(self, run: CaseRun, /) -> Judged:
        """Measure each turn that happened; one that did not is no turn without cost."""
        return Judged((*map(self.measure, run.actual), *missing_turns(run)))


_QUANTITY: Mapping[str, Any] = {"origin": "adk", "bounds": (0.0, math.inf), "greater_is_better": False, "informative": True}


def _spec(name: str, measure: Measure, about: str, kept: str, needs: tuple[Need, ...] = ()) -> CriterionSpec:
    about, make = f"{about}; lower is better", partial(PerTurn, measure)
    return CriterionSpec(name=name, about=about, kept=kept, needs=needs, make=make, **_QUANTITY)


SPECS = (
    _spec("tool_call_count_v1", tool_calls, "the number of tool calls of a turn", "nothing else", ("calls",)),
    _spec("inference_call_count_v1", inference_calls, "the number of model calls of a turn", "nothing else", ("model_calls",)),
    _spec("token_usage_v1", token_usage, "the tokens of a turn, input and output together", "the tokens of each kind", ("usage",)),
    _spec("invocation_duration_v1", duration, "the seconds that a turn took", "the seconds of models, tools and the rest", ("timing",)),
)
