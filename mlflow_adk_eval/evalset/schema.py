"""Which model owns a place in a JSON value, read off the models' own annotations.

Used where parsing failed: `place` turns a location that pydantic reports into steps of the JSON, without the names of union members;
`unknown_keys` finds keys that no field takes, and the field that each was likely meant to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Any, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel

from mlflow_adk_eval.errors import nearest

Kind = Any
"""A type annotation."""
Steps = tuple[int | str, ...]
"""The keys and indexes that lead to a place in a JSON value."""

ALMOST_CERTAIN = 0.85
"""How alike a key must be to an optional field to be taken for a slip of the pen."""


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a model."""

    name: str
    kind: Kind
    required: bool


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key that no field of its object takes."""

    steps: Steps
    """Where it stands."""
    known: tuple[str, ...]
    """The fields that the object may have."""
    meant: str = ""
    """The absent field that it was likely meant to be; empty where there is none."""
    clash: str = ""
    """What it contradicts in its object; empty where it is just unknown."""
    refused: bool = False
    """Whether its object may have no unknown keys."""

    @property
    def amiss(self) -> bool:
        """Whether it is an error, and not just something to carry along."""
        return bool(self.meant or self.clash or self.refused)


def is_model(kind: Kind) -> TypeGuard[type[BaseModel]]:
    """Whether an annotation is a model class."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


@cache
def members(model: type[BaseModel]) -> Mapping[str, Member]:
    """Return a model's fields by each key that fills them."""
    found: dict[str, Member] = {}
    for name, info in model.model_fields.items():
        member = Member(name, info.annotation, info.is_required())
        found[name] = found[info.alias or name] = member
    return found


@cache
def branches(kind: Kind) -> tuple[Kind, ...]:
    """Return the alternatives of a union, null left out; anything else is its own only alternative."""
    origin: Any = get_origin(kind)
    return tuple(option for option in get_args(kind) if option is not NoneType) if origin in (Union, UnionType) else (kind,)


def taken(kind: Kind, value: Any) -> Kind:
    """Return the alternative that `value` takes: for an object the model with which it shares the most keys."""
    options = branches(kind)
    if len(options) == 1:
        return options[0]
    models = [option for option in options if is_model(option)]
    if isinstance(value, dict) and models:
        keys = value.keys()
        return max(reversed(models), key=lambda model: len(members(model).keys() & keys))
    return options[-1]


def inner(kind: Kind, step: int | str) -> Kind:
    """Return what a key or index of a value of `kind` holds; ``Any`` where nothing is said about it."""
    if is_model(kind):
        member = members(kind).get(str(step))
        return member.kind if member else Any
    origin: Any = get_origin(kind)
    arguments = get_args(kind)
    if origin is dict:
        return arguments[1]
    if origin is tuple and isinstance(step, int):
        return arguments[0] if Ellipsis in arguments else arguments[step] if step < len(arguments) else Any
    return Any


_KEY = "[key]"
"""What pydantic adds to the location of a key that is wrong itself."""


def place(kind: Kind, location: Steps, value: Any) -> Steps | None:
    """Return the JSON steps of a location that pydantic reports; ``None`` if it lies in an alternative that `value` does not take.

    pydantic also names the alternatives of a union, which are no part of the JSON, and missing fields by their alias.
    """
    steps: list[int | str] = []
    rest = list(location)
    while rest:
        options = branches(kind)
        kind = taken(kind, value)
        if len(options) > 1 and rest[0] in {getattr(option, "__name__", "") for option in options}:
            if rest.pop(0) != kind.__name__:
                return None
            continue
        step = rest.pop(0)
        present = _holds(value, step)
        if step == _KEY and not present and not rest:
            break
        steps.append(step if present or not is_model(kind) else _name(kind, step))
        value = value[step] if present else None
        kind = inner(kind, step)
    return tuple(steps)


def unknown_keys(kind: Kind, value: Any, *, steps: Steps = ()) -> Iterator[UnknownKey]:
    """Yield the keys in `value` that no field takes. One whose value is null says nothing, and is left out where others may stand."""
    model = taken(kind, value)
    match value:
        case dict() if is_model(model):
            known = members(model)
            yield from _unknown_here(kind, value, steps)
            children: Iterable[tuple[int | str, Any]] = ((key, item) for key, item in value.items() if key in known)
        case dict():
            children = value.items()
        case list() | tuple():
            children = enumerate(value)
        case _:
            return
    for step, item in children:
        if isinstance(item, dict | list | tuple):
            child = inner(model, step)
            if child is not Any:
                yield from unknown_keys(child, item, steps=(*steps, step))


def unknown_keys_at(kind: Kind, value: Any, places: Iterable[Steps]) -> Iterator[UnknownKey]:
    """Yield the keys that no field takes in the objects at `places` of `value`."""
    for steps in places:
        inside, item = kind, value
        for step in steps:
            inside, item = inner(taken(inside, item), step), item[step]
        yield from _unknown_here(inside, item, steps)


def _unknown_here(kind: Kind, value: Mapping[str, Any], steps: Steps) -> Iterator[UnknownKey]:
    model = taken(kind, value)
    own = members(model)
    if len({own[key].name for key in value if key in own}) == len(value):
        return
    refused = model.model_config.get("extra") == "forbid"
    shapes = {key: (model, member) for model in branches(kind) if is_model(model) for key, member in members(model).items()}
    known = tuple(dict.fromkeys(member.name for _, member in shapes.values()))
    said = {key: item for key, item in value.items() if refused or item is not None}
    present: dict[str, str] = {}
    for key in [key for key in said if key in own]:
        earlier = present.setdefault(own[key].name, key)
        if earlier != key:
            yield UnknownKey((*steps, key), known, clash=f"a second spelling of {earlier}")
    absent = {member.name: member for _, member in shapes.values() if member.name not in present}
    for key in [key for key in said if key not in own]:
        clash = f"a field of {shapes[key][0].__name__} among fields of another shape" if key in shapes else ""
        yield UnknownKey((*steps, key), known, "" if clash else _meant(str(key), absent), clash, refused)


def _meant(key: str, absent: Mapping[str, Member]) -> str:
    required = tuple(name for name, member in absent.items() if member.required)
    return _nearest(key, required, tuple(absent))


@lru_cache(maxsize=1024)  # the same few keys are unknown in every case of a file
def _nearest(key: str, required: tuple[str, ...], absent: tuple[str, ...]) -> str:
    # A required field is an error if it is missing anyway, so a fair likeness will do.
    return nearest(key, required) or nearest(key, absent, cutoff=ALMOST_CERTAIN)


def _holds(value: Any, step: int | str) -> bool:
    return step in value if isinstance(value, dict) else isinstance(value, list | tuple) and isinstance(step, int) and step < len(value)


def _name(model: type[BaseModel], key: int | str) -> int | str:
    member = members(model).get(str(key))
    return member.name if member else key
