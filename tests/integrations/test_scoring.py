from __future__ import annotations

import copy
import gc
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mlflow_adk_eval import score
from mlflow_adk_eval.errors import ConfigError, JudgeError
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import EvalCase
from mlflow_adk_eval.integrations.scoring import RowScoring, explained, scoring
from mlflow_adk_eval.judge.protocol import Refused, Unavailable
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.results.outcomes import Errored
from mlflow_adk_eval.runtime import BACKGROUND
from mlflow_adk_eval.shapes.rows import Row, row_of
from mlflow_adk_eval.testing import ScriptedJudge
from tests.kit import RESPONSE, TRAJECTORY, call, case, cases, scenario, turn

MATCH = "final_response_match_v2"
JUDGED = {"criteria": {MATCH: 0.5}}


def row(expected: EvalCase, *actual: Any, **played: Any) -> Row:
    return Row(case=expected, conversation=Conversation(actual=actual or expected.conversation or (), **played))


def quick(judge: Any, config: Any = JUDGED, **settings: Any) -> RowScoring:
    return scoring(config, judge=judge, judge_options=JudgeOptions(timeout_s=5, attempts=1), **settings)


SET = cases(
    case("one", turn("the light is on", call("switch", room="hall"))),
    case("two", turn("it is set", call("heat", to=21)), turn("you are welcome")),
)
ACTUAL = {
    "one": [turn("the light is on now", call("switch", room="hall"))],
    "two": [turn("it is not set", call("heat", to=22)), turn("you are welcome")],
}
CONFIG = {"criteria": {TRAJECTORY: 1.0, RESPONSE: 0.8, MATCH: 0.5, "tool_call_count_v1": 3}}


class TestSameAsScore:
    @pytest.mark.parametrize("criterion", list(CONFIG["criteria"]))
    def test_of_rows(self, criterion: str) -> None:
        ready = quick(ScriptedJudge("valid"), CONFIG)
        found = ready.results([row(one, *ACTUAL[one.eval_id]) for one in SET.eval_cases], criterion)
        report = score(SET, ACTUAL, CONFIG, ScriptedJudge("valid"))
        wanted = [result for one in report.cases for result in one.results if result.criterion == criterion]
        assert [(one.overall, one.per_invocation, one.passed) for one in found] == [
            (one.overall, one.per_invocation, one.passed) for one in wanted
        ]

    def test_criteria_are_in_the_order_of_the_config(self) -> None:
        names = list(quick(ScriptedJudge("valid"), CONFIG).config.by_criterion)
        assert names == [TRAJECTORY, RESPONSE, MATCH, "tool_call_count_v1"]

    def test_an_efficiency_metric_may_be_asked_for_as_information(self) -> None:
        (found,) = quick(None, {"criteria": {RESPONSE: 0.5}}).results([row(case("a", turn("x", call("t"))))], "tool_call_count_v1")
        assert (found.score, found.threshold) == (1.0, None)


class TestPaidOnce:
    def test_a_row_that_comes_twice_is_judged_once(self) -> None:
        judge = ScriptedJudge("valid")
        ready = quick(judge)
        first = ready.result(row(case("a", turn("yes"))), MATCH)
        again = ready.result(row(case("a", turn("yes"))), MATCH)
        assert again is first
        assert len(judge.requests) == 3  # of five votes, the fourth and fifth could not change it

    def test_so_is_one_that_comes_from_many_threads_at_once(self) -> None:
        judge = ScriptedJudge("valid", latency_s=0.05)
        ready = quick(judge)
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: ready.result(row(case("a", turn("yes"))), MATCH), range(8)))
        assert {one.score for one in found} == {1.0}
        assert len(judge.requests) == 3

    @pytest.mark.parametrize(
        "other",
        [
            row(case("a", turn("no"))),
            row(case("b", turn("yes"))),
            row(case("a", turn("yes", user="well?"))),
            row(case("a", turn("yes")), turn("yes", call("t"))),
            row(case("a", turn("yes")), session_state={"x": 1}),
            row(case("a", turn("yes")), error="down"),
        ],
    )
    def test_another_row_is_another(self, other: Row) -> None:
        ready = quick(ScriptedJudge("valid"))
        first = ready.result(row(case("a", turn("yes"))), MATCH)
        assert ready.result(other, MATCH) is not first

    def test_an_error_is_not_remembered(self) -> None:
        lines = iter([Refused("the first three are refused")] * 3)
        ready = quick(ScriptedJudge(lambda _: next(lines, "valid")))
        assert ready.result(row(case("a", turn("yes"))), MATCH).score is None
        assert ready.result(row(case("a", turn("yes"))), MATCH).score == 1.0

    def test_a_judge_that_was_given_up_is_asked_again_in_the_next_evaluation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        working = threading.Event()
        judge = ScriptedJudge(lambda _: "valid" if working.is_set() else Unavailable("503", overloaded=False))
        ready = scoring(JUDGED, judge=judge, judge_options=JudgeOptions(outage_s=0.05))
        assert "the judge returned only failures" in explained(ready.result(row(case("a", turn("yes"))), MATCH))
        working.set()
        asked = len(judge.requests)
        assert "the judge returned only failures" in explained(ready.result(row(case("b", turn("yes"))), MATCH))
        assert len(judge.requests) == asked
        monkeypatch.setattr(sys.modules["mlflow_adk_eval.integrations.scoring"], "PAUSE_S", 0.0)
        assert ready.result(row(case("b", turn("yes"))), MATCH).score == 1.0

    def test_rows_are_judged_at_the_same_time(self) -> None:
        judge = ScriptedJudge("valid", latency_s=0.05)
        quick(judge).results([row(case(f"c{number}", turn(f"yes {number}"))) for number in range(6)], MATCH)
        assert judge.most_in_flight > 6


class TestFailsClosed:
    def test_a_judge_that_is_down_is_an_error_of_the_row(self) -> None:
        found = quick(ScriptedJudge(lambda _: Refused("503"))).result(row(case("a", turn("yes"))), MATCH)
        assert isinstance(found.overall, Errored)
        assert explained(found).startswith("NOT_EVALUATED: ")
        assert "503" in explained(found)

    @pytest.mark.parametrize(
        ("criterion", "cells", "lacking"),
        [
            (TRAJECTORY, {"predictions": "x", "targets": "x"}, ["expected_tool_calls", "tool_calls"]),
            (TRAJECTORY, {"predictions": "x", "expected_tool_calls": []}, ["tool_calls"]),
            (TRAJECTORY, {"predictions": "x", "tool_calls": []}, ["expected_tool_calls"]),
            (RESPONSE, {"predictions": "x"}, ["targets"]),
            (MATCH, {"predictions": "x", "tool_calls": []}, ["targets"]),
        ],
    )
    def test_what_a_row_does_not_say_is_not_guessed(self, criterion: str, cells: dict[str, Any], lacking: list[str]) -> None:
        ready = quick(ScriptedJudge("valid"), {"criteria": {TRAJECTORY: 1.0, RESPONSE: 0.8, MATCH: 0.5}})
        found = ready.result(row_of(cells), criterion)
        assert found.score is None
        assert found.passed is None
        assert explained(found).startswith("NOT_EVALUATED: ")
        assert re.findall(r"unknown: the row has no (\w+)", explained(found)) == lacking

    def test_no_calls_made_and_none_expected_is_a_match_where_the_row_says_so(self) -> None:
        ready = quick(None, {"criteria": {TRAJECTORY: 1.0}})
        assert ready.result(row_of({"predictions": "x", "tool_calls": [], "expected_tool_calls": "[]"}), TRAJECTORY).score == 1.0

    def test_a_criterion_that_cannot_judge_a_row_says_why(self) -> None:
        found = quick(None, {"criteria": {RESPONSE: 0.8}}).result(row(scenario("s"), turn("x")), RESPONSE)
        assert "scenario" in explained(found)

    def test_a_case_with_criteria_of_its_own(self) -> None:
        config = {"criteria": {RESPONSE: 0.8}, "case_criteria": {"a": {TRAJECTORY: 1.0}}}
        ready = quick(None, config)
        assert ready.result(row(case("a", turn("x"))), TRAJECTORY).score == 1.0
        assert "no such criterion for the case 'a'" in explained(ready.result(row(case("a", turn("x"))), RESPONSE))
        assert ready.result(row(case("b", turn("x"))), RESPONSE).score == 1.0

    def test_an_agent_that_did_not_finish(self) -> None:
        found = quick(None, {"criteria": {RESPONSE: 0.8}}).result(
            row(case("a", turn("x")), error="turn 1: boom", unfinished=True), RESPONSE
        )
        assert "boom" in explained(found)


class TestMakingReady:
    def test_a_bad_config_is_refused_before_any_row(self) -> None:
        with pytest.raises(ConfigError, match="Did you mean 'response_match_score'"):
            scoring({"criteria": {"response_match_scor": 1.0}})

    def test_so_is_a_judge_that_cannot_be_had(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(JudgeError):
            scoring({"criteria": {MATCH: 0.5}})

    def test_a_copy_asks_the_same_judge(self) -> None:
        ready = quick(ScriptedJudge("valid"))
        assert copy.deepcopy(ready) is ready

    def test_usage_is_told(self) -> None:
        ready = quick(ScriptedJudge("valid"))
        ready.result(row(case("a", turn("yes"))), MATCH)
        assert ready.usage is not None
        assert ready.usage.calls == 3


class TestExplained:
    def test_several_turns_each_with_their_score(self) -> None:
        ready = quick(None, {"criteria": {TRAJECTORY: 1.0}})
        found = ready.result(row(case("a", turn("x"), turn("y", call("t"))), turn("x"), turn("y")), TRAJECTORY)
        assert explained(found).startswith("**turn 1: 1** No call was expected or made.\n\n**turn 2: 0** 0 of 1 expected calls match")

    def test_a_turn_without_a_score_is_why_there_is_none(self) -> None:
        ready = quick(None, {"criteria": {RESPONSE: 0.8}})
        found = ready.result(row(case("a", turn("x"), turn("y")), turn("x")), RESPONSE)
        assert explained(found) == "NOT_EVALUATED: invocation 2 of 2: no actual turn: the agent has 1 of 2 turns"


class TestBackground:
    def test_calls_share_one_loop_in_a_thread_of_its_own(self) -> None:
        async def where() -> int:
            return threading.get_ident()

        here = {BACKGROUND.call(where) for _ in range(3)}
        assert len(here) == 1
        assert here != {threading.get_ident()}

    def test_what_a_call_raises_is_raised(self) -> None:
        async def fail() -> None:
            raise LookupError("nothing")

        with pytest.raises(LookupError, match="nothing"):
            BACKGROUND.call(fail)

    @pytest.mark.slow
    def test_what_nobody_holds_is_closed(self) -> None:
        closed = threading.Event()

        class Owner:
            pass

        async def close() -> None:
            closed.set()

        async def nothing() -> None:
            pass

        BACKGROUND.call(nothing)
        owner = Owner()
        BACKGROUND.closes(owner, close)
        assert not closed.wait(0.05)
        del owner
        gc.collect()
        assert closed.wait(60)

    @pytest.mark.slow
    def test_judges_of_a_scoring_that_nobody_holds_are_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = ScriptedJudge("valid")
        monkeypatch.setattr("mlflow_adk_eval.judge.session.resolve_judge", lambda *_: made)
        ready = scoring(JUDGED, judge="some/model")
        ready.result(row(case("a", turn("yes"))), MATCH)
        del ready
        gc.collect()
        deadline = time.monotonic() + 60
        while not made.closed and time.monotonic() < deadline:
            time.sleep(0.01)
        assert made.closed
