"""What two small real models answered, read as it is read today. The answers are in ../shared/real_model, which says where they come from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.judge.question import JudgedItem, Question
from mlflow_adk_eval.judge.session import read_verdicts
from mlflow_adk_eval.judge.user_model import UserMessage, user_message_of
from mlflow_adk_eval.judge.voting import VoteCollector
from mlflow_adk_eval.results.outcomes import Scored
from tests.judge.test_asking import Scripted, voter
from tests.judge.voting_kit import CELL, PROMPT

FOLDER = Path(__file__).parents[2].parent / "shared" / "real_model"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the answers of real models are not at ../shared/real_model beside the project")


def answers() -> Iterator[tuple[dict[str, Any], Answer]]:
    """Yield the schema that was asked for and the answer, of all that came to an end."""
    for file in sorted(FOLDER.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            row = json.loads(line)
            asked = row.get("body", {}).get("response_format", {}).get("json_schema", {}).get("schema")
            if asked and row["finish"] != "gone":
                problem = "length" if row["finish"] == "length" else ""
                yield asked, Answer(text=row["answer"], output_tokens=row["out"], problem=problem)


def question_of(schema: dict[str, Any]) -> Question | None:
    """Return the question with this schema; `None`: a simulated user was asked."""
    properties = schema["properties"]
    if "verdict" in properties:
        items, verdict = (JudgedItem(),), properties["verdict"]
    elif "item_1" in properties:
        items = tuple(JudgedItem(id=name, text=name) for name in properties)
        verdict = properties["item_1"]["properties"]["verdict"]
    else:
        return None
    return Question(
        unshown=(), prompt=PROMPT, blocks=(), items=items, label_values={label: float(not n) for n, label in enumerate(verdict["enum"])}
    )


def strictly(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_answers_that_leave_no_doubt_are_read_and_all_others_say_why() -> None:
    found, before, errors = Counter[str](), Counter[str](), Counter[str]()
    for schema, answer in answers():
        question = question_of(schema)
        if question is None:
            continue
        verdicts = read_verdicts(question, answer)
        readable = all(verdict.label for verdict in verdicts)
        found["read" if readable else "not read"] += 1
        before["read" if readable and strictly(answer.text) else "not read"] += 1
        errors.update({verdict.error.split(" after ")[0] for verdict in verdicts if verdict.error})
        assert readable or all(verdict.error for verdict in verdicts if not verdict.label)
        if answer.problem:
            assert {verdict.error for verdict in verdicts} == {
                f"the answer was cut off after {answer.output_tokens} tokens: raise max_output_tokens"
            }
    assert before == {"read": 46, "not read": 23}
    assert found == {"read": 49, "not read": 20}
    assert errors == {"the answer was cut off": 20}, "by the limits of that day, 60 to 100 tokens"


def cells(*, strict: bool) -> Counter[str]:
    """Return what cells come to, each of one vote by a judge that always gives one of the answers, and the requests that they take.

    Args:
        strict: whether answers that need a repair cannot be read, as it was on the day that they were given.
    """
    found = Counter[str]()

    async def main() -> None:
        for schema, answer in answers():
            if question := question_of(schema):
                judge = Scripted(answer if not strict or strictly(answer.text) else Answer(text=""))
                decided = await VoteCollector(ask=voter(judge).vote, num_samples=1).decide(question, CELL)
                scored = all(isinstance(item.outcome, Scored) for item in decided.results)
                found.update({"scored": scored, "errored": not scored, "requests": len(judge.requests)})

    anyio.run(main)
    count = found["scored"] + found["errored"]
    print(f"{found['scored']} of {count} cells scored, {found['requests'] / count:.2f} requests a cell")  # noqa: T201 - for docs/explanation/judging.md
    return found


def test_more_cells_have_a_score_and_take_fewer_requests() -> None:
    assert cells(strict=True) == {"scored": 46, "errored": 23, "requests": 138}
    assert cells(strict=False) == {"scored": 49, "errored": 20, "requests": 129}


def test_simulated_users_say_something_or_why_not() -> None:
    said = [user_message_of(answer) for schema, answer in answers() if question_of(schema) is None]
    assert [message for message in said if not isinstance(message, UserMessage)] == [
        "the answer was cut off after 80 tokens: raise max_output_tokens"
    ]
    assert len(said) == 3
