"""Each part of an evaluation is made once: the plan, the set-up of conversations, the digest of the eval set."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval import evaluate, score
from mlflow_adk_eval.agents.conversation import conversation_setups
from mlflow_adk_eval.criteria.plan import plan
from mlflow_adk_eval.evalset.models import eval_set_digest
from mlflow_adk_eval.integrations import scoring as scoring_module
from mlflow_adk_eval.integrations.scoring import explained, scoring
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.testing import ScriptedJudge
from tests.integrations.test_scoring import row
from tests.kit import RESPONSE, TRAJECTORY, case, cases, scenario, turn
from tests.tracking.small import CONFIG, answering, expected_of, rooms

MATCH = "final_response_match_v2"
PARTS = (plan, conversation_setups, eval_set_digest, JudgeSession.__init__)


@pytest.fixture
def calls_of() -> Callable[[Callable[[], Any]], Counter[str]]:
    """Count how often each part is made while something is done, by whatever name it is called."""
    names = {part.__code__: part.__qualname__ for part in PARTS}

    def count(action: Callable[[], Any]) -> Counter[str]:
        found: Counter[str] = Counter()

        def note(frame: Any, event: str, _: Any) -> None:
            if event == "call" and frame.f_code in names:
                found[names[frame.f_code]] += 1

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            action()
        finally:
            sys.setprofile(before)
        return found

    return count


def test_by_evaluate(store: str, calls_of: Any) -> None:
    found = calls_of(lambda: evaluate(rooms(), answering(rooms()), CONFIG, experiment="once", tracking_uri=store))
    assert found == {"plan": 1, "conversation_setups": 1, "eval_set_digest": 1, "JudgeSession.__init__": 1}


def test_by_evaluate_that_resumes(store: str, tmp_path: Path, calls_of: Any) -> None:
    given = {"experiment": "once", "tracking_uri": store, "ledger": tmp_path / "ledger.sqlite"}
    evaluate(rooms(), answering(rooms()), CONFIG, **given)
    found = calls_of(lambda: evaluate(rooms(), answering(rooms()), CONFIG, **given, resume="latest"))
    assert found == {"plan": 1, "conversation_setups": 1, "eval_set_digest": 1, "JudgeSession.__init__": 1}


def test_by_score(calls_of: Any) -> None:
    found = calls_of(lambda: score(rooms(), expected_of(rooms()), CONFIG))
    assert found == {"plan": 1, "conversation_setups": 1, "JudgeSession.__init__": 1}


class TestByScorers:
    """A criterion is planned once for all rows that it is the same in. The background loop runs in a thread of its own."""

    @pytest.fixture
    def planned(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []

        def noting(config: Any, *args: Any) -> Any:
            found.append(tuple(config.criteria))
            return plan(config, *args)

        monkeypatch.setattr(scoring_module, "plan", noting)
        return found

    def rows(self, count: int) -> list[Any]:
        return [row(case(f"c{number}", turn(f"answer {number}"))) for number in range(count)]

    def test_whatever_the_rows(self, planned: list[tuple[str, ...]]) -> None:
        ready = scoring({"criteria": {RESPONSE: 0.5, TRAJECTORY: 1.0, MATCH: 0.5}}, judge=ScriptedJudge("valid"), ledger=False)
        for criterion in ready.config.by_criterion:
            assert [found.score for found in ready.results(self.rows(5), criterion)] == [1.0] * 5
        for single in self.rows(3):
            ready.result(single, RESPONSE)
        assert planned == [(RESPONSE,), (TRAJECTORY,), (MATCH,)]

    def test_where_cases_differ_in_what_is_planned_each_kind_is_planned(self, planned: list[tuple[str, ...]]) -> None:
        ready = scoring({"criteria": {RESPONSE: 0.5}, "case_criteria": {"own": {RESPONSE: 0.9}}}, ledger=False)
        ordinary, own = self.rows(2), row(case("own", turn("x")))
        assert [ready.result(found, RESPONSE).threshold for found in (*ordinary, own)] == [0.5, 0.5, 0.9]
        assert "scenario" in explained(ready.result(row(scenario("s"), turn("x")), RESPONSE))
        assert planned == [(RESPONSE,)] * 3

    def test_rubrics_of_a_case_are_its_own(self, planned: list[tuple[str, ...]]) -> None:
        name = "rubric_based_final_response_quality_v1"
        rubric = {"rubric_id": "short", "rubric_content": {"text_property": "The answer is short."}, "type": "FINAL_RESPONSE_QUALITY"}
        without = case("without", turn("x"))
        (with_rubric,) = (
            cases(without)
            .model_copy(
                update={
                    "eval_cases": (
                        type(without).model_validate({**without.model_dump(exclude_unset=True), "eval_id": "with", "rubrics": [rubric]}),
                    )
                }
            )
            .eval_cases
        )
        ready = scoring({"criteria": {name: {"threshold": 0.5}}}, judge=ScriptedJudge("yes"), ledger=False)
        assert ready.result(row(with_rubric), name).score == 1.0
        assert "rubric" in explained(ready.result(row(without), name))
        assert ready.result(row(with_rubric), name).score == 1.0
        assert len(planned) == 2
