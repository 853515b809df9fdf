"""Agents that predict for mlflow.genai.evaluate: whole conversations, each with its trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlflow
import pytest
from mlflow.entities import SpanType

from mlflow_adk_eval import scorers
from mlflow_adk_eval.agents.functions import Session
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.files import write_eval_set
from mlflow_adk_eval.integrations.agent_functions import genai_data, predict_fn
from tests.agents.scripted import call, llm, results, text, user_text
from tests.integrations.genai import QUIET, errors_of, genai_store, traces_of, values_of
from tests.integrations.test_scorers_sqlite import worker
from tests.tracking.small import answering, eval_set, rooms, turn

pytestmark = QUIET

store = genai_store
CONFIG = {"criteria": {"tool_trajectory_avg_score": 1.0, "response_match_score": 0.5}}


class House:
    """An ADK agent that knows the answers, but fails when all is to be off; and how often its model was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.agent = llm(self.script, tools=[self.switch, self.heat])

    def script(self, request: Any) -> Any:
        self.asked += 1
        said = user_text(request)
        if "off" in said:
            raise ConnectionError("the house does not answer")
        if results(request):
            return text("the light is on" if "light" in said else "it is set to 21 degrees")
        calls = {"light on": call("switch", room="hall"), "21 degrees please": call("heat", to=21)}
        return [calls[said]] if said in calls else text("you are welcome")

    def switch(self, room: str) -> dict[str, Any]:
        """Switch a light."""
        return {"on": True, "room": room}

    def heat(self, to: int) -> dict[str, Any]:
        """Heat."""
        return {"degrees": to}


@pytest.fixture(autouse=True)
def _tracked(store: str) -> None:
    """Run on the module's store."""


def test_an_eval_set_goes_through_an_adk_agent_turn_by_turn_and_none_is_had_twice() -> None:
    house = House()
    result = mlflow.genai.evaluate(data=genai_data(rooms()), predict_fn=predict_fn(house.agent), scorers=scorers.from_config(CONFIG))
    both, heat, light = traces_of(result.run_id)
    assert [trace.info.request_preview for trace in (both, heat, light)] == [
        "[both] all off",
        "[heat] 21 degrees please",
        "[light] light on",
    ]
    assert heat.info.response_preview == "it is set to 21 degrees"
    assert values_of(light, result.run_id) == {"tool_trajectory_avg_score": 1.0, "response_match_score": 1.0}
    assert values_of(heat, result.run_id) == {"tool_trajectory_avg_score": 1.0, "response_match_score": 1.0}
    assert house.asked == 3 + 2 + 1  # MLflow tries the first row out before it evaluates


def test_a_failure_of_the_agent_is_the_rows_error_and_its_trace_is_kept() -> None:
    result = mlflow.genai.evaluate(data=genai_data(rooms()), predict_fn=predict_fn(House().agent), scorers=scorers.from_config(CONFIG))
    both = traces_of(result.run_id)[0]
    assert both.info.state == "ERROR"
    for _, message in errors_of(both, result.run_id).values():
        assert "the agent did not finish: turn 1: ConnectionError: the house does not answer" in message
    assert set(errors_of(both, result.run_id)) == set(CONFIG["criteria"])
    assert both.data.spans[0].outputs["error"] == "turn 1: ConnectionError: the house does not answer"
    assert list(result.result_df["state"]).count("OK") == 2
    assert result.metrics["response_match_score/mean"] == 1.0  # over the rows that have a score


def test_the_trace_shows_turns_and_tools_with_arguments_and_results() -> None:
    predict = predict_fn(House().agent)
    predict(**genai_data(rooms())[0]["inputs"])
    mlflow.flush_trace_async_logging()
    trace = mlflow.get_trace(mlflow.get_last_active_trace_id())
    shown = {span.name: (span.span_type, span.inputs, span.outputs) for span in trace.data.spans[1:]}
    assert shown == {
        "turn 1": (SpanType.AGENT, {"user_content": "light on"}, {"final_response": "the light is on"}),
        "switch": (SpanType.TOOL, {"room": "hall"}, {"on": True, "room": "hall"}),
        "turn 2": (SpanType.AGENT, {"user_content": "thanks"}, {"final_response": "you are welcome"}),
    }
    parents = {span.name: span.parent_id for span in trace.data.spans}
    ids = {span.name: span.span_id for span in trace.data.spans}
    assert (parents["switch"], parents["turn 2"]) == (ids["turn 1"], trace.data.spans[0].span_id)


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["true", "false"])
def test_adks_own_telemetry_costs_no_row_its_trace(store: str, provider: str) -> None:
    found = worker(store, "agent", "ours", MLFLOW_GENAI_EVAL_MAX_WORKERS="4", MLFLOW_USE_DEFAULT_TRACER_PROVIDER=provider)
    assert (found["traces"], found["feedback"], found["errors"]) == (4, 8, 0)
    assert found["tools"] == ["ping"] * 4
    assert found["metrics"] == {"response_match_score/mean": 1.0, "tool_call_count_v1/mean": 1.0}
    assert found["asked"] == 8


@pytest.mark.needs("google-adk", "1.39")
@pytest.mark.slow
def test_a_function_as_people_write_it_loses_every_trace(store: str) -> None:
    """MLflow takes ADK's spans for the function's own and does not trace it (mlflow issue 18962)."""
    found = worker(store, "agent", "theirs", MLFLOW_GENAI_EVAL_MAX_WORKERS="4")
    assert (found["traces"], found["feedback"]) == (0, 0)


def test_rows_written_by_hand_are_played_as_one_turn() -> None:
    def agent(said: str, session: Session) -> str:
        return f"{session.eval_id}: {said}"

    predict = predict_fn(agent)
    assert predict(query="hello")["response"] == "row: hello"
    assert predict(eval_id="mine", messages=[{"role": "user", "content": "hello"}])["response"] == "mine: hello"
    assert [one["final_response"]["parts"][0]["text"] for one in predict(messages=["one", "two"])["conversation"]] == [
        "row: one",
        "row: two",
    ]


def test_the_session_starts_and_ends_as_the_case_says() -> None:
    def agent(said: str, session: Session) -> str:
        session.state["turns"] = session.state["turns"] + 1
        return "done"

    told = predict_fn(agent)(messages=["one", "two"], session_input={"app_name": "a", "user_id": "u", "state": {"turns": 5}})
    assert told["session_state"] == {"turns": 7}


def test_a_callable_agent_is_evaluated_like_any_other() -> None:
    result = mlflow.genai.evaluate(
        data=genai_data(rooms()), predict_fn=predict_fn(answering(rooms())), scorers=[*scorers.from_config(CONFIG), *scorers.expectations()]
    )
    assert result.passed, result.reason
    assert result.metrics == {"tool_trajectory_avg_score/mean": 1.0, "response_match_score/mean": 1.0}


def test_spans_of_the_agents_own_belong_to_the_rows_trace() -> None:
    def agent(said: str, session: Session) -> str:
        with mlflow.start_span("retrieve", span_type=SpanType.RETRIEVER):
            return "found"

    predict_fn(agent)(query="where?")
    mlflow.flush_trace_async_logging()
    names = [span.name for span in mlflow.get_trace(mlflow.get_last_active_trace_id()).data.spans]
    assert sorted(names) == ["agent", "retrieve", "turn 1"]


def test_secrets_stay_out_of_traces_but_not_out_of_what_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_API_KEY", "s3cret-of-the-house")
    told = predict_fn(lambda said, session: "the key is s3cret-of-the-house")(query="which key?")
    mlflow.flush_trace_async_logging()
    trace = mlflow.get_trace(mlflow.get_last_active_trace_id())
    assert told["response"] == "the key is s3cret-of-the-house"
    assert "s3cret-of-the-house" not in trace.to_json()
    assert "the key is [HOUSE_API_KEY]" in trace.to_json()


def test_an_agent_of_anybodys_may_raise_and_inputs_may_be_wrong() -> None:
    class Broken:
        name = "broken"

        async def converse(self, case: Any, run_index: int) -> Any:
            raise OSError("no disk")

    assert predict_fn(Broken())(query="hi") == {"response": "", "conversation": [], "error": "OSError: no disk", "unfinished": False}
    wrong = predict_fn(answering(rooms()))(query="hi", session_input="nonsense")
    assert wrong["conversation"] == []
    assert "session_input" in wrong["error"]


def test_an_agent_that_takes_too_long_is_stopped() -> None:
    import anyio

    async def slow(said: str, session: Session) -> str:
        await anyio.sleep(60)
        return "too late"

    assert predict_fn(slow, timeout_s=0.05)(query="hi")["error"] == "the case took longer than its limit of 0.05 s"


def test_what_is_no_agent_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="an agent is a module name"):
        predict_fn(42)
    with pytest.raises(UsageError, match="there is no module"):
        predict_fn("no_such_module_anywhere")


def test_records_come_from_whatever_evaluate_takes(tmp_path: Any) -> None:
    write_eval_set(rooms(), tmp_path / "rooms.evalset.json")
    assert genai_data(tmp_path / "rooms.evalset.json") == genai_data(rooms())
    assert [one["inputs"]["eval_id"] for one in genai_data(f"{tmp_path / 'rooms.evalset.json'}:heat")] == ["heat"]
    said: Callable[[dict[str, Any]], Any] = lambda one: one["inputs"]["messages"][0]["content"]  # noqa: E731
    assert [said(one) for one in genai_data(eval_set({"a": [turn("hi", "ho")]}))] == ["hi"]
