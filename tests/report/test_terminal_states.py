"""What a terminal of 100 and of 160 columns shows of a crash, a judge that cannot answer, a missing key, a regression and a pass.

``python -m tests.report.test_terminal_states`` writes the file with what is shown, to be read before it is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.report.console import report_view
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.testing import Request, ScriptedJudge
from tests.tracking.small import eval_set, turn

SHOWN = Path(__file__).with_suffix(".txt")
RUBRICS = "rubric_based_final_response_quality_v1"
JUDGE = {"judge_model": "gemini-2.5-flash", "num_samples": 1}
RUBRIC = {"rubric_id": "polite", "rubric_content": {"text_property": "The answer is polite."}}
CONFIG = {
    "criteria": {
        "tool_trajectory_avg_score": 1.0,
        "response_match_score": 0.8,
        RUBRICS: {"threshold": 0.8, "judge_model_options": JUDGE, "rubrics": [RUBRIC]},
    }
}
ROOMS = ("hall", "kitchen", "bathroom", "bedroom", "office", "cellar", "attic", "garage", "porch", "studio", "sauna")
CASES = eval_set(
    {f"heat_{room}": [turn(room, f"The {room} has 21 degrees", ("set", {"room": room, "value": 21}))] for room in ROOMS}, "home"
)
KEY = (
    "No API key was provided. Please pass a valid API key. Learn how to create an API key at https://ai.google.dev/gemini-api/docs/api-key."
)


def good(room: str, _: Any) -> Any:
    return turn(room, f"The {room} has 21 degrees", ("set", {"room": room, "value": 21}))


def crashing(room: str, session: Any) -> Any:
    if room in ROOMS[2:5]:
        raise ConnectionError("thermostat service timed out")
    return good(room, session)


def without_key(*_: Any) -> Any:
    raise ValueError(KEY)


def regressed(room: str, session: Any) -> Any:
    if room in ROOMS[:7]:
        return turn(room, "Done", ("set", {"room": room.title(), "value": 21}))
    return (
        turn(room, f"The {room} has twenty degrees or so", ("set", {"room": room, "value": 21})) if room == "porch" else good(room, session)
    )


def unreadable(_: Request) -> str:
    return "I think it is fine"


def decisive(case: CaseResult) -> CaseResult:
    """Leave out criteria that are information, as durations differ from run to run."""
    return replace(case, results=tuple(result for result in case.results if result.decides))


def states() -> Iterator[tuple[str, Report]]:
    fine = ScriptedJudge("yes")
    judges: dict[str, tuple[Any, Any]] = {
        "crash": (crashing, fine),
        "wrong judge": (good, unreadable),
        "missing key": (without_key, fine),
        "regression": (regressed, fine),
        "pass": (good, fine),
    }
    for state, (agent, judge) in judges.items():
        recording = adk_eval.record(CASES, agent, CONFIG, ledger=False)
        one_by_one = JudgeOptions(max_concurrency=1)
        report = adk_eval.score(CASES, recording, CONFIG, judge=judge, judge_options=one_by_one, ledger=False)
        yield state, replace(report, cases=report.cases.changed(decisive))


def shown() -> str:
    """Return what terminals show, one after the other."""
    parts: list[str] = []
    for state, report in states():
        for width in (100, 160):
            page = StringIO()
            Console(file=page, width=width, highlight=False).print(report_view(report), crop=False)
            parts.append("\n".join([f"=== {state}, {width} columns", *(line.rstrip() for line in page.getvalue().splitlines())]))
    return "\n".join(parts) + "\n"


@pytest.fixture(scope="module")
def pages() -> str:
    return shown()


def test_a_terminal_shows_what_was_read_before(pages: str) -> None:
    assert pages == SHOWN.read_text("utf-8")


def test_each_fits_on_a_screen_with_the_cause_first_and_no_name_broken(pages: str) -> None:
    for state, lines in ((page.partition(",")[0], page.splitlines()[1:]) for page in pages.split("=== ")[1:]):
        assert len(lines) <= 32, f"with the id of the run and what to do next: 40: {state}"
        causes = {
            "crash": "  ? ConnectionError: thermostat service timed out · 3 cases, 3 criteria",
            "wrong judge": "  ? a judge stopped responding: 20 answers of the judge in a row could not be parsed",
            "missing key": "  ? ValueError: No API key was provided.",
            "regression": "  ✗ response_match_score below its threshold 0.8 · 8 cases, 1 criterion",
            "pass": "",
        }
        assert lines[1].startswith(causes[state])
        assert sum(line.startswith(f" {RUBRICS} ") for line in lines) == 1


if __name__ == "__main__":
    SHOWN.write_text(shown(), "utf-8")
