"""What a judged measurement asks a contender for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from conditions import Conditions
from truth import RUBRIC_BASED, RUBRICS

MODEL = "gemini-2.5-flash"
_THRESHOLD = 0.5


@dataclass(frozen=True, kw_only=True)
class Judging:
    """A criterion that a model decides, and under which conditions."""

    criterion: str
    in_flight: int
    """The most requests at the same time."""
    cases_at_once: int = 0
    """The first of google-adk's two dials; each of these cases has its share of the requests in flight."""
    votes: int = 5
    timeout_s: float = 60.0
    """After which a request is sent again, where a contender has a timeout."""
    conditions: Conditions = field(default_factory=Conditions)

    def config(self, **options: Any) -> dict[str, Any]:
        """Return the config that says so, as ADK's files do; `options` go to the judge model's."""
        criterion = {"threshold": _THRESHOLD, "judge_model_options": {"judge_model": MODEL, "num_samples": self.votes, **options}}
        rubrics = [{"rubric_id": name, "rubric_content": {"text_property": text}} for name, text in RUBRICS.items()]
        return {"criteria": {self.criterion: criterion | ({"rubrics": rubrics} if self.criterion == RUBRIC_BASED else {})}}
