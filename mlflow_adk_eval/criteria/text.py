"""Words, stems and sentences of texts in any script, found by rules.

ROUGE-1 and the criteria that split texts are made of these. The stemmer is Porter's, with NLTK's extensions, stem for stem as NLTK gives them: NLTK
itself would cost a second of import and 190 MB for this one function. Sentences are the same ones for every vote, and none is left out or rewritten.

Source of the stemmer: M. F. Porter, "An algorithm for suffix stripping", Program 14.3 (1980), and ``nltk.stem.porter``.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate, pairwise

from mlflow_adk_eval.results.outcomes import grouped
from mlflow_adk_eval.text import Translation

Rules = Mapping[str, Sequence[tuple[str, str]]]
"""Suffixes with what replaces them, in the order in which they are tried, by their last two letters."""

_SHAPES = str.maketrans({letter: "v" if letter in "aeiou" else "y" if letter == "y" else "c" for letter in map(chr, range(128))})
_IRREGULAR = {
    "skies": "sky", "sky": "sky", "dying": "die", "lying": "lie", "tying": "tie", "news": "news", "innings": "inning", "inning": "inning",
    "outings": "outing", "outing": "outing", "cannings": "canning", "canning": "canning", "howe": "howe", "proceed": "proceed",
    "exceed": "exceed", "succeed": "succeed",
}  # fmt: skip


def _by_end(rules: str) -> Rules:
    """Read rules as the paper writes them: ``ational>ate enci>ence ful>``."""
    return grouped((suffix[-2:], (suffix, replacement)) for suffix, _, replacement in (rule.partition(">") for rule in rules.split()))


_STEP_2 = _by_end(
    "ational>ate tional>tion enci>ence anci>ance izer>ize bli>ble alli>al entli>ent eli>e ousli>ous ization>ize ation>ate ator>ate "
    "alism>al iveness>ive fulness>ful ousness>ous aliti>al iviti>ive biliti>ble fulli>ful"
)
_STEP_3 = _by_end("icate>ic ative> alize>al iciti>ic ical>ic ful> ness>")
_STEP_4 = _by_end("al> ance> ence> er> ic> able> ible> ant> ement> ment> ent> ion> ou> ism> ate> iti> ous> ive> ize>")


def stem(word: str) -> str:
    """Return the stem of a word of lower-case ASCII letters and digits.

    >>> stem("running"), stem("flies"), stem("conditional"), stem("enjoyment")
    ('run', 'fli', 'condit', 'enjoy')
    """
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) <= 2:  # noqa: PLR2004 - the algorithm leaves one and two letters alone
        return word
    if word.endswith("ies"):
        word = word[:-1] if len(word) == len("dies") else word[:-2]
    elif word.endswith("sses"):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    word = _without_past(word)
    if word[-1] == "y" and len(word) > 2 and _shape(word)[-2] == "c":  # noqa: PLR2004
        word = word[:-1] + "i"
    if word.endswith("alli") and _measure(word[:-4]):
        word = word[:-2]  # and on: the ``al`` may end in a further suffix
    if not word.endswith("logi"):
        word = _replaced(word, _STEP_2, least=1)
    elif _measure(word[:-3]):
        word = word[:-1]
    word = _replaced(_replaced(word, _STEP_3, least=1), _STEP_4, least=2)
    if word[-1] == "e":
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _takes_e(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


def _shape(word: str) -> str:
    """Return a ``v`` for each vowel of a word and a ``c`` for each consonant; a ``y`` is a vowel after a consonant."""
    shape = word.translate(_SHAPES)
    if "y" not in shape:
        return shape
    letters: list[str] = []
    for letter in shape:
        letters.append(letter if letter != "y" else "v" if letters and letters[-1] == "c" else "c")
    return "".join(letters)


def _measure(word: str) -> int:
    """Return how often a vowel is followed by a consonant, which the paper calls *m*."""
    return _shape(word).count("vc")


def _takes_e(word: str) -> bool:
    """Whether a word ends in a short syllable, as ``hop`` does and ``hoop`` and ``how`` do not, so that an ``e`` may have stood there."""
    shape = _shape(word)
    return shape == "vc" or (shape.endswith("cvc") and word[-1] not in "wxy")


def _without_past(word: str) -> str:
    if word.endswith("ied"):
        return word[:-1] if len(word) == len("died") else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    for suffix in ("ed", "ing"):
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            return _mended(rest) if "v" in _shape(rest) else word
    return word


def _mended(rest: str) -> str:
    """Give a stem back the ``e`` that its suffix took, or take the letter that its suffix doubled."""
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if rest[-1:] == rest[-2:-1] and _shape(rest)[-1] == "c":
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _takes_e(rest) else rest


def _replaced(word: str, rules: Rules, *, least: int) -> str:
    """Apply the first rule whose suffix `word` has, if what is before it has the least measure."""
    for suffix, replacement in rules.get(word[-2:], ()):
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            stays = _measure(rest) < least or (suffix == "ion" and rest[-1] not in "st")
            return word if stays else rest + replacement
    return word


_ASCII = "".join(char.lower() if char.isalnum() else " " for char in map(chr, range(128)))
"""What becomes of each ASCII character."""
_UNSTEMMED = 3
"""The length up to which rouge-score leaves a word as it is."""


def _separated(char: str) -> str:
    """Return a character with the spaces that ADK puts around it; what is no part of a word becomes a space."""
    code = ord(char)
    if 0x4E00 <= code <= 0x9FFF or 0x3040 <= code <= 0x30FF or 0xAC00 <= code <= 0xD7AF:  # noqa: PLR2004 - CJK, kana, Hangul
        return f" {char} "
    mark = unicodedata.category(char).startswith("M")
    if 0x0E00 <= code <= 0x0EFF or 0x1780 <= code <= 0x17FF or 0x1000 <= code <= 0x109F:  # noqa: PLR2004 - Thai, Lao, Khmer, Myanmar
        return char if mark else f" {char}"
    return char if mark or char.isalnum() else " "


_SEPARATORS = Translation(_separated)


class _Stems(dict[str, str]):
    """The stem of each word, found out when it is first met: words repeat, and stemming costs."""

    def __missing__(self, word: str) -> str:
        """Find it out and keep it, or forget all that were kept where they are too many."""
        if len(self) >= MOST_STEMS:
            self.clear()
        found = self[word] = stem(word) if len(word) > _UNSTEMMED and word.isascii() else word
        return found


MOST_STEMS = 1 << 20
_stemmed = _Stems().__getitem__


def tokens(text: str) -> list[str]:
    """Return the words that ROUGE-1 counts.

    Latin letters and digits make words, which are stemmed; CJK, kana and Hangul characters stand alone; Thai, Lao, Khmer
    and Myanmar split before each base character; other scripts split at what is no letter, digit or mark.

    Source: ADK's tokenizer around rouge-score's, bit for bit.

    >>> tokens("It's 3.14 running runs"), tokens("東京 naïve")
    (['it', 's', '3', '14', 'run', 'run'], ['東', '京', 'naïve'])
    """
    return list(map(_stemmed, words(text)))


def words(text: str) -> list[str]:
    """Return the same words as they are, in lower case."""
    if text.isascii():
        return text.translate(_ASCII).split()
    return unicodedata.normalize("NFKC", text).lower().translate(_SEPARATORS).split()


def has_words(text: str) -> bool:
    """Whether a text has any of these words; nearly every one begins with a letter."""
    return text[:1].isalnum() or bool(words(text))


@dataclass(frozen=True, slots=True)
class Overlap:
    """How two texts overlap, each number in [0, 1]."""

    precision: float
    recall: float
    f_measure: float


def rouge_1(response: Sequence[str], reference: Sequence[str]) -> Overlap:
    """Return the unigram overlap of two token lists; all zero if either is empty.

    >>> rouge_1(["a", "b", "b"], ["a", "b"]).recall
    1.0
    """
    given, wanted = Counter(response), Counter(reference)
    hits = sum([wanted[token] if wanted[token] < count else count for token, count in given.items() if token in wanted])  # noqa: FURB136 - faster
    precision, recall = hits / max(len(response), 1), hits / max(len(reference), 1)
    total = precision + recall
    return Overlap(precision, recall, 2 * precision * recall / total if total > 0 else 0.0)


_LANGUAGE = "en"
"""Decides only about abbreviations; ends of sentences are found in every script."""
_UNSAFE = re.compile(r"[\s\ud800-\udfff]")
"""What sentencex fails on: spaces of several bytes, and halves of surrogate pairs."""
_CLOSING = re.compile(r"""[*_`~"'”’»)\]]+(?=\s|\Z)""")


def sentences(text: str) -> list[str]:
    r"""Return the sentences of a text in any language, in order, without the spaces around them.

    A line break ends a sentence, so that each heading, list entry and table row stands alone. The number of a list entry
    belongs to what follows it. What has neither letter nor digit is no sentence; nothing else is lost.

    >>> sentences("**Done.** It is 3.5 °C in St. Ives!\n---\n1. 東京は晴れ。明日は雨。")
    ['**Done.**', 'It is 3.5 °C in St. Ives!', '1. 東京は晴れ。', '明日は雨。']
    """
    split = import_module("sentencex").segment  # has no types; and only criteria that look at sentences pay for it
    complete: list[str] = []
    for line in text.splitlines():
        ends = accumulate(map(len, split(_LANGUAGE, _UNSAFE.sub(" ", line))), initial=0)
        waiting = ""
        for piece in _closed([line[start:end] for start, end in pairwise(ends)]):
            waiting += piece
            if any(map(str.isalpha, piece)):  # a piece without a letter waits for the one that follows
                complete.append(waiting.strip())
                waiting = ""
        if any(map(str.isalnum, waiting)):
            complete.append(waiting.strip())
    return complete


def _closed(pieces: list[str]) -> list[str]:
    """Give each sentence the quotation marks, brackets and asterisks that close it and stand at the head of the next piece."""
    closed: list[str] = []
    for piece in pieces:
        closing = _CLOSING.match(piece) if closed else None
        if closing:
            closed[-1] += closing[0]
        closed.append(piece[closing.end() :] if closing else piece)
    return closed


def common_rows(left: Sequence[str], right: Sequence[str]) -> Iterator[int]:
    """Yield the rows of the table of longest common subsequences: for each beginning of `right`, the shortest one first.

    A row has a bit for each word of `left`, which is 0 where the word makes the subsequence longer. As one number, it is quick to come by: a
    thousand words on both sides take a millisecond, whatever they are.

    Source: H. Hyyrö, "Bit-parallel LCS-length computation revisited" (2004).
    """
    places: dict[str, int] = {}
    for index, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << index
    row = full = (1 << len(left)) - 1
    yield row
    for word in right:
        hits = row & places.get(word, 0)
        row = (row + hits | row - hits) & full
        yield row
