"""Texts of others in Markdown: on one line, and such that nothing in them is a mark, a link or HTML.

MLflow's pages get backslashes, which stay readable where a description is read as text; GitHub's get character references, since it also acts
on mentions, issue numbers and formulas.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

_FOR_MLFLOW = str.maketrans({char: f"\\{char}" for char in "\\|*`[]<>#"})
_FOR_GITHUB = str.maketrans({char: f"&#{ord(char)};" for char in "\\`*_{}[]<>()#|~$&!@:"})
"""What Markdown, a table of it, HTML or GitHub's formulas, links and mentions could begin or end with."""
_LONGEST = 500


def plain(text: str, limit: int = _LONGEST, *, escapes: Mapping[int, str] = _FOR_GITHUB) -> str:
    """Return `text` on one line of at most `limit` characters, such that Markdown shows it as it is, whatever is in it.

    >>> plain("a|b <i> *c*")
    'a&#124;b &#60;i&#62; &#42;c&#42;'
    """
    one_line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    cut = one_line if len(one_line) <= limit else f"{one_line[: limit - 1]}…"
    return cut.translate(escapes)


def for_mlflow(text: str, limit: int = sys.maxsize) -> str:
    """Return `text` as `plain` does, for a description that MLflow shows."""
    return plain(text, limit, escapes=_FOR_MLFLOW)
