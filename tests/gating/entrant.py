"""A registered version with the run that evaluated it."""

from __future__ import annotations

from typing import Any

from mlflow_adk_eval.gating.api import promote, verify
from mlflow_adk_eval.gating.promotion.record import RecordLocation, read_location
from mlflow_adk_eval.results.decision import Decision
from tests.gating.gate_kit import Lab, evidence_of, report_of

GOOD, BAD = report_of(), report_of(wrong=["heating"])


class Entrant:
    def __init__(self, lab: Lab, name: str, *, good: bool = True) -> None:
        self.lab, self.name, self.model_id = lab, name, lab.agent()
        self.version = lab.register(name, f"models:/{self.model_id}")
        self.run_id = lab.log(evidence_of(GOOD if good else BAD, model_id=self.model_id))

    def promote(self, alias: str = "champion", **options: Any) -> Decision:
        return promote(self.name, self.version, alias, run_id=self.run_id, tracking_uri=self.lab.uri, **options)

    def verify(self, **options: Any) -> Decision:
        return verify(self.name, tracking_uri=self.lab.uri, **{"alias": "champion", **options})

    def set_by_hand(self, alias: str = "champion") -> None:
        self.lab.client.set_registered_model_alias(self.name, alias, self.version)

    @property
    def tags(self) -> dict[str, str]:
        return self.lab.tags(self.name, self.version)

    @property
    def record(self) -> RecordLocation:
        """Where the record of the last decision lies, by the version's tags."""
        found = read_location(self.tags["adk_eval.gate.record"])
        assert found is not None
        return found


def promoted(lab: Lab, name: str, count: int, **options: Any) -> list[Entrant]:
    """Return versions of a model of which each was promoted after the other."""
    entrants = [Entrant(lab, name) for _ in range(count)]
    for entrant in entrants:
        entrant.promote(**options)
    return entrants
