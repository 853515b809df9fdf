"""Nothing unseen counts: laws over every criterion, every need, and every way in which it can be unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.criterion import CaseRun, Planned
from mlflow_adk_eval.evalset.models import IntermediateData, Invocation, InvocationEvents, Json
from mlflow_adk_eval.evalset.observation import EXPECTATIONS, NAMES, OBSERVATIONS, Need, Unknown, blind_spots, is_void
from mlflow_adk_eval.results.outcomes import CriterionResult, Scored, reason_of
from tests.criteria.test_laws import DECIDED_HERE, FEW, OF_PAIRS, TURNS, case_for, conversations, finished, oracle, planned
from tests.kit import turn

CASES = [(name, need) for name in DECIDED_HERE for need in planned(name).needs]
every_need = pytest.mark.parametrize(("name", "need"), CASES)
every_criterion = pytest.mark.parametrize("name", DECIDED_HERE)
STATE = {"lamp": True}


def run_for(name: str, turns: Any, unknown: tuple[Unknown, ...] = ()) -> CaseRun:
    """A case whose reference is what the agent did, so that only what is unknown can cost a score."""
    actual = tuple(_whole(one) for one in TURNS.validate_python(turns))
    baseline = (turn("the baseline"),) * 3 if name in OF_PAIRS else None
    found = case_for(name, *actual, final_session_state=STATE)
    return CaseRun(case=found, actual=actual, baseline=baseline, session_state=STATE, inner_calls=(), unknown=unknown)


def _whole(one: Invocation) -> Invocation:
    """A turn of which everything is known."""
    known: Json = {"duration": one.duration or 1.0, "inference_call_count": one.inference_call_count or 1}
    return one.model_copy(update=known)


def judged(name: str, run: CaseRun, plan: Planned | None = None) -> CriterionResult:
    return finished(plan or planned(name, oracle()), run)


def scored(result: CriterionResult) -> list[bool]:
    return [isinstance(cell, Scored) for cell in result.per_invocation]


@every_need
@FEW
@given(turns=conversations(min_size=1), everywhere=st.booleans(), data=st.data())
@pytest.mark.needs("sacrebleu")
def test_a_criterion_has_no_score_where_a_need_is_unknown_and_names_it(
    name: str,
    need: Need,
    turns: Any,
    everywhere: bool,
    data: st.DataObject,
) -> None:
    place = None if everywhere else data.draw(st.integers(0, len(turns) - 1))
    result = judged(name, run_for(name, turns, (Unknown(what=need, why="nobody looked", turn=place),)))
    whole = CRITERIA[name].scope == "case"
    cells = enumerate(result.per_invocation)
    affected = [cell for index, cell in cells if cell is not None and (whole or place in (None, index))]
    for cell in affected:
        assert NAMES[need] in reason_of(cell)
        assert "nobody looked" in reason_of(cell)
    if affected:  # a criterion may leave a turn out, as one on arguments does where no call is expected
        assert result.score is None
        assert result.passed is None


@every_criterion
@FEW
@given(turns=conversations(min_size=1))
@pytest.mark.needs("sacrebleu")
def test_what_a_criterion_does_not_need_may_be_unknown(name: str, turns: Any) -> None:
    needs = planned(name).needs
    others = tuple(Unknown(what=need, why="nobody looked") for need in (*EXPECTATIONS, *OBSERVATIONS) if need not in needs)
    if "call_results" in needs:
        others = tuple(entry for entry in others if entry.what != "calls")  # without calls, their results are unknown as well
    assert judged(name, run_for(name, turns, others)) == judged(name, run_for(name, turns))


def _without_usage(one: Invocation) -> Invocation:
    events = tuple(event.model_copy(update={"usage_metadata": None, "model_version": None}) for event in one.events)
    data = InvocationEvents(invocation_events=events) if one.events else one.intermediate_data
    return one.model_copy(update={"intermediate_data": data, "inference_call_count": None})


def _by_hand(one: Invocation) -> Invocation:
    """A turn with its calls as people write them, without what the tools returned."""
    return one.model_copy(update={"intermediate_data": IntermediateData(tool_uses=tuple(one.tool_calls))})


Removal = Callable[[CaseRun], CaseRun]


def _of_turns(change: Callable[[Invocation], Invocation]) -> Removal:
    return lambda run: replace(run, actual=tuple(change(one) for one in run.actual))


REMOVED: Mapping[str, tuple[str, Removal]] = {
    "timing": ("invocation_duration_v1", _of_turns(lambda one: one.model_copy(update={"duration": None}))),
    "usage": ("token_usage_v1", _of_turns(_without_usage)),
    "model_calls": ("inference_call_count_v1", _of_turns(_without_usage)),
    "call_results": ("hallucinations_v1", _of_turns(_by_hand)),
    "state": ("final_session_state", lambda run: replace(run, session_state=None)),
}
"""By observation, the criterion that needs it and how it is taken out of a recording."""


@pytest.mark.parametrize("need", REMOVED)
@FEW
@given(turns=conversations(min_size=1))
def test_what_was_not_recorded_has_no_score(need: str, turns: Any) -> None:
    name, removal = REMOVED[need]
    run = removal(run_for(name, turns))
    result = judged(name, run)
    for index in range(len(run.actual)):
        if need in blind_spots(run, index) and result.per_invocation[index] is not None:
            assert not scored(result)[index]
            assert result.score is None
    if need != "call_results":
        assert all(need in blind_spots(run, index) for index in range(len(run.actual)))


@every_criterion
@FEW
@given(turns=conversations(min_size=1))
@pytest.mark.needs("sacrebleu")
def test_a_turn_in_which_the_agent_did_nothing_has_no_good_score(name: str, turns: Any) -> None:
    run = run_for(name, turns)
    result = judged(name, run)
    worst = CRITERIA[name].worst_of_nothing
    if worst is None:
        return
    silent = [is_void(one) for one in run.actual]
    whole = CRITERIA[name].scope == "case"
    for index, cell in enumerate(result.per_invocation):
        if isinstance(cell, Scored) and (all(silent) if whole else silent[index]):
            assert cell.score == pytest.approx(worst)
