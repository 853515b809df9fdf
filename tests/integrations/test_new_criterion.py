"""A criterion is one spec: one that is registered here works through every door, and is gone afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pandas as pd
import pytest
from pydantic import Field

from mlflow_adk_eval import evaluate, gate, load_config, metrics, score, scorers
from mlflow_adk_eval.config.spec import CRITERIA, CriterionSettings, CriterionSpec
from mlflow_adk_eval.criteria.criterion import CaseRun, judge_pairs
from mlflow_adk_eval.errors import ConfigError
from mlflow_adk_eval.evalset.files import write_eval_set
from mlflow_adk_eval.evalset.models import Invocation
from mlflow_adk_eval.results.outcomes import Judged, Scored
from mlflow_adk_eval.testing import AgentEvaluator, evaluate_agent
from tests.integrations.genai import QUIET, genai_store
from tests.tracking.small import eval_set, expected_of, turn

__all__ = ["genai_store"]
pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")]

NAME = "words_too_many_v1"


class TooLongSettings(CriterionSettings):
    """How long an answer may be."""

    spare: int = Field(default=0, ge=0, description="how many words more than the reference cost nothing.")


@dataclass(frozen=True, slots=True)
class TooLong:
    """How many words each answer has more than its reference."""

    settings: TooLongSettings

    def __call__(self, run: CaseRun, /) -> Judged:
        return judge_pairs(run, self._turn)

    def _turn(self, actual: Invocation, expected: Invocation) -> Scored:
        more = len(actual.final_text.split()) - len(expected.final_text.split()) - self.settings.spare
        return Scored(float(max(more, 0)), f"{more} words too many.")


SPEC = CriterionSpec(
    name=NAME,
    origin="ours",
    about="how many words each answer has more than its reference; lower is better",
    kept="the number of words",
    settings=TooLongSettings,
    bounds=(0.0, 5.0),
    greater_is_better=False,
    needs=("reference", "expected_response"),
    make=TooLong,
)
CASES = eval_set({"short": [turn("light on", "it is on")], "long": [turn("heating on", "it is on")]})
DID = expected_of(CASES) | {"long": [turn("heating on", "the heating is on now")]}
CONFIG = {"criteria": {NAME: 1}}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    CRITERIA.register(SPEC)
    yield
    CRITERIA.unregister(NAME)


def agent(text: str) -> str:
    return "it is on" if text == "light on" else "the heating is on now"


def test_a_config_reads_its_settings_and_its_range() -> None:
    assert load_config({"criteria": {NAME: {"threshold": 5, "spare": 2}}}).criteria[NAME] == TooLongSettings(threshold=5.0, spare=2)
    for settings, problem in (
        ({"threshold": 6}, "found 6; wanted a number from 0 to 5"),
        ({"threshold": 1, "spar": 2}, "Did you mean 'spare'"),
        ({"threshold": 1, "spare": -1}, "spare: found -1"),
    ):
        with pytest.raises(ConfigError, match=problem):
            load_config({"criteria": {NAME: settings}})
    with pytest.raises(ConfigError, match=f"Did you mean '{NAME}'"):
        load_config({"criteria": {"word_too_many_v1": 1}})


def test_what_it_needs_is_asked_for_when_an_evaluation_is_planned() -> None:
    scenario = {"starting_prompt": "Hello", "conversation_plan": "Say goodbye"}
    talk = CASES.model_validate({"eval_set_id": "talk", "eval_cases": [{"eval_id": "talk", "conversation_scenario": scenario}]})
    with pytest.raises(ConfigError, match=f"{NAME}: found a criterion that needs a reference conversation"):
        score(talk, {"talk": [turn("Hello", "Hi")]}, CONFIG)


def test_a_recording_is_scored() -> None:
    report = score(CASES, DID, CONFIG)
    assert {case.eval_id: case.results[0].score for case in report.cases} == {"short": 0.0, "long": 2.0}
    assert report.reasons == (f"long: {NAME} is 2, above its threshold 1",)
    assert score(CASES, DID, {"criteria": {NAME: {"threshold": 1, "spare": 1}}}).passed


def test_a_run_is_logged_and_the_gate_holds_it_to_the_threshold(store: str) -> None:
    import mlflow

    report = evaluate(CASES, DID, CONFIG, tracking_uri=store)
    assert mlflow.get_run(str(report.run_id)).data.metrics[f"{NAME}/mean"] == 1.0
    decision = gate(report, tracking_uri=store, raise_on_failure=False)
    assert not decision.passed
    assert any(NAME in reason for reason in decision.reasons)
    generous = evaluate(CASES, DID, {"criteria": {NAME: 2}}, tracking_uri=store)
    assert gate(generous, tracking_uri=store).passed
    assert gate(generous, {"rules": {NAME: {"max": 1.5}}}, tracking_uri=store).passed
    assert not gate(generous, {"rules": {NAME: {"max": 0.5}}}, tracking_uri=store, raise_on_failure=False).passed


def test_the_gate_refuses_a_score_outside_its_range(store: str) -> None:
    tall = {**DID, "long": [turn("heating on", "on " * 20)]}
    report = evaluate(CASES, tall, CONFIG, tracking_uri=store)
    decision = gate(report, {"rules": {NAME: {"max": 4}}}, tracking_uri=store, raise_on_failure=False)
    assert not decision.passed
    assert any(f"the score of {NAME} is 17.0, outside its range from 0 to 5" in reason for reason in decision.reasons), decision.reasons


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    "made", [lambda: [getattr(metrics, NAME)(threshold=1)], lambda: metrics.from_config(CONFIG)], ids=["named", "config"]
)
def test_it_is_a_metric_of_mlflow(made: Any) -> None:
    import mlflow

    table = pd.DataFrame({"expected": ["it is on", "it is on"], "answer": ["it is on", "the heating is on now"]})
    result = mlflow.models.evaluate(data=table, predictions="answer", targets="expected", extra_metrics=made())
    assert {key: result.metrics[f"{NAME}/{key}"] for key in ("mean", "pass_rate", "evaluated")} == {
        "mean": 1.0,
        "pass_rate": 0.5,
        "evaluated": 2,
    }
    assert NAME in dir(metrics)
    assert f"Return ``{NAME}``: {SPEC.about}." in getattr(metrics, NAME).__doc__
    assert "spare: how many words more than the reference cost nothing." in getattr(metrics, NAME).__doc__


@pytest.mark.usefixtures("store")
def test_it_is_a_scorer_of_mlflow() -> None:
    import mlflow

    rows = [
        {"inputs": {"user": "heating on"}, "outputs": "the heating is on now", "expectations": {"expected_response": "it is on"}},
        {"inputs": {"user": "heating on"}, "outputs": "the heating is on now"},
    ]
    result = mlflow.genai.evaluate(data=rows, scorers=[getattr(scorers, NAME)(threshold=1)])
    assert result.metrics == {f"{NAME}/mean": 2.0}  # the row without a reference has no score
    assert NAME in dir(scorers)


def test_a_pytest_test_fails_by_it(tmp_path: Path) -> None:
    write_eval_set(CASES, tmp_path / "rooms.test.json")
    (tmp_path / "test_config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(AssertionError, match=f"{NAME} is 2, above its threshold 1"):
        anyio.run(lambda: evaluate_agent(agent, tmp_path / "rooms.test.json", num_runs=1, print_detailed_results=False))
    generous = load_config({"criteria": {NAME: 2}})
    anyio.run(lambda: AgentEvaluator.evaluate_eval_set(agent, CASES, eval_config=generous, num_runs=1))


def test_the_evaluator_plugin_knows_it(store: str) -> None:
    import mlflow

    result = mlflow.models.evaluate(
        data=mlflow.data.from_adk_evalset(CASES), model_type="adk", evaluators="adk", evaluator_config={"config": CONFIG, "actual": DID}
    )
    assert result.metrics[f"{NAME}/mean"] == 1.0
    assert not gate(result.run_id, tracking_uri=store, raise_on_failure=False).passed


def test_afterwards_it_is_gone() -> None:
    assert getattr(scorers, NAME) is getattr(scorers, NAME)
    with pytest.raises(ValueError, match="already"):
        CRITERIA.register(SPEC)
    CRITERIA.unregister(NAME)
    try:
        assert NAME not in CRITERIA
        with pytest.raises(ConfigError, match="an unknown criterion"):
            load_config(CONFIG)
        for module in (metrics, scorers):
            assert NAME not in dir(module)
            with pytest.raises(AttributeError, match=f"no attribute '{NAME}'"):
                getattr(module, NAME)
        with pytest.raises(KeyError):
            CRITERIA.unregister(NAME)
    finally:
        CRITERIA.register(SPEC)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"bounds": (1.0, 1.0)}, "no score can be within"),
        ({"by_service": TooLong}, "settings without a backend"),
        ({"needs": ("rubrics",)}, "rubrics need a rubric type, and the other way round"),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(wrong: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        CriterionSpec(name="other", origin="ours", about="a", kept="b", make=TooLong, **wrong)
