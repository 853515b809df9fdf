"""A comparison as JSON values, for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mlflow_adk_eval.analysis.comparison import Comparison
from mlflow_adk_eval.analysis.comparison.case import CaseChange, CriterionChange
from mlflow_adk_eval.analysis.comparison.causes import Cause
from mlflow_adk_eval.analysis.comparison.side import Side
from mlflow_adk_eval.analysis.comparison.turn import Done, TurnChange
from mlflow_adk_eval.results.report import Scored


def comparison_json(found: Comparison, *, every: bool) -> dict[str, Any]:
    """Return everything but the turns of cases that did not flip; `every`: those as well."""
    shown = found.cases if every else found.flipped
    return {
        "before": _side(found.before),
        "after": _side(found.after),
        "confidence": found.confidence,
        "differences": [asdict(difference) for difference in found.differences],
        "cases": {"compared": len(found.cases), **found.counts, "shifted": len(found.shifted), **_unpaired(found)},
        "deltas": [asdict(delta) | {"clear": delta.clear(found.confidence)} for delta in found.deltas],
        "judging": {name: asdict(cost) for name, cost in zip(("before", "after"), found.judging, strict=True)},
        "changes": [_case(case) for case in shown],
    }


def _side(side: Side) -> dict[str, Any]:
    return {"name": side.name, "run_id": side.run_id or None, "facts": dict(side.facts), "warnings": list(side.warnings)}


def _unpaired(found: Comparison) -> dict[str, list[str]]:
    return {name: list(getattr(found.pairing, name)) for name in ("only_before", "only_after", "altered")}


def _case(case: CaseChange) -> dict[str, Any]:
    return {
        "eval_id": case.eval_id,
        "flip": case.flip,
        "before": list(case.before),
        "after": list(case.after),
        "runs": list(case.runs),
        "causes": [_cause(cause) for cause in case.causes],
        "criteria": [_criterion(change) for change in case.criteria],
        "turns": [_turn(turn) for turn in case.turns if not turn.same],
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {name: value for name, value in asdict(cause).items() if value not in (None, "")} | {"sentence": cause.sentence}


def _criterion(change: CriterionChange) -> dict[str, Any]:
    before, after = (outcome.score if isinstance(outcome, Scored) else None for outcome in (change.before, change.after))
    return {
        "criterion": change.criterion,
        "before": before,
        "after": after,
        "passed_before": change.passed_before,
        "passed_after": change.passed_after,
        "threshold_before": change.threshold_before,
        "threshold_after": change.threshold_after,
        "crossed": change.crossed,
        "causes": [_cause(cause) for cause in change.causes],
    }


def _turn(turn: TurnChange) -> dict[str, Any]:
    return {
        "index": turn.index,
        "before": _done(turn.before),
        "after": _done(turn.after),
        "expected_response": turn.expected_response or None,
    }


def _done(done: Done | None) -> dict[str, Any] | None:
    if done is None:
        return None
    calls = [{"name": call.name, "args": call.args or {}} for call in done.calls]
    return {"user": done.user, "response": done.response, "calls": calls, "error": done.error or None}
