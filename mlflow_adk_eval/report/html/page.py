"""What all pages share: templates, texts of others made fit to be shown, and a policy that lets a page run nothing but its own script.

A page is a template of `templates/`, in which autoescaping makes text of every value. Escaping is not enough for texts of others, which may
hold secrets, characters that nobody sees or that turn the reading order, or a megabyte: they pass through `Texts` first, once, in the
template or in the module that prepares its values. `differing` marks what only one of two texts has, and `rationale_html` knows the lists
and code of a judge's reason and nothing else of Markdown. Last, the policy in the page's head forbids whatever might still get through.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import groupby, takewhile
from typing import Any, Literal, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markupsafe import Markup, escape

from mlflow_adk_eval.criteria.text import common_rows
from mlflow_adk_eval.redact import redacted, without_credentials
from mlflow_adk_eval.report import sentences
from mlflow_adk_eval.results.outcomes import Scored, explanation_of
from mlflow_adk_eval.text import beginning, unlike

T = TypeVar("T")

Pieces = tuple[tuple[str, bool], ...]
"""A text in pieces, each with whether the other text lacks it."""

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Scripts that put no spaces between words: each character counts as one."""
_PUNCTUATION = "!-/:-@\\[-^`{-~\u2010-\u205f\u3000-\u303f"
_WORD = re.compile(rf"\s+|(?:[^\s{_PUNCTUATION}{_UNSPACED}]+|.)\s*", re.DOTALL)
_MOST_WORDS = 5_000
_LEAST_SHARED = 0.2
"""Texts that share fewer of their words are two texts: marks would be noise."""

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
_OPEN, _CLOSE = "\1", "\2"
"""The ends of a mark in a text that is still to be escaped, as a whole: no text that `Words` made fit has these characters."""
_SENTENCE = re.compile(r"[A-Za-z][^\0\n\r`]*[^\s\0`]")
"""A line that is neither a list nor has code in it, so that the parser would make one paragraph of it."""
_DEEPEST = 20
"""Where the Markdown parser would drop what is nested deeper."""


@cache
def environment() -> Environment:
    """Return what makes templates of the files of this package, in which every text is escaped, and which know the functions of `sentences`."""
    loader = PackageLoader("mlflow_adk_eval.report.html")
    templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    known: Any = templates.globals  # jinja2 types it by what it holds at first
    known.update({name: value for name, value in vars(sentences).items() if not name.startswith("_")}, explanation_of=explanation_of)
    templates.tests.update(scored=lambda value: isinstance(value, Scored))
    return templates


@cache
def source(name: str) -> str:
    """Return a style or script of this package."""
    return (files("mlflow_adk_eval.report.html") / "templates" / name).read_text(encoding="utf-8")


def policy(style: str, script: str = "") -> str:
    """Return a page's content security policy: nothing but its own style and script, which it knows by their hashes."""
    digests = (hashlib.sha256(text.encode()).digest() for text in (style, script))
    of_style, of_script = (f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    scripts = f"script-src {of_script}; " if script else ""
    return f"default-src 'none'; style-src {of_style}; {scripts}base-uri 'none'; form-action 'none'"


class Texts:
    """Makes texts of others fit for a page; escaping is left to the template."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """Hide `secrets`, each behind what stands in its place."""
        self._secrets = secrets
        # Most rationales are the same sentences, and parsing one takes long; most texts are names of criteria and tools, or expected ones.
        self._rationale = lru_cache(10_000)(rationale_html)
        self.words = lru_cache(1_000)(self._words)
        self.line: Words = lru_cache(1_000)(lambda text: on_one_line(self.words(text)))
        """Returns the beginning of a text on one line."""

    def _words(self, text: str) -> str:
        r"""Return a text that is fit to be shown.

        >>> Texts({"s3cret-42": "[KEY]"}).words("key s3cret-42\u202e!")
        'key [KEY]⟨U+202E⟩!'
        """
        clean = redacted(without_credentials(text), self._secrets)
        if len(clean) > LONGEST:
            clean = f"{clean[:LONGEST]}… ({len(clean) - LONGEST:,} more characters are not shown)"
        return _INVISIBLE.sub(lambda char: f"⟨U+{ord(char[0]):04X}⟩", clean)

    def rationale(self, text: str) -> Markup:
        """Return a reason as HTML."""
        return self._rationale(self.words(text))


def on_one_line(text: str) -> str:
    r"""Return the beginning of a text that `Words` has made fit, without line breaks.

    >>> on_one_line(" two\nlines ")
    'two lines'
    """
    return beginning(" ".join(text.split()), _LONGEST_LINE)


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
    if _SENTENCE.fullmatch(text):
        return Markup(f"<p>{escapeHtml(text)}</p>\n")  # noqa: S704 - escaped as the parser does it
    parser = _markdown()
    tokens = parser.parse(text)
    if any(token.level >= _DEEPEST - 2 for token in tokens):
        return Markup('<pre dir="auto">{}</pre>').format(text)
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704 - the parser escapes all text, and knows no links


@cache
def _markdown() -> MarkdownIt:
    """Return a parser that knows lists and code only: no HTML, links or images, and nothing that would swallow a character."""
    return MarkdownIt("zero", {"html": False, "breaks": True, "maxNesting": _DEEPEST}).enable(["list", "backticks", "newline"])


def differing(expected: str, actual: str) -> tuple[Pieces, Pieces]:
    """Return both texts in pieces. Texts that have hardly a word in common, and very long ones, are one piece each.

    >>> differing("the lamp is off now", "the light is off")
    ((('the ', False), ('lamp ', True), ('is off ', False), ('now', True)), (('the ', False), ('light ', True), ('is off', False)))
    """
    left, right = _WORD.findall(expected), _WORD.findall(actual)
    whole = ((expected, False),) if expected else (), ((actual, False),) if actual else ()
    if expected == actual or max(len(left), len(right)) > _MOST_WORDS:
        return whole
    pairs = _common([word.strip() for word in left], [word.strip() for word in right])
    if len(pairs) < _LEAST_SHARED * max(len(left), len(right)):
        return whole
    return _pieces(left, {i for i, _ in pairs}), _pieces(right, {j for _, j in pairs})


def _pieces(words: Sequence[str], shared: set[int]) -> Pieces:
    runs = [(kept, list(run)) for kept, run in groupby(range(len(words)), key=shared.__contains__)]
    return tuple(("".join(words[run[0] : run[-1] + 1]), not kept) for kept, run in runs)


def _common(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places of a longest common subsequence; what both begin and end with is part of it."""
    start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
    rest = zip(reversed(left[start:]), reversed(right[start:]), strict=False)
    end = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rest))
    middle = common_subsequence(left[start : len(left) - end], right[start : len(right) - end])
    return [
        *((index, index) for index in range(start)),
        *((start + i, start + j) for i, j in middle),
        *((len(left) - index, len(right) - index) for index in range(end, 0, -1)),
    ]


def common_subsequence(left: Sequence[str], right: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the places of a longest common subsequence, last first."""
    rows = list(common_rows(left, right))
    i, j = len(left), len(right)
    while i and j:
        if rows[j] >> (i - 1) & 1:
            i -= 1
        elif rows[j - 1] >> (i - 1) & 1:
            i, j = i - 1, j - 1
            yield i, j
        else:
            j -= 1


def marked(expected: str, actual: str) -> tuple[str, str]:
    """Return two texts with marks on what only one of them has."""
    left, right = differing(expected, actual)
    want, got = unlike(expected, actual)
    if want or got:  # nobody would see what the marks are about
        left, right = (*left, (want, True)), (*right, (got, True))
    return _with_marks(left, "del"), _with_marks(right, "ins")


def _with_marks(pieces: Pieces, tag: Literal["del", "ins"]) -> str:
    if not any(alone for _, alone in pieces):
        return "".join(text for text, _ in pieces)
    marked_texts: list[str] = []
    for text, alone in pieces:
        words = text.rstrip() or text  # the space after the last word stays unmarked
        marked_texts.append(f"{_OPEN}{words}{_CLOSE}{text[len(words) :]}" if alone else text)
    html = str(escape("".join(marked_texts)))
    return Markup(html.replace(_OPEN, f"<{tag}>").replace(_CLOSE, f"</{tag}>"))  # noqa: S704 - all of the text is escaped


def hits(html: Markup, wanted: str) -> Markup:
    r"""Mark a text wherever a page's escaped HTML shows it, across marks and code, never within a tag or an escaped character.

    >>> hits(Markup('<b title="on">lamp <del>on</del> &amp; ON</b>'), "on")
    Markup('<b title="on">lamp <del><mark>on</mark></del> &amp; <mark>ON</mark></b>')
    >>> hits(Markup("it is <del>off</del> &amp; so"), "is OFF"), hits(Markup("x &amp; y"), "amp")
    (Markup('it <mark>is </mark><del><mark>off</mark></del> &amp; so'), Markup('x &amp; y'))
    """
    if not wanted or len(wanted) > _LONGEST_LINE:
        return html
    letters = "(?:</?(?:del|ins|code)>)*".join(re.escape(str(escape(letter))) for letter in wanted)
    anything = re.compile(rf"(?P<hit>{letters})|<[^>]*>|&[^;\s]*;", re.IGNORECASE)

    def with_mark(found: re.Match[str]) -> str:
        return re.sub("([^<>]+)(?=<|$)", r"<mark>\1</mark>", found[0]) if found["hit"] else found[0]

    return Markup(anything.sub(with_mark, html))  # noqa: S704 - escaped before, and nothing but marks was added


def within(most: int, cases: Iterable[T], turns_of: Callable[[T], int]) -> Iterator[T]:
    """Yield cases until they have `most` turns."""
    turns = 0
    for case in cases:
        turns += max(1, turns_of(case))
        if turns > most:
            return
        yield case
