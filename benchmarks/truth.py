"""What a model should say: one truth, which the generator of the data, the server that judges and answers, and the checks share.

An answer of the agent carries an id, and whether it is right is a hash of that id; whether a sentence is supported is a hash of
its words. So a contender meets the same truth whatever its prompts look like.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

FINAL_RESPONSE, RUBRIC_BASED, HALLUCINATIONS = (
    "final_response_match_v2",
    "rubric_based_final_response_quality_v1",
    "hallucinations_v1",
)
RUBRICS = {
    "concise": "The answer is short and says nothing twice.",
    "polite": "The answer is polite.",
    "complete": "The answer addresses everything that the user asked.",
    "grounded": "Every fact in the answer comes from what the tools returned.",
    "formatted": "The answer is easy to read.",
}
"""By id, what each answer is judged by."""

TOOL = "lookup_order"
"""What live agents call."""

_MARK = re.compile(r"Ref ID: ([0-9a-f]{8})")
_VALID, _FULFILLED, _SUPPORTED = 0.7, 0.75, 0.8
"""The shares of what is true."""


@dataclass(frozen=True)
class Noise:
    """How often a judge contradicts the truth, and in which world."""

    share: float = 0.0
    """Of the votes."""
    seed: int = 1

    def hits(self, subject: str, number: int, about: str = "") -> bool:
        """Return whether the vote of this number on a subject is wrong about one thing."""
        return self.share > 0 and chance("noise", self.seed, subject, number, about) < self.share


def chance(*what: object) -> float:
    """Return a number from 0 to 1 that is the same each time.

    >>> chance("a", 1) == chance("a", 1) != chance("a", 2)
    True
    """
    digest = hashlib.blake2b("\0".join(map(str, what)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def mark(name: str) -> str:
    """Return the sentence that gives an answer its id, from a name that no other answer has."""
    return f"Ref ID: {hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}."


def answer_id(text: str) -> str:
    """Return the id of the last answer in a text; empty if there is none."""
    found = _MARK.findall(text)
    return found[-1] if found else ""


def valid(identity: str) -> bool:
    """Return whether the answer of this id says what the reference says."""
    return chance("valid", identity) < _VALID


def fulfilled(identity: str, rubric: str) -> bool:
    """Return whether the answer of this id has the property that a rubric describes."""
    return chance("fulfilled", identity, _letters(rubric)) < _FULFILLED


def supported(sentence: str) -> bool:
    """Return whether the agent had reason to say this."""
    return chance("supported", _letters(sentence)) < _SUPPORTED


def lookup(question: str) -> dict[str, object]:
    """Return the arguments of the one call that an agent makes which is asked this."""
    number = int(chance("lookup", question) * 1000)
    return {"order_id": f"o-{number}", "verbose": number % 2 == 0}


def reply(question: str) -> str:
    """Return what the agent answers after that call."""
    return f"I looked this up for you. {question} The shop confirmed every detail of the order. {mark(question)}"


def sentences(answer: str) -> list[str]:
    """Return the sentences of a generated answer, which stand on a line each."""
    return [line.strip() for line in answer.splitlines() if line.strip()]


def score(criterion: str, answer: str, noise: Noise, votes: int) -> float:
    """Return the true score of an answer, or what a full ballot says where the judge contradicts itself."""
    identity = answer_id(answer)

    def elected(fact: bool, about: str = "") -> bool:
        ayes = sum(fact ^ noise.hits(identity, number, about) for number in range(votes))
        return ayes * 2 > votes

    if criterion == FINAL_RESPONSE:
        return float(elected(valid(identity)))
    if criterion == RUBRIC_BASED:
        return _share([elected(fulfilled(identity, text), text) for text in RUBRICS.values()])
    return _share([elected(supported(sentence), sentence) for sentence in sentences(answer)])


def _share(found: list[bool]) -> float:
    return sum(found) / len(found)


def _letters(text: str) -> str:
    """Return what is left of a text whatever spaces, marks or punctuation a contender puts around it."""
    return "".join(filter(str.isalnum, text))
