"""Errors of models in recorded turns, wherever they were recorded."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_adk_eval import score
from mlflow_adk_eval.agents.recordings import load_recording
from mlflow_adk_eval.evalset.conversation import Conversation, Ending, RecordedRun, RecordedSet, dumps_recorded, ended_by_model
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.model_errors import failed_turn, told_errors, unrecovered
from mlflow_adk_eval.evalset.models import Invocation, InvocationEvent
from mlflow_adk_eval.integrations.scoring import RowScoring
from tests.kit import TRAJECTORY, case, cases, config, event, recorded, turn


def error(author: str = "agent", code: str = "SAFETY", **more: Any) -> InvocationEvent:
    return InvocationEvent(author=author, error_code=code, **more)


def cut(author: str = "agent", **more: Any) -> InvocationEvent:
    return error(author, "MAX_TOKENS", **more)


TURNS: dict[str, tuple[Invocation, str]] = {
    "no error": (recorded("yes", event()), ""),
    "no answer": (recorded(None, error()), "SAFETY"),
    "an answer of another agent": (recorded("yes", event(author="other"), error()), "SAFETY"),
    "an answer afterwards": (recorded("yes", error(), InvocationEvent(author="agent")), ""),
    "a text afterwards": (recorded("yes", error(), event(text="well"), event(author="other")), ""),
    "only a result of a tool afterwards": (
        recorded(
            None,
            error(),
            InvocationEvent.model_validate({"author": "agent", "content": {"parts": [{"function_response": {"name": "f"}}]}}),
        ),
        "SAFETY",
    ),
    "only a thought afterwards": (
        recorded(
            None,
            error(),
            InvocationEvent.model_validate({"author": "agent", "content": {"parts": [{"text": "hm", "thought": True}]}}),
        ),
        "SAFETY",
    ),
    "another error afterwards": (recorded(None, error(), InvocationEvent(author="agent"), error(code="OTHER")), "OTHER"),
    "an error without a code": (recorded(None, InvocationEvent(author="agent", error_message="A2A request failed")), "A2A request failed"),
    "a text that is cut": (recorded("yes", cut()), ""),
    "a text that is cut, on the way": (recorded("yes", cut(content={"parts": [{"text": "we"}]}), event(author="other")), ""),
    "no room for a text": (recorded(None, cut()), "MAX_TOKENS"),
    "no room, after another agent's text": (recorded("yes", InvocationEvent(author="writer"), cut("checker")), "MAX_TOKENS"),
    "a text that is cut after another agent's": (
        recorded("yes", InvocationEvent(author="writer", content={"parts": [{"text": "d"}]}), cut("checker", with_answer=True)),
        "",
    ),
    "a text that is blocked midway": (recorded("ye", error(with_answer=True)), "SAFETY"),
}


@pytest.mark.parametrize("what", TURNS)
def test_an_error_after_which_the_agent_did_not_go_on_is_one_of_the_turn(what: str) -> None:
    made, expected = TURNS[what]
    assert unrecovered(made) == expected
    assert unrecovered(Invocation.model_validate(dump(made))) == expected, "as it is read from a file"


def test_errors_are_told_with_what_came_of_them() -> None:
    assert told_errors(recorded("yes", error(), cut())) == ["SAFETY (the agent went on)", "MAX_TOKENS (the text is cut)"]
    assert told_errors(recorded(None, error(error_message="blocked"))) == ["SAFETY: blocked"]


def test_a_conversation_ends_in_the_turn_in_which_a_model_failed() -> None:
    turns = (recorded("yes", event()), recorded(None, error()), recorded("yes", event()))
    ended = ended_by_model(Conversation(actual=turns, session_state={"a": 1}, ending=Ending(reason="goal")))
    assert failed_turn(turns) == (1, "SAFETY")
    assert (ended.actual, ended.error, ended.unfinished, ended.session_state) == (turns[:2], "turn 2: SAFETY", True, None)
    assert ended.ending == Ending(reason="error", detail="turn 2: SAFETY")
    assert ended_by_model(ended) is ended
    fine = Conversation(actual=turns[:1])
    assert ended_by_model(fine) is fine


def test_what_was_raised_says_more_than_the_error_of_the_model_before_it() -> None:
    raised = Conversation(actual=(recorded(None, error()),), error="turn 1: OSError: disk full", unfinished=True)
    assert ended_by_model(raised) is raised


def test_an_error_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "sk-0123456789abcdef")
    failed = recorded(None, error(error_message="key sk-0123456789abcdef is over its quota"))
    assert "0123456789" not in ended_by_model(Conversation(actual=(failed,))).error


def _as_recording(failed: Invocation) -> Any:
    return load_recording({"a": [failed]})


def _as_eval_set(failed: Invocation) -> Any:
    return load_recording(cases(case("a", failed)))


@pytest.mark.parametrize("load", [_as_recording, _as_eval_set])
def test_no_recording_passes_on_a_model_that_failed(load: Any) -> None:
    report = score(cases(case("a", turn("yes"))), load(recorded("yes", event(author="w"), error())), config(TRAJECTORY), ledger=False)
    (result,) = report.cases
    assert (result.verdict, result.error) == ("undecided", "turn 1: SAFETY")


def test_a_recording_keeps_what_came_of_an_answer_that_is_cut() -> None:
    run = RecordedRun(invocations=(recorded("yes", cut(with_answer=True)),))
    (read,) = RecordedRun.model_validate_json(dumps_recorded(run)).invocations
    assert told_errors(read) == ["MAX_TOKENS (the text is cut)"]
    assert RecordedSet.model_validate({"cases": [{"eval_id": "a", "runs": [dump(run)]}]}).cases[0].runs[0].invocations == (read,)


def test_no_row_passes_on_a_model_that_failed() -> None:
    from mlflow_adk_eval.shapes.rows import row_of

    row = row_of({"predictions": dump(recorded(None, error())), "targets": dump(case("a", turn("yes")))})
    result = RowScoring(config(TRAJECTORY)).result(row, TRAJECTORY)
    assert result.passed is None
    assert "SAFETY" in str(result.overall)
