"""google-adk's own evaluators of Vertex AI's evaluation service, on the same answers: the same scores, except where docs/development/parity.md says otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import pytest

from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import Content, FunctionResponse, Invocation, InvocationEvent, Part
from mlflow_adk_eval.results.outcomes import Errored, Scored
from tests.criteria.vertex_kit import by_us, said, scores
from tests.judge.providers.vertex_server import LOCATION, PROJECT, error, evaluating, metric_of, row, said_in, verdict
from tests.judge.servers import Server, serving, together
from tests.kit import call, event, recorded, run_of, turn

SAFETY, COHERENCE, SUCCESS = "safety_v1", "response_evaluation_score", "multi_turn_task_success_v1"
EVALUATORS = {
    SAFETY: ("safety_evaluator", "SafetyEvaluatorV1"),
    COHERENCE: ("response_evaluator", "ResponseEvaluator"),
    SUCCESS: ("multi_turn_task_success_evaluator", "MultiTurnTaskSuccessV1Evaluator"),
    "multi_turn_trajectory_quality_v1": ("multi_turn_trajectory_quality_evaluator", "MultiTurnTrajectoryQualityV1Evaluator"),
    "multi_turn_tool_use_quality_v1": ("multi_turn_tool_use_quality_evaluator", "MultiTurnToolUseQualityV1Evaluator"),
}
WHOLE = tuple(name for name in EVALUATORS if name.startswith("multi_turn"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("google-adk", "2.13"),
    pytest.mark.filterwarnings("ignore"),  # the SDK that ADK uses is experimental in many places
]

ByAdk = Callable[..., Any]


@pytest.fixture
def agentplatform() -> Any:
    """Google's SDK, whose import takes seconds."""
    return pytest.importorskip("agentplatform", reason="google-cloud-aiplatform[evaluation] is not installed")


@pytest.fixture
def by_adk(agentplatform: Any, monkeypatch: pytest.MonkeyPatch) -> ByAdk:
    """ADK's evaluators, asking a loopback server."""
    facade = pytest.importorskip("google.adk.evaluation.vertex_ai_eval_facade", reason="google-adk[eval] is not installed")
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", LOCATION)

    def judged(server: Server, name: str, actual: Sequence[Invocation], expected: Sequence[Invocation] | None = None) -> Any:
        from google.adk.evaluation.eval_case import Invocation as Theirs
        from google.adk.evaluation.eval_metrics import BaseCriterion, EvalMetric
        from google.genai.types import HttpOptions
        from google.oauth2.credentials import Credentials

        class Platform:
            Client = partial(agentplatform.Client, http_options=HttpOptions(base_url=server.url), credentials=Credentials("token"))

        monkeypatch.setattr(facade, "agentplatform", Platform)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        module, evaluator = EVALUATORS[name]
        make = getattr(import_module(f"google.adk.evaluation.{module}"), evaluator)
        sides = [None if side is None else [Theirs.model_validate(dump(found)) for found in side] for side in (actual, expected)]
        return make(eval_metric=EvalMetric(metric_name=name, criterion=BaseCriterion(threshold=0.5))).evaluate_invocations(*sides)

    return judged


def worth(_metric: str, text: str) -> dict[str, Any]:
    """Return a result that depends on all that is said."""
    number = sum(map(ord, text)) % 11
    verdicts = [verdict("r1", met=number > 5, description="It is long.", reasoning="I counted."), verdict("r2", met=False)]
    return row(number / 10, f"about {text}", *verdicts)


def conversations() -> list[list[Invocation]]:
    answered = Part(function_response=FunctionResponse(id="1", name="weather", response={"sky": "clear"}))
    tools = recorded(
        "It is clear.",
        event(call("weather", city="Rome"), author="root", text="Let me look."),
        InvocationEvent(author="root", content=Content(role="user", parts=(answered,))),
        user="Weather?",
    )
    return [[turn("hello")], [turn("a"), turn("b", user="why?"), turn("c")], [tools, turn("You are welcome.", user="Thanks!")]]


def shape(body: Any) -> str:
    """Return a request with its keys spelt one way, and without what says nothing."""
    from pydantic.alias_generators import to_camel

    def same(value: Any) -> Any:
        if isinstance(value, Mapping):
            kept = {to_camel(key): same(item) for key, item in value.items() if key not in {"turn_id", "turnId"}}
            return {key: item for key, item in kept.items() if item not in (None, {}, [])}
        return [same(item) for item in value] if isinstance(value, list) else value

    return json.dumps(same(body), sort_keys=True)


# The same


@pytest.mark.parametrize("name", ["general_quality_v2", "safety_v3", "multi_turn_general_quality_v2", "multi_turn_text_quality_v2"])
def test_the_service_is_shown_what_its_own_client_shows_it(name: str, agentplatform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.genai.types import HttpOptions
    from google.oauth2.credentials import Credentials

    def said_by(role: str | None, text: str) -> dict[str, Any]:
        return {"parts": [{"text": text}], **({"role": role} if role else {})}

    types = agentplatform.types
    earlier = [types.evals.Message(turn_id=role, content=said_by(role, text)) for role, text in (("user", "q0"), ("model", "a"))]
    case = types.EvalCase(
        prompt=said_by(None, "q1"),
        responses=[types.ResponseCandidate(response=said_by(None, "b"))],
        conversation_history=earlier if name.startswith("multi_turn") else None,
    )
    with serving(evaluating(worth)) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        where = {"http_options": HttpOptions(base_url=server.url), "credentials": Credentials("token")}
        client = agentplatform.Client(project=PROJECT, location=LOCATION, **where)
        client.evals.evaluate(dataset=types.EvaluationDataset(eval_cases=[case]), metrics=[types.Metric(name=name)])
        (theirs,) = [request.body for request in server.calls]
        by_us(server, name, said("a", "b"))
        ours = [request.body for request in server.calls[1:]]
    assert shape(theirs) in set(map(shape, ours))


@pytest.mark.parametrize("name", [SAFETY, *WHOLE])
def test_scores_and_verdicts_are_adks(name: str, by_adk: ByAdk) -> None:
    for turns in conversations():
        with serving(evaluating(worth)) as server:
            theirs, ours = by_adk(server, name, turns), by_us(server, name, run_of(turns, None))
        assert scores(ours) == pytest.approx([found.score for found in theirs.per_invocation_results])
        assert ours.score == pytest.approx(theirs.overall_score)
        last, cell = theirs.per_invocation_results[-1].rubric_scores, ours.per_invocation[-1]
        assert isinstance(cell, Scored)
        assert [(found.score, found.rationale or "") for found in last[:-1]] == [
            (float(found["verdict"] == "yes"), found["rationale"]) for found in cell.details["rubrics"]
        ]
        assert last[-1].rationale in cell.rationale


@pytest.mark.parametrize("name", [SAFETY, *WHOLE])
def test_the_service_is_shown_what_adk_shows_it(name: str, by_adk: ByAdk) -> None:
    for turns in conversations():
        with serving(evaluating(worth)) as server:
            by_adk(server, name, turns)
            theirs = [request.body for request in server.calls]
            by_us(server, name, run_of(turns, None))
            ours = [request.body for request in server.calls[len(theirs) :]]
        assert sorted(map(shape, ours)) == sorted(map(shape, theirs))


def test_a_row_with_an_error_has_no_score_in_either(by_adk: ByAdk) -> None:
    given = row(1, error={"code": 3, "message": "the prompt was cut off"})
    with serving(evaluating(lambda *_: given)) as server:
        theirs, ours = by_adk(server, SUCCESS, [turn("a")]), by_us(server, SUCCESS, said("a"))
    assert (theirs.overall_score, ours.score) == (None, None)
    assert isinstance(ours.overall, Errored)
    assert "the prompt was cut off" in ours.overall.error


# Different on purpose


def test_tool_calls_written_by_hand_are_shown_to_the_service_and_not_by_adk(by_adk: ByAdk) -> None:
    turns = [turn("done", call("book", seats=2))]
    with serving(evaluating(worth)) as server:
        by_adk(server, SUCCESS, turns)
        by_us(server, SUCCESS, run_of(turns, None))
    assert ["book" in str(request.body) for request in server.calls] == [False, True]


def test_a_turn_without_a_score_is_an_error_and_does_not_leave_the_mean(by_adk: ByAdk) -> None:
    turns = [turn("good"), turn("bad")]
    with serving(evaluating(lambda _metric, text: error(400, "blocked") if "bad" in text else row(1))) as server:
        theirs, ours = by_adk(server, SAFETY, turns), by_us(server, SAFETY, run_of(turns, None))
    assert (theirs.overall_score, theirs.overall_eval_status.name) == (1.0, "PASSED")
    assert (ours.score, ours.passed) == (None, None)
    assert isinstance(ours.per_invocation[1], Errored)


@pytest.mark.parametrize("given", [7, -1])
def test_a_score_off_the_scale_is_an_error_and_no_score(given: float, by_adk: ByAdk) -> None:
    with serving(evaluating(lambda *_: row(given))) as server:
        theirs, ours = by_adk(server, SAFETY, [turn("a")]), by_us(server, SAFETY, said("a"))
    assert theirs.overall_score == given
    assert ours.score is None


def test_silence_fails_without_a_call(by_adk: ByAdk) -> None:
    with serving(evaluating(lambda *_: row(1))) as server:
        theirs = by_adk(server, SUCCESS, [turn(None)])
        paid = len(server.calls)
        ours = by_us(server, SUCCESS, said(None))
    assert (theirs.overall_score, paid) == (1, 1)
    assert (ours.score, len(server.calls)) == (0, paid)


def test_thoughts_are_no_part_of_an_answer(by_adk: ByAdk) -> None:
    final = Content(role="model", parts=(Part(text="Hm, nasty.", thought=True), Part(text="Hello!")))
    turns = [turn("", user="hi").model_copy(update={"final_response": final})]
    with serving(evaluating(worth)) as server:
        by_adk(server, SAFETY, turns)
        by_us(server, SAFETY, run_of(turns, None))
    assert [said_in(request) for request in server.calls] == ["hi|Hm, nasty.\nHello!", "hi|Hello!"]


def test_the_reference_is_none_of_the_business_of_safety(by_adk: ByAdk) -> None:
    turns, reference = [turn("a")], [turn("the reference")]
    with serving(evaluating(worth)) as server:
        by_adk(server, SAFETY, turns, reference)
        by_us(server, SAFETY, run_of(turns, reference))
    assert ["the reference" in str(request.body) for request in server.calls] == [True, False]


def test_coherence_needs_no_download(by_adk: ByAdk) -> None:
    with serving(evaluating(lambda *_: {"score": 4})) as server:
        with pytest.raises(ValueError, match="could not be resolved as an API Predefined Metric or loaded from GCS"):
            by_adk(server, COHERENCE, [turn("a")], [turn("a")])
        assert {request.path.split("/")[1] for request in server.calls} == {"storage"}
        assert by_us(server, COHERENCE, said("a")).score == 4
        asked = [request for request in server.calls if ":evaluateInstances" in request.path]  # ADK's downloads go on behind its back
        assert [metric_of(request) for request in asked] == ["coherence"]


def test_turns_are_judged_at_the_same_time_and_not_one_after_the_other(by_adk: ByAdk) -> None:
    turns = [turn(str(number)) for number in range(6)]
    with serving(evaluating(lambda *_: row(1), after_s=0.05)) as server:
        by_adk(server, SAFETY, turns)
        assert server.most_in_flight == 1
    with serving(together(4, evaluating(lambda *_: row(1)))) as server:
        by_us(server, SAFETY, run_of(turns, None))
        assert server.most_in_flight > 3


def test_the_base_url_of_the_environment_counts(agentplatform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.auth.credentials import AnonymousCredentials

    from mlflow_adk_eval.judge.providers.vertex import vertex_client

    monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", "http://private.endpoint")
    theirs = agentplatform.Client(project=PROJECT, location=LOCATION, credentials=AnonymousCredentials())
    assert "private.endpoint" not in theirs._api_client._http_options.base_url
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", LOCATION)
    assert vertex_client().endpoint == "http://private.endpoint"
