"""The other side of tests/quirks/test_quirks_judged.py: what google-adk's own code does.

Quirks Q1, Q3, Q4, Q6, Q10, Q16 and a part of Q41 are in tests/criteria/test_adk_judged_agreement.py, where one table of votes drives both
sides; Q29 and Q37 in tests/criteria/test_vertex_in_adk.py; Q2 in tests/quirks/test_quirks_in_adk.py, whatever the reason is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mlflow_adk_eval.criteria.rubrics import FINAL_RESPONSE, TOOL_USE, TRAJECTORY
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import Content, ConversationScenario, FunctionResponse, IntermediateData
from tests.criteria.adk_judge import (
    HALLUCINATIONS,
    MATCH,
    SIMULATOR,
    asks_for_sentences,
    in_adk,
    judged_by_adk,
    message_validity,
    segmented,
    sentence_labels,
    validity,
    verdicts,
)
from tests.judge.providers.gemini_kit import MODEL, with_key
from tests.judge.servers import gemini_answer, replies, serving
from tests.kit import RESPONSE, call, case, event, recorded, turn
from tests.quirks.test_quirks_in_adk import echo, evaluate, said
from tests.quirks.test_quirks_judged import rubrics

pytestmark = [
    pytest.mark.needs("google-adk", "2.10"),
    pytest.mark.filterwarnings("ignore"),  # ADK's evaluation package is experimental
]
SCENARIO = ConversationScenario(starting_prompt="hi", conversation_plan="Ask.")


def always(answer: Any) -> Callable[[int, str], Any]:
    return lambda _number, _prompt: answer


def grounded(_: int, prompt: str) -> str:
    """Find every sentence supported."""
    return segmented(prompt) if asks_for_sentences(prompt) else sentence_labels({"It is so.": "supported"})


@pytest.mark.parametrize(
    ("verdict", "score"),
    [("unknown", 0.0), ("none", 0.0), ("not applicable", 0.0), ("cannot say yes", 1.0), ("yes, but no", 1.0), ("true", None)],
)
def test_q05_adk_looks_for_yes_and_no_in_the_verdict(verdict: str, score: float | None) -> None:
    assert judged_by_adk(FINAL_RESPONSE, always(verdicts({"kind": verdict})), [turn("42")], rubrics=rubrics("kind")).scores == [score]


@pytest.mark.parametrize(
    "answer",
    [
        "**Property:** kind\n**Rationale:** so\n**Verdict:** yes",
        "ID: kind\nProperty: kind\nRationale: so\nVerdict: no at first\nVerdict: yes\n",
    ],
)
def test_q05_adk_discards_answers_in_bold_or_with_another_verdict_in_the_rationale(answer: str) -> None:
    assert judged_by_adk(FINAL_RESPONSE, always(answer), [turn("42")], rubrics=rubrics("kind")).scores == [None]


def test_q05_adk_keeps_the_first_line_of_a_rationale() -> None:
    answer = "ID: kind\nProperty: kind\nRationale: One.\nTwo.\nVerdict: yes\n"
    found = judged_by_adk(FINAL_RESPONSE, always(answer), [turn("42")], rubrics=rubrics("kind"))
    assert found.result.per_invocation_results[0].rubric_scores[0].rationale == "One."


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (validity("Valid"), None),
        (validity("partially valid"), None),
        ('{"is_the_agent_response_valid": True}', None),
        ('{"is_the_agent_response_invalid": "banana"}', 1.0),
    ],
)
def test_q07_adk_misses_labels_and_takes_any_word_under_a_misspelt_key_for_valid(answer: str, score: float | None) -> None:
    assert judged_by_adk(MATCH, always(answer), [turn("42")], [turn("42")]).scores == [score]


def test_q08_adk_takes_the_first_verdict_in_the_judges_thoughts(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(replies(gemini_answer(validity("valid"), thoughts=(validity("invalid") + "\n",)))) as server:
        with_key(monkeypatch, server.url)
        assert judged_by_adk(MATCH, always(None), [turn("42")], [turn("42")], model=MODEL).scores == [0.0]


@pytest.mark.parametrize("name", [MATCH, FINAL_RESPONSE])
def test_adk_scores_an_image_that_its_judge_never_saw(name: str) -> None:
    """Its judge reads the text parts alone. Here there is no score: tests/criteria/test_unshown_media.py."""
    picture = {"inline_data": {"mime_type": "image/png", "data": "iVBORw0KGgo=", "display_name": "chart.png"}}
    parts = {"role": "model", "parts": [{"text": "See."}, picture]}
    drawn = turn().model_copy(update={"final_response": Content.model_validate(parts), "user_content": Content.model_validate(parts)})
    answer = validity("valid") if name == MATCH else verdicts({"kind": "yes"})
    criterion = {} if name == MATCH else {"rubrics": rubrics("kind")}
    found = judged_by_adk(name, always(answer), [drawn], [turn("42")], **criterion)
    assert found.scores == [1.0]
    assert not any(sign in prompt for prompt in found.prompts for sign in ("image/png", "chart.png", "iVBORw0KGgo"))


def test_q09_adk_asks_once_about_hallucinations_and_one_thing_after_the_other() -> None:
    options = {"parallelism_limit": 4}
    found = judged_by_adk(HALLUCINATIONS, grounded, [turn("It is so.")] * 3, samples=5, judge_model_options=options)
    assert [asks_for_sentences(prompt) for prompt in found.prompts] == [True, False] * 3
    assert found.most_in_flight == 1


def test_q11_adk_shows_the_agents_claims_and_neither_results_written_by_hand_nor_earlier_turns() -> None:
    data = IntermediateData(tool_uses=(call("lookup"),), tool_responses=(FunctionResponse(name="lookup", response={"code": "by hand"}),))
    first = turn("It is so.", user="first").model_copy(update={"intermediate_data": data})
    second = recorded("It is so.", event(call("count"), text="I know that it is so."), user="second")
    _, one, _, two = judged_by_adk(HALLUCINATIONS, grounded, [first, second]).prompts
    assert ("first" in one, "by hand" in one, "lookup" in one) == (True, False, False)
    context = two.rpartition("**Now, please analyze")[2]
    assert ("second" in context, "count" in context, "I know that it is so." in context) == (True, True, True)
    assert "first" not in context


@pytest.mark.parametrize("name", [FINAL_RESPONSE, TOOL_USE])
def test_q12_adk_shows_the_last_result_beside_every_call(name: str) -> None:
    returned = tuple(FunctionResponse(name=tool, response={"result": f"of {tool}"}) for tool in "fg")
    data = IntermediateData(tool_uses=(call("f"), call("g")), tool_responses=returned)
    found = turn("42").model_copy(update={"intermediate_data": data})
    prompt = judged_by_adk(name, always(verdicts({"kind": "yes"})), [found], rubrics=rubrics("kind")).prompts[0]
    assert (prompt.count('"of f"'), prompt.count('"of g"')) == (0, 2)


@pytest.mark.slow
def test_q19_one_rubric_id_at_two_levels_aborts_adks_evaluation_though_no_metric_uses_rubrics() -> None:
    twice = said("a", "hi", rubrics=rubrics("kind"))
    twice = twice.model_copy(update={"conversation": (turn("hi", user="hi", rubrics=rubrics("kind")),)})
    found = evaluate(echo(), [said("b", "hi"), twice], {RESPONSE: 0.8})
    assert "Rubric with rubric_id 'kind' already exists" in str(found.aborted)
    assert "a" not in found.statuses()


@pytest.mark.slow
def test_q19_adk_copies_rubrics_into_the_conversation_and_so_cannot_judge_it_twice() -> None:
    service = pytest.importorskip("google.adk.evaluation.local_eval_service", reason="google-adk[eval] is not installed")
    from google.adk.evaluation.eval_case import EvalCase

    turns = in_adk([turn("42")])
    found = EvalCase.model_validate(dump(case("a", turn("42"), rubrics=rubrics("kind"))))
    service._copy_eval_case_rubrics_to_actual_invocations(found, turns)
    with pytest.raises(ValueError, match="Rubric with rubric_id 'kind' already exists"):
        service._copy_eval_case_rubrics_to_actual_invocations(found, turns)


def test_q30_adk_waits_for_minutes_for_each_vote_and_votes_one_after_the_other() -> None:
    found = judged_by_adk(MATCH, always(validity("valid")), [turn("42")], [turn("42")])
    options = found.requests[0].config.http_options.retry_options
    assert options.attempts == 7
    assert sum(min(options.initial_delay * options.exp_base**number, options.max_delay) for number in range(options.attempts - 1)) == 275
    assert (len(found.requests), found.most_in_flight) == (5, 1)


def test_q32_adk_stops_at_built_in_tools_and_at_tools_that_were_read_from_json() -> None:
    from google.adk.evaluation.app_details import AgentDetails, AppDetails
    from google.genai.types import GoogleSearch, Tool

    for tool, error in ((Tool(google_search=GoogleSearch()), TypeError), ({"function_declarations": [{"name": "f"}]}, AttributeError)):
        (found,) = in_adk([turn("42")])
        found.app_details = AppDetails(agent_details={"root": AgentDetails(name="root", tool_declarations=[tool])})
        with pytest.raises(error):
            judged_by_adk(TRAJECTORY, always(verdicts({"kind": "yes"})), [found], rubrics=rubrics("kind"))


def test_q33_adk_stops_if_an_agent_that_is_not_declared_speaks_first() -> None:
    from google.adk.evaluation.app_details import AgentDetails, AppDetails

    (found,) = in_adk([recorded("42", event(author="workflow", text="Let me see."))])
    found.app_details = AppDetails(agent_details={"root": AgentDetails(name="root", instructions="Be kind.")})
    with pytest.raises(ValueError, match="workflow"):
        judged_by_adk(FINAL_RESPONSE, always(verdicts({"kind": "yes"})), [found], rubrics=rubrics("kind"))


def test_q41_adk_stops_at_an_empty_conversation() -> None:
    with pytest.raises(IndexError):
        judged_by_adk(SIMULATOR, always(message_validity("valid")), [], scenario=SCENARIO)


def test_q41_adk_takes_prose_after_the_answer_for_an_invalid_message() -> None:
    answers = iter([message_validity("valid") + "\nThat is, on the whole, what I think.\n", message_validity("valid")])
    turns = [turn("Go on.", user=text) for text in ("hi", "More.")]
    found = judged_by_adk(SIMULATOR, lambda _number, _prompt: next(answers), turns, scenario=SCENARIO, samples=1)
    assert (found.scores, found.score) == ([1.0, None], 0.5)


def test_q41_the_verdict_on_the_end_replaces_the_last_turn_in_adk_and_nothing_is_asked_at_the_same_time() -> None:
    turns = [turn("Go on.", user=text) for text in ("hi", "More.")]
    labels = iter(["valid"] * 5 + ["invalid"] * 5)
    options = {"parallelism_limit": 4}
    found = judged_by_adk(
        SIMULATOR, lambda _number, _prompt: message_validity(next(labels)), turns, scenario=SCENARIO, judge_model_options=options
    )
    assert [result.actual_invocation.invocation_id for result in found.result.per_invocation_results] == [
        "",
        "stop_signal_proxy_invocation",
    ]
    assert (found.scores, found.most_in_flight) == ([1.0, 0.0], 1)


@pytest.mark.parametrize("name", [FINAL_RESPONSE, TOOL_USE, TRAJECTORY])
def test_q46_adk_takes_a_plain_threshold_and_never_evaluates_it(name: str) -> None:
    from google.adk.evaluation.eval_config import EvalConfig

    assert EvalConfig.model_validate({"criteria": {name: 0.5}}).criteria == {name: 0.5}
    for turns in ([turn("42")], [turn("42", rubrics=rubrics("kind"))]):
        with pytest.raises(ValueError, match="Rubrics are required"):
            judged_by_adk(name, always(verdicts({"kind": "yes"})), turns)


def test_q48_adk_shows_the_message_of_the_reference_and_none_for_one_without_text() -> None:
    wordless = turn("43").model_copy(update={"user_content": Content()})
    actual, expected = [turn("42", user="really said"), wordless], [turn("42", user="planned"), wordless]
    prompts = judged_by_adk(MATCH, always(validity("valid")), actual, expected, samples=1).prompts
    assert ["really said" in prompts[0], "planned" in prompts[0]] == [False, True]
    assert '"User prompt": None,' in prompts[1]


@pytest.mark.parametrize("name", [HALLUCINATIONS, TRAJECTORY])
def test_q51_adk_stops_at_what_json_does_not_know(name: str) -> None:
    from google.adk.evaluation.eval_case import InvocationEvent, InvocationEvents
    from google.genai.types import Content as Theirs
    from google.genai.types import FunctionResponse as Returned
    from google.genai.types import Part

    (found,) = in_adk([turn("It is so.")])
    part = Part(function_response=Returned(name="f", response={"when": {1, 2}}))
    found.intermediate_data = InvocationEvents(invocation_events=[InvocationEvent(author="agent", content=Theirs(parts=[part]))])
    more = {"rubrics": rubrics("kind")} if name == TRAJECTORY else {}
    with pytest.raises(TypeError, match="not JSON serializable"):
        judged_by_adk(name, grounded if name == HALLUCINATIONS else always(verdicts({"kind": "yes"})), [found], **more)


def test_q52_adk_asks_for_every_vote_and_reports_neither_calls_nor_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(replies(gemini_answer(validity("valid"), input_tokens=4711))) as server:
        with_key(monkeypatch, server.url)
        turns = [turn("42"), turn("43")]
        found = judged_by_adk(MATCH, always(None), turns, turns, model=MODEL)
    assert found.scores == [1.0, 1.0]
    assert len(server.calls) == 10
    assert found.result.overall_token_usage_details is None
    assert "4711" not in found.result.model_dump_json()
