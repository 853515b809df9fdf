"""The words of a text in any script, and ROUGE-1 between two lists of them."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlflow_adk_eval.criteria.text.stemmer import stem

_ASCII = "".join(char.lower() if char.isalnum() else " " for char in map(chr, range(128)))
"""What becomes of each ASCII character."""
_UNSTEMMED = 3
"""The length up to which rouge-score leaves a word as it is."""
_MOST_STEMS = 1 << 20


class Translation(dict[int, str]):
    """What becomes of each character, found out when it is first met, so that `str.translate` does the work."""

    def __init__(self, of: Callable[[str], str]) -> None:
        """Take what says it of a character."""
        super().__init__()
        self._of = of

    def __missing__(self, code: int) -> str:
        """Find it out and keep it."""
        char = self[code] = self._of(chr(code))
        return char


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
        if len(self) >= _MOST_STEMS:
            self.clear()
        found = self[word] = stem(word) if len(word) > _UNSTEMMED and word.isascii() else word
        return found


_STEMS = _Stems()


def tokens(text: str) -> list[str]:
    """Return the words that ROUGE-1 counts.

    Latin letters and digits make words, which are stemmed; CJK, kana and Hangul characters stand alone; Thai, Lao, Khmer
    and Myanmar split before each base character; other scripts split at what is no letter, digit or mark.

    Source: ADK's tokenizer around rouge-score's, bit for bit.

    >>> tokens("It's 3.14 running runs"), tokens("東京 naïve")
    (['it', 's', '3', '14', 'run', 'run'], ['東', '京', 'naïve'])
    """
    return list(map(_STEMS.__getitem__, words(text)))


def words(text: str) -> list[str]:
    """Return the same words as they are, in lower case."""
    if text.isascii():
        return text.translate(_ASCII).split()
    return unicodedata.normalize("NFKC", text).lower().translate(_SEPARATORS).split()


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
    hits = sum([min(wanted[token], count) for token, count in given.items() if token in wanted])
    precision, recall = hits / max(len(response), 1), hits / max(len(reference), 1)
    total = precision + recall
    return Overlap(precision, recall, 2 * precision * recall / total if total > 0 else 0.0)
