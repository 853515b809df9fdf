"""How simulated conversations ended, where tools were not the real ones and what playing users took: shown wherever results are."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from rich.console import Console

from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.evalset.conversation import Conversation, Ending, Injection, by_call, dumps_result
from mlflow_adk_eval.evalset.models import EvalCase
from mlflow_adk_eval.report.adk_result import result_of
from mlflow_adk_eval.report.ci import exit_code
from mlflow_adk_eval.report.console import report_view
from mlflow_adk_eval.report.markdown import note_of, step_summary
from mlflow_adk_eval.report.sentences import format_endings
from mlflow_adk_eval.report.tally import CaseLine, case_line
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import Table, table_of
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runner.evaluation import Options, run
from mlflow_adk_eval.testing.failure import failure_of, text_of
from mlflow_adk_eval.testing.pytest_session import Results
from tests.kit import call, case, cases, gone, scenario, turn
from tests.report.pages import page, visible
from tests.tracking.worlds import replayed, world

CONFIG = parse_config(
    {
        "criteria": {"tool_trajectory_avg_score": 1},
        "case_criteria": {name: {"tool_call_count_v1": 1} for name in ("goal", "limit", "error")},
    },
    "config",
)
BOOKED = (turn("a", call("find"), call("book", city="Rome"), call("book", city="Oslo")), turn("b", call("find")))
FIRST_BOOKING = Injection(invocation_index=0, tool="book", kind="error", latency_s=1.5, call_index=0)
SOME_SEARCH = Injection(invocation_index=0, tool="book", kind="latency", latency_s=2)
AT_LIMIT = Ending(reason="limit", detail="max_allowed_invocations of 2")
HAD = {
    "written": Conversation(actual=BOOKED, injections=(FIRST_BOOKING,)),
    "goal": Conversation(actual=(turn("a"),), ending=Ending(reason="goal", detail="all <b>booked</b>")),
    "limit": Conversation(actual=BOOKED, ending=AT_LIMIT, injections=(SOME_SEARCH,)),
    "error": Conversation(actual=(), error="turn 1: no", ending=Ending(reason="error", detail="turn 1: no")),
}
USERS = JudgeUsage(calls=7, failed_calls=1, input_tokens=900, output_tokens=100, models=("player",), prompts={"user_simulator@1": "ab"})
SAID = (
    "3 simulated conversations: 1 reached the goal, 1 hit the limit (max_allowed_invocations of 2), 1 broke off",
    "The tool environment answered or delayed 2 calls: 1 error, 1 delay; by tool: book 2",
    "Users simulated by player: 7 calls (1 failed), 1,000 tokens",
)


@dataclass(frozen=True)
class Had:
    """An agent whose conversations were thought up before."""

    name: str = "had"

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:
        return HAD[case.eval_id]


def report_of(*eval_ids: str) -> Report:
    listed = [case("written", *BOOKED) if eval_id == "written" else scenario(eval_id) for eval_id in eval_ids]
    config = CONFIG.model_copy(update={"case_criteria": {name: found for name, found in CONFIG.case_criteria.items() if name in eval_ids}})
    return run(cases(*listed), Had(), config, Options())


def whole() -> Report:
    return replace(report_of(*HAD), simulating=USERS)


def terminal(report: Report, *, detailed: bool = False) -> list[str]:
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(report_view(report, detailed=detailed))
    return [line.rstrip() for line in captured.get().splitlines()]


def table_for(report: Report) -> Table:
    return table_of(report.cases, report.criteria)


def test_the_terminal_says_it_after_the_verdict() -> None:
    lines = terminal(whole())
    assert tuple(line for line in lines if line in SAID) == SAID
    assert next(place for place, line in enumerate(lines) if line.endswith("verdict: failed")) < lines.index(SAID[0])


def test_a_report_without_any_of_it_says_nothing() -> None:
    config = parse_config({"criteria": {"tool_trajectory_avg_score": 1}}, "config")
    plain = run(cases(case("goal", turn())), Had(), config, Options())
    told = "\n".join((*terminal(replace(plain, cases=tuple(gone(one, ending=None) for one in plain.cases))), note_of(report_of())))
    assert not any(word in told for word in ("simulated", "tool environment", "Users simulated"))


def test_the_details_name_each_injection_and_each_ending() -> None:
    lines = terminal(whole(), detailed=True)
    assert "     tool      book: injected error after 1.5 s" in lines
    assert "     tool      book: delayed by 2 s" in lines
    assert [line.split()[1] for line in lines if line.startswith("     ended ")] == ["goal:", "limit:", "error:"]


def test_the_note_of_the_run_says_it() -> None:
    note = note_of(whole())
    assert all(line in note for line in SAID)


def test_the_step_summary_says_it_of_results_that_came_from_elsewhere() -> None:
    lines = [CaseLine.from_json(json.loads(json.dumps(case_line(found, found.eval_id).to_json()))) for found in whole().cases]
    assert lines == [case_line(found, found.eval_id) for found in whole().cases]
    text = html.unescape(step_summary(lines, simulating=USERS))
    for line in SAID:
        assert line in text


def test_a_session_of_pytest_says_it_of_all_of_its_processes() -> None:
    results = Results(
        lines={found.eval_id: case_line(found, found.eval_id) for found in whole().cases},
        took={"adk_judging": [], "adk_simulating": [USERS, USERS]},
    )
    told = [line for line, _ in results.terminal()]
    assert {SAID[0], SAID[1], "Users simulated by player: 14 calls (2 failed), 2,000 tokens"} <= set(told)
    assert results.markdown().count("Users simulated by player") == 1


def test_the_page_has_a_badge_for_each_ending_and_marks_each_injection() -> None:
    source = page(whole())
    text = visible(source)
    assert [text.count(badge) for badge in ("reached the goal", "hit the limit", "broke off")] == [3, 3, 3]
    assert "Endings3 simulated conversations" in text
    assert "The simulated conversation reached the goal: all <b>booked</b>" in text
    assert "<b>booked" not in source
    assert text.count("injected error after 1.5 s") == 1
    assert "Actual call as expected injected error after 1.5 s" in text
    # Which of the two bookings was delayed is not known.
    assert "Tool environment: book: delayed by 2 s" in text


def test_what_a_recording_answered_is_said_in_one_line_and_marked_at_its_calls() -> None:
    report = replayed(world(models=True), "agent")
    said = f"Replayed: 3 of 3 tool calls, 3 of an unknown number of requests to the agent's model, from {world().digest[:19]}…"
    text = visible(page(report))
    assert said in terminal(report)
    assert said in note_of(report)
    assert f"Recordings{said}" in text
    assert text.count("as expected replayed") == 3
    assert "Tool environment" not in text
    assert "injected" not in table_for(report).columns
    assert f"Recorded: 3 tool calls, as {world().digest[:19]}…" in terminal(replayed(world("record")))


def test_the_table_has_columns_for_it_only_where_there_is_something() -> None:
    rows = table_for(whole()).records()
    told = [(row["key"], row["injected"], row["ending"]) for row in rows]
    assert told == [
        ("written #1", "book: injected error after 1.5 s", None),
        ("written #2", None, None),
        ("goal #1", None, "goal: all <b>booked</b>"),
        ("limit #1", "book: delayed by 2 s", None),
        ("limit #2", None, "limit: max_allowed_invocations of 2"),
        ("error #1", None, "error: turn 1: no"),
    ]
    assert table_for(report_of("written")).columns[-2:] == ("invocation_index", "injected")
    assert table_for(report_of("goal")).columns[-2:] == ("invocation_index", "ending")


def test_a_failing_test_shows_it() -> None:
    found = {one.eval_id: text_of(failure_of(one, CONFIG)) for one in report_of("written", "limit").cases}
    assert "  tool environment: book: delayed by 2 s" in found["limit"]
    assert "the simulated conversation ended: limit: max_allowed_invocations of 2" in found["limit"]


@pytest.mark.needs("google-adk", "2.10")
def test_adk_reads_the_result_and_this_package_finds_all_of_it_there() -> None:
    from google.adk.evaluation.eval_result import EvalSetResult

    text = dumps_result(result_of(whole(), created=1.0))
    read = EvalSetResult.model_validate_json(text)
    assert [one.eval_id for one in read.eval_case_results] == list(HAD)
    written = json.loads(text)["eval_case_results"]
    assert [one["adk_eval"] for one in written[:2]] == [
        {"injections": [{"invocation_index": 0, "tool": "book", "kind": "error", "latency_s": 1.5, "call_index": 0}]},
        {"ending": {"reason": "goal", "detail": "all <b>booked</b>"}},
    ]


@pytest.mark.parametrize(
    ("endings", "told"),
    [
        ([AT_LIMIT], "1 simulated conversation: 1 hit the limit (max_allowed_invocations of 2)"),
        ([Ending(reason="limit"), Ending(reason="error")], "2 simulated conversations: 1 hit the limit, 1 broke off"),
    ],
)
def test_few_endings_are_told_in_proper_sentences(endings: Sequence[Ending], told: str) -> None:
    assert format_endings(endings) == told


def test_a_model_that_plays_users_and_is_out_of_order_is_a_failed_run() -> None:
    undecided = report_of("error")
    undecided = replace(undecided, cases=(*undecided.cases, *report_of("goal").cases))
    gone = replace(undecided, simulating=replace(USERS, outage="503 for 60 s"))
    assert (exit_code(undecided), exit_code(gone)) == (2, 3)
    assert "the user simulator stopped responding: 503 for 60 s" in "\n".join(terminal(gone))
    assert "**Attention**: the user simulator stopped responding" in note_of(gone)


@pytest.mark.parametrize(
    ("injections", "tools", "found"),
    [
        ([0], ["f"], ["error"]),
        ([1], ["f", "g", "f"], [None, None, "error"]),
        ([None], ["f", "f"], [None, None]),
        ([None, None], ["f", "f"], ["error", "error"]),
        ([7], ["f"], [None]),
        ([], ["f"], [None]),
    ],
)
def test_an_injection_belongs_to_a_call_only_where_that_is_known(injections: list[Any], tools: list[str], found: list[Any]) -> None:
    made = [Injection(invocation_index=1, tool="f", kind="error", call_index=index) for index in injections]
    elsewhere = Injection(invocation_index=0, tool="f", kind="latency", call_index=0)
    assert [one.kind if one else None for one in by_call([*made, elsewhere], 1, tools)] == found
