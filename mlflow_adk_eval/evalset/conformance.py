"""Tests of ``adk conformance`` as eval cases, and what ADK recorded of them.

A test is a folder ``category/name``. People write its ``spec.yaml``: the agent and the user's messages. ``adk conformance record`` writes
``generated-session.yaml``, with the events and the state of the session, and ``generated-recordings.yaml``, with all calls of models and tools;
where a model streamed, both are called ``…-sse.yaml``. `eval_set_of` makes an eval set of the tests in a folder, which expects what the session
says; `recorded_tests` are the same sessions as recorded conversations, with their calls.

The YAML is read as ADK reads it, by PyYAML's safe loader: what ADK writes without quotes, such as the text ``12e03``, is a number to others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from pydantic_core import to_jsonable_python

from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, did_you_mean, shown
from mlflow_adk_eval.evalset import models
from mlflow_adk_eval.evalset.conversation import RecordedCall, RecordedCase, RecordedModelCall, RecordedRun, RecordedSet
from mlflow_adk_eval.evalset.events import split_answer
from mlflow_adk_eval.evalset.models import Content, EvalCase, EvalSet, Invocation, Json, Model, Part
from mlflow_adk_eval.evalset.parse import excess, not_yaml, parse, read_text, repeated_yaml_keys

SPEC = "spec.yaml"
_USER = "adk_conformance_test_user"
"""Whom ADK records for."""
_MOST_VALUES, _DEEPEST = 10_000_000, 200
_CREDENTIALS = ("requested_auth_configs",)
_CONFIRMATIONS = "requested_tool_confirmations"


class _Message(Model, extra="forbid"):
    text: str | None = None
    content: Content | None = None
    state_delta: Json | None = None


class _Spec(Model, extra="forbid"):
    description: str
    agent: str
    initial_state: Json = Field(default_factory=dict)
    user_messages: tuple[_Message, ...]


class _Event(Model):
    """An event of ADK, whose other fields are there as they were read."""

    author: str = ""
    content: Content | None = None
    grounding_metadata: Json | None = None
    long_running_tool_ids: tuple[str, ...] = ()
    actions: Json = Field(default_factory=dict)

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.content and self.content.parts) or ()

    def is_final_response(self) -> bool:
        """Whether it may be the turn's answer, by ADK's rule."""
        busy = any(part.function_call or part.function_response for part in self.parts) or any(
            part.code_execution_result for part in self.parts[-1:]
        )
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
    tool_call: models.FunctionCall
    tool_response: models.FunctionResponse


class _Call(Model, extra="forbid"):
    user_message_index: Annotated[int, Field(ge=0)]
    agent_name: str
    llm_recording: _ModelCall | None = None
    tool_recording: _ToolCall | None = None


class _Calls(Model, extra="forbid"):
    recordings: tuple[_Call, ...]


class _Test(NamedTuple):
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
        selected: the ids of the tests to read, or the names of their agents; none: all.

    Raises:
        EvalSetError: if a file is missing or wrong, or the tests are of several agents.
        UsageError: if there is no test with a selected id, and no agent with that name.
    """
    name = folder.resolve().name
    return EvalSet(eval_set_id=name, name=name, eval_cases=tuple(test.case for test in _tests(folder, selected)))


def recorded_tests(folder: Path, selected: Sequence[str], request_hash: Callable[[Json], str]) -> RecordedSet:
    """Return what was recorded of the tests in a folder.

    Args:
        folder: the folder of a test, of a category, or of categories.
        selected: the ids of the tests to read, or the names of their agents; none: all.
        request_hash: the hash of a request to a model, as JSON.

    Raises:
        EvalSetError: if a file is missing or wrong, or the tests are of several agents.
        UsageError: if there is no test with a selected id, and no agent with that name.
    """
    tests = list(_tests(folder, selected))
    cases = [RecordedCase(eval_id=test.case.eval_id, runs=(_run_of(test, request_hash),)) for test in tests]
    return RecordedSet(eval_set_id=folder.resolve().name, agent=tests[0].session.app_name, cases=tuple(cases))


def tests_in(folder: Path) -> dict[str, Path]:
    """Return the folders of all tests in a folder or below it, by eval id, in ADK's order.

    Raises:
        EvalSetError: if two have the same id.
    """
    places: dict[str, Path] = {}
    for place in sorted((spec.parent for spec in folder.resolve().rglob(SPEC)), key=lambda place: (place.parent.name, place.name)):
        eval_id = f"{place.parent.name}/{place.name}"
        if eval_id in places:
            raise _refused(folder, "$", f"two tests {eval_id}: {places[eval_id]} and {place}", "different names")
        places[eval_id] = place
    return places


def _tests(folder: Path, selected: Sequence[str]) -> Iterator[_Test]:
    places = tests_in(folder)
    read = places if not set(selected) <= places.keys() else {eval_id: places[eval_id] for eval_id in selected or places}
    specs = {eval_id: parse(_Spec, _yaml(place / SPEC), str(place / SPEC)) for eval_id, place in read.items()}
    agents = {spec.agent for spec in specs.values()}
    for one in selected:
        if one not in places and one not in agents:
            raise UsageError(f"{folder}: no test and no agent {one!r}. {did_you_mean(one, (*places, *agents))}".strip())
    chosen = {eval_id: spec for eval_id, spec in specs.items() if not selected or {eval_id, spec.agent} & set(selected)}
    agents = {spec.agent for spec in chosen.values()}
    if len(agents) > 1:
        found = f"tests of {len(agents)} agents: {', '.join(sorted(agents))}"
        raise _refused(folder, "$", found, "those of one", f"Select them: {folder}:{min(agents)}")
    yield from (_test_of(eval_id, places[eval_id], spec) for eval_id, spec in chosen.items())


def _test_of(eval_id: str, place: Path, spec: _Spec) -> _Test:
    streamed = "-sse" if not (place / "generated-session.yaml").exists() and (place / "generated-session-sse.yaml").exists() else ""
    file = place / f"generated-session{streamed}.yaml"
    session = parse(_Session, _yaml(file), str(file))
    starts = [index for index, event in enumerate(session.events) if event.author == "user"]
    if session.app_name != spec.agent:
        raise _refused(file, "$.app_name", shown(session.app_name), f"{spec.agent!r}, the agent in {SPEC}")
    if len(starts) != len(spec.user_messages):
        wanted = f"{len(spec.user_messages)}, as in {SPEC}; record the test again"
        raise _refused(file, "$.events", f"{len(starts)} messages of the user", wanted)
    state, conversation = spec.initial_state, list[Invocation]()
    for index, (message, start, end) in enumerate(zip(spec.user_messages, starts, [*starts[1:], None], strict=True)):
        at = f"$.user_messages[{index}]"
        if message.text is None and message.content is None:
            raise _refused(place / SPEC, at, "neither of them", "text or content")
        if message.state_delta and index:
            wanted = "a change of the state in the first message only, as cases have no place for later ones"
            raise _refused(place / SPEC, f"{at}.state_delta", shown(message.state_delta), wanted)
        state = state | (message.state_delta or {})
        parts = (message.content or Content(parts=(Part(text=message.text),))).parts or ()
        final, before = split_answer(session.events[start + 1 : end])
        turn = models.InvocationEvents(invocation_events=before)
        said = Content(role="user", parts=tuple(map(_without_id, parts)))
        conversation.append(Invocation(user_content=said, final_response=final, intermediate_data=turn))
    given = models.SessionInput(app_name=spec.agent, user_id=_USER, state=state)
    case = EvalCase(eval_id=eval_id, conversation=tuple(conversation), session_input=given, final_session_state=session.state or None)
    return _Test(case, session, place / f"generated-recordings{streamed}.yaml")


def _without_id(part: Part) -> Part:
    """Return a part so that an answer of a tool is one to the call that is open then."""
    answer = part.function_response
    return part if answer is None else part.model_copy(update={"function_response": answer.model_copy(update={"id": None})})


def _run_of(test: _Test, request_hash: Callable[[Json], str]) -> RecordedRun:
    turns, recorded = test.case.conversation or (), parse(_Calls, _yaml(test.calls), str(test.calls)).recordings
    authors = {event.author for event in test.session.events} - {"user"}
    if recorded and authors.isdisjoint(call.agent_name for call in recorded):
        wanted = f"one of the agents in the session: {', '.join(sorted(authors)) or 'none answered'}"
        raise _refused(test.calls, "$.recordings[0].agent_name", shown(recorded[0].agent_name), wanted)
    known = {part.function_call.id for event in test.session.events for part in event.parts if part.function_call}
    made = {call.tool_recording.tool_call.id for call in recorded if call.tool_recording}
    if made and made.isdisjoint(known):
        raise _refused(test.calls, "$.recordings", "tool calls of another session", "those of the session of this test; record it again")
    did: dict[tuple[int, str | None], Json] = {}
    begun = 0
    for event in test.session.events:
        begun += event.author == "user"
        answers = [part.function_response for part in event.parts if part.function_response and event.author != "user"]
        if answers:  # of calls at the same time, ADK merges what they did; a transfer runs as it is
            first = min(answers, key=lambda answer: answer.name == "transfer_to_agent")
            actions = {name: done for name, done in event.actions.items() if done not in ({}, None) and name not in _CREDENTIALS}
            asked = actions.pop(_CONFIRMATIONS, None) or {}
            did[begun - 1, first.id] = actions
            for one in answers:  # each asks for its own
                if one.id in asked:
                    did.setdefault((begun - 1, one.id), {})[_CONFIRMATIONS] = {one.id: asked[one.id]}
    calls: list[RecordedCall] = []
    model_calls: list[RecordedModelCall] = []
    for index, call in enumerate(recorded):
        turn, agent, asked = call.user_message_index, call.agent_name, call.llm_recording
        if turn >= len(turns):
            wanted = f"less than {len(turns)}, the number of messages in {SPEC}"
            raise _refused(test.calls, f"$.recordings[{index}].user_message_index", str(turn), wanted)
        if call.tool_recording:
            given, answer = call.tool_recording.tool_call, call.tool_recording.tool_response.response
            returned = None if answer == {"result": None} else answer  # a tool that has no answer yet returned nothing
            where: Json = {"turn": turn, "agent": agent, "tool": given.name or "", "args": given.args or {}}
            done = did.get((turn, given.id), {})
            calls.append(RecordedCall(**where, answer=returned, actions=done, unknown=("inner_calls",)))
        elif asked:
            whole = tuple(one for one in (*asked.llm_responses, asked.llm_response) if one is not None and not one.get("partial"))
            request = request_hash(asked.llm_request.model_dump(mode="json", exclude_unset=True))
            model_calls.append(RecordedModelCall(turn=turn, agent=agent, request=request, answers=whole))
        else:
            raise _refused(test.calls, f"$.recordings[{index}]", "neither of them", "llm_recording or tool_recording")
    return RecordedRun(invocations=turns, session_state=test.session.state, calls=tuple(calls), model_calls=tuple(model_calls))


def _refused(file: Path, path: str, found: str, wanted: str, near: str = "") -> EvalSetError:
    return EvalSetError(str(file), [Problem(path, found, wanted, near)])


def _yaml(file: Path) -> Any:
    """Return the value in a file of YAML. Nothing in it is executed: it is read into JSON values only.

    Raises:
        EvalSetError: if there is no such file, or it is no YAML or far too large.
    """
    import yaml  # noqa: PLC0415 - few need it

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = read_text(file, made_by="adk conformance record")
    twice: list[Problem] = []
    try:
        problem = excess(yaml.parse(text, Loader=loader), most=_MOST_VALUES, deepest=_DEEPEST)
        if not problem:
            reading = loader(text)
            document = reading.get_single_node()
            twice = list(repeated_yaml_keys(document)) if document else []
            if not twice:
                return to_jsonable_python(reading.construct_document(document)) if document else None
    except (yaml.YAMLError, ValueError) as error:
        problem = not_yaml(error)
    raise EvalSetError(str(file), twice or [Problem("$", problem, "YAML")])
