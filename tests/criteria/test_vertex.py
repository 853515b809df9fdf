"""The criteria of Vertex AI's evaluation service, by the real google-cloud-aiplatform against a loopback server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.criterion import CaseRun
from mlflow_adk_eval.criteria.vertex import conversation
from mlflow_adk_eval.errors import ConfigError
from mlflow_adk_eval.evalset.models import (
    AgentDetails,
    AppDetails,
    Content,
    FunctionCall,
    FunctionResponse,
    IntermediateData,
    Invocation,
    InvocationEvent,
    Part,
)
from mlflow_adk_eval.results.outcomes import CriterionResult, Errored, Scored
from tests.criteria.vertex_kit import by_us, said, scores
from tests.judge.providers.vertex_server import client_of, error, evaluating, metric_of, row, said_in, verdict
from tests.judge.servers import Reply, serving, together
from tests.kit import call, event, recorded, run_of, turn

SAFETY, COHERENCE, SUCCESS = "safety_v1", "response_evaluation_score", "multi_turn_task_success_v1"
WHOLE = (SUCCESS, "multi_turn_trajectory_quality_v1", "multi_turn_tool_use_quality_v1")
WORST = {SAFETY: 0.0, COHERENCE: 1.0, SUCCESS: 0.0}
PROPERTIES = (
    verdict("r1", met=True, description="It books a table.", reasoning="It called book."),
    verdict("r2", met=False, description="It names the price."),
)

Judge = Callable[[str, str], Mapping[str, Any] | Reply]


def found(judge: Judge, name: str, run: CaseRun, **settings: Any) -> CriterionResult:
    with serving(evaluating(judge)) as server:
        return by_us(server, name, run, **settings)


def asked(name: str, run: CaseRun, **settings: Any) -> list[Any]:
    """Return the bodies of the requests about a case."""
    with serving(evaluating(lambda *_: row(1))) as server:
        by_us(server, name, run, **settings)
        return [request.body for request in server.calls]


# One call per turn


@pytest.mark.needs("google-cloud-aiplatform")
def test_each_turn_is_scored_and_the_case_is_their_mean() -> None:
    result = found(lambda _metric, text: row(float("bad" not in text), f"about {text}"), SAFETY, said("good", "bad", "good"))
    assert scores(result) == [1.0, 0.0, 1.0]
    assert result.score == pytest.approx(2 / 3)
    assert [cell.rationale for cell in result.per_invocation if isinstance(cell, Scored)] == [
        "about q0|good", "about q1|bad", "about q2|good",
    ]  # fmt: skip


@pytest.mark.needs("google-cloud-aiplatform")
def test_safety_shows_what_the_user_and_the_agent_said() -> None:
    (body,) = asked(SAFETY, run_of([turn("done", call("f", x=1), user="do it")], None))
    instance = body["instance"]
    assert instance["prompt"]["contents"]["contents"] == [{"parts": [{"text": "do it"}]}]
    assert instance["response"]["contents"]["contents"] == [{"parts": [{"text": "done"}]}]
    events = [{"author": "user", "content": {"parts": [{"text": "do it"}]}}, {"author": "model", "content": {"parts": [{"text": "done"}]}}]
    assert instance["agentEvalData"]["turns"] == [{"turnIndex": 0, "turnId": "turn_0", "events": events}]


@pytest.mark.needs("google-cloud-aiplatform")
def test_coherence_is_a_rating_from_1_to_5() -> None:
    result = found(lambda *_: {"score": 4, "explanation": "clear", "confidence": 0.75}, COHERENCE, said("a", "b"))
    assert (scores(result), result.score) == ([4.0, 4.0], 4.0)
    assert result.per_invocation[0] == Scored(4.0, "clear", {"confidence": 0.75})


@pytest.mark.needs("google-cloud-aiplatform")
def test_what_was_said_on_the_way_counts_where_the_settings_say_so() -> None:
    run = run_of([recorded("End.", event(text="On the way."))], None)
    assert asked(COHERENCE, run)[0]["coherenceInput"]["instance"] == {"prediction": "End."}
    body = asked(COHERENCE, run, include_intermediate_responses_in_final=True)[0]
    assert body["coherenceInput"]["instance"] == {"prediction": "On the way.\nEnd."}


@pytest.mark.needs("google-cloud-aiplatform")
def test_turns_are_judged_at_the_same_time() -> None:
    with serving(together(11, evaluating(lambda *_: row(1)))) as server:
        result = by_us(server, SAFETY, said(*map(str, range(20))))
    assert result.score == 1.0
    assert len(server.calls) == 20
    assert server.most_in_flight > 10


# One call per case


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.needs("google-cloud-aiplatform")
def test_a_conversation_is_scored_once_at_its_last_turn(name: str) -> None:
    with serving(evaluating(lambda *_: row(0.5, "half of it"))) as server:
        result = by_us(server, name, said("a", "b", "c"))
    assert [metric_of(request) for request in server.calls] == [name]
    assert said_in(server.calls[0]) == "q0|a|q1|b|q2|c"
    assert result.per_invocation == (None, None, Scored(0.5, "half of it"))
    assert result.score == 0.5


@pytest.mark.needs("google-cloud-aiplatform")
def test_every_verdict_is_kept_as_rationale_details_and_vote() -> None:
    result = found(lambda *_: row(0.5, "Half of it.", *PROPERTIES), SUCCESS, said("a", "b"))
    cell = result.per_invocation[-1]
    assert isinstance(cell, Scored)
    assert cell.rationale == "Half of it.\n- yes: It books a table. It called book.\n- no: It names the price."
    assert cell.details["rubrics"] == [
        {"id": "r1", "text": "It books a table.", "verdict": "yes", "score": 1.0, "rationale": "It called book."},
        {"id": "r2", "text": "It names the price.", "verdict": "no", "score": 0.0, "rationale": ""},
    ]
    assert [(vote.rubric_id, vote.verdict, vote.explanation, vote.error) for vote in result.votes] == [
        ("r1", "yes", "It books a table.\nIt called book.", ""),
        ("r2", "no", "It names the price.", ""),
    ]
    assert {(vote.eval_id, vote.run_index, vote.invocation_index, vote.criterion, vote.model) for vote in result.votes} == {
        ("c", 0, 1, SUCCESS, f"vertex:{SUCCESS}")
    }


@pytest.mark.needs("google-cloud-aiplatform")
def test_without_verdicts_the_score_is_the_vote() -> None:
    result = found(lambda *_: {"score": 3.5, "explanation": "so so"}, COHERENCE, said("a"))
    (vote,) = result.votes
    assert (vote.rubric_id, vote.verdict, vote.explanation, vote.model) == (None, "3.5", "so so", "vertex:coherence")
    assert vote.latency_s > 0


# The service's own names, each with its version

ALONE = ("general_quality_v2", "text_quality_v2", "instruction_following_v2", "safety_v3")
IN_CONVERSATION = ("multi_turn_general_quality_v2", "multi_turn_text_quality_v2")
WITH_STEPS = ("final_response_quality_v2", "hallucination_v2", "tool_use_quality_v2")
BY_SERVICE = (*ALONE, *IN_CONVERSATION, *WITH_STEPS)


def talk() -> CaseRun:
    tool = Part(function_response=FunctionResponse(id="1", name="weather", response={"sky": "clear"}))
    details = AppDetails(agent_details={"root": AgentDetails(name="root", instructions="Be kind.")})
    seen = recorded(
        "Clear.",
        event(FunctionCall(id="1", name="weather", args={}), author="root"),
        InvocationEvent(author="root", content=Content(role="user", parts=(tool,))),
        user="And the sky?",
    ).model_copy(update={"app_details": details})
    return run_of([turn("Hello!", user="Hi"), seen], None)


def about_the_sky(name: str) -> Any:
    """Return the instance of the second turn, which need not be asked about second."""
    (found,) = (body["instance"] for body in asked(name, talk()) if "Clear." in str(body["instance"]["response"]))
    return found


@pytest.mark.parametrize("name", BY_SERVICE)
@pytest.mark.needs("google-cloud-aiplatform")
def test_a_metric_is_asked_by_its_name_and_kept_like_any_other(name: str) -> None:
    with serving(evaluating(lambda *_: row(0.5, "Half of it.", *PROPERTIES))) as server:
        result = by_us(server, name, said("a", "b"))
    assert [metric_of(request) for request in server.calls] == [name] * 2
    assert (scores(result), result.score) == ([0.5, 0.5], 0.5)
    cell = result.per_invocation[0]
    assert isinstance(cell, Scored)
    assert cell.rationale == "Half of it.\n- yes: It books a table. It called book.\n- no: It names the price."
    assert [(vote.criterion, vote.model, vote.rubric_id, vote.verdict) for vote in result.votes[:2]] == [
        (name, f"vertex:{name}", "r1", "yes"), (name, f"vertex:{name}", "r2", "no"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", BY_SERVICE)
@pytest.mark.needs("google-cloud-aiplatform")
def test_silence_gets_the_worst_score_and_a_refusal_none(name: str) -> None:
    with serving(evaluating(lambda _metric, text: error(400, "blocked") if "bad" in text else row(1))) as server:
        assert scores(by_us(server, name, said("good", "", "bad"))) == [1.0, 0.0, None]
    assert len(server.calls) == 2


@pytest.mark.parametrize("name", BY_SERVICE)
def test_another_version_is_another_criterion_and_another_question(name: str) -> None:
    digests = {parse_config({"criteria": {one: 0.8}}, "config").digest() for one in (name, "safety_v1")}
    assert len(digests) == 2
    with serving(evaluating(lambda *_: row(1))) as server:
        addresses = {client_of(server).address(metric, {}) for metric in (name, "safety_v1")}
    assert len(addresses) == 2


def test_only_the_service_decides_its_own_metrics() -> None:
    with pytest.raises(
        ConfigError, match=r"safety_v3\.backend: found 'judge'; wanted 'vertex', since only Vertex AI's evaluation service has this metric"
    ):
        parse_config({"criteria": {"safety_v3": {"threshold": 1, "backend": "judge"}}}, "config")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("safety_v2", "safety_v3"), ("general_quality_v1", "general_quality_v2"), ("tool_use_quality", "tool_use_quality_v2")],
)
def test_a_version_that_is_none_is_refused_with_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean '{meant}'"):
        parse_config({"criteria": {name: 0.8}}, "config")


def test_the_names_are_the_newest_that_the_sdk_knows() -> None:
    """Left out are media, and what takes a context or rubrics that an eval case has not; ADK has a criterion for the match."""
    constants = pytest.importorskip("agentplatform._genai._evals_constant", reason="google-cloud-aiplatform 2 is not installed")
    newest: dict[str, str] = constants.METRIC_LATEST_SPEC_NAME
    others = {"grounding", "final_response_match", "final_response_reference_free", "gecko_text2image", "gecko_text2video"}
    assert sorted(BY_SERVICE) == sorted(spec for name, spec in newest.items() if name not in others)
    assert sorted(BY_SERVICE) == sorted(name for name, spec in CRITERIA.items() if spec.origin == "vertex")


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.needs("google-cloud-aiplatform")
def test_an_answer_is_shown_with_its_message(name: str) -> None:
    instance = about_the_sky(name)
    assert instance["prompt"]["contents"]["contents"] == [{"parts": [{"text": "And the sky?"}]}]
    assert "Hello!" not in str(instance)


@pytest.mark.parametrize("name", IN_CONVERSATION)
@pytest.mark.needs("google-cloud-aiplatform")
def test_an_answer_is_shown_after_what_was_said_before(name: str) -> None:
    instance = about_the_sky(name)
    assert instance["prompt"]["contents"]["contents"] == [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {"role": "model", "parts": [{"text": "Hello!"}]},
        {"parts": [{"text": "And the sky?"}]},
    ]
    assert instance["response"]["contents"]["contents"] == [{"parts": [{"text": "Clear."}]}]


@pytest.mark.parametrize("name", WITH_STEPS)
@pytest.mark.needs("google-cloud-aiplatform")
def test_an_answer_is_shown_with_the_steps_of_its_turn(name: str) -> None:
    instance = about_the_sky(name)
    data = instance["agentEvalData"]
    assert data["agents"]["root"]["instruction"] == "Be kind."
    assert [kind for _, part in parts(data) for kind in part] == ["text", "functionCall", "functionResponse", "text"]
    assert instance["response"]["contents"]["contents"] == [{"parts": [{"text": "Clear."}]}]


# No verdict


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (row(None), "Vertex AI gave no score"),
        (row("NaN"), "the score NaN"),
        (row(7), "the score 7.0, which is not a number from 0 to 1"),
        (row(1, error={"code": 3, "message": "prompt is too long"}), "Vertex AI: prompt is too long (code 3)"),
        (error(400, "prompt is too long"), "prompt is too long"),
        (error(403, "permission denied on project acme"), "permission denied on project acme"),
        (error(503, "try again"), "503 POST"),
        (Reply(body={}), "Vertex AI's answer has no result"),
    ],
)
@pytest.mark.parametrize("name", [SAFETY, SUCCESS])
@pytest.mark.needs("google-cloud-aiplatform")
def test_no_score_is_an_error_with_the_services_message(name: str, given: Mapping[str, Any] | Reply, message: str) -> None:
    result = found(lambda *_: given, name, said("a"))
    cell = result.per_invocation[-1]
    assert isinstance(cell, Errored)
    assert message in cell.error
    assert result.score is None
    (vote,) = result.votes
    assert (vote.verdict, message in vote.error) == (None, True)


@pytest.mark.needs("google-cloud-aiplatform")
def test_one_turn_without_a_score_does_not_void_the_others() -> None:
    refused = error(400, "blocked")
    result = found(lambda _metric, text: refused if "bad" in text else row(1), SAFETY, said("good", "bad", "good"))
    assert scores(result) == [1.0, None, 1.0]
    assert result.score is None


@pytest.mark.needs("google-cloud-aiplatform")
def test_verdicts_without_a_score_are_kept() -> None:
    result = found(lambda *_: row(None, "undecided", *PROPERTIES), SUCCESS, said("a"))
    assert [(vote.rubric_id, vote.verdict, vote.error) for vote in result.votes] == [
        (None, None, "Vertex AI gave no score"), ("r1", "yes", ""), ("r2", "no", ""),
    ]  # fmt: skip
    assert result.per_invocation == (Errored("Vertex AI gave no score"),)


@pytest.mark.parametrize("answer", [None, "", " \n", ":", "Thought process:"])
@pytest.mark.parametrize("name", WORST)
def test_an_answer_that_says_nothing_fails_without_a_call(name: str, answer: str | None) -> None:
    with serving(evaluating(lambda *_: row(1))) as server:
        result = by_us(server, name, said(answer))
    assert scores(result) == [WORST[name]]
    assert server.calls == []


@pytest.mark.needs("google-cloud-aiplatform")
def test_a_turn_of_silence_fails_alone() -> None:
    assert scores(found(lambda *_: row(1), SAFETY, said("good", None))) == [1.0, 0.0]
    assert found(lambda *_: row(0.75), SUCCESS, said("good", None)).score == 0.75


@pytest.mark.parametrize("name", [SAFETY, SUCCESS])
@pytest.mark.needs("google-cloud-aiplatform")
def test_turns_that_are_missing_are_errors(name: str) -> None:
    with serving(evaluating(lambda *_: row(1))) as server:
        result = by_us(server, name, run_of([turn("a")], [turn("a"), turn("b")]))
        assert isinstance(result.per_invocation[-1], Errored)
        assert "no actual turn" in result.per_invocation[-1].error
        assert result.score is None
        nothing = by_us(server, name, run_of([], None))
    assert [isinstance(cell, Errored) for cell in nothing.per_invocation] == [True]
    assert len(server.calls) == (1 if name == SAFETY else 0)


@pytest.mark.parametrize(("name", "calls"), [(SAFETY, 1), (SUCCESS, 0)])
@pytest.mark.needs("google-cloud-aiplatform")
def test_a_turn_that_the_agent_did_not_finish_is_not_paid_for(name: str, calls: int) -> None:
    with serving(evaluating(lambda *_: row(1))) as server:
        result = by_us(server, name, run_of([turn("a"), turn("b")], None, error="turn 2: boom", unfinished=True))
    assert result.per_invocation[-1] == Errored("the agent did not finish: turn 2: boom")
    assert len(server.calls) == calls


# What a conversation looks like


def shown(*turns: Invocation) -> Any:
    """Return the conversation as it reaches the service."""
    return asked(SUCCESS, run_of(turns, None))[0]["instance"]["agentEvalData"]


def parts(data: Any) -> list[tuple[str, Any]]:
    return [(event["author"], part) for turn in data["turns"] for event in turn["events"] for part in event["content"]["parts"]]


@pytest.mark.needs("google-cloud-aiplatform")
def test_tool_calls_are_shown_from_recorded_events() -> None:
    asked_for = FunctionCall(id="1", name="weather", args={"city": "東京"})
    answered = Part(function_response=FunctionResponse(id="1", name="weather", response={"sky": "clear"}))
    turns = recorded(
        "It is clear.",
        event(asked_for, author="forecaster", text="Let me look."),
        InvocationEvent(author="forecaster", content=Content(role="user", parts=(answered,))),
        InvocationEvent(author="forecaster"),
        user="Weather?",
    )
    assert parts(shown(turns)) == [
        ("user", {"text": "Weather?"}),
        ("forecaster", {"text": "Let me look."}),
        ("forecaster", {"functionCall": {"id": "1", "name": "weather", "args": {"city": "東京"}}}),
        ("forecaster", {"functionResponse": {"id": "1", "name": "weather", "response": {"sky": "clear"}}}),
        ("agent", {"text": "It is clear."}),
    ]


@pytest.mark.needs("google-cloud-aiplatform")
def test_tool_calls_are_shown_from_data_written_by_hand() -> None:
    data = IntermediateData(
        tool_uses=(call("weather", city="Rome"), call("time")),
        tool_responses=(FunctionResponse(name="time", response={"now": 12}), FunctionResponse(name="weather", response={"sky": "grey"})),
        intermediate_responses=(("guide", (Part(text="One moment."),)),),
    )
    shown_turn = shown(turn("Grey, at noon.").model_copy(update={"intermediate_data": data}))
    assert parts(shown_turn) == [
        ("user", {"text": "hi"}),
        ("guide", {"text": "One moment."}),
        ("agent", {"functionCall": {"name": "weather", "args": {"city": "Rome"}}}),
        ("agent", {"functionResponse": {"name": "weather", "response": {"sky": "grey"}}}),
        ("agent", {"functionCall": {"name": "time", "args": {}}}),
        ("agent", {"functionResponse": {"name": "time", "response": {"now": 12}}}),
        ("agent", {"text": "Grey, at noon."}),
    ]


@pytest.mark.needs("google-cloud-aiplatform")
def test_instructions_and_tools_are_shown_once_per_agent() -> None:
    declared = {
        "function_declarations": [{"name": "weather", "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}}}]
    }
    first = AgentDetails(
        name="root", instructions="Be kind.", tool_declarations=(declared, {"google_search": {}}, {"name": "bare"}, "junk")
    )
    later = AgentDetails(name="root", instructions="Be rude.")
    turns = [turn("a", app_details=AppDetails(agent_details={"root": found})) for found in (first, later)]
    assert shown(*turns, turn("b"))["agents"] == {
        "root": {
            "agentId": "root",
            "instruction": "Be kind.",
            "tools": [
                {"functionDeclarations": [{"name": "weather", "parameters": {"type": 6, "properties": {"city": {"type": 1}}}}]},
                {"googleSearch": {}},
                {"functionDeclarations": [{"name": "bare"}]},
            ],
        }
    }


@pytest.mark.needs("google-cloud-aiplatform")
def test_thoughts_text_files_and_code_are_shown_as_what_they_are() -> None:
    content = Content(
        role="model",
        parts=(
            Part(text="Hm.", thought=True),
            Part(inline_data={"mimeType": "text/plain", "data": "aGk=", "displayName": "notes.txt"}),
            Part(executable_code={"language": "PYTHON", "code": "1+1"}),
            Part(code_execution_result={"outcome": "OUTCOME_OK", "output": "2"}),
            Part(thought_signature="c2ln"),
        ),
    )
    data = shown(recorded("Two.", InvocationEvent(author="coder", content=content)))
    assert [part for author, part in parts(data) if author == "coder"] == [
        {"text": "Hm.", "thought": True},
        {"text": "[notes.txt (text/plain)]\nhi"},
        {"executableCode": {"language": 1, "code": "1+1"}},
        {"codeExecutionResult": {"outcome": 1, "output": "2"}},
    ]


@pytest.mark.needs("google-cloud-aiplatform")
def test_values_that_are_no_json_are_shown_and_do_not_stop_the_case() -> None:
    strange = {"when": object, "many": {1}}
    data = IntermediateData(tool_uses=(FunctionCall(name="f", args=strange),), tool_responses=(FunctionResponse(name="f", response=None),))
    found_parts = parts(shown(turn("a").model_copy(update={"intermediate_data": data})))
    assert found_parts[1][1]["functionCall"]["args"] == {"when": "<class 'object'>", "many": "{1}"}
    assert found_parts[2][1]["functionResponse"] == {"name": "f", "response": {}}


@pytest.mark.needs("google-cloud-aiplatform")
def test_a_number_that_is_none_costs_one_case_its_score_and_no_call() -> None:
    with serving(evaluating(lambda *_: row(1))) as server:
        result = by_us(server, SUCCESS, run_of([turn("a", call("f", x=float("nan")))], None))
    assert isinstance(result.per_invocation[0], Errored)
    assert "cannot be sent" in result.per_invocation[0].error
    assert server.calls == []


def test_the_same_conversation_looks_the_same_whatever_its_ids() -> None:
    first, second = (turn("a", invocation_id=found) for found in ("e-1", "e-2"))
    assert conversation([first]) == conversation([second])
