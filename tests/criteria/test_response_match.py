from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.criteria import text
from mlflow_adk_eval.criteria.expected import ExpectedWordsSettings
from mlflow_adk_eval.criteria.response_match import NO_WORDS, ResponseMatch
from mlflow_adk_eval.criteria.text import rouge_1, stem, tokens
from mlflow_adk_eval.evalset.models import Content, Invocation, Part
from mlflow_adk_eval.results.outcomes import Scored
from tests.kit import message, run_of, turn
from tests.profiles import examples

SUFFIXES = (
    "", "s", "ss", "sses", "ies", "ied", "eed", "ed", "ing", "y", "e", "ll", "at", "bl", "iz", "ational", "tional", "enci", "anci", "izer", "bli",
    "alli", "entli", "eli", "ousli", "ization", "ation", "ator", "alism", "iveness", "fulness", "ousness", "aliti", "iviti", "biliti", "fulli",
    "logi", "icate", "ative", "alize", "iciti", "ical", "ful", "ness", "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment",
    "ent", "ion", "sion", "tion", "ou", "ism", "ate", "iti", "ous", "ive", "ize",
)  # fmt: skip


def score(response: str | None, reference: str | None) -> Scored:
    (cell,) = ResponseMatch(ExpectedWordsSettings(threshold=0.8))(run_of([turn(response)], [turn(reference)])).per_invocation
    assert isinstance(cell, Scored)
    return cell


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's 3.14 running runs", ["it", "s", "3", "14", "run", "run"]),
        ("東京の天気", ["東", "京", "の", "天", "気"]),
        ("날씨", ["날", "씨"]),
        ("สวัสดี", ["ส", "วั", "ส", "ดี"]),
        ("naïve Straße ①", ["naïve", "straße", "1"]),
        ("１２３", ["123"]),
        ("ｶﾞ", ["ガ"]),
        ("e-mail foo_bar", ["e", "mail", "foo", "bar"]),
        ("C++ C#", ["c", "c"]),
        ("👍🏽 …!", []),
        ("々〆", ["々〆"]),
        ("𠮷𠮷野", ["𠮷𠮷", "野"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("ﬁnal", ["final"]),
        ("Running\x1fruns\u2028ran", ["run", "run", "ran"]),
        ("", []),
    ],
)
def test_words_of_many_scripts(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


@pytest.mark.parametrize(
    ("response", "reference", "expected"),
    [
        ("The flight is not booked", "The flight is booked", 8 / 9),
        ("1,000", "1000", 0.0),
        ("a a a", "a", 0.5),
        ("a b", "c d", 0.0),
        ("same words", "words, same!", 1.0),
    ],
)
def test_the_score_is_the_f_measure(response: str, reference: str, expected: float) -> None:
    assert score(response, reference).score == pytest.approx(expected, abs=1e-15)


def test_precision_and_recall_are_kept() -> None:
    found = score("a b c d", "a b")
    assert found.details == {"precision": 0.5, "recall": 1.0}
    assert found.rationale == "ROUGE-1 precision 0.500, recall 1.000."


@pytest.mark.parametrize(
    "response",
    [None, "", "👍", "…", "!!!"],
)
def test_a_response_without_words_scores_zero_beside_a_reference_with_words(response: str | None) -> None:
    found = score(response, "x")
    assert found.score == 0.0
    assert found.rationale.endswith("The response has no words.")


@pytest.mark.parametrize("reference", ["👍", "…", "!!!", "- - -"])
@pytest.mark.parametrize("response", [None, "", "x", "👍", "…", "!!!"])
def test_a_reference_without_words_leaves_nothing_to_compare(response: str | None, reference: str) -> None:
    """ADK scores 0, also a text beside itself: `test_adk_agreement` has its side."""
    (cell,) = ResponseMatch(ExpectedWordsSettings(threshold=0.8))(run_of([turn(response)], [turn(reference)])).per_invocation
    assert cell == NO_WORDS


def test_parts_are_joined_by_newlines_without_thoughts() -> None:
    parts = (Part(text="let me think", thought=True), Part(), Part(text="book"), Part(text="ed"))
    answer = Invocation(user_content=message("user", "hi"), final_response=Content(role="model", parts=parts))
    (cell,) = ResponseMatch(ExpectedWordsSettings(threshold=0.8))(run_of([answer], [turn("book ed")])).per_invocation
    assert isinstance(cell, Scored)
    assert cell.score == 1.0


@given(st.lists(st.sampled_from("abcd")), st.lists(st.sampled_from("abcd")))
def test_an_overlap_is_symmetric_within_bounds_and_blind_to_order(response: list[str], reference: list[str]) -> None:
    there, back = rouge_1(response, reference), rouge_1(reference, response)
    assert (there.precision, there.recall) == (back.recall, back.precision)
    assert 0 <= there.f_measure <= 1
    assert there == rouge_1(response[::-1], sorted(reference))


@examples(300)
@given(st.builds("{}{}{}{}".format, st.text("abceiklnostuwyz1", max_size=6), *[st.sampled_from(SUFFIXES)] * 3).filter(bool))
def test_stems_are_nltks(word: str) -> None:
    assert stem(word) == _nltk().stem(word)


def test_stems_of_english_words_are_nltks() -> None:
    source = " ".join(path for path in (re.__doc__ or "", pytest.__doc__ or "", str.__doc__ or "", _nltk().__doc__ or ""))
    words = set(re.findall("[a-z]+", source.lower())) | {"skies", "dying", "news", "proceed", "innings", "howe", "y" * 5000, "a" * 5000}
    assert len(words) > 300
    assert {word: stem(word) for word in words} == {word: _nltk().stem(word) for word in words}


@cache
def _nltk() -> Any:
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()


def test_the_memory_for_stems_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    stems: Any = text._stemmed.__self__
    stems.clear()  # of what other tests met
    assert tokens("one running two runs three flies four booked") == ["one", "run", "two", "run", "three", "fli", "four", "book"]
    monkeypatch.setattr(text, "MOST_STEMS", len(stems))
    assert tokens("never met before") == ["never", "met", "befor"]
    assert len(stems) == 3
