"""The tool calls of a run that nobody expected and that no criterion minds, counted in its conversations.

``IN_ORDER`` and ``ANY_ORDER`` ignore them. They may be harmless, or a refund that was not to be: so every page says how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_adk_eval.config.eval_config import Criteria
from mlflow_adk_eval.criteria.trajectory import ToolTrajectorySettings, ignored_calls, made_calls
from mlflow_adk_eval.evalset.conversation import TurnPair
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.text import counted


@dataclass(slots=True)
class IgnoredCalls:
    """How many calls were not expected and do not count."""

    calls: int = 0
    eval_ids: set[str] = field(default_factory=set[str])
    match_types: set[str] = field(default_factory=set[str])

    def __str__(self) -> str:
        """Return them as a sentence without its point; empty where there are none.

        >>> str(IgnoredCalls(3, {"a", "b"}, {"IN_ORDER"})), str(IgnoredCalls(1, {"a"}, {"ANY_ORDER"}))
        ('3 calls in 2 cases were not expected; IN_ORDER ignores them', '1 call in 1 case was not expected; ANY_ORDER ignores it')
        """
        if not self.calls:
            return ""
        where = f"{counted(self.calls, 'call')} in {counted(len(self.eval_ids), 'case')}"
        were, them = ("was", "it") if self.calls == 1 else ("were", "them")
        ignore = "ignores" if len(self.match_types) == 1 else "ignore"
        return f"{where} {were} not expected; {' and '.join(sorted(self.match_types))} {ignore} {them}"


def _lenient(criteria: Criteria) -> ToolTrajectorySettings | None:
    """Return how the calls of a case are compared, if some of them are ignored."""
    trajectories = (one for one in criteria.values() if isinstance(one, ToolTrajectorySettings))
    return next((one for one in trajectories if one.match_type != "EXACT"), None)


def _count(found: IgnoredCalls, case: CaseResult, settings: ToolTrajectorySettings) -> None:
    for index in range(case.turns):
        turn = TurnPair(case, index)
        if turn.expected is None:
            continue
        made = made_calls(turn.actual, case.conversation.inner_calls, index, settings)
        ignored = ignored_calls(made, turn.expected_calls, settings)
        if ignored:
            found.calls += len(ignored)
            found.eval_ids.add(case.eval_id)
            found.match_types.add(settings.match_type)


def ignored_calls_of(report: Report) -> IgnoredCalls:
    """Return the calls that the match types of the report's config ignore; none are counted where none does."""
    found: IgnoredCalls | None = report.cases.memo.get(IgnoredCalls)
    if found is not None:
        return found
    found = IgnoredCalls()
    config = report.config
    lenient = any(map(_lenient, (config.criteria, *config.case_criteria.values())))
    for place in range(len(report.cases)) if lenient else ():
        case = report.cases.loaded(place)
        settings = _lenient(config.criteria_of(case.eval_id))
        if settings is not None:
            _count(found, case, settings)
    report.cases.memo[IgnoredCalls] = found
    return found
