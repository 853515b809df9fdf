"""How often the runs of a decision are read and examined: once, and once more read, not examined, right before an alias is set."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.gating.api import gate, promote, verify
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.gating.rules.comparable import ReevaluationRequest
from mlflow_adk_eval.runs import stored_run
from mlflow_adk_eval.runs.examined import examine
from mlflow_adk_eval.runs.manifest import FOLDER, Evidence
from tests.gating.entrant import Entrant
from tests.gating.gate_kit import TRAJECTORY, Lab, eval_set_of, evidence_of, report_of

POLICY: dict[str, Any] = {"rules": {TRAJECTORY: {"max_drop": 0.1, "use": "mean"}}, "baseline": {"alias": "champion"}}
MORE = eval_set_of({f"case_{number}": [(f"Do {number}.", f"Done {number}.", "tool")] for number in range(9)})


class Counts:
    """How often each run was read from MLflow, and how often its evidence was examined."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads, self.examinations = Counter[str](), Counter[str]()
        read, check = MlflowStore.evidence, stored_run.integrity_problems

        def counted_read(store: MlflowStore, run_id: str) -> Evidence:
            self.reads[run_id] += 1
            return read(store, run_id)

        def counted_check(evidence: Evidence) -> list[str]:
            self.examinations[evidence.run_id] += 1
            return check(evidence)

        monkeypatch.setattr(MlflowStore, "evidence", counted_read)
        monkeypatch.setattr(stored_run, "integrity_problems", counted_check)


@pytest.fixture
def entrants(lab: Lab, model: str) -> tuple[Entrant, Entrant]:
    champion, candidate = (Entrant(lab, model) for _ in range(2))
    champion.promote()
    return champion, candidate


@pytest.fixture
def counts(entrants: tuple[Entrant, Entrant], monkeypatch: pytest.MonkeyPatch) -> Counts:
    return Counts(monkeypatch)


@pytest.mark.parametrize("source", ["alias", "run"])
def test_the_gate_reads_and_examines_each_run_once(lab: Lab, entrants: tuple[Entrant, Entrant], counts: Counts, source: str) -> None:
    champion, candidate = entrants
    baseline = f"models:/{champion.name}@champion" if source == "alias" else f"runs:/{champion.run_id}"
    decision = gate(candidate.run_id, POLICY, baseline=baseline, tracking_uri=lab.uri)
    assert decision.baseline_run_id == champion.run_id
    assert counts.reads == counts.examinations == {candidate.run_id: 1, champion.run_id: 1}


def test_a_champion_that_is_evaluated_again_is_examined_once_per_run(lab: Lab, entrants: tuple[Entrant, Entrant], counts: Counts) -> None:
    champion, candidate = entrants
    run_id = lab.log(evidence_of(report_of(eval_set=MORE), model_id=candidate.model_id))
    made: list[str] = []

    def reevaluate(request: ReevaluationRequest) -> str:
        made.append(lab.log(evidence_of(report_of(eval_set=request.candidate.eval_set), model_id=request.model_id)))
        return made[0]

    decision = gate(run_id, POLICY, model=champion.name, reevaluate=reevaluate, tracking_uri=lab.uri)
    assert decision.baseline_run_id == made[0]
    assert counts.reads == counts.examinations == {run_id: 1, champion.run_id: 1, made[0]: 1}


def test_a_promotion_examines_each_run_once_and_compares_it_once_more(entrants: tuple[Entrant, Entrant], counts: Counts) -> None:
    champion, candidate = entrants
    assert candidate.promote(policy=POLICY).baseline_run_id == champion.run_id
    assert counts.examinations == {candidate.run_id: 1, champion.run_id: 1}
    assert counts.reads == {candidate.run_id: 2, champion.run_id: 2}  # to decide, and to see under the claim that nothing was rewritten


def test_a_dry_run_and_a_verification_read_each_run_once(lab: Lab, entrants: tuple[Entrant, Entrant], counts: Counts) -> None:
    champion, candidate = entrants
    promote(candidate.name, candidate.version, run_id=candidate.run_id, policy=POLICY, dry_run=True, tracking_uri=lab.uri)
    assert counts.reads == counts.examinations == {candidate.run_id: 1, champion.run_id: 1}
    candidate.promote(policy=POLICY)
    counts.reads.clear()
    counts.examinations.clear()
    assert verify(candidate.name, alias="champion", tracking_uri=lab.uri).passed
    assert counts.reads == counts.examinations == {candidate.run_id: 1, champion.run_id: 1}


def test_the_champions_own_run_is_read_once(entrants: tuple[Entrant, Entrant], counts: Counts) -> None:
    champion, _ = entrants
    policy = POLICY | {"rules": {TRAJECTORY: {"min": 0.5, "max_drop": 0.1, "use": "mean"}}}
    assert champion.promote(policy=policy, dry_run=True).passed
    assert counts.reads == counts.examinations == {champion.run_id: 1}


class Overwritten(MlflowStore):
    """A store in which somebody replaces an artifact right after it was downloaded, as often as told."""

    def __init__(self, uri: str, times: int) -> None:
        super().__init__(uri, uri)
        self.texts = ["{" + " " * number + "}" for number in range(times)]

    def _download(self, run_id: str, path: str, target: str) -> Path:
        found = super()._download(run_id, path, target)
        if self.texts and path == FOLDER:
            self.client.log_text(run_id, self.texts.pop(), f"{FOLDER}/cells/part-00000.parquet")
        return found


def test_what_is_overwritten_while_it_is_read_is_judged_as_it_is_then(lab: Lab, model: str) -> None:
    candidate = Entrant(lab, model)
    result = examine(Overwritten(lab.uri, 1).evidence(candidate.run_id))
    assert [problem for problem in result.problems if "part-00000.parquet was changed after the run" in problem]
    with pytest.raises(OSError, match=r"bytes, but [0-9,]+ arrived"):
        Overwritten(lab.uri, 2).evidence(candidate.run_id)
