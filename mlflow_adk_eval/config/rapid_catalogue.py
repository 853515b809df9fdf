"""The metrics of the Rapid Eval API: what each is called, takes and answers. Data only.

Source: the API's documentation, with the spellings of ``google.cloud.aiplatform_v1beta1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


_VERSION: Mapping[str, type] = {"version": int}
_WITH_REFERENCE: Mapping[str, type] = {"use_reference": bool, **_VERSION}
_TEXT = ("prediction", "instruction", "context")
_QUALITY = {1: "very bad", 2: "bad", 3: "fair", 4: "good", 5: "very good"}


def _computed(name: str, about: str, spec: Mapping[str, type] | None = None) -> RapidMetric:
    return RapidMetric(name=name, kind="computed", fields=("prediction", "reference"), spec=spec or {}, scale={}, about=about)


def _judged(
    name: str, about: str, scale: Mapping[int, str], fields: tuple[str, ...] = ("prediction",), spec: Mapping[str, type] = _VERSION
) -> RapidMetric:
    bounds = (float(min(scale)), float(max(scale)))
    return RapidMetric(name=name, kind="judged", fields=fields, spec=spec, scale=scale, bounds=bounds, about=about)


def _on_text(name: str, about: str, scale: Mapping[int, str] = _QUALITY) -> RapidMetric:
    return _judged(name, about, scale, _TEXT, _WITH_REFERENCE)


def _pairwise(name: str, about: str) -> RapidMetric:
    fields = ("baseline_prediction", *_TEXT)
    return RapidMetric(name=name, kind="pairwise", fields=fields, spec=_WITH_REFERENCE, scale={}, about=about)


_ALL = (
    _computed("exact_match", "1 if the answer equals the reference exactly, else 0"),
    _computed("bleu", "BLEU of the answer against the reference", {"use_effective_order": bool}),
    _computed(
        "rouge", "ROUGE F-measure of the answer against the reference", {"rouge_type": str, "use_stemmer": bool, "split_summaries": bool}
    ),
    _computed("tool_call_valid", "1 if the tool calls are well-formed, else 0"),
    _computed("tool_name_match", "1 if the called tools match the reference, else 0"),
    _computed("tool_parameter_key_match", "the share of the reference's parameter names that the call has"),
    _computed(
        "tool_parameter_kv_match",
        "the share of the reference's parameters that the call has with the same values",
        {"use_strict_string_match": bool},
    ),
    _judged(
        "fluency",
        "how fluent the language of the answer is, from 1 to 5",
        {1: "not fluent", 2: "somewhat not fluent", 3: "neutral", 4: "somewhat fluent", 5: "fluent"},
    ),
    _judged(
        "coherence",
        "how coherent the answer is, from 1 to 5",
        {1: "incoherent", 2: "somewhat incoherent", 3: "neutral", 4: "somewhat coherent", 5: "coherent"},
    ),
    _judged("safety", "1 for a safe answer, else 0", {0: "unsafe", 1: "safe"}),
    _judged(
        "groundedness",
        "1 if the context supports everything in the answer, else 0",
        {0: "not grounded", 1: "grounded"},
        ("prediction", "context"),
    ),
    _judged(
        "fulfillment",
        "how completely the answer follows the instruction, from 1 to 5",
        {1: "no fulfillment", 2: "poor fulfillment", 3: "some fulfillment", 4: "good fulfillment", 5: "complete fulfillment"},
        ("prediction", "instruction"),
    ),
    _on_text("summarization_quality", "how well the answer summarizes the context, from 1 to 5"),
    _on_text(
        "summarization_helpfulness",
        "how well the summary can replace the context, from 1 to 5",
        {1: "unhelpful", 2: "somewhat unhelpful", 3: "neutral", 4: "somewhat helpful", 5: "helpful"},
    ),
    _on_text(
        "summarization_verbosity",
        "how far the summary's length is from optimal, from -2 (terse) to 2 (verbose)",
        {-2: "terse", -1: "somewhat terse", 0: "optimal", 1: "somewhat verbose", 2: "verbose"},
    ),
    _on_text("question_answering_quality", "how well the answer uses the context to answer the question, from 1 to 5"),
    _on_text(
        "question_answering_relevance",
        "how relevant the answer is to the question, from 1 to 5",
        {1: "irrelevant", 2: "somewhat irrelevant", 3: "neutral", 4: "somewhat relevant", 5: "relevant"},
    ),
    _on_text(
        "question_answering_helpfulness",
        "how helpful the answer's details are, from 1 to 5",
        {1: "unhelpful", 2: "somewhat unhelpful", 3: "neutral", 4: "somewhat helpful", 5: "helpful"},
    ),
    _on_text("question_answering_correctness", "1 for a correct answer, else 0", {0: "incorrect", 1: "correct"}),
    _pairwise("pairwise_summarization_quality", "which of two answers is the better summary of the context"),
    _pairwise("pairwise_question_answering_quality", "which of two answers answers the question better"),
)

RAPID_METRICS: Mapping[str, RapidMetric] = {metric.name: metric for metric in _ALL}
"""Every metric by name: seven computed, twelve judged, two pairwise."""

CHOICES = ("BASELINE", "CANDIDATE", "TIE")
"""What a pairwise metric answers."""
