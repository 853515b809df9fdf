from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from mlflow_adk_eval.agents.functions import CallableAgent
from mlflow_adk_eval.agents.recordings import Recording
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config.eval_config import EvalConfig, default_config, parse_config
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import ConfigError, UsageError
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, Invocation
from mlflow_adk_eval.results.outcomes import CaseResult, Errored, Scored, Skipped
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.evaluation import Options, arun, run, wait
from mlflow_adk_eval.runner.recordings import score
from tests.kit import RESPONSE, TRAJECTORY, call, case, cases, config, scenario, turn

MATCH = config(RESPONSE)


class Actor:
    """An agent of our own protocol that does what a function says."""

    def __init__(self, act: Callable[[EvalCase, int], Any]) -> None:
        self.act = act
        self.now = self.most = 0

    @property
    def name(self) -> str:
        return "actor"

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            found = self.act(case, run_index)
            return await found if hasattr(found, "__await__") else found
        finally:
            self.now -= 1


def repeat(case: EvalCase, run_index: int) -> Conversation:
    return Conversation(actual=case.conversation or ())


def numbered(count: int) -> EvalSet:
    return cases(*(case(f"c{index}", turn(f"answer {index}")) for index in range(count)))


def overall(report: Report, criterion: str = RESPONSE) -> list[float | None]:
    return [result.score for found in report.cases for result in found.results if result.criterion == criterion]


def only(report: Report) -> CaseResult:
    (found,) = report.cases
    return found


# The order of things


def test_results_follow_the_eval_set_whatever_finished_first() -> None:
    finished: list[str] = []

    async def later_is_faster(case: EvalCase, run_index: int) -> Conversation:
        await anyio.sleep(0.05 - 0.01 * int(case.eval_id[1:]))
        finished.append(case.eval_id)
        return repeat(case, run_index)

    eval_set = numbered(5)
    report = run(eval_set, Actor(later_is_faster), MATCH, Options(concurrency=5))
    assert finished == list(reversed(eval_set.eval_ids))
    assert [found.eval_id for found in report.cases] == list(eval_set.eval_ids)
    assert [found.actual for found in report.cases] == [found.conversation for found in eval_set.eval_cases]


def test_criteria_follow_the_config() -> None:
    report = score(numbered(1), numbered(1), config(**{RESPONSE: 0.5, TRAJECTORY: 0.5}))
    assert report.criteria == (RESPONSE, TRAJECTORY, *CRITERIA.informative)
    assert list(report.scores) == [RESPONSE, TRAJECTORY]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_conversations_than_allowed_go_on_at_the_same_time(concurrency: int) -> None:
    async def slowly(case: EvalCase, run_index: int) -> Conversation:
        await anyio.sleep(0.01)
        return repeat(case, run_index)

    agent = Actor(slowly)
    assert run(numbered(8), agent, MATCH, Options(concurrency=concurrency)).passed
    assert agent.most == concurrency


def test_progress_is_told_after_each_case_run() -> None:
    told: list[tuple[int, int]] = []
    run(numbered(3), Actor(repeat), MATCH, Options(num_runs=2, progress=lambda *found: told.append(found)))
    assert told == [(done, 6) for done in range(1, 7)]


@pytest.mark.parametrize("wrong", [{"num_runs": 0}, {"concurrency": 0}, {"num_runs": True}, {"concurrency": 1.5}])
def test_numbers_below_one_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="wanted a whole number of at least 1"):
        Options(**wrong)


# Several runs


def test_each_run_keeps_its_own_result() -> None:
    def every_other(case: EvalCase, run_index: int) -> Conversation:
        return repeat(case, run_index) if run_index % 2 == 0 else Conversation(actual=(turn("wrong"),))

    report = run(numbered(2), Actor(every_other), MATCH, Options(num_runs=3))
    assert [(found.eval_id, found.run_index) for found in report.cases] == [(f"c{case}", run) for case in range(2) for run in range(3)]
    assert overall(report) == [1.0, 0.0, 1.0] * 2
    assert report.summaries()[RESPONSE].case_scores == {"c0": (1.0, 0.0, 1.0), "c1": (1.0, 0.0, 1.0)}
    assert report.summaries()[RESPONSE].pass_rate == pytest.approx(2 / 3)
    assert report.verdict == "failed"
    assert report.reasons[0] == "c0 (run 2): response_match_score is 0, below its threshold 1"


def test_recorded_runs_are_all_judged() -> None:
    recording = Recording({"c0": (Conversation(actual=(turn("answer 0"),)), Conversation(actual=(turn("wrong"),)))})
    report = run(numbered(1), recording, MATCH)
    assert report.num_runs == 2
    assert overall(report) == [1.0, 0.0]


def test_a_run_that_was_not_recorded_is_an_error() -> None:
    recording = Recording({"c0": (Conversation(actual=(turn("answer 0"),)),) * 2, "c1": (Conversation(actual=(turn("answer 1"),)),)})
    report = run(numbered(2), recording, MATCH)
    assert [found.verdict for found in report.cases] == ["passed", "passed", "passed", "undecided"]
    assert report.cases[3].error == "the recording does not contain run 2 of case 'c1'"


def test_runs_of_cases_that_are_not_in_the_set_ask_for_no_runs_of_others() -> None:
    recording = Recording({"c0": (Conversation(actual=(turn("answer 0"),)),), "other": (Conversation(actual=()),) * 5})
    report = run(numbered(1), recording, MATCH)
    assert report.passed
    assert report.notes == ("1 recorded case is not in the eval set: other",)


# What goes wrong


def test_the_agents_error_is_kept_and_the_case_is_undecided() -> None:
    eval_set = cases(case("a", turn("x"), turn("y")), case("b", turn("z")))

    def fails_on_a(case: EvalCase, run_index: int) -> Conversation:
        return repeat(case, run_index) if case.eval_id == "b" else Conversation(actual=(turn("x"),), error="turn 2: OSError: model down")

    first, second = run(eval_set, Actor(fails_on_a), MATCH).cases
    assert second.verdict == "passed"
    assert first.verdict == "undecided"
    assert first.error == "turn 2: OSError: model down"
    assert first.results[0].per_invocation == (
        Scored(1.0, "ROUGE-1 precision 1.000, recall 1.000.", {"precision": 1.0, "recall": 1.0}),
        Errored("the agent did not finish: turn 2: OSError: model down"),
    )
    assert first.reasons()[0] == "the agent did not finish: turn 2: OSError: model down"


def test_the_turn_in_which_the_agent_failed_is_kept_but_not_judged() -> None:
    partial = turn(None, call("search"))

    def fails(case: EvalCase, run_index: int) -> Conversation:
        return Conversation(actual=(turn("x"), partial), error="turn 2: boom", unfinished=True)

    found = only(run(cases(case("a", turn("x"), turn("y", call("search")))), Actor(fails), config(TRAJECTORY)))
    assert found.actual[1] == partial
    assert found.results[0].per_invocation[1] == Errored("the agent did not finish: turn 2: boom")
    assert found.verdict == "undecided"


def test_an_agent_that_raises_costs_no_other_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "t0p-secret")

    def raises_on_c1(case: EvalCase, run_index: int) -> Conversation:
        if case.eval_id == "c1":
            raise RuntimeError("401 for t0p-secret")
        return repeat(case, run_index)

    report = run(numbered(3), Actor(raises_on_c1), MATCH)
    assert [found.verdict for found in report.cases] == ["passed", "undecided", "passed"]
    assert report.cases[1].error == "RuntimeError: 401 for [SERVICE_TOKEN]"


def test_a_silent_turn_fails_its_criteria_and_stops_nothing() -> None:
    def silent(text: str, session: Any) -> str | None:
        return None if text == "silence" else "x"

    eval_set = cases(case("a", turn("x"), turn("x", user="silence"), turn("x")), case("b", turn("x")))
    first, second = run(eval_set, resolve_agent(silent), MATCH).cases
    assert [cell.score if isinstance(cell, Scored) else None for cell in first.results[0].per_invocation] == [1.0, 0.0, 1.0]
    assert first.verdict == "failed"
    assert second.verdict == "passed"


@pytest.mark.parametrize("criterion", [RESPONSE, "tool_call_count_v1"])
@pytest.mark.parametrize(
    ("actual", "wanted", "turns"),
    [(1, 2, "1 turn took place, but the case has 2"), (2, 1, "2 turns took place, but the case has 1")],
)
def test_turns_that_are_missing_or_too_many_are_no_evidence(criterion: str, actual: int, wanted: int, turns: str) -> None:
    settings = parse_config({"criteria": {criterion: 0.0 if criterion == RESPONSE else 9}}, "config")
    found = only(score(cases(case("a", *[turn()] * wanted)), {"a": [turn()] * actual}, settings))
    assert found.verdict == "undecided"
    assert found.error == turns


def test_a_case_that_was_not_recorded_is_an_error_of_every_turn() -> None:
    found = only(score(cases(case("a", turn(), turn())), {}, MATCH))
    assert found.error == "the recording does not contain case 'a'"
    assert found.results[0].per_invocation == (Errored("the agent did not finish: the recording does not contain case 'a'"),) * 2
    assert all(isinstance(result.overall, Errored) for result in found.results)


def test_an_empty_conversation_is_no_evidence() -> None:
    found = only(score(cases(case("a")), {"a": []}, MATCH))
    assert found.verdict == "undecided"
    assert found.results[0].per_invocation == (Errored("there is no actual turn"),)


def test_an_empty_eval_set_is_no_evidence() -> None:
    report = score(cases(), {}, MATCH)
    assert report.verdict == "undecided"
    assert report.reasons == ("the eval set has no cases, so there is nothing to evaluate",)


def test_scenarios_can_be_measured() -> None:
    settings = config(tool_call_count_v1=1)
    found = only(score(cases(scenario("s")), {"s": [turn("x", call("f")), turn("y")]}, settings))
    assert found.results[0].score == 0.5
    assert found.verdict == "passed"
    assert isinstance({result.criterion: result for result in found.results}["token_usage_v1"].overall, Skipped)


def test_ids_that_occur_twice_are_refused_before_the_agent_is_called() -> None:
    agent = Actor(repeat)
    with pytest.raises(UsageError, match=r"several cases with the same id: 'a'"):
        run(cases(case("a", turn()), case("b", turn()), case("a", turn())), agent, MATCH)
    assert agent.most == 0


def test_a_config_that_cannot_be_applied_is_refused_before_the_agent_is_called() -> None:
    agent = Actor(repeat)
    with pytest.raises(ConfigError):
        run(cases(scenario("s")), agent, MATCH)
    assert agent.most == 0


# From ordinary code, from a running loop, from a thread


def test_scoring_works_where_an_event_loop_is_running() -> None:
    async def notebook() -> bool:
        return score(numbered(2), numbered(2), MATCH).passed

    assert anyio.run(notebook)


def test_the_async_twin_runs_in_the_callers_loop() -> None:
    async def main() -> Report:
        here = threading.get_ident()

        async def where(case: EvalCase, run_index: int) -> Conversation:
            assert threading.get_ident() == here
            return repeat(case, run_index)

        return await arun(numbered(2), Actor(where), MATCH)

    assert anyio.run(main).passed


def test_an_error_in_a_running_loop_reaches_the_caller() -> None:
    async def fails() -> None:
        raise UsageError("wrong")

    async def main() -> None:
        wait(fails)

    with pytest.raises(UsageError, match="wrong"):
        anyio.run(main)


def test_ordinary_functions_of_several_conversations_run_at_the_same_time() -> None:
    met = threading.Barrier(8)

    def sociable(text: str, session: Any) -> str:
        met.wait(60)
        return "yes"

    listed = cases(*(case(f"c{index}", turn()) for index in range(8)))
    report = run(listed, CallableAgent(function=sociable, name="sociable"), MATCH, Options(concurrency=8))
    assert report.passed
    assert not met.broken


# What a score means


def test_a_judge_that_no_criterion_needs_is_not_asked() -> None:
    report = score(numbered(1), numbered(1), MATCH, judge="gemini-2.5-flash")
    assert report.judging is None


def test_without_a_config_adks_defaults_decide() -> None:
    report = score(numbered(1), numbered(1))
    assert report.config is default_config()
    assert report.scores == {TRAJECTORY: 1.0, RESPONSE: 1.0}


def test_the_final_state_of_a_recording_is_judged() -> None:
    settings = config("final_session_state")
    wanted = cases(case("a", turn(), final_session_state={"booked": True}))
    for state, verdict in (({"booked": True, "seats": 2}, "passed"), ({"booked": 1}, "failed"), (None, "undecided")):
        actual = cases(case("a", turn(), final_session_state=state))
        assert score(wanted, actual, settings).verdict == verdict


def test_a_live_agents_state_is_judged() -> None:
    def book(text: str, session: Any) -> str:
        session.state["seats"] = (1, 2)
        return "yes"

    wanted = cases(case("a", turn(), final_session_state={"seats": [1, 2]}))
    assert run(wanted, resolve_agent(book), config("final_session_state")).passed


def test_cases_with_criteria_of_their_own_are_judged_by_them() -> None:
    settings: EvalConfig = parse_config({"criteria": {RESPONSE: 1.0}, "case_criteria": {"b": {TRAJECTORY: 1.0}}}, "config")
    actual: dict[str, list[Invocation | dict[str, Any] | str]] = {"a": [turn("x", call("f"))], "b": [turn("other")]}
    report = score(cases(case("a", turn("x")), case("b", turn("x"))), actual, settings)
    assert report.passed
    assert report.criteria == (RESPONSE, TRAJECTORY, *CRITERIA.informative)
    assert report.scores == {RESPONSE: 1.0, TRAJECTORY: 1.0}
    assert {name: summary.evaluated for name, summary in report.summaries().items()}[TRAJECTORY] == 1


def test_waiting_for_a_result_never_turns_it_into_text() -> None:
    class Result:
        def __repr__(self) -> str:
            raise AssertionError("a report of a million turns would be summed up here")

    result = Result()

    async def work() -> Result:
        return result

    assert wait(work) is result
