"""Tests of ``adk conformance`` as eval cases, and what ADK recorded of them.

A test is a folder ``category/name``. People write its ``spec.yaml``: the agent and the user's messages. ``adk conformance record`` writes
``generated-session.yaml``, with the events and the state of the session, and ``generated-recordings.yaml``, with all calls of models and tools;
where a model streamed, both are called ``…-sse.yaml``. `eval_set_of` makes an eval set of the tests in a folder, which expects what the session
says; `recorded_runs` are the same sessions as recorded conversations, with their calls.

The YAML is read as ADK reads it, by PyYAML's safe loader: what ADK writes without quotes, such as the text ``12e03``, is a number to others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, TypeAdapter, model_validator
from pydantic_core import to_jsonable_python

from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, did_you_mean, shown
from mlflow_adk_eval.evalset.conversation import RecordedCall, RecordedModelCall, RecordedRun
from mlflow_adk_eval.evalset.events import split_answer
from mlflow_adk_eval.evalset.models import (
    Content,
    EvalCase,
    EvalSet,
    FunctionCall,
    FunctionResponse,
    Invocation,
    InvocationEvents,
    Json,
    Model,
    Part,
    SessionInput,
    unwanted,
)
from mlflow_adk_eval.evalset.parse import excess, parse, read_text

T = TypeVar("T")

SPEC = "spec.yaml"
_USER = "adk_conformance_test_user"
"""Whom ADK records for."""
_MOST_VALUES, _DEEPEST = 10_000_000, 200
_CREDENTIALS = {"requested_auth_configs", "requested_tool_confirmations"}


class _Message(Model, extra="forbid"):
    text: str | None = None
    content: Content | None = None
    state_delta: Json | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.text is None and self.content is None:
            raise unwanted("neither of them", "text or content", of=("text", "content"))
        return self


class _Spec(Model, extra="forbid"):
    description: str
    agent: str
    initial_state: Json = Field(default_factory=dict)
    user_messages: Annotated[tuple[_Message, ...], Field(min_length=1)]


class _Event(Model):
    """An event of ADK, as far as it matters here."""

    author: str = ""
    invocation_id: str = ""
    content: Content | None = None
    grounding_metadata: Json | None = None
    usage_metadata: Json | None = None
    model_version: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    long_running_tool_ids: tuple[str, ...] | None = None
    actions: Json = Field(default_factory=dict)

    def is_final_response(self) -> bool:
        """Whether it may be the turn's answer, by ADK's rule."""
        parts = (self.content and self.content.parts) or ()
        busy = any(part.function_call or part.function_response for part in parts) or bool(parts and parts[-1].code_execution_result)
        return bool(self.actions.get("skip_summarization") or self.long_running_tool_ids) or not busy


class _Session(Model):
    app_name: str = ""
    state: Json = Field(default_factory=dict)
    events: tuple[_Event, ...]


class _Request(Model):
    contents: tuple[Content, ...] = ()
    config: Json = Field(default_factory=dict)


class _ModelCall(Model, extra="forbid"):
    llm_request: _Request
    llm_responses: tuple[Json, ...] = ()
    llm_response: Json | None = None
    """The only one, as google-adk before 2 writes it."""


class _ToolCall(Model, extra="forbid"):
    tool_call: FunctionCall
    tool_response: FunctionResponse


class _Call(Model, extra="forbid"):
    user_message_index: Annotated[int, Field(ge=0)]
    agent_name: str
    llm_recording: _ModelCall | None = None
    tool_recording: _ToolCall | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.llm_recording is None) == (self.tool_recording is None):
            both = ("llm_recording", "tool_recording")
            raise unwanted(
                "neither of them" if self.llm_recording is None else "both of them", f"exactly one of {' and '.join(both)}", of=both
            )
        return self


class _Calls(Model, extra="forbid"):
    recordings: tuple[_Call, ...]


_SPEC, _SESSION, _CALLS = TypeAdapter(_Spec), TypeAdapter(_Session), TypeAdapter(_Calls)


@dataclass(frozen=True, slots=True)
class _Test:
    case: EvalCase
    session: _Session
    calls: Path
    """The file with what models and tools answered."""


def has_tests(folder: Path) -> bool:
    """Whether there are tests in a folder or below it. Where there are ``*.test.json`` files, a ``spec.yaml`` is something else."""
    return any(folder.rglob(SPEC)) and not any(folder.rglob("*.test.json"))


def eval_set_of(folder: Path, selected: Sequence[str] = ()) -> EvalSet:
    """Return the tests in a folder as an eval set. It expects what the agent did when they were recorded.

    Args:
        folder: the folder of a test, of a category, or of categories.
        selected: the ids of the tests to read; none: all.

    Raises:
        EvalSetError: if a file is missing or wrong, or the tests are of several agents.
        UsageError: if there is no test with a selected id.
    """
    name = folder.resolve().name
    return EvalSet(eval_set_id=name, name=name, eval_cases=tuple(test.case for test in _tests(folder, selected)))


def recorded_runs(folder: Path, selected: Sequence[str], request_hash: Callable[[Json], str]) -> tuple[str, dict[str, RecordedRun]]:
    """Return the name of the agent, and what was recorded of each test in a folder, by eval id.

    Args:
        folder: the folder of a test, of a category, or of categories.
        selected: the ids of the tests to read; none: all.
        request_hash: the hash of a request to a model, as JSON.

    Raises:
        EvalSetError: if a file is missing or wrong, or the tests are of several agents.
        UsageError: if there is no test with a selected id.
    """
    tests = list(_tests(folder, selected))
    runs = {test.case.eval_id: _run_of(test, request_hash) for test in tests}
    return next((test.case.session_input.app_name for test in tests if test.case.session_input), ""), runs


def tests_in(folder: Path) -> dict[str, Path]:
    """Return the folders of all tests in a folder or below it, by eval id, in ADK's order.

    Raises:
        EvalSetError: if two have the same id.
    """
    places: dict[str, Path] = {}
    for place in sorted((spec.parent for spec in folder.resolve().rglob(SPEC)), key=lambda place: (place.parent.name, place.name)):
        eval_id = f"{place.parent.name}/{place.name}"
        if eval_id in places:
            raise EvalSetError(str(folder), [Problem("$", f"two tests {eval_id}: {places[eval_id]} and {place}", "different names")])
        places[eval_id] = place
    return places


def _tests(folder: Path, selected: Sequence[str]) -> Iterator[_Test]:
    places = tests_in(folder)
    for eval_id in selected:
        if eval_id not in places:
            raise UsageError(f"{folder}: no test {eval_id!r}. {did_you_mean(eval_id, places)}".strip())
    agents: dict[str, str] = {}
    for eval_id in selected or places:
        spec = parse(_SPEC, _yaml(places[eval_id] / SPEC), str(places[eval_id] / SPEC))
        agents.setdefault(spec.agent, eval_id)
        if len(agents) > 1:
            found = " and ".join(f"{agent} ({test})" for agent, test in agents.items())
            raise EvalSetError(
                str(folder), [Problem("$", f"tests of several agents: {found}", "tests of one agent", f"Select them: {folder}:{eval_id}")]
            )
        yield _test_of(eval_id, places[eval_id], spec)


def _test_of(eval_id: str, place: Path, spec: _Spec) -> _Test:
    streamed = "-sse" if not (place / "generated-session.yaml").exists() and (place / "generated-session-sse.yaml").exists() else ""
    file = place / f"generated-session{streamed}.yaml"
    session = parse(_SESSION, _yaml(file), str(file))
    turns: list[tuple[_Event, list[_Event]]] = []
    for index, event in enumerate(session.events):
        if event.author == "user":
            turns.append((event, []))
        elif turns:
            turns[-1][1].append(event)
        else:
            raise EvalSetError(str(file), [Problem(f"$.events[{index}].author", shown(event.author), "'user' in the first event")])
    if session.app_name not in ("", spec.agent):
        raise EvalSetError(str(file), [Problem("$.app_name", shown(session.app_name), f"{spec.agent!r}, the agent in {SPEC}")])
    if len(turns) != len(spec.user_messages):
        wanted = f"{len(spec.user_messages)}, as in {SPEC}; record the test again"
        raise EvalSetError(str(file), [Problem("$.events", f"{len(turns)} messages of the user", wanted)])
    state, conversation = spec.initial_state, list[Invocation]()
    for index, (message, (said, events)) in enumerate(zip(spec.user_messages, turns, strict=True)):
        if message.state_delta and index:
            wanted = "a change of the state in the first message only: cases have no place for later ones"
            raise EvalSetError(str(place / SPEC), [Problem(f"$.user_messages[{index}].state_delta", shown(message.state_delta), wanted)])
        state = state | (message.state_delta or {})
        content = message.content or Content(parts=(Part(text=message.text),))
        final, before = split_answer(events)
        conversation.append(
            Invocation(
                invocation_id=said.invocation_id,
                user_content=Content(role="user", parts=tuple(map(_without_id, content.parts or ()))),
                final_response=final,
                intermediate_data=InvocationEvents(invocation_events=before),
            )
        )
    case = EvalCase(
        eval_id=eval_id,
        conversation=tuple(conversation),
        session_input=SessionInput(app_name=spec.agent, user_id=_USER, state=state),
        final_session_state=session.state or None,
    )
    return _Test(case, session, place / f"generated-recordings{streamed}.yaml")


def _without_id(part: Part) -> Part:
    """Return a part so that an answer of a tool is one to the call that is open then."""
    answer = part.function_response
    return part if answer is None else part.model_copy(update={"function_response": answer.model_copy(update={"id": None})})


def _run_of(test: _Test, request_hash: Callable[[Json], str]) -> RecordedRun:
    file, turns = str(test.calls), len(test.case.conversation or ())
    recorded = parse(_CALLS, _yaml(test.calls), file).recordings
    authors = {event.author for event in test.session.events} - {"user"}
    actions: dict[str | None, Json] = {}
    for event in test.session.events:
        answers = [part.function_response for part in (event.content and event.content.parts) or () if part.function_response]
        if answers and event.author != "user":  # of calls at the same time, ADK merges what they did
            actions[answers[0].id] = {
                name: done for name, done in event.actions.items() if done not in ({}, None) and name not in _CREDENTIALS
            }
    problems = [
        Problem(
            f"$.recordings[{index}].user_message_index",
            str(call.user_message_index),
            f"less than {turns}, the number of messages in {SPEC}",
        )
        for index, call in enumerate(recorded)
        if call.user_message_index >= turns
    ]
    if recorded and authors.isdisjoint(call.agent_name for call in recorded):
        wanted = f"one of the agents in the session: {', '.join(sorted(authors)) or 'none answered'}"
        problems.append(Problem("$.recordings[0].agent_name", shown(recorded[0].agent_name), wanted))
    if problems:
        raise EvalSetError(file, problems)
    calls: list[RecordedCall] = []
    model_calls: list[RecordedModelCall] = []
    for call in recorded:
        turn, agent = call.user_message_index, call.agent_name
        if call.tool_recording:
            made, answer = call.tool_recording.tool_call, call.tool_recording.tool_response.response
            returned = None if answer == {"result": None} else answer  # a tool that has no answer yet returned nothing
            did = actions.get(made.id, {})
            calls.append(RecordedCall(turn=turn, agent=agent, tool=made.name or "", args=made.args or {}, answer=returned, actions=did))
        elif call.llm_recording:
            asked = call.llm_recording
            whole = tuple(one for one in (*asked.llm_responses, asked.llm_response) if one is not None and not one.get("partial"))
            request = request_hash(asked.llm_request.model_dump(mode="json", exclude_unset=True))
            model_calls.append(RecordedModelCall(turn=turn, agent=agent, request=request, answers=whole))
    conversation, state = test.case.conversation or (), test.session.state
    return RecordedRun(invocations=conversation, session_state=state, calls=tuple(calls), model_calls=tuple(model_calls))


def _yaml(file: Path) -> Any:
    """Return the value in a file of YAML. Nothing in it is executed: it is read into JSON values only.

    Raises:
        EvalSetError: if there is no such file, or it is no YAML or far too large.
    """
    import yaml  # noqa: PLC0415 - few need it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = read_text(file, made_by="adk conformance record")
    try:
        problem = excess(yaml.parse(text, Loader=loader), most=_MOST_VALUES, deepest=_DEEPEST)
        if not problem:
            return to_jsonable_python(yaml.load(text, Loader=loader))  # noqa: S506 - it is a safe one
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        problem = f"text that is not YAML ({error.problem}{f', line {mark.line + 1}, column {mark.column + 1}' if mark else ''})"
    except (yaml.YAMLError, ValueError) as error:
        problem = f"text that is not YAML ({str(error).splitlines()[0]})"
    raise EvalSetError(str(file), [Problem("$", problem, "YAML")])
