"""What changed between two runs: which cases flipped, and which call, argument, sentence or rubric did it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval import EvalSet, Invocation, Report, Scored, UsageError, load_config, score
from mlflow_adk_eval.analysis.comparison import turns
from mlflow_adk_eval.analysis.comparison.compare import Cause, Comparison, compared
from mlflow_adk_eval.analysis.comparison.delta import Delta
from mlflow_adk_eval.analysis.comparison.runs import compared_run
from mlflow_adk_eval.analysis.comparison.turns import call_changes
from mlflow_adk_eval.analysis.stats.paired import compare_paired, holm
from mlflow_adk_eval.evalset.models import FunctionCall
from mlflow_adk_eval.report.comparison import verdict_on
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.testing import Request, ScriptedJudge
from mlflow_adk_eval.tracking.compare import compare
from tests.kit import case_result
from tests.results.repeated import FAILED, LOST, PASSED, case_run, repeated, result
from tests.tracking.small import eval_set, turn

TRAJECTORY, RESPONSE, STATE = "tool_trajectory_avg_score", "response_match_score", "final_session_state"
QUALITY, GROUNDED, MATCH = "rubric_based_final_response_quality_v1", "hallucinations_v1", "final_response_match_v2"
CALLS = {"criteria": {TRAJECTORY: 1.0}}
JUDGE = {"judge_model": "gemini-2.5-flash", "num_samples": 3}
LOOK, SWITCH, BEEP = ("look", {"room": "hall"}), ("switch", {"room": "hall", "to": [1, 2]}), ("beep", {})
Turn = dict[str, Any]


def report(actual: list[Turn], config: Any = CALLS, expected: list[Turn] | None = None, **options: Any) -> Report:
    """Score one conversation of the case *lamp*."""
    wanted = [turn("turn it off", "The lamp is off.", LOOK, SWITCH), turn("thanks", "You are welcome.")]
    return score(eval_set({"lamp": expected or wanted}), {"lamp": actual}, config, **options)


def said(answer: str, *calls: tuple[str, dict[str, Any]]) -> list[Turn]:
    return [turn("turn it off", answer, *calls), turn("thanks", "You are welcome.")]


GOOD = said("The lamp is off.", LOOK, SWITCH)


def causes(found: Comparison) -> list[Cause]:
    return [cause for case in found.cases for _, cause in case.all_causes()]


def flips(found: Comparison) -> dict[str, str]:
    return {case.eval_id: case.flip for case in found.cases}


# Which call, which argument


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ([SWITCH], ['look({"room": "hall"}) is no longer called (the reference calls it)']),
        ([LOOK, SWITCH, BEEP], ["beep({}) is now called (the reference does not)"]),
        ([SWITCH, LOOK], ['look({"room": "hall"}) is called at a different point']),
        (
            [LOOK, ("switch", {"room": "all", "to": [1, 3]})],
            [
                "switch is called with $.room = 'all', was 'hall' (expected 'hall')",
                "switch is called with $.to[1] = 3, was 2 (expected 2)",
            ],
        ),
        ([LOOK, ("switch", {"room": "hall"})], ["switch is called with $.to = nothing, was a list of 2 (expected a list of 2)"]),
    ],
)
def test_a_flip_names_the_call_or_the_argument(calls: list[Any], told: list[str]) -> None:
    worse = compare(report(GOOD), report(said("The lamp is off.", *calls)))
    assert flips(worse) == {"lamp": "worse"}
    assert [cause.sentence for cause in causes(worse)] == told
    assert {cause.turn for cause in causes(worse)} == {0}


def test_a_flip_for_the_better_says_what_is_right_again() -> None:
    better = compare(report(said("The lamp is off.", SWITCH, BEEP)), report(GOOD))
    assert flips(better) == {"lamp": "better"}
    assert [cause.sentence for cause in causes(better)] == [
        'look({"room": "hall"}) is now called (the reference calls it)',
        "beep({}) is no longer called (the reference does not)",
    ]


def test_an_argument_is_told_as_data_too() -> None:
    worse = compare(report(GOOD), report(said("The lamp is off.", LOOK, ("switch", {"room": "all", "to": [1, 2]}))))
    told = worse.to_json()["changes"][0]["criteria"][0]["causes"][0]
    sentence = told.pop("sentence")
    assert told == {
        "kind": "argument", "turn": 0, "subject": "switch", "path": "$.room", "before": "'hall'", "after": "'all'", "wanted": "'hall'",
    }  # fmt: skip
    assert sentence.startswith("switch is called with $.room = 'all'")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from("ab"), lambda inner: st.lists(inner, max_size=2), max_leaves=3
)
LISTS = st.lists(
    st.builds(FunctionCall, name=st.sampled_from(["look", "beep"]), args=st.dictionaries(st.sampled_from("xy"), JSON, max_size=2)),
    max_size=4,
)


@given(before=LISTS, after=LISTS, expected=st.none() | LISTS)
def test_every_call_of_both_sides_is_there_once_and_in_order(
    before: list[FunctionCall], after: list[FunctionCall], expected: list[FunctionCall] | None
) -> None:
    changes = call_changes(before, after, expected)
    assert [change.before for change in changes if change.before] == before
    assert [change.after for change in changes if change.after] == after
    assert all(change.kind == "same" for change in call_changes(before, before, expected))
    assert sum(change.kind == "moved" for change in changes) % 2 == 0
    for change in changes:
        assert bool(change.arguments) == (change.kind == "changed")
        assert (change.right_after is None) == (change.after is None or expected is None)


def test_what_the_reference_wants_is_left_out_where_it_differs_only_further_inside() -> None:
    before, after, wanted = ([FunctionCall(name="set", args=args)] for args in ({"a": {"b": 1, "c": 1}}, {}, {"a": {"b": 1, "c": 2}}))
    assert [found.wanted for found in call_changes(before, after, wanted)[0].arguments] == ["an object with b, c"]
    assert [found.wanted for found in call_changes(after, before, wanted)[0].arguments] == [""]


# Which sentence, which rubric


def test_a_flip_names_the_sentences_that_the_response_lost_and_gained() -> None:
    config = {"criteria": {RESPONSE: 0.9}}
    expected = [turn("off", "The lamp is off. Anything else? Good night.")]
    worse = compare(report(expected, config, expected), report([turn("off", "The lamp is off. I am tired.")], config, expected))
    assert [cause.sentence for cause in causes(worse)] == ["the response says “I am tired.” instead of “Anything else? Good night.”"]


def rubrics(*names: str) -> list[dict[str, Any]]:
    return [{"rubric_id": name, "rubric_content": {"text_property": f"The answer is {name}."}} for name in names]


def judged(answer: str, script: Any, rationale: str = "so it is") -> Report:
    config = {"criteria": {QUALITY: {"threshold": 1.0, "judge_model_options": JUDGE, "rubrics": rubrics("polite", "short")}}}
    return report([turn("off", answer)], config, [turn("off", "It is off, dear.")], judge=ScriptedJudge(script, rationale=rationale))


def test_a_flip_names_the_rubric_and_what_the_judge_said() -> None:
    rude = judged("It is off, you fool.", {QUALITY: {"The answer is polite.": "no", "The answer is short.": "yes"}}, "“Fool” is rude.")
    worse = compare(judged("It is off, dear.", "yes"), rude)
    assert [cause.sentence for cause in causes(worse)] == [
        "rubric polite (The answer is polite.): judged no (no 2), was yes (yes 2): “Fool” is rude."
    ]


def test_a_judge_that_changes_its_mind_is_not_blamed_on_the_agent() -> None:
    worse = compare(judged("It is off, dear.", "yes"), judged("It is off, dear.", "no"))
    found = causes(worse)
    assert [cause.kind for cause in found] == ["same", "item", "item"]
    assert found[0].sentence.startswith("the agent behaved the same on this turn in both runs; the difference is the judge's verdict")


def test_a_flip_names_the_sentence_that_is_not_supported_any_more() -> None:
    config = {"criteria": {GROUNDED: {"threshold": 1.0, "judge_model_options": JUDGE}}}

    def found(answer: str) -> Report:
        def verdicts(request: Request) -> dict[str, str]:
            return {key: "unsupported" if "Mars" in text else "supported" for key, text in request.blocks.items() if key.startswith("item")}

        return report([turn("off", answer)], config, [turn("off", "It is off.")], judge=ScriptedJudge(verdicts, rationale="Who says so?"))

    worse = compare(found("It is off. Good night."), found("It is off. It is cold on Mars."))
    assert [cause.sentence for cause in causes(worse)] == [
        "sentence “It is cold on Mars.”: judged unsupported (unsupported 2): Who says so?"
    ]


def test_a_tie_of_votes_speaks_against_the_agent_as_in_a_ballot() -> None:
    config = {"criteria": {MATCH: {"threshold": 1.0, "judge_model_options": {**JUDGE, "num_samples": 2}, "early_stop": False}}}

    def found(labels: list[str]) -> Report:
        left = list(labels)
        return report([turn("off", "Off.")], config, [turn("off", "It is off.")], judge=ScriptedJudge(lambda _: left.pop()))

    worse = compare(found(["valid", "valid"]), found(["invalid", "valid"]))
    assert flips(worse) == {"lamp": "worse"}
    assert "judged invalid (valid 1, invalid 1), was valid (valid 2)" in causes(worse)[1].sentence


# What else can flip a case


def test_a_state_that_is_not_reached_is_named_by_its_path() -> None:
    case = {"eval_id": "lamp", "conversation": [turn("off", "off")], "final_session_state": {"lamp": {"on": False}}}
    expected = EvalSet.model_validate({"eval_set_id": "rooms", "eval_cases": [case]})
    config = {"criteria": {STATE: 1.0}}

    def found(*, on: bool) -> Report:
        recorded = {"eval_set_id": "rooms", "eval_cases": [{**case, "final_session_state": {"lamp": {"on": on}}}]}
        return score(expected, EvalSet.model_validate(recorded), config)

    assert [cause.sentence for cause in causes(compare(found(on=False), found(on=True)))] == [
        "the session ends with $.lamp.on = true, was false (expected false)"
    ]


def test_an_agent_that_no_longer_finishes_leaves_the_case_undecided() -> None:
    lost = compare(report(GOOD), report(GOOD[:1]))
    assert flips(lost) == {"lamp": "undecided"}
    assert [(cause.kind, cause.turn) for cause in causes(lost)] == [("error", 1)]
    found = compare(report(GOOD[:1]), report(GOOD))
    assert [cause.sentence.partition(":")[0] for cause in causes(found)] == ["evaluated again; not evaluated before"]


def test_another_threshold_is_the_cause_where_the_scores_are_the_same() -> None:
    strict, lax = ({"criteria": {RESPONSE: threshold}} for threshold in (0.97, 0.5))
    actual = said("The lamp is now off.", LOOK, SWITCH)
    worse = compare(report(actual, lax), report(actual, strict))
    assert [cause.sentence for cause in causes(worse)] == ["the threshold is 0.97, was 0.5"]
    assert [(one.about, one.before, one.after) for one in worse.differences] == [
        ("Config $.criteria.response_match_score.threshold", "0.5", "0.97")
    ]


def test_a_new_criterion_is_the_cause_only_where_it_is_missed() -> None:
    both = {"criteria": {TRAJECTORY: 1.0, RESPONSE: 0.9}}
    assert causes(compare(report(GOOD), report(GOOD, both))) == []
    worse = compare(report(said("No.", LOOK, SWITCH)), report(said("No.", LOOK, SWITCH), both))
    assert [cause.sentence for cause in causes(worse)] == ["the criterion is new, with the threshold 0.9"]


# Repeated runs


@pytest.mark.parametrize(
    ("before", "after", "flip", "runs"),
    [
        ([PASSED] * 3, [FAILED] * 3, "worse", (0, 0)),
        ([PASSED] * 3, [PASSED, FAILED, PASSED], "flaky", (1, 1)),
        ([PASSED, FAILED, FAILED], [FAILED, PASSED, PASSED], "flaky", (1, 1)),
        ([PASSED, FAILED], [FAILED, PASSED], "none", (0, 0)),
        ([FAILED], [FAILED, PASSED], "flaky", (0, 1)),
        ([PASSED, PASSED], [LOST, LOST], "undecided", (0, 0)),
        ([LOST], [FAILED], "undecided", (0, 0)),
        ([PASSED], [PASSED, PASSED], "none", (0, 0)),
    ],
)
def test_flaky_cases_are_apart_and_two_runs_stand_for_the_others(
    before: list[float | None], after: list[float | None], flip: str, runs: tuple[int, int]
) -> None:
    case = of(before, after).cases[0]
    assert (case.flip, case.runs) == (flip, runs)


def of(before: list[float | None], after: list[float | None]) -> Comparison:
    """Compare two reports on one case with several runs."""
    return compare(*(with_set(repeated({"a": runs})) for runs in (before, after)))


def with_set(found: Report) -> Report:
    """Give a report the eval set that it is about."""
    ids = dict.fromkeys(case.eval_id for case in found.cases)
    return replace(found, eval_set=eval_set({eval_id: [turn(f"hi {eval_id}", "hello")] for eval_id in ids}))


SCORES = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, None]), min_size=2, max_size=2), min_size=1
)
MIRRORED = {"worse": "better", "better": "worse"}


@given(before=SCORES, after=SCORES)
def test_comparing_the_other_way_round_mirrors_everything(before: Any, after: Any) -> None:
    left, right = (with_set(repeated(scores)) for scores in (before, after))
    there, back = compare(left, right), compare(right, left)
    assert flips(there) == {name: MIRRORED.get(flip, flip) for name, flip in flips(back).items()}
    assert there.pairing.only_before == back.pairing.only_after
    for delta in there.deltas:
        other = back.delta(delta.name)
        assert other is not None
        assert (delta.cases, delta.better, delta.only_before, delta.neither) == (other.cases, other.worse, other.only_after, other.neither)
        if delta.difference is not None and other.difference is not None and other.high is not None:
            assert delta.difference == pytest.approx(-other.difference, abs=1e-12)
            assert delta.low == pytest.approx(-other.high, abs=1e-9)
            assert delta.p_value == pytest.approx(other.p_value)


@given(scores=SCORES)
def test_a_run_compared_with_itself_has_not_changed(scores: Any) -> None:
    same = compare(with_set(repeated(scores)), with_set(repeated(scores)))
    assert not same.flipped
    assert not same.shifted
    assert not same.differences
    assert all(delta.difference in (None, 0.0) for delta in same.deltas)


# Which cases are compared


def test_only_cases_that_are_the_same_in_both_are_compared() -> None:
    before = {"kept": [turn("a", "a")], "gone": [turn("b", "b")], "edited": [turn("c", "c", BEEP)]}
    after = {"edited": [turn("c", "c")], "new": [turn("d", "d")], "kept": [turn("a", "a")]}
    found = compare(*(score(eval_set(cases), eval_set(cases), CALLS) for cases in (before, after)))
    assert [case.eval_id for case in found.cases] == ["kept"]
    assert (found.pairing.only_before, found.pairing.only_after, found.pairing.altered) == (("gone",), ("new",), ("edited",))
    assert [one.about for one in found.differences] == ["Digest of the eval set"]
    assert all(delta.cases + delta.lacking == 1 for delta in found.deltas if delta.decides)


def test_runs_without_a_case_in_common_have_no_numbers() -> None:
    found = compare(*(score(eval_set({name: [turn("a", "a")]}), {name: [turn("a", "a")]}, CALLS) for name in ("x", "y")))
    assert (found.cases, [delta.cases for delta in found.deltas]) == ((), [0])
    json.dumps(found.to_json(), allow_nan=False)


# Numbers


def test_deltas_are_those_of_the_paired_test_with_what_is_missing_counted() -> None:
    before = {"a": [1.0], "b": [1.0], "c": [1.0], "d": [None], "e": [0.75]}
    after = {"a": [0.25], "b": [0.5], "c": [None], "d": [None], "e": [1.0]}
    delta = compare(*(with_set(repeated(scores)) for scores in (before, after))).delta(RESPONSE)
    # Both ends hold with 95 %, as in the gate, so together they do with 90 %.
    wanted = compare_paired({"a": [1.0], "b": [1.0], "e": [0.75]}, {"a": [0.25], "b": [0.5], "e": [1.0]}, confidence=0.9)
    assert delta is not None
    assert wanted is not None
    assert (delta.cases, delta.only_before, delta.only_after, delta.neither, delta.lacking) == (3, 1, 0, 1, 2)
    assert (delta.difference, delta.low, delta.high, delta.p_value) == (wanted.difference, wanted.low, wanted.high, wanted.p_worse)
    assert (delta.better, delta.worse) == (1, 2)


def test_cases_with_a_score_in_some_runs_only_are_counted() -> None:
    delta = of([1.0, None], [1.0, 0.5]).delta(RESPONSE)
    assert delta is not None
    assert (delta.cases, delta.partial) == (1, 1)


def test_the_share_of_passed_cases_is_tested_by_mcnemar() -> None:
    names = [f"case_{number}" for number in range(12)]
    before, after = {name: [1.0] for name in names}, {name: [float(number < 3)] for number, name in enumerate(names)}
    found = compare(*(with_set(repeated(scores)) for scores in (before, after)))
    rate = found.deltas[0]
    assert (rate.name, rate.test, rate.before, rate.after, rate.worse) == ("case_pass_rate", "mcnemar", 1.0, 0.25, 9)
    assert rate.p_value == pytest.approx(0.5**9)  # one-sided, as the gate tests it
    assert rate.clear(0.95)
    assert not rate.improved


def test_lower_is_better_where_the_criterion_says_so() -> None:
    calls = {"criteria": {TRAJECTORY: 1.0, "tool_call_count_v1": 10}}
    delta = compare(report(GOOD, calls), report(said("The lamp is off.", *[BEEP] * 4), calls)).delta("tool_call_count_v1")
    assert delta is not None
    assert (delta.before, delta.after, delta.difference, delta.improved) == (1.0, 2.0, 1.0, False)
    assert (delta.better, delta.worse, delta.decides) == (0, 1, True)
    assert delta.low is not None
    assert delta.high is not None
    assert delta.low <= 1.0 <= delta.high
    assert math.isfinite(delta.low)


def test_p_values_are_adjusted_over_the_criteria_of_a_kind() -> None:
    config = {"criteria": {TRAJECTORY: 1.0, RESPONSE: 0.5}}
    found = compare(report(GOOD, config), report(said("No.", BEEP), config))
    deciding = [delta for delta in found.deltas if delta.name in (TRAJECTORY, RESPONSE)]
    assert [delta.p_adjusted for delta in deciding] == list(holm([delta.p_value for delta in deciding if delta.p_value is not None]))
    others = [delta for delta in found.deltas if not delta.decides]
    assert [delta.p_adjusted for delta in others] == list(holm([delta.p_value for delta in others if delta.p_value is not None]))


def test_what_judges_took_is_counted_by_answer_and_not_by_rubric() -> None:
    before, after = compare(judged("It is off, dear.", "yes"), judged("It is off, dear.", "no")).judging
    assert (before.votes, before.answers, after.votes, after.answers) == (4, 2, 4, 2)


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 95])
def test_a_confidence_is_a_share(confidence: float) -> None:
    with pytest.raises(UsageError, match=r"wanted a number between 0\.5 and 1"):
        compare(report(GOOD), report(GOOD), confidence=confidence)


# What is not known, and what is too much


def custom(outcome: Any, *turns: Turn) -> Report:
    """A report on *lamp* by a criterion of the user's own."""
    from mlflow_adk_eval.results.outcomes import CriterionResult

    actual = tuple(Invocation.model_validate(one) for one in turns)
    result = CriterionResult("kindness", 0.5, True, outcome, (outcome,) * len(actual))  # noqa: FBT003
    case = case_result(eval_id="lamp", run_index=0, actual=actual, expected=None, results=(result,))
    return replace(with_set(repeated({"lamp": [PASSED]})), cases=(case,))


def test_a_criterion_of_the_users_own_speaks_for_itself() -> None:
    kind, rude = (
        custom(Scored(score, text), turn("hi", answer)) for score, text, answer in ((1, "kind", "hello"), (0, "rude\nwords", "go"))
    )
    assert [cause.sentence for cause in causes(compare(kind, rude))] == ["rude words (before: kind)"]
    silent = custom(Scored(0.0), turn("hi", "go"))
    assert [cause.sentence for cause in causes(compare(kind, silent))] == ["no reason given (before: kind)"]


def test_a_turn_that_only_one_run_has_is_shown_as_such() -> None:
    long, short = (custom(Scored(score), *[turn("hi", "hello")] * turns) for score, turns in ((1.0, 2), (0.0, 1)))
    found = compare(long, short)
    assert [(one["index"], one["before"] is None, one["after"] is None) for one in found.to_json()["changes"][0]["turns"]] == [
        (0, False, False),
        (1, False, True),
    ]
    assert "not evaluated: no turn to score" in [cause.sentence for cause in causes(found)]


def test_a_turn_is_not_blamed_for_what_came_before() -> None:
    config = {"criteria": {GROUNDED: {"threshold": 1.0, "judge_model_options": JUDGE}}}
    expected = [turn("on", "It is on."), turn("sure?", "Yes, it is.")]

    def found(first: str, label: str) -> Report:
        judge = ScriptedJudge(lambda request: label if "sure?" in request.text else "supported")
        return report([turn("on", first), expected[1]], config, expected, judge=judge)

    worse = causes(compare(found("It is on.", "supported"), found("Perhaps.", "unsupported")))
    assert worse[0].sentence.endswith("the difference is in earlier turns")


def test_the_range_of_a_custom_metric_bounds_its_interval() -> None:
    def ranged(*scores: float) -> Report:
        info = {"metric_name": "stars", "metric_value_info": {"interval": {"min_value": 1.0, "max_value": 5.0}}}
        metric = {"code_config": {"name": "tests.analysis.test_comparison.flips"}, "metric_info": info}
        config = load_config({"criteria": {"stars": 3.0}, "custom_metrics": {"stars": metric}})
        cases = tuple(case_run(f"case_{number}", 0, result(score, "stars", 3.0)) for number, score in enumerate(scores))
        return replace(with_set(Report(eval_set=eval_set({}), config=config, cases=cases)), config=config)

    delta = compare(ranged(5.0, 5.0), ranged(5.0, 5.0)).delta("stars")
    wanted = compare_paired({"a": [5.0], "b": [5.0]}, {"a": [5.0], "b": [5.0]}, confidence=0.9, bounds=(1.0, 5.0))
    assert delta is not None
    assert wanted is not None
    assert (delta.low, delta.high) == (wanted.low, wanted.high)


def test_a_comparison_is_short_where_python_shows_it() -> None:
    assert repr(of([PASSED], [FAILED])) == "<Comparison of 1 cases: worse 1, better 0, undecided 0, flaky 0>"


def test_copies_of_a_case_count_as_one_as_they_do_in_the_gate() -> None:
    before, after = {"a": [1.0], "b": [1.0], "c": [0.5]}, {"a": [0.5], "b": [0.0], "c": [0.5]}
    one = {name: [turn("hi", "hello")] for name in "abc"}
    sides = (replace(repeated(scores), eval_set=eval_set(one)) for scores in (before, after))
    delta = compare(*sides).delta(RESPONSE)
    assert delta is not None
    assert (delta.cases, delta.worse, delta.difference) == (1, 1, pytest.approx(-1.5 / 3))


def test_what_is_significant_alone_and_not_among_others_says_so() -> None:
    delta = Delta(
        name="x",
        decides=True,
        greater_is_better=True,
        cases=11,
        difference=-0.5,
        low=-0.8,
        high=-0.1,
        p_value=0.016,
        p_adjusted=0.078,
        tests=5,
    )
    assert verdict_on(delta, 0.95) == "may be chance among 5 comparisons (p = 0.016 alone)"
    assert verdict_on(replace(delta, p_value=0.2, p_adjusted=0.9), 0.95) == "may be chance"
    assert verdict_on(replace(delta, p_adjusted=0.03), 0.95) == "worse"


def test_turns_are_read_when_somebody_looks_at_them_and_once_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [turn(f"turn {number} on", "It is on.", LOOK) for number in range(20)]
    runs = [
        report([turn(f"turn {number} on", answer, LOOK) for number in range(20)], {"criteria": {RESPONSE: 0.8}}, wanted)
        for answer in ("It is on.", "No.")
    ]
    read: list[str] = []

    def loaded(case: CaseResult) -> CaseResult:
        read.append(case.eval_id)
        return case

    monkeypatch.setattr(turns, "loaded", loaded)
    found = compared(*(compared_run(run, "run") for run in runs))
    assert (found.counts["worse"], found.flipped[0].criteria[0].criterion) == (1, RESPONSE)
    assert not read
    (changed,) = found.to_json()["changes"]
    assert len(changed["criteria"][0]["causes"]) == len(changed["turns"]) == 20
    assert read == ["lamp", "lamp"]
