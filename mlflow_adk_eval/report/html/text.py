"""Texts of others, made fit for a page: without secrets, without what would be invisible or turn the reading order, and not endless."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, takewhile
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from mlflow_adk_eval.redact import redacted, without_credentials

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


Words = Callable[[str], str]
"""Makes a text fit to be shown; escaping is left to the template."""

LONGEST = 20_000
"""As many characters of a text are shown."""
_LONGEST_LINE = 300
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters, marks that change the reading order, tags that hide a text within a text, and halves of surrogate pairs,
which are no Unicode."""
_DEEPEST = 20
"""Where the Markdown parser would drop what is nested deeper."""


def words_for(secrets: Mapping[str, str]) -> Words:
    r"""Return what makes texts fit to be shown.

    Args:
        secrets: what must not be shown, each with what stands in its place.

    >>> words_for({"s3cret-42": "[KEY]"})("key s3cret-42\u202e!")
    'key [KEY]⟨U+202E⟩!'
    """

    def words(text: str) -> str:
        clean = redacted(without_credentials(text), secrets)
        if len(clean) > LONGEST:
            clean = f"{clean[:LONGEST]}… ({len(clean) - LONGEST:,} more characters are not shown)"
        return _INVISIBLE.sub(_named, clean)

    return words


def _named(found: re.Match[str]) -> str:
    return f"⟨U+{ord(found[0]):04X}⟩"


def on_one_line(text: str) -> str:
    r"""Return the beginning of a text that `Words` has made fit, without line breaks.

    >>> on_one_line(" two\nlines ")
    'two lines'
    """
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST_LINE else f"{flat[: _LONGEST_LINE - 1]}…"


def json_text(value: Any) -> str:
    """Return a value as JSON on one line with sorted keys, so that equal values are equal texts; else as Python writes it.

    >>> json_text({"b": [1, None], "a": "ü"})
    '{"a": "ü", "b": [1, null]}'
    """
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    except (TypeError, ValueError):
        return str(value)


def rationale_html(text: str) -> Markup:
    r"""Return a rationale as HTML: its lists and code as such, everything else as it is written.

    >>> rationale_html("- `a` **b** <i>")
    Markup('<ul>\n<li><code>a</code> **b** &lt;i&gt;</li>\n</ul>\n')
    """
    parser = _markdown()
    tokens = parser.parse(text)
    if any(token.level >= _DEEPEST - 2 for token in tokens):
        return Markup('<pre dir="auto">{}</pre>').format(text)
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704 - the parser escapes all text, and knows no links


@cache
def _markdown() -> MarkdownIt:
    """Return a parser that knows lists and code only: no HTML, links or images, and nothing that would swallow a character."""
    return MarkdownIt("zero", {"html": False, "breaks": True, "maxNesting": _DEEPEST}).enable(["list", "backticks", "newline"])
