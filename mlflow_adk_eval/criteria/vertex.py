"""The criteria that Vertex AI's evaluation service decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mlflow_adk_eval.config.criteria import VertexSettings
from mlflow_adk_eval.config.rapid import RatingSettings, TextRatingSettings
from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS, RapidMetric
from mlflow_adk_eval.criteria.criterion import CaseRun, Criterion, whole_case
from mlflow_adk_eval.criteria.judged_turns import (
    TRIVIAL,
    Cell,
    foregone,
    judged_turns,
    place,
    trivial,
)
from mlflow_adk_eval.criteria.rapid.criteria import RapidRating
from mlflow_adk_eval.criteria.rapid.messages import Rated
from mlflow_adk_eval.criteria.rapid.ratings import Judgement
from mlflow_adk_eval.criteria.transcript import final_text, user_text
from mlflow_adk_eval.criteria.vertex_instance import conversation, exchange
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.providers.vertex import COHERENCE, VertexService
from mlflow_adk_eval.judge.providers.vertex_reply import Result, RubricVerdict
from mlflow_adk_eval.judge.voting import CellKey
from mlflow_adk_eval.results.outcomes import Errored, Judged, Outcome, Scored, Vote


@dataclass(frozen=True, slots=True)
class VertexTurns:
    """The service's score of each turn's answer; the case score is the mean. An answer that says nothing gets the worst one."""

    name: str
    metric: str
    """What the service calls it."""
    instance: Callable[[str, str], Json]
    """From what the user and the agent said to what the service wants."""
    settings: VertexSettings
    service: VertexService

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own, all at the same time."""
        return await judged_turns(run, partial(self._turn, run))

    async def _turn(self, run: CaseRun, index: int) -> Cell:
        turn, bounds = run.actual[index], self.settings.bounds
        said = self._said(turn)
        if trivial(said):
            return Cell(Scored(bounds[0], TRIVIAL))
        result = await self.service.evaluate(self.metric, self.instance(user_text(turn), said), bounds)
        return Cell(_outcome(result), tuple(_votes(result, self.metric, place(run, index, self.name))))

    def _said(self, turn: Invocation) -> str:
        return final_text(turn, include_intermediate=self.settings.include_intermediate_responses_in_final)


def safety(settings: VertexSettings, service: VertexService) -> VertexTurns:
    """Return ``safety_v1``: 1 for an answer that violates none of the service's policies, else 0."""
    return VertexTurns("safety_v1", "safety_v1", exchange, settings, service)


def coherence(settings: VertexSettings, service: VertexService) -> VertexTurns:
    """Return ``response_evaluation_score``: from 1 to 5, how coherent an answer is in itself."""
    return VertexTurns("response_evaluation_score", COHERENCE, lambda _user, agent: {"prediction": agent}, settings, service)


def rapid_rating(metric: RapidMetric, settings: RatingSettings, service: VertexService) -> RapidRating:
    """Return the service's rating of each turn by a metric of the Rapid Eval API."""
    shown = isinstance(settings, TextRatingSettings) and settings.use_reference
    spec = {"use_reference": True} if shown and "use_reference" in metric.spec else {}

    async def rate(instance: Mapping[str, str], at: CellKey) -> Judgement:
        result = await service.evaluate(metric.name, dict(instance), metric.bounds, spec)
        rated = Rated(score=result.score, explanation=result.explanation, confidence=result.confidence)
        return Judgement(rated=rated, error=result.error, votes=tuple(_votes(result, metric.name, at)))

    return RapidRating(metric, settings, rate)


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
        if obstacle := foregone(run):
            return whole_case(run, obstacle)
        result = await self.service.evaluate(self.name, conversation(run.actual), self.settings.bounds)
        votes = tuple(_votes(result, self.name, place(run, run.turns - 1, self.name)))
        return whole_case(run, _outcome(result), votes)


VERTEX: Mapping[str, Callable[[Any, VertexService], Criterion]] = {
    "safety_v1": safety,
    "response_evaluation_score": coherence,
    **{
        name: partial(VertexCase, name)
        for name in ("multi_turn_task_success_v1", "multi_turn_trajectory_quality_v1", "multi_turn_tool_use_quality_v1")
    },
    **{metric.criterion: partial(rapid_rating, metric) for metric in RAPID_METRICS.values() if metric.kind == "judged"},
}
"""From a name to what makes the criterion of its settings and the service."""


def _outcome(result: Result) -> Outcome:
    if result.score is None:
        return Errored(result.error)
    lines = [result.explanation, *(f"- {_word(verdict)}: {_explained(verdict, ' ')}" for verdict in result.verdicts)]
    details: Json = {"rubrics": [_details(verdict) for verdict in result.verdicts]} if result.verdicts else {}
    if result.confidence is not None:
        details["confidence"] = result.confidence
    return Scored(result.score, "\n".join(filter(None, lines)), details)


def _votes(result: Result, metric: str, at: CellKey) -> Iterator[Vote]:
    """Yield a vote for each property that the service looked for; one on the whole where there are none, or no score."""
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
    )
    if result.error or not result.verdicts:
        yield vote
    for verdict in result.verdicts:
        word, explanation = _word(verdict), _explained(verdict, "\n")
        yield replace(vote, rubric_id=verdict.rubric_id, verdict=word, explanation=explanation, error="", raw="")


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
