"""Running only the cases that failed in an earlier run: what is run, what the run says, and that the gate does not take it for the whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.evalset.files import select
from mlflow_adk_eval.evalset.models import EvalSet, eval_set_digest
from tests.kit import case, cases, turn
from tests.mlflow_kit import copied

pytestmark = pytest.mark.filterwarnings("ignore")

CONFIG = {
    "criteria": {"response_match_score": 0.8},
    "case_criteria": {"one": {"response_match_score": 0.9}, "two": {"response_match_score": 0.9}},
}
ANSWERS = {"one": "first answer", "two": "second reply", "three": "third word"}


SET = cases(*(case(eval_id, turn(answer, user=eval_id)) for eval_id, answer in ANSWERS.items()), eval_set_id="numbers")


@pytest.fixture(scope="module")
def store(template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return copied(template, tmp_path_factory.mktemp("failed"))


def agent(**wrong: str) -> Any:
    asked: list[str] = []

    def numbers(message: str) -> str:
        asked.append(message)
        return wrong.get(message) or ANSWERS[message]

    numbers.asked = asked  # type: ignore[attr-defined]
    return numbers


@pytest.fixture(scope="module")
def earlier(store: str) -> str:
    report = adk_eval.evaluate(SET, agent(two="no", three="no"), CONFIG, experiment="numbers", tracking_uri=store)
    assert report.run_id is not None
    return report.run_id


def test_only_what_failed_is_run_and_the_run_says_so(store: str, earlier: str) -> None:
    from mlflow import MlflowClient

    better = agent(three="no")
    report = adk_eval.evaluate(SET, better, CONFIG, failed=f"runs:/{earlier}", experiment="numbers", tracking_uri=store)
    assert sorted(better.asked) == ["three", "two"]
    assert {found.eval_id: found.verdict for found in report.cases} == {"two": "passed", "three": "failed"}
    assert list(report.config.case_criteria) == ["two"]
    run = MlflowClient(store).get_run(report.run_id)
    assert run.data.params["adk_eval.failed_of"] == earlier
    assert re.fullmatch(rf"numbers · \d\d:\d\d \(failed of {earlier[:8]}\)", run.info.run_name or "")
    again = adk_eval.evaluate(SET, agent(), CONFIG, failed=report.run_id, experiment="numbers", tracking_uri=store)
    assert [found.eval_id for found in again.cases] == ["three"]
    with pytest.raises(adk_eval.UsageError, match="every case passed in run"):
        adk_eval.evaluate(SET, agent(), CONFIG, failed=again.run_id, experiment="numbers", tracking_uri=store)


@pytest.mark.parametrize("policy", [None, {"thresholds": True}, {"thresholds": True, "eval_set": {"id": "numbers"}}])
def test_the_gate_takes_it_for_no_evidence_of_the_whole(store: str, earlier: str, policy: Any) -> None:
    report = adk_eval.evaluate(SET, agent(), CONFIG, failed=earlier, experiment="numbers", tracking_uri=store)
    assert report.passed
    decision = adk_eval.gate(report, policy, raise_on_failure=False, tracking_uri=store)
    assert decision.verdict == "undecided"
    wanted = f"the run covers only the cases that did not pass in run {earlier}, so it is not evidence for the whole eval set"
    assert wanted in decision.reasons


def test_the_gate_takes_it_where_the_policy_pins_exactly_these_cases(store: str, earlier: str) -> None:
    report = adk_eval.evaluate(SET, agent(), CONFIG, failed=earlier, experiment="numbers", tracking_uri=store)

    def verdict(eval_set: EvalSet) -> str:
        policy = {"thresholds": True, "eval_set": {"digest": eval_set_digest(eval_set)}}
        return adk_eval.gate(report, policy, raise_on_failure=False, tracking_uri=store).verdict

    assert verdict(select(SET, ["two", "three"])) == "passed"
    assert verdict(SET) == "undecided"


def test_what_cannot_be_run_again_is_refused_before_the_agent_is_called(store: str, earlier: str) -> None:
    smaller, unused = select(SET, ["one", "two"]), agent()
    with pytest.raises(adk_eval.UsageError, match="has no case 'three'"):
        adk_eval.evaluate(smaller, unused, CONFIG, failed=earlier, tracking_uri=store)
    with pytest.raises(adk_eval.UsageError, match="nobody"):
        adk_eval.evaluate(SET, unused, CONFIG, failed="nobody", tracking_uri=store)
    assert unused.asked == []


def test_rows_that_are_read_as_they_are_needed(store: str, earlier: str, tmp_path: Path) -> None:
    from mlflow_adk_eval.evalset.files import dumps

    (tmp_path / "numbers.jsonl").write_text("".join(dumps(one, indent=None) for one in SET.eval_cases))
    report = adk_eval.evaluate(tmp_path / "numbers.jsonl", agent(), CONFIG, failed=earlier, experiment="numbers", tracking_uri=store)
    assert [found.eval_id for found in report.cases] == ["two", "three"]
