"""The sentences of a text, found by rules: the same ones for every vote, and none left out or rewritten."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from itertools import accumulate, pairwise

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
    return [sentence for line in text.splitlines() for sentence in _of_line(line)]


def _of_line(line: str) -> Iterator[str]:
    """Yield the sentences of a line; a piece without a letter waits for the one that follows."""
    waiting = ""
    for piece in _closed(_pieces(line)):
        waiting += piece
        if any(map(str.isalpha, piece)):
            yield waiting.strip()
            waiting = ""
    if any(map(str.isalnum, waiting)):
        yield waiting.strip()


def _pieces(line: str) -> list[str]:
    """Return what sentencex splits a line into, whatever characters are in it."""
    split = import_module("sentencex").segment  # has no types; and only criteria that look at sentences pay for it
    lengths = map(len, split(_LANGUAGE, _UNSAFE.sub(" ", line)))
    return [line[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]


def _closed(pieces: list[str]) -> list[str]:
    """Give each sentence the quotation marks, brackets and asterisks that close it and stand at the head of the next piece."""
    found: list[str] = []
    for piece in pieces:
        closing = _CLOSING.match(piece) if found else None
        if closing:
            found[-1] += closing[0]
        found.append(piece[closing.end() :] if closing else piece)
    return found
