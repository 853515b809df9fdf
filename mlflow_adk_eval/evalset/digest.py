"""What an eval set demands, as one hash: the same for the same demands, however they are spelt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_snake

from mlflow_adk_eval.evalset.models import EvalSet

_INCIDENTAL = {"invocation_id", "creation_timestamp", "invocation_index", "tool_use_index"}
_TYPED_BY_ADK = {"grounding_metadata", "usage_metadata"}
_USER_DATA = {"args", "response", "part_metadata"}
_BYTES = {"data", "thought_signature"}
_NOTHING: tuple[Any, ...] = ("", [], {})


_CONTENT = ("conversation", "conversation_scenario", "session_input", "rubrics", "final_session_state")
"""What a case asks and expects. Its id, and fields that nobody knows, make no other case of it."""


def eval_set_digest(eval_set: EvalSet) -> str:
    """Return ``sha256:<hex>`` over the cases.

    Spelling, key order, ``1`` or ``1.0``, absent or empty fields, ids and times of invocations and the name of the set
    do not matter; the order of cases and turns and everything else does.
    """
    return digest_and_contents(eval_set)[0]


def digest_and_contents(eval_set: EvalSet) -> tuple[str, tuple[bytes, ...]]:
    """Return the digest of an eval set, and for each of its cases what is the same for cases that ask and expect the same."""
    digest, contents = hashlib.sha256(), []
    for case in eval_set.eval_cases:
        plain = canonical(case)
        digest.update(canonical_json(plain) + b"\n")
        contents.append(hashlib.sha256(canonical_json({name: plain[name] for name in _CONTENT if name in plain})).digest())
    return f"sha256:{digest.hexdigest()}", tuple(contents)


def copies_of(eval_ids: Iterable[str], contents: Iterable[bytes], surroundings: Callable[[str], str]) -> dict[str, str]:
    """Return the cases that are another one over again, by id, each with the first that has its content.

    Args:
        eval_ids: the ids of the cases.
        contents: what is the same for cases that ask and expect the same, as `digest_and_contents` returns it.
        surroundings: what else makes a case another one, such as its tool environment, by its id.
    """
    first: dict[tuple[bytes, str], str] = {}
    found = {
        eval_id: first.setdefault((content, surroundings(eval_id)), eval_id) for eval_id, content in zip(eval_ids, contents, strict=True)
    }
    return {eval_id: original for eval_id, original in found.items() if original != eval_id}


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and no spaces, as UTF-8."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8", "surrogatepass")


def canonical(value: Any) -> Any:
    """Return a model as JSON values, without what ADK would not notice."""
    if value is None or type(value) is str:  # most values; asking pydantic's classes about each takes longer than all else
        return value
    if isinstance(value, BaseModel):
        return _canonical_model(value)
    if isinstance(value, tuple):
        return [canonical(item) for item in value]
    if isinstance(value, Mapping):
        return {key: canonical(item) if isinstance(item, BaseModel) else _plain(item) for key, item in value.items()}
    return _plain(value)


def _canonical_model(model: BaseModel) -> dict[str, Any]:
    raw = _raw_fields(type(model))
    found = {}
    for name, value in model.__dict__.items():
        if value is None or value == "" or name in _INCIDENTAL:
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
