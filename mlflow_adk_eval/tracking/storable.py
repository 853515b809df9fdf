"""What any store can keep: JSON without secrets, without numbers that JSON lacks and without text that is no Unicode."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json

from mlflow_adk_eval.gating.evidence.integrity import key_of_criterion
from mlflow_adk_eval.redact import has_credentials, redacted, without_credentials
from mlflow_adk_eval.results.table import KEY, Table

LONGEST_PARAM = 6000
LONGEST_TAG = 8000
LONGEST_DIGEST = 36
_LONGEST_KEY = 200


def assessment_name(criterion: str) -> str:
    """Return `criterion` as the name of an assessment, of which MLflow hides whatever stands before a slash."""
    return key_of_criterion(criterion.removeprefix("mlflow."))


def fitted(text: str, limit: int) -> str:
    """Return `text`, or, where it is longer than `limit`, its beginning and its hash.

    >>> fitted("a" * 50, 20)
    'aaaaaaaa… (160b4e43)'
    """
    if len(text) <= limit:
        return text
    mark = f"… ({_hash(text)})"
    return text[: limit - len(mark)] + mark


def model_name(agent: str) -> str:
    """Return an agent's name as a LoggedModel may be called.

    >>> model_name("pkg.agents:root")
    'pkg_agents_root'
    """
    return re.sub(r"[/:.%\"']", "_", agent)[:_LONGEST_KEY] or "agent"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


_WORD = re.compile(r"[A-Za-z_]+")
Secrets = Mapping[str, str]
"""What must not be written down, each with what stands in its place."""

_NO_JSON = re.compile(r"[:\[,]\s?-?(?:NaN|Infinity)\b")
"""Numbers that Python writes and JSON does not have; a sentence may look like one, which only costs a closer look."""


def storable(value: Any, secrets: Secrets) -> Any:
    """Return `value` as JSON values that any store can keep; an object that JSON does not know, as its text.

    >>> storable({"limit": float("nan"), "who": ("key is s3cret-42", {1})}, {"s3cret-42": "[API_KEY]"})
    {'limit': 'nan', 'who': ['key is [API_KEY]', [1]]}
    """
    match value:
        case None | bool() | int():
            found: Any = value
        case float():
            found = float(value) if math.isfinite(value) else str(value)
        case str():
            found = storable_text(value, secrets)
        case Mapping():
            # A key that is one word may be a name of the format, which nobody could read without it.
            keys = [(storable_text(str(key), {} if _WORD.fullmatch(str(key)) else secrets), item) for key, item in value.items()]
            found = {key: storable(item, secrets) for key, item in keys}
        case list() | tuple() | set() | frozenset():
            found = [storable(item, secrets) for item in value]
        case BaseModel():
            found = storable(value.model_dump(exclude_unset=True), secrets)
        case _:
            plain = getattr(value, "tolist", None)  # numpy's numbers and arrays
            found = storable(plain() if callable(plain) else str(value), secrets)
    return found


def storable_text(text: str, secrets: Secrets) -> str:
    """Return `text` without secrets, without NUL and without halves of surrogate pairs, which databases refuse."""
    return redacted(without_credentials(text), secrets).replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def model_json(model: BaseModel, secrets: Secrets) -> str:
    """Return a model as JSON text that any store can keep."""
    try:
        text = model.model_dump_json(exclude_unset=True)
    except (PydanticSerializationError, UnicodeEncodeError):
        text = ""
    if text and _is_clean(text, secrets):
        return text
    return json.dumps(storable(model, secrets), ensure_ascii=False, allow_nan=False)


def clean_table(table: Table, secrets: Secrets) -> tuple[Table, str]:
    """Return a table that any store can keep, and its JSON text. What identifies its rows is never changed."""
    try:
        text = table.dumps(strict=True)
    except (TypeError, ValueError):
        text = ""
    if text and _is_clean(text, secrets):
        return table, text
    cells = (zip(table.columns, row, strict=True) for row in table.rows)
    rows = (tuple(cell if name in KEY else storable(cell, secrets) for name, cell in row) for row in cells)
    cleaned = Table(table.columns, tuple(rows))
    return cleaned, cleaned.dumps()


@dataclass(frozen=True, slots=True)
class StoreCleaner:
    """Makes the texts of a run's parts fit to be kept. Many are looked at together, as most of them are clean."""

    secrets: Secrets

    def document(self, model: BaseModel, /) -> str:
        """Return a model as JSON text."""
        return model_json(model, self.secrets)

    def documents(self, values: Sequence[str | None], /) -> Sequence[str | None]:
        """Return JSON texts; ``None`` stays."""
        if self._clean(values):
            return values
        return [value and json.dumps(storable(from_json(value), self.secrets), ensure_ascii=False) for value in values]

    def texts(self, values: Sequence[str | None], /) -> Sequence[str | None]:
        """Return texts; ``None`` stays."""
        return values if self._clean(values) else [value and self.text(value) for value in values]

    def text(self, value: str, /) -> str:
        """Return a text."""
        return storable_text(value, self.secrets)

    def _clean(self, values: Sequence[str | None]) -> bool:
        text = "\n".join(filter(None, values))
        return "\0" not in text and _is_clean(text, self.secrets)


def _is_clean(text: str, secrets: Secrets) -> bool:
    may_hold_no_number = "NaN" in text or "Infinity" in text  # so that the slow expression is needed for few texts
    if any(mark in text for mark in ("\\u0000", *secrets)) or (may_hold_no_number and _NO_JSON.search(text)) or has_credentials(text):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
