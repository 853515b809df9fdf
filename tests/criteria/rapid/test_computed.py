from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu import sentence_bleu

from mlflow_adk_eval.criteria.alignment import trajectory_matches
from mlflow_adk_eval.criteria.rapid.computed import (
    bleu,
    computed_score,
    exact_match,
    key_match,
    kv_match,
    name_match,
    read_calls,
    rouge,
    valid,
)
from mlflow_adk_eval.criteria.rapid.messages import RequestError, read_request
from mlflow_adk_eval.criteria.text import sentences, tokens, words
from mlflow_adk_eval.evalset.models import FunctionCall
from tests.profiles import examples

SCRIPTS = (
    "cat",
    "cats",
    "running",
    "runs",
    "the",
    "Straße",
    "naïve",
    "東京",
    "は",
    "晴れ。",
    "مرحبا",
    "привет",
    "ไทย",
    "한국어",
    "3.5",
    "—",
    "\n",
    ".",
)
TEXTS = st.lists(st.sampled_from(SCRIPTS), max_size=12).map(" ".join) | st.text(max_size=40)
ASCII = st.text(st.characters(max_codepoint=127), max_size=60)
TYPES = [*(f"rouge{n}" for n in range(1, 10)), "rougeL", "rougeLsum"]


class Split:
    def __init__(self, *, stemmed: bool) -> None:
        self.tokenize = tokens if stemmed else words


@examples(60)
@given(TEXTS, TEXTS, st.sampled_from(TYPES), st.booleans())
def test_rouge_is_rouge_score_on_words_of_any_script(prediction: str, reference: str, kind: str, stemmed: bool) -> None:
    theirs = RougeScorer([kind], tokenizer=Split(stemmed=stemmed)).score(reference, prediction)[kind].fmeasure
    assert rouge(prediction, reference, rouge_type=kind, use_stemmer=stemmed) == theirs


@examples(60)
@given(ASCII, ASCII, st.sampled_from(TYPES), st.booleans())
def test_in_ascii_rouge_is_rouge_score_as_it_is(prediction: str, reference: str, kind: str, stemmed: bool) -> None:
    theirs = RougeScorer([kind], use_stemmer=stemmed).score(reference, prediction)[kind].fmeasure
    assert rouge(prediction, reference, rouge_type=kind, use_stemmer=stemmed) == theirs


@examples(40)
@given(TEXTS, TEXTS)
def test_split_summaries_takes_each_sentence_for_a_line(prediction: str, reference: str) -> None:
    lines = ["\n".join(sentences(text)) for text in (prediction, reference)]
    assert rouge(prediction, reference, rouge_type="rougeLsum", split_summaries=True) == rouge(*lines, rouge_type="rougeLsum")


def test_splitting_matters_only_where_there_are_sentences_without_line_breaks() -> None:
    prediction, reference = "A cat sat. A dog ran.", "A dog ran. A cat sat."
    assert rouge(prediction, reference, rouge_type="rougeLsum") < 1
    assert rouge(prediction, reference, rouge_type="rougeLsum", split_summaries=True) == 1


def test_the_documents_name_of_an_n_gram_is_understood() -> None:
    assert rouge("a b c", "a b d", rouge_type="rougen2") == rouge("a b c", "a b d", rouge_type="rouge2") == 0.5


@examples(60)
@given(TEXTS, TEXTS, st.booleans())
def test_bleu_is_sacrebleu(prediction: str, reference: str, order: bool) -> None:
    theirs = sentence_bleu(prediction, [reference], use_effective_order=order).score / 100
    assert bleu(prediction, reference, use_effective_order=order) == pytest.approx(min(theirs, 1.0), abs=1e-12)


@given(TEXTS)
def test_scores_stay_in_their_bounds_and_a_text_is_itself(text: str) -> None:
    assert exact_match(text, text) == 1
    assert exact_match(text, text + "x") == 0
    assert 0 <= bleu(text, "the cat") <= 1


def written(calls: list[tuple[str, dict[str, Any]]], *, nested: bool = False) -> str:
    listed = [{"name": name, "arguments": args} for name, args in calls]
    return json.dumps({"content": "", "tool_calls": json.dumps(listed) if nested else listed})


VALUES = st.one_of(st.integers(-3, 3), st.booleans(), st.sampled_from(["7:30", "", "é"]), st.lists(st.integers(0, 2), max_size=2))
CALLS = st.lists(st.tuples(st.sampled_from(["book", "find"]), st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)), max_size=3)


@given(CALLS, CALLS, st.booleans())
def test_tool_metrics_agree_with_the_trajectory(got: list[Any], want: list[Any], nested: bool) -> None:
    prediction, reference = written(got, nested=nested), written(want)
    actual, expected = ([FunctionCall(name=name, args=args) for name, args in calls] for calls in (got, want))
    assert name_match(prediction, reference) == float(trajectory_matches(actual, expected, "EXACT", ignore_args=True))
    if trajectory_matches(actual, expected, "EXACT"):
        assert key_match(prediction, reference) == kv_match(prediction, reference) == 1
    if trajectory_matches(actual, expected, "IN_ORDER"):
        assert kv_match(prediction, reference) == 1
    assert 0 <= kv_match(prediction, reference) <= key_match(prediction, reference) <= 1
    assert valid(prediction) == float(bool(got))


def test_shares_count_every_parameter_of_the_reference() -> None:
    reference = written([("book", {"movie": "M", "seats": 2}), ("pay", {"card": "x"})])
    assert key_match(written([("book", {"movie": "N"}), ("pay", {"card": "y"})]), reference) == pytest.approx(2 / 3)
    assert kv_match(written([("book", {"movie": "M", "seats": 3}), ("pay", {"card": "x"})]), reference) == pytest.approx(2 / 3)
    assert kv_match(written([("pay", {"card": "x"})]), reference) == pytest.approx(1 / 3)
    assert key_match(written([("find", {"movie": "M", "seats": 2})]), reference) == 0


def test_values_are_compared_as_json_unless_they_must_be_written_alike() -> None:
    one, same = written([("f", {"x": 1, "y": {"a": 1, "b": 2}})]), written([("f", {"x": 1.0, "y": {"b": 2, "a": 1}})])
    assert kv_match(one, same) == 1
    assert kv_match(one, same, use_strict_string_match=True) == 0.5
    assert kv_match(written([("f", {"x": True})]), written([("f", {"x": 1})])) == 0


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "3", '"text"', '{"tool_calls": {}}', '{"tool_calls": "{"}', '{"tool_calls": [3]}', '{"tool_calls": [{}]}',
        '{"tool_calls": [{"name": ""}]}', '{"tool_calls": [{"name": 3, "arguments": {}}]}', '{"tool_calls": [{"name": "f", "arguments": [1]}]}',
        '{"tool_calls": [{"name": "f", "arguments": "x"}]}', "[" * 100_000, '{"a": NaN', "\x00",
    ],
)  # fmt: skip
def test_what_is_no_call_has_no_score(text: str) -> None:
    good = written([("f", {"x": 1})])
    assert read_calls(text) is None
    assert (valid(text), name_match(text, good), key_match(text, good), kv_match(good, text)) == (0, 0, 0, 0)


def test_a_response_without_calls_is_one() -> None:
    assert read_calls('{"content": "hello"}') == ()
    assert valid('{"content": "hello"}') == 0
    assert name_match('{"content": "a"}', '{"content": "b", "tool_calls": []}') == 1


def test_each_computed_metric_has_its_kernel() -> None:
    texts = {"prediction": written([("f", {"x": 1})]), "reference": written([("f", {"x": 1})])}
    names = ("exact_match", "bleu", "rouge", "tool_call_valid", "tool_name_match", "tool_parameter_key_match", "tool_parameter_kv_match")
    assert [computed_score(name, {}, texts) for name in names] == [1.0] * 7


def test_long_texts_take_no_table_of_both() -> None:
    long = " ".join("ab"[number % 3 % 2] for number in range(60_000))
    assert rouge(long, f"{long} b", rouge_type="rougeL") > 0.99
    with pytest.raises(RequestError, match="shorter texts, or rougeL"):
        rouge(long, long, rouge_type="rougeLsum")


def test_one_key_in_two_spellings_is_refused() -> None:
    given = {"instance": {"prediction": "x"}}
    with pytest.raises(RequestError, match="two spellings"):
        read_request({"fluencyInput": given, "fluency_input": given})
    with pytest.raises(RequestError, match="an unknown key"):
        read_request({"A" * 200_000: given})
