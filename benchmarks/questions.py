"""What a contender asks a model, whatever its prompts look like, and what a model that knows the truth answers.

google-adk asks in prose and reads prose; we ask for JSON by a schema, about texts that stand between delimiters with a code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from truth import TOOL, Noise, answer_id, fulfilled, lookup, mark, reply, sentences, supported, valid

Json = dict[str, Any]
Elect = Callable[[bool, str], bool]
"""Turns a fact about something into a vote on it, which may be wrong."""

_RATIONALE = "Names, numbers and units were compared one by one with the material, and this is what decided the matter."
_LABELS: dict[str, tuple[str, Callable[[str, str], bool]]] = {
    "valid": ("invalid", lambda identity, _: valid(identity)),
    "yes": ("no", fulfilled),
    "supported": ("unsupported", lambda _, sentence: supported(sentence)),
}
"""By what to say if it is so: what to say if not, and whether it is, from the id of the answer and the text of an item."""


@dataclass(frozen=True)
class Question:
    """A request that was understood."""

    kind: str
    identity: str
    """Of the answer that is judged."""
    answer: Callable[[Elect], str]
    call: Json | None = None
    """The tool call that is the answer, where it is no text."""

    @property
    def subject(self) -> str:
        """What luck depends on: the same for all contenders that ask about the same thing."""
        return f"{self.kind} {self.identity}"

    def vote(self, number: int, noise: Noise) -> str:
        """Return the text of the vote of this number."""
        return self.answer(lambda fact, about: fact ^ noise.hits(self.identity, number, about))


def read(request: Json) -> Question:
    """Return what the body of a generateContent request asks.

    Raises:
        ValueError: if it is none of the questions that this judge knows.
    """
    if request.get("tools"):
        return _agent(request["contents"])
    text = "\n".join(part["text"] for content in request["contents"] for part in content["parts"] if part.get("text"))
    config = request.get("generationConfig") or {}
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    if schema:
        return _by_schema(text, schema["properties"])
    for sign, reader in _PROSE.items():
        if sign in text:
            return reader(text)
    raise ValueError(f"not a question that this judge knows: {text[:100]}")


def _agent(contents: list[Json]) -> Question:
    """Read what the model of an agent is asked: to look something up, then to say so."""
    question = next(part["text"] for content in reversed(contents) for part in reversed(content["parts"]) if "text" in part)
    if any("functionResponse" in part for part in contents[-1]["parts"]):
        return Question("reply", answer_id(mark(question)), lambda _: reply(question))
    call = {"name": TOOL, "args": lookup(question)}
    return Question("lookup", answer_id(mark(question)), lambda _: json.dumps(call), call)


def _by_schema(text: str, properties: Json) -> Question:
    """Read a question about one thing, or about several whose texts stand in blocks of the properties' names."""
    shapes = {"": properties} if "verdict" in properties else {name: shape["properties"] for name, shape in properties.items()}
    labels = next(iter(shapes.values()))["verdict"]["enum"]
    aye = next(label for label in _LABELS if label in labels)
    nay, fact = _LABELS[aye]
    identity, items = answer_id(text), {name: _block(text, name) for name in shapes}

    def answer(elect: Elect) -> str:
        verdicts = {name: aye if elect(fact(identity, item), item) else nay for name, item in items.items()}
        found = {name: dict.fromkeys(shape, _RATIONALE) | {"verdict": verdicts[name]} for name, shape in shapes.items()}
        return json.dumps(found.get("", found))

    return Question(aye, identity, answer)


def _block(text: str, name: str) -> str:
    found = re.search(rf"\[(\w+) {name}\]\n(.*?)\n\[\1 ", text, re.DOTALL) if name else None
    return found[2] if found else ""


def _final_response(text: str) -> Question:
    identity = answer_id(text)

    def answer(elect: Elect) -> str:
        verdict = "valid" if elect(valid(identity), "") else "invalid"
        return f'```json\n{{\n  "reasoning": "{_RATIONALE}",\n  "is_the_agent_response_valid": "{verdict}"\n}}\n```'

    return Question("valid", identity, answer)


def _rubrics(text: str) -> Question:
    identity = answer_id(text)
    listed = text.rpartition("<properties>")[2].partition("</properties>")[0]
    rubrics = re.findall(r"^\*\s+\[id: (.+?)\] (.+)$", listed, re.MULTILINE)

    def answer(elect: Elect) -> str:
        return "\n".join(
            f"ID: {name}\nProperty: {rubric}\nEvidence: What the tools returned.\nRationale: {_RATIONALE}\n"
            f"Verdict: {'yes' if elect(fulfilled(identity, rubric), rubric) else 'no'}\n"
            for name, rubric in rubrics
        )

    return Question("yes", identity, answer)


def _segments(text: str) -> Question:
    response = text.rpartition("**Response Begin**")[2].partition("**Response End**")[0]
    found = "\n".join(f"<sentence>{sentence}</sentence>" for sentence in sentences(response))
    return Question("segments", answer_id(response), lambda _: found)


def _sentences(text: str) -> Question:
    listed = text.rpartition("**Sentences Begin**")[2]
    found = re.findall(r"<sentence>(.*?)</sentence>", listed, re.DOTALL)

    def answer(elect: Elect) -> str:
        return "\n".join(
            f"sentence: {sentence}\nlabel: {'supported' if elect(supported(sentence), sentence) else 'unsupported'}\n"
            f"rationale: {_RATIONALE}\nsupporting_excerpt: null\ncontradicting_excerpt: null\n"
            for sentence in found
        )

    return Question("supported", answer_id(listed), answer)


_PROSE: dict[str, Callable[[str], Question]] = {
    '"is_the_agent_response_valid"': _final_response,
    "**Your Sentence Segmentation Output:**": _segments,
    "**Sentences Begin**": _sentences,
    "<properties>": _rubrics,
}
"""google-adk's questions, by what stands in no other."""
