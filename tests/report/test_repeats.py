"""Repeated runs on every page that shows them."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from mlflow_adk_eval.report.console import report_view
from mlflow_adk_eval.report.markdown import note_of, step_summary
from mlflow_adk_eval.report.sentences import format_flaky, format_ranges, format_run_rates, spread_lines
from mlflow_adk_eval.report.tally import CaseLine, case_line, flaky_of
from mlflow_adk_eval.results.report import Report
from tests.kit import RESPONSE, gone
from tests.report.pages import ATTACKS, Elements, hostile, page, visible
from tests.results.repeated import FAILED, LOST, PASSED, case_run, repeated, result

REPORT = repeated({"steady": [PASSED] * 3, "heat": [PASSED, 0.25, PASSED], "lamp": [FAILED, LOST, PASSED]})
ONCE = repeated({"steady": [PASSED], "heat": [FAILED]})
MANY = repeated({f"case_{index}": [PASSED, FAILED] for index in range(250)})


def terminal(report: Report) -> str:
    file = io.StringIO()
    Console(file=file, width=200).print(report_view(report))
    return file.getvalue()


def lines_of(report: Report) -> list[CaseLine]:
    return [case_line(case, report.label(case), case=case.eval_id if report.num_runs > 1 else "") for case in report.cases]


def section_of(html: str) -> str:
    return html[html.index('<h2 id="repeats">') : html.index('<h2 id="cases">')]


# Words


def test_rates_of_the_first_runs() -> None:
    assert format_run_rates(REPORT.repeats) == "66.7%, 33.3%, 100.0%"
    assert format_run_rates(repeated({"a": [PASSED] * 12}).repeats) == ", ".join(["100.0%"] * 10) + " and 2 more"


def test_how_many_are_flaky() -> None:
    assert format_flaky(REPORT.repeats) == "2 of 3 cases are flaky"
    assert format_flaky(repeated({"a": [PASSED, FAILED]}).repeats) == "1 of 1 case is flaky"
    assert format_flaky(repeated({"a": [FAILED, FAILED]}).repeats) == "No case is flaky: all 2 runs of each agree"


def test_ranges_are_of_criteria_that_decide_and_vary() -> None:
    told = {"cost": None, "same": 0.5, RESPONSE: 0.5}
    runs = [
        case_run("a", index, *(result(0.6 if name == "same" else score, name, at) for name, at in told.items()))
        for index, score in enumerate((0.9, 0.25))
    ]
    repeats = replace(ONCE, cases=tuple(runs), num_runs=2).repeats
    assert format_ranges(repeats, repeats.cases[0]) == f"{RESPONSE} 0.25 to 0.9"


def test_what_cannot_be_said_is_a_dash() -> None:
    (line,) = spread_lines(repeated({"a": [LOST, PASSED]}).repeats)
    assert line == (RESPONSE, "–", "–", "–", "–", "–", "0 of 1")


# Pages


def test_the_terminal_shows_chances_spreads_and_flaky_cases() -> None:
    said = terminal(REPORT)
    assert said.index("verdict: failed") < said.index("pass rate") < said.index("Repeated runs: 3 of each case")
    assert [line.split("│")[2].strip() for line in said.splitlines() if "pass^" in line] == ["66.7%", "44.4%", "33.3%"]
    spread = next(line for line in said.splitlines() if RESPONSE in line and "2 of 3" in line)
    assert [cell.strip() for cell in spread.split()[1:4]] == ["0.625", "1", "0.2165"]
    assert "Cases passed by run: 66.7%, 33.3%, 100.0%" in said
    assert said.index("- lamp: 1 of 3 runs passed, 1 failed, 1 undecided") < said.index("- heat: 2 of 3 runs passed, 1 failed")
    assert f"heat: 2 of 3 runs passed, 1 failed; {RESPONSE} 0.25 to 1" in said
    assert "  - and 240 more" in terminal(MANY).partition("cases are flaky")[2]


def test_the_note_has_a_table_of_flaky_cases() -> None:
    note = note_of(REPORT)
    assert "pass^1 66.7%, pass^2 44.4%, pass^3 33.3%; cases passed by run: 66.7%, 33.3%, 100.0%. 2 of 3 cases are flaky." in note
    assert (
        "| flaky case | runs | scores |\n| --- | --- | --- |\n"
        f"| lamp | 1 of 3 runs passed, 1 failed, 1 undecided | {RESPONSE} 0 to 1 |\n"
        f"| heat | 2 of 3 runs passed, 1 failed | {RESPONSE} 0.25 to 1 |"
    ) in note
    assert "and 240 more flaky cases" in note_of(MANY)


def test_the_page_has_a_section_on_repeated_runs() -> None:
    said = visible(page(REPORT))
    section = said[said.index("Repeated runs") : said.index("Cases passed by run")]
    assert "2 of 3 cases are flaky." in section
    assert section.index("lamp") < section.index("heat")
    assert "1 of 3 runs passed, 1 failed, 1 undecided 33.3%" in section
    assert "pass^333.3%" in section  # two cells, with nothing between them
    assert "and 50 more in the run's table adk_eval/repeats.json" in visible(page(MANY))
    assert "No case is flaky" in visible(page(repeated({"a": [PASSED] * 30})))


def test_of_many_runs_of_a_flaky_case_the_first_are_marked() -> None:
    section = section_of(page(repeated({"a": [PASSED, FAILED] * 15})))
    assert section.count('<span class="mark') == 20
    assert "…</td>" in section


@pytest.mark.parametrize("report", [ONCE, replace(repeated({}), num_runs=3)], ids=["one run", "no cases"])
def test_what_was_not_repeated_is_not_shown(report: Report) -> None:
    for said in (terminal(report), note_of(report), visible(page(report))):
        assert "flaky" not in said
        assert "pass^" not in said


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_text_of_a_repeated_case_becomes_markup(attack: str) -> None:
    once = hostile(attack)
    (case,) = once.cases
    passed = replace(gone(case, error=""), run_index=1, results=(result(0.9, attack),))
    found = section_of(page(replace(once, cases=(case, passed), num_runs=2)))
    harmless = section_of(page(REPORT))
    assert Elements(found).tags == Elements(harmless).tags
    assert Elements(found).attributes == Elements(harmless).attributes


# Lines, which travel between processes


def test_flaky_cases_of_lines() -> None:
    assert [(case.eval_id, case.summary) for case in flaky_of(lines_of(REPORT))] == [
        ("lamp", "1 of 3 runs passed, 1 failed, 1 undecided"),
        ("heat", "2 of 3 runs passed, 1 failed"),
    ]
    assert flaky_of(lines_of(ONCE)) == ()
    assert [CaseLine.from_json(line.to_json()) for line in lines_of(REPORT)] == lines_of(REPORT)


def test_the_summary_of_a_job_names_flaky_cases() -> None:
    assert "| flaky case | runs |\n| --- | --- |\n| lamp | 1 of 3 runs passed, 1 failed, 1 undecided |\n| heat |" in step_summary(
        lines_of(REPORT)
    )
    assert "and 150 more flaky cases" in step_summary(lines_of(MANY))
    assert "flaky" not in step_summary(lines_of(ONCE))
