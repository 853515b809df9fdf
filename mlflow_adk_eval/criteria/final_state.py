"""``final_session_state``: whether the conversation left the session as the eval case says, which ADK defines and never reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mlflow_adk_eval.config import FinalStateSettings
from mlflow_adk_eval.criteria.alignment import Difference, differences
from mlflow_adk_eval.criteria.base import CaseRun, register, whole_case
from mlflow_adk_eval.outcome import Errored, Judged, Outcome, Scored, Skipped

_MAX_SHOWN = 20


@register("final_session_state")
@dataclass(frozen=True, slots=True)
class FinalSessionState:
    """1 if the session ended in the state that the case expects, else 0; one score per case."""

    settings: FinalStateSettings

    def __call__(self, run: CaseRun, /) -> Judged:
        """Judge the case as a whole."""
        if not run.case.final_session_state and self.settings.only_where_expected:
            return Judged((None,) * max(len(run.actual), 1))
        return whole_case(run, self._outcome(run))

    def _outcome(self, run: CaseRun) -> Outcome:
        expected = run.case.final_session_state
        if not expected:
            return Skipped("the case expects no final_session_state; with only_where_expected such cases are left out of the plan")
        if run.session_state is None:
            return Errored("the final state of the session is not known")
        found = list(islice(state_differences(run.session_state, expected, exact=self.settings.match_type == "EXACT"), _MAX_SHOWN))
        if not found:
            return Scored(1.0, f"All {len(expected)} expected keys are as expected.")
        lines = [f"- `{place.path}`: expected {place.expected}, got {place.actual}" for place in found]
        return Scored(0.0, "\n".join([f"The state differs ({self.settings.match_type}):", "", *lines]))


def state_differences(actual: Mapping[str, Any], expected: Mapping[str, Any], *, exact: bool) -> list[Difference]:
    """Return where two states differ; unless `exact`, keys that only the actual state has are left alone, at every level.

    >>> state_differences({"a": {"x": 1, "y": 2}}, {"a": {"x": 1}}, exact=False)
    []
    >>> [place.path for place in state_differences({"a": 1, "b": 2}, {"a": 1}, exact=True)]
    ['$.b']
    """
    compared = dict(actual) if exact else _restricted(dict(actual), dict(expected))
    return list(differences(compared, dict(expected)))


def _restricted(actual: Any, expected: Any) -> Any:
    if not isinstance(actual, dict) or not isinstance(expected, dict):
        return actual
    return {key: _restricted(value, expected[key]) for key, value in actual.items() if key in expected}
