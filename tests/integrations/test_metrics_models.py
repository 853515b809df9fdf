"""Agents as models of ``mlflow.models.evaluate``, in a real store."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import anyio
import pandas as pd
import pytest

from mlflow_adk_eval import evaluate, metrics
from mlflow_adk_eval.agents.functions import Session
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import EvalCase
from mlflow_adk_eval.integrations.agent_functions import model_fn
from tests.integrations.classic import Evaluated, case_scores, evaluated, frame, tracked
from tests.kit import RESPONSE, TRAJECTORY, call, case, cases, turn, turn_json

__all__ = ["tracked"]

STATE = "final_session_state"
SET = cases(
    case("lamp", turn("echo light on", call("note", n=0), user="light on"), final_session_state={"turns": 1}),
    case(
        "both", turn("echo a", call("note", n=0), user="a"), turn("echo B", call("note", n=2), user="b"), final_session_state={"turns": 3}
    ),
)
CONFIG: dict[str, Any] = {"criteria": {TRAJECTORY: 1.0, RESPONSE: 0.9, STATE: 1.0}}


def echo(text: str, session: Session) -> dict[str, Any]:
    """Return what was said, and count the turns."""
    if "boom" in text:
        raise RuntimeError("the kettle broke")
    turn_number = len(session.history)
    session.state["turns"] = turn_number + 1
    return {"final_response": f"echo {text}", "intermediate_data": {"tool_uses": [{"name": "note", "args": {"n": turn_number}}]}}


def through_mlflow(
    agent: Any, table: pd.DataFrame, config: Any = CONFIG, *, mapping: dict[str, str] | None = None, **how: Any
) -> Evaluated:
    return evaluated(
        table,
        metrics.from_config(config),
        model=model_fn(agent, **how),
        evaluator_config={"col_mapping": mapping or {"targets": "eval_case"}},
    )


def outputs(agent: Any, table: pd.DataFrame, **how: Any) -> list[dict[str, Any]]:
    return model_fn(agent, **how)(table).tolist()


@pytest.mark.usefixtures("tracked")
class TestInMlflow:
    def test_whole_cases_have_the_scores_of_evaluate(self, tracked: str) -> None:
        found = through_mlflow(echo, frame(eval_case=[dump(one) for one in SET.eval_cases]))
        report = evaluate(SET, agent=echo, config=CONFIG, tracking_uri=tracked, experiment="classic")
        for criterion in CONFIG["criteria"]:
            assert found.scores(criterion) == pytest.approx(case_scores(report, criterion))
            assert found.aggregates(criterion)["evaluated"] == 2
        assert found.scores(STATE) == [1.0, 0.0]
        assert found.scores(TRAJECTORY) == [1.0, 0.5]

    def test_texts_and_lists_of_texts_are_what_the_user_says(self) -> None:
        table = frame(inputs=["light on", ["a", "b"]], expected=["echo light on", ["echo a", "other"]], state=[{"turns": 1}, {"turns": 2}])
        config = {"criteria": {RESPONSE: 0.9, STATE: 1.0}}
        found = through_mlflow(echo, table, config, mapping={"targets": "expected", "expected_session_state": "state"})
        assert found.scores(RESPONSE) == [1.0, 0.5]
        assert found.scores(STATE) == [1.0, 1.0]
        assert [row["outputs"]["response"] for row in found.rows] == ["echo light on", "echo b"]

    def test_targets_may_be_named_as_mlflow_does(self) -> None:
        table = frame(inputs=["light on", "boom"], expected=["echo light on", "x"])
        found = evaluated(table, [metrics.response_match_score()], model=model_fn(echo), targets="expected")
        assert found.scores(RESPONSE) == [1.0, None]
        assert found.aggregates(RESPONSE) == {"mean": 1.0, "pass_rate": 0.5, "evaluated": 1.0}

    def test_what_an_agent_did_before_it_failed_is_kept_and_the_row_has_no_score(self) -> None:
        table = frame(inputs=[["a", "boom"], "a"], expected=[["echo a", "x"], "echo a"])
        found = through_mlflow(echo, table, {"criteria": {RESPONSE: 0.5}}, mapping={"targets": "expected"})
        assert found.scores(RESPONSE) == [None, 1.0]
        assert "the agent did not finish: turn 2: RuntimeError: the kettle broke" in found.reasons(RESPONSE)[0]
        assert len(found.rows[0]["outputs"]["conversation"]) == 1

    @pytest.mark.filterwarnings("ignore:.*metrics.latency.*:FutureWarning")  # MLflow would rather not be measured by it
    def test_mlflow_s_own_metrics_have_their_place_beside_ours(self) -> None:
        import mlflow

        table = frame(inputs=["a", "b"], expected=["echo a", "echo b"])
        found = evaluated(table, [mlflow.metrics.latency(), metrics.response_match_score()], model=model_fn(echo), targets="expected")
        assert found.scores(RESPONSE) == [1.0, 1.0]
        assert found.metrics["latency/mean"] > 0

    def test_a_real_adk_agent_is_called_once_for_each_row(self) -> None:
        from tests.agents.scripted import call as tool_call
        from tests.agents.scripted import llm, ping, results, text

        asked: list[Any] = []

        def script(request: Any) -> Any:
            asked.append(request)
            return text("pong") if results(request) else [tool_call("ping")]

        agent = llm(script, tools=[ping])
        table = frame(inputs=["ping please", "again"], expected=["pong", "pong"], calls=[[{"name": "ping"}], [{"name": "pang"}]])
        found = through_mlflow(
            agent,
            table,
            {"criteria": {TRAJECTORY: 1.0, RESPONSE: 1.0, "token_usage_v1": 100}},
            mapping={"targets": "expected", "expected_tool_calls": "calls"},
        )
        assert (found.scores(TRAJECTORY), found.scores(RESPONSE)) == ([1.0, 0.0], [1.0, 1.0])
        assert found.scores("token_usage_v1") == [24.0, 24.0]
        assert len(asked) == 2 * 2

    def test_secrets_are_in_nothing_that_is_logged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOUSE_API_KEY", "sk-very-secret-0123456789")

        def leaky(text: str, session: Session) -> str:
            session.state["key"] = "sk-very-secret-0123456789"
            return "my key is sk-very-secret-0123456789"

        table = frame(inputs=["a"], expected=["my key"])
        found = evaluated(table, [metrics.response_match_score()], model=model_fn(leaky), targets="expected")
        assert "sk-very-secret" not in found.text
        assert found.rows[0]["outputs"]["session_state"] == {"key": "[HOUSE_API_KEY]"}


class TestRows:
    def test_keep_their_order_and_index(self) -> None:
        def slow(text: str, session: Session) -> str:
            time.sleep(0.05 if text == "first" else 0)
            return text

        found = model_fn(slow)(frame(inputs=["first", "second"]).set_index(pd.Index([9, 4])))
        assert [one["response"] for one in found] == ["first", "second"]
        assert list(found.index) == [9, 4]

    def test_are_played_several_at_once(self) -> None:
        together = threading.Barrier(3, timeout=120)

        def agent(text: str, session: Session) -> str:
            together.wait()
            return text

        assert [one["response"] for one in outputs(agent, frame(inputs=["a", "b", "c"]), concurrency=3)] == ["a", "b", "c"]

    def test_are_never_more_at_once_than_was_asked(self) -> None:
        under_way, most = 0, 0

        async def agent(text: str, session: Session) -> str:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await anyio.sleep(0.01)
            under_way -= 1
            return text

        outputs(agent, frame(inputs=list("abcdef")), concurrency=2)
        assert most == 2

    def test_begin_with_their_session_and_name(self) -> None:
        seen = []

        def agent(text: str, session: Session) -> str:
            seen.append((session.eval_id, session.state.get("owner"), session.run_index))
            return text

        session = {"app_name": "house", "user_id": "u", "state": {"owner": "me"}}
        table = frame(inputs=["a", "b"], eval_id=["mine", float("nan")], session_input=[session, '{"app_name": "a", "user_id": "u"}'])
        outputs(agent, table, concurrency=1)
        assert seen == [("mine", "me", 0), ("row 2", None, 0)]

    def test_may_be_the_messages_of_a_chat(self) -> None:
        chat = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
        (found,) = outputs(echo, frame(inputs=[chat]))
        assert found["response"] == "echo hello"

    def test_may_be_cases_in_json_with_names_of_their_own_or_without(self) -> None:
        seen = []

        def agent(text: str, session: Session) -> str:
            seen.append(session.eval_id)
            return text

        nameless = json.dumps({"conversation": [turn_json("hi")]})
        outputs(agent, frame(eval_case=[dump(SET.eval_cases[0]), nameless]), concurrency=1)
        assert seen == ["lamp", "row 2"]

    @pytest.mark.parametrize(
        ("cells", "message"),
        [
            ({"inputs": [None]}, "row 1: 1 problem"),
            ({"inputs": [float("nan")]}, r"$.inputs: found nothing; wanted what the user says, or an eval case"),
            ({"eval_case": ["{"]}, r"$.eval_case: found a text that is not JSON"),
            ({"eval_case": [{"conversation": "hi"}]}, r"$.conversation: found 'hi'; wanted a list"),
            ({"inputs": ["a"], "session_input": [[1]]}, r"$.session_input: found a list of 1; wanted a session"),
            ({"inputs": ["boom"]}, "turn 1: RuntimeError: the kettle broke"),
        ],
        ids=repr,
    )
    def test_that_go_wrong_say_so_in_their_output(self, cells: dict[str, Any], message: str) -> None:
        (found,) = outputs(echo, frame(**cells))
        assert message in found["error"]
        assert found["response"] == ""

    def test_a_conversation_of_another_length_is_an_error(self) -> None:
        class Curt:
            name = "curt"

            async def converse(self, asked: EvalCase, run_index: int) -> Conversation:
                return Conversation(actual=(turn("bye"),))

        (found,) = outputs(Curt(), frame(inputs=[["a", "b"]]))
        assert found["error"] == "1 turn took place, but the case has 2"

    def test_an_agent_that_raises_where_it_must_not_costs_its_row_only(self) -> None:
        class Broken:
            name = "broken"

            async def converse(self, asked: EvalCase, run_index: int) -> Conversation:
                if asked.eval_id == "row 1":
                    raise OSError("no network")
                return Conversation(actual=(turn("fine"),))

        found = outputs(Broken(), frame(inputs=["a", "b"]))
        assert [one.get("error", "") for one in found] == ["OSError: no network", ""]

    def test_state_that_json_does_not_know_is_kept_as_its_text(self) -> None:
        def agent(text: str, session: Session) -> str:
            session.state["tags"] = {"a"}
            session.state["limit"] = float("inf")
            return text

        assert outputs(agent, frame(inputs=["a"]))[0]["session_state"] == {"tags": ["a"], "limit": "inf"}

    def test_that_take_too_long_end(self) -> None:
        async def agent(text: str, session: Session) -> str:
            await anyio.sleep(30)
            return text

        (found,) = outputs(agent, frame(inputs=["a"]), timeout_s=0.05)
        assert found["error"] == "the case took longer than its limit of 0.05 s"


class TestCalls:
    @pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, "4"])
    def test_concurrency_is_a_number_of_conversations(self, concurrency: Any) -> None:
        with pytest.raises(UsageError, match=r"concurrency=.*: wanted a whole number of at least 1"):
            model_fn(echo, concurrency=concurrency)

    def test_what_is_no_agent_is_an_error_at_once(self) -> None:
        with pytest.raises(UsageError, match="an agent is"):
            model_fn(7)
        with pytest.raises(UsageError, match="there is no module"):
            model_fn("no_such_module_of_an_agent")

    def test_the_name_of_a_sub_agent_is_for_adk_agents(self) -> None:
        with pytest.raises(UsageError, match="only an ADK agent has sub-agents"):
            model_fn(echo, agent_name="x")

    def test_a_table_without_its_columns_is_an_error(self) -> None:
        with pytest.raises(UsageError, match=r"reads a column inputs or eval_case; found input, other\. Did you mean 'inputs'\?"):
            model_fn(echo)(frame(input=["a"], other=["b"]))

    def test_what_is_no_table_is_an_error(self) -> None:
        with pytest.raises(UsageError, match="reads a column inputs or eval_case; found no columns"):
            model_fn(echo)(["a"])  # type: ignore[arg-type]
