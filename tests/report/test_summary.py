"""The page for people on a run's front."""

from __future__ import annotations

from mlflow_adk_eval import score
from mlflow_adk_eval.report.markdown import note_of
from tests.tracking.small import CONFIG, eval_set, expected_of, many, rooms, turn


def test_a_pass_is_a_headline_and_a_table() -> None:
    assert note_of(score(rooms(), expected_of(rooms()), CONFIG)) == (
        "**3 of 3 cases passed** in rooms · verdict: **passed**\n\n"
        "| criterion | mean | threshold | pass rate | evaluated | errored |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| tool_trajectory_avg_score | 1 | ≥ 1 | 100.0% | 5 | 0 |\n"
        "| response_match_score | 1 | ≥ 0.5 | 100.0% | 5 | 0 |\n"
        "| tool_call_count_v1 | 0.6667 | information |  | 5 | 0 |"
    )


def test_failures_come_before_missing_evidence_and_both_have_reasons() -> None:
    recorded = expected_of(rooms())
    note = note_of(score(rooms(), {"both": recorded["both"], "heat": [turn("21 degrees please", "no")]}, CONFIG))
    assert note.index("  - heat: missing: heat") < note.index("- ⚠️ the recording does not contain the case · 1 case, 2 criteria\n  - light")
    assert "both" not in note.partition("| criterion")[0]


def test_what_was_missed_and_what_to_open_come_before_the_table() -> None:
    recorded = expected_of(rooms())
    report = score(rooms(), recorded | {"heat": [turn("21 degrees please", "no")]}, CONFIG)
    first, causes, following, table, *_ = note_of(report, "1", "0a").split("\n\n")
    run = "#/experiments/1/runs/0a"
    links = f"[report]({run}/artifacts/adk_eval/report.html) · [turns]({run}/traces)"
    assert first == f"**2 of 3 cases passed** in rooms · verdict: **failed** · {links}"
    assert causes.splitlines()[0] == "- ❌ tool_trajectory_avg_score below its threshold 1 · 1 case, 1 criterion"
    assert following == "Next: `mlflow-adk-eval gate 0a` or `mlflow-adk-eval compare ANOTHER_RUN 0a`"
    assert table.startswith("| criterion |")


def test_many_failures_are_counted_and_not_listed() -> None:
    cases = many(50)
    note = note_of(score(cases, {eval_id: [turn("q", "no")] for eval_id in cases.eval_ids}, CONFIG))
    assert "  - and 40 more cases\n" in note
    assert len(note) < 8000


def test_texts_of_others_do_not_become_markup() -> None:
    cases = eval_set({"<b>|`a`|\n# x [l](http://e)": [turn("q", "yes")]})
    note = note_of(score(cases, {}, CONFIG))
    assert "  - \\<b\\>\\|\\`a\\`\\| \\# x \\[l\\](http://e)\n" in note


def test_a_set_without_cases_is_said_to_have_passed_nothing() -> None:
    assert note_of(score(eval_set({}), {}, CONFIG)) == "**0 of 0 cases passed** in rooms · verdict: **undecided**"
