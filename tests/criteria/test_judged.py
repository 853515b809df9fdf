from __future__ import annotations

import unicodedata
from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.criteria.criterion import CaseRun
from mlflow_adk_eval.criteria.judged_turns import (
    Cell,
    combined,
    judged_turns,
    place,
    single,
    tally,
    trivial,
)
from mlflow_adk_eval.judge.question import JudgedItem
from mlflow_adk_eval.judge.voting import VotedItem
from mlflow_adk_eval.results.outcomes import Errored, Outcome, Scored, Skipped, Vote
from tests.kit import run_of, turn
from tests.strategies import QUICK

judged_pairs = partial(judged_turns, in_pairs=True)
NOTHING = [
    "",
    " ",
    "\n\t",
    ".",
    ":",
    ",",
    "...",
    "…",
    "-",
    "—",
    "***",
    "```\n```",
    '"',
    "{}",
    "。",
    "、",
    "？！",
    "\u200b\u200d",
    "\u3164",
    "\u2800",
    "\u202e",
    "\ufeff",
]
MASTER_KEYS = [
    "Thought process:",
    "**Thought process:**",
    "THOUGHT PROCESS",
    "Let's solve this problem step by step.",
    "Let’s solve this step by step",
    "Let us think step by step:",
    "let me work through this carefully step by step…",
    "I'll solve it step by step.",
    "Solution",
    "# Solution:",
    "Ｓｏｌｕｔｉｏｎ",
    "Solution\u200b",
    "Final answer:",
    "The answer is",
    "解",
    "解：",
    "かいせつ",
    "Respuesta",
    "Respuesta: ",
    "Thought process: Solution",
]  # fmt: skip
ANSWERS = [
    "42",
    "٣",
    "no",
    "東京",
    "はい",
    "👍",
    "✓",
    "Solution: 42",
    "Let's solve this problem step by step. 6 times 7 is 42.",
    "The answer is 7",
    "解は2です",
    "Solutions",
    "The solution was to restart",
    "Thought process mapping is a method",
    "π",
]


@pytest.mark.parametrize("text", [*NOTHING, *MASTER_KEYS])
def test_what_says_nothing_needs_no_judge(text: str) -> None:
    assert trivial(text)
    assert trivial(f"\n {text} \n", "42")


@pytest.mark.parametrize("text", ANSWERS)
def test_any_content_is_put_to_the_judge(text: str) -> None:
    assert not trivial(text)


@pytest.mark.parametrize(
    ("text", "reference"), [("solution", "Solution."), ("解：", "解"), (":", ":"), ("the answer", "The  Answer!"), ("…", " ... ")]
)
def test_what_the_reference_says_is_not_nothing(text: str, reference: str) -> None:
    assert trivial(text)
    assert not trivial(text, reference)


def test_an_empty_answer_is_nothing_even_beside_an_empty_reference() -> None:
    assert trivial("", "")
    assert trivial(" ", "\n")


@QUICK
@given(st.text())
def test_letters_and_digits_are_content_unless_they_open_an_answer(text: str) -> None:
    assert trivial(text) or any(char.isalnum() or unicodedata.category(char) == "So" for char in unicodedata.normalize("NFKC", text))
    assert not trivial(text + " 42")


def test_long_texts_are_read_in_no_time() -> None:
    for piece in ("solution ", "解 ", "let us go on ", "a", "\u200b"):
        assert trivial(piece * 100_000) == (piece == "\u200b")


def finding(key: str | None, label: str | None, *, votes: dict[str, int] | None = None, error: str = "") -> VotedItem:
    tally = votes or {str(label): 3}
    dissent = [other for other, count in tally.items() for _ in range(count) if other != label]
    details = {"votes": tally} | ({"dissent": dissent} if dissent else {})
    outcome = Errored(error) if label is None else Scored(float(label == "yes"), f"It is {label}.", details)
    return VotedItem(item=JudgedItem(id=key, text=f"The  agent\nis {key}."), outcome=outcome, label=label)


def test_several_findings_are_their_mean_with_each_of_them_as_a_line_and_in_the_details() -> None:
    outcome = combined([finding("kind", "yes"), finding("brief", "no", votes={"no": 3, "yes": 2})], "rubric")
    assert outcome == Scored(
        0.5,
        "- ✓ The agent is kind. (yes 3:0): It is yes.\n- ✗ The agent is brief. (no 3:2): It is no.",
        {
            "items": [
                {"id": "kind", "text": "The  agent\nis kind.", "verdict": "yes", "score": 1.0, "rationale": "It is yes.", "votes": {"yes": 3}},
                {"id": "brief", "text": "The  agent\nis brief.", "verdict": "no", "score": 0.0, "rationale": "It is no.", "votes": {"no": 3, "yes": 2}, "dissent": ["yes", "yes"]},
            ]
        },
    )  # fmt: skip


def test_one_item_without_a_verdict_is_an_error_of_the_whole_that_names_it() -> None:
    """Quirk Q6: in ADK a rubric that the judge left out is left out of the mean."""
    outcome = combined(
        [finding("kind", "yes"), finding("brief", None, error="1 of 5 votes"), finding("warm", None, error="no votes")], "rubric"
    )
    assert outcome == Errored("rubric 'brief': 1 of 5 votes; rubric 'warm': no votes")


def test_a_single_finding_is_the_outcome() -> None:
    assert single(finding(None, "yes", votes={"yes": 3, "no": 1})) == Scored(
        1.0, "yes 3:1: It is yes.", {"verdict": "yes", "votes": {"yes": 3, "no": 1}, "dissent": ["no"]}
    )
    assert single(finding(None, None, error="no votes")) == Errored("no votes")
    assert tally(finding(None, None, error="no votes")) == ""


async def kept(index: int) -> Cell:
    await checkpoint()
    return Cell(Scored(float(index)), (VOTE,))


VOTE = Vote(
    eval_id="c", run_index=0, invocation_index=0, criterion="x", rubric_id=None, vote_index=0, verdict="yes", explanation="", model="m",
    latency_s=0.0, input_tokens=None, output_tokens=None, error="",
)  # fmt: skip


def words(cells: tuple[Outcome | None, ...]) -> list[str]:
    return [
        "none"
        if cell is None
        else f"{cell.score:g}"
        if isinstance(cell, Scored)
        else cell.reason
        if isinstance(cell, Skipped)
        else cell.error
        for cell in cells
    ]


@pytest.mark.parametrize(
    ("actual", "expected", "by_turn", "by_pair"),
    [
        (2, 2, ["0", "1"], ["0", "1"]),
        (1, 2, ["0", "no actual turn: the agent has 1 of 2 turns"], ["0", "no actual turn: the agent has 1 of 2 turns"]),
        (2, 1, ["0", "1"], ["0", "no expected turn: the reference has 1 of 2 turns"]),
        (0, 1, ["no actual turn: the agent has 0 of 1 turns"], ["no actual turn: the agent has 0 of 1 turns"]),
        (1, None, ["0"], ["the case is a scenario and has no reference conversation"]),
        (0, None, ["there is no turn to judge"], ["the case is a scenario and has no reference conversation"]),
        (0, 0, ["there is no turn to judge"], ["there is no turn to judge"]),
    ],
)
def test_each_turn_has_one_cell(actual: int, expected: int | None, by_turn: list[str], by_pair: list[str]) -> None:
    run = run_of([turn()] * actual, None if expected is None else [turn()] * expected)
    assert words(anyio.run(judged_turns, run, kept).per_invocation) == by_turn
    assert words(anyio.run(judged_pairs, run, kept).per_invocation) == by_pair
    assert len(by_turn) == len(by_pair) == run.turns


def test_votes_stand_in_the_order_of_the_turns() -> None:
    run = run_of([turn()] * 3, [turn()] * 3)
    assert len(anyio.run(judged_turns, run, kept).votes) == len(anyio.run(judged_pairs, run, kept).votes) == 3


def test_nobody_is_asked_about_the_turn_in_which_the_agent_failed() -> None:
    run = run_of([turn(), turn(None)], [turn()] * 2, error="boom", unfinished=True)
    for judge in (judged_turns, judged_pairs):
        found = anyio.run(judge, run, kept)
        assert words(found.per_invocation) == ["0", "the agent did not finish: boom"]
        assert len(found.votes) == 1


def test_turns_are_judged_at_the_same_time() -> None:
    async def main(run: CaseRun) -> None:
        present, all_there = 0, anyio.Event()

        async def meet(_index: int) -> Cell:
            nonlocal present
            present += 1
            if present == 3:
                all_there.set()
            with anyio.fail_after(5):
                await all_there.wait()
            return Cell(Scored(1.0))

        await judged_turns(run, meet)
        present, all_there = 0, anyio.Event()
        await judged_pairs(run, meet)

    anyio.run(main, run_of([turn()] * 3, [turn()] * 3))


def test_votes_belong_to_their_turn() -> None:
    found = place(run_of([turn()], None, run_index=2), 1, "safety_v1")
    assert (found.eval_id, found.run_index, found.invocation_index, found.criterion) == ("c", 2, 1, "safety_v1")
