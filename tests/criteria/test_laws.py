"""What holds for every criterion, whatever it measures."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from mlflow_adk_eval.config import SETTINGS, parse_config
from mlflow_adk_eval.criteria import REGISTRY, CaseRun, Planned, apply
from mlflow_adk_eval.criteria.base import result_of
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.outcome import TOLERANCE, CaseResult, CriterionResult, Errored, Judged, Outcome, Scored
from mlflow_adk_eval.runner import score
from tests.criteria.builders import case, cases, turn
from tests.criteria.strategies import turns
from tests.strategies import QUICK, objects

TURNS: TypeAdapter[tuple[Invocation, ...]] = TypeAdapter(tuple[Invocation, ...])
FEW = settings(QUICK, max_examples=30)
every_criterion = pytest.mark.parametrize("name", REGISTRY)


def threshold_of(name: str) -> float:
    """The easiest threshold."""
    low, high = SETTINGS[name].bounds
    return low if SETTINGS[name].greater_is_better else min(high, 1e9)


def planned(name: str, **settings: Any) -> Planned:
    chosen = SETTINGS[name].model_validate({"threshold": threshold_of(name)} | settings)
    return Planned(name=name, criterion=REGISTRY[name](chosen), threshold=chosen.threshold, greater_is_better=chosen.greater_is_better)


def judge(name: str, actual: Any, expected: Any, state: Any = None, expected_state: Any = None) -> CriterionResult:
    found = case("c", *TURNS.validate_python(expected), final_session_state=expected_state)
    return finished(name, CaseRun(case=found, actual=TURNS.validate_python(actual), session_state=state))


def finished(name: str, run: CaseRun) -> CriterionResult:
    """Judge without an event loop: a criterion that asks no model never waits."""
    with pytest.raises(StopIteration) as done:
        apply(planned(name), run).send(None)
    result: CriterionResult = done.value.value
    return result


def conversations(*, min_size: int = 0) -> st.SearchStrategy[list[Any]]:
    return st.lists(turns(), min_size=min_size, max_size=3)


@every_criterion
@FEW
@given(actual=conversations(), expected=conversations(), states=st.tuples(objects(), objects()))
def test_scores_lie_within_the_declared_bounds(name: str, actual: Any, expected: Any, states: Any) -> None:
    low, high = SETTINGS[name].bounds
    for cell in (result := judge(name, actual, expected, *states)).per_invocation:
        assert not isinstance(cell, Scored) or low <= cell.score <= high
    assert result.score is None or low <= result.score <= high


@every_criterion
@FEW
@given(actual=conversations(), expected=conversations(), states=st.tuples(objects(), objects()))
def test_the_same_conversation_has_the_same_score(name: str, actual: Any, expected: Any, states: Any) -> None:
    assert judge(name, actual, expected, *states) == judge(name, actual, expected, *states)


@pytest.mark.parametrize("name", ["tool_trajectory_avg_score", "response_match_score", "final_session_state"])
@FEW
@given(one=conversations(min_size=1), other=conversations(min_size=1), state=objects())
def test_nothing_is_better_than_the_reference_itself(name: str, one: Any, other: Any, state: Any) -> None:
    size = min(len(one), len(other))
    expected = one[:size]
    best, found = judge(name, expected, expected, state, state), judge(name, other[:size], expected, state, state)
    assert best.score is None or found.score is None or best.score >= found.score
    if name == "tool_trajectory_avg_score":
        assert best.score == 1.0


@every_criterion
def test_an_empty_conversation_is_never_scored(name: str) -> None:
    for expected in ((), (turn(),)):
        eval_set = cases(case("c", *expected, final_session_state={"a": 1}))
        (found,) = score(eval_set, {"c": []}, {"criteria": {name: threshold_of(name)}}).cases
        assert found.verdict == "undecided"
        assert not any(isinstance(cell, Scored) for result in found.results for cell in (result.overall, *result.per_invocation))


@every_criterion
def test_settings_survive_config_object_config(name: str) -> None:
    config = parse_config({"criteria": {name: threshold_of(name)}}, "config")
    again = parse_config(config.to_json(), "config")
    assert again == config
    assert again.to_json() == config.to_json()
    assert again.digest() == config.digest()


@every_criterion
@FEW
@given(actual=conversations(min_size=1), states=st.tuples(objects(), objects()), data=st.data())
def test_a_cell_that_ends_in_an_error_never_makes_a_case_pass(name: str, actual: Any, states: Any, data: st.DataObject) -> None:
    result = judge(name, actual, actual, *states)
    spoilt = list(result.per_invocation)
    spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = Errored("judge down")
    after = _with(result, tuple(spoilt))
    assert after.score is None
    assert _case(after).verdict == "undecided"


def _with(result: CriterionResult, cells: tuple[Outcome | None, ...]) -> CriterionResult:
    plan = Planned(name=result.criterion, criterion=lambda _: Judged(cells), threshold=result.threshold)
    return result_of(
        plan, CaseRun(case=case("c", *[turn()] * len(cells)), actual=(turn(),) * len(cells)), Judged(cells, overall=Scored(1.0))
    )


def _case(*results: CriterionResult) -> CaseResult:
    return CaseResult(eval_id="c", run_index=0, actual=(), expected=None, results=results)


@every_criterion
@FEW
@given(expected=conversations(min_size=1), reached=st.integers(0, 2), states=st.tuples(objects(), objects()))
def test_a_conversation_that_ended_early_never_passes(name: str, expected: Any, reached: int, states: Any) -> None:
    actual = TURNS.validate_python(expected)[:reached]
    if len(actual) == len(expected):
        actual = actual[:-1]
    found = case("c", *TURNS.validate_python(expected), final_session_state=states[1])
    run = CaseRun(case=found, actual=actual, session_state=states[0], error="connection lost")
    result = finished(name, run)
    assert result.passed is None
    assert result.per_invocation[-1] == Errored("the agent did not finish: connection lost")


@every_criterion
@given(st.floats(0, 1))
def test_a_score_within_the_tolerance_reaches_its_threshold(name: str, value: float) -> None:
    sign = -1 if SETTINGS[name].greater_is_better else 1
    found = CriterionResult(
        criterion=name,
        threshold=value,
        greater_is_better=SETTINGS[name].greater_is_better,
        overall=Scored(value + sign * TOLERANCE / 2),
        per_invocation=(),
    )
    worse = Scored(value + sign * TOLERANCE * 2)
    assert found.passed
    assert found.reached(worse) is False
