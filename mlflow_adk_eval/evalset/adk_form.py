"""Eval sets as ADK reads them: what it would refuse a whole file for stands somewhere else.

ADK takes unknown fields of a case and of its session, ignores those of an eval set, an event and a persona, and refuses
a file with any other. Nothing of that is thrown away: such a field is moved to the note `NOTES` of its case, by its path,
and whoever writes the file is told. The same goes for what nothing reads where it is (`Written.place_of`), since this
package would refuse it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic.alias_generators import to_snake

from mlflow_adk_eval.errors import json_path
from mlflow_adk_eval.evalset.genai_fields import RAW_FIELDS
from mlflow_adk_eval.evalset.models import (
    CasesElsewhere,
    Content,
    EvalCase,
    EvalSet,
    Invocation,
    InvocationEvent,
    Json,
    Model,
    SessionInput,
    UserBehavior,
    UserPersona,
    Written,
)
from mlflow_adk_eval.evalset.parse import Steps

NOTES = "_not_in_adk"
"""The field of a case, or of a set, with what ADK refuses where it was, by its JSON path within the case."""

_TOLERANT = (EvalSet, EvalCase, SessionInput, InvocationEvent, UserPersona, UserBehavior)
"""Where ADK takes or ignores unknown fields."""
_MAX_NAMED = 10
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class AdkForm:
    """Cases on their way into a file that ADK reads, and what had to be moved in them."""

    file: str
    """What messages call the file."""
    _moved: list[str] = field(default_factory=list[str])
    _renamed: list[str] = field(default_factory=list[str])

    def head(self, eval_set: EvalSet) -> EvalSet:
        """Return an eval set without its cases, as ADK reads it."""
        empty = eval_set.model_copy(update={"eval_cases": ()})
        value, paths = _with_notes(empty)
        if not paths:
            return empty
        self._moved += [json_path("$", steps) for steps in paths]
        return EvalSet.model_validate({**value, "eval_cases": ()})

    def case(self, case: EvalCase) -> EvalCase:
        """Return a case as ADK reads it."""
        value, paths = _with_notes(case)
        if not paths:
            return case
        self._moved += [_named(case, steps) for steps in paths]
        return EvalCase.model_validate(value)

    def renamed(self, case: EvalCase, steps: Steps, place: str) -> None:
        """Note that a key of a case has another place now."""
        self._renamed.append(f"{_named(case, steps)} is {place}")

    def eval_set(self, eval_set: EvalSet) -> EvalSet:
        """Return a whole eval set as ADK reads it."""
        cases: Iterable[EvalCase] = eval_set.eval_cases
        ready = tuple(map(self.case, cases))
        if not isinstance(eval_set.eval_cases, CasesElsewhere) and all(one is two for one, two in zip(ready, cases, strict=True)):
            ready = eval_set.eval_cases
        return self.head(eval_set).model_copy(update={"eval_cases": ready})

    def tell(self) -> None:
        """Log what was moved, if anything was."""
        if self._renamed:
            _logger.warning("%s: keys of the old format have a new place:%s", self.file, _listed(self._renamed))
        if self._moved:
            why = "ADK refuses these keys where they were, or nothing reads them there, so they are in a note now"
            _logger.warning("%s: %s, %r:%s", self.file, why, NOTES, _listed(self._moved))


def _named(case: EvalCase, steps: Steps) -> str:
    return json_path(f"case {case.eval_id!r}, $", steps)


def _listed(lines: Sequence[str]) -> str:
    named = "".join(f"\n  {line}" for line in lines[:_MAX_NAMED])
    more = len(lines) - _MAX_NAMED
    return f"{named}\n  and {more:,} more" if more > 0 else named


def for_adk(eval_set: EvalSet, file: str) -> EvalSet:
    """Return an eval set as ADK reads it, and log what was moved for that; `file` is what the message calls the new file."""
    form = AdkForm(file)
    ready = form.eval_set(eval_set)
    form.tell()
    return ready


def _with_notes(model: EvalSet | EvalCase) -> tuple[Json, list[Steps]]:
    """Return a model as JSON values with its `NOTES`, and the steps to what is in them now; nothing where none need be."""
    strangers = [steps for steps in _strangers(model, ()) if _at(model, steps) is not None]  # null is not written
    if not strangers:
        return {}, []
    value = model.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    _move(value, strangers)
    return value, strangers


def _at(value: Any, steps: Steps) -> Any:
    for step in steps:
        value = getattr(value, str(step)) if isinstance(value, Model) else value[step]
    return value


def move_strangers(turns: Iterable[tuple[Model, Steps]], value: Json) -> None:
    """Move what ADK would refuse in turns to the `NOTES` of the object that holds them; `value` is that object as JSON values."""
    _move(value, [stranger for turn, steps in turns for stranger in _strangers(turn, steps)])


def _move(value: Json, strangers: Sequence[Steps]) -> None:
    notes = dict(value.get(NOTES) or {})
    for steps in strangers:
        holder: Any = value
        for step in steps[:-1]:
            holder = holder[step]
        notes[json_path("$", steps)] = holder.pop(steps[-1])
    if notes:
        value[NOTES] = notes


def _strangers(value: Any, steps: Steps) -> Iterator[Steps]:
    """Yield the steps to each key that may not stay where it is. Every logged run looks at all its cases, so texts are passed over first."""
    if isinstance(value, Model):
        yield from _strange_keys(value, steps)
        for name, item in value.__dict__.items():
            if item is None or type(item) is str:
                continue
            if name in RAW_FIELDS and not isinstance(value, Content):  # whose parts are models
                yield from _foreign_keys(item, RAW_FIELDS[name], (*steps, name))
            elif type(item) is tuple or name == "agent_details" or isinstance(item, Model):
                yield from _strangers(item, (*steps, name))
    elif type(value) is tuple:
        for index, item in enumerate(value):
            yield from _strangers(item, (*steps, index))
    elif type(value) is dict:
        for key, item in value.items():
            yield from _strangers(item, (*steps, key))


def _foreign_keys(value: Any, known: Mapping[str, Any], steps: Steps) -> Iterator[Steps]:
    """Yield the steps to each key in JSON that google-genai's types do not know."""
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _foreign_keys(item, known, (*steps, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            name = key if key in known else to_snake(key)
            if name not in known:
                yield (*steps, key)
            elif known[name] is not None:
                yield from _foreign_keys(item, known[name], (*steps, key))


def _strange_keys(model: Model, steps: Steps) -> Iterator[Steps]:
    others = model.__pydantic_extra__
    if others:
        tolerated = isinstance(model, _TOLERANT)
        for key in others:
            if key == NOTES:
                continue
            unread = isinstance(model, Written) and model.place_of(key, model.__dict__)
            if unread or not tolerated:
                yield (*steps, key)
    if isinstance(model, Invocation) and model.inference_call_count is not None:  # which google-adk 2.13 does not know
        yield (*steps, "inference_call_count")
