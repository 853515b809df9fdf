"""The metrics of the Rapid Eval API that are computed: exact match, BLEU, ROUGE, and four on tool calls.

A response with tool calls is the text of a JSON object with ``content``, what the model said, and ``tool_calls``, a list of objects with
``name`` and ``arguments``; the list may itself be the text of JSON. What cannot be read has no calls.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from mlflow_adk_eval.criteria.alignment import align, json_equal
from mlflow_adk_eval.criteria.rapid.messages import RequestError
from mlflow_adk_eval.criteria.text import common_rows, sentences, tokens, words
from mlflow_adk_eval.errors import Problem
from mlflow_adk_eval.evalset.models import FunctionCall
from mlflow_adk_eval.runtime import require_extra

_FULL = 100.0
"""What sacrebleu calls a perfect score."""
_DEFAULT_ROUGE = "rouge1"
_MOST_CELLS = 25_000_000
"""About 800 MB in rouge-score."""


def computed_score(metric: str, spec: Mapping[str, Any], instance: Mapping[str, str]) -> float:
    """Return the score of one instance.

    Args:
        metric: the name of a computed metric.
        spec: its settings.
        instance: ``prediction`` and ``reference``.
    """
    return _KERNELS[metric](instance["prediction"], instance["reference"], spec)


def load(metric: str) -> None:
    """Import now what a metric needs, so that what is missing is found before an agent or a judge is paid for.

    Raises:
        UsageError: naming the extra to install.
    """
    if metric == "bleu":
        _bleu(use_effective_order=True)


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
    score = _bleu(use_effective_order=use_effective_order).sentence_score(prediction, [reference]).score
    return min(float(score / _FULL), 1.0)


@cache
def _bleu(*, use_effective_order: bool) -> Any:
    with require_extra("rapid", "the metric bleu"):
        from sacrebleu.metrics.bleu import BLEU  # noqa: PLC0415 - an extra, which takes a tenth of a second to load

    logging.getLogger("sacrebleu").setLevel(logging.ERROR)  # it gives advice on a setting that the request made
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
        split_summaries: whether ``rougeLsum`` treats each sentence as a line.

    Source: rouge-score, on words of any script; for texts in ASCII they are its own.

    >>> round(rouge("A fast brown fox leaps over a lazy dog.", "The quick brown fox jumps over the lazy dog."), 4)
    0.5556
    """
    kind = rouge_type.replace("rougen", "rouge")
    split = tokens if use_stemmer else words
    if kind == "rougeL":
        given, wanted = split(prediction), split(reference)
        if not given or not wanted:
            return 0.0
        common = lcs_length(given, wanted)
        precision, recall = common / len(given), common / len(wanted)  # in the order of operations of rouge-score
        return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
    if kind == "rougeLsum":
        if split_summaries:
            prediction, reference = "\n".join(sentences(prediction)), "\n".join(sentences(reference))
        lengths = len(split(prediction)), len(split(reference))
        if lengths[0] * lengths[1] > _MOST_CELLS:  # whose table of common words would take gigabytes
            texts = f"texts of {lengths[0]} and {lengths[1]} words for rougeLsum"
            raise RequestError("request", [Problem("$.rouge_input", texts, "shorter texts, or rougeL, which takes any length")])
    return float(_rouge(kind, use_stemmer).score(reference, prediction)[kind].fmeasure)


def lcs_length(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the length of the longest common subsequence, in memory that grows with one side only: rouge-score keeps a table of both.

    >>> lcs_length("the quick brown fox".split(), "a quick red fox".split())
    2
    """
    [missed] = deque(common_rows(left, right), maxlen=1)
    return len(left) - missed.bit_count()


@cache
def _rouge(kind: str, use_stemmer: bool) -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # noqa: PLC0415 - loads nltk, which takes seconds

    return RougeScorer([kind], tokenizer=SimpleNamespace(tokenize=tokens if use_stemmer else words))


def read_calls(response: str) -> tuple[FunctionCall, ...] | None:
    """Return the tool calls in a response; ``None`` if it is no such response.

    >>> read_calls('{"content": "", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}')[0].name
    'f'
    >>> read_calls('{"tool_calls": [{"arguments": {}}]}') is None
    True
    """
    value = _decoded(response)
    listed = value.get("tool_calls", []) if isinstance(value, dict) else None
    listed = _decoded(listed) if isinstance(listed, str) else listed
    if not isinstance(listed, list):
        return None
    calls: list[FunctionCall] = []
    for item in listed:
        name, args = (item.get("name"), item.get("arguments", {})) if isinstance(item, dict) else (None, None)
        args = _decoded(args) if isinstance(args, str) else args
        if not isinstance(name, str) or not name or not isinstance(args, dict):
            return None
        calls.append(FunctionCall(name=name, args=args))
    return tuple(calls)


def valid(prediction: str) -> float:
    """Return 1 if a response holds at least one tool call and nothing that is none, else 0."""
    return float(bool(read_calls(prediction)))


def name_match(prediction: str, reference: str) -> float:
    """Return 1 if the called tools are those of the reference, in its order, else 0."""
    got, want = read_calls(prediction), read_calls(reference)
    return float(got is not None and want is not None and [call.name for call in got] == [call.name for call in want])


def key_match(prediction: str, reference: str) -> float:
    """Return the share of the reference's parameters whose names the same calls of the prediction have."""
    return _share(prediction, reference, lambda got, name, _: name in got)


def kv_match(prediction: str, reference: str, *, use_strict_string_match: bool = False) -> float:
    """Return the share of the reference's parameters that the same calls of the prediction have with equal values.

    Args:
        prediction: what is scored.
        reference: what it should call.
        use_strict_string_match: whether values must be written alike, so that 1 and 1.0 differ; else they are compared as JSON.
    """

    def same(left: Any, right: Any) -> bool:
        return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True) if use_strict_string_match else json_equal(left, right)

    return _share(prediction, reference, lambda got, name, value: name in got and same(got[name], value))


def _share(prediction: str, reference: str, hit: Callable[[Mapping[str, Any], str, Any], bool]) -> float:
    """Return the share of the reference's parameters that are hit; without parameters, whether all of its tools were called."""
    got, want = read_calls(prediction), read_calls(reference)
    if got is None or want is None:
        return 0.0
    pairs = [(step.actual, step.expected) for step in align(got, want) if step.expected is not None]
    hits = [call is not None and hit(call.args or {}, name, value) for call, one in pairs for name, value in (one.args or {}).items()]
    return sum(hits) / len(hits) if hits else float(all(call is not None for call, _ in pairs))


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


_KERNELS: Mapping[str, Callable[[str, str, Mapping[str, Any]], float]] = {
    "exact_match": lambda prediction, reference, _: exact_match(prediction, reference),
    "bleu": lambda prediction, reference, spec: bleu(prediction, reference, **spec),
    "rouge": lambda prediction, reference, spec: rouge(prediction, reference, **spec),
    "tool_call_valid": lambda prediction, _, __: valid(prediction),
    "tool_name_match": lambda prediction, reference, _: name_match(prediction, reference),
    "tool_parameter_key_match": lambda prediction, reference, _: key_match(prediction, reference),
    "tool_parameter_kv_match": lambda prediction, reference, spec: kv_match(prediction, reference, **spec),
}
