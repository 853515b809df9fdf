"""From JSON text to models, with every problem named by its JSON path.

`parse` decodes the JSON and validates it with pydantic in one go, which is fast where nothing is unknown. (Given the text itself, pydantic
is slower, since it searches each object's keys for each field, and before 2.14.2 takes two spellings of one key for one.) Only where that
fails does it look for misspelt keys (`unknown_keys`), and turn pydantic's findings into `Problem` objects with paths of the JSON
(`problems_of`). Which model owns a place in a JSON value is read off the models' own annotations: `place` turns a location that pydantic
reports into steps of the JSON, without the names of union members.
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import jiter
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from mlflow_adk_eval.errors import EvalSetError, InputError, Problem, did_you_mean, json_path, nearest, shown

T = TypeVar("T")

_MAX_NAMED = 9

_UTF8_MARK = b"\xef\xbb\xbf"
_OTHER_MARKS = (b"\xff\xfe", b"\xfe\xff")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
_KINDS: Mapping[str, tuple[str, ...]] = {
    "this required field": ("missing",),
    "no key with this name": ("extra_forbidden",),
    "a string": ("string_type",),
    "a string of valid Unicode": ("string_unicode",),
    "a non-empty string": ("string_too_short",),
    "a string that matches {pattern}": ("string_pattern_mismatch",),
    "a whole number": ("int_type", "int_parsing", "int_parsing_size", "int_from_float"),
    "a number": ("float_type", "float_parsing"),
    "a finite number": ("finite_number",),
    "true or false": ("bool_type", "bool_parsing"),
    "an object": ("dict_type", "model_type", "model_attributes_type"),
    "a list": ("tuple_type", "list_type"),
    "a list of exactly {max_length}": ("too_long",),
    "at least {min_length} of them": ("too_short",),
    "a number above {gt}": ("greater_than",),
    "a number of at least {ge}": ("greater_than_equal",),
    "a number below {lt}": ("less_than",),
    "a number of at most {le}": ("less_than_equal",),
    "one of {expected}": ("literal_error",),
    "{wanted}": ("unwanted",),
}
_WANTED = {kind: wanted for wanted, kinds in _KINDS.items() for kind in kinds}
"""What was wanted, by pydantic's kind of error; ``unwanted`` is our own kind."""


_FROZEN = 1000
"""From so many objects on, the caller has frozen some: Python 3.12 begins with a few hundred."""


@contextlib.contextmanager
def no_collection() -> Generator[None, None, None]:
    """Pause the cyclic garbage collector, which would scan a growing forest of acyclic models again and again.

    Afterwards all that is new, if it is much, belongs to the oldest generation, unscanned, unless the caller has frozen objects.
    """
    enabled, before = gc.isenabled(), gc.get_count()[0]
    gc.disable()
    try:
        yield
    finally:
        # Few are left to the collector's next turn: counting what is frozen takes as long as there is of it, tens of milliseconds within `no_rescanning`.
        if enabled and gc.get_count()[0] - before > gc.get_threshold()[0] and gc.get_freeze_count() < _FROZEN:
            gc.freeze()
            gc.unfreeze()
        if enabled:
            gc.enable()


@contextlib.contextmanager
def no_rescanning() -> Generator[None, None, None]:
    """Keep the cyclic garbage collector from scanning what was there before, imported modules above all; what comes is collected."""
    ours = gc.get_freeze_count() < _FROZEN
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


NO_FILE = "no such file"
"""What is found where there is none."""


def read_text(path: Path, *, error: type[InputError] = EvalSetError, made_by: str = "") -> bytes:
    """Return the file's bytes without a byte order mark.

    Args:
        path: the file.
        error: what is raised.
        made_by: the command that writes such a file, to be named where it is missing.

    Raises:
        InputError: of the given kind, if there is no such file or it is no text in UTF-8.
    """
    try:
        text = path.read_bytes()
    except IsADirectoryError:
        raise error(str(path), [Problem("$", "a folder", "a file")]) from None
    except FileNotFoundError:
        beside: list[str] = []
        with contextlib.suppress(OSError):
            beside = sorted(one.name for one in path.parent.iterdir() if one.is_file())
        hint = did_you_mean(path.name, beside) or (f"`{made_by}` writes it." if made_by else "")
        raise error(str(path), [Problem("$", NO_FILE, "a file that exists", hint)]) from None
    except (OSError, ValueError) as problem:
        found = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise error(str(path), [Problem("$", found or NO_FILE, "a file that can be read")]) from None
    return without_mark(text, str(path), error=error)


def without_mark(text: bytes, source: str, *, error: type[InputError] = EvalSetError) -> bytes:
    """Return the beginning of a text, or all of it, without a byte order mark.

    Raises:
        InputError: of the given kind, if it is no text in UTF-8.
    """
    if text.startswith(_OTHER_MARKS) or b"\0" in text[:4]:
        raise error(source, [Problem("$", "text in UTF-16 or UTF-32", "text in UTF-8")])
    return text.removeprefix(_UTF8_MARK)


class RepeatedKeyError(ValueError):
    """JSON in which a key stands twice in one object. Which of its values counts would be a guess."""

    def __init__(self, places: Sequence[Steps]) -> None:
        """Take the steps to each such key."""
        self.places = places
        super().__init__(f"the key at {json_path('$', places[0])} stands twice in one object")

    def problems(self, at: str = "$") -> list[Problem]:
        """Return a problem for each such key; `at` is the JSON path of the value."""
        return [_twice(at, steps) for steps in self.places]


def from_json(text: bytes | str) -> Any:
    """Return the JSON value in `text`.

    jiter is the parser that pydantic has inside. Only the package of its own can be asked to find repeated keys, which
    costs a tenth of the time of parsing; any search in Python would cost as much as the parsing.

    Raises:
        RepeatedKeyError: if a key stands twice in one object.
        ValueError: if it is no JSON.
    """
    data = text.encode() if isinstance(text, str) else text
    try:
        return jiter.from_json(data, catch_duplicate_keys=True)
    except ValueError:
        jiter.from_json(data)  # raises if there is anything else wrong
        raise RepeatedKeyError([*_repeated_keys(_as_pairs(data), ())]) from None


def from_lenient_json(text: str) -> Any:
    """Return the JSON value in a text from a table or a model, where halves of surrogate pairs are read, too.

    Raises:
        RepeatedKeyError: if a key stands twice in one object.
        ValueError: if it is no JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_unambiguous)
    except RepeatedKeyError:
        raise RepeatedKeyError([*_repeated_keys(_as_pairs(text), ())]) from None


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise RepeatedKeyError([("",)])
    return content


def decode(text: bytes, source: str, *, error: type[InputError] = EvalSetError) -> Any:
    """Return the JSON value in `text`.

    Raises:
        InputError: of the given kind, if it is no JSON, or a key stands twice in one object.
    """
    try:
        return from_json(text)
    except RepeatedKeyError as repeats:
        raise error(source, repeats.problems()) from None
    except ValueError as problem:
        found = f"text that is not JSON ({problem})" if text.strip() else "an empty text"
        raise error(source, [Problem("$", found, "JSON")]) from None


def _twice(at: str, steps: Steps) -> Problem:
    return Problem(json_path(at, steps), "a key that stands twice in this object", "each key once")


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON as it was written, with the keys that stand twice."""


def _as_pairs(text: bytes | str) -> Any:
    # Numbers stay texts, since Python refuses to read very long ones.
    return json.loads(text, object_pairs_hook=_Pairs, parse_int=str, strict=False)


def _repeated_keys(value: Any, steps: Steps) -> Iterator[Steps]:
    """Yield the steps to each key that stands twice in its object, once for each such key."""
    if isinstance(value, _Pairs):
        counts = Counter(key for key, _ in value)
        yield from ((*steps, key) for key, count in counts.items() if count > 1)
    children = value if isinstance(value, _Pairs) else enumerate(value) if isinstance(value, list) else ()
    for step, item in children:
        yield from _repeated_keys(item, (*steps, step))


def repeated_yaml_keys(node: Any, steps: Steps = ()) -> Iterator[Problem]:
    """Yield the keys that stand twice in one mapping of a composed document of PyYAML.

    A key that is a mapping itself has no path, and PyYAML refuses it. A merge (``<<``) may stand several times.
    """
    if node.id == "sequence":
        for index, item in enumerate(node.value):
            yield from repeated_yaml_keys(item, (*steps, index))
    elif node.id == "mapping":
        names = [(key.tag, key.value) for key, _ in node.value if key.id == "scalar" and not key.tag.endswith(":merge")]
        yield from (_twice("$", (*steps, name)) for (_, name), count in Counter(names).items() if count > 1)
        for key, item in node.value:
            yield from repeated_yaml_keys(item, (*steps, str(key.value)))


def parse(
    kind: type[T],
    text: bytes | Any,
    source: str,
    *,
    error: type[InputError] = EvalSetError,
    at: str = "$",
    strict: bool = False,
    mending: bool = False,
) -> T:
    """Return `text` (JSON bytes, or a decoded value) as a value of `kind`.

    Unknown fields are kept, unless one is so close to a field that is absent that it must be a slip of the pen. A file
    without any is read in one go. With some, what was wrong at the first attempt counts too, since one alternative of a
    union would swallow the other as unknown fields. `strict`: no unknown field is kept. `mending`: neither is a field that
    nothing reads where it is an error.

    Raises:
        InputError: of the given kind, with every problem of the input.
    """
    adapter: TypeAdapter[T] = _adapter(kind)

    def refusing(key: UnknownKey) -> bool:
        return strict or (key.amiss and not (mending and key.belongs))

    with no_collection():
        value = decode(text, source, error=error) if isinstance(text, bytes) else text
        try:
            return adapter.validate_python(value, extra="forbid")
        except ValidationError as refusal:
            refused = refusal.errors(include_url=False)
            details = [detail for detail in refused if detail["type"] != "extra_forbidden"]
        try:
            parsed = adapter.validate_python(value, extra="allow")
        except ValidationError as refusal:
            parsed = None
            details += refusal.errors(include_url=False)
        places = {steps[:-1] for detail in refused if (steps := place(kind, detail["loc"], value))}
        if parsed is not None and not details and not any(refusing(key) for key in unknown_keys_at(kind, value, places)):
            return parsed  # most unknown keys are meant to be there, and searching all of a value for more takes long
        found = problems_of(kind, value, details, [key for key in unknown_keys(kind, value) if refusing(key)], at=at)
        if found or parsed is None:
            raise error(source, found or [Problem(at, details[0]["msg"], "a value that fits")])
        return parsed


def problems_of(kind: Kind, value: Any, details: Sequence[ErrorDetails], unknown: Sequence[UnknownKey], *, at: str) -> list[Problem]:
    """Return what is wrong with `value`, one problem for each cause, unknown keys first.

    Args:
        kind: what `value` should be.
        value: the decoded JSON.
        details: what pydantic found.
        unknown: the keys that no field takes.
        at: the JSON path of `value`.
    """
    problems: dict[tuple[Steps, str], Problem] = {}
    meant: dict[Steps, set[str]] = {}
    without = {steps[:-1] for detail in details if detail["type"] == "missing" and (steps := place(kind, detail["loc"], value))}
    for key in unknown:
        if key.belongs and key.steps[:-1] in without:  # an object that lacks what it needs is another one altogether
            continue
        problems[key.steps, ""] = key.problem(at)
        meant.setdefault(key.steps[:-1], set()).add(key.meant)
    for detail in details:
        steps = place(kind, detail["loc"], value)
        if steps is None:
            continue
        missing, context = detail["type"] == "missing", detail.get("ctx", {})
        # What is amiss only because a key is misspelt, which is a problem of its own, is left out.
        misspelt = steps[-1:] if missing else context.get("of", ()) if detail["type"] == "unwanted" else ()
        if meant.get(steps[:-1] if missing else steps, set()).isdisjoint(misspelt):
            found = "nothing" if missing else context.get("found") or shown(detail["input"])
            cause = found if detail["type"] == "unwanted" else ""
            problems.setdefault((steps, cause), Problem(json_path(at, steps), found, wanted(detail), context.get("near", "")))
    return list(problems.values())


def not_yaml(error: Exception) -> str:
    """Return what is found instead of YAML, of an error of PyYAML or ruamel.yaml."""
    known = vars(error)
    mark, problem = known.get("problem_mark"), known.get("problem") or next(iter(str(error).splitlines()), type(error).__name__)
    return f"text that is not YAML ({problem}{f', line {mark.line + 1}, column {mark.column + 1}' if mark else ''})"


def excess(events: Iterable[Any], *, most: int, deepest: int) -> str:
    """Return why a document of YAML must not be built, told by its events alone: a few lines of aliases can stand for billions of values.

    Args:
        events: those of PyYAML or ruamel.yaml.
        most: how many values it may have once its aliases are written out.
        deepest: how many levels it may have.
    """
    sizes: dict[str, int] = {}
    counts, anchors = [0], [""]
    for event in events:
        kind = type(event).__name__
        if kind in ("MappingStartEvent", "SequenceStartEvent"):
            counts.append(1)
            anchors.append(event.anchor or "")
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            count, anchor = counts.pop(), anchors.pop()
            counts[-1] += count
            sizes[anchor] = count
        elif kind == "AliasEvent":
            if event.anchor in anchors:
                return f"an alias *{event.anchor} that contains itself"
            counts[-1] += sizes.get(event.anchor, 1)
        elif kind == "ScalarEvent":
            counts[-1] += 1
            sizes[event.anchor or ""] = 1
        if len(counts) > deepest or sum(counts) > most:
            return f"more than {most:,} values or {deepest} levels"
    return ""


def repeated(ids: Iterable[str], place: str, wanted: str = "a unique id") -> list[Problem]:
    """Return a problem for each id that stands in a list for a second time; `place` is the JSON path of one, with ``{}`` for its index."""
    first: dict[str, int] = {}
    return [
        Problem(place.format(index), f"{shown(one)}, the same as {place.format(first[one])}", wanted)
        for index, one in enumerate(ids)
        if first.setdefault(one, index) != index
    ]


def wanted(detail: ErrorDetails) -> str:
    """Return what pydantic wanted, in the words of JSON."""
    if detail["type"] == "missing" and isinstance(detail["loc"][-1], int):
        return f"item {detail['loc'][-1] + 1} of this list; it is required"
    words = _WANTED.get(detail["type"])
    return words.format(**detail.get("ctx", {})) if words else detail["msg"]


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
    belongs: str = ""
    """The place of what it says, which nothing reads here; empty where it has none."""

    @property
    def amiss(self) -> bool:
        """Whether it is an error, and not just something to carry along."""
        return bool(self.meant or self.clash or self.refused or self.belongs)

    def problem(self, at: str) -> Problem:
        """Return it as a problem; `at` is the JSON path of the value in which it stands."""
        path = json_path(at, self.steps)
        if self.belongs:
            note = f"a place that is read, or the name '_{self.steps[-1]}' if it is a note"
            return Problem(path, "a key that nothing reads here", note, f"Did you mean {self.belongs}?")
        expected = f"one of {', '.join(self.known)}" if len(self.known) <= _MAX_NAMED else "a known key of this object"
        hint = f"Did you mean {self.meant!r}?" if self.meant else ""
        return Problem(path, self.clash or "an unknown key", expected, hint)


@cache
def members(kind: Kind) -> Mapping[str, Member]:
    """Return a model's fields by each key that fills them; of anything else none."""
    fields: dict[str, Member] = {}
    for name, info in kind.model_fields.items() if isinstance(kind, type) and issubclass(kind, BaseModel) else ():
        fields[name] = fields[info.alias or name] = Member(name, info.annotation, info.is_required())
    return fields


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
    models = [option for option in options if members(option)]
    if isinstance(value, dict) and models:
        keys = value.keys()
        return max(reversed(models), key=lambda model: len(members(model).keys() & keys))
    return options[-1]


def inner(kind: Kind, step: int | str) -> Kind:
    """Return what a key or index of a value of `kind` holds; ``Any`` where nothing is said about it."""
    if own := members(kind):
        return own[str(step)].kind if str(step) in own else Any
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
        step, here = rest.pop(0), value
        listed = isinstance(value, list | tuple) and isinstance(step, int) and step < len(value)
        present = step in value if isinstance(value, dict) else listed
        if step == _KEY and not present and not rest:
            break
        member = None if present else members(kind).get(str(step))
        steps.append(member.name if member else step)
        value = here[step] if present else None
        kind = inner(kind, step)
    return tuple(steps)


def unknown_keys(kind: Kind, value: Any, *, steps: Steps = (), deep: bool = True) -> Iterator[UnknownKey]:
    """Yield the keys in `value` that no field takes. One whose value is null says nothing, and is left out where others may stand.

    Args:
        kind: what `value` should be.
        value: the decoded JSON.
        steps: where it stands.
        deep: whether to look into what it holds, too.
    """
    model = taken(kind, value)
    own = members(model) if isinstance(value, dict) else {}
    if own and len({own[key].name for key in value if key in own}) < len(value):
        yield from _unknown_here(kind, model, value, steps)
    children: Iterable[tuple[int | str, Any]] = ()
    if deep and isinstance(value, dict | list | tuple):
        children = value.items() if isinstance(value, dict) else enumerate(value)
    for step, item in children:
        if isinstance(item, dict | list | tuple) and (not own or step in own):
            child = inner(model, step)
            if child is not Any:
                yield from unknown_keys(child, item, steps=(*steps, step))


def unknown_keys_at(kind: Kind, value: Any, places: Iterable[Steps]) -> Iterator[UnknownKey]:
    """Yield the keys that no field takes in the objects at `places` of `value`."""
    for steps in places:
        inside, item = kind, value
        for step in steps:
            inside, item = inner(taken(inside, item), step), item[step]
        yield from unknown_keys(inside, item, steps=steps, deep=False)


def _unknown_here(kind: Kind, model: type[BaseModel], value: Mapping[str, Any], steps: Steps) -> Iterator[UnknownKey]:
    """Yield the keys of one object that no field takes, and those that take a field for a second time."""
    own = members(model)
    refused = model.model_config.get("extra") == "forbid"
    shapes = {key: (shape, member) for shape in branches(kind) for key, member in members(shape).items()}
    known = tuple(dict.fromkeys(member.name for _, member in shapes.values()))
    present: dict[str, str] = {}
    others: list[str] = []
    for key, item in value.items():
        if not refused and item is None:
            continue
        if key not in own:
            others.append(key)
        elif (earlier := present.setdefault(own[key].name, key)) != key:
            yield UnknownKey((*steps, key), known, clash=f"a second spelling of {earlier}")
    absent = {member.name: member.required for _, member in shapes.values() if member.name not in present}
    required = tuple(name for name, needed in absent.items() if needed)
    place_of = getattr(model, "place_of", None)  # of models of eval sets
    for key in others:
        clash = f"a field of {shapes[key][0].__name__} mixed with fields of another shape" if key in shapes else ""
        slip = "" if clash else _meant(str(key), required, tuple(absent))
        belongs = "" if clash or slip or place_of is None else place_of(str(key), value)
        yield UnknownKey((*steps, key), known, slip, clash, refused, belongs)


@lru_cache(maxsize=1024)  # the same few keys are unknown in every case of a file
def _meant(key: str, required: tuple[str, ...], absent: tuple[str, ...]) -> str:
    # A required field is an error if it is missing anyway, so a fair likeness will do.
    return nearest(key, required) or nearest(key, absent, cutoff=ALMOST_CERTAIN)
