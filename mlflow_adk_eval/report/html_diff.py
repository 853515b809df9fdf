"""Which words of two texts differ."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile

Pieces = tuple[tuple[str, bool], ...]
"""A text in pieces, each with whether the other text lacks it."""

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Scripts that put no spaces between words: each character counts as one."""
_PUNCTUATION = "!-/:-@\\[-^`{-~\u2010-\u205f\u3000-\u303f"
_WORD = re.compile(rf"\s+|(?:[^\s{_PUNCTUATION}{_UNSPACED}]+|.)\s*", re.DOTALL)
_MOST_WORDS = 5_000
_LEAST_SHARED = 0.2
"""Texts that share fewer of their words are two texts: marks would be noise."""


def differing(expected: str, actual: str) -> tuple[Pieces, Pieces]:
    """Return both texts in pieces. Texts that have hardly a word in common, and very long ones, are one piece each.

    >>> differing("the lamp is off now", "the light is off")
    ((('the ', False), ('lamp ', True), ('is off ', False), ('now', True)), (('the ', False), ('light ', True), ('is off', False)))
    """
    left, right = _WORD.findall(expected), _WORD.findall(actual)
    if expected == actual or max(len(left), len(right)) > _MOST_WORDS:
        return _whole(expected), _whole(actual)
    pairs = _common([word.strip() for word in left], [word.strip() for word in right])
    if len(pairs) < _LEAST_SHARED * max(len(left), len(right)):
        return _whole(expected), _whole(actual)
    return _pieces(left, {i for i, _ in pairs}), _pieces(right, {j for _, j in pairs})


def _whole(text: str) -> Pieces:
    return ((text, False),) if text else ()


def _pieces(words: Sequence[str], shared: set[int]) -> Pieces:
    runs = groupby(range(len(words)), key=shared.__contains__)
    return tuple(("".join(words[index] for index in run), not kept) for kept, run in runs)


def _common(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places of a longest common subsequence; what both begin and end with is part of it."""
    start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
    rest = zip(reversed(left[start:]), reversed(right[start:]), strict=False)
    end = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rest))
    middle = _subsequence(left[start : len(left) - end], right[start : len(right) - end])
    return [
        *((index, index) for index in range(start)),
        *((start + i, start + j) for i, j in middle),
        *((len(left) - index, len(right) - index) for index in range(end, 0, -1)),
    ]


def _subsequence(left: Sequence[str], right: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the places of a longest common subsequence, last first.

    Source: H. Hyyrö, "Bit-parallel LCS-length computation revisited" (2004). A bit per word of `left` makes a row of the usual
    table one number, so that a thousand words on both sides take a millisecond, whatever they are.
    """
    places: dict[str, int] = {}
    for index, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << index
    full = (1 << len(left)) - 1
    rows = [full]
    for word in right:
        row = rows[-1]
        hits = row & places.get(word, 0)
        rows.append(((row + hits) | (row - hits)) & full)
    i, j = len(left), len(right)
    while i and j:
        if rows[j] >> (i - 1) & 1:
            i -= 1
        elif rows[j - 1] >> (i - 1) & 1:
            i, j = i - 1, j - 1
            yield i, j
        else:
            j -= 1
