"""A score that only a judge can give needs a vote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.rapid.ratings import SAME_TEXT
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.results.outcomes import Outcome, Scored, Vote
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.testing import ScriptedJudge
from tests.gating.gate_kit import Lab, Row, decide_on, evidence_of, row_of, votes_of, with_artifact, with_table, with_votes
from tests.kit import case_result, turn_json
from tests.tracking import judged
from tests.tracking.judged import MATCH, RUBRICS

GOOD = evidence_of(judged.report(lost=False))
FILE = "votes/part-00001.parquet"
"""Where the votes on the second case are."""


def test_scores_with_votes_pass_and_the_worst_score_needs_none() -> None:
    assert decide_on(GOOD).passed
    trivial = {(vote.invocation_index, vote.criterion) for vote in votes_of(GOOD) if vote.eval_id == "light"}
    assert (1, RUBRICS) not in trivial


def test_what_judges_could_not_decide_is_not_passed() -> None:
    decision = decide_on(evidence_of(judged.report()))
    assert decision.verdict == "undecided"
    assert decision.reasons == (
        f"{MATCH}: 1 of 3 scores errored, so they are missing: heat, turn 1: {judged.LOST.error}",
        f"{RUBRICS}: 1 of 3 scores errored, so they are missing: heat, turn 1: {judged.LOST_RUBRIC.error}",
    )


@pytest.mark.parametrize(
    "edit",
    [
        lambda votes: [vote for vote in votes if (vote.eval_id, vote.criterion) != ("heat", MATCH)],
        lambda votes: [replace(vote, verdict=None) if (vote.eval_id, vote.criterion) == ("heat", MATCH) else vote for vote in votes],
        lambda votes: [replace(vote, invocation_index=1) if (vote.eval_id, vote.criterion) == ("heat", MATCH) else vote for vote in votes],
        lambda votes: [replace(vote, criterion=RUBRICS) if (vote.eval_id, vote.criterion) == ("heat", MATCH) else vote for vote in votes],
    ],
    ids=["none", "without verdict", "of another turn", "of another criterion"],
)
def test_a_score_without_a_vote_is_no_evidence(edit: Any) -> None:
    decision = decide_on(with_votes(GOOD, edit))
    assert decision.verdict == "undecided"
    assert decision.reasons == (f"case 'heat', turn 1: {MATCH} has a score, but adk_eval/{FILE} has no vote for it",)


def test_a_vote_on_another_run_is_none_on_this_one() -> None:
    other = with_votes(GOOD, lambda votes: [replace(vote, run_index=1) if vote.eval_id == "heat" else vote for vote in votes])
    assert decide_on(other).reasons[0] == f"adk_eval/{FILE} has votes on case 'heat', run 2, but the part does not contain it"


def test_without_votes_what_was_missed_is_named_all_the_same() -> None:
    def lower(rows: list[Row]) -> None:
        row_of(rows, "heat")[f"{RUBRICS}/score"] = 0.0

    decision = decide_on(with_votes(with_table(GOOD, lower), lambda votes: []))
    assert decision.verdict == "undecided"
    assert "has no vote for it" in decision.reasons[2]
    assert decision.reasons[-1].startswith(f"{RUBRICS}: 1 of 2 cases below the threshold 0.25")


def test_a_run_with_judges_must_have_a_file_of_votes() -> None:
    assert decide_on(with_artifact(GOOD, FILE, None)).reasons == (
        f"the run has no adk_eval/{FILE}, although judges decide {MATCH}, {RUBRICS}",
    )
    assert "cannot be read: $: found not a Parquet file" in decide_on(with_artifact(GOOD, FILE, b"no votes")).reasons[0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "the artifact adk_eval/{name} is missing"),
        (b"others", "the artifact adk_eval/{name} was changed after the run"),
    ],
)
def test_votes_that_were_touched_after_the_run_are_refused(content: bytes | None, reason: str) -> None:
    kept = {name: found for name, found in GOOD.artifacts.items() if name != FILE}
    touched = replace(GOOD, artifacts=kept if content is None else {**kept, FILE: content})
    assert decide_on(touched).reasons == (reason.format(name=FILE),)


def test_the_reason_of_a_miss_is_the_rubric_that_failed() -> None:
    report = judged.report(lost=False)
    low = replace(judged.HALF, score=0.0)
    first, last = report.cases
    results = tuple(
        replace(result, overall=Scored(0.0), per_invocation=(low,)) if result.criterion == RUBRICS else result for result in last.results
    )
    decision = decide_on(evidence_of(replace(report, cases=(first, replace(last, results=results)))))
    assert decision.verdict == "failed"
    assert "worst: heat 0 (- ✗ The answer is polite. (no 2:1): it gives orders)" in decision.reasons[0]


# Cells that need no judge, or none at all


def report_on(value: dict[str, Any], criteria: dict[str, Any], criterion: str, cells: tuple[Outcome | None, ...], *votes: Vote) -> Report:
    """Return the report on a set of one case, judged by one criterion."""
    config = parse_config({"criteria": criteria}, "config")
    case = EvalSet.model_validate({"eval_set_id": "one", "eval_cases": [{"eval_id": "a", **value}]})
    spoken = tuple(found for found in judged.rooms().eval_cases[0].conversation or ())[: len(cells)]
    result = judged.result(config, criterion, cells, votes)
    found = case_result(eval_id="a", run_index=0, actual=spoken, expected=case.eval_cases[0].conversation, results=(result,))
    return Report(eval_set=case, config=config, cases=(found,))


SIMULATED = "per_turn_user_simulator_quality_v1"
SCENARIO = {"conversation_scenario": {"starting_prompt": "light on", "conversation_plan": "have the light on"}}


def test_the_first_message_of_a_simulated_user_is_compared_without_a_judge() -> None:
    cells = (Scored(1.0, "as planned"), Scored(1.0, "fine"))
    vote = judged.vote("a", 1, SIMULATED, 0, "valid")
    assert decide_on(evidence_of(report_on(SCENARIO, {SIMULATED: 1.0}, SIMULATED, cells, vote))).passed
    assert decide_on(evidence_of(report_on(SCENARIO, {SIMULATED: 1.0}, SIMULATED, cells))).reasons == (
        f"case 'a', turn 2: {SIMULATED} has a score, but adk_eval/votes/part-00000.parquet has no vote for it",
    )


def test_the_worst_grade_of_a_scale_needs_no_vote_and_the_next_one_does() -> None:
    conversation = {"conversation": [turn.model_dump() for turn in judged.rooms().eval_cases[1].conversation or ()]}
    graded = "response_evaluation_score"
    worst = decide_on(evidence_of(report_on(conversation, {graded: 1.5}, graded, (Scored(1.0),))))
    assert worst.verdict == "failed"  # so the score is believed
    (reason,) = decide_on(evidence_of(report_on(conversation, {graded: 1.5}, graded, (Scored(2.0),)))).reasons
    assert reason.endswith("has no vote for it")


def test_where_lower_is_better_the_worst_score_is_the_highest() -> None:
    """No judge is asked about an empty summary, which is as far from the best length as can be; a perfect one takes a judge."""
    conversation = {"conversation": [turn.model_dump() for turn in judged.rooms().eval_cases[1].conversation or ()]}
    verbosity = "rapid_eval_summarization_verbosity"
    low, high = CRITERIA[verbosity].bounds
    assert (CRITERIA[verbosity].greater_is_better, CRITERIA[verbosity].worst) == (False, high)
    criteria = {verbosity: high - 0.5}
    worst = decide_on(evidence_of(report_on(conversation, criteria, verbosity, (Scored(high),))))
    assert not any(reason.endswith("has no vote for it") for reason in worst.reasons)
    for forged in (low, (low + high) / 2):
        decision = decide_on(evidence_of(report_on(conversation, criteria, verbosity, (Scored(forged),))))
        assert any(reason.endswith("has no vote for it") for reason in decision.reasons)


def with_rubric(*turns: int) -> dict[str, Any]:
    """Return a conversation of which only some turns have a rubric."""
    own = judged.rubric("short") | {"type": "FINAL_RESPONSE_QUALITY"}
    spoken = [turn.model_dump() for turn in judged.rooms().eval_cases[0].conversation or ()]
    return {"conversation": [turn | ({"rubrics": [own]} if index in turns else {}) for index, turn in enumerate(spoken)]}


def test_a_turn_without_a_rubric_needs_no_cell() -> None:
    cells, vote = (Scored(1.0), None), judged.vote("a", 0, RUBRICS, 0, "yes", item="short")
    assert decide_on(evidence_of(report_on(with_rubric(0), {RUBRICS: 1.0}, RUBRICS, cells, vote))).passed
    decision = decide_on(evidence_of(report_on(with_rubric(0, 1), {RUBRICS: 1.0}, RUBRICS, cells, vote)))
    assert decision.reasons == (f"case 'a', turn 2: {RUBRICS} has no status",)


def test_a_case_in_which_no_turn_has_a_cell_is_not_passed() -> None:
    decision = decide_on(evidence_of(report_on(with_rubric(), {RUBRICS: 1.0}, RUBRICS, (None, None))))
    assert decision.reasons == (f"case 'a', turn 2: {RUBRICS} has no status",)


SAYS, SAID = "It is on.", "The light is on."
PAIRS = {"same": (SAYS, SAYS), "both silent": ("", ""), "baseline silent": (SAYS, ""), "silent": ("", SAYS), "longer": (SAID, SAYS)}


@pytest.mark.parametrize(
    ("cases", "scores"),
    [(("same", "both silent", "baseline silent"), (0.5, 0.5, 1.0)), (("same", "longer"), (0.5, 1.0)), (("silent",), (0.0,))],
)
def test_a_pair_that_no_judge_was_asked_about_is_evidence(lab: Lab, cases: tuple[str, ...], scores: tuple[float, ...]) -> None:
    import mlflow_adk_eval as adk_eval

    def longest(request: Any) -> str:
        first, second = len(request.blocks["first_response"]), len(request.blocks["second_response"])
        return "first" if first > second else "second"

    name = "rapid_eval_pairwise_question_answering_quality"
    answers, before = ({case: [_said(case, PAIRS[case][side])] for case in cases} for side in (0, 1))
    eval_set = EvalSet.model_validate({"eval_set_id": "p", "eval_cases": [{"eval_id": c, "conversation": [_said(c, "x")]} for c in cases]})
    report = adk_eval.evaluate(
        eval_set, answers, {"criteria": {name: 0.25}}, judge=ScriptedJudge(longest), baseline=before,
        tracking_uri=lab.uri, experiment="pairs", ledger="off",
    )  # fmt: skip
    assert tuple(case.results[0].score for case in report.cases) == scores
    decision = adk_eval.gate(report.run_id, tracking_uri=lab.uri, raise_on_failure=False)
    assert decision.verdict == report.verdict != "undecided"


def test_such_a_score_for_another_reason_or_another_score_for_that_reason_needs_a_vote() -> None:
    name = "rapid_eval_pairwise_question_answering_quality"
    conversation = {"conversation": [turn.model_dump() for turn in judged.rooms().eval_cases[1].conversation or ()]}
    for cell, believed in (
        (Scored(0.5, f"TIE: {SAME_TEXT}"), True),
        (Scored(0.5, "TIE: so be it"), False),
        (Scored(1.0, f"TIE: {SAME_TEXT}"), False),
    ):
        decision = decide_on(evidence_of(report_on(conversation, {name: 0.25}, name, (cell,))))
        assert decision.passed is believed
        assert believed or decision.reasons[0].endswith("has no vote for it")


def _said(case: str, answer: str) -> Any:
    return turn_json(f"Is it on, {case}?", answer)
