"""``final_session_state``: whether the conversation left the session as the eval case says.

ADK defines ``final_session_state`` in its eval cases and reads it nowhere; this criterion does. It compares the session's state after the last
turn with it as JSON: ``SUBSET`` wants the expected keys with their values, at every level; ``EXACT`` wants no others besides. A case that
expects no state is skipped, which leaves the evaluation undecided, unless ``only_where_expected`` leaves such cases out of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import to_jsonable_python

from mlflow_adk_eval.config.spec import CriterionSpec, ExpectingSettings, read_name
from mlflow_adk_eval.criteria.alignment import Difference, differences
from mlflow_adk_eval.criteria.criterion import CaseRun, whole_case
from mlflow_adk_eval.evalset.conversation import IN_THE_TOOLS_PLACE
from mlflow_adk_eval.evalset.models import EvalCase, Json
from mlflow_adk_eval.results.outcomes import Judged, Scored, Skipped

_MAX_SHOWN = 20


class FinalStateSettings(ExpectingSettings):
    """How the session's final state must match the expected one."""

    match_type: Annotated[Literal["EXACT", "SUBSET"], BeforeValidator(read_name)] = Field(
        default="SUBSET", description="``SUBSET``: the state must contain the expected keys and values; ``EXACT``: and no other keys."
    )
    # Written also where it is off, as it always was: then the config has the digest that it always had.
    only_where_expected: bool = Field(default=False, description="whether rows without an expected state are skipped on purpose.")

    def lack(self, case: EvalCase, index: int) -> str:  # noqa: ARG002 - the state is that of the whole case
        """Return that a case expects no state."""
        return "" if case.final_session_state else "an expected final_session_state"

    def scores_turn(self, case: EvalCase, index: int) -> bool:  # noqa: ARG002 - as above
        """Leave no turn out: the only score is the case's."""
        return True


@dataclass(frozen=True, slots=True)
class FinalSessionState:
    """1 if the session ended in the state that the case expects, else 0; one score per case."""

    settings: FinalStateSettings

    def __call__(self, run: CaseRun, /) -> Judged:
        """Judge the case as a whole."""
        expected, match_type = run.case.final_session_state, self.settings.match_type
        if not expected:
            return whole_case(run, Skipped("the case has no expected final_session_state; set only_where_expected to skip such cases"))
        unlike = state_differences(run.session_state or {}, expected, exact=match_type == "EXACT")
        if not unlike:
            return whole_case(run, Scored(1.0, f"All {len(expected)} expected keys are as expected."))
        lines = [f"- `{place.path}`: expected {place.expected}, got {place.actual}" for place in unlike[:_MAX_SHOWN]]
        if len(unlike) > _MAX_SHOWN:
            lines.append(f"- and {len(unlike) - _MAX_SHOWN} more")
        injected = dict.fromkeys(f"`{found.tool}`" for found in run.injections if found.kind in IN_THE_TOOLS_PLACE)
        if injected:
            lines += ["", f"The tool environment answered calls of {', '.join(injected)} in the tool's place, so these changed no state."]
        return whole_case(run, Scored(0.0, "\n".join([f"The state differs ({match_type}):", "", *lines])))


def state_differences(actual: Mapping[str, Any], expected: Json, *, exact: bool) -> list[Difference]:
    """Return where two states differ; unless `exact`, keys that only the actual state has are left alone, at every level.

    >>> state_differences({"a": {"x": 1, "y": 2}}, {"a": {"x": 1}}, exact=False)
    []
    >>> [place.path for place in state_differences({"a": 1, "b": 2}, {"a": 1}, exact=True)]
    ['$.b']
    """
    state = to_jsonable_python(actual, serialize_unknown=True)  # an agent's state may hold tuples, dates and the like
    return list(differences(state if exact else _restricted(state, expected), expected))


def _restricted(actual: Any, expected: Any) -> Any:
    if not isinstance(actual, dict) or not isinstance(expected, dict):
        return actual
    return {key: _restricted(value, expected[key]) for key, value in actual.items() if key in expected}


SPECS = (
    CriterionSpec(
        name="final_session_state",
        origin="ours",
        about="1 if the session ended in the expected state, else 0",
        kept="the keys that differ; ADK defines the field but never reads it",
        settings=FinalStateSettings,
        scope="case",
        needs=("expected_state", "state"),
        make=FinalSessionState,
    ),
)
