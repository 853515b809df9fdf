"""Texts of others, made fit for a page: without secrets, without what would be invisible or turn the reading order, and not endless."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from mlflow_adk_eval.redact import redacted, without_credentials

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
