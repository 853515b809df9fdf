"""What an eval set demands, as one hash: the same for the same demands, however they are spelt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_snake

from mlflow_adk_eval.evalset.models import EvalCase, EvalSet

_INCIDENTAL = {"invocation_id", "creation_timestamp", "invocation_index", "tool_use_index"}
_TYPED_BY_ADK = {"grounding_metadata", "usage_metadata"}
_USER_DATA = {"args", "response", "part_metadata"}
_BYTES = {"data", "thought_signature"}
_NOTHING: tuple[Any, ...] = ("", [], {})


_encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode

_CONTENT = ("conversation", "conversation_scenario", "session_input", "rubrics", "final_session_state")
"""What a case asks and expects. Its id, and fields that nobody knows, make no other case of it."""


def eval_set_digest(eval_set: EvalSet) -> str:
    """Return ``sha256:<hex>`` over the cases.

    Spelling, key order, ``1`` or ``1.0``, absent or empty fields, ids and times of invocations and the name of the set
    do not matter; the order of cases and turns and everything else does.
    """
    if known := getattr(eval_set.eval_cases, "digest", None):  # of cases that are read from a source
        return str(known)
    digest = hashlib.sha256()
    for case in eval_set.eval_cases:
        digest.update(canonical_json(canonical(case)) + b"\n")
    return f"sha256:{digest.hexdigest()}"


def digest_and_contents(eval_set: EvalSet) -> tuple[str, tuple[bytes, ...]]:
    """Return the digest of an eval set, and for each of its cases what is the same for cases that ask and expect the same."""
    digest = SetDigest()
    contents = tuple(map(digest.add, eval_set.eval_cases))
    return digest.text, contents


class SetDigest:
    """The digest of an eval set whose cases come one after the other."""

    def __init__(self) -> None:
        """Start without cases."""
        self._hash = hashlib.sha256()

    def add(self, case: EvalCase) -> bytes:
        """Add the next case; return what is the same for cases that ask and expect the same."""
        fields = sorted(canonical(case).items())
        written = [(name, b"%b:%b" % (canonical_json(name), canonical_json(value))) for name, value in fields]
        self._hash.update(b"{%b}\n" % b",".join(field for _, field in written))
        return hashlib.sha256(b"{%b}" % b",".join(field for name, field in written if name in _CONTENT)).digest()

    @property
    def text(self) -> str:
        """``sha256:<hex>`` over the cases so far."""
        return f"sha256:{self._hash.hexdigest()}"


class Copies:
    """Finds the cases that are another one over again."""

    def __init__(self, surroundings: Callable[[str], str]) -> None:
        """Take what else makes a case another one, such as its tool environment, by its id."""
        self._surroundings = surroundings
        self._eval_ids: list[str] = []
        self._contents = bytearray()  # a dict of them would be the largest thing in memory where there are many cases

    def add(self, eval_id: str, content: bytes) -> None:
        """Add a case; `content`: what is the same for cases that ask and expect the same, as `SetDigest.add` returns it."""
        around = self._surroundings(eval_id)
        self._eval_ids.append(eval_id)
        self._contents += hashlib.sha256(content + around.encode()).digest() if around else content

    @property
    def found(self) -> dict[str, str]:
        """The copies, by id, each with the first case that has its content."""
        starts = range(0, len(self._contents), _HASH)
        heads = sorted(int.from_bytes(self._contents[start : start + _HEAD]) for start in starts)
        again = {head for head, following in pairwise(heads) if head == following}
        first: dict[bytes, str] = {}
        copies: dict[str, str] = {}
        for eval_id, start in zip(self._eval_ids, starts if again else (), strict=bool(again)):
            if int.from_bytes(self._contents[start : start + _HEAD]) in again:
                original = first.setdefault(bytes(self._contents[start : start + _HASH]), eval_id)
                if original != eval_id:
                    copies[eval_id] = original
        return copies


_HASH, _HEAD = 32, 8
"""The bytes of a hash, and of its beginning, by which most are told apart."""


def copies_of(eval_ids: Iterable[str], contents: Iterable[bytes], surroundings: Callable[[str], str]) -> dict[str, str]:
    """Return the cases that are another one over again, by id, each with the first that has its content; see `Copies`."""
    copies = Copies(surroundings)
    for eval_id, content in zip(eval_ids, contents, strict=True):
        copies.add(eval_id, content)
    return copies.found


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and no spaces, as UTF-8."""
    return _encode(value).encode("utf-8", "surrogatepass")


def canonical(value: Any) -> Any:
    """Return a model as JSON values, without what ADK would not notice."""
    if value is None or type(value) is str:  # most values; asking pydantic's classes about each takes longer than all else
        return value
    if isinstance(value, tuple):
        return [canonical(item) for item in value]
    if _is_model(value):
        return _canonical_model(value)
    if isinstance(value, Mapping):
        return {key: canonical(item) if _is_model(item) else _plain(item) for key, item in value.items()}
    return _plain(value)


_MODELS: dict[type[Any], bool] = {}


def _is_model(value: Any) -> bool:
    kind = type(value)
    found = _MODELS.get(kind)
    if found is None:
        found = _MODELS[kind] = issubclass(kind, BaseModel)
    return found


def _canonical_model(model: BaseModel) -> dict[str, Any]:
    raw = _raw_fields(type(model))
    found = {}
    for name, value in model.__dict__.items():
        if value is None or name in _INCIDENTAL:
            continue
        if type(value) is str and name not in raw:  # most values
            if value:
                found[name] = value
            continue
        plain = _typed(name, value) if name in raw else canonical(value)
        if plain or plain not in _NOTHING:
            found[name] = plain
    for name, value in (model.model_extra or {}).items():
        if value is not None:
            found[name] = _plain(value)
    return found


@cache
def _raw_fields(model: type[BaseModel]) -> frozenset[str]:
    """Return the fields that are carried along as JSON of which ADK knows the type."""
    return frozenset(name for name, info in model.model_fields.items() if name in _TYPED_BY_ADK or info.annotation is Any)


def _typed(name: str, value: Any) -> Any:
    """Spell the keys and bytes of raw JSON one way, and leave out its nulls, but not in what users and tools wrote."""
    if name in _USER_DATA:
        return _plain(value)
    match value:
        case dict():
            named = ((to_snake(key), item) for key, item in value.items() if item is not None)
            return {key: _typed(key, item) for key, item in named}
        case list() | tuple():
            return [_typed(name, item) for item in value]
        case str() if name in _BYTES:
            return value.replace("-", "+").replace("_", "/").rstrip("=")
        case _:
            return _plain(value)


def _plain(value: Any) -> Any:
    """Spell whole numbers one way; leave everything else, null values inside user data included."""
    if type(value) is str:
        return value
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value
