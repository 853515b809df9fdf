"""A question to a judge, from what is asked to what was answered.

A question may have several items, so that one request decides all rubrics of a turn or all sentences of an answer. The answer is JSON by a schema
made for the question: a label and a rationale for each item. Reading it is strict: an item that was left out or has another label is an
error of this vote for this item, and nothing is guessed from text that is not the JSON that was asked for.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mlflow_adk_eval.errors import shown
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.prompt import Block, Prompt
from mlflow_adk_eval.judge.protocol import Request

_FENCED = re.compile(r"\A```(?:json)?\s*\n(.*)\n```\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class JudgedItem:
    """One thing that gets a verdict of its own."""

    id: str | None = None
    """What its votes are recorded under, such as a rubric's id; ``None`` where the question is about one thing."""
    text: str | None = None
    """What the judge reads, as a data block; ``None`` where the instructions say it all."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a judge is asked."""

    prompt: Prompt
    blocks: tuple[Block, ...]
    """The material, in the order of reading: what is judged comes last."""
    items: tuple[JudgedItem, ...] = (JudgedItem(),)
    label_values: Mapping[str, float]
    """The labels that the judge may give, in lower case, and the value of each."""
    remarks: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further texts that each verdict comes with, by name: what each is."""

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """What the answer calls each item; one alone has no name."""
        return ("",) if len(self.items) == 1 and self.items[0].text is None else tuple(f"item_{n}" for n in range(1, len(self.items) + 1))

    @cached_property
    def schema(self) -> Json:
        """The JSON schema of the answer: the verdict on the one item, or an object with a verdict on each."""
        texts = {"rationale": "what decided the verdict", **self.remarks}
        verdict = object_of(
            {**{name: {"type": "string", "description": about} for name, about in texts.items()}}
            | {"verdict": {"type": "string", "enum": list(self.label_values)}}
        )
        return verdict if self.keys == ("",) else object_of(dict.fromkeys(self.keys, verdict))

    @cached_property
    def material(self) -> tuple[Block, ...]:
        """All that is between delimiters: the blocks, then the items."""
        named = (Block(key, item.text) for key, item in zip(self.keys, self.items, strict=True) if item.text is not None)
        return (*self.blocks, *named)

    def request(self, settings: Mapping[str, Any]) -> Request:
        """Return the request, with delimiters that carry a new random code."""
        return self.prompt.request(self.material, self.schema, settings)

    def address(self, judge: str, settings: Mapping[str, Any]) -> str:
        """Return the hash, in hex, of all that an answer depends on but chance."""
        material = [[block.name, block.text] for block in self.material]
        asked = [judge, dict(settings), self.prompt.sha256, material, self.schema]
        return hashlib.sha256(canonical_json(asked)).hexdigest()

    def read(self, text: str) -> tuple[ItemVerdict, ...]:
        """Return what an answer says of each item: a label that was asked for, or what is wrong instead. Nothing is guessed."""
        try:
            value = decoded(text)
        except ValueError as error:
            return (ItemVerdict(error=str(error)),) * len(self.items)
        found = [value] if self.keys == ("",) else [value.get(key) if isinstance(value, dict) else value for key in self.keys]
        return tuple(self._verdict(one) for one in found)

    def _verdict(self, value: Any) -> ItemVerdict:
        if not isinstance(value, dict):
            return ItemVerdict(error="the answer leaves it out" if value is None else f"the answer is {shown(value)}, not a verdict")
        given, texts = value.get("verdict"), {name: value.get(name) for name in ("rationale", *self.remarks)}
        label = given.strip().casefold() if isinstance(given, str) else ""
        if label not in self.label_values:
            return ItemVerdict(error=f"the verdict is {shown(given)}, not one of {', '.join(self.label_values)}")
        kept = {name: text for name, text in texts.items() if isinstance(text, str) and text.strip()}
        rationale = kept.pop("rationale", "")
        return ItemVerdict(label=label, rationale=rationale, remarks=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemVerdict:
    """What one answer says of one item."""

    label: str | None = None
    """``None`` where it says nothing that can be used."""
    rationale: str = ""
    remarks: Mapping[str, str] = field(default_factory=dict[str, str])
    error: str = ""


def decoded(text: str) -> Any:
    """Return the JSON that a model answered with.

    Raises:
        ValueError: saying why it is none that could be relied on.
    """
    try:
        return json.loads(_unfenced(text), object_pairs_hook=_unambiguous)
    except ValueError as error:
        raise ValueError(f"the answer is no JSON: {error}" if text.strip() else "the answer is empty") from None


def object_of(properties: Json) -> Json:
    """Return the JSON schema of an object that has exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _unambiguous(pairs: list[tuple[str, Any]]) -> Json:
    """Refuse an object that says two things under one name: which of them is meant would be a guess."""
    found = dict(pairs)
    if len(found) < len(pairs):
        msg = "a name stands twice in one object"
        raise ValueError(msg)
    return found


def _unfenced(text: str) -> str:
    """Return a text without the code fence that a model without structured output may put around it."""
    fenced = _FENCED.match(text.strip())
    return fenced[1] if fenced else text


def errors_of(verdicts: Sequence[ItemVerdict]) -> str:
    """Return what is wrong with an answer, or ``""`` if every item has its verdict."""
    return "; ".join(dict.fromkeys(verdict.error for verdict in verdicts if verdict.error))
