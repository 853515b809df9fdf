"""The hash of a request to a model, by which a recorded answer is found again.

ADK's ``LlmRequest`` and its JSON in a recording of ``adk conformance`` have the same hash. ADK need not be installed to read a recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from mlflow_adk_eval.evalset.models import Json, canonical, json_sha256

_INCIDENTAL_CONFIG = {"http_options", "labels"}
"""How a request is sent and billed; ADK and this package add to both."""


def request_sha256(request: Any) -> str:
    """Return the hash, in hex, of all of a request that its answer depends on: model, contents and config.

    The ids of function calls and responses, thought signatures, and how the request is sent do not count.

    Args:
        request: ADK's ``LlmRequest``, or the object that ADK writes of it as JSON or YAML.
    """
    plain: Mapping[str, Any] = request
    if not isinstance(request, Mapping):  # as ADK's recorder writes it
        how: Json = {"include": {"model", "contents", "config"}, "exclude_none": True, "exclude_defaults": True}
        plain = request.model_dump(mode="json", fallback=_described, warnings=False, **how)
    config: Json = {name: value for name, value in (plain.get("config") or {}).items() if name not in _INCIDENTAL_CONFIG}
    contents = [content | {"parts": list(map(_lasting, content.get("parts") or ()))} for content in plain.get("contents") or ()]
    asked = {"model": plain.get("model"), "contents": contents, "config": config}
    return json_sha256(canonical(asked))


def _lasting(part: Json) -> Json:
    """Return a part without what is new each time."""
    kept = {name: value for name, value in part.items() if name != "thought_signature"}
    for name in ("function_call", "function_response"):
        if name in kept:
            kept[name] = {key: value for key, value in kept[name].items() if key != "id"}
    return kept


def _described(value: Any) -> Any:
    """Return what stands for an object that JSON does not know: a type's schema, else a name, which has no address in memory."""
    try:
        return TypeAdapter(value).json_schema()
    except (PydanticUserError, TypeError):
        of = value if hasattr(value, "__qualname__") else type(value)
        return f"{of.__module__}.{of.__qualname__}"
