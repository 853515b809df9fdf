"""google-adk's own evaluators as the oracle: the same scores, except where docs/development/parity.md says otherwise."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.criterion import NO_ANSWER, NO_REFERENCE, CaseRun, Planned, apply, result_of
from mlflow_adk_eval.criteria.plan import planned_by
from mlflow_adk_eval.criteria.text import tokens
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import Content, Invocation
from mlflow_adk_eval.results.outcomes import CriterionResult, Errored, Scored, Skipped
from tests.criteria.strategies import texts, turns
from tests.kit import RESPONSE, TRAJECTORY, call, case, event, recorded, turn
from tests.profiles import examples

eval_case = pytest.importorskip("google.adk.evaluation.eval_case", reason="the extra [adk] is not installed")
final_response_match = pytest.importorskip("google.adk.evaluation.final_response_match_v1", reason="google-adk[eval] is not installed")
trajectory = pytest.importorskip("google.adk.evaluation.trajectory_evaluator", reason="the extra [adk] is not installed")

TURNS: TypeAdapter[tuple[Invocation, ...]] = TypeAdapter(tuple[Invocation, ...])
MANY = examples(200, HealthCheck.data_too_large)
PARAMETERS, NEWER = "tool_parameter_match", "google.adk.evaluation._tool_parameter_match_evaluator"
"""The module is on ADK's main branch; until it is released, the oracle is its rule, written once more."""
EFFICIENT = {
    "tool_call_count_v1": "_ToolCallCountV1Evaluator",
    "inference_call_count_v1": "_InferenceCallCountV1Evaluator",
    "token_usage_v1": "_TokenUsageV1Evaluator",
    "invocation_duration_v1": "_InvocationDurationV1Evaluator",
}
pytestmark = [
    pytest.mark.needs("google-adk", "2.13"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # ADK's evaluation package is experimental
]


def efficiency() -> Any:
    return pytest.importorskip("google.adk.evaluation._efficiency_evaluators", reason="this google-adk has no efficiency metrics")


@st.composite
def pairs(draw: st.DrawFn) -> tuple[tuple[Invocation, ...], tuple[Invocation, ...]]:
    """Actual and expected turns, as many of the one as of the other."""
    listed = draw(st.lists(st.tuples(turns(), turns()), min_size=1, max_size=4))
    actual, expected = zip(*listed, strict=True)
    return TURNS.validate_python(actual), TURNS.validate_python(expected)


def by_us(name: str, actual: tuple[Invocation, ...], expected: tuple[Invocation, ...] | None = None, **chosen: Any) -> CriterionResult:
    criterion = CRITERIA[name].make(CRITERIA[name].settings.model_validate({"threshold": 0.5} | chosen))
    run = CaseRun(case=case("c", *(actual if expected is None else expected)), actual=actual)
    judged: Any = criterion(run)
    return result_of(Planned(name=name, criterion=criterion, threshold=None), run, judged)


def by_adk(name: str, actual: tuple[Invocation, ...], expected: tuple[Invocation, ...] | None = None, **chosen: Any) -> Any:
    """Return ADK's result on the JSON of the same turns."""
    from google.adk.evaluation.eval_metrics import BaseCriterion, EvalMetric, ToolTrajectoryCriterion

    theirs = [[eval_case.Invocation.model_validate(dump(found)) for found in side] for side in (actual, expected or ())]
    if name in EFFICIENT:
        return getattr(efficiency(), EFFICIENT[name])().evaluate_invocations(theirs[0])
    if name == PARAMETERS:
        evaluator = import_module(NEWER)._ToolParameterMatchEvaluator
        return evaluator(eval_metric=EvalMetric(metric_name=name, threshold=0.5)).evaluate_invocations(*theirs)
    kind, evaluator = {
        TRAJECTORY: (ToolTrajectoryCriterion, trajectory.TrajectoryEvaluator),
        RESPONSE: (BaseCriterion, final_response_match.RougeEvaluator),
    }[name]
    metric = EvalMetric(metric_name=name, criterion=kind.model_validate({"threshold": 0.5} | chosen))
    return evaluator(eval_metric=metric).evaluate_invocations(*theirs)


def scores(result: Any) -> list[float | None]:
    """Return the score of each turn, of our result or of ADK's."""
    if isinstance(result, CriterionResult):
        return [cell.score if isinstance(cell, Scored) else None for cell in result.per_invocation]
    return [found.score for found in result.per_invocation_results]


@MANY
@given(pairs())
def test_trajectories_score_as_in_adk(sides: Any) -> None:
    for match_type, ignore_args in product(("EXACT", "IN_ORDER", "ANY_ORDER"), (False, True)):
        ours, theirs = (judge(TRAJECTORY, *sides, match_type=match_type, ignore_args=ignore_args) for judge in (by_us, by_adk))
        assert scores(ours) == scores(theirs), (match_type, ignore_args)
        assert ours.score == pytest.approx(theirs.overall_score, abs=1e-12)


def parameters_by_adk(actual: Invocation, expected: Invocation) -> float | None:
    """Score a turn as the evaluator on ADK's main branch says."""
    shares, left = [], list(actual.tool_calls)
    for wanted in expected.tool_calls:
        names = [made.name for made in left]
        if wanted.name not in names:
            shares.append(0.0)
            continue
        made = left[names.index(wanted.name)].args or {}
        left = left[names.index(wanted.name) + 1 :]
        right = [name in made and made[name] == value for name, value in (wanted.args or {}).items()]
        shares.append(sum(right) / len(right) if right else 1.0)
    return sum(shares) / len(shares) if shares else None


@MANY
@given(pairs())
def test_parameters_score_as_in_adk(sides: Any) -> None:
    ours, theirs = by_us(PARAMETERS, *sides), [parameters_by_adk(*pair) for pair in zip(*sides, strict=True)]
    if find_spec(NEWER):
        assert theirs == scores(by_adk(PARAMETERS, *sides))
    assert scores(ours) == pytest.approx(theirs, abs=1e-12)
    known = [score for score in theirs if score is not None]
    assert ours.score == (pytest.approx(sum(known) / len(known), abs=1e-12) if known else None)


@MANY
@given(pairs())
def test_responses_score_as_in_adk_bit_for_bit(sides: Any) -> None:
    ours, theirs = (judge(RESPONSE, *sides) for judge in (by_us, by_adk))
    references = [tokens(expected.final_text) for expected in sides[1]]
    assert scores(ours) == [score if reference else None for score, reference in zip(scores(theirs), references, strict=True)]
    assert ours.score == (pytest.approx(theirs.overall_score, abs=1e-12) if all(references) else None)


@pytest.mark.parametrize("reference", [None, "", "  "])
def test_a_response_beside_no_reference_has_no_score_here_and_zero_in_adk(reference: str | None) -> None:
    sides = ((turn("42"), turn("42")), (turn(reference), turn("42")))
    ours, theirs = by_us(RESPONSE, *sides), by_adk(RESPONSE, *sides)
    assert (scores(ours), scores(theirs)) == ([None, 1.0], [0.0, 1.0])
    assert (ours.score, theirs.overall_score) == (None, 0.5)
    assert ours.per_invocation[0] == NO_REFERENCE


@pytest.mark.parametrize("text", ["👍", "…", "!!!"])
def test_a_reference_without_words_has_no_score_here_and_zero_in_adk(text: str) -> None:
    for response in (text, "42", ""):
        sides = ((turn(response),), (turn(text),))
        assert (scores(by_us(RESPONSE, *sides)), scores(by_adk(RESPONSE, *sides))) == ([None], [0.0])
    sides = ((turn(text),), (turn("42"),))
    assert scores(by_us(RESPONSE, *sides)) == scores(by_adk(RESPONSE, *sides)) == [0.0]


def test_texts_on_the_way_are_compared_here_if_the_settings_say_so_and_never_in_adk() -> None:
    sides = ((recorded("two", event(text="one")),), (recorded("two", event(text="one")),))
    other = ((recorded("two", event(text="three")),), sides[1])
    for included, ours in ((False, [1.0, 1.0]), (True, [1.0, 0.5])):
        setting = {"include_intermediate_responses_in_final": included}
        assert [scores(by_us(RESPONSE, *each, **setting)) for each in (sides, other)] == [[score] for score in ours]
        assert [scores(by_adk(RESPONSE, *each, **setting)) for each in (sides, other)] == [[1.0], [1.0]]


def test_a_response_that_is_media_has_no_score_here_and_zero_in_adk() -> None:
    picture = Content.model_validate({"role": "model", "parts": [{"inline_data": {"mime_type": "image/png", "data": "AAAA"}}]})
    sides = ((turn().model_copy(update={"final_response": picture}),), (turn("42"),))
    ours = by_us(RESPONSE, *sides)
    assert (scores(ours), scores(by_adk(RESPONSE, *sides))) == ([None], [0.0])
    assert ours.per_invocation == (Errored("the response has no text to compare, but [image/png]"),)


@examples(500, HealthCheck.data_too_large)
@given(texts())
def test_texts_have_adks_words(text: str) -> None:
    assert tokens(text) == final_response_match._UnicodeAwareTokenizer(use_stemmer=True).tokenize(text)


def test_every_character_is_read_as_adk_reads_it() -> None:
    tokenizer = final_response_match._UnicodeAwareTokenizer(use_stemmer=True)
    for start in (*range(0, 0x20000, 0x400), 0x20000, 0x2F800, 0x30000, 0xE0000, 0xF0000, 0x10FC00):
        chars = [chr(code) for code in range(start, start + 0x400) if not 0xD800 <= code <= 0xDFFF]
        text = " ".join(f"{char} x{char}x" for char in chars)
        assert tokens(text) == tokenizer.tokenize(text), hex(start)


@MANY
@given(st.lists(turns(), min_size=1, max_size=3).map(TURNS.validate_python))
def test_turns_cost_what_they_cost_in_adk(actual: Any) -> None:
    for name in EFFICIENT:
        ours, theirs = by_us(name, actual), by_adk(name, actual)
        assert [mine or 0.0 for mine in scores(ours)] == [other or 0.0 for other in scores(theirs)], name
        for cell, found in zip(ours.per_invocation, theirs.per_invocation_results, strict=True):
            details = found.token_usage_details or found.duration_details
            assert not details or not isinstance(cell, Scored) or cell.details == details.model_dump(exclude_none=True)
        if None not in scores(ours):
            assert ours.score == pytest.approx(theirs.overall_score, abs=6e-4 if name == "invocation_duration_v1" else 1e-9)


# What follows are the differences that docs/development/parity.md lists, with both sides.


def test_a_turn_in_which_nothing_happened_matches_no_expected_call_in_adk_and_has_no_score_here() -> None:
    silent = (turn(None),)
    spec = CRITERIA[TRAJECTORY]
    settings: Any = spec.settings.model_validate({"threshold": 1.0})
    ours = anyio.run(apply, planned_by(spec, spec.make(settings), settings), CaseRun(case=case("c", *silent), actual=silent))
    assert (scores(ours), scores(by_adk(TRAJECTORY, silent, silent))) == ([None], [1.0])
    assert ours.per_invocation == (NO_ANSWER,)


def test_a_turn_that_shows_no_model_call_has_no_count_here_and_none_in_adk() -> None:
    actual = (recorded("x", event(text="working on it")),)
    ours, theirs = by_us("inference_call_count_v1", actual), by_adk("inference_call_count_v1", actual)
    assert (scores(ours), scores(theirs)) == ([None], [0.0])


def test_no_arguments_are_empty_arguments_here_and_not_in_adk() -> None:
    sides = ((turn("x", call("f")),), (turn("x", call("f", {})),))
    assert scores(by_us(TRAJECTORY, *sides)) == [1.0]
    assert scores(by_adk(TRAJECTORY, *sides)) == [0.0]


def test_true_is_not_one_here_and_is_in_adk() -> None:
    sides = ((turn("x", call("f", on=True, deep=[{"off": False}])),), (turn("x", call("f", on=1, deep=[{"off": 0}])),))
    assert scores(by_us(TRAJECTORY, *sides)) == [0.0]
    assert scores(by_adk(TRAJECTORY, *sides)) == [1.0]


def test_an_id_of_adks_own_in_the_arguments_is_any_such_id_here_and_a_text_in_adk() -> None:
    then, today = (f"adk-{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}" for digit in "ab")

    def asked(call_id: str, **args: Any) -> tuple[Invocation, ...]:
        original = {"id": call_id, "name": "pay", "args": args}
        made = call("adk_request_confirmation", originalFunctionCall=original, toolConfirmation={"confirmed": False})
        return (turn("x", made, call("poll", of=call_id)),)

    same = asked(today, amount=5), asked(then, amount=5)
    assert scores(by_us(TRAJECTORY, *same)) == [1.0]
    assert scores(by_adk(TRAJECTORY, *same)) == [0.0]
    other = asked(today, amount=6), asked(then, amount=5)
    assert scores(by_us(TRAJECTORY, *other)) == scores(by_adk(TRAJECTORY, *other)) == [0.0]
    without = asked(today, amount=5), (turn("x", call("poll", of=then)),)  # both count the call that ADK makes itself
    assert scores(by_us(TRAJECTORY, *without)) == scores(by_adk(TRAJECTORY, *without)) == [0.0]


def test_three_turns_of_exactly_the_threshold_pass_here_and_fail_in_adk() -> None:
    sides = ((turn("a b c d e f g x y z"),) * 3, (turn("a b c d e f g h i j"),) * 3)
    ours, theirs = by_us(RESPONSE, *sides), by_adk(RESPONSE, *sides, threshold=0.7)
    assert scores(ours) == scores(theirs) == [0.7] * 3
    assert replace(ours, threshold=0.7).passed
    assert theirs.overall_score == 0.6999999999999998
    assert theirs.overall_eval_status.name == "FAILED"


def test_the_mean_is_rounded_at_the_end_here_and_at_each_addition_in_adk() -> None:
    sides = ((turn("a b c d e f w x y z"),) * 10, (turn("a b c d e f g h i j"),) * 10)
    assert by_us(RESPONSE, *sides).score == 0.6
    assert by_adk(RESPONSE, *sides).overall_score == 0.5999999999999999


@pytest.mark.parametrize("name", [TRAJECTORY, RESPONSE])
def test_a_missing_turn_is_an_error_of_that_turn_here_and_of_the_metric_in_adk(name: str) -> None:
    sides = ((turn("x"),), (turn("x"), turn("y")))
    first, second = by_us(name, *sides).per_invocation
    assert isinstance(first, Scored)
    assert isinstance(second, Errored)
    with pytest.raises(ValueError, match="must have the same length"):
        by_adk(name, *sides)


@pytest.mark.parametrize(
    ("name", "turns_", "theirs"),
    [
        ("token_usage_v1", [45, 1, None], 46 / 3),
        ("invocation_duration_v1", [4.0, None, 1.0], 2.5),
        ("inference_call_count_v1", [1, None], 1.0),
    ],
)
def test_a_turn_that_was_not_measured_leaves_no_mean_here_and_a_mean_in_adk(name: str, turns_: list[Any], theirs: float) -> None:
    actual = tuple(_measured(name, amount) for amount in turns_)
    ours = by_us(name, actual)
    assert scores(ours) == [None if amount is None else float(amount) for amount in turns_]
    assert isinstance(ours.per_invocation[turns_.index(None)], Skipped)
    assert isinstance(ours.overall, Errored)
    assert by_adk(name, actual).overall_score == pytest.approx(theirs)


def test_model_calls_that_were_counted_while_the_turn_ran_count_before_events() -> None:
    """ADK 2.13 has no such field, and counts events."""
    counted = recorded("x", event(usage_metadata={})).model_copy(update={"inference_call_count": 3})
    assert (
        by_us("inference_call_count_v1", (counted,)).score,
        by_us("inference_call_count_v1", (recorded("x", event(usage_metadata={})),)).score,
    ) == (3.0, 1.0)
    assert by_us("inference_call_count_v1", (turn("x").model_copy(update={"inference_call_count": 0}),)).score == 0.0
    assert dump(counted)["inference_call_count"] == 3


def _measured(name: str, amount: float | None) -> Invocation:
    if name == "invocation_duration_v1":
        return turn("x", duration=amount)
    usage = None if amount is None else {"prompt_token_count": amount}
    return recorded("x", event(usage_metadata=usage)) if name == "token_usage_v1" or amount else turn("x")


def test_seconds_are_averaged_exactly_here_and_rounded_in_adk() -> None:
    actual = tuple(turn("x", duration=seconds) for seconds in (0.001, 0.001, 0.002))
    assert by_us("invocation_duration_v1", actual).score == math.fsum((0.001, 0.001, 0.002)) / 3
    assert by_adk("invocation_duration_v1", actual).overall_score == 0.001


def test_an_efficiency_metric_may_have_a_threshold_here_and_not_in_adk() -> None:
    from google.adk.evaluation.eval_metrics import EvalMetric

    with pytest.raises(ValueError, match="does not support a threshold"):
        efficiency()._TokenUsageV1Evaluator(EvalMetric(metric_name="token_usage_v1", threshold=100))
    actual = (_measured("token_usage_v1", 120),)
    for threshold, passed in ((100, False), (120, True)):
        assert replace(by_us("token_usage_v1", actual), threshold=threshold, greater_is_better=False).passed is passed
