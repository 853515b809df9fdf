"""The three criteria that judge by rubrics: final responses, the use of tools, and the way through a conversation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mlflow_adk_eval.config.criteria import RubricSettings
from mlflow_adk_eval.criteria.criterion import CaseRun, failed, missing_turns, whole_case
from mlflow_adk_eval.criteria.judged_turns import (
    TRIVIAL,
    Cell,
    combined,
    judged_turns,
    place,
    trivial,
    unfinished,
)
from mlflow_adk_eval.criteria.rubrics import (
    FINAL_RESPONSE,
    TOOL_USE,
    TRAJECTORY,
    RubricSet,
    rubrics_of_conversation,
    rubrics_of_turn,
    turns_of,
)
from mlflow_adk_eval.criteria.steps import steps
from mlflow_adk_eval.criteria.transcript import (
    conversation_text,
    final_text,
    grounding_text,
    instructions_text,
    tool_steps_text,
    tools_text,
    user_text,
)
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.judge.prompt import blocks_of, load_prompt
from mlflow_adk_eval.judge.question import JudgedItem, Question
from mlflow_adk_eval.judge.voting import CellKey, ItemResult, VoteCollector
from mlflow_adk_eval.results.outcomes import Errored, Judged, Outcome, Scored

_WORTH = {"yes": 1.0, "no": 0.0}
_NO_RUBRIC = "no rubric applies to this case"
_NO_CALLS = "(no tool was called)"


@dataclass(frozen=True, slots=True)
class FinalResponseQuality:
    """The share of rubrics that each turn's final response satisfies; the case score is the mean of the turns.

    Source: the documents of ADK's criteria. ADK's code takes the mean over all rubrics of all turns.
    """

    settings: RubricSettings
    collector: VoteCollector

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own, all at the same time."""
        return await _by_turn(run, partial(self._turn, run))

    async def _turn(self, run: CaseRun, index: int) -> Cell | None:
        turn, rubrics = run.actual[index], _rubrics(FINAL_RESPONSE, self.settings, run, index)
        response, *reference = (
            final_text(found, include_intermediate=self.settings.include_intermediate_responses_in_final)
            for found in (turn, *(run.expected or ())[index : index + 1])
        )
        if rubrics.texts and not rubrics.problem and trivial(response, *reference):
            return Cell(_refused(rubrics))
        material = {
            "developer_instructions": instructions_text(turn.app_details),
            "tools": tools_text(turn.app_details),
            "earlier_turns": conversation_text(run.actual[:index]),
            "user_message": user_text(turn),
            "tool_calls": tool_steps_text(turn) or _NO_CALLS,
            "grounding_metadata": grounding_text(turn),
            "response": response,
        }
        return await _decided(self.collector, place(run, index, FINAL_RESPONSE), material, rubrics)


@dataclass(frozen=True, slots=True)
class ToolUseQuality:
    """The share of rubrics that each turn's use of tools satisfies, whatever was answered; the case score is the mean of the turns.

    Source: the documents of ADK's criteria. ADK's code takes the mean over all rubrics of all turns.
    """

    settings: RubricSettings
    collector: VoteCollector

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own, all at the same time."""
        return await _by_turn(run, partial(self._turn, run))

    async def _turn(self, run: CaseRun, index: int) -> Cell | None:
        turn = run.actual[index]
        material = {
            "tools": tools_text(turn.app_details),
            "earlier_turns": conversation_text(run.actual[:index]),
            "user_message": user_text(turn),
            "tool_calls": tool_steps_text(turn) or _NO_CALLS,
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
        """Judge the conversation as a whole."""
        cell = await self._conversation(run)
        return whole_case(run, cell.outcome, cell.votes)

    async def _conversation(self, run: CaseRun) -> Cell:
        turns = run.actual
        error = next(iter(missing_turns(run)), None) or unfinished(run, len(turns) - 1)
        if error or not turns:
            return Cell(error or Errored("there is no actual invocation"))
        rubrics = rubrics_of_conversation(TRAJECTORY, self.settings, run.case, turns_of(run.expected, turns))
        if rubrics.texts and not rubrics.problem and _idle(turns):
            return Cell(_refused(rubrics))
        material = {
            "developer_instructions": instructions_text(*(turn.app_details for turn in turns)),
            "tools": tools_text(*(turn.app_details for turn in turns)),
            "conversation": conversation_text(turns),
        }
        decided = await _decided(self.collector, place(run, run.turns - 1, TRAJECTORY), material, rubrics)
        return decided or Cell(Errored(_NO_RUBRIC))


def _idle(turns: Sequence[Invocation]) -> bool:
    """Whether the agent neither did nor said anything in a whole conversation."""
    return all(trivial(final_text(turn)) and not steps(turn) for turn in turns)


async def _by_turn(run: CaseRun, judge: Callable[[int], Awaitable[Cell | None]]) -> Judged:
    """Judge each turn that has rubrics; it is an error if none has."""
    judged = await judged_turns(run, judge)
    return judged if any(judged.per_invocation) else failed(run, _NO_RUBRIC)


def _rubrics(name: str, settings: RubricSettings, run: CaseRun, index: int) -> RubricSet:
    expected, actual = turns_of(run.expected, run.actual)[index]
    return rubrics_of_turn(name, settings, run.case, expected, actual)


async def _decided(collector: VoteCollector, where: CellKey, material: Mapping[str, str], rubrics: RubricSet) -> Cell | None:
    """Return the verdict by all rubrics; ``None`` where there is none to judge by."""
    if rubrics.problem:
        return Cell(Errored(rubrics.problem))
    if not rubrics.texts:
        return None
    items = tuple(JudgedItem(id=rubric_id, text=text) for rubric_id, text in rubrics.texts.items())
    voting = await collector.decide(
        Question(prompt=load_prompt(where.criterion), blocks=blocks_of(material), items=items, label_values=_WORTH), where
    )
    return Cell(combined(voting.results, "rubric"), voting.votes)


def _refused(rubrics: RubricSet) -> Outcome:
    """Return the outcome of an answer that satisfies no rubric, because it says nothing."""
    nothing = Scored(0.0, TRIVIAL)
    return combined(
        [ItemResult(item=JudgedItem(id=key, text=text), outcome=nothing, label="no") for key, text in rubrics.texts.items()], "rubric"
    )
