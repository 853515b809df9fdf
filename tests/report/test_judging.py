"""Reports with judges, as people and other tools see them."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from mlflow_adk_eval.evalset.conversation import dumps_result
from mlflow_adk_eval.report.adk_result import result_of
from mlflow_adk_eval.report.ci import exit_code
from mlflow_adk_eval.report.console import report_view
from mlflow_adk_eval.report.markdown import note_of
from mlflow_adk_eval.report.sentences import format_judge_usage
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import table_of
from mlflow_adk_eval.results.usage import JudgeUsage
from tests.kit import gone
from tests.tracking import judged
from tests.tracking.judged import DOWN, MATCH, RUBRICS, USAGE

ACCOUNTS = (
    "Judged by gemini-2.5-flash: 13 calls (2 failed), 1,234 tokens, 4 votes saved by stopping early, 3 answers reused from the ledger; "
    "25.0% of 12 votes disagree with the verdict"
)
OUT = replace(USAGE, outage=DOWN)


def printed(report: Report, *, detailed: bool = False) -> str:
    screen = Console(file=StringIO(), width=300)
    screen.print(report_view(report, detailed=detailed))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_the_accounts_say_only_what_there_is_to_say() -> None:
    assert format_judge_usage(USAGE) == ACCOUNTS
    assert format_judge_usage(JudgeUsage(calls=1, input_tokens=1)) == "Judged: 1 call, 1 token"


def test_terminal_and_note_tell_what_judging_took() -> None:
    assert f"\n{ACCOUNTS}" in printed(judged.report())
    assert note_of(judged.report()).endswith(f"\n\n{ACCOUNTS}")
    without = judged.report(usage=None)
    assert "Judged" not in printed(without)
    assert "Judged" not in note_of(without)


def test_an_outage_is_said_loudly_and_early() -> None:
    report = judged.report(usage=OUT)
    sentence = f"a judge stopped responding: {DOWN}"
    assert sentence in printed(report)
    note = note_of(report)
    assert note.index(sentence) < note.index("| criterion |")
    assert "out of order" not in printed(judged.report()) + note_of(judged.report())


def test_the_details_show_each_rubric_with_its_votes_and_who_disagreed() -> None:
    text = printed(judged.report(), detailed=True)
    assert "✓ final_response_match_v2 1  valid 2:1: it says the same\n         dissent (valid 2, invalid 1): invalid: no room" in text
    assert "- ✗ The answer is polite. (no 2:1): it gives orders\n         dissent on polite (no 2, yes 1): yes: it says please" in text
    assert "votes without a verdict: valid 1" in text
    assert "votes on short without a verdict: yes 2\n         votes on polite without a verdict: no 1" in text


def test_the_details_of_a_trivial_answer_show_no_votes() -> None:
    text = printed(replace(judged.report(), cases=judged.report().cases[:1]), detailed=True)
    assert "nothing was said" in text
    assert "without a verdict" not in text


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (judged.report(lost=False), 0),
        (judged.report(lost=False, usage=OUT), 0),
        (judged.report(), 2),
        (judged.report(usage=OUT), 3),
        (replace(judged.report(), cases=()), 2),
        (replace(judged.report(), cases=(), judging=OUT), 3),
    ],
)
def test_the_exit_code_tells_an_outage_from_missing_evidence(report: Report, code: int) -> None:
    assert exit_code(report) == code


def test_a_missed_threshold_is_that_whatever_the_judge_did_later() -> None:
    report = judged.report(usage=OUT)
    first, *others = report.cases
    low = replace(first.results[0], overall=replace(judged.UNANIMOUS, score=0.0))
    failed = replace(report, cases=(replace(first, results=(low, *first.results[1:])), *others))
    assert (failed.verdict, exit_code(failed)) == ("failed", 1)


def test_an_agent_that_never_answered_is_a_failed_run() -> None:
    report = judged.report(usage=None)
    assert exit_code(replace(report, cases=tuple(gone(case, error="down") for case in report.cases))) == 3
    assert exit_code(replace(report, cases=(gone(report.cases[0], error="down"), *report.cases[1:]))) == 2


def test_adk_shows_each_rubric_with_its_score_and_rationale() -> None:
    from google.adk.evaluation.eval_result import EvalSetResult

    result = EvalSetResult.model_validate_json(dumps_result(result_of(judged.report())))
    light, heat = result.eval_case_results
    spoken, silent = (
        {found.metric_name: found.details for found in turn.eval_metric_results} for turn in light.eval_metric_result_per_invocation
    )
    assert [(one.rubric_id, one.score, one.rationale) for one in spoken[RUBRICS].rubric_scores] == [
        ("short", 1.0, "five words"),
        ("polite", 0.0, "it gives orders"),
    ]
    assert [one.score for one in silent[RUBRICS].rubric_scores] == [0.0, 0.0]
    assert spoken[MATCH] is None or spoken[MATCH].rubric_scores is None
    (turn,) = heat.eval_metric_result_per_invocation
    lost = next(found for found in turn.eval_metric_results if found.metric_name == RUBRICS)
    assert lost.score is None
    assert [(one.score, one.rationale) for one in lost.details.rubric_scores] == [
        (None, "no verdict; votes: yes 2"),
        (None, f"no verdict; votes: no 1; {DOWN}"),
    ]


def test_the_table_holds_what_a_judge_said_whole() -> None:
    report = judged.report()
    first, _, lost = table_of(report.cases, report.criteria).records()
    assert first[f"{RUBRICS}/reason"] == judged.HALF.rationale
    assert (lost[f"{MATCH}/status"], lost[f"{MATCH}/reason"]) == ("errored", judged.LOST.error)
