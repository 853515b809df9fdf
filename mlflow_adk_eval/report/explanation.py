"""Why a run or a case did not pass, as plain values: for whoever reads neither tables nor pages, such as a coding agent.

The values hold texts of others as they are. Whoever prints them takes secrets out.
"""

from __future__ import annotations

from typing import Any

from mlflow_adk_eval.errors import UsageError, did_you_mean
from mlflow_adk_eval.evalset.conversation import TurnPair
from mlflow_adk_eval.report.findings import causes_of, why_of
from mlflow_adk_eval.results.outcomes import CaseResult, Scored, reason_of
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import calls_json, cell_at


def causes_json(report: Report, most_cases: int | None = None) -> list[dict[str, Any]]:
    """Return the causes of a run, those that take the most cases along first; of each at most `most_cases` cases are named."""
    return [
        {
            "cause": cause.text,
            "verdict": cause.verdict,
            "extent": cause.extent,
            "cases": sorted(cause.eval_ids)[:most_cases],
            "example": cause.example,
        }
        for cause in causes_of(report).found
    ]


def case_explained(report: Report, eval_id: str) -> list[dict[str, Any]]:
    """Return what each run of a case came to: what was said and called, what was expected, and why a turn missed its threshold.

    Raises:
        UsageError: if there is no such case.
    """
    keys = list(report.cases.keys())
    places = [place for place, (name, _) in enumerate(keys) if name == eval_id]
    if not places:
        raise UsageError(f"the run has no case {eval_id!r}. {did_you_mean(eval_id, {name for name, _ in keys})}".rstrip())
    return [_case_run(report.cases.loaded(place)) for place in places]


def _case_run(case: CaseResult) -> dict[str, Any]:
    criteria: dict[str, Any] = {}
    for one in case.results:
        outcome = {"score": one.score} if isinstance(one.overall, Scored) else {"no_score": reason_of(one.overall)}
        criteria[one.criterion] = outcome | ({"threshold": one.threshold, "passed": one.passed} if one.decides else {})
    turns: list[dict[str, Any]] = []
    for index in range(case.rows):
        pair, missed = TurnPair(case, index), dict[str, str]()
        for one in case.results:
            cell = cell_at(one, index)
            if one.decides and cell is not None and not one.reached(cell):
                missed[one.criterion] = f"{cell.score:.4g}: {cell.rationale}" if isinstance(cell, Scored) else reason_of(cell)
        turn: dict[str, Any] = {"user": pair.user_text, "answer": pair.answer, "calls": calls_json(pair.actual)}
        if pair.errors:
            turn["model_errors"] = pair.errors
        wanted = {"expected_answer": pair.expected_answer, "expected_calls": calls_json(pair.expected)} if pair.expected else {}
        turns.append({"turn": index + 1, **turn, **wanted, "missed": missed})
    head = {"case": case.eval_id, "run": case.run_index + 1, "verdict": case.verdict, "why": why_of(case)}
    return {**head, "criteria": criteria, "turns": turns}
