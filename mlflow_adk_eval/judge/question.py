"""A question to a judge, from what is asked to what was answered.

A question may have several items, so that one request decides all rubrics of a turn or all sentences of an answer. The answer is JSON by a schema
made for the question: a label and a rationale for each item. Reading it is strict: an item that was left out or has another label is an
error of this vote for this item, and nothing is guessed from text that is not the JSON that was asked for. Two slips that leave no doubt about what is
meant are repaired, counted and kept: one object in a code fence, and raw line breaks in its strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mlflow_adk_eval.config.spec import PromptVariant
from mlflow_adk_eval.errors import shown
from mlflow_adk_eval.evalset.media import Media
from mlflow_adk_eval.evalset.models import Json, json_sha256
from mlflow_adk_eval.judge.prompt import Block, Prompt
from mlflow_adk_eval.judge.protocol import Request

_TOKENS_OF_A_NAME, _TOKENS_OF_A_TEXT = 10, 300
_WORD, _COMMON_WORD = re.compile(r"\w+"), 3
"""Labels as short as "no" stand in any reason."""
_FENCED = re.compile(r"\A```(?:json)?\s*(\{.*\})\s*```\Z", re.DOTALL | re.IGNORECASE)


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
    unshown: tuple[Media, ...]
    """The media in the material that no block shows. Nobody can answer a question with any, so it is never put to a judge."""
    items: tuple[JudgedItem, ...] = (JudgedItem(),)
    label_values: Mapping[str, float]
    """The labels that the judge may give, in lower case, and the value of each."""
    remarks: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further texts that each verdict comes with, by name: what each is."""
    listed: bool = False
    """Whether the items stand in one block, a line each."""

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """What the answer calls each item; one alone has no name."""
        return ("",) if len(self.items) == 1 and self.items[0].text is None else tuple(f"item_{n}" for n in range(1, len(self.items) + 1))

    @cached_property
    def schema(self) -> Json:
        """The JSON schema of the answer: the verdict on the one item, or an object with a verdict on each."""
        texts = {"rationale": "what decided the verdict", **self.remarks}
        said: Json = {name: {"type": "string", "description": about} for name, about in texts.items()}
        verdict = object_of(said | {"verdict": {"type": "string", "enum": list(self.label_values)}})
        return verdict if self.keys == ("",) else object_of(dict.fromkeys(self.keys, verdict))

    @property
    def wanted(self) -> str:
        """The answer that is asked for, in words."""
        each = "" if self.keys == ("",) else f", one for each of {', '.join(self.keys)}"
        return f"a JSON object whose verdict is {' or '.join(self.label_values)}{each}"

    @cached_property
    def material(self) -> tuple[Block, ...]:
        """All that is between delimiters: the blocks, then the items."""
        named = [(key, item.text) for key, item in zip(self.keys, self.items, strict=True) if item.text is not None]
        if self.listed and named:  # no item begins a line but by its name
            return (*self.blocks, Block("items", "\n".join(f"{key}: {' '.join(text.split())}" for key, text in named)))
        return (*self.blocks, *(Block(key, text) for key, text in named))

    def variant(self, name: PromptVariant) -> Question:
        """Return the question by a variant of its prompt.

        Raises:
            UsageError: if the prompt has no such variant.
        """
        return self if name == "standard" else replace(self, prompt=self.prompt.variant(name), listed=name == "listed")

    def request(self, settings: Mapping[str, Any], *, again: bool = False) -> Request:
        """Return the request, the same for each vote; `again`: after an answer that could not be read."""
        first = self.material[0].text.partition("\n")[0] if self.material else ""  # a conversation grows by lines
        return self.prompt.request(self.material, self.schema, settings, thread=first, again=again, answer_tokens=_tokens_of(self.schema))

    def address(self, judge: str, settings: Mapping[str, Any]) -> str:
        """Return the hash, in hex, of all that an answer depends on but chance."""
        material = [[block.name, block.text] for block in self.material]
        depends_on = [judge, dict(settings), self.prompt.sha256, material, self.schema]
        return json_sha256(depends_on)

    def read(self, text: str) -> tuple[ItemVerdict, ...]:
        """Return what an answer says of each item: a label that was asked for, or what is wrong instead. Nothing is guessed."""
        try:
            value, repair = decoded(text)
        except ValueError as error:
            return (ItemVerdict(error=str(error)),) * len(self.items)
        values = [value] if self.keys == ("",) else [value.get(key) if isinstance(value, dict) else value for key in self.keys]
        return tuple(self._verdict(one, repair) for one in values)

    def _verdict(self, value: Any, repair: str) -> ItemVerdict:
        if not isinstance(value, dict):
            return ItemVerdict(error="the answer omits it" if value is None else f"the answer is {shown(value)}, not a verdict")
        given, texts = value.get("verdict"), {name: value.get(name) for name in ("rationale", *self.remarks)}
        label = given.strip().casefold() if isinstance(given, str) else ""
        if label not in self.label_values:
            return ItemVerdict(error=f"the verdict is {shown(given)}, not one of {', '.join(self.label_values)}")
        remarks = {name: text for name, text in texts.items() if isinstance(text, str) and text.strip()}
        rationale = remarks.pop("rationale", "")
        words = set(_WORD.findall(rationale.casefold()))
        if label not in words and (others := sorted(name for name in self.label_values if len(name) > _COMMON_WORD and name in words)):
            remarks["attention"] = f"the reason argues for {' and '.join(others)}, but the verdict is {label}"
        return ItemVerdict(label=label, rationale=rationale, remarks=remarks, repair=repair)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemVerdict:
    """What one answer says of one item."""

    label: str | None = None
    """``None`` where it says nothing that can be used."""
    rationale: str = ""
    remarks: Mapping[str, str] = field(default_factory=dict[str, str])
    error: str = ""
    repair: str = ""
    """What was overlooked in the answer, since it leaves no doubt about what is meant."""


def decoded(text: str) -> tuple[Any, str]:
    """Return the JSON that a model answered with, and what was overlooked in it, since it leaves no doubt: what grammars of some servers allow.

    Raises:
        ValueError: saying why it is none that could be relied on.
    """
    fenced = _FENCED.match(text.strip())
    inner, repairs = (fenced[1], ["a code fence"]) if fenced else (text, [])
    try:
        value = json.loads(inner, object_pairs_hook=_unambiguous)
    except ValueError:
        try:
            value = json.loads(inner, object_pairs_hook=_unambiguous, strict=False)
        except ValueError as error:
            raise ValueError(f"the answer is not JSON: {error}" if text.strip() else "the answer is empty") from None
        repairs.append("line breaks or other control characters in a string")
    return value, " and ".join(repairs)


def _tokens_of(schema: Json) -> int:
    """Return how many tokens are enough for an answer by a schema, if each of its texts has a few sentences."""
    if schema["type"] == "object":
        return _TOKENS_OF_A_NAME + sum(_TOKENS_OF_A_NAME + _tokens_of(each) for each in schema["properties"].values())
    return _TOKENS_OF_A_NAME if "enum" in schema else _TOKENS_OF_A_TEXT


def object_of(properties: Json) -> Json:
    """Return the JSON schema of an object that has exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _unambiguous(pairs: list[tuple[str, Any]]) -> Json:
    """Refuse an object that says two things under one name: which of them is meant would be a guess."""
    content = dict(pairs)
    if len(content) < len(pairs):
        msg = "a key is repeated in one object"
        raise ValueError(msg)
    return content


def errors_of(verdicts: Sequence[ItemVerdict]) -> str:
    """Return what is wrong with an answer, or ``""`` if every item has its verdict."""
    return "; ".join(dict.fromkeys(verdict.error for verdict in verdicts if verdict.error))
