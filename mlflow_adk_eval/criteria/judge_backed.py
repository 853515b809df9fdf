"""The criteria of Vertex's evaluation service, decided by a judge of the config instead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mlflow_adk_eval.config.criteria import VertexSettings
from mlflow_adk_eval.criteria.criterion import CaseRun, whole_case
from mlflow_adk_eval.criteria.judged_turns import (
    TRIVIAL,
    Cell,
    asked,
    combined,
    foregone,
    judged_turns,
    place,
    single,
    trivial,
)
from mlflow_adk_eval.criteria.transcript import conversation_text, dialogue_text, final_text, instructions_text, tools_text, user_text
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.judge.prompt import Block, Prompt, blocks_of, load_prompt
from mlflow_adk_eval.judge.question import JudgedItem, Question
from mlflow_adk_eval.judge.voting import VoteCollector
from mlflow_adk_eval.results.outcomes import Judged, Scored

_SAFE: Mapping[str, float] = {"unsafe": 0.0, "safe": 1.0}
_GRADES: Mapping[str, float] = {str(grade): float(grade) for grade in range(1, 6)}
_YES: Mapping[str, float] = {"no": 0.0, "yes": 1.0}
_PROPERTY = re.compile(r"^- item_\d+ `(\w+)`: (.+)$", re.MULTILINE)
"""How a prompt lists what is judged besides one thing."""


@dataclass(frozen=True, slots=True)
class TurnGrade:
    """The judge's grade of each turn's answer; the case score is the mean. An answer that says nothing gets the worst one."""

    name: str
    label_values: Mapping[str, float]
    """The grades."""
    settings: VertexSettings
    collector: VoteCollector

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own."""
        return await judged_turns(run, partial(self._turn, run))

    async def _turn(self, run: CaseRun, index: int) -> Cell:
        turn = run.actual[index]
        if trivial(final_text(turn)):
            worst = min(self.label_values, key=self.label_values.__getitem__)
            return Cell(Scored(self.label_values[worst], TRIVIAL, {"verdict": worst}))
        texts = {
            "earlier_turns": dialogue_text(run.actual[:index]),
            "user_message": user_text(turn),
            "response": final_text(turn),
        }
        question = Question(prompt=load_prompt(self.name), blocks=blocks_of(texts), label_values=self.label_values)
        return await asked(self.collector, question, place(run, index, self.name))


def safety(settings: VertexSettings, collector: VoteCollector) -> TurnGrade:
    """Return ``safety_v1``: 1 for a safe answer, else 0."""
    return TurnGrade("safety_v1", _SAFE, settings, collector)


def coherence(settings: VertexSettings, collector: VoteCollector) -> TurnGrade:
    """Return ``response_evaluation_score``: from 1 to 5, how coherent an answer is. It needs no reference."""
    return TurnGrade("response_evaluation_score", _GRADES, settings, collector)


@dataclass(frozen=True, slots=True)
class CaseGrade:
    """The judge's grade of a conversation as a whole: the share of the properties in the prompt that it has; one score per case.

    A conversation in which the agent gave no answer at all scores 0.
    """

    name: str
    settings: VertexSettings
    collector: VoteCollector

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge the case as a whole."""
        if obstacle := foregone(run):
            return whole_case(run, obstacle)
        prompt = load_prompt(self.name)
        properties = _properties(prompt)
        items = tuple(replace(found, text=None) for found in properties) or (JudgedItem(),)
        question = Question(prompt=prompt, blocks=_conversation(run.actual), items=items, label_values=_YES)
        voting = await self.collector.decide(question, place(run, len(run.actual) - 1, self.name))
        named = [replace(finding, item=found) for finding, found in zip(voting.results, properties, strict=False)]
        outcome = combined(named, "property") if named else single(voting.results[0])
        return whole_case(run, outcome, voting.votes)


def task_success(settings: VertexSettings, collector: VoteCollector) -> CaseGrade:
    """Return ``multi_turn_task_success_v1``: whether the user's goals were achieved."""
    return CaseGrade("multi_turn_task_success_v1", settings, collector)


def trajectory_quality(settings: VertexSettings, collector: VoteCollector) -> CaseGrade:
    """Return ``multi_turn_trajectory_quality_v1``: how sensible the agent's way through the conversation is."""
    return CaseGrade("multi_turn_trajectory_quality_v1", settings, collector)


def tool_use_quality(settings: VertexSettings, collector: VoteCollector) -> CaseGrade:
    """Return ``multi_turn_tool_use_quality_v1``: how well the agent used its tools."""
    return CaseGrade("multi_turn_tool_use_quality_v1", settings, collector)


def _properties(prompt: Prompt) -> list[JudgedItem]:
    """Return what a prompt asks about, in the order of its list; nothing where it asks about the one thing."""
    return [JudgedItem(name, text) for name, text in _PROPERTY.findall(prompt.text)]


def _conversation(turns: Sequence[Invocation]) -> tuple[Block, ...]:
    apps = [turn.app_details for turn in turns]
    return blocks_of(
        {"developer_instructions": instructions_text(*apps), "tools": tools_text(*apps), "conversation": conversation_text(turns)}
    )
