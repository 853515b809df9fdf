"""Which rubrics apply where: those of the criterion, and those of the case and of its turns that are of the criterion's type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from mlflow_adk_eval.config.criteria import RubricSettings
from mlflow_adk_eval.errors import did_you_mean, shown
from mlflow_adk_eval.evalset import EvalCase, Invocation, Rubric

FINAL_RESPONSE = "rubric_based_final_response_quality_v1"
TOOL_USE = "rubric_based_tool_use_quality_v1"
TRAJECTORY = "rubric_based_multi_turn_trajectory_quality_v1"

RUBRIC_TYPES: Mapping[str, str] = {
    FINAL_RESPONSE: "FINAL_RESPONSE_QUALITY",
    TOOL_USE: "TOOL_USE_QUALITY",
    TRAJECTORY: "TRAJECTORY_QUALITY",
}
"""From a criterion to the type of the rubrics of cases and turns that it judges by."""

Turns = Sequence[tuple[Invocation | None, Invocation | None]]
"""The turns of a conversation, as expected and as they were."""


@dataclass(frozen=True, slots=True)
class RubricSet:
    """The rubrics that apply together."""

    texts: Mapping[str, str]
    """What each demands, by its id."""
    problem: str = ""
    """Why they cannot be judged by; empty where they can."""


def turns_of(expected: Sequence[Invocation] | None, actual: Sequence[Invocation] = ()) -> Turns:
    """Return the turns that either side has."""
    wanted = expected or ()
    return [
        (wanted[index] if index < len(wanted) else None, actual[index] if index < len(actual) else None)
        for index in range(max(len(wanted), len(actual)))
    ]


def rubrics_of_turn(
    name: str, settings: RubricSettings, case: EvalCase, expected: Invocation | None = None, actual: Invocation | None = None
) -> RubricSet:
    """Return the rubrics of one turn: those of the criterion, of the case, and of the turn itself as expected and as it was."""
    return _united(chain(_of_case(name, settings, case), _of_turn(name, expected, actual)))


def rubrics_of_conversation(name: str, settings: RubricSettings, case: EvalCase, turns: Turns) -> RubricSet:
    """Return the rubrics of a conversation. One of a turn is about what happened until then; of several turns, until the last."""
    general = list(_of_case(name, settings, case))
    of_turns = [(rubric, number) for number, pair in enumerate(turns, 1) for rubric in _of_turn(name, *pair)]
    found = _united([*general, *(rubric for rubric, _ in of_turns)])
    until = {rubric.rubric_id: number for rubric, number in of_turns} | {rubric.rubric_id: len(turns) for rubric in general}
    scoped = {key: f"[until turn {until[key]}] {text}" if until[key] < len(turns) else text for key, text in found.texts.items()}
    return RubricSet(scoped, found.problem)


def _of_case(name: str, settings: RubricSettings, case: EvalCase) -> Iterator[Rubric]:
    yield from settings.rubrics
    yield from (rubric for rubric in case.rubrics or () if rubric.type == RUBRIC_TYPES[name])


def _of_turn(name: str, *sides: Invocation | None) -> Iterator[Rubric]:
    yield from (rubric for side in sides if side for rubric in side.rubrics or () if rubric.type == RUBRIC_TYPES[name])


def _united(rubrics: Iterable[Rubric]) -> RubricSet:
    """Return the rubrics, one for each id: the same demand at several levels is one."""
    texts: dict[str, str] = {}
    problems: list[str] = []
    for rubric in rubrics:
        text = (rubric.rubric_content.text_property or "").strip()
        if not text:
            problems.append(f"the rubric {shown(rubric.rubric_id)} has no text")
        elif texts.setdefault(rubric.rubric_id, text) != text:
            problems.append(f"the rubric id {shown(rubric.rubric_id)} stands for two different demands")
    return RubricSet(texts, "; ".join(dict.fromkeys(problems)))


def rubric_problem(name: str, settings: RubricSettings, case: EvalCase) -> str:
    """Return why a criterion cannot judge a case by its rubrics, as far as the eval set shows; empty where it can.

    Turns without a rubric are no problem as long as another has one.
    """
    turns = turns_of(case.conversation)
    found = [rubrics_of_conversation(name, settings, case, turns)]
    if name != TRAJECTORY:
        found = [rubrics_of_turn(name, settings, case, *pair) for pair in turns] or found
    problems = dict.fromkeys(one.problem for one in found if one.problem)
    if problems or any(one.texts for one in found):
        return "; ".join(problems)
    return f"no rubric (none in the config, and none of the type {RUBRIC_TYPES[name]} in the eval set)"


def has_rubrics(name: str, settings: RubricSettings, case: EvalCase, index: int) -> bool:
    """Whether the eval set has a rubric for a turn, so that there must be a cell for it."""
    expected = (case.conversation or ())[index : index + 1]
    return bool(rubrics_of_turn(name, settings, case, *expected).texts)


def unused_rubrics(criteria: Iterable[str], case: EvalCase) -> tuple[str, ...]:
    """Return a sentence for each rubric of a case or its turns that none of `criteria` judges by, because of its type."""
    used = {RUBRIC_TYPES[name] for name in criteria if name in RUBRIC_TYPES}
    found = [("the case", rubric) for rubric in case.rubrics or ()]
    found += [(f"turn {number}", rubric) for number, turn in enumerate(case.conversation or (), 1) for rubric in turn.rubrics or ()]
    return tuple(f"{case.eval_id}: {_unused(where, rubric)}" for where, rubric in found if rubric.type not in used)


def _unused(where: str, rubric: Rubric) -> str:
    what = f"the rubric {shown(rubric.rubric_id)} of {where} is not used:"
    if rubric.type is None:
        return f"{what} it has no type, which would be one of {', '.join(RUBRIC_TYPES.values())}"
    if rubric.type in RUBRIC_TYPES.values():
        return f"{what} no criterion of the config judges by rubrics of the type {rubric.type}"
    hint = did_you_mean(rubric.type.upper().replace(" ", "_").replace("-", "_"), list(RUBRIC_TYPES.values()))
    return f"{what} no criterion judges by rubrics of the type {shown(rubric.type)}{f'. {hint}' if hint else ''}"
