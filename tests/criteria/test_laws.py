"""What holds for every criterion, whatever it measures and whoever decides it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from statistics import median_low
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS
from mlflow_adk_eval.config.spec import CRITERIA, RubricSettings, VertexSettings
from mlflow_adk_eval.criteria.criterion import NO_ANSWER, CaseRun, Planned, apply, result_of
from mlflow_adk_eval.criteria.plan import planned_by
from mlflow_adk_eval.evalset.models import EvalCase, Invocation
from mlflow_adk_eval.judge.protocol import Request
from mlflow_adk_eval.judge.question import ItemVerdict, Question
from mlflow_adk_eval.judge.voting import Ask, JudgeResponse, VoteCollector
from mlflow_adk_eval.results.outcomes import TOLERANCE, CaseResult, CriterionResult, Errored, Judged, Outcome, Scored, Vote, mean
from mlflow_adk_eval.runner.recordings import score
from mlflow_adk_eval.testing import ScriptedJudge
from tests.criteria.strategies import turns
from tests.kit import case, case_result, cases, scenario, turn, turn_json
from tests.profiles import examples
from tests.strategies import objects

TURNS: TypeAdapter[tuple[Invocation, ...]] = TypeAdapter(tuple[Invocation, ...])
FEW = examples(25, HealthCheck.data_too_large)
RUBRICS = [{"rubric_id": name, "rubric_content": {"text_property": f"The agent is {name}."}} for name in ("kind", "brief")]
OF_PAIRS = {metric.criterion for metric in RAPID_METRICS.values() if metric.kind == "pairwise"}
OF_SCENARIOS = {"per_turn_user_simulator_quality_v1"}
DECIDED_HERE = [name for name, spec in CRITERIA.items() if spec.origin != "vertex"]  # the others are in test_vertex.py
JUDGED = [name for name in DECIDED_HERE if CRITERIA[name].judged]
OF_CASES = {name for name in JUDGED if "multi_turn" in name}
every_criterion = pytest.mark.parametrize("name", DECIDED_HERE)
every_judged_criterion = pytest.mark.parametrize("name", JUDGED)


def threshold_of(name: str) -> float:
    """The easiest threshold."""
    low, high = CRITERIA[name].bounds
    return low if CRITERIA[name].greater_is_better else min(high, 1e9)


def settings_of(name: str) -> dict[str, Any]:
    """Settings with which a criterion applies to any case and needs no service."""
    rubrics = {"rubrics": RUBRICS} if issubclass(CRITERIA[name].settings, RubricSettings) else {}
    backend = {"backend": "judge"} if issubclass(CRITERIA[name].settings, VertexSettings) else {}
    forbidden = {"tools": ["search", {"name": "book", "args": {"day": 1}}]} if name == "forbidden_tools_v1" else {}
    return {"threshold": threshold_of(name)} | rubrics | backend | forbidden


def oracle(seed: int = 0, *, failing: float = 0.0) -> Ask:
    """A judge whose votes depend on what it is asked and on their number; so do those that fail, which are as many as the share says."""

    async def ask(question: Question, vote: int) -> JudgeResponse:
        await checkpoint()
        return JudgeResponse(verdicts=tuple(_reading(question, (item.id, vote, seed), failing) for item in question.items), model="oracle")

    return ask


def _reading(question: Question, asked: Any, failing: float) -> ItemVerdict:
    omen = _omen(asked, question.address("oracle", {}))
    labels = list(question.label_values)
    return ItemVerdict(error="the oracle is silent") if omen % 100 < 100 * failing else ItemVerdict(label=labels[omen // 100 % len(labels)])


def _omen(*asked: Any) -> int:
    return int.from_bytes(hashlib.sha256(repr(asked).encode("utf-8", "replace")).digest()[:8])


def planned(name: str, ask: Ask | None = None, *, early_stop: bool = True) -> Planned:
    chosen: Any = CRITERIA[name].settings.model_validate(settings_of(name))
    criterion = (
        CRITERIA[name].make(chosen, VoteCollector(ask=ask or oracle(), early_stop=early_stop))
        if name in JUDGED
        else CRITERIA[name].make(chosen)
    )
    return planned_by(CRITERIA[name], criterion, chosen)


def case_for(name: str, *expected: Invocation, **more: Any) -> EvalCase:
    """A case to which a criterion applies."""
    return scenario("c") if name in OF_SCENARIOS else case("c", *expected, **more)


def judge(name: str, actual: Any, expected: Any, state: Any = None, expected_state: Any = None) -> CriterionResult:
    found = case_for(name, *TURNS.validate_python(expected), final_session_state=expected_state)
    return finished(planned(name), CaseRun(case=found, actual=TURNS.validate_python(actual), session_state=state))


def finished(plan: Planned, run: CaseRun) -> CriterionResult:
    """Judge, and without an event loop where no model is asked: such a criterion never waits."""
    if plan.name in JUDGED:
        return anyio.run(apply, plan, run)
    with pytest.raises(StopIteration) as done:
        apply(plan, run).send(None)
    result: CriterionResult = done.value.value
    return result


def conversations(*, min_size: int = 0) -> st.SearchStrategy[list[Any]]:
    return st.lists(turns(), min_size=min_size, max_size=3)


@every_criterion
@FEW
@given(actual=conversations(), expected=conversations(), states=st.tuples(objects(), objects()))
@pytest.mark.needs("sacrebleu")
def test_scores_lie_within_the_declared_bounds(name: str, actual: Any, expected: Any, states: Any) -> None:
    low, high = CRITERIA[name].bounds
    for cell in (result := judge(name, actual, expected, *states)).per_invocation:
        assert not isinstance(cell, Scored) or low <= cell.score <= high
    assert result.score is None or low <= result.score <= high


@every_criterion
@FEW
@given(actual=conversations(), expected=conversations(), states=st.tuples(objects(), objects()))
@pytest.mark.needs("sacrebleu")
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
    if name == "tool_trajectory_avg_score" and NO_ANSWER not in best.per_invocation:
        assert best.score == 1.0


@every_criterion
@pytest.mark.needs("sacrebleu")
def test_an_empty_conversation_is_never_scored(name: str) -> None:
    for expected in ((), (turn(),)):
        eval_set = cases(case_for(name, *expected, final_session_state={"a": 1}))
        (found,) = score(eval_set, {"c": []}, {"criteria": {name: settings_of(name)}}, ScriptedJudge({}), baseline=eval_set).cases
        assert found.verdict == "undecided"
        assert not any(isinstance(cell, Scored) for result in found.results for cell in (result.overall, *result.per_invocation))


@every_criterion
def test_settings_survive_config_object_config(name: str) -> None:
    config = parse_config({"criteria": {name: settings_of(name)}}, "config")
    again = parse_config(config.to_json(), "config")
    assert again == config
    assert again.to_json() == config.to_json()
    assert again.digest() == config.digest()


@every_criterion
@FEW
@given(actual=conversations(min_size=1), states=st.tuples(objects(), objects()), data=st.data())
@pytest.mark.needs("sacrebleu")
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
    return case_result(eval_id="c", run_index=0, actual=(), expected=None, results=results)


@every_criterion
@FEW
@given(expected=conversations(min_size=1), reached=st.integers(0, 2), states=st.tuples(objects(), objects()))
@pytest.mark.needs("sacrebleu")
def test_a_conversation_that_ended_early_never_passes(name: str, expected: Any, reached: int, states: Any) -> None:
    actual = TURNS.validate_python(expected)[:reached]
    if len(actual) == len(expected):
        actual = actual[:-1]
    found = case_for(name, *TURNS.validate_python(expected), final_session_state=states[1])
    unfinished = name in OF_SCENARIOS  # nobody knows how many turns there would have been
    run = CaseRun(case=found, actual=actual, session_state=states[0], error="connection lost", unfinished=unfinished)
    result = finished(planned(name), run)
    assert result.passed is None
    assert result.per_invocation[-1] == Errored("the agent did not finish: connection lost")


@every_criterion
@given(st.floats(0, 1))
def test_a_score_within_the_tolerance_reaches_its_threshold(name: str, value: float) -> None:
    sign = -1 if CRITERIA[name].greater_is_better else 1
    found = CriterionResult(
        criterion=name,
        threshold=value,
        greater_is_better=CRITERIA[name].greater_is_better,
        overall=Scored(value + sign * TOLERANCE / 2),
        per_invocation=(),
    )
    worse = Scored(value + sign * TOLERANCE * 2)
    assert found.passed
    assert found.reached(worse) is False


# What holds wherever a model decides


def run_for(name: str, actual: Any, expected: Any) -> CaseRun:
    baseline = (turn("the baseline"),) * 3 if name in OF_PAIRS else None
    return CaseRun(case=case_for(name, *TURNS.validate_python(expected)), actual=TURNS.validate_python(actual), baseline=baseline)


def values(result: CriterionResult) -> list[float | str | None]:
    """The score of each cell; ``"error"`` where there is none, ``None`` where none was planned."""
    return [cell.score if isinstance(cell, Scored) else cell and "error" for cell in result.per_invocation]


@every_judged_criterion
@FEW
@given(actual=conversations(min_size=1), expected=conversations(min_size=1), seed=st.integers(0, 9))
def test_each_planned_turn_has_a_cell_and_each_missing_one_is_an_error(name: str, actual: Any, expected: Any, seed: int) -> None:
    run = run_for(name, actual, expected)
    result = finished(planned(name, oracle(seed)), run)
    assert len(result.per_invocation) == run.turns
    assert [cell is None for cell in result.per_invocation] == [name in OF_CASES] * (run.turns - 1) + [False]
    missing = values(result)[len(actual) :]
    assert set(missing) <= {"error", None}
    assert result.score is None or not missing


@every_judged_criterion
@FEW
@given(actual=conversations(min_size=1), seed=st.integers(0, 9), failing=st.sampled_from((0.0, 0.2, 0.5)))
def test_stopping_early_changes_no_score(name: str, actual: Any, seed: int, failing: float) -> None:
    run, ask = run_for(name, actual, actual), oracle(seed, failing=failing)
    early, full = (finished(planned(name, ask, early_stop=early_stop), run) for early_stop in (True, False))
    assert values(early) == values(full)
    assert len(early.votes) <= len(full.votes)


@every_judged_criterion
@FEW
@given(actual=conversations(min_size=1), seed=st.integers(0, 9), early_stop=st.booleans())
def test_the_score_of_a_cell_follows_from_its_votes(name: str, actual: Any, seed: int, early_stop: bool) -> None:
    result = finished(planned(name, oracle(seed), early_stop=early_stop), run_for(name, actual, actual))
    for index, cell in enumerate(result.per_invocation):
        if cell == NO_ANSWER:
            continue  # whatever was voted, a turn in which the agent did nothing has no good score
        votes = [vote for vote in result.votes if vote.invocation_index == index]
        assert not votes or values(result)[index] == pytest.approx(_counted(name, votes, cell))


def _counted(name: str, votes: list[Vote], cell: Outcome | None) -> float:
    """Return the score of a cell from nothing but its votes; and the rule for the first message, on which there are none."""
    worth = {"supported": 1, "not_applicable": 1, "valid": 1, "safe": 1, "yes": 1} | {str(grade): grade for grade in range(-2, 6)}
    worth |= {"CANDIDATE": 1, "TIE": 0.5}
    items: dict[str | None, list[float]] = {}
    for vote in votes:
        items.setdefault(vote.rubric_id, []).append(worth.get(vote.verdict or "", 0))
    verdicts = {item: median_low(cast) for item, cast in items.items()}
    if name in OF_SCENARIOS:
        first = isinstance(cell, Scored) and "did not start with the starting prompt" in cell.rationale
        return min(0.0 if first else 1.0, *verdicts.values())
    if name in OF_PAIRS:
        return verdicts["baseline_first"] if len({*verdicts.values()}) == 1 else 0.5
    if name == "rapid_eval_summarization_verbosity":
        return abs(verdicts[None])
    return mean(verdicts.values())


@every_judged_criterion
@FEW
@given(actual=conversations(min_size=1))
def test_a_judge_that_only_fails_leaves_nothing_but_errors(name: str, actual: Any) -> None:
    actual = [turn_json("hi"), *actual]  # a simulated user who began otherwise has failed anyway
    result = finished(planned(name, oracle(failing=1.0)), run_for(name, actual, actual))
    asked = {vote.invocation_index for vote in result.votes}
    assert {values(result)[index] for index in asked} <= {"error"}
    assert {vote.verdict for vote in result.votes} <= {None}
    assert not asked or result.passed is None


@examples(20, HealthCheck.data_too_large)
@given(listed=st.lists(conversations(min_size=1), min_size=2, max_size=3))
def test_no_score_depends_on_the_order_of_the_cases(listed: list[Any]) -> None:
    def said(request: Request) -> dict[str, str]:
        verdict = request.schema["properties"]
        items = {"": verdict} if "verdict" in verdict else {key: found["properties"] for key, found in verdict.items()}
        return {key: found["verdict"]["enum"][_omen(key, request.name, dict(request.blocks)) % 2] for key, found in items.items()}

    config = {"criteria": {name: settings_of(name) for name in JUDGED if name not in OF_SCENARIOS}}
    eval_set = cases(*(case(f"c{index}", *TURNS.validate_python(found)) for index, found in enumerate(listed)))
    reversed_set = cases(*reversed(eval_set.eval_cases))
    baseline = {found.eval_id: [turn("the baseline")] * len(found.conversation or ()) for found in eval_set.eval_cases}
    first, second = (score(found, found, config, ScriptedJudge(said), baseline=baseline) for found in (eval_set, reversed_set))
    assert [_cells(found) for found in first.cases] == [_cells(found) for found in reversed(second.cases)]


def _cells(found: CaseResult) -> list[Sequence[Outcome | None]]:
    return [result.per_invocation for result in found.results]


@pytest.mark.parametrize("answer", [None, "", " \n", ":", "Thought process:"])
@pytest.mark.parametrize("name", [name for name in JUDGED if name not in OF_SCENARIOS | {"rubric_based_tool_use_quality_v1"}])
def test_an_answer_that_says_nothing_gets_the_worst_score_without_a_call(name: str, answer: str | None) -> None:
    eval_set, silent = cases(case("c", turn("42"), turn("43"))), {"c": [turn(answer), turn(answer)]}
    asked = ScriptedJudge({})
    report = score(eval_set, silent, {"criteria": {name: settings_of(name)}}, asked, baseline=eval_set)
    low, high = CRITERIA[name].bounds
    assert report.summaries()[name].mean == (low if CRITERIA[name].greater_is_better else high)
    assert asked.requests == []
