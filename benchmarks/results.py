"""The file of results: a section per workload, each with its own date and command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_HEAD = """# Results of the benchmarks

Made by `make bench`; [docs/development/benchmarks.md](../docs/development/benchmarks.md) says how to read them."""


def merged(text: str, sections: Mapping[str, str], *, order: Sequence[str]) -> str:
    """Return a file of results in which `sections` replace those of the same names.

    >>> old = merged("", {"b": "old b", "a": "old a"}, order="ab")
    >>> merged(old, {"b": "new b"}, order="ab").splitlines()[-7:]
    ['<!-- a -->', '', 'old a', '', '<!-- b -->', '', 'new b']
    """
    _, *found = re.split(r"^<!-- (\w+) -->$", text, flags=re.MULTILINE)
    known = {name: body.strip() for name, body in zip(found[::2], found[1::2], strict=True)} | dict(sections)
    return "\n\n".join([_HEAD, *(f"<!-- {name} -->\n\n{known[name]}" for name in order if name in known)]) + "\n"
