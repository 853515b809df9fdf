from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.criteria.text import sentences
from tests.criteria.strategies import WORDS
from tests.strategies import QUICK

SPACES = " \t\u00a0\u3000\u2003\u2028\u0085\n\r\n"


def prose() -> st.SearchStrategy[str]:
    """Words of all scripts, initials, numbers and marks in any order, between spaces of all kinds."""
    words = st.sampled_from((*WORDS, "A", "Mr", "e.g", "1", "42", "Z.", "\ud800", "(", ")", '"', "”", "**", "`", "-", "|", "```"))
    ends = st.sampled_from((".", "!", "?", "...", "。", "？", "।", "؟", "։", ":", "", "", ""))
    return st.lists(st.tuples(words, ends, st.sampled_from((*SPACES, ""))).map("".join), max_size=12).map("".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n\t", []),
        ("...", []),
        ("---\n```\n***", []),
        ("👍", []),
        ("Yes", ["Yes"]),
        ("42", ["42"]),
        ("It is 3.5 °C. Dr. Smith is in.", ["It is 3.5 °C.", "Dr. Smith is in."]),
        ("one\ntwo\r\nthree", ["one", "two", "three"]),
        ("# Paris\n\n- It rains. Take a coat.\n- 9 °C", ["# Paris", "- It rains.", "Take a coat.", "- 9 °C"]),
        ("東京は晴れです。\n明日は雨です。傘を！", ["東京は晴れです。", "明日は雨です。", "傘を！"]),
        ("शुक्रिया। कल मिलेंगे।", ["शुक्रिया।", "कल मिलेंगे।"]),
        ("كيف الحال؟ بخير.", ["كيف الحال؟", "بخير."]),
        ("**Done.** The light is off.", ["**Done.**", "The light is off."]),
        ("|city|°C|\n|---|---|\n|Paris|9|", ["|city|°C|", "|Paris|9|"]),
    ],
)
def test_sentences_end_where_readers_end_them(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@pytest.mark.parametrize("marker", ["1. ", "12. ", "**3.** ", "- 4. "])
def test_the_number_of_a_list_entry_is_no_sentence_that_could_raise_a_score(marker: str) -> None:
    assert sentences(f"{marker}Paris is cold. Rome is warm.") == [f"{marker}Paris is cold.", "Rome is warm."]


def test_a_number_that_nothing_follows_stands_alone() -> None:
    assert sentences("The year? 1969.") == ["The year?", "1969."]


def test_initials_before_a_space_of_several_bytes_do_not_bring_the_library_down() -> None:
    assert sentences("A\u3000. B\u00a0. \ud800!") == ["A\u3000. B\u00a0. \ud800!"]


def kept(text: str) -> str:
    return "".join(text.split())


def is_subsequence(part: str, whole: str) -> bool:
    rest = iter(whole)
    return all(character in rest for character in part)


@QUICK
@given(prose() | st.text(max_size=30))
def test_no_text_is_lost(text: str) -> None:
    found = sentences(text)
    joined = kept("".join(found))
    assert is_subsequence(joined, kept(text)), "nothing is added, changed or moved"
    assert [char for char in joined if char.isalnum()] == [char for char in text if char.isalnum()]
    assert all(sentence == sentence.strip() and any(map(str.isalnum, sentence)) for sentence in found)


@QUICK
@given(st.lists(prose(), max_size=4))
def test_lines_stand_alone_and_nothing_is_left_to_chance(lines: list[Any]) -> None:
    assert sentences("\n".join(lines)) == [sentence for line in lines for sentence in sentences(line)]
