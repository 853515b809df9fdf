"""The metrics that a model judges: a rating by votes, and the choice between two answers, asked in both orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from mlflow_adk_eval.config.rapid_catalogue import RapidMetric
from mlflow_adk_eval.criteria.rapid.messages import Rated
from mlflow_adk_eval.evalset.material import Material, unshown_in
from mlflow_adk_eval.judge.prompt import Block, load_prompt
from mlflow_adk_eval.judge.question import JudgedItem, Question
from mlflow_adk_eval.judge.voting import CellKey, VoteCollector
from mlflow_adk_eval.results.outcomes import Errored, Scored, Vote
from mlflow_adk_eval.runtime import gathered

SAME_TEXT = "Both answers are the same text."
"""Why a judge is not asked which of two answers is better."""
_FIRST, _TIE, _SECOND = "first", "tie", "second"
_WORTH: Mapping[str, float] = {_FIRST: 0.0, _TIE: 0.5, _SECOND: 1.0}
_CHOICE = {_FIRST: "BASELINE", _TIE: "TIE", _SECOND: "CANDIDATE"}
"""What a vote means where the baseline stands first."""
_SWAPPED = {_FIRST: _SECOND, _TIE: _TIE, _SECOND: _FIRST}
_NOTHING = "The answer is empty, so no judge was asked."


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement(Rated):
    """What the votes on one instance come to."""

    error: str = ""
    """Why it has no verdict; empty where it has one."""
    votes: tuple[Vote, ...] = ()


async def rate(metric: RapidMetric, instance: Mapping[str, Material], collector: VoteCollector, place: CellKey) -> Judgement:
    """Return the rating of an instance: the median grade, with the share of votes that gave it.

    An answer that says nothing gets the least grade of the scale, without a call.

    Args:
        metric: a judged metric.
        instance: its texts by field.
        collector: collects the votes of a judge.
        place: what the votes are recorded under.
    """
    prediction = instance["prediction"]
    if not (prediction.unshown or any(map(str.isalnum, prediction.text))):
        return Judgement(score=metric.bounds[0], explanation=_NOTHING, confidence=1.0)
    fields = (*metric.fields, *metric.optional)
    known = [field for field in ("instruction", "context", "reference") if field in instance and field in fields]
    material = {field: instance[field] for field in (*known, "prediction")}
    question = Question(
        prompt=load_prompt(metric.criterion),
        blocks=tuple(Block(field, one.text) for field, one in material.items()),
        unshown=unshown_in(material.values()),
        label_values={str(grade): float(grade) for grade in metric.scale},
    )
    voting = await collector.decide(question, place)
    outcome, share = voting.results[0].outcome, _share(voting.votes, voting.results[0].label)
    if isinstance(outcome, Errored):
        return Judgement(error=outcome.error, votes=voting.votes)
    return Judgement(score=outcome.score, explanation=outcome.rationale, confidence=share, votes=voting.votes)


async def compare(metric: RapidMetric, instance: Mapping[str, Material], collector: VoteCollector, place: CellKey) -> Judgement:
    """Return which of two answers is better. The judge votes with either answer first; if the verdicts differ, it is a tie.

    A judge prefers a position, which voting again in the same order does not cure.

    Args:
        metric: a pairwise metric.
        instance: its texts by field.
        collector: collects the votes of a judge.
        place: what the votes are recorded under.
    """
    baseline, candidate = instance["baseline_prediction"], instance["prediction"]
    if baseline == candidate and not candidate.unshown:  # two images may look alike in words
        return Judgement(choice="TIE", explanation=SAME_TEXT, confidence=1.0)
    about = {field: instance[field] for field in ("instruction", "context", "reference") if field in instance}

    def versus(first: Material, second: Material, order: str) -> Question:
        """Return a question whose votes are recorded under the order in which the answers are shown."""
        material = {**about, "first_response": first, "second_response": second}
        return Question(
            prompt=load_prompt(metric.criterion),
            blocks=tuple(Block(field, one.text) for field, one in material.items()),
            unshown=unshown_in(material.values()),
            items=(JudgedItem(id=order),),
            label_values=_WORTH,
        )

    questions = (versus(baseline, candidate, "baseline_first"), versus(candidate, baseline, "candidate_first"))
    straight, swapped = await gathered(partial(collector.decide, question, place) for question in questions)
    # From here on, *first* is the baseline in both.
    turned = (
        replace(vote, verdict=(label := _SWAPPED[vote.verdict]), value=_WORTH[label]) if vote.verdict else vote for vote in swapped.votes
    )
    votes = (*straight.votes, *turned)
    named = tuple(replace(vote, verdict=_CHOICE[vote.verdict] if vote.verdict else None) for vote in votes)
    findings = (straight.results[0], swapped.results[0])
    if errors := [finding.outcome.error for finding in findings if isinstance(finding.outcome, Errored)]:
        return Judgement(error="; ".join(dict.fromkeys(errors)), votes=named)
    labels = (findings[0].label or _TIE, _SWAPPED[findings[1].label or _TIE])
    reasons = [finding.outcome.rationale for finding in findings if isinstance(finding.outcome, Scored)]
    label, explanation = labels[0], reasons[0]
    if labels[0] != labels[1]:
        orders = ("With the baseline first", "With the candidate first")
        both = [f"{order} the verdict was {_CHOICE[verdict]}: {text}" for order, verdict, text in zip(orders, labels, reasons, strict=True)]
        label, explanation = _TIE, " ".join(["The verdict changed with the order of the answers, so it is a tie.", *both])
    return Judgement(choice=_CHOICE[label], explanation=explanation, confidence=_share(votes, label), votes=named)


def _share(votes: tuple[Vote, ...], label: str | None) -> float:
    """Return the share of the usable votes that agree with a verdict."""
    cast = Counter(vote.verdict for vote in votes if vote.verdict is not None)
    return cast[label or ""] / cast.total() if cast else 0.0
