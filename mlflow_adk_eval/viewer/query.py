"""Addresses of pages with other parameters, and what follows from parameters: filters, order and pages of a list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

T = TypeVar("T")
BASE: ContextVar[str] = ContextVar("BASE", default="")
"""The path below which the viewer is served, of the request that is being answered."""
BASELINE: ContextVar[str] = ContextVar("BASELINE", default="")
"""The run that the reader compares others with. Every address carries it on, so that it stays chosen and nothing needs to be kept."""


class Query:
    """The address of the page that was asked for, of which links are made."""

    def __init__(self, path: str, params: Sequence[tuple[str, str]]) -> None:
        """Take the path below `BASE`, and the parameters in their order."""
        self.path, self.params = path, [(name, value) for name, value in params if value]

    def get(self, name: str) -> str:
        """Return the first value of a parameter; empty where there is none."""
        return next((value for key, value in self.params if key == name), "")

    def all(self, name: str) -> list[str]:
        """Return all values of a parameter."""
        return [value for key, value in self.params if key == name]

    def number(self, name: str, default: int) -> int:
        """Return a parameter as a whole number of at least 0."""
        text = self.get(name)
        return int(text) if text.isdecimal() and len(text) < 10 else default  # noqa: PLR2004 - more is no page

    def __call__(self, path: str = "", **changes: Any) -> str:
        """Return the address with other parameters, from the first page on; empty ones are left out."""
        changed = {"page": "", **changes}
        return link(path or self.path, *((name, value) for name, value in self.params if name not in changed), **changed)


def link(path: str, *params: tuple[str, str], **more: Any) -> str:
    """Return an address of the viewer. Half a surrogate pair, which no address can hold, becomes a question mark.

    >>> link("/compare", ("run", "a b"), page=2, q="")
    '/compare?run=a+b&page=2'
    """
    named = [*params, *more.items()]
    if "baseline" not in dict(named):
        named.append(("baseline", BASELINE.get()))
    query = urlencode([(name, str(value)) for name, value in named if value not in ("", None)], errors="replace")
    return f"{BASE.get()}{path}" + (f"?{query}" if query else "")


@dataclass(frozen=True, slots=True)
class Tab:
    """A link to a part of a list, with how many there are."""

    title: str
    count: int
    href: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Facet:
    """A property by which a list can be filtered."""

    name: str
    title: str
    chosen: str
    choices: tuple[Tab, ...]
    reset: str


Getter = Callable[[Any], str]


def filtered(items: Sequence[T], facets: Mapping[str, tuple[str, Getter]], query: Query) -> tuple[list[T], list[Facet]]:
    """Return the items that the query asks for, and what can be asked for: each value with how many the other filters leave of it."""

    def left(but: str = "") -> list[T]:
        active = [(get, value) for name, (_, get) in facets.items() if name != but and (value := query.get(name))]
        return [item for item in items if all(get(item) == value for get, value in active)]

    found: list[Facet] = []
    for name, (title, get) in facets.items():
        chosen, counts = query.get(name), [pair for pair in Counter(map(get, left(name))).most_common() if pair[0]]
        tabs = (Tab(value, count, query(**{name: "" if value == chosen else value}), value == chosen) for value, count in counts)
        found.append(Facet(name, title, chosen, tuple(tabs), query(**{name: ""})))
    return left(), found


@dataclass(frozen=True, slots=True)
class Paged(Generic[T]):
    """A page of a list."""

    items: Sequence[T]
    first: int
    """The number of the first item, from 1."""
    total: int
    before: str
    """The address of the page before; empty where there is none."""
    after: str

    @property
    def last(self) -> int:
        """The number of the last item."""
        return self.first + len(self.items) - 1


def paged(items: Sequence[T], query: Query, size: int) -> Paged[T]:
    """Return the page that the query asks for, or the last one."""
    pages = max(1, -(-len(items) // size))
    page = min(max(query.number("page", 1), 1), pages)
    start = (page - 1) * size
    before, after = (query(page=number) if 1 <= number <= pages else "" for number in (page - 1, page + 1))
    return Paged(items[start : start + size], start + 1 if items else 0, len(items), before, after)
