"""The Porter stemmer that ROUGE-1 uses, with NLTK's extensions, stem for stem as NLTK gives them.

NLTK itself would cost a second of import and 190 MB for this one function.

Source: M. F. Porter, "An algorithm for suffix stripping", Program 14.3 (1980), and ``nltk.stem.porter``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    table: dict[str, list[tuple[str, str]]] = {}
    for rule in rules.split():
        suffix, _, replacement = rule.partition(">")
        table.setdefault(suffix[-2:], []).append((suffix, replacement))
    return table


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
    word = _without_past(_without_plural(word))
    if word[-1] == "y" and len(word) > 2 and _shape(word)[-2] == "c":  # noqa: PLR2004
        word = word[:-1] + "i"
    word = _replaced(_without_compound(word), _STEP_3, least=1)
    return _without_end(_replaced(word, _STEP_4, least=2))


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


def _without_plural(word: str) -> str:
    if word[-1] != "s" or word[-2:] == "ss":
        return word
    if word.endswith("ies"):
        return word[:-1] if len(word) == len("dies") else word[:-2]
    return word[:-2] if word.endswith("sses") else word[:-1]


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


def _without_compound(word: str) -> str:
    if word.endswith("alli") and _measure(word[:-4]):
        word = word[:-2]  # and on: the ``al`` may end in a further suffix
    if word.endswith("logi"):
        return word[:-1] if _measure(word[:-3]) else word
    return _replaced(word, _STEP_2, least=1)


def _replaced(word: str, rules: Rules, *, least: int) -> str:
    """Apply the first rule whose suffix `word` has, if what is before it has the least measure."""
    for suffix, replacement in rules.get(word[-2:], ()):
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            kept = _measure(rest) < least or (suffix == "ion" and rest[-1] not in "st")
            return word if kept else rest + replacement
    return word


def _without_end(word: str) -> str:
    if word[-1] == "e":
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _takes_e(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
