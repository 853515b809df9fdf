"""From JSON text to models, with every problem named by its JSON path."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_snake
from pydantic_core import ErrorDetails, from_json

from mlflow_adk_eval.errors import EvalSetError, InputError, Problem, did_you_mean, shown
from mlflow_adk_eval.evalset.models import (
    AgentDetails, AppDetails, Content, ConversationScenario, EvalCase, FunctionCall, FunctionResponse, IntermediateData,
    Invocation, InvocationEvent, InvocationEvents, Model, Part, Rubric, RubricContent, SessionInput, UserBehavior, UserPersona,
)  # fmt: skip

T = TypeVar("T")

_UNION_BRANCHES = {"InvocationEvents", "IntermediateData", "UserPersona", "str"}
_OPEN_MAPS = {"args", "response", "state", "final_session_state", "grounding_metadata", "usage_metadata"}
_WANTED = {
    "missing": "this field, which is required",
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "tuple_type": "a list",
    "list_type": "a list",
    "too_long": "a list of exactly two: author and parts",
}


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Pause the cyclic garbage collector, which would scan a growing forest of acyclic models again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # both together move all that is new to the oldest generation without scanning it
            gc.enable()


def read_text(path: Path, *, error: type[InputError] = EvalSetError) -> bytes:
    """Return the file's bytes without a byte order mark.

    Raises:
        InputError: of the given kind, if there is no such file.
    """
    try:
        return path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as problem:
        raise error(str(path), [Problem("$", problem.strerror or "no such file", "a readable file")]) from None


def decode(text: bytes, source: str, *, error: type[InputError] = EvalSetError) -> Any:
    """Return the JSON value in `text`.

    Raises:
        InputError: of the given kind, if it is no JSON.
    """
    try:
        return from_json(text)
    except ValueError as problem:
        raise error(source, [Problem("$", f"text that is no JSON ({problem})", "JSON")]) from None


def parse(adapter: TypeAdapter[T], text: bytes | Any, source: str, *, error: type[InputError] = EvalSetError, at: str = "$") -> T:
    """Return `text` (JSON bytes, or a decoded value) as what `adapter` describes.

    Unknown fields are kept, unless one is so close to a field that is absent that it must be a slip of the pen.

    Raises:
        InputError: of the given kind, with every problem of the input.
    """
    with no_collection():
        try:
            return _validate(adapter, text, extra="forbid")
        except ValidationError as strict:
            value = decode(text, source, error=error) if isinstance(text, bytes) else text
            problems = list(_problems(strict.errors(include_url=False), value, at))
        if problems:
            raise error(source, problems)
        return _validate(adapter, text, extra="allow")


def _validate(adapter: TypeAdapter[T], text: bytes | Any, *, extra: Any) -> T:
    if isinstance(text, bytes):
        return adapter.validate_json(text, extra=extra)
    return adapter.validate_python(text, extra=extra)


def _problems(errors: list[ErrorDetails], value: Any, at: str) -> Iterator[Problem]:
    for detail in errors:
        loc, kind = detail["loc"], detail["type"]
        if _other_branch(loc, value):
            continue
        path = at + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in _without_branches(loc))
        if kind == "extra_forbidden":
            hint = _slip(loc, value)
            if hint:
                yield Problem(path, "an unknown field", "a field of this object", hint)
        elif kind == "json_invalid":
            yield Problem(at, f"text that is no JSON ({detail['ctx']['error']})", "JSON")
        elif kind == "missing":
            yield Problem(path, "nothing", _WANTED[kind])
        elif kind == "value_error":
            yield Problem(path, shown(detail["input"]), str(detail["ctx"]["error"]), _persona_hint(detail["input"]))
        else:
            yield Problem(path, shown(detail["input"]), wanted(detail))


def wanted(detail: ErrorDetails) -> str:
    """Return what pydantic wanted, in the words of JSON."""
    if detail["type"] == "literal_error":
        return "one of " + str(detail["ctx"]["expected"])
    return _WANTED.get(detail["type"], detail["msg"])


def _persona_hint(found: Any) -> str:
    from mlflow_adk_eval.evalset.models import PERSONAS  # noqa: PLC0415

    return did_you_mean(found, PERSONAS) if isinstance(found, str) else ""


def _without_branches(loc: tuple[int | str, ...]) -> list[int | str]:
    """Leave out the steps that name a branch of a union, which are no part of the JSON."""
    return [step for index, step in enumerate(loc) if not (index and step in _UNION_BRANCHES and loc[index - 1] in _TAGGED)]


_TAGGED = {"intermediate_data", "intermediateData", "user_persona", "userPersona"}


def _other_branch(loc: tuple[int | str, ...], value: Any) -> bool:
    """Whether `loc` lies in the branch of a union that the JSON does not take."""
    for index in range(1, len(loc)):
        if loc[index - 1] not in _TAGGED or loc[index] not in _UNION_BRANCHES:
            continue
        found = _at(value, _without_branches(loc[:index]))
        events = isinstance(found, Mapping) and bool({"invocation_events", "invocationEvents"} & set(found))
        taken = {True: "InvocationEvents", False: "IntermediateData"}[events]
        if loc[index] in {"InvocationEvents", "IntermediateData"}:
            return loc[index] != taken
        return (loc[index] == "str") != isinstance(found, str)
    return False


def _at(value: Any, steps: list[int | str]) -> Any:
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


_BY_STEP: dict[str, type[Model]] = {
    "parts": Part, "intermediate_responses": Part, "function_call": FunctionCall, "tool_uses": FunctionCall,
    "function_response": FunctionResponse, "tool_responses": FunctionResponse, "user_content": Content, "content": Content,
    "final_response": Content, "rubrics": Rubric, "rubric_content": RubricContent, "invocation_events": InvocationEvent,
    "conversation": Invocation, "invocations": Invocation, "session_input": SessionInput, "conversation_scenario": ConversationScenario,
    "user_persona": UserPersona, "behaviors": UserBehavior, "eval_cases": EvalCase, "app_details": AppDetails, "agent_details": AgentDetails,
}  # fmt: skip
_CASE_LIKE = {"eval_id", "eval_set_id"}


def _slip(loc: tuple[int | str, ...], value: Any) -> str:
    """Return the field that the unknown last step of `loc` was meant to be, as a sentence; empty if there is none."""
    owner = _at(value, _without_branches(loc[:-1]))
    present = {to_snake(key) for key in owner} if isinstance(owner, Mapping) else set()
    name = to_snake(str(loc[-1]))
    model = _owner_model(loc[:-1], owner)
    if name in model.passthrough:
        return ""
    return did_you_mean(name, set(model.model_fields) - present)


def _owner_model(loc: tuple[int | str, ...], owner: Any) -> type[Model]:
    from mlflow_adk_eval.evalset.models import EvalSet  # noqa: PLC0415

    steps = [step for step in loc if isinstance(step, str)]
    if steps and steps[-1] in {"InvocationEvents", "IntermediateData"}:
        return InvocationEvents if steps[-1] == "InvocationEvents" else IntermediateData
    named = [to_snake(step) for step in _without_branches(loc) if isinstance(step, str)]
    for step in reversed(named):
        if step in _BY_STEP:
            return _BY_STEP[step]
    return EvalSet if isinstance(owner, Mapping) and {"eval_cases", "evalCases"} & set(owner) else EvalCase
