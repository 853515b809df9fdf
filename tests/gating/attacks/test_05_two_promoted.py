"""Attack 5: two promoters who both believe that they may set the alias, since one is slow and clocks differ."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from mlflow_adk_eval.errors import AliasBusyError
from mlflow_adk_eval.gating.api import audit
from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY
from mlflow_adk_eval.gating.promotion.promote import promote_in
from mlflow_adk_eval.gating.promotion.record import Target
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.store import reaching
from tests.gating.entrant import Entrant
from tests.gating.gate_kit import Lab
from tests.gating.promotion.claim_kit import claim_log_of

pytestmark = pytest.mark.slow


class Slow(MlflowStore):
    """A store whose request for the alias arrives after something else has happened."""

    def __init__(self, lab: Lab, meanwhile: Callable[[], object]) -> None:
        super().__init__(lab.uri, lab.uri)
        self.meanwhile = meanwhile

    def set_alias(self, target: Target) -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        super().set_alias(target)


def promoted(store: MlflowStore, entrant: Entrant) -> Decision:
    target = Target(name=entrant.name, version=entrant.version, alias="champion")
    return promote_in(store, target, entrant.run_id, DEFAULT_POLICY)


def test_a_clock_that_is_ahead_does_not_make_the_owner_dead(lab: Lab, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = Entrant(lab, model), Entrant(lab, model)

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Ahead:
            return super().now(tz) + timedelta(minutes=6)

    def overtake() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(reaching, "datetime", Ahead)
            with pytest.raises(AliasBusyError, match="the alias champion is being set: a promotion to version 1, by "):
                fast.promote(wait_s=0)

    assert promoted(Slow(lab, overtake), slow).passed
    assert lab.alias(model) == slow.version


def test_who_comes_after_its_claim_was_given_up_is_refused_and_gives_the_alias_back(lab: Lab, model: str) -> None:
    slow, fast = Entrant(lab, model), Entrant(lab, model)
    found: list[Decision] = []
    impatient = MlflowStore(lab.uri, lab.uri)
    impatient.grace_s = 0
    late = promoted(Slow(lab, lambda: found.append(promoted(impatient, fast))), slow)
    assert found[0].passed
    assert late.verdict == "undecided"
    assert late.reasons == ("MLflow took so long to set the alias champion that another process closed the claim as lost",)
    assert lab.alias(model) == fast.version
    assert fast.verify().passed
    assert audit(model, tracking_uri=lab.uri)[0].valid
    assert [entry.state for entry in claim_log_of(MlflowStore(lab.uri), model).entries] == ["lost", "done"]
    assert "mlflow.adk_eval.gate.passed.champion" not in slow.tags


def test_a_machine_that_slept_after_it_confirmed_sets_nothing(lab: Lab, model: str) -> None:
    class Asleep(MlflowStore):
        slept = timedelta()

        def now(self, name: str) -> datetime:
            return super().now(name) + self.slept

        def claim(self, name: str, key: str, text: str) -> str:
            found = super().claim(name, key, text)
            if ".go." in key:
                self.slept = timedelta(hours=1)
            return found

    entrant = Entrant(lab, model)
    with pytest.raises(AliasBusyError, match="MLflow took 3600 s to confirm the claim, so the alias champion was not set"):
        promoted(Asleep(lab.uri, lab.uri), entrant)
    assert lab.alias(model) is None
