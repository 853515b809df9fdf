"""Eval cases as records of a dataset, and records, ours or anybody's, as eval cases: nothing is lost and nothing left out silently."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticSerializationError

from mlflow_adk_eval.errors import EvalSetError, Problem, json_path, shown
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, Json, canonical, canonical_json
from mlflow_adk_eval.evalset.parse import parse, repeated
from mlflow_adk_eval.evalset.unread import OTHERS, meaning_of
from mlflow_adk_eval.shapes.records import CASE, EXPECTATIONS, record_of
from mlflow_adk_eval.shapes.rows import row_of

ORDER = "adk_eval.order"
"""The tag with a record's place in the eval set; MLflow keeps no order."""
_HASH = "adk_eval.sha256."
"""How the tags begin that say what a part of a record was when it was pushed."""

_BESIDE = {"eval_id", "session_input"}
_SIMULATED = {"goal", "persona", "simulation_guidelines"}
_SCENARIO = "conversation_scenario"
_MESSAGE = 'a text, or {"role", "content"} with a text'
_INPUTS, _RESPONSE = "inputs", "expected_response"
_SOURCE = {"source_type": "CODE", "source_data": {"by": "mlflow_adk_eval"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A record as MLflow holds it."""

    record_id: str
    inputs: Any
    expectations: Json = field(default_factory=dict[str, Any])
    tags: Json = field(default_factory=dict[str, Any])
    created: int = 0

    @property
    def place(self) -> tuple[int, int, int, str]:
        """Where it belongs: ours in the order of the eval set, then what others added, by age."""
        return (0, int(self.tags[ORDER]), self.created, self.record_id) if self.pushed else (1, 0, self.created, self.record_id)

    @property
    def pushed(self) -> bool:
        """Whether it is one of ours, perhaps edited since."""
        return str(self.tags.get(ORDER, "")).isdecimal()


def records_of(eval_set: EvalSet) -> list[Json]:
    """Return an eval set's cases as records to merge into a dataset, in order.

    Raises:
        EvalSetError: if a dataset cannot hold all of a case, naming what; or if two cases have one id.
    """
    source = f"eval set {eval_set.eval_set_id!r}"
    if problems := repeated([case.eval_id for case in eval_set.eval_cases], "$.eval_cases[{}].eval_id"):
        raise EvalSetError(source, problems)
    return [_record(case, index, source) for index, case in enumerate(eval_set.eval_cases)]


def _record(case: EvalCase, index: int, source: str) -> Json:
    """Return a case as a record from which it comes back as it is."""
    at = f"$.eval_cases[{index}]"
    filled = _filled(case, source, at)
    for steps in _differences(filled, json.loads(json.dumps(filled), parse_constant=lambda _: None)):
        raise _amiss(source, json_path(at, steps), "a number that JSON does not support", "a finite number")
    others = (case.model_extra or {}).get(OTHERS, {})
    ours = case.model_copy()
    if others and ours.model_extra:
        ours = EvalCase.model_validate({key: value for key, value in _given(case).items() if key != OTHERS})
    record = record_of(ours)
    for written in (dump(ours), _given(ours)):  # the second keeps even what is null
        expectations = {**others, **record["expectations"], CASE: written}
        parts = {_INPUTS: record["inputs"], **expectations}
        hashes = {f"{_HASH}{name}": _hash(parts[name]) for name in (_INPUTS, CASE, _RESPONSE) if name in parts}
        pushed: Json = {"inputs": record["inputs"], "expectations": expectations, "source": _SOURCE, "tags": {ORDER: str(index), **hashes}}
        copied = json.loads(json.dumps(pushed))
        stored = Stored(record_id="", inputs=copied["inputs"], expectations=copied["expectations"], tags=copied["tags"])
        if not (lost := list(_differences(filled, _filled(case_of(stored, source), source, at)))):
            return pushed
    raise _amiss(source, json_path(at, lost[0]), "a value that an MLflow dataset would change", "a value that survives as JSON")


def _given(case: EvalCase) -> Json:
    return case.model_dump(mode="json", exclude_unset=True)


def _filled(case: EvalCase, source: str, at: str) -> Json:
    """Return all of a case as JSON values, so that two can be compared."""
    try:
        return case.model_dump(mode="json")
    except PydanticSerializationError as error:
        raise _amiss(source, at, f"a value that is not JSON ({error})", "JSON") from None


def _hash(value: Any) -> str:
    """Return the hash of JSON in which ``1.0`` is ``1``, as MLflow's page writes it when anything in a record is edited there."""
    return hashlib.sha256(canonical_json(canonical(value))).hexdigest()


def cases_of(records: Sequence[Stored], source: str) -> tuple[EvalCase, ...]:
    """Return the cases that records hold, in order.

    Raises:
        EvalSetError: with the problems of every record that is no case; none is left out.
    """
    cases: dict[str, EvalCase] = {}
    problems: list[Problem] = []
    holders: dict[str, str] = {}
    for record in sorted(records, key=lambda record: record.place):
        try:
            case = case_of(record, source)
        except EvalSetError as error:
            problems += [_of_record(record, problem) for problem in error.problems]
            continue
        if case.eval_id in cases:
            twice = f"{shown(case.eval_id)}, the same as record {holders[case.eval_id]}"
            problems.append(_of_record(record, Problem("$.inputs.eval_id", twice, "an id of its own")))
        cases[case.eval_id] = case
        holders[case.eval_id] = record.record_id
    if problems:
        raise EvalSetError(source, problems)
    return tuple(cases.values())


def _amiss(source: str, path: str, found: str, wanted: str) -> EvalSetError:
    return EvalSetError(source, [Problem(path, found, wanted)])


def _of_record(record: Stored, problem: Problem) -> Problem:
    return Problem(f"record {record.record_id}, {problem.path}", problem.found, problem.wanted, problem.hint)


def case_of(record: Stored, source: str) -> EvalCase:
    """Return the case that a record holds: its `eval_case`, with an `expected_response` that somebody has edited since.

    Raises:
        EvalSetError: with every problem of the record.
    """
    if CASE not in record.expectations:
        return _foreign_case(record.record_id, record.inputs, record.expectations, source)
    case = parse(EvalCase, record.expectations[CASE], source, at=f"$.expectations.{CASE}")
    case = _with_response(case, record, source)
    if _edited(record, _INPUTS) and _key(record_of(case)["inputs"]) != _key(record.inputs):
        raise _amiss(source, "$.inputs", "inputs that differ from its eval_case", "the inputs of eval_case, or no eval_case")
    beside = {name: value for name, value in record.expectations.items() if name not in {CASE, _RESPONSE}}
    if clash := sorted(beside.keys() & set(EXPECTATIONS)):
        raise _amiss(source, f"$.expectations.{clash[0]}", "an expectation in addition to eval_case", "the expectation inside eval_case")
    _refuse_unread(beside, source)
    return EvalCase.model_validate({**_given(case), OTHERS: beside}) if beside else case


_OF_MLFLOW = frozenset({"expected_facts", "expected_retrieved_context", "expected_tool_calls", "guidelines"})
"""What MLflow's own scorers read."""
_RECORD_NAMES = {
    "final_response": "expected_response",
    "intermediate_data.tool_uses": "expected_tool_calls",
    "intermediate_data.intermediate_responses": "expected_conversation",
    "final_session_state": "expected_session_state",
    "rubrics": "rubrics",
}
"""What records call the places of a case."""


def _refuse_unread(others: Mapping[str, Any], source: str) -> None:
    """Refuse an expectation that neither a criterion nor a scorer of MLflow reads, though its name says what it is.

    Raises:
        EvalSetError: with each of them.
    """
    wanted = f"one of {', '.join(EXPECTATIONS)}, or a name that begins with '_' for what only your own scorers read"
    problems: list[Problem] = []
    for name, value in others.items():
        place = "" if name in _OF_MLFLOW or value is None else meaning_of(name, "turn")
        if place:
            hint = f"Did you mean {_RECORD_NAMES.get(place, CASE)!r}?"
            path = json_path("$.expectations", [name])
            problems.append(Problem(path, "an expectation that nothing reads", wanted, hint))
    if problems:
        raise EvalSetError(source, problems)


def _with_response(case: EvalCase, record: Stored, source: str) -> EvalCase:
    """Return the case with the record's expected response, if that is what was edited."""
    response = record.expectations.get(_RESPONSE)
    last = case.conversation[-1] if case.conversation else None
    if response is None or (last and response == last.final_text):
        return case
    if _edited(record, CASE):
        if not _edited(record, _RESPONSE):
            return case
        raise _amiss(source, f"$.expectations.{_RESPONSE}", "an answer that differs from eval_case", "only one of them edited")
    parts = last.final_response.parts or () if last and last.final_response else ()
    if last is None or not isinstance(response, str) or len(parts) > 1 or any(part.text is None for part in parts):
        raise _amiss(source, f"$.expectations.{_RESPONSE}", shown(response), "the answer of eval_case; edit it there")
    answer: Json = dump(last.final_response) if last.final_response else {"role": "model"}
    answer["parts"] = [{**(dump(parts[0]) if parts else {}), "text": response}]
    edited = _given(case)
    edited["conversation"][-1]["final_response"] = answer
    return EvalCase.model_validate(edited)


def _edited(record: Stored, name: str) -> bool:
    """Whether a part is another than the one that was pushed, or nobody knows."""
    return bool(record.tags.get(f"{_HASH}{name}") != _hash(record.inputs if name == _INPUTS else record.expectations[name]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What to do to a dataset so that it holds certain records and no others."""

    delete: tuple[str, ...]
    """Ids of records; deleted first, since some are written again."""
    upsert: tuple[Json, ...]

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.delete or self.upsert)


def changes(stored: Sequence[Stored], wanted: Sequence[Json]) -> Changes:
    """Return how to get from what a dataset holds to what it should hold.

    MLflow merges a record into the one with the same inputs and keeps expectations that are gone, so such a one is replaced.
    """
    present = {_key(record.inputs): record for record in stored}
    merged: set[str] = set()
    upsert: list[Json] = []
    for record in wanted:
        old = present.get(_key(record["inputs"]))
        if old is None:
            upsert.append(record)
            continue
        if not old.expectations.keys() - record["expectations"].keys():
            merged.add(old.record_id)
        tags = {**old.tags, **record["tags"]}
        if _key([old.expectations, old.tags]) != _key([record["expectations"], tags]):
            upsert.append({**record, "tags": tags})
    return Changes(delete=tuple(old.record_id for old in stored if old.record_id not in merged), upsert=tuple(upsert))


def _key(value: Any) -> str:
    """Return what identifies JSON: unlike in Python, ``1``, ``1.0`` and ``true`` are three values."""
    return json.dumps(value, sort_keys=True)


def _parts(value: Any) -> Iterable[tuple[int | str, Any]]:
    """Return what an object or a list holds, each with its key or index; nothing for other values."""
    return value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()


def _differences(one: Any, other: Any, steps: tuple[int | str, ...] = ()) -> Iterator[tuple[int | str, ...]]:
    """Yield where two JSON values differ."""
    left, right = dict(_parts(one)), dict(_parts(other))
    if left and left.keys() == right.keys() and type(one) is type(other):
        for step, item in left.items():
            yield from _differences(item, right[step], (*steps, step))
    elif _key(one) != _key(other):
        yield steps


def _foreign_case(record_id: str, inputs: Any, expectations: Mapping[str, Any], source: str) -> EvalCase:
    """Return the case that a record without an ``eval_case`` describes; without an ``eval_id`` it is named by the record.

    Raises:
        EvalSetError: if there is anything in it that a case cannot hold.
    """
    # 1. The inputs, of which exactly one is what the user says.
    if not isinstance(inputs, Mapping):
        raise _amiss(source, "$.inputs", shown(inputs), "an object")
    names = sorted(set(inputs) - _BESIDE)
    if _SIMULATED & set(names):
        what, wanted = f"a goal for MLflow's simulated user ({', '.join(names)})", f"a {_SCENARIO} in ADK's format"
        raise _amiss(source, "$.inputs", what, wanted)
    if len(names) != 1:
        wanted = "one with the user's message, and optionally eval_id and session_input"
        raise _amiss(source, "$.inputs", f"inputs named {', '.join(names) or 'nothing'}", wanted)
    # 2. What is expected, of which a case keeps what it has no word for.
    eval_id = str(inputs.get("eval_id", record_id))
    expected = {name: value for name, value in expectations.items() if value is not None}
    others = {name: expected.pop(name) for name in sorted(expected.keys() - set(EXPECTATIONS))}
    _refuse_unread(others, source)
    beside = {"eval_id": eval_id, **({"session_input": inputs["session_input"]} if "session_input" in inputs else {})}
    if _SCENARIO in inputs:
        fields = {"rubrics": "rubrics", "expected_session_state": "final_session_state"}
        if unfit := sorted(expected.keys() - fields.keys()):
            wanted = "none: a scenario's answers are not known in advance"
            raise _amiss(source, f"$.expectations.{unfit[0]}", "an expectation for a scenario", wanted)
        renamed = {fields[name]: value for name, value in expected.items()}
        case = parse(EvalCase, {**beside, _SCENARIO: inputs[_SCENARIO], **renamed}, source, at="$.inputs")
    else:
        row = row_of({**beside, **_cells(_turns(inputs[names[0]], source), expected, source)}, source)
        if row.unreadable:  # as no calls, they would be expectations that nobody has
            raise _amiss(source, "$.expectations", f"tool calls that cannot be read ({row.unreadable})", "tool calls with name and args")
        case = row.case
    return EvalCase.model_validate({**_given(case), OTHERS: others}) if others else case


def _turns(messages: Any, source: str) -> list[Json]:
    """Return what was said as turns; an answer in a list of messages belongs to the message before it."""
    turns: list[Json] = []
    for index, message in enumerate(messages if isinstance(messages, list) else [messages]):
        role, content = _message(message)
        if role == "user" and content is not None:
            turns.append({"user_content": content})
        elif role == "model" and content is not None and turns and "final_response" not in turns[-1]:
            turns[-1]["final_response"] = content
        else:
            what = f"{shown(message)} of role {role!r}" if content is not None else shown(message)
            raise _amiss(source, f"$.inputs, message {index + 1}", what, f"{_MESSAGE}, alternately by user and assistant")
    if not turns:
        raise _amiss(source, "$.inputs", "no message", _MESSAGE)
    return turns


def _message(message: Any) -> tuple[str, Any]:
    """Return who speaks and what: a text, a message in ADK's format, or ``None`` if it is neither."""
    match message:
        case str():
            return "user", message
        case {"parts": _}:
            return str(message.get("role") or "user"), dict(message)
        case {"role": str(role), "content": str(content)} if len(message) == 2:  # noqa: PLR2004 - nothing besides these two
            return "model" if role == "assistant" else role, content
        case _:
            return "", None


def _cells(turns: list[Json], expected: Json, source: str) -> Json:
    """Return the cells of a row whose reference the record is; the expected response is the last turn's."""
    cells: Json = {name: expected[name] for name in ("expected_tool_calls", "expected_session_state", "rubrics") if name in expected}
    cells["predictions"] = [""] * len(turns)
    if "expected_conversation" in expected:
        if "expected_response" in expected or any("final_response" in turn for turn in turns):
            raise _amiss(source, "$.expectations.expected_conversation", "answers in addition", "one of the two")
        return {**cells, "targets": expected["expected_conversation"], "inputs": [turn["user_content"] for turn in turns]}
    if "expected_response" in expected:
        if "final_response" in turns[-1]:
            raise _amiss(source, "$.expectations.expected_response", "a second answer to the last message", "one")
        turns[-1]["final_response"] = expected["expected_response"]
    return {**cells, "targets": turns}
