"""The same votes in, the same scores out as google-adk's judged evaluators, except where docs/development/parity.md says otherwise.

One table of votes drives both: ADK's judge says it in ADK's text formats, ours in our JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.criterion import CaseRun, Planned, apply
from mlflow_adk_eval.criteria.rubrics import FINAL_RESPONSE, TOOL_USE, TRAJECTORY, rubric_types
from mlflow_adk_eval.evalset.models import Content, ConversationScenario, EvalCase, Invocation, Part
from mlflow_adk_eval.judge.question import ItemVerdict, Question
from mlflow_adk_eval.judge.voting import JudgeResponse, VoteCollector
from mlflow_adk_eval.results.outcomes import CriterionResult, Errored, Scored
from tests.criteria.adk_judge import (
    HALLUCINATIONS,
    MATCH,
    SIMULATOR,
    Heard,
    Said,
    asks_for_sentences,
    judged_by_adk,
    message_validity,
    segmented,
    sentence_labels,
    validity,
    verdicts,
)
from tests.kit import call, case, event, recorded, turn
from tests.profiles import examples

pytestmark = [
    pytest.mark.needs("google-adk", "2.10"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # ADK's evaluation package is experimental
]

Vote = Mapping[str, str] | Exception | None
"""The label of each item; or nothing that can be read; or an error. An item that is left out has no label."""
Ballot = Sequence[Vote]
"""The votes on one turn."""
Write = Callable[[Mapping[str, str]], str]

BY_RUBRICS = pytest.mark.parametrize("name", rubric_types())
GROUNDED = {"supported": 1, "unsupported": 0, "contradictory": 0, "disputed": 0, "not_applicable": 1}
UNREADABLE = "I would rather not say."
SCENARIO = ConversationScenario(starting_prompt="message 0", conversation_plan="Ask until it works.")
MANY = examples(80, HealthCheck.data_too_large)


def in_our_json(question: Question, vote: Vote) -> JudgeResponse:
    """Return a vote as our judge gives it."""
    if isinstance(vote, Exception):
        return JudgeResponse(verdicts=(ItemVerdict(error=str(vote)),) * len(question.items), model="scripted")
    remarks = dict.fromkeys(question.remarks, "none")
    labels = [(vote or {}).get(item.text or "") for item in question.items]
    said = {
        key: {"rationale": f"it is {label}", **remarks, "verdict": label} for key, label in zip(question.keys, labels, strict=True) if label
    }
    text = UNREADABLE if vote is None else json.dumps(said.get("", said))
    return JudgeResponse(verdicts=question.read(text), model="scripted")


def in_adks_words(vote: Vote, write: Write) -> Said:
    """Return a vote as ADK's judge gives it."""
    if isinstance(vote, Exception):
        return vote
    return UNREADABLE if vote is None else write(vote)


def by_us(
    name: str,
    table: Sequence[Ballot],
    run: CaseRun,
    *,
    samples: int,
    early_stop: bool = True,
    at: str = "user_message",
    asked: list[Question] | None = None,
    **chosen: Any,
) -> CriterionResult:
    """Return our result on a table of votes.

    Args:
        name: the criterion.
        table: the n-th ballot is on what bears the number n. A vote beyond it is unreadable.
        run: the conversation.
        samples: how many votes there are.
        early_stop: whether to ask for no more than matter.
        at: the block with the number.
        asked: takes what was asked.
        chosen: further settings.
    """

    async def ask(question: Question, vote: int) -> JudgeResponse:
        if asked is not None:
            asked.append(question)
        blocks = {block.name: block.text for block in question.blocks}
        found = re.search(r"\d+", blocks.get(at, "0"))
        ballot = table[int(found[0]) if found else -1]
        return in_our_json(question, ballot[vote] if vote < len(ballot) else None)

    jury = VoteCollector(ask=ask, num_samples=samples, early_stop=early_stop)
    criterion = CRITERIA[name].make(CRITERIA[name].settings.model_validate({"threshold": 0.5} | chosen), jury)
    return anyio.run(apply, Planned(name=name, criterion=criterion, threshold=chosen.get("threshold", 0.5)), run)


def by_adk(
    name: str, table: Sequence[Ballot], actual: Sequence[Invocation], *more: Any, write: Write, samples: int, **chosen: Any
) -> Heard:
    """Return ADK's result; it asks for all votes on the first turn, then for those on the second."""

    def script(number: int, _: str) -> Said:
        return in_adks_words(table[number // samples][number % samples], write)

    return judged_by_adk(name, script, actual, *more, samples=samples, **chosen)


def scores(found: CriterionResult | Heard) -> list[float | None]:
    """Return the score of each turn."""
    if isinstance(found, Heard):
        return found.scores
    return [cell.score if isinstance(cell, Scored) else None for cell in found.per_invocation]


def same(ours: CriterionResult, theirs: Heard) -> None:
    """Check each turn, and the case."""
    assert scores(ours) == [None if score is None else pytest.approx(score, abs=1e-12) for score in theirs.scores]
    assert ours.score == (None if theirs.score is None else pytest.approx(theirs.score, abs=1e-12))


def turns_of(count: int) -> tuple[Invocation, ...]:
    return tuple(turn(f"answer {number}", user=f"question {number}") for number in range(count))


def run_of(actual: Sequence[Invocation], eval_case: EvalCase | None = None) -> CaseRun:
    return CaseRun(case=eval_case or case("c", *actual), actual=tuple(actual))


@st.composite
def tables(draw: st.DrawFn, labels: Sequence[str], *, items: int = 1, failing: bool = False) -> tuple[list[Ballot], int]:
    """A ballot for each of a few turns, and how many votes it has. Even numbers of votes can be ties."""
    names = [f"item {number}" for number in range(draw(st.integers(1, items)))] if items > 1 else [""]
    votes: st.SearchStrategy[Vote] = st.fixed_dictionaries({name: st.sampled_from(labels) for name in names})
    votes = votes | st.none() | st.just(ConnectionError("down")) if failing else votes
    samples = draw(st.integers(1, 6))
    return draw(st.lists(st.lists(votes, min_size=samples, max_size=samples), min_size=1, max_size=3)), samples


def write_validity(labels: Mapping[str, str]) -> str:
    return validity(labels[""])


def write_message_validity(labels: Mapping[str, str]) -> str:
    return message_validity(labels[""])


def rubrics(*names: str, of: str | None = None) -> list[dict[str, Any]]:
    return [{"rubric_id": name, "rubric_content": {"text_property": name}, "type": rubric_types().get(of or "")} for name in names]


def only(label: str) -> Vote:
    return {"": label}


# Where ADK is right


@MANY
@given(tables(("valid", "invalid")), st.booleans())
def test_the_validity_of_answers_is_voted_on_as_in_adk(found: Any, early_stop: bool) -> None:
    table, samples = found
    actual = turns_of(len(table))
    ours = by_us(MATCH, table, run_of(actual), samples=samples, early_stop=early_stop)
    same(ours, by_adk(MATCH, table, actual, actual, write=write_validity, samples=samples))


@BY_RUBRICS
@MANY
@given(found=tables(("yes", "no"), items=3), early_stop=st.booleans())
def test_rubrics_are_voted_on_as_in_adk(name: str, found: Any, early_stop: bool) -> None:
    table, samples = found
    actual, listed = turns_of(len(table)), rubrics(*table[0][0])
    ours = by_us(name, table, run_of(actual), samples=samples, early_stop=early_stop, rubrics=listed)
    same(ours, by_adk(name, table, actual, write=verdicts, samples=samples, rubrics=listed))


@MANY
@given(
    st.lists(st.lists(st.lists(st.sampled_from(tuple(GROUNDED)), min_size=1, max_size=4), min_size=1, max_size=3), min_size=1, max_size=3)
)
def test_sentences_are_counted_as_in_adk(labels: list[list[list[str]]]) -> None:
    """Each turn says something on its way, in as many texts as its list has besides the last one."""
    texts = [[[f"Sentence {t} {s} {n}." for n in range(len(text))] for s, text in enumerate(said)] for t, said in enumerate(labels)]
    votes = {
        sentence: label
        for said, given_ in zip(texts, labels, strict=True)
        for text, listed in zip(said, given_, strict=True)
        for sentence, label in zip(text, listed, strict=True)
    }
    actual = tuple(
        recorded(" ".join(said[-1]), *(event(text=" ".join(text)) for text in said[:-1]), user=f"question {number}")
        for number, said in enumerate(texts)
    )

    def script(_: int, prompt: str) -> Said:
        if asks_for_sentences(prompt):
            return segmented(prompt)
        asked = re.findall(r"<sentence>(.*)</sentence>", prompt)
        return sentence_labels({sentence: votes[sentence] for sentence in asked if sentence in votes})

    for intermediate in (False, True):
        chosen = {"evaluate_intermediate_nl_responses": intermediate}
        ours = by_us(HALLUCINATIONS, [[votes]] * len(labels), run_of(actual), samples=1, **chosen)
        same(ours, judged_by_adk(HALLUCINATIONS, script, actual, samples=1, **chosen))


@MANY
@given(tables(("valid", "invalid")), st.booleans(), st.sampled_from((0.2, 0.5, 1.0)))
def test_messages_of_the_simulated_user_are_voted_on_as_in_adk(found: Any, greeted: bool, threshold: float) -> None:
    """The first ballot is on the second message, and the last one on the end of the conversation."""
    table, samples = found
    actual = tuple(turn("Go on.", user=f"message {number}") for number in range(len(table)))
    if not greeted:
        actual = (turn("Go on.", user="Well."), *actual[1:])
    scenario = EvalCase(eval_id="c", conversation_scenario=SCENARIO)
    chosen = {"threshold": threshold, "stop_signal": "The end."}
    ours = by_us(SIMULATOR, [[], *table], run_of(actual, scenario), samples=samples, at="message", **chosen)
    same(ours, by_adk(SIMULATOR, table, actual, None, SCENARIO, write=write_message_validity, samples=samples, **chosen))


@MANY
@given(tables(("valid", "invalid"), failing=True))
def test_a_verdict_that_stands_in_spite_of_failed_votes_is_adks(found: Any) -> None:
    """No failed vote can be replaced here. What ADK says by the remaining votes stands if the others could not have changed it."""
    table, samples = found
    actual = turns_of(len(table))
    readable = [[None if isinstance(vote, Exception) else vote for vote in ballot] for ballot in table]
    ours = by_us(MATCH, table, run_of(actual), samples=samples)
    theirs = by_adk(MATCH, readable, actual, actual, write=write_validity, samples=samples)
    for cell, score, ballot in zip(ours.per_invocation, theirs.scores, readable, strict=True):
        cast = [vote[""] == "valid" for vote in ballot if vote is not None]
        possible = {sum((*cast, *rest)) * 2 > samples for rest in product((False, True), repeat=samples - len(cast))}
        assert isinstance(cell, Scored) is (len(possible) == 1)
        assert not isinstance(cell, Scored) or cell.score == score


# What follows are the differences that docs/development/parity.md lists, with both sides.


@pytest.mark.parametrize("failed", [ConnectionError("down"), None])
def test_a_failed_vote_is_replaced_here_and_voids_the_others_in_adk(failed: Vote) -> None:
    """Quirk Q1. ADK leaves an unreadable vote out, so that 2 of 4 lose; an error costs the turn."""
    table = [[only("valid"), failed, only("valid"), only("invalid"), only("invalid"), only("valid")]]
    ours = by_us(MATCH, table, run_of(turns_of(1)), samples=5)
    theirs = by_adk(MATCH, table, turns_of(1), turns_of(1), write=write_validity, samples=5)
    assert scores(ours) == [1.0]
    assert [vote.verdict for vote in ours.votes] == ["valid", None, "valid", "invalid", "invalid", "valid"]
    assert theirs.scores == [None if failed else 0.0]


def test_a_turn_without_verdict_leaves_no_mean_here_and_a_mean_in_adk() -> None:
    """Quirk Q3."""
    table: list[Ballot] = [[ConnectionError("down")], [only("valid")]]
    ours = by_us(MATCH, table, run_of(turns_of(2)), samples=1, threshold=1.0)
    theirs = by_adk(MATCH, table, turns_of(2), turns_of(2), write=write_validity, samples=1, threshold=1.0)
    assert scores(ours) == scores(theirs) == [None, 1.0]
    assert isinstance(ours.overall, Errored)
    assert (theirs.score, theirs.status) == (1.0, "PASSED")


def test_a_rubric_belongs_to_its_own_turn_here_and_to_the_last_one_in_adk() -> None:
    """Quirk Q4."""
    actual = tuple(turn(f"answer {n}", user=f"question {n}", rubrics=rubrics(f"rubric {n}", of=FINAL_RESPONSE)) for n in range(2))
    table = [[{"rubric 0": "no"}], [{"rubric 1": "yes"}]]
    eval_case = case("c", *turns_of(2))
    ours = by_us(FINAL_RESPONSE, table, run_of(actual, eval_case), samples=1)
    theirs = by_adk(FINAL_RESPONSE, table, actual, write=verdicts, samples=1)
    assert (scores(ours), ours.score) == ([0.0, 1.0], 0.5)
    assert (theirs.scores, theirs.score) == ([None, 1.0], 1.0)


@BY_RUBRICS
def test_a_rubric_that_the_judge_left_out_has_no_verdict_here_and_is_forgotten_in_adk(name: str) -> None:
    """Quirk Q6."""
    table, listed = [[{"one": "yes"}] * 6], rubrics("one", "two")
    ours = by_us(name, table, run_of(turns_of(1)), samples=3, rubrics=listed)
    theirs = by_adk(name, table, turns_of(1), write=verdicts, samples=3, rubrics=listed)
    (cell,) = ours.per_invocation
    assert isinstance(cell, Errored)
    assert "rubric 'two': 0 of 3 votes" in cell.error
    assert (theirs.score, theirs.status) == (1.0, "PASSED")


@pytest.mark.parametrize("said", [{"One.": "supported"}, {"One.": "supported", "Two.": "partially supported", "Three.": "`unsupported`"}])
def test_every_sentence_needs_a_label_here_and_those_without_are_forgotten_in_adk(said: Mapping[str, str]) -> None:
    """Quirk Q10: sentences that the judge skipped, and labels that nobody knows."""
    actual = (turn("One. Two. Three.", user="question 0"),)
    ours = by_us(HALLUCINATIONS, [[said] * 2], run_of(actual), samples=1)
    theirs = judged_by_adk(
        HALLUCINATIONS, lambda _, prompt: segmented(prompt) if asks_for_sentences(prompt) else sentence_labels(said), actual
    )
    (cell,) = ours.per_invocation
    assert isinstance(cell, Errored)
    assert "'Two.'" in cell.error
    assert "'Three.'" in cell.error
    assert theirs.scores == [1.0]


def test_a_mean_within_rounding_of_its_threshold_reaches_it_here_and_not_in_adk() -> None:
    """Quirk Q15."""
    table = [[only("valid")]] * 3 + [[only("invalid")]] * 7
    threshold = 1 - 0.7
    ours = by_us(MATCH, table, run_of(turns_of(10)), samples=1, threshold=threshold)
    theirs = by_adk(MATCH, table, turns_of(10), turns_of(10), write=write_validity, samples=1, threshold=threshold)
    assert ours.score == theirs.score == 0.3
    assert (ours.passed, theirs.status) == (True, "FAILED")


@pytest.mark.parametrize("name", [FINAL_RESPONSE, TOOL_USE])
def test_the_case_is_the_mean_of_its_turns_here_and_of_all_rubrics_in_adk(name: str) -> None:
    """Quirk Q16. ADK reads the second turn's answers by all three rubrics, since they are those of the last turn."""
    names = ("b", "c", "d")
    actual = (turn("answer 0", user="question 0"), turn("answer 1", user="question 1", rubrics=rubrics(*names, of=name)))
    table = [[{"a": "yes"}], [{"a": "no"} | dict.fromkeys(names, "no")]]
    ours = by_us(name, table, run_of(actual, case("c", *turns_of(2))), samples=1, rubrics=rubrics("a"))
    theirs = by_adk(name, table, actual, write=verdicts, samples=1, rubrics=rubrics("a"))
    assert scores(ours) == theirs.scores == [1.0, 0.0]
    assert (ours.score, theirs.score) == (0.5, 0.2)


def test_a_vote_that_cannot_be_read_is_an_error_here_and_an_invalid_message_in_adk() -> None:
    """Quirk Q41: ADK's turn has no score, but the case counts it as failed."""
    actual = tuple(turn("Go on.", user=f"message {number}") for number in range(2))
    eval_case = EvalCase(eval_id="c", conversation_scenario=SCENARIO)
    table: list[Ballot] = [[None], [only("valid")]]
    ours = by_us(SIMULATOR, [[], *table], run_of(actual, eval_case), samples=1, at="message", stop_signal="The end.")
    theirs = by_adk(SIMULATOR, table, actual, None, SCENARIO, write=write_message_validity, samples=1)
    assert scores(ours) == theirs.scores == [1.0, None]
    assert isinstance(ours.overall, Errored)
    assert theirs.score == 0.5


def test_an_error_of_a_vote_costs_one_turn_here_and_the_metric_in_adk() -> None:
    """Quirk Q41."""
    actual = tuple(turn("Go on.", user=f"message {number}") for number in range(3))
    eval_case = EvalCase(eval_id="c", conversation_scenario=SCENARIO)
    table: list[Ballot] = [[ConnectionError("down")], [only("valid")], [only("valid")]]
    ours = by_us(SIMULATOR, [[], *table], run_of(actual, eval_case), samples=1, at="message", stop_signal="The end.")
    assert scores(ours) == [1.0, None, 1.0]
    with pytest.raises(ConnectionError, match="down"):
        by_adk(SIMULATOR, table, actual, None, SCENARIO, write=write_message_validity, samples=1)


def test_silence_fails_here_without_a_call_and_in_adk_only_if_its_judge_says_so() -> None:
    """ADK asks about an empty answer, and leaves the turn out where it looks for sentences."""
    silent, wanted = (turn(None, user="question 0"),), turns_of(1)
    table = [[only("valid")]]
    assert scores(by_us(MATCH, table, run_of(silent, case("c", *wanted)), samples=1)) == [0.0]
    assert by_adk(MATCH, table, silent, wanted, write=write_validity, samples=1).scores == [1.0]
    assert scores(by_us(HALLUCINATIONS, table, run_of(silent), samples=1)) == [0.0]
    assert judged_by_adk(HALLUCINATIONS, lambda *_: "", silent).scores == [None]


def test_without_a_reference_there_is_no_verdict_here_and_one_beside_nothing_in_adk() -> None:
    bare = (turn(None, user="question 0"),)
    ours = by_us(MATCH, [[only("valid")]], run_of(turns_of(1), case("c", *bare)), samples=1)
    theirs = by_adk(MATCH, [[only("valid")]], turns_of(1), bare, write=write_validity, samples=1)
    assert (scores(ours), theirs.scores) == ([None], [1.0])
    assert '"Reference response": ,' in theirs.prompts[0]


def test_thoughts_are_no_part_of_an_answer_here_and_are_in_adk() -> None:
    final = Content(role="model", parts=(Part(text="Hm, 41?", thought=True), Part(text="42")))
    actual = (turns_of(1)[0].model_copy(update={"final_response": final}),)
    asked: list[Question] = []
    by_us(MATCH, [[only("valid")]], run_of(actual), samples=1, asked=asked)
    assert {block.name: block.text for block in asked[0].blocks}["response"] == "42"
    assert "Hm, 41?" in by_adk(MATCH, [[only("valid")]], actual, actual, write=write_validity, samples=1).prompts[0]


@pytest.mark.parametrize("name", [FINAL_RESPONSE, TOOL_USE])
def test_the_judge_by_rubrics_reads_earlier_turns_here_and_not_in_adk(name: str) -> None:
    table: list[Ballot] = [[{"kind": "yes"}]] * 2
    asked: list[Question] = []
    by_us(name, table, run_of(turns_of(2)), samples=1, rubrics=rubrics("kind"), asked=asked)
    theirs = by_adk(name, table, turns_of(2), write=verdicts, samples=1, rubrics=rubrics("kind"))
    assert ["question 0" in block.text for block in asked[1].blocks if block.name == "earlier_turns"] == [True]
    assert ["question 0" in prompt for prompt in theirs.prompts] == [True, False]


def test_a_conversation_is_judged_by_all_its_rubrics_and_calls_here_and_by_the_last_turns_in_adk() -> None:
    """ADK looks for calls in recorded events only, and at the rubrics of the last turn."""
    first, last = (rubrics(name, of=TRAJECTORY) for name in ("first", "last"))
    actual = (turn("answer 0", call("book"), rubrics=first), turn("answer 1", rubrics=last))
    table: list[Ballot] = [[{"last": "yes", "[until turn 1] first": "no"}]]
    asked: list[Question] = []
    ours = by_us(TRAJECTORY, table, run_of(actual), samples=1, asked=asked)
    theirs = by_adk(TRAJECTORY, [[{"last": "yes"}]], actual, write=verdicts, samples=1)
    assert (scores(ours), scores(theirs)) == ([None, 0.5], [None, 1.0])
    assert "book" in {block.name: block.text for block in asked[0].blocks}["conversation"]
    shown = theirs.prompts[0].rpartition("<conversation_history>")[2]
    assert ("answer 0" in shown, "book" in shown) == (True, False)


def test_the_judge_of_a_conversation_reads_the_type_of_a_rubric() -> None:
    """ADK shows it beside each; here where it says more than the name of the criterion."""
    given = [{**rubrics("tone")[0], "type": "STYLE"}, *rubrics("way", of=TRAJECTORY)]
    actual = (turn("answer 0"),)
    ours = by_us(TRAJECTORY, [[{"[STYLE] tone": "no", "way": "yes"}]], run_of(actual), samples=1, rubrics=given)
    theirs = by_adk(TRAJECTORY, [[{"tone": "no", "way": "yes"}]], actual, write=verdicts, samples=1, rubrics=given)
    assert (scores(ours), scores(theirs)) == ([0.5], [0.5])
    assert '"type": "STYLE"' in theirs.prompts[0]
