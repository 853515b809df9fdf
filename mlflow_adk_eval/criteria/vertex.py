"""The criteria that ADK has Vertex AI's evaluation service decide: safety, coherence, and three about whole conversations.

Each can be decided in two ways, as the setting ``backend`` says. With ``vertex``, ADK's way and the default, the service is asked; it takes a
project and credentials, and its own explanation and its verdicts on single properties are kept beside the score. With ``judge``, a model of
the config is asked with our prompts, as for every other judged criterion, and each vote is kept. The two ways need not agree to the digit.

An answer that says nothing gets the worst score without a call, and so does a conversation without any answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from mlflow_adk_eval.config.criteria import VertexSettings
from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS
from mlflow_adk_eval.config.spec import CriterionSpec, Need
from mlflow_adk_eval.criteria.criterion import CaseRun, whole_case
from mlflow_adk_eval.criteria.judged_turns import (
    TRIVIAL,
    Cell,
    JudgedTurns,
    asked,
    combined,
    judged_turns,
    place,
    predetermined,
    single,
    trivial,
)
from mlflow_adk_eval.criteria.transcript import conversation_text, dialogue_text, final_text, instructions_text, tools_text, user_text
from mlflow_adk_eval.criteria.vertex_instance import conversation, exchange
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.prompt import Block, Prompt, blocks_of, load_prompt
from mlflow_adk_eval.judge.question import JudgedItem, Question
from mlflow_adk_eval.judge.voting import CellKey, VoteCollector
from mlflow_adk_eval.results.outcomes import Errored, Judged, Outcome, Scored, Vote

if TYPE_CHECKING:  # reading a config loads this module, and asks no service
    from mlflow_adk_eval.judge.providers.vertex import VertexService
    from mlflow_adk_eval.judge.providers.vertex_reply import Result, RubricVerdict

_SHARE = (0.0, 1.0)
_SAFE: Mapping[str, float] = {"unsafe": 0.0, "safe": 1.0}
_GRADES: Mapping[str, float] = {str(grade): float(grade) for grade in range(1, 6)}
_YES: Mapping[str, float] = {"no": 0.0, "yes": 1.0}
_PROPERTY = re.compile(r"^- item_\d+ `(\w+)`: (.+)$", re.MULTILINE)
"""How a prompt lists what is judged besides one thing."""


@dataclass(frozen=True, slots=True)
class TurnGrade(JudgedTurns[VertexSettings]):
    """The judge's grade of each turn's answer; the case score is the mean. An answer that says nothing gets the worst one."""

    name: str
    label_values: Mapping[str, float]
    """The grades."""

    async def turn(self, run: CaseRun, index: int) -> Cell:
        """Ask for a grade of the answer in the light of the earlier turns."""
        turn = run.actual[index]
        if trivial(final_text(turn)):
            worst = min(self.label_values, key=self.label_values.__getitem__)
            return Cell(Scored(self.label_values[worst], TRIVIAL, {"verdict": worst}))
        texts = {"earlier_turns": dialogue_text(run.actual[:index]), "user_message": user_text(turn), "response": final_text(turn)}
        question = Question(prompt=load_prompt(self.name), blocks=blocks_of(texts), label_values=self.label_values)
        return await asked(self.collector, question, place(run, index, self.name))


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
        if obstacle := predetermined(run):
            return whole_case(run, obstacle)
        prompt = load_prompt(self.name)
        properties = _properties(prompt)
        items = tuple(replace(found, text=None) for found in properties) or (JudgedItem(),)
        question = Question(prompt=prompt, blocks=_conversation_blocks(run.actual), items=items, label_values=_YES)
        voting = await self.collector.decide(question, place(run, len(run.actual) - 1, self.name))
        named = [replace(result, item=found) for result, found in zip(voting.results, properties, strict=False)]
        outcome = combined(named, "property") if named else single(voting.results[0])
        return whole_case(run, outcome, voting.votes)


def _properties(prompt: Prompt) -> list[JudgedItem]:
    """Return what a prompt asks about, in the order of its list; nothing where it asks about the one thing."""
    return [JudgedItem(name, text) for name, text in _PROPERTY.findall(prompt.text)]


def _conversation_blocks(turns: Sequence[Invocation]) -> tuple[Block, ...]:
    apps = [turn.app_details for turn in turns]
    return blocks_of(
        {"developer_instructions": instructions_text(*apps), "tools": tools_text(*apps), "conversation": conversation_text(turns)}
    )


@dataclass(frozen=True, slots=True)
class VertexTurns:
    """The service's score of each turn's answer; the case score is the mean. An answer that says nothing gets the worst one."""

    name: str
    metric: str
    """What the service calls it."""
    instance: Callable[[str, str], Json]
    """From what the user and the agent said to what the service wants."""
    bounds: tuple[float, float]
    settings: VertexSettings
    service: VertexService

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own, all at the same time."""
        return await judged_turns(run, partial(self._turn, run))

    async def _turn(self, run: CaseRun, index: int) -> Cell:
        turn = run.actual[index]
        response = final_text(turn, include_intermediate=self.settings.include_intermediate_responses_in_final)
        if trivial(response):
            return Cell(Scored(self.bounds[0], TRIVIAL))
        result = await self.service.evaluate(self.metric, self.instance(user_text(turn), response), self.bounds)
        return Cell(_outcome(result), votes_of(result, self.metric, place(run, index, self.name)))


@dataclass(frozen=True, slots=True)
class VertexCase:
    """The service's score of a conversation as a whole: the share of the properties it looks for. One score per case.

    A conversation in which the agent gave no answer at all scores 0.
    """

    name: str
    settings: VertexSettings
    service: VertexService

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge the case as a whole."""
        if obstacle := predetermined(run):
            return whole_case(run, obstacle)
        result = await self.service.evaluate(self.name, conversation(run.actual), _SHARE)
        votes = votes_of(result, self.name, place(run, run.turns - 1, self.name))
        return whole_case(run, _outcome(result), votes)


def _outcome(result: Result) -> Outcome:
    if result.score is None:
        return Errored(result.error)
    lines = [result.explanation, *(f"- {_word(verdict)}: {_explained(verdict, ' ')}" for verdict in result.verdicts)]
    details: Json = {"rubrics": [_details(verdict) for verdict in result.verdicts]} if result.verdicts else {}
    if result.confidence is not None:
        details["confidence"] = result.confidence
    return Scored(result.score, "\n".join(filter(None, lines)), details)


def votes_of(result: Result, metric: str, at: CellKey) -> tuple[Vote, ...]:
    """Return a vote for each property that the service looked for; one on the whole where there are none, or no score."""
    vote = Vote(
        eval_id=at.eval_id,
        run_index=at.run_index,
        invocation_index=at.invocation_index,
        criterion=at.criterion,
        rubric_id=None,
        vote_index=0,
        verdict=None if result.score is None else f"{result.score:g}",
        explanation=result.explanation,
        model=f"vertex:{metric}",
        latency_s=result.latency_s,
        input_tokens=None,
        output_tokens=None,
        error=result.error,
        raw=result.raw,
        reused=result.reused,
        host=result.host,
        asked_in=result.asked_in,
        asked_at=result.asked_at,
    )
    named = [
        replace(vote, rubric_id=one.rubric_id, verdict=_word(one), explanation=_explained(one, "\n"), error="", raw="")
        for one in result.verdicts
    ]
    return (vote, *named) if result.error or not named else tuple(named)


def _word(verdict: RubricVerdict) -> str:
    return "yes" if verdict.met else "no"


def _explained(verdict: RubricVerdict, between: str) -> str:
    return between.join(filter(None, (verdict.description or verdict.rubric_id, verdict.reasoning)))


def _details(verdict: RubricVerdict) -> Json:
    return {
        "id": verdict.rubric_id,
        "text": verdict.description,
        "verdict": _word(verdict),
        "score": float(verdict.met),
        "rationale": verdict.reasoning,
    }


Instance = Callable[[str, str], Json]


def _turn_spec(name: str, about: str, worth: Mapping[str, float], metric: str, instance: Instance) -> CriterionSpec:
    bounds = (min(worth.values()), max(worth.values()))
    return CriterionSpec(
        name=name,
        about=about,
        kept="the service's explanation, or every vote with its explanation",
        settings=VertexSettings,
        bounds=bounds,
        prompts=(name,),
        make=partial(TurnGrade, name=name, label_values=worth),
        by_service=partial(VertexTurns, name, metric, instance, bounds),
    )


def _case_spec(name: str, about: str, needs: tuple[Need, ...] = ()) -> CriterionSpec:
    return CriterionSpec(
        name=name,
        about=about,
        kept="the service's explanation and its verdict on each rubric, or every vote with its explanation",
        settings=VertexSettings,
        bounds=_SHARE,
        scope="case",
        needs=needs,
        prompts=(name,),
        make=partial(CaseGrade, name),
        by_service=partial(VertexCase, name),
    )


SPECS = (
    _turn_spec("safety_v1", "1 for each answer that is safe, else 0", _SAFE, "safety_v1", exchange),
    _turn_spec(
        "response_evaluation_score",
        "how coherent each answer is in itself, from 1 to 5",
        _GRADES,
        RAPID_METRICS["coherence"].name,  # which the service answers for ADK's criterion, too
        lambda _user, agent: {"prediction": agent},
    ),
    _case_spec("multi_turn_task_success_v1", "whether the conversation reached what the user wanted"),
    _case_spec("multi_turn_trajectory_quality_v1", "how well the agent went about the conversation", ("calls",)),
    _case_spec("multi_turn_tool_use_quality_v1", "how well the agent used its tools in the conversation", ("calls",)),
)
