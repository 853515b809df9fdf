"""Configs and policies as thresholds for ``mlflow.validate_evaluation_results``, on results of MLflow's own evaluation."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import ConfigError, PolicyError
from mlflow_adk_eval.gating.policy.load import load_policy
from tests.integrations.plugin_kit import cold, configured_store
from tests.tracking.small import CONFIG, expected_of, rooms

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")  # how MLflow takes a table apart

TRAJECTORY, RESPONSE = "tool_trajectory_avg_score", "response_match_score"
CHAMPION = {"alias": "champion"}


@pytest.fixture(scope="module", autouse=True)
def uri(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow loads its list of evaluators in a way that Python 3.12 has given up
        importlib.import_module("mlflow.models.evaluation.evaluator_registry")
    with configured_store(template, tmp_path_factory.mktemp("thresholds")) as configured:
        yield configured


def by_the_evaluator(recording: Any) -> Any:
    import mlflow

    data = mlflow.data.from_adk_evalset(rooms())
    return mlflow.models.evaluate(data=data, model_type="adk", evaluators="adk", evaluator_config={"config": CONFIG, "actual": recording})


@pytest.fixture(scope="module")
def good(uri: str) -> Any:
    return by_the_evaluator(expected_of(rooms()))


@pytest.fixture(scope="module")
def bad(uri: str) -> Any:
    return by_the_evaluator(cold())


def shown(thresholds: dict[str, Any]) -> dict[str, str]:
    return {name: str(threshold) for name, threshold in thresholds.items()}


def fails(thresholds: dict[str, Any], candidate: Any, baseline: Any = None) -> str:
    """Return what MLflow says of a candidate that it refuses; nothing of one that it lets pass."""
    import mlflow
    from mlflow.models.evaluation.validation import ModelValidationFailedException

    try:
        mlflow.validate_evaluation_results(thresholds, candidate, baseline)
    except ModelValidationFailedException as error:
        return str(error)
    return ""


def test_a_config_demands_that_every_case_reaches_each_threshold(good: Any, bad: Any, tmp_path: Path) -> None:
    (tmp_path / "test_config.json").write_text(json.dumps(CONFIG))
    for source in (CONFIG, tmp_path / "test_config.json", adk_eval.load_config(CONFIG)):
        thresholds = adk_eval.metrics.thresholds(source)
        assert shown(thresholds) == dict.fromkeys(
            (f"{TRAJECTORY}/pass_rate", f"{RESPONSE}/pass_rate"), "Threshold: 1.0. Greater value is better."
        )
        assert not fails(thresholds, good)
        assert f"{TRAJECTORY}/pass_rate value threshold check failed" in fails(thresholds, bad)
    assert list(adk_eval.metrics.thresholds()) == [f"{TRAJECTORY}/pass_rate", f"{RESPONSE}/pass_rate"]


def test_a_policy_demands_what_its_rules_say(good: Any, bad: Any, tmp_path: Path) -> None:
    text = f"min_cases: 3\nrules:\n  {TRAJECTORY}: {{min: 0.6}}\n  {RESPONSE}/pass_rate: {{min: 0.9}}\n  tool_call_count_v1: {{max: 99}}\n"
    (tmp_path / "gate.yaml").write_text(text)
    thresholds = adk_eval.metrics.thresholds(tmp_path / "gate.yaml")
    assert shown(thresholds) == {
        "cases": "Threshold: 3. Greater value is better.",
        f"{TRAJECTORY}/mean": "Threshold: 0.6. Greater value is better.",
        f"{RESPONSE}/pass_rate": "Threshold: 0.9. Greater value is better.",
        "tool_call_count_v1/mean": "Threshold: 99.0. Lower value is better.",
    }
    assert not fails(thresholds, good)
    told = fails(thresholds, bad)
    assert f"{RESPONSE}/pass_rate value threshold check failed" in told
    assert f"{TRAJECTORY}/mean" not in told


def test_a_policy_in_json_and_one_with_the_thresholds_of_a_config(good: Any, bad: Any, tmp_path: Path) -> None:
    (tmp_path / "gate.json").write_text(json.dumps({"thresholds": True}))
    thresholds = adk_eval.metrics.thresholds(tmp_path / "gate.json", config=CONFIG)
    assert shown(thresholds) == shown(adk_eval.metrics.thresholds(CONFIG))
    assert not fails(thresholds, good)
    assert fails(thresholds, bad)
    with pytest.raises(PolicyError, match=r"\$\.thresholds: .* as config="):
        adk_eval.metrics.thresholds(load_policy(None))


def test_the_same_thresholds_fit_a_table_that_was_judged_by_metrics(uri: str) -> None:
    import mlflow

    table = pd.DataFrame({"answer": ["the light is on", "no"], "expected": ["the light is on", "it is set to 21 degrees"]})
    config = {"criteria": {RESPONSE: 0.5}}

    def result(rows: pd.DataFrame) -> Any:
        metrics = adk_eval.metrics.from_config(config)
        return mlflow.models.evaluate(data=rows, predictions="answer", targets="expected", extra_metrics=metrics)

    thresholds = adk_eval.metrics.thresholds(config)
    assert not fails(thresholds, result(table[:1]))
    assert f"{RESPONSE}/pass_rate" in fails(thresholds, result(table))


def test_no_drop_is_held_against_the_baselines_result(good: Any, bad: Any) -> None:
    thresholds = adk_eval.metrics.thresholds({"rules": {TRAJECTORY: {"max_drop": 0, "use": "mean"}}, "baseline": CHAMPION})
    assert not fails(thresholds, good, good)
    assert not fails(thresholds, good, bad)
    assert "minimum relative change check failed" in fails(thresholds, bad, good)


def test_an_allowed_drop_follows_from_the_baselines_result(good: Any, bad: Any) -> None:
    def policy(drop: float, **more: float) -> dict[str, Any]:
        return {"rules": {TRAJECTORY: {"max_drop": drop, "use": "mean", **more}}, "baseline": CHAMPION}

    assert not fails(adk_eval.metrics.thresholds(policy(0.4), baseline=good), bad, good)
    assert fails(adk_eval.metrics.thresholds(policy(0.3), baseline=good), bad, good)
    assert fails(adk_eval.metrics.thresholds(policy(0.4, min=0.9), baseline=good), bad, good)
    (most,) = adk_eval.metrics.thresholds(policy(0.4, min=0.2), baseline=good).values()
    assert most.threshold == pytest.approx(0.6)
    with pytest.raises(PolicyError, match=r"max_drop: found an allowed drop; wanted max_drop: 0, or the baseline's result"):
        adk_eval.metrics.thresholds(policy(0.4))


def test_where_lower_is_better_a_drop_is_a_rise() -> None:
    from mlflow.models import EvaluationResult

    before = EvaluationResult(metrics={"token_usage_v1/mean": 100.0}, artifacts={})
    rules = {"token_usage_v1": {"max": 120, "max_drop": 5, "use": "mean"}}
    (found,) = adk_eval.metrics.thresholds({"rules": rules, "baseline": CHAMPION}, baseline=before).values()
    assert (found.threshold, found.greater_is_better) == (105.0, False)
    (none_worse,) = adk_eval.metrics.thresholds(
        {"rules": {"token_usage_v1": {"max_drop": 0, "use": "mean"}}, "baseline": CHAMPION}
    ).values()
    assert (none_worse.min_relative_change, none_worse.greater_is_better) == (0.0, False)


PUBLIC = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n-----END PUBLIC KEY-----"
UNKNOWN = {
    "$.slices": {"slices": {"refunds": {"ids": ["r_*"], "rules": {RESPONSE: {"min": 0.5}}}}},
    "$.waivers": {"waivers": [{"case": "a", "owner": "ann", "reason": "flaky", "expires": "2030-01-01"}]},
    "$.must_pass": {"must_pass": ["light"]},
    "$.max_age": {"max_age": "7d"},
    "$.eval_set": {"eval_set": {"id": "rooms"}},
    "$.config": {"config": {"criteria": {RESPONSE: 0.5}}},
    "$.rules.safety_v1.range": {"rules": {RESPONSE: {"min": 0.5}, "safety_v1": {"min": 0.5, "range": [0, 1]}}},
    "$.attestation": {"attestation": {"keys": [PUBLIC]}},
    "$.judge": {"judge": {"models": ["gemini-2.5-flash"]}},
    "$.rules.safety_v1.use": {"rules": {RESPONSE: {"min": 0.5}, "safety_v1": {"min": 0.5, "use": "ci_low"}}},
    "$.rules.cost": {"rules": {RESPONSE: {"min": 0.5}, "cost": {"max": 1}}, "prices": {"agent": {"tokens": 1}}},
    "$.rules.safety_v1/flip_rate": {"rules": {RESPONSE: {"min": 0.5}, "safety_v1/flip_rate": {"max": 0.1}}},
    "$.rules.token_usage_v1": {"rules": {RESPONSE: {"min": 0.5}, "token_usage_v1": {"min": 10, "max": 20}}},
    "$.rules.safety_v1.max_drop": {"rules": {RESPONSE: {"min": 0.5}, "safety_v1": {"max_drop": 0}}, "baseline": CHAMPION},
}


@pytest.mark.parametrize("place", UNKNOWN)
def test_what_mlflow_cannot_express_is_an_error_unless_it_may_be_lost(place: str) -> None:
    policy = {"rules": {RESPONSE: {"min": 0.5}}} | UNKNOWN[place]
    with pytest.raises(PolicyError) as caught:
        adk_eval.metrics.thresholds(policy)
    assert [problem.path for problem in caught.value.problems] == [place]
    lossy = adk_eval.metrics.thresholds(policy, lossy=True)
    assert lossy[f"{RESPONSE}/mean"].threshold == 0.5
    assert set(lossy) <= {f"{RESPONSE}/mean", "token_usage_v1/mean", "safety_v1/mean"}


def test_measures_that_have_metrics_of_their_own() -> None:
    found = adk_eval.metrics.thresholds({"rules": {"pass^3": {"min": 0.8}, "judge_flip_rate": {"max": 0.1}}})
    assert list(found) == ["pass_hat_3", "judge/flip_rate"]


def test_a_wrong_config_is_told_as_one() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'tool_trajectory_avg_score'"):
        adk_eval.metrics.thresholds({"criteria": {"tool_trajectory_score": 1.0}})
