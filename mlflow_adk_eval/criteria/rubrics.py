"""The criteria that judge by rubrics: final responses, the use of tools, and the way through a conversation.

A rubric is a demand in words. Those of the criterion's settings apply to every case; those of a case or a turn apply if their ``type`` is the
criterion's. A judge says of each rubric whether it holds (``yes``) or not (``no``), and the score is the share that holds. Kept beside the score
are the verdict, the votes and the explanation of each rubric. The first half of this module finds the rubrics that apply, the second judges by
them. A turn without a rubric has no cell; a case without any is refused when the evaluation is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

from mlflow_adk_eval.config.spec import CRITERIA, CriterionSpec, RubricSettings
from mlflow_adk_eval.criteria import transcript
from mlflow_adk_eval.criteria.criterion import CaseRun, failed, missing_turns, whole_case
from mlflow_adk_eval.criteria.judged_turns import TRIVIAL, Cell, JudgedTurns, combined, judged_turns, place, says_nothing, unfinished
from mlflow_adk_eval.errors import did_you_mean, shown
from mlflow_adk_eval.evalset.material import Material, unshown_in
from mlflow_adk_eval.evalset.models import EvalCase, Invocation, Rubric
from mlflow_adk_eval.evalset.observation import Need
from mlflow_adk_eval.judge.prompt import blocks_of, load_prompt
from mlflow_adk_eval.judge.question import JudgedItem, Question
from mlflow_adk_eval.judge.voting import CellKey, VoteCollector, VotedItem
from mlflow_adk_eval.results.outcomes import Errored, Judged, Outcome, Scored

FINAL_RESPONSE = "rubric_based_final_response_quality_v1"
TOOL_USE = "rubric_based_tool_use_quality_v1"
TRAJECTORY = "rubric_based_multi_turn_trajectory_quality_v1"

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
    return list(zip_longest(expected or (), actual))


def rubrics_of_turn(
    name: str, settings: RubricSettings, case: EvalCase, expected: Invocation | None = None, actual: Invocation | None = None
) -> RubricSet:
    """Return the rubrics of one turn: those of the criterion, of the case, and of the turn itself as expected and as it was."""
    return _united([*settings.rubrics, *own_rubrics(name, case, expected, actual)])


def rubrics_of_conversation(name: str, settings: RubricSettings, case: EvalCase, turns: Turns) -> RubricSet:
    """Return the rubrics of a conversation. One of a turn is about what happened until then; of several turns, until the last."""
    general = [*settings.rubrics, *own_rubrics(name, case)]
    of_turns = [(rubric, number) for number, pair in enumerate(turns, 1) for rubric in own_rubrics(name, *pair)]
    united = _united([*general, *(rubric for rubric, _ in of_turns)])
    until = {rubric.rubric_id: number for rubric, number in of_turns} | {rubric.rubric_id: len(turns) for rubric in general}
    scoped = {key: f"[until turn {until[key]}] {text}" if until[key] < len(turns) else text for key, text in united.texts.items()}
    types = {rubric.rubric_id: rubric.type for rubric in settings.rubrics if rubric.type not in {None, CRITERIA[name].rubric_type}}
    return RubricSet({key: f"[{types[key]}] {text}" if key in types else text for key, text in scoped.items()}, united.problem)


def own_rubrics(name: str, *holders: EvalCase | Invocation | None) -> list[Rubric]:
    """Return the rubrics of a criterion's type that a case and turns have themselves."""
    return [rubric for holder in holders if holder for rubric in holder.rubrics or () if rubric.type == CRITERIA[name].rubric_type]


def _united(rubrics: Iterable[Rubric]) -> RubricSet:
    """Return the rubrics, one for each id: the same demand at several levels is one."""
    texts: dict[str, str] = {}
    problems: list[str] = []
    for rubric in rubrics:
        text = (rubric.rubric_content.text_property or "").strip()
        if not text:
            problems.append(f"the rubric {shown(rubric.rubric_id)} has no text")
        elif texts.setdefault(rubric.rubric_id, text) != text:
            problems.append(f"the rubric id {shown(rubric.rubric_id)} is used for two different rubrics")
    return RubricSet(texts, "; ".join(dict.fromkeys(problems)))


def rubric_problem(name: str, settings: RubricSettings, case: EvalCase) -> str:
    """Return why a criterion cannot be planned for a case; empty where it can.

    Turns without a rubric are no problem as long as another has one. What is wrong with the rubrics of a case itself is an error of that case only, once
    it is judged.
    """
    problem, turns = _united(settings.rubrics).problem, turns_of(case.conversation)
    rubrics = [rubrics_of_conversation(name, settings, case, turns)]
    if CRITERIA[name].scope == "turn":
        rubrics = [rubrics_of_turn(name, settings, case, *pair) for pair in turns] or rubrics
    if problem or any(one.texts or one.problem for one in rubrics):
        return problem
    return f"no rubric (none in the config, and none of the type {CRITERIA[name].rubric_type} in the eval set)"


def has_rubrics(name: str, settings: RubricSettings, case: EvalCase, index: int) -> bool:
    """Whether the eval set has a rubric for a turn, so that there must be a cell for it."""
    expected = (case.conversation or ())[index : index + 1]
    return bool(rubrics_of_turn(name, settings, case, *expected).texts)


def rubric_types() -> Mapping[str, str]:
    """Return the type of the rubrics of cases and turns that each criterion judges by."""
    return {name: spec.rubric_type for name, spec in CRITERIA.items() if spec.rubric_type}


class UnusedRubric(NamedTuple):
    """A rubric of a case by which no criterion judges."""

    place: str
    """Its id, and where it is."""
    reason: str


def unused_rubrics(criteria: Iterable[str], case: EvalCase) -> Iterator[UnusedRubric]:
    """Yield each rubric of a case or its turns that none of `criteria` judges by, because of its type."""
    rubrics = [(case.eval_id, rubric) for rubric in case.rubrics or ()]
    for number, turn in enumerate(case.conversation or (), 1):
        rubrics += [(f"{case.eval_id} turn {number}", rubric) for rubric in turn.rubrics or ()]
    by_name = rubric_types() if rubrics else {}
    used, types = {by_name.get(name) for name in criteria}, list(by_name.values())
    for where, rubric in rubrics:
        if rubric.type not in used or rubric.type is None:
            yield UnusedRubric(f"{shown(rubric.rubric_id)} of {where}", _unused(rubric.type, types))


def _unused(rubric_type: str | None, types: Sequence[str]) -> str:
    """Return why no criterion of a config judges by rubrics of a type; `types`: those that some criterion judges by."""
    if rubric_type is None:
        return f"it has no type; wanted one of {', '.join(types)}"
    if rubric_type in types:
        return f"no criterion in the config uses rubrics of the type {rubric_type}"
    hint = did_you_mean(rubric_type.upper().replace(" ", "_").replace("-", "_"), types)
    return f"no criterion uses rubrics of the type {shown(rubric_type)}" + (f". {hint}" if hint else "")


WORTH = {"yes": 1.0, "no": 0.0}
_NO_RUBRIC = "no rubric applies to this case"
_NO_CALLS = "(no tool was called)"


class FinalResponseQualitySettings(RubricSettings):
    """Rubrics for final responses."""

    rubric_type = "FINAL_RESPONSE_QUALITY"


class ToolUseQualitySettings(RubricSettings):
    """Rubrics for the use of tools."""

    rubric_type = "TOOL_USE_QUALITY"


class TrajectoryQualitySettings(RubricSettings):
    """Rubrics for whole conversations."""

    rubric_type = "TRAJECTORY_QUALITY"


@dataclass(frozen=True, slots=True)
class RubricTurns(JudgedTurns[RubricSettings]):
    """A criterion that judges each turn by its rubrics. It is an error if no turn has any."""

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn that has rubrics."""
        judged = await judged_turns(run, partial(self.turn, run), self.settings)
        return judged if any(judged.per_invocation) else failed(run, _NO_RUBRIC)


@dataclass(frozen=True, slots=True)
class FinalResponseQuality(RubricTurns):
    """The share of rubrics that each turn's final response satisfies; the case score is the mean of the turns.

    Source: the documents of ADK's criteria. ADK's code takes the mean over all rubrics of all turns.
    """

    async def turn(self, run: CaseRun, index: int) -> Cell | None:
        """Ask about the response; one that says nothing satisfies no rubric."""
        turn, rubrics = run.actual[index], _rubrics(FINAL_RESPONSE, self.settings, run, index)
        response, *reference = map(self.answer, (turn, *(run.expected or ())[index : index + 1]))
        if rubrics.texts and not rubrics.problem and says_nothing(response, *reference):
            return Cell(_refused(rubrics))
        material = {
            "developer_instructions": transcript.instructions_material(turn.app_details),
            "tools": transcript.tools_material(turn.app_details),
            "earlier_turns": transcript.conversation_material(run.actual[:index]),
            "user_message": transcript.user_material(turn),
            "tool_calls": _calls(turn),
            "grounding_metadata": transcript.grounding_material(turn),
            "response": response,
        }
        return await _decided(self.collector, place(run, index, FINAL_RESPONSE), material, rubrics)


@dataclass(frozen=True, slots=True)
class ToolUseQuality(RubricTurns):
    """The share of rubrics that each turn's use of tools satisfies, whatever was answered; the case score is the mean of the turns.

    Source: the documents of ADK's criteria. ADK's code takes the mean over all rubrics of all turns.
    """

    async def turn(self, run: CaseRun, index: int) -> Cell | None:
        """Ask about the calls of the turn and what tools returned."""
        turn = run.actual[index]
        material = {
            "tools": transcript.tools_material(turn.app_details),
            "earlier_turns": transcript.conversation_material(run.actual[:index]),
            "user_message": transcript.user_material(turn),
            "tool_calls": _calls(turn),
        }
        return await _decided(self.collector, place(run, index, TOOL_USE), material, _rubrics(TOOL_USE, self.settings, run, index))


@dataclass(frozen=True, slots=True)
class TrajectoryQuality:
    """The share of rubrics that the whole conversation satisfies; one score per case.

    Source: the documents of ADK's criteria. ADK's code leaves out the rubrics of all turns but the last.
    """

    settings: RubricSettings
    collector: VoteCollector

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge the conversation as a whole; one in which the agent neither did nor said anything satisfies no rubric."""
        turns = run.actual
        error = next(iter(missing_turns(run)), None) or unfinished(run, len(turns) - 1)
        if error or not turns:
            return whole_case(run, error or Errored("there is no actual turn"))
        rubrics = rubrics_of_conversation(TRAJECTORY, self.settings, run.case, turns_of(run.expected, turns))
        silent = all(says_nothing(transcript.final_material(turn)) and not transcript.steps(turn) for turn in turns)
        if rubrics.texts and not rubrics.problem and silent:
            return whole_case(run, _refused(rubrics))
        where = place(run, run.turns - 1, TRAJECTORY)
        cell = await _decided(self.collector, where, transcript.whole_conversation(turns), rubrics) or Cell(Errored(_NO_RUBRIC))
        return whole_case(run, cell.outcome, cell.votes)


def _calls(turn: Invocation) -> Material:
    """Return the calls of a turn; words that say so where there is none."""
    made = transcript.tool_material(turn)
    return Material(made.text or _NO_CALLS, made.unshown)


def _rubrics(name: str, settings: RubricSettings, run: CaseRun, index: int) -> RubricSet:
    return rubrics_of_turn(name, settings, run.case, *turns_of(run.expected, run.actual)[index])


async def _decided(collector: VoteCollector, where: CellKey, material: Mapping[str, Material], rubrics: RubricSet) -> Cell | None:
    """Return the verdict by all rubrics; ``None`` where there is none to judge by."""
    if rubrics.problem:
        return Cell(Errored(rubrics.problem))
    if not rubrics.texts:
        return None
    items = tuple(JudgedItem(id=rubric_id, text=text) for rubric_id, text in rubrics.texts.items())
    question = Question(
        prompt=load_prompt(where.criterion),
        blocks=blocks_of(material),
        unshown=unshown_in(material.values()),
        items=items,
        label_values=WORTH,
    )
    voting = await collector.decide(question, where)
    if voting.unasked:
        return Cell(voting.unasked, voting.votes)
    return Cell(combined(voting.results, "rubric"), voting.votes)


def _refused(rubrics: RubricSet) -> Outcome:
    """Return the outcome of an answer that satisfies no rubric, because it says nothing."""
    items = (JudgedItem(id=key, text=text) for key, text in rubrics.texts.items())
    return combined([VotedItem(item=item, outcome=Scored(0.0, TRIVIAL), label="no") for item in items], "rubric")


def _spec(
    name: str,
    settings: type[RubricSettings],
    about: str,
    make: Callable[..., Any],
    needs: tuple[Need, ...] = ("rubrics",),
) -> CriterionSpec:
    return CriterionSpec(
        name=name,
        origin="adk",
        about=f"the share of rubrics that {about} satisfies",
        kept="a verdict, votes and explanations for each rubric",
        settings=settings,
        reads_intermediate=name == FINAL_RESPONSE,
        scope="case" if name == TRAJECTORY else "turn",
        needs=needs,
        rubric_type=settings.rubric_type,
        prompts=(name,),
        make=make,
    )


SPECS = (
    _spec(FINAL_RESPONSE, FinalResponseQualitySettings, "each turn's final response", FinalResponseQuality),
    _spec(TOOL_USE, ToolUseQualitySettings, "each turn's use of tools", ToolUseQuality, ("rubrics", "calls")),
    _spec(TRAJECTORY, TrajectoryQualitySettings, "the whole conversation", TrajectoryQuality),
)
