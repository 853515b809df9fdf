"""Eval sets with recordings of an agent and the true trajectory score of each turn; the same on every machine.

`python benchmarks/data.py 2000 5` generates one and prints its folder, which holds:

- ``set.evalset.json``: an eval set as ADK writes it,
- ``actual.json``: what the agent did, a list of ``{"eval_id": ..., "invocations": [...]}``,
- ``truth.json``: by eval id, for each turn its trajectory score under each match type.

In the ``live`` ones, whose agent has yet to speak, the references are what it will do.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from truth import TOOL, lookup, mark, reply
from words import FULL_STOPS, OTHER_LANGUAGES, UNSPACED, Vocabulary

Json = dict[str, Any]
Kind = Literal["n", "judged", "live"]
"""What a data set's name begins with; of ``judged`` and ``live`` ones `truth` knows what a model should say."""

EVAL_SET, ACTUAL, TRUTH = "set.evalset.json", "actual.json", "truth.json"
DATA_VARIABLE = "BENCH_DATA"
"""Names a folder of ready data sets, each in a folder such as ``n<cases>x<turns>`` or ``judged<cases>x<turns>``; what it lacks is generated elsewhere."""

_SEED = 7
_MISMATCH = 0.4
_TOOLS = (
    "search_flights", "book_flight", "get_weather", "lookup_order", "update_address", "send_email", "query_database",
    "schedule_meeting", "convert_currency", "create_ticket",
)  # fmt: skip
_PARAMETERS = ("city", "date", "user", "filters", "options", "amount", "query", "payload")
_MATCHES = {
    "equal": {"EXACT": 1, "IN_ORDER": 1, "ANY_ORDER": 1},
    "extra": {"EXACT": 0, "IN_ORDER": 1, "ANY_ORDER": 1},
    "swap": {"EXACT": 0, "IN_ORDER": 0, "ANY_ORDER": 1},
    "extra_swap": {"EXACT": 0, "IN_ORDER": 0, "ANY_ORDER": 1},
    "missing": {"EXACT": 0, "IN_ORDER": 0, "ANY_ORDER": 0},
    "args": {"EXACT": 0, "IN_ORDER": 0, "ANY_ORDER": 0},
    "name": {"EXACT": 0, "IN_ORDER": 0, "ANY_ORDER": 0},
}
"""By how the agent's calls differ from the reference, the score under each match type. True as no two calls are equal."""
_FEWEST_CALLS = {"extra": 0, "missing": 1, "args": 1, "name": 1, "swap": 2, "extra_swap": 2}


class Generator:
    """Makes up conversations, a case at a time."""

    def __init__(self, kind: Kind = "n", seed: int = _SEED) -> None:
        self._kind = kind
        self._rng = random.Random(seed)
        self._vocabulary = Vocabulary()
        self._calls = 0

    def case(self, eval_id: str, turns: int) -> tuple[Json, Json, list[Json]]:
        """Return an eval case, the recording of it and the truth of each turn."""
        make = self._live_turn if self._kind == "live" else self._turn
        made = [make(f"{eval_id}-{turn}") for turn in range(turns)]
        expected, actual, truth = (list(side) for side in zip(*made, strict=True))
        session = {"app_name": "bench", "user_id": "user", "state": {}}
        case = {"eval_id": eval_id, "conversation": expected, "session_input": session, "creation_timestamp": 1750000000.0}
        return case, {"eval_id": eval_id, "invocations": actual}, truth

    def _turn(self, name: str) -> tuple[Json, Json, Json]:
        rng = self._rng
        language = "en" if rng.random() < 0.8 else rng.choice(list(OTHER_LANGUAGES))
        reference = self._words(language, int(rng.triangular(20, 190, 60)))
        question = self._text(language, self._words(language, rng.randint(6, 30)))
        expected_calls = [self._call() for _ in range(rng.choices(range(6), (10, 35, 30, 15, 6, 4))[0])]
        kind = "equal"
        if rng.random() < _MISMATCH:
            kind = rng.choice([kind for kind, fewest in _FEWEST_CALLS.items() if fewest <= len(expected_calls)])
        actual_calls = self._changed(expected_calls, kind)
        answers = {call["id"]: self._answer() for call in (*expected_calls, *actual_calls)}
        expected = _invocation(f"{name}-expected", question, self._text(language, reference))
        expected["intermediate_data"] = _tool_uses(expected_calls, answers)
        actual = _invocation(f"{name}-actual", question, self._answer_of(name, language, self._varied(language, reference)))
        actual["intermediate_data"] = _events(actual_calls, answers)
        return expected, actual, {"kind": kind, "language": language, **_MATCHES[kind]}

    def _live_turn(self, name: str) -> tuple[Json, Json, Json]:
        """Return a turn of an agent that always does the same, told twice."""
        question = f"{name}: {self._text('en', self._words('en', self._rng.randint(6, 25)))}"
        expected = _invocation(f"{name}-expected", question, reply(question))
        expected["intermediate_data"] = {"tool_uses": [{"name": TOOL, "args": lookup(question)}]}
        return expected, expected, {"kind": "equal", "language": "en", **_MATCHES["equal"]}

    def _words(self, language: str, count: int) -> list[str]:
        return [self._vocabulary.draw(self._rng, language) for _ in range(count)]

    def _varied(self, language: str, reference: Sequence[str]) -> list[str]:
        """Return what the agent says: the reference with words left out, replaced and added."""
        rate = self._rng.choice((0, 0.05, 0.1, 0.2, 0.3, 0.5))
        said: list[str] = []
        for word in reference:
            luck = self._rng.random()
            if luck >= rate * 0.4:
                said.append(self._vocabulary.draw(self._rng, language) if luck < rate * 0.8 else word)
            if luck > 1 - rate * 0.2:
                said.append(self._vocabulary.draw(self._rng, language))
        return said or list(reference[:1])

    def _answer_of(self, name: str, language: str, words: Sequence[str]) -> str:
        """Return an answer; one that is to be judged has an id, and its sentences stand on a line each."""
        if self._kind == "n":
            return self._text(language, words)
        return "\n".join((*self._sentences(language, words), mark(name)))

    def _text(self, language: str, words: Sequence[str]) -> str:
        return ("" if language in UNSPACED else " ").join(self._sentences(language, words))

    def _sentences(self, language: str, words: Sequence[str]) -> list[str]:
        """Return the words as sentences, most of them with a comma."""
        separator = "" if language in UNSPACED else " "
        sentences, start = [], 0
        while start < len(words):
            sentence = list(words[start : start + self._rng.randint(7, 16)])
            start += len(sentence)
            comma = self._rng.randint(1, 5)
            if separator and len(sentence) > comma + 3:
                sentence[comma] += ","
            text = separator.join(sentence)
            sentences.append(text[:1].upper() + text[1:] + FULL_STOPS.get(language, "."))
        return sentences

    def _value(self, depth: int = 0) -> Any:
        rng = self._rng
        if depth == 2 or rng.random() > 0.3:
            return self._scalar()
        if rng.random() < 0.3:
            return [self._value(depth + 1) for _ in range(rng.randint(0, 4))]
        return {f"{self._vocabulary.draw(rng, 'en')}{index}": self._value(depth + 1) for index in range(rng.randint(1, 4))}

    def _scalar(self) -> Any:
        rng = self._rng
        text = " ".join(self._words("en", rng.randint(1, 5)))
        return rng.choice((rng.randint(-1000, 100_000), round(rng.uniform(0, 1000), 3), rng.random() < 0.5, None, text, text))

    def _call(self) -> Json:
        self._calls += 1
        args = {"request_id": f"rq-{self._calls}"}  # no two calls are equal, which `_MATCHES` counts on
        for index in range(self._rng.randint(1, 5)):
            args[f"{self._rng.choice(_PARAMETERS)}_{index}"] = self._value()
        return {"id": f"call-{self._calls}", "name": self._rng.choice(_TOOLS), "args": args}

    def _changed(self, expected: Sequence[Json], kind: str) -> list[Json]:
        """Return the agent's calls, which differ from the expected ones as `kind` says."""
        rng = self._rng
        calls = [{**call, "id": f"a{call['id']}", "args": dict(call["args"])} for call in expected]
        if kind in {"swap", "extra_swap"}:
            left, right = rng.sample(range(len(calls)), 2)
            calls[left], calls[right] = calls[right], calls[left]
        if kind in {"extra", "extra_swap"}:
            calls.insert(rng.randint(0, len(calls)), self._call())
        if kind == "missing":
            calls.pop(rng.randrange(len(calls)))
        if kind == "name":
            rng.choice(calls)["name"] += "_v2"
        if kind == "args":
            args = rng.choice(calls)["args"]
            args.update({"unexpected_flag": True} if rng.random() < 0.5 else {"request_id": f"{args['request_id']}x"})
        return calls

    def _answer(self) -> Json:
        return {"status": "ok", "result": " ".join(self._words("en", self._rng.randint(5, 30))), "rows": [self._value(1), self._value(1)]}


def _content(role: str, *parts: Json) -> Json:
    return {"parts": list(parts), "role": role}


def _invocation(invocation_id: str, question: str, answer: str) -> Json:
    return {
        "invocation_id": invocation_id,
        "user_content": _content("user", {"text": question}),
        "final_response": _content("model", {"text": answer}),
        "creation_timestamp": 1750000000.0,
    }


def _response(call: Json, answers: Json) -> Json:
    return {"id": call["id"], "name": call["name"], "response": answers[call["id"]]}


def _tool_uses(calls: Sequence[Json], answers: Json) -> Json:
    """Return calls in the shape of references written by hand."""
    return {"tool_uses": list(calls), "tool_responses": [_response(call, answers) for call in calls], "intermediate_responses": []}


def _events(calls: Sequence[Json], answers: Json) -> Json:
    """Return calls in the shape that ADK records."""
    contents = [
        content
        for call in calls
        for content in (_content("model", {"function_call": call}), _content("user", {"function_response": _response(call, answers)}))
    ]
    return {"invocation_events": [{"author": "agent", "content": content} for content in contents]}


def generate(folder: Path, cases: int, turns: int, kind: Kind = "n") -> None:
    """Write a data set into `folder`, a case at a time: the largest would not fit into memory."""
    generator, truth = Generator(kind), {}
    with (folder / EVAL_SET).open("w", encoding="utf-8") as expected, (folder / ACTUAL).open("w", encoding="utf-8") as actual:
        expected.write('{\n  "eval_set_id": "bench",\n  "name": "bench",\n  "creation_timestamp": 1750000000.0,\n  "eval_cases": [\n')
        for index, separator in _separated(cases):
            eval_id = f"case_{index:05d}"
            case, recorded, truth[eval_id] = generator.case(eval_id, turns)
            expected.write(textwrap.indent(json.dumps(case, ensure_ascii=False, indent=2), "    ") + separator)
            actual.write(("[" if index == 0 else "") + json.dumps(recorded, ensure_ascii=False) + separator)
        expected.write("  ]\n}\n")
        actual.write("]\n")
    (folder / TRUTH).write_text(json.dumps(truth), encoding="utf-8")


def _separated(count: int) -> Iterator[tuple[int, str]]:
    return ((index, ",\n" if index + 1 < count else "\n") for index in range(count))


def data_set(cases: int, turns: int, kind: Kind = "n") -> Path:
    """Return the folder of a data set, generating it at first use."""
    name = f"{kind}{cases}x{turns}"
    given = os.environ.get(DATA_VARIABLE)
    if given and (Path(given) / name / TRUTH).is_file():
        return Path(given) / name
    folder = _cache() / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=folder.parent))
        generate(unfinished, cases, turns, kind)
        try:
            unfinished.rename(folder)
        except OSError:  # another process was quicker with the same data
            shutil.rmtree(unfinished)
    return folder


def _cache() -> Path:
    """Return a folder of its own for each version of the generator, so that old data are never measured."""
    here = Path(__file__).parent
    version = hashlib.sha256(b"".join((here / name).read_bytes() for name in ("data.py", "truth.py", "words.py"))).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"adk_eval_bench_{version}"


if __name__ == "__main__":
    print(data_set(int(sys.argv[1]), int(sys.argv[2])))
