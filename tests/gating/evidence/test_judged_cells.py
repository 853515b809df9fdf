"""What the judges of a run decided, read back from its evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlflow_adk_eval.analysis.calibration.labels import JudgeDecision, Unit
from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.gating.calibration import judged_run
from mlflow_adk_eval.gating.registry import MlflowStore
from tests.gating.gate_kit import evidence_of, report_of, with_artifact, with_votes
from tests.tracking import judged
from tests.tracking.judged import MATCH, RUBRICS, TRAJECTORY


def units_of(store: str) -> dict[tuple[Any, ...], JudgeDecision]:
    """Return what judges decided by case, turn, criterion and rubric, of the report made by hand."""
    bundle = judged.logged(store, judged.report(), "judged")
    found = judged_run(MlflowStore(store).evidence(bundle.run.run_id)).units
    return {(unit.eval_id, unit.invocation_index, unit.criterion, unit.rubric_id): one for unit, one in found.judged.items()}


def test_each_cell_each_rubric_and_each_case_with_several_cells(store: str) -> None:
    found = units_of(store)
    per_light = [(index, name, None) for index in (0, 1, None) for name in (TRAJECTORY, MATCH, RUBRICS)]
    rubrics = [(index, RUBRICS, rubric) for index in (0, 1) for rubric in ("short", "polite")]
    expected = {("light", *one) for one in (*per_light, *rubrics)}
    expected |= {("heat", 0, name, None) for name in (TRAJECTORY, MATCH, RUBRICS)}
    expected |= {("heat", 0, RUBRICS, rubric) for rubric in ("short", "polite")}
    assert set(found) == expected


def test_verdicts_come_with_what_was_said_and_how_sure_the_judge_was(store: str) -> None:
    found = units_of(store)
    split, polite, short = found["light", 0, MATCH, None], found["light", 0, RUBRICS, "polite"], found["light", 0, RUBRICS, "short"]
    assert (split.passed, split.said, split.certainty) == (True, "score 1; valid 2:1: it says the same", pytest.approx(2 / 3))
    assert (split.threshold, split.bounds) == (0.8, (0.0, 1.0))
    assert (polite.passed, polite.said, polite.certainty, polite.threshold) == (False, "it gives orders", pytest.approx(2 / 3), None)
    assert (short.passed, short.said, short.certainty) == (True, "five words", 1.0)
    assert found["light", 0, RUBRICS, None].certainty == pytest.approx((1 + 2 / 3) / 2)
    assert found["light", None, RUBRICS, None].said == "score 0.25"


def test_an_answer_that_says_nothing_satisfies_no_rubric(store: str) -> None:
    found = units_of(store)
    for rubric in ("short", "polite"):
        assert found["light", 1, RUBRICS, rubric] == JudgeDecision(passed=False, said="no judge was asked")


def test_without_enough_votes_there_is_no_verdict(store: str) -> None:
    found = units_of(store)
    assert found["heat", 0, MATCH, None].passed is None
    assert found["heat", 0, RUBRICS, "short"].passed is None  # two votes of five, which three others could overrule
    assert found["heat", 0, RUBRICS, "polite"].passed is None


def test_a_case_with_a_single_cell_is_that_cell(store: str) -> None:
    bundle = judged.logged(store, judged.report(lost=False), "judged")
    units = judged_run(MlflowStore(store).evidence(bundle.run.run_id)).units
    whole = Unit(run_id=bundle.run.run_id, eval_id="heat", run_index=0, invocation_index=None, criterion=MATCH)
    cell = units.find(whole)
    assert cell is not None
    assert cell.invocation_index == 0
    assert units.at(MATCH, None, whole_cases=True).keys() == {cell, replace(whole, eval_id="light")}
    assert {unit.invocation_index for unit in units.at(MATCH, None, whole_cases=False)} == {0, 1}
    assert units.find(replace(whole, eval_id="nothing")) is None


def test_lower_may_be_better_and_scales_differ() -> None:
    config = load_config(
        {
            "criteria": {"response_evaluation_score": 4, "token_usage_v1": 100, "open": 1, "closed": 1},
            "custom_metrics": {
                "open": {"code_config": {"name": "a.b"}},
                "closed": {
                    "code_config": {"name": "a.b"},
                    "metric_info": {"metric_name": "closed", "metric_value_info": {"interval": {"min_value": -1, "max_value": 1}}},
                },
            },
        }
    )
    inf = float("inf")
    found = {name: config.bounds(name) for name in config.criteria}
    assert found == {"response_evaluation_score": (1, 5), "token_usage_v1": (0, inf), "open": (-inf, inf), "closed": (-1, 1)}


def test_evidence_that_is_incomplete_or_was_changed_is_refused() -> None:
    good = evidence_of(report_of())
    assert judged_run(good).report.cases
    with pytest.raises(UsageError, match="cannot be calibrated: the run is still running"):
        judged_run(replace(good, status="RUNNING"))
    with pytest.raises(TrackingError, match=r"cannot be trusted: the artifact adk_eval/config\.json was changed"):
        judged_run(replace(good, artifacts={**good.artifacts, "config.json": b"{}"}))
    with pytest.raises(TrackingError, match=r"cannot be trusted: adk_eval/cells/part-00000\.parquet cannot be read"):
        judged_run(with_artifact(good, "cells/part-00000.parquet", b"[]"))
    with pytest.raises(TrackingError, match=r"cannot be trusted: the run has no parameter adk_eval\.config_digest"):
        judged_run(replace(good, params={name: value for name, value in good.params.items() if name != "adk_eval.config_digest"}))


def test_scores_of_a_judge_without_votes_are_refused() -> None:
    silent = with_votes(evidence_of(judged.report()), lambda votes: [])
    with pytest.raises(TrackingError, match=f"cannot be trusted: case 'light', turn 1: {MATCH} has a score, but .* has no vote for it"):
        judged_run(silent)
    with pytest.raises(TrackingError, match=r"cannot be trusted: adk_eval/votes/part-00000\.parquet cannot be read"):
        judged_run(with_artifact(silent, "votes/part-00000.parquet", b"none"))
