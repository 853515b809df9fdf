"""What a run's metrics are, as they are logged and computed again."""

from __future__ import annotations

import pytest

from mlflow_adk_eval.runs.examined import examine
from mlflow_adk_eval.runs.manifest import recomputed_metrics, rounded_metric
from tests.gating.gate_kit import changed, evidence_of, report_of

HALF = report_of(wrong=["heating"])


@pytest.mark.parametrize(
    ("value", "logged"),
    [(3 / 11, 0.2727273), (2 / 3, 0.6666667), (1 / 3000, 0.0003333333), (1234.56789, 1234.568), (123456789, 123456789), (0, 0), (1.0, 1.0)],
)
def test_a_metric_is_logged_with_the_seven_digits_that_mlflow_shows(value: float, logged: float) -> None:
    assert rounded_metric(value) == logged


def test_metrics_as_they_are_logged_and_as_they_were_computed_are_those_of_the_table() -> None:
    evidence = evidence_of(HALF)
    wanted = {name: value for name, value in recomputed_metrics(HALF).items() if value is not None}
    assert wanted["case_pass_rate"] == 2 / 3
    for metrics in (wanted, {name: rounded_metric(value) for name, value in wanted.items()}):
        assert examine(changed(evidence, "metrics", metrics)).problems == ()


@pytest.mark.parametrize("by", [1e-6, -1e-6, 1e-8])
def test_a_metric_that_is_off_by_a_digit_that_was_logged_contradicts_the_table(by: float) -> None:
    (problem,) = examine(changed(evidence_of(HALF), "metrics", {"case_pass_rate": 2 / 3 + by})).problems
    assert problem.startswith("the logged metric case_pass_rate is 0.66666")
