"""The Rapid Eval API's metrics as criteria: each turn of a conversation is an instance.

The prediction is the turn's final response and the reference the expected one; tool calls are written as the API writes them. The
context is what the agent knew, as for ``hallucinations_v1``, and the instruction what the user said or what the agent is told to do.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mlflow_adk_eval.config.criteria import CriterionSettings
from mlflow_adk_eval.config.rapid import InstructedSettings, PairwiseSettings, RatingSettings, TextRatingSettings
from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS, RapidMetric
from mlflow_adk_eval.criteria.criterion import CaseRun, Criterion, judge_pairs
from mlflow_adk_eval.criteria.judged_turns import (
    TRIVIAL,
    Cell,
    judged_turns,
    place,
    trivial,
)
from mlflow_adk_eval.criteria.rapid.computed import computed_score
from mlflow_adk_eval.criteria.rapid.ratings import Judgement, compare, rate
from mlflow_adk_eval.criteria.transcript import final_text, instructions_text, json_text, knowledge_text, user_text
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.judge.voting import CellKey, VoteCollector
from mlflow_adk_eval.results.outcomes import Errored, Judged, Outcome, Scored

_ON_CALLS = ("tool_call_valid", "tool_name_match", "tool_parameter_key_match", "tool_parameter_kv_match")
_NO_CALL = Scored(1.0, "No call was expected or made.")
_NO_INSTRUCTION = Errored("the instructions of the agent were not recorded, so there is no instruction to judge by")
_NO_CONTEXT = Errored("nothing is recorded of what the agent knew, so there is no context to judge by")
_NO_REFERENCE = Errored("the turn has no expected response, so there is no reference to judge by")
_NO_BASELINE = Errored("there is no baseline of this case to compare with")
_NO_SUCH_TURN = Errored("the baseline has no such turn to compare with")
_WINS = {"BASELINE": 0.0, "TIE": 0.5, "CANDIDATE": 1.0}
_VERBOSITY = "summarization_verbosity"


@dataclass(frozen=True, slots=True)
class RapidComputed:
    """A computed metric of each turn beside its reference; the case score is the mean."""

    metric: RapidMetric
    settings: CriterionSettings

    def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own."""
        return judge_pairs(run, self._turn)

    def _turn(self, actual: Invocation, expected: Invocation) -> Scored:
        on_calls = self.metric.name in _ON_CALLS
        if on_calls and not actual.tool_calls and not expected.tool_calls:
            return _NO_CALL
        text = _calls_text if on_calls else partial(final_text, include_intermediate=self.settings.include_intermediate_responses_in_final)
        instance = {"prediction": text(actual), "reference": text(expected)}
        spec = {name: getattr(self.settings, name) for name in self.metric.spec}
        score = computed_score(self.metric.name, spec, instance)
        given = ", ".join(f"{name} {value}" for name, value in spec.items())
        return Scored(score, f"{self.metric.about[:1].upper()}{self.metric.about[1:]}{f' ({given})' if given else ''}: {score:.4g}.")


def _calls_text(turn: Invocation) -> str:
    """Return a turn's answer as the API writes one with tool calls."""
    calls = [{"name": call.name or "", "arguments": json.loads(json_text(call.args or {}))} for call in turn.tool_calls]
    return json.dumps({"content": final_text(turn), "tool_calls": calls}, ensure_ascii=False)


Rate = Callable[[Mapping[str, str], CellKey], Awaitable[Judgement]]
"""From an instance, and what votes on it are recorded under, to its rating."""


@dataclass(frozen=True, slots=True)
class RapidRating:
    """A rating of each turn; the case score is the mean. An answer that says nothing gets the worst one."""

    metric: RapidMetric
    settings: RatingSettings
    rate: Rate

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own, all at the same time."""
        return await judged_turns(run, partial(self._turn, run))

    async def _turn(self, run: CaseRun, index: int) -> Cell:
        instance = instance_of(self.metric, self.settings, run, index)
        if isinstance(instance, Errored):
            return Cell(instance)
        if trivial(instance["prediction"]):
            return Cell(worst(self.metric, self.settings))
        judgement = await self.rate(instance, place(run, index, self.metric.criterion))
        return Cell(rating(self.metric, judgement), judgement.votes)


def _by_votes(metric: RapidMetric, settings: RatingSettings, collector: VoteCollector) -> RapidRating:
    return RapidRating(metric, settings, lambda instance, at: rate(metric, instance, collector, at))


def instance_of(metric: RapidMetric, settings: RatingSettings | PairwiseSettings, run: CaseRun, index: int) -> Mapping[str, str] | Errored:
    """Return a turn as an instance of a judged metric, or what it lacks."""
    turn = run.actual[index]
    texts = {"prediction": final_text(turn, include_intermediate=settings.include_intermediate_responses_in_final)}
    if "context" in metric.fields:
        texts["context"] = knowledge_text(run.actual[: index + 1])
        if not texts["context"]:
            return _NO_CONTEXT
    if isinstance(settings, InstructedSettings | PairwiseSettings):
        texts["instruction"] = user_text(turn) if settings.instruction == "user_message" else instructions_text(turn.app_details)
        if not texts["instruction"]:
            return _NO_INSTRUCTION
    if isinstance(settings, TextRatingSettings | PairwiseSettings) and settings.use_reference:
        texts["reference"] = final_text(run.expected[index]) if run.expected and index < len(run.expected) else ""
        if not texts["reference"]:
            return _NO_REFERENCE
    return texts


def worst(metric: RapidMetric, settings: CriterionSettings) -> Scored:
    """Return the worst score of a metric, for an answer that was not worth a call."""
    return Scored(settings.bounds[0] if settings.greater_is_better else settings.bounds[1], TRIVIAL, {"rating": metric.bounds[0]})


def rating(metric: RapidMetric, judgement: Judgement) -> Outcome:
    """Return a judgement as an outcome: the rating, or, on a scale around an optimum, the distance from that."""
    rated = judgement.rated
    if rated is None or rated.score is None:
        return Errored(judgement.error)
    grade = metric.scale.get(round(rated.score), "")
    details = {"rating": rated.score, "grade": grade, "confidence": rated.confidence}
    score = abs(rated.score) if metric.name == _VERBOSITY else rated.score
    return Scored(score, f"{rated.score:g} ({grade}): {rated.explanation}", details)


@dataclass(frozen=True, slots=True)
class RapidPairwise:
    """A judge's choice between each turn and the baseline's: 1 where the turn is better, 0.5 for a tie; the case score is the mean."""

    metric: RapidMetric
    settings: PairwiseSettings
    collector: VoteCollector

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own, all at the same time."""
        return await judged_turns(run, partial(self._turn, run))

    async def _turn(self, run: CaseRun, index: int) -> Cell:
        instance = instance_of(self.metric, self.settings, run, index)
        if isinstance(instance, Errored):
            return Cell(instance)
        if run.baseline is None or index >= len(run.baseline):
            return Cell(_NO_BASELINE if run.baseline is None else _NO_SUCH_TURN)
        baseline = final_text(run.baseline[index], include_intermediate=self.settings.include_intermediate_responses_in_final)
        silent = (trivial(instance["prediction"]), trivial(baseline))
        if any(silent):
            return Cell(_silent(*silent))
        judgement = await compare(
            self.metric, {**instance, "baseline_prediction": baseline}, self.collector, place(run, index, self.metric.criterion)
        )
        return Cell(_choice(judgement), judgement.votes)


def _silent(candidate: bool, baseline: bool) -> Scored:
    """Return the choice where an answer says nothing."""
    choice = "TIE" if candidate and baseline else "BASELINE" if candidate else "CANDIDATE"
    return Scored(_WINS[choice], f"{choice}: an answer that has no content is no better than any other.", {"pairwise_choice": choice})


def _choice(judgement: Judgement) -> Outcome:
    rated = judgement.rated
    if rated is None or rated.choice is None:
        return Errored(judgement.error)
    details = {"pairwise_choice": rated.choice, "confidence": rated.confidence}
    return Scored(_WINS[rated.choice], f"{rated.choice}: {rated.explanation}", details)


_MAKERS: Mapping[str, Callable[..., Criterion]] = {"computed": RapidComputed, "judged": _by_votes, "pairwise": RapidPairwise}


def _criterion(metric: RapidMetric) -> Callable[..., Criterion]:
    return partial(_MAKERS[metric.kind], metric)


RAPID_COMPUTED: Mapping[str, Callable[[Any], Criterion]] = {
    metric.criterion: _criterion(metric) for metric in RAPID_METRICS.values() if metric.kind == "computed"
}
RAPID_JUDGED: Mapping[str, Callable[[Any, VoteCollector], Criterion]] = {
    metric.criterion: _criterion(metric) for metric in RAPID_METRICS.values() if metric.kind != "computed"
}
