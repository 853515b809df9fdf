"""Words for people that every room needs: numbers of things, the first of many, the beginning of what is long, and texts of others in Markdown.

In Markdown such a text is on one line, and such that nothing in it is a mark, a link or HTML. MLflow's pages get backslashes, which stay readable
where a description is read as text; GitHub's get character references, since it also acts on mentions, issue numbers and formulas.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
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
