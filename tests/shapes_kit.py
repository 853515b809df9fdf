"""The shapes of docs/reference/shapes.md as values, 75 questions with answers and references, and what rouge-score makes of those."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "shapes.md"
CAPITALS = """Austria Vienna, Belgium Brussels, Chile Santiago, Denmark Copenhagen, Egypt Cairo, Finland Helsinki, Greece Athens, Hungary Budapest,
Iceland Reykjavik, Japan Tokyo, Kenya Nairobi, Latvia Riga, Morocco Rabat, Nepal Kathmandu, Oman Muscat, Peru Lima, Qatar Doha, Romania Bucharest,
Senegal Dakar, Thailand Bangkok, Uganda Kampala, Vietnam Hanoi, Yemen Sanaa, Zambia Lusaka, Portugal Lisbon"""
COUNTRIES = [tuple(pair.split()) for pair in CAPITALS.replace("\n", " ").split(", ")]
QUESTIONS = [
    (question.format(country, city), answer.format(country, city), reference.format(country, city))
    for country, city in COUNTRIES
    for question, answer, reference in (
        ("What is the capital of {0}?", "The capital of {0} is {1}.", "{1} is the capital of {0}."),
        ("{1} is the capital of which country?", "I believe that it is {0}.", "It is {0}."),
        ("Where does the government of {0} sit?", "In {1}, as far as I know.", "In {1}, the capital."),
    )
]
"""Question, answer and reference."""
ASKED, SAID = "Light on", "The light is on."
"""What the examples of the page say."""

UNKNOWN: list[tuple[Any, str]] = [
    ({"score": 1}, "an object with score"),
    ({"foo": {"bar": "x"}}, "an object with foo"),
    ([{"foo": 1}], "a list of 1, the first of which is an object with foo"),
    ([[1, 2], "x"], "a list of 2, the first of which is a list of 2"),
    (42, "42"),
    (True, "true"),
    ({"role": "user", "content": "hello"}, "an object with role, content"),
    ([{"role": "user", "content": "hello"}], "a list of 1, the first of which is an object with role, content"),
    ({"messages": []}, "an object with messages"),
    ({"messages": [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "and?"}]}, "an object with messages"),
    ({"choices": []}, "an object with choices"),
    ({"choices": [{"message": {"role": "assistant", "content": None}}]}, "an object with choices"),
    ({"output": [{"type": "reasoning", "summary": []}]}, "an object with output"),
    ({"response": {"score": 1}}, "an object with response"),
    ({"final_response": {"text": 1}}, "a key that nothing reads here"),
    ({"expected": "hello", "other": 1}, "an object with expected, other"),
]
"""Values in no known shape, and how errors name them."""
IMAGE = {"parts": [{"inline_data": {"mime_type": "image/png", "data": "aGk=", "display_name": "chart.png"}}]}
"""An answer without a text, which a recorded turn may have."""


@cache
def examples(section: str) -> tuple[tuple[str, Any], ...]:
    """Return the rows of a table of the page: the name of the shape and an example of it."""
    text = PAGE.read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ", 1) for line in text.splitlines() if line.startswith("|") and "`" in line]
    found: list[tuple[str, Any]] = []
    for name, example in ((row[0].strip(), row[-1].strip(" |")) for row in rows):
        found.append((name or found[-1][0], json.loads(example.strip("`"))))
    return tuple(found)


def filled(example: Any, question: str, answer: str) -> Any:
    """Return an example that says something else."""
    text = json.dumps(example, ensure_ascii=False)
    for old, new in ((ASKED, question), (SAID, answer)):
        text = text.replace(json.dumps(old)[1:-1], json.dumps(new, ensure_ascii=False)[1:-1])
    return json.loads(text)


@cache
def rouge(answer: str, reference: str) -> float:
    """Return what rouge-score itself says."""
    from rouge_score.rouge_scorer import RougeScorer

    return float(RougeScorer(["rouge1"], use_stemmer=True).score(reference, answer)["rouge1"].fmeasure)
