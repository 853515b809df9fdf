"""Criteria as metrics of ``mlflow.models.evaluate`` on tables, in a real store."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mlflow_adk_eval import metrics, score
from mlflow_adk_eval.config.spec import VertexSettings
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import Invocation
from mlflow_adk_eval.integrations.scoring import scoring
from mlflow_adk_eval.judge.protocol import Request, Unavailable
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.testing import ScriptedJudge
from tests.integrations.classic import Evaluated, case_scores, evaluated, frame, tracked
from tests.kit import RESPONSE, TRAJECTORY, call, case, cases, turn

__all__ = ["tracked"]

pytestmark = pytest.mark.usefixtures("tracked")

MATCH, QUALITY, STATE, COUNT = (
    "final_response_match_v2",
    "rubric_based_final_response_quality_v1",
    "final_session_state",
    "tool_call_count_v1",
)
RUBRIC = {"rubric_id": "polite", "rubric_content": {"text_property": "The agent is polite."}}
CONFIG: dict[str, Any] = {
    "criteria": {
        TRAJECTORY: {"threshold": 1.0, "match_type": "IN_ORDER"},
        RESPONSE: 0.8,
        MATCH: 0.5,
        QUALITY: {"threshold": 0.5, "rubrics": [RUBRIC]},
        STATE: 1.0,
        COUNT: 1.0,
    }
}
VOTES = 3
"""How often a judge is asked about one thing if it always says the same: of five votes, two could not change it."""


def verdict(request: Request) -> Any:
    good, bad = ("valid", "invalid") if request.name.startswith(MATCH) else ("yes", "no")
    return bad if "wrong" in request.text else good


def judge(**settings: Any) -> ScriptedJudge:
    return ScriptedJudge(verdict, **settings)


def failing_on(word: str) -> ScriptedJudge:
    return ScriptedJudge(lambda request: Unavailable("no such luck") if word in request.text else verdict(request))


ONCE = JudgeOptions(attempts=1, timeout_s=5)
SINGLE = cases(
    case("one", turn("the light is on", call("switch", room="hall"), user="light on"), final_session_state={"hall": "on"}),
    case("two", turn("it is set to 21", call("heat", to=21), user="warmer"), final_session_state={"heat": 21}),
    case("three", turn("bye", user="good night"), final_session_state={"hall": "off"}),
)
DID = {
    "one": turn("the light is on", call("look"), call("switch", room="hall"), user="light on"),
    "two": turn("something wrong happened", call("heat", to=22), user="warmer"),
    "three": turn("bye bye", user="good night"),
}
STATES = [{"hall": "on", "more": 1}, {"heat": 22}, {"hall": "off"}]
MULTI = cases(
    case("a", turn("the light is on", call("switch", room="hall"), user="light on"), turn("you are welcome", user="thanks")),
    case("b", turn("it is set", call("heat", to=21), user="warmer"), turn("no", user="really"), turn("bye", user="bye")),
)
SPOKE = {
    "a": [turn("the light is on", call("switch", room="hall"), user="light on"), turn("something wrong", user="thanks")],
    "b": [turn("it is set", call("heat", to=20), user="warmer"), turn("no", user="really"), turn("bye", user="bye")],
}


def as_calls(invocation: Invocation) -> list[dict[str, Any]]:
    return [{"name": made.name, "args": made.args or {}} for made in invocation.tool_calls]


@pytest.fixture(scope="module")
def found(tracked: str) -> Evaluated:
    table = frame(
        question=[one.conversation[0].user_text for one in SINGLE.eval_cases if one.conversation],
        answer=[DID[one.eval_id].final_text for one in SINGLE.eval_cases],
        reference=[one.conversation[0].final_text for one in SINGLE.eval_cases if one.conversation],
        called=[as_calls(DID[one.eval_id]) for one in SINGLE.eval_cases],
        should_call=[json.dumps(as_calls(one.conversation[0])) for one in SINGLE.eval_cases if one.conversation],
        left=STATES,
        should_leave=[one.final_session_state for one in SINGLE.eval_cases],
    )
    mapping = {
        "inputs": "question",
        "tool_calls": "called",
        "expected_tool_calls": "should_call",
        "session_state": "left",
        "expected_session_state": "should_leave",
    }
    return evaluated(
        table,
        metrics.from_config(CONFIG, judge=judge()),
        predictions="answer",
        targets="reference",
        evaluator_config={"col_mapping": mapping},
    )


class TestSingleTurns:
    @pytest.mark.parametrize("criterion", [TRAJECTORY, RESPONSE, MATCH, QUALITY, COUNT])
    def test_have_the_scores_of_score(self, found: Evaluated, criterion: str) -> None:
        config = {"criteria": {name: settings for name, settings in CONFIG["criteria"].items() if name != STATE}}
        report = score(SINGLE, {name: [did] for name, did in DID.items()}, config, judge())
        wanted = case_scores(report, criterion)
        assert found.scores(criterion) == pytest.approx(wanted)
        assert len(set(wanted)) > 1
        assert found.aggregates(criterion) == pytest.approx(
            {
                "mean": report.summaries()[criterion].mean,
                "pass_rate": report.summaries()[criterion].pass_rate,
                "evaluated": len(wanted),
            }
        )

    def test_may_tell_the_state_of_the_session(self, found: Evaluated) -> None:
        assert found.scores(STATE) == [1.0, 0.0, 1.0]

    def test_have_their_reasons_in_the_table(self, found: Evaluated) -> None:
        assert "`heat`" in found.reasons(TRAJECTORY)[1]
        assert "$.to" in found.reasons(TRAJECTORY)[1]
        assert found.reasons(MATCH) == ["valid 3:0: as the script says", "invalid 3:0: as the script says", "valid 3:0: as the script says"]

    def test_are_logged_under_the_names_of_the_criteria(self, found: Evaluated) -> None:
        assert set(found.metrics) == {f"{name}/{what}" for name in CONFIG["criteria"] for what in ("mean", "pass_rate", "evaluated")}

    def test_are_described(self, found: Evaluated) -> None:
        described = {one["name"]: one for one in found.described}
        assert list(described) == list(CONFIG["criteria"])
        assert described[TRAJECTORY] == {
            "name": TRAJECTORY,
            "criterion": TRAJECTORY,
            "threshold": 1.0,
            "greater_is_better": True,
            "settings": {
                "threshold": 1.0,
                "include_intermediate_responses_in_final": False,
                "match_type": "IN_ORDER",
                "ignore_args": False,
            },
        }
        assert described[MATCH]["judge_model"] == "scripted"
        assert described[QUALITY]["settings"]["rubrics"] == [RUBRIC]
        assert described[COUNT]["greater_is_better"] is False


class TestConversations:
    """A column with whole conversations."""

    @pytest.mark.parametrize("criterion", [TRAJECTORY, RESPONSE, MATCH, QUALITY, COUNT])
    @pytest.mark.parametrize("targets", ["cases", "invocations"])
    def test_have_the_scores_of_score(self, criterion: str, targets: str) -> None:
        config = {"criteria": {criterion: CONFIG["criteria"][criterion]}}
        table = frame(
            did=[[dump(one) for one in SPOKE[name]] for name in MULTI.eval_ids],
            should=[dump(one) if targets == "cases" else [dump(each) for each in one.conversation or ()] for one in MULTI.eval_cases],
        )
        found = evaluated(table, metrics.from_config(config, judge=judge()), predictions="did", targets="should")
        wanted = case_scores(score(MULTI, SPOKE, config, judge()), criterion)
        assert found.scores(criterion) == pytest.approx(wanted)
        assert len(set(wanted)) > 1 or criterion == QUALITY

    def test_have_a_reason_for_each_turn(self) -> None:
        table = frame(did=[[dump(one) for one in SPOKE["b"]]], should=[dump(MULTI.eval_cases[1])])
        found = evaluated(table, [metrics.tool_trajectory_avg_score()], predictions="did", targets="should")
        (reason,) = found.reasons(TRAJECTORY)
        assert "**turn 1: 0** " in reason
        assert "**turn 3: 1**" in reason

    def test_may_be_the_invocations_of_a_parquet_file(self, tmp_path: Any) -> None:
        frame(did=[[dump(one) for one in SPOKE["a"]]], should=[["the light is on", "you are welcome"]]).to_parquet(tmp_path / "x.parquet")
        found = evaluated(pd.read_parquet(tmp_path / "x.parquet"), [metrics.response_match_score()], predictions="did", targets="should")
        assert found.scores(RESPONSE) == [0.5]


class TestRowsWithoutScore:
    def test_a_row_whose_judge_fails_has_none_and_says_why(self) -> None:
        table = frame(answer=["fine", "cursed", "wrong"], reference=["fine"] * 3)
        metric = metrics.final_response_match_v2(threshold=0.5, judge=failing_on("cursed"), judge_options=ONCE)
        found = evaluated(table, [metric], predictions="answer", targets="reference")
        assert found.scores(MATCH) == [1.0, None, 0.0]
        assert found.reasons(MATCH)[1].startswith("NOT_EVALUATED: invocation 1 of 1: ")
        assert "no such luck" in found.reasons(MATCH)[1]
        assert found.aggregates(MATCH) == {"mean": 0.5, "pass_rate": pytest.approx(1 / 3), "evaluated": 2.0}

    def test_a_metric_without_any_score_does_not_disappear(self) -> None:
        table = frame(answer=["cursed", "cursed too"], reference=["fine", "fine"])
        metric = metrics.final_response_match_v2(threshold=0.5, judge=failing_on("cursed"), judge_options=ONCE)
        found = evaluated(table, [metric], predictions="answer", targets="reference")
        assert found.aggregates(MATCH) == {"pass_rate": 0.0, "evaluated": 0.0}
        assert found.scores(MATCH) == [None, None]

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_a_bad_cell_costs_its_row_only(self, place: int) -> None:
        answers: list[Any] = ["a", "b", "c"]
        answers[place] = 42
        table = frame(answer=answers, reference=["a", "b", "c"], tool_calls=[[]] * 3, expected_tool_calls=[[]] * 3)
        found = evaluated(table, metrics.from_config(), predictions="answer", targets="reference")
        for criterion in (TRAJECTORY, RESPONSE):
            assert found.scores(criterion) == [None if index == place else 1.0 for index in range(3)]
            assert found.reasons(criterion)[place].startswith(f"NOT_EVALUATED: row {place + 1}: 1 problem")
            assert "$.predictions: found 42" in found.reasons(criterion)[place]
            assert found.aggregates(criterion) == {"mean": 1.0, "pass_rate": pytest.approx(2 / 3), "evaluated": 2.0}

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_calls_that_cannot_be_read_cost_what_needs_them(self, place: int) -> None:
        calls: list[Any] = [[], [], []]
        calls[place] = "switch(hall)"
        table = frame(answer=["a", "b", "c"], reference=["a", "b", "c"], tool_calls=calls, expected_tool_calls=[[]] * 3)
        found = evaluated(table, metrics.from_config(), predictions="answer", targets="reference")
        assert found.scores(TRAJECTORY) == [None if index == place else 1.0 for index in range(3)]
        blind = "NOT_EVALUATED: invocation 1 of 1: the tool calls are unknown: "
        assert found.reasons(TRAJECTORY)[place].startswith(f"{blind}the row has tool calls that cannot be read ($.tool_calls: found")
        assert found.scores(RESPONSE) == [1.0] * 3

    def test_cells_with_nan_hold_nothing(self) -> None:
        nan = float("nan")
        table = frame(
            answer=["a", nan, "c", "d"],
            reference=["a", "b", nan, "d"],
            tool_calls=[[], [], [], nan],
            expected_tool_calls=[[], [], None, pd.NA],
        )
        found = evaluated(table, metrics.from_config(), predictions="answer", targets="reference")
        assert found.scores(RESPONSE) == [1.0, None, None, 1.0]
        assert found.scores(TRAJECTORY) == [1.0, None, None, None]
        assert "row 2: 1 problem" in found.reasons(RESPONSE)[1]
        assert found.reasons(RESPONSE)[2] == "NOT_EVALUATED: invocation 1 of 1: the expected response is unknown: the row has no targets"
        assert "no expected_tool_calls; the tool calls are unknown: the row has no tool_calls" in found.reasons(TRAJECTORY)[3]

    def test_without_targets_only_what_needs_none_has_a_score(self) -> None:
        config = {"criteria": {RESPONSE: 0.8, QUALITY: CONFIG["criteria"][QUALITY]}}
        found = evaluated(frame(answer=["a", "wrong"]), metrics.from_config(config, judge=judge()), predictions="answer")
        assert found.aggregates(RESPONSE) == {"pass_rate": 0.0, "evaluated": 0.0}
        assert found.scores(QUALITY) == [1.0, 0.0]

    def test_a_criterion_that_the_case_does_not_have_is_named(self) -> None:
        config = {"criteria": {RESPONSE: 0.8}, "case_criteria": {"mine": {TRAJECTORY: 1}}}
        table = frame(answer=["a", "a"], reference=["a", "a"], name=["mine", "other"], tool_calls=[[], []], expected_tool_calls=[[], []])
        found = evaluated(
            table,
            metrics.from_config(config),
            predictions="answer",
            targets="reference",
            evaluator_config={"col_mapping": {"eval_id": "name"}},
        )
        assert (found.scores(RESPONSE), found.scores(TRAJECTORY)) == ([None, 1.0], [1.0, None])
        assert found.reasons(RESPONSE)[0] == "NOT_EVALUATED: the config has no such criterion for the case 'mine'"

    def test_an_agent_that_did_not_finish_does_not_pass(self) -> None:
        table = frame(
            answer=["a", "a", "a"], reference=["a"] * 3, error=["", "the tool broke", "the model hung"], unfinished=[False, False, True]
        )
        found = evaluated(table, [metrics.response_match_score()], predictions="answer", targets="reference")
        assert found.scores(RESPONSE) == [1.0, 1.0, None]
        assert found.reasons(RESPONSE)[1] == "the agent did not finish: the tool broke\n\nROUGE-1 precision 1.000, recall 1.000."
        assert found.reasons(RESPONSE)[2] == "NOT_EVALUATED: invocation 1 of 1: the agent did not finish: the model hung"
        assert found.aggregates(RESPONSE) == {"mean": 1.0, "pass_rate": pytest.approx(1 / 3), "evaluated": 2.0}


class TestPaidOnce:
    """MLflow runs each metric on the first row, and then on all."""

    def test_no_verdict_is_paid_twice(self) -> None:
        judging = judge()
        table = frame(answer=["a", "b", "wrong"], reference=["a", "b", "c"])
        config = {"criteria": {MATCH: 0.5, QUALITY: CONFIG["criteria"][QUALITY]}}
        evaluated(table, metrics.from_config(config, judge=judging), predictions="answer", targets="reference")
        assert len(judging.requests) == 2 * 3 * VOTES
        assert len(judging.asked(MATCH)) == 3 * VOTES

    def test_nor_is_a_failure_on_the_first_row(self) -> None:
        judging = failing_on("cursed")
        metric = metrics.final_response_match_v2(threshold=0.5, judge=judging, judge_options=ONCE)
        found = evaluated(frame(answer=["cursed", "b"], reference=["a", "b"]), [metric], predictions="answer", targets="reference")
        alone = failing_on("cursed")
        score(cases(case("x", turn("a"))), {"x": [turn("cursed")]}, {"criteria": {MATCH: 0.5}}, alone, judge_options=ONCE)
        assert len(judging.requests) == len(alone.requests) + VOTES
        assert found.scores(MATCH) == [None, 1.0]

    def test_a_table_of_one_row_is_judged_once_and_what_failed_is_tried_again_the_next_time(self) -> None:
        judging = failing_on("cursed")
        metric = metrics.final_response_match_v2(threshold=0.5, judge=judging, judge_options=ONCE)
        table = frame(answer=["cursed"], reference=["a"])
        evaluated(table, [metric], predictions="answer", targets="reference")
        once = len(judging.requests)
        evaluated(table, [metric], predictions="answer", targets="reference")
        assert (once > 0, len(judging.requests)) == (True, 2 * once)

    def test_metrics_of_one_config_share_their_budget(self) -> None:
        judging = judge()
        config = {"criteria": {MATCH: 0.5, QUALITY: CONFIG["criteria"][QUALITY]}}
        found = evaluated(
            frame(answer=["a"], reference=["a"]),
            metrics.from_config(config, judge=judging, budget={"max_calls": VOTES}),
            predictions="answer",
            targets="reference",
        )
        assert len(judging.requests) == VOTES
        assert (found.scores(MATCH), found.scores(QUALITY)) == ([1.0], [None])


class TestColumns:
    def test_may_be_given_whole_in_the_mapping(self) -> None:
        mapping = {"tool_calls": [[{"name": "x"}], []], "expected_tool_calls": [[{"name": "x"}], [{"name": "y"}]]}
        found = evaluated(
            frame(answer=["a", "b"]),
            [metrics.tool_trajectory_avg_score()],
            predictions="answer",
            evaluator_config={"col_mapping": mapping},
        )
        assert found.scores(TRAJECTORY) == [1.0, 0.0]

    def test_that_are_too_short_are_an_error(self) -> None:
        with pytest.raises(UsageError, match="tool_calls: 1 values for 2 rows; wanted one for each row"):
            metrics.tool_trajectory_avg_score().eval_fn(pd.Series(["a", "b"]), tool_calls=[[]])

    @pytest.mark.parametrize("value", ["polite", {"rubric": "polite"}, 3], ids=repr)
    def test_that_are_no_columns_are_an_error(self, value: Any) -> None:
        with pytest.raises(UsageError, match=r"rubrics: found .*; wanted a column, with a value for each row"):
            metrics.response_match_score().eval_fn(pd.Series(["a"]), rubrics=value)

    def test_may_be_of_any_index(self) -> None:
        table = frame(answer=["a", "b"], reference=["a", "x"], tool_calls=[[], []]).set_index(pd.Index([7, 3]))
        found = evaluated(table, [metrics.response_match_score()], predictions="answer", targets="reference")
        assert found.scores(RESPONSE) == [1.0, 0.0]

    def test_a_metric_of_the_user_s_own_with_the_name_of_a_cell_is_no_column(self) -> None:
        from mlflow.models import make_metric

        def errors(predictions: pd.Series[Any]) -> float:
            return float(len(predictions))

        own = make_metric(eval_fn=errors, greater_is_better=False, name="error")
        found = evaluated(
            frame(answer=["a"], reference=["a"]), [own, metrics.response_match_score()], predictions="answer", targets="reference"
        )
        assert found.scores(RESPONSE) == [1.0]
        assert found.metrics["error"] == 1.0

    def test_messages_of_a_chat_are_what_the_user_said(self) -> None:
        judging = judge()
        table = frame(inputs=[[{"role": "system", "content": "be kind"}, {"role": "user", "content": "light on"}]], answer=["it is on"])
        found = evaluated(
            table, metrics.from_config({"criteria": {QUALITY: CONFIG["criteria"][QUALITY]}}, judge=judging), predictions="answer"
        )
        assert found.scores(QUALITY) == [1.0]
        assert "light on" in judging.requests[0].text
        assert "be kind" not in judging.requests[0].text

    def test_scores_are_plain_numbers_whatever_a_metric_gives(self) -> None:
        value = metrics.response_match_score().eval_fn(pd.Series(["a b"]), targets=np.array(["a c"]))
        assert [type(one) for one in (*value.scores, *value.aggregate_results.values())] == [float, float, float, int]


class TestCustomMetrics:
    def test_work_as_those_of_adk(self) -> None:
        config = {
            "criteria": {"politeness": 0.5, RESPONSE: 0.5},
            "custom_metrics": {"politeness": {"code_config": {"name": "tests.criteria.user_metrics.politeness"}}},
        }
        found = evaluated(frame(answer=["thank you", "no"]), metrics.from_config(config), predictions="answer")
        assert found.scores("politeness") == [1.0, 0.0]
        assert found.aggregates("politeness") == {"mean": 0.5, "pass_rate": 0.5, "evaluated": 2.0}

    def test_one_that_raises_costs_no_other(self) -> None:
        config = {
            "criteria": {"broken": 0.5, RESPONSE: 0.5},
            "custom_metrics": {"broken": {"code_config": {"name": "tests.criteria.user_metrics.failing"}}},
        }
        table = frame(answer=["a"], reference=["a"])
        found = evaluated(table, metrics.from_config(config), predictions="answer", targets="reference")
        assert (found.scores("broken"), found.scores(RESPONSE)) == ([None], [1.0])
        assert found.reasons("broken")[0].startswith("NOT_EVALUATED: invocation 1 of 1: broken raised ")


class TestSecrets:
    KEY = "sk-very-secret-0123456789"

    def test_are_in_nothing_that_is_logged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOUSE_API_KEY", self.KEY)
        options = {"judge_model": "scripted", "judge_model_config": {"labels": {"key": self.KEY}}}
        metric = metrics.final_response_match_v2(
            threshold=0.5, judge=ScriptedJudge("valid", rationale=f"I was told {self.KEY}"), judge_model_options=options
        )
        found = evaluated(frame(answer=["a"], reference=["a"]), [metric], predictions="answer", targets="reference")
        assert self.KEY not in found.text
        assert found.described[0]["settings"]["judge_model_options"]["judge_model_config"] == {"labels": {"key": "[HOUSE_API_KEY]"}}
        assert found.reasons(MATCH) == ["valid 3:0: I was told [HOUSE_API_KEY]"]


class TestJudgeModel:
    def test_is_the_caller_s_in_place_of_the_config_s(self) -> None:
        options = {"judge_model": "gemini-2.5-pro"}
        mine = ScriptedJudge("valid", model="mine-1")
        described = metrics.final_response_match_v2(threshold=0.5, judge_model_options=options, judge=mine).genai_metric_args
        assert described["judge_model"] == "mine-1"

    def test_is_else_the_config_s(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GEMINI_API_KEY", "none-that-is-used")
        described = metrics.safety_v1(
            threshold=0.5, backend="judge", judge_model_options={"judge_model": "gemini-2.5-pro"}
        ).genai_metric_args
        assert described["judge_model"] == "gemini-2.5-pro"

    def test_is_vertex_where_its_service_decides(self) -> None:
        from mlflow_adk_eval.integrations.classic_metrics import deciding_model

        criteria = scoring({"criteria": {RESPONSE: 0.5}}, judge=ScriptedJudge("valid"))
        assert criteria.own_judge
        assert deciding_model(criteria, VertexSettings(threshold=0.5)) == "vertex"

    def test_is_left_out_where_none_is_asked(self) -> None:
        assert "judge_model" not in metrics.response_match_score().genai_metric_args


def test_lower_is_better_where_the_criterion_says_so() -> None:
    table = frame(answer=["a", "b"], tool_calls=[[{"name": "x"}], [{"name": "x"}, {"name": "y"}]])
    found = evaluated(table, [metrics.tool_call_count_v1(threshold=1)], predictions="answer")
    assert found.aggregates(COUNT) == {"mean": 1.5, "pass_rate": 0.5, "evaluated": 2.0}


def test_the_old_spelling_warns_once() -> None:
    import mlflow

    table = frame(answer=["a"], reference=["a"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = mlflow.evaluate(data=table, predictions="answer", targets="reference", extra_metrics=[metrics.response_match_score()])
    (warning,) = [one for one in caught if one.category is FutureWarning]
    assert "mlflow.models.evaluate" in str(warning.message)
    assert found.metrics == {"response_match_score/mean": 1.0, "response_match_score/pass_rate": 1.0, "response_match_score/evaluated": 1}


def test_a_case_that_the_criterion_is_left_out_of_counts_for_nothing_as_in_evaluate() -> None:
    config = {"criteria": {"final_session_state": {"threshold": 1.0, "only_where_expected": True}}}
    table = frame(answer=["a", "b", "c"], session_state=[{"x": 1}, {"x": 2}, {}], expected_session_state=[{"x": 1}, {"x": 1}, None])
    found = evaluated(table, metrics.from_config(config), predictions="answer")
    assert found.scores("final_session_state") == [1.0, 0.0, None]
    assert found.aggregates("final_session_state") == {"mean": 0.5, "pass_rate": 0.5, "evaluated": 2.0}
