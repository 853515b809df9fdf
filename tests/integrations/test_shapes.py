"""Each shape of docs/reference/shapes.md through every door, and none of what is in no shape as a 0."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
from mlflow.types.agent import ChatAgentResponse
from mlflow.types.llm import ChatCompletionResponse
from mlflow.types.responses import ResponsesAgentResponse

from mlflow_adk_eval import metrics, scorers
from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.errors import EvalSetError
from mlflow_adk_eval.evalset.models import Content, EvalCase, Invocation
from mlflow_adk_eval.integrations.agent_functions import predict_fn
from mlflow_adk_eval.integrations.evaluator.evaluate import ModelAgent, compared
from mlflow_adk_eval.runtime import BACKGROUND
from mlflow_adk_eval.shapes.answers import ANSWERS, USER, WANTED, told_of
from mlflow_adk_eval.shapes.records import EXPECTATIONS, case_of, cells_of
from mlflow_adk_eval.shapes.rows import row_of
from mlflow_adk_eval.testing import ScriptedJudge
from mlflow_adk_eval.tracking.dataset_records import Stored
from mlflow_adk_eval.tracking.dataset_records import case_of as case_of_record
from tests.integrations.genai import QUIET, genai_store
from tests.shapes_kit import ASKED, IMAGE, PAGE, QUESTIONS, SAID, UNKNOWN, examples, filled, rouge

pytestmark = QUIET
store = genai_store
ANSWER_SHAPES = examples("Answers and references")
INPUT_SHAPES = examples("What the user said")
CALLS = examples("Tool calls")
CONFIG = {"criteria": {"response_match_score": 0.5}}
named = pytest.mark.parametrize(
    ("shape", "example"), ANSWER_SHAPES, ids=[f"{name} {index}" for index, (name, _) in enumerate(ANSWER_SHAPES)]
)
unknown = pytest.mark.parametrize(("value", "found"), UNKNOWN, ids=[repr(value) for value, _ in UNKNOWN])


@pytest.fixture(autouse=True)
def _tracked(store: str) -> None:
    """Run on the module's store."""


def test_the_page_has_every_shape() -> None:
    assert list(dict.fromkeys(name for name, _ in ANSWER_SHAPES)) == list(ANSWERS)
    page = PAGE.read_text()
    assert f"{', '.join(USER[:-1])} or {USER[-1]}" in page
    assert all(f"`{name}`" in page for name in EXPECTATIONS)


@named
def test_an_example_is_of_the_shape_that_it_is_said_to_be(shape: str, example: Any) -> None:
    fitting = next(name for name, read in ANSWERS.items() if read(example, "page") is not None)
    (turn,) = told_of(example, "page").turns
    assert (fitting, turn.final_text) == (shape, SAID)


@named
def test_75_answers_and_references_score_as_rouge_score_says(shape: str, example: Any) -> None:
    (scorer,) = scorers.from_config(CONFIG)
    metric = metrics.response_match_score(threshold=0.5).eval_fn
    expected = [rouge(answer, reference) for _, answer, reference in QUESTIONS]
    done = [filled(example, question, answer) for question, answer, _ in QUESTIONS]
    wanted = [filled(example, question, reference) for question, _, reference in QUESTIONS]
    asked = [filled(one, question, "") for (question, _, _), (_, one) in zip(QUESTIONS, cycle(INPUT_SHAPES), strict=False)]
    assert len(QUESTIONS) == 75
    assert min(expected) > 0
    by_metric = metric(done, asked, wanted)
    assert by_metric.scores == pytest.approx(expected)
    assert metric([[one] for one in done], None, [[one] for one in wanted]).scores == pytest.approx(expected)
    rows = [
        scorer(
            inputs={"query": question} if not isinstance(said, dict) else said, outputs=one, expectations={"expected_response": reference}
        )
        for (question, _, _), said, one, reference in zip(QUESTIONS, asked, done, wanted, strict=True)
    ]
    assert [row.value for row in rows] == pytest.approx(expected)
    table = [{"inputs": i, "predictions": p, "targets": t} for i, p, t in zip(asked, done, wanted, strict=True)]
    eval_set, recording = compared("t", table, load_config(CONFIG))
    pairs = [((case.conversation or ())[0], recording.runs[case.eval_id][0].actual[0]) for case in eval_set.eval_cases]
    assert [rouge(actual.final_text, reference.final_text) for reference, actual in pairs] == expected
    assert [actual.user_text for _, actual in pairs] == [question for question, _, _ in QUESTIONS]


@named
def test_a_model_may_answer_in_any_shape_and_a_record_expect_it(shape: str, example: Any) -> None:
    class Model:
        def predict(self, _: Any) -> Any:
            return [example]

    case = EvalCase(eval_id="c", conversation=(Invocation(user_content=Content(role="user", parts=())),))
    conversation = BACKGROUND.call(lambda: ModelAgent(model=Model()).converse(case, 0))
    assert [turn.final_text for turn in conversation.actual] == [SAID]
    assert not conversation.error
    recorded = case_of_record(Stored(record_id="r", inputs={"question": ASKED}, expectations={"expected_response": example}), "record r")
    assert [turn.final_text for turn in recorded.conversation or ()] == [SAID]


@pytest.mark.parametrize(("shape", "example"), INPUT_SHAPES)
def test_what_the_user_said_is_found(shape: str, example: Any) -> None:
    inputs = example if isinstance(example, dict) else {"messages": example}
    assert [turn.user_text for turn in case_of(inputs).conversation or ()] == [ASKED]
    row = row_of(cells_of(example, SAID))
    assert [turn.user_text for turn in row.conversation.actual] == [ASKED]
    asked: list[str] = []
    predict_fn(lambda text: asked.append(text) or SAID)(**inputs)
    assert asked == [ASKED]


@unknown
@pytest.mark.parametrize("side", ["outputs", "expectations"])
def test_what_is_in_no_shape_has_no_score_and_costs_no_call(value: Any, found: str, side: str) -> None:
    judge = ScriptedJudge("valid")
    config = {"criteria": {"response_match_score": 0.5, "final_response_match_v2": 0.5}}
    row = {"inputs": {"query": ASKED}, "outputs": SAID, "expectations": {"expected_response": SAID}}
    row[side] = value if side == "outputs" else {"expected_response": value}
    expected = f"found {found}" if "nothing reads" in found else f"found {found}; wanted {WANTED}"
    for scorer in scorers.from_config(config, judge=judge, ledger=False):
        feedback = scorer(**row)
        assert feedback.value is None
        assert expected in feedback.error.error_message
    for metric in metrics.from_config(config, judge=judge, ledger=False):
        result = metric.eval_fn([value], None, [SAID]) if side == "outputs" else metric.eval_fn([SAID], None, [value])
        assert result.scores == [None]
        assert expected in result.justifications[0]
    cells = {"predictions": value} if side == "outputs" else {"predictions": SAID, "targets": value}
    with pytest.raises(EvalSetError, match=r"nothing reads|wanted a text, an Invocation"):
        compared("t", [cells], load_config(CONFIG))
    assert judge.requests == []


@pytest.mark.parametrize("side", ["outputs", "expectations"])
def test_an_answer_that_is_only_an_image_has_no_score_and_costs_no_call(side: str) -> None:
    judge = ScriptedJudge("valid")
    config = {"criteria": {"response_match_score": 0.5, "final_response_match_v2": 0.5}}
    row = {"inputs": {"query": ASKED}, "outputs": SAID, "expectations": {"expected_response": SAID}}
    row[side] = IMAGE if side == "outputs" else {"expected_response": IMAGE}
    reasons: list[str] = []
    for scorer in scorers.from_config(config, judge=judge, ledger=False):
        feedback = scorer(**row)
        assert feedback.value is None
        reasons.append(feedback.error.error_message)
    assert "no text to compare" in reasons[0] or "no final response to compare" in reasons[0]
    assert "the judge was not shown chart.png (image/png)" in reasons[1]
    assert judge.requests == []


@unknown
def test_a_record_or_a_model_in_no_shape_is_an_error(value: Any, found: str) -> None:
    class Model:
        def predict(self, _: Any) -> Any:
            return [value]

    with pytest.raises(EvalSetError):
        case_of_record(Stored(record_id="r", inputs={"question": ASKED}, expectations={"expected_response": value}), "record r")
    case = EvalCase(eval_id="c", conversation=(Invocation(user_content=Content(role="user", parts=())),))
    conversation = BACKGROUND.call(lambda: ModelAgent(model=Model()).converse(case, 0))
    assert conversation.actual == ()
    assert found in conversation.error


@pytest.mark.parametrize("answer", [{"answer": SAID}, {"score": 1}, {}], ids=repr)
def test_an_agent_that_returns_an_unknown_object_has_failed_and_was_not_silent(answer: Any) -> None:
    outputs = predict_fn(lambda _: answer)(query=ASKED)
    wanted = "Did you mean 'final_response'?" if "answer" in answer else "wanted a text, an Invocation or a dict of one"
    assert wanted in outputs["error"]


@pytest.mark.parametrize(("shape", "call"), CALLS)
def test_tool_calls_of_every_shape(shape: str, call: Any) -> None:
    expected = [("switch", {"room": "hall"})]
    cells = cells_of({"query": ASKED}, {"response": SAID, "tool_calls": [call]}, {"expected_response": SAID, "expected_tool_calls": [call]})
    row = row_of(cells)
    assert [(one.name, one.args) for one in row.conversation.actual[0].tool_calls] == expected
    assert [(one.name, one.args) for one in (row.case.conversation or ())[0].tool_calls] == expected
    assert not row.conversation.unknown


def test_a_chat_tells_the_calls_and_what_the_tools_answered() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "switch", "arguments": '{"room": "hall"}'}}
    chat = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": "One moment.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "assistant", "content": SAID},
    ]
    items = [
        {"type": "function_call", "call_id": "c1", "name": "switch", "arguments": '{"room": "hall"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": SAID}]},
    ]
    for outputs in ({"messages": chat}, chat, {"output": items}):
        told = told_of(outputs, "row")
        ((called, answered),) = told.turns[0].answered_calls()
        assert (called.name, called.args, answered and answered.response) == ("switch", {"room": "hall"}, {"result": "done"})
        assert (told.turns[0].final_text, told.calls) == (SAID, True)
    both = told_of({"conversation": chat}, "row")
    assert [(turn.user_text, turn.final_text) for turn in both.turns] == [("hello", "hi"), (ASKED, SAID)]
    assert not told_of({"choices": [{"message": {"content": SAID}}]}, "row").calls


def test_objects_of_mlflow_are_what_they_stand_for() -> None:
    completion = ChatCompletionResponse.from_dict({"choices": [{"index": 0, "message": {"role": "assistant", "content": SAID}}]})
    item = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": SAID}]}
    chat = ChatAgentResponse(messages=[{"role": "assistant", "content": SAID, "id": "m"}])
    for answer in (completion, ResponsesAgentResponse(output=[item]), chat):
        assert [turn.final_text for turn in told_of(answer, "row").turns] == [SAID]


def test_a_call_that_cannot_be_read_is_named_and_costs_no_answer() -> None:
    message = {"role": "assistant", "content": SAID, "tool_calls": [{"function": {"name": "switch", "arguments": "{"}}]}
    told = told_of({"messages": [message]}, "row", "$.outputs")
    assert told.turns[0].final_text == SAID
    assert not told.calls
    assert told.unreadable.startswith("$.outputs.tool_calls[0].args: found a text that is not JSON")
