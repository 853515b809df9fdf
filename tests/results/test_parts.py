"""Parts give back what was written, whatever it was and wherever a part ends; and what is on disk reads like what is in memory."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.evalset.conversation import Ending, Injection, InnerCall
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, Invocation
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Errored, Outcome, Scored, Skipped, Vote, case_outcome
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.collect import InParts
from mlflow_adk_eval.runs.files import files_in, new_folder
from mlflow_adk_eval.runs.parts import Cleaner
from mlflow_adk_eval.runs.stored_run import StoredRun, loaded
from tests.kit import case_result, turn_json

CONFIG = load_config({"criteria": {"response_match_score": 0.5, "tool_trajectory_avg_score": 1.0}})
NAMES = ("response_match_score", "tool_trajectory_avg_score", "token_usage_v1")
THRESHOLDS = {"response_match_score": 0.5, "tool_trajectory_avg_score": 1.0}

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
scores = st.floats(0, 1, allow_nan=False)
details = st.dictionaries(texts, st.one_of(st.integers(-5, 5), texts, st.lists(scores, max_size=2)), max_size=2)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Scored, scores, texts, details), st.builds(Skipped, texts.filter(bool)), st.builds(Errored, texts.filter(bool))
)


def turn(text: str) -> Invocation:
    return Invocation.model_validate(turn_json(text, text[::-1]))


@st.composite
def results(draw: st.DrawFn, eval_id: str, run_index: int, expected: tuple[Invocation, ...]) -> CaseResult:
    actual = tuple(map(turn, draw(st.lists(texts, max_size=3))))
    turns = max(1, len(actual), len(expected))
    found = []
    for name in draw(st.sets(st.sampled_from(NAMES), min_size=1)):
        cells = tuple(draw(st.lists(st.one_of(st.none(), outcomes), min_size=turns, max_size=turns)))
        overall = draw(st.one_of(st.just(case_outcome(cells)), outcomes))
        votes = tuple(
            Vote(
                eval_id=eval_id, run_index=run_index, invocation_index=0, criterion=name, rubric_id=None, vote_index=number, verdict="yes",
                explanation=explanation, model="m", latency_s=0.5, input_tokens=None, output_tokens=3, error="",
            )
            for number, explanation in enumerate(draw(st.lists(texts, max_size=2)))
        )  # fmt: skip
        found.append(
            CriterionResult(name, THRESHOLDS.get(name), greater_is_better=True, overall=overall, per_invocation=cells, votes=votes)
        )
    return case_result(
        eval_id=eval_id,
        run_index=run_index,
        actual=actual,
        expected=expected,
        results=tuple(found),
        error=draw(texts),
        unfinished=draw(st.booleans()),
        session_state=draw(st.one_of(st.none(), st.dictionaries(texts, st.integers(-3, 3), max_size=2))),
        ending=draw(st.one_of(st.none(), texts.map(lambda detail: Ending(reason="goal", detail=detail)))),
        injections=tuple(draw(st.lists(texts.map(lambda tool: Injection(invocation_index=0, tool=tool, kind="error")), max_size=1))),
        inner_calls=draw(st.none() | st.lists(texts.map(lambda tool: InnerCall(turn=0, after=1, tool=tool)), max_size=1).map(tuple)),
    )


@st.composite
def reports(draw: st.DrawFn) -> Report:
    num_runs = draw(st.integers(1, 2))
    cases, found = [], []
    for number in range(draw(st.integers(1, 5))):
        expected = tuple(map(turn, draw(st.lists(texts, max_size=3))))
        cases.append(EvalCase(eval_id=f"case {number}", conversation=expected))
        found += [draw(results(f"case {number}", run_index, expected)) for run_index in range(num_runs)]
    return Report(eval_set=EvalSet(eval_set_id="set", eval_cases=tuple(cases)), config=CONFIG, cases=tuple(found), num_runs=num_runs)


def stored(report: Report, part_turns: int) -> tuple[Report, InParts]:
    """Return the report as one that is kept in parts of so many turns."""
    parts = InParts(report.criteria, Cleaner(), judged=True, small_turns=0, part_turns=part_turns)
    for case in report.eval_set.eval_cases:
        parts.add(case, [result for result in report.cases if result.eval_id == case.eval_id])
    eval_set, cases = parts.results(report.eval_set)
    return replace(report, eval_set=eval_set, cases=cases), parts


def plain(case: CaseResult) -> CaseResult:
    """Return a result with its criteria in the order of the columns, and without rows behind a criterion's last cell."""
    return replace(case, results=tuple(sorted(case.results, key=lambda one: one.criterion)))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(reports(), st.integers(1, 9))
def test_parts_give_back_what_was_written(report: Report, part_turns: int) -> None:
    again, parts = stored(report, part_turns)
    assert again.eval_set == report.eval_set
    assert len(again.cases) == len(report.cases)
    for before, after in zip(report.cases, again.cases, strict=True):
        assert plain(loaded(after)) == plain(before)
        assert after.verdict == before.verdict
    assert again.summaries() == report.summaries()
    assert (again.verdict, again.verdicts, again.reasons) == (report.verdict, report.verdicts, report.reasons)
    assert again.repeats == report.repeats
    assert again.case_counts == report.case_counts
    assert again.first_reasons(2) == report.first_reasons(2) == (report.reasons[:2], max(len(report.reasons) - 2, 0))
    listed = parts.parts
    assert sum(part.cases for part in listed) == len(report.eval_set.eval_cases)
    assert sum(part.votes for part in listed) == sum(len(one.votes) for case in report.cases for one in case.results)
    assert [part.first_case_no for part in listed] == [0, *(part.last_case_no + 1 for part in listed[:-1])]


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(reports(), st.integers(1, 9))
def test_whole_results_need_only_the_cells_in_the_columns(report: Report, part_turns: int) -> None:
    again, _ = stored(report, part_turns)
    assert [plain(case) for case in again.cases.in_memory()] == [plain(case) for case in report.cases]


def test_the_folder_is_gone_when_nobody_refers_to_it() -> None:
    root = new_folder()
    files = files_in(root, growing=True, temporary=root)
    (root / "a").write_bytes(b"1")
    assert (files["a"], list(files), "b" in files) == (b"1", ["a"], False)
    with pytest.raises(KeyError):
        files["b"]
    del files
    assert not root.exists()


def test_a_stored_report_outlives_its_collector() -> None:
    case = EvalCase(eval_id="a", conversation=(turn("hello"),))
    cells: Any = (Scored(1.0),)
    result = case_result(
        eval_id="a",
        run_index=0,
        actual=(turn("hello"),),
        expected=case.conversation,
        results=(CriterionResult("response_match_score", 0.5, greater_is_better=True, overall=Scored(1.0), per_invocation=cells),),
    )
    report, parts = stored(Report(eval_set=EvalSet(eval_set_id="s", eval_cases=(case,)), config=CONFIG, cases=(result,)), 1)
    del parts
    assert report.cases[0].actual[0].user_text == "hello"


def test_only_one_part_is_in_memory() -> None:
    report, parts = stored(
        Report(
            eval_set=EvalSet(
                eval_set_id="s", eval_cases=tuple(EvalCase(eval_id=f"{number}", conversation=(turn("x"),)) for number in range(9))
            ),
            config=CONFIG,
            cases=tuple(
                case_result(eval_id=f"{number}", run_index=0, actual=(turn("x"),), expected=(turn("x"),), results=()) for number in range(9)
            ),
        ),
        1,
    )
    reader = StoredRun(parts.files, parts.parts, "run")
    assert [part.part.number for part in reader] == list(range(9))
    first = weakref.ref(reader[0])
    assert reader[0] is first()
    assert reader[1].part.number == 1
    gc.collect()
    assert first() is None
    assert [case.actual[0].user_text for case in report.cases] == ["x"] * 9
