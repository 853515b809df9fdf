"""ADK's evaluation data as light models of our own.

They read every generation of ADK's JSON (snake_case and camelCase at every level), keep what they do not know and
write what the current ADK reads. Field names, defaults and meanings are ADK's.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializerFunctionWrapHandler, field_serializer, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from mlflow_adk_eval.errors import did_you_mean, shown

Json = dict[str, Any]
"""A JSON object."""


class Model(BaseModel):
    """The base of all data models: immutable, both spellings, unknown fields kept.

    A field of type ``Any`` is one that ADK defines and this package only carries along.
    """

    model_config = ConfigDict(extra="allow", frozen=True, alias_generator=to_camel, populate_by_name=True, ser_json_inf_nan="constants")


class FunctionCall(Model):
    """A call of a tool."""

    id: str | None = None
    name: str | None = None
    args: Json | None = None
    partial_args: Any = None
    will_continue: Any = None


class FunctionResponse(Model):
    """What a tool returned."""

    id: str | None = None
    name: str | None = None
    response: Json | None = None
    will_continue: Any = None
    scheduling: Any = None
    parts: Any = None


class Part(Model):
    """One part of a message: text, a tool call or a tool's answer; media and the like are carried along."""

    text: str | None = None
    thought: bool | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    audio_transcription: Any = None
    code_execution_result: Any = None
    executable_code: Any = None
    file_data: Any = None
    inline_data: Any = None
    media_processing: Any = None
    media_resolution: Any = None
    part_metadata: Any = None
    speech_metadata: Any = None
    thought_signature: Any = None
    tool_call: Any = None
    tool_response: Any = None
    video_metadata: Any = None


class Content(Model):
    """A message."""

    parts: tuple[Part, ...] | None = None
    role: str | None = None

    @property
    def text(self) -> str:
        """All text parts, joined by newlines as ADK joins them."""
        return "\n".join([part.text for part in self.parts or () if part.text])


class RubricContent(Model):
    """What a rubric demands."""

    text_property: str | None = None


class Rubric(Model):
    """One property that a judge looks for."""

    rubric_id: str
    rubric_content: RubricContent
    description: str | None = None
    type: str | None = None


class IntermediateData(Model):
    """What happened between user text and answer, as people write it in eval sets."""

    tool_uses: tuple[FunctionCall, ...] = ()
    tool_responses: tuple[FunctionResponse, ...] = ()
    intermediate_responses: tuple[tuple[str, tuple[Part, ...]], ...] = ()
    """Author and parts, in order."""


class InvocationEvent(Model):
    """One event of a recorded invocation."""

    author: str
    content: Content | None = None
    grounding_metadata: Json | None = None
    usage_metadata: Json | None = None
    model_version: str | None = None
    error_code: str | None = None
    """Why a model said nothing, such as ``SAFETY``; ADK ignores it."""
    error_message: str | None = None
    """The same in words; ADK ignores it."""
    invocation_index: Any = None
    """Of ADK's web editor; ADK ignores it."""
    tool_use_index: Any = None
    """Of ADK's web editor; ADK ignores it."""


class InvocationEvents(Model):
    """What happened between user text and answer, as ADK records it."""

    invocation_events: tuple[InvocationEvent, ...]


class AgentDetails(Model):
    """One agent of an app, as it was when it answered."""

    name: str
    instructions: str = ""
    tool_declarations: tuple[Any, ...] = ()


class AppDetails(Model):
    """The agents of an app, by name."""

    agent_details: dict[str, AgentDetails] = {}


class Invocation(Model):
    """One turn: what the user said, what the agent did and answered."""

    invocation_id: str = ""
    user_content: Content
    final_response: Content | None = None
    intermediate_data: Annotated[InvocationEvents | IntermediateData | None, Field(union_mode="left_to_right")] = None
    creation_timestamp: float = 0.0
    duration: float | None = None
    """Seconds."""
    model_duration: float | None = None
    """Seconds."""
    tool_duration: float | None = None
    """Seconds."""
    inference_call_count: int | None = None
    """The calls of models, where that was counted while the turn ran; google-adk 2.13 does not write it."""
    rubrics: tuple[Rubric, ...] | None = None
    app_details: AppDetails | None = None

    @property
    def user_text(self) -> str:
        """What the user said."""
        return self.user_content.text

    @property
    def final_text(self) -> str:
        """What the agent answered; empty where it said nothing."""
        return self.final_response.text if self.final_response else ""

    @property
    def events(self) -> tuple[InvocationEvent, ...]:
        """The recorded events; none for data written by hand."""
        return self.intermediate_data.invocation_events if isinstance(self.intermediate_data, InvocationEvents) else ()

    @property
    def errors(self) -> list[str]:
        """Why models said nothing in this turn, in order."""
        reasons = [(event.error_code, event.error_message) for event in self.events]
        return [": ".join(dict.fromkeys(filter(None, pair))) for pair in reasons if any(pair)]

    @property
    def tool_calls(self) -> list[FunctionCall]:
        """Every tool call, in order, from either shape of intermediate data."""
        match self.intermediate_data:
            case InvocationEvents(invocation_events=events):
                return [part.function_call for event in events if event.content for part in event.content.parts or () if part.function_call]
            case IntermediateData(tool_uses=uses):
                return list(uses)
            case None:
                return []

    @property
    def tool_responses(self) -> list[FunctionResponse]:
        """Every answer of a tool, in order, from either shape of intermediate data."""
        match self.intermediate_data:
            case InvocationEvents(invocation_events=events):
                return [
                    part.function_response
                    for event in events
                    if event.content
                    for part in event.content.parts or ()
                    if part.function_response
                ]
            case IntermediateData(tool_responses=responses):
                return list(responses)
            case None:
                return []

    def answered_calls(self) -> list[tuple[FunctionCall, FunctionResponse | None]]:
        """Return each tool call with its answer: the one with its id, else the next one of its name."""
        waiting = self.tool_responses
        found: list[tuple[FunctionCall, FunctionResponse | None]] = []
        for call in self.tool_calls:
            answer = next((one for one in waiting if call.id and one.id == call.id), None)
            answer = answer or next((one for one in waiting if one.name == call.name and not (one.id and call.id)), None)
            if answer is not None:
                waiting.remove(answer)
            found.append((call, answer))
        return found


class SessionInput(Model):
    """The session that a case starts in."""

    app_name: str
    user_id: str
    session_id: str | None = None
    state: Json = {}


class UserBehavior(Model):
    """One trait of a simulated user."""

    name: str
    description: str
    behavior_instructions: tuple[str, ...]
    violation_rubrics: tuple[str, ...]


class UserPersona(Model):
    """A simulated user."""

    id: str
    description: str
    behaviors: tuple[UserBehavior, ...]


PERSONAS = ("EXPERT", "NOVICE", "EVALUATOR")
"""The ids that ADK resolves itself."""


def _persona(value: Any) -> Any:
    if value is None or isinstance(value, dict | UserPersona) or value in PERSONAS:
        return value
    wanted = f"a persona (an object), or one of {', '.join(PERSONAS)}"
    raise PydanticCustomError(
        "unwanted", "{wanted}", {"wanted": wanted, "near": did_you_mean(value, PERSONAS) if isinstance(value, str) else ""}
    )


class ConversationScenario(Model):
    """A conversation that a simulated user will lead."""

    starting_prompt: str
    conversation_plan: str
    user_persona: Annotated[UserPersona | str | None, BeforeValidator(_persona)] = None


_SOURCES = ("conversation", "conversation_scenario")


class EvalCase(Model):
    """One conversation to evaluate: either written down or to be led by a simulated user."""

    eval_id: str
    conversation: tuple[Invocation, ...] | None = None
    conversation_scenario: ConversationScenario | None = None
    session_input: SessionInput | None = None
    creation_timestamp: float = 0.0
    rubrics: tuple[Rubric, ...] | None = None
    final_session_state: Json | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.conversation is None) == (self.conversation_scenario is None):
            found = "neither of them" if self.conversation is None else "both of them"
            wanted = f"exactly one of {' and '.join(_SOURCES)}"
            raise PydanticCustomError("unwanted", "{wanted}", {"found": found, "wanted": wanted, "of": _SOURCES})
        return self

    @model_validator(mode="after")
    def _tags_are_texts(self) -> Self:
        tags = (self.model_extra or {}).get("tags")
        if tags is not None and not (isinstance(tags, list | tuple) and all(isinstance(tag, str) and tag for tag in tags)):
            raise PydanticCustomError("unwanted", "{wanted}", {"found": f"the tags {shown(tags)}", "wanted": "a list of texts as tags"})
        return self

    @property
    def tags(self) -> tuple[str, ...]:
        """What it is tagged with, for policies that have rules of their own for some cases; a field that ADK does not know."""
        return tuple((self.model_extra or {}).get("tags") or ())


class EvalSet(Model):
    """Conversations to evaluate an agent on, and what is expected of it."""

    eval_set_id: str
    name: str | None = None
    description: str | None = None
    eval_cases: tuple[EvalCase, ...]
    creation_timestamp: float = 0.0

    @property
    def eval_ids(self) -> tuple[str, ...]:
        """The ids of all cases, in order."""
        known = getattr(self.eval_cases, "eval_ids", None)  # of cases that are on disk
        return known or tuple(case.eval_id for case in self.eval_cases)

    @field_serializer("eval_cases", mode="wrap")
    def _read(self, eval_cases: Any, write: SerializerFunctionWrapHandler) -> Any:
        """Write cases that are on disk like any others."""
        return write(tuple(eval_cases))

    def named(self, eval_ids: Container[str]) -> dict[str, EvalCase]:
        """Return some of the cases, by id."""
        return {eval_id: self.eval_cases[place] for place, eval_id in enumerate(self.eval_ids) if eval_id in eval_ids}
