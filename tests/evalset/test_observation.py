"""What is seen, none or unknown of a conversation, for each source of conversations."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from mlflow_adk_eval.evalset.conversation import Conversation, RecordedRun, conversation_of, outcome_of
from mlflow_adk_eval.evalset.models import Invocation
from mlflow_adk_eval.evalset.observation import NAMES, OBSERVATIONS, Observation, Unknown, blind_spots, is_void, observed, unseen
from tests.kit import call, event, recorded, turn
from tests.observation_kit import SOURCES, knowledge

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "observations.md"
MARKS = {"yes": "always", "if any": "if it happened", "–": "never"}


def _rows() -> Mapping[str, list[str]]:
    rows: dict[str, list[str]] = {}
    table = PAGE.read_text("utf-8").partition("<!-- observations")[2].partition("<!-- end")[0]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in SOURCES:
            rows[cells[0]] = cells[1:]
    return rows


ROWS = _rows()
known = cache(knowledge)


def test_the_page_has_every_source() -> None:
    assert list(ROWS) == list(SOURCES)


@pytest.mark.parametrize("what", OBSERVATIONS)
@pytest.mark.parametrize("source", SOURCES)
def test_each_cell_of_the_page_is_true(source: str, what: Observation) -> None:
    written = ROWS[source][OBSERVATIONS.index(what)]
    assert known(SOURCES[source])[what] == MARKS[written]


@pytest.mark.slow
def test_the_page_is_written_by_its_script() -> None:
    command = [sys.executable, "-W", "ignore", "docs/observations.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def of(*turns: Invocation, **known: object) -> Conversation:
    return Conversation(actual=turns, **known)  # type: ignore[arg-type]


def test_what_the_source_does_not_know_is_unknown_of_its_turn_or_of_all() -> None:
    silent = Unknown(what="calls", why="a text does not say it", turn=1)
    played = of(turn("a"), turn("b"), unknown=(silent,))
    assert [observed(played, index)["calls"] for index in (0, 1)] == ["none", "unknown"]
    assert unseen(played, 0, ["calls"]) == ""
    assert unseen(played, 1, ["calls"]) == "the tool calls are unknown: a text does not say it"
    assert "calls" not in blind_spots(played, 0)
    assert "call_results" in blind_spots(played, 1), "what unknown calls returned is unknown, too"


def test_what_is_unknown_is_kept_in_a_recording() -> None:
    played = of(turn("a"), unknown=(Unknown(what="calls", why="nobody looked"), Unknown(what="state", why="nor here", turn=0)))
    kept = RecordedRun(invocations=tuple(played.actual), **outcome_of(played))
    read = RecordedRun.model_validate_json(kept.model_dump_json(exclude_unset=True))
    assert conversation_of(read).unknown == played.unknown


@pytest.mark.parametrize(
    ("one", "void"),
    [
        (turn(None), True),
        (turn(""), True),
        (turn("x"), False),
        (turn(None, call("f")), False),
        (recorded(None, event(text="on the way")), False),
        (recorded(None), True),
        (Invocation.model_validate({"user_content": {}, "final_response": {"parts": [{"text": "hm", "thought": True}]}}), True),
        (Invocation.model_validate({"user_content": {}, "final_response": {"parts": [{"inline_data": {"mime_type": "a/b"}}]}}), False),
    ],
)
def test_an_agent_did_nothing_if_nobody_could_notice_anything(one: Invocation, void: bool) -> None:
    assert is_void(one) is void


def test_every_need_has_a_name() -> None:
    assert set(OBSERVATIONS) < set(NAMES)
