"""The metrics that are computed: exact match, BLEU, ROUGE, and four on tool calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from mlflow_adk_eval.kernels.sentences import sentences
from mlflow_adk_eval.kernels.words import tokens, words
from mlflow_adk_eval.rapid_eval.tool_calls import key_match, kv_match, name_match, valid

_FULL = 100.0
"""What sacrebleu calls a perfect score."""
_DEFAULT_ROUGE = "rouge1"


def computed_score(metric: str, spec: Mapping[str, Any], instance: Mapping[str, str]) -> float:
    """Return the score of one instance.

    Args:
        metric: the name of a computed metric.
        spec: its settings.
        instance: ``prediction`` and ``reference``.
    """
    return _KERNELS[metric](instance["prediction"], instance["reference"], spec)


def exact_match(prediction: str, reference: str) -> float:
    """Return 1 where two texts are equal, character by character, else 0."""
    return float(prediction == reference)


def bleu(prediction: str, reference: str, *, use_effective_order: bool = True) -> float:
    """Return sentence BLEU in [0, 1].

    Args:
        prediction: what is scored.
        reference: what it should say.
        use_effective_order: whether n-grams that a short text cannot have are left out, without which it would score 0.

    Source: sacrebleu.

    >>> bleu("The cat is on the mat.", "The cat is on the mat."), bleu("", "The cat")
    (1.0, 0.0)
    """
    found = _bleu(use_effective_order).sentence_score(prediction, [reference]).score / _FULL
    return min(float(found), 1.0)


@cache
def _bleu(use_effective_order: bool) -> Any:
    from sacrebleu.metrics.bleu import BLEU  # noqa: PLC0415 - a tenth of a second

    return BLEU(effective_order=use_effective_order)


def rouge(
    prediction: str, reference: str, *, rouge_type: str = _DEFAULT_ROUGE, use_stemmer: bool = False, split_summaries: bool = False
) -> float:
    """Return a ROUGE F-measure in [0, 1].

    Args:
        prediction: what is scored.
        reference: what it should say.
        rouge_type: ``rouge1`` to ``rouge9`` (n-grams), ``rougeL`` (longest common subsequence) or ``rougeLsum`` (that of each line).
        use_stemmer: whether English words are stemmed.
        split_summaries: whether ``rougeLsum`` takes each sentence for a line.

    Source: rouge-score, on words of any script; for texts in ASCII they are its own.

    >>> round(rouge("A fast brown fox leaps over a lazy dog.", "The quick brown fox jumps over the lazy dog."), 4)
    0.5556
    """
    kind = rouge_type.replace("rougen", "rouge")
    if kind == "rougeLsum" and split_summaries:
        prediction, reference = "\n".join(sentences(prediction)), "\n".join(sentences(reference))
    return float(_rouge(kind, use_stemmer).score(reference, prediction)[kind].fmeasure)


@dataclass(frozen=True, slots=True)
class _Tokenizer:
    """Splits texts for rouge-score."""

    split: Callable[[str], list[str]]

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text."""
        return self.split(text)


@cache
def _rouge(kind: str, use_stemmer: bool) -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # noqa: PLC0415 - loads nltk, which takes seconds

    return RougeScorer([kind], tokenizer=_Tokenizer(tokens if use_stemmer else words))


_KERNELS: Mapping[str, Callable[[str, str, Mapping[str, Any]], float]] = {
    "exact_match": lambda prediction, reference, _: exact_match(prediction, reference),
    "bleu": lambda prediction, reference, spec: bleu(prediction, reference, **spec),
    "rouge": lambda prediction, reference, spec: rouge(prediction, reference, **spec),
    "tool_call_valid": lambda prediction, _, __: valid(prediction),
    "tool_name_match": lambda prediction, reference, _: name_match(prediction, reference),
    "tool_parameter_key_match": lambda prediction, reference, _: key_match(prediction, reference),
    "tool_parameter_kv_match": lambda prediction, reference, spec: kv_match(prediction, reference, **spec),
}
