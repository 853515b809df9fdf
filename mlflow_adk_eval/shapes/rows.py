"""From the cells of a row of somebody's table to an eval case and what an agent did on it.

Tables come from pandas, Arrow, Spark or a CSV file, so that a list may be a numpy array, a missing value NaN, and an object a JSON text;
`plain` and `is_missing` even that out. `row_of` then reads the cells that `CELLS` names: ``predictions`` is what the agent did, ``targets``
what it should have done, and the others say more of either. The result, a `Row`, is a case and a `Conversation`, as an eval set and an
agent would give them; what the row does not say is unknown of the conversation, so that a criterion that needs it has no score. `shapes.records` makes cells of
``mlflow.genai`` records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlflow_adk_eval.criteria.rubrics import rubric_types
from mlflow_adk_eval.errors import EvalSetError, Problem, shown
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.media import has_media
from mlflow_adk_eval.evalset.models import Content, EvalCase, Invocation, Json, Rubric, SessionInput
from mlflow_adk_eval.evalset.observation import Need, Unknown
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.shapes.answers import Told, content_of, decoded_of, is_list, is_missing, object_of, plain, read_calls, told_of

CELLS: Mapping[str, str] = {
    "inputs": "the user's message: a text, or a list of texts, one per turn",
    "predictions": "the agent's turns: its answer as a text, an invocation (a dict in ADK's format), or a list of invocations",
    "targets": "the expected turns: a text, an invocation, a list of invocations, or an eval case",
    "tool_calls": 'the tools it called, for a row with one turn: a list of {"name", "args"}, optionally with "response"',
    "expected_tool_calls": 'the tools it should have called: a list of {"name", "args"}',
    "rubrics": "rubrics for the judge: a list of texts, or of rubrics in ADK's format",
    "session_input": "the session at the start, in ADK's format",
    "session_state": "the session state after the last turn, as a dict",
    "expected_session_state": "the expected session state after the last turn",
    "eval_id": "the name of the case",
    "run_index": "which run of the case it is, from 0",
    "error": "why the agent did not finish the case; empty if it did",
    "unfinished": "whether the agent failed in the last turn",
    "unknown": 'what nobody could see of the conversation: a list of {"what", "why"}, optionally with "turn", counted from 0',
}
"""Every cell that a row may have, by name, and what it holds. All but ``predictions`` may be missing."""

RESPONSE, CALLS, MADE = "targets", "expected_tool_calls", "tool_calls"
CELL_OF: Mapping[Need, str] = {"expected_response": RESPONSE, "expected_calls": CALLS, "calls": MADE}
"""The cell that holds what a criterion needs."""

PLACES: Mapping[str, str] = {name: name for name in CELLS}
"""Where the users of a door write each cell: those of a table, in the column of its name."""

_CASE_KEYS = {"conversation", "conversation_scenario", "conversationScenario"}
_EMPTY_MESSAGE = Content(role="user", parts=())


def is_case(target: Any) -> bool:
    """Whether what is expected is a whole case."""
    return isinstance(target, EvalCase) or (isinstance(target, Mapping) and not _CASE_KEYS.isdisjoint(target))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row as a case and what the agent did."""

    case: EvalCase
    conversation: Conversation
    run_index: int = 0
    unreadable: str = ""
    """Why tool calls that the row tells cannot be read. They are then in neither case nor conversation, where they are unknown."""


def row_of(cells: Mapping[str, Any], source: str = "row", places: Mapping[str, str] = PLACES) -> Row:
    """Return what the cells of a row say.

    Args:
        cells: by the names in `CELLS`; ``None`` and NaN stand for a missing cell. Lists and dicts may also be JSON texts, but for
            the three that may be plain texts.
        source: what errors call the row, and the case if it has no name.
        places: where the user of this door writes each cell, for errors and for what is missing.

    Raises:
        EvalSetError: with the problem of a cell.
    """
    present = {name: plain(value) for name, value in cells.items() if not is_missing(value)}
    read = _Cells(present, source, places)
    if "predictions" not in read.cells:
        raise read.problem("predictions", "nothing", CELLS["predictions"])
    did = read.side("predictions", MADE)
    expected: Told | None = None
    if is_case(read.cells.get(RESPONSE)):
        case = read.whole_case(read.cells[RESPONSE])
    else:
        expected = read.expected(did)
        case = read.case(expected)
    return Row(
        case=case,
        conversation=read.conversation(did, case, expected),
        run_index=read.whole_number("run_index"),
        unreadable=did.unreadable or (expected.unreadable if expected else ""),
    )


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of one row. Every method raises an `EvalSetError` for a cell that is not what `CELLS` says."""

    cells: Json
    """Those that hold something."""
    source: str
    places: Mapping[str, str]

    def place(self, name: str) -> str:
        """Return where the user of this door writes a cell."""
        return self.places.get(name, name)

    def problem(self, name: str, found: str, wanted: str) -> EvalSetError:
        return EvalSetError(self.source, [Problem(f"$.{self.place(name)}", found, wanted)])

    def missing(self, name: str, unreadable: str = "") -> str:
        """Return what the row has in place of a cell: nothing, or tool calls that cannot be read."""
        if unreadable:
            return f"tool calls that cannot be read ({unreadable})"
        return f"no {self.place(name)}"

    def case(self, expected: Told) -> EvalCase:
        """Return the case that expects these turns."""
        return EvalCase(
            eval_id=str(self.cells.get("eval_id", self.source)),
            conversation=expected.turns,
            session_input=self.session_input(),
            rubrics=self.rubrics(),
            final_session_state=self.json_object("expected_session_state"),
        )

    def unsaid(self, expected: Told | None, did: Told) -> tuple[Unknown, ...]:
        """Return what is unknown of what was expected, of which a whole case says all, and of what the agent did."""
        lacks: dict[Need, str] = {}
        if expected and RESPONSE not in self.cells:
            lacks["expected_response"] = self.missing(RESPONSE)
        elif expected and not any(_answers(turn) for turn in expected.turns):
            lacks["expected_response"] = f"{self.place(RESPONSE)} without a text"
        if expected and not expected.calls:
            lacks["expected_calls"] = self.missing(CALLS, expected.unreadable)
        if not did.calls:
            lacks["calls"] = self.missing(MADE, did.unreadable)
        return tuple(Unknown(what=need, why=f"the row has {lack}") for need, lack in lacks.items())

    def stated(self) -> tuple[Unknown, ...]:
        """Return what the row itself says to be unknown."""
        if "unknown" not in self.cells:
            return ()
        return parse(tuple[Unknown, ...], self.json_list("unknown"), f"{self.source}, {self.place('unknown')}")

    def conversation(self, did: Told, case: EvalCase, expected: Told | None) -> Conversation:
        """Return what the agent did, with what the user said where the agent does not say so itself."""
        asked = case.conversation or ()
        turns: list[Invocation] = []
        for index, turn in enumerate(did.turns):
            turns.append(_with_user(turn, asked[index].user_content) if index < len(asked) else turn)
        error = self.cells.get("error", "")
        if not isinstance(error, str):
            raise self.problem("error", shown(error), "a text")
        unfinished = bool(self.whole_number("unfinished", most=1))
        if unfinished and not error:
            error = "its last turn is unfinished"
        return Conversation(
            actual=tuple(turns),
            session_state=self.json_object("session_state"),
            error=error,
            unfinished=unfinished,
            unknown=self.unsaid(expected, did) + self.stated(),
        )

    def rubrics(self) -> tuple[Rubric, ...] | None:
        """Return the rubrics of the row; ``None`` where it has none."""
        if "rubrics" not in self.cells:
            return None
        typed: list[Any] = []
        for number, rubric in enumerate(self.json_list("rubrics"), 1):
            typed += _typed(rubric, number)
        return parse(tuple[Rubric, ...], typed, f"{self.source}, {self.place('rubrics')}")

    def session_input(self) -> SessionInput | None:
        """Return the session at the start; ``None`` where the row does not say."""
        session = self.cells.get("session_input")
        if session is None or isinstance(session, SessionInput):
            return session
        started = self.json_object("session_input")
        if started is None:
            return None
        return parse(SessionInput, started, f"{self.source}, {self.place('session_input')}")

    def json_object(self, name: str) -> Json | None:
        return object_of(self.cells.get(name), f"$.{self.place(name)}", CELLS[name], self.source)

    def json_list(self, name: str) -> Sequence[Any]:
        listed = decoded_of(self.cells[name], f"$.{self.place(name)}", CELLS[name], self.source)
        if is_list(listed):
            return listed  # type: ignore[no-any-return] # narrowed above
        raise self.problem(name, shown(listed), CELLS[name])

    def whole_number(self, name: str, *, most: float = math.inf) -> int:
        """Return a number from 0 up to `most`, or a truth value, which a table with gaps may write as 1.0."""
        value = self.cells.get(name, 0)
        if isinstance(value, int | float) and 0 <= value <= most and float(value).is_integer():
            return int(value)
        raise self.problem(name, shown(value), CELLS[name])

    def whole_case(self, target: Any) -> EvalCase:
        """Return a case that a cell holds, with further rubrics, and the state to expect instead of its own."""
        rubrics = self.rubrics()
        state = self.json_object("expected_session_state")
        if CALLS in self.cells:
            raise self.superfluous(CALLS, "an eval case")
        case: EvalCase = target
        if not isinstance(target, EvalCase):
            named = {} if {"eval_id", "evalId"} & set(target) else {"eval_id": str(self.cells.get("eval_id", self.source))}
            case = parse(EvalCase, named | dict(target), f"{self.source}, {self.place(RESPONSE)}")
        added: Json = {} if state is None else {"final_session_state": state}
        if rubrics is not None:
            added["rubrics"] = (*(case.rubrics or ()), *rubrics)
        return case.model_copy(update=added) if added else case

    def expected(self, did: Told) -> Told:
        """Return the reference, with what the user said where it does not say so itself; `did`: what the agent did."""
        count = len(did.turns)
        if "targets" in self.cells or count == 1:
            expected = self.side("targets", CALLS)
        elif CALLS in self.cells:
            raise self.superfluous(CALLS, f"a conversation of {count} turns")
        else:
            expected = Told((Invocation(user_content=_EMPTY_MESSAGE),) * count, calls=False)
        inputs = self.cells.get("inputs")
        if inputs is None or inputs == []:
            return expected
        messages = inputs if is_list(inputs) else [inputs]
        if len(expected.turns) == 1 and not did.is_conversation:
            messages = messages[-1:]  # one answer is to the last message; the others are what went before
        if len(messages) != len(expected.turns):
            raise self.problem("inputs", f"{len(messages)} texts", f"as many as the {len(expected.turns)} turns of the conversation")
        asked = zip(expected.turns, map(content_of, messages), strict=True)
        return replace(expected, turns=tuple(_with_user(turn, said) for turn, said in asked))

    def side(self, name: str, calls: str) -> Told:
        """Return what a cell tells; tool calls of a cell beside it belong to its only turn."""
        value = self.cells.get(name)
        if value is None:
            told = Told((Invocation(user_content=_EMPTY_MESSAGE),), calls=False)
        else:
            told = value if isinstance(value, Told) else told_of(value, f"{self.source}, {self.place(name)}")
        if calls not in self.cells:
            return told
        if len(told.turns) != 1:
            raise self.superfluous(calls, f"a conversation of {len(told.turns)} turns")
        steps, unreadable = read_calls(self.cells[calls], self.source, self.place(calls))
        turn = told.turns[0].model_copy(update={"intermediate_data": steps})
        return replace(told, turns=(turn,), calls=not unreadable, unreadable=unreadable)

    def superfluous(self, calls: str, beside: str) -> EvalSetError:
        return self.problem(calls, "a cell", f"nothing: {beside} already contains the tool calls")


def _answers(turn: Invocation) -> bool:
    """Whether a turn has an answer: a text that is not blank, or media."""
    return bool(turn.final_text.strip()) or (turn.final_response is not None and has_media(turn.final_response))


def _with_user(turn: Invocation, said: Content) -> Invocation:
    """Return a turn with what the user said, where it does not say so itself; a turn that repeats the words may lack the media."""
    own = turn.user_content
    is_silent = not own.text and not has_media(own)
    repeats = own.text == said.text and has_media(said) and not has_media(own)
    if is_silent or repeats:
        return turn.model_copy(update={"user_content": said})
    return turn


def _typed(value: Any, number: int) -> list[Any]:
    """Return a rubric in ADK's format; one without a type is for every criterion that judges by rubrics."""
    rubric = {"rubric_id": f"rubric_{number}", "rubric_content": {"text_property": value}} if isinstance(value, str) else value
    if not isinstance(rubric, Mapping) or rubric.get("type"):
        return [rubric]
    return [{**rubric, "type": kind} for kind in rubric_types().values()]
