"""Two recordings of the same cases that differ in all that a comparison looks at: each answer of some hundred words, most calls, and the scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from data import Generator

TURNS_A_CASE = 10
_WORDS_A_TURN = 300
_OTHER_CALLS, _LIKE_EXPECTED = 0.6, 0.5
"""How often a turn has other calls than expected, and how often its answer begins as expected, so that some cases pass in one run only."""


class Speaker(Generator):
    """Says a few hundred words a turn, and calls tools in a way of its own."""

    def turn(self, expected: dict[str, Any]) -> dict[str, Any]:
        """Return what it does on a turn."""
        calls = expected["intermediate_data"]["tool_uses"]
        if self._rng.random() < _OTHER_CALLS:
            calls = [*({**self._call(), "name": call["name"]} for call in calls), self._call()]
        answer = self._text("en", self._words("en", _WORDS_A_TURN))
        if self._rng.random() < _LIKE_EXPECTED:
            answer = f"{expected['final_response']['parts'][0]['text']} {answer[:200]}"
        response = {"parts": [{"text": answer}], "role": "model"}
        return {**expected, "final_response": response, "intermediate_data": {"tool_uses": calls}}


def two_recordings(turns: int, folder: Path) -> list[Path]:
    """Write cases of so many turns with each of two recordings as Parquet, and return both files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator, targets = Generator(), [folder / f"differing{turns}-{side}.parquet" for side in "AB"]
    cases = [generator.case(f"case-{number:05}", TURNS_A_CASE)[0] for number in range(turns // TURNS_A_CASE)]
    for seed, target in enumerate(targets, 1):
        speaker = Speaker(seed=seed)
        played = [{"invocations": [speaker.turn(expected) for expected in case["conversation"]]} for case in cases]
        texts = [[json.dumps(one, ensure_ascii=False) for one in column] for column in (cases, played)]
        pq.write_table(pa.table({"eval_id": [case["eval_id"] for case in cases], "case": texts[0], "recorded": texts[1]}), target)
    return targets
