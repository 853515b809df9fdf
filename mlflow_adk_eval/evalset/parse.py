"""From JSON text to models, with every problem named by its JSON path.

`parse` decodes the JSON and validates it with pydantic in one go, which is fast where nothing is unknown. (Given the text itself, pydantic
is slower, since it searches each object's keys for each field, and before 2.14.2 takes two spellings of one key for one.) Only where that
fails does it look for misspelt keys (`schema.unknown_keys`), and turn pydantic's findings into `Problem` objects with paths of the JSON
(`problems_of`).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json

from mlflow_adk_eval.errors import EvalSetError, InputError, Problem, did_you_mean, json_path, shown
from mlflow_adk_eval.evalset.schema import Kind, Steps, UnknownKey, place, unknown_keys, unknown_keys_at

T = TypeVar("T")

_MAX_NAMED = 8

_UTF8_MARK = b"\xef\xbb\xbf"
_OTHER_MARKS = (b"\xff\xfe", b"\xfe\xff")
_OBJECT, _LIST, _NUMBER, _WHOLE, _TRUTH = "an object", "a list", "a number", "a whole number", "true or false"
_WANTED = {
    "missing": "this field, which is required",
    "extra_forbidden": "no key of this name",
    "string_type": "a string",
    "string_unicode": "a string of valid Unicode",
    "string_too_short": "a string that is not empty",
    "string_pattern_mismatch": "a string that matches {pattern}",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "a finite number",
    "bool_type": _TRUTH,
    "bool_parsing": _TRUTH,
    "dict_type": _OBJECT,
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "tuple_type": _LIST,
    "list_type": _LIST,
    "too_long": "a list of exactly {max_length}",
    "too_short": "at least {min_length} of them",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "literal_error": "one of {expected}",
    "unwanted": "{wanted}",
}
"""What was wanted, by pydantic's kind of error; ``unwanted`` is our own kind."""


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
        if enabled and gc.get_count()[0] - before > gc.get_threshold()[0] and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        if enabled:
            gc.enable()


@contextlib.contextmanager
def no_rescanning() -> Generator[None, None, None]:
    """Keep the cyclic garbage collector from scanning what was there before, imported modules above all; what comes is collected."""
    ours = not gc.get_freeze_count()
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
        hint = did_you_mean(path.name, _beside(path)) or (f"`{made_by}` writes it." if made_by else "")
        raise error(str(path), [Problem("$", NO_FILE, "a file that exists", hint)]) from None
    except (OSError, ValueError) as problem:
        found = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise error(str(path), [Problem("$", found or NO_FILE, "a file that can be read")]) from None
    return without_mark(text, str(path), error=error)


def _beside(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(one.name for one in path.parent.iterdir() if one.is_file())
    return []


def without_mark(text: bytes, source: str, *, error: type[InputError] = EvalSetError) -> bytes:
    """Return the beginning of a text, or all of it, without a byte order mark.

    Raises:
        InputError: of the given kind, if it is no text in UTF-8.
    """
    if text.startswith(_OTHER_MARKS) or b"\0" in text[:4]:
        raise error(source, [Problem("$", "text in UTF-16 or UTF-32", "text in UTF-8")])
    return text.removeprefix(_UTF8_MARK)


def decode(text: bytes, source: str, *, error: type[InputError] = EvalSetError) -> Any:
    """Return the JSON value in `text`.

    Raises:
        InputError: of the given kind, if it is no JSON.
    """
    try:
        return from_json(text)
    except ValueError as problem:
        found = f"text that is no JSON ({problem})" if text.strip() else "an empty text"
        raise error(source, [Problem("$", found, "JSON")]) from None


def parse(adapter: TypeAdapter[T], text: bytes | Any, source: str, *, error: type[InputError] = EvalSetError, at: str = "$") -> T:
    """Return `text` (JSON bytes, or a decoded value) as what `adapter` describes.

    Unknown fields are kept, unless one is so close to a field that is absent that it must be a slip of the pen. A file
    without any is read in one go. With some, what was wrong at the first attempt counts too, since one alternative of a
    union would swallow the other as unknown fields.

    Raises:
        InputError: of the given kind, with every problem of the input.
    """
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
        kind: Kind = adapter._type  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - there is no other way to ask
        if parsed is not None and not details and not any(key.amiss for key in refused_keys(kind, value, refused)):
            return parsed  # most unknown keys are meant to be there, and searching all of a value for more takes long
        found = problems_of(kind, value, details, [key for key in unknown_keys(kind, value) if key.amiss], at=at)
        if found or parsed is None:
            raise error(source, found)
        return parsed


def refused_keys(kind: Kind, value: Any, refused: Iterable[ErrorDetails]) -> Iterator[UnknownKey]:
    """Yield the unknown keys of the objects in which pydantic refused one."""
    places = (place(kind, detail["loc"], value) for detail in refused)
    return unknown_keys_at(kind, value, {steps[:-1] for steps in places if steps})


def problems_of(kind: Kind, value: Any, details: Sequence[ErrorDetails], unknown: Sequence[UnknownKey], *, at: str) -> list[Problem]:
    """Return what is wrong with `value`, one problem for each cause, unknown keys first.

    Args:
        kind: what `value` should be.
        value: the decoded JSON.
        details: what pydantic found.
        unknown: the keys that no field takes.
        at: the JSON path of `value`.
    """
    found = {key.steps: _unknown(key, at) for key in unknown}
    meant: dict[Steps, set[str]] = {}
    for key in unknown:
        meant.setdefault(key.steps[:-1], set()).add(key.meant)
    for detail in details:
        steps = place(kind, detail["loc"], value)
        if steps is not None and not _explained(detail, steps, meant):
            found.setdefault(steps, _problem(detail, json_path(at, steps)))
    return list(found.values())


def _explained(detail: ErrorDetails, steps: Steps, meant: Mapping[Steps, set[str]]) -> bool:
    """Whether something is amiss only because a key is misspelt, which is a problem of its own."""
    if detail["type"] == "missing":
        return steps[-1] in meant.get(steps[:-1], ())
    return detail["type"] == "unwanted" and any(name in detail.get("ctx", {}).get("of", ()) for name in meant.get(steps, ()))


def _unknown(key: UnknownKey, at: str) -> Problem:
    hint = f"Did you mean {key.meant!r}?" if key.meant else ""
    expected = f"one of {', '.join(key.known)}" if len(key.known) <= _MAX_NAMED else "a key of this object"
    return Problem(json_path(at, key.steps), key.clash or "an unknown key", expected, hint)


def _problem(detail: ErrorDetails, path: str) -> Problem:
    context = detail.get("ctx", {})
    found = "nothing" if detail["type"] == "missing" else context.get("found") or shown(detail["input"])
    return Problem(path, found, wanted(detail), context.get("near", ""))


def wanted(detail: ErrorDetails) -> str:
    """Return what pydantic wanted, in the words of JSON."""
    if detail["type"] == "missing" and isinstance(detail["loc"][-1], int):
        return f"item {detail['loc'][-1] + 1} of this list, which is required"
    words = _WANTED.get(detail["type"])
    return words.format(**detail.get("ctx", {})) if words else detail["msg"]
