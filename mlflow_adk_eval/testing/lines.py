"""Lines of text with a tone, which a terminal may colour; and two answers as one line of differences."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Literal

Tone = Literal["", "head", "expected", "actual", "missed", "unknown", "dim"]
"""What a piece of text is, for whoever gives it a colour."""
Span = tuple[str, Tone]
Line = tuple[Span, ...]

_MAX_TEXT = 4000
_LARGEST_TABLE = 1_000_000
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What would move the cursor, change colours or the direction of writing, or cannot be written at all."""


def line(text: str, tone: Tone = "") -> Line:
    """Return a line of one tone."""
    return ((text, tone),)


def text_of(lines: Iterable[Line]) -> str:
    """Return lines as plain text."""
    return "\n".join("".join(text for text, _ in spans) for spans in lines)


def seen(text: str) -> str:
    r"""Return `text` as a terminal may print it: without control characters, and cut where it is very long.

    >>> seen("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    shown = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text)} characters)"
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), shown.replace("\r\n", "\n"))


def indented(spans: Sequence[Span], indent: int, prefix: str = "") -> list[Line]:
    """Return spans that may hold several lines as lines, each `indent` deep; `prefix` begins the first of them."""
    lines: list[list[Span]] = [[(" " * indent + prefix, "")]]
    for text, tone in spans:
        for number, piece in enumerate(text.split("\n")):
            if number:
                lines.append([(" " * (indent + len(prefix)), "")])
            lines[-1].append((piece, tone))
    return [tuple(spans) for spans in lines]


def word_diff(expected: str, actual: str) -> list[Span]:
    """Return two texts as one, what only one of them has in brackets, as ``git diff --word-diff`` does.

    >>> "".join(text for text, _ in word_diff("The lamp is off.", "The lamp is now on."))
    'The lamp is [-off-]{+now on+}.'
    """
    want, got = _WORDS.findall(expected), _WORDS.findall(actual)
    if len(want) * len(got) > _LARGEST_TABLE:
        return [(f"[-{expected}-]", "expected"), ("\n", ""), (f"{{+{actual}+}}", "actual")]
    spans: list[Span] = []
    for old, new in _blocks(want, got):
        if old == new:
            spans.append((old, ""))
            continue
        if old:
            spans.append((f"[-{old}-]", "expected"))
        if new:
            spans.append((f"{{+{new}+}}", "actual"))
    return spans


def _blocks(want: Sequence[str], got: Sequence[str]) -> list[tuple[str, str]]:
    """Return both texts in pieces that are the same or differ; two that differ are one if only a space is between them."""
    found: list[tuple[str, str]] = []
    for _, i, j, k, m in difflib.SequenceMatcher(None, want, got, autojunk=False).get_opcodes():
        block = "".join(want[i:j]), "".join(got[k:m])
        if len(found) > 1 and block[0] != block[1] and found[-1][0] == found[-1][1] and found[-1][0].isspace():
            space, before = found.pop(), found.pop()
            block = before[0] + space[0] + block[0], before[1] + space[1] + block[1]
        found.append(block)
    return found
