"""ADK's evaluation data as light models of our own.

They read every generation of ADK's JSON (snake_case and camelCase at every level), keep what they do not know and
write what the current ADK reads. Field names, defaults and meanings are ADK's.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self, TypeVar, overload

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializerFunctionWrapHandler, field_serializer, model_validator
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import PydanticCustomError

from mlflow_adk_eval.errors import did_you_mean, shown
from mlflow_adk_eval.evalset.unread import Level, place_of

T = TypeVar("T")
Json = dict[str, Any]
"""A JSON object."""


def mapped(value: Any, leaf: Callable[[Any], Any], key: Callable[[Any], Any] = lambda name: name) -> Any:
    """Return JSON with other leaves in the same objects and lists; `key` says what becomes of the names.

    >>> mapped({"a": [1, {"b": 2}]}, lambda number: -number)
    {'a': [-1, {'b': -2}]}
    """
    match value:
        case Mapping():
            return {key(name): mapped(item, leaf, key) for name, item in value.items()}
        case list() | tuple():
            return [mapped(item, leaf, key) for item in value]
        case _:
            return leaf(value)


def value_at(value: Any, *keys: str) -> Any:
    """Return what a value from outside holds under keys within keys; ``None`` if it does not.

    >>> value_at({"a": {"b": 1}}, "a", "b"), value_at({"a": [1]}, "a", "b")
    (1, None)
    """
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


class Model(BaseModel):
    """The base of all data models: immutable, both spellings, unknown fields kept.

    A field of type ``Any`` is one that ADK defines and this package only carries along.
    """

    model_config = ConfigDict(extra="allow", frozen=True, alias_generator=to_camel, populate_by_name=True, ser_json_inf_nan="constants")


class Written(Model):
    """The base of what people write in eval sets. Unknown fields are kept, but not an expectation that nothing would read."""

    level: ClassVar[Level] = "other"

    @classmethod
    def place_of(cls, key: str, beside: Mapping[str, Any]) -> str:
        """Return where an unknown key belongs; empty where it may be kept. `beside` is the object that it stands in."""
        simulated = cls.level == "scenario" or any(beside.get(name) is not None for name in _SCENARIOS)
        return place_of(key, cls.level, simulated=simulated)


_SCENARIOS = ("conversation_scenario", "conversationScenario")


class Strict(BaseModel):
    """The base of what only this package writes: immutable, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def unwanted(found: str, wanted: str, *, near: str = "", of: tuple[str, ...] = ()) -> PydanticCustomError:
    """Return the error of a validator, in our words.

    Args:
        found: what is wrong.
        wanted: what would be right.
        near: a hint.
        of: the fields that could have been meant, so that a misspelt one explains it.
    """
    return PydanticCustomError("unwanted", "{wanted}", {"found": found, "wanted": wanted, "near": near, "of": of})


class FunctionCall(Written):
    """A call of a tool."""

    level: ClassVar[Level] = "call"
    id: str | None = None
    name: str | None = None
    args: Json | None = None
    partial_args: Any = None
    will_continue: Any = None


class FunctionResponse(Written):
    """What a tool returned."""

    id: str | None = None
    name: str | None = None
    response: Json | None = None
    will_continue: Any = None
    scheduling: Any = None
    parts: Any = None


class Part(Written):
    """One part of a message: text, a tool call or a tool's answer; media and the like are carried along."""

    level: ClassVar[Level] = "part"
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

    @property
    def words(self) -> str:
        """What it says in words, spoken ones included; empty for a thought, which nobody is told."""
        if self.thought:
            return ""
        if self.text or self.audio_transcription is None:
            return self.text or ""
        spoken = carried(self.audio_transcription, "text")
        return spoken if isinstance(spoken, str) else ""

    @property
    def media_types(self) -> list[str]:
        """The types of the files in it, such as ``image/png``; ``media`` where they are not known."""
        files = [file for file in (self.inline_data, self.file_data) if file and not self.thought]
        return [str(carried(file, "mime_type") or carried(file, "mimeType") or "media") for file in files]

    @property
    def says_something(self) -> bool:
        """Whether it holds anything but a thought: a text, media, a call, a result, code."""
        if self.thought:
            return False
        if self.text or self.function_call:
            return True
        return any(value for name, value in self if name not in _ABOUT_A_PART)


def carried(value: Any, name: str) -> Any:
    """Return a field of what is only carried along, which is JSON or an object of ADK."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


_ABOUT_A_PART = frozenset({"thought_signature", "part_metadata", "media_processing", "media_resolution", "video_metadata"})
"""What a part says of its content, and not to anybody."""


class Content(Written):
    """A message."""

    level: ClassVar[Level] = "message"
    parts: tuple[Part, ...] | None = None
    role: str | None = None

    @property
    def text(self) -> str:
        """All words, joined by newlines as ADK joins them, but for thoughts: nobody was told those."""
        parts = self.parts or ()
        if len(parts) == 1:  # as most messages have, and each turn is asked for its text several times
            return parts[0].words
        words = [part.words for part in parts]
        return "\n".join([word for word in words if word])

    @property
    def shown(self) -> str:
        """What a reader is shown of it: its words, and the types of its media: ``[image/png]``."""
        lines: list[str] = []
        for part in self.parts or ():
            words = part.words
            if words:
                lines.append(words)
            else:
                lines += [f"[{media}]" for media in part.media_types]
        return "\n".join(lines)

    @property
    def says_something(self) -> bool:
        """Whether anybody could notice it: whether it holds anything but thoughts."""
        for part in self.parts or ():  # noqa: SIM110 - a generator costs more than most answers, which begin with a text
            if part.says_something:
                return True
        return False


class RubricContent(Written):
    """What a rubric demands."""

    text_property: str | None = None


class Rubric(Written):
    """One property that a judge looks for."""

    rubric_id: str
    rubric_content: RubricContent
    description: str | None = None
    type: str | None = None


class IntermediateData(Written):
    """What happened between user text and answer, as people write it in eval sets."""

    level: ClassVar[Level] = "steps"
    tool_uses: tuple[FunctionCall, ...] = ()
    tool_responses: tuple[FunctionResponse, ...] = ()
    intermediate_responses: tuple[tuple[str, tuple[Part, ...]], ...] = ()
    """Author and parts, in order."""


class InvocationEvent(Written):
    """One event of a recorded invocation."""

    level: ClassVar[Level] = "event"
    author: str
    content: Content | None = None
    grounding_metadata: Json | None = None
    usage_metadata: Json | None = None
    model_version: str | None = None
    error_code: str | None = None
    """Why a model said nothing, such as ``SAFETY``; ADK ignores it."""
    error_message: str | None = None
    """The same in words; ADK ignores it."""
    with_answer: bool | None = None
    """Whether the turn's answer came with this error, as one that is cut; its text is the `final_response`. ADK ignores it."""
    invocation_index: Any = None
    """Of ADK's web editor; ADK ignores it."""
    tool_use_index: Any = None
    """Of ADK's web editor; ADK ignores it."""

    @property
    def error(self) -> str:
        """Why a model said nothing, or no more, as ``SAFETY: blocked by a rule``; empty where it was no error."""
        if not (self.error_code or self.error_message):
            return ""  # as of most events
        return ": ".join(dict.fromkeys(filter(None, (self.error_code, self.error_message))))


class InvocationEvents(Written):
    """What happened between user text and answer, as ADK records it."""

    level: ClassVar[Level] = "steps"
    invocation_events: tuple[InvocationEvent, ...]


class AgentDetails(Written):
    """One agent of an app, as it was when it answered."""

    name: str
    instructions: str = ""
    tool_declarations: tuple[Any, ...] = ()


class AppDetails(Written):
    """The agents of an app, by name."""

    agent_details: dict[str, AgentDetails] = {}


class Invocation(Written):
    """One turn: the user's message, the agent's steps and its answer."""

    level: ClassVar[Level] = "turn"
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
    """The number of model calls, if it was counted while the turn ran; google-adk 2.13 has no place for it."""
    rubrics: tuple[Rubric, ...] | None = None
    app_details: AppDetails | None = None

    @property
    def user_text(self) -> str:
        """The user's message."""
        return self.user_content.text

    @property
    def final_text(self) -> str:
        """The agent's answer; may be empty."""
        return self.final_response.text if self.final_response else ""

    @property
    def answered(self) -> bool:
        """Whether the agent answered anything that the user could notice."""
        return self.final_response is not None and self.final_response.says_something

    @property
    def shown_answer(self) -> str:
        """What a reader is shown of the agent's answer, media included; empty where it did not answer."""
        return self.final_response.shown if self.final_response else ""

    @property
    def events(self) -> tuple[InvocationEvent, ...]:
        """The recorded events; none for data written by hand."""
        return self.intermediate_data.invocation_events if isinstance(self.intermediate_data, InvocationEvents) else ()

    @property
    def contents(self) -> Iterator[Content]:
        """Every message of the turn: the user's, those on the way, and the answer."""
        yield self.user_content
        data = self.intermediate_data
        if isinstance(data, IntermediateData):
            for _, parts in data.intermediate_responses:
                yield Content(parts=parts)
        for event in self.events:
            if event.content:
                yield event.content
        if self.final_response:
            yield self.final_response

    @property
    def model_calls(self) -> int | None:
        """The number of model calls, as it was counted, else as recorded events show; ``None``: not known."""
        if self.inference_call_count is not None:
            return self.inference_call_count
        counted = 0
        for event in self.events:
            if event.usage_metadata is not None or event.model_version is not None:
                counted += 1
            elif event.content and any(part.function_call for part in event.content.parts or ()):
                return None  # a model asked for this call, and its event does not show that it was a model's
        return counted or None

    @property
    def errors(self) -> list[str]:
        """The reasons for missing model answers in this turn, in order."""
        return [event.error for event in self.events if event.error]

    @property
    def tool_calls(self) -> list[FunctionCall]:
        """Every tool call, in order, from either shape of intermediate data."""
        if isinstance(self.intermediate_data, IntermediateData):
            return list(self.intermediate_data.tool_uses)
        contents = [event.content for event in self.events if event.content]
        return [part.function_call for content in contents for part in content.parts or () if part.function_call]

    @property
    def tool_responses(self) -> list[FunctionResponse]:
        """Every answer of a tool, in order, from either shape of intermediate data."""
        if isinstance(self.intermediate_data, IntermediateData):
            return list(self.intermediate_data.tool_responses)
        contents = [event.content for event in self.events if event.content]
        return [part.function_response for content in contents for part in content.parts or () if part.function_response]

    def for_adk(self) -> Invocation:
        """Return the turn without what google-adk 2.13 would refuse to read."""
        if "inference_call_count" not in self.model_fields_set:
            return self
        turn = self.model_copy(update={"inference_call_count": None})
        turn.__pydantic_fields_set__.discard("inference_call_count")
        return turn

    def answered_calls(self) -> list[tuple[FunctionCall, FunctionResponse | None]]:
        """Return each tool call with its answer: the one with its id, else the next one with its name."""
        waiting = self.tool_responses
        found: list[tuple[FunctionCall, FunctionResponse | None]] = []
        for call in self.tool_calls:
            answer = next((one for one in waiting if call.id and one.id == call.id), None)
            answer = answer or next((one for one in waiting if one.name == call.name and not (one.id and call.id)), None)
            if answer is not None:
                waiting.remove(answer)
            found.append((call, answer))
        return found


class SessionInput(Written):
    """The session that a case starts in."""

    level: ClassVar[Level] = "session"
    app_name: str
    user_id: str
    session_id: str | None = None
    state: Json = {}


class UserBehavior(Written):
    """One trait of a simulated user."""

    name: str
    description: str
    behavior_instructions: tuple[str, ...]
    violation_rubrics: tuple[str, ...]


class UserPersona(Written):
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
    raise unwanted(shown(value), wanted, near=did_you_mean(value, PERSONAS) if isinstance(value, str) else "")


class ConversationScenario(Written):
    """A conversation led by a simulated user."""

    level: ClassVar[Level] = "scenario"
    starting_prompt: str
    conversation_plan: str
    user_persona: Annotated[UserPersona | str | None, BeforeValidator(_persona)] = None


_SOURCES = ("conversation", "conversation_scenario")
OPEN = "open"
"""The tag of a case of which nobody has said yet what is expected."""
OPEN_CALLS = "open calls"
"""The tag of a case of which nobody has said yet which tool calls are expected, though perhaps which answers."""


class EvalCase(Written):
    """One conversation to evaluate: written, or led by a simulated user."""

    level: ClassVar[Level] = "case"
    eval_id: str
    conversation: tuple[Invocation, ...] | None = None
    conversation_scenario: ConversationScenario | None = None
    session_input: SessionInput | None = None
    creation_timestamp: float = 0.0
    rubrics: tuple[Rubric, ...] | None = None
    final_session_state: Json | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.conversation is None) == (self.conversation_scenario is None):
            found = "neither of them" if self.conversation is None else "both of them"
            raise unwanted(found, f"exactly one of {' and '.join(_SOURCES)}", of=_SOURCES)
        tags = (self.model_extra or {}).get("tags")
        if tags is not None and not (isinstance(tags, list | tuple) and all(isinstance(tag, str) and tag for tag in tags)):
            raise unwanted(f"the tags {shown(tags)}", "a list of texts as tags")
        return self

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, for policies with rules for some cases; ADK does not know this field."""
        others = self.__pydantic_extra__
        return tuple(others.get("tags") or ()) if others else ()


class LazySequence(Sequence[T]):
    """A sequence whose items are made or read when somebody looks at them. It is equal to any sequence that holds the same."""

    @abstractmethod
    def at(self, place: int) -> T:
        """Return the item at a place that there is."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        """Return an item, or some of them."""
        if isinstance(index, slice):
            return tuple(self.several(range(len(self))[index]))
        return self.at(range(len(self))[index])

    def several(self, places: Sequence[int]) -> Iterator[T]:
        """Yield the items at some places."""
        return map(self.at, places)

    def __iter__(self) -> Iterator[T]:
        """Yield the items."""
        return self.several(range(len(self)))

    def __eq__(self, other: object) -> bool:
        """Whether another sequence holds the same items."""
        return isinstance(other, Sequence) and len(other) == len(self) and all(one == two for one, two in zip(self, other, strict=True))

    def __hash__(self) -> int:
        """Return a hash of the length, as the items may have none."""
        return hash(len(self))


class CasesElsewhere(LazySequence[EvalCase]):
    """Cases that are read from where they are, whenever somebody goes through them. They stand in an eval set where a tuple would."""

    @property
    @abstractmethod
    def eval_ids(self) -> tuple[str, ...]:
        """The ids of all cases, in order."""

    @property
    def digest(self) -> str:
        """The digest of the eval set, where it is known without reading the cases; else empty."""
        return ""


_PICKED_FROM = "_picked_from"


class EvalSet(Written):
    """Conversations to evaluate an agent on, with the expected turns."""

    level: ClassVar[Level] = "set"
    eval_set_id: str
    name: str | None = None
    description: str | None = None
    eval_cases: tuple[EvalCase, ...]
    creation_timestamp: float = 0.0

    @property
    def eval_ids(self) -> tuple[str, ...]:
        """The ids of all cases, in order."""
        cases: Any = self.eval_cases
        return cases.eval_ids if isinstance(cases, CasesElsewhere) else tuple(case.eval_id for case in cases)

    @property
    def picked_from(self) -> int:
        """How many cases there are of which these were picked by name; 0 where the set is whole."""
        # No field: it says how a set came about, and neither files nor digests know it.
        found: int = vars(self).get(_PICKED_FROM, 0)
        return found

    def as_picked_from(self, count: int) -> EvalSet:
        """Return the set as one whose cases were picked from so many; itself where these are all."""
        if count <= len(self.eval_cases):
            return self
        picked = self.model_copy()
        vars(picked)[_PICKED_FROM] = count
        return picked

    @field_serializer("eval_cases", mode="wrap")
    def _read(self, eval_cases: Any, write: SerializerFunctionWrapHandler) -> Any:
        """Write cases that are on disk like any others."""
        return write(tuple(eval_cases))

    def named(self, eval_ids: Container[str]) -> dict[str, EvalCase]:
        """Return the eval set with only the named cases."""
        cases: Any = self.eval_cases
        if isinstance(cases, CasesElsewhere):
            cases = cases.several([place for place, eval_id in enumerate(cases.eval_ids) if eval_id in eval_ids])
        return {case.eval_id: case for case in cases if case.eval_id in eval_ids}


_INCIDENTAL = {"invocation_id", "creation_timestamp", "invocation_index", "tool_use_index"}
_TYPED_BY_ADK = {"grounding_metadata", "usage_metadata"}
_USER_DATA = {"args", "response", "part_metadata"}
_BYTES = {"data", "thought_signature"}
_NOTHING: tuple[Any, ...] = ("", [], {})


_encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode

_CONTENT = ("conversation", "conversation_scenario", "session_input", "rubrics", "final_session_state")
"""What a case asks and expects. Its id, and fields that nobody knows, make no other case of it."""


def eval_set_digest(eval_set: EvalSet) -> str:
    """Return ``sha256:<hex>`` over the cases.

    Spelling, key order, ``1`` or ``1.0``, absent or empty fields, ids and times of invocations and the name of the set
    do not matter; the order of cases and turns and everything else does.
    """
    cases: Any = eval_set.eval_cases
    if isinstance(cases, CasesElsewhere) and cases.digest:
        return cases.digest
    digest = hashlib.sha256()
    for case in cases:
        digest.update(canonical_json(canonical(case)) + b"\n")
    return f"sha256:{digest.hexdigest()}"


class SetDigest:
    """The digest of an eval set whose cases come one after the other, and which of them are another one over again."""

    def __init__(self, surroundings: Callable[[str], str], cases: Iterable[EvalCase] = ()) -> None:
        """Take what else makes a case another one, such as its tool environment, by its id; and the first cases."""
        self._surroundings = surroundings
        self._hash = hashlib.sha256()
        self._eval_ids: list[str] = []
        self._contents = bytearray()  # a dict of them would be the largest thing in memory where there are many cases
        for case in cases:
            self.add(case)

    def add(self, case: EvalCase) -> None:
        """Add the next case."""
        fields = sorted(canonical(case).items())
        written = [(name, b"%b:%b" % (canonical_json(name), canonical_json(value))) for name, value in fields]
        self._hash.update(b"{%b}\n" % b",".join(field for _, field in written))
        content = hashlib.sha256(b"{%b}" % b",".join(field for name, field in written if name in _CONTENT)).digest()
        around = self._surroundings(case.eval_id)
        self._eval_ids.append(case.eval_id)
        self._contents += hashlib.sha256(content + around.encode()).digest() if around else content

    @property
    def text(self) -> str:
        """``sha256:<hex>`` over the cases so far."""
        return f"sha256:{self._hash.hexdigest()}"

    @property
    def copies(self) -> dict[str, str]:
        """The cases that ask and expect the same as an earlier one, by id, each with the first of them."""
        starts = range(0, len(self._contents), _HASH)
        heads = sorted(int.from_bytes(self._contents[start : start + _HEAD]) for start in starts)
        again = {head for head, following in pairwise(heads) if head == following}
        first: dict[bytes, str] = {}
        copies: dict[str, str] = {}
        for eval_id, start in zip(self._eval_ids, starts if again else (), strict=bool(again)):
            if int.from_bytes(self._contents[start : start + _HEAD]) in again:
                original = first.setdefault(bytes(self._contents[start : start + _HASH]), eval_id)
                if original != eval_id:
                    copies[eval_id] = original
        return copies


_HASH, _HEAD = 32, 8
"""The bytes of a hash, and of its beginning, by which most are told apart."""


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and no spaces, as UTF-8."""
    return _encode(value).encode("utf-8", "surrogatepass")


def json_sha256(value: Any) -> str:
    """Return the hash of JSON, in hex; the order of keys does not matter."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def canonical(value: Any) -> Any:
    """Return a model as JSON values, without what ADK would not notice: whole numbers are spelt one way; null stays inside what users wrote."""
    kind = type(value)
    if value is None or kind is str:  # most values; asking pydantic's classes about each takes longer than all else
        return value
    if kind is tuple or kind is list:
        return [canonical(item) for item in value]
    if kind is float:
        return int(value) if value.is_integer() else value
    if kind not in _MODELS:
        _MODELS[kind] = issubclass(kind, BaseModel)
    if _MODELS[kind]:
        return _canonical_model(value)
    if isinstance(value, Mapping):
        return {key: canonical(item) for key, item in value.items()}
    return value


_MODELS: dict[type[Any], bool] = {}
"""Whether a type is a model."""


def _canonical_model(model: BaseModel) -> dict[str, Any]:
    raw = _raw_fields(type(model))
    found = {}
    for name, value in model.__dict__.items():
        if value is None or name in _INCIDENTAL:
            continue
        if type(value) is str and name not in raw:  # most values
            if value:
                found[name] = value
            continue
        plain = _typed(name, value) if name in raw else canonical(value)
        if plain or plain not in _NOTHING:
            found[name] = plain
    for name, value in (model.model_extra or {}).items():
        if value is not None:
            found[name] = canonical(value)
    return found


@cache
def _raw_fields(model: type[BaseModel]) -> frozenset[str]:
    """Return the fields that are carried along as JSON of which ADK knows the type."""
    return frozenset(name for name, info in model.model_fields.items() if name in _TYPED_BY_ADK or info.annotation is Any)


def _typed(name: str, value: Any) -> Any:
    """Spell the keys and bytes of raw JSON one way, and leave out its nulls, but not in what users and tools wrote."""
    if name in _USER_DATA:
        return canonical(value)
    match value:
        case dict():
            named = ((to_snake(key), item) for key, item in value.items() if item is not None)
            return {key: _typed(key, item) for key, item in named}
        case list() | tuple():
            return [_typed(name, item) for item in value]
        case str() if name in _BYTES:
            return value.replace("-", "+").replace("_", "/").rstrip("=")
        case _:
            return canonical(value)
