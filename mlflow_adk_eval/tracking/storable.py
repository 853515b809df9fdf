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

from mlflow_adk_eval.redact import has_credentials, redacted, without_credentials
from mlflow_adk_eval.results.table import LEAD, TAIL, Table
from mlflow_adk_eval.runs.manifest import key_of_criterion
from mlflow_adk_eval.runs.parts import Cleaner

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
    mark = f"… ({hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]})"
    return text[: limit - len(mark)] + mark


def model_name(agent: str) -> str:
    """Return an agent's name as a LoggedModel may be called.

    >>> model_name("pkg.agents:root")
    'pkg_agents_root'
    """
    return re.sub(r"[/:.%\"']", "_", agent)[:_LONGEST_KEY] or "agent"


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
            plain: Any = value
        case float():
            plain = float(value) if math.isfinite(value) else str(value)
        case str():
            plain = storable_text(value, secrets)
        case Mapping():
            # A key that is one word may be a name of the format, which nobody could read without it.
            keys = [(storable_text(str(key), {} if _WORD.fullmatch(str(key)) else secrets), item) for key, item in value.items()]
            plain = {key: storable(item, secrets) for key, item in keys}
        case list() | tuple() | set() | frozenset():
            plain = [storable(item, secrets) for item in value]
        case BaseModel():
            plain = storable(value.model_dump(exclude_unset=True), secrets)
        case _:
            to_list = getattr(value, "tolist", None)  # numpy's numbers and arrays
            plain = storable(to_list() if callable(to_list) else str(value), secrets)
    return plain


def storable_text(text: str, secrets: Secrets) -> str:
    """Return `text` without secrets, without NUL and without halves of surrogate pairs, which databases refuse."""
    return redacted(without_credentials(text), secrets).replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def clean_table(table: Table, secrets: Secrets) -> tuple[Table, str]:
    """Return a table that any store can keep, and its JSON text. What identifies its rows is never changed."""
    try:
        text = table.dumps(strict=True)
    except (TypeError, ValueError):
        text = ""
    if text and _is_clean(text, secrets):
        return table, text
    cells = (zip(table.columns, row, strict=True) for row in table.rows)
    rows = (tuple(cell if name in (*LEAD, *TAIL[1:]) else storable(cell, secrets) for name, cell in row) for row in cells)
    cleaned = Table(table.columns, tuple(rows))
    return cleaned, cleaned.dumps()


@dataclass(frozen=True, slots=True)
class StoreCleaner(Cleaner):
    """Leaves out secrets, and what no store takes. Many texts are looked at together, as most of them are clean."""

    secrets: Secrets

    def document(self, model: BaseModel, /) -> str:
        """Return a model as JSON text."""
        try:
            text = model.model_dump_json(exclude_unset=True)
        except (PydanticSerializationError, UnicodeEncodeError):
            text = ""
        if text and _is_clean(text, self.secrets):
            return text
        return json.dumps(storable(model, self.secrets), ensure_ascii=False, allow_nan=False)

    def documents(self, values: Sequence[str | None], /) -> Sequence[str | None]:
        """Return JSON texts; ``None`` stays."""
        if _is_clean("\n".join(filter(None, values)), self.secrets):
            return values
        return [value and json.dumps(storable(from_json(value), self.secrets), ensure_ascii=False) for value in values]

    def texts(self, values: Sequence[str | None], /) -> Sequence[str | None]:
        """Return texts; ``None`` stays."""
        if _is_clean("\n".join(filter(None, values)), self.secrets):
            return values
        return [value and storable_text(value, self.secrets) for value in values]

    def text(self, value: str, /) -> str:
        """Return a text."""
        return storable_text(value, self.secrets)


def _is_clean(text: str, secrets: Secrets) -> bool:
    may_hold_no_number = "NaN" in text or "Infinity" in text  # so that the slow expression is needed for few texts
    if any(mark in text for mark in ("\0", "\\u0000", *secrets)) or (may_hold_no_number and _NO_JSON.search(text)) or has_credentials(text):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
