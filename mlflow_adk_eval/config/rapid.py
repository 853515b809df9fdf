"""The settings of the Rapid Eval API's metrics as criteria."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import StringConstraints

from mlflow_adk_eval.config.criteria import CriterionSettings, JudgedSettings, VertexSettings
from mlflow_adk_eval.config.rapid_catalogue import PREFIX, RAPID_METRICS

RougeType = Annotated[str, StringConstraints(pattern=r"^(rougen?[1-9]|rougeL|rougeLsum)$")]


class BleuSettings(CriterionSettings):
    """How BLEU is computed."""

    use_effective_order: bool = True
    """Whether n-grams that a short answer cannot have are left out, without which it would score 0."""


class RougeSettings(CriterionSettings):
    """How ROUGE is computed."""

    rouge_type: RougeType = "rouge1"
    use_stemmer: bool = False
    split_summaries: bool = False


class ParameterSettings(CriterionSettings):
    """How the parameters of tool calls are compared."""

    use_strict_string_match: bool = False
    """Whether values must be written alike; else they are compared as JSON."""


class RatingSettings(VertexSettings):
    """A rating by a model: of our own choice, or by Vertex's service."""

    backend: Literal["vertex", "judge"] = "judge"
    """Who decides: `judge_model_options` with our prompts, or the service."""


class InstructedSettings(RatingSettings):
    """A rating of an answer beside what was asked for."""

    instruction: Literal["user_message", "agent_instructions"] = "user_message"
    """What counts as the instruction: what the user said in the turn, or what the agent is told to do."""


class FulfillmentSettings(InstructedSettings):
    """A grade from 1 to 5 of how an answer does what was asked for."""

    bounds = (1.0, 5.0)


class TextRatingSettings(InstructedSettings):
    """A rating of an answer beside what it was made of."""

    use_reference: bool = False
    """Whether the judge sees the expected answer."""


class GradeSettings(RatingSettings):
    """A grade from 1 to 5 of an answer in itself."""

    bounds = (1.0, 5.0)


class TextGradeSettings(TextRatingSettings):
    """A grade from 1 to 5."""

    bounds = (1.0, 5.0)


class VerbositySettings(TextRatingSettings):
    """How far the length of a summary is from the best one, in either direction; so lower is better."""

    bounds = (0.0, 2.0)
    greater_is_better = False


class PairwiseSettings(JudgedSettings):
    """A choice between the answer and that of a baseline: 1 for the answer, 0.5 for a tie, 0 for the baseline."""

    instruction: Literal["user_message", "agent_instructions"] = "user_message"
    use_reference: bool = False


_CLASSES: Mapping[str, type[CriterionSettings]] = {
    "exact_match": CriterionSettings,
    "bleu": BleuSettings,
    "rouge": RougeSettings,
    "tool_call_valid": CriterionSettings,
    "tool_name_match": CriterionSettings,
    "tool_parameter_key_match": CriterionSettings,
    "tool_parameter_kv_match": ParameterSettings,
    "fluency": GradeSettings,
    "coherence": GradeSettings,
    "safety": RatingSettings,
    "groundedness": RatingSettings,
    "fulfillment": FulfillmentSettings,
    "summarization_quality": TextGradeSettings,
    "summarization_helpfulness": TextGradeSettings,
    "summarization_verbosity": VerbositySettings,
    "question_answering_quality": TextGradeSettings,
    "question_answering_relevance": TextGradeSettings,
    "question_answering_helpfulness": TextGradeSettings,
    "question_answering_correctness": TextRatingSettings,
    "pairwise_summarization_quality": PairwiseSettings,
    "pairwise_question_answering_quality": PairwiseSettings,
}

RAPID_SETTINGS: Mapping[str, type[CriterionSettings]] = {PREFIX + name: _CLASSES[name] for name in RAPID_METRICS}
"""Every metric by its name as a criterion, with the class of its settings."""
