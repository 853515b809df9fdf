"""The 21 metrics of the Rapid Eval API as criteria, ``rapid_eval_`` and the metric's name: each turn of a conversation is an instance.

The prediction is the turn's final response and the reference the expected one; tool calls are written as the API writes them. The
context is what the agent knew, as for ``hallucinations_v1``, and the instruction what the user said or what the agent is told to do.

What a metric is called, reads and answers stands in `config.rapid_catalogue`; the settings, the range and the direction of each criterion
derive from that, so a new metric is a new entry there. ADK has none of them.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StringConstraints

from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS, RapidMetric
from mlflow_adk_eval.config.spec import (
    BACKEND,
    CriterionSettings,
    CriterionSpec,
    ExpectingSettings,
    JudgedSettings,
    ReferenceSettings,
    Unread,
    VertexSettings,
)
from mlflow_adk_eval.criteria.criterion import CaseRun, judge_pairs
from mlflow_adk_eval.criteria.expected import ExpectedCallsSettings, ExpectedResponseSettings, ExpectedWordsSettings
from mlflow_adk_eval.criteria.judged_turns import TRIVIAL, Cell, JudgedTurns, judged_turns, place, says_nothing
from mlflow_adk_eval.criteria.rapid.computed import computed_score, load
from mlflow_adk_eval.criteria.rapid.ratings import SAME_TEXT, Judgement, compare, rate
from mlflow_adk_eval.criteria.response_match import no_text
from mlflow_adk_eval.criteria.transcript import (
    final_material,
    instructions_material,
    json_text,
    knowledge_material,
    user_material,
    words_of,
)
from mlflow_adk_eval.criteria.vertex import votes_of
from mlflow_adk_eval.evalset.material import Material, unshown_in
from mlflow_adk_eval.evalset.models import EvalCase, Invocation
from mlflow_adk_eval.evalset.observation import Need
from mlflow_adk_eval.judge.voting import CellKey, VoteCollector
from mlflow_adk_eval.results.outcomes import Errored, Judged, Outcome, Scored

if TYPE_CHECKING:  # reading a config loads this module, and asks no service
    from mlflow_adk_eval.judge.providers.vertex import VertexService

_NO_CALL = Scored(1.0, "No call was expected or made.")
_NO_REFERENCE = Errored("the turn has no expected response as a reference")
_WINS = {"BASELINE": 0.0, "TIE": 0.5, "CANDIDATE": 1.0}
_NO_CONTENT = "an empty answer is no better than any other."
_UNASKED = {f"TIE: {SAME_TEXT}": _WINS["TIE"]} | {f"{choice}: {_NO_CONTENT}": worth for choice, worth in _WINS.items()}


class BleuSettings(ExpectedResponseSettings):
    """How BLEU is computed."""

    use_effective_order: bool = Field(
        default=True, description="whether n-grams longer than a short answer are ignored; otherwise it scores 0."
    )


class RougeSettings(ExpectedWordsSettings):
    """How ROUGE is computed."""

    rouge_type: Annotated[str, StringConstraints(pattern=r"^(rougen?[1-9]|rougeL|rougeLsum)$")] = Field(
        default="rouge1", description="``rouge1`` to ``rouge9``, ``rougeL`` or ``rougeLsum``."
    )
    use_stemmer: bool = Field(default=False, description="whether English words are stemmed.")
    split_summaries: bool = Field(default=False, description="whether ``rougeLsum`` treats each sentence as a line.")

    def unread(self) -> Iterator[Unread]:
        """Yield a setting of another kind of ROUGE."""
        yield from super().unread()
        if self.split_summaries and self.rouge_type != "rougeLsum":
            yield Unread("split_summaries", "rouge_type: rougeLsum; no other splits texts")


class ParameterSettings(ExpectedCallsSettings):
    """How the parameters of tool calls are compared."""

    use_strict_string_match: bool = Field(
        default=False, description="whether values must be equal as text; else they are compared as JSON."
    )


_INSTRUCTION = "the source of the instruction: the user's message or the agent's instructions."
_USE_REFERENCE = "whether the judge sees the expected answer."


class RatingSettings(VertexSettings):
    """A rating by a model: of our own choice, which is the default here, or by Vertex's service."""

    backend: Literal["vertex", "judge"] = Field(default="judge", description=BACKEND)


class InstructedSettings(RatingSettings):
    """A rating of an answer beside what was asked for."""

    instruction: Literal["user_message", "agent_instructions"] = Field(default="user_message", description=_INSTRUCTION)


class MayUseReference(ExpectingSettings):
    """A judge that may be shown the expected answer."""

    lacks_by_turn = True
    use_reference: bool = Field(default=False, description=_USE_REFERENCE)

    def lack(self, case: EvalCase, index: int) -> str:
        """Return that a turn has no expected answer, if the judge is to see it."""
        return _SHOWN.lack(case, index) if self.use_reference else ""

    def unread(self) -> Iterator[Unread]:
        """Yield what is left out, if the judge does not see the expected answer."""
        yield from super().unread()
        if self.only_where_expected and not self.use_reference:
            yield Unread("only_where_expected", "use_reference: true; without it, nothing is expected of a case")


_SHOWN = ExpectedResponseSettings(threshold=0.0)
"""What a judge is shown of the expected answer: the final response."""


class TextRatingSettings(InstructedSettings, MayUseReference):
    """A rating of an answer beside what it was made of."""


class PairwiseSettings(JudgedSettings, MayUseReference):
    """A choice between the answer and that of a baseline."""

    instruction: Literal["user_message", "agent_instructions"] = Field(default="user_message", description=_INSTRUCTION)


@dataclass(frozen=True, slots=True)
class RapidComputed:
    """A computed metric of each turn beside its reference; the case score is the mean."""

    settings: ReferenceSettings
    metric: RapidMetric

    def __post_init__(self) -> None:
        """Refuse a metric whose package is not installed."""
        load(self.metric.name)

    def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own."""
        return judge_pairs(run, self._turn, self.settings)

    def _turn(self, actual: Invocation, expected: Invocation) -> Outcome:
        turns = {"prediction": actual, "reference": expected}
        if isinstance(self.settings, ExpectedResponseSettings):
            text_of = self.settings.text_of
            instance = {name: text_of(turn) for name, turn in turns.items()}
            if lacking := self.settings.lack_of_text(instance["reference"]):
                return Errored(f"the turn has no reference: it lacks {lacking}")
            if not instance["prediction"] and (other := no_text(actual)):
                return other
        elif actual.tool_calls or expected.tool_calls:
            instance = {name: _calls_text(turn) for name, turn in turns.items()}
        else:
            return _NO_CALL
        spec = {name: getattr(self.settings, name) for name in self.metric.spec}
        score = computed_score(self.metric.name, spec, instance)
        given = ", ".join(f"{name} {value}" for name, value in spec.items())
        return Scored(score, f"{self.metric.about[:1].upper()}{self.metric.about[1:]}{f' ({given})' if given else ''}: {score:.4g}.")


def _calls_text(turn: Invocation) -> str:
    """Return a turn's answer as the API writes one with tool calls."""
    calls = [{"name": call.name or "", "arguments": json.loads(json_text(call.args or {}))} for call in turn.tool_calls]
    return json.dumps({"content": words_of(turn), "tool_calls": calls}, ensure_ascii=False)


Rate = Callable[[Mapping[str, Material], CellKey], Awaitable[Judgement]]
"""From an instance, and what votes on it are recorded under, to its rating."""


@dataclass(frozen=True, slots=True)
class RapidRating:
    """A rating of each turn; the case score is the mean. An answer that says nothing gets the worst one."""

    metric: RapidMetric
    settings: RatingSettings
    rate: Rate

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own, all at the same time."""
        return await judged_turns(run, partial(self._turn, run), self.settings)

    async def _turn(self, run: CaseRun, index: int) -> Cell:
        instance = instance_of(self.metric, self.settings, run, index)
        if isinstance(instance, Errored):
            return Cell(instance)
        metric = self.metric
        if says_nothing(instance["prediction"]):
            worst = metric.range[metric.around_optimum]
            return Cell(Scored(worst, TRIVIAL, {"rating": metric.bounds[0]}))
        judgement = await self.rate(instance, place(run, index, metric.criterion))
        if (rating := judgement.score) is None:
            return Cell(Errored(judgement.error), judgement.votes)
        grade = metric.scale.get(round(rating), "")
        details = {"rating": rating, "grade": grade, "confidence": judgement.confidence}
        score = abs(rating) if metric.around_optimum else rating
        return Cell(Scored(score, f"{rating:g} ({grade}): {judgement.explanation}", details), judgement.votes)


def _by_judge(settings: RatingSettings, collector: VoteCollector, metric: RapidMetric) -> RapidRating:
    return RapidRating(metric, settings, lambda instance, at: rate(metric, instance, collector, at))


def _by_service(settings: RatingSettings, service: VertexService, metric: RapidMetric) -> RapidRating:
    """Return the service's rating of each turn."""
    shown = isinstance(settings, TextRatingSettings) and settings.use_reference
    spec = {"use_reference": True} if shown and "use_reference" in metric.spec else {}

    async def service_rate(instance: Mapping[str, Material], at: CellKey) -> Judgement:
        texts = {name: one.text for name, one in instance.items()}
        unshown = unshown_in(instance.values())
        result = await service.evaluate(metric.name, texts, metric.bounds, spec, unshown=unshown)
        said: dict[str, Any] = {name: getattr(result, name) for name in ("score", "explanation", "confidence", "error")}
        return Judgement(**said, votes=votes_of(result, metric.name, at))

    return RapidRating(metric, settings, service_rate)


def instance_of(
    metric: RapidMetric,
    settings: RatingSettings | PairwiseSettings,
    run: CaseRun,
    index: int,
) -> Mapping[str, Material] | Errored:
    """Return a turn as an instance of a judged metric, or what it lacks."""
    turn = run.actual[index]
    answer = final_material(turn, include_intermediate=settings.include_intermediate_responses_in_final)
    instance = {"prediction": answer}
    if "context" in metric.fields:
        instance["context"] = knowledge_material(run.actual[: index + 1])
        if not instance["context"].text:
            return Errored("the agent's context was not recorded, so there is nothing to judge against")
    if isinstance(settings, InstructedSettings | PairwiseSettings):
        of_user = settings.instruction == "user_message"
        instance["instruction"] = user_material(turn) if of_user else instructions_material(turn.app_details)
        if not instance["instruction"].text:
            return Errored("the agent's instructions were not recorded, so there is nothing to judge against")
    if isinstance(settings, TextRatingSettings | PairwiseSettings) and settings.use_reference:
        if not run.expected or index >= len(run.expected) or settings.lack(run.case, index):
            return _NO_REFERENCE
        instance["reference"] = final_material(run.expected[index])
        if not instance["reference"].text:
            return _NO_REFERENCE
    return instance


@dataclass(frozen=True, slots=True)
class RapidPairwise(JudgedTurns[PairwiseSettings]):
    """A judge's choice between each turn and the baseline's: 1 where the turn is better, 0.5 for a tie; the case score is the mean."""

    metric: RapidMetric

    async def turn(self, run: CaseRun, index: int) -> Cell:
        """Have a turn compared with the baseline's, unless either lacks something or says nothing."""
        instance = instance_of(self.metric, self.settings, run, index)
        if isinstance(instance, Errored):
            return Cell(instance)
        if run.baseline is None or index >= len(run.baseline):
            lacking = "there is no baseline for this case" if run.baseline is None else "the baseline has no such turn"
            return Cell(Errored(f"{lacking} to compare with"))
        baseline = self.answer(run.baseline[index])
        silent, baseline_silent = says_nothing(instance["prediction"]), says_nothing(baseline)
        if silent or baseline_silent:
            choice = "TIE" if silent and baseline_silent else "BASELINE" if silent else "CANDIDATE"
            return Cell(Scored(_WINS[choice], f"{choice}: {_NO_CONTENT}", {"pairwise_choice": choice}))
        both = {**instance, "baseline_prediction": baseline}
        judgement = await compare(self.metric, both, self.collector, place(run, index, self.metric.criterion))
        if judgement.choice is None:
            return Cell(Errored(judgement.error), judgement.votes)
        details = {"pairwise_choice": judgement.choice, "confidence": judgement.confidence}
        return Cell(Scored(_WINS[judgement.choice], f"{judgement.choice}: {judgement.explanation}", details), judgement.votes)


def _settings_class(metric: RapidMetric) -> type[CriterionSettings]:
    """Return the settings that fit a metric: with what it reads of a turn, or with the fields of its ``metric_spec``."""
    if metric.kind == "pairwise":
        return PairwiseSettings
    if metric.kind == "judged":
        if "instruction" not in metric.fields:
            return RatingSettings
        return TextRatingSettings if "use_reference" in metric.spec else InstructedSettings
    if metric.name == "tool_call_valid":  # which compares with nothing
        return ReferenceSettings
    for settings in (BleuSettings, RougeSettings, ParameterSettings):
        if metric.spec and settings.model_fields.keys() >= metric.spec.keys():
            return settings
    return ExpectedCallsSettings if metric.on_calls else ExpectedResponseSettings


_MAKERS: Mapping[str, Callable[..., Any]] = {"computed": RapidComputed, "judged": _by_judge, "pairwise": RapidPairwise}
_KEPT = {
    "computed": "the settings used",
    "judged": "the grade, its explanation, confidence and votes",
    "pairwise": "the choice, its explanation, confidence and votes in both orders",
}


def _spec(metric: RapidMetric) -> CriterionSpec:
    needs: tuple[Need, ...] = ("baseline",) if metric.kind == "pairwise" else ()
    if metric.kind == "computed":
        on_calls: tuple[Need, ...] = ("calls",) if metric.name == "tool_call_valid" else ("expected_calls", "calls")
        needs = ("reference", *on_calls) if metric.on_calls else ("reference", "expected_response")
    return CriterionSpec(
        name=metric.criterion,
        origin="rapid_eval",
        about=f"{metric.about}; the score is the distance from 0, and lower is better" if metric.around_optimum else metric.about,
        kept=_KEPT[metric.kind],
        settings=_settings_class(metric),
        reads_intermediate=not metric.on_calls,
        bounds=metric.range,
        unasked=_UNASKED if metric.kind == "pairwise" else {},
        greater_is_better=not metric.around_optimum,
        needs=needs,
        prompts=() if metric.kind == "computed" else (metric.criterion,),
        make=partial(_MAKERS[metric.kind], metric=metric),
        by_service=partial(_by_service, metric=metric) if metric.kind == "judged" else None,
    )


SPECS = tuple(map(_spec, RAPID_METRICS.values()))
