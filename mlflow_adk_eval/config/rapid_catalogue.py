"""The metrics of the Rapid Eval API: what each is called, takes and answers, as ``rapid_catalogue.json`` has it.

Source: the API's documentation, with the spellings of ``google.cloud.aiplatform_v1beta1``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

Kind = Literal["computed", "judged", "pairwise"]

PREFIX = "rapid_eval_"
"""How the metrics are called as criteria: MLflow allows no slash in the name of a metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RapidMetric:
    """One metric."""

    name: str
    """Its name in requests and answers, such as ``fluency`` in ``fluency_input`` and ``fluency_result``."""
    kind: Kind
    fields: tuple[str, ...]
    """What an instance must hold."""
    spec: Mapping[str, type]
    """The settings that ``metric_spec`` may hold, and of which type each is."""
    scale: Mapping[int, str]
    """What each grade means, from the worst or, for a scale around an optimum, from the least; empty where the score is a share."""
    bounds: tuple[float, float] = (0.0, 1.0)
    """The least and the greatest score."""
    about: str
    """What the score is, as a clause."""
    question: str = ""
    """What people are asked who label what a judge said; empty where none judges one answer."""

    @property
    def criterion(self) -> str:
        """Its name as a criterion."""
        return PREFIX + self.name

    @property
    def optional(self) -> tuple[str, ...]:
        """What an instance may hold besides."""
        return ("reference",) if "use_reference" in self.spec else ()

    @property
    def on_calls(self) -> bool:
        """Whether it compares tool calls instead of texts."""
        return self.name.startswith("tool_")

    @property
    def around_optimum(self) -> bool:
        """Whether the best grade is 0, in the middle of the scale; then the score is the distance from it, and lower is better."""
        return self.bounds[0] < 0

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest score that a criterion makes of it."""
        return (0.0, self.bounds[1]) if self.around_optimum else self.bounds

    @property
    def input_key(self) -> str:
        """Its key in a request."""
        return f"{self.name}_input"

    @property
    def result_key(self) -> str:
        """Its key in an answer."""
        return f"{self.name}_results" if self.kind == "computed" else f"{self.name}_result"

    @property
    def values_key(self) -> str:
        """The key, inside of an answer on several instances, of its list."""
        return f"{self.name}_metric_values"


_TYPES: Mapping[str, type] = {"bool": bool, "int": int, "str": str}


def _metrics() -> Iterator[RapidMetric]:
    """Yield the metrics of ``rapid_catalogue.json``."""
    catalogue = files(__package__ or "mlflow_adk_eval.config") / "rapid_catalogue.json"
    for name, facts in json.loads(catalogue.read_text("utf-8")).items():
        scale = {int(grade): meaning for grade, meaning in facts.pop("scale", {}).items()}
        spec = {key: _TYPES[kind] for key, kind in facts.pop("spec", {}).items()}
        bounds = (float(min(scale)), float(max(scale))) if scale else (0.0, 1.0)
        yield RapidMetric(name=name, fields=tuple(facts.pop("fields")), spec=spec, scale=scale, bounds=bounds, **facts)


RAPID_METRICS: Mapping[str, RapidMetric] = {metric.name: metric for metric in _metrics()}
"""Every metric by name: seven computed, twelve judged, two pairwise."""

CHOICES = ("BASELINE", "CANDIDATE", "TIE")
"""What a pairwise metric answers."""
