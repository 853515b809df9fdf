"""What judging a case took and how far the judges were of one mind, from the votes that a run has kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mlflow_adk_eval.gating.policy.model import AGENT, Price
from mlflow_adk_eval.results.report import (
    CaseResult,
    CriterionResult,
    Scored,
    Vote,
    reason_of,
)

_MILLION = 1_000_000
_VERSION = re.compile(r"[-@:](?:v?\d[\d.-]*|latest)")
_TOKENS = "token_usage_v1"
_ALIKE = {"not_applicable": "supported", "contradictory": "unsupported", "disputed": "unsupported"}
"""Labels of a sentence that are worth the same, by another of that worth: they do not contradict each other."""


def flip_of(results: Iterable[CriterionResult]) -> float | None:
    """Return the share of the votes on a case run that contradict the verdict they took part in; ``None`` without votes."""
    ballots: dict[tuple[str, int, str | None], Counter[str]] = {}
    for vote in (vote for result in results for vote in result.votes):
        if vote.verdict is not None:
            ballot = ballots.setdefault((vote.criterion, vote.invocation_index, vote.rubric_id), Counter())
            ballot[_ALIKE.get(vote.verdict, vote.verdict)] += 1
    votes = sum(ballot.total() for ballot in ballots.values())
    return sum(ballot.total() - max(ballot.values()) for ballot in ballots.values()) / votes if votes else None


def answers_of(results: Iterable[CriterionResult]) -> list[list[Vote]]:
    """Return the answers of judges on a case run, each with its votes: one answer may give a verdict on several things."""
    found: dict[tuple[str, int, int, float], list[list[Vote]]] = {}
    for vote in (vote for result in results for vote in result.votes):
        answers = found.setdefault((vote.criterion, vote.invocation_index, vote.vote_index, vote.latency_s), [])
        # Tokens stand with the first vote of an answer, so others that have tokens begin another answer.
        if answers and not (_has_tokens(vote) and any(map(_has_tokens, answers[-1]))):
            answers[-1].append(vote)
        else:
            answers.append([vote])
    return [answer for answers in found.values() for answer in answers]


def _has_tokens(vote: Vote) -> bool:
    return vote.input_tokens is not None or vote.output_tokens is not None


def calls_of(results: Iterable[CriterionResult]) -> int:
    """Return how many answers were asked for, those included that failed or were paid for before."""
    return len(answers_of(results))


def tokens_of(results: Iterable[CriterionResult]) -> float | str:
    """Return the tokens of all answers, also of those that were paid for before; a text: a judge does not say them."""
    found = [_tokens(answer) for answer in answers_of(results)]
    unknown = next((text for text in found if isinstance(text, str)), None)
    return unknown or float(sum(into + out for into, out in (pair for pair in found if not isinstance(pair, str))))


def _tokens(answer: Sequence[Vote]) -> tuple[int, int] | str:
    """Return the tokens of an answer, in and out. A call that failed has none unless it says so."""
    told = [vote for vote in answer if _has_tokens(vote)]
    if not told and any(vote.verdict is not None or vote.raw for vote in answer):
        return f"the judge {answer[0].model or 'without a name'} does not say how many tokens it took"
    return sum(vote.input_tokens or 0 for vote in told), sum(vote.output_tokens or 0 for vote in told)


def cost_of(case: CaseResult, prices: Mapping[str, Price]) -> float | str:
    """Return what a case run costs: its judges, and its agent where that has a price. A text says what is not known of it."""
    spent = 0.0
    for answer in answers_of(case.results):
        tokens, price = _tokens(answer), price_of(answer[0].model, prices)
        if isinstance(tokens, str):
            return tokens
        if price is None:
            return f"the policy has no price for the judge {answer[0].model or 'without a name'}"
        into, out = (price.tokens, price.tokens) if price.tokens is not None else (price.input or 0.0, price.output or 0.0)
        spent += (tokens[0] * into + tokens[1] * out) / _MILLION
    agent = _agent_cost(case, prices[AGENT]) if AGENT in prices else 0.0
    return agent if isinstance(agent, str) else spent + agent


def _agent_cost(case: CaseResult, price: Price) -> float | str:
    result = next((result for result in case.results if result.criterion == _TOKENS), None)
    if result is None:
        return f"the run has no {_TOKENS}, so what the agent cost is not known"
    unknown = [cell for cell in result.per_invocation if not isinstance(cell, Scored)]
    if unknown:
        return f"what the agent cost is not known: {reason_of(unknown[0]) if unknown[0] else f'{_TOKENS} has no score'}"
    total = sum(cell.score for cell in result.per_invocation if isinstance(cell, Scored))
    return total * (price.tokens or 0.0) / _MILLION


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Return the price of the version of a model that answered: its own, or that of the model it is a version of, by any provider's name.

    >>> price_of("gemini-2.5-flash-001", {"gemini-2.5-flash": Price(tokens=1.0)}) == Price(tokens=1.0)
    True
    >>> price_of("gpt-5-mini-2025-08-07", {"openai/gpt-5-mini": Price(tokens=1.0), "gpt-5": Price(tokens=2.0)}) == Price(tokens=1.0)
    True
    >>> price_of("gpt-5-mini", {"gpt-5": Price(tokens=1.0)}) is None
    True
    """
    found = [(bare == model, len(bare), name) for name in prices if name != AGENT and (bare := _named(model, name))]
    return prices[max(found)[2]] if found else None


def _named(model: str, name: str) -> str:
    """Return the part of the name of a price that names a model, with or without its provider; empty if it is another model."""
    bare = next((text for text in (name, name.rpartition("/")[2]) if text and model.startswith(text)), "")
    return bare if bare == model or _VERSION.fullmatch(model, len(bare)) else ""
