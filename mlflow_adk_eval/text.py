"""Words for people that every room needs: numbers of things, the first of many, the beginning of what is long, and texts of others in Markdown.

In Markdown such a text is on one line, and such that nothing in it is a mark, a link or HTML. MLflow's pages get backslashes, which stay readable
where a description is read as text; GitHub's get character references, since it also acts on mentions, issue numbers and formulas.

Some texts differ and look the same: `unlike` names the characters by which they differ. Some terminals cannot show our marks: `encodable`
writes ones that they can.
"""

from __future__ import annotations

import codecs
import difflib
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

_MOST = 5


def counted(number: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "turn"), counted(2000, "turn")
    ('1 turn', '2,000 turns')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_number(value: float | None, missing: str = "–", *, unlike: float | None = None) -> str:
    """Return a number with four digits, or as many more as it takes not to read like the number `unlike`; `missing` where there is none.

    >>> format_number(2 / 3), format_number(None), format_number(0.79999, unlike=0.8), format_number(0.8, unlike=0.8)
    ('0.6667', '–', '0.79999', '0.8')
    """
    if value is None:
        return missing
    texts = (f"{value + 0.0:.{digits}g}" for digits in range(4, 18))
    return next((text for text in texts if unlike is None or (float(text) != unlike and text != f"{unlike:.4g}")), f"{value:.4g}")


def beginning(text: str, most: int) -> str:
    """Return a text of at most `most` characters. Half a secret would not be recognised: of a text with secrets, see `redact.cut`.

    >>> beginning("abcdefgh", 5)
    'abcd…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def listed(names: Sequence[str], most: int) -> str:
    """Return the first `most` names, and how many there are besides.

    >>> listed(["a", "b"], 2), listed(["a", "b", "c"], 2)
    ('a, b', 'a, b and 1 more')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


class Few:
    """The first names or findings of a kind, and how many there are: of a large run, there may be a million."""

    def __init__(self, most: int = _MOST) -> None:
        """Take how many are kept at most."""
        self._most, self.first, self.count = most, list[str](), 0

    def add(self, findings: Iterable[str]) -> None:
        """Add findings."""
        for finding in findings:
            self.count += 1
            if self.count <= self._most:
                self.first.append(finding)

    @property
    def more(self) -> int:
        """How many there are besides the first."""
        return self.count - len(self.first)

    def __str__(self) -> str:
        """Return the first, and how many there are besides."""
        return ", ".join(self.first) + (f" and {self.more:,} more" if self.more else "")

    @property
    def named(self) -> list[str]:
        """The first, and in place of the last of them how many there are besides."""
        return [*self.first[:-1], f"and {self.more + 1} more of this kind"] if self.more else list(self.first)


def few(findings: Iterable[str], *, limit: int = _MOST) -> list[str]:
    """Return the first findings, and how many there are besides.

    >>> few(["a", "b", "c"], limit=2)
    ['a', 'and 2 more of this kind']
    """
    kept = Few(limit)
    kept.add(findings)
    return kept.named


_FOR_MLFLOW = str.maketrans({char: f"\\{char}" for char in "\\|*`[]<>#"})
_FOR_GITHUB = str.maketrans({char: f"&#{ord(char)};{'&#8203;' * (char in '@#')}" for char in "\\`*_{}[]<>()#|~$&!@:"})
"""What Markdown, a table of it, HTML or GitHub's formulas, links and mentions could begin or end with. GitHub looks for mentions and numbers of
issues in the page that Markdown becomes, where only a space of no width keeps them from being one."""
_LONGEST = 500


def plain(text: str, limit: int = _LONGEST, *, escapes: Mapping[int, str] = _FOR_GITHUB) -> str:
    """Return `text` on one line of at most `limit` characters, such that Markdown shows it as it is, whatever is in it.

    >>> plain("a|b <i> *c*")
    'a&#124;b &#60;i&#62; &#42;c&#42;'
    """
    one_line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return beginning(one_line, limit).translate(escapes)


def for_mlflow(text: str, limit: int = sys.maxsize) -> str:
    """Return `text` as `plain` does, for a description that MLflow shows."""
    return plain(text, limit, escapes=_FOR_MLFLOW)


_LOOKS_LIKE = {
    **dict(zip("АВЕКМНОРСТХУІЈЅаеорсухіјѕһԛԝ", "ABEKMHOPCTXYIJSaeopcyxijshqw", strict=True)),  # Cyrillic
    **dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧανορικυ", "ABEZHIKMNOPTYXavopiku", strict=True)),  # Greek
    **dict.fromkeys("‐‑‒–—―−", "-"),
    **dict.fromkeys("‘’‚‛′", "'"),
    **dict.fromkeys("“”„‟″", '"'),
    "ı": "i",
}
"""Letters and signs of punctuation, each with the ASCII character that it looks like."""
_NEARBY = 24
"""As many characters are searched for where two texts agree again."""
_MOST_CHARACTERS = 4


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


def _drawn(char: str) -> str:
    """Return a character as readers see it; nothing for a sign without a width, a mark of direction and others that a font does not draw."""
    is_selector = "\ufe00" <= char <= "\ufe0f"
    if is_selector or unicodedata.category(char) == "Cf":
        return ""
    return _LOOKS_LIKE.get(char, char)


_DRAWN = Translation(_drawn)


def appearance(text: str) -> str:
    r"""Return a text such that texts that look the same are equal: without what nobody sees, and letters that look Latin as Latin ones.

    >>> appearance("Zu\u0308rich\u200b") == appearance("Zürich "), appearance("a\u00a0b"), appearance("\u0430")
    (True, 'a b', 'a')
    """
    if text.isascii():
        return " ".join(text.split())
    return " ".join(unicodedata.normalize("NFKC", text).translate(_DRAWN).split())


def unlike(left: str, right: str) -> tuple[str, str]:
    r"""Return the characters by which two texts differ that look the same, to stand after each; empty where a reader sees the difference.

    >>> unlike("Zürich", "Zu\u0308rich")
    (' (U+00FC LATIN SMALL LETTER U WITH DIAERESIS)', ' (U+0075 LATIN SMALL LETTER U, U+0308 COMBINING DIAERESIS)')
    >>> unlike("ab", "ab "), unlike("ab", "ac")
    ((' (without a character there)', ' (U+0020 SPACE)'), ('', ''))
    """
    if left == right or appearance(left) != appearance(right):
        return "", ""
    start = next((place for place, (one, other) in enumerate(zip(left, right, strict=False)) if one != other), min(len(left), len(right)))
    here, there = left[start : start + _NEARBY], right[start : start + _NEARBY]
    steps = difflib.SequenceMatcher(None, here, there, autojunk=False).get_opcodes()
    _, here_from, here_to, there_from, there_to = next(step for step in steps if step[0] != "equal")
    return _characters(here[here_from:here_to]), _characters(there[there_from:there_to])


def _characters(text: str) -> str:
    if not text:
        return " (without a character there)"
    names = [f"U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip() for char in text]
    return f" ({listed(names, _MOST_CHARACTERS)})"


_ASCII = {
    **dict(zip("✓✗●–—−·×─━│╸╺█▁�", "+x*---.x--|--#_?", strict=True)),
    **dict.fromkeys("“”", '"'),
    **dict.fromkeys("‘’", "'"),
    "←": "<-",
    "→": "->",
    "…": "...",
    "±": "+-",
    "≥": ">=",
    "≤": "<=",
    "κ": "kappa",
    "α": "alpha",
}
"""What stands for our marks where they cannot be written. A cross must not become a question mark, which is ours for *undecided*."""
MARKS_IN_ASCII = "mlflow_adk_eval.marks_in_ascii"
"""How to treat what cannot be encoded, for `open` and `reconfigure`: our marks in ASCII, all else by its number."""


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_ASCII.get(char) or char.encode("ascii", "backslashreplace").decode() for char in lost), error.end


codecs.register_error(MARKS_IN_ASCII, _in_ascii)


def encodable(text: str, encoding: str) -> str:
    r"""Return a text that can be written in an encoding: our marks in ASCII, and other characters by their numbers.

    >>> encodable("✗ Zürich → 東", "cp1252"), encodable("✗ 東", "utf-8")
    ('x Zürich -> \\u6771', '✗ 東')
    """
    return text.encode(encoding, MARKS_IN_ASCII).decode(encoding)


def numbered(name: str, taken: Collection[str], mark: str = "_") -> str:
    """Return a name that is not taken: itself, or with a number behind it and `mark`.

    >>> numbered("greeting", {"greeting", "greeting_2"})
    'greeting_3'
    """
    names = (name if number == 1 else f"{name}{mark}{number}" for number in count(1))
    return next(free for free in names if free not in taken)


def as_yaml(value: Any) -> str:
    r"""Return JSON values as YAML that people and models read well: in their order, texts of several lines as blocks.

    >>> as_yaml({"user": "Hello!", "answer": ["one\ntwo"]})
    'user: Hello!\nanswer:\n- |-\n  one\n  two\n'
    """
    import yaml  # noqa: PLC0415 - who shows numbers needs none

    class Dumper(yaml.SafeDumper):  # type: ignore[misc] # PyYAML has no annotations
        def represent_str(self, data: str) -> yaml.ScalarNode:
            return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    Dumper.add_representer(str, Dumper.represent_str)
    dumped: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=sys.maxsize)
    return dumped
